// Loading kernels. A module's units are many, and where it has no machine code for a device, the driver compiles each from PTX, for
// seconds: so a kernel is loaded, onto the device of the call, when it is first launched.
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "cuda/rt_cuda.h"

namespace fa {
namespace rt {
namespace {

// Has code in this unit alone, compiled for the same devices as the portable kernels: it tells what there is for a device.
FA_KERNEL void probe() {}

thread_local Caller caller;

// The kernels that have been launched, by address, and the devices onto which they have been loaded, a bit each.
struct Loaded {
    std::atomic<const void*> kernel;
    std::atomic<uint64_t> devices;
};
constexpr unsigned kMostKernels = 4096, kMostDevices = 64;
Loaded loaded[kMostKernels];

Loaded* find(const void* kernel) {
    const uintptr_t key = reinterpret_cast<uintptr_t>(kernel);
    for (unsigned i = 0; i < kMostKernels; i++) {
        Loaded& one = loaded[(key / 16 + i) % kMostKernels];
        const void* known = one.kernel.load(std::memory_order_relaxed);
        if (!known && one.kernel.compare_exchange_strong(known, kernel, std::memory_order_relaxed)) return &one;
        if (known == kernel) return &one;
    }
    return nullptr;
}

// The function's own name: the last before its template arguments. The runtime knows the mangled one.
void name_of(const void* kernel, char* name, size_t bytes) {
    const char* mangled = "";
    if (cudaFuncGetName(&mangled, kernel) != kSuccess) clear_error();
    const char* at = strncmp(mangled, "_ZN", 3) == 0 ? mangled + 3 : mangled;
    if (strncmp(at, "_Z", 2) == 0) at += 2;
    int length = int(strlen(at));
    const char* last = at;
    for (int n; (n = atoi(at)) > 0;) {
        while (*at >= '0' && *at <= '9') at++;
        if (int(strlen(at)) < n) break;
        last = at, length = n, at += n;
    }
    snprintf(name, bytes, "%.*s", length, last);
}

double seconds() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

// Is it compiled from PTX of an older architecture? Machine code says the same of both.
bool was_compiled(const cudaFuncAttributes& attributes) { return attributes.binaryVersion != attributes.ptxVersion; }

void log_compiled(const void* kernel, const cudaFuncAttributes& attributes, double took) {
    constexpr double kWorthALine = .05;  // what else its unit has is there already
    if (!caller.host || !was_compiled(attributes) || took < kWorthALine) return;
    char name[64], text[160];
    name_of(kernel, name, sizeof name);
    snprintf(text, sizeof text, "kernel %s and those of its unit were compiled from PTX for sm_%d, %.1f s", name, attributes.binaryVersion,
             took);
    caller.host->log(caller.host->log_context, FA_LOG_INFO, text);
}

// While any stream of the process is captured, a thread may load code in this mode alone.
template <class Load>
Status while_captured(const Load& load) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    Status s = cudaThreadExchangeStreamCaptureMode(&mode);
    if (s != kSuccess) return s;
    s = load();
    const Status restored = cudaThreadExchangeStreamCaptureMode(&mode);
    return s == kSuccess ? restored : s;
}

// Where the environment leaves a block less shared memory than it could have, all blocks of a multiprocessor together get what a device of
// such blocks has: room for one, and the KB that the driver takes of each. The hardware rounds up to a size that it knows.
Status limit_shared(const void* kernel, uint64_t bytes_of_block) {
    constexpr uint64_t kOfDriver = 1024;
    int all = 0;
    const Status s = cudaDeviceGetAttribute(&all, cudaDevAttrMaxSharedMemoryPerMultiprocessor, caller.device);
    if (s != kSuccess) return s;
    const uint64_t percent = 100 * (bytes_of_block + kOfDriver) / uint64_t(all);
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent < 100 ? int(percent) : 100);
}

Status load(const void* kernel) {
    const double began = seconds();
    cudaFuncAttributes attributes;
    int shared = 0, major = 0;
    Status s = cudaFuncGetAttributes(&attributes, kernel);
    if (s == kSuccess) s = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, caller.device);
    if (s == kSuccess) s = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, caller.device);
    if (s == kSuccess)
        s = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared - int(attributes.sharedSizeBytes));
    if (s == kSuccess && major >= 9) s = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    if (s == kSuccess && caller.host && caller.host->max_shared_bytes > 0) s = limit_shared(kernel, caller.host->max_shared_bytes);
    if (s == kSuccess) log_compiled(kernel, attributes, seconds() - began);
    return s;
}

}  // namespace

Caller enter(Caller next) {
    const Caller before = caller;
    caller = next;
    return before;
}
bool prepares() { return caller.prepares; }

std::atomic<bool> portable_code_waits{true}, portable_code_is_compiled{false};

Status prepare_kernel(const void* kernel) {
    Loaded* const known = unsigned(caller.device) < kMostDevices ? find(kernel) : nullptr;
    const uint64_t bit = uint64_t(1) << unsigned(caller.device) % kMostDevices;
    if (known && known->devices.load(std::memory_order_acquire) & bit) return kSuccess;
    const Status s = while_captured([&] { return load(kernel); });
    if (s == kSuccess && known) known->devices.fetch_or(bit, std::memory_order_release);
    return s;
}

Status find_code() {
    cudaFuncAttributes attributes;
    const Status s = while_captured([&] { return cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(probe)); });
    if (s != kSuccess) return s;
    if (attributes.ptxVersion < 90) portable_code_waits.store(false, std::memory_order_relaxed);
    if (was_compiled(attributes)) portable_code_is_compiled.store(true, std::memory_order_relaxed);
    return kSuccess;
}

}  // namespace rt
}  // namespace fa
