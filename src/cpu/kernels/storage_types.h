// The storage types (f32 … int8): their index in the tables of conversions, and addresses of elements.
#pragma once
#include "backend/storage_types.h"

namespace fa {
namespace cpu {

// Where tables of storage formats have a type: f32, f16, bf16, e4m3, e5m2 and i8 at 1 … 6, q4_0, q4_1, q5_0, q5_1 and q8_0 behind them, and
// then e2m1, i4 and u4, which decoding does not read; 0 unused.
constexpr int kTypes = 15, kSingleTypes = 7, kDecodeTypes = 12;
static inline int type_index(int32_t dtype) {
    if (is_block_type(dtype)) return dtype == FA_Q8_0 ? 11 : dtype >= FA_Q5_0 ? dtype - FA_Q5_0 + 9 : dtype - FA_Q4_0 + 7;
    if (is_nibble_type(dtype)) return kDecodeTypes + (dtype == FA_E2M1 ? 0 : dtype - FA_I4 + 1);
    return dtype < FA_E4M3 ? dtype : dtype < FA_I8 ? dtype - FA_E4M3 + 4 : 6;
}

// Address of unit `index` of a tensor of that type.
static inline const char* element(const void* base, int64_t index, int32_t dtype) {
    return static_cast<const char*>(base) + index * type_bytes(dtype);
}
static inline char* element(void* base, int64_t index, int32_t dtype) { return static_cast<char*>(base) + index * type_bytes(dtype); }

}  // namespace cpu
}  // namespace fa
