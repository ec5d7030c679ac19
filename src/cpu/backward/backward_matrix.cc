// The backward by matrix instructions: packs keys and rows, and runs the products of a panel of query tiles against steps of keys.
// S and dP come out as the f32 tiles' do, [key][row], so that all score mods between the products are shared with them.
#include "cpu/backward/backward_call.h"
#include "cpu/forward/kv_rows.h"
#include "cpu/forward/tile.h"
#include "cpu/forward/visible_keys.h"

namespace fa {
namespace cpu {
namespace {

static_assert(kKeyBlock == kTileKeys && kMaxRows == kTileKeys, "tiles are square");
static_assert(kBackwardTileFloats == kTileKeys * kMaxRows, "the scratch of scores serves");

constexpr int kMaxSteps = 4;  // of a panel whose P and dS are kept, 384 KB of them
constexpr int64_t kTileElements = kMaxRows * kTileKeys;

int64_t step_values(int64_t dim) { return 4 * operand_shape(dim).depth * kTileValues; }  // of 64 rows, however they are packed

// Addresses of the tile's rows of q or dout; none for a lane that takes no part.
void row_pointers(const BackwardCall& backward, const QueryTile& tile, const void* base, const int64_t stride[4],
                  const BackwardScratch& scratch, const uint16_t** rows) {
    const Problem& p = *backward.c.p;
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        const int64_t index = query_index(p, stride, tile.seq, tile.batch, at.position, tile.kv_head * p.group + at.group_head);
        rows[lane] = scratch.lse[lane] == kPosInf ? nullptr : static_cast<const uint16_t*>(base) + index;
    }
}

const uint16_t* const* values_of(const char* const* rows) { return reinterpret_cast<const uint16_t* const*>(rows); }

}  // namespace

bool use_matrix_backward(const Problem& problem, const Kernels& kernels) {
    constexpr Implements list = {FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE | FA_OPERAND_MASK | FA_OPERAND_ALIBI |
                                     FA_OPERAND_SINKS | kSequenceOperands | kRowSetOperands | FA_OPERAND_RNG_STATE,
                                 option::bands | option::schedule | option::softcap | option::dropout_p | option::bias_period |
                                     option::mask_period | option::mask_dtype | option::mask_keys};
    return kernels.matrix && kernels.matrix->gemm && problem.within(list) && problem.d.q_dtype == FA_BF16 && problem.d.k_dtype == FA_BF16;
}

MatrixShape operand_shape(int64_t dim) {
    const int tiles = int(ceil_div(dim, 32));
    return {FA_BF16, int(dim), int(dim), tiles, 2 * tiles};
}

void lay_out_operands(const Problem& problem, int block_keys, MatrixOperands* operands, Arena& arena) {
    const int64_t qk = step_values(problem.d.dim_qk), v = step_values(problem.d.dim_v), steps = block_keys / kKeyBlock;
    operands->k = arena.allocate<uint16_t>(steps * qk);
    operands->v = arena.allocate<uint16_t>(steps * v);
    operands->k_transposed = arena.allocate<uint16_t>(steps * qk);
    operands->q = arena.allocate<uint16_t>(kBackwardPanel * qk);
    operands->dout = arena.allocate<uint16_t>(kBackwardPanel * v);
    operands->q_rows = arena.allocate<uint16_t>(kBackwardPanel * qk);
    operands->dout_rows = arena.allocate<uint16_t>(kBackwardPanel * v);
    operands->p = arena.allocate<uint16_t>(kMaxSteps * kBackwardPanel * kTileElements);
    operands->ds = arena.allocate<uint16_t>(kMaxSteps * kBackwardPanel * kTileElements);
    operands->ds_pairs = arena.allocate<uint16_t>(kMaxSteps * kBackwardPanel * kTileElements);
    operands->packed = arena.allocate<uint16_t>(qk);
}

static void pack_keys(const BackwardCall& backward, const QueryTile& tile, int64_t key, int keys, BackwardScratch& scratch) {
    const MatrixKernels& mk = *backward.c.k->matrix;
    const MatrixOperands& m = scratch.matrix;
    const MatrixShape qk = operand_shape(backward.c.p->d.dim_qk), v = operand_shape(backward.c.p->d.dim_v);
    for (int64_t step = 0; step * kKeyBlock < keys; step++) {
        const char* rows[kKeyBlock] = {};
        const int64_t first = key + step * kKeyBlock, k_at = step * step_values(qk.dim_qk), v_at = step * step_values(v.dim_v);
        const int count = int(min_of(kKeyBlock, keys - step * kKeyBlock));
        locate_kv_rows(backward.c, tile, KvOperand::k, tile.kv_head, first, count, rows);
        for (int half = 0; half < 2; half++) mk.pack_q(qk, values_of(rows + half * kRowBlock), m.k + k_at + half * qk.q_bytes() / 2);
        mk.pack_k(qk, values_of(rows), m.packed);
        mk.transpose_k(qk, m.packed, m.k_transposed + k_at);
        locate_kv_rows(backward.c, tile, KvOperand::v, tile.kv_head, first, count, rows);
        for (int half = 0; half < 2; half++) mk.pack_q(v, values_of(rows + half * kRowBlock), m.v + v_at + half * v.q_bytes() / 2);
    }
}

void pack_rows(const BackwardCall& backward, const QueryTile& tile, BackwardScratch& scratch) {
    const MatrixKernels& mk = *backward.c.k->matrix;
    const MatrixShape qk = operand_shape(backward.c.p->d.dim_qk), v = operand_shape(backward.c.p->d.dim_v);
    const uint16_t* rows[kMaxRows] = {};
    row_pointers(backward, tile, backward.inputs.q, backward.c.p->d.q_stride, scratch, rows);
    mk.pack_k(qk, rows, scratch.matrix.q);
    mk.pack_rows(qk, rows, scratch.matrix.q_rows);
    row_pointers(backward, tile, backward.a->dout, backward.a->dout_stride, scratch, rows);
    mk.pack_k(v, rows, scratch.matrix.dout);
    mk.pack_rows(v, rows, scratch.matrix.dout_rows);
}

// S or dP of one step: 64 keys × dims times dims × 64 rows.
static MatrixGemm score_gemm(int64_t step, const uint16_t* keys, const uint16_t* rows, int64_t dim, float* c) {
    const int depth = operand_shape(dim).depth;
    return {.a = keys + step * step_values(dim),
            .a_m_stride = depth * kTileValues,
            .a_k_stride = kTileValues,
            .a_row_bytes = 64,
            .b = rows,
            .b_n_stride = 2 * depth * kTileValues,
            .m_pairs = 2,
            .n_pairs = 2,
            .k_tiles = depth,
            .k_parts = 1,
            .a_part_stride = 0,
            .b_part_stride = 0,
            .c = c,
            .c_stride = kMaxRows,
            .accumulate = false};
}

static void gemm_scores_dp(const BackwardCall& backward, int64_t step, BackwardScratch& scratch) {
    const MatrixOperands& m = scratch.matrix;
    const MatrixGemm both[] = {score_gemm(step, m.k, m.q, backward.c.p->d.dim_qk, scratch.w.s),
                               score_gemm(step, m.v, m.dout, backward.c.p->d.dim_v, scratch.dp)};
    backward.c.k->matrix->gemm(both, 2);
}

namespace {

// Query tiles of a panel against some steps of a block, and which 64 × 64 tiles of them hold P.
struct Panel {
    QueryTile tile[kBackwardPanel];
    int tiles;
    int first, steps;  // within the block
    bool live[kMaxSteps][kBackwardPanel];
};

int64_t tile_offset(int step, int tile) { return (int64_t(step) * kBackwardPanel + tile) * kTileElements; }

// The tile's part of the scratch.
BackwardScratch tile_scratch(const BackwardCall& backward, int tile, const BackwardScratch& scratch) {
    const int64_t qk = step_values(backward.c.p->d.dim_qk), v = step_values(backward.c.p->d.dim_v);
    BackwardScratch y = scratch;
    y.lse += tile * kMaxRows;
    y.delta += tile * kMaxRows;
    y.matrix.q += tile * qk;
    y.matrix.q_rows += tile * qk;
    y.matrix.dout += tile * v;
    y.matrix.dout_rows += tile * v;
    return y;
}

// Zeroes what dropout removes, and rescales the rest: rows of dout are as they were given.
void apply_dropout_rescaled(const BackwardCall& backward, const QueryTile& tile, int64_t key, int keys, float* p_or_ds) {
    apply_dropout_tile(backward.c, tile, key, keys, p_or_ds);
    for (int i = 0; i < keys * kMaxRows; i++) p_or_ds[i] *= backward.c.dropout_rescale;
}

// Unmasked tiles, whose products and softmax backward are interleaved.
struct UnmaskedTiles {
    BackwardTile list[kMaxSteps * kBackwardPanel];
    int count = 0;
};

// Rows of q are as they were given.
float product_factor(const Call& call) { return call.factor.q * call.factor.product; }

// P and dS of a tile as operands, now or with the other `unmasked` ones; false when no key is kept.
bool matrix_softmax_backward(const BackwardCall& backward, const QueryTile& tile, const KeyBlock& block, int64_t key, int keys, int64_t at,
                             BackwardScratch& scratch, UnmaskedTiles& unmasked) {
    const Call& c = backward.c;
    const MatrixKernels& mk = *c.k->matrix;
    float *const s = scratch.w.s, *const slope = c.p->d.softcap > 0 ? scratch.slope : nullptr, factor = product_factor(c);
    uint16_t *const p = scratch.matrix.p + at, *const ds = scratch.matrix.ds + at, *const pairs = scratch.matrix.ds_pairs + at;
    TileScoreMod task;
    if (!prepare_score_mod(c, tile, key, keys, scratch.w, &task)) return false;
    const int64_t step = (key - block.key) / kKeyBlock;
    if (mk.softmax_backward_tiles && task.kind == TileClass::full && keys == kKeyBlock && !c.has_score_mod && !c.has_dropout &&
        factor > 0) {
        const MatrixOperands& m = scratch.matrix;
        unmasked.list[unmasked.count++] = {.k = m.k + step * step_values(c.p->d.dim_qk),
                                           .v = m.v + step * step_values(c.p->d.dim_v),
                                           .q = m.q,
                                           .dout = m.dout,
                                           .lse = scratch.lse,
                                           .delta = scratch.delta,
                                           .p = p,
                                           .ds = ds,
                                           .ds_pairs = pairs};
        return true;
    }
    gemm_scores_dp(backward, step, scratch);
    const bool scale_first = c.has_score_mod || !(factor > 0);  // −inf times any other factor would not remove a key
    for (int i = 0; scale_first && i < keys * kMaxRows; i++) s[i] *= factor;
    apply_score_mod(c, tile, key, keys, task, scratch.w, slope);
    if (!c.has_dropout) {
        mk.softmax_backward(s, scratch.dp, keys, scale_first ? 1.f : factor, scratch.lse, scratch.delta, slope, p, ds, pairs);
        return true;
    }
    apply_dropout_rescaled(backward, tile, key, keys, scratch.dp);
    c.k->softmax_backward(s, scratch.dp, tile.vectors, keys, scale_first ? 1.f : factor, scratch.lse, scratch.delta, slope);
    apply_dropout_rescaled(backward, tile, key, keys, s);
    mk.pack_p_ds(s, scratch.dp, keys, p, ds, pairs);
    return true;
}

void clear_tile(int64_t at, const BackwardScratch& scratch) {
    uint16_t* const all[] = {scratch.matrix.p, scratch.matrix.ds, scratch.matrix.ds_pairs};
    for (uint16_t* to : all) memset(to + at, 0, kTileElements * sizeof *to);
}

// Loads the panel's rows, unless none of them sees a key of the block. All, then: empty tiles between live ones are multiplied with
// a P of 0.
bool load_panel(const BackwardCall& backward, const KeyBlock& block, Panel& panel, const BackwardScratch& scratch) {
    bool any = false;
    for (int i = 0; i < panel.tiles; i++) {
        const KeyBand visible = visible_keys(backward.c, panel.tile[i], block.key, block.key + block.keys);
        any |= visible.begin < visible.end;
    }
    for (int i = 0; any && i < panel.tiles; i++) {
        BackwardScratch y = tile_scratch(backward, i, scratch);
        load_rows(backward, panel.tile[i], y);
    }
    return any;
}

// P and dS of all tiles; false when there are none.
bool softmax_backward_panel(const BackwardCall& backward, const KeyBlock& block, Panel& panel, const BackwardScratch& scratch) {
    bool any = false;
    UnmaskedTiles unmasked;
    for (int i = 0; i < panel.tiles; i++) {
        const KeyBand visible = visible_keys(backward.c, panel.tile[i], block.key, block.key + block.keys);
        BackwardScratch y = tile_scratch(backward, i, scratch);
        for (int step = 0; step < panel.steps; step++) {
            const int64_t key = block.key + (panel.first + step) * kKeyBlock;
            const int keys = int(min_of(kKeyBlock, visible.end - key));
            bool& live = panel.live[step][i];
            live = visible.begin < key + kKeyBlock && keys > 0 &&
                   matrix_softmax_backward(backward, panel.tile[i], block, key, keys, tile_offset(step, i), y, unmasked);
            any |= live;
        }
    }
    const int depth = operand_shape(backward.c.p->d.dim_qk).depth, depth_v = operand_shape(backward.c.p->d.dim_v).depth;
    if (unmasked.count > 0)
        backward.c.k->matrix->softmax_backward_tiles(unmasked.list, unmasked.count, depth, depth_v, product_factor(backward.c),
                                                     scratch.w.s);
    return any;
}

// The first of `count` tiles that is live, and how many there are up to the last; those between that are not live are zeroed.
struct LiveRange {
    int first, count;
};
template <class Live, class At>
LiveRange live_range(int count, const Live& live, const At& at, const BackwardScratch& scratch) {
    int first = 0, end = count;
    while (first < end && !live(first)) first++;
    while (end > first && !live(end - 1)) end--;
    for (int i = first; i < end; i++)
        if (!live(i)) clear_tile(at(i), scratch);
    return {first, end - first};
}

// dk or dv of one step, over the live tiles of the panel: (P or dS) × rows, added to the block's `acc`.
MatrixGemm key_gemm(const Panel& panel, int step, const LiveRange& run, const uint16_t* p_or_ds, const uint16_t* rows, int64_t columns,
                    float* acc) {
    const int64_t pairs = operand_shape(columns).depth, stride = 32 * pairs, values = step_values(columns);
    return {.a = p_or_ds + tile_offset(step, run.first),
            .a_m_stride = 16 * kMaxRows,
            .a_k_stride = 32,
            .a_row_bytes = 2 * kMaxRows,
            .b = rows + run.first * values,
            .b_n_stride = 4 * kTileValues,
            .m_pairs = 2,
            .n_pairs = int(pairs),
            .k_tiles = 2,
            .k_parts = run.count,
            .a_part_stride = kTileElements,
            .b_part_stride = values,
            .c = acc + (panel.first + step) * kKeyBlock * stride,
            .c_stride = stride,
            .accumulate = true};
}

// dq of one tile, over the live steps of the panel: Kᵀ dS.
MatrixGemm query_gemm(const Panel& panel, int tile, const LiveRange& run, const MatrixOperands& operands, int64_t dim, float* acc) {
    const int64_t values = step_values(dim);
    return {.a = operands.k_transposed + (panel.first + run.first) * values,
            .a_m_stride = 2 * kTileValues,
            .a_k_stride = kTileValues,
            .a_row_bytes = 64,
            .b = operands.ds_pairs + tile_offset(run.first, tile),
            .b_n_stride = 4 * kTileValues,
            .m_pairs = operand_shape(dim).depth,
            .n_pairs = 2,
            .k_tiles = 2,
            .k_parts = run.count,
            .a_part_stride = values,
            .b_part_stride = kBackwardPanel * kTileElements,
            .c = acc,
            .c_stride = kMaxRows,
            .accumulate = true};
}

// dk and dv of each step, over the panel's rows; dq of each tile, over the block's keys.
void gemm_dqkv(const BackwardCall& backward, const Panel& panel, int64_t first_tile, const DqAcc& dq, const BackwardScratch& scratch) {
    const MatrixOperands& m = scratch.matrix;
    const int64_t dim = backward.c.p->d.dim_qk, dim_v = backward.c.p->d.dim_v;
    MatrixGemm products[2 * kMaxSteps + kBackwardPanel];
    int count = 0;
    for (int step = 0; step < panel.steps; step++) {
        const LiveRange run =
            live_range(panel.tiles, [&](int i) { return panel.live[step][i]; }, [&](int i) { return tile_offset(step, i); }, scratch);
        if (run.count == 0) continue;
        if (backward.a->dv) products[count++] = key_gemm(panel, step, run, m.p, m.dout_rows, dim_v, scratch.dv);
        if (backward.a->dk) products[count++] = key_gemm(panel, step, run, m.ds, m.q_rows, dim, scratch.dk);
    }
    for (int i = 0; backward.a->dq && i < panel.tiles; i++) {
        const LiveRange run =
            live_range(panel.steps, [&](int step) { return panel.live[step][i]; }, [&](int step) { return tile_offset(step, i); }, scratch);
        if (run.count > 0) products[count++] = query_gemm(panel, i, run, m, dim, dq.tile(first_tile + i));
    }
    backward.c.k->matrix->gemm(products, count);
}

}  // namespace

void backward_block_matrix(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t key, int keys, const DqAcc& dq,
                           BackwardScratch& scratch) {
    const KeyBlock block{key, keys, {}, {}};
    Panel panel;
    for (int64_t n = 0; init_rows(backward, batch, kv_head, n, &panel.tile[0]); n += kBackwardPanel) {
        if (n == 0) pack_keys(backward, panel.tile[0], key, keys, scratch);
        panel.tiles = 1;
        while (panel.tiles < kBackwardPanel && init_rows(backward, batch, kv_head, n + panel.tiles, &panel.tile[panel.tiles]))
            panel.tiles++;
        if (!load_panel(backward, block, panel, scratch)) continue;
        const int steps = int(ceil_div(keys, kKeyBlock));
        for (panel.first = 0; panel.first < steps; panel.first += kMaxSteps) {
            panel.steps = int(min_of(kMaxSteps, steps - panel.first));
            if (softmax_backward_panel(backward, block, panel, scratch)) gemm_dqkv(backward, panel, n, dq, scratch);
        }
    }
}

}  // namespace cpu
}  // namespace fa
