// The backward's products by matrix instructions: how keys and rows are packed for them. Scores and their gradients come out as the f32
// tiles' do, [key][row], so that all that lies between the products is shared.
#include "cpu/backward/backward_call.h"

namespace fa {
namespace cpu {
namespace {

static_assert(kStepKeys == kTileKeys && kMaxRows == kTileKeys, "tiles are square");
static_assert(kSquareFloats == kTileKeys * kMaxRows, "the scratch of scores serves");

constexpr int kMostSteps = 4;  // of a panel's squares that are kept, 384 KB of them
constexpr int64_t kTileValues = kTileBytes / 2, kSquare = kMaxRows * kTileKeys;

int64_t step_values(int64_t dim) { return 4 * gradient_shape(dim).depth * kTileValues; }  // of 64 rows, however they are packed

// Addresses of the tile's rows of q or dout; none for a lane that takes no part.
void point_rows(const GradientCall& g, const QueryTile& t, const void* base, const int64_t stride[4], const GradientScratch& x,
                const uint16_t** rows) {
    const Problem& p = *g.c.p;
    RowCursor at(t, p.group);
    for (int lane = 0; lane < t.rows; lane++, at.next()) {
        const int64_t index = query_index(p, stride, t.seq, t.batch, at.position, t.kv_head * p.group + at.group_head);
        rows[lane] = x.lse[lane] == kPosInf ? nullptr : static_cast<const uint16_t*>(base) + index;
    }
}

const uint16_t* const* values_of(const char* const* rows) { return reinterpret_cast<const uint16_t* const*>(rows); }

}  // namespace

bool matrix_gradients(const Problem& p, const Kernels& k) {
    return k.matrix && p.d.q_dtype == FA_BF16 && p.d.k_dtype == FA_BF16 && mild_scale(p.d.scale);
}

MatrixShape gradient_shape(int64_t dim) {
    const int tiles = int(ceil_div(dim, 32));
    return {FA_BF16, int(dim), int(dim), tiles, 2 * tiles};
}

void take_operands(const Problem& p, int block_keys, MatrixOperands* m, Arena& c) {
    const int64_t qk = step_values(p.d.dim_qk), v = step_values(p.d.dim_v), steps = block_keys / kStepKeys;
    m->k = c.allocate<uint16_t>(steps * qk);
    m->v = c.allocate<uint16_t>(steps * v);
    m->k_turned = c.allocate<uint16_t>(steps * qk);
    m->q = c.allocate<uint16_t>(kGradientPanel * qk);
    m->dout = c.allocate<uint16_t>(kGradientPanel * v);
    m->q_rows = c.allocate<uint16_t>(kGradientPanel * qk);
    m->dout_rows = c.allocate<uint16_t>(kGradientPanel * v);
    m->p = c.allocate<uint16_t>(kMostSteps * kGradientPanel * kSquare);
    m->ds = c.allocate<uint16_t>(kMostSteps * kGradientPanel * kSquare);
    m->ds_pairs = c.allocate<uint16_t>(kMostSteps * kGradientPanel * kSquare);
    m->packed = c.allocate<uint16_t>(qk);
}

static void pack_keys(const GradientCall& g, const QueryTile& t, int64_t key, int keys, GradientScratch& x) {
    const MatrixKernels& mk = *g.c.k->matrix;
    const MatrixOperands& m = x.matrix;
    const MatrixShape qk = gradient_shape(g.c.p->d.dim_qk), v = gradient_shape(g.c.p->d.dim_v);
    for (int64_t step = 0; step * kStepKeys < keys; step++) {
        const char* rows[kStepKeys] = {};
        const int64_t first = key + step * kStepKeys, k_at = step * step_values(qk.dim_qk), v_at = step * step_values(v.dim_v);
        const int count = int(min_of(kStepKeys, keys - step * kStepKeys));
        locate_kv_rows(g.c, t, KvOperand::k, t.kv_head, first, count, rows);
        for (int half = 0; half < 2; half++)
            mk.pack_q(qk, values_of(rows + half * kPairRows), m.k + k_at + half * qk.q_bytes() / 2);
        mk.pack_k(qk, values_of(rows), m.packed);
        mk.transpose_k(qk, m.packed, m.k_turned + k_at);
        locate_kv_rows(g.c, t, KvOperand::v, t.kv_head, first, count, rows);
        for (int half = 0; half < 2; half++) mk.pack_q(v, values_of(rows + half * kPairRows), m.v + v_at + half * v.q_bytes() / 2);
    }
}

void pack_rows(const GradientCall& g, const QueryTile& t, GradientScratch& x) {
    const MatrixKernels& mk = *g.c.k->matrix;
    const MatrixShape qk = gradient_shape(g.c.p->d.dim_qk), v = gradient_shape(g.c.p->d.dim_v);
    const uint16_t* rows[kMaxRows] = {};
    point_rows(g, t, g.inputs.q, g.c.p->d.q_stride, x, rows);
    mk.pack_k(qk, rows, x.matrix.q);
    mk.pack_rows(qk, rows, x.matrix.q_rows);
    point_rows(g, t, g.a->dout, g.a->dout_stride, x, rows);
    mk.pack_k(v, rows, x.matrix.dout);
    mk.pack_rows(v, rows, x.matrix.dout_rows);
}

static void multiply_scores(const GradientCall& g, int64_t step, GradientScratch& x) {
    const MatrixOperands& m = x.matrix;
    const auto product = [&](const uint16_t* keys, const uint16_t* rows, int64_t dim, float* c) -> MatrixProduct {
        const int depth = gradient_shape(dim).depth;
        return {keys + step * step_values(dim), depth * kTileValues, kTileValues, 64, rows, 2 * depth * kTileValues, 2, 2, depth, 1,
                0, 0, c, kMaxRows, false};
    };
    const MatrixProduct both[] = {product(m.k, m.q, g.c.p->d.dim_qk, x.w.s), product(m.v, m.dout, g.c.p->d.dim_v, x.dp)};
    g.c.k->matrix->multiply(both, 2);
}

namespace {

// Row tiles of a panel against some steps of a block, and which squares of them hold weights.
struct Panel {
    QueryTile tile[kGradientPanel];
    int tiles;
    int first, steps;  // within the block
    bool live[kMostSteps][kGradientPanel];
};

int64_t square(int step, int tile) { return (int64_t(step) * kGradientPanel + tile) * kSquare; }

// The tile's part of the scratch.
GradientScratch of_tile(const GradientCall& g, int tile, const GradientScratch& x) {
    const int64_t qk = step_values(g.c.p->d.dim_qk), v = step_values(g.c.p->d.dim_v);
    GradientScratch y = x;
    y.lse += tile * kMaxRows;
    y.delta += tile * kMaxRows;
    y.matrix.q += tile * qk;
    y.matrix.q_rows += tile * qk;
    y.matrix.dout += tile * v;
    y.matrix.dout_rows += tile * v;
    return y;
}

// Zeroes what dropout removes, and makes up for it: rows of dout are as they were given.
void drop_square(const GradientCall& g, const QueryTile& t, int64_t key, int keys, float* weights) {
    apply_dropout_tile(g.c, t, key, keys, weights);
    for (int i = 0; i < keys * kMaxRows; i++) weights[i] *= g.c.dropout_rescale;
}

// Squares whose products and weights are computed together.
struct Squares {
    GradientSquare list[kMostSteps * kGradientPanel];
    int count = 0;
};

// Rows of q are as they were given.
float product_factor(const Call& c) { return c.factor.q * c.factor.product; }

// P and dS of a square as operands, now or with the other `plain` ones; false when no key is kept.
bool differentiate_square(const GradientCall& g, const QueryTile& t, const KeyBlock& block, int64_t key, int keys, int64_t at,
                          GradientScratch& x, Squares& plain) {
    const Call& c = g.c;
    const MatrixKernels& mk = *c.k->matrix;
    float *const s = x.w.s, *const slope = c.p->d.softcap > 0 ? x.slope : nullptr, factor = product_factor(c);
    uint16_t *const p = x.matrix.p + at, *const ds = x.matrix.ds + at, *const pairs = x.matrix.ds_pairs + at;
    TileScoreMod task;
    if (!prepare_score_mod(c, t, key, keys, x.w, &task)) return false;
    const int64_t step = (key - block.key) / kStepKeys;
    if (mk.differentiate_squares && task.kind == Tile::full && keys == kStepKeys && !c.has_score_mod && !c.has_dropout && factor > 0) {
        const MatrixOperands& m = x.matrix;
        plain.list[plain.count++] = {m.k + step * step_values(c.p->d.dim_qk), m.v + step * step_values(c.p->d.dim_v), m.q, m.dout,
                                     x.lse, x.delta, p, ds, pairs};
        return true;
    }
    multiply_scores(g, step, x);
    const bool apart = c.has_score_mod || !(factor > 0);  // −inf times any other factor would not remove a key
    for (int i = 0; apart && i < keys * kMaxRows; i++) s[i] *= factor;
    apply_score_mod(c, t, key, keys, task, x.w, slope);
    if (!c.has_dropout) {
        mk.softmax_backward(s, x.dp, keys, apart ? 1.f : factor, x.lse, x.delta, slope, p, ds, pairs);
        return true;
    }
    drop_square(g, t, key, keys, x.dp);
    c.k->softmax_backward(s, x.dp, t.vectors, keys, apart ? 1.f : factor, x.lse, x.delta, slope);
    drop_square(g, t, key, keys, s);
    mk.narrow(s, x.dp, keys, p, ds, pairs);
    return true;
}

void clear_square(int64_t at, const GradientScratch& x) {
    uint16_t* const all[] = {x.matrix.p, x.matrix.ds, x.matrix.ds_pairs};
    for (uint16_t* to : all) memset(to + at, 0, kSquare * sizeof *to);
}

// The panel's rows, unless none of them sees a key of the block. All, then: squares between live ones meet them with weights of 0.
bool load_panel(const GradientCall& g, const KeyBlock& block, Panel& panel, const GradientScratch& x) {
    bool any = false;
    for (int i = 0; i < panel.tiles; i++) {
        const KeyBand visible = visible_keys(panel.tile[i], *g.c.p, block.key, block.key + block.keys);
        any |= visible.begin < visible.end;
    }
    for (int i = 0; any && i < panel.tiles; i++) {
        GradientScratch y = of_tile(g, i, x);
        load_rows(g, panel.tile[i], y);
    }
    return any;
}

// Weights and their gradients of all squares; false when there are none.
bool differentiate_panel(const GradientCall& g, const KeyBlock& block, Panel& panel, const GradientScratch& x) {
    bool any = false;
    Squares plain;
    for (int i = 0; i < panel.tiles; i++) {
        const KeyBand visible = visible_keys(panel.tile[i], *g.c.p, block.key, block.key + block.keys);
        GradientScratch y = of_tile(g, i, x);
        for (int step = 0; step < panel.steps; step++) {
            const int64_t key = block.key + (panel.first + step) * kStepKeys;
            const int keys = int(min_of(kStepKeys, visible.end - key));
            bool& live = panel.live[step][i];
            live = visible.begin < key + kStepKeys && keys > 0 &&
                   differentiate_square(g, panel.tile[i], block, key, keys, square(step, i), y, plain);
            any |= live;
        }
    }
    const int depth = gradient_shape(g.c.p->d.dim_qk).depth, depth_v = gradient_shape(g.c.p->d.dim_v).depth;
    if (plain.count > 0) g.c.k->matrix->differentiate_squares(plain.list, plain.count, depth, depth_v, product_factor(g.c), x.w.s);
    return any;
}

// The first of `count` squares that is live, and how many there are up to the last; those between that are not live are cleared.
struct Run {
    int first, count;
};
template <class Live, class At>
Run run_of(int count, const Live& live, const At& at, const GradientScratch& x) {
    int first = 0, end = count;
    while (first < end && !live(first)) first++;
    while (end > first && !live(end - 1)) end--;
    for (int i = first; i < end; i++)
        if (!live(i)) clear_square(at(i), x);
    return {first, end - first};
}

// dk and dv of each step, over the panel's rows; dq of each tile, over the block's keys.
void multiply_gradients(const GradientCall& g, const Panel& panel, int64_t first_tile, const DqSums& dq, const GradientScratch& x) {
    const MatrixOperands& m = x.matrix;
    const int64_t dim = g.c.p->d.dim_qk, dim_v = g.c.p->d.dim_v;
    MatrixProduct products[2 * kMostSteps + kGradientPanel];
    int count = 0;
    const auto over_rows = [&](int step, const Run& run, const uint16_t* weights, const uint16_t* rows, int64_t columns,
                               float* sums) -> MatrixProduct {
        const int64_t pairs = gradient_shape(columns).depth, stride = 32 * pairs, values = step_values(columns);
        return {weights + square(step, run.first), 16 * kMaxRows, 32, 2 * kMaxRows, rows + run.first * values, 4 * kTileValues, 2,
                int(pairs), 2, run.count, kSquare, values, sums + (panel.first + step) * kStepKeys * stride, stride, true};
    };
    for (int step = 0; step < panel.steps; step++) {
        const Run run = run_of(
            panel.tiles, [&](int i) { return panel.live[step][i]; }, [&](int i) { return square(step, i); }, x);
        if (run.count == 0) continue;
        if (g.a->dv) products[count++] = over_rows(step, run, m.p, m.dout_rows, dim_v, x.dv);
        if (g.a->dk) products[count++] = over_rows(step, run, m.ds, m.q_rows, dim, x.dk);
    }
    for (int i = 0; g.a->dq && i < panel.tiles; i++) {
        const Run run = run_of(
            panel.steps, [&](int step) { return panel.live[step][i]; }, [&](int step) { return square(step, i); }, x);
        if (run.count == 0) continue;
        const int64_t values = step_values(dim);
        products[count++] = {m.k_turned + (panel.first + run.first) * values, 2 * kTileValues, kTileValues, 64,
                             m.ds_pairs + square(run.first, i), 4 * kTileValues, gradient_shape(dim).depth, 2, 2, run.count, values,
                             kGradientPanel * kSquare, dq.tile(first_tile + i), kMaxRows, true};
    }
    g.c.k->matrix->multiply(products, count);
}

}  // namespace

void run_matrix_block(const GradientCall& g, int64_t batch, int64_t kv_head, int64_t key, int keys, const DqSums& dq,
                      GradientScratch& x) {
    const KeyBlock block{key, keys, {}, {}};
    Panel panel;
    for (int64_t n = 0; init_rows(g, batch, kv_head, n, &panel.tile[0]); n += kGradientPanel) {
        if (n == 0) pack_keys(g, panel.tile[0], key, keys, x);
        panel.tiles = 1;
        while (panel.tiles < kGradientPanel && init_rows(g, batch, kv_head, n + panel.tiles, &panel.tile[panel.tiles]))
            panel.tiles++;
        if (!load_panel(g, block, panel, x)) continue;
        const int steps = int(ceil_div(keys, kStepKeys));
        for (panel.first = 0; panel.first < steps; panel.first += kMostSteps) {
            panel.steps = int(min_of(kMostSteps, steps - panel.first));
            if (differentiate_panel(g, block, panel, x)) multiply_gradients(g, panel, n, dq, x);
        }
    }
}

}  // namespace cpu
}  // namespace fa
