// SVE, 256-bit vectors (Neoverse V1).
#define FA_SVE_KERNELS kKernels_sve256
#define FA_SVE_NAME "sve256"
#include "cpu/isa/sve.inc"
