// The kernel tables of AMX: products of tiles of bf16 (Sapphire Rapids and later) and of f16 (Granite Rapids), beside AVX-512 with
// its bf16 conversions. Here are the tile instructions, the 2 × 2 register block, and the forward's mainloop.
// Products and exp2 take about the same time at 64 dims, so they are interleaved: while P of step i is computed, the products o +=
// P V of step i − 1 and S = Q Kᵀ of step i + 1 are issued, with a row of exp2 before each (the reorder buffer is too short to
// overlap longer runs of either). Tile loads and stores do not overlap with exp2: measured on Emerald and Granite Rapids, a load
// keeps both vector ports busy for 8 cycles and a store for 16, and the sum of that and of exp2 is what a step takes, as long as it
// exceeds the products. So each loaded tile is used in two products: one load to a product.
#include <immintrin.h>
#include "cpu/kernels/kernel_table.h"
#include "cpu/kernels/matrix_table.h"

namespace fa {
namespace cpu {

extern const Kernels kKernels_amx, kKernels_amx_fp16;

namespace {

#include "cpu/isa/avx512.inc"
#include "cpu/kernels/tile_kernels.inc"
#include "cpu/kernels/matrix_softmax.inc"
#include "cpu/kernels/matrix_score_mod.inc"
#include "cpu/kernels/matrix_pack.inc"
#include "cpu/kernels/matrix_backward.inc"

// gcc 12's intrinsics for these have no memory clobber, and its ldtilecfg reads 8 of the 64 bytes. Products need none: what is volatile
// keeps its order.
#define FA_TILE_LOAD(t, p, stride) __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(stride)) : "memory")
// Non-temporal, for what is read once a step: it then leaves room in the first-level cache for S, P and accumulators, whose way
// back to the second level would take longer than the products.
#define FA_TILE_STREAM(t, p) __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"(int64_t(64)) : "memory")
#define FA_TILE_STORE(t, p, stride) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(int64_t(stride)) : "memory")
#define FA_TILE_ZERO(t) __asm__ volatile("tilezero %tmm" #t)
// Assemblers of today do not know tdpfp16ps.
#define FA_TILE_DOT(c, a, b)                                                         \
    if (T == FA_BF16) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c); \
    else __asm__ volatile(".byte 0xc4, 0xe2, %c0, 0x5c, %c1" ::"i"((~(b)&15) << 3 | 3), "i"(0xc0 | (c) << 3 | (a)))

constexpr int kRowBytes = kKeyBlock * 4;  // of S

void configure_tiles() {
    struct alignas(64) {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {};
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
}

// S and P of one step. The first-level cache is short of room, so a row's P lies in the first half of its S.
constexpr int kPRow = 2 * kKeyBlock;
struct ScoreStage {
    float* s;  // [2 row tiles][16][kKeyBlock]
    bool rescale;
    uint16_t* p() const { return reinterpret_cast<uint16_t*>(s); }
    ScoreTile tile_of(int tile) const { return {s + tile * kTileScores, p() + tile * 16 * kPRow}; }
};
static_assert(3 * 2 * kTileScores * sizeof(float) == kMatrixStageBytes, "matrix.h says how much there is");

struct NoInterleave {
    template <int, int>
    void interleave() {}
};

// Accumulators are in tiles 0 … 3: upper rows left and right, lower rows left and right. One is stored only when its tile is needed
// for the next one, four products after its own last: a store that waits for its product would fill the scheduler.
struct AccTiles {
    float *upper, *lower;   // NULL: none to store
    int64_t right, stride;  // floats to the right tile; bytes between rows
    inline __attribute__((always_inline)) void store(int n) const {
        if (n == 0) FA_TILE_STORE(0, upper, stride);
        else if (n == 1) FA_TILE_STORE(1, upper + right, stride);
        else if (n == 2) FA_TILE_STORE(2, lower, stride);
        else FA_TILE_STORE(3, lower + right, stride);
    }
    inline __attribute__((always_inline)) void store() const {
        for (int n = 0; n < 4; n++) store(n);
    }
};

// The 2 × 2 register block: four accumulators += two left tiles times two right ones that follow each other. begin(n) comes before
// the product of accumulator n. Tile loads and stores are many micro-operations each, and are spread: with all four loads in a row
// before the products, a step of 64 dims took a tenth longer.
template <int32_t T, int Rows, class Interleaved, class Begin>
inline __attribute__((always_inline)) void gemm_2x2(const uint16_t* a0, const uint16_t* a1, int64_t a_stride, const uint16_t* b,
                                                    Interleaved& interleaved, const Begin& begin) {
    FA_TILE_LOAD(4, a0, a_stride);
    interleaved.template interleave<Rows, 0>();
    FA_TILE_STREAM(6, b);
    begin(0);
    FA_TILE_DOT(0, 4, 6);
    interleaved.template interleave<Rows, 1>();
    FA_TILE_STREAM(7, b + kTile);
    begin(1);
    FA_TILE_DOT(1, 4, 7);
    interleaved.template interleave<Rows, 2>();
    FA_TILE_LOAD(5, a1, a_stride);
    begin(2);
    FA_TILE_DOT(2, 5, 6);
    interleaved.template interleave<Rows, 3>();
    begin(3);
    FA_TILE_DOT(3, 5, 7);
}

inline __attribute__((always_inline)) void zero_acc(int n) {
    if (n == 0) FA_TILE_ZERO(0);
    else if (n == 1) FA_TILE_ZERO(1);
    else if (n == 2) FA_TILE_ZERO(2);
    else FA_TILE_ZERO(3);
}

// S = Q Kᵀ. Stores `before`, the accumulators of the product before this one, on the way.
template <int32_t T, int Rows, class Interleaved>
inline __attribute__((always_inline)) void qk_gemm(const MatrixShape& shape, const MainloopStep& step, ScoreStage& stage,
                                                   Interleaved& interleaved, AccTiles before) {
    const uint16_t *q = step.block->q, *k = step.k;
    const int depth = shape.depth;
    const int64_t q_tile = int64_t(depth) * kTile;
    for (int half = 0; half < 2; half++) {
        gemm_2x2<T, Rows>(
            q, q + q_tile, 64, k, interleaved, [&](int n) __attribute__((always_inline)) {
                if (before.upper) before.store(n);
                zero_acc(n);
            });
        k += 2 * kTile;
        for (int c = 1; c < depth; c++, k += 2 * kTile) {
            const uint16_t* a = q + c * kTile;
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
        gemm_2x2<T, Rows>(
            p0, p1, kPRow * 2, v, interleaved, [&](int n) __attribute__((always_inline)) {
                if (before.upper) before.store(n);
                if (empty) zero_acc(n);
                else if (n == 0) FA_TILE_LOAD(0, o0, 64);
                else if (n == 1) FA_TILE_LOAD(1, o0 + 256, 64);
                else if (n == 2) FA_TILE_LOAD(2, o1, 64);
                else FA_TILE_LOAD(3, o1 + 256, 64);
            });
        gemm_2x2<T, Rows>(p0 + 32, p1 + 32, kPRow * 2, v + 2 * kTile, interleaved, [](int) {});
        v += 4 * kTile;
        before = {o0, o1, 256, 64};
    }
    return before;
}

// Lazy rescale of a row tile. P has replaced the scores, which are computed again into `spare`.
template <int32_t T, Exp2Accuracy E>
__attribute__((noinline, cold)) void lazy_rescale_step(const MatrixTask& t, const MainloopStep& step, ScoreStage& stage,
                                                       ScoreStage& spare, int tile, const AccTiles& pending) {
    NoInterleave none;
    RowBlock& block = *step.block;
    if (pending.upper) pending.store();
    qk_gemm<T, 0>(t.shape, step, spare, none, AccTiles{});
    maybe_score_mod(t, step, spare.s, 0, kRowBlock);
    if (block.prescaled) prescale_rows(t, block, 0, kRowBlock, spare.s);
    lazy_rescale<T, E, kPRow>(t, block, {spare.tile_of(tile).s, stage.tile_of(tile).p}, tile, block.l_index, stage.rescale);
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
    configure_tiles();
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
        if (__builtin_expect(exceeds_threshold(T, lower.largest), 0))
            lazy_rescale_step<T, E>(t, steps[i], now, stages[2], 1, AccTiles{});
        block.l_index = !block.l_index;
        if (i + 1 < count) maybe_score_mod(t, steps[i + 1], other.s, 0, kRowBlock);
    }
    pv_gemm<T, 0>(shape, steps[count - 1], stages[(count - 1) & 1], none).store();
    __asm__ volatile("tilerelease");  // or every switch of context carries 8 KB of tiles
}

#include "cpu/kernels/amx_forward_d64.inc"

template <int32_t T, Exp2Accuracy E>
void mainloop_rows(const MatrixTask& t, const MainloopStep* steps, int64_t count) {
    if (is_head_dim_64(t.shape)) return mainloop_resident<T, E>(t, steps, count);
    const int groups =
        t.shape.depth * 2 > t.shape.columns ? t.shape.columns : t.shape.depth * 2;  // of four products, at least, in a phase
    if (groups <= 2) mainloop_steps<T, E, 8>(t, steps, count);
    else if (groups <= 4) mainloop_steps<T, E, 4>(t, steps, count);
    else if (groups <= 8) mainloop_steps<T, E, 2>(t, steps, count);
    else mainloop_steps<T, E, 1>(t, steps, count);
}

void mainloop(const MatrixTask& t, const MainloopStep* steps, int64_t count) {
    if (count == 0) return;
    const bool fp16 = t.shape.type == FA_F16;
    if (t.lse && fp16) mainloop_rows<FA_F16, Exp2Accuracy::high>(t, steps, count);
    else if (t.lse) mainloop_rows<FA_BF16, Exp2Accuracy::high>(t, steps, count);
    else if (fp16) mainloop_rows<FA_F16, Exp2Accuracy::medium>(t, steps, count);
    else mainloop_rows<FA_BF16, Exp2Accuracy::low>(t, steps, count);
}

template <int32_t T>
void init_refs_step(const MatrixTask& t, const MainloopStep& step) {
    ScoreStage stage{reinterpret_cast<float*>(t.stages), false};
    NoInterleave none;
    configure_tiles();
    qk_gemm<T, 0>(t.shape, step, stage, none, AccTiles{});
    __asm__ volatile("tilerelease");
    update_refs_at_diagonal(t, step, stage.s);
}

void init_refs_at_diagonal(const MatrixTask& t, const MainloopStep& step) {
    if (t.shape.type == FA_F16) init_refs_step<FA_F16>(t, step);
    else init_refs_step<FA_BF16>(t, step);
}

#include "cpu/kernels/amx_decode.inc"
#include "cpu/kernels/amx_backward.inc"

constexpr MatrixKernels matrix_kernels(bool fp16) {
    constexpr double speed = 8, backward_speed = 4;  // about 1 TFLOP/s a core
    return {fp16,
            speed,
            backward_speed,
            convert,
            pack_q,
            pack_k,
            pack_v,
            pack_rows,
            classify_keys,
            init_refs_at_diagonal,
            mainloop,
            finish_state,
            write_o,
            &kDecodeMatrix,
            gemm,
            pack_p_ds,
            softmax_backward_packed,
            softmax_backward_tiles,
            transpose_k};
}
constexpr MatrixKernels kMatrix = matrix_kernels(false), kMatrixFp16 = matrix_kernels(true);

}  // namespace

const Kernels kKernels_amx = FA_KERNELS("amx", FA_ISA_AMX, &kMatrix);
const Kernels kKernels_amx_fp16 = FA_KERNELS("amx_fp16", FA_ISA_AMX_FP16, &kMatrixFp16);

}  // namespace cpu
}  // namespace fa
