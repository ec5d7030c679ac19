// The kernel table of SVE, 512-bit vectors (A64FX). The vectors' length is fixed by
// -msve-vector-bits: a block of accumulators stays in registers only where the compiler knows their size.
#define FA_ISA_VECTORS "cpu/isa/sve/vectors.h"
#define FA_ISA_FORMATS "cpu/isa/sve/formats.h"
#include "cpu/kernels/tile_kernels.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_sve512;
constexpr Kernels kKernels_sve512 = tile_kernels("sve512", FA_ISA_SVE);

}  // namespace cpu
}  // namespace fa
