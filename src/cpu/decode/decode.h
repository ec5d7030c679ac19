// Few query rows for a kv head.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// False where the call does not suit.
bool decode_method(const Problem& problem, const Kernels& kernels, Method* method);

}  // namespace cpu
}  // namespace fa
