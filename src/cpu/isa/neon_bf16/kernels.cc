// The kernel table of NEON with products of bf16 and of integers: the forward and decoding.
#define FA_ISA_VECTORS "cpu/isa/neon/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/neon/formats.h"
#include "cpu/isa/neon/dots.h"
#include "cpu/kernels/forward_quads.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_neon_bf16;

namespace {
constexpr MatrixKernels kMatrix = quad_kernels();
}
constexpr Kernels kKernels_neon_bf16 = tile_kernels("neon_bf16", FA_ISA_NEON_BF16, &kMatrix);

}  // namespace cpu
}  // namespace fa
