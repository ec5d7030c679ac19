// A GPU backend on the emulator: the table of functions of gpu/host/backend.h over rt_emu.h, with the kernels that it launches
// itself. Tests load the module in place of the HIP one. Forward and backward kernels have translation units of their own, as in
// src/cuda.
#include "emu/rt_emu.h"
#include "gpu/host/plain_launch.h"
#include "gpu/host/backend.h"
