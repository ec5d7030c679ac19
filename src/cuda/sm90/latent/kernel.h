// The forward kernel for Hopper (sm_90a) of latent attention, in which v is the first 512 dims of k: keys are read once and used
// twice.
//
// An item is 64 rows, (query row, head) pairs of a sequence, and a split of its keys; a CTA takes one item after the other. A producer
// thread (latent/producer.h) loads q and pairs of blocks of 64 keys, from right to left, into shared memory: q 72 KB, each block 72 KB, in
// panels of 64 columns. O, 64 × 512, fills the registers of two consumer warpgroups (latent/consumer.h), each of which makes P of one
// block of a pair while the other multiplies.
#pragma once
#include "cuda/sm90/latent/cluster.h"
#include "cuda/sm90/latent/epilogue.h"
#include "cuda/sm90/latent/row_producer.h"
#include "cuda/sm90/latent/schedule.h"
#include "cuda/sm90/latent/unit.h"

namespace fa {
namespace gpu {

template <class T, int HeadDim, LatentSource kSource = LatentSource::boxes>
FA_KERNEL void FA_BOUNDS((LatentTraits<T, HeadDim, kSource>::kThreads), 1) latent_sm90(FA_PARAM LatentParams params) {
    using Traits = LatentTraits<T, HeadDim, kSource>;
    rt::fetch_parameters(params);
    if (threadIdx.x == 0) Traits::init_barriers();
    if (threadIdx.x == 32) rt::prefetch_tensormap(&params.q), rt::prefetch_tensormap(&params.k);
    __syncthreads();
    if (rt::warp_uniform(int(threadIdx.x) / 128) == 0) {
        rt::setmaxnreg_dec<Traits::kProducerRegisters>();
        const int warp = rt::warp_uniform(int(threadIdx.x) / 32);
        // They wait for the kernel before this one; what consumers read and write comes behind the first item.
        if constexpr (Traits::kByAddress) {
            LatentRowProducer<Traits>(params, warp).run();
        } else {
            if (warp == 1) {
                LatentSchedule<Traits> schedule(params);
                schedule.begin();
                while (schedule.next()) {
                }
            } else if (warp == 0) {
                latent_producer<Traits>(params);
            }
        }
    } else {
        rt::setmaxnreg_inc<Traits::kConsumerRegisters>();
        typename Traits::Shared& shared = Traits::shared();
        const int warpgroup = rt::warp_uniform(int(threadIdx.x) / 128) - 1;
        uint32_t phase = 0, q_phase = 0;
        for (PipelineState<Traits::kItemSlots> slot;; slot.advance()) {
            LatentItemSlot& now = shared.item[slot.index];
            rt::mbarrier_wait(smem_addr(now.ready), slot.phase);
            const int pairs = rt::warp_uniform(now.item.pairs);
            if (pairs == kNoItem) break;
            rt::mbarrier_wait(smem_addr(shared.q_full), q_phase);
            LatentConsumer<Traits> wg(params, now.item, phase);
            if (pairs == 0) wg.release_q();
            else if (warpgroup == 0) wg.right_mainloop(pairs);
            else wg.left_mainloop(pairs);
            if (params.ctas_of_tile > 1) return merge_latent_pair(wg, warpgroup, pairs == 0);
            if (pairs > 0) latent_epilogue(wg, warpgroup);
            __syncwarp();  // all lanes have read the item, and its row sums
            if (wg.lane == 0) rt::mbarrier_arrive(smem_addr(now.consumed));
            phase = wg.phase;
            q_phase ^= 1;
        }
    }
}

template <class T, int HeadDim, LatentSource kSource>
LatentKernelPointer latent_kernel_of() {
    return latent_sm90<T, HeadDim, kSource>;
}

}  // namespace gpu
}  // namespace fa
