// The CUDA driver's own functions (cu…), looked up by name at run time. The module is not linked with libcuda, so it can be loaded,
// and can say what is missing, where no driver is installed.
#pragma once
#include "cuda/rt_cuda.h"

namespace fa {
namespace rt {

// NULL: the driver has none of that name, as CUDA `version` knows it.
template <class Function>
Function driver_function(const char* name, unsigned version) {
    cudaDriverEntryPointQueryResult result;
    void* f = nullptr;
    const Status s = cudaGetDriverEntryPointByVersion(name, &f, version, cudaEnableDefault, &result);
    return s == kSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Function>(f) : nullptr;
}

}  // namespace rt
}  // namespace fa
