// The kernel table of SVE, 128-bit vectors (Neoverse N2, V2). The vectors' length is fixed by
// -msve-vector-bits: a block of accumulators stays in registers only where the compiler knows their size.
#define FA_ISA_VECTORS "cpu/isa/sve/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/sve/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_sve128;
constexpr Kernels kKernels_sve128 = tile_kernels("sve128", FA_ISA_SVE);

}  // namespace cpu
}  // namespace fa
