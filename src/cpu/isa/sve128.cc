// SVE, 128-bit vectors (Neoverse N2, V2).
#define FA_SVE_KERNELS kKernels_sve128
#define FA_SVE_NAME "sve128"
#include "cpu/isa/sve.inc"
