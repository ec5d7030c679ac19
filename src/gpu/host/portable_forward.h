// The portable families of the forward, of tensors at any address: on matrix units, and in f32 arithmetic, which takes what no other does.
// Their plans and their launches: the kernel, what merges its splits, and the scores output.
#pragma once
#include "gpu/host/choose.h"
#include "gpu/host/context.h"
#include "gpu/host/family.h"
#include "gpu/host/simt_call.h"

namespace fa {
namespace gpu {
namespace {

// What a plan holds of either family.
template <class Params>
struct PortablePlan {
    const Instance* instance;
    Params x;          // but for what args add
    int32_t mma_type;  // see there
    bool gathers;      // see there
    int64_t grid;
    int dies;  // see dies_of
    uint64_t shared_bytes;
    bool early;           // see is_short
    bool cluster_merge;   // may a tile's splits merge in their cluster?
    uint64_t list_bytes;  // of the bits of lists, behind the splits' memory
};
using MmaPlan = PortablePlan<MmaForwardParams>;
using SimtPlan = PortablePlan<SimtForwardParams>;

// What v's factors are multiplied by, lest sums of the largest over all keys overflow: no smaller than that needs, so that the product of a
// small one and a probability is still one that bf16 holds.
float v_unit(const Problem& problem) {
    const int32_t factors = problem.d.v_descale_dtype;
    if (!problem.has(FA_OPERAND_V_DESCALE) || factors == FA_F16 || factors == FA_E4M3) return 1.f;
    float unit = 0x1p-8f;
    for (int64_t keys = 1; keys < problem.d.seqlen_k && unit > kHeadroomUnit; keys *= 2) unit /= 2;
    return unit;
}

// What splits divide: keys, or entries of lists that are gathered.
Problem of_entries(const Problem& problem, bool gathers) {
    Problem counted = problem;
    const int lists = (problem.has(FA_OPERAND_KEY_LIST) ? 1 : 0) + (problem.has(FA_OPERAND_FULL_LIST) ? 1 : 0);
    if (gathers) counted.d.seqlen_k = problem.d.list_max * problem.d.list_keys * lists;
    return counted;
}

// Of a kernel whose tiles have `rows` rows.
void set_mma_forward(const Problem& problem, int rows, bool gathers, const SplitParams& split, MmaForwardParams* params) {
    const fa_attention_desc_t& d = problem.d;
    set_rows(problem, params);
    set_mma_call(problem, params);
    static_cast<SplitParams&>(*params) = split;
    const auto source = [&](const int64_t stride[4], int64_t dim, int32_t dtype) {
        const int64_t bytes = type_bytes(dtype);
        const ByteStrides in_bytes{problem.packed_k() ? 0 : stride[0] * bytes, stride[1] * bytes, stride[2] * bytes,
                                   int32_t(row_bytes(dtype, dim))};
        return RowSource{nullptr, in_bytes, 0};
    };
    params->q_strides = row_strides(d.q_stride, problem.packed_q());
    params->k = source(d.k_stride, d.dim_qk, d.k_dtype);
    params->v = source(d.v_stride, d.dim_v, d.v_dtype);
    if (problem.has(FA_OPERAND_K_TAIL)) {
        params->k = source(d.k_stride, problem.k_dims(), d.k_dtype);
        params->v = source(d.k_tail_stride, d.dim_tail, d.k_tail_dtype);
    }
    params->k_dims = int32_t(problem.k_dims());
    params->q_descale.strides = row_strides(d.q_descale_stride, false);
    params->k_descale.strides = row_strides(d.k_descale_stride, false);
    params->v_descale.strides = row_strides(d.v_descale_stride, false);
    params->pages = pages_of(problem, nullptr);
    params->by_location = problem.paged() || gathers;
    params->tiles = row_tiles(problem, rows, gathers);
    params->blocks = tile_count(params->tiles, params->rows);
    params->section = problem.causal() ? min_of(kv_heads_in_l2(problem), d.batch * problem.kv_heads) : 0;
    // Blocks of keys are cut where their tiles are, of which none is wider.
    if (gathers && d.list_keys > 1 && d.split_size == 0)
        params->split_size = round_up(max_of(split_keys(of_entries(problem, true).d.seqlen_k, params->num_splits, 0), 1), kListedTile);
    if (params->uniform_lengths || gathers)
        params->uniform_split_keys = split_keys(of_entries(problem, gathers).d.seqlen_k, params->num_splits, params->split_size);
    params->k_dtype = d.k_dtype;
    params->q_dtype = d.q_dtype;
    params->k_factors = k_factors(problem, nullptr, nullptr);
    params->v_factors = v_factors(problem, nullptr, nullptr);
    params->v_dtype = d.v_dtype;
    params->v_unit = v_unit(problem);
    params->q_factors_differ = problem.has(FA_OPERAND_Q_DESCALE) && problem.group > 1 && d.q_descale_stride[2] != 0;
}

// Dies that each take an equal share of neighbouring blocks, so that a head's keys and values come to one second-level cache; 1: blocks go
// where they come to. With a causal mask a part of a head may be its long tiles or its short ones: heads stay whole there.
int dies_of(const rt::Device& device, const Problem& problem, int64_t blocks) {
    const int all = rt::dies(device);
    return blocks % all || (problem.causal() && problem.d.batch * problem.kv_heads % all) ? 1 : all;
}

void set_params(const rt::Device& device, const Problem& problem, const SplitParams& split, SimtPlan* own) {
    const Instance& kernel = *own->instance;
    set_simt_forward(problem, device, kernel.rows, kernel.columns, kernel.shared_bytes, split, &own->x);
    own->shared_bytes = uint64_t(kernel.shared_bytes(own->x.q_dims));
}
void set_params(const rt::Device&, const Problem& problem, const SplitParams& split, MmaPlan* own) {
    set_mma_forward(problem, own->instance->rows, own->gathers, split, &own->x);
    if (own->dies > 1 && own->x.section > 0) own->x.section = 1;  // a die's cache is small
    own->shared_bytes = uint64_t(own->instance->shared_bytes(0));
}

// One launch of so many tiles, cut into splits, and of lists; the plan of what follows from them.
template <class Params>
bool plan_portable(const rt::Device& device, const Problem& problem, const Instance& kernel, FamilyPlan* plan, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    PortablePlan<Params>& own = plan->params.emplace<PortablePlan<Params>>();
    own.instance = &kernel;
    own.mma_type = kernel.simt ? d.q_dtype : mma_type(device, d);
    own.gathers = !kernel.simt && gathers(device, problem);
    SplitParams& split = plan->split;
    split.rows = d.seqlen_q * problem.group;
    const Problem counted = of_entries(problem, own.gathers);
    const int64_t tiles = d.batch * problem.kv_heads *
                          tile_count(row_tiles(problem, kernel.rows, problem.slots() || own.gathers), split.rows) *
                          ceil_div(d.dim_v, kernel.columns),
                  all = d.batch * problem.kv_heads * split.rows;
    split.split_size = d.split_size;
    split.num_splits = d.num_splits;
    if (split.num_splits == 0 && !d.split_size) split.num_splits = num_splits_heuristic(device, counted, kernel, tiles).count;
    split.splits = max_splits(counted.d.seqlen_k, split.num_splits, split.split_size);
    if (tiles >= kMaxBlocks / split.splits || all >= kMaxBlocks || d.batch * d.heads_q * d.seqlen_q >= kMaxBlocks) {
        if (refusal) refusal->final = true;
        return refuse(refusal, "%lld tiles in %lld splits: a launch holds fewer than 2^31 blocks; use fewer splits or a smaller batch",
                      (long long)tiles, (long long)split.splits);
    }
    own.grid = tiles * split.splits;
    own.dies = dies_of(device, problem, own.grid);
    set_params(device, problem, split, &own);
    own.early = is_short(kernel, split_keys(counted.d.seqlen_k, split.num_splits, split.split_size));
    own.cluster_merge = can_merge_in_cluster(counted, kernel, split.splits);
    if constexpr (rt::kArchKernels)
        if (own.cluster_merge) own.cluster_merge = cluster_fits(device, kernel, tiles, split.splits);
    if (own.cluster_merge) plan->merge = "their cluster";
    plan->kernel = kernel.family;
    plan->rows = kernel.rows, plan->keys = kernel.keys, plan->columns = int(max_of(kernel.dims, kernel.columns));
    plan->splits_keys = true;
    plan->split_memory = split_memory(problem, split, problem.has(FA_OPERAND_SCORES));
    plan->product_dtype = own.mma_type == d.q_dtype ? 0 : own.mma_type;
    if (!own.gathers && !plan_lists(problem, &own.list_bytes, refusal)) return false;
    plan->workspace = plan->split_memory.bytes() + own.list_bytes;
    return true;
}

bool plan_mma(const rt::Device& device, const Problem& problem, FamilyPlan* plan, Refusal* refusal) {
    const Instance* const kernel = choose_mma(device, problem, refusal);
    return kernel && plan_portable<MmaForwardParams>(device, problem, *kernel, plan, refusal);
}
bool plan_simt(const rt::Device& device, const Problem& problem, FamilyPlan* plan, Refusal* refusal) {
    return plan_portable<SimtForwardParams>(device, problem, choose_simt(device, problem), plan, refusal);
}
double mma_time(const rt::Device& device, const Problem& problem) {
    const Instance* const kernel = choose_mma(device, problem, nullptr);
    return kernel ? time_of(device, problem, *kernel) : 0;
}
double simt_time(const rt::Device& device, const Problem& problem) { return time_of(device, problem, choose_simt(device, problem)); }

// Are rows of k and v as a plain call has them, or a paged one? See Kind.
bool kv_offsets_fit(const Problem& problem, const MmaForwardParams& params, int columns) {
    const fa_attention_desc_t& d = problem.d;
    const int64_t bytes = type_bytes(d.k_dtype), vec = is_block_type(d.k_dtype) ? columns / 16 : 16, limit = (int64_t(1) << 31) / bytes,
                  paged_limit = (vec << 32) / bytes;
    const auto fits = [&](const int64_t stride[4]) {
        if (!params.by_location) return stride[1] < limit && stride[1] > -limit;
        const int64_t outer = problem.paged()      ? d.num_pages
                              : problem.packed_k() ? 0
                                                   : max_of(d.batch, d.kv_batch),
                      rows = problem.paged()      ? d.page_size
                             : problem.packed_k() ? d.total_k
                                                  : d.seqlen_k;
        return rows < limit && stride[0] >= 0 && stride[1] >= 0 && outer * stride[0] + rows * stride[1] < paged_limit;
    };
    return params.k.width == 16 && params.v.width == 16 && fits(d.k_stride) && fits(d.v_stride);
}

// What args add.
void set_mma_forward_tensors(const Problem& problem, const MmaPlan& own, const fa_forward_args_t& args, MmaForwardParams* params) {
    const fa_attention_desc_t& d = problem.d;
    set_row_tensors(problem, args, params);
    set_mma_call_tensors(problem, args, params);
    params->q = args.q;
    params->k.base = args.k;
    params->v.base = args.v;
    if (problem.has(FA_OPERAND_K_TAIL)) params->v.base = args.k_tail;
    params->q_descale.data = static_cast<const float*>(operand(problem, FA_OPERAND_Q_DESCALE, args.q_descale));
    params->k_descale.data = static_cast<const float*>(operand(problem, FA_OPERAND_K_DESCALE, args.k_descale));
    params->v_descale.data = static_cast<const float*>(operand(problem, FA_OPERAND_V_DESCALE, args.v_descale));
    params->k_factors.factor = operand(problem, FA_OPERAND_K_DESCALE, args.k_descale);
    params->k_factors.shift = operand(problem, FA_OPERAND_K_SHIFT, args.k_shift);
    params->v_factors.factor = operand(problem, FA_OPERAND_V_DESCALE, args.v_descale);
    params->v_factors.shift = operand(problem, FA_OPERAND_V_SHIFT, args.v_shift);
    params->pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    if (own.gathers) params->gathered = gathered_lists(problem, args);
    params->o_scale = operand(problem, FA_OPERAND_O_SCALE, args.o_scale);
    params->o_plain = d.o_dtype == own.mma_type && d.dim_v % 4 == 0 && vec4_aligned(args.o, params->o_strides, d.o_dtype) &&
                      d.dropout_p == 0 && !problem.has(FA_OPERAND_O_SCALE);
    const int64_t* strides = d.mask_stride;
    // Blocks of keys are counted from a split's begin.
    params->mask_vec16 = problem.has(FA_OPERAND_MASK) && strides[3] == 1 && params->split_size % 16 == 0 &&
                         (strides[0] | strides[1] | strides[2] | int64_t(reinterpret_cast<uintptr_t>(args.mask))) % 16 == 0;
    params->q_width = own.mma_type == d.q_dtype ? copy_width(args.q, params->q_strides, d.dim_qk, d.q_dtype) : 0;
    const auto width = [&](const void* base, const int64_t stride[4], int64_t dim, int32_t dtype) {
        const RowStrides rows = row_strides(stride, problem.packed_k());
        if (own.instance->scaled) return piece_width(base, rows, dim, dtype);
        return is_block_type(dtype) ? block_copy_width(base, rows, dim, dtype, own.instance->columns) : copy_width(base, rows, dim, dtype);
    };
    params->k.width = width(args.k, d.k_stride, d.dim_qk, d.k_dtype);
    params->v.width = width(args.v, d.v_stride, d.dim_v, d.v_dtype);
    if (!problem.has(FA_OPERAND_K_TAIL)) return;
    params->k_descale.data = params->v_descale.data = nullptr;  // k_factors has them
    params->k.width = width(args.k, d.k_stride, problem.k_dims(), d.k_dtype);
    params->v.width = width(args.k_tail, d.k_tail_stride, d.dim_tail, d.k_tail_dtype);
}

FactorPieces factor_pieces(const Factors& factors, int64_t dim) {
    if (!factors.factor) return {};
    const int64_t size = type_bytes(factors.dtype), bytes = ceil_div(dim, factors.block[1]) * size;
    const int64_t bits = int64_t(reinterpret_cast<uintptr_t>(factors.factor) | reinterpret_cast<uintptr_t>(factors.shift)) |
                         (factors.stride[0] | factors.stride[1] | factors.stride[2]) * size | bytes | 16;
    return {int32_t(bytes), int32_t(bits & -bits), int32_t(size)};
}

// Are its values numbers times factors and something else besides, or are there two factors for 32 dims? See mma/cache/scaled.h.
uint32_t scaled_features(int32_t dtype, const Factors& factors, uint32_t offsets, uint32_t halves) {
    if (is_block_type(dtype) ? block_format(dtype).has_min : factors.shift != nullptr) return offsets;
    return factors.factor && factors.block[1] == kBlockDims / 2 ? halves : 0;
}

// The instance's kernel.
template <class Params>
rt::Status launch_grid(const PortablePlan<Params>& own, void (*kernel)(Params), const Params& params, rt::Stream stream) {
    const Instance& one = *own.instance;
    return rt::launch_tiles(kernel, own.grid, own.dies, own.early, one.threads, own.shared_bytes, stream, params);
}
rt::Status launch_instance(const FamilyPlan& plan, const SimtPlan& own, const ForwardCall& call, const KeyLists& lists,
                           SimtForwardParams* params) {
    set_simt_forward_tensors(call.problem, call.args, lists, params);
    set_split_memory(plan.split_memory, call.memory, params);
    return launch_grid(own, own.instance->simt, *params, call.stream);
}
rt::Status launch_instance(const FamilyPlan& plan, const MmaPlan& own, const ForwardCall& call, const KeyLists&, MmaForwardParams* params) {
    const Problem& problem = call.problem;
    const fa_attention_desc_t& d = problem.d;
    const Instance& one = *own.instance;
    set_mma_forward_tensors(problem, own, call.args, params);
    const bool offsets_fit = kv_offsets_fit(problem, *params, one.columns), scores = needs_score_mod(problem) || d.dropout_p > 0;
    const bool other_type = d.k_dtype == FA_Q5_0 || (is_fp8(d.q_dtype) && d.k_dtype != FA_E4M3);
    const bool general = scores || !offsets_fit || other_type || (own.gathers && d.list_keys > 1);
    params->features =
        features_of(problem, needs_score_mod(problem), params->by_location || !offsets_fit) | (params->by_location ? kPaged : 0);
    if (one.scaled)
        params->features |= scaled_features(d.k_dtype, params->k_factors, kKeyOffsets, kKeyHalves) |
                            scaled_features(d.v_dtype, params->v_factors, kValueOffsets, kValueHalves);
    if (one.stored != StoredFormat::none)
        params->k_pieces = factor_pieces(params->k_factors, d.dim_qk), params->v_pieces = factor_pieces(params->v_factors, d.dim_v);
    params->cluster_merge = own.cluster_merge && !general;
    void (*const kernel)(MmaForwardParams) = general ? one.general : params->by_location ? one.paged : one.plain;
    if constexpr (rt::kArchKernels)
        if (params->cluster_merge) return launch_cluster(kernel, own.grid, one.threads, own.shared_bytes, call.stream, *params, own.early);
    set_split_memory(plan.split_memory, call.memory, params);
    return launch_grid(own, kernel, *params, call.stream);
}

// The same, and what merges its splits and writes the scores output.
template <class Params>
fa_status_t launch_portable(const FamilyPlan& plan, const PortablePlan<Params>& own, const ForwardCall& call, Message* message) {
    const Problem& problem = call.problem;
    const fa_forward_args_t& args = call.args;
    const KeyLists lists = own.gathers ? KeyLists{} : key_lists(problem, call.memory + plan.split_memory.bytes());
    const fa_status_t listed = launch_lists(problem, args, lists, call.stream, message);
    if (listed != FA_OK) return listed;
    Params params = own.x;
    rt::Status s = launch_instance(plan, own, call, lists, &params);
    if (s != rt::kSuccess) return device_failed(message, s, plan.kernel);
    SplitMergeParams merged{params, params, params.o_scale, params.dropout_scale};
    if (own.gathers)
        merged.sequences = sequence_table(of_entries(problem, true), fa_forward_args_t{}), merged.sequences.q = params.sequences.q;
    if (params.partial_o) s = launch_merge(plan.merge_columns, call.stream, merged);
    if (s != rt::kSuccess) return device_failed(message, s, merge_name(plan.merge_columns));
    if (!problem.has(FA_OPERAND_SCORES)) return FA_OK;
    if (params.partial_o) s = launch_state_merge(call.stream, merged);
    if (s != rt::kSuccess) return device_failed(message, s, "merge_split_states");
    return launch_scores(problem, args, lists, params.state, call.stream, message);
}

template <class Params>
fa_status_t launch_own(const FamilyPlan& plan, const ForwardCall& call, Message* message) {
    return launch_portable(plan, plan.params.get<PortablePlan<Params>>(), call, message);
}

// Every kernel of a list.
void visit(const Instances& list, KernelVisitor visitor, void* user) {
    for (int i = 0; i < list.count; i++) {
        const Instance& one = list.list[i];
        const void* const kernel = one.simt ? reinterpret_cast<const void*>(one.simt) : reinterpret_cast<const void*>(one.general);
        if (kernel)
            visitor(user, {one.family, one.rows, one.columns, one.keys, one.threads, one.resident, one.shared_bytes(one.columns), kernel});
    }
}
void visit_mma(KernelVisitor visitor, void* user) {
    each_mma_list([&](const Instances& list) { visit(list, visitor, user); });
}
void visit_simt(KernelVisitor visitor, void* user) { visit(simt_instances(), visitor, user); }

constexpr ForwardFamily kMmaForwardFamily = {"mma", true, true, plan_mma, mma_time, launch_own<MmaForwardParams>, visit_mma};
constexpr ForwardFamily kSimtForwardFamily = {"simt", true, false, plan_simt, simt_time, launch_own<SimtForwardParams>, visit_simt};

}  // namespace
}  // namespace gpu
}  // namespace fa
