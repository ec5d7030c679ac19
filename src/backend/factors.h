// De-scale factors and shifts: value = stored · factor + shift, one of each for so many rows and dims.
#pragma once
#include "backend/problem.h"

namespace fa {

struct Factors {
    const void *factor, *shift;  // NULL: none; of the same type and index
    int32_t dtype;
    int64_t block[2];   // rows and dims that share one
    int64_t stride[4];  // of sequences or pages, blocks of rows, heads, blocks of dims
};

FA_FN float load_factor(const void* base, int64_t index, int32_t dtype) {
    switch (dtype) {
        case FA_F16: return f16_to_f32(static_cast<const uint16_t*>(base)[index]);
        case FA_BF16: return bf16_to_f32(static_cast<const uint16_t*>(base)[index]);
        case FA_E4M3: return e4m3_to_f32(static_cast<const uint8_t*>(base)[index]);
        case FA_E8M0: return e8m0_to_f32(static_cast<const uint8_t*>(base)[index]);
        default: return static_cast<const float*>(base)[index];
    }
}

// Of a row's first block of dims; the next one's is stride[3] further on.
FA_FN int64_t factor_index(const Factors& factors, int64_t outer, int64_t row, int64_t head) {
    return outer * factors.stride[0] + row / factors.block[0] * factors.stride[1] + head * factors.stride[2];
}
// Of what attention multiplies: see nan_if_infinite().
FA_FN float scaled_value(const Factors& factors, int64_t index, float stored) {
    const float value = stored * nan_if_infinite(load_factor(factors.factor, index, factors.dtype));
    return factors.shift ? value + nan_if_infinite(load_factor(factors.shift, index, factors.dtype)) : value;
}

// Rounded to a factor's type, and to a number of it: one that is none stays so, and a positive one stays positive.
FA_FN float nearest_factor(float x, int32_t dtype) {
    const float most = dtype == FA_F16 ? 65504.f : dtype == FA_BF16 ? 0x1.fep+127f : dtype == FA_E4M3 ? kMaxE4M3 : kMaxFloat;
    const float least = dtype == FA_F16 ? 0x1p-24f : dtype == FA_E4M3 ? 0x1p-9f : dtype == FA_E8M0 ? 0x1p-126f : 0.f;
    float y = x > most ? most : x < -most ? -most : x;
    if (dtype == FA_F16) y = f16_to_f32(f32_to_f16(y));
    if (dtype == FA_BF16) y = bf16_to_f32(f32_to_bf16(y));
    if (dtype == FA_E4M3) y = e4m3_to_f32(f32_to_e4m3(y));
    if (dtype == FA_E8M0) y = e8m0_to_f32(f32_to_e8m0(y));
    return y < least && x > 0.f ? least : y;
}
FA_FN void store_factor(void* base, int64_t index, int32_t dtype, float x) {
    switch (dtype) {
        case FA_F16: static_cast<uint16_t*>(base)[index] = f32_to_f16(x); break;
        case FA_BF16: static_cast<uint16_t*>(base)[index] = f32_to_bf16(x); break;
        case FA_E4M3: static_cast<uint8_t*>(base)[index] = f32_to_e4m3(x); break;
        case FA_E8M0: static_cast<uint8_t*>(base)[index] = f32_to_e8m0(x); break;
        default: static_cast<float*>(base)[index] = x; break;
    }
}

// The values that share a factor which is computed from them: the smallest and largest number, and whether all are finite.
struct ValueRange {
    float low, high;
    bool finite;
};
FA_FN ValueRange no_values() { return {kPosInf, kNegInf, true}; }
FA_FN void add_value(ValueRange* range, float x) {
    range->low = fminf(range->low, x);
    range->high = max_fn(range->high, x);
    range->finite = range->finite && fabsf(x) <= kMaxFloat;
}
struct Scaling {
    float factor, shift;
};
// Of what FA_APPEND_DYNAMIC_SCALE stores: the range's ends become the type's. Types of 4 bits have no NaN: their factor is one where a
// value is not finite.
FA_FN Scaling dynamic_scaling(const ValueRange& range, int32_t dtype, int32_t factor_dtype, bool shifted) {
    if (is_nibble_type(dtype) && !range.finite) return {float_of(0x7fc00000u), 0.f};
    const float top = range.low <= range.high ? max_fn(fabsf(range.low), fabsf(range.high)) : 0.f;
    const float factor = dynamic_descale(shifted ? range.high - range.low : top, largest_value(dtype));
    if (factor_dtype == FA_F32 && !is_nibble_type(dtype)) return {factor, 0.f};
    return {nearest_factor(factor, factor_dtype), shifted ? nearest_factor(range.low, factor_dtype) : 0.f};
}

static inline Factors factors_of(const void* factor, const void* shift, int32_t dtype, const int64_t block[2], const int64_t stride[4]) {
    return {factor, shift, dtype, {block[0], block[1]}, {stride[0], stride[1], stride[2], stride[3]}};
}
static inline Factors q_factors(const Problem& problem, const void* factor) {
    return factors_of(problem.has(FA_OPERAND_Q_DESCALE) ? factor : nullptr, nullptr, problem.d.q_descale_dtype, problem.d.q_descale_block,
                      problem.d.q_descale_stride);
}
static inline Factors k_factors(const Problem& problem, const void* factor, const void* shift) {
    return factors_of(problem.has(FA_OPERAND_K_DESCALE) ? factor : nullptr, problem.has(FA_OPERAND_K_SHIFT) ? shift : nullptr,
                      problem.d.k_descale_dtype, problem.d.k_descale_block, problem.d.k_descale_stride);
}
static inline Factors v_factors(const Problem& problem, const void* factor, const void* shift) {
    return factors_of(problem.has(FA_OPERAND_V_DESCALE) ? factor : nullptr, problem.has(FA_OPERAND_V_SHIFT) ? shift : nullptr,
                      problem.d.v_descale_dtype, problem.d.v_descale_block, problem.d.v_descale_stride);
}

}  // namespace fa
