// The GPU backends' device text on the emulator. MMA kernels have translation units of their own, as in src/cuda.
#include "emu/rt_emu.h"
#include "gpu/backend_gpu.h"
