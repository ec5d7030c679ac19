// The forward calls that `verify` makes: every type, mask, length and layout that the contract names, small enough to run in seconds.
#pragma once
#include <flashattn.h>
#include <string>
#include <vector>

namespace tool {

enum class Data {
    normal,     // benign: the norm of the error is bounded
    steep,      // logits of about ± 1e4
    counting,   // all logits equal, v the unit vector of its key: o counts keys
    ascending,  // every key a new maximum
    one_huge,   // one key outweighs all others
    limit       // v near the largest value of its type, signs mixed
};

// The descriptor, and the arrays whose values matter. Everything else follows from the operands.
struct ForwardCase {
    std::string name;
    Data data = Data::normal;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    std::vector<int32_t> cu_q, cu_k, used_q, used_k, leftpad, kv_index, pages, offsets;
};

std::vector<ForwardCase> forward_cases();

}  // namespace tool
