// The kernel table of AVX-512 F, BW, DQ, VL (Skylake-X, Zen 4 and later).
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx512;

namespace {

#include "cpu/isa/avx512.inc"
#include "cpu/kernels/tile_kernels.inc"

}  // namespace

const Kernels kKernels_avx512 = FA_KERNELS("avx512", FA_ISA_AVX512);

}  // namespace cpu
}  // namespace fa
