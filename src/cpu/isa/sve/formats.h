// Storage formats, by SVE with vectors of a fixed length: how decoding reads a pair of vectors of each type.
// kernels/storage_formats.h says what a format defines.
#pragma once
#include "cpu/kernels/storage_formats.h"

namespace fa {
namespace cpu {
namespace {

constexpr bool kMaskedReads = true;

// The first `count` elements of 16 bits and zeros; the even elements of such a vector, then the odd ones, as f32.
inline svuint16_t read_words(const char* at, int count) { return svld1(svwhilelt_b16(0, count), reinterpret_cast<const uint16_t*>(at)); }
inline svuint16_t read_high_bytes(const char* at, int count) {
    return svlsl_x(svptrue_b16(), svld1ub_u16(svwhilelt_b16(0, count), reinterpret_cast<const uint8_t*>(at)), 8);
}
inline VecPair widen_words(svuint16_t x) {
    const svuint16_t odd = svreinterpret_u16(svlsr_x(svptrue_b32(), svreinterpret_u32(x), 16));
    return {svcvt_f32_x(svptrue_b32(), svreinterpret_f16(x)), svcvt_f32_x(svptrue_b32(), svreinterpret_f16(odd))};
}

struct F32 : StorageFormat<4> {
    static VecPair read(const char* at, int count = 2 * kLanes) {
        const float* x = reinterpret_cast<const float*>(at);
        return {svld1(svwhilelt_b32(0, count), x), svld1(svwhilelt_b32(kLanes, count), x + kLanes)};
    }
};
struct F16 : StorageFormat<2, true> {
    static VecPair read(const char* at, int count = 2 * kLanes) { return widen_words(read_words(at, count)); }
};
struct Bf16 : StorageFormat<2, true> {
    static VecPair read(const char* at, int count = 2 * kLanes) {
        const svuint32_t x = svreinterpret_u32(read_words(at, count));
        return {svreinterpret_f32(svlsl_x(svptrue_b32(), x, 16)), svreinterpret_f32(svand_x(svptrue_b32(), x, 0xffff0000u))};
    }
};
// Shifted by one bit, sign, exponent and mantissa of e4m3 are those of an f16 2^-8 as large, subnormals included.
struct E4m3 : StorageFormat<1, true, 256, true> {
    static VecPair read(const char* at, int count = 2 * kLanes) {
        const svint16_t x = svasr_x(svptrue_b16(), svreinterpret_s16(read_high_bytes(at, count)), 1);
        return widen_words(svreinterpret_u16(svand_x(svptrue_b16(), x, int16_t(0xbf80))));
    }
};
struct E5m2 : StorageFormat<1, true> {
    static VecPair read(const char* at, int count = 2 * kLanes) { return widen_words(read_high_bytes(at, count)); }
};
struct I8 : StorageFormat<1> {
    static V half(const int8_t* x, svbool_t which) { return svcvt_f32_x(svptrue_b32(), svld1sb_s32(which, x)); }
    static VecPair read(const char* at, int count = 2 * kLanes) {
        const int8_t* x = reinterpret_cast<const int8_t*>(at);
        return {half(x, svwhilelt_b32(0, count)), half(x + kLanes, svwhilelt_b32(kLanes, count))};
    }
};

// For the block formats.
inline VI read_bytes(const char* at) { return svreinterpret_s32(svld1ub_u32(svptrue_b32(), reinterpret_cast<const uint8_t*>(at))); }
inline VI read_signed_bytes(const char* at) { return svld1sb_s32(svptrue_b32(), reinterpret_cast<const int8_t*>(at)); }
inline V to_floats(VI x) { return svcvt_f32_x(svptrue_b32(), x); }
inline V splat_half(const char* at) {
    uint16_t x;
    memcpy(&x, at, sizeof x);
    return svcvt_f32_x(svptrue_b32(), svreinterpret_f16(svdup_u16(x)));
}

}  // namespace
}  // namespace cpu
}  // namespace fa
