// What the backward kernels need of each row before they run: delta = Σ dout · o − dlse, LSE in log2 units, and zeros for the sums
// of dq. A kernel of its own preprocesses the first part of a call, and idle warps of the main kernel the parts after it
// (PreprocessAhead).
#pragma once
#include "cuda/sm90/backward/producer.h"

namespace fa {
namespace gpu {

template <class T>
FA_DEVICE float product(const float* a, const uint4& b) {
    const uint32_t words[] = {b.x, b.y, b.z, b.w};
    float sum = 0.f;
    FA_UNROLL_FOR (int e = 0; e < 8; e++) sum = fmaf(a[e], half_of<T>(words[e / 2], e % 2), sum);
    return sum;
}

// What prepare_sm90 does, for a chunk of 32 rows of a call whose sequences all have the same lengths and whose o has the type of q; by one
// warp with 24 registers a thread, which therefore computes again for each use where the rows lie.
struct RowChunk {
    int batch, head, row0;
};
FA_DEVICE RowChunk chunk_at(const Sm90BackwardParams& params, int chunk) {
    const Quotient index = divide(chunk, params.preprocess.chunks_of_head), sequence = divide(index.number, params.preprocess.heads_q);
    return {sequence.number, sequence.rest, index.rest * PreprocessAhead::kChunkRows};
}
FA_DEVICE int64_t padded_row_of(const Sm90BackwardParams& params, const RowChunk& rows) {
    return rows.head * params.x.padded_rows + int64_t(rows.batch) * params.preprocess.padded_rows_of_sequence + rows.row0;
}
FA_DEVICE const char* lane_of(const void* base, const RowStrides& strides, const RowChunk& rows, int row, int column) {
    return reinterpret_cast<const char*>(static_cast<const F16*>(base) + strides.index(rows.batch, rows.row0 + row, rows.head) + column);
}

// Zeros for the sums of dq of 32 rows.
template <int HeadDim>
FA_DEVICE void clear_dq(const Sm90BackwardParams& params, int chunk) {
    if (!params.x.dq_acc) return;
    const float zero[4] = {};
    float* dq_acc = params.x.dq_acc + padded_row_of(params, chunk_at(params, chunk)) * HeadDim + rt::opaque(threadIdx.x) % 32 * 4;
    FA_UNROLL_BY(4)
    for (int i = 0; i < PreprocessAhead::kChunkRows * HeadDim / 128; i++) rt::store4(dq_acc + i * 128, zero);
}

// Delta = Σ dout · o of 32 rows, each in one lane; and, for f16, the magnitudes of dout.
template <class T, int HeadDim>
FA_DEVICE float deltas(const Sm90BackwardParams& params, int chunk, F16Max& of_dout) {
    constexpr int kLanes = HeadDim / 8, kRowsAtOnce = 32 / kLanes;  // of a row; rows
    const RowChunk rows = chunk_at(params, chunk);
    const int thread = rt::opaque(threadIdx.x) % 32, row = thread / kLanes, column = thread % kLanes * 8;
    const char *o = lane_of(params.x.o, params.x.o_strides, rows, row, column),
               *dout = lane_of(params.x.dout, params.x.dout_strides, rows, row, column);
    int left = column < int(params.x.dim_v) ? int(params.x.sequences.q.seqlen) - rows.row0 - row : 0;
    float delta = 0.f;
    FA_UNROLL_BY(1)
    for (int iteration = 0; iteration < kLanes; iteration++) {
        uint4 one = {}, other = {};
        if (left > 0) one = *reinterpret_cast<const uint4*>(o), other = *reinterpret_cast<const uint4*>(dout);
        o += params.preprocess.o_step, dout += params.preprocess.dout_step, left -= kRowsAtOnce;
        const uint32_t words[] = {one.x, one.y, one.z, one.w}, others[] = {other.x, other.y, other.z, other.w};
        if constexpr (kIsF16<T>) of_dout.take(other);
        float sum = 0.f;
        FA_UNROLL_FOR (int e = 0; e < 8; e++) sum = fmaf(half_of<T>(words[e / 2], e % 2), half_of<T>(others[e / 2], e % 2), sum);
        FA_UNROLL_FOR (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += rt::shuffle_xor32(sum, lanes);
        if (int(threadIdx.x) % kLanes == iteration) delta = sum;
    }
    return delta;
}

// Prefetches all 32 rows into L2: a thread has no registers for more than one load in flight.
template <int HeadDim>
FA_DEVICE void prefetch_chunk(const Sm90BackwardParams& params, int chunk) {
    const RowChunk rows = chunk_at(params, chunk);
    const int row = rt::opaque(threadIdx.x) % 32;
    if (rows.row0 + row >= int(params.x.sequences.q.seqlen)) return;
    const char *o = lane_of(params.x.o, params.x.o_strides, rows, row, 0),
               *dout = lane_of(params.x.dout, params.x.dout_strides, rows, row, 0);
    FA_UNROLL_FOR (int i = 0; i < HeadDim / 64; i++)
        if (64 * i < int(params.x.dim_v)) rt::prefetch_l2(o + 128 * i), rt::prefetch_l2(dout + 128 * i);
}

template <class T, int HeadDim>
FA_DEVICE void preprocess_chunk(const Sm90BackwardParams& params, int chunk) {
    constexpr int kLanes = HeadDim / 8, kRowsAtOnce = 32 / kLanes;
    prefetch_chunk<HeadDim>(params, rt::opaque(chunk));
    clear_dq<HeadDim>(params, rt::opaque(chunk));  // while the rows come
    F16Max of_dout;
    float delta = deltas<T, HeadDim>(params, rt::opaque(chunk), of_dout);
    const RowChunk rows = chunk_at(params, rt::opaque(chunk));
    const int thread = rt::opaque(threadIdx.x) % 32, row = rows.row0 + thread / kLanes + thread % kLanes * kRowsAtOnce;
    float lse = kPosInf;
    if (row < int(params.x.sequences.q.seqlen)) {
        lse = params.x.lse[params.x.lse_strides.index(rows.batch, row, rows.head)];
        if (params.x.dlse) delta -= params.x.dlse[params.x.dlse_strides.index(rows.batch, row, rows.head)];
    }
    store_row(params.x, padded_row_of(params, rows) + row - rows.row0, lse - kProbExponent<T> * kLn2, delta);
    if constexpr (kIsF16<T>) {
        const RowChunk same = chunk_at(params, rt::opaque(chunk));
        raise_ds_bound(params, same.batch, same.head, fabsf(lse) == kPosInf ? 0.f : delta, of_dout);
    }
}

// Preprocesses the rows of the call's next part, which the idle producer warps of the first half of this part's blocks share.
template <class Traits, int HeadDim>
FA_DEVICE void preprocess_next_part(const Sm90BackwardParams& params) {
    const PreprocessAhead& pre = params.preprocess;
    constexpr int kWarps = 3;
    typename Traits::Shared& shared = Traits::shared();
    KStageInShared<Traits> k_stage;
    FA_UNROLL_BY(1)
    while (true) {
        const auto index = [&] { return *const_cast<const volatile int*>(&shared.block[k_stage.index()].index); };
        rt::mbarrier_wait(Traits::smem_addr(&shared.barrier.k_full[k_stage.index()]), k_stage.phase());
        if (index() < 0) return;
        const auto next_part = [&] { return pre.part_of(index()) + 1; };
        const int place = index() - (next_part() - 1) * int(pre.part_blocks.by);  // in the part
        if (next_part() < pre.parts && place < pre.helper_blocks) {
            int chunk = next_part() * pre.part_chunks + place * kWarps + int(threadIdx.x) / 32 - 1;
            FA_UNROLL_BY(1)
            for (; chunk < pre.chunks_end(next_part()); chunk += pre.helper_blocks * kWarps) {
                preprocess_chunk<typename Traits::Type, HeadDim>(params, rt::opaque(chunk));
                __syncwarp();
                if (rt::opaque(threadIdx.x) % 32 == 0) rt::red_release_add(pre.rows_ready + next_part(), 1);
            }
        }
        rt::mbarrier_arrive(Traits::smem_addr(&shared.barrier.k_empty[k_stage.index()]));
        __syncwarp();
        if (threadIdx.x % 32 == 0) k_stage.count() = k_stage.count() + 1;
        __syncwarp();
    }
}

// The preprocessing kernel: delta and lse_log2 of all padded rows, zeros in dq_acc, and in dq where a padded tensor holds no row. As
// backward_preprocess of the portable kernels, for rows in units of 16 bytes. A CTA takes 128 rows of a head; its loads are in flight
// together.
template <class T, int HeadDim>
FA_KERNEL void FA_BOUNDS(256, (kIsF16<T> ? 2 : 3)) prepare_sm90(FA_PARAM Sm90BackwardParams params) {
    const BackwardRowParams& call = params.x;
    constexpr int kLanes = HeadDim / 8, kRowsAtOnce = 256 / kLanes;             // of a row; rows
    constexpr int kIterations = int(kPaddedRows) / kRowsAtOnce, kInFlight = 4;  // of that many rows, and how many are under way
    rt::fetch_parameters(params);
    const uint32_t blocks = uint32_t(ceil_div(call.sequences.q.seqlen, kPaddedRows)), index = uint32_t(rt::block()) / blocks;
    const int row0 = int((uint32_t(rt::block()) - index * blocks) * kPaddedRows);
    const int batch = int(index / uint32_t(call.heads_q)), head = int(index % uint32_t(call.heads_q));
    rt::release_successor();
    rt::wait_for_predecessor();
    for (int part = int(rt::block()) * 256 + rt::thread(); part < params.preprocess.parts; part += int(gridDim.x) * 256)
        params.preprocess.rows_ready[part] = 0;
    const Sequence seq = bounded_sequence(call.sequences, batch);
    const int rows = int(seq.q_len) - row0, lane = rt::thread() % kLanes, own = rt::thread() / kLanes, column = 8 * lane;
    if (call.sequences.q.packed() && rows <= 0) return;  // rows of other sequences begin here
    const int64_t to = head * call.padded_rows + padded_row0(call.sequences, seq, batch) + row0;
    // Of each row a lane of its own has the last word.
    const int last = own + lane * kRowsAtOnce;
    float lse = kPosInf, dlse = 0.f, delta = 0.f;
    if (lane < kIterations && last < rows) {
        lse = call.lse[query_index(call.lse_strides, seq, batch, row0 + last, head)];
        if (call.dlse) dlse = call.dlse[query_index(call.dlse_strides, seq, batch, row0 + last, head)];
    }
    const bool narrow = call.o_dtype != FA_F32, there = column < call.dim_v && rows > 0;
    const T* const dout = static_cast<const T*>(call.dout) + query_index(call.dout_strides, seq, batch, row0, head) + column;
    const T* const o_row = static_cast<const T*>(call.o);
    F16Max of_dout;
    const int64_t o0 = query_index(call.o_strides, seq, batch, row0, head) + column;
    const auto at = [&](int iteration) {
        return min(own + iteration * kRowsAtOnce, rows - 1);
    };  // what comes of a row behind the last is not kept
    const auto keep = [&](float sum, int iteration) {
        FA_UNROLL_FOR (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sum += rt::shuffle_xor32(sum, lanes);
        if (lane == iteration) delta = sum;
    };
    FA_UNROLL_FOR (int first = 0; first < kIterations; first += kInFlight) {
        uint4 o[kInFlight] = {}, grad[kInFlight] = {};
        float row_lse[kInFlight] = {};  // a row that sees no key may hold anything
        if (there)
            FA_UNROLL_FOR (int i = 0; i < kInFlight; i++) {
                if (narrow) o[i] = *reinterpret_cast<const uint4*>(o_row + o0 + at(first + i) * call.o_strides.row);
                grad[i] = *reinterpret_cast<const uint4*>(dout + at(first + i) * call.dout_strides.row);
                if constexpr (kIsF16<T>) row_lse[i] = call.lse[query_index(call.lse_strides, seq, batch, row0 + at(first + i), head)];
            }
        if (call.dq_acc) {
            constexpr int kPart = kInFlight * kRowsAtOnce * HeadDim;
            const float zero[4] = {};
            FA_UNROLL_FOR (int i = 0; i < kPart / 1024; i++)
                rt::store4(call.dq_acc + to * HeadDim + first / kInFlight * kPart + i * 1024 + rt::thread() * 4, zero);
        }
        FA_UNROLL_FOR (int i = 0; i < kInFlight; i++) {
            const uint32_t words[] = {o[i].x, o[i].y, o[i].z, o[i].w};
            float wide[8];
            FA_UNROLL_FOR (int e = 0; e < 8; e++) wide[e] = half_of<T>(words[e / 2], e % 2);
            if constexpr (kIsF16<T>) {
                if (fabsf(row_lse[i]) != kPosInf) of_dout.take(grad[i]);
            }
            keep(product<T>(wide, grad[i]), first + i);
        }
    }
    FA_UNROLL_BY(1)
    for (int iteration = narrow ? kIterations : 0; iteration < kIterations; iteration++) {
        const float* const wide = static_cast<const float*>(call.o) + o0 + at(iteration) * call.o_strides.row;
        keep(there ? product<T>(wide, *reinterpret_cast<const uint4*>(dout + at(iteration) * call.dout_strides.row)) : 0.f, iteration);
    }
    if (!call.sequences.q.packed() && call.dq && !call.accumulate && column < call.dim_qk) {
        const int end = int(min_of(call.sequences.q.seqlen - row0, kPaddedRows));
        FA_UNROLL_BY(1)
        for (int row = own; row < end; row += kRowsAtOnce)
            if (row >= rows) {
                T* const dq = static_cast<T*>(call.dq) + query_index(call.dq_strides, seq, batch, row0 + row, head);
                *reinterpret_cast<uint4*>(dq + column) = make_uint4(0, 0, 0, 0);
            }
    }
    if constexpr (kIsF16<T>) raise_ds_bound(params, batch, head, fabsf(lse) == kPosInf ? 0.f : delta - dlse, of_dout);
    if (lane < kIterations) store_row(call, to + last, lse - kProbExponent<T> * kLn2, delta - dlse);
}

}  // namespace gpu
}  // namespace fa
