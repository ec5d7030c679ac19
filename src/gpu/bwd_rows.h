// What a backward call runs over rows, before and after the kernels of its tiles: Δ and LSE of all rows, dq from its sums, dsinks. Apart from
// bwd.h, because kernels are compiled wherever their text is included.
#pragma once
#include "gpu/bwd.h"

namespace fa {
namespace gpu {

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
    const float dlse = valid && x.a.dlse ? x.a.dlse[dlse_index(x, s, batch, row, head)] : 0.f;
    store_row(x, to, lse, sum - dlse);
}

// dq from its sums: a thread for four columns of a row.
FA_KERNEL void FA_BOUNDS(kPrepareThreads, 1) finish_dq(FA_PARAM BackwardParams x) {
    const fa_attention_desc_t& d = x.p.d;
    const uint32_t blocks = uint32_t(ceil_div(d.seqlen_q, kPaddedRows) * (kPaddedRows / kPrepareRows)), index = uint32_t(rt::block());
    const int64_t head = index / blocks % uint32_t(d.heads_q), batch = index / blocks / uint32_t(d.heads_q);
    const int64_t row = index % blocks * kPrepareRows + rt::thread() / 16;
    const Sequence s = bounded_sequence(x.p, x.f, batch);
    if (row >= s.q_len) return;
    const int64_t from = head * x.padded_rows + padded_row0(x.p, s, batch) + row;
    const int64_t to = query_index(x.p, x.a.dq_stride, s, batch, row, head);
    FA_UNROLL_BY(2)
    for (int64_t c = 4 * (rt::thread() % 16); c < d.dim_qk; c += 64) {
        FA_UNROLL for (int e = 0; e < 4; e++)
            if (c + e < d.dim_qk) store_gradient(x, x.a.dq, to + c + e, d.q_dtype, x.dq_sum[sum_index(from, c + e, x.sum_columns)] * d.scale);
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
