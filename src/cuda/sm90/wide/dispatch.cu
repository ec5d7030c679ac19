// The kernels of wide heads, of both types, with and without pairs: which calls they take, their plan, with the splits of keys, and their
// launch.
#include "cuda/sm90/common/tensor_map.h"
#include "cuda/sm90/split_o/dispatch.h"
#include "cuda/sm90/wide/kernel.h"
#include "gpu/host/family.h"

namespace fa {
namespace gpu {

extern const ForwardFamily sm90_wide_forward;

namespace {

struct WideKernel {
    const char* name;
    int32_t dtype;
    bool pair;
    void (*kernel)(WideParams);
};
constexpr WideKernel kKernels[] = {
#define FA_SM90_WIDE(T, pair, name) {name, kIsF16<T> ? FA_F16 : FA_BF16, pair, wide_sm90<T, pair>},
#include "cuda/sm90/wide/kernels.def"
};
struct WidePlan {
    const WideKernel* kernel;
    WideParams a;  // but for tensor maps and pointers
};
constexpr int kBlock = 64;  // rows, and keys, of a tile
constexpr int kThreads = WideTraits<Bf16, true>::kThreads, kSharedBytes = WideTraits<Bf16, true>::kSharedBytes;

constexpr Implements kWideForward = {
    FA_OPERAND_LSE | FA_OPERAND_SINKS | (kSequenceOperands & ~FA_OPERAND_SEQUSED_Q) | FA_OPERAND_PAGE_TABLE | FA_OPERAND_RNG_STATE,
    option::bands | option::schedule};

// Query heads that share a tile's rows: as many as divide both 64 and the heads of a kv head.
int64_t head_group(const Problem& problem) {
    int64_t n = 1;
    while (n < 64 && problem.group % (2 * n) == 0) n *= 2;
    return n;
}
int64_t row_tiles(const Problem& problem) { return ceil_div(problem.d.seqlen_q * head_group(problem), 64); }
int64_t outer_tiles(const Problem& problem) { return problem.d.batch * (problem.d.heads_q / head_group(problem)); }

bool can_implement(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!is_sm90(device, refusal)) return false;
    if (problem.v_in_k()) return refuse(refusal, "flags has FA_V_IN_K, which it does not implement");
    if (d.dim_qk > 512 || d.dim_v > 512 || (d.dim_qk <= 256 && d.dim_v <= 256))
        return refuse(refusal, "dim_qk is %lld and dim_v %lld: expected 257 to 512", (long long)d.dim_qk, (long long)d.dim_v);
    return in_eights("dim_qk", d.dim_qk, refusal) && in_eights("dim_v", d.dim_v, refusal) && is_half("q_dtype", d.q_dtype, refusal) &&
           is_like_q(problem, refusal) && is_like_q_or_f32(problem, refusal) && implements(problem, kWideForward, refusal) &&
           is_positive_scale(problem, refusal) && blocks_lie_in_pages(problem, refusal) && has_whole_splits(problem, refusal) &&
           extents_fit(problem, refusal) && in_range("seqlen_q * heads_q / heads_k", d.seqlen_q * problem.group, 1, kMaxExtent, refusal) &&
           in_range("batch * heads_q * tiles", outer_tiles(problem) * (row_tiles(problem) + 1), 0, kMaxExtent, refusal) &&
           tma_reads_tensors(problem, refusal) && writes_vectors(problem, refusal);
}

constexpr SplitCosts kSplitCosts = {64, 3, 6};  // in blocks of keys

// Tiles of equal length run side by side, and what neighbours ask for at the same time comes from the second-level cache once; so do tiles
// of a few rows for many heads. Where tiles part ways, at diagonals, pairs gain 8 to 12 %; elsewhere they lose as much by waiting for each
// other.
bool wants_pairs(const Problem& problem) { return problem.options & option::bands && head_group(problem) == 1 && row_tiles(problem) > 1; }
const WideKernel* kernel_for(const Problem& problem) {
    for (const WideKernel& one : kKernels)
        if (one.dtype == problem.d.q_dtype && one.pair == wants_pairs(problem)) return &one;
    return nullptr;
}

bool plan_wide(const rt::Device& device, const Problem& problem, FamilyPlan* plan, Refusal* refusal) {
    if (!can_implement(device, problem, refusal)) return false;
    const WideKernel& kernel = *kernel_for(problem);
    const int64_t cluster = kernel.pair ? 2 : 1, tiles = ceil_div(row_tiles(problem), cluster);
    plan->split = splits_of(device, problem, outer_tiles(problem) * row_tiles(problem), kSplitCosts);
    plan->blocks = outer_tiles(problem) * plan->split.splits * tiles * cluster;
    if (!in_range("batch * heads_q * tiles * num_splits", plan->blocks, 0, kMaxExtent, refusal)) return false;
    plan->kernel = kernel.name;
    plan->rows = plan->keys = kBlock;
    plan->splits_keys = plan->merge_follows = true;
    plan->split_memory = split_memory(problem, plan->split, false);
    plan->workspace = plan->split_memory.bytes();
    WidePlan& own = plan->params.emplace<WidePlan>();
    own.kernel = &kernel;
    WideParams& params = own.a;
    set_rows(problem, &params.x);
    static_cast<SplitParams&>(params.x) = plan->split;
    params.x.scale = problem.d.scale;
    params.x.window = window_of(problem);
    params.x.pages = pages_of(problem, nullptr);
    params.tiles = int(tiles);
    params.splits = int(plan->split.splits);
    params.head_group = int(head_group(problem));
    return true;
}

rt::Status launch_kernel(const FamilyPlan& plan, const ForwardCall& call) {
    const WidePlan& own = plan.params.get<WidePlan>();
    const WideKernel& kernel = *own.kernel;
    const Problem& problem = call.problem;
    const fa_attention_desc_t& d = problem.d;
    const fa_forward_args_t& args = call.args;
    WideParams params = own.a;
    set_row_tensors(problem, args, &params.x);
    set_split_memory(plan.split_memory, call.memory, &params.x);
    params.x.pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    // Of q, heads before rows: a box has a head group's heads of some rows.
    const int64_t q_stride[4] = {d.q_stride[0], d.q_stride[2], d.q_stride[1], 1};
    if (!encode_tensor_map(&params.q, args.q, d.q_dtype, q_stride, d.dim_qk, d.heads_q, rows_of_q(problem), sequences_of_q(problem),
                           {params.head_group, 64 / params.head_group}) ||
        !encode_tensor_map(&params.k, args.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(problem), d.heads_k, sequences_of_k(problem),
                           {64}) ||
        !encode_tensor_map(&params.v, args.v, d.q_dtype, d.v_stride, d.dim_v, rows_of_k(problem), d.heads_k, sequences_of_k(problem), {64}))
        return cudaErrorInvalidValue;
    return rt::launch_after(kernel.kernel, plan.blocks, kThreads, uint64_t(kSharedBytes), call.stream, params, kernel.pair ? 2 : 1);
}

fa_status_t launch_wide(const FamilyPlan& plan, const ForwardCall& call, Message* message) {
    return launched(message, launch_kernel(plan, call), plan.kernel);
}
void visit_wide(KernelVisitor visitor, void* user) {
    for (const WideKernel& one : kKernels)
        visitor(user, {one.name, kBlock, 0, kBlock, kThreads, 1, kSharedBytes, reinterpret_cast<const void*>(one.kernel)});
}

}  // namespace

const ForwardFamily sm90_wide_forward = {"sm90_wide", false, true, plan_wide, nullptr, launch_wide, visit_wide};

}  // namespace gpu
}  // namespace fa
