// Rows of the backward: q and dout gathered into tiles, Δ computed from o and dout, and dq, dk, dv and dsinks written with one
// rounding.
#include "cpu/backward/backward_call.h"
#include "cpu/forward/q_rows.h"

namespace fa {
namespace cpu {

void PanelLayout::put_row(float* base, int64_t row, const float* line) const {
    for (int64_t column = 0; column < columns; column += widest) {
        const int64_t given = min_of(columns - column, width(column));
        float* const to = at(base, column, row);
        memcpy(to, line + column, size_t(given) * sizeof(float));
        memset(to + given, 0, size_t(width(column) - given) * sizeof(float));
    }
}

void PanelLayout::get_row(float* base, int64_t row, float* line) const {
    for (int64_t column = 0; column < columns; column += widest)
        memcpy(line + column, at(base, column, row), size_t(min_of(columns - column, width(column))) * sizeof(float));
}

PanelLayout query_panels(const BackwardCall& backward, int64_t columns) {
    return {columns, kMaxRows, backward.c.k->lanes, backward.c.k->rows};
}
PanelLayout key_panels(const BackwardCall& backward, int64_t columns) {
    constexpr int kPair = 32;  // columns of two matrix tiles
    if (backward.matrix) return {columns, backward.block_keys, kPair, int(round_up(columns, kPair))};
    return {columns, backward.block_keys, backward.c.k->lanes, backward.c.k->rows};
}

int64_t dq_floats(const BackwardCall& backward) { return round_up(backward.c.p->d.dim_qk, backward.matrix ? 32 : 1) * kMaxRows; }

bool init_rows(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t block, QueryTile* tile) {
    if (!init_tile(backward.c, batch, kv_head, block, tile)) return false;
    if (!backward.matrix) return true;
    tile->width = kMaxRows;
    tile->vectors = kMaxRows / backward.c.k->lanes;
    return true;
}

namespace {

// Writes a line of f32 into a gradient: rounded to its type, or added to what is there.
void write_line(const BackwardCall& backward, const float* line, int64_t dim, void* to, int64_t index, int32_t dtype) {
    if (!(backward.a->flags & FA_BACKWARD_ACCUMULATE)) return backward.c.k->narrow[type_index(dtype)](line, dim, element(to, index, dtype));
    float* const sum = static_cast<float*>(to) + index;
    for (int64_t i = 0; i < dim; i++) sum[i] += line[i];
}

float lse_of(const BackwardCall& backward, const Sequence& sequence, int64_t batch, int64_t position, int64_t head) {
    return backward.inputs.lse[lse_index(*backward.c.p, backward.c.p->d.lse_stride, sequence, batch, position, head)];
}

void load_dout(const BackwardCall& backward, const Sequence& sequence, int64_t batch, int64_t position, int64_t head, float* line) {
    const Problem& p = *backward.c.p;
    const int64_t at = query_index(p, backward.a->dout_stride, sequence, batch, position, head);
    backward.c.k->widen[type_index(p.d.q_dtype)](element(backward.a->dout, at, p.d.q_dtype), p.d.dim_v, line);
}

// Element index of a key's row of dk or dv.
int64_t key_index(const Problem& problem, const int64_t stride[4], int64_t batch, int64_t slot, int64_t kv_head) {
    return (problem.packed_k() ? 0 : batch * stride[0]) + slot * stride[1] + kv_head * stride[2];
}

void zero_lanes(float* lines, int64_t dim, int from, int to) {
    memset(lines + from * dim, 0, size_t(to - from) * size_t(dim) * sizeof(float));
}

}  // namespace

float row_delta(const BackwardCall& backward, const Sequence& sequence, int64_t batch, int64_t position, int64_t head, float* lines) {
    const Problem& p = *backward.c.p;
    const int64_t dim = p.d.dim_v, at = query_index(p, p.d.o_stride, sequence, batch, position, head);
    float *const dout = lines, *const o = lines + dim;
    load_dout(backward, sequence, batch, position, head, dout);
    backward.c.k->widen[type_index(p.d.o_dtype)](element(backward.inputs.o, at, p.d.o_dtype), dim, o);
    const double sum = backward.c.k->dot(dout, o, dim);  // what it is taken from cancels
    return float(backward.a->dlse ? sum - double(backward.a->dlse[lse_index(p, backward.a->dlse_stride, sequence, batch, position, head)])
                                  : sum);
}

void compute_deltas(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t begin, int64_t end, float* deltas,
                    BackwardScratch& scratch) {
    const Sequence s = sequence_of(backward.c.sequences, batch);
    const int64_t group = backward.c.p->group;
    for (int64_t r = begin; r < min_of(end, s.q_len * group); r++)
        deltas[r] = row_delta(backward, s, batch, r / group, kv_head * group + r % group, scratch.lines);
}

namespace {

// The tile's rows of q or dout as f32: in place where memory already holds them so, else in x.lines, with zeros for lanes that take
// no part.
struct RowsF32 {
    const float* data;
    int64_t stride;
};

RowsF32 gather_rows(const BackwardCall& backward, const QueryTile& tile, const void* from, const int64_t stride[4], int64_t dim,
                    const float* factor, bool scaled, BackwardScratch& scratch) {
    const Problem& p = *backward.c.p;
    bool in_place = p.d.q_dtype == FA_F32 && p.group == 1 && tile.rows == tile.width && !scaled;
    for (int lane = 0; lane < tile.rows; lane++) in_place &= factor[lane] != 0.f;
    if (in_place)
        return {static_cast<const float*>(from) + query_index(p, stride, tile.seq, tile.batch, tile.first, tile.kv_head), stride[1]};
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        float* const line = scratch.lines + lane * dim;
        const int64_t index = query_index(p, stride, tile.seq, tile.batch, at.position, tile.kv_head * p.group + at.group_head);
        if (factor[lane] == 0.f) zero_lanes(scratch.lines, dim, lane, lane + 1);
        else backward.c.k->widen[type_index(p.d.q_dtype)](element(from, index, p.d.q_dtype), dim, line);
        for (int64_t i = 0; scaled && i < dim; i++) line[i] *= factor[lane];
    }
    zero_lanes(scratch.lines, dim, tile.rows, tile.width);
    return {scratch.lines, dim};
}

}  // namespace

void load_rows(const BackwardCall& backward, QueryTile& tile, BackwardScratch& scratch) {
    const Call& c = backward.c;
    const Problem& p = *c.p;
    const int64_t dim = p.d.dim_qk, dim_v = p.d.dim_v;
    const PanelLayout q_rows = query_panels(backward, dim), dout_rows = query_panels(backward, dim_v);
    float factor[kMaxRows] = {}, kept[kMaxRows] = {};
    // Rows without keys may hold anything, and take no part.
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.width; lane++, at.next()) {
        const float lse =
            lane < tile.rows ? lse_of(backward, tile.seq, tile.batch, at.position, tile.kv_head * p.group + at.group_head) : kPosInf;
        const bool none = has_no_keys(lse);
        scratch.lse[lane] = none ? kPosInf : lse * kLog2e;
        scratch.delta[lane] = none ? 0.f : scratch.row_delta[tile.first + lane];
        factor[lane] = none ? 0.f : c.factor.q;
        kept[lane] = none ? 0.f : c.dropout_rescale;
    }
    if (backward.matrix) return pack_rows(backward, tile, scratch);
    const RowsF32 q = gather_rows(backward, tile, backward.inputs.q, p.d.q_stride, dim, kept, false, scratch);
    for (int lane = 0; lane < tile.rows; lane++) q_rows.put_row(scratch.q_rows, lane, q.data + lane * q.stride);
    tile.q = scratch.w.q;
    c.k->transpose(q.data, q.stride, tile.width, dim, factor, tile.q, tile.width);

