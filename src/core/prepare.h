// Before a call: its backend loads the kernels that the call will launch.
#pragma once
#include "core/check.h"

struct fa_handle_s;

namespace fa {

fa_status_t prepare(fa_handle_s& handle, const Plan&);

}  // namespace fa
