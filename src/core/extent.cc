// fa_extent: what the checks know of a tensor, told to the caller. So there is one truth about how far a call reaches: the checks
// name each tensor as its field.
#include <string.h>
#include "core/check.h"
#include "core/handle.h"
#include "core/pointers.h"

namespace fa {
namespace {

// Runs the operation's checks on a copy of the args in which the pointer in question is given. It stands for nothing: checks that ask for
// an extent follow no pointer.
template <class Args, class Checked>
fa_status_t measure(const Problem& p, const void* user, uint32_t field,
                    fa_status_t (*check)(const Problem&, const Args*, bool, Checked*, Regions*, Message*), uint64_t* bytes, Message* m) {
    const Pointer* asked = nullptr;
    for (const Pointer& one : pointers_of<Args>())
        if (one.offset == field) asked = &one;
    if (asked == nullptr) return fail(m, FA_INVALID_ARGUMENT, "field is %u: expected the offset of a pointer to a tensor in the args", field);
    Args args;
    const fa_status_t readable = import_struct(&args, static_cast<const Args*>(user), m);
    if (readable != FA_OK) return readable;
    constexpr uintptr_t kGiven = 256;  // aligned for every type
    memcpy(reinterpret_cast<char*>(&args) + field, &kGiven, sizeof kGiven);
    Regions regions;
    regions.asked = asked->name;
    Checked ignored;
    const fa_status_t status = check(p, &args, false, &ignored, &regions, m);
    if (status == FA_OK) *bytes = regions.extent;
    return status;
}

}  // namespace
}  // namespace fa

fa_status_t fa_extent(const fa_attention_desc_t* desc, int32_t op, const void* args, uint32_t field, uint64_t* bytes) {
    using namespace fa;
    Message* m = thread_message();
    if (bytes == nullptr) return fail(m, FA_INVALID_ARGUMENT, "bytes is NULL: expected where to write the extent");
    fa_attention_desc_t of_k;
    const auto* const rotary = op == FA_OP_ROTARY ? static_cast<const fa_rotary_args_t*>(args) : nullptr;
    if (rotary != nullptr && rotary->flags & FA_ROTARY_OF_K) {
        const fa_status_t status = rotary_of_k(desc, &of_k, m);
        if (status != FA_OK) return status;
        desc = &of_k;
    }
    Problem p;
    const fa_status_t status = resolve(desc, op, &p, m);
    if (status != FA_OK) return status;
    switch (op) {
        case FA_OP_FORWARD: return measure(p, args, field, check_forward, bytes, m);
        case FA_OP_BACKWARD: return measure(p, args, field, check_backward, bytes, m);
        case FA_OP_MERGE: return measure(p, args, field, check_merge, bytes, m);
        case FA_OP_APPEND_KV: return measure(p, args, field, check_append_kv, bytes, m);
        default: return measure(p, args, field, check_rotary, bytes, m);
    }
}
