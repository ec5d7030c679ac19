// Storage formats, by compiler vector extensions of 4 floats: how decoding reads a pair of vectors of each type.
// kernels/storage_formats.h says what a format defines.
#pragma once
#include "cpu/kernels/portable_formats.h"

namespace fa {
namespace cpu {
namespace {

// As widen_small() of the specification, for the bits of a magnitude shifted to where a float has them.
inline VI widen_small_v(VI magnitude, int32_t bias) {
    const V low = (V)(magnitude + (bias + 0x00800000)) - (V)(VI{} + (bias + 0x00800000));
    return magnitude < 0x00800000 ? (VI)low : magnitude + bias;
}
inline V widen_half(VI x) {
    const VI magnitude = (x & 0x7fff) << 13;
    return (V)((magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : widen_small_v(magnitude, 0x38000000)) | (x & 0x8000) << 16);
}
inline V widen_e4m3(VI x) {
    const VI magnitude = (x & 0x7f) << 20;
    return (V)((magnitude == 0x07f00000 ? VI{} + 0x7fc00000 : widen_small_v(magnitude, 0x3c000000)) | (x & 0x80) << 24);
}

struct F16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {widen_half(read_small<uint16_t>(at)), widen_half(read_small<uint16_t>(at + 8))}; }
};
struct Bf16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {(V)(read_small<uint16_t>(at) << 16), (V)(read_small<uint16_t>(at + 8) << 16)}; }
};
struct E4m3 : StorageFormat<1> {
    static VecPair read(const char* at) { return {widen_e4m3(read_small<uint8_t>(at)), widen_e4m3(read_small<uint8_t>(at + 4))}; }
};
struct E5m2 : StorageFormat<1> {
    static VecPair read(const char* at) { return {widen_half(read_small<uint8_t>(at) << 8), widen_half(read_small<uint8_t>(at + 4) << 8)}; }
};

}  // namespace
}  // namespace cpu
}  // namespace fa
