// What both Hopper kernels count their slots with, and tell compile-time variants of a step by.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

// A ring's slot in use, and the parity of its phase.
template <int slots>
struct Ring {
    int i = 0;
    uint32_t parity = 0;
    FA_MEMBER void next() {
        if (++i == slots) i = 0, parity ^= 1;
    }
};

struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };

}  // namespace gpu
}  // namespace fa
