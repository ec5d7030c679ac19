// Storage formats, by AVX2 with FMA: how decoding reads a pair of vectors of each type. kernels/storage_formats.h says what a
// format defines.
#pragma once
#include "cpu/kernels/storage_formats.h"

namespace fa {
namespace cpu {
namespace {

constexpr bool kMaskedReads = false;

inline __m128i read128(const char* at) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at)); }

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at) {
        const float* x = reinterpret_cast<const float*>(at);
        return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
    }
};
struct F16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {_mm256_cvtph_ps(read128(at)), _mm256_cvtph_ps(read128(at + 16))}; }
};
struct Bf16 : StorageFormat<2, true> {
    static VecPair read(const char* at) {
        const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
        return {(V)_mm256_slli_epi32(x, 16), (V)_mm256_and_si256(x, _mm256_set1_epi32(int(0xffff0000u)))};
    }
};
// Shifted by one bit, sign, exponent and mantissa of e4m3 are those of an f16 2^-8 as large, subnormals included.
struct E4m3 : StorageFormat<1, true, 256, true> {
    static V half(__m128i high_bytes) {
        return _mm256_cvtph_ps(_mm_and_si128(_mm_srai_epi16(high_bytes, 1), _mm_set1_epi16(int16_t(0xbf80))));
    }
    static VecPair read(const char* at) { return {half(_mm_slli_epi16(read128(at), 8)), half(read128(at))}; }
};
struct E5m2 : StorageFormat<1, true> {
    static VecPair read(const char* at) {
        const __m128i x = read128(at);
        return {_mm256_cvtph_ps(_mm_slli_epi16(x, 8)), _mm256_cvtph_ps(_mm_and_si128(x, _mm_set1_epi16(int16_t(0xff00))))};
    }
};
struct I8 : StorageFormat<1> {
    static V half(const char* at) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
    }
    static VecPair read(const char* at) { return {half(at), half(at + 8)}; }
};

// For the block formats.
inline VI read_bytes(const char* at) { return (VI)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))); }
inline VI read_signed_bytes(const char* at) { return (VI)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))); }
inline V to_floats(VI x) { return _mm256_cvtepi32_ps((__m256i)x); }
inline V splat_half(const char* at) {
    int16_t x;
    memcpy(&x, at, sizeof x);
    return _mm256_cvtph_ps(_mm_set1_epi16(x));
}

}  // namespace
}  // namespace cpu
}  // namespace fa
