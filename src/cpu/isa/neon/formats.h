// Storage formats, by NEON: how decoding reads a pair of vectors of each type. kernels/storage_formats.h says what a format
// defines.
#pragma once
#include "cpu/kernels/storage_formats.h"

namespace fa {
namespace cpu {
namespace {

constexpr bool kMaskedReads = false;

inline V widen_halves(int16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_s16(x)); }
inline int16x4_t read_four(const char* at) {
    int16x4_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at) {
        VecPair x;
        memcpy(&x, at, sizeof x);
        return x;
    }
};
struct F16 : StorageFormat<2> {
    static VecPair read(const char* at) { return {widen_halves(read_four(at)), widen_halves(read_four(at + 8))}; }
};
struct Bf16 : StorageFormat<2, true> {
    static VecPair read(const char* at) {
        VI x;
        memcpy(&x, at, sizeof x);
        return {V(x << 16), V(x & int32_t(0xffff0000u))};
    }
};
// Shifted by one bit, sign, exponent and mantissa of e4m3 are those of an f16 2^-8 as large, subnormals included.
struct E4m3 : StorageFormat<1, true, 256, true> {
    static V half(int16x4_t high_bytes) { return widen_halves((high_bytes >> 1) & int16_t(0xbf80)); }
    static VecPair read(const char* at) { return {half(read_four(at) << 8), half(read_four(at))}; }
};
struct E5m2 : StorageFormat<1, true> {
    static VecPair read(const char* at) { return {widen_halves(read_four(at) << 8), widen_halves(read_four(at) & int16_t(0xff00))}; }
};
struct I8 : StorageFormat<1> {
    static V half(int16x4_t x) { return vcvtq_f32_s32(vmovl_s16(x)); }
    static VecPair read(const char* at) {
        const int16x8_t x = vmovl_s8(vreinterpret_s8_s16(read_four(at)));
        return {half(vget_low_s16(x)), half(vget_high_s16(x))};
    }
};

// For the block formats: four bytes, each in a lane of its own.
inline uint8x8_t read_four_bytes(const char* at) {
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return vreinterpret_u8_u32(vdup_n_u32(x));
}
inline VI read_bytes(const char* at) { return VI(vmovl_u16(vget_low_u16(vmovl_u8(read_four_bytes(at))))); }
inline VI read_signed_bytes(const char* at) { return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(read_four_bytes(at))))); }
inline V to_floats(VI x) { return vcvtq_f32_s32(x); }
inline V splat_half(const char* at) {
    int16_t x;
    memcpy(&x, at, sizeof x);
    return widen_halves(vdup_n_s16(x));
}

}  // namespace
}  // namespace cpu
}  // namespace fa
