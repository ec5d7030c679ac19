// The SIMT forward kernels on the emulator, in a unit of their own as in src/cuda. simt/instances.h compiles and lists them, from
// their rows.
#include "emu/rt_emu.h"
#include "gpu/simt/instances.h"
