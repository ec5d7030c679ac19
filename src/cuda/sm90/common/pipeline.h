// The position in a circular buffer of pipeline stages, as CUTLASS's PipelineState: the Hopper kernels' producers and consumers
// each keep one for every buffer. Also the compile-time flags and types by which variants are told apart.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

// The stage in use, and the phase of its mbarriers.
template <int stages>
struct PipelineState {
    int index = 0;
    uint32_t phase = 0;
    FA_MEMBER void advance() {
        if (++index == stages) index = 0, phase ^= 1;
    }
};

// The first of two types, or the second.
template <bool first, class A, class B>
struct SelectType {
    using Type = A;
};
template <class A, class B>
struct SelectType<false, A, B> {
    using Type = B;
};
template <bool first, class A, class B>
using Select = typename SelectType<first, A, B>::Type;

template <bool first, class A, class B>
FA_DEVICE Select<first, A, B>& first_of(A& a, B& b) {
    if constexpr (first) return a;
    else return b;
}

struct True {
    static constexpr bool value = true;
};
struct False {
    static constexpr bool value = false;
};

}  // namespace gpu
}  // namespace fa
