// The storage formats, and what block formats need, that kernels/portable_vectors.h reads alike whatever the vectors' length:
// kernels/storage_formats.h says what a format defines. Small floats are each ISA's own.
#pragma once
#include "cpu/kernels/byte_order.h"
#include "cpu/kernels/storage_formats.h"

namespace fa {
namespace cpu {
namespace {

constexpr bool kMaskedReads = false;

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at) {
        VecPair x;
        memcpy(&x, at, sizeof x);
        return x;
    }
};
struct I8 : StorageFormat<1> {
    static V half(const char* at) { return __builtin_convertvector(read_small<int8_t>(at), V); }
    static VecPair read(const char* at) { return {half(at), half(at + kLanes)}; }
};

// For the block formats.
inline VI read_bytes(const char* at) { return read_small<uint8_t>(at); }
inline VI read_signed_bytes(const char* at) { return read_small<int8_t>(at); }
inline V to_floats(VI x) { return __builtin_convertvector(x, V); }
inline V splat_half(const char* at) { return splat(f16_to_f32(load_le<uint16_t>(at))); }

}  // namespace
}  // namespace cpu
}  // namespace fa
