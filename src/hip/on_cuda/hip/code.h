// The kernels on the current device: CUDA finds them by itself.
#pragma once
#include <hip/hip_runtime.h>

namespace fa {
namespace rt {

static inline hipError_t find_kernel(const void* kernel, hipFunction_t* function) {
    cudaFuncAttributes a;
    hipError_t s = cudaFuncGetAttributes(&a, kernel);
    if (s == hipSuccess) s = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedPerBlock);
    *function = kernel;
    return s;
}

}  // namespace rt
}  // namespace fa
