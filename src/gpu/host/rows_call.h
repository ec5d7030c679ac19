// The calls that take rows one by one: fa_merge, fa_append_kv and fa_rotary.
#pragma once
#include "gpu/rows/append.h"
#include "gpu/host/context.h"
#include "gpu/rows/merge_partials.h"
#include "gpu/rows/rotary.h"

namespace fa {
namespace gpu {
namespace {

struct RowsPlan : Plan {
    int64_t rows;  // with heads, of merge and rotary; append_kv learns from its args how many are new
};

fa_status_t check_rows(int64_t rows, int rows_per_block, const char* name, Message* message) {
    if (rows <= (kMaxBlocks - 1) * rows_per_block) return FA_OK;
    return fail(message, FA_UNSUPPORTED, "%lld rows and heads: %s takes fewer than %lld in one launch", (long long)rows, name,
                (long long)(kMaxBlocks * rows_per_block));
}

const char* rows_kernel_name(int32_t op) {
    return op == FA_OP_MERGE ? "merge_rows" : op == FA_OP_APPEND_KV ? "append_rows" : "rotate_rows";
}

fa_status_t plan_rows(RowsPlan* plan, Message* message) {
    const fa_attention_desc_t& d = plan->problem.d;
    plan->rows = plan->op == FA_OP_APPEND_KV ? 0 : d.batch * d.heads_q * d.seqlen_q;
    plan->workspace = 0;
    return check_rows(plan->rows, plan->op == FA_OP_MERGE ? 1 : kTeams, rows_kernel_name(plan->op), message);
}

void explain_rows(const Context& context, const RowsPlan& plan, char* text, uint64_t n) {
    snprintf(text, n, "kernel %s on %s (%s)", rows_kernel_name(plan.op), context.properties.name, context.properties.arch);
}

// On the stream that the call names, for kernels whose grid covers rows.
template <class Args, class Params>
fa_status_t launch_rows(Context* context, const Plan& plan, const Args& args, void (*kernel)(Params), int64_t rows, int rows_per_block,
                        int threads, const Params& params, Message* message) {
    OnDevice on(*context);
    rt::Stream stream;
    const fa_status_t status = stream_of(context, args.flags, args.stream, &stream, message);
    if (status != FA_OK || rows == 0) return status;
    return launched(message, rt::launch_after(kernel, ceil_div(rows, rows_per_block), threads, 0, stream, params),
                    rows_kernel_name(plan.op));
}

fa_status_t merge(Context* context, const Plan* plan, const fa_merge_args_t* args, Message* message) {
    [[maybe_unused]] const rt::Range range("fa_merge");
    const int64_t rows = static_cast<const RowsPlan*>(plan)->rows;
    return launch_rows(context, *plan, *args, merge_rows, rows, 1, kRowThreads, merge_params(plan->problem, *args), message);
}

fa_status_t append_kv(Context* context, const Plan* plan, const fa_append_kv_args_t* args, Message* message) {
    [[maybe_unused]] const rt::Range range("fa_append_kv");
    const Problem& problem = plan->problem;
    const int64_t rows = problem.d.batch * args->seqlen_new * max_of(problem.d.heads_k, problem.d.heads_v);  // of k, and as many of v
    fa_status_t status = check_rows(rows, kTeams / 2, rows_kernel_name(plan->op), message);
    OnDevice on(*context);
    if (status == FA_OK) status = launch_checks(context, problem, *args, args->flags, args->stream, message);
    return status != FA_OK
               ? status
               : launch_rows(context, *plan, *args, append_rows, rows, kTeams / 2, kMoveThreads, append_params(problem, *args), message);
}

fa_status_t rotary(Context* context, const Plan* plan, const fa_rotary_args_t* args, Message* message) {
    [[maybe_unused]] const rt::Range range("fa_rotary");
    const int64_t rows = static_cast<const RowsPlan*>(plan)->rows;
    return launch_rows(context, *plan, *args, rotate_rows, rows, kTeams, kMoveThreads, rotary_params(plan->problem, *args), message);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
