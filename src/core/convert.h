// fa_convert in host memory.
#pragma once
#include "backend/move.h"

namespace fa {

// By the calling thread.
void move_in_host(const Move&);

}  // namespace fa
