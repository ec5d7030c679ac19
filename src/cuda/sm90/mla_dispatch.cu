// The latent kernels of both types and widths: which calls they take, their plan, with the splits of keys, and their launch.
#include "cuda/sm90/mla_dispatch.h"
#include <atomic>
#include "cuda/sm90/mla_kernel.h"
#include "cuda/sm90/mla_merge.h"
#include "cuda/sm90/split_o_dispatch.h"
#include "cuda/sm90/tensor_map.h"

namespace fa {
namespace gpu {
namespace {

struct LatentKernel {
    int32_t dtype;
    int dim;
    int shared_bytes;
    void (*kernel)(LatentParams);
};
template <class T, int HeadDim>
constexpr LatentKernel kLatent{kIsF16<T> ? FA_F16 : FA_BF16, HeadDim, LatentTraits<T, HeadDim>::kSharedBytes,
                               latent_sm90<T, HeadDim>};
constexpr ArchKernel kList[] = {
    {"fwd_sm90_576x512_latent_64x128", 64, 128, &kLatent<F16, 576>, true},
    {"fwd_sm90_576x512_latent_64x128", 64, 128, &kLatent<Bf16, 576>, true},
    {"fwd_sm90_512x512_latent_64x128", 64, 128, &kLatent<F16, 512>, true},
    {"fwd_sm90_512x512_latent_64x128", 64, 128, &kLatent<Bf16, 512>, true},
};
const LatentKernel& latent_kernel(const ArchKernel& arch_kernel) { return *static_cast<const LatentKernel*>(arch_kernel.impl); }

constexpr Implements kLatentForward = {FA_OPERAND_LSE | FA_OPERAND_SINKS | (kSequenceOperands & ~(FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q)) |
                                           FA_OPERAND_PAGE_TABLE | FA_OPERAND_RNG_STATE,
                                       FA_CAUSAL | option::schedule | FA_V_IN_K};

int64_t rows_of(const Problem& p) { return p.d.seqlen_q * p.d.heads_q; }
int64_t tiles_of(const Problem& p) { return ceil_div(rows_of(p), 64); }

// q as a matrix of (row, head) pairs for each sequence.
bool rows_are_even(const fa_attention_desc_t& d) {
    return d.seqlen_q == 1 || d.heads_q == 1 || d.q_stride[1] == d.heads_q * d.q_stride[2];
}
int64_t q_row_stride(const fa_attention_desc_t& d) { return d.heads_q > 1 ? d.q_stride[2] : d.q_stride[1]; }

bool can_implement(const rt::Device& device, const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    if (!device.sm90 || !p.v_in_k() || d.heads_k != 1 || d.dim_v != 512 || (d.dim_qk != 576 && d.dim_qk != 512)) return false;
    if ((d.q_dtype != FA_F16 && d.q_dtype != FA_BF16) || d.k_dtype != d.q_dtype || (d.o_dtype != d.q_dtype && d.o_dtype != FA_F32))
        return false;
    if (!p.within(kLatentForward) || !(d.scale > 0)) return false;
    if (!blocks_lie_in_pages(p)) return false;
    if (d.split_size % kSplitQuantum != 0 || d.seqlen_q < 1 || d.seqlen_k < 1 || d.seqlen_q >= kMaxExtent ||
        rows_of(p) >= kMaxExtent || d.seqlen_k >= kMaxExtent || rows_of_k(p) < 1 || rows_of_k(p) >= kMaxExtent ||
        d.batch * tiles_of(p) >= kMaxExtent || !rows_are_even(d))
        return false;
    const int64_t q_stride[4] = {d.q_stride[0], q_row_stride(d), 0, 1};
    return tma_compatible(q_stride, d.q_dtype, rows_of(p), 1, d.batch) &&
           tma_compatible(d.k_stride, d.q_dtype, rows_of_k(p), 1, sequences_of_k(p)) &&
           (d.o_stride[0] | d.o_stride[1] | d.o_stride[2]) % 8 == 0;
}

constexpr SplitCosts kSplitCosts = {kPairKeys, 1, 3};  // in pairs of blocks of keys

// How many pairs of CTAs can run at once, on the device with the fewest: prepare asks, which takes as long as a launch.
std::atomic<int>& pairs_at_once() {
    static std::atomic<int> pairs{0};
    return pairs;
}
void count_pairs(const LatentKernel& h) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(2);
    config.blockDim = dim3(LatentTraits<Bf16, 576>::kThreads);
    config.dynamicSmemBytes = size_t(h.shared_bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int pairs = 0;
    if (cudaOccupancyMaxActiveClusters(&pairs, h.kernel, &config) != cudaSuccess) pairs = 0, rt::clear_error();
    const int before = pairs_at_once().load(std::memory_order_relaxed);
    if (before == 0 || pairs < before) pairs_at_once().store(pairs, std::memory_order_relaxed);
}

// Should a pair of CTAs share a tile's keys, in place of splits? It merges sooner than another kernel would, but takes one item. With a number
// or a size of splits it never does, so that a row's bits depend on nothing else.
bool pairs_are_faster(const rt::Device& device, const Problem& p, const SplitParams& split) {
    constexpr int64_t kMerge = 1;
    const int64_t tiles = p.d.batch * tiles_of(p), steps = ceil_div(p.d.seqlen_k, kSplitCosts.keys);
    if (p.d.num_splits > 0 || p.d.split_size > 0 || tiles > pairs_at_once().load(std::memory_order_relaxed)) return false;
    return ceil_div(steps, 2) + kSplitCosts.border + kMerge < split_time(device, tiles, split.num_splits, steps, kSplitCosts);
}

const ArchKernel* kernel_for(const Problem& p) {
    for (const ArchKernel& one : kList)
        if (latent_kernel(one).dtype == p.d.q_dtype && latent_kernel(one).dim == p.d.dim_qk) return &one;
    return nullptr;
}

}  // namespace

bool is_latent_kernel(const ArchKernel& arch_kernel) {
    return &arch_kernel >= kList && &arch_kernel < kList + sizeof kList / sizeof *kList;
}

ArchPlan plan_latent_kernel(const rt::Device& device, const Problem& p) {
    ArchPlan plan{};
    if (!can_implement(device, p)) return plan;
    const ArchKernel* const kernel = kernel_for(p);
    SplitParams split = splits_of(device, p, p.d.batch * tiles_of(p), kSplitCosts);
    const bool pairs = pairs_are_faster(device, p, split);
    if (pairs) split.num_splits = split.splits = 1;
    const int64_t items = p.d.batch * tiles_of(p) * split.splits * (pairs ? 2 : 1);
    if (items >= kMaxExtent || (split.splits > 1 && p.d.batch * rows_of(p) >= kMaxExtent)) return plan;
    plan.kernel = kernel;
    plan.split = split;
    plan.blocks = min_of(items, min_of(device.multiprocessors, kMaxLatentCtas));
    plan.merge = "merge_latent_splits";
    plan.split_memory = split_memory(p, plan.split, false);
    plan.workspace = plan.split_memory.bytes();
    LatentParams a{};
    set_rows(p, &a.x);
    static_cast<SplitParams&>(a.x) = plan.split;
    a.x.scale = p.d.scale;
    a.x.causal = p.causal();
    a.x.pages = pages_of(p, nullptr);
    a.tiles = int(tiles_of(p));
    a.splits = int(plan.split.splits);
    a.ctas_of_tile = pairs ? 2 : 1;
    a.items = int(items);
    plan.params.set(a);
    return plan;
}

rt::Status prepare_latent_kernels(const rt::Device& device) {
    for (const ArchKernel& one : kList) {
        const LatentKernel& h = latent_kernel(one);
        const rt::Status s = cudaFuncSetAttribute(reinterpret_cast<const void*>(h.kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize, h.shared_bytes);
        if (s != rt::kSuccess) return s;
    }
    count_pairs(latent_kernel(kList[0]));
    return rt::prepare(merge_latent_splits, device);
}

rt::Status launch_latent_kernel(const ArchPlan& plan, const Problem& p, const fa_forward_args_t& args, char* memory,
                                rt::Stream stream) {
    const LatentKernel& h = latent_kernel(*plan.kernel);
    const fa_attention_desc_t& d = p.d;
    LatentParams a = plan.params.get<LatentParams>();
    set_row_tensors(p, args, &a.x);
    set_split_memory(plan.split_memory, memory, &a.x);
    a.x.pages.table = operand(p, FA_OPERAND_PAGE_TABLE, args.page_table);
    // Fetching 256 bytes for 128 costs 7 % where memory is the limit, and gains 2 % where tiles of a sequence share what comes.
    const CUtensorMapL2promotion promotion = a.tiles == 1 ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    const int64_t q_stride[4] = {d.q_stride[0], q_row_stride(d), 0, 1};
    if (!encode_tensor_map(&a.q, args.q, d.q_dtype, q_stride, d.dim_qk, rows_of(p), 1, d.batch, {64}) ||
        !encode_tensor_map(&a.k, args.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(p), 1, sequences_of_k(p), {64},
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, promotion))
        return cudaErrorInvalidValue;
    const rt::Status s = rt::launch_after(h.kernel, plan.blocks, LatentTraits<Bf16, 576>::kThreads, uint64_t(h.shared_bytes), stream, a, a.ctas_of_tile);
    if (s != rt::kSuccess || plan.split.splits == 1) return s;
    return rt::launch_after(merge_latent_splits, p.d.batch * rows_of(p), kMergeTeam * merge_teams(plan.split), 0, stream, a.x);
}

}  // namespace gpu
}  // namespace fa
