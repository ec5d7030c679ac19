// Vector primitives for kernels/, by compiler vector extensions of 4 floats: kernels/vector_math.h and kernels/decode_kernels.h say
// what each is.
#pragma once
#define FA_ISA_LANES 4
#include "cpu/kernels/portable_vectors.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kTileVectors = 3, kGemmRows[] = {0, 8, 4, 4};

inline V splat(float x) { return V{x, x, x, x}; }
inline V fma_v(V a, V b, V c) { return a * b + c; }
inline V max_v(V a, V b) { return a > b ? a : b; }

}  // namespace
}  // namespace cpu
}  // namespace fa
