// The query side: packs rows of q into a tile, initialises and merges partial states, and writes o and LSE.
#include "cpu/forward/q_rows.h"
#include "cpu/kernels/storage_types.h"

namespace fa {
namespace cpu {
namespace {

// Whether a tile's rows of q or o are floats at equal distances, and as many as lanes: then they are transposed in place of a copy.
bool evenly_spaced(const Problem& problem, const QueryTile& tile, int32_t dtype) {
    return dtype == FA_F32 && problem.group == 1 && tile.rows == tile.width;
}

const float* q_row(const Call& call, const QueryTile& tile, int64_t position) {
    return static_cast<const float*>(call.a->q) + query_index(*call.p, call.p->d.q_stride, tile.seq, tile.batch, position, tile.kv_head);
}
float* o_row(const Call& call, const QueryTile& tile, int64_t position) {
    return static_cast<float*>(call.a->o) + query_index(*call.p, call.p->d.o_stride, tile.seq, tile.batch, position, tile.kv_head);
}

// Whether they follow each other without a gap, so that one conversion takes them all.
bool adjacent(const Problem& problem, const int64_t* stride, int64_t dim) { return problem.group == 1 && stride[1] == dim; }

// Prefetches such rows of the next tile: hardware prefetchers do not follow rows that lie so far apart.
template <class T>
void prefetch_next_tile(const Call& call, const QueryTile& tile, T* row(const Call&, const QueryTile&, int64_t), int64_t dim) {
    const int64_t end = min_of(tile.first + 2 * tile.rows, tile.seq.q_len);
    for (int64_t i = tile.first + tile.rows; i < end; i++) prefetch_bytes(row(call, tile, i), dim * int64_t(sizeof(float)));
}

void narrow_rows(const Call& call, const float* lines, int rows, char* const* to) {
    const int64_t dim = call.p->d.dim_v;
    const auto narrow = call.k->narrow[type_index(call.p->d.o_dtype)];
    if (adjacent(*call.p, call.p->d.o_stride, dim)) return narrow(lines, rows * dim, to[0]);
    for (int lane = 0; lane < rows; lane++) narrow(lines + lane * dim, dim, to[lane]);
}

}  // namespace

bool init_tile(const Call& call, int64_t batch, int64_t kv_head, int64_t block, QueryTile* tile) {
    const Problem& p = *call.p;
    tile->seq = sequence_of(call.sequences, batch);
    tile->first = tile_begin(call.tiles, block);
    const int64_t rows = min_of(tile->seq.q_len * p.group, tile_end(call.tiles, block)) - tile->first;
    if (rows <= 0) return false;
    tile->rule = mask_rule(call.rule, tile->seq);
    tile->method = tile->seq.q_len * p.group <= call.decode.rows ? &call.decode : &call.method;
    tile->batch = batch;
    tile->kv_head = kv_head;
    tile->rows = int(rows);
    tile->vectors = int(ceil_div(rows, call.k->lanes));
    tile->width = tile->vectors * call.k->lanes;
    tile->slots = nullptr;
    return true;
}

void list_slots(const Call& call, QueryTile& tile, const QueryTile* of, Scratch& scratch) {
    tile.slots = scratch.slots;
    if (of) {
        tile.seq.k_len = of->seq.k_len;
        return;
    }
    const ListSource list = slots_of(call.slots, tile.seq, tile.batch, tile.head(0, call.p->group), tile.position(0, call.p->group));
    tile.seq.k_len = 0;
    for (int64_t e = 0; list.entries && e < list.length(); e++) {
        const int32_t slot = list.entries[e * list.step];
        if (slot >= 0) scratch.slots[tile.seq.k_len++] = slot;
    }
}

void apply_factors(const Factors& factors, int64_t index, int64_t dims, float* line) {
    for (int64_t first = 0; first < dims; first += factors.block[1], index += factors.stride[3]) {
        const float factor = load_factor(factors.factor, index, factors.dtype);
        const int64_t end = min_of(first + factors.block[1], dims);
        if (factors.shift) {
            const float shift = load_factor(factors.shift, index, factors.dtype);
            for (int64_t c = first; c < end; c++) line[c] = line[c] * factor + shift;
        } else {
            for (int64_t c = first; c < end; c++) line[c] *= factor;
        }
    }
}

float q_factor(const Call& call, const QueryTile& tile, int64_t position, int64_t head) {
    const Problem& p = *call.p;
    if (!p.has(FA_OPERAND_Q_DESCALE)) return call.factor.q;
    const int64_t* s = p.d.q_descale_stride;
    const int64_t at = tile.batch * s[0] + (tile.seq.q_begin + position) * s[1] + head * s[2];
    return call.factor.q * nan_if_infinite(static_cast<const float*>(call.a->q_descale)[at]);
}

float load_q(const Call& call, const QueryTile& tile, int64_t position, int64_t head, float* line) {
    const Problem& p = *call.p;
    const int64_t at = query_index(p, p.d.q_stride, tile.seq, tile.batch, position, head), own = p.q_dims();
    call.k->widen[type_index(p.d.q_dtype)](element(call.a->q, at, p.d.q_dtype), own, line);
    if (p.plain_q()) return q_factor(call, tile, position, head);
    const Factors factors = q_factors(p, call.a->q_descale);
    if (factors.factor) apply_factors(factors, factor_index(factors, tile.batch, tile.seq.q_begin + position, head), own, line);
    if (own < p.d.dim_qk) {
        const int64_t tail = query_index(p, p.d.q_tail_stride, tile.seq, tile.batch, position, head);
        call.k->widen[type_index(p.d.q_tail_dtype)](element(call.a->q_tail, tail, p.d.q_tail_dtype), p.d.dim_tail, line + own);
    }
    return call.factor.q;
}

void pack_q(const Call& call, QueryTile& tile, int panel_index, Scratch& scratch) {
    const Problem& p = *call.p;
    const int64_t dim = p.d.dim_qk;
    float* const lines = scratch.k;
    float factor[kMaxRows];
    tile.q = scratch.q + panel_index * dim * kMaxRows;
    if (call.count)
        scratch.counters.read += tile.rows * (row_bytes(p.d.q_dtype, p.q_dims()) + row_bytes(p.d.q_tail_dtype, dim - p.q_dims()));
    if (p.plain_q() && evenly_spaced(p, tile, p.d.q_dtype)) {
        prefetch_next_tile(call, tile, q_row, dim);
        for (int lane = 0; lane < tile.rows; lane++) factor[lane] = q_factor(call, tile, tile.first + lane, tile.kv_head);
        return call.k->transpose(q_row(call, tile, tile.first), p.d.q_stride[1], tile.width, dim, factor, tile.q, tile.width);
    }
    const bool at_once = p.plain_q() && adjacent(p, p.d.q_stride, dim);
    if (at_once) {
        const int64_t first = query_index(p, p.d.q_stride, tile.seq, tile.batch, tile.first, tile.kv_head);
        call.k->widen[type_index(p.d.q_dtype)](element(call.a->q, first, p.d.q_dtype), tile.rows * dim, lines);
    }
    RowCursor row(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, row.next()) {
        const int64_t head = tile.kv_head * p.group + row.group_head;
        factor[lane] = at_once ? q_factor(call, tile, row.position, head) : load_q(call, tile, row.position, head, lines + lane * dim);
    }
    memset(lines + tile.rows * dim, 0, size_t(tile.width - tile.rows) * dim * sizeof(float));
    for (int lane = tile.rows; lane < tile.width; lane++) factor[lane] = 0.f;
    call.k->transpose(lines, dim, tile.width, dim, factor, tile.q, tile.width);
}

void q_pointers(const Call& call, const QueryTile& tile, const char** rows) {
    const Problem& p = *call.p;
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, at.next())
        rows[lane] =
            element(static_cast<const char*>(call.a->q),
                    query_index(p, p.d.q_stride, tile.seq, tile.batch, at.position, tile.kv_head * p.group + at.group_head), p.d.q_dtype);
}

// Types of k and v that are multiplied as bf16 then: those of 8 bits hold no value that this would round.
static bool rounds_to_bf16(int32_t dtype) { return dtype == FA_BF16 || is_byte_type(dtype) || is_block_type(dtype); }

bool rounds_q_to_bf16(const fa_attention_desc_t& desc) {
    return desc.precision == FA_PRECISION_NATIVE && (desc.q_dtype == FA_F32 || desc.q_dtype == FA_F16) && rounds_to_bf16(desc.k_dtype) &&
           rounds_to_bf16(desc.v_dtype);
}

void round_q_to_bf16(const Call& call, const QueryTile& tile, const char** rows, uint16_t* to, Scratch& scratch) {
    const int64_t dim = call.p->d.dim_qk;
    for (int r = 0; r < tile.rows; r++, to += dim) {
        call.k->widen[type_index(call.p->d.q_dtype)](rows[r], dim, scratch.line);
        for (int64_t x = 0; x < dim; x++) scratch.line[x] = clamp_to_bf16(scratch.line[x]);
        call.k->narrow[type_index(FA_BF16)](scratch.line, dim, to);
        rows[r] = reinterpret_cast<const char*>(to);
    }
}

void o_pointers(const Call& call, const QueryTile& tile, char** rows) {
    const Problem& p = *call.p;
    RowCursor at(tile, p.group);
    for (int lane = 0; lane < tile.rows; lane++, at.next()) {
        const int64_t head = tile.kv_head * p.group + at.group_head;
        rows[lane] = element(call.a->o, query_index(p, p.d.o_stride, tile.seq, tile.batch, at.position, head), p.d.o_dtype);
    }
}

void init_state(const QueryTile& tile, int64_t dim_v, PartialState& state) {
    if (state.acc) memset(state.acc, 0, size_t(dim_v) * (tile.method->o_row_major ? tile.rows : tile.width) * sizeof(float));
    memset(state.l, 0, size_t(tile.width) * sizeof(float));
    float* const m = state.m;
    for (int lane = 0; lane < tile.width; lane++) m[lane] = kNegInf;
}

void merge_states(const Call& call, const QueryTile& tile, const PartialState& part, PartialState& into) {
    const int64_t dim_v = call.p->d.dim_v;
    float a[kMaxRows], b[kMaxRows];
    for (int lane = 0; lane < tile.width; lane++) {
        const Merged f = merge({into.m[lane], into.l[lane]}, {part.m[lane], part.l[lane]});
        into.m[lane] = f.state.m;
        into.l[lane] = f.state.l;
        a[lane] = f.scale_a;
        b[lane] = f.scale_b;
    }
    if (tile.method->o_row_major) {
        for (int lane = 0; lane < tile.rows; lane++)
            for (int64_t i = lane * dim_v; i < (lane + 1) * dim_v; i++) into.acc[i] = into.acc[i] * a[lane] + part.acc[i] * b[lane];
        return;
    }
    for (int64_t x = 0; x < dim_v; x++)
        for (int lane = 0; lane < tile.width; lane++) {
            float* o = into.acc + x * tile.width + lane;
            *o = *o * a[lane] + part.acc[x * tile.width + lane] * b[lane];
        }
}

void write_rows(const Call& call, const QueryTile& tile, PartialState& state, Scratch& scratch) {
    const Problem& p = *call.p;
    const int64_t dim = p.d.dim_v;
    float factor[kMaxRows] = {};
    for (int lane = 0; lane < tile.rows; lane++) {
        RowState row{state.m[lane], state.l[lane] * kHeadroomFactor};
        float scale = 1.f;
        if (p.has(FA_OPERAND_SINKS)) {
            const Merged f = merge(row, sink_state(call.a->sinks[tile.head(lane, p.group)]));
            row = f.state;
            scale = f.scale_a;
        }
        factor[lane] = scale * normaliser(row) * kHeadroomFactor;
        state.m[lane] = row.m;
        state.l[lane] = row.l;
    }
    float scale = call.dropout_rescale * call.o_scale;
    if (!(fabsf(scale) <= FLT_MAX)) {  // 0 times both is 0
        scale = call.o_scale;
        for (float& f : factor) f *= call.dropout_rescale;
    }
    float* lines = state.acc;
    bool written = false;
    if (!tile.method->o_row_major) {
        written = evenly_spaced(p, tile, p.d.o_dtype);
        if (written) prefetch_next_tile(call, tile, o_row, dim);
        lines = written ? o_row(call, tile, tile.first) : scratch.v;
        call.k->finish_o(state.acc, tile.vectors, dim, factor, scale);
        call.k->transpose(state.acc, tile.width, dim, tile.width, nullptr, lines, written ? p.d.o_stride[1] : dim);
    }
    char* to[kMaxRows];
    if (!written) o_pointers(call, tile, to);
    if (!lines) tile.method->write_o(call, tile, factor, scale, to, scratch);
    for (int lane = 0; lines && tile.method->o_row_major && lane < tile.rows; lane++)
        call.k->finish_o_row(lines + lane * dim, dim, factor[lane], scale);
    if (lines && !written) narrow_rows(call, lines, tile.rows, to);
    RowCursor row(tile, p.group);
    for (int lane = 0; p.has(FA_OPERAND_LSE) && lane < tile.rows; lane++, row.next()) {
        const int64_t at = lse_index(p, p.d.lse_stride, tile.seq, tile.batch, row.position, tile.kv_head * p.group + row.group_head);
        call.a->lse[at] = log_sum_exp({state.m[lane], state.l[lane]});
    }
    if (call.count) scratch.counters.written += tile.rows * (dim * type_bytes(p.d.o_dtype) + (p.has(FA_OPERAND_LSE) ? 4 : 0));
}

void write_padding(const Call& call, int64_t batch, int64_t kv_head, int64_t block, Scratch& scratch) {
    const Problem& p = *call.p;
    if (p.packed_q()) return;  // gaps of a packed tensor are not ours
    QueryTile t;
    t.seq = sequence_of(call.sequences, batch);
    t.batch = batch;
    t.kv_head = kv_head;
    t.first = tile_begin(call.tiles, block);
    const int64_t end = min_of(p.d.seqlen_q * p.group, tile_end(call.tiles, block));
    for (int64_t x = 0; x < p.d.dim_v; x++) scratch.line[x] = 0.f;
    for (int64_t r = max_of(t.first, t.seq.q_len * p.group); r < end; r++) {
        const int lane = int(r - t.first);
        const int64_t position = t.position(lane, p.group), head = t.head(lane, p.group);
        const int64_t at = query_index(p, p.d.o_stride, t.seq, t.batch, position, head);
        call.k->narrow[type_index(p.d.o_dtype)](scratch.line, p.d.dim_v, element(call.a->o, at, p.d.o_dtype));
        if (p.has(FA_OPERAND_LSE)) call.a->lse[lse_index(p, p.d.lse_stride, t.seq, batch, position, head)] = kNegInf;
    }
}

}  // namespace cpu
}  // namespace fa
