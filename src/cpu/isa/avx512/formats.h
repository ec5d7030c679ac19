// Storage formats, by AVX-512: how decoding reads a pair of vectors of each type. kernels/storage_formats.h says what a format
// defines.
#pragma once
#include "cpu/kernels/storage_formats.h"

namespace fa {
namespace cpu {
namespace {

constexpr bool kMaskedReads = true;

// So many bytes, at most a register of them, and zeros behind.
inline __m512i read512(const char* at, int bytes) { return _mm512_maskz_loadu_epi8(~uint64_t(0) >> (64 - bytes), at); }
inline __m256i read256(const char* at, int bytes) { return _mm256_maskz_loadu_epi8(~uint32_t(0) >> (32 - bytes), at); }

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at) { return {_mm512_loadu_ps(at), _mm512_loadu_ps(at + 64)}; }
    static VecPair read(const char* at, int count) {
        const uint32_t mask = ~uint32_t(0) >> (32 - count);
        return {_mm512_maskz_loadu_ps(uint16_t(mask), at), _mm512_maskz_loadu_ps(uint16_t(mask >> 16), at + 64)};
    }
};
struct F16 : StorageFormat<2> {
    static VecPair read(const char* at) {
        const __m256i* x = reinterpret_cast<const __m256i*>(at);
        return {_mm512_cvtph_ps(_mm256_loadu_si256(x)), _mm512_cvtph_ps(_mm256_loadu_si256(x + 1))};
    }
    static VecPair read(const char* at, int count) {
        const __m512i x = read512(at, 2 * count);
        return {_mm512_cvtph_ps(_mm512_castsi512_si256(x)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1))};
    }
};
struct Bf16 : StorageFormat<2, true> {
    static VecPair widen(__m512i x) { return {(V)_mm512_slli_epi32(x, 16), (V)_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000u)))}; }
    static VecPair read(const char* at) { return widen(_mm512_loadu_si512(at)); }
    static VecPair read(const char* at, int count) { return widen(read512(at, 2 * count)); }
};
// Shifted by one bit, sign, exponent and mantissa of e4m3 are those of an f16 2^-8 as large, subnormals included.
struct E4m3 : StorageFormat<1, true, 256, true> {
    static V half(__m256i high_bytes) {
        return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(high_bytes, 1), _mm256_set1_epi16(int16_t(0xbf80))));
    }
    static VecPair widen(__m256i x) { return {half(_mm256_slli_epi16(x, 8)), half(x)}; }
    static VecPair read(const char* at) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))); }
    static VecPair read(const char* at, int count) { return widen(read256(at, count)); }
};
struct E5m2 : StorageFormat<1, true> {
    static VecPair widen(__m256i x) {
        return {_mm512_cvtph_ps(_mm256_slli_epi16(x, 8)), _mm512_cvtph_ps(_mm256_and_si256(x, _mm256_set1_epi16(int16_t(0xff00))))};
    }
    static VecPair read(const char* at) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at))); }
    static VecPair read(const char* at, int count) { return widen(read256(at, count)); }
};
struct I8 : StorageFormat<1> {
    static V half(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }
    static VecPair read(const char* at) {
        const __m128i* x = reinterpret_cast<const __m128i*>(at);
        return {half(_mm_loadu_si128(x)), half(_mm_loadu_si128(x + 1))};
    }
    static VecPair read(const char* at, int count) {
        const __m256i x = read256(at, count);
        return {half(_mm256_castsi256_si128(x)), half(_mm256_extracti128_si256(x, 1))};
    }
};

// For the block formats.
template <>
struct FloatTable<16> {
    static constexpr bool kExists = true;
    static V pick(V table, VI x) { return _mm512_permutexvar_ps((__m512i)x, table); }
    // To the lanes whose bits are set.
    static V add_where(V x, uint32_t bits, float y) { return _mm512_mask_add_ps(x, __mmask16(bits), x, _mm512_set1_ps(y)); }
};
inline VI read_bytes(const char* at) { return (VI)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
inline VI read_signed_bytes(const char* at) { return (VI)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))); }
inline V to_floats(VI x) { return _mm512_cvtepi32_ps((__m512i)x); }
inline V splat_half(const char* at) {
    int16_t x;
    memcpy(&x, at, sizeof x);
    return _mm512_cvtph_ps(_mm256_set1_epi16(x));
}

}  // namespace
}  // namespace cpu
}  // namespace fa
