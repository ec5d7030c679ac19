// Decoding scores of int8 k as it is stored, by products of integers (TDPBSSD): q is split into four signed limbs of eight bits,
// exactly, and the sums of each limb are exact, too. P has no such form: a fixed point loses small values,
// which alone may count for some column of v.
#pragma once
#include "cpu/isa/amx/decode_operands.h"

namespace fa {
namespace cpu {
namespace {

#define FA_TILE_DOT_INT8(c, a, b) __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #c)

inline float power_of_two(int exponent) {
    const int bits = (exponent + 127) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Takes the lowest signed limb of each value, 16 bytes; leaves the value without it, a limb shorter.
inline __m128i take_limb(__m512i& value) {
    const __m512i low = _mm512_srai_epi32(_mm512_slli_epi32(value, 24), 24);
    value = _mm512_srai_epi32(_mm512_sub_epi32(value, low), 8);
    return _mm512_cvtepi32_epi8(low);
}

// [dim / 64][16 fours of dims][limb][limb_rows()][4]; false where q is not of so many limbs, or not finite.
bool pack_limbs(const uint16_t* const* rows, int count, int dim, char* to) {
    const int limb_stride = limb_rows(count), step = 4 * kLimbs * limb_stride;  // bytes between fours
    float* const factors = reinterpret_cast<float*>(to + int64_t(16) * dim);
    memset(to, 0, size_t(step) * size_t(dim / 4));
    for (int r = 0; r < count; r++) {
        __m512i most = _mm512_setzero_si512();  // of magnitudes' bits
        for (int x = 0; x < dim; x += 16) {
            const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + x));
            most = _mm512_max_epu32(most, _mm512_cvtepu16_epi32(_mm256_and_si256(bits, _mm256_set1_epi16(0x7fff))));
        }
        const int largest = int(_mm512_reduce_max_epu32(most));
        if (largest >= 0x7f80) return false;
        // The largest, in units, is in [2^29, 2^30): four signed limbs reach almost twice that. Of tiny rows the unit's inverse is
        // finite.
        constexpr int kMinUnitExponent = -126;
        const int wanted = (largest >> 7) - 127 - 29, exponent = wanted < kMinUnitExponent ? kMinUnitExponent : wanted;
        const V unit = splat(power_of_two(exponent)), inverse = splat(power_of_two(-exponent));
        factors[r] = power_of_two(exponent);
        for (int x = 0; x < dim; x += 16) {
            const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[r] + x)));
            const V given = (V)_mm512_slli_epi32(wide, 16);
            __m512i value = _mm512_cvtps_epi32(given * inverse);
            if (_mm512_cmp_ps_mask(V(_mm512_cvtepi32_ps(value)) * unit, given, _CMP_NEQ_UQ)) return false;
            for (int limb = kLimbs - 1; limb >= 0; limb--) {
                uint32_t fours[4];
                _mm_storeu_si128(reinterpret_cast<__m128i*>(fours), take_limb(value));
                for (int i = 0; i < 4; i++) memcpy(to + int64_t(x / 4 + i) * step + (limb * limb_stride + r) * 4, fours + i, 4);
            }
        }
    }
    return true;
}

