// The calls of gradients: which family takes one, what fa_explain says of it, and the launches: preprocess, tiles, and the sums of dbias
// and dsinks.
#pragma once
#include "gpu/backward/bias.h"
#include "gpu/host/backward_families.h"
#include "gpu/host/explain.h"

namespace fa {
namespace gpu {
namespace {

// Asks the families in their order; the last takes every call.
void plan_launch(const rt::Device& device, const Problem& problem, Tensors tensors, BackwardLaunch* plan, FamilyParams* own) {
    for (const BackwardFamily* const family : backward_families().list) {
        if (!family || family->least > tensors) continue;
        *plan = BackwardLaunch{};
        plan->family = family;
        if (family->plan(device, problem, tensors, plan, own, nullptr)) break;
    }
    plan->dq_acc_bytes = uint64_t(round_up(problem.d.heads_q * padded_rows_of(problem) * plan->dq_acc_columns * 4, 256));
}

// Each family's parameters, as far as they follow from the problem.
void set_gradients(const Problem& problem, GradientParams* params) {
    set_shape(problem, params);
    params->padded_rows = padded_rows_of(problem);
    params->causal = problem.causal();
}
// In place: of an object that is returned and assigned, GCC 12.2 keeps the types alone (-ftree-sra; tests/cuda/launches.c).
void set_backward_rows(const Problem& problem, BackwardRowParams* params) {
    const fa_attention_desc_t& d = problem.d;
    *params = BackwardRowParams{};
    set_gradients(problem, params);
    params->o_strides = row_strides(d.o_stride, problem.packed_q());
    params->lse_strides = lse_strides(d.lse_stride, problem.packed_q());
    params->dim_qk = d.dim_qk;
    params->scale = d.scale;
    params->q_dtype = d.q_dtype;
    params->k_dtype = d.k_dtype;
    params->o_dtype = d.o_dtype;
}
SimtBackwardParams backward_simt(const Problem& problem) {
    SimtBackwardParams params{};
    set_gradients(problem, &params);
    set_product(problem, &params);
    set_dropout(problem, &params);
    params.v_strides = row_strides(problem.d.v_stride, problem.packed_k());
    params.scale = problem.d.scale;
    return params;
}
MmaBackwardParams backward_mma(const Problem& problem) {
    MmaBackwardParams params{};
    set_gradients(problem, &params);
    set_mma_call(problem, &params);
    params.features = features_of(problem, false, false);
    params.q_dtype = problem.d.q_dtype;
    return params;
}

fa_status_t plan_backward(const rt::Device& device, BackwardPlan* plan, Message* message) {
    const Problem& problem = plan->problem;
    const fa_attention_desc_t& d = problem.d;
    const int64_t padded_rows = padded_rows_of(problem);
    // Packed rows may be more than the blocks of their longest sequence tell. Fewer than this overflow nothing below.
    if (padded_rows > (kMaxBlocks * kPaddedRows - 1) / d.heads_q)
        return fail(message, FA_UNSUPPORTED, "%lld rows, padded, of %lld heads: the backward has room for fewer than 2^38 in all",
                    (long long)padded_rows, (long long)d.heads_q);
    set_backward_rows(problem, &plan->rows);
    plan->simt = backward_simt(problem);
    plan->mma = backward_mma(problem);
    const bool key_padding = !problem.packed_k() && problem.has(FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K);
    plan->key_blocks = key_padding ? d.batch * d.heads_k * ceil_div(d.seqlen_k, kPaddedRows) : 0;
    plan->rows_bytes = uint64_t(round_up(d.heads_q * padded_rows * 4, 256));
    Refusal lists;
    if (!plan_lists(problem, &plan->list_bytes, &lists)) return fail(message, FA_UNSUPPORTED, "%s", lists.text);
    plan->workspace = 0;
    for (const Tensors tensors : {kAnyTensors, kVec16Tensors, kTmaTensors}) {
        BackwardLaunch& launch = plan->launch[tensors];
        plan_launch(device, problem, tensors, &launch, &plan->own);
        if (max_of(max_of(launch.by_keys_blocks, launch.by_rows_blocks), launch.row_blocks + plan->key_blocks) >= kMaxBlocks)
            return fail(message, FA_UNSUPPORTED,
                        "%lld rows and heads, %lld keys and heads: one launch of the backward holds fewer than 2^31 blocks",
                        (long long)(d.batch * d.heads_q * d.seqlen_q), (long long)(d.batch * d.heads_k * d.seqlen_k));
        const uint64_t bytes = 2 * plan->rows_bytes + launch.dq_acc_bytes + launch.workspace + plan->list_bytes;
        plan->workspace = bytes > plan->workspace ? bytes : plan->workspace;
    }
    return FA_OK;
}

void explain_backward(const Context& context, const BackwardPlan& plan, char* text, uint64_t n) {
    const BackwardLaunch& launch = plan.launch[kTmaTensors];
    const rt::Device device = unreserved(context.properties, plan.problem.d);
    Words words{text, n};
    words.say("kernel %s", launch.kernel);
    if (launch.columns > 0) words.say("_%d", launch.columns);
    say_device(context.properties, context.host, &words);
    words.say(", tiles of %d rows x %d keys", launch.rows, launch.keys);
    if (launch.blocks > 0) words.say(", %lld blocks", (long long)launch.blocks);
    else words.say(", %s", launch.dq_acc_columns > 0 ? "dq added up in any order" : "dk and dv by keys, dq by rows");
    if (launch.family->least < kTmaTensors && rt::compiles_kernels()) words.say("%s", kCompiledAtFirst);
    Reasons reasons{&words, {}};
    for (const BackwardFamily* const family : backward_families().list) {
        if (family == launch.family) break;
        BackwardLaunch refused{};
        FamilyParams own;
        Refusal refusal{};
        family->plan(device, plan.problem, kTmaTensors, &refused, &own, &refusal);
        reasons.add(family->name, refusal);
    }
    reasons.end();
}

fa_status_t check_gradients(const Context& context, const Problem& problem, const fa_backward_args_t& args, Message* message) {
    const fa_forward_args_t& forward = *args.forward;
    const int64_t queries = problem.d.batch == 0 ? 0 : problem.packed_q() ? problem.d.total_q : problem.d.seqlen_q;
    const int64_t keys = problem.d.batch == 0 ? 0 : problem.packed_k() ? problem.d.total_k : problem.d.seqlen_k;
    const struct {
        const void* pointer;
        const char* name;
        int64_t rows;
    } tensors[] = {{forward.q, "q", queries}, {forward.k, "k", keys},        {forward.v, "v", keys},
                   {forward.o, "o", queries}, {forward.lse, "lse", queries}, {args.dout, "dout", queries},
                   {args.dq, "dq", queries},  {args.dk, "dk", keys},         {args.dv, "dv", keys}};
    for (const auto& t : tensors) {
        const fa_status_t status = t.rows > 0 ? check_pointer(context, t.pointer, t.name, message) : FA_OK;
        if (status != FA_OK) return status;
    }
    return FA_OK;
}

BackwardRowParams row_params(const BackwardCall& call) {
    const Problem& problem = call.plan.problem;
    const fa_backward_args_t& args = call.args;
    BackwardRowParams params = call.plan.rows;
    set_gradient_tensors(call, &params);
    params.o = args.forward->o;
    params.lse = args.forward->lse;  // whether the forward was asked for it or not
    params.sinks = operand(problem, FA_OPERAND_SINKS, args.forward->sinks);
    params.dout = args.dout;
    params.dlse = args.dlse;
    params.dsinks = args.dsinks;
    params.dout_strides = row_strides(args.dout_stride, problem.packed_q());
    params.dlse_strides = lse_strides(args.dlse_stride, problem.packed_q());
    params.row_blocks = call.launch.row_blocks;
    params.dq_acc_columns = call.launch.dq_acc_columns;
    params.o_aligned = vec4_aligned(params.o, params.o_strides, params.o_dtype);
    params.dout_aligned = vec4_aligned(params.dout, params.dout_strides, params.q_dtype);
    return params;
}
// memory: of the family.
fa_status_t launch_backward(const BackwardCall& call, void* memory, rt::Stream stream, Message* message) {
    const BackwardPlan& plan = call.plan;
    const BackwardLaunch& launch = call.launch;
    const BackwardRowParams rows = row_params(call);
    const int64_t blocks = launch.row_blocks + plan.key_blocks;
    fa_status_t status = launch_blocks(backward_preprocess, blocks, kPrepareThreads, 0, stream, rows, "backward_preprocess", message);
    if (status == FA_OK) status = launch.family->launch({plan.problem, call.args, launch, plan.own, rows, call, memory, stream}, message);
    // The sums below read rows as backward_preprocess leaves them.
    if (status == FA_OK && launch.own_lse && (call.args.dbias || rows.dsinks)) {
        BackwardRowParams again = rows;
        again.row_blocks = rows.heads_q * rows.batch * ceil_div(rows.sequences.q.seqlen, kPaddedRows);
        again.dq = nullptr, again.dq_acc = nullptr;
        status = launch_blocks(backward_preprocess, again.row_blocks, kPrepareThreads, 0, stream, again, "backward_preprocess", message);
    }
    if (status == FA_OK && call.args.dbias) {
        const SimtBackwardParams params = simt_params(call);
        status = launch_blocks(sum_bias, bias_blocks(params).all(), kThreads, kBackwardShared, stream, params, "sum_bias", message);
    }
    if (status == FA_OK && rows.dsinks)
        status = launch_blocks(sum_sinks, rows.heads_q, kSinkThreads, kSinkThreads * 4, stream, rows, "sum_sinks", message);
    return status;
}

Tensors tensors_of(const Problem& problem, const fa_backward_args_t& args) {
    const fa_forward_args_t& forward = *args.forward;
    const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    const int64_t dout_bytes = (args.dout_stride[0] | args.dout_stride[1] | args.dout_stride[2]) * type_bytes(problem.d.q_dtype);
    const uintptr_t all = address(forward.q) | address(forward.k) | address(forward.v) | address(forward.o) | address(args.dout) |
                          address(args.dq) | address(args.dk) | address(args.dv) | uintptr_t(dout_bytes);
    if (all % 16 != 0) return kAnyTensors;
    for (const BackwardFamily* const family : backward_families().list)
        if (family && family->reads && family->reads(problem, args)) return kTmaTensors;
    return kVec16Tensors;
}

fa_status_t backward(Context* context, const Plan* planned, const fa_backward_args_t* args, Message* message) {
    [[maybe_unused]] const rt::Range range("fa_backward");
    const BackwardPlan& plan = *static_cast<const BackwardPlan*>(planned);
    OnDevice on(*context);
    const BackwardLaunch& launch = plan.launch[tensors_of(plan.problem, *args)];
    rt::Stream stream;
    fa_status_t status = check_gradients(*context, plan.problem, *args, message);
    if (status == FA_OK) status = launch_checks(context, plan.problem, *args->forward, args->flags, args->stream, message);
    if (status == FA_OK) status = stream_of(context, args->flags, args->stream, &stream, message);
    if (status != FA_OK) return status;
    const uint64_t family_at = 2 * plan.rows_bytes + launch.dq_acc_bytes;
    char* memory = nullptr;
    status = workspace(context, stream, args->workspace, family_at + launch.workspace + plan.list_bytes, &memory, message);
    if (status != FA_OK) return status;
    BackwardCall call{*args, plan, launch, key_lists(plan.problem, memory + family_at + launch.workspace)};
    call.delta = reinterpret_cast<float*>(memory);
    call.lse_log2 = reinterpret_cast<float*>(memory + plan.rows_bytes);
    if (launch.dq_acc_bytes && args->dq) call.dq_acc = reinterpret_cast<float*>(memory + 2 * plan.rows_bytes);
    status = launch_lists(plan.problem, *args->forward, call.lists, stream, message);
    if (status == FA_OK) status = launch_backward(call, memory + family_at, stream, message);
    return mark_workspace(context, stream, memory, args->workspace, status, message);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
