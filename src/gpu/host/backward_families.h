// The families of gradients' kernels, in the order in which a call asks them, as families.h has those of the forward.
#pragma once
#include "gpu/host/portable_backward.h"

namespace fa {
namespace gpu {

extern const BackwardFamily sm90_backward;  // src/cuda/sm90/backward

namespace {

constexpr int kMostBackwardFamilies = 3;
struct BackwardFamilies {
    const BackwardFamily* list[kMostBackwardFamilies];  // NULL behind the last
};
BackwardFamilies backward_families() {
    if constexpr (rt::kArchKernels) return {{&sm90_backward, &kMmaBackwardFamily, &kSimtBackwardFamily}};
    return {{&kMmaBackwardFamily, &kSimtBackwardFamily}};
}

}  // namespace
}  // namespace gpu
}  // namespace fa
