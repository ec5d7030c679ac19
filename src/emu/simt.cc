#include "emu/rt_emu.h"
#include "gpu/instances_simt.h"
