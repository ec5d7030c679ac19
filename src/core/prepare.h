// Before a call: its backend loads the kernels that the call will launch. What fails is that; whether args are good is the call's to say.
#pragma once
#include "core/check.h"

struct fa_handle_s;

namespace fa {

fa_status_t prepare(fa_handle_s& handle, const Plan&);

}  // namespace fa
