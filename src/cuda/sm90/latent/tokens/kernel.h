// The latent kernel of tokens: decoding for Hopper (sm_90a) over a latent cache of 8 bits, for so few rows that memory should be the bound.
// Both products are transposed, so that keys and columns are the 64 rows of wgmma's left side, which comes from registers: there bytes
// become f16, once for each product, and nothing that is widened is written to shared memory.
//
//     warps 0 … 3      S = k qᵀ of 64 keys, P (latent/tokens/scores.h)
//     warps 4 … 11     O = vᵀ P, 256 columns for each four (latent/tokens/columns.h)
//     warps 12 … 15    tokens as they are to shared memory (latent/tokens/producer.h)
//
// A CTA takes one item after the other: Rows rows of a sequence, and a split of its keys.
#pragma once
#include "cuda/sm90/latent/tokens/columns.h"
#include "cuda/sm90/latent/tokens/producer.h"
#include "cuda/sm90/latent/tokens/scores.h"

namespace fa {
namespace gpu {

template <class Form, int Rows>
FA_KERNEL void FA_BOUNDS((TokenTraits<Form, Rows>::kThreads), 1) latent_tokens_sm90(FA_PARAM LatentParams params) {
    using Traits = TokenTraits<Form, Rows>;
    rt::fetch_parameters(params);
    if (threadIdx.x == 0) Traits::init_barriers();
    __syncthreads();
    const int warpgroup = rt::warp_uniform(int(threadIdx.x) / 128);
    if (warpgroup > Traits::kColumnGroups) {
        rt::setmaxnreg_dec<Traits::kProducerRegisters>();
        return TokenProducer<Traits>(params, rt::warp_uniform(int(threadIdx.x) / 32 % 4)).run();
    }
    if (warpgroup == 0) {
        rt::setmaxnreg_inc<Traits::kScoreRegisters>();
        return TokenScores<Traits>(params).run();
    }
    rt::setmaxnreg_inc<Traits::kColumnRegisters>();
    if (warpgroup == 1) TokenColumns<Traits, 0>(params).run();
    else TokenColumns<Traits, 1>(params).run();
}

}  // namespace gpu
}  // namespace fa
