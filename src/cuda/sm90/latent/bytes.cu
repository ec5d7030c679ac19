// The latent kernels whose keys have 8 bits: 512 dims and a tail that v has not, or 448 and one that it has.
#include "cuda/sm90/latent/kernel.h"

namespace fa {
namespace gpu {

template LatentKernelPointer latent_kernel_of<Bf16, 576, LatentSource::bytes>();
template LatentKernelPointer latent_kernel_of<Bf16, 512, LatentSource::bytes>();

}  // namespace gpu
}  // namespace fa
