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

// Generic targets, whose code runs on several GPUs of a generation: those with such begins.
struct GenericTarget {
    const char *name, *begins[2];
};
constexpr GenericTarget kGenericTargets[] = {{"gfx9-4-generic", {"gfx942", "gfx950"}},
                                             {"gfx10-3-generic", {"gfx103", nullptr}},
                                             {"gfx11-generic", {"gfx110", "gfx115"}},
                                             {"gfx12-generic", {"gfx120", nullptr}}};

// Is `device` of the processor that the first `size` characters of `target` name, or of those that it serves?
static inline bool is_processor(const char* target, size_t size, const char* device) {
    if (strncmp(device, target, size) == 0 && (device[size] == 0 || device[size] == ':')) return true;
    for (const GenericTarget& generic : kGenericTargets) {
        if (strlen(generic.name) != size || strncmp(generic.name, target, size) != 0) continue;
        for (const char* begin : generic.begins)
            if (begin && strncmp(device, begin, strlen(begin)) == 0) return true;
    }
    return false;
}

// Does code for `target` run on `device`? Both look like gfx90a:sramecc+:xnack-; a target without a feature runs with it on or off.
static inline bool runs_on(const char* target, size_t length, const char* device) {
    for (size_t part = 0; part < length;) {
        const char* colon = static_cast<const char*>(memchr(target + part, ':', length - part));
        const size_t size = colon ? size_t(colon - target) - part : length - part;
        bool found = part == 0 && is_processor(target, size, device);  // which comes first
        for (const char* d = strchr(device, ':'); part > 0 && d && !found; d = strchr(d + 1, ':'))
            found = strncmp(d + 1, target + part, size) == 0 && (d[1 + size] == 0 || d[1 + size] == ':');
        if (!found) return false;
        part += size + 1;
    }
    return length > 0;
}

// The ELF file for the device, its own rather than a generic one; NULL when there is none.
static inline const void* code_for(const char* device) {
    constexpr char magic[] = "__CLANG_OFFLOAD_BUNDLE__", triple[] = "amdgcn-amd-amdhsa--";
    const char* at = device_code.bundle;
    if (!at || memcmp(at, magic, sizeof magic - 1) != 0) return nullptr;
    at += sizeof magic - 1;
    uint64_t entries;
    memcpy(&entries, at, sizeof entries);
    at += sizeof entries;
    const void* generic = nullptr;
    for (; entries > 0; entries--) {
        uint64_t head[3];  // offset, size, length of the name behind
        memcpy(head, at, sizeof head);
        const char* name = at + sizeof head;
        const char* target = static_cast<const char*>(memmem(name, head[2], triple, sizeof triple - 1));
        if (target) {
            target += sizeof triple - 1;
            const size_t length = size_t(name + head[2] - target);
            const bool is_generic = memmem(target, length, "-generic", 8) != nullptr;
            if (runs_on(target, length, device)) {
                if (!is_generic) return device_code.bundle + head[0];
                generic = device_code.bundle + head[0];
            }
        }
        at = name + head[2];
    }
    return generic;
}

static inline hipError_t load_code(int device, hipModule_t* module) {
    DeviceProperties properties;
    const hipError_t s = get_properties(&properties, device);
    if (s != hipSuccess) return s;
    const void* code = code_for(properties.arch);
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
    if (s == hipSuccess && !functions[device][n]) s = hipModuleGetFunction(&functions[device][n], modules[device], device_code.name[n]);
    *function = functions[device][n];
    pthread_mutex_unlock(&lock);
    return s;
}
// All of them.
static inline hipError_t load_kernels() {
    hipFunction_t function;
    for (int n = 0; n < device_code.count; n++)
        if (const hipError_t s = find_kernel(device_code.kernel[n], &function); s != hipSuccess) return s;
    return hipSuccess;
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

extern "C" __attribute__((visibility("hidden"))) void __hipRegisterFunction(void**, const void* kernel, char*, const char* name, unsigned,
                                                                            void*, void*, void*, void*, int*) {
    fa::rt::DeviceCode& code = fa::rt::device_code;
    if (code.count == fa::rt::kMaxKernels) return;
    code.kernel[code.count] = kernel;
    code.name[code.count++] = name;
}

extern "C" __attribute__((visibility("hidden"))) void __hipUnregisterFatBinary(void**) {}
