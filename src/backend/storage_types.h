// Bytes of an element of each storage type: f32, the 16-bit floats, the 8-bit floats and integers.
#pragma once
#include <flashattn.h>
#include "spec/numerics.h"

namespace fa {

FA_FN int64_t type_bytes(int32_t dtype) { return dtype == FA_F32 ? 4 : dtype == FA_F16 || dtype == FA_BF16 ? 2 : 1; }

}  // namespace fa
