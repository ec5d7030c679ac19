// What the device text under src/gpu needs of a GPU, spelled in CUDA: function attributes, thread and memory primitives for
// kernels, and the run-time calls of the host side. rt_hip.h and rt_emu.h define the same names, so that the shared text has no #if
// on a vendor.
#pragma once
#include <cuda_runtime.h>
#include <flashattn.h>
#include <stdio.h>
#include <atomic>
#include "backend/backend.h"
#include "gpu/common/matrix_unit.h"

#define FA_KERNEL static __global__
#define FA_DEVICE static __device__ __forceinline__
#define FA_COLD static __device__ __noinline__  // a function whose registers the common path must not pay for
#define FA_COLD_MEMBER __device__ __noinline__
#define FA_MEMBER __device__ __forceinline__  // a static member function of a kernel's struct
#define FA_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define FA_PARAM const __grid_constant__
#define FA_UNROLL_FOR _Pragma("unroll") for
#define FA_UNROLL_BY(n) _Pragma(FA_TEXT(unroll n))
#define FA_TEXT(x) #x

namespace fa {
namespace rt {

constexpr int32_t kBackend = FA_BACKEND_CUDA;
constexpr char kName[] = "cuda";
constexpr char kVendor[] = "NVIDIA";
#ifdef FA_HAS_SM90  // the build has that device's own kernels
constexpr bool kArchKernels = true;  // see gpu/host/arch.h
#else
constexpr bool kArchKernels = false;
#endif
constexpr bool kAmdKernels = false;     // are MFMA and WMMA kernels compiled?
constexpr int kWideRows = 64;           // of the SIMT kernel's widest tile: what a thread's registers hold without spilling
constexpr int kWideStudyColumns = 128;  // of the study baselines' widest tile, likewise

FA_DEVICE int thread() { return int(threadIdx.x); }
FA_DEVICE int threads() { return int(blockDim.x); }
FA_DEVICE int64_t block() { return blockIdx.x; }
FA_DEVICE void barrier() { __syncthreads(); }
FA_DEVICE void atomic_or(uint32_t* to, uint32_t bits) { atomicOr(to, bits); }
// Among groups of 16 or 32 lanes, whatever the size of a wave.
FA_DEVICE float shuffle_xor16(float x, int mask) { return __shfl_xor_sync(~0u, x, mask, 16); }
FA_DEVICE float shuffle_xor32(float x, int mask) { return __shfl_xor_sync(~0u, x, mask, 32); }
// Four floats at an address that is a multiple of 16 bytes.
FA_DEVICE void load4(const float* p, float* to) {
    const float4 vec = *reinterpret_cast<const float4*>(p);
    to[0] = vec.x;
    to[1] = vec.y;
    to[2] = vec.z;
    to[3] = vec.w;
}
FA_DEVICE void store4(float* p, const float* from) { *reinterpret_cast<float4*>(p) = make_float4(from[0], from[1], from[2], from[3]); }
// Two floats as a pair of 2-byte ones, rounded to nearest; for mma kernels, from sm_80 on. CUDA's own headers for these types would
// cost each translation unit a second.
FA_DEVICE uint32_t pack_f16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FA_DEVICE uint32_t pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
FA_DEVICE float widen_f16(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

// 0, unknown to the compiler and the assembler: what depends on it is computed anew.
FA_DEVICE uint32_t hidden_zero() {
    uint32_t zero;
    asm volatile("mov.u32 %0, %%ctaid.z;" : "=r"(zero));
    return zero;
}

// A kernel's parameters lie in memory that no cache holds when it begins, and each line first read costs as much as any other miss,
// one after the other. This asks for all lines at once. The compiler must neither know the index nor see that nothing depends on
// the values.
template <class Params>
FA_DEVICE void fetch_parameters(const Params& params) {
    uint32_t any = 0;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(&params) + hidden_zero();
    FA_UNROLL_FOR (int i = 0; i < int(sizeof params / 4); i += 16) any |= words[i];
    if (any == 0xdeadbeefu) __nanosleep(0);
}
FA_DEVICE char* shared_memory() {
    extern __shared__ __align__(1024) char memory[];
    return memory;
}

using Status = cudaError_t;
using Stream = cudaStream_t;
constexpr Status kSuccess = cudaSuccess;

static inline bool out_of_memory(Status s) { return s == cudaErrorMemoryAllocation; }
static inline const char* text(Status s) { return cudaGetErrorString(s); }
static inline Status clear_error() { return cudaGetLastError(); }

struct Device {
    char name[128];
    char arch[64];
    int32_t multiprocessors;
    uint64_t memory;
    uint64_t shared_per_block;
    gpu::MatrixUnit matrix;
    bool sm90;  // has Hopper's own kernels: see find_arch_driver
};

// Why devices cannot be counted.
static inline fa_status_t no_device(Status s, Message* message) {
    if (s == cudaErrorNoDevice) return fail(message, FA_NO_DEVICE, "the NVIDIA driver finds no device");
    if (s != cudaErrorInsufficientDriver) return fail(message, FA_BACKEND_INCOMPATIBLE, "the NVIDIA driver does not start: %s", text(s));
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != kSuccess || driver == 0)
        return fail(message, FA_NO_DEVICE, "no NVIDIA driver is installed: libcuda.so.1 cannot be loaded");
    return fail(message, FA_BACKEND_INCOMPATIBLE, "the NVIDIA driver serves CUDA up to %d.%d: expected %d.0 or later", driver / 1000,
                driver % 1000 / 10, CUDART_VERSION / 1000);
}

static inline Status device_count(int* n) { return cudaGetDeviceCount(n); }
static inline Status current_device(int* device) { return cudaGetDevice(device); }
static inline Status set_device(int device) { return cudaSetDevice(device); }
static inline Status describe(int device, Device* to) {
    cudaDeviceProp properties;
    const Status s = cudaGetDeviceProperties(&properties, device);
    if (s != kSuccess) return s;
    snprintf(to->name, sizeof to->name, "%.127s", properties.name);
    snprintf(to->arch, sizeof to->arch, "sm_%d%d", properties.major, properties.minor);
    to->multiprocessors = properties.multiProcessorCount;
    to->memory = properties.totalGlobalMem;
    to->shared_per_block = properties.sharedMemPerBlockOptin;
    to->matrix = properties.major >= 8 ? gpu::MatrixUnit::mma_sync : gpu::MatrixUnit::none;
    to->sm90 = properties.major == 9 && properties.minor == 0;
    return kSuccess;
}

static inline Status allocate(void** p, uint64_t bytes) { return cudaMalloc(p, bytes); }
static inline Status release(void* p) { return p ? cudaFree(p) : kSuccess; }  // which ends a capture even of nothing
static inline Status copy(void* to, const void* from, uint64_t bytes, Stream s) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s);
}
static inline Status synchronize(Stream s) { return cudaStreamSynchronize(s); }
// The legacy stream gives an error while any blocking stream is captured: nothing can be waited for then, either.
static inline bool capturing(Stream s) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const Status asked = cudaStreamIsCapturing(s, &status);
    if (asked != kSuccess) return clear_error(), asked == cudaErrorStreamCaptureImplicit;
    return status != cudaStreamCaptureStatusNone;
}

