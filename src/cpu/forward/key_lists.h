// Lists of keys as bits.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// Writes the bits of list `index` of call.sets.lists.
void expand_list(const Call& call, int64_t index);

}  // namespace cpu
}  // namespace fa
