// Vector primitives that take the compiler's vector extensions alone, for vectors of FA_ISA_LANES floats: kernels/vector_math.h and
// kernels/decode_kernels.h say what each is.
#pragma once
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kLanes = FA_ISA_LANES;
typedef float V __attribute__((vector_size(4 * kLanes)));
typedef int32_t VI __attribute__((vector_size(4 * kLanes)));

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
    const VI nan = x != x;
    int32_t any = 0;
    for (int i = 0; i < kLanes; i++) any |= nan[i];
    return any != 0;
}

inline void keep_in_register(V&) {}

// Lane i of a, or of b where i has bit H: that of the same number, or with Exchange of the one that differs in bit H.
template <int H, bool Exchange, int N = kLanes, int... I>
struct PickLanes : PickLanes<H, Exchange, N - 1, ((N - 1) & H ? kLanes : 0) + ((N - 1) ^ (Exchange ? H : 0)), I...> {};
template <int H, bool Exchange, int... I>
struct PickLanes<H, Exchange, 0, I...> {
    static V of(V a, V b) { return __builtin_shufflevector(a, b, I...); }
};
template <int H>
inline V blend_lanes(V a, V b) {
    return PickLanes<H, false>::of(a, b);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    return PickLanes<H, true>::of(a, b);
}

// kLanes values of a small type, each in a lane of its own.
template <class T>
inline VI read_small(const char* at) {
    typedef T Small __attribute__((vector_size(kLanes * sizeof(T))));
    Small x;
    memcpy(&x, at, sizeof x);
    return __builtin_convertvector(x, VI);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
