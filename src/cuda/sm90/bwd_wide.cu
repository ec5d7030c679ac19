// The backward kernel for sm_90a of heads of 136 to 256 dims.
#include "cuda/sm90/bwd_kernel_list.h"
#include "cuda/sm90/bwd_postprocess.h"
#include "cuda/sm90/bwd_preprocess.h"
#include "cuda/sm90/bwd_wide_kernel.h"

namespace fa {
namespace gpu {
namespace {

using Traits = Sm90WideBackwardTraits;
constexpr Sm90BackwardKernel kKernel{
    .max_dim = Traits::kHeadDim,
    .variant = BwdVariant::wide,
    .threads = Traits::kThreads,
    .shared_bytes = Traits::kSharedBytes,
    .kernel = backward_wide_sm90,
    .prepare = prepare_sm90<Traits::kHeadDim>,
    .finish = finish_sm90<Traits::kHeadDim, Traits::kBlockM>,
    .add_split = nullptr,
};
constexpr ArchBackwardKernel kList[] = {{"bwd_sm90_256", Traits::kBlockM, Traits::kBlockN, Traits::kHeadDim, &kKernel}};

}  // namespace

template <>
Sm90BackwardKernelList sm90_backward_kernels<256>() {
    return {kList, 1};
}

}  // namespace gpu
}  // namespace fa
