// The portable families of gradients' kernels: on matrix units, and in f32 arithmetic, which takes what no other does. Their plans and
// their launches.
#pragma once
#include "gpu/backward/rows.h"
#include "gpu/host/backward_family.h"
#include "gpu/host/choose.h"
#include "gpu/host/context.h"

namespace fa {
namespace gpu {

struct BackwardPlan : Plan {
    BackwardRowParams rows;  // these three but for what the launch and args add
    SimtBackwardParams simt;
    MmaBackwardParams mma;
    int64_t key_blocks;   // of backward_preprocess
    uint64_t rows_bytes;  // of delta, and of lse_log2
    uint64_t list_bytes;  // of the bits of lists, behind a launch's own
    BackwardLaunch launch[kTmaTensors + 1];
    FamilyParams own;  // of the last one
};

// What a call's kernels share beside the problem: their args, where gradients and what precedes them lie, and the bits of lists.
struct BackwardCall {
    const fa_backward_args_t& args;
    const BackwardPlan& plan;
    const BackwardLaunch& launch;
    KeyLists lists = {};
    float *delta = nullptr, *lse_log2 = nullptr, *dq_acc = nullptr;
};

namespace {

void set_gradient_tensors(const BackwardCall& call, GradientParams* params) {
    const Problem& problem = call.plan.problem;
    const fa_backward_args_t& args = call.args;
    params->sequences = sequence_table(problem, *args.forward);
    params->delta = call.delta;
    params->lse_log2 = call.lse_log2;
    params->dq_acc = call.dq_acc;
    params->dq = args.dq;
    params->dk = args.dk;
    params->dv = args.dv;
    params->dq_strides = row_strides(args.dq_stride, problem.packed_q());
    params->dk_strides = row_strides(args.dk_stride, problem.packed_k());
    params->dv_strides = row_strides(args.dv_stride, problem.packed_k());
    params->accumulate = (args.flags & FA_BACKWARD_ACCUMULATE) != 0;
}
SimtBackwardParams simt_params(const BackwardCall& call) {
    const Problem& problem = call.plan.problem;
    const fa_backward_args_t& args = call.args;
    SimtBackwardParams params = call.plan.simt;
    set_gradient_tensors(call, &params);
    set_product_tensors(problem, *args.forward, call.lists, &params);
    set_dropout_state(problem, *args.forward, &params);
    params.v = args.forward->v;
    params.dout = args.dout;
    params.dout_strides = row_strides(args.dout_stride, problem.packed_q());
    params.dbias = args.dbias;
    for (int i = 0; i < 4; i++) params.dbias_stride[i] = args.dbias_stride[i];
    params.q_aligned = vec4_aligned(params.q, params.q_strides, params.q_dtype);
    params.k_aligned = vec4_aligned(params.k, params.k_strides, params.k_dtype);
    params.v_aligned = vec4_aligned(params.v, params.v_strides, params.k_dtype);
    params.dout_aligned = vec4_aligned(params.dout, params.dout_strides, params.q_dtype);
    return params;
}
MmaBackwardParams mma_params(const BackwardCall& call) {
    const Problem& problem = call.plan.problem;
    const fa_backward_args_t& args = call.args;
    MmaBackwardParams params = call.plan.mma;
    set_gradient_tensors(call, &params);
    set_mma_call_tensors(problem, *args.forward, &params);
    const int64_t bytes = type_bytes(problem.d.q_dtype);
    const auto source = [&](const void* base, const int64_t stride[3], bool packed, int64_t dim) {
        const RowStrides strides = row_strides(stride, packed);
        const ByteStrides in_bytes{strides.batch * bytes, strides.row * bytes, strides.head * bytes, int32_t(dim * bytes)};
        return RowSource{base, in_bytes, copy_width(base, strides, dim, problem.d.q_dtype)};
    };
    params.source[0] = source(args.forward->q, problem.d.q_stride, problem.packed_q(), problem.d.dim_qk);
    params.source[1] = source(args.dout, args.dout_stride, problem.packed_q(), problem.d.dim_v);
    params.source[2] = source(args.forward->k, problem.d.k_stride, problem.packed_k(), problem.d.dim_qk);
    params.source[3] = source(args.forward->v, problem.d.v_stride, problem.packed_k(), problem.d.dim_v);
    return params;
}

template <class Params>
fa_status_t launch_blocks(void (*kernel)(Params), int64_t blocks, int threads, int64_t shared, rt::Stream stream, const Params& params,
                          const char* name, Message* message) {
    return blocks == 0 ? FA_OK : launched(message, rt::launch(kernel, blocks, threads, uint64_t(shared), stream, params), name);
}

// dk and dv by the instance's kernels, and dq, which is finished where it is added up.
fa_status_t launch_instance(const BackwardCall& call, rt::Stream stream, Message* message) {
    const BackwardLaunch& launch = call.launch;
    const BackwardInstance& one = *launch.instance;
    const bool by_keys = call.args.dk || call.args.dv || call.dq_acc, by_rows = call.args.dq && !call.dq_acc;
    fa_status_t status = FA_OK;
    if (one.simt_by_keys) {
        SimtBackwardParams params = simt_params(call);
        params.parts = launch.by_keys_parts;
        if (by_keys)
            status =
                launch_blocks(one.simt_by_keys, launch.by_keys_blocks, one.threads, one.by_keys_bytes, stream, params, one.family, message);
        if (status != FA_OK || !by_rows) return status;
        params.parts = launch.by_rows_parts;
        return launch_blocks(one.simt_by_rows, launch.by_rows_blocks, one.threads, one.by_rows_bytes, stream, params, one.family, message);
    }
    const MmaBackwardParams params = mma_params(call);
    if (by_keys)
        status = launch_blocks(one.mma_by_keys, launch.by_keys_blocks, one.threads, one.by_keys_bytes, stream, params, one.family, message);
    if (status != FA_OK || !by_rows) return status;
    return launch_blocks(one.mma_by_rows, launch.by_rows_blocks, one.threads, one.by_rows_bytes, stream, params, one.family, message);
}

fa_status_t launch_portable_backward(const BackwardWork& work, Message* message) {
    const fa_status_t status = launch_instance(work.call, work.stream, message);
    if (status != FA_OK || !work.rows.dq || !work.rows.dq_acc) return status;
    return launch_blocks(finish_dq, work.launch.row_blocks, kPrepareThreads, 0, work.stream, work.rows, "finish_dq", message);
}

// dq is added up in dq_acc, in any order, where the kernel can and the call lets it: which gradients are wanted is not known here.
bool plan_instance(const Problem& problem, const BackwardInstance& one, BackwardLaunch* plan) {
    const fa_attention_desc_t& d = problem.d;
    plan->instance = &one;
    plan->kernel = one.family;
    plan->rows = one.rows, plan->keys = one.keys, plan->columns = one.columns;
    plan->by_keys_parts = ceil_div(max_of(d.dim_qk, d.dim_v), one.columns);
    plan->by_rows_parts = ceil_div(d.dim_qk, one.columns);
    plan->by_keys_blocks = d.batch * d.heads_k * ceil_div(d.seqlen_k, one.block_keys) * plan->by_keys_parts;
    plan->by_rows_blocks = d.batch * d.heads_q * ceil_div(d.seqlen_q, one.block_rows) * plan->by_rows_parts;
    plan->row_blocks = d.batch * d.heads_q * ceil_div(d.seqlen_q, kPaddedRows);
    plan->dq_acc_columns = one.dq_by_atomics && !(d.flags & FA_DETERMINISTIC) ? one.columns : 0;
    return true;
}
bool plan_mma_backward(const rt::Device& device, const Problem& problem, Tensors tensors, BackwardLaunch* plan, FamilyParams*,
                       Refusal* refusal) {
    const BackwardInstance* const one = choose_mma_backward(device, problem, tensors != kAnyTensors, refusal);
    return one && plan_instance(problem, *one, plan);
}
bool plan_simt_backward(const rt::Device&, const Problem& problem, Tensors, BackwardLaunch* plan, FamilyParams*, Refusal*) {
    return plan_instance(problem, choose_simt_backward(problem), plan);
}

constexpr BackwardFamily kMmaBackwardFamily = {"mma", kAnyTensors, plan_mma_backward, nullptr, launch_portable_backward};
constexpr BackwardFamily kSimtBackwardFamily = {"simt", kAnyTensors, plan_simt_backward, nullptr, launch_portable_backward};

}  // namespace
}  // namespace gpu
}  // namespace fa
