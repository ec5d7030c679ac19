// The kernels of wide heads, of both types, with and without pairs: which calls they take, their plan, with the splits of keys, and their
// launch.
#include "cuda/sm90/common/wide_dispatch.h"
#include "cuda/sm90/split_o/dispatch.h"
#include "cuda/sm90/common/tensor_map.h"
#include "cuda/sm90/wide/kernel.h"

namespace fa {
namespace gpu {
namespace {

struct WideKernel {
    int32_t dtype;
    bool pair;
    void (*kernel)(WideParams);
};
template <class T, bool pair>
constexpr WideKernel kWide{kIsF16<T> ? FA_F16 : FA_BF16, pair, wide_sm90<T, pair>};
constexpr ArchKernel kList[] = {
    {"fwd_sm90_512x512_64x64_pair", 64, 64, &kWide<F16, true>, true},
    {"fwd_sm90_512x512_64x64_pair", 64, 64, &kWide<Bf16, true>, true},
    {"fwd_sm90_512x512_64x64", 64, 64, &kWide<F16, false>, true},
    {"fwd_sm90_512x512_64x64", 64, 64, &kWide<Bf16, false>, true},
};
const WideKernel& wide_kernel(const ArchKernel& arch_kernel) { return *static_cast<const WideKernel*>(arch_kernel.impl); }
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

bool can_implement(const rt::Device& device, const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    if (!device.sm90 || p.v_in_k() || d.dim_qk > 512 || d.dim_v > 512 || (d.dim_qk <= 256 && d.dim_v <= 256)) return false;
    if (d.dim_qk % 8 != 0 || d.dim_v % 8 != 0 || d.dim_v < 8 || d.dim_qk < 8) return false;
    if ((d.q_dtype != FA_F16 && d.q_dtype != FA_BF16) || d.k_dtype != d.q_dtype || (d.o_dtype != d.q_dtype && d.o_dtype != FA_F32))
        return false;
    if (!p.within(kWideForward) || !(d.scale > 0)) return false;
    if (!blocks_lie_in_pages(p)) return false;
    if (d.split_size % kSplitQuantum != 0 || d.seqlen_q < 1 || d.seqlen_k < 1 || d.seqlen_q >= kMaxExtent || d.seqlen_k >= kMaxExtent ||
        rows_of_q(p) < 1 || rows_of_q(p) >= kMaxExtent || rows_of_k(p) < 1 || rows_of_k(p) >= kMaxExtent ||
        d.seqlen_q * p.group >= kMaxExtent || outer_tiles(p) * (row_tiles(p) + 1) >= kMaxExtent)
        return false;
    return tma_compatible(d.q_stride, d.q_dtype, rows_of_q(p), d.heads_q, sequences_of_q(p)) &&
           tma_compatible(d.k_stride, d.q_dtype, rows_of_k(p), d.heads_k, sequences_of_k(p)) &&
           tma_compatible(d.v_stride, d.q_dtype, rows_of_k(p), d.heads_k, sequences_of_k(p)) &&
           (d.o_stride[0] | d.o_stride[1] | d.o_stride[2]) % 8 == 0;
}

constexpr SplitCosts kSplitCosts = {64, 3, 6};  // in blocks of keys

// Tiles of equal length run side by side, and what neighbours ask for at the same time comes from the second-level cache once; so do tiles
// of a few rows for many heads. Where tiles part ways, at diagonals, pairs gain 8 to 12 %; elsewhere they lose as much by waiting for each
// other.
bool wants_pairs(const Problem& p) { return p.options & option::bands && head_group(p) == 1 && row_tiles(p) > 1; }
const ArchKernel* kernel_for(const Problem& p) {
    for (const ArchKernel& one : kList)
        if (wide_kernel(one).dtype == p.d.q_dtype && wide_kernel(one).pair == wants_pairs(p)) return &one;
    return nullptr;
}

}  // namespace

bool is_wide_kernel(const ArchKernel& arch_kernel) { return &arch_kernel >= kList && &arch_kernel < kList + sizeof kList / sizeof *kList; }

ArchPlan plan_wide_kernel(const rt::Device& device, const Problem& p) {
    ArchPlan plan{};
    if (!can_implement(device, p)) return plan;
    const ArchKernel* const kernel = kernel_for(p);
    const int64_t cluster = wide_kernel(*kernel).pair ? 2 : 1, tiles = ceil_div(row_tiles(p), cluster);
    plan.split = splits_of(device, p, outer_tiles(p) * row_tiles(p), kSplitCosts);
    plan.blocks = outer_tiles(p) * plan.split.splits * tiles * cluster;
    if (plan.blocks >= kMaxExtent) return plan;
    plan.kernel = kernel;
    plan.split_memory = split_memory(p, plan.split, false);
    plan.workspace = plan.split_memory.bytes();
    WideParams a{};
    set_rows(p, &a.x);
    static_cast<SplitParams&>(a.x) = plan.split;
    a.x.scale = p.d.scale;
    a.x.window = window_of(p);
    a.x.pages = pages_of(p, nullptr);
    a.tiles = int(tiles);
    a.splits = int(plan.split.splits);
    a.head_group = int(head_group(p));
    plan.params.set(a);
    return plan;
}

rt::Status launch_wide_kernel(const ArchPlan& plan, const Problem& p, const fa_forward_args_t& args, char* memory, rt::Stream stream) {
    const WideKernel& h = wide_kernel(*plan.kernel);
    const fa_attention_desc_t& d = p.d;
    WideParams a = plan.params.get<WideParams>();
    set_row_tensors(p, args, &a.x);
    set_split_memory(plan.split_memory, memory, &a.x);
    a.x.pages.table = operand(p, FA_OPERAND_PAGE_TABLE, args.page_table);
    // Of q, heads before rows: a box has a head group's heads of some rows.
    const int64_t q_stride[4] = {d.q_stride[0], d.q_stride[2], d.q_stride[1], 1};
    if (!encode_tensor_map(&a.q, args.q, d.q_dtype, q_stride, d.dim_qk, d.heads_q, rows_of_q(p), sequences_of_q(p),
                           {a.head_group, 64 / a.head_group}) ||
        !encode_tensor_map(&a.k, args.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(p), d.heads_k, sequences_of_k(p), {64}) ||
        !encode_tensor_map(&a.v, args.v, d.q_dtype, d.v_stride, d.dim_v, rows_of_k(p), d.heads_k, sequences_of_k(p), {64}))
        return cudaErrorInvalidValue;
    return rt::launch_after(h.kernel, plan.blocks, kThreads, uint64_t(kSharedBytes), stream, a, h.pair ? 2 : 1);
}

}  // namespace gpu
}  // namespace fa
