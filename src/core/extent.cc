// fa_extent: what the checks know of a tensor, told to the caller. So there is one truth about how far a call reaches: the checks
// name each tensor as its field.
#include <string.h>
#include "core/check.h"
#include "core/handle.h"
#include "core/pointers.h"
#include "core/rules.h"

namespace fa {
namespace {

// Runs the operation's checks on a copy of the args in which the pointer in question is given. It stands for nothing: checks that ask for
// an extent follow no pointer.
template <class Args, class Checked>
fa_status_t measure(const fa_attention_desc_t* desc, int32_t op, const void* user, uint32_t field,
                    fa_status_t (*check)(const Problem&, Checked*, bool, Regions*, Message*), uint64_t* bytes, Message* message) {
    Checked args;
    fa_attention_desc_t of_k;
    Problem p;
    FA_TRY(import_struct<Args>(&args, static_cast<const Args*>(user), message));
    FA_TRY(choose_desc(args, &desc, &of_k, message));
    FA_TRY(resolve(desc, op, &p, message));
    const Pointer* asked = nullptr;
    for (const Pointer& one : pointers_of<Args>())
        if (one.offset == field) asked = &one;
    if (asked == nullptr)
        return fail(message, FA_INVALID_ARGUMENT, "field is %u: expected the offset of a pointer to a tensor in the args", field);
    constexpr uintptr_t kGiven = 256;  // aligned for every type
    memcpy(reinterpret_cast<char*>(&args) + field, &kGiven, sizeof kGiven);
    Regions regions;
    regions.asked = asked->name;
    FA_TRY(check(p, &args, false, &regions, message));
    *bytes = regions.extent;
    return FA_OK;
}

}  // namespace
}  // namespace fa

fa_status_t fa_extent(const fa_attention_desc_t* desc, int32_t op, const void* args, uint32_t field, uint64_t* bytes) {
    using namespace fa;
    Message* m = thread_message();
    if (bytes == nullptr) return fail(m, FA_INVALID_ARGUMENT, "bytes is NULL: expected where to write the extent");
    FA_TRY(in_range(m, "op", op, FA_OP_FORWARD, FA_OP_BACKWARD));
    switch (op) {
        case FA_OP_FORWARD: return measure<fa_forward_args_t>(desc, op, args, field, check_forward, bytes, m);
        case FA_OP_BACKWARD: return measure<fa_backward_args_t>(desc, op, args, field, check_backward, bytes, m);
        case FA_OP_MERGE: return measure<fa_merge_args_t>(desc, op, args, field, check_merge, bytes, m);
        case FA_OP_APPEND_KV: return measure<fa_append_kv_args_t>(desc, op, args, field, check_append_kv, bytes, m);
        default: return measure<fa_rotary_args_t>(desc, op, args, field, check_rotary, bytes, m);
    }
}
