// AMD's runtime as the module calls it: our own declarations, and a table of its functions, filled once from whichever version the
// machine has. So one module serves ROCm 5, 6 and 7, whose libraries differ in name and in some structs, and none of AMD's headers
// is needed to compile it.
#pragma once
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

namespace fa {
namespace rt {

using hipError_t = int;
using hipStream_t = struct ihipStream_t*;
using hipEvent_t = struct ihipEvent_t*;
using hipModule_t = struct ihipModule_t*;
using hipFunction_t = struct ihipModuleSymbol_t*;

// Values that are the same in all versions.
constexpr hipError_t hipSuccess = 0, hipErrorInvalidValue = 1, hipErrorOutOfMemory = 2, hipErrorInvalidConfiguration = 9,
                     hipErrorInvalidDeviceFunction = 98, hipErrorNoDevice = 100, hipErrorInvalidDevice = 101, hipErrorNoBinaryForGpu = 209,
                     hipErrorStreamCaptureImplicit = 906;
constexpr int hipMemcpyDefault = 4, hipStreamCaptureStatusNone = 0, hipDeviceAttributePageableMemoryAccess = 65,
              hipDeviceAttributeNumberOfXccs = 10018;  // since ROCm 6
constexpr unsigned hipEventDisableTiming = 2;

// F(name, parameters, arguments), of functions that return a hipError_t.
#define FA_HIP_FUNCTIONS(F)                                                                                                           \
    F(hipRuntimeGetVersion, (int* version), (version))                                                                                \
    F(hipGetDeviceCount, (int* count), (count))                                                                                       \
    F(hipGetDevice, (int* device), (device))                                                                                          \
    F(hipSetDevice, (int device), (device))                                                                                           \
    F(hipDeviceGetAttribute, (int* value, int attribute, int device), (value, attribute, device))                                     \
    F(hipDeviceCanAccessPeer, (int* can, int device, int peer), (can, device, peer))                                                  \
    F(hipGetLastError, (), ())                                                                                                        \
    F(hipMalloc, (void** p, size_t bytes), (p, bytes))                                                                                \
    F(hipFree, (void* p), (p))                                                                                                        \
    F(hipMemcpyAsync, (void* to, const void* from, size_t bytes, int kind, hipStream_t s), (to, from, bytes, kind, s))                \
    F(hipPointerGetAttributes, (void* attributes, const void* p), (attributes, p))                                                    \
    F(hipStreamSynchronize, (hipStream_t s), (s))                                                                                     \
    F(hipStreamIsCapturing, (hipStream_t s, int* status), (s, status))                                                                \
    F(hipStreamWaitEvent, (hipStream_t s, hipEvent_t e, unsigned flags), (s, e, flags))                                               \
    F(hipEventCreateWithFlags, (hipEvent_t * e, unsigned flags), (e, flags))                                                          \
    F(hipEventRecord, (hipEvent_t e, hipStream_t s), (e, s))                                                                          \
    F(hipEventSynchronize, (hipEvent_t e), (e))                                                                                       \
    F(hipEventDestroy, (hipEvent_t e), (e))                                                                                           \
    F(hipModuleLoadData, (hipModule_t * module, const void* image), (module, image))                                                  \
    F(hipModuleGetFunction, (hipFunction_t * f, hipModule_t module, const char* name), (f, module, name))                             \
    F(hipModuleLaunchKernel,                                                                                                          \
      (hipFunction_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, hipStream_t s, \
       void** arguments, void** extra),                                                                                               \
      (f, gx, gy, gz, bx, by, bz, shared, s, arguments, extra))

struct Runtime {
#define FA_POINTER(name, parameters, arguments) hipError_t(*name) parameters;
    FA_HIP_FUNCTIONS(FA_POINTER)
#undef FA_POINTER
    const char* (*hipGetErrorString)(hipError_t);
    hipError_t (*hipGetDeviceProperties)(void*, int);
    bool r0600;       // properties are laid out as since ROCm 6
    int major;        // of ROCm
    char fault[256];  // why there is no runtime; empty: there is one
};
static Runtime runtime;

// A library that the program has loaded already is taken, whatever its version: two in one process know nothing of each other's memory.
static inline void* open_runtime() {
    constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    snprintf(runtime.fault, sizeof runtime.fault, "no HIP runtime is installed: expected %s, %s or %s", kNames[0], kNames[1], kNames[2]);
    for (const int flags : {RTLD_NOLOAD, 0})
        for (const char* name : kNames) {
            if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | flags)) return library;
            const char* error = flags ? nullptr : dlerror();
            if (error && strncmp(error, name, strlen(name)) != 0)  // there is one, that lacks something else
                snprintf(runtime.fault, sizeof runtime.fault, "the HIP runtime %s cannot be loaded: %.180s", name, error);
        }
    return nullptr;
}

