// Online softmax between the two products of a matrix mainloop's step: P of scores in bf16 or f16, the lazily moved row_ref that
// scores are measured from, row sums, and the normalised output of a RowBlock.
#pragma once
#include "cpu/kernels/decode_kernels.h"
#include "cpu/kernels/layout.h"
#include "cpu/kernels/matrix_rows.h"

namespace fa {
namespace cpu {
namespace {

// log2 of the factor that P, and so row sums and accumulators, are kept times. For bf16: what it cannot hold of P is then below
// 2^-110 of the row's largest, and sums of 2^16 values at the type's limit do not overflow. For f16: what it cannot hold is below
// 2^-34.
constexpr int p_scale_log2(int32_t type) { return type == FA_BF16 ? -16 : 10; }
// From accumulators in that unit to PartialState's.
constexpr float acc_scale(int32_t type) { return type == FA_BF16 ? 0x1p-16f : 0x1p-42f; }
static_assert(kHeadroomUnit == 0x1p-32f, "acc_scale() leads to it");

// S and P of 16 rows.
constexpr int kTileScores = 16 * kKeyBlock;
struct ScoreTile {
    float* s;     // [16][kKeyBlock]
    uint16_t* p;  // [16] rows
};

// 2^x. The LSE wants its row sum to 1e-5, P in f16 1e-4, P in bf16, whose unit roundoff is 3.9e-3, no more than 2.1e-3: so large an
// error is nearly the same for all of P and for its sum, and mostly cancels. The polynomials' constant terms are exactly 1, so that
// equal scores have equal P.
enum class Exp2Accuracy { low, medium, high };

template <Exp2Accuracy E>
inline V exp2_poly(V x) {
    V f;
    const V n = exp2_split(x, f);
    V p;
    if (E == Exp2Accuracy::low) {
        p = fma_v(splat(3.2993241e-1f), f, splat(6.6596094e-1f));
    } else if (E == Exp2Accuracy::medium) {  // to 8.6e-5
        p = fma_v(splat(7.70672e-2f), f, splat(2.2764482e-1f));
        p = fma_v(p, f, splat(6.9511682e-1f));
    } else {  // to 2.9e-6
        p = fma_v(splat(1.3425155e-2f), f, splat(5.2245375e-2f));
        p = fma_v(p, f, splat(2.4127856e-1f));
        p = fma_v(p, f, splat(6.9304514e-1f));
    }
    p = fma_v(p, f, splat(1.f));
    return _mm512_scalef_ps(p, n);  // bf16 ends where f32's subnormals begin
}

// P as bf16, elements of `a` and `b` interleaved: a shuffle instead of the conversion's three operations. To nearest, halves up; a
// NaN may become something else, but not the row sum.
inline __m512i narrow_interleaved(V a, V b) {
    const __m512i half = _mm512_set1_epi32(0x8000), high = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
    return _mm512_mask_shuffle_epi8(_mm512_add_epi32((__m512i)b, half), 0x3333333333333333, _mm512_add_epi32((__m512i)a, half), high);
}

// Computes P of a row tile, a few rows at a time, between the products. Its address must not escape: it lives in registers, which
// tile loads do not spill.
template <int32_t T, Exp2Accuracy E, int PRow>
struct SoftmaxRows {
    const float* s;
    uint16_t* p;
    const float *factor, *neg_ref, *l_before;
    float* l;
    __m512i largest;
    int row;

