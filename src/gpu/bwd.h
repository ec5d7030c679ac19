// What all backward kernels share: their parameters, the rows' Δ and LSE in a layout that has no options, and what needs no tiles.
//
// A call runs prepare_gradients, then a kernel by blocks of keys that sums dk and dv over rows, then one by tiles of rows for dq; or the
// first adds dq up as well, in f32, and what follows it rounds. dbias has a kernel of its own, which computes its tiles once more.
#pragma once
#include "gpu/score.h"

namespace fa {
namespace gpu {

// Sequences' rows are padded to whole tiles of this many: a kernel whose tiles divide it asks for no row's validity.
constexpr int64_t kPaddedRows = 128;

// What a backward call fixes, in the form that kernels take.
struct BackwardParams {
    Problem p;
    fa_backward_args_t a;
    fa_forward_args_t f;   // forward_part(a)
    int64_t padded_rows;   // of q of all sequences, each padded to kPaddedRows
    int64_t row_blocks;    // of prepare_gradients that take rows; those behind them take keys
    int64_t parts;         // blocks that share the columns of a tile's gradients
    int64_t sum_columns;   // of dq_sum
    float q_factor;        // scale, times log2 e when scores need no work in natural units
    float kept_factor;     // 1 / (1 − dropout_p)
    bool natural;          // scores leave the product in natural units
    bool q_aligned, k_aligned, v_aligned, o_aligned, dout_aligned;  // rows may be read four elements at a time
    float* delta;          // [heads_q][padded_rows]: Δ − dlse; 0 where lse2 is +inf
    float* lse2;           // [heads_q][padded_rows]: LSE · log2 e; +inf in rows without keys and beyond a sequence's: their weights are 0
    float* dq_sum;         // [heads_q][padded_rows][sum_columns], 0 at first: f32 sums of dq without the scale, for a kernel that adds them
                           // up; else NULL
};

FA_FN int64_t padded_rows_of(const Problem& p) {
    return p.packed_q() ? round_up(p.d.total_q, kPaddedRows) + kPaddedRows * p.d.batch : p.d.batch * round_up(p.d.seqlen_q, kPaddedRows);
}
// Where the rows of sequence b begin. Packed ones lie apart whatever their lengths: q_begin + 128 · b leaves each the room to be rounded up.
FA_FN int64_t padded_row0(const Problem& p, const Sequence& s, int64_t b) {
    return p.packed_q() ? (s.q_begin + kPaddedRows * b) / kPaddedRows * kPaddedRows : b * round_up(p.d.seqlen_q, kPaddedRows);
}

// The rows that may see any of keys [key, key + keys): key_band the other way round.
struct RowBand {
    int64_t begin, end;
};
FA_FN RowBand row_band(const MaskRule& r, int64_t key, int64_t keys, int64_t rows) {
    RowBand b{0, rows};
    const int64_t last = key + keys - 1;
    if (r.right >= 0 && r.right < key - r.off) b.begin = key - r.off - r.right;
    if (r.left >= 0 && r.left < rows + r.off - last - 1) b.end = last - r.off + r.left + 1;
    if (r.chunk > 0) {
        b.begin = max_of(b.begin, floor_div(key, r.chunk) * r.chunk - r.off);
        b.end = min_of(b.end, (floor_div(last, r.chunk) + 1) * r.chunk - r.off);
    }
    return b;
}

FA_FN bool accumulates(const BackwardParams& x) { return (x.a.flags & FA_BACKWARD_ACCUMULATE) != 0; }

// One element of dq, dk or dv, rounded to its input's type or added to what is there.
FA_DEVICE void store_gradient(const BackwardParams& x, void* base, int64_t i, int32_t dtype, float value) {
    if (accumulates(x)) static_cast<float*>(base)[i] += value;
    else store_element(base, i, dtype, value);
}

// Four elements from `at` on, of which `left` exist.
FA_DEVICE void load_quad(const void* base, int64_t at, int64_t left, bool aligned, int32_t dtype, float to[4]) {
    if (aligned && left >= 4) {
        if (dtype == FA_F32) return rt::load4(static_cast<const float*>(base) + at, to);
        const Quad<F16> quad = *reinterpret_cast<const Quad<F16>*>(static_cast<const F16*>(base) + at);
        FA_UNROLL for (int e = 0; e < 4; e++) to[e] = dtype == FA_F16 ? f16_to_f32(quad.element[e].x) : bf16_to_f32(quad.element[e].x);
        return;
    }
    FA_UNROLL for (int e = 0; e < 4; e++) to[e] = e < left ? load_element(base, at + e, dtype) : 0.f;
}

FA_DEVICE int64_t dlse_index(const BackwardParams& x, const Sequence& s, int64_t batch, int64_t row, int64_t head) {
    const int64_t* t = x.a.dlse_stride;
    return (x.p.packed_q() ? 0 : batch * t[0]) + head * t[1] + (s.q_begin + row) * t[2];
}

// 16 threads take a row.
constexpr int kPrepareThreads = 256, kPrepareRows = kPrepareThreads / 16;

// dk and dv of slots that hold no key of their sequence are 0.
FA_DEVICE void clear_keys(const BackwardParams& x, int64_t index) {
    const fa_attention_desc_t& d = x.p.d;
    if (accumulates(x)) return;
    const int64_t blocks = ceil_div(d.seqlen_k, kPrepareRows), batch = index / blocks / d.heads_kv;
    const int64_t slot = index % blocks * kPrepareRows + rt::thread() / 16, head = index / blocks % d.heads_kv;
    const Sequence s = bounded_sequence(x.p, x.f, batch);
    if (slot >= d.seqlen_k || (slot >= s.k_begin && slot < s.k_begin + s.k_len)) return;
    const Slot at{batch, slot, true};
    for (int64_t c = rt::thread() % 16; x.a.dk && c < d.dim_qk; c += 16) store_element(x.a.dk, key_index(x.p, x.a.dk_stride, at, head) + c, d.kv_dtype, 0.f);
    for (int64_t c = rt::thread() % 16; x.a.dv && c < d.dim_v; c += 16) store_element(x.a.dv, key_index(x.p, x.a.dv_stride, at, head) + c, d.kv_dtype, 0.f);
}

// delta and lse2 of all padded rows; 0 in what belongs to no row and no key: their gradients in padded tensors, and dq_sum.
FA_KERNEL void FA_BOUNDS(kPrepareThreads, 1) prepare_gradients(FA_PARAM BackwardParams x) {
    rt::fetch_parameters(x);
    const fa_attention_desc_t& d = x.p.d;
    if (rt::block() >= x.row_blocks) return clear_keys(x, rt::block() - x.row_blocks);
    const uint32_t blocks = uint32_t(ceil_div(d.seqlen_q, kPaddedRows) * (kPaddedRows / kPrepareRows)), index = uint32_t(rt::block());
    const int64_t head = index / blocks % uint32_t(d.heads_q), batch = index / blocks / uint32_t(d.heads_q);
    const int64_t row = index % blocks * kPrepareRows + rt::thread() / 16;
    const int lane = rt::thread() % 16;
    const Sequence s = bounded_sequence(x.p, x.f, batch);
    const bool valid = row < s.q_len;
    float sum = 0.f;
    if (valid) {
        const int64_t o_at = query_index(x.p, d.o_stride, s, batch, row, head), dout_at = query_index(x.p, x.a.dout_stride, s, batch, row, head);
        FA_UNROLL_BY(2)
        for (int64_t c = 4 * lane; c < d.dim_v; c += 64) {
            float o[4], dout[4], piece = 0.f;
            load_quad(x.a.o, o_at + c, d.dim_v - c, x.o_aligned, d.o_dtype, o);
            load_quad(x.a.dout, dout_at + c, d.dim_v - c, x.dout_aligned, d.q_dtype, dout);
            FA_UNROLL for (int e = 0; e < 4; e++) piece = fmaf(o[e], dout[e], piece);
            sum += piece;
        }
    } else if (!x.p.packed_q() && row < d.seqlen_q && x.a.dq && !accumulates(x)) {
        const int64_t at = query_index(x.p, x.a.dq_stride, s, batch, row, head);
        for (int64_t c = lane; c < d.dim_qk; c += 16) store_element(x.a.dq, at + c, d.q_dtype, 0.f);
    }
    FA_UNROLL for (int w = 8; w > 0; w /= 2) sum += rt::shuffle_xor16(sum, w);
    if (x.p.packed_q() && row >= round_up(s.q_len, kPaddedRows)) return;  // rows of other sequences begin here
    const int64_t to = head * x.padded_rows + padded_row0(x.p, s, batch) + row;
    for (int64_t c = 4 * lane; x.dq_sum && c < x.sum_columns; c += 64) {
        const float zero[4] = {};
        rt::store4(x.dq_sum + to * x.sum_columns + c, zero);
    }
    if (lane != 0) return;
    const float lse = valid ? x.a.lse[lse_index(x.p, s, batch, row, head)] : kPosInf;
    const bool none = lse == kNegInf || lse == kPosInf;
    x.lse2[to] = none ? kPosInf : lse * kLog2e;
    x.delta[to] = none ? 0.f : x.a.dlse ? sum - x.a.dlse[dlse_index(x, s, batch, row, head)] : sum;
}

// dq from its sums: a thread for four columns of a row.
FA_KERNEL void FA_BOUNDS(kPrepareThreads, 1) finish_dq(FA_PARAM BackwardParams x) {
    const fa_attention_desc_t& d = x.p.d;
    const uint32_t blocks = uint32_t(ceil_div(d.seqlen_q, kPaddedRows) * (kPaddedRows / kPrepareRows)), index = uint32_t(rt::block());
    const int64_t head = index / blocks % uint32_t(d.heads_q), batch = index / blocks / uint32_t(d.heads_q);
    const int64_t row = index % blocks * kPrepareRows + rt::thread() / 16;
    const Sequence s = bounded_sequence(x.p, x.f, batch);
    if (row >= s.q_len) return;
    const float* const from = x.dq_sum + (head * x.padded_rows + padded_row0(x.p, s, batch) + row) * x.sum_columns;
    const int64_t to = query_index(x.p, x.a.dq_stride, s, batch, row, head);
    FA_UNROLL_BY(2)
    for (int64_t c = 4 * (rt::thread() % 16); c < d.dim_qk; c += 64) {
        float sum[4];
        rt::load4(from + c, sum);
        FA_UNROLL for (int e = 0; e < 4; e++)
            if (c + e < d.dim_qk) store_gradient(x, x.a.dq, to + c + e, d.q_dtype, sum[e] * d.scale);
    }
}

// dsinks of a head: Σ exp(sink − LSE) · (dlse − Δ) over its rows, in an order that nothing changes.
constexpr int kSinkThreads = 256;
FA_KERNEL void FA_BOUNDS(kSinkThreads, 1) sum_sinks(FA_PARAM BackwardParams x) {
    const int64_t head = rt::block();
    const float sink = x.a.sinks[head] * kLog2e;
    float* const sums = reinterpret_cast<float*>(rt::shared_memory());
    float sum = 0.f;
    for (int64_t b = 0; b < x.p.d.batch; b++) {
        const Sequence s = bounded_sequence(x.p, x.f, b);
        const int64_t from = head * x.padded_rows + padded_row0(x.p, s, b);
        float piece = 0.f;  // of this sequence alone: one long chain would lose accuracy
        for (int64_t i = rt::thread(); i < s.q_len; i += kSinkThreads)
            if (x.lse2[from + i] != kPosInf && sink != kNegInf) piece = fmaf(exp2_fn(sink - x.lse2[from + i]), -x.delta[from + i], piece);
        sum += piece;
    }
    sums[rt::thread()] = sum;
    for (int half = kSinkThreads / 2; half > 0; half /= 2) {
        rt::barrier();
        if (rt::thread() < half) sums[rt::thread()] += sums[rt::thread() + half];
    }
    if (rt::thread() == 0) x.a.dsinks[head] = sums[0] + (accumulates(x) ? x.a.dsinks[head] : 0.f);
}

}  // namespace gpu
}  // namespace fa
