// The kernel table of NEON, which every aarch64 CPU has: 32 registers of 4 floats. The vector primitives and storage formats are
// here, the kernels in kernels/.
#define FA_ISA_VECTORS "cpu/isa/neon/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/neon/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_neon;
constexpr Kernels kKernels_neon = tile_kernels("neon", FA_ISA_NEON);

}  // namespace cpu
}  // namespace fa
