// The kernels that merge splits, on the emulator, in a unit of their own: without machine code a call compiles the units that it needs.
#include "emu/rt_emu.h"
#include "gpu/rows/merge_splits.h"
