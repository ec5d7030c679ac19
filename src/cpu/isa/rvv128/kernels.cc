// The kernel table of RISC-V's vectors of 128 bits.
#define FA_ISA_LANES (128 / 32)
#define FA_ISA_VECTORS "cpu/isa/rvv/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/rvv/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_rvv128;
constexpr Kernels kKernels_rvv128 = tile_kernels("rvv128", FA_ISA_RVV);

}  // namespace cpu
}  // namespace fa
