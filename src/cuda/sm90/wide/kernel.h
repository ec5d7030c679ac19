// The forward kernel for Hopper (sm_90a) of wide heads: 257 to 512 dims of q and k, of v, or of both.
//
// A CTA takes 64 rows, (query row, head) pairs of one kv head, and a split of its keys. Two producer threads (wide/producer.h) load q, k
// and v by TMA; q, a block of 64 keys and one of values take 64 KB each. O, 64 × 512, fills the registers of two consumer warpgroups
// (wide/consumer.h), which make P of blocks in turn. A block brings 128 KB for 64 rows, so the CTAs of a pair, a cluster of two
// neighbouring tiles, share it.
#pragma once
#include "cuda/sm90/wide/epilogue.h"
#include "cuda/sm90/wide/producer.h"

namespace fa {
namespace gpu {

// What the CTA is to do. False: nothing, the sequence has fewer rows or splits; then so it is for the other of a pair.
template <class Traits>
FA_DEVICE bool begin_wide_tile(const WideParams& params) {
    constexpr int block = Traits::kBlock;
    const WideCall& call = params.x;
    const WideTile tile = wide_tile<Traits>(params);
    const Sequence seq = bounded_sequence(call.sequences, tile.batch);
    const int rows = block / params.head_group, first_of_pair = tile.row0 - (Traits::kPair ? rt::cluster_rank() * rows : 0);
    const int q_len = int(seq.q_len), k_len = int(seq.k_len), off = int(clamp(seq.off, -(1 << 30), 1 << 30));
    const int size = split_size_of(call, k_len), begin = tile.split * size;
    if ((tile.split > 0 && begin >= k_len) || first_of_pair >= q_len) return false;
    if (threadIdx.x == 0) {
        const int end = min(begin + size, k_len);
        const auto seen = [&](int row) { return key_range_of<MaskKind::band>(call.window, max(min(row, q_len - 1), 0), off, k_len); };
        // Blocks that no row of the pair's tiles sees are left out; where all are, there is one, all of it masked.
        const int blocks = max((end - begin + block - 1) / block, 1);
        const int left = max(seen(first_of_pair).begin - begin, 0) / block,
                  right = (min(seen(first_of_pair + Traits::kClusterSize * rows - 1).end, end) - begin + block - 1) / block;
        const int first = min(left, blocks - 1), last = max(min(right, blocks), first + 1);
        typename Traits::Shared& shared = Traits::shared();
        shared.tile = tile;
        shared.source = make_int4(int(seq.k_begin), call.sequences.packed_k() ? 0 : int(seq.kv_index), tile.head0 / int(call.group), k_len);
        shared.range = make_int4(begin, end, last - first, begin + (last - 1) * block);
        shared.all_see = make_int2(seen(tile.row0 + rows - 1).begin, seen(tile.row0).end);
        shared.q_begin = int(seq.q_begin), shared.q_len = q_len, shared.off = off;
    }
    return true;
}

template <class T, bool pair>
FA_KERNEL void FA_BOUNDS((WideTraits<T, pair>::kThreads), 1) wide_sm90(FA_PARAM WideParams params) {
    using Traits = WideTraits<T, pair>;
    rt::fetch_parameters(params);
    if (threadIdx.x == 0) Traits::init_barriers();
    if (threadIdx.x == 32) rt::prefetch_tensormap(&params.q), rt::prefetch_tensormap(&params.k), rt::prefetch_tensormap(&params.v);
    rt::wait_for_predecessor();
    rt::release_successor();  // not before: merge_splits reads lengths before it waits
    if (!begin_wide_tile<Traits>(params)) return;
    if (pair) rt::cluster_sync();
    else __syncthreads();
    const int warp = rt::warp_uniform(int(threadIdx.x) / 32);
    if (warp < 4) {
        rt::setmaxnreg_dec<Traits::kProducerRegisters>();
        if (threadIdx.x == 0) wide_q_and_k_producer<Traits>(params);
        else if (threadIdx.x == 32) wide_v_producer<Traits>(params);
        else return;
    } else {
        rt::setmaxnreg_inc<Traits::kConsumerRegisters>();
        WideConsumer<Traits> wg(params);
        rt::mbarrier_wait(smem_addr(wg.s.q_full), 0);
        wg.mainloop();
        wide_epilogue(wg);
    }
    if (pair) rt::cluster_sync();  // the peer CTA may still multicast to here, or arrive at a barrier
}

}  // namespace gpu
}  // namespace fa
