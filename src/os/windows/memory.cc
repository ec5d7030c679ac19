#include "os/memory.h"
#include <malloc.h>

namespace fa {
namespace os {

void* allocate(uint64_t bytes, uint64_t alignment) {
    return bytes > uint64_t(PTRDIFF_MAX) ? nullptr : _aligned_malloc(bytes, alignment < sizeof(void*) ? sizeof(void*) : alignment);
}

void release(void* memory) { _aligned_free(memory); }

}  // namespace os
}  // namespace fa
