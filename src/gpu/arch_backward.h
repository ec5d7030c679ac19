// The hook of arch_kernel.h for the backward.
#pragma once
#include "gpu/bwd_params.h"

namespace fa {
namespace gpu {

// Kernels for dq, dk and dv, behind backward_preprocess. Which of the three are wanted, and where they
// lie, is known only when the call is made; dq_acc is there when dq_acc_columns is not 0.
struct ArchBackwardKernel {
    const char* name;
    int rows, keys;
    int64_t dq_acc_columns;  // of dq_acc
    const void* impl;
};
const ArchBackwardKernel* arch_backward_for(const rt::Device&, const Problem&);
// Does it take tensors that lie so?
bool arch_backward_reads(const Problem&, const fa_backward_args_t&);
// Of `memory` below, which may hold anything.
uint64_t arch_backward_bytes(const ArchBackwardKernel&, const rt::Device&, const Problem&);
rt::Status prepare_arch_backward(const rt::Device&);
rt::Status launch_arch_backward(const ArchBackwardKernel&, const rt::Device&, const Problem&, const BackwardParams&, void* memory,
                                rt::Stream);

}  // namespace gpu
}  // namespace fa
