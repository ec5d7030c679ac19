#include "core/registry.h"
#include "core/loader.h"

// Backends that the build links in (FA_BUNDLE) are reached by their entry, as a module's is.
#ifdef FA_BUNDLE_CUDA
extern "C" const fa::Backend* fa_bundled_cuda(uint32_t host_abi, fa::Message*);
#else
static constexpr fa::BackendEntry fa_bundled_cuda = nullptr;
#endif
#ifdef FA_BUNDLE_HIP
extern "C" const fa::Backend* fa_bundled_hip(uint32_t host_abi, fa::Message*);
#else
static constexpr fa::BackendEntry fa_bundled_hip = nullptr;
#endif

namespace fa {
namespace {

const Backend* cpu(uint32_t, Message*) { return &kCpuBackend; }

}  // namespace

const Registered kRegistry[kBackends] = {
    {FA_BACKEND_CUDA, "cuda", fa_bundled_cuda, "libflashattn-cuda.so"},
    {FA_BACKEND_HIP, "hip", fa_bundled_hip, "libflashattn-hip.so"},
    {FA_BACKEND_CPU, "cpu", cpu, nullptr},
};

const Registered* registered(int32_t id) {
    for (const Registered& entry : kRegistry)
        if (entry.id == id) return &entry;
    return nullptr;
}

fa_status_t find_backend(const Registered& entry, const char* directory, const Backend** backend, Message* message) {
    if (entry.builtin != nullptr) {
        *backend = entry.builtin(kBackendAbi, message);
    } else {
        const fa_status_t status = load_module(entry, directory, backend, message);
        if (status != FA_OK) return status;
    }
    return (*backend)->usable(message);
}

}  // namespace fa
