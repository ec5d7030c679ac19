#include "os/memory.h"
#include <stdlib.h>

namespace fa {
namespace os {

void* allocate(uint64_t bytes, uint64_t alignment) {
    void* memory = nullptr;
    // posix_memalign takes no alignment below a pointer's; nothing in C may be larger than PTRDIFF_MAX.
    if (bytes > uint64_t(PTRDIFF_MAX) || posix_memalign(&memory, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) != 0)
        return nullptr;
    return memory;
}

void release(void* memory) { free(memory); }

}  // namespace os
}  // namespace fa
