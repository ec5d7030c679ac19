// The latent kernels whose keys the copy engine brings.
#include "cuda/sm90/latent/kernel.h"

namespace fa {
namespace gpu {

template LatentKernelPointer latent_kernel_of<F16, 576, LatentSource::boxes>();
template LatentKernelPointer latent_kernel_of<Bf16, 576, LatentSource::boxes>();
template LatentKernelPointer latent_kernel_of<F16, 512, LatentSource::boxes>();
template LatentKernelPointer latent_kernel_of<Bf16, 512, LatentSource::boxes>();

}  // namespace gpu
}  // namespace fa
