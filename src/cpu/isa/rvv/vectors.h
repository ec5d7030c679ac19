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

inline V splat(float x) { return x - V{}; }
#ifdef __clang__
inline V fma_v(V a, V b, V c) { return __builtin_elementwise_fma(a, b, c); }
inline V max_v(V a, V b) { return __builtin_elementwise_max(a, b); }  // a number rather than a NaN
#else
// GCC has no function for it, and of a loop over lanes it makes as many instructions where many of them are unrolled.
inline V fma_v(V a, V b, V c) {
    __asm__("vsetivli zero, %3, e32, m1, ta, ma\n\tvfmacc.vv %0, %1, %2" : "+vr"(c) : "vr"(a), "vr"(b), "i"(kLanes) : "vl", "vtype");
    return c;
}
inline V max_v(V a, V b) { return a > b ? a : b; }
#endif

}  // namespace
}  // namespace cpu
}  // namespace fa
