// How mla_dispatch.cu gets the latent kernels, each of which a unit instantiates: mla_boxes.cu, mla_rows.cu and mla_bytes.cu, none of which takes long.
#pragma once
#include "cuda/sm90/mla_params.h"

namespace fa {
namespace gpu {

using LatentKernelPointer = void (*)(LatentParams);
template <class T, int HeadDim, LatentSource kSource>
LatentKernelPointer latent_kernel_of();
template <class Form, int Rows>
LatentKernelPointer latent_token_kernel();

}  // namespace gpu
}  // namespace fa
