// Packs rows of 16-bit values into the operand tiles of matrix_table.h: q as it lies, k transposed by pairs of dims, v by pairs of
// keys.
#pragma once
#include "cpu/kernels/convert.h"
#include "cpu/kernels/matrix_softmax.h"

namespace fa {
namespace cpu {
namespace {

inline __mmask32 inside(int count) { return count >= 32 ? 0xffffffffu : count <= 0 ? 0u : (1u << count) - 1; }

// `count` values of the row from `at`, zeros behind them and for a missing row.
inline __m512i row_values(const uint16_t* row, int at, int count) {
    return row ? _mm512_maskz_loadu_epi16(inside(count - at), row + at) : _mm512_setzero_si512();
}

// A 16 × 16 matrix of 32-bit elements, a row in each vector.
inline void transpose(__m512i r[16]) {
    __m512i t[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        r[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        r[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

void pack_q(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    for (int tile = 0; tile < 2; tile++)
        for (int c = 0; c < shape.depth; c++) {
            uint16_t* at = to + (tile * shape.depth + c) * kTileValues;
            for (int r = 0; r < 16; r++) _mm512_storeu_si512(at + r * 32, row_values(rows[tile * 16 + r], c * 32, shape.dim_qk));
        }
}

void pack_k(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    for (int tile = 0; tile < 4; tile++)
        for (int c = 0; c < shape.depth; c++) {
            uint16_t* at = to + ((tile / 2 * shape.depth + c) * 2 + tile % 2) * kTileValues;
            __m512i r[16];
            for (int i = 0; i < 16; i++) r[i] = row_values(rows[tile * 16 + i], c * 32, shape.dim_qk);
            transpose(r);
            for (int i = 0; i < 16; i++) _mm512_storeu_si512(at + i * 32, r[i]);
        }
}

// Pairs of rows, Apart rows between them.
template <int Distance>
void pack_pairs(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    constexpr int kNext = Distance == 1 ? 2 : 1;  // from a pair's first row to the next pair's
    const __m512i low = interleave_index();
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int pair = 0; pair < shape.columns / 2; pair++)
        for (int half = 0; half < 2; half++) {
            uint16_t* at = to + (pair * 2 + half) * 2 * kTileValues;
            for (int i = 0; i < 16; i++) {
                const uint16_t* const* const row = rows + half * 32 + kNext * i;
                const __m512i first = row_values(row[0], pair * 32, shape.dim_v),
                              second = row_values(row[Distance], pair * 32, shape.dim_v);
                _mm512_storeu_si512(at + i * 32, _mm512_permutex2var_epi16(first, low, second));
                _mm512_storeu_si512(at + kTileValues + i * 32, _mm512_permutex2var_epi16(first, high, second));
            }
        }
}

void pack_rows(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) { pack_pairs<1>(shape, rows, to); }
// In the order of a step's P.
void pack_v(const MatrixShape& shape, const uint16_t* const* rows, uint16_t* to) {
    if (shape.type == FA_BF16) pack_pairs<16>(shape, rows, to);
    else pack_pairs<1>(shape, rows, to);
}

}  // namespace
}  // namespace cpu
}  // namespace fa
