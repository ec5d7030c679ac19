// Fields of a descriptor that act under an operand alone, and what an operation reads of it at all.
#pragma once
#include "core/rules.h"

namespace fa {

static inline bool attends(int32_t op) { return op == FA_OP_FORWARD || op == FA_OP_BACKWARD; }
static inline bool reads_keys(int32_t op) { return attends(op) || op == FA_OP_APPEND_KV; }

// Fields whose operand is off are 0, and reserved ones: of those that the operation reads.
fa_status_t check_belongings(const fa_attention_desc_t&, int32_t op, Message*);

// For tests, which must reach all others: is a field, by its offset, reserved?
bool is_reserved_field(size_t offset);

}  // namespace fa