    inline __attribute__((always_inline)) void next_row() {
        const V scale = splat(factor[row]), offset = splat(neg_ref[row]);
        const float* at = s + row * kKeyBlock;
        uint16_t* to = p + row * PRow;
        V sum = V{};
#pragma GCC unroll 2
        for (int j = 0; j < kKeyBlock; j += 32) {
            const V a = exp2_poly<E>(fma_v(load(at + j), scale, offset)), b = exp2_poly<E>(fma_v(load(at + j + 16), scale, offset));
            sum = j == 0 ? a + b : sum + (a + b);
            if (T == FA_BF16) {
                _mm512_storeu_si512(to + j, narrow_interleaved(a, b));
            } else {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + j + 16),
                                    _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
            }
        }
        largest = _mm512_max_epu32(largest, (__m512i)sum);  // as bits, in which NaN is above all numbers
        store(l + row * 16, load(l_before + row * 16) + sum);
        row++;
    }
    // The share of the Rows rows beside four products that comes before product 0 … 3.
    template <int Rows, int Product>
    inline __attribute__((always_inline)) void interleave() {
        for (int i = Rows * Product / 4; i < Rows * (Product + 1) / 4; i++)
            if (row < 16) next_row();
    }
    inline __attribute__((always_inline)) void finish() {
        while (row < 16) next_row();
    }
};

void rescale_o(const MatrixShape& shape, const RowBlock& block) {
    float* o = block.o;
    for (int tile = 0; tile < 2 * shape.columns; tile++)
        for (int row = 0; row < 16; row++, o += 16) store(o, load(o) * block.rescale[tile / shape.columns * 16 + row]);
}

float find_neg_ref(const MatrixTask& task, const RowBlock& block, int row, const float* s) {
    V row_max = load(s);
    for (int j = 16; j < kKeyBlock; j += 16) row_max = max_v(load(s + j), row_max);
    return -(_mm512_reduce_max_ps(row_max) * block.factor[row] - float(p_scale_log2(task.shape.type)));
}

template <int H>
inline void transpose_max(V x[2 * H]) {
#pragma GCC unroll 8
    for (int i = 0; i < H; i++) x[i] = max_v(blend_lanes<H>(x[i], x[i + H]), exchange_lanes<H>(x[i], x[i + H]));
}

// update_ref() for 16 rows from `first` on, at once where none exceeds kMaxFusedScore: one by one they take as long as a step.
void update_refs(const MatrixTask& task, RowBlock& block, int first, float* s) {
    V row_max[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; r++) {
        const float* at = s + r * kKeyBlock;
        row_max[r] = max_v(max_v(load(at), load(at + 16)), max_v(load(at + 32), load(at + 48)));
    }
    transpose_max<8>(row_max);
    transpose_max<4>(row_max);
    transpose_max<2>(row_max);
    transpose_max<1>(row_max);
    const V from = -(row_max[0] * load(block.factor + first) - float(p_scale_log2(task.shape.type)));
    if (_mm512_cmp_ps_mask(_mm512_abs_ps(from), splat(kMaxFusedScore), _CMP_GT_OQ)) {
        for (int r = 0; r < 16; r++) update_ref(task, block, first + r, s + r * kKeyBlock);
        return;
    }
    float* const to = block.neg_ref + first;
    _mm512_mask_storeu_ps(to, _mm512_cmp_ps_mask(from, load(to), _CMP_LT_OQ), from);
}

void init_block(const MatrixTask& task, RowBlock& block, float* s) {
    reset_refs(task, block);
    for (int row = 0; row < kRowBlock; row += 16) update_refs(task, block, row, s + row * kKeyBlock);
}

// `l_index` says which of the two row sums is current.
template <int32_t T, Exp2Accuracy E, int PRow>
inline __attribute__((always_inline)) SoftmaxRows<T, E, PRow> softmax_rows(const RowBlock& block, const ScoreTile& part, int tile,
                                                                           int l_index) {
    const int row = tile * 16;
    const float* const l = block.l[l_index] + row * 16;
    return {.s = part.s,
            .p = part.p,
            .factor = block.factor + row,
            .neg_ref = block.neg_ref + row,
            .l_before = l,
            .l = block.l[!l_index] + row * 16,
            .largest = _mm512_setzero_si512(),
            .row = 0};
}

// The threshold of lazy rescale, 2^4 of the row's unit, as an f32's bits.
constexpr uint32_t rescale_threshold_bits(int32_t type) { return uint32_t(127 + 4 + p_scale_log2(type)) << 23; }

inline bool exceeds_threshold(int32_t type, __m512i largest) {
    return _mm512_cmpgt_epu32_mask(largest, _mm512_set1_epi32(rescale_threshold_bits(type))) != 0;
}

// Lazy rescale: row_ref may lag behind its row's maximum by some 4 (P up to 2^4). Rows of the tile where it lags by more get a new
// row_ref and their P again; others keep all their bits. `rescale` says whether block.rescale is set.
template <int32_t T, Exp2Accuracy E, int PRow>
__attribute__((noinline, cold)) void lazy_rescale(const MatrixTask& task, RowBlock& block, const ScoreTile& part, int tile, int l_index,
                                                  bool& rescale) {
    SoftmaxRows<T, E, PRow> w = softmax_rows<T, E, PRow>(block, part, tile, l_index);
    if (!rescale)
        for (int row = 0; row < kRowBlock; row++) block.rescale[row] = 1.f;
    rescale = true;
    for (int row = 0; row < 16; row++) {
        w.row = row;
        w.largest = _mm512_setzero_si512();
        w.next_row();
        if (!exceeds_threshold(T, w.largest)) continue;
        const float before = block.neg_ref[tile * 16 + row];
        if (!update_ref(task, block, tile * 16 + row, part.s + row * kKeyBlock)) continue;
        const V factor = exp2_poly<Exp2Accuracy::high>(splat(block.neg_ref[tile * 16 + row] - before));
        block.rescale[tile * 16 + row] = factor[0];
        alignas(64) float scaled[16 * 16];  // the row's sum, where SoftmaxRows reads it
        store(scaled + row * 16, load(w.l_before + row * 16) * factor);
        SoftmaxRows<T, E, PRow> again = w;
        again.l_before = scaled;
        again.row = row;
        again.next_row();
    }
}

const float* acc_row(const MatrixShape& shape, const RowBlock& block, int row) {
    return block.o + row / 16 * int64_t(shape.columns) * 256 + row % 16 * 16;
}

// Those of 16 columns that are a head's.
__mmask16 columns_from(const MatrixShape& shape, int column) { return __mmask16(first_bits(shape.dim_v - column)); }

void finish_state(const MatrixShape& shape, const RowBlock& block, int rows, float scale, float* o, float* m, float* l) {
    const float unit = acc_scale(shape.type);
    for (int first = 0; first < rows; first += 16) {
        const __mmask16 given = __mmask16(first_bits(rows - first));
        V row_sum[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) row_sum[i] = load(block.l[block.l_index] + (first + i) * 16);
        transpose_add_lanes(row_sum);
        _mm512_mask_storeu_ps(l + first, given, row_sum[0] * unit);
        _mm512_mask_storeu_ps(m + first, given, float(p_scale_log2(shape.type)) - load(block.neg_ref + first));
    }
    if (!o) return;
    for (int row = 0; row < rows; row++, o += shape.dim_v) {
        const float* from = acc_row(shape, block, row);
        const V factor = splat(l[row] == 0 ? 0.f : scale * unit);  // an empty row is 0, whatever the scale
        for (int column = 0; column < shape.dim_v; column += 16, from += 256)
            _mm512_mask_storeu_ps(o + column, columns_from(shape, column), load(from) * factor);
    }
}

// As f32_to_bf16() does it.
inline __m256i rounded_bf16(V x) {
    const __m512i u = (__m512i)x, odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet));
}

