// What forward and backward read alike, beside q, k and v: operands of the scores, lengths, dropout's state.
#pragma once
#include "core/call.h"

namespace fa {

// Pointers, each given exactly with its operand, and the seed.
fa_status_t check_inputs(const Problem&, const fa_forward_args_t&, Call*);
// Contents of the int32 arrays; they must be readable here.
fa_status_t check_input_lengths(const Problem&, const fa_forward_args_t&, Message*);

}  // namespace fa
