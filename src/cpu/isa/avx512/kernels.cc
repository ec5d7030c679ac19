// The kernel table of AVX-512 F, BW, DQ, VL (Skylake-X, Zen 4 and later).
#define FA_ISA_VECTORS "cpu/isa/avx512/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/avx512/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx512;
constexpr Kernels kKernels_avx512 = tile_kernels("avx512", FA_ISA_AVX512);

}  // namespace cpu
}  // namespace fa
