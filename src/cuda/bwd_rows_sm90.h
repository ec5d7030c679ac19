// What Hopper's backward runs before, after and beside bwd_sm90.h: Δ, LSE and zeros for rows, dq from its sums, and gradients of keys to memory.
#pragma once
#include "cuda/bwd_tiles_sm90.h"

namespace fa {
namespace gpu {

// Sums of this thread's two keys, `Dims` from `column` on, to memory, or, as f32, on top of what is there.
template <int Dims>
FA_DEVICE void store_keys(const HopperBackwardParams& a, const KeyBlock& t, int own_key, void* out, const int64_t stride[4], int column, int64_t dim,
                          float factor, const float (&sum)[Dims / 2]) {
    if (!out) return;
    const BackwardParams& x = a.x;
    const int c = int(threadIdx.x) % 4;
    const bool accumulated = (x.g.flags & FA_BACKWARD_ACCUMULATE) != 0;
    const int64_t base = (x.p.packed_k() ? 0 : t.batch * stride[0]) + t.kv_head * stride[2] + column;
    FA_UNROLL for (int r = 0; r < 2; r++) {
        const int key = own_key + 8 * r;
        const bool exists = key < t.keys;
        const int64_t at = base + int64_t(t.k_row + key) * stride[1];
        if (accumulated) {
            float* const to = static_cast<float*>(out) + at;
            FA_UNROLL for (int i = 0; i < Dims / 4; i++)
                if (exists && column + 8 * (i / 2) + 2 * c + i % 2 < dim) to[8 * (i / 2) + 2 * c + i % 2] += sum[4 * (i / 2) + 2 * r + i % 2] * factor;
            continue;
        }
        FA_UNROLL for (int i = 0; i < Dims / 32; i++) {
            uint32_t word[4];
            FA_UNROLL for (int j = 0; j < 4; j++) {
                const float first = sum[16 * i + 4 * j + 2 * r] * factor, second = sum[16 * i + 4 * j + 2 * r + 1] * factor;
                word[j] = rt::pack_bf16(first, second);
            }
            rt::transpose_words(word, c);
            if (exists && column + 32 * i + 8 * c < dim) *reinterpret_cast<uint4*>(static_cast<Bf16*>(out) + at + 32 * i + 8 * c) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

// What a block of the split ones leaves.
template <int Dims>
FA_DEVICE float* sums_of_split(const HopperBackwardParams& a, int block) { return a.split.sums + int64_t(block) * (2 * 128 * Dims); }

// Bf16s as the halves of words: the lower or the upper one.
FA_DEVICE float half_of(uint32_t word, int upper) { return __uint_as_float(upper ? word & 0xffff0000u : word << 16); }
FA_DEVICE float product(const float* a, const uint4& b) {
    const uint32_t words[] = {b.x, b.y, b.z, b.w};
    float sum = 0.f;
    FA_UNROLL for (int e = 0; e < 8; e++) sum = fmaf(a[e], half_of(words[e / 2], e % 2), sum);
    return sum;
}

// What prepare_sm90 does, for 32 rows of a call whose sequences are alike and whose o is as narrow as dout; by one warp that has 24 registers a
// thread: where the rows lie is found anew for each purpose.
struct Take {
    int batch, head, row0;
};
FA_DEVICE Take take_at(const HopperBackwardParams& a, int take) {
    const Quotient index = divide(take, a.ahead.takes_of_head), sequence = divide(index.number, a.ahead.heads_q);
    return {sequence.number, sequence.rest, index.rest * Ahead::rows};
}
FA_DEVICE int64_t padded_row_of(const HopperBackwardParams& a, const Take& t) {
    return t.head * a.x.padded_rows + int64_t(t.batch) * a.ahead.padded_rows_of_one + t.row0;
}
FA_DEVICE const char* lane_of(const void* base, const int64_t stride[4], const Take& t, int row, int column) {
    return reinterpret_cast<const char*>(static_cast<const Bf16*>(base) + t.batch * stride[0] + t.head * stride[2] + (t.row0 + row) * stride[1] + column);
}

// The sum of dout times o of 32 rows, each in one lane, and zeros for the sums of dq.
template <int Dims>
FA_DEVICE float deltas(const HopperBackwardParams& a, int take) {
    constexpr int kLanes = Dims / 8, kAtOnce = 32 / kLanes;  // of a row; rows
    const Take t = take_at(a, take);
    const int thread = rt::unknown(threadIdx.x) % 32, row = thread / kLanes, column = thread % kLanes * 8;
    const char *o = lane_of(a.x.a.o, a.x.p.d.o_stride, t, row, column), *dout = lane_of(a.x.g.dout, a.x.g.dout_stride, t, row, column);
    float* sums = a.x.dq_sum + padded_row_of(a, t) * Dims + thread * 4;
    int left = column < int(a.x.p.d.dim_v) ? int(a.x.p.d.seqlen_q) - t.row0 - row : 0;
    float delta = 0.f;
    FA_UNROLL_BY(1)
    for (int turn = 0; turn < kLanes; turn++) {
        uint4 one = {}, other = {};
        if (left > 0) one = *reinterpret_cast<const uint4*>(o), other = *reinterpret_cast<const uint4*>(dout);
        if (a.x.dq_sum) {
            const float zero[4] = {};
            rt::store4(sums, zero), rt::store4(sums + 128, zero);
        }
        sums += kAtOnce * Dims;
        o += a.ahead.o_step, dout += a.ahead.dout_step, left -= kAtOnce;
        const uint32_t words[] = {one.x, one.y, one.z, one.w}, others[] = {other.x, other.y, other.z, other.w};
        float sum = 0.f;
        FA_UNROLL for (int e = 0; e < 8; e++) sum = fmaf(half_of(words[e / 2], e % 2), half_of(others[e / 2], e % 2), sum);
        FA_UNROLL for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += rt::shuffle_xor32(sum, lanes);
        if (int(threadIdx.x) % kLanes == turn) delta = sum;
    }
    return delta;
}

// All 32 rows on their way into L2: a thread has no registers to have more than one load under way.
template <int Dims>
FA_DEVICE void fetch_rows(const HopperBackwardParams& a, int take) {
    const Take t = take_at(a, take);
    const int row = rt::unknown(threadIdx.x) % 32;
    if (t.row0 + row >= int(a.x.p.d.seqlen_q)) return;
    const char *o = lane_of(a.x.a.o, a.x.p.d.o_stride, t, row, 0), *dout = lane_of(a.x.g.dout, a.x.g.dout_stride, t, row, 0);
    FA_UNROLL for (int i = 0; i < Dims / 64; i++)
        if (64 * i < int(a.x.p.d.dim_v)) rt::fetch_line(o + 128 * i), rt::fetch_line(dout + 128 * i);
}

template <int Dims>
FA_DEVICE void prepare_rows(const HopperBackwardParams& a, int take) {
    constexpr int kLanes = Dims / 8, kAtOnce = 32 / kLanes;
    fetch_rows<Dims>(a, rt::unknown(take));
    float delta = deltas<Dims>(a, rt::unknown(take));
    const Take t = take_at(a, rt::unknown(take));
    const int thread = rt::unknown(threadIdx.x) % 32, row = t.row0 + thread / kLanes + thread % kLanes * kAtOnce;
    float lse = kPosInf;
    if (row < int(a.x.p.d.seqlen_q)) {
        const int64_t* const stride = a.x.p.d.lse_stride;
        lse = a.x.a.lse[t.batch * stride[0] + t.head * stride[1] + row * stride[2]];
        const int64_t* const dstride = a.x.g.dlse_stride;
        if (a.x.g.dlse) delta -= a.x.g.dlse[t.batch * dstride[0] + t.head * dstride[1] + row * dstride[2]];
    }
    store_row(a.x, padded_row_of(a, t) + row - t.row0, lse, delta);
}

// The rows of the next part of the call: the warps of a part's first half of blocks, of which none is split, share them.
template <class H, int Dims>
FA_DEVICE void prepare_ahead(const HopperBackwardParams& a) {
    const Ahead& ahead = a.ahead;
    constexpr int kWarps = 3;
    typename H::Shared& s = H::shared();
    KeysTurn<H> own;
    FA_UNROLL_BY(1)
    while (true) {
        const auto index = [&] { return *const_cast<const volatile int*>(&s.block[own.i()].index); };
        rt::barrier_wait(H::at(&s.barrier.k_full[own.i()]), own.parity());
        if (index() < 0) return;
        const auto next_part = [&] { return ahead.part_of(index()) + 1; };
        const int place = index() - (next_part() - 1) * int(ahead.blocks.by);  // in the part
        if (next_part() < ahead.parts && place < ahead.helping) {
            int take = next_part() * ahead.takes + place * kWarps + int(threadIdx.x) / 32 - 1;
            FA_UNROLL_BY(1)
            for (; take < ahead.takes_end(next_part()); take += ahead.helping * kWarps) {
                prepare_rows<Dims>(a, rt::unknown(take));
                __syncwarp();
                if (rt::unknown(threadIdx.x) % 32 == 0) rt::release_add(ahead.ready + next_part(), 1);
            }
        }
        rt::barrier_arrive(H::at(&s.barrier.k_free[own.i()]));
        __syncwarp();
        if (threadIdx.x % 32 == 0) own.count() = own.count() + 1;
        __syncwarp();
    }
}

// What prepare_gradients does for rows, where they consist of pieces of 16 bytes: delta and lse2 of all padded rows, 0 in dq_sum, and in dq
// where a padded tensor holds no row. A block of threads for 128 rows of a head; what it reads is under way at once.
template <int Dims>
FA_KERNEL void FA_BOUNDS(256, 3) prepare_sm90(FA_PARAM HopperBackwardParams a) {
    const BackwardParams& x = a.x;
    constexpr int kLanes = Dims / 8, kAtOnce = 256 / kLanes;                    // of a row; rows
    constexpr int kTurns = int(kPaddedRows) / kAtOnce, kTogether = 4;           // of that many rows, and how many are under way
    rt::fetch_parameters(a);
    const fa_attention_desc_t& d = x.p.d;
    const uint32_t blocks = uint32_t(ceil_div(d.seqlen_q, kPaddedRows)), index = uint32_t(rt::block()) / blocks;
    const int row0 = int((uint32_t(rt::block()) - index * blocks) * kPaddedRows);
    const int batch = int(index / uint32_t(d.heads_q)), head = int(index % uint32_t(d.heads_q));
    rt::release_successor();
    rt::wait_for_predecessor();
    for (int part = int(rt::block()) * 256 + rt::thread(); part < a.ahead.parts; part += int(gridDim.x) * 256) a.ahead.ready[part] = 0;
    const Sequence seq = bounded_sequence(x.p, x.a, batch);
    const int rows = int(seq.q_len) - row0, lane = rt::thread() % kLanes, own = rt::thread() / kLanes, column = 8 * lane;
    if (x.p.packed_q() && rows <= 0) return;  // rows of other sequences begin here
    const int64_t to = head * x.padded_rows + padded_row0(x.p, seq, batch) + row0;
    // Of each row a lane of its own has the last word.
    const int last = own + lane * kAtOnce;
    float lse = kPosInf, dlse = 0.f, delta = 0.f;
    if (lane < kTurns && last < rows) {
        lse = x.a.lse[lse_index(x.p, seq, batch, row0 + last, head)];
        if (x.g.dlse) dlse = x.g.dlse[dlse_index(x, seq, batch, row0 + last, head)];
    }
    const bool narrow = d.o_dtype != FA_F32, there = column < d.dim_v && rows > 0;
    const Bf16* const dout = static_cast<const Bf16*>(x.g.dout) + query_index(x.p, x.g.dout_stride, seq, batch, row0, head) + column;
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
                grad[i] = *reinterpret_cast<const uint4*>(dout + at(first + i) * x.g.dout_stride[1]);
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
        keep(there ? product(wide, *reinterpret_cast<const uint4*>(dout + at(turn) * x.g.dout_stride[1])) : 0.f, turn);
    }
    if (!x.p.packed_q() && x.g.dq && !accumulates(x) && column < d.dim_qk) {
        const int end = int(min_of(d.seqlen_q - row0, kPaddedRows));
        FA_UNROLL_BY(1)
        for (int row = own; row < end; row += kAtOnce)
            if (row >= rows) {
                Bf16* const dq = static_cast<Bf16*>(x.g.dq) + query_index(x.p, x.g.dq_stride, seq, batch, row0 + row, head);
                *reinterpret_cast<uint4*>(dq + column) = make_uint4(0, 0, 0, 0);
            }
    }
    if (lane < kTurns) store_row(x, to + last, lse, delta - dlse);
}

// dv or dk, 32 dims of it, of a block of keys whose rows several blocks have shared: added up in the order of these.
template <int Dims, int Rows, Way way>
FA_KERNEL void FA_BOUNDS(256, 1) add_split_sm90(FA_PARAM HopperBackwardParams a) {
    using H = HopperBackward<Dims, Rows, way>;
    constexpr int kGroups = Dims / 32;
    rt::fetch_parameters(a);
    rt::release_successor();
    rt::wait_for_predecessor();
    const BackwardParams& x = a.x;
    const int index = int(rt::block()), pieces = int(a.split.by.by), group = index % kGroups, half = index / kGroups % 2;
    const int number = index / (2 * kGroups);
    void* const out = half ? x.g.dk : x.g.dv;
    if (!out) return;
    KeyBlock t;
    H::describe_block(a, a.split.from + number, 0, 0, t);
    float sum[16] = {};
    const float* from = sums_of_split<Dims>(a, number * pieces) + (half * kGroups + group) * 4096 + rt::thread() * 4;
    FA_UNROLL_BY(2)
    for (int piece = 0; piece < pieces; piece++, from += 2 * 128 * Dims)
        FA_UNROLL for (int i = 0; i < 4; i++) {
            float more[4];
            rt::load4(from + i * 1024, more);
            FA_UNROLL for (int e = 0; e < 4; e++) sum[4 * i + e] += more[e];
        }
    const int own_key = rt::thread() / 32 * 16 + rt::thread() % 32 / 4;
    store_keys<32>(a, t, own_key, out, half ? x.g.dk_stride : x.g.dv_stride, 32 * group, half ? x.p.d.dim_qk : x.p.d.dim_v, half ? -x.p.d.scale : 1.f, sum);
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
    const Sequence seq = bounded_sequence(x.p, x.a, batch);
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
        const int64_t to = query_index(x.p, x.g.dq_stride, seq, batch, m * Rows + r, head) + column;
        float sum[8];
        rt::load4(tile + r * kStride + column, sum);
        rt::load4(tile + r * kStride + column + 4, sum + 4);
        FA_UNROLL for (int e = 0; e < 8; e++) sum[e] = seeing[i] ? sum[e] * -d.scale : 0.f;
        if (accumulates(x)) {
            FA_UNROLL for (int e = 0; e < 8; e++) static_cast<float*>(x.g.dq)[to + e] += sum[e];
            continue;
        }
        uint32_t word[4];
        FA_UNROLL for (int e = 0; e < 4; e++) word[e] = rt::pack_bf16(sum[2 * e], sum[2 * e + 1]);
        *reinterpret_cast<uint4*>(static_cast<Bf16*>(x.g.dq) + to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

}  // namespace gpu
}  // namespace fa