// Adds up limbs, from [16 keys][limb][row] to s.
template <int N>
inline void add_limbs(const float* from, int rows, const float* factor, float* columns, float* s) {
    V x[N];
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) x[i] = _mm512_cvtepi32_ps(_mm512_loadu_si512(from + i * 16));
    transpose_products<N>(x, 0, 1, kLimbs * rows, factor, columns);
    for (int r = 0; r < rows; r++) {
        const auto limb = [&](int n) { return load(columns + (n * rows + r) * kTileKeys); };
        store(s + r * kTileKeys, (limb(0) + limb(2)) + (limb(1) + limb(3)));  // in the order of add_limbs_4_rows()
    }
}
// The same of four rows: a key's limbs are added up across a vector's quarters, then quarters' elements become vectors.
inline void add_limbs_4_rows(const float* from, int rows, const float* factor, float* s) {
    const V factors = load(factor);
    V sum[4];
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++) {
        V x[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) x[i] = V(_mm512_cvtepi32_ps(_mm512_loadu_si512(from + (4 * i + g) * 16))) * factors;
        const V low = V(_mm512_shuffle_f32x4(x[0], x[1], 0x44)) + V(_mm512_shuffle_f32x4(x[0], x[1], 0xee));
        const V high = V(_mm512_shuffle_f32x4(x[2], x[3], 0x44)) + V(_mm512_shuffle_f32x4(x[2], x[3], 0xee));
        sum[g] = V(_mm512_shuffle_f32x4(low, high, 0x88)) + V(_mm512_shuffle_f32x4(low, high, 0xdd));
    }
    const __m512d a = (__m512d)_mm512_unpacklo_ps(sum[0], sum[1]), b = (__m512d)_mm512_unpacklo_ps(sum[2], sum[3]);
    const __m512d c = (__m512d)_mm512_unpackhi_ps(sum[0], sum[1]), d = (__m512d)_mm512_unpackhi_ps(sum[2], sum[3]);
    store(s, (V)_mm512_unpacklo_pd(a, b));
    store(s + kTileKeys, (V)_mm512_unpackhi_pd(a, b));
    store(s + 2 * kTileKeys, (V)_mm512_unpacklo_pd(c, d));
    if (rows == 4) store(s + 3 * kTileKeys, (V)_mm512_unpackhi_pd(c, d));
}

void qk_limbs(const char* q, int rows, const float* factor, const DecodeChunk& chunk, int dim, const DecodeMatrixScratch& memory,
              float* s) {
    const int limb_stride = limb_rows(rows), columns = kLimbs * limb_stride;
    const bool two_groups = chunk.keys > kGroupKeys;
    char* const copy = reinterpret_cast<char*>(memory.converted);
    const StridedRows low = gather_strided(chunk.rows.row, chunk.rows.offset, chunk.keys, dim, copy);
    const StridedRows high =
        two_groups ? gather_strided(chunk.rows.row + kGroupKeys, chunk.rows.offset, chunk.keys - kGroupKeys, dim, copy + kGroupKeys * dim)
                   : low;
    const float* const units = reinterpret_cast<const float*>(q + int64_t(16) * dim);
    alignas(64) float of_column[16] = {};
    for (int limb = 0; limb < kLimbs; limb++)
        for (int r = 0; r < rows; r++) of_column[limb * limb_stride + r] = factor[r] * units[r] * kLimbUnits[limb];
    PrefetchCursor prefetch_cursor{chunk.rows, dim};
    FA_TILE_ZERO(0);
    FA_TILE_ZERO(1);
    for (int x = 0; x < dim; x += 64) {
        FA_TILE_LOAD(2, q + x * columns, columns * 4);
        prefetch_cursor.prefetch_lines(8);
        FA_TILE_LOAD(3, low.data + x, low.stride);
        prefetch_cursor.prefetch_lines(8);
        FA_TILE_DOT_INT8(0, 3, 2);
        prefetch_cursor.prefetch_lines(8);
        FA_TILE_LOAD(4, high.data + x, high.stride);
        prefetch_cursor.prefetch_lines(8);
        FA_TILE_DOT_INT8(1, 4, 2);
    }
    float *const products = memory.products, *const transposed = products + kDecodeProducts / 2;
    FA_TILE_STORE(0, products, columns * 4);
    FA_TILE_STORE(1, products + kGroupKeys * 16, columns * 4);
    for (int j = 0; j < chunk.keys; j += kGroupKeys) {
        if (limb_stride == 1) add_limbs<4>(products + j * 16, rows, of_column, transposed, s + j);
        else if (limb_stride == 2) add_limbs<8>(products + j * 16, rows, of_column, transposed, s + j);
        else add_limbs_4_rows(products + j * 16, rows, of_column, s + j);
    }
}
static_assert(kPairKeys * 16 <= kDecodeProducts / 2 && 2 * kLimbs * kTileKeys <= kDecodeProducts / 2, "both lie in it");

}  // namespace
}  // namespace cpu
}  // namespace fa
