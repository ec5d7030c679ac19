// The forward's calls: its plan (which kernel and how many splits), what fa_explain says of it, and the launches of a forward, its
// merge and its scores output.
#pragma once
#include "gpu/host/bf16_copies_call.h"
#include "gpu/host/choose.h"
#include "gpu/host/context.h"
#include "gpu/host/simt_call.h"
#include "gpu/host/study_call.h"

namespace fa {
namespace gpu {
namespace {

struct ForwardPlan : Plan {
    Problem computed;          // what kernels compute: the problem, or that of its copies
    Bf16Copies copies;         // at the workspace's begin
    ArchPlan arch;             // for calls whose tensors all begin at multiples of 16 bytes
    const Instance* instance;  // takes the others, with what follows
    SplitParams split;
    SimtForwardParams simt;  // of the instance's family alone, but for what args add
    MmaForwardParams mma;
    int32_t mma_type;  // see there
    bool gathers;      // see there
    int64_t grid;
    int dies;  // see dies_of
    uint64_t shared_bytes;
    bool early;          // see is_short
    bool cluster_merge;  // may a tile's splits merge in their cluster?
    SplitMemory split_memory;
    uint64_t list_bytes;    // of the bits of lists, behind that
    int32_t merge_columns;  // of o, for each of the blocks that merge a row's splits, whoever made them; 0: rows are many
};

// What v's factors are multiplied by, lest sums of the largest over all keys overflow: no smaller than that needs, so that the product of a
// small one and a probability is still one that bf16 holds.
float v_unit(const Problem& p) {
    const int32_t factors = p.d.v_descale_dtype;
    if (!p.has(FA_OPERAND_V_DESCALE) || factors == FA_F16 || factors == FA_E4M3) return 1.f;
    float unit = 0x1p-8f;
    for (int64_t keys = 1; keys < p.d.seqlen_k && unit > kHeadroomUnit; keys *= 2) unit /= 2;
    return unit;
}

// What splits divide: keys, or entries of lists that are gathered.
Problem of_entries(const Problem& p, bool gathers) {
    Problem counted = p;
    const int lists = (p.has(FA_OPERAND_KEY_LIST) ? 1 : 0) + (p.has(FA_OPERAND_FULL_LIST) ? 1 : 0);
    if (gathers) counted.d.seqlen_k = p.d.list_max * p.d.list_keys * lists;
    return counted;
}

// Of a kernel whose tiles have `rows` rows.
void set_mma_forward(const Problem& p, int rows, bool gathers, const SplitParams& split, MmaForwardParams* x) {
    const fa_attention_desc_t& d = p.d;
    set_rows(p, x);
    set_mma_call(p, x);
    static_cast<SplitParams&>(*x) = split;
    const auto source = [&](const int64_t stride[4], int64_t dim, int32_t dtype) {
        const int64_t bytes = type_bytes(dtype);
        const ByteStrides in_bytes{p.packed_k() ? 0 : stride[0] * bytes, stride[1] * bytes, stride[2] * bytes,
                                   int32_t(row_bytes(dtype, dim))};
        return RowSource{nullptr, in_bytes, 0};
    };
    x->q_strides = row_strides(d.q_stride, p.packed_q());
    x->k = source(d.k_stride, d.dim_qk, d.k_dtype);
    x->v = source(d.v_stride, d.dim_v, d.v_dtype);
    if (p.has(FA_OPERAND_K_TAIL)) {
        x->k = source(d.k_stride, p.k_dims(), d.k_dtype);
        x->v = source(d.k_tail_stride, d.dim_tail, d.k_tail_dtype);
    }
    x->k_dims = int32_t(p.k_dims());
    x->q_descale.strides = row_strides(d.q_descale_stride, false);
    x->k_descale.strides = row_strides(d.k_descale_stride, false);
    x->v_descale.strides = row_strides(d.v_descale_stride, false);
    x->pages = pages_of(p, nullptr);
    x->by_location = p.paged() || gathers;
    x->tiles = row_tiles(p, rows, gathers);
    x->blocks = tile_count(x->tiles, x->rows);
    x->section = p.causal() ? min_of(kv_heads_in_l2(p), d.batch * p.kv_heads) : 0;
    // Blocks of keys are cut where their tiles are, of which none is wider.
    if (gathers && d.list_keys > 1 && d.split_size == 0)
        x->split_size = round_up(max_of(split_keys(of_entries(p, true).d.seqlen_k, x->num_splits, 0), 1), kListedTile);
    if (x->uniform_lengths || gathers) x->uniform_split_keys = split_keys(of_entries(p, gathers).d.seqlen_k, x->num_splits, x->split_size);
    x->k_dtype = d.k_dtype;
    x->q_dtype = d.q_dtype;
    x->k_factors = k_factors(p, nullptr, nullptr);
    x->v_factors = v_factors(p, nullptr, nullptr);
    x->v_dtype = d.v_dtype;
    x->v_unit = v_unit(p);
    x->q_factors_differ = p.has(FA_OPERAND_Q_DESCALE) && p.group > 1 && d.q_descale_stride[2] != 0;
}

// Dies that each take an equal share of neighbouring blocks, so that a head's keys and values come to one second-level cache; 1: blocks go
// where they come to. With a causal mask a part of a head may be its long tiles or its short ones: heads stay whole there.
int dies_of(const rt::Device& d, const Problem& p, int64_t blocks) {
    const int all = rt::dies(d);
    return blocks % all || (p.causal() && p.d.batch * p.kv_heads % all) ? 1 : all;
}

// What kernels compute. Copies are for matrix units.
void plan_copies(const rt::Device& device, ForwardPlan* plan) {
    const Problem& p = plan->problem;
    plan->computed = p;
    plan->copies = Bf16Copies{};
    if (!may_copy(p)) return;
    const Bf16Copies copies = bf16_copies(p);
    const Problem copied = copied_problem(p, copies);
    if (!is_bf16(copied.d)) return;  // some copy would be too large
    bool matrix = !choose_instance(device, copied).simt;
    if constexpr (rt::kArchKernels) matrix = matrix || plan_arch_kernel(device, copied).kernel;
    if (matrix) plan->computed = copied, plan->copies = copies;
}

fa_status_t plan_forward(const rt::Device& device, ForwardPlan* plan, Message* m) {
    plan_copies(device, plan);
    const Problem& p = plan->computed;
    const fa_attention_desc_t& d = p.d;
    plan->arch = ArchPlan{};
    if constexpr (rt::kArchKernels) plan->arch = plan_arch_kernel(device, p);
    const ArchKernel* const arch_kernel = plan->arch.kernel;
    if (arch_kernel && !arch_kernel->splits_keys && prefers_splits(device, p, arch_kernel->rows, plan->arch.tiles)) plan->arch = ArchPlan{};
    const Instance& kernel = choose_instance(device, p);
    plan->instance = &kernel;
    plan->mma_type = kernel.simt ? d.q_dtype : mma_type(device, d);
    plan->split = SplitParams{};
    SplitParams& x = plan->split;
    x.rows = d.seqlen_q * p.group;
    plan->gathers = !kernel.simt && gathers(device, p);
    const Problem counted = of_entries(p, plan->gathers);
    const int64_t tiles = d.batch * p.kv_heads * tile_count(row_tiles(p, kernel.rows, p.slots() || plan->gathers), x.rows) *
                          ceil_div(d.dim_v, kernel.columns),
                  all = d.batch * p.kv_heads * x.rows;
    x.split_size = d.split_size;
    // Unaligned tensors must not need more workspace than aligned ones.
    x.num_splits = d.num_splits ? d.num_splits : plan->arch.kernel ? 1 : 0;
    if (x.num_splits == 0 && !d.split_size) x.num_splits = num_splits_heuristic(device, counted, kernel, tiles).count;
    x.splits = max_splits(counted.d.seqlen_k, x.num_splits, x.split_size);
    if (tiles >= kMaxBlocks / x.splits || all >= kMaxBlocks || d.batch * d.heads_q * d.seqlen_q >= kMaxBlocks)
        return fail(m, FA_UNSUPPORTED,
                    "%lld tiles in %lld splits: a launch holds fewer than 2^31 blocks; use fewer splits or a smaller batch",
                    (long long)tiles, (long long)x.splits);
    plan->simt = SimtForwardParams{};
    plan->mma = MmaForwardParams{};
    if (kernel.simt) set_simt_forward(p, device, kernel.rows, kernel.columns, kernel.shared_bytes, x, &plan->simt);
    else set_mma_forward(p, kernel.rows, plan->gathers, x, &plan->mma);
    plan->grid = tiles * x.splits;
    plan->dies = dies_of(device, p, plan->grid);
    if (plan->dies > 1 && plan->mma.section > 0) plan->mma.section = 1;  // a die's cache is small
    plan->shared_bytes = uint64_t(kernel.shared_bytes(plan->simt.q_dims));
    plan->early = is_short(kernel, split_keys(counted.d.seqlen_k, x.num_splits, x.split_size));
    plan->merge_columns = merge_columns(device, p, all);
    plan->cluster_merge = can_merge_in_cluster(counted, kernel, x.splits);
    if constexpr (rt::kArchKernels)
        if (plan->cluster_merge) plan->cluster_merge = cluster_fits(device, kernel, tiles, x.splits);
    plan->split_memory = split_memory(p, x, p.has(FA_OPERAND_SCORES));
    plan->list_bytes = 0;
    const fa_status_t listed = plan->gathers ? FA_OK : plan_lists(p, &plan->list_bytes, m);
    if (listed != FA_OK) return listed;
    const uint64_t bytes = plan->split_memory.bytes() + plan->list_bytes;
    plan->workspace = uint64_t(plan->copies.bytes()) + (bytes > plan->arch.workspace ? bytes : plan->arch.workspace);
    return FA_OK;
}

void explain_forward(const Context& c, const ForwardPlan& f, char* text, uint64_t n) {
    const ArchKernel* const arch = f.arch.kernel;
    const int64_t splits = arch ? f.arch.split.splits : f.split.splits;
    int length = 0;
    if (arch)
        length = snprintf(text, n, "kernel %s on %s (%s), tiles of %d rows x %d keys, %lld blocks%s", arch->name, c.properties.name,
                          c.properties.arch, arch->rows, arch->keys, (long long)f.arch.blocks,
                          f.arch.widened > 0 ? ", after 8-bit k or v has been copied to 16 bits" : "");
    else
        length = snprintf(text, n, "kernel %s_%dx%d on %s (%s), tiles of %d rows x %d keys", f.instance->family, f.instance->rows,
                          int(max_of(f.instance->dims, f.instance->columns)), c.properties.name, c.properties.arch, f.instance->rows,
                          f.instance->keys);
    const auto say = [&](const char* more) {
        if (uint64_t(length) < n) length += snprintf(text + length, n - uint64_t(length), "%s", more);
    };
    if (f.copies.bytes() > 0) say(", after k and v have been copied as bf16");
    if (f.copies.bytes() > 0 || (!arch && f.mma_type != f.problem.d.q_dtype) || (arch && f.arch.rounds_k))
        say(!arch && f.mma_type == FA_F16 && f.copies.bytes() == 0 ? ", products of f16" : ", products of bf16");
    if (!arch && rt::compiles_kernels()) say(kCompiledAtFirst);
    if (uint64_t(length) >= n || (arch && !arch->splits_keys)) return;
    text += length, n -= uint64_t(length);
    const char* const merged = arch && f.arch.merge       ? f.arch.merge
                               : !arch && f.cluster_merge ? "their cluster"
                                                          : merge_name(f.merge_columns);
    if (splits == 1) snprintf(text, n, ", up to 1 split");
    else snprintf(text, n, ", up to %lld splits, merged by %s", (long long)splits, merged);
}

// Are rows of k and v as a plain call has them, or a paged one? See Kind.
bool kv_offsets_fit(const Problem& p, const MmaForwardParams& x, int columns) {
    const fa_attention_desc_t& d = p.d;
    const int64_t bytes = type_bytes(d.k_dtype), vec = is_block_type(d.k_dtype) ? columns / 16 : 16, limit = (int64_t(1) << 31) / bytes,
                  paged_limit = (vec << 32) / bytes;
    const auto fits = [&](const int64_t stride[4]) {
        if (!x.by_location) return stride[1] < limit && stride[1] > -limit;
        const int64_t outer = p.paged()      ? d.num_pages
                              : p.packed_k() ? 0
                                             : max_of(d.batch, d.kv_batch),
                      rows = p.paged()      ? d.page_size
                             : p.packed_k() ? d.total_k
                                            : d.seqlen_k;
        return rows < limit && stride[0] >= 0 && stride[1] >= 0 && outer * stride[0] + rows * stride[1] < paged_limit;
    };
    return x.k.width == 16 && x.v.width == 16 && fits(d.k_stride) && fits(d.v_stride);
}

// What args add.
void set_mma_forward_tensors(const ForwardPlan& f, const fa_forward_args_t& a, MmaForwardParams* x) {
    const Problem& p = f.computed;
    const fa_attention_desc_t& d = p.d;
    set_row_tensors(p, a, x);
    set_mma_call_tensors(p, a, x);
    x->q = a.q;
    x->k.base = a.k;
    x->v.base = a.v;
    if (p.has(FA_OPERAND_K_TAIL)) x->v.base = a.k_tail;
    x->q_descale.data = static_cast<const float*>(operand(p, FA_OPERAND_Q_DESCALE, a.q_descale));
    x->k_descale.data = static_cast<const float*>(operand(p, FA_OPERAND_K_DESCALE, a.k_descale));
    x->v_descale.data = static_cast<const float*>(operand(p, FA_OPERAND_V_DESCALE, a.v_descale));
    x->k_factors.factor = operand(p, FA_OPERAND_K_DESCALE, a.k_descale);
    x->k_factors.shift = operand(p, FA_OPERAND_K_SHIFT, a.k_shift);
    x->v_factors.factor = operand(p, FA_OPERAND_V_DESCALE, a.v_descale);
    x->v_factors.shift = operand(p, FA_OPERAND_V_SHIFT, a.v_shift);
    x->pages.table = operand(p, FA_OPERAND_PAGE_TABLE, a.page_table);
    if (f.gathers) x->gathered = gathered_lists(p, a);
    x->o_scale = operand(p, FA_OPERAND_O_SCALE, a.o_scale);
    x->o_plain = d.o_dtype == f.mma_type && d.dim_v % 4 == 0 && vec4_aligned(a.o, x->o_strides, d.o_dtype) && d.dropout_p == 0 &&
                 !p.has(FA_OPERAND_O_SCALE);
    const int64_t* strides = d.mask_stride;
    // Blocks of keys are counted from a split's begin.
    x->mask_vec16 = p.has(FA_OPERAND_MASK) && strides[3] == 1 && x->split_size % 16 == 0 &&
                    (strides[0] | strides[1] | strides[2] | int64_t(reinterpret_cast<uintptr_t>(a.mask))) % 16 == 0;
    x->q_width = f.mma_type == d.q_dtype ? copy_width(a.q, x->q_strides, d.dim_qk, d.q_dtype) : 0;
    const auto width = [&](const void* base, const int64_t stride[4], int64_t dim, int32_t dtype) {
        const RowStrides rows = row_strides(stride, p.packed_k());
        if (f.instance->scaled) return piece_width(base, rows, dim, dtype);
        return is_block_type(dtype) ? block_copy_width(base, rows, dim, dtype, f.instance->columns) : copy_width(base, rows, dim, dtype);
    };
    x->k.width = width(a.k, d.k_stride, d.dim_qk, d.k_dtype);
    x->v.width = width(a.v, d.v_stride, d.dim_v, d.v_dtype);
    if (!p.has(FA_OPERAND_K_TAIL)) return;
    x->k_descale.data = x->v_descale.data = nullptr;  // k_factors has them
    x->k.width = width(a.k, d.k_stride, p.k_dims(), d.k_dtype);
    x->v.width = width(a.k_tail, d.k_tail_stride, d.dim_tail, d.k_tail_dtype);
}

FactorPieces factor_pieces(const Factors& f, int64_t dim) {
    if (!f.factor) return {};
    const int64_t size = type_bytes(f.dtype), bytes = ceil_div(dim, f.block[1]) * size;
    const int64_t bits = int64_t(reinterpret_cast<uintptr_t>(f.factor) | reinterpret_cast<uintptr_t>(f.shift)) |
                         (f.stride[0] | f.stride[1] | f.stride[2]) * size | bytes | 16;
    return {int32_t(bytes), int32_t(bits & -bits), int32_t(size)};
}

// Are its values numbers times factors and something else besides, or are there two factors for 32 dims? See mma/cache/scaled.h.
uint32_t scaled_features(int32_t dtype, const Factors& f, uint32_t offsets, uint32_t halves) {
    if (is_block_type(dtype) ? block_format(dtype).has_min : f.shift != nullptr) return offsets;
    return f.factor && f.block[1] == kBlockDims / 2 ? halves : 0;
}

// The instance's kernel.
template <class Params>
rt::Status launch_grid(const ForwardPlan& f, void (*kernel)(Params), const Params& x, rt::Stream stream) {
    const Instance& one = *f.instance;
    return rt::launch_tiles(kernel, f.grid, f.dies, f.early, one.threads, f.shared_bytes, stream, x);
}
rt::Status launch_instance(const ForwardPlan& f, const fa_forward_args_t& a, char* memory, const KeyLists& lists, rt::Stream stream,
                           SimtForwardParams* x) {
    set_simt_forward_tensors(f.computed, a, lists, x);
    set_split_memory(f.split_memory, memory, x);
    return launch_grid(f, f.instance->simt, *x, stream);
}
rt::Status launch_instance(const ForwardPlan& f, const fa_forward_args_t& a, char* memory, const KeyLists&, rt::Stream stream,
                           MmaForwardParams* x) {
    const Problem& p = f.computed;
    const fa_attention_desc_t& d = p.d;
    const Instance& one = *f.instance;
    set_mma_forward_tensors(f, a, x);
    const bool offsets_fit = kv_offsets_fit(p, *x, one.columns), scores = needs_score_mod(p) || d.dropout_p > 0;
    const bool other_type = d.k_dtype == FA_Q5_0 || (is_fp8(d.q_dtype) && d.k_dtype != FA_E4M3);
    const bool general = scores || !offsets_fit || other_type || (f.gathers && d.list_keys > 1);
    x->features = features_of(p, needs_score_mod(p), x->by_location || !offsets_fit) | (x->by_location ? kPaged : 0);
    if (one.scaled)
        x->features |= scaled_features(d.k_dtype, x->k_factors, kKeyOffsets, kKeyHalves) |
                       scaled_features(d.v_dtype, x->v_factors, kValueOffsets, kValueHalves);
    if (one.stored != StoredFormat::none)
        x->k_pieces = factor_pieces(x->k_factors, d.dim_qk), x->v_pieces = factor_pieces(x->v_factors, d.dim_v);
    x->cluster_merge = f.cluster_merge && !general;
    void (*const kernel)(MmaForwardParams) = general ? one.general : x->by_location ? one.paged : one.plain;
    if constexpr (rt::kArchKernels)
        if (x->cluster_merge) return launch_cluster(kernel, f.grid, one.threads, f.shared_bytes, stream, *x, f.early);
    set_split_memory(f.split_memory, memory, x);
    return launch_grid(f, kernel, *x, stream);
}

// The same, and what merges its splits and writes the scores output. x: the plan's.
template <class Params>
fa_status_t launch_portable(const ForwardPlan& f, const fa_forward_args_t& a, char* memory, Params x, rt::Stream stream, Message* m) {
    const Problem& p = f.computed;
    const KeyLists lists = f.gathers ? KeyLists{} : key_lists(p, memory + f.split_memory.bytes());
    const fa_status_t listed = launch_lists(p, a, lists, stream, m);
    if (listed != FA_OK) return listed;
    rt::Status s = launch_instance(f, a, memory, lists, stream, &x);
    if (s != rt::kSuccess) return device_failed(m, s, f.instance->family);
    SplitMergeParams merged{x, x, x.o_scale, x.dropout_scale};
    if (f.gathers) merged.sequences = sequence_table(of_entries(p, true), fa_forward_args_t{}), merged.sequences.q = x.sequences.q;
    if (x.partial_o) s = launch_merge(f.merge_columns, stream, merged);
    if (s != rt::kSuccess) return device_failed(m, s, merge_name(f.merge_columns));
    if (!p.has(FA_OPERAND_SCORES)) return FA_OK;
    if (x.partial_o) s = launch_state_merge(stream, merged);
    if (s != rt::kSuccess) return device_failed(m, s, "merge_split_states");
    return launch_scores(p, a, lists, x.state, stream, m);
}

// The architecture's kernel, and what merges its splits.
fa_status_t launch_arch(const ForwardPlan& f, const fa_forward_args_t& a, char* memory, bool zeroed, rt::Stream stream, Message* m) {
    if constexpr (rt::kArchKernels) {
        const ArchPlan& arch = f.arch;
        rt::Status s = launch_arch_kernel(arch, f.computed, a, memory, zeroed, stream);
        if (s != rt::kSuccess || arch.split.splits == 1 || arch.merge) return launched(m, s, arch.kernel->name);
        SplitMergeParams merged{{}, arch.split, nullptr, 1.f};
        set_rows(f.computed, &merged);
        set_row_tensors(f.computed, a, &merged);
        set_split_memory(arch.split_memory, memory, &merged);
        return launched(m, launch_merge(f.merge_columns, stream, merged), merge_name(f.merge_columns));
    }
    return FA_OK;
}

fa_status_t forward(Context* c, const Plan* planned, const fa_forward_args_t* a, Message* m) {
    [[maybe_unused]] const rt::Range range("fa_forward");
    const Problem& p = planned->problem;
    OnDevice on(*c);
    const fa_status_t checked = launch_checks(c, p, *a, a->flags, a->stream, m);
    if (checked != FA_OK) return checked;
    if (p.d.algorithm != FA_ALGORITHM_FLASH) return forward_study(c, *static_cast<const StudyPlan*>(planned), *a, m);
    const ForwardPlan& f = *static_cast<const ForwardPlan*>(planned);
    if (f.grid == 0) return FA_OK;
    const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
    const auto read = [&](int i, const void* pointer) { return f.copies.tensor[i].total > 0 ? 0 : address(pointer); };
    const uintptr_t others = address(operand(p, FA_OPERAND_BIAS, a->bias)) | address(operand(p, FA_OPERAND_K_TAIL, a->k_tail)) |
                             4 * address(operand(p, FA_OPERAND_K_DESCALE, a->k_descale));
    const bool aligned = (read(0, a->k) | read(1, a->v) | read(2, a->q) | address(a->o) | others) % 16 == 0;
    const bool arch = aligned && f.arch.kernel;
    fa_status_t status = check_tensors(*c, p, *a, m);
    if (status != FA_OK) return status;
    rt::Stream stream;
    status = stream_of(c, a->flags, a->stream, &stream, m);
    if (status != FA_OK) return status;
    const uint64_t copied = uint64_t(f.copies.bytes());
    void* zeros = nullptr;
    if constexpr (rt::kArchKernels) {
        const bool small = arch && f.arch.zeroed > 0 && f.arch.workspace <= kArchKernelBytes && copied == 0;
        if (small && !a->workspace)  // a call that brings its workspace does not allocate
            status = launched(m, arch_kernel_memory(&c->arch_memory, stream, &zeros), "setting up a handle's memory");
    }
    const uint64_t bytes = copied + (arch ? f.arch.workspace : f.split_memory.bytes() + f.list_bytes);
    char* memory = nullptr;
    fa_forward_args_t args = *a;
    if (status == FA_OK && !zeros) status = workspace(c, stream, a->workspace, bytes, &memory, m);
    if (status != FA_OK) return status;
    if (copied > 0) status = launch_copies(p, f.copies, *a, memory, &args, stream, m);
    char* const rest = memory + copied;
    if (status != FA_OK) return mark_workspace(c, stream, memory, a->workspace, status, m);
    if (arch) status = launch_arch(f, args, zeros ? static_cast<char*>(zeros) : rest, zeros != nullptr, stream, m);
    else if (f.instance->simt) status = launch_portable(f, args, rest, f.simt, stream, m);
    else status = launch_portable(f, args, rest, f.mma, stream, m);
    return mark_workspace(c, stream, memory, a->workspace, status, m);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
