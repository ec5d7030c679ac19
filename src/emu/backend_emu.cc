// A GPU backend on the emulator: the table of functions of gpu/backend_gpu.h over rt_emu.h, with the kernels that it launches
// itself. Tests load the module in place of the HIP one. Forward and backward kernels have translation units of their own, as in
// src/cuda.
#include "emu/rt_emu.h"
#include "gpu/plain_launch.h"
#include "gpu/backend_gpu.h"
