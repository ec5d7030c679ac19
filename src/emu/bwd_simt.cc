#include "emu/rt_emu.h"
#include "gpu/instances_bwd_simt.h"
