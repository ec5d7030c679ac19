// rt_cuda.h's names in HIP: what the device text under src/gpu needs of a GPU, for kernels and for the host. Waves have 32 or 64
// lanes, so shuffles say among how many lanes they work. What mma kernels need besides is in matrix_hip.h.
#pragma once
#include "hip/device.h"
#include <flashattn.h>
#include <stdio.h>
#include "backend/backend.h"
#include "gpu/common/matrix_unit.h"
#include "hip/code.h"
#include "hip/range.h"

#define FA_KERNEL static __global__
#define FA_DEVICE static __device__ __forceinline__
// No calls: a function of its own would take the kernel's parameters from a copy in scratch memory.
#define FA_COLD FA_DEVICE
#define FA_COLD_MEMBER __device__ __forceinline__
#define FA_MEMBER __device__ __forceinline__  // a static member function of a kernel's struct
#define FA_BOUNDS(threads, blocks) __launch_bounds__(threads)
#define FA_PARAM const
#define FA_UNROLL_FOR _Pragma("unroll") for
#define FA_UNROLL_BY(n) _Pragma("unroll 1")  // more would take more than the 256 registers of a thread

namespace fa {
namespace rt {

constexpr int32_t kBackend = FA_BACKEND_HIP;
constexpr char kName[] = "hip";
constexpr char kVendor[] = "AMD";
constexpr bool kArchKernels = false;  // see gpu/host/arch.h
#ifdef __HIP__
constexpr bool kAmdKernels = true;  // are MFMA and WMMA kernels compiled?
#else
constexpr bool kAmdKernels = false;  // nvcc, which compiles this for the tests, has no such instructions
#endif
constexpr int kWideRows = 32;          // of the SIMT kernel's widest tile: what a thread's registers hold without spilling
constexpr int kWideStudyColumns = 64;  // of the study baselines' widest tile, likewise

FA_DEVICE int thread() { return int(device::thread()); }
FA_DEVICE int threads() { return int(device::threads()); }
FA_DEVICE int64_t block() { return device::block(); }
FA_DEVICE void barrier() { device::barrier(); }
FA_DEVICE void atomic_or(uint32_t* to, uint32_t bits) { device::atomic_or(to, bits); }
// Among groups of 16 or 32 lanes, whatever the size of a wave.
FA_DEVICE float shuffle_xor16(float x, int mask) { return device::shuffle_xor(x, mask); }
FA_DEVICE float shuffle_xor32(float x, int mask) { return device::shuffle_xor(x, mask); }
// Four floats at an address that is a multiple of 16 bytes.
struct alignas(16) Float4 {
    float x[4];
};
FA_DEVICE void load4(const float* p, float* to) {
    const Float4 vec = *reinterpret_cast<const Float4*>(p);
    FA_UNROLL_FOR (int i = 0; i < 4; i++) to[i] = vec.x[i];
}
FA_DEVICE void store4(float* p, const float* from) { *reinterpret_cast<Float4*>(p) = {{from[0], from[1], from[2], from[3]}}; }
// Two floats as a pair of 2-byte ones, rounded to nearest.
FA_DEVICE uint32_t pack_f16(float low, float high) { return f32_to_f16(low) | uint32_t(f32_to_f16(high)) << 16; }
FA_DEVICE uint32_t pack_bf16(float low, float high) { return f32_to_bf16(low) | uint32_t(f32_to_bf16(high)) << 16; }
FA_DEVICE float widen_f16(uint16_t bits) { return f16_to_f32(bits); }
template <class Params>
FA_DEVICE void fetch_parameters(const Params&) {}  // scalar loads fetch them, many at a time
FA_DEVICE char* shared_memory() {
    extern __shared__ __attribute__((aligned(16))) char memory[];
    return memory;
}

using Status = hipError_t;
using Stream = hipStream_t;
constexpr Status kSuccess = hipSuccess;

static inline bool out_of_memory(Status s) { return s == hipErrorOutOfMemory; }
static inline const char* text(Status s) { return hipGetErrorString(s); }
// Also where no runtime is.
static inline Status clear_error() { return has_runtime() ? hipGetLastError() : kSuccess; }

struct Device {
    char name[128];
    char arch[64];
    int32_t multiprocessors;
    uint64_t memory;
    uint64_t shared_per_block;
    gpu::MatrixUnit matrix;
    int32_t dies;  // with a second-level cache each
};

// By the processor's name, as gfx942:sramecc+:xnack-. Later GPUs of these generations (gfx1170, gfx1250) have other instructions.
static inline gpu::MatrixUnit matrix_unit(const char* arch) {
    using gpu::MatrixUnit;
    const auto is = [&](const char* begin) { return strncmp(arch, begin, strlen(begin)) == 0; };
    if (is("gfx90a")) return MatrixUnit::mfma_gfx90a;
    if (is("gfx942")) return MatrixUnit::mfma;
    if (is("gfx950")) return MatrixUnit::mfma_gfx950;
    if (is("gfx110") || is("gfx115")) return MatrixUnit::wmma_gfx11;
    if (is("gfx120")) return MatrixUnit::wmma_gfx12;
    return MatrixUnit::none;
}

static inline int dies(const Device& device) { return device.dies; }

// Why devices cannot be counted.
static inline fa_status_t no_device(Status s, Message* message) {
    if (!has_runtime()) return fail(message, FA_BACKEND_INCOMPATIBLE, "%s", runtime_fault());
    return fail(message, FA_BACKEND_INCOMPATIBLE, "the AMD driver does not start: %s", text(s));
}
static inline Status device_count(int* n) {
    if (!has_runtime()) return hipErrorNoDevice;
    const Status s = hipGetDeviceCount(n);
    if (s != hipErrorNoDevice) return s;
    (void)hipGetLastError();
    *n = 0;
    return kSuccess;
}
static inline Status current_device(int* device) { return hipGetDevice(device); }
static inline Status set_device(int device) { return hipSetDevice(device); }
static inline Status describe(int device, Device* to) {
    DeviceProperties properties;
    const Status s = get_properties(&properties, device);
    if (s != kSuccess) return s;
    snprintf(to->name, sizeof to->name, "%.127s", properties.name);
    snprintf(to->arch, sizeof to->arch, "%.63s", properties.arch);
    to->multiprocessors = properties.multiprocessors;
    to->memory = properties.memory;
    to->shared_per_block = properties.shared_per_block;
    to->matrix = matrix_unit(properties.arch);
    to->dies = die_count(device);
    return kSuccess;
}

static inline Status allocate(void** p, uint64_t bytes) { return hipMalloc(p, bytes); }
static inline Status release(void* p) { return hipFree(p); }
static inline Status copy(void* to, const void* from, uint64_t bytes, Stream s) {
    return hipMemcpyAsync(to, from, bytes, hipMemcpyDefault, s);
}
static inline Status synchronize(Stream s) { return hipStreamSynchronize(s); }
// Whether a stream is the current device's: not asked here.
struct StreamOwner {};
static inline StreamOwner stream_owner() { return {}; }
static inline bool owns(StreamOwner*, int, Stream) { return true; }
// The legacy stream gives an error while any blocking stream is captured: nothing can be waited for then, either.
static inline bool capturing(Stream s) {
    int status = hipStreamCaptureStatusNone;
    const Status asked = hipStreamIsCapturing(s, &status);
    if (asked != kSuccess) return clear_error(), asked == hipErrorStreamCaptureImplicit;
    return status != hipStreamCaptureStatusNone;
}

// The work of a stream up to here; NULL: none yet.
using Event = hipEvent_t;
static inline Status record(Event* e, Stream s) {
    const Status made = *e ? kSuccess : hipEventCreateWithFlags(e, hipEventDisableTiming);
    return made == kSuccess ? hipEventRecord(*e, s) : made;
}
static inline Status follow(Stream s, Event e) { return e ? hipStreamWaitEvent(s, e, 0) : kSuccess; }
// Waits on the host, and gives the event up.
static inline void finish(Event* e) {
    if (!*e) return;
    (void)hipEventSynchronize(*e);
    (void)hipEventDestroy(*e);
    *e = nullptr;
}

// May kernels on `device` read this address? Pageable memory only where the device says so. ROCm 5 calls such an address invalid.
static inline Status accessible(const void* p, int device, bool* yes) {
    PointerAttributes attributes;
    Status s = get_attributes(&attributes, p);
    int can = 1;
    const bool unknown = s == hipErrorInvalidValue;
    if (unknown) clear_error();
    if (unknown || (s == kSuccess && is_unregistered(attributes)))
        s = hipDeviceGetAttribute(&can, hipDeviceAttributePageableMemoryAccess, device);
    else if (s == kSuccess && is_device_memory(attributes) && !attributes.managed && attributes.device != device)
        s = hipDeviceCanAccessPeer(&can, device, attributes.device);
    *yes = can != 0;
    return s;
}

// A grid counts the threads of a row in 32 bits: more blocks form several rows of the same length. 0: there is no such length.
static inline unsigned grid_rows(int64_t blocks, int threads) {
    const int64_t limit = int64_t(UINT32_MAX) / threads;
    for (int64_t rows = blocks / limit + 1; rows <= UINT16_MAX; rows++)
        if (blocks % rows == 0) return unsigned(rows);
    return 0;
}

// `rows` divides `blocks`. A grid's blocks go row by row, each to the next die: those of a column, which are neighbours, to the same one if
// a row has as many blocks as there are dies.
template <class Params>
static inline Status launch_columns(void (*kernel)(Params), int64_t blocks, unsigned rows, int threads, uint64_t shared, Stream stream,
                                    const Params& params) {
    hipFunction_t function;
    const Status s = find_kernel(reinterpret_cast<const void*>(kernel), &function);
    if (s != kSuccess) return s;
    void* arguments[] = {const_cast<Params*>(&params)};
    return hipModuleLaunchKernel(function, unsigned(blocks / rows), rows, 1, unsigned(threads), 1, 1, unsigned(shared), stream, arguments,
                                 nullptr);
}
template <class Params>
static inline Status launch(void (*kernel)(Params), int64_t blocks, int threads, uint64_t shared, Stream stream, const Params& params) {
    const unsigned rows = grid_rows(blocks, threads);
    return rows ? launch_columns(kernel, blocks, rows, threads, shared, stream, params) : hipErrorInvalidConfiguration;
}

// A kernel begins when the one before it in the stream has ended.
FA_DEVICE void wait_for_predecessor() {}
FA_DEVICE void release_successor() {}
template <class Params>
static inline Status launch_after(void (*kernel)(Params), int64_t blocks, int threads, uint64_t shared, Stream stream,
                                  const Params& params) {
    return launch(kernel, blocks, threads, shared, stream, params);
}

// The blocks of a forward, of which neighbours go to the same die: `dies` divides them.
template <class Params>
static inline Status launch_tiles(void (*kernel)(Params), int64_t blocks, int dies, bool, int threads, uint64_t shared, Stream stream,
                                  const Params& params) {
    const bool one = dies == 1 || blocks / dies > UINT16_MAX;
    return one ? launch(kernel, blocks, threads, shared, stream, params)
               : launch_columns(kernel, blocks, unsigned(blocks / dies), threads, shared, stream, params);
}

// As in rt_cuda.h, where kernels are loaded one by one. Here all of a device's are one code object: it is loaded now, lest the first call
// of a handle does so while its stream is captured.
struct Caller {
    int device;
    const Host* host;
    bool prepares;
};
constexpr bool kLoadsWhenUsed = false;
static inline Caller enter(Caller) { return {}; }
static inline Status find_code() { return load_kernels(); }
static inline bool compiles_kernels() { return false; }

}  // namespace rt
}  // namespace fa
