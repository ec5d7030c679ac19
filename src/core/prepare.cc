#include "core/prepare.h"
#include <string.h>
#include "core/handle.h"
#include "core/pointers.h"
#include "core/rules.h"

namespace fa {
namespace {

// Stands for every tensor and the workspace: NULL would mean that it is not there. A multiple of what kernels want of an address.
constexpr uintptr_t kSomewhere = 256;

// Args of a call that gives all that its descriptor allows.
template <class Args>
Args complete_args(const Plan& plan) {
    Args args{};
    args.struct_size = sizeof args;
    for (const Pointer& one : pointers_of<Args>()) memcpy(reinterpret_cast<char*>(&args) + one.offset, &kSomewhere, sizeof kSomewhere);
    args.workspace = reinterpret_cast<void*>(kSomewhere);
    args.workspace_size = plan.workspace;
    return args;
}

template <class Args>
fa_status_t prepare_with(fa_handle_s& handle, const Plan& plan, const Args& args) {
    return handle.backend->prepare(handle.context, &plan, &args, &handle.message);
}

fa_status_t prepare_backward(fa_handle_s& handle, const Plan& plan) {
    CheckedBackward args{};
    static_cast<fa_backward_args_t&>(args) = complete_args<fa_backward_args_t>(plan);
    if (!plan.problem.has(FA_OPERAND_BIAS)) args.dbias = nullptr;
    if (!plan.problem.has(FA_OPERAND_SINKS)) args.dsinks = nullptr;
    // Strides have their defaults from the checks, which follow no pointer when they are asked for an extent, though of no tensor.
    Regions regions;
    regions.asked = "";
    FA_TRY(check_backward(plan.problem, &args, false, &regions, &handle.message));
    args.inputs = complete_args<fa_forward_args_t>(plan);
    return prepare_with<fa_backward_args_t>(handle, plan, args);
}

}  // namespace

fa_status_t prepare(fa_handle_s& handle, const Plan& plan) {
    if (handle.backend->prepare == nullptr) return FA_OK;
    switch (plan.op) {
        case FA_OP_FORWARD: return prepare_with(handle, plan, complete_args<fa_forward_args_t>(plan));
        case FA_OP_BACKWARD: return prepare_backward(handle, plan);
        case FA_OP_MERGE: return prepare_with(handle, plan, complete_args<fa_merge_args_t>(plan));
        case FA_OP_ROTARY: return prepare_with(handle, plan, complete_args<fa_rotary_args_t>(plan));
        default: {
            fa_append_kv_args_t args = complete_args<fa_append_kv_args_t>(plan);
            args.seqlen_new = 1;
            return prepare_with(handle, plan, args);
        }
    }
}

}  // namespace fa
