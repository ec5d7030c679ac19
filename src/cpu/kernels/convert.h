// Conversion between f32 and the storage types, for kernel_table.h's widen and narrow.
#pragma once
#include "cpu/kernels/vector_math.h"

namespace fa {
namespace cpu {
namespace {

#define FA_WIDEN(name, T, expression)                              \
    static void name(const void* from, int64_t count, float* to) { \
        const T* x = static_cast<const T*>(from);                  \
        for (int64_t i = 0; i < count; i++) to[i] = expression;    \
    }
#define FA_NARROW(name, T, expression)                          \
    static void name(const float* x, int64_t count, void* to) { \
        T* y = static_cast<T*>(to);                             \
        for (int64_t i = 0; i < count; i++) y[i] = expression;  \
    }
FA_WIDEN(widen_f32, float, x[i])
FA_WIDEN(widen_bf16, uint16_t, bf16_to_f32(x[i]))
FA_WIDEN(widen_e4m3, uint8_t, e4m3_to_f32(x[i]))
FA_WIDEN(widen_e5m2, uint8_t, e5m2_to_f32(x[i]))
FA_WIDEN(widen_i8, int8_t, float(x[i]))
FA_NARROW(narrow_f32, float, x[i])
FA_NARROW(narrow_f16, uint16_t, f32_to_f16(x[i]))
FA_NARROW(narrow_bf16, uint16_t, f32_to_bf16(x[i]))
FA_NARROW(narrow_e4m3, uint8_t, f32_to_e4m3(x[i]))
FA_NARROW(narrow_e5m2, uint8_t, f32_to_e5m2(x[i]))
FA_NARROW(narrow_i8, int8_t, f32_to_i8(x[i]))

// Where the instruction set has none of its own.
template <class T>
static inline V widen_halves(const T* x) {
    float wide[kLanes];
    for (int i = 0; i < kLanes; i++) wide[i] = f16_to_f32(x[i]);
    return load(wide);
}

static void widen_f16(const void* from, int64_t count, float* to) {
    const uint16_t* x = static_cast<const uint16_t*>(from);
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) store(to + i, widen_halves(x + i));
    for (; i < count; i++) to[i] = f16_to_f32(x[i]);
}
#undef FA_WIDEN
#undef FA_NARROW

// Types of 4 bits, whose rows have an even number of dims.
template <int32_t Dtype>
static void widen_nibbles(const void* from, int64_t count, float* to) {
    const uint8_t* x = static_cast<const uint8_t*>(from);
    float values[16];
    for (uint32_t code = 0; code < 16; code++) values[code] = nibble_to_f32(code, Dtype);
    for (int64_t i = 0; i < count; i += 2) {
        to[i] = values[x[i / 2] & 15];
        to[i + 1] = values[x[i / 2] >> 4];
    }
}
template <int32_t Dtype>
static void narrow_nibbles(const float* x, int64_t count, void* to) {
    uint8_t* y = static_cast<uint8_t*>(to);
    for (int64_t i = 0; i < count; i += 2) y[i / 2] = uint8_t(f32_to_nibble(x[i], Dtype) | f32_to_nibble(x[i + 1], Dtype) << 4);
}

// By type_index().
constexpr void (*kWiden[kSingleTypes])(const void*, int64_t, float*) = {nullptr,    widen_f32,  widen_f16, widen_bf16,
                                                                        widen_e4m3, widen_e5m2, widen_i8};
constexpr void (*kNarrow[kSingleTypes])(const float*, int64_t, void*) = {nullptr,     narrow_f32,  narrow_f16, narrow_bf16,
                                                                         narrow_e4m3, narrow_e5m2, narrow_i8};
// Values of an 8-bit type as FA_BF16 or FA_F16 has them, exactly.
static inline void convert_bytes(int32_t from_type, const void* from, int count, int32_t type, uint16_t* to) {
    float values[64];
    for (int at = 0; at < count; at += 64) {
        const int n = count - at < 64 ? count - at : 64;
        kWiden[type_index(from_type)](static_cast<const char*>(from) + at, n, values);
        if (type == FA_F16) narrow_f16(values, n, to + at);
        else narrow_bf16(values, n, to + at);
    }
}
constexpr void (*kWidenNibbles[])(const void*, int64_t, float*) = {widen_nibbles<FA_E2M1>, widen_nibbles<FA_I4>, widen_nibbles<FA_U4>};
constexpr void (*kNarrowNibbles[])(const float*, int64_t, void*) = {narrow_nibbles<FA_E2M1>, narrow_nibbles<FA_I4>, narrow_nibbles<FA_U4>};

}  // namespace
}  // namespace cpu
}  // namespace fa
