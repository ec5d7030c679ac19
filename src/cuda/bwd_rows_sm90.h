// What Hopper's backward runs over rows, before and after bwd_sm90.h: Δ, LSE and zeros, and dq from its sums.
#pragma once
#include "cuda/bwd_tiles_sm90.h"

namespace fa {
namespace gpu {

// Bf16s as the halves of words: the lower or the upper one.
FA_DEVICE float half_of(uint32_t word, int upper) { return __uint_as_float(upper ? word & 0xffff0000u : word << 16); }
FA_DEVICE float product(const float* a, const uint4& b) {
    const uint32_t words[] = {b.x, b.y, b.z, b.w};
    float sum = 0.f;
    FA_UNROLL for (int e = 0; e < 8; e++) sum = fmaf(a[e], half_of(words[e / 2], e % 2), sum);
    return sum;
}

// What prepare_gradients does for rows, where they consist of pieces of 16 bytes: delta and lse2 of all padded rows, 0 in dq_sum, and in dq
// where a padded tensor holds no row. A block of threads for 128 rows of a head; what it reads is under way at once.
template <int Dims>
FA_KERNEL void FA_BOUNDS(256, 3) prepare_sm90(FA_PARAM BackwardParams x) {
    constexpr int kLanes = Dims / 8, kAtOnce = 256 / kLanes;                    // of a row; rows
    constexpr int kTurns = int(kPaddedRows) / kAtOnce, kTogether = 4;           // of that many rows, and how many are under way
    rt::fetch_parameters(x);
    const fa_attention_desc_t& d = x.p.d;
    const uint32_t blocks = uint32_t(ceil_div(d.seqlen_q, kPaddedRows)), index = uint32_t(rt::block()) / blocks;
    const int row0 = int((uint32_t(rt::block()) - index * blocks) * kPaddedRows);
    const int batch = int(index / uint32_t(d.heads_q)), head = int(index % uint32_t(d.heads_q));
    rt::release_successor();
    rt::wait_for_predecessor();
    const Sequence seq = bounded_sequence(x.p, x.f, batch);
    const int rows = int(seq.q_len) - row0, lane = rt::thread() % kLanes, own = rt::thread() / kLanes, column = 8 * lane;
    if (x.p.packed_q() && rows <= 0) return;  // rows of other sequences begin here
    const int64_t to = head * x.padded_rows + padded_row0(x.p, seq, batch) + row0;
    // Of each row a lane of its own has the last word.
    const int last = own + lane * kAtOnce;
    float lse = kPosInf, dlse = 0.f, delta = 0.f;
    if (lane < kTurns && last < rows) {
        lse = x.a.lse[lse_index(x.p, seq, batch, row0 + last, head)];
        if (x.a.dlse) dlse = x.a.dlse[dlse_index(x, seq, batch, row0 + last, head)];
    }
    const bool narrow = d.o_dtype != FA_F32, there = column < d.dim_v && rows > 0;
    const Bf16* const dout = static_cast<const Bf16*>(x.a.dout) + query_index(x.p, x.a.dout_stride, seq, batch, row0, head) + column;
    const Bf16* const o_row = static_cast<const Bf16*>(x.a.o);
    const int64_t o0 = query_index(x.p, d.o_stride, seq, batch, row0, head) + column;
    const auto at = [&](int turn) { return min(own + turn * kAtOnce, rows - 1); };  // what comes of a row behind the last is not kept
    const auto keep = [&](float sum, int turn) {
        FA_UNROLL for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += rt::shuffle_xor32(sum, lanes);
        if (lane == turn) delta = sum;
    };
    FA_UNROLL for (int first = 0; first < kTurns; first += kTogether) {
        uint4 o[kTogether] = {}, grad[kTogether] = {};
        if (there)
            FA_UNROLL for (int i = 0; i < kTogether; i++) {
                if (narrow) o[i] = *reinterpret_cast<const uint4*>(o_row + o0 + at(first + i) * d.o_stride[1]);
                grad[i] = *reinterpret_cast<const uint4*>(dout + at(first + i) * x.a.dout_stride[1]);
            }
        if (x.dq_sum) {
            constexpr int kPart = kTogether * kAtOnce * Dims;
            const float zero[4] = {};
            FA_UNROLL for (int i = 0; i < kPart / 1024; i++)
                rt::store4(x.dq_sum + to * Dims + first / kTogether * kPart + i * 1024 + rt::thread() * 4, zero);
        }
        FA_UNROLL for (int i = 0; i < kTogether; i++) {
            const uint32_t words[] = {o[i].x, o[i].y, o[i].z, o[i].w};
            float wide[8];
            FA_UNROLL for (int e = 0; e < 8; e++) wide[e] = half_of(words[e / 2], e % 2);
            keep(product(wide, grad[i]), first + i);
        }
    }
    FA_UNROLL_BY(1)
    for (int turn = narrow ? kTurns : 0; turn < kTurns; turn++) {
        const float* const wide = static_cast<const float*>(x.a.o) + o0 + at(turn) * d.o_stride[1];
        keep(there ? product(wide, *reinterpret_cast<const uint4*>(dout + at(turn) * x.a.dout_stride[1])) : 0.f, turn);
    }
    if (!x.p.packed_q() && x.a.dq && !accumulates(x) && column < d.dim_qk) {
        const int end = int(min_of(d.seqlen_q - row0, kPaddedRows));
        FA_UNROLL_BY(1)
        for (int row = own; row < end; row += kAtOnce)
            if (row >= rows) {
                Bf16* const dq = static_cast<Bf16*>(x.a.dq) + query_index(x.p, x.a.dq_stride, seq, batch, row0 + row, head);
                *reinterpret_cast<uint4*>(dq + column) = make_uint4(0, 0, 0, 0);
            }
    }
    if (lane < kTurns) store_row(x, to + last, lse, delta - dlse);
}

// dq from its sums, which lie in the order of accumulate's registers. A block of threads for each block of rows.
template <int Dims, int Rows>
FA_KERNEL void FA_BOUNDS(256, 1) finish_sm90(FA_PARAM BackwardParams x) {
    using H = HopperBackward<Dims, Rows, Way::any>;
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
        const int dim = (H::kPanels > 1 ? part : part % 4) * 16 + lane / 4;
        const int row = 2 * c + (H::kPanels > 1 ? 0 : part / 4 * H::kSumRows);
        const float* const from = x.dq_sum + row0 * Dims + part * (H::kSumRows * 16) + lane * 4;
        FA_UNROLL for (int i = 0; i < H::kSumRows / 8; i++) {
            float sum[4];
            rt::load4(from + i * 128, sum);
            FA_UNROLL for (int e = 0; e < 4; e++) tile[(row + 8 * i + e % 2) * kStride + dim + e / 2 * 8] = sum[e];
        }
    }
    constexpr int kAtOnce = 256 / (Dims / 8);  // rows
    const int own = rt::thread() / (Dims / 8), column = rt::thread() % (Dims / 8) * 8;
    bool seeing[Rows / kAtOnce];
    FA_UNROLL for (int i = 0; i < Rows / kAtOnce; i++) seeing[i] = x.lse2[row0 + own + i * kAtOnce] != kPosInf;
    rt::barrier();
    FA_UNROLL for (int i = 0; i < Rows / kAtOnce; i++) {
        const int r = own + i * kAtOnce;
        if (r >= left || column >= d.dim_qk) continue;
        const int64_t to = query_index(x.p, x.a.dq_stride, seq, batch, m * Rows + r, head) + column;
        float sum[8];
        rt::load4(tile + r * kStride + column, sum);
        rt::load4(tile + r * kStride + column + 4, sum + 4);
        FA_UNROLL for (int e = 0; e < 8; e++) sum[e] = seeing[i] ? sum[e] * -d.scale : 0.f;
        if (accumulates(x)) {
            FA_UNROLL for (int e = 0; e < 8; e++) static_cast<float*>(x.a.dq)[to + e] += sum[e];
            continue;
        }
        uint32_t word[4];
        FA_UNROLL for (int e = 0; e < 4; e++) word[e] = rt::pack_bf16(sum[2 * e], sum[2 * e + 1]);
        *reinterpret_cast<uint4*>(static_cast<Bf16*>(x.a.dq) + to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

}  // namespace gpu
}  // namespace fa

