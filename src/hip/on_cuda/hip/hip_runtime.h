// The part of HIP that the HIP backend uses, spelled in CUDA, so that its sources run on an NVIDIA GPU as they are. Written from
// the two public interfaces' manuals. The device shows what AMD's have: 64 KB of shared memory and no more.
#pragma once
#include <cuda_runtime.h>
#include <stdio.h>

#define HIP_VERSION_MAJOR 6

using hipError_t = cudaError_t;
using hipStream_t = cudaStream_t;
using hipEvent_t = cudaEvent_t;
using hipFunction_t = const void*;
struct hipPointerAttribute_t {
    cudaMemoryType type;
    int device;
    bool isManaged;
};
using hipMemoryType = cudaMemoryType;
using hipStreamCaptureStatus = cudaStreamCaptureStatus;
struct hipDeviceProp_t {
    char name[256], gcnArchName[256];
    int multiProcessorCount;
    size_t totalGlobalMem, sharedMemPerBlock;
};

constexpr hipError_t hipSuccess = cudaSuccess, hipErrorOutOfMemory = cudaErrorMemoryAllocation,
                     hipErrorNoDevice = cudaErrorNoDevice, hipErrorInvalidValue = cudaErrorInvalidValue,
                     hipErrorStreamCaptureImplicit = cudaErrorStreamCaptureImplicit,
                     hipErrorInvalidConfiguration = cudaErrorInvalidConfiguration;
constexpr hipMemoryType hipMemoryTypeHost = cudaMemoryTypeHost, hipMemoryTypeDevice = cudaMemoryTypeDevice,
                        hipMemoryTypeUnregistered = cudaMemoryTypeUnregistered;
constexpr hipStreamCaptureStatus hipStreamCaptureStatusNone = cudaStreamCaptureStatusNone;
constexpr auto hipMemcpyDefault = cudaMemcpyDefault;
constexpr auto hipDeviceAttributePageableMemoryAccess = cudaDevAttrPageableMemoryAccess;

constexpr unsigned hipEventDisableTiming = cudaEventDisableTiming;

constexpr int kSharedPerBlock = 64 << 10;

static inline hipError_t hipGetDeviceCount(int* n) { return cudaGetDeviceCount(n); }
static inline hipError_t hipGetDevice(int* device) { return cudaGetDevice(device); }
static inline hipError_t hipSetDevice(int device) { return cudaSetDevice(device); }
static inline hipError_t hipGetLastError() { return cudaGetLastError(); }
static inline const char* hipGetErrorString(hipError_t s) { return cudaGetErrorString(s); }
static inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* to, int device) {
    cudaDeviceProp p;
    const hipError_t s = cudaGetDeviceProperties(&p, device);
    if (s != hipSuccess) return s;
    snprintf(to->name, sizeof to->name, "%.255s", p.name);
    snprintf(to->gcnArchName, sizeof to->gcnArchName, "sm_%d%d", p.major, p.minor);
    to->multiProcessorCount = p.multiProcessorCount;
    to->totalGlobalMem = p.totalGlobalMem;
    to->sharedMemPerBlock = kSharedPerBlock;
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
static inline hipError_t hipStreamIsCapturing(hipStream_t s, hipStreamCaptureStatus* status) { return cudaStreamIsCapturing(s, status); }
static inline hipError_t hipPointerGetAttributes(hipPointerAttribute_t* to, const void* p) {
    cudaPointerAttributes a;
    const hipError_t s = cudaPointerGetAttributes(&a, p);
    *to = {a.type, a.device, a.type == cudaMemoryTypeManaged};
    return s;
}
static inline hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) { return cudaDeviceCanAccessPeer(can, device, peer); }
static inline hipError_t hipDeviceGetAttribute(int* value, cudaDeviceAttr what, int device) { return cudaDeviceGetAttribute(value, what, device); }
static inline hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                               unsigned shared, hipStream_t s, void** arguments, void**) {
    return cudaLaunchKernel(f, dim3(gx, gy, gz), dim3(bx, by, bz), arguments, shared, s);
}

// HIP's shuffle names no lanes: all of a wave take part.
template <class T>
static __device__ __forceinline__ T __shfl_xor(T x, int mask, int width) {
    return __shfl_xor_sync(~0u, x, mask, width);
}