    const RowsF32 dout = gather_rows(backward, tile, backward.a->dout, backward.a->dout_stride, dim_v, kept, c.has_dropout, scratch);
    for (int lane = 0; lane < tile.rows; lane++) dout_rows.put_row(scratch.dout_rows, lane, dout.data + lane * dout.stride);
    c.k->transpose(dout.data, dout.stride, tile.width, dim_v, nullptr, scratch.dout, tile.width);
}

void write_dq(const BackwardCall& backward, const QueryTile& tile, float* acc, BackwardScratch& scratch) {
    const Problem& p = *backward.c.p;
    const int64_t dim = p.d.dim_qk;
    backward.c.k->transpose(acc, tile.width, dim, tile.width, nullptr, scratch.lines, dim);
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        const int64_t head = tile.kv_head * p.group + at.group_head;
        float* const line = scratch.lines + lane * dim;
        const bool empty = has_no_keys(lse_of(backward, tile.seq, tile.batch, at.position, head));
        for (int64_t i = 0; i < dim; i++) line[i] = empty ? 0.f : line[i] * p.d.scale;
        write_line(backward, line, dim, backward.a->dq, query_index(p, backward.a->dq_stride, tile.seq, tile.batch, at.position, head),
                   p.d.q_dtype);
    }
}

