// The device language of HIP on the compiler's builtins alone: no header of AMD's, no device libraries. The attributes have HIP's own
// names, which the text of src/spec uses for any compiler of device code.
#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <initializer_list>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))

// The functions of the C library that device text calls, or may, under their own names: these are chosen on the device, the library's on
// the host. Device text of the same file may call them before a namespace of ours is open, so they stand outside of one.
#define FA_BUILTIN static __device__ __forceinline__
FA_BUILTIN float fabsf(float x) { return __builtin_fabsf(x); }
FA_BUILTIN float fmaf(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
FA_BUILTIN float fmaxf(float x, float y) { return __builtin_fmaxf(x, y); }
FA_BUILTIN float fminf(float x, float y) { return __builtin_fminf(x, y); }
FA_BUILTIN float floorf(float x) { return __builtin_floorf(x); }
FA_BUILTIN float ceilf(float x) { return __builtin_ceilf(x); }
FA_BUILTIN float truncf(float x) { return __builtin_truncf(x); }
FA_BUILTIN float rintf(float x) { return __builtin_rintf(x); }
FA_BUILTIN float roundf(float x) { return __builtin_roundf(x); }
FA_BUILTIN float copysignf(float x, float y) { return __builtin_copysignf(x, y); }
FA_BUILTIN float exp2f(float x) { return __builtin_exp2f(x); }
FA_BUILTIN float log2f(float x) { return __builtin_log2f(x); }
FA_BUILTIN void* memcpy(void* to, const void* from, size_t bytes) { return __builtin_memcpy(to, from, bytes); }
FA_BUILTIN void* memset(void* to, int byte, size_t bytes) { return __builtin_memset(to, byte, bytes); }
FA_BUILTIN float tanhf(float x);  // below
#undef FA_BUILTIN

#include "hip/tanh.h"
static __device__ __forceinline__ float tanhf(float x) { return fa::tanh_by_exp2(x); }

namespace fa {
namespace rt {
namespace device {

#ifdef __GFX9__
constexpr int kWave = 64;
#else
constexpr int kWave = 32;
#endif

static __device__ __forceinline__ unsigned thread() { return __builtin_amdgcn_workitem_id_x(); }
static __device__ __forceinline__ unsigned threads() { return __builtin_amdgcn_workgroup_size_x(); }
// Neighbouring blocks lie in a column of the grid: see launch_columns of rt_hip.h.
static __device__ __forceinline__ int64_t block() {
    return int64_t(__builtin_amdgcn_workgroup_id_x()) * __builtin_amdgcn_grid_size_y() + __builtin_amdgcn_workgroup_id_y();
}
static __device__ __forceinline__ void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
static __device__ __forceinline__ void atomic_or(uint32_t* to, uint32_t bits) {
    __hip_atomic_fetch_or(to, bits, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
static __device__ __forceinline__ int lane() {
    const int low = int(__builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return kWave == 32 ? low : int(__builtin_amdgcn_mbcnt_hi(~0u, unsigned(low)));
}
// What lane ^ mask of the wave has.
static __device__ __forceinline__ float shuffle_xor(float x, int mask) {
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane() ^ mask) * 4, __builtin_bit_cast(int, x)));
}
static __device__ __forceinline__ bool any(bool x) {
#ifdef __GFX9__
    return __builtin_amdgcn_ballot_w64(x) != 0;
#else
    return __builtin_amdgcn_ballot_w32(x) != 0;
#endif
}

}  // namespace device
}  // namespace rt
}  // namespace fa

// What the compiler makes of a kernel on the host asks the runtime to launch it. Nobody calls that: launches go by the module's functions.
struct dim3 {
    unsigned x, y, z;
};
extern "C" __attribute__((visibility("hidden"))) int hipLaunchKernel(const void*, dim3, dim3, void**, size_t, void*) { return 1; }
extern "C" __attribute__((visibility("hidden"))) int __hipPopCallConfiguration(dim3*, dim3*, size_t*, void**) { return 1; }
