// AVX-512 F, BW, DQ, VL (Skylake-X, Zen 4 and later).
#include <immintrin.h>
#include "kernel.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx512;

namespace {

#include "avx512.inc"
#include "kernels.inc"

}  // namespace

const Kernels kKernels_avx512 = FA_KERNELS("avx512", FA_ISA_AVX512);

}  // namespace cpu
}  // namespace fa
