// The bias operand as kernels for sm_90a read it, forward and backward. bias_operand.h makes it of a call.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace gpu {

// As it came or a copy of it (copy_bias.h), of q's type or, in the forward, f32.
struct Sm90Bias {
    int sequences, heads;  // that have one of their own; sequences and heads beyond count modulo these
    bool one_row;          // which all rows share: it is there for those of a tile
    bool heads_first;      // forward: do tiles of all sequences, which share it, come before the next head's?
    const float* scale;    // of a head; NULL: 1
    uint64_t keep;         // L2 cache policy
};

}  // namespace gpu
}  // namespace fa
