// The kernel table of SVE with vectors of 256 bits with products of bf16 and of integers: the forward and decoding.
#define FA_ISA_VECTORS "cpu/isa/sve/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/sve/formats.h"
#include "cpu/isa/sve/dots.h"
#include "cpu/kernels/forward_quads.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_sve256_bf16;

namespace {
constexpr MatrixKernels kMatrix = quad_kernels();
}
constexpr Kernels kKernels_sve256_bf16 = tile_kernels("sve256_bf16", FA_ISA_SVE_BF16, &kMatrix);

}  // namespace cpu
}  // namespace fa
