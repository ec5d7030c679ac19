// The portable kernel table: compiler vector extensions, which become SSE2, NEON, VSX, LSX, … or plain scalars. The vector
// primitives and storage formats are here, the kernels in kernels/.
#define FA_ISA_VECTORS "cpu/isa/generic/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/generic/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_generic;
constexpr Kernels kKernels_generic = tile_kernels("generic", FA_ISA_GENERIC);

}  // namespace cpu
}  // namespace fa
