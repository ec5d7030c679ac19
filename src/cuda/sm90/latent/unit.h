// How latent/dispatch.cu gets the latent kernels, each of which a unit instantiates: latent/boxes.cu, latent/rows.cu and latent/bytes.cu,
// none of which takes long.
#pragma once
#include "cuda/sm90/latent/params.h"

namespace fa {
namespace gpu {

using LatentKernelPointer = void (*)(LatentParams);
template <class T, int HeadDim, LatentSource kSource>
LatentKernelPointer latent_kernel_of();
template <class Form, int Rows>
LatentKernelPointer latent_token_kernel();

}  // namespace gpu
}  // namespace fa
