// What a backward call runs over rows, before and after the kernels of its tiles: backward_preprocess (delta and LSE of all rows,
// zeros where nothing will be written), finish_dq (dq from its f32 sums) and sum_sinks (dsinks). They are memory-bound: 16 threads
// to a row, several rows in flight. Apart from common/backward_params.h, because a kernel is compiled wherever its text is included.
#pragma once
#include "gpu/common/backward_params.h"

namespace fa {
namespace gpu {

// A block takes kPaddedRows rows of a head, or so many of its keys: 16 threads a row, which have several rows under way at once.
constexpr int kPrepareThreads = 256, kRowLanes = 16, kRowsAtOnce = kPrepareThreads / kRowLanes, kRowRounds = int(kPaddedRows) / kRowsAtOnce;

// dk and dv of slots that hold no key of their sequence are 0.
FA_DEVICE void zero_unused_keys(const BackwardRowParams& params, int64_t index) {
    if (params.accumulate) return;
    const int64_t blocks = ceil_div(params.sequences.seqlen_k, kPaddedRows);
    const int64_t batch = index / blocks / params.kv_heads, head = index / blocks % params.kv_heads;
    const int64_t first = index % blocks * kPaddedRows, end = min_of(first + kPaddedRows, params.sequences.seqlen_k);
    const Sequence seq = bounded_sequence(params.sequences, batch);
    for (int64_t row = first + rt::thread() / kRowLanes; row < end; row += kRowsAtOnce) {
        if (row >= seq.k_begin && row < seq.k_begin + seq.k_len) continue;
        const KeyLocation at{batch, row, true};
        const auto clear = [&](void* base, const RowStrides& strides, int64_t dim) {
            for (int64_t c = rt::thread() % kRowLanes; base && c < dim; c += kRowLanes)
                store_element(base, key_index(strides, at, head) + c, params.k_dtype, 0.f);
        };
        clear(params.dk, params.dk_strides, params.dim_qk);
        clear(params.dv, params.dv_strides, params.dim_v);
    }
}

// A thread's rows of a block: the first of the block's, how many exist of those behind it, and the thread's first and its columns.
struct BlockRows {
    Sequence seq;
    int64_t batch, head, first, valid;
    int own, lane;
    FA_MEMBER BlockRows(const BackwardRowParams& params, uint32_t index) : own(rt::thread() / kRowLanes), lane(rt::thread() % kRowLanes) {
        const uint32_t blocks = uint32_t(ceil_div(params.sequences.q.seqlen, kPaddedRows)), heads = uint32_t(params.heads_q);
        batch = index / blocks / heads;
        head = index / blocks % heads;
        first = index % blocks * kPaddedRows;
        seq = bounded_sequence(params.sequences, batch);
        valid = seq.q_len - first;
    }
    FA_MEMBER int64_t at(const RowStrides& strides, int64_t row) const { return query_index(strides, seq, batch, first + row, head); }
    FA_MEMBER int64_t padded_row(const BackwardRowParams& params) const {
        return head * params.padded_rows + padded_row0(params.sequences, seq, batch) + first;
    }
};

// The sum over a row's threads; that of the row of round i is kept by lane i.
FA_DEVICE void reduce_row(float sum, int round, int lane, float& kept) {
    FA_UNROLL_FOR (int w = kRowLanes / 2; w > 0; w /= 2) sum += rt::shuffle_xor16(sum, w);
    if (lane == round) kept = sum;
}

// o · dout of the row that a thread keeps, where both have type T and rows may be read four elements at a time. A row behind the
// last is read as the last.
template <class T>
FA_DEVICE float row_products(const BackwardRowParams& params, const BlockRows& rows) {
    constexpr int kInFlight = 4;
    const int64_t o_step = params.o_strides.row, dout_step = params.dout_strides.row;
    const T* const o = static_cast<const T*>(params.o) + rows.at(params.o_strides, 0);
    const T* const dout = static_cast<const T*>(params.dout) + rows.at(params.dout_strides, 0);
    float kept = 0.f;
    FA_UNROLL_BY(1)
    for (int round = 0; round < kRowRounds; round += kInFlight) {
        float sum[kInFlight] = {};
        FA_UNROLL_BY(1)
        for (int c = 4 * rows.lane; c < params.dim_v; c += 4 * kRowLanes) {
            Vec4<T> a[kInFlight], b[kInFlight];
            FA_UNROLL_FOR (int i = 0; i < kInFlight; i++) {
                const int row = int(min_of(rows.own + (round + i) * kRowsAtOnce, rows.valid - 1));
                a[i] = *reinterpret_cast<const Vec4<T>*>(o + row * o_step + c);
                b[i] = *reinterpret_cast<const Vec4<T>*>(dout + row * dout_step + c);
            }
            FA_UNROLL_FOR (int i = 0; i < kInFlight; i++)
                FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[i] = fmaf(to_f32(a[i].element[e]), to_f32(b[i].element[e]), sum[i]);
        }
        FA_UNROLL_FOR (int i = 0; i < kInFlight; i++) reduce_row(sum[i], round + i, rows.lane, kept);
    }
    return kept;
}
// The same for any types and rows.
FA_DEVICE float any_row_products(const BackwardRowParams& params, const BlockRows& rows) {
    float kept = 0.f;
    FA_UNROLL_BY(1)
    for (int round = 0; round < kRowRounds; round++) {
        const int64_t row = min_of(rows.own + round * kRowsAtOnce, rows.valid - 1);
        const int64_t o_at = rows.at(params.o_strides, row), dout_at = rows.at(params.dout_strides, row);
        float sum = 0.f;
        FA_UNROLL_BY(1)
        for (int64_t c = 4 * rows.lane; c < params.dim_v; c += 4 * kRowLanes) {
            float o[4], dout[4];
            load_vec4(params.o, o_at + c, params.dim_v - c, params.o_aligned, params.o_dtype, o);
            load_vec4(params.dout, dout_at + c, params.dim_v - c, params.dout_aligned, params.q_dtype, dout);
            FA_UNROLL_FOR (int e = 0; e < 4; e++) sum = fmaf(o[e], dout[e], sum);
        }
        reduce_row(sum, round, rows.lane, kept);
    }
    return kept;
}

// delta and lse_log2 of all padded rows; 0 in what belongs to no row and no key: their gradients in padded tensors, and dq_acc.
FA_KERNEL void FA_BOUNDS(kPrepareThreads, 4) backward_preprocess(FA_PARAM BackwardRowParams params) {
    rt::fetch_parameters(params);
    if (rt::block() >= params.row_blocks) return zero_unused_keys(params, rt::block() - params.row_blocks);
    const BlockRows rows(params, uint32_t(rt::block()));
    if (params.sequences.q.packed() && rows.valid <= 0) return;                            // rows of other sequences begin here
    const int64_t own = rows.own + rows.lane * kRowsAtOnce, to = rows.padded_row(params);  // the row that a thread keeps
    float lse = kPosInf, delta = 0.f;
    if (rows.lane < kRowRounds && own < rows.valid) {
        lse = params.lse[query_index(params.lse_strides, rows.seq, rows.batch, rows.first + own, rows.head)];
        if (params.dlse) delta = -params.dlse[query_index(params.dlse_strides, rows.seq, rows.batch, rows.first + own, rows.head)];
    }
    const float zero[4] = {};
    if (params.dq_acc) {
        FA_UNROLL_BY(4)
        for (int i = 4 * rt::thread(); i < int(kPaddedRows * params.dq_acc_columns); i += 4 * kPrepareThreads)
            rt::store4(params.dq_acc + to * params.dq_acc_columns + i, zero);
    }
    const bool vec4s = params.o_aligned && params.dout_aligned && params.dim_v % 4 == 0 && params.o_dtype == params.q_dtype;
    if (rows.valid > 0) {
        if (!vec4s) delta += any_row_products(params, rows);
        else if (params.q_dtype == FA_BF16) delta += row_products<Bf16>(params, rows);
        else if (params.q_dtype == FA_F16) delta += row_products<F16>(params, rows);
        else delta += row_products<F32>(params, rows);
    }
    if (rows.lane < kRowRounds) store_row(params, to + own, lse, delta);
    if (params.sequences.q.packed() || !params.dq || params.accumulate) return;
    const int64_t end = min_of(kPaddedRows, params.sequences.q.seqlen - rows.first);
    for (int64_t row = max_of(rows.valid, 0) + rows.own; row < end; row += kRowsAtOnce)
        for (int64_t c = rows.lane; c < params.dim_qk; c += kRowLanes)
            store_element(params.dq, rows.at(params.dq_strides, row) + c, params.q_dtype, 0.f);
}

// dq from its sums, element by element.
FA_DEVICE void finish_any_rows(const BackwardRowParams& params, const BlockRows& rows) {
    const int64_t from = rows.padded_row(params), to = rows.at(params.dq_strides, 0);
    for (int row = rt::thread() / kRowLanes; row < int(min_of(rows.valid, kPaddedRows)); row += kRowsAtOnce) {
        FA_UNROLL_BY(2)
        for (int c = rows.lane; c < params.dim_qk; c += kRowLanes)
            store_gradient(params, params.dq, to + row * params.dq_strides.row + c, params.q_dtype,
                           params.dq_acc[dq_acc_index(from + row, c, params.dq_acc_columns)] * params.scale);
    }
}

// dq from its sums: where rows consist of pieces of 16 bytes a thread takes eight columns of a row, and has several rows under way.
FA_KERNEL void FA_BOUNDS(kPrepareThreads, 4) finish_dq(FA_PARAM BackwardRowParams params) {
    struct alignas(8) Pair {
        float x[2];
    };
    rt::fetch_parameters(params);
    const BlockRows rows(params, uint32_t(rt::block()));
    if (rows.valid <= 0) return;
    if (params.accumulate || params.dim_qk % 8 != 0 || copy_width(params.dq, params.dq_strides, params.dim_qk, params.q_dtype) != 16)
        return finish_any_rows(params, rows);
    constexpr int kInFlight = 4, kMostLanes = 32;  // of a row: those of eight rows lie at a fixed distance from the next eight's
    const int lanes = int(min_of(params.dq_acc_columns / 8, kMostLanes)), rows_at_once = kPrepareThreads / lanes;
    const int valid = int(min_of(rows.valid, kPaddedRows)), step = int(dq_acc_index(rows_at_once, 0, params.dq_acc_columns));
    FA_UNROLL_BY(1)
    for (int column = rt::thread() % lanes * 8; column < params.dim_qk; column += 8 * lanes) {
        const float* from = params.dq_acc + dq_acc_index(rows.padded_row(params) + rt::thread() / lanes, column, params.dq_acc_columns);
        int64_t to = rows.at(params.dq_strides, rt::thread() / lanes) + column;
        FA_UNROLL_BY(1)
        for (int first = rt::thread() / lanes; first < int(kPaddedRows); first += kInFlight * rows_at_once) {
            Pair sum[kInFlight][4];  // a row's pairs lie four columns apart
            FA_UNROLL_FOR (int i = 0; i < kInFlight; i++, from += step)
                FA_UNROLL_FOR (int e = 0; e < 4; e++) sum[i][e] = *reinterpret_cast<const Pair*>(from + 4 * e);
            FA_UNROLL_FOR (int i = 0; i < kInFlight; i++, to += rows_at_once * params.dq_strides.row) {
                float dq[8];
                FA_UNROLL_FOR (int e = 0; e < 8; e++) dq[e] = sum[i][e / 2].x[e % 2] * params.scale;
                if (first + i * rows_at_once < valid) store_vec8_at(params.dq, to, params.q_dtype, dq);
            }
        }
    }
}

// dsinks of a head: Σ exp(sink − LSE) · (dlse − Δ) over its rows, in an order that nothing changes.
constexpr int kSinkThreads = 256;
FA_KERNEL void FA_BOUNDS(kSinkThreads, 1) sum_sinks(FA_PARAM BackwardRowParams params) {
    const int64_t head = rt::block();
    const float sink = params.sinks[head] * kLog2e;
    float* const thread_sum = reinterpret_cast<float*>(rt::shared_memory());
    float sum = 0.f;
    for (int64_t b = 0; params.sequences.q.seqlen > 0 && b < params.batch; b++) {
        const Sequence seq = bounded_sequence(params.sequences, b);
        const int64_t from = head * params.padded_rows + padded_row0(params.sequences, seq, b);
        float chain = 0.f;  // of this sequence alone: one long chain would lose accuracy
        for (int64_t i = rt::thread(); i < seq.q_len; i += kSinkThreads)
            if (params.lse_log2[from + i] != kPosInf && sink != kNegInf)
                chain = fmaf(exp2_fn(sink - params.lse_log2[from + i]), -params.delta[from + i], chain);
        sum += chain;
    }
    thread_sum[rt::thread()] = sum;
    for (int half = kSinkThreads / 2; half > 0; half /= 2) {
        rt::barrier();
        if (rt::thread() < half) thread_sum[rt::thread()] += thread_sum[rt::thread() + half];
    }
    if (rt::thread() == 0) params.dsinks[head] = thread_sum[0] + (params.accumulate ? params.dsinks[head] : 0.f);
}

}  // namespace gpu
}  // namespace fa
