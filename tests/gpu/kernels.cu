#include "gpu/kernels.h"
#include <cuda_fp16.h>

namespace test::gpu {
namespace {

__device__ uint64_t nanoseconds() {
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__global__ void gate(GateState* state) {
    constexpr uint64_t kLongest = 20'000'000'000u;
    const uint64_t begin = nanoseconds();
    while (!state->open) {
        if (nanoseconds() - begin < kLongest) continue;
        state->expired = 1;
        return;
    }
}

__global__ void fill(uint16_t* x, int64_t count, uint32_t seed) {
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x)
        x[i] = __half_as_ushort(__float2half_rn(pattern_value(i, seed)));
}

__global__ void compare(const unsigned char* a, const unsigned char* b, int64_t bytes, unsigned long long* count) {
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < bytes; i += int64_t(gridDim.x) * blockDim.x)
        if (a[i] != b[i]) atomicAdd(count, 1ull);
}

__global__ void fault(int* nowhere) { *nowhere = 1; }

}  // namespace

void launch_gate(GateState* state, cudaStream_t stream) { gate<<<1, 1, 0, stream>>>(state); }

void fill_pattern(uint16_t* x, int64_t count, uint32_t seed, cudaStream_t stream) { fill<<<1024, 256, 0, stream>>>(x, count, seed); }

void count_differences(const void* a, const void* b, int64_t bytes, unsigned long long* count, cudaStream_t stream) {
    compare<<<256, 256, 0, stream>>>(static_cast<const unsigned char*>(a), static_cast<const unsigned char*>(b), bytes, count);
}

void launch_fault(cudaStream_t stream) { fault<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(uintptr_t(8))); }

}  // namespace test::gpu
