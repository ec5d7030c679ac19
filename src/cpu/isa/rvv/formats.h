// Storage formats, by RISC-V's vectors: how decoding reads a pair of vectors of each type. kernels/storage_formats.h says what a format
// defines. RVV 1.0 itself knows no type smaller than f32.
#pragma once
#include "cpu/kernels/portable_formats.h"

namespace fa {
namespace cpu {
namespace {

// Of each pair of elements one: widened, the even element is the low half of a lane, and the odd one the upper half.
inline VI read_pairs_of_halves(const char* at) {
    VI x;
    memcpy(&x, at, sizeof x);
    return x;
}
inline VI read_pairs_of_bytes(const char* at) { return read_small<uint16_t>(at); }

// The sign of a small float, which a lane has at its top, with a magnitude that has been shifted to where a float has its own. The product
// moves the exponent from the small type's bias to that of f32, exactly, and subnormal numbers become normal ones.
inline V widen_magnitude(VI x, VI magnitude, float unit, int32_t first_special, int32_t special) {
    const VI value = (VI)((V)magnitude * unit);
    return (V)((magnitude >= first_special ? magnitude | special : value) | (x & INT32_MIN));
}
// f16 in the upper half of a lane; e5m2 in its upper byte, the bits behind it being 0.
inline V widen_half(VI x) { return widen_magnitude(x, x >> 3 & 0x0fffe000, 0x1p+112f, 0x0f800000, 0x7f800000); }
inline V widen_e4m3(VI x) { return widen_magnitude(x, x >> 4 & 0x07f00000, 0x1p+120f, 0x07f00000, 0x7fc00000); }

struct F16 : StorageFormat<2, true> {
    static VecPair read(const char* at) {
        const VI x = read_pairs_of_halves(at);
        return {widen_half(x << 16), widen_half(x)};
    }
};
struct Bf16 : StorageFormat<2, true> {
    static VecPair read(const char* at) {
        const VI x = read_pairs_of_halves(at);
        return {(V)(x << 16), (V)(x & int32_t(0xffff0000u))};
    }
};
struct E4m3 : StorageFormat<1, true> {
    static VecPair read(const char* at) {
        const VI x = read_pairs_of_bytes(at);
        return {widen_e4m3(x << 24), widen_e4m3(x << 16)};
    }
};
struct E5m2 : StorageFormat<1, true> {
    static VecPair read(const char* at) {
        const VI x = read_pairs_of_bytes(at);
        return {widen_half(x << 24), widen_half(x << 16 & int32_t(0xff000000u))};
    }
};

}  // namespace
}  // namespace cpu
}  // namespace fa
