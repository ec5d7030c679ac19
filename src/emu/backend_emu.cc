// The GPU backend's device text on the emulator, as a module: tests run it where no GPU is.
#include "emu/rt_emu.h"
#include "gpu/backend_gpu.inc"
