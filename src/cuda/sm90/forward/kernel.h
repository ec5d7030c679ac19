// The forward kernel for Hopper (sm_90a): f16 and bf16 attention by wgmma and TMA, warp-specialised and persistent, as
// FlashAttention-3's. docs/hopper.md tells how it works, docs/lab/hopper_log.md what was tried.
//
// A CTA has a producer warpgroup and two to four consumer warpgroups. Of the producer, warp 0 schedules tiles and loads q
// (tile_scheduler.h), warp 1 loads k and warp 2 loads v (producer.h, paged_kv.h, listed_kv.h), warp 3 a bias (bias.h); of two tiles that
// are computed at once each has a warp that schedules and one that loads k and v. Each consumer owns 64 rows of the tile and goes through
// its blocks of keys from right to left (mainloop.h): wgmma for S = q kᵀ of one block runs beside softmax of the block before (softmax.h),
// and the warpgroups take turns at issuing wgmma (ping-pong). At the end of a tile it writes o and LSE (epilogue.h), while the first S of
// the next tile is computed.
#pragma once
#include "cuda/sm90/forward/bias.h"
#include "cuda/sm90/forward/listed_kv.h"
#include "cuda/sm90/forward/mainloop.h"
#include "cuda/sm90/forward/transpose_v.h"

namespace fa {
namespace gpu {

template <class T, int HeadDim, int HeadDimV, int BlockN, int Warpgroups, MaskKind mask, bool pair, ScoreMod score_mod, int Stages,
          int QStages, PvProduct pv>
FA_KERNEL void FA_BOUNDS((Sm90ForwardTraits<T, HeadDim, HeadDimV, BlockN, Warpgroups, pair, Stages, QStages, pv, score_mod,
                                            tiles_at_once(mask, Warpgroups)>::kThreads),
                         1) forward_sm90(FA_PARAM Sm90ForwardParams params) {
    using Traits =
        Sm90ForwardTraits<T, HeadDim, HeadDimV, BlockN, Warpgroups, pair, Stages, QStages, pv, score_mod, tiles_at_once(mask, Warpgroups)>;
    rt::fetch_parameters(params);
    if (threadIdx.x == 0)
        for (int place = 0; place < Traits::kTiles; place++) Traits::init_barriers(place);
    if constexpr (Traits::kRowSumByWgmma) write_ones<Traits>();
    if (threadIdx.x == 32) rt::prefetch_tensormap(&params.q), rt::prefetch_tensormap(&params.k), rt::prefetch_tensormap(&params.v);
    if (pair) rt::cluster_sync();
    else __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::warp_uniform(int(threadIdx.x) / 128) == 0) {
        rt::setmaxnreg_dec<Traits::kProducerRegisters>();
        const int warp = rt::warp_uniform(int(threadIdx.x) / 32);
        if (Traits::k8Bit && warp >= 2) {  // first, as ptxas then keeps counters in uniform registers
            if constexpr (Traits::kP8) transpose_v<Traits>(params);
            else if constexpr (Traits::k8Bit) widen_v<Traits>(params);
        } else if constexpr (Traits::kTiles == 2) {
            if (threadIdx.x == 0) schedule_tiles_and_load_q<OfTile<Traits, 0>, mask, pair, QStages>(params);
            else if (threadIdx.x == 32) listed_kv_producer<OfTile<Traits, 0>, Stages, true, true>(params);
            else if (threadIdx.x == 64) schedule_tiles_and_load_q<OfTile<Traits, 1>, mask, pair, QStages>(params);
            else if (threadIdx.x == 96) listed_kv_producer<OfTile<Traits, 1>, Stages, true, true>(params);
            else return;
        } else if (threadIdx.x == 0) schedule_tiles_and_load_q<Traits, mask, pair, QStages>(params);
        else if constexpr (Traits::k8Bit) {
            if (warp == 1 && Traits::kPagedKv && params.page_chunk) paged_kv_8bit_producer<Traits>(params);
            else if (threadIdx.x == 32) kv_8bit_producer<Traits>(params);
            else return;
        } else if constexpr (mask == MaskKind::list) {
            if (threadIdx.x == 32) listed_kv_producer<Traits, Stages, true, false>(params);
            else if (threadIdx.x == 64) listed_kv_producer<Traits, Stages, false, true>(params);
            else return;
        } else if (Traits::kPagedKv && params.page_chunk && warp == 1) paged_kv_producer<Traits, KvOperand::k, Stages>(params);
        else if (Traits::kPagedKv && params.page_chunk && warp == 2) paged_kv_producer<Traits, KvOperand::v, Stages>(params);
        else if (threadIdx.x == 32) kv_producer<Traits, pair, KvOperand::k, Stages>(params);
        else if (threadIdx.x == 64) kv_producer<Traits, pair, KvOperand::v, Stages>(params);
        else if (Traits::kBiasSize > 0 && threadIdx.x == 96) bias_producer<Traits>(params);
        else return;
    } else {
        rt::setmaxnreg_inc<Traits::kConsumerRegisters>();
        consumer_mainloop<Traits, mask, score_mod>(params);
    }
    if (pair) rt::cluster_sync();  // the peer CTA may still multicast to here, or arrive at a barrier
}

}  // namespace gpu
}  // namespace fa
