// The latent kernels of tokens of 8 bits for few rows.
#include "cuda/sm90/latent/tokens/kernel.h"
#include "cuda/sm90/latent/unit.h"

namespace fa {
namespace gpu {

template <class Form, int Rows>
LatentKernelPointer latent_token_kernel() {
    return latent_tokens_sm90<Form, Rows>;
}
template LatentKernelPointer latent_token_kernel<Tokens656, 16>();
template LatentKernelPointer latent_token_kernel<Tokens656, 32>();
template LatentKernelPointer latent_token_kernel<Tokens584, 16>();
template LatentKernelPointer latent_token_kernel<Tokens584, 32>();

}  // namespace gpu
}  // namespace fa
