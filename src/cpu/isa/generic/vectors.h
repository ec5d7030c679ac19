// Vector primitives for kernels/, by compiler vector extensions of 4 floats: kernels/vector_math.h and kernels/decode_kernels.h say
// what each is.
#pragma once
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kLanes = 4;
constexpr int kTileVectors = 3, kGemmRows[] = {0, 8, 4, 4};
typedef float V __attribute__((vector_size(16)));
typedef int32_t VI __attribute__((vector_size(16)));

inline V splat(float x) { return V{x, x, x, x}; }
inline V fma_v(V a, V b, V c) { return a * b + c; }
inline V max_v(V a, V b) { return a > b ? a : b; }

// 1.5 · 2^23: a float this large has no fraction, so that adding it rounds, and the integer is left in the low bits. What is below
// kMinLog2P leaves arbitrary bits in f and in n, which exp2_scale replaces by 0.
constexpr float kRoundToInt = 0x1.8p+23f, kExp2Scale = 1;

inline V exp2_split(V x, V& f) {
    const V n = x - 0.5f + kRoundToInt;
    f = x - (n - kRoundToInt);
    return n;
}
inline V exp2_scale(V p, V n) {
    VI bits;
    memcpy(&bits, &n, sizeof bits);
    bits = (bits << 23) + (127 << 23);
    V power;
    memcpy(&power, &bits, sizeof power);
    return n < kRoundToInt + kMinLog2P ? V{} : p * power;
}

inline bool has_nan(V x) {
    bool any = false;
    for (int i = 0; i < kLanes; i++) any |= x[i] != x[i];
    return any;
}

inline void keep_in_register(V&) {}

template <int H>
inline V blend_lanes(V a, V b) {
    if (H == 2) return __builtin_shufflevector(a, b, 0, 1, 6, 7);
    return __builtin_shufflevector(a, b, 0, 5, 2, 7);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    if (H == 2) return __builtin_shufflevector(a, b, 2, 3, 4, 5);
    return __builtin_shufflevector(a, b, 1, 4, 3, 6);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
