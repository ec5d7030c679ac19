// The calls of the study baselines: their plan, what fa_explain says of it, and launches of simt/study.h's kernels.
#pragma once
#include "gpu/host/choose.h"
#include "gpu/host/explain.h"
#include "gpu/host/simt_call.h"
#include "gpu/simt/study_kernels.h"

namespace fa {
namespace gpu {
namespace {

// Bytes of scores that standard holds at once, unless one head has more: far beyond any cache, so that they really go to memory.
constexpr int64_t kSMatrixBytes = int64_t(1) << 30;

struct StudyPlan : Plan {
    const StudyInstance* instance;
    StudyParams params;            // but for what args add
    int64_t heads, heads_at_once;  // in all, and in the matrix at a time
    uint64_t s_matrix_bytes, states_bytes, state_bytes;
};

fa_status_t plan_s_matrix(StudyPlan* plan, Message* message) {
    const Problem& problem = plan->problem;
    const SimtForwardParams& simt = plan->params.x;
    constexpr int64_t limit = int64_t(1) << 31;
    const int64_t key_tiles = plan->params.pitch / kKeys;
    if (simt.blocks > 0 && key_tiles >= limit / simt.blocks)
        return fail(message, FA_UNSUPPORTED, "seqlen_q %lld times seqlen_k %lld: too many scores for the standard algorithm to store",
                    (long long)problem.d.seqlen_q, (long long)problem.d.seqlen_k);
    const int64_t head_bytes = simt.rows * plan->params.pitch * int64_t(sizeof(float));
    plan->heads_at_once = head_bytes ? min_of(max_of(kSMatrixBytes / head_bytes, 1), plan->heads) : plan->heads;
    plan->s_matrix_bytes = uint64_t(round_up(plan->heads_at_once * head_bytes, 256));
    return FA_OK;
}

fa_status_t plan_study(const rt::Device& device, StudyPlan* plan, Message* message) {
    const Problem& problem = plan->problem;
    const fa_attention_desc_t& d = problem.d;
    if (d.num_splits > 1 || d.split_size > 0)
        return fail(message, FA_UNSUPPORTED, "num_splits is %d and split_size %lld: the study baselines do not split keys", d.num_splits,
                    (long long)d.split_size);
    plan->params = StudyParams{};
    plan->instance = &study_instance(d.dim_v);
    SimtForwardParams& simt = plan->params.x;
    SplitParams whole{};
    whole.rows = d.seqlen_q * problem.group;
    whole.num_splits = whole.splits = 1;
    set_simt_forward(problem, device, kStudyRows, plan->instance->columns, plan->instance->shared_bytes, whole, &simt);
    set_factor(d, problem.has_score_mod() || !plain_scale(d.scale), &simt);
    plan->params.pitch = round_up(d.seqlen_k, kKeys);
    plan->heads = d.batch * problem.kv_heads;
    const int64_t all = plan->heads * simt.rows;
    constexpr int64_t limit = int64_t(1) << 31;
    if (all >= limit || plan->heads * simt.blocks >= limit / simt.value_parts)
        return fail(message, FA_UNSUPPORTED,
                    "batch is %lld, heads_q %lld and seqlen_q %lld: a launch holds fewer than 2^31 rows; use a smaller batch",
                    (long long)d.batch, (long long)d.heads_q, (long long)d.seqlen_q);
    const bool standard = d.algorithm == FA_ALGORITHM_STANDARD;
    plan->states_bytes = uint64_t(round_up((standard ? 1 : simt.value_parts) * all * int64_t(sizeof(RowState)), 256));
    plan->state_bytes = problem.has(FA_OPERAND_SCORES) ? uint64_t(round_up(all * int64_t(sizeof(RowState)), 256)) : 0;
    plan->heads_at_once = plan->heads;
    plan->s_matrix_bytes = 0;
    const fa_status_t status = standard ? plan_s_matrix(plan, message) : FA_OK;
    plan->workspace = plan->s_matrix_bytes + plan->states_bytes + plan->state_bytes;
    return status;
}

void explain_study(const Context& context, const StudyPlan& plan, char* text, uint64_t n) {
    const bool standard = plan.problem.d.algorithm == FA_ALGORITHM_STANDARD;
    Words words{text, n};
    words.say("kernel study_%s_%dx%d", standard ? "standard" : "flash1", kStudyRows, plan.instance->columns);
    say_device(context.properties, context.host, &words);
    words.say(", tiles of %d rows x %d keys, %lld of %lld heads at a time", kStudyRows, kKeys, (long long)plan.heads_at_once,
              (long long)plan.heads);
}

// The three passes, for as many heads as the matrix holds, then for the next.
fa_status_t launch_standard(const StudyPlan& plan, StudyParams params, rt::Stream stream, Message* message) {
    const uint64_t shared = uint64_t(plan.instance->shared_bytes(params.x.q_dims));
    for (; params.first_head < plan.heads; params.first_head += plan.heads_at_once) {
        const int64_t heads = min_of(plan.heads_at_once, plan.heads - params.first_head), tiles = heads * params.x.blocks,
                      key_tiles = params.pitch / kKeys;
        rt::Status done = key_tiles ? rt::launch(plan.instance->scores, tiles * key_tiles, kThreads, shared, stream, params) : rt::kSuccess;
        if (done != rt::kSuccess) return device_failed(message, done, "standard_scores");
        done = rt::launch(plan.instance->softmax, heads * params.x.rows, kMergeThreads, kMergeThreads / 16 * 4, stream, params);
        if (done != rt::kSuccess) return device_failed(message, done, "standard_softmax");
        done = rt::launch(plan.instance->values, tiles * params.x.value_parts, kThreads, shared, stream, params);
        if (done != rt::kSuccess) return device_failed(message, done, "standard_values");
    }
    return FA_OK;
}

fa_status_t forward_study(Context* context, const StudyPlan& plan, const fa_forward_args_t& args, Message* message) {
    const Problem& problem = plan.problem;
    if (plan.heads * plan.params.x.rows == 0) return FA_OK;
    fa_status_t status = check_tensors(*context, problem, args, message);
    if (status != FA_OK) return status;
    rt::Stream stream;
    status = stream_of(context, args.flags, args.stream, &stream, message);
    if (status != FA_OK) return status;
    char* memory;
    status = workspace(context, stream, args.workspace, plan.workspace, &memory, message);
    if (status != FA_OK) return status;
    StudyParams params = plan.params;
    SimtForwardParams& simt = params.x;
    set_simt_forward_tensors(problem, args, KeyLists{}, &simt);
    params.s_matrix = reinterpret_cast<float*>(memory);
    params.states = reinterpret_cast<RowState*>(memory + plan.s_matrix_bytes);
    if (plan.state_bytes) simt.state = reinterpret_cast<RowState*>(memory + plan.s_matrix_bytes + plan.states_bytes);
    const uint64_t shared = uint64_t(plan.instance->shared_bytes(simt.q_dims));
    const int64_t parts = plan.heads * simt.value_parts;
    if (problem.d.algorithm == FA_ALGORITHM_STANDARD) status = launch_standard(plan, params, stream, message);
    else status = launched(message, rt::launch(plan.instance->flash1, parts, kThreads, shared, stream, params), "flash1_head");
    if (status == FA_OK && simt.state) status = launch_scores(problem, args, KeyLists{}, simt.state, stream, message);
    return mark_workspace(context, stream, memory, args.workspace, status, message);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
