// Vector primitives for kernels/, by AVX2 with FMA: kernels/vector_math.h and kernels/decode_kernels.h say what each is.
#pragma once
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kLanes = 8;
constexpr int kTileVectors = 3, kGemmRows[] = {0, 8, 6, 4};  // 12 accumulators, 3 operands and a broadcast fill the 16 registers
typedef float V __attribute__((vector_size(32)));
typedef int32_t VI __attribute__((vector_size(32)));

inline V splat(float x) { return _mm256_set1_ps(x); }
inline V fma_v(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V max_v(V a, V b) { return _mm256_max_ps(a, b); }  // the instruction gives b when either is NaN

// 1.5 · 2^23: a float this large has no fraction, and an integer that is added to it is left in its low bits. kMinExponent leaves 0
// there, a float's exponent of 0, with which 2^n is 0. To compare for that would take a fifth of an exp2's time.
constexpr float kMinExponent = kMinLog2P - 1, kRoundToInt = 0x1.8p+23f - kMinExponent, kExp2Scale = 0x1p-16f;
static_assert(kMinExponent == 16 - 127, "so n + kCounter leaves the exponent of a power 2^-16 as large");

inline V exp2_split(V x, V& f) {
    x = max_v(splat(kMinExponent), x);
    const V n = _mm256_floor_ps(x);
    f = x - n;
    return n + kRoundToInt;
}
inline V exp2_scale(V p, V n) { return p * (V)((VI)n << 23); }

inline V widen_halves(const uint16_t* x) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))); }

inline bool has_nan(V x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }

inline void keep_in_register(V& a) { __asm__("" : "+x"(a)); }

template <int H>
inline V blend_lanes(V a, V b) {
    return _mm256_blend_ps(a, b, H == 4 ? 0xf0 : H == 2 ? 0xcc : 0xaa);
}
template <int H>
inline V exchange_lanes(V a, V b) {
    if (H == 4) return _mm256_permute2f128_ps(a, b, 0x21);
    if (H == 2) return _mm256_shuffle_ps(a, b, 0x4e);
    return _mm256_permute_ps(_mm256_blend_ps(b, a, 0xaa), 0xb1);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
