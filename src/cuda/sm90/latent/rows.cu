// The latent kernels that find the address of each row of k.
#include "cuda/sm90/latent/kernel.h"

namespace fa {
namespace gpu {

template LatentKernelPointer latent_kernel_of<F16, 576, LatentSource::rows>();
template LatentKernelPointer latent_kernel_of<Bf16, 576, LatentSource::rows>();
template LatentKernelPointer latent_kernel_of<F16, 512, LatentSource::rows>();
template LatentKernelPointer latent_kernel_of<Bf16, 512, LatentSource::rows>();

}  // namespace gpu
}  // namespace fa
