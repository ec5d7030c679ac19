// The host's part of the kernel of wide heads, behind the functions of gpu/host/arch_kernel.h: dispatch.cu hands calls on.
#pragma once
#include "cuda/rt_cuda.h"
#include "gpu/host/arch_kernel.h"

namespace fa {
namespace gpu {

bool is_wide_kernel(const ArchKernel&);
// Without a kernel, where none takes the call.
ArchPlan plan_wide_kernel(const rt::Device&, const Problem&);
rt::Status launch_wide_kernel(const ArchPlan&, const Problem&, const fa_forward_args_t&, char* memory, rt::Stream);

}  // namespace gpu
}  // namespace fa
