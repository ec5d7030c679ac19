// AVX-512 with dot products of pairs of bf16 (Zen 4 and later, Cooper Lake): what AMX does on tiles, on vectors. Operands are packed alike.
//
// Exponents take the units that dots take, and nothing is won by doing both at once as AMX does: products and weights follow each other.
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"
#include "cpu/kernels/matrix_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_avx512_bf16;

namespace {

#include "cpu/isa/avx512.inc"
#include "cpu/kernels/tile_kernels.inc"
#include "cpu/kernels/matrix_softmax.inc"
#include "cpu/kernels/matrix_score_mod.inc"
#include "cpu/kernels/matrix_pack.inc"
#include "cpu/kernels/matrix_backward.inc"

constexpr int kBlockRows = 4;  // with 4 vectors: 16 sums hide the latency of a dot, and 8 operands are loaded for 16 dots

// How much of a product's padded tiles is there, and where its sums lie.
struct Extent {
    int vectors;                // of 16 columns
    int pairs;                  // of the depth, in its last tile
    int64_t row, across, down;  // floats between rows, vectors and tiles of 16 rows
};

// c[kBlockRows][Vectors] = or += left · right.
template <int Vectors>
inline void block(const MatrixProduct& m, const Extent& e, const uint16_t* left, const uint16_t* right, float* c) {
    const int64_t row = m.left_row / 2;
    V sum[kBlockRows][Vectors], x[Vectors];
#pragma GCC unroll 4
    for (int r = 0; r < kBlockRows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < Vectors; n++) sum[r][n] = m.add ? load(c + r * e.row + n * e.across) : V{};
    for (int part = 0; part < m.parts; part++)
        for (int k = 0; k < m.depth; k++) {
            const uint16_t *a = left + part * m.left_part + k * m.left_along, *b = right + part * m.right_part + k * 2 * kTile;
            const uint16_t* const end = b + (k + 1 < m.depth ? 16 : e.pairs) * 32;
            for (; b < end; a += 2, b += 32) {
#pragma GCC unroll 4
                for (int n = 0; n < Vectors; n++) x[n] = (V)_mm512_loadu_si512(b + n / 2 * m.right_across + n % 2 * kTile);
#pragma GCC unroll 4
                for (int r = 0; r < kBlockRows; r++) {
                    int32_t two;
                    memcpy(&two, a + r * row, sizeof two);
                    const __m512bh y = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 4
                    for (int n = 0; n < Vectors; n++) sum[r][n] = _mm512_dpbf16_ps(sum[r][n], y, (__m512bh)x[n]);
                }
            }
        }
#pragma GCC unroll 4
    for (int r = 0; r < kBlockRows; r++)
#pragma GCC unroll 4
        for (int n = 0; n < Vectors; n++) store(c + r * e.row + n * e.across, sum[r][n]);
}

void multiply(const MatrixProduct& m, const Extent& e) {
    for (int r = 0; r < m.row_pairs * kPairRows; r += kBlockRows) {
        const uint16_t* const left = m.left + r / 16 * m.left_down + r % 16 * (m.left_row / 2);
        float* const c = m.c + r / 16 * e.down + r % 16 * e.row;
        for (int n = 0; n < e.vectors; n += 4) {
            const uint16_t* const right = m.right + n / 2 * m.right_across;
            const int vectors = e.vectors - n;
            if (vectors >= 4) block<4>(m, e, left, right, c + n * e.across);
            else if (vectors == 3) block<3>(m, e, left, right, c + n * e.across);
            else if (vectors == 2) block<2>(m, e, left, right, c + n * e.across);
            else block<1>(m, e, left, right, c + n * e.across);
        }
    }
}

void multiply(const MatrixProduct* products, int count) {
    for (const MatrixProduct* m = products; m < products + count; m++)
        multiply(*m, {2 * m->column_pairs, 16, m->c_stride, 16, 16 * m->c_stride});
}

void multiply_k(const MatrixShape& shape, const Step& step, float* s) {
    const int64_t tiles = int64_t(shape.depth) * kTile;
    multiply({step.pair->q, tiles, kTile, 64, step.k, 2 * tiles, 1, 2, shape.depth, 1, 0, 0, s, kStepKeys, false},
             {kStepKeys / 16, (shape.dim_qk - 1) % 32 / 2 + 1, kStepKeys, 16, 16 * kStepKeys});
}

// Scores and weights of a step.
struct Slot {
    float* s;     // [kPairRows][kStepKeys]
    uint16_t* p;  // the same
    bool rescale;
};

void multiply_v(const MatrixShape& shape, const Step& step, const Slot& slot) {
    Pair& pair = *step.pair;
    if (__builtin_expect(slot.rescale && !pair.empty, 0)) rescale_o(shape, pair);
    multiply(
        {slot.p, 16 * kStepKeys, 32, 2 * kStepKeys, step.v, 4 * kTile, 1, shape.columns / 2, 2, 1, 0, 0, pair.o, 16, !pair.empty},
        {(shape.dim_v - 1) / 16 + 1, 16, 16, 256, int64_t(shape.columns) * 256});
    pair.empty = false;
}

template <Exponent E>
void weigh(const MatrixTask& t, Pair& pair, Slot& slot) {
    slot.rescale = false;
    if (pair.fresh) begin_pair(t, pair, slot.s);
    else if (__builtin_expect(pair.huge, 0)) multiply_huge_rows(t, pair, 0, kPairRows, slot.s);
    for (int tile = 0; tile < 2; tile++) {
        const Part part{slot.s + tile * kTileScores, slot.p + tile * kTileScores};
        Weights<FA_BF16, E, kStepKeys> w = weights_of<FA_BF16, E, kStepKeys>(pair, part, tile, pair.now);
        w.rest();
        if (__builtin_expect(over_limit(FA_BF16, w.largest), 0))
            renew<FA_BF16, E, kStepKeys>(t, pair, part, tile, pair.now, slot.rescale);
    }
    pair.now = !pair.now;
}

template <Exponent E>
void run_steps(MatrixTask t, const Step* steps, int64_t count) {
    float* const s = reinterpret_cast<float*>(t.slots);
    Slot slot{s, reinterpret_cast<uint16_t*>(s + 2 * kTileScores), false};
    if (t.has_score_mod) t.factor = 1.f;  // edit_scores() has multiplied
    for (const Step* step = steps; step < steps + count; step++) {
        multiply_k(t.shape, *step, slot.s);
        edit(t, *step, slot.s, 0, kPairRows);
        weigh<E>(t, *step->pair, slot);
        multiply_v(t.shape, *step, slot);
    }
}

void run(const MatrixTask& t, const Step* steps, int64_t count) {
    if (t.lse) run_steps<Exponent::fine>(t, steps, count);
    else run_steps<Exponent::rough>(t, steps, count);
}

void settle_diagonal(const MatrixTask& t, const Step& step) {
    float* const s = reinterpret_cast<float*>(t.slots);
    multiply_k(t.shape, step, s);
    settle_rows(t, step, s);
}

constexpr double kSpeed = 1.8, kGradientSpeed = 1.5;  // where the CPU prefers this table
constexpr MatrixKernels kMatrix = {
    false, kSpeed, kGradientSpeed, convert, pack_q, pack_k, pack_v, pack_rows, kept, settle_diagonal, run, finish_rows, write_o,
    nullptr, multiply, narrow, differentiate_pairs, nullptr, transpose_k};

}  // namespace

const Kernels kKernels_avx512_bf16 = FA_KERNELS("avx512_bf16", FA_ISA_AVX512_BF16, &kMatrix);

}  // namespace cpu
}  // namespace fa
