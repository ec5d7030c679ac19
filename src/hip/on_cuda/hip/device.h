// hip/device.h for NVIDIA GPUs, where CUDA has all of it but the names. Stands before the real header when nvcc compiles the HIP module.
#pragma once
#include <stdint.h>

namespace fa {
namespace rt {
namespace device {

static __device__ __forceinline__ unsigned thread() { return threadIdx.x; }
static __device__ __forceinline__ unsigned threads() { return blockDim.x; }
static __device__ __forceinline__ int64_t block() { return int64_t(blockIdx.x) * gridDim.y + blockIdx.y; }
static __device__ __forceinline__ void barrier() { __syncthreads(); }
static __device__ __forceinline__ void atomic_or(uint32_t* to, uint32_t bits) { atomicOr(to, bits); }
// HIP's shuffle names no lanes: all of a wave take part.
static __device__ __forceinline__ float shuffle_xor(float x, int mask) { return __shfl_xor_sync(~0u, x, mask); }

}  // namespace device
}  // namespace rt
}  // namespace fa
