// The SIMT backward kernels on the emulator, in a unit of their own as in src/cuda. backward/instances_simt.h compiles and lists them,
// from their rows.
#include "emu/rt_emu.h"
#include "gpu/backward/instances_simt.h"
