// The backward kernel for Hopper (sm_90a), heads of up to 128 dims: f16 and bf16 by wgmma and TMA, warp-specialised.
// docs/hopper.md tells how it works, docs/lab/hopper_log.md what was tried.
//
// A CTA owns 128 keys of one kv head. Two consumer warpgroups own 64 of them each, with their dk and dv in registers, and go
// through the blocks of query rows that see any of them, head after head of the group (backward/mainloop.h); one thread loads q, dout,
// LSE and delta (backward/producer.h). The products are transposed, keys by rows: Sᵀ = K Qᵀ and dPᵀ = V dOᵀ leave Pᵀ and dSᵀ in the
// registers from which dV += Pᵀ dO and dK += dSᵀ Q take them. Only dS goes through shared memory, for dQᵀ = Kᵀ dSᵀ needs all keys
// of the block; dQ is added to f32 sums in memory, in the order of accumulators, by a bulk reduction of each warp. finish_sm90
// (backward/postprocess.h) converts them to dq.
//
// With a bias (backward_bias_sm90) S begins at its tile, which another thread loads (backward/bias_tile.h).
//
// In a step the order is dP, P, dV, dS while dV is in flight, dQ of the step before, dK and the next S, dQ to memory while these
// are in flight. Where the CTAs are persistent all this runs on from one block of keys to the next, but for the next S, which waits
// for dK.
#pragma once
#include "cuda/sm90/backward/mainloop.h"
#include "cuda/sm90/backward/preprocess.h"

namespace fa {
namespace gpu {

template <class T, int HeadDim, int BlockM, BwdVariant variant, class Traits = Sm90BackwardTraits<T, HeadDim, BlockM, variant>>
FA_DEVICE void backward_block(const typename Traits::Params& params) {
    static_assert(Traits::kSharedBytes <= kMaxSharedBytes, "");
    rt::fetch_parameters(params);
    if (threadIdx.x == 0) Traits::init_barriers();
    if (threadIdx.x == 32) fill_key_block<Traits>(params, int(blockIdx.x), Traits::shared().block[0]);
    if (threadIdx.x == 64)
        rt::prefetch_tensormap(&params.q), rt::prefetch_tensormap(&params.k), rt::prefetch_tensormap(&params.v),
            rt::prefetch_tensormap(&params.dout);
    if constexpr (Traits::kBias)
        if (threadIdx.x == 96) rt::prefetch_tensormap(&params.bias_map);
    __syncthreads();
    rt::release_successor();
    rt::wait_for_predecessor();
    if (rt::warp_uniform(int(threadIdx.x) / 128) == 0) {
        rt::setmaxnreg_dec<24>();
        if (threadIdx.x == 0) backward_producer<Traits, BlockM>(params);
        else if (!Traits::kGeneral && threadIdx.x >= 32) return preprocess_next_part<Traits, HeadDim>(params);
        else if (Traits::kGeneral && threadIdx.x == 32 && params.dq_semaphore)
            reduce_dq_in_order<Traits, BlockM>(params, Traits::shared().block[0],
                                               {Traits::dq_tile(), Traits::shared().barrier.dq_full, Traits::shared().barrier.dq_empty, 0});
        else if (Traits::kBias && threadIdx.x == 64) bias_tile_producer<Traits>(params, Traits::shared().block[0]);
        else return;
    } else {
        rt::setmaxnreg_inc<240>();
        backward_mainloop<T, HeadDim, BlockM, variant>(params);
    }
}

template <class T, int HeadDim, int BlockM, BwdVariant variant>
FA_KERNEL void FA_BOUNDS((Sm90BackwardTraits<T, HeadDim, BlockM, variant>::kThreads), 1) backward_sm90(FA_PARAM Sm90BackwardParams params) {
    backward_block<T, HeadDim, BlockM, variant>(params);
}
template <class T, int HeadDim, int BlockM>
FA_KERNEL void FA_BOUNDS((Sm90BackwardTraits<T, HeadDim, BlockM, BwdVariant::bias>::kThreads), 1)
    backward_bias_sm90(FA_PARAM Sm90BackwardBiasParams params) {
    backward_block<T, HeadDim, BlockM, BwdVariant::bias>(params);
}

}  // namespace gpu
}  // namespace fa
