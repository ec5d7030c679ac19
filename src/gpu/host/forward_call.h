// The forward's calls: which family takes one, what fa_explain says of it, and the call itself.
#pragma once
#include "gpu/host/bf16_copies_call.h"
#include "gpu/host/context.h"
#include "gpu/host/explain.h"
#include "gpu/host/families.h"
#include "gpu/host/study_call.h"

namespace fa {
namespace gpu {
namespace {

struct ForwardPlan : Plan {
    Problem computed;    // what kernels compute: the problem, or that of its copies
    Bf16Copies copies;   // at the workspace's begin
    FamilyPlan aligned;  // of a family for calls whose tensors all begin at multiples of 16 bytes; without one, `any` has these, too
    FamilyPlan any;
    const FamilyPlan& best() const { return aligned.family ? aligned : any; }
};

bool takes(const ForwardFamily& family, const rt::Device& device, const Problem& problem, FamilyPlan* plan, Refusal* refusal) {
    *plan = FamilyPlan{};
    const bool taken = family.plan(device, problem, plan, refusal);
    plan->family = taken ? &family : nullptr;
    plan->merge_columns = merge_columns(device, problem, problem.d.batch * problem.kv_heads * problem.d.seqlen_q * problem.group);
    return taken;
}

// µs that the first family for any address takes that takes a call.
double time_at_any_address(const ForwardFamilies& families, const rt::Device& device, const Problem& problem, const char** name) {
    for (const ForwardFamily* const family : families.list) {
        const double time = family && family->any_address ? family->time(device, problem) : 0;
        if (time > 0) return *name = family->name, time;
    }
    return 0;
}

// Asks the families in their order. The first that takes the call has it, unless it takes only tensors at multiples of 16 bytes, and one
// for any address should take less time. One for any address is planned in any case. Returns the first that takes the call; NULL: none for
// any address does, and the last says why.
const ForwardFamily* plan_families(const rt::Device& device, const Problem& problem, FamilyPlan* aligned, FamilyPlan* any,
                                   Refusal* refusal) {
    const ForwardFamilies families = forward_families();
    const char* other;
    *aligned = FamilyPlan{};
    for (const ForwardFamily* const family : families.list)
        if (family && !family->any_address && takes(*family, device, problem, aligned, nullptr)) break;
    const ForwardFamily* const first = aligned->family;
    if (first && aligned->limit > 0 && time_at_any_address(families, device, problem, &other) < aligned->limit) aligned->family = nullptr;
    // Unaligned tensors must not need more workspace than aligned ones.
    const bool whole = aligned->family && problem.d.num_splits == 0;
    Problem in_one;
    if (whole) in_one = problem, in_one.d.num_splits = 1;
    for (const ForwardFamily* const family : families.list) {
        if (!family || !family->any_address || refusal->final) continue;
        if (takes(*family, device, whole ? in_one : problem, any, refusal)) return first ? first : family;
    }
    return nullptr;
}

// Of the problem, or of one that reads copies: these are for matrix units.
fa_status_t plan_forward(const rt::Device& device, ForwardPlan* plan, Message* message) {
    const Problem& problem = plan->problem;
    const ForwardFamily* family = nullptr;
    Refusal refusal{};
    plan->copies = Bf16Copies{};
    if (may_copy(problem)) {
        plan->copies = bf16_copies(problem);
        plan->computed = copied_problem(problem, plan->copies);
        if (is_bf16(plan->computed.d))  // else some copy would be too large
            family = plan_families(device, plan->computed, &plan->aligned, &plan->any, &refusal);
        if (family && !family->matrix) family = nullptr;
    }
    if (!family) {
        refusal.final = false;
        plan->computed = problem;
        plan->copies = Bf16Copies{};
        family = plan_families(device, problem, &plan->aligned, &plan->any, &refusal);
    }
    if (!family) return fail(message, FA_UNSUPPORTED, "%s", refusal.text);
    const uint64_t aligned = plan->aligned.family ? plan->aligned.workspace : 0;
    plan->workspace = uint64_t(plan->copies.bytes()) + (plan->any.workspace > aligned ? plan->any.workspace : aligned);
    return FA_OK;
}

// Of each family that was asked before the one that has the call: why not.
void explain_refusals(const rt::Device& device, const ForwardPlan& forward_plan, Words* words) {
    const ForwardFamilies families = forward_families();
    const Problem& problem = forward_plan.computed;
    bool asks_aligned = true;
    Reasons reasons{words, {}};
    for (const ForwardFamily* const family : families.list) {
        if (family == forward_plan.best().family) break;
        if (!family->any_address && !asks_aligned) continue;
        FamilyPlan plan;
        Refusal refusal{};
        if (takes(*family, device, problem, &plan, &refusal)) {
            const char* other = "";
            const double time = time_at_any_address(families, device, problem, &other);
            asks_aligned = false;
            refuse(&refusal, "seqlen_q is %lld and seqlen_k %lld: %s should take %.1f us, expected at least %.1f",
                   (long long)problem.d.seqlen_q, (long long)problem.d.seqlen_k, other, time, plan.limit);
        }
        reasons.add(family->name, refusal);
    }
    reasons.end();
}

void explain_forward(const Context& context, const ForwardPlan& forward_plan, char* text, uint64_t n) {
    const FamilyPlan& plan = forward_plan.best();
    Words words{text, n};
    words.say("kernel %s", plan.kernel);
    if (plan.columns > 0) words.say("_%dx%d", plan.rows, plan.columns);
    say_device(context.properties, context.host, &words);
    words.say(", tiles of %d rows x %d keys", plan.rows, plan.keys);
    if (plan.blocks > 0) words.say(", %lld blocks", (long long)plan.blocks);
    if (plan.widens) words.say(", after 8-bit k or v has been copied to 16 bits");
    if (forward_plan.copies.bytes() > 0) words.say(", after k and v have been copied as bf16");
    const int32_t products = forward_plan.copies.bytes() > 0 ? int32_t(FA_BF16) : plan.product_dtype;
    if (products != 0) words.say(", products of %s", dtype_name(products));
    if (plan.family->any_address && rt::compiles_kernels()) words.say("%s", kCompiledAtFirst);
    const long long splits = plan.split.splits;
    if (plan.splits_keys && splits == 1) words.say(", up to 1 split");
    else if (plan.splits_keys)
        words.say(", up to %lld splits, merged by %s", splits, plan.merge ? plan.merge : merge_name(plan.merge_columns));
    explain_refusals(unreserved(context.properties, forward_plan.problem.d), forward_plan, &words);
}

// A family's launch, and what merges its splits where it leaves that to us.
fa_status_t launch_family(const FamilyPlan& plan, const ForwardCall& call, Message* message) {
    const fa_status_t status = plan.family->launch(plan, call, message);
    if (status != FA_OK || !plan.merge_follows || plan.split.splits == 1) return status;
    SplitMergeParams merged{{}, plan.split, nullptr, 1.f};
    set_rows(call.problem, &merged);
    set_row_tensors(call.problem, call.args, &merged);
    set_split_memory(plan.split_memory, call.memory, &merged);
    return launched(message, launch_merge(plan.merge_columns, call.stream, merged), merge_name(plan.merge_columns));
}

fa_status_t forward(Context* context, const Plan* planned, const fa_forward_args_t* args, Message* message) {
    [[maybe_unused]] const rt::Range range("fa_forward");
    const Problem& problem = planned->problem;
    OnDevice on(*context);
    const fa_status_t checked = launch_checks(context, problem, *args, args->flags, args->stream, message);
    if (checked != FA_OK) return checked;
    if (problem.d.algorithm != FA_ALGORITHM_FLASH) return forward_study(context, *static_cast<const StudyPlan*>(planned), *args, message);
    const ForwardPlan& forward_plan = *static_cast<const ForwardPlan*>(planned);
    if (problem.d.batch * problem.d.seqlen_q == 0) return FA_OK;
    const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    const auto read = [&](int i, const void* pointer) { return forward_plan.copies.tensor[i].total > 0 ? 0 : address(pointer); };
    const uintptr_t others = address(operand(problem, FA_OPERAND_BIAS, args->bias)) |
                             address(operand(problem, FA_OPERAND_K_TAIL, args->k_tail)) |
                             4 * address(operand(problem, FA_OPERAND_K_DESCALE, args->k_descale));
    const bool aligned = (read(0, args->k) | read(1, args->v) | read(2, args->q) | address(args->o) | others) % 16 == 0;
    const FamilyPlan& plan = aligned ? forward_plan.best() : forward_plan.any;
    fa_status_t status = check_tensors(*context, problem, *args, message);
    if (status != FA_OK) return status;
    rt::Stream stream;
    status = stream_of(context, args->flags, args->stream, &stream, message);
    if (status != FA_OK) return status;
    const uint64_t copied = uint64_t(forward_plan.copies.bytes());
    void* zeros = nullptr;
    if constexpr (rt::kArchKernels) {
        const bool small = plan.zeroed > 0 && plan.workspace <= kZeroedBytes && copied == 0;
        if (small && !args->workspace)  // a call that brings its workspace does not allocate
            status = launched(message, zeroed_memory(&context->zeroed, stream, &zeros), "setting up a handle's memory");
    }
    char* memory = nullptr;
    fa_forward_args_t computed_args = *args;
    if (status == FA_OK && !zeros) status = workspace(context, stream, args->workspace, copied + plan.workspace, &memory, message);
    if (status != FA_OK) return status;
    if (copied > 0) status = launch_copies(problem, forward_plan.copies, *args, memory, &computed_args, stream, message);
    char* const rest = zeros ? static_cast<char*>(zeros) : memory + copied;
    if (status == FA_OK) status = launch_family(plan, {forward_plan.computed, computed_args, rest, zeros != nullptr, stream}, message);
    return mark_workspace(context, stream, memory, args->workspace, status, message);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
