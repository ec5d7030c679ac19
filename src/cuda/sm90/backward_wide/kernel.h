// The backward kernel for Hopper (sm_90a), heads of 136 to 256 dims. backward/kernel.h has what is common to both;
// docs/hopper.md tells why this one differs.
//
// dk and dv of 128 keys would fill all registers of a multiprocessor. So a pair of CTAs shares 128 keys, 64 each: both read the
// same rows, of which each loads one half for both, and they exchange dS, so that dq is added to memory once for 128 keys: each CTA
// sums half of the dims.
//
// Within a CTA one warpgroup computes P and dv, the other dS and dk, both keys by rows: Sᵀ = K Qᵀ becomes the left operand of dv +=
// Pᵀ dO, dPᵀ = V dOᵀ that of dk += dSᵀ Q. P passes from a warp to the one that has the same keys through shared memory, in f32 and
// in the order of accumulators. Each warpgroup has 64 dims of dqᵀ = Kᵀ dSᵀ.
#pragma once
#include "cuda/sm90/backward_wide/mainloop.h"
#include "cuda/sm90/backward_wide/producer.h"

namespace fa {
namespace gpu {

template <class T>
FA_KERNEL void FA_BOUNDS(384, 1) backward_wide_sm90(FA_PARAM Sm90BackwardParams params) {
    using Traits = Sm90WideBackwardTraits<T>;
    rt::fetch_parameters(params);
    const int rank = rt::warp_uniform(rt::cluster_rank());
    if (threadIdx.x == 0) {
        Traits::init_barriers();
        fill_key_block_info<Traits>(params, int(blockIdx.x) / 2, 0, rank, Traits::shared().block);
    }
    if (threadIdx.x == 32)
        rt::prefetch_tensormap(&params.q), rt::prefetch_tensormap(&params.k), rt::prefetch_tensormap(&params.v),
            rt::prefetch_tensormap(&params.dout);
    rt::cluster_sync();
    rt::release_successor();
    rt::wait_for_predecessor();
    const int warpgroup = rt::warp_uniform(int(threadIdx.x) / 128);
    if (warpgroup == 0) {
        rt::setmaxnreg_dec<24>();
        const int warp = rt::warp_uniform(int(threadIdx.x) / 32);
        if (warp == 1) find_row_ranges<Traits>();
        else if (threadIdx.x == 0) wide_producer<Traits>(params, rank);
        else if (params.dq_semaphore && warp >= 2 && threadIdx.x % 32 == 0) wide_reduce_dq_in_order<Traits>(params, rank, warp - 2);
        else return;
    } else {
        wait_for_kv<Traits>();
        if (warpgroup == 1) {
            rt::setmaxnreg_inc<248>();
            dv_mainloop<Traits>(params, rank);
        } else {
            rt::setmaxnreg_inc<232>();
            dk_mainloop<Traits>(params, rank);
        }
    }
    rt::cluster_sync();  // the other block may still write here
}

}  // namespace gpu
}  // namespace fa
