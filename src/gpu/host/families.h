// The forward's families, in the order in which a call asks them: first those of an architecture's own kernels, which take only what they
// are made for, then those of every device. A new family is a line here, and its room.
#pragma once
#include "gpu/host/portable_forward.h"

namespace fa {
namespace gpu {

extern const ForwardFamily sm90_latent_forward, sm90_wide_forward, sm90_forward;  // src/cuda/sm90, a room each

namespace {

constexpr int kMostFamilies = 5;
// What fa_explain says: of the family that has the call, and of each before it a clause with its name.
constexpr uint64_t kMostOwnWords = 384, kMostName = 32;
static_assert(kMostOwnWords + (kMostFamilies - 1) * (sizeof(Refusal) + kMostName) <= kMaxExplanation, "an explanation would be cut off");
struct ForwardFamilies {
    const ForwardFamily* list[kMostFamilies];  // NULL behind the last
};
ForwardFamilies forward_families() {
    if constexpr (rt::kArchKernels)
        return {{&sm90_latent_forward, &sm90_wide_forward, &sm90_forward, &kMmaForwardFamily, &kSimtForwardFamily}};
    return {{&kMmaForwardFamily, &kSimtForwardFamily}};
}

}  // namespace
}  // namespace gpu
}  // namespace fa
