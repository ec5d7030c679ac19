// On the CPU backend device memory is ordinary memory, which libflashattn-cp could read and write unnoticed. Here what fa_malloc gives lies
// in pages that nobody may touch but the core, while it is called: the linker leads this program's calls through these functions (--wrap).
#include <flashattn.h>
#include <sys/mman.h>
#include <cstdlib>
#include <map>

namespace {

thread_local std::map<void*, size_t> pages;  // of this rank's thread

void protect(int access) {
    for (const auto& block : pages)
        if (mprotect(block.first, block.second, access) != 0) abort();
}

template <class Call>
fa_status_t within(const Call& call) {
    protect(PROT_READ | PROT_WRITE);
    const fa_status_t status = call();
    protect(PROT_NONE);
    return status;
}

bool on_cpu(fa_handle_t handle) {
    int64_t backend = 0;
    return fa_param_get(handle, FA_INFO_BACKEND, &backend) == FA_OK && backend == FA_BACKEND_CPU;
}

}  // namespace

extern "C" {

fa_status_t __real_fa_malloc(fa_handle_t, uint64_t, void**);
fa_status_t __wrap_fa_malloc(fa_handle_t handle, uint64_t bytes, void** pointer) {
    if (!on_cpu(handle) || bytes == 0 || bytes > uint64_t(1) << 40) return __real_fa_malloc(handle, bytes, pointer);
    *pointer = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (*pointer == MAP_FAILED) abort();
    pages[*pointer] = bytes;
    return FA_OK;
}

fa_status_t __real_fa_free(fa_handle_t, void*);
fa_status_t __wrap_fa_free(fa_handle_t handle, void* pointer) {
    const auto found = pages.find(pointer);
    if (found == pages.end()) return __real_fa_free(handle, pointer);
    munmap(found->first, found->second);
    pages.erase(found);
    return FA_OK;
}

#define WITHIN_THE_CORE(name, parameters, arguments)            \
    fa_status_t __real_##name parameters;                       \
    fa_status_t __wrap_##name parameters {                      \
        return within([&] { return __real_##name arguments; }); \
    }
WITHIN_THE_CORE(fa_copy, (fa_handle_t h, void* to, const void* from, uint64_t n), (h, to, from, n))
WITHIN_THE_CORE(fa_copy_async, (fa_handle_t h, void* to, const void* from, uint64_t n, uint32_t flags, void* s), (h, to, from, n, flags, s))
WITHIN_THE_CORE(fa_convert, (fa_handle_t h, const fa_conversion_t* list, int64_t n, uint32_t flags, void* s), (h, list, n, flags, s))
WITHIN_THE_CORE(fa_forward_ex, (fa_handle_t h, const fa_attention_desc_t* desc, const fa_forward_args_t* args), (h, desc, args))
WITHIN_THE_CORE(fa_backward, (fa_handle_t h, const fa_attention_desc_t* desc, const fa_backward_args_t* args), (h, desc, args))
WITHIN_THE_CORE(fa_merge, (fa_handle_t h, const fa_attention_desc_t* desc, const fa_merge_args_t* args), (h, desc, args))

}  // extern "C"
