// Bytes as bf16, exact, since no 8-bit type has more significant bits, by table look-up: a value costs a quarter of what it does by way of
// f32.
#pragma once
#include "cpu/isa/avx512/vectors.h"

namespace fa {
namespace cpu {
namespace {

// bf16 of 7-bit magnitudes, low bytes and high bytes.
struct Magnitudes {
    alignas(64) uint8_t low[128], high[128];
};

constexpr uint32_t small_bf16(uint32_t mantissa, int scale) {  // mantissa · 2^scale, mantissa < 256
    int top = 7;
    while (top > 0 && !(mantissa >> top & 1)) top--;
    return mantissa == 0 ? 0 : uint32_t(127 + top + scale) << 7 | (mantissa << (7 - top) & 0x7f);
}
constexpr uint32_t magnitude(int32_t type, uint32_t x) {
    if (type == FA_I8) return small_bf16(x, 0);
    const uint32_t bits = type == FA_E4M3 ? 3 : 2, exponent = x >> bits, mantissa = x & ((1u << bits) - 1);
    if (type == FA_E4M3 && x == 127) return 0x7fc0;
    if (type == FA_E5M2 && exponent == 31) return mantissa ? 0x7fc0 : 0x7f80;
    const int least = type == FA_E4M3 ? -9 : -16;
    return exponent == 0 ? small_bf16(mantissa, least) : small_bf16(mantissa | 1u << bits, least + int(exponent) - 1);
}
constexpr Magnitudes magnitudes(int32_t type) {
    Magnitudes m{};
    for (uint32_t x = 0; x < 128; x++) {
        m.low[x] = uint8_t(magnitude(type, x));
        m.high[x] = uint8_t(magnitude(type, x) >> 8);
    }
    return m;
}
template <int32_t Type>
constexpr Magnitudes kMagnitudes = magnitudes(Type);

template <int32_t Type>
struct ByteTables {
    __m512i low0 = _mm512_load_si512(kMagnitudes<Type>.low), low1 = _mm512_load_si512(kMagnitudes<Type>.low + 64);
    __m512i high0 = _mm512_load_si512(kMagnitudes<Type>.high), high1 = _mm512_load_si512(kMagnitudes<Type>.high + 64);

    // Low and high bytes.
    inline __attribute__((always_inline)) void look_up(__m512i bytes, __m512i& low, __m512i& high) const {
        const __m512i sign = _mm512_set1_epi8(char(0x80));
        const __m512i index = Type == FA_I8 ? _mm512_abs_epi8(bytes) : bytes;  // of which 7 bits count
        low = _mm512_permutex2var_epi8(low0, index, low1);
        high = _mm512_permutex2var_epi8(high0, index, high1);
        // The magnitude of −128 has 8 bits: the table gave it that of 0. Of no other is the difference more than its high byte, 0x42 at
        // most.
        if (Type == FA_I8) high = _mm512_max_epu8(high, _mm512_subs_epu8(index, _mm512_set1_epi8(128 - 0x43)));
        high = _mm512_ternarylogic_epi64(high, bytes, sign, 0xf8);  // high | bytes & sign
    }
    // Of each 16 bytes the first eight go to to[0], the others to to[1].
    inline __attribute__((always_inline)) void to_bf16(__m512i bytes, __m512i* to) const {
        __m512i low, high;
        look_up(bytes, low, high);
        to[0] = _mm512_unpacklo_epi8(low, high);
        to[1] = _mm512_unpackhi_epi8(low, high);
    }
};

}  // namespace
}  // namespace cpu
}  // namespace fa
