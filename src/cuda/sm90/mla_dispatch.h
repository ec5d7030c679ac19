// The host's part of the latent kernel, behind the functions of gpu/arch_kernel.h: dispatch.cu hands calls on.
#pragma once
#include "cuda/rt_cuda.h"
#include "gpu/arch_kernel.h"

namespace fa {
namespace gpu {

bool is_latent_kernel(const ArchKernel&);
// NULL: it does not take the call.
const ArchKernel* latent_kernel_for(const rt::Device&, const Problem&);
uint64_t latent_kernel_bytes(const rt::Device&, const Problem&);
rt::Status prepare_latent_kernels(const rt::Device&);
rt::Status launch_latent_kernel(const ArchKernel&, const rt::Device&, const Problem&, const ForwardParams&, void* memory,
                                rt::Stream);

}  // namespace gpu
}  // namespace fa
