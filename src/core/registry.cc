#include "core/registry.h"
#include "core/loader.h"

namespace fa {

const Registered kRegistry[kBackends] = {
    {FA_BACKEND_CUDA, "cuda", nullptr, "libflashattn-cuda.so"},
    {FA_BACKEND_HIP, "hip", nullptr, "libflashattn-hip.so"},
    {FA_BACKEND_CPU, "cpu", &kCpuBackend, nullptr},
};

const Registered* registered(int32_t id) {
    for (const Registered& entry : kRegistry)
        if (entry.id == id) return &entry;
    return nullptr;
}

fa_status_t find_backend(const Registered& entry, const char* directory, const Backend** backend, Message* message) {
    *backend = entry.builtin;
    if (entry.builtin == nullptr) {
        const fa_status_t status = load_module(entry, directory, backend, message);
        if (status != FA_OK) return status;
    }
    return (*backend)->usable(message);
}

}  // namespace fa
