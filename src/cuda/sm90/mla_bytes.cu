// The latent kernels whose keys have 8 bits: 512 dims and a tail that v has not, or 448 and one that it has.
#include "cuda/sm90/mla_kernel.h"
#include "cuda/sm90/mla_unit.h"

namespace fa {
namespace gpu {

template <class T, int HeadDim, LatentSource kSource>
LatentKernelPointer latent_kernel_of() {
    return latent_sm90<T, HeadDim, kSource>;
}
template LatentKernelPointer latent_kernel_of<Bf16, 576, LatentSource::bytes>();
template LatentKernelPointer latent_kernel_of<Bf16, 512, LatentSource::bytes>();

}  // namespace gpu
}  // namespace fa
