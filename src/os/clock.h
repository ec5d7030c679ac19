// A clock that only goes forwards.
#pragma once
#include <stdint.h>

namespace fa {
namespace os {

int64_t monotonic_ns();

}  // namespace os
}  // namespace fa
