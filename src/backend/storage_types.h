// The units of storage types: single elements, or blocks of 32 dims.
#pragma once
#include <flashattn.h>
#include "spec/block_formats.h"

namespace fa {

FA_FN bool is_block_type(int32_t dtype) { return dtype >= FA_Q4_0; }
FA_FN BlockFormat block_format(int32_t dtype) {
    return {dtype == FA_Q8_0 ? 8 : dtype >= FA_Q5_0 ? 5 : 4, dtype == FA_Q4_1 || dtype == FA_Q5_1};
}

// Bytes of a unit, which strides count, and of so many dims of a row.
FA_FN int64_t type_bytes(int32_t dtype) {
    if (is_block_type(dtype)) return block_bytes(block_format(dtype));
    return dtype == FA_F32 ? 4 : dtype == FA_F16 || dtype == FA_BF16 ? 2 : 1;
}
FA_FN int64_t row_bytes(int32_t dtype, int64_t dim) { return (is_block_type(dtype) ? dim / kBlockDims : dim) * type_bytes(dtype); }

}  // namespace fa
