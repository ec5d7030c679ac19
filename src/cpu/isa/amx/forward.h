// The forward's mainloop on AMX, for any head size.
//
// Products and exp2 take about the same time at 64 dims, so they are interleaved: while P of step i is computed, the products o +=
// P V of step i − 1 and S = Q Kᵀ of step i + 1 are issued, with a row of exp2 before each (the reorder buffer is too short to
// overlap longer runs of either). Tile loads and stores do not overlap with exp2: measured on Emerald and Granite Rapids, a load
// keeps both vector ports busy for 8 cycles and a store for 16, and the sum of that and of exp2 is what a step takes, as long as it
// exceeds the products. So each loaded tile is used in two products: one load to a product.
#pragma once
#include "cpu/isa/amx/tiles.h"
#include "cpu/kernels/matrix_score_mod.h"

namespace fa {
namespace cpu {
namespace {

constexpr int kRowBytes = kKeyBlock * 4;  // of S

// S and P of one step. The first-level cache is short of room, so a row's P lies in the first half of its S.
constexpr int kPRow = 2 * kKeyBlock;
struct ScoreStage {
    float* s;  // [2 row tiles][16][kKeyBlock]
    bool rescale;
    uint16_t* p() const { return reinterpret_cast<uint16_t*>(s); }
    ScoreTile tile_of(int tile) const { return {s + tile * kTileScores, p() + tile * 16 * kPRow}; }
};
static_assert(3 * 2 * kTileScores * sizeof(float) == kMatrixStageBytes, "matrix_table.h says how much there is");

// S = Q Kᵀ. Stores `before`, the accumulators of the product before this one, on the way.
template <int32_t T, int Rows, class Interleaved>
inline __attribute__((always_inline)) void qk_gemm(const MatrixShape& shape, const MainloopStep& step, ScoreStage& stage,
                                                   Interleaved& interleaved, AccTiles before) {
    const uint16_t *q = step.block->q, *k = step.k;
    const int depth = shape.depth;
    const int64_t q_tile = int64_t(depth) * kTileValues;
    for (int half = 0; half < 2; half++) {
        gemm_2x2<T, Rows>(q, q + q_tile, 64, k, interleaved, [&](int n) __attribute__((always_inline)) {
            if (before.upper) before.store(n);
            zero_acc(n);
        });
        k += 2 * kTileValues;
        for (int c = 1; c < depth; c++, k += 2 * kTileValues) {
            const uint16_t* a = q + c * kTileValues;
            gemm_2x2<T, Rows>(a, a + q_tile, 64, k, interleaved, [](int) {});
        }
        before = {stage.s + half * 32, stage.s + half * 32 + 16 * kKeyBlock, 16, kRowBytes};
    }
    before.store();
}

// o += P V; the last accumulators are returned, to be stored later.
template <int32_t T, int Rows, class Interleaved>
inline __attribute__((always_inline)) AccTiles pv_gemm(const MatrixShape& shape, const MainloopStep& step, const ScoreStage& stage,
                                                       Interleaved& interleaved) {
    const int columns = shape.columns;
    float *o0 = step.block->o, *o1 = o0 + int64_t(columns) * 256;
    const uint16_t *p0 = stage.p(), *p1 = p0 + 16 * kPRow, *v = step.v;
    const bool empty = step.block->acc_empty;
    step.block->acc_empty = false;
    if (__builtin_expect(stage.rescale && !empty, 0)) rescale_o(shape, *step.block);
    AccTiles before{};
    for (int column = 0; column < columns; column += 2, o0 += 512, o1 += 512) {
        gemm_2x2<T, Rows>(p0, p1, kPRow * 2, v, interleaved, [&](int n) __attribute__((always_inline)) {
            if (before.upper) before.store(n);
            if (empty) zero_acc(n);
            else if (n == 0) FA_TILE_LOAD(0, o0, 64);
            else if (n == 1) FA_TILE_LOAD(1, o0 + 256, 64);
            else if (n == 2) FA_TILE_LOAD(2, o1, 64);
            else FA_TILE_LOAD(3, o1 + 256, 64);
        });
        gemm_2x2<T, Rows>(p0 + 32, p1 + 32, kPRow * 2, v + 2 * kTileValues, interleaved, [](int) {});
        v += 4 * kTileValues;
        before = {o0, o1, 256, 64};
    }
    return before;
}

// Lazy rescale of a row tile. P has replaced the scores, which are computed again into `spare`.
template <int32_t T, Exp2Accuracy E>
__attribute__((noinline, cold)) void lazy_rescale_step(const MatrixTask& task, const MainloopStep& step, ScoreStage& stage,
                                                       ScoreStage& spare, int tile, const AccTiles& pending) {
    NoInterleave none;
    RowBlock& block = *step.block;
    if (pending.upper) pending.store();
    qk_gemm<T, 0>(task.shape, step, spare, none, AccTiles{});
    maybe_score_mod(task, step, spare.s, 0, kRowBlock);
    if (block.prescaled) prescale_rows(task, block, 0, kRowBlock, spare.s);
    lazy_rescale<T, E, kPRow>(task, block, {spare.tile_of(tile).s, stage.tile_of(tile).p}, tile, block.l_index, stage.rescale);
}

// Rows: how many rows of P are computed beside four products; enough to be done when the products are.
template <int32_t T, Exp2Accuracy E, int Rows>
void mainloop_steps(const MatrixTask& task, const MainloopStep* steps, int64_t count) {
    const MatrixShape shape = task.shape;
    ScoreStage stages[3];
    for (int i = 0; i < 3; i++) stages[i].s = reinterpret_cast<float*>(task.stages) + i * 2 * kTileScores;
    MatrixTask t = task;
    if (t.has_score_mod) t.factor = 1.f;  // apply_score_mod() has multiplied
    NoInterleave none;
    const Tiles registers;
    qk_gemm<T, 0>(shape, steps[0], stages[0], none, AccTiles{});
    maybe_score_mod(t, steps[0], stages[0].s, 0, kRowBlock);
    for (int64_t i = 0; i < count; i++) {
        ScoreStage &now = stages[i & 1], &other = stages[(i + 1) & 1];
        RowBlock& block = *steps[i].block;
        now.rescale = false;
        if (block.ref_unset) init_block(t, block, now.s);
        else if (__builtin_expect(block.prescaled, 0)) prescale_rows(t, block, 0, kRowBlock, now.s);
        SoftmaxRows<T, E, kPRow> upper = softmax_rows<T, E, kPRow>(block, now.tile_of(0), 0, block.l_index);
        AccTiles o{};
        if (i > 0) o = pv_gemm<T, Rows>(shape, steps[i - 1], other, upper);
        upper.finish();
        if (__builtin_expect(exceeds_threshold(T, upper.largest), 0)) {
            lazy_rescale_step<T, E>(t, steps[i], now, stages[2], 0, o);
            o = {};
        }
        SoftmaxRows<T, E, kPRow> lower = softmax_rows<T, E, kPRow>(block, now.tile_of(1), 1, block.l_index);
        if (i + 1 < count) qk_gemm<T, Rows>(shape, steps[i + 1], other, lower, o);
        else if (o.upper) o.store();
        lower.finish();
        if (__builtin_expect(exceeds_threshold(T, lower.largest), 0)) lazy_rescale_step<T, E>(t, steps[i], now, stages[2], 1, AccTiles{});
        block.l_index = !block.l_index;
        if (i + 1 < count) maybe_score_mod(t, steps[i + 1], other.s, 0, kRowBlock);
    }
    pv_gemm<T, 0>(shape, steps[count - 1], stages[(count - 1) & 1], none).store();
}

}  // namespace
}  // namespace cpu
}  // namespace fa