static inline void fill_runtime() {
    void* const library = open_runtime();
    if (!library) return;
    const char* missing = nullptr;
    const auto find = [&](auto& function, const char* name) {
        void* const symbol = dlsym(library, name);
        memcpy(&function, &symbol, sizeof symbol);
        if (!symbol) missing = name;
    };
#define FA_FIND(name, parameters, arguments) find(runtime.name, #name);
    FA_HIP_FUNCTIONS(FA_FIND)
#undef FA_FIND
    find(runtime.hipGetErrorString, "hipGetErrorString");
    runtime.r0600 = dlsym(library, "hipGetDevicePropertiesR0600") != nullptr;
    find(runtime.hipGetDeviceProperties, runtime.r0600 ? "hipGetDevicePropertiesR0600" : "hipGetDeviceProperties");
    int version = 0;
    if (missing) {
        snprintf(runtime.fault, sizeof runtime.fault, "the HIP runtime has no function %s", missing);
    } else if (runtime.hipRuntimeGetVersion(&version) != hipSuccess) {
        snprintf(runtime.fault, sizeof runtime.fault, "the HIP runtime does not tell its version");
    } else {
        runtime.major = version / 10000000;
        runtime.fault[0] = 0;
    }
}

// Everything below is called after this has said yes.
static inline bool has_runtime() {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_runtime);
    return !runtime.fault[0];
}
static inline const char* runtime_fault() { return runtime.fault; }

#define FA_CALL(name, parameters, arguments) \
    [[maybe_unused]] static inline hipError_t name parameters { return runtime.name arguments; }
FA_HIP_FUNCTIONS(FA_CALL)
#undef FA_CALL
#undef FA_HIP_FUNCTIONS
static inline const char* hipGetErrorString(hipError_t s) { return runtime.hipGetErrorString(s); }

struct DeviceProperties {
    char name[256], arch[256];
    uint64_t memory, shared_per_block;
    int multiprocessors;
};

// Where hipDeviceProp_t has what is wanted of it; the name comes first.
struct PropertyOffsets {
    size_t memory, shared_per_block, multiprocessors, arch;
};
constexpr PropertyOffsets kPropertiesR0600{288, 296, 388, 1160}, kPropertiesR0000{256, 264, 336, 396};
constexpr size_t kPropertyBytes = 8192;  // several times what any version's takes

static inline hipError_t get_properties(DeviceProperties* to, int device) {
    alignas(16) char raw[kPropertyBytes] = {};
    const hipError_t s = runtime.hipGetDeviceProperties(raw, device);
    const PropertyOffsets& at = runtime.r0600 ? kPropertiesR0600 : kPropertiesR0000;
    memcpy(to->name, raw, sizeof to->name);
    memcpy(to->arch, raw + at.arch, sizeof to->arch);
    memcpy(&to->memory, raw + at.memory, 8);
    memcpy(&to->shared_per_block, raw + at.shared_per_block, 8);
    memcpy(&to->multiprocessors, raw + at.multiprocessors, 4);
    to->name[sizeof to->name - 1] = to->arch[sizeof to->arch - 1] = 0;
    return s;
}

// AMD's XCCs; 1 where the runtime, before ROCm 6, does not tell.
static inline int die_count(int device) {
    int n = 1;
    const hipError_t s = hipDeviceGetAttribute(&n, hipDeviceAttributeNumberOfXccs, device);
    if (s != hipSuccess) (void)hipGetLastError();
    return s == hipSuccess && n > 1 ? n : 1;
}

// hipPointerAttribute_t, which has kept its layout; what `type` means has changed.
struct PointerAttributes {
    int type, device;
    void *device_pointer, *host_pointer;
    int managed;
    unsigned flags;
    uint64_t rest[8];  // of later versions
};
static inline hipError_t get_attributes(PointerAttributes* to, const void* p) {
    *to = {};
    return hipPointerGetAttributes(to, p);
}
static inline bool is_device_memory(const PointerAttributes& attributes) { return attributes.type == (runtime.major < 6 ? 1 : 2); }
// ROCm 5 gives an error in place of this.
static inline bool is_unregistered(const PointerAttributes& attributes) { return runtime.major >= 6 && attributes.type == 0; }

}  // namespace rt
}  // namespace fa
