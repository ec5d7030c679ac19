// Vector primitives for kernels/, by RISC-V's vectors (RVV 1.0): kernels/vector_math.h and kernels/decode_kernels.h say what each is. The
// compiler makes them of its own vectors of FA_ISA_LANES floats. Such code sets the length that it works on, so that it is right where
// registers are longer, too.
#pragma once
#include "cpu/kernels/portable_vectors.h"

namespace fa {
namespace cpu {
namespace {

// 24 accumulators and 4 operands of 32 registers, of which one holds masks: the broadcast operand is a scalar register.
constexpr int kTileVectors = 4, kGemmRows[] = {0, 16, 12, 8, 6};

inline V splat(float x) {
    V v;
    for (int i = 0; i < kLanes; i++) v[i] = x;
    return v;
}
#ifdef __clang__
inline V fma_v(V a, V b, V c) { return __builtin_elementwise_fma(a, b, c); }
inline V max_v(V a, V b) { return __builtin_elementwise_max(a, b); }  // a number rather than a NaN
#else
// GCC makes an instruction of the loop.
inline V fma_v(V a, V b, V c) {
    for (int i = 0; i < kLanes; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
inline V max_v(V a, V b) { return a > b ? a : b; }
#endif

}  // namespace
}  // namespace cpu
}  // namespace fa
