// fa_extent: what the checks know of a tensor, told to the caller. So there is one truth about how far a call reaches.
#include <stddef.h>
#include <string.h>
#include "core/check.h"
#include "core/handle.h"
#include "core/operands.h"

namespace fa {
namespace {

// A pointer to a tensor in an args struct. The checks name each tensor as its field.
struct Pointer {
    uint32_t offset;
    const char* name;
};

#define POINTER(args, field) {offsetof(args, field), #field}
constexpr Pointer kForward[] = {
    POINTER(fa_forward_args_t, q),
    POINTER(fa_forward_args_t, k),
    POINTER(fa_forward_args_t, v),
    POINTER(fa_forward_args_t, o),
#define FA_OPERAND(name, field) POINTER(fa_forward_args_t, field),
#include "core/operands.def"
};
constexpr Pointer kBackward[] = {
    POINTER(fa_backward_args_t, dout), POINTER(fa_backward_args_t, dlse),  POINTER(fa_backward_args_t, dq),
    POINTER(fa_backward_args_t, dk),   POINTER(fa_backward_args_t, dv),    POINTER(fa_backward_args_t, dbias),
    POINTER(fa_backward_args_t, dsinks)};
constexpr Pointer kMerge[] = {
    POINTER(fa_merge_args_t, o_parts), POINTER(fa_merge_args_t, lse_parts), POINTER(fa_merge_args_t, o),
    POINTER(fa_merge_args_t, lse),     POINTER(fa_merge_args_t, sinks),     POINTER(fa_merge_args_t, o_scale),
    POINTER(fa_merge_args_t, cu_seqlens_q), POINTER(fa_merge_args_t, seqused_q)};
constexpr Pointer kAppend[] = {
    POINTER(fa_append_kv_args_t, k_new),       POINTER(fa_append_kv_args_t, v_new),          POINTER(fa_append_kv_args_t, k),
    POINTER(fa_append_kv_args_t, v),           POINTER(fa_append_kv_args_t, k_tail),         POINTER(fa_append_kv_args_t, k_descale),
    POINTER(fa_append_kv_args_t, v_descale),   POINTER(fa_append_kv_args_t, k_shift),        POINTER(fa_append_kv_args_t, v_shift),
    POINTER(fa_append_kv_args_t, cu_seqlens_new), POINTER(fa_append_kv_args_t, seqused_new), POINTER(fa_append_kv_args_t, positions),
    POINTER(fa_append_kv_args_t, seqused_k),   POINTER(fa_append_kv_args_t, leftpad_k),      POINTER(fa_append_kv_args_t, kv_batch_idx),
    POINTER(fa_append_kv_args_t, page_table),  POINTER(fa_append_kv_args_t, device_status),  POINTER(fa_append_kv_args_t, cos),
    POINTER(fa_append_kv_args_t, sin)};
constexpr Pointer kRotary[] = {
    POINTER(fa_rotary_args_t, x),         POINTER(fa_rotary_args_t, out),             POINTER(fa_rotary_args_t, cos),
    POINTER(fa_rotary_args_t, sin),       POINTER(fa_rotary_args_t, positions),       POINTER(fa_rotary_args_t, position_offset),
    POINTER(fa_rotary_args_t, cu_seqlens), POINTER(fa_rotary_args_t, seqused)};

// Runs the operation's checks on a copy of the args in which the pointer in question is given. It stands for nothing: checks that ask for
// an extent follow no pointer.
template <class Args, class Checked, size_t N>
fa_status_t measure(const Problem& p, const void* user, uint32_t field, const Pointer (&pointers)[N],
                    fa_status_t (*check)(const Problem&, const Args*, bool, Checked*, Regions*, Message*), uint64_t* bytes, Message* m) {
    const Pointer* asked = nullptr;
    for (const Pointer& one : pointers)
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
    Problem p;
    const fa_status_t status = resolve(desc, op, &p, m);
    if (status != FA_OK) return status;
    switch (op) {
        case FA_OP_FORWARD: return measure(p, args, field, kForward, check_forward, bytes, m);
        case FA_OP_BACKWARD: return measure(p, args, field, kBackward, check_backward, bytes, m);
        case FA_OP_MERGE: return measure(p, args, field, kMerge, check_merge, bytes, m);
        case FA_OP_APPEND_KV: return measure(p, args, field, kAppend, check_append_kv, bytes, m);
        default: return measure(p, args, field, kRotary, check_rotary, bytes, m);
    }
}
