#include <string.h>
#include "core/check.h"
#include "core/metadata.h"
#include "core/operands.h"

namespace fa {

// `like` under another name, type, address and, unless all zero, other strides, which become the caller's literal ones.
static fa_status_t lay_like(Tensor like, const char* name, const void* base, int32_t element, bool unit, int64_t* stride, Tensor* tensor,
                            Message* message) {
    like.name = name;
    like.base = base;
    like.element = element;
    bool given = false;
    for (int i = 0; i < like.rank; i++) given |= stride[i] != 0;
    if (given) memcpy(like.stride, stride, sizeof *stride * size_t(like.rank));
    FA_TRY(check_strides(like, unit, message));
    put_strides(like, stride);
    *tensor = like;
    return FA_OK;
}

// A gradient that is wanted.
static fa_status_t check_gradient(const Tensor& tensor, Call* call) {
    if (!tensor.base) return FA_OK;
    FA_TRY(check_distinct(tensor, call->message));
    return call->always(Role::output, tensor);
}

static fa_status_t check_gradients(const Problem& problem, fa_backward_args_t* args, Call* call) {
    Message* m = call->message;
    const bool wide = (args->flags & FA_BACKWARD_ACCUMULATE) != 0;
    const auto bytes = [&](int32_t dtype) { return wide ? 4 : element_size(dtype); };
    Tensor dq, dk, dv;
    FA_TRY(lay_like(q_tensor(problem, "q", nullptr), "dq", args->dq, bytes(problem.d.q_dtype), true, args->dq_stride, &dq, m));
    FA_TRY(lay_like(k_tensor(problem, nullptr), "dk", args->dk, bytes(problem.d.k_dtype), true, args->dk_stride, &dk, m));
    FA_TRY(lay_like(v_tensor(problem, nullptr), "dv", args->dv, bytes(problem.d.v_dtype), true, args->dv_stride, &dv, m));
    FA_TRY(check_gradient(dq, call));
    FA_TRY(check_gradient(dk, call));
    return check_gradient(dv, call);
}

static fa_status_t check_score_gradients(const Problem& problem, fa_backward_args_t* args, Call* call) {
    if (args->dsinks) FA_TRY(call->with(FA_OPERAND_SINKS, Role::output, array_of("dsinks", args->dsinks, 4, problem.d.heads_q)));
    Tensor dbias;
    FA_TRY(lay_like(pair_tensor(problem, "bias", nullptr, 4, problem.d.bias_stride, problem.d.bias_period), "dbias", args->dbias, 4, false,
                    args->dbias_stride, &dbias, call->message));
    if (!args->dbias) return FA_OK;
    FA_TRY(check_distinct(without_repeats(dbias), call->message));
    return call->with(FA_OPERAND_BIAS, Role::output, dbias);
}

// The forward's own args: its tensors, with o and LSE as inputs now. What it did with its stream, workspace and scores is over.
static fa_status_t check_forward_part(const Problem& problem, const fa_forward_args_t* user, bool host_metadata, fa_forward_args_t* out,
                                      Call* call) {
    if (!user) return fail(call->message, FA_INVALID_ARGUMENT, "forward is NULL: expected the fa_forward_args_t of the forward");
    FA_TRY(import_struct(out, user, call->message));
    out->flags = 0;
    out->stream = out->workspace = nullptr;
    out->workspace_size = 0;
    out->scores = nullptr;
    const fa_forward_args_t& f = *out;
    FA_TRY(call->always(Role::input, q_tensor(problem, "q", f.q)));
    FA_TRY(call->always(Role::input, k_tensor(problem, f.k)));
    FA_TRY(call->always(Role::input, v_tensor(problem, f.v)));
    FA_TRY(call->always(Role::input, o_tensor(problem, f.o)));
    FA_TRY(check_operands(problem, f, kAllOperands, Role::input, call));
    if (!host_metadata) return FA_OK;
    FA_TRY(check_input_lengths(problem, f, call->message));
    if (f.key_ranges) FA_TRY(check_key_ranges(problem, f, call->message));
    if (f.key_list || f.full_list) FA_TRY(check_key_lists(problem, f, call->message));
    return f.bias_scale ? check_bias_scale(problem, f.bias_scale, call->message) : FA_OK;
}

fa_status_t check_backward(const Problem& problem, CheckedBackward* args, bool host_metadata, Regions* regions, Message* message) {
    const fa_backward_args_t& a = *args;
    Call call(problem, regions, message);
    FA_TRY(call.common(a.flags, FA_ARGS_STREAM | FA_BACKWARD_ACCUMULATE, a.stream, a.workspace, a.workspace_size));
    if (!regions->asked) FA_TRY(check_forward_part(problem, a.forward, host_metadata, &args->inputs, &call));
    args->forward = &args->inputs;
    Tensor dout, dlse;
    FA_TRY(lay_like(o_tensor(problem, nullptr), "dout", a.dout, element_size(problem.d.q_dtype), true, args->dout_stride, &dout, message));
    FA_TRY(lay_like(lse_tensor(problem, nullptr), "dlse", a.dlse, 4, false, args->dlse_stride, &dlse, message));
    FA_TRY(call.always(Role::input, dout));
    FA_TRY(call.perhaps(Role::input, dlse));
    FA_TRY(check_gradients(problem, args, &call));
    FA_TRY(check_score_gradients(problem, args, &call));
    return call.outputs_apart();
}

}  // namespace fa
