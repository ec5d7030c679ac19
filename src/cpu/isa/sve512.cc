// SVE, 512-bit vectors (A64FX).
#define FA_SVE_KERNELS kKernels_sve512
#define FA_SVE_NAME "sve512"
#include "cpu/isa/sve.inc"
