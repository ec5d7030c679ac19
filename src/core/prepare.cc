#include "core/prepare.h"
#include <string.h>
#include "core/handle.h"
#include "core/overlap.h"
#include "core/pointers.h"
#include "core/rules.h"
#include "core/tensor.h"

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

// A tensor that only a backward has gets by default the strides of the forward's. A call cannot have these where elements of an output
// would share memory, as those of dk where k is broadcast, or where wider elements reach too far. It then names others: dense ones.
void lay_apart(Tensor tensor, int32_t element, bool shared, int64_t* stride) {
    Message unsaid;
    tensor.element = element;
    if (!shared && check_fits(tensor, &unsaid) == FA_OK) return;
    if (lay_dense(&tensor, &unsaid) == FA_OK) put_strides(tensor, stride);
}

void choose_strides(const Problem& problem, fa_backward_args_t* args) {
    const fa_attention_desc_t& d = problem.d;
    const Tensor q = q_tensor(problem, "q", nullptr), k = k_tensor(problem, nullptr), v = v_tensor(problem, nullptr);
    lay_apart(o_tensor(problem, nullptr), element_size(d.q_dtype), false, args->dout_stride);
    lay_apart(q, q.element, overlaps_itself(q), args->dq_stride);
    lay_apart(k, k.element, overlaps_itself(k), args->dk_stride);
    lay_apart(v, v.element, overlaps_itself(v), args->dv_stride);
    if (!problem.has(FA_OPERAND_BIAS)) return;
    const Tensor bias = pair_tensor(problem, "bias", nullptr, 4, d.bias_stride, d.bias_period);
    lay_apart(bias, bias.element, overlaps_itself(without_repeats(bias)), args->dbias_stride);
}

fa_status_t prepare_backward(fa_handle_s& handle, const Plan& plan) {
    CheckedBackward args{};
    static_cast<fa_backward_args_t&>(args) = complete_args<fa_backward_args_t>(plan);
    if (!plan.problem.has(FA_OPERAND_BIAS)) args.dbias = nullptr;
    if (!plan.problem.has(FA_OPERAND_SINKS)) args.dsinks = nullptr;
    choose_strides(plan.problem, &args);
    // Other strides have their defaults from the checks, which follow no pointer when they are asked for an extent, though of no tensor.
    Regions regions;
    regions.asked = "";
    FA_TRY(check_backward(plan.problem, &args, false, &regions, &handle.message));
    args.inputs = complete_args<fa_forward_args_t>(plan);
    return prepare_with<fa_backward_args_t>(handle, plan, args);
}

fa_status_t prepare_call(fa_handle_s& handle, const Plan& plan) {
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

}  // namespace

fa_status_t prepare(fa_handle_s& handle, const Plan& plan) {
    if (handle.backend->prepare == nullptr) return FA_OK;
    const fa_status_t status = prepare_call(handle, plan);
    // The descriptor is good, so this is about args, of which these are but an example: a call with others may still be made.
    return status == FA_INVALID_ARGUMENT || status == FA_UNSUPPORTED ? FA_OK : status;
}

}  // namespace fa
