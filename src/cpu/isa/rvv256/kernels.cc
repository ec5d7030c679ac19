// The kernel table of RISC-V's vectors of 256 bits.
#define FA_ISA_LANES (256 / 32)
#define FA_ISA_VECTORS "cpu/isa/rvv/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/rvv/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_rvv256;
constexpr Kernels kKernels_rvv256 = tile_kernels("rvv256", FA_ISA_RVV);

}  // namespace cpu
}  // namespace fa
