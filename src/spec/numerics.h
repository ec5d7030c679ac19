// Constants, the few scalar functions that differ between compilers, and the storage formats.
// FA_FN marks code that runs on the host and on a GPU. On the host it is `static`: an object compiled for one instruction set must
// not lend its copy of a shared inline function to the rest of the program.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define FA_FN static __host__ __device__ __forceinline__
#else
#define FA_FN static inline
#endif

namespace fa {

constexpr float kLog2e = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMaxFloat = 0x1.fffffep+127f, kMaxBaseE = 0x1.62e42ep+127f;  // the latter: the largest that is finite times log2 e
constexpr float kSmallestNormal = 0x1p-126f;
constexpr float kPosInf = __builtin_huge_valf();
constexpr float kNegInf = -__builtin_huge_valf();

FA_FN float exp2_fn(float x) { return exp2f(x); }
FA_FN float log2_fn(float x) { return log2f(x); }
FA_FN float max_fn(float a, float b) { return fmaxf(a, b); }  // drops NaN on purpose: the sum l carries it

FA_FN uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
FA_FN float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}

// What a factor of sums of products counts as: an infinite one would make of them ±∞, whatever was added up, and −∞ would remove the key.
FA_FN float nan_if_infinite(float x) { return x + 0.f * x; }

// ---- storage formats. Widening is exact. Narrowing rounds to nearest, ties to even; NaN stays NaN.

FA_FN float bf16_to_f32(uint16_t x) { return float_of(uint32_t(x) << 16); }

FA_FN uint16_t f32_to_bf16(float f) {
    const uint32_t u = bits_of(f);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return uint16_t(f != f ? (u >> 16) | 0x40u : rounded);
}

// What is finite stays so when it is rounded to bf16.
FA_FN float clamp_to_bf16(float x) {
    constexpr float most = 0x1.fep+127f;
    const float clamped = x > most ? most : x < -most ? -most : x;
    return fabsf(x) <= kMaxFloat ? clamped : x;
}

// A small float's exponent and mantissa, moved to a float's place, lack only the difference of the biases in the exponent. With exponent
// 0 it is a subnormal: the mantissa is put behind the smallest exponent's leading 1, which is then subtracted. No float subnormal takes
// part: a program that flushes those on some threads gets the same values on all.
FA_FN uint32_t widen_small(uint32_t magnitude, uint32_t bias) {
    if (magnitude < 0x00800000u) return bits_of(float_of(magnitude + bias + 0x00800000u) - float_of(bias + 0x00800000u));
    return magnitude + bias;
}

FA_FN float f16_to_f32(uint16_t x) {
    const uint32_t magnitude = uint32_t(x & 0x7fffu) << 13;
    const uint32_t u = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : widen_small(magnitude, 0x38000000u);  // inf, NaN: all ones
    return float_of(u | uint32_t(x & 0x8000u) << 16);
}

FA_FN uint16_t f32_to_f16(float f) {
    const uint32_t u = bits_of(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
    if (a >= 0x47800000u) return uint16_t(sign | 0x7c00u);                                     // 2^16 and above
    if (a < 0x38800000u) return uint16_t(sign | (bits_of(float_of(a) + 0.5f) - 0x3f000000u));  // subnormal: the adder rounds
    const uint32_t r = a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u;
    return uint16_t(sign | (r >> 13));
}

constexpr float kMaxE4M3 = 448.f, kMaxE5M2 = 57344.f, kMaxI8 = 127.f;

FA_FN float e4m3_to_f32(uint8_t x) {
    if ((x & 0x7fu) == 0x7fu) return float_of(0x7fc00000u | uint32_t(x & 0x80u) << 24);
    return float_of(widen_small(uint32_t(x & 0x7fu) << 20, 0x3c000000u) | uint32_t(x & 0x80u) << 24);
}
FA_FN float e5m2_to_f32(uint8_t x) { return f16_to_f32(uint16_t(uint16_t(x) << 8)); }

// Saturating, as every fp8 output of this library.
FA_FN uint8_t f32_to_e4m3(float f) {
    const uint32_t u = bits_of(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return uint8_t(sign | 0x7fu);
    if (a >= 0x43e00000u) return uint8_t(sign | 0x7eu);                                           // 448 and above
    if (a < 0x3c800000u) return uint8_t(sign | (bits_of(float_of(a) + 0x1p+14f) - 0x46800000u));  // below 2^-6: steps of 2^-9
    const uint32_t r = (a + 0x7ffffu + ((a >> 20) & 1u) - 0x3c000000u) >> 20;
    return uint8_t(sign | r);
}
FA_FN uint8_t f32_to_e5m2(float f) {
    const uint32_t u = bits_of(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return uint8_t(sign | 0x7fu);
    if (a >= 0x47600000u) return uint8_t(sign | 0x7bu);                                          // 57344 and above
    if (a < 0x38800000u) return uint8_t(sign | (bits_of(float_of(a) + 0x1p+7f) - 0x43000000u));  // below 2^-14: steps of 2^-16
    const uint32_t r = (a + 0xfffffu + ((a >> 21) & 1u) - 0x38000000u) >> 21;
    return uint8_t(sign | r);
}
FA_FN int8_t f32_to_i8(float f) {
    if (f != f) return 0;
    return int8_t(f >= kMaxI8 ? 127 : f <= -kMaxI8 ? -127 : rintf(f));  // symmetric: −128 is never written
}

// The factor that takes a row whose largest magnitude is `top` to the whole range of a type whose largest value is `most`. It is no
// subnormal: that of an almost zero row would be rounded to 0, or flushed, and the row's zeros become 0 / 0. Nor is it infinite, which
// would make what is finite beside an infinite value 0 · ∞.
FA_FN float dynamic_descale(float top, float most) { return top > 0.f ? fminf(max_fn(top / most, kSmallestNormal), kMaxFloat) : 1.f; }

}  // namespace fa
