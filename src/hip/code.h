// The device code of this module: finding the part for a device, and its kernels in there.
//
// The compiler's own start-up code would hand the fat binary to the runtime. That of ROCm 5 ends the process when any GPU of the
// machine has no part in it, as many an integrated one. So the functions that this start-up code calls are defined here, and the
// runtime is only ever given the one part that fits.
#pragma once
#include "hip/runtime.h"

namespace fa {
namespace rt {

constexpr int kMaxKernels = 256, kMaxDevices = 64;

struct DeviceCode {
    const char* bundle;  // as clang-offload-bundler writes it: one ELF file for each target
    int count;
    const void* kernel[kMaxKernels];  // what the host's text takes for a kernel's address
    const char* name[kMaxKernels];    // its symbol in the device's code
};
static DeviceCode device_code;

// Does code for `target` run on `device`? Both look like gfx90a:sramecc+:xnack-; a target without a feature runs with it on or off.
static inline bool runs_on(const char* target, size_t length, const char* device) {
    for (size_t part = 0; part < length;) {
        const char* colon = static_cast<const char*>(memchr(target + part, ':', length - part));
        const size_t size = colon ? size_t(colon - target) - part : length - part;
        bool found = false;
        for (const char* d = device; d && !found; d = strchr(d, ':') ? strchr(d, ':') + 1 : nullptr) {
            found = strncmp(d, target + part, size) == 0 && (d[size] == 0 || d[size] == ':');
            if (part == 0) break;  // the processor comes first
        }
        if (!found) return false;
        part += size + 1;
    }
    return length > 0;
}

// The ELF file for the device; NULL when there is none.
static inline const void* code_for(const char* device) {
    constexpr char magic[] = "__CLANG_OFFLOAD_BUNDLE__", triple[] = "amdgcn-amd-amdhsa--";
    const char* at = device_code.bundle;
    if (!at || memcmp(at, magic, sizeof magic - 1) != 0) return nullptr;
    at += sizeof magic - 1;
    uint64_t entries;
    memcpy(&entries, at, sizeof entries);
    at += sizeof entries;
    for (; entries > 0; entries--) {
        uint64_t head[3];  // offset, size, length of the name behind
        memcpy(head, at, sizeof head);
        const char* name = at + sizeof head;
        const char* target = static_cast<const char*>(memmem(name, head[2], triple, sizeof triple - 1));
        if (target) {
            target += sizeof triple - 1;
            if (runs_on(target, size_t(name + head[2] - target), device)) return device_code.bundle + head[0];
        }
        at = name + head[2];
    }
    return nullptr;
}

static inline hipError_t load_code(int device, hipModule_t* module) {
    DeviceProperties p;
    const hipError_t s = get_properties(&p, device);
    if (s != hipSuccess) return s;
    const void* code = code_for(p.arch);
    return code ? hipModuleLoadData(module, code) : hipErrorNoBinaryForGpu;
}

// The kernel on the current device, whose code is loaded when first asked for.
static inline hipError_t find_kernel(const void* kernel, hipFunction_t* function) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static hipModule_t modules[kMaxDevices];
    static hipFunction_t functions[kMaxDevices][kMaxKernels];

    int device, n = 0;
    hipError_t s = hipGetDevice(&device);
    if (s != hipSuccess) return s;
    if (device >= kMaxDevices) return hipErrorInvalidDevice;
    while (n < device_code.count && device_code.kernel[n] != kernel) n++;
    if (n == device_code.count) return hipErrorInvalidDeviceFunction;

    pthread_mutex_lock(&lock);
    if (!modules[device]) s = load_code(device, &modules[device]);
    if (s == hipSuccess && !functions[device][n])
        s = hipModuleGetFunction(&functions[device][n], modules[device], device_code.name[n]);
    *function = functions[device][n];
    pthread_mutex_unlock(&lock);
    return s;
}

}  // namespace rt
}  // namespace fa

// What the compiler's start-up code calls.
extern "C" __attribute__((visibility("hidden"))) void** __hipRegisterFatBinary(const void* wrapper) {
    struct Wrapper {
        uint32_t magic, version;
        const char* bundle;
        void* unused;
    };
    fa::rt::device_code.bundle = static_cast<const Wrapper*>(wrapper)->bundle;
    return nullptr;
}

extern "C" __attribute__((visibility("hidden"))) void __hipRegisterFunction(void**, const void* kernel, char*, const char* name,
                                                                            unsigned, void*, void*, void*, void*, int*) {
    fa::rt::DeviceCode& code = fa::rt::device_code;
    if (code.count == fa::rt::kMaxKernels) return;
    code.kernel[code.count] = kernel;
    code.name[code.count++] = name;
}

extern "C" __attribute__((visibility("hidden"))) void __hipUnregisterFatBinary(void**) {}
