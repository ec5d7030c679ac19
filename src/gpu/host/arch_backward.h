// What a backend with kernels of an architecture's own adds for the backward.
#pragma once
#include "gpu/host/family.h"
#include "gpu/common/backward_params.h"

namespace fa {
namespace gpu {

// Kernels for dq, dk and dv, behind backward_preprocess. Which of the three are wanted, and where they lie, is known only when the call
// is made; dq_acc is there when dq_acc_columns is not 0.
struct ArchBackwardKernel {
    const char* name;
    int rows, keys;
    int64_t dq_acc_columns;  // of dq_acc
    bool own_lse;            // it leaves an lse_log2 of its own units, which the sums of dbias and dsinks cannot read
    const void* impl;
};
// What they make of a call, from device and descriptor alone, of which a launch takes it as FamilyPlan is taken.
struct ArchBackwardPlan {
    const ArchBackwardKernel* kernel;  // NULL: none takes the call
    int64_t blocks;                    // of its launch
    uint64_t workspace;                // bytes of `memory` below, which may hold anything
    FamilyParams params;
};
ArchBackwardPlan plan_arch_backward(const rt::Device&, const Problem&);
// Does it take tensors that lie so?
bool arch_backward_reads(const Problem&, const fa_backward_args_t&);
rt::Status launch_arch_backward(const ArchBackwardPlan&, const Problem&, const fa_forward_args_t&, const BackwardRowParams&, void* memory,
                                rt::Stream);

}  // namespace gpu
}  // namespace fa
