// Kernels of the tests' own.
#pragma once
#include <cuda_runtime.h>
#include <cstdint>

namespace test::gpu {

struct GateState {  // in memory of the host that the device reads
    volatile int open, expired;
};
void launch_gate(GateState* state, cudaStream_t stream);

// x[i] = pattern_value(i) as float16.
void fill_pattern(uint16_t* x, int64_t count, uint32_t seed, cudaStream_t stream);
// A multiple of 1/64 in [-2, 2), so that float16 holds it.
#ifdef __CUDACC__
__host__ __device__
#endif
    inline float pattern_value(int64_t i, uint32_t seed) {
    uint64_t z = (uint64_t(i) + seed) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 32)) * 0xbf58476d1ce4e5b9u;
    return float(int32_t((z >> 40) & 255) - 128) / 64.f;
}

// *count += bytes that differ.
void count_differences(const void* a, const void* b, int64_t bytes, unsigned long long* count, cudaStream_t stream);

// A kernel that writes where no memory is: the device's context is lost.
void launch_fault(cudaStream_t stream);

}  // namespace test::gpu
