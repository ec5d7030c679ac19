// Products of tiles of 16-bit values.
#pragma once
#include "cpu/driver/call.h"

namespace fa {
namespace cpu {

// False where the CPU or the call does not suit.
bool matrix_method(const Problem& problem, const Kernels& kernels, Method* method);

}  // namespace cpu
}  // namespace fa
