// The backward between its matrix products: softmax's backward (P and dS of scores and dP), and the operand layouts that P, dS and
// k take for dq, dk and dv.
#pragma once
#include "cpu/kernels/matrix_softmax.h"

namespace fa {
namespace cpu {
namespace {

inline __m512i pack_two(V low, V high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Stores P and dS of 64 rows for a pair of keys, as operands.
struct PackedPds {
    uint16_t *p, *ds, *pairs;
    __m512i interleaved = interleave_index();

    inline void put(int key, int row, const V a[2][2], const V b[2][2]) const {
        __m512i narrowed[2];
        for (int i = 0; i < 2; i++) {
            narrowed[i] = pack_two(b[i][0], b[i][1]);
            _mm512_storeu_si512(p + (key + i) * 64 + row, pack_two(a[i][0], a[i][1]));
            _mm512_storeu_si512(ds + (key + i) * 64 + row, narrowed[i]);
        }
        uint16_t* const tile = pairs + (row / 32 * 2 + key / 32) * 2 * kTileValues + key % 32 / 2 * 32;
        for (int n = 0; n < 2; n++) {
            const __m512i index = _mm512_add_epi16(interleaved, _mm512_set1_epi16(int16_t(n * 16)));
            _mm512_storeu_si512(tile + n * kTileValues, _mm512_permutex2var_epi16(narrowed[0], index, narrowed[1]));
        }
    }
    void clear(int key) const {
        const V zero[2][2] = {};
        for (; key < 64; key += 2)
            for (int row = 0; row < 64; row += 32) put(key, row, zero, zero);
    }
};

void pack_p_ds(const float* p, const float* ds, int keys, uint16_t* to_p, uint16_t* to_ds, uint16_t* to_pairs) {
    const PackedPds to{to_p, to_ds, to_pairs};
    for (int key = 0; key < keys; key += 2)
        for (int row = 0; row < 64; row += 32) {
            V a[2][2] = {}, b[2][2] = {};
            for (int i = 0; i < 2 && key + i < keys; i++)
                for (int n = 0; n < 2; n++) {
                    a[i][n] = load(p + (key + i) * 64 + row + n * 16);
                    b[i][n] = load(ds + (key + i) * 64 + row + n * 16);
                }
            to.put(key, row, a, b);
        }
    to.clear((keys + 1) / 2 * 2);
}

// What P and dS of 32 rows depend on beside S and dP: two vectors of rows. It lives in registers, as SoftmaxRows does. exp2 to
// 8.6e-5 is far within what bf16 rounds away, and here no sum of P divides errors out.
struct SoftmaxBackwardRows {
    V from[2], delta[2], factor;
    __mmask16 kept[2];  // rows that have keys

    SoftmaxBackwardRows(const float* lse, const float* deltas, float factor_) : factor(splat(factor_)) {
        for (int n = 0; n < 2; n++) {
            const V given = load(lse + n * 16);
            kept[n] = _mm512_cmp_ps_mask(given, splat(kPosInf), _CMP_NEQ_UQ);
            from[n] = _mm512_maskz_mov_ps(kept[n], given);
            delta[n] = load(deltas + n * 16);
        }
    }
    inline V p_of(int n, V s) const {
        const __mmask16 visible = _mm512_mask_cmp_ps_mask(kept[n], s, splat(kNegInf), _CMP_NEQ_UQ);
        const V exponent = _mm512_min_ps(V{}, fma_v(s, factor, -from[n]));  // that of a NaN is NaN
        return _mm512_maskz_mov_ps(visible, exp2_poly<Exp2Accuracy::medium>(exponent));
    }
    // Of a P of 0 it is 0, whatever dp and the slope are; a slope of NULL is 1.
    inline V ds_of(int n, V p_of, V dp, const float* slope) const {
        V change = dp - delta[n];
        if (slope) change *= load(slope);
        return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(p_of, V{}, _CMP_NEQ_UQ), p_of, change);
    }
};

void softmax_backward_packed(const float* s, const float* dp, int keys, float factor, const float* lse, const float* delta,
                             const float* slope, uint16_t* to_p, uint16_t* to_ds, uint16_t* to_pairs) {
    const PackedPds to{to_p, to_ds, to_pairs};
    for (int row = 0; row < 64; row += 32) {
        const SoftmaxBackwardRows rows(lse + row, delta + row, factor);
        for (int key = 0; key < keys; key += 2) {
            V a[2][2] = {}, b[2][2] = {};
            for (int i = 0; i < 2 && key + i < keys; i++)
                for (int n = 0; n < 2; n++) {
                    const int at = (key + i) * 64 + row + n * 16;
                    a[i][n] = rows.p_of(n, load(s + at));
                    b[i][n] = rows.ds_of(n, a[i][n], load(dp + at), slope ? slope + at : nullptr);
                }
            to.put(key, row, a, b);
        }
    }
    to.clear((keys + 1) / 2 * 2);
}

// The same for a quarter tile, 32 keys and rows without masks, two keys at a time, between products.
constexpr int kQuarterRows = 32;
struct SoftmaxBackwardBlock {
    const float *s, *dp;  // [key][kQuarterRows]
    SoftmaxBackwardRows rows;
    PackedPds to;
    int first_key, first_row, key;

    inline __attribute__((always_inline)) void next_keys() {
        V a[2][2], b[2][2];
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++)
#pragma GCC unroll 2
            for (int n = 0; n < 2; n++) {
                const int at = (key + i) * kQuarterRows + n * 16;
                a[i][n] = rows.p_of(n, load(s + at));
                b[i][n] = rows.ds_of(n, a[i][n], load(dp + at), nullptr);
            }
        to.put(first_key + key, first_row, a, b);
        key += 2;
    }
    // The share of the Pairs pairs of keys beside four products that comes before product 0 … 3.
    template <int Pairs, int Product>
    inline __attribute__((always_inline)) void interleave() {
        for (int i = Pairs * Product / 4; i < Pairs * (Product + 1) / 4; i++)
            if (key < kQuarterRows) next_keys();
    }
    inline __attribute__((always_inline)) void finish() {
        while (key < kQuarterRows) next_keys();
    }
};

void transpose_k(const MatrixShape& shape, const uint16_t* k, uint16_t* to) {
    alignas(64) uint16_t even[32];
    for (int i = 0; i < 32; i++) even[i] = uint16_t(2 * i);
    const __m512i low = _mm512_load_si512(even), high = _mm512_add_epi16(low, _mm512_set1_epi16(1));
    for (int c = 0; c < shape.depth; c++)
        for (int half = 0; half < 2; half++)
            for (int pair = 0; pair < 16; pair++) {
                const uint16_t* const at = k + (half * shape.depth + c) * 2 * kTileValues + pair * 32;
                const __m512i a = _mm512_loadu_si512(at), b = _mm512_loadu_si512(at + kTileValues);
                uint16_t* const tile = to + ((2 * c + pair / 8) * 2 + half) * kTileValues + 2 * pair % 16 * 32;
                _mm512_storeu_si512(tile, _mm512_permutex2var_epi16(a, low, b));
                _mm512_storeu_si512(tile + 32, _mm512_permutex2var_epi16(a, high, b));
            }
}

}  // namespace
}  // namespace cpu
}  // namespace fa
