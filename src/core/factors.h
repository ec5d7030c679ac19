// What a descriptor says of rows that are more than stored elements: factors and shifts, and tails.
#pragma once
#include "core/rules.h"

namespace fa {

// Types, blocks and shifts of factors, with defaults filled in: a block has at least a row and a dim, and no more dims than there are.
fa_status_t check_factors(Problem* problem, int32_t op, Message*);
// The dims of tails, and their types; before anything depends on how many dims q and k hold themselves.
fa_status_t check_tails(fa_attention_desc_t* desc, int32_t op, Message*);
// Once strides are known: factors that do not change along rows or dims have blocks of one row, or of all dims, so that there is one way to
// say it to a backend.
void settle_blocks(Problem* problem);

}  // namespace fa
