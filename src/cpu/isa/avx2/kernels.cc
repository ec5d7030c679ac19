// The kernel table of AVX2 with FMA (Haswell, Zen and later): 16 registers of 8 floats. The vector primitives and storage formats
// are here, the kernels in kernels/.
#define FA_ISA_VECTORS "cpu/isa/avx2/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/avx2/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx2;
constexpr Kernels kKernels_avx2 = tile_kernels("avx2", FA_ISA_AVX2);

}  // namespace cpu
}  // namespace fa
