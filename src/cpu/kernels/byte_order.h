// Numbers within what is defined by its bytes, as blocks are: low byte first on every machine. Arrays of scalars are in the machine's order
// and need nothing of this.
#pragma once
#include <stdint.h>
#include <string.h>

namespace fa {
namespace cpu {
namespace {

constexpr bool kHighByteFirst = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

static inline uint16_t swapped(uint16_t x) { return __builtin_bswap16(x); }
static inline uint32_t swapped(uint32_t x) { return __builtin_bswap32(x); }

// One load where the machine's order is the same. Swap is a parameter for tests, which have one machine.
template <class T, bool Swap = kHighByteFirst>
static inline T load_le(const void* from) {
    T x;
    memcpy(&x, from, sizeof x);
    if constexpr (Swap) x = swapped(x);
    return x;
}

}  // namespace
}  // namespace cpu
}  // namespace fa