// A row of o, normalised. The Plain path is for values that neither overflow nor are so small that the instruction would make them
// 0; false: some are.
template <bool Plain>
inline bool write_row(const MatrixShape& shape, const float* from, V acc_factor, V factor, float o_scale, uint16_t* to) {
    constexpr int subnormal = 0x20, no_number = 0x80 | 0x10 | 0x08 | 0x01;
    uint32_t others = 0;
    for (int column = 0; column < shape.dim_v; column += 16, from += 256) {
        const V sum = load(from) * acc_factor, average = (Plain ? sum * factor + 0.f : finished(sum, factor)) * o_scale;
        if (Plain) others |= _mm512_fpclass_ps_mask(average, subnormal | no_number);
        const __m256i narrowed = Plain ? (__m256i)_mm512_cvtneps_pbh(average) : rounded_bf16(average);
        _mm256_mask_storeu_epi16(to + column, columns_from(shape, column), narrowed);
    }
    return others == 0;
}

void write_o(const MatrixShape& shape, const RowBlock& block, int rows, float scale, const float* factor, float o_scale, char* const* to) {
    for (int row = 0; row < rows; row++) {
        const float* from = acc_row(shape, block, row);
        const bool empty = _mm512_cmp_ps_mask(load(block.l[block.l_index] + row * 16), V{}, _CMP_NEQ_UQ) == 0;
        const V acc_factor = splat(empty ? 0.f : scale * acc_scale(shape.type)), of_row = splat(factor[row]);
        uint16_t* const line = reinterpret_cast<uint16_t*>(to[row]);
        if (!write_row<true>(shape, from, acc_factor, of_row, o_scale, line))
            write_row<false>(shape, from, acc_factor, of_row, o_scale, line);
    }
}

}  // namespace
}  // namespace cpu
}  // namespace fa
