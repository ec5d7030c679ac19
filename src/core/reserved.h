// What the interface has room for and no backend does yet. A feature that lands deletes its rows.
#pragma once
#include "core/rules.h"

namespace fa {

// What an operation reads of a descriptor.
static inline bool attends(int32_t op) { return op == FA_OP_FORWARD || op == FA_OP_BACKWARD; }
static inline bool reads_keys(int32_t op) { return attends(op) || op == FA_OP_APPEND_KV; }

// Flags, operands and fields that are reserved, and fields whose operand is off. Only what the operation reads counts.
fa_status_t check_reserved(const fa_attention_desc_t&, int32_t op, Message*);
fa_status_t check_reserved(const fa_rotary_args_t&, Message*);
fa_status_t check_reserved(const fa_append_kv_args_t&, Message*);

// For tests, which must reach all others: the reserved operands, and whether a field, by its offset, is reserved altogether.
uint64_t reserved_operands();
bool is_reserved_field(size_t offset);

}  // namespace fa