void write_dq_padding(const BackwardCall& backward, int64_t batch, int64_t kv_head, int64_t block, BackwardScratch& scratch) {
    const Problem& p = *backward.c.p;
    if (p.packed_q()) return;  // gaps of a packed tensor are not ours
    const Sequence s = sequence_of(backward.c.sequences, batch);
    const int64_t first = block * backward.c.k->rows, end = min_of(p.d.seqlen_q * p.group, first + backward.c.k->rows);
    zero_lanes(scratch.lines, p.d.dim_qk, 0, 1);
    for (int64_t r = max_of(first, s.q_len * p.group); r < end; r++) {
        const int64_t at = query_index(p, backward.a->dq_stride, s, batch, r / p.group, kv_head * p.group + r % p.group);
        write_line(backward, scratch.lines, p.d.dim_qk, backward.a->dq, at, p.d.q_dtype);
    }
}

void write_dkv(const BackwardCall& backward, const QueryTile& tile, int64_t key, int keys, BackwardScratch& scratch) {
    const Problem& p = *backward.c.p;
    const PanelLayout dk = key_panels(backward, p.d.dim_qk), dv = key_panels(backward, p.d.dim_v);
    for (int j = 0; j < keys; j++) {
        const int64_t slot = tile.seq.k_begin + key + j;
        if (backward.a->dk) {
            dk.get_row(scratch.dk, j, scratch.lines);
            for (int64_t i = 0; i < p.d.dim_qk; i++) scratch.lines[i] *= p.d.scale;
            write_line(backward, scratch.lines, p.d.dim_qk, backward.a->dk,
                       key_index(p, backward.a->dk_stride, tile.batch, slot, tile.kv_head), p.d.k_dtype);
        }
        if (backward.a->dv) {
            dv.get_row(scratch.dv, j, scratch.lines);
            write_line(backward, scratch.lines, p.d.dim_v, backward.a->dv,
                       key_index(p, backward.a->dv_stride, tile.batch, slot, tile.kv_head), p.d.k_dtype);
        }
    }
}

void write_dkv_padding(const BackwardCall& backward, int64_t batch, int64_t kv_head, BackwardScratch& scratch) {
    const Problem& p = *backward.c.p;
    if (p.packed_k()) return;
    const Sequence s = sequence_of(backward.c.sequences, batch);
    zero_lanes(scratch.lines, max_of(p.d.dim_qk, p.d.dim_v), 0, 1);
    for (int64_t slot = 0; slot < p.d.seqlen_k; slot++) {
        if (slot == s.k_begin) slot += max_of(s.k_len, 0);
        if (slot >= p.d.seqlen_k) break;
        if (backward.a->dk)
            write_line(backward, scratch.lines, p.d.dim_qk, backward.a->dk, key_index(p, backward.a->dk_stride, batch, slot, kv_head),
                       p.d.k_dtype);
        if (backward.a->dv)
            write_line(backward, scratch.lines, p.d.dim_v, backward.a->dv, key_index(p, backward.a->dv_stride, batch, slot, kv_head),
                       p.d.k_dtype);
    }
}

// The first packed sequence from `batch` on that has room for a row. Most may have none, and there is one search for each of the others.
static int64_t next_with_rows(const Call& call, int64_t batch) {
    const int32_t* const starts = call.sequences.q.cu_seqlens;
    if (!starts) return batch;
    int64_t low = batch, high = call.p->d.batch;  // those before `low` have none
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (starts[middle + 1] > starts[batch]) high = middle;
        else low = middle + 1;
    }
    return low;
}

void write_dsink(const BackwardCall& backward, int64_t head, BackwardScratch& scratch) {
    const Problem& p = *backward.c.p;
    const float sink = backward.inputs.sinks[head];
    const bool none = sink_state(sink).l == 0.f;
    double sum = 0;
    for (int64_t b = 0; p.d.seqlen_q > 0 && (b = next_with_rows(backward.c, b)) < p.d.batch; b++) {
        const Sequence s = sequence_of(backward.c.sequences, b);
        for (int64_t i = 0; i < s.q_len; i++) {
            const float lse = lse_of(backward, s, b, i, head);
            if (has_no_keys(lse) || none) continue;
            sum -= exp2(double(sink - lse) * double(kLog2e)) * double(row_delta(backward, s, b, i, head, scratch.lines));
        }
    }
    float* const to = backward.a->dsinks + head;
    *to = float(sum) + (backward.a->flags & FA_BACKWARD_ACCUMULATE ? *to : 0.f);
}

}  // namespace cpu
}  // namespace fa
