// The optional operands: one bit of the descriptor and one pointer of the forward's args each, both in one order.
#pragma once
#include "core/call.h"

namespace fa {

constexpr int kOperands = 30;
constexpr uint64_t kAllOperands = (uint64_t(1) << kOperands) - 1;

// The tensor behind the operand of bit `index`, at its address in the args.
Tensor operand_tensor(const Problem&, const fa_forward_args_t&, int index);

// The optional pointers among `read`, each given exactly with its bit. LSE is an input where the forward has written it.
fa_status_t check_operands(const Problem&, const fa_forward_args_t&, uint64_t read, Role lse, Call*);

}  // namespace fa
