// hip/runtime.h for NVIDIA GPUs: the part of HIP that the HIP backend calls, spelled in CUDA, so that its sources run there as they are.
// Written from the two public interfaces' manuals. The device shows what AMD's have: 64 KB of shared memory and no more.
#pragma once
#include <cuda_runtime.h>
#include <stdio.h>

namespace fa {
namespace rt {

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipFunction_t = const void*;
constexpr hipError_t hipSuccess = cudaSuccess, hipErrorOutOfMemory = cudaErrorMemoryAllocation, hipErrorNoDevice = cudaErrorNoDevice,
                     hipErrorInvalidValue = cudaErrorInvalidValue, hipErrorStreamCaptureImplicit = cudaErrorStreamCaptureImplicit,
                     hipErrorInvalidConfiguration = cudaErrorInvalidConfiguration;
constexpr int hipStreamCaptureStatusNone = cudaStreamCaptureStatusNone;
constexpr auto hipMemcpyDefault = cudaMemcpyDefault;
constexpr auto hipDeviceAttributePageableMemoryAccess = cudaDevAttrPageableMemoryAccess;

constexpr unsigned hipEventDisableTiming = cudaEventDisableTiming;

constexpr int kSharedPerBlock = 64 << 10;

static inline hipError_t hipGetDeviceCount(int* n) { return cudaGetDeviceCount(n); }
static inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
static inline hipError_t hipSetDevice(int device) { return cudaSetDevice(device); }
static inline hipError_t hipGetLastError() { return cudaGetLastError(); }
static inline const char* hipGetErrorString(hipError_t s) { return cudaGetErrorString(s); }
struct DeviceProperties {
    char name[256], arch[256];
    uint64_t memory, shared_per_block;
    int multiprocessors;
};
static inline hipError_t get_properties(DeviceProperties* to, int device) {
    cudaDeviceProp p;
    const hipError_t s = cudaGetDeviceProperties(&p, device);
    if (s != hipSuccess) return s;
    snprintf(to->name, sizeof to->name, "%.255s", p.name);
    snprintf(to->arch, sizeof to->arch, "sm_%d%d", p.major, p.minor);
    to->multiprocessors = p.multiProcessorCount;
    to->memory = p.totalGlobalMem;
    to->shared_per_block = kSharedPerBlock;
    return hipSuccess;
}
static inline hipError_t hipMalloc(void** p, size_t bytes) { return cudaMalloc(p, bytes); }
static inline hipError_t hipFree(void* p) { return cudaFree(p); }
static inline hipError_t hipMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, hipStream_t s) {
    return cudaMemcpyAsync(to, from, bytes, kind, s);
}
static inline hipError_t hipStreamSynchronize(hipStream_t s) { return cudaStreamSynchronize(s); }
static inline hipError_t hipStreamWaitEvent(hipStream_t s, hipEvent_t e, unsigned flags) { return cudaStreamWaitEvent(s, e, flags); }
static inline hipError_t hipEventCreateWithFlags(hipEvent_t* e, unsigned flags) { return cudaEventCreateWithFlags(e, flags); }
static inline hipError_t hipEventRecord(hipEvent_t e, hipStream_t s) { return cudaEventRecord(e, s); }
static inline hipError_t hipEventSynchronize(hipEvent_t e) { return cudaEventSynchronize(e); }
static inline hipError_t hipEventDestroy(hipEvent_t e) { return cudaEventDestroy(e); }
static inline hipError_t hipStreamIsCapturing(hipStream_t s, int* status) {
    cudaStreamCaptureStatus is = cudaStreamCaptureStatusNone;
    const hipError_t asked = cudaStreamIsCapturing(s, &is);
    *status = is;
    return asked;
}
struct PointerAttributes {
    cudaMemoryType type;
    int device;
    bool managed;
};
static inline hipError_t get_attributes(PointerAttributes* to, const void* p) {
    cudaPointerAttributes a;
    const hipError_t s = cudaPointerGetAttributes(&a, p);
    *to = {a.type, a.device, a.type == cudaMemoryTypeManaged};
    return s;
}
static inline bool is_device_memory(const PointerAttributes& a) { return a.type == cudaMemoryTypeDevice; }
static inline bool is_unregistered(const PointerAttributes& a) { return a.type == cudaMemoryTypeUnregistered; }
static inline bool has_runtime() { return true; }
static inline const char* runtime_fault() { return ""; }
static inline hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) { return cudaDeviceCanAccessPeer(can, device, peer); }
static inline hipError_t hipDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) {
    return cudaDeviceGetAttribute(value, what, device);
}
static inline int die_count(int) { return 2; }  // it has one: so tests meet grids of columns
static inline hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                               unsigned bz, unsigned shared, hipStream_t s, void** arguments, void**) {
    return cudaLaunchKernel(f, dim3(gx, gy, gz), dim3(bx, by, bz), arguments, shared, s);
}

}  // namespace rt
}  // namespace fa
