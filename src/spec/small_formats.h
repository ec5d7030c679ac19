// Formats of 4 bits, two values in a byte, and factors that are powers of two. Widening is exact; narrowing saturates and rounds to
// nearest, ties to even, and what is not a number becomes 0: these formats have none.
#pragma once
#include "numerics.h"

namespace fa {

constexpr float kMaxE2M1 = 6.f, kMaxI4 = 7.f, kMaxU4 = 15.f;

FA_FN float e2m1_to_f32(uint32_t code) {
    const uint32_t m = code & 7u;
    const float magnitude = m < 2u ? 0.5f * float(m) : float_of(((m >> 1) + 126u) << 23 | (m & 1u) << 22);
    return float_of(bits_of(magnitude) | (code & 8u) << 28);
}
FA_FN float i4_to_f32(uint32_t code) { return float(int32_t(code ^ 8u) - 8); }
FA_FN float u4_to_f32(uint32_t code) { return float(code); }

FA_FN uint32_t f32_to_e2m1(float f) {
    const float a = fabsf(f);
    const uint32_t m = uint32_t(a > 0.25f) + uint32_t(a >= 0.75f) + uint32_t(a > 1.25f) + uint32_t(a >= 1.75f) + uint32_t(a > 2.5f) +
                       uint32_t(a >= 3.5f) + uint32_t(a > 5.f);
    return f != f ? 0u : m | (bits_of(f) >> 28 & 8u);
}
FA_FN uint32_t f32_to_i4(float f) {  // symmetric: −8 is never written
    if (f != f) return 0u;
    return uint32_t(int32_t(f >= kMaxI4 ? kMaxI4 : f <= -kMaxI4 ? -kMaxI4 : rintf(f))) & 15u;
}
FA_FN uint32_t f32_to_u4(float f) { return !(f > 0.f) ? 0u : uint32_t(f >= kMaxU4 ? kMaxU4 : rintf(f)); }

// 2^(byte − 127), and NaN.
FA_FN float e8m0_to_f32(uint8_t x) { return float_of(x == 255 ? 0x7fc00000u : x == 0 ? 0x00400000u : uint32_t(x) << 23); }
// The smallest power of two that is not below: what is divided by it saturates nowhere. A number too large for all gets the largest.
FA_FN uint8_t f32_to_e8m0(float f) {
    if (f != f) return 255;
    if (!(f > 0x1p-127f)) return 0;
    const uint32_t u = bits_of(f), exponent = (u >> 23) + ((u & 0x007fffffu) != 0u ? 1u : 0u);
    return uint8_t(exponent < 254u ? exponent : 254u);
}

}  // namespace fa
