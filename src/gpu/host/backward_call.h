// The backward's calls: its plan, what fa_explain says of it, and the launches: preprocess, tiles, and the sums of dbias and
// dsinks.
#pragma once
#include "gpu/host/arch_backward.h"
#include "gpu/backward/bias.h"
#include "gpu/backward/rows.h"
#include "gpu/host/choose.h"
#include "gpu/host/context.h"

namespace fa {
namespace gpu {
namespace {

// What is known of a call's tensors: that those which are read consist of aligned 16-byte vectors; and that an arch kernel takes
// all of them.
enum Tensors { kAnyTensors, kVec16Tensors, kArchKernelTensors };

// The kernels for such tensors.
struct BackwardLaunch {
    const BackwardInstance* instance;  // NULL: BackwardPlan::arch has one
    int64_t by_keys_parts, by_rows_parts;
    int64_t by_keys_blocks, by_rows_blocks, row_blocks;  // of launches; of backward_preprocess for rows
    int64_t dq_acc_columns;
    uint64_t dq_acc_bytes, arch_bytes;
};
struct BackwardPlan : Plan {
    BackwardRowParams rows;  // these three but for what the launch and args add
    SimtBackwardParams simt;
    MmaBackwardParams mma;
    int64_t key_blocks;   // of backward_preprocess
    uint64_t rows_bytes;  // of delta, and of lse_log2
    uint64_t list_bytes;  // of the bits of lists, behind a launch's own
    BackwardLaunch launch[kArchKernelTensors + 1];
    ArchBackwardPlan arch;  // of the last one
};

// Whether dq is added up in dq_acc, in any order: which of the gradients are wanted is not known here.
bool uses_dq_acc(const Problem& p, const BackwardLaunch& b) {
    return b.instance && b.instance->dq_by_atomics && !(p.d.flags & FA_DETERMINISTIC);
}

void plan_instance(const rt::Device& device, const Problem& p, bool aligned, BackwardLaunch* plan) {
    const fa_attention_desc_t& d = p.d;
    plan->instance = choose_backward(device, p, aligned);
    const BackwardInstance& one = *plan->instance;
    plan->by_keys_parts = ceil_div(max_of(d.dim_qk, d.dim_v), one.columns);
    plan->by_rows_parts = ceil_div(d.dim_qk, one.columns);
    plan->by_keys_blocks = d.batch * d.heads_k * ceil_div(d.seqlen_k, one.block_keys) * plan->by_keys_parts;
    plan->by_rows_blocks = d.batch * d.heads_q * ceil_div(d.seqlen_q, one.block_rows) * plan->by_rows_parts;
    plan->row_blocks = d.batch * d.heads_q * ceil_div(d.seqlen_q, kPaddedRows);
    plan->dq_acc_columns = uses_dq_acc(p, *plan) ? one.columns : 0;
}

BackwardLaunch plan_launch(const rt::Device& device, const Problem& p, Tensors tensors, const ArchBackwardPlan& arch) {
    BackwardLaunch plan{};
    if (tensors == kArchKernelTensors && arch.kernel) {
        plan.arch_bytes = arch.workspace;
        plan.dq_acc_columns = arch.kernel->dq_acc_columns;  // and it prepares rows itself
    } else {
        plan_instance(device, p, tensors != kAnyTensors, &plan);
    }
    plan.dq_acc_bytes = uint64_t(round_up(p.d.heads_q * padded_rows_of(p) * plan.dq_acc_columns * 4, 256));
    return plan;
}

// Each family's parameters, as far as they follow from the problem.
void set_gradients(const Problem& p, GradientParams* x) {
    set_shape(p, x);
    x->padded_rows = padded_rows_of(p);
    x->causal = p.causal();
}
// In place: of an object that is returned and assigned, GCC 12.2 keeps the types alone (-ftree-sra; tests/cuda/launches.c).
void set_backward_rows(const Problem& p, BackwardRowParams* x) {
    const fa_attention_desc_t& d = p.d;
    *x = BackwardRowParams{};
    set_gradients(p, x);
    x->o_strides = row_strides(d.o_stride, p.packed_q());
    x->lse_strides = lse_strides(d.lse_stride, p.packed_q());
    x->dim_qk = d.dim_qk;
    x->scale = d.scale;
    x->q_dtype = d.q_dtype;
    x->k_dtype = d.k_dtype;
    x->o_dtype = d.o_dtype;
}
SimtBackwardParams backward_simt(const Problem& p) {
    SimtBackwardParams x{};
    set_gradients(p, &x);
    set_product(p, &x);
    set_dropout(p, &x);
    x.v_strides = row_strides(p.d.v_stride, p.packed_k());
    x.scale = p.d.scale;
    return x;
}
MmaBackwardParams backward_mma(const Problem& p) {
    MmaBackwardParams x{};
    set_gradients(p, &x);
    set_mma_call(p, &x);
    x.features = features_of(p, false, false);
    x.q_dtype = p.d.q_dtype;
    return x;
}

fa_status_t plan_backward(const rt::Device& device, BackwardPlan* plan, Message* m) {
    const Problem& p = plan->problem;
    const fa_attention_desc_t& d = p.d;
    const int64_t padded_rows = padded_rows_of(p);
    // Packed rows may be more than the blocks of their longest sequence tell. Fewer than this overflow nothing below.
    if (padded_rows > (kMaxBlocks * kPaddedRows - 1) / d.heads_q)
        return fail(m, FA_UNSUPPORTED, "%lld rows, padded, of %lld heads: the backward has room for fewer than 2^38 in all",
                    (long long)padded_rows, (long long)d.heads_q);
    set_backward_rows(p, &plan->rows);
    plan->simt = backward_simt(p);
    plan->mma = backward_mma(p);
    const bool key_padding = !p.packed_k() && p.has(FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K);
    plan->key_blocks = key_padding ? d.batch * d.heads_k * ceil_div(d.seqlen_k, kPaddedRows) : 0;
    plan->rows_bytes = uint64_t(round_up(d.heads_q * padded_rows * 4, 256));
    Refusal lists;
    if (!plan_lists(p, &plan->list_bytes, &lists)) return fail(m, FA_UNSUPPORTED, "%s", lists.text);
    plan->workspace = 0;
    plan->arch = ArchBackwardPlan{};
    if constexpr (rt::kArchKernels) plan->arch = plan_arch_backward(device, p);
    for (const Tensors tensors : {kAnyTensors, kVec16Tensors, kArchKernelTensors}) {
        const BackwardLaunch& b = plan->launch[tensors] = plan_launch(device, p, tensors, plan->arch);
        if (max_of(max_of(b.by_keys_blocks, b.by_rows_blocks), b.row_blocks + plan->key_blocks) >= kMaxBlocks)
            return fail(m, FA_UNSUPPORTED,
                        "%lld rows and heads, %lld keys and heads: one launch of the backward holds fewer than 2^31 blocks",
                        (long long)(d.batch * d.heads_q * d.seqlen_q), (long long)(d.batch * d.heads_k * d.seqlen_k));
        const uint64_t bytes = 2 * plan->rows_bytes + b.dq_acc_bytes + b.arch_bytes + plan->list_bytes;
        plan->workspace = bytes > plan->workspace ? bytes : plan->workspace;
    }
    return FA_OK;
}

void explain_backward(const Context& c, const BackwardPlan& plan, char* text, uint64_t n) {
    const BackwardLaunch& b = plan.launch[kArchKernelTensors];
    if (!b.instance)
        snprintf(text, n, "kernel %s on %s (%s), tiles of %d rows x %d keys, %lld blocks", plan.arch.kernel->name, c.properties.name,
                 c.properties.arch, plan.arch.kernel->rows, plan.arch.kernel->keys, (long long)plan.arch.blocks);
    else
        snprintf(text, n, "kernel %s_%d on %s (%s), tiles of %d rows x %d keys, %s%s", b.instance->family, b.instance->columns,
                 c.properties.name, c.properties.arch, b.instance->rows, b.instance->keys,
                 uses_dq_acc(plan.problem, b) ? "dq added up in any order" : "dk and dv by keys, dq by rows",
                 rt::compiles_kernels() ? kCompiledAtFirst : "");
}

fa_status_t check_gradients(const Context& c, const Problem& p, const fa_backward_args_t& a, Message* m) {
    const fa_forward_args_t& f = *a.forward;
    const int64_t queries = p.d.batch == 0 ? 0 : p.packed_q() ? p.d.total_q : p.d.seqlen_q;
    const int64_t keys = p.d.batch == 0 ? 0 : p.packed_k() ? p.d.total_k : p.d.seqlen_k;
    const struct {
        const void* pointer;
        const char* name;
        int64_t rows;
    } tensors[] = {{f.q, "q", queries},       {f.k, "k", keys},      {f.v, "v", keys},   {f.o, "o", queries}, {f.lse, "lse", queries},
                   {a.dout, "dout", queries}, {a.dq, "dq", queries}, {a.dk, "dk", keys}, {a.dv, "dv", keys}};
    for (const auto& t : tensors) {
        const fa_status_t status = t.rows > 0 ? check_pointer(c, t.pointer, t.name, m) : FA_OK;
        if (status != FA_OK) return status;
    }
    return FA_OK;
}

// What a call's kernels share beside the problem: their args, where gradients and what precedes them lie, and the bits of lists.
struct BackwardCall {
    const fa_backward_args_t& args;
    const BackwardPlan& plan;
    const BackwardLaunch& launch;
    KeyLists lists = {};
    float *delta = nullptr, *lse_log2 = nullptr, *dq_acc = nullptr;
};

void set_gradient_tensors(const BackwardCall& c, GradientParams* x) {
    const Problem& p = c.plan.problem;
    const fa_backward_args_t& a = c.args;
    x->sequences = sequence_table(p, *a.forward);
    x->delta = c.delta;
    x->lse_log2 = c.lse_log2;
    x->dq_acc = c.dq_acc;
    x->dq = a.dq;
    x->dk = a.dk;
    x->dv = a.dv;
    x->dq_strides = row_strides(a.dq_stride, p.packed_q());
    x->dk_strides = row_strides(a.dk_stride, p.packed_k());
    x->dv_strides = row_strides(a.dv_stride, p.packed_k());
    x->accumulate = (a.flags & FA_BACKWARD_ACCUMULATE) != 0;
}
BackwardRowParams row_params(const BackwardCall& c) {
    const Problem& p = c.plan.problem;
    const fa_backward_args_t& a = c.args;
    BackwardRowParams x = c.plan.rows;
    set_gradient_tensors(c, &x);
    x.o = a.forward->o;
    x.lse = a.forward->lse;  // whether the forward was asked for it or not
    x.sinks = operand(p, FA_OPERAND_SINKS, a.forward->sinks);
    x.dout = a.dout;
    x.dlse = a.dlse;
    x.dsinks = a.dsinks;
    x.dout_strides = row_strides(a.dout_stride, p.packed_q());
    x.dlse_strides = lse_strides(a.dlse_stride, p.packed_q());
    x.row_blocks = c.launch.row_blocks;
    x.dq_acc_columns = c.launch.dq_acc_columns;
    x.o_aligned = vec4_aligned(x.o, x.o_strides, x.o_dtype);
    x.dout_aligned = vec4_aligned(x.dout, x.dout_strides, x.q_dtype);
    return x;
}
SimtBackwardParams simt_params(const BackwardCall& c) {
    const Problem& p = c.plan.problem;
    const fa_backward_args_t& a = c.args;
    SimtBackwardParams x = c.plan.simt;
    set_gradient_tensors(c, &x);
    set_product_tensors(p, *a.forward, c.lists, &x);
    set_dropout_state(p, *a.forward, &x);
    x.v = a.forward->v;
    x.dout = a.dout;
    x.dout_strides = row_strides(a.dout_stride, p.packed_q());
    x.dbias = a.dbias;
    for (int i = 0; i < 4; i++) x.dbias_stride[i] = a.dbias_stride[i];
    x.q_aligned = vec4_aligned(x.q, x.q_strides, x.q_dtype);
    x.k_aligned = vec4_aligned(x.k, x.k_strides, x.k_dtype);
    x.v_aligned = vec4_aligned(x.v, x.v_strides, x.k_dtype);
    x.dout_aligned = vec4_aligned(x.dout, x.dout_strides, x.q_dtype);
    return x;
}
MmaBackwardParams mma_params(const BackwardCall& c) {
    const Problem& p = c.plan.problem;
    const fa_backward_args_t& a = c.args;
    MmaBackwardParams x = c.plan.mma;
    set_gradient_tensors(c, &x);
    set_mma_call_tensors(p, *a.forward, &x);
    const int64_t bytes = type_bytes(p.d.q_dtype);
    const auto source = [&](const void* base, const int64_t stride[3], bool packed, int64_t dim) {
        const RowStrides strides = row_strides(stride, packed);
        const ByteStrides in_bytes{strides.batch * bytes, strides.row * bytes, strides.head * bytes, int32_t(dim * bytes)};
        return RowSource{base, in_bytes, copy_width(base, strides, dim, p.d.q_dtype)};
    };
    x.source[0] = source(a.forward->q, p.d.q_stride, p.packed_q(), p.d.dim_qk);
    x.source[1] = source(a.dout, a.dout_stride, p.packed_q(), p.d.dim_v);
    x.source[2] = source(a.forward->k, p.d.k_stride, p.packed_k(), p.d.dim_qk);
    x.source[3] = source(a.forward->v, p.d.v_stride, p.packed_k(), p.d.dim_v);
    return x;
}

template <class Params>
fa_status_t launch_blocks(void (*kernel)(Params), int64_t blocks, int threads, int64_t shared, rt::Stream stream, const Params& x,
                          const char* name, Message* m) {
    return blocks == 0 ? FA_OK : launched(m, rt::launch(kernel, blocks, threads, uint64_t(shared), stream, x), name);
}

// dk and dv by the instance's kernels, and dq unless it is added up.
fa_status_t launch_instance(const BackwardCall& c, rt::Stream stream, Message* m) {
    const BackwardLaunch& b = c.launch;
    const BackwardInstance& one = *b.instance;
    const bool by_keys = c.args.dk || c.args.dv || c.dq_acc, by_rows = c.args.dq && !c.dq_acc;
    fa_status_t status = FA_OK;
    if (one.simt_by_keys) {
        SimtBackwardParams x = simt_params(c);
        x.parts = b.by_keys_parts;
        if (by_keys) status = launch_blocks(one.simt_by_keys, b.by_keys_blocks, one.threads, one.by_keys_bytes, stream, x, one.family, m);
        if (status != FA_OK || !by_rows) return status;
        x.parts = b.by_rows_parts;
        return launch_blocks(one.simt_by_rows, b.by_rows_blocks, one.threads, one.by_rows_bytes, stream, x, one.family, m);
    }
    const MmaBackwardParams x = mma_params(c);
    if (by_keys) status = launch_blocks(one.mma_by_keys, b.by_keys_blocks, one.threads, one.by_keys_bytes, stream, x, one.family, m);
    if (status != FA_OK || !by_rows) return status;
    return launch_blocks(one.mma_by_rows, b.by_rows_blocks, one.threads, one.by_rows_bytes, stream, x, one.family, m);
}

// memory: of the arch kernel.
fa_status_t launch_backward(const BackwardCall& c, void* memory, rt::Stream stream, Message* m) {
    const BackwardPlan& plan = c.plan;
    const BackwardLaunch& b = c.launch;
    const BackwardRowParams rows = row_params(c);
    const int64_t blocks = b.row_blocks + plan.key_blocks;
    fa_status_t status = launch_blocks(backward_preprocess, blocks, kPrepareThreads, 0, stream, rows, "backward_preprocess", m);
    if constexpr (rt::kArchKernels)
        if (status == FA_OK && !b.instance)
            status =
                launched(m, launch_arch_backward(plan.arch, plan.problem, *c.args.forward, rows, memory, stream), plan.arch.kernel->name);
    // The sums below read rows as backward_preprocess leaves them.
    if constexpr (rt::kArchKernels)
        if (status == FA_OK && !b.instance && plan.arch.kernel->own_lse && (c.args.dbias || rows.dsinks)) {
            BackwardRowParams again = rows;
            again.row_blocks = rows.heads_q * rows.batch * ceil_div(rows.sequences.q.seqlen, kPaddedRows);
            again.dq = nullptr, again.dq_acc = nullptr;
            status = launch_blocks(backward_preprocess, again.row_blocks, kPrepareThreads, 0, stream, again, "backward_preprocess", m);
        }
    if (status == FA_OK && b.instance) status = launch_instance(c, stream, m);
    if (status == FA_OK && b.instance && rows.dq && rows.dq_acc)
        status = launch_blocks(finish_dq, b.row_blocks, kPrepareThreads, 0, stream, rows, "finish_dq", m);
    if (status == FA_OK && c.args.dbias) {
        const SimtBackwardParams x = simt_params(c);
        status = launch_blocks(sum_bias, bias_blocks(x).all(), kThreads, kBackwardShared, stream, x, "sum_bias", m);
    }
    if (status == FA_OK && rows.dsinks)
        status = launch_blocks(sum_sinks, rows.heads_q, kSinkThreads, kSinkThreads * 4, stream, rows, "sum_sinks", m);
    return status;
}

Tensors tensors_of(const Problem& p, const fa_backward_args_t& a) {
    const fa_forward_args_t& f = *a.forward;
    const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    const int64_t dout_bytes = (a.dout_stride[0] | a.dout_stride[1] | a.dout_stride[2]) * type_bytes(p.d.q_dtype);
    const uintptr_t all = address(f.q) | address(f.k) | address(f.v) | address(f.o) | address(a.dout) | address(a.dq) | address(a.dk) |
                          address(a.dv) | uintptr_t(dout_bytes);
    if (all % 16 != 0) return kAnyTensors;
    if constexpr (rt::kArchKernels)
        if (arch_backward_reads(p, a)) return kArchKernelTensors;
    return kVec16Tensors;
}

fa_status_t backward(Context* c, const Plan* planned, const fa_backward_args_t* a, Message* m) {
    [[maybe_unused]] const rt::Range range("fa_backward");
    const BackwardPlan& plan = *static_cast<const BackwardPlan*>(planned);
    OnDevice on(*c);
    const BackwardLaunch& b = plan.launch[tensors_of(plan.problem, *a)];
    rt::Stream stream;
    fa_status_t status = check_gradients(*c, plan.problem, *a, m);
    if (status == FA_OK) status = launch_checks(c, plan.problem, *a->forward, a->flags, a->stream, m);
    if (status == FA_OK) status = stream_of(c, a->flags, a->stream, &stream, m);
    if (status != FA_OK) return status;
    const uint64_t arch_at = 2 * plan.rows_bytes + b.dq_acc_bytes;
    char* memory = nullptr;
    status = workspace(c, stream, a->workspace, arch_at + b.arch_bytes + plan.list_bytes, &memory, m);
    if (status != FA_OK) return status;
    BackwardCall call{*a, plan, b, key_lists(plan.problem, memory + arch_at + b.arch_bytes)};
    call.delta = reinterpret_cast<float*>(memory);
    call.lse_log2 = reinterpret_cast<float*>(memory + plan.rows_bytes);
    if (b.dq_acc_bytes && a->dq) call.dq_acc = reinterpret_cast<float*>(memory + 2 * plan.rows_bytes);
    status = launch_lists(plan.problem, *a->forward, call.lists, stream, m);
    if (status == FA_OK) status = launch_backward(call, memory + arch_at, stream, m);
    return mark_workspace(c, stream, memory, a->workspace, status, m);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
