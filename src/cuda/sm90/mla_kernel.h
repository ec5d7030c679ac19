// The forward kernel for Hopper (sm_90a) of latent attention, in which v is the first 512 dims of k: keys are read once and used
// twice.
//
// A CTA takes 64 rows, (query row, head) pairs of a sequence, and a split of its keys. A producer thread (mla_producer.h) loads q and
// pairs of blocks of 64 keys, from right to left, into shared memory: q 72 KB, each block 72 KB, in panels of 64 columns. O, 64 × 512,
// fills the registers of two consumer warpgroups (mla_consumer.h), each of which makes P of one block of a pair while the other
// multiplies.
#pragma once
#include "cuda/sm90/mla_epilogue.h"
#include "cuda/sm90/mla_producer.h"

namespace fa {
namespace gpu {

// What the CTA is to do. False: nothing, the sequence has fewer splits.
template <class Traits>
FA_DEVICE bool begin_latent_tile(const LatentParams& a) {
    const LatentCall& x = a.x;
    const int split = a.split();
    const Sequence seq = bounded_sequence(x.sequences, a.batch());
    const int keys = int(seq.k_len), size = split_size_of(x, keys), begin = split * size;
    if (split > 0 && begin >= keys) return false;
    if (threadIdx.x == 0) {
        const int off = int(clamp(seq.off, -(int64_t(1) << 30), int64_t(1) << 30)), end = min(begin + size, keys);
        // Pairs of blocks that no row of the tile sees are left out; a split without any other has one pair, all of it masked.
        const int group = int(x.group), first_row = 64 * a.tile() / group, last_row = min(64 * a.tile() + 63, int(x.rows) - 1) / group;
        const int seen_end = x.causal ? min(end, off + last_row + 1) : end;
        typename Traits::Shared& s = Traits::shared();
        s.source = make_int4(int(seq.k_begin), int(seq.kv_index), off + first_row, off);
        s.range = make_int4(begin, end, max((seen_end - begin + 2 * Traits::kBlock - 1) / (2 * Traits::kBlock), 1), split);
    }
    return true;
}

template <class T, int HeadDim>
FA_KERNEL void FA_BOUNDS((LatentTraits<T, HeadDim>::kThreads), 1) latent_sm90(FA_PARAM LatentParams a) {
    using Traits = LatentTraits<T, HeadDim>;
    rt::fetch_parameters(a);
    if (threadIdx.x == 0) Traits::init_barriers();
    if (threadIdx.x == 32) rt::prefetch_tensormap(&a.q), rt::prefetch_tensormap(&a.k);
    rt::wait_for_predecessor();
    rt::release_successor();  // not before: merge_splits reads lengths before it waits
    if (!begin_latent_tile<Traits>(a)) return;
    __syncthreads();
    if (rt::warp_uniform(int(threadIdx.x) / 128) == 0) {
        rt::setmaxnreg_dec<Traits::kProducerRegisters>();
        if (threadIdx.x == 0) latent_producer<Traits>(a);
    } else {
        rt::setmaxnreg_inc<Traits::kConsumerRegisters>();
        LatentConsumer<Traits> wg(a);
        const int pairs = rt::warp_uniform(wg.s.range.z), warpgroup = rt::warp_uniform(int(threadIdx.x) / 128) - 1;
        rt::mbarrier_wait(smem_addr(wg.s.q_full), 0);
        if (warpgroup == 0) wg.right_mainloop(pairs);
        else wg.left_mainloop(pairs);
        latent_epilogue(wg, warpgroup);
    }
}

}  // namespace gpu
}  // namespace fa
