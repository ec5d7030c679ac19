// The backward's products by matrix instructions: how keys and rows are packed for them. Scores and their gradients come out as the f32
// tiles' do, [key][row], so that all that lies between the products is shared.
#include "gradient.h"

namespace fa {
namespace cpu {
namespace {

static_assert(kStepKeys == kTileKeys && kMaxRows == kTileKeys, "tiles are square");

constexpr int64_t kTileValues = kTileBytes / 2, kSquare = kMaxRows * kTileKeys;

int64_t step_values(int64_t dim) { return 4 * gradient_shape(dim).depth * kTileValues; }  // of 64 rows, however they are packed

// Addresses of the tile's rows of q or dout; none for a lane that takes no part.
void point_rows(const GradientCall& g, const RowTile& t, const void* base, const int64_t stride[4], const GradientScratch& x,
                const uint16_t** rows) {
    const Problem& p = *g.c.p;
    Lanes at(t, p.group);
    for (int lane = 0; lane < t.rows; lane++, at.next()) {
        const int64_t index = query_index(p, stride, t.seq, t.batch, at.position, t.kv_head * p.group + at.member);
        rows[lane] = x.lse[lane] == kPosInf ? nullptr : static_cast<const uint16_t*>(base) + index;
    }
}

const uint16_t* const* values_of(const char* const* rows) { return reinterpret_cast<const uint16_t* const*>(rows); }

}  // namespace

bool matrix_gradients(const Problem& p, const Kernels& k) { return k.matrix && p.d.q_dtype == FA_BF16 && p.d.kv_dtype == FA_BF16; }

MatrixShape gradient_shape(int64_t dim) {
    const int tiles = int(ceil_div(dim, 32));
    return {FA_BF16, int(dim), int(dim), tiles, 2 * tiles};
}

void take_operands(const Problem& p, int block_keys, MatrixOperands* m, Carver& c) {
    const int64_t qk = step_values(p.d.dim_qk), v = step_values(p.d.dim_v), steps = block_keys / kStepKeys;
    m->k = c.take<uint16_t>(steps * qk);
    m->v = c.take<uint16_t>(steps * v);
    m->k_turned = c.take<uint16_t>(steps * qk);
    m->q = c.take<uint16_t>(qk);
    m->dout = c.take<uint16_t>(v);
    m->q_rows = c.take<uint16_t>(qk);
    m->dout_rows = c.take<uint16_t>(v);
    m->p = c.take<uint16_t>(kSquare);
    m->ds = c.take<uint16_t>(kSquare);
    m->ds_pairs = c.take<uint16_t>(kSquare);
    m->packed = c.take<uint16_t>(qk);
}

void pack_keys(const GradientCall& g, const RowTile& t, int64_t key, int keys, GradientScratch& x) {
    const MatrixKernels& mk = *g.c.k->matrix;
    const MatrixOperands& m = x.matrix;
    const MatrixShape qk = gradient_shape(g.c.p->d.dim_qk), v = gradient_shape(g.c.p->d.dim_v);
    for (int64_t step = 0; step * kStepKeys < keys; step++) {
        const char* rows[kStepKeys] = {};
        const int64_t first = key + step * kStepKeys, k_at = step * step_values(qk.dim_qk), v_at = step * step_values(v.dim_v);
        const int count = int(min_of(kStepKeys, keys - step * kStepKeys));
        find_rows(g.c, t, Operand::k, t.kv_head, first, count, rows);
        for (int half = 0; half < 2; half++) mk.pack_q(qk, values_of(rows + half * kPairRows), m.k + k_at + half * qk.q_bytes() / 2);
        mk.pack_k(qk, values_of(rows), m.packed);
        mk.transpose_k(qk, m.packed, m.k_turned + k_at);
        find_rows(g.c, t, Operand::v, t.kv_head, first, count, rows);
        for (int half = 0; half < 2; half++) mk.pack_q(v, values_of(rows + half * kPairRows), m.v + v_at + half * v.q_bytes() / 2);
    }
}

void pack_rows(const GradientCall& g, const RowTile& t, GradientScratch& x) {
    const MatrixKernels& mk = *g.c.k->matrix;
    const MatrixShape qk = gradient_shape(g.c.p->d.dim_qk), v = gradient_shape(g.c.p->d.dim_v);
    const uint16_t* rows[kMaxRows] = {};
    point_rows(g, t, g.a->q, g.c.p->d.q_stride, x, rows);
    mk.pack_k(qk, rows, x.matrix.q);
    mk.pack_v(qk, rows, x.matrix.q_rows);
    point_rows(g, t, g.a->dout, g.a->dout_stride, x, rows);
    mk.pack_k(v, rows, x.matrix.dout);
    mk.pack_v(v, rows, x.matrix.dout_rows);
}

void multiply_scores(const GradientCall& g, int64_t step, GradientScratch& x) {
    const MatrixOperands& m = x.matrix;
    const auto product = [&](const uint16_t* keys, const uint16_t* rows, int64_t dim, float* c) -> MatrixProduct {
        const int depth = gradient_shape(dim).depth;
        return {keys + step * step_values(dim), depth * kTileValues, kTileValues, 64, rows, 2 * depth * kTileValues, 2, 2, depth, c, kMaxRows, false};
    };
    const MatrixProduct both[] = {product(m.k, m.q, g.c.p->d.dim_qk, x.w.s), product(m.v, m.dout, g.c.p->d.dim_v, x.dp)};
    g.c.k->matrix->multiply(both, 2);
}

void multiply_gradients(const GradientCall& g, int64_t step, int keys, float* dq, GradientScratch& x) {
    const MatrixKernels& mk = *g.c.k->matrix;
    const MatrixOperands& m = x.matrix;
    const int64_t dim = g.c.p->d.dim_qk, dim_v = g.c.p->d.dim_v;
    memset(x.w.s + keys * kMaxRows, 0, size_t(kTileKeys - keys) * kMaxRows * sizeof(float));
    memset(x.dp + keys * kMaxRows, 0, size_t(kTileKeys - keys) * kMaxRows * sizeof(float));
    MatrixProduct products[3];
    int count = 0;
    // Sums over rows, for each key.
    const auto over_rows = [&](const uint16_t* weights, const uint16_t* rows, int64_t columns, float* sums) -> MatrixProduct {
        const int64_t pairs = gradient_shape(columns).depth, stride = 32 * pairs;
        return {weights, 16 * kMaxRows, 32, 2 * kMaxRows, rows, 4 * kTileValues, 2, int(pairs), 2, sums + step * kStepKeys * stride, stride, true};
    };
    if (g.a->dv) {
        mk.narrow_left(x.w.s, m.p);
        products[count++] = over_rows(m.p, m.dout_rows, dim_v, x.dv);
    }
    if (g.a->dk) {
        mk.narrow_left(x.dp, m.ds);
        products[count++] = over_rows(m.ds, m.q_rows, dim, x.dk);
    }
    if (g.a->dq) {
        mk.narrow_right(x.dp, m.ds_pairs);
        const int pairs = gradient_shape(dim).depth;
        products[count++] = {m.k_turned + step * step_values(dim), 2 * kTileValues, kTileValues, 64, m.ds_pairs, 4 * kTileValues, pairs, 2, 2, dq, kMaxRows, true};
    }
    mk.multiply(products, count);
}

}  // namespace cpu
}  // namespace fa
