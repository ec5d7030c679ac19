// The one allocator. Backends reach it through Host, so every byte that the library takes can be counted, and made to fail, here.
#pragma once
#include <stdint.h>

namespace fa {

void* allocate(uint64_t bytes, uint64_t alignment);  // NULL when out of memory; alignment is a power of two
void release(void* memory);

}  // namespace fa