// The work of a stream up to here; NULL: none yet.
using Event = cudaEvent_t;
static inline Status record(Event* e, Stream s) {
    const Status made = *e ? kSuccess : cudaEventCreateWithFlags(e, cudaEventDisableTiming);
    return made == kSuccess ? cudaEventRecord(*e, s) : made;
}
static inline Status follow(Stream s, Event e) { return e ? cudaStreamWaitEvent(s, e, 0) : kSuccess; }
// Waits on the host, and gives the event up.
static inline void finish(Event* e) {
    if (!*e) return;
    cudaEventSynchronize(*e);
    cudaEventDestroy(*e);
    *e = nullptr;
}

// May kernels on `device` read this address? Pageable memory only where the device says so.
static inline Status accessible(const void* p, int device, bool* yes) {
    cudaPointerAttributes attributes;
    Status s = cudaPointerGetAttributes(&attributes, p);
    int can = 1;
    if (s == kSuccess && attributes.type == cudaMemoryTypeDevice && attributes.device != device)
        s = cudaDeviceCanAccessPeer(&can, device, attributes.device);
    if (s == kSuccess && attributes.type == cudaMemoryTypeUnregistered)
        s = cudaDeviceGetAttribute(&can, cudaDevAttrPageableMemoryAccess, device);
    *yes = can != 0;
    return s;
}

// Who calls, while a thread is within a call: the current device, whose log hears of kernels that are compiled, and whether launches only
// load their kernels.
struct Caller {
    int device;
    const Host* host;
    bool prepares;
};
constexpr bool kLoadsWhenUsed = true;  // is a kernel loaded no sooner than that?
// Who called before: to be told again when the call ends.
Caller enter(Caller);
bool prepares();
// Loads a kernel's code onto the caller's device, once, and allows it all the shared memory that a block can have: prepare.cu.
Status prepare_kernel(const void* kernel);
// Is there code for the current device? Of kernels that are launched, none is loaded yet.
Status find_code();
// What find_code has learned of the portable kernels, of all devices that were asked about. Do they call wait_for_predecessor? Those for
// devices before Hopper cannot: kernels come after what is before them, as usual. Are they compiled from PTX when they are loaded?
extern std::atomic<bool> portable_code_waits, portable_code_is_compiled;
static inline bool compiles_kernels() { return portable_code_is_compiled.load(std::memory_order_relaxed); }

static inline Status set_zero(void* p, uint64_t bytes, Stream stream) {
    return prepares() ? kSuccess : cudaMemsetAsync(p, 0, bytes, stream);
}

template <class Params>
static inline Status launch(void (*kernel)(Params), int64_t blocks, int threads, uint64_t shared, Stream stream, const Params& params) {
    const void* const function = reinterpret_cast<const void*>(kernel);
    void* arguments[] = {const_cast<Params*>(&params)};
    const Status s = prepare_kernel(function);
    return s != kSuccess || prepares()
               ? s
               : cudaLaunchKernel(function, dim3(unsigned(blocks)), dim3(unsigned(threads)), arguments, shared, stream);
}

// The same for a kernel that calls wait_for_predecessor before it reads what the kernel before it in the stream wrote: its blocks
// may be brought onto the device before that one has ended.
FA_DEVICE void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FA_DEVICE void release_successor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// `cluster`: blocks that are brought together.
template <class Params>
static inline Status launch_after(void (*kernel)(Params), int64_t blocks, int threads, uint64_t shared, Stream stream, const Params& params,
                                  int cluster = 1) {
    const Status s = prepare_kernel(reinterpret_cast<const void*>(kernel));
    if (s != kSuccess || prepares()) return s;
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(unsigned(blocks));
    config.blockDim = dim3(unsigned(threads));
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    if (portable_code_waits.load(std::memory_order_relaxed)) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = unsigned(cluster);
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace rt
}  // namespace fa
