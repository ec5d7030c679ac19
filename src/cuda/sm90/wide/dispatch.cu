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
int64_t head_group(const Problem& p) {
    int64_t n = 1;
    while (n < 64 && p.group % (2 * n) == 0) n *= 2;
    return n;
}
int64_t row_tiles(const Problem& p) { return ceil_div(p.d.seqlen_q * head_group(p), 64); }
int64_t outer_tiles(const Problem& p) { return p.d.batch * (p.d.heads_q / head_group(p)); }

bool can_implement(const rt::Device& device, const Problem& p, Refusal* r) {
    const fa_attention_desc_t& d = p.d;
    if (!is_sm90(device, r)) return false;
    if (p.v_in_k()) return refuse(r, "flags has FA_V_IN_K, which it does not implement");
    if (d.dim_qk > 512 || d.dim_v > 512 || (d.dim_qk <= 256 && d.dim_v <= 256))
        return refuse(r, "dim_qk is %lld and dim_v %lld: expected 257 to 512", (long long)d.dim_qk, (long long)d.dim_v);
    return in_eights("dim_qk", d.dim_qk, r) && in_eights("dim_v", d.dim_v, r) && is_half("q_dtype", d.q_dtype, r) && is_like_q(p, r) &&
           is_like_q_or_f32(p, r) && implements(p, kWideForward, r) && is_positive_scale(p, r) && blocks_lie_in_pages(p, r) &&
           has_whole_splits(p, r) && extents_fit(p, r) &&
           in_range("seqlen_q * heads_q / heads_k", d.seqlen_q * p.group, 1, kMaxExtent, r) &&
           in_range("batch * heads_q * tiles", outer_tiles(p) * (row_tiles(p) + 1), 0, kMaxExtent, r) && tma_reads_tensors(p, r) &&
           writes_vectors(p, r);
}

constexpr SplitCosts kSplitCosts = {64, 3, 6};  // in blocks of keys

// Tiles of equal length run side by side, and what neighbours ask for at the same time comes from the second-level cache once; so do tiles
// of a few rows for many heads. Where tiles part ways, at diagonals, pairs gain 8 to 12 %; elsewhere they lose as much by waiting for each
// other.
bool wants_pairs(const Problem& p) { return p.options & option::bands && head_group(p) == 1 && row_tiles(p) > 1; }
const WideKernel* kernel_for(const Problem& p) {
    for (const WideKernel& one : kKernels)
        if (one.dtype == p.d.q_dtype && one.pair == wants_pairs(p)) return &one;
    return nullptr;
}

bool plan_wide(const rt::Device& device, const Problem& p, FamilyPlan* plan, Refusal* r) {
    if (!can_implement(device, p, r)) return false;
    const WideKernel& kernel = *kernel_for(p);
    const int64_t cluster = kernel.pair ? 2 : 1, tiles = ceil_div(row_tiles(p), cluster);
    plan->split = splits_of(device, p, outer_tiles(p) * row_tiles(p), kSplitCosts);
    plan->blocks = outer_tiles(p) * plan->split.splits * tiles * cluster;
    if (!in_range("batch * heads_q * tiles * num_splits", plan->blocks, 0, kMaxExtent, r)) return false;
    plan->kernel = kernel.name;
    plan->rows = plan->keys = kBlock;
    plan->splits_keys = plan->merge_follows = true;
    plan->split_memory = split_memory(p, plan->split, false);
    plan->workspace = plan->split_memory.bytes();
    WidePlan& own = plan->params.emplace<WidePlan>();
    own.kernel = &kernel;
    WideParams& params = own.a;
    set_rows(p, &params.x);
    static_cast<SplitParams&>(params.x) = plan->split;
    params.x.scale = p.d.scale;
    params.x.window = window_of(p);
    params.x.pages = pages_of(p, nullptr);
    params.tiles = int(tiles);
    params.splits = int(plan->split.splits);
    params.head_group = int(head_group(p));
    return true;
}

rt::Status launch_kernel(const FamilyPlan& plan, const ForwardCall& call) {
    const WidePlan& own = plan.params.get<WidePlan>();
    const WideKernel& kernel = *own.kernel;
    const Problem& p = call.problem;
    const fa_attention_desc_t& d = p.d;
    const fa_forward_args_t& args = call.args;
    WideParams params = own.a;
    set_row_tensors(p, args, &params.x);
    set_split_memory(plan.split_memory, call.memory, &params.x);
    params.x.pages.table = operand(p, FA_OPERAND_PAGE_TABLE, args.page_table);
    // Of q, heads before rows: a box has a head group's heads of some rows.
    const int64_t q_stride[4] = {d.q_stride[0], d.q_stride[2], d.q_stride[1], 1};
    if (!encode_tensor_map(&params.q, args.q, d.q_dtype, q_stride, d.dim_qk, d.heads_q, rows_of_q(p), sequences_of_q(p),
                           {params.head_group, 64 / params.head_group}) ||
        !encode_tensor_map(&params.k, args.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(p), d.heads_k, sequences_of_k(p), {64}) ||
        !encode_tensor_map(&params.v, args.v, d.q_dtype, d.v_stride, d.dim_v, rows_of_k(p), d.heads_k, sequences_of_k(p), {64}))
        return cudaErrorInvalidValue;
    return rt::launch_after(kernel.kernel, plan.blocks, kThreads, uint64_t(kSharedBytes), call.stream, params, kernel.pair ? 2 : 1);
}

fa_status_t launch_wide(const FamilyPlan& plan, const ForwardCall& call, Message* m) {
    return launched(m, launch_kernel(plan, call), plan.kernel);
}
void visit_wide(KernelVisitor visitor, void* user) {
    for (const WideKernel& one : kKernels)
        visitor(user, {one.name, kBlock, 0, kBlock, kThreads, 1, kSharedBytes, reinterpret_cast<const void*>(one.kernel)});
}

}  // namespace

const ForwardFamily sm90_wide_forward = {"sm90_wide", false, true, plan_wide, nullptr, launch_wide, visit_wide};

}  // namespace gpu
}  // namespace fa
