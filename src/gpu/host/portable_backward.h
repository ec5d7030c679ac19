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

void set_gradient_tensors(const BackwardCall& c, GradientParams* x) {
    const Problem& problem = c.plan.problem;
    const fa_backward_args_t& args = c.args;
    x->sequences = sequence_table(problem, *args.forward);
    x->delta = c.delta;
    x->lse_log2 = c.lse_log2;
    x->dq_acc = c.dq_acc;
    x->dq = args.dq;
    x->dk = args.dk;
    x->dv = args.dv;
    x->dq_strides = row_strides(args.dq_stride, problem.packed_q());
    x->dk_strides = row_strides(args.dk_stride, problem.packed_k());
    x->dv_strides = row_strides(args.dv_stride, problem.packed_k());
    x->accumulate = (args.flags & FA_BACKWARD_ACCUMULATE) != 0;
}
SimtBackwardParams simt_params(const BackwardCall& c) {
    const Problem& problem = c.plan.problem;
    const fa_backward_args_t& args = c.args;
    SimtBackwardParams x = c.plan.simt;
    set_gradient_tensors(c, &x);
    set_product_tensors(problem, *args.forward, c.lists, &x);
    set_dropout_state(problem, *args.forward, &x);
    x.v = args.forward->v;
    x.dout = args.dout;
    x.dout_strides = row_strides(args.dout_stride, problem.packed_q());
    x.dbias = args.dbias;
    for (int i = 0; i < 4; i++) x.dbias_stride[i] = args.dbias_stride[i];
    x.q_aligned = vec4_aligned(x.q, x.q_strides, x.q_dtype);
    x.k_aligned = vec4_aligned(x.k, x.k_strides, x.k_dtype);
    x.v_aligned = vec4_aligned(x.v, x.v_strides, x.k_dtype);
    x.dout_aligned = vec4_aligned(x.dout, x.dout_strides, x.q_dtype);
    return x;
}
MmaBackwardParams mma_params(const BackwardCall& c) {
    const Problem& problem = c.plan.problem;
    const fa_backward_args_t& args = c.args;
    MmaBackwardParams x = c.plan.mma;
    set_gradient_tensors(c, &x);
    set_mma_call_tensors(problem, *args.forward, &x);
    const int64_t bytes = type_bytes(problem.d.q_dtype);
    const auto source = [&](const void* base, const int64_t stride[3], bool packed, int64_t dim) {
        const RowStrides strides = row_strides(stride, packed);
        const ByteStrides in_bytes{strides.batch * bytes, strides.row * bytes, strides.head * bytes, int32_t(dim * bytes)};
        return RowSource{base, in_bytes, copy_width(base, strides, dim, problem.d.q_dtype)};
    };
    x.source[0] = source(args.forward->q, problem.d.q_stride, problem.packed_q(), problem.d.dim_qk);
    x.source[1] = source(args.dout, args.dout_stride, problem.packed_q(), problem.d.dim_v);
    x.source[2] = source(args.forward->k, problem.d.k_stride, problem.packed_k(), problem.d.dim_qk);
    x.source[3] = source(args.forward->v, problem.d.v_stride, problem.packed_k(), problem.d.dim_v);
    return x;
}

template <class Params>
fa_status_t launch_blocks(void (*kernel)(Params), int64_t blocks, int threads, int64_t shared, rt::Stream stream, const Params& x,
                          const char* name, Message* message) {
    return blocks == 0 ? FA_OK : launched(message, rt::launch(kernel, blocks, threads, uint64_t(shared), stream, x), name);
}

// dk and dv by the instance's kernels, and dq, which is finished where it is added up.
fa_status_t launch_instance(const BackwardCall& c, rt::Stream stream, Message* message) {
    const BackwardLaunch& b = c.launch;
    const BackwardInstance& one = *b.instance;
    const bool by_keys = c.args.dk || c.args.dv || c.dq_acc, by_rows = c.args.dq && !c.dq_acc;
    fa_status_t status = FA_OK;
    if (one.simt_by_keys) {
        SimtBackwardParams x = simt_params(c);
        x.parts = b.by_keys_parts;
        if (by_keys)
            status = launch_blocks(one.simt_by_keys, b.by_keys_blocks, one.threads, one.by_keys_bytes, stream, x, one.family, message);
        if (status != FA_OK || !by_rows) return status;
        x.parts = b.by_rows_parts;
        return launch_blocks(one.simt_by_rows, b.by_rows_blocks, one.threads, one.by_rows_bytes, stream, x, one.family, message);
    }
    const MmaBackwardParams x = mma_params(c);
    if (by_keys) status = launch_blocks(one.mma_by_keys, b.by_keys_blocks, one.threads, one.by_keys_bytes, stream, x, one.family, message);
    if (status != FA_OK || !by_rows) return status;
    return launch_blocks(one.mma_by_rows, b.by_rows_blocks, one.threads, one.by_rows_bytes, stream, x, one.family, message);
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
