// The kernels that append, rotate, merge and convert rows, on the emulator, in a unit of their own as those of merge_splits.cc.
#include "emu/rt_emu.h"
#include "gpu/rows/append.h"
#include "gpu/rows/convert.h"
