// The kernel table of AVX2 with FMA (Haswell, Zen and later): 16 registers of 8 floats. The vector primitives and storage formats
// are here, the kernels in kernels/.
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx2;

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

#include "cpu/kernels/storage_formats.inc"

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

#include "cpu/kernels/tile_kernels.inc"

}  // namespace

const Kernels kKernels_avx2 = FA_KERNELS("avx2", FA_ISA_AVX2);

}  // namespace cpu
}  // namespace fa
