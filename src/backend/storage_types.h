// The units of storage types: single elements, two of 4 bits in a byte, or blocks of 32 dims.
#pragma once
#include <flashattn.h>
#include "spec/block_formats.h"
#include "spec/small_formats.h"

namespace fa {

FA_FN bool is_block_type(int32_t dtype) { return dtype >= FA_Q4_0; }
FA_FN BlockFormat block_format(int32_t dtype) {
    return {dtype == FA_Q8_0 ? 8 : dtype >= FA_Q5_0 ? 5 : 4, dtype == FA_Q4_1 || dtype == FA_Q5_1};
}

// The types of 4 bits: a value by its code, and the other way.
FA_FN constexpr bool is_nibble_type(int32_t dtype) { return dtype == FA_E2M1 || dtype == FA_I4 || dtype == FA_U4; }
FA_FN float nibble_to_f32(uint32_t code, int32_t dtype) {
    return dtype == FA_E2M1 ? e2m1_to_f32(code) : dtype == FA_I4 ? i4_to_f32(code) : u4_to_f32(code);
}
FA_FN uint32_t f32_to_nibble(float x, int32_t dtype) {
    return dtype == FA_E2M1 ? f32_to_e2m1(x) : dtype == FA_I4 ? f32_to_i4(x) : f32_to_u4(x);
}

// Does a byte hold one value?
FA_FN constexpr bool is_byte_type(int32_t dtype) { return dtype == FA_E4M3 || dtype == FA_E5M2 || dtype == FA_I8; }

// Of 8 bits or fewer?
FA_FN bool is_scaled_type(int32_t dtype) { return is_byte_type(dtype) || is_nibble_type(dtype) || is_block_type(dtype); }

// Bytes and dims of a unit, which strides count, and bytes of so many dims of a row.
FA_FN int64_t type_bytes(int32_t dtype) {
    if (is_block_type(dtype)) return block_bytes(block_format(dtype));
    return dtype == FA_F32 ? 4 : dtype == FA_F16 || dtype == FA_BF16 ? 2 : 1;
}
FA_FN int64_t unit_dims(int32_t dtype) { return is_block_type(dtype) ? kBlockDims : is_nibble_type(dtype) ? 2 : 1; }
FA_FN int64_t row_bytes(int32_t dtype, int64_t dim) { return dim / unit_dims(dtype) * type_bytes(dtype); }

// The largest value of a type that factors scale to.
FA_FN float largest_value(int32_t dtype) {
    switch (dtype) {
        case FA_E4M3: return kMaxE4M3;
        case FA_E5M2: return kMaxE5M2;
        case FA_E2M1: return kMaxE2M1;
        case FA_I4: return kMaxI4;
        case FA_U4: return kMaxU4;
        default: return kMaxI8;
    }
}

}  // namespace fa
