// Hopper's backward kernel for heads of more than 128 dims.
#include "cuda/bwd_rows_sm90.h"
#include "cuda/bwd_wide_sm90.h"
#include "cuda/hopper_backward.h"

namespace fa {
namespace gpu {
namespace {

using H = WideBackward;
constexpr HopperBackwardKernel kHow{H::dims, Way::wide, H::threads, H::kSharedBytes, backward_wide_sm90, prepare_sm90<H::dims>,
                                    finish_sm90<H::dims, H::rows>, nullptr};
constexpr NativeBackward kList[] = {{"bwd_sm90_256", H::rows, H::keys, H::dims, &kHow}};

}  // namespace

template <>
HopperBackwardKernels hopper_backward_kernels<256>() { return {kList, 1}; }

}  // namespace gpu
}  // namespace fa
