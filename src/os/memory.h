// The one allocator. Backends reach it through Host, so every byte that the library takes can be counted, and made to fail, here.
#pragma once
#include <stdint.h>

namespace fa {
namespace os {

// NULL when out of memory, as for more than PTRDIFF_MAX bytes; alignment is a power of two.
void* allocate(uint64_t bytes, uint64_t alignment);
void release(void* memory);

}  // namespace os
}  // namespace fa
