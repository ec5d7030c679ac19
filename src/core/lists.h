// Lists of keys and of slots of a cache: what a descriptor may say of them.
#pragma once
#include "backend/problem.h"
#include "core/rules.h"

namespace fa {

// Fills in defaults. Under FA_LIST_SLOTS seqlen_k becomes the entries' number.
fa_status_t check_lists(fa_attention_desc_t*, int32_t op, Message*);
// Lists whose bits a backend could count, once their strides are known.
fa_status_t check_list_bytes(const Problem&, Message*);

}  // namespace fa
