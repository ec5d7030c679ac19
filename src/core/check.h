// From what the caller wrote to what a backend may trust. Each function imports a sized struct, checks every field against the
// contract, fills in defaults, and reports the first fault with the field's name, its value and what was expected.
#pragma once
#include "backend/backend.h"

namespace fa {

// Checks the descriptor for one operation (FA_OP_…) and fills in defaults.
fa_status_t resolve(const fa_attention_desc_t* user, int32_t op, Problem* problem, Message* message);

// The bytes that a checked call touches in the caller's memory, first and one past the last of each tensor.
struct Region {
    uintptr_t begin, end;
    bool output;
    char* device;  // where staging has put it
};
struct Regions {
    static constexpr int kMost = 32;
    Region region[kMost];
    int count;
};

// host_metadata: int32 arrays are readable here, so their contents are checked as well. regions: what the call touches, workspace apart.
fa_status_t check_forward(const Problem& p, const fa_forward_args_t* user, bool host_metadata, fa_forward_args_t* out,
                          Regions* regions, Message*);
fa_status_t check_backward(const Problem& p, const fa_backward_args_t* user, bool host_metadata, fa_backward_args_t* out,
                           Regions* regions, Message*);
fa_status_t check_merge(const Problem& p, const fa_merge_args_t* user, bool host_metadata, fa_merge_args_t* out, Regions* regions,
                        Message*);
fa_status_t check_append_kv(const Problem& p, const fa_append_kv_args_t* user, bool host_metadata, fa_append_kv_args_t* out,
                            Regions* regions, Message*);
fa_status_t check_rotary(const Problem& p, const fa_rotary_args_t* user, bool host_metadata, fa_rotary_args_t* out,
                         Regions* regions, Message*);

// Copies min(user's size, size) bytes of a sized struct into `to` (zeroed first). Smaller than `minimum`: invalid; a tail beyond
// `size` that is not all zero: unsupported field. `to` then says `size` as its own.
fa_status_t import_struct(void* to, const void* user, uint32_t size, uint32_t minimum, const char* name, Message* message);

}  // namespace fa
