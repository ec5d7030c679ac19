// What Hopper's backward runs over rows, before and after bwd_sm90.h: Δ, LSE and zeros, and dq from its sums.
#pragma once
#include "cuda/bwd_tiles_sm90.h"

namespace fa {
namespace gpu {

// What prepare_gradients does for rows, where they consist of pieces of 16 bytes: delta and lse2 of all padded rows, 0 in dq_sum, and in dq where
// a padded tensor holds no row. A block of threads for 32 rows of a head.
constexpr int kPreparedRows = 32;
template <class T, int Dims>
FA_KERNEL void FA_BOUNDS(256, Dims > 128 ? 2 : 4) prepare_sm90(FA_PARAM BackwardParams x) {
    constexpr int kLanes = Dims / 8, kAtOnce = 256 / kLanes, kTurns = kPreparedRows / kAtOnce;  // of a row; rows; times that many
    rt::fetch_parameters(x);
    rt::release_successor();
    rt::wait_for_predecessor();
    const fa_attention_desc_t& d = x.p.d;
    const int blocks = int(ceil_div(d.seqlen_q, kPaddedRows)) * int(kPaddedRows / kPreparedRows), index = int(rt::block()) / blocks;
    const int batch = index / int(d.heads_q), head = index % int(d.heads_q), row0 = int(rt::block()) % blocks * kPreparedRows;
    const Sequence seq = bounded_sequence(x.p, x.f, batch);
    const int rows = int(seq.q_len) - row0, lane = rt::thread() % kLanes, own = rt::thread() / kLanes, column = 8 * lane;
    if (x.p.packed_q() && row0 >= int(round_up(seq.q_len, kPaddedRows))) return;  // rows of other sequences begin here
    const int64_t o0 = query_index(x.p, d.o_stride, seq, batch, row0, head) + column;
    const int64_t dout0 = query_index(x.p, x.a.dout_stride, seq, batch, row0, head) + column;
    const int64_t to = head * x.padded_rows + padded_row0(x.p, seq, batch) + row0;
    struct alignas(16) Piece {
        T element[8];
    };
    Piece o[kTurns] = {}, dout[kTurns] = {};
    const bool narrow = d.o_dtype != FA_F32, there = column < d.dim_v;
    FA_UNROLL for (int i = 0; i < kTurns; i++) {
        const int row = own + i * kAtOnce;
        if (!there || row >= rows) continue;
        if (narrow) o[i] = *reinterpret_cast<const Piece*>(static_cast<const T*>(x.a.o) + o0 + row * d.o_stride[1]);
        dout[i] = *reinterpret_cast<const Piece*>(static_cast<const T*>(x.a.dout) + dout0 + row * x.a.dout_stride[1]);
    }
    if (x.dq_sum) {
        const float zero[4] = {};
        FA_UNROLL for (int i = 0; i < kPreparedRows * Dims / 1024; i++) rt::store4(x.dq_sum + to * Dims + i * 1024 + rt::thread() * 4, zero);
    }
    FA_UNROLL for (int i = 0; i < kTurns; i++) {
        const int row = own + i * kAtOnce;
        float sum = 0.f;
        if (narrow) {
            FA_UNROLL for (int e = 0; e < 8; e++) sum = fmaf(to_f32(o[i].element[e]), to_f32(dout[i].element[e]), sum);
        } else if (there && row < rows) {
            const float* const wide = static_cast<const float*>(x.a.o) + o0 + row * d.o_stride[1];
            for (int e = 0; e < 8; e++) sum = fmaf(wide[e], to_f32(dout[i].element[e]), sum);
        }
        FA_UNROLL for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += rt::shuffle_xor32(sum, lanes);
        if (row >= rows && !x.p.packed_q() && row0 + row < d.seqlen_q && x.a.dq && !accumulates(x) && column < d.dim_qk)
            *reinterpret_cast<uint4*>(static_cast<T*>(x.a.dq) + query_index(x.p, x.a.dq_stride, seq, batch, row0 + row, head) + column) = make_uint4(0, 0, 0, 0);
        if (lane != 0) continue;
        const float lse = row < rows ? x.a.lse[lse_index(x.p, seq, batch, row0 + row, head)] : kPosInf;
        const bool none = lse == kNegInf || lse == kPosInf;
        x.lse2[to + row] = none ? kPosInf : lse * kLog2e;
        x.delta[to + row] = none ? 0.f : x.a.dlse ? sum - x.a.dlse[dlse_index(x, seq, batch, row0 + row, head)] : sum;
    }
}

// dq from its sums, which lie in the order of accumulate's registers. A block of threads for each block of rows.
template <class T, int Dims, int Rows>
FA_KERNEL void FA_BOUNDS(256, 1) finish_sm90(FA_PARAM BackwardParams x) {
    using H = HopperBackward<T, Dims, Rows, false>;
    constexpr int kStride = Dims + 4;
    float* const tile = reinterpret_cast<float*>(rt::shared_memory());
    rt::fetch_parameters(x);
    rt::wait_for_predecessor();
    const fa_attention_desc_t& d = x.p.d;
    const int blocks = int(ceil_div(d.seqlen_q, Rows)), index = int(rt::block()) / blocks, m = int(rt::block()) % blocks;
    const int batch = index / int(d.heads_q), head = index % int(d.heads_q);
    const Sequence seq = bounded_sequence(x.p, x.f, batch);
    const int left = int(seq.q_len) - m * Rows;
    if (left <= 0) return;
    const int64_t row0 = head * x.padded_rows + padded_row0(x.p, seq, batch) + m * Rows;
    const int warp = rt::thread() / 32, lane = rt::thread() % 32, c = lane % 4;
    FA_UNROLL for (int part = warp; part < H::kSumParts; part += 8) {
        const int dim = (H::kPanels > 1 ? part : part % 4) * 16 + lane / 4, row = 2 * c + (H::kPanels > 1 ? 0 : part / 4 * H::kSumRows);
        const float* const from = x.dq_sum + row0 * Dims + part * (H::kSumRows * 16) + lane * 4;
        FA_UNROLL for (int i = 0; i < H::kSumRows / 8; i++) {
            float sum[4];
            rt::load4(from + i * 128, sum);
            FA_UNROLL for (int e = 0; e < 4; e++) tile[(row + 8 * i + e % 2) * kStride + dim + e / 2 * 8] = sum[e];
        }
    }
    rt::barrier();
    for (int i = rt::thread(); i < Rows * Dims / 8; i += 256) {
        const int r = i / (Dims / 8), column = i % (Dims / 8) * 8;
        if (r >= left || column >= d.dim_qk) continue;
        const float factor = x.lse2[row0 + r] == kPosInf ? 0.f : -d.scale;
        const int64_t to = query_index(x.p, x.a.dq_stride, seq, batch, m * Rows + r, head) + column;
        float sum[8];
        rt::load4(tile + r * kStride + column, sum);
        rt::load4(tile + r * kStride + column + 4, sum + 4);
        FA_UNROLL for (int e = 0; e < 8; e++) sum[e] = factor == 0.f ? 0.f : sum[e] * factor;
        if (accumulates(x)) {
            FA_UNROLL for (int e = 0; e < 8; e++) static_cast<float*>(x.a.dq)[to + e] += sum[e];
            continue;
        }
        uint32_t word[4];
        FA_UNROLL for (int e = 0; e < 4; e++)
            word[e] = kIsF16<T> ? rt::pack_f16(sum[2 * e], sum[2 * e + 1]) : rt::pack_bf16(sum[2 * e], sum[2 * e + 1]);
        *reinterpret_cast<uint4*>(static_cast<T*>(x.a.dq) + to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

}  // namespace gpu
}  // namespace fa

