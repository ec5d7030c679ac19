// What the host knows of a compiled kernel of bwd_sm90.h, and the lists of them: a translation unit for each width.
#pragma once
#include "gpu/native.h"

namespace fa {
namespace gpu {

struct HopperBackwardParams;
enum class Way;  // bwd_tiles_sm90.h

struct HopperBackwardKernel {
    int dims;           // of q, k and v, at most
    Way way;
    int threads, shared_bytes;
    void (*kernel)(HopperBackwardParams);
    void (*prepare)(HopperBackwardParams);
    void (*finish)(BackwardParams);
    void (*add_split)(HopperBackwardParams);  // NULL: no block is split
};
struct HopperBackwardKernels {
    const NativeBackward* native;  // its `how` is a HopperBackwardKernel
    int count;
};
template <int dims>
HopperBackwardKernels hopper_backward_kernels();

}  // namespace gpu
}  // namespace fa
