// The latent kernels of both types and widths: which calls they take, their plan, with the splits of keys, and their launch.
#include <atomic>
#include "cuda/sm90/common/tensor_map.h"
#include "cuda/sm90/latent/lists.h"
#include "cuda/sm90/latent/merge.h"
#include "cuda/sm90/latent/tokens/params.h"
#include "cuda/sm90/latent/unit.h"
#include "cuda/sm90/split_o/dispatch.h"
#include "gpu/host/family.h"

namespace fa {
namespace gpu {

extern const ForwardFamily sm90_latent_forward;

namespace {

struct LatentKernel {
    const char* name;
    int32_t dtype;
    int dim;
    LatentSource source;
    int rows, keys;  // of a tile
    int threads, shared_bytes;
    LatentKernelPointer (*kernel)();
};
constexpr LatentKernel kKernels[] = {
#define FA_SM90_LATENT(T, dims, from, name)                   \
    {name,                                                    \
     kIsF16<T> ? FA_F16 : FA_BF16,                            \
     dims,                                                    \
     LatentSource::from,                                      \
     64,                                                      \
     128,                                                     \
     LatentTraits<T, dims, LatentSource::from>::kThreads,     \
     LatentTraits<T, dims, LatentSource::from>::kSharedBytes, \
     latent_kernel_of<T, dims, LatentSource::from>},
#define FA_SM90_LATENT_TOKENS(Form, rows, name) \
    {name,                                      \
     FA_BF16,                                   \
     Form::kOwn + 64,                           \
     LatentSource::tokens,                      \
     rows,                                      \
     64,                                        \
     TokenTraits<Form, rows>::kThreads,         \
     TokenTraits<Form, rows>::kSharedBytes,     \
     latent_token_kernel<Form, rows>},
#include "cuda/sm90/latent/kernels.def"
};
struct LatentPlan {
    const LatentKernel* kernel;
    LatentParams a;  // but for tensor maps and pointers
};

constexpr Implements kLatentForward = {FA_OPERAND_LSE | FA_OPERAND_SINKS |
                                           (kSequenceOperands & ~(FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q)) | FA_OPERAND_PAGE_TABLE |
                                           FA_OPERAND_RNG_STATE,
                                       FA_CAUSAL | option::schedule | FA_V_IN_K};
// By address, where lists are of slots.
constexpr Implements kLatentRowsForward = {kLatentForward.operands | FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT,
                                           kLatentForward.options | option::list_space};
constexpr Implements kLatentBytesForward = {kLatentRowsForward.operands | FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE,
                                            kLatentRowsForward.options | option::kv_factors};

int64_t rows_of(const Problem& problem) { return problem.d.seqlen_q * problem.d.heads_q; }
int64_t tiles_of(const Problem& problem, int64_t rows) { return tile_count(row_tiles(problem, rows), rows_of(problem)); }

// q as a matrix of (row, head) pairs for each sequence.
bool rows_are_even(const fa_attention_desc_t& d) { return d.seqlen_q == 1 || d.heads_q == 1 || d.q_stride[1] == d.heads_q * d.q_stride[2]; }
int64_t q_row_stride(const fa_attention_desc_t& d) { return d.heads_q > 1 ? d.q_stride[2] : d.q_stride[1]; }

constexpr int64_t kTail = 64;  // dims of 16 bits behind those of 8

// Steps from one sequence or page to the next and from row to row, in so many bytes; false: they are no multiples of these, or 32 bits
// do not count them.
bool count_steps(const Problem& problem, const char* name, const int64_t stride[4], int64_t element_bytes, int64_t unit,
                 uint32_t (&step)[2], Refusal* refusal) {
    const auto uneven = [&] {
        return refuse(refusal, "%s is (%lld, %lld): expected steps of whole %lld bytes, fewer than 2^32 of them", name,
                      (long long)stride[0], (long long)stride[1], (long long)unit);
    };
    const int64_t extent[] = {sequences_of_k(problem), rows_of_k(problem)};
    int64_t all = 0;
    for (int i = 0; i < 2; i++) {
        const int64_t bytes = extent[i] > 1 ? stride[i] * element_bytes : 0;
        if (bytes < 0 || bytes % unit != 0 || bytes / unit > int64_t(0xffffffff) / max_of(extent[i], 1)) return uneven();
        all += bytes / unit * extent[i];
        step[i] = uint32_t(bytes / unit);
    }
    return all <= int64_t(0xffffffff) || uneven();
}

// Factors that kernels of 8 bits read: powers of two, which leave a value exact in bf16, or others by permission. That of tokens keeps them
// apart: of f32 it takes any, of 128 dims each, and powers of two of 64 where v has the tail.
bool reads_factors(const Problem& problem, LatentSource source, uint32_t (&step)[2], Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!problem.has(FA_OPERAND_K_DESCALE)) return true;
    const int64_t* const block = d.k_descale_block;
    const bool powers = d.k_descale_dtype == FA_E8M0, f32 = d.k_descale_dtype == FA_F32 || d.k_descale_dtype == 0;
    const bool mixed = d.dim_qk == Tokens584::kOwn + kTail, tokens = source == LatentSource::tokens;
    const bool type_fits = tokens ? (mixed ? powers : f32) : powers || (f32 && d.precision == FA_PRECISION_NATIVE);
    const bool block_fits = block[0] == 1 && (tokens ? block[1] == (mixed ? 64 : 128) : block[1] == 64 || block[1] == 128);
    if (!type_fits)
        return refuse(refusal, "k_descale_dtype is %s: expected e8m0, or f32 with FA_PRECISION_NATIVE", dtype_name(d.k_descale_dtype));
    if (!block_fits)
        return refuse(refusal, "k_descale_block is %lld x %lld: expected 1 x 64 or 1 x 128", (long long)block[0], (long long)block[1]);
    if (d.k_descale_stride[3] != 1) return refuse(refusal, "k_descale_stride[3] is %lld: expected 1", (long long)d.k_descale_stride[3]);
    return count_steps(problem, "k_descale_stride", d.k_descale_stride, powers ? 1 : 4, 4, step, refusal);
}

// Rows whose addresses are multiples of 16 bytes.
bool set_row_steps(const Problem& problem, LatentSource source, LatentRows* rows, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!count_steps(problem, "k_stride", d.k_stride, type_bytes(d.k_dtype), 16, rows->k_step, refusal)) return false;
    if (!problem.has(FA_OPERAND_K_TAIL)) return true;
    rows->factor_shift = d.k_descale_block[1] == 64 ? 6 : 7;
    rows->factor_e8m0 = d.k_descale_dtype == FA_E8M0;
    return count_steps(problem, "k_tail_stride", d.k_tail_stride, type_bytes(d.k_tail_dtype), 16, rows->tail_step, refusal) &&
           reads_factors(problem, source, rows->factor_step, refusal);
}

// Lists of keys as lists of slots, which a kernel makes of them: of single keys, for all heads.
bool names_keys(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    return problem.has(FA_OPERAND_KEY_LIST) && !problem.slots() && d.list_keys == 1 && d.list_heads == 1 &&
           (!problem.causal() || d.list_rows == 1) && d.seqlen_k <= kMostListedKeys && d.list_max > 0 && rows_of_k(problem) < kMaxExtent &&
           sequences_of_k(problem) < kMaxExtent && rows_of_k(problem) * sequences_of_k(problem) <= int64_t(0x7fffffff);
}
int64_t lists_of_sequence(const Problem& problem) { return ceil_div(problem.d.seqlen_q, problem.d.list_rows); }
// What is left to compute then.
Problem as_slots(const Problem& asked) {
    Problem problem = asked;
    if (!names_keys(asked)) return problem;
    problem.d.list_space = FA_LIST_SLOTS;
    problem.d.page_size = rows_of_k(asked), problem.d.num_pages = sequences_of_k(asked);
    problem.d.seqlen_k = min_of(asked.d.list_max, asked.d.seqlen_k);
    problem.d.operands = (asked.d.operands & ~(FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K |
                                               FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE | FA_OPERAND_CAUSAL_OFFSET)) |
                         FA_OPERAND_KEY_LIST_COUNT;
    problem.d.flags &= ~uint32_t(FA_CAUSAL), problem.options &= ~uint64_t(FA_CAUSAL);
    problem.d.alignment = FA_ALIGN_UNSET;
    return problem;
}
uint64_t slot_list_bytes(const Problem& asked) {
    return names_keys(asked) ? uint64_t(asked.d.batch * lists_of_sequence(asked) * (min_of(asked.d.list_max, asked.d.seqlen_k) + 1)) * 4
                             : 0;
}

// One list for all heads of a block of rows, of slots that 32 bits count.
bool lists_are_plain(const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!problem.slots())
        return !problem.has(FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT) ||
               refuse(refusal, "list_keys is %lld, list_heads %lld and list_rows %lld: expected lists of single keys for all heads%s",
                      (long long)d.list_keys, (long long)d.list_heads, (long long)d.list_rows, problem.causal() ? " and each row" : "");
    return in_range("list_heads", d.list_heads, 1, 2, refusal) &&
           in_range("list_rows * heads_q", d.list_rows * d.heads_q, 0, kMaxExtent, refusal) &&
           in_range("page_size", d.page_size, 0, kMaxExtent, refusal) && in_range("num_pages", d.num_pages, 0, kMaxExtent, refusal) &&
           in_range("num_pages * page_size", d.num_pages * d.page_size, 0, int64_t(1) << 31, refusal);
}

bool by_boxes(const Problem& problem, Refusal* refusal) {
    return is_like_q(problem, refusal) && implements(problem, kLatentForward, refusal) && blocks_lie_in_pages(problem, refusal) &&
           tma_reads("k_stride", problem.d.k_stride, problem.d.q_dtype, rows_of_k(problem), 1, sequences_of_k(problem), refusal);
}
bool by_address(const Problem& problem, LatentSource source, int64_t tile_rows, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    LatentRows rows;
    if (source == LatentSource::rows && !is_like_q(problem, refusal)) return false;
    if (!lists_are_plain(problem, refusal) || !set_row_steps(problem, source, &rows, refusal)) return false;
    if (problem.paged() &&
        (!in_range("page_size", d.page_size, 0, kMaxExtent, refusal) || !in_range("num_pages", d.num_pages, 1, kMaxExtent, refusal)))
        return false;
    if (source == LatentSource::rows) return implements(problem, kLatentRowsForward, refusal);
    // Widening takes a tile the same time however many rows it has: 16 rows of 128 sequences took 254 µs, 235 by mma.sync, which takes no
    // lists; 32 of 64 132 and 220.
    if (source == LatentSource::bytes && !problem.slots() && rows_of(problem) < 32)
        return refuse(refusal, "seqlen_q * heads_q is %lld: expected 32 or more, or lists", (long long)rows_of(problem));
    if (source == LatentSource::tokens && !problem.has(FA_OPERAND_K_DESCALE))
        return refuse(refusal, "operands lacks FA_OPERAND_K_DESCALE: expected factors of tokens");
    // More rows than a tile has: only where no other kernel takes them, for each tile widens all keys.
    if (source == LatentSource::tokens && min_of(row_tiles(problem, tile_rows).period, rows_of(problem)) > tile_rows &&
        (tile_rows < 32 || by_address(problem, LatentSource::bytes, 64, nullptr)))
        return refuse(refusal, "seqlen_q * heads_q is %lld: expected at most %lld", (long long)rows_of(problem), (long long)tile_rows);
    if (d.q_dtype != FA_BF16 || d.k_dtype != FA_E4M3)
        return refuse(refusal, "q_dtype is %s beside a k_dtype of %s: expected the same, or bf16 and e4m3", dtype_name(d.q_dtype),
                      dtype_name(d.k_dtype));
    if (!problem.has(FA_OPERAND_K_TAIL)) return refuse(refusal, "operands lacks FA_OPERAND_K_TAIL, which a k of e4m3 has");
    if (d.k_tail_dtype != FA_BF16) return refuse(refusal, "k_tail_dtype is %s: expected bf16", dtype_name(d.k_tail_dtype));
    return in_range("dim_tail", d.dim_tail, kTail, kTail + 1, refusal) && implements(problem, kLatentBytesForward, refusal);
}

// Of several, the reasons of the one that takes most: for a k of q's type by address, and of 8 bits in tall tiles.
const LatentKernel* kernel_for(const Problem& problem, Refusal* refusal) {
    const LatentSource speaker = problem.d.k_dtype == problem.d.q_dtype ? LatentSource::rows : LatentSource::bytes;
    bool spoken = false;
    for (const LatentKernel& one : kKernels) {
        if (one.dtype != problem.d.q_dtype || one.dim != problem.d.dim_qk) continue;
        Refusal* const said = one.source == speaker ? refusal : nullptr;
        if (one.source == LatentSource::boxes ? by_boxes(problem, said) : by_address(problem, one.source, one.rows, said)) return &one;
        spoken |= one.source == speaker;
    }
    if (spoken) return nullptr;
    if (problem.d.dim_qk != 512 && problem.d.dim_qk != 576)
        refuse(refusal, "dim_qk is %lld: expected 512 or 576", (long long)problem.d.dim_qk);
    else by_address(problem, LatentSource::bytes, 64, refusal);  // of f16 there are none
    return nullptr;
}

bool can_implement(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!is_sm90(device, refusal)) return false;
    if (!problem.v_in_k()) return refuse(refusal, "flags lacks FA_V_IN_K: expected it");
    if (!in_range("heads_k", problem.kv_heads, 1, 2, refusal) || !in_range("dim_v", d.dim_v, 512, 513, refusal) ||
        !is_half("q_dtype", d.q_dtype, refusal) || !is_like_q_or_f32(problem, refusal) || !is_positive_scale(problem, refusal) ||
        !has_whole_splits(problem, refusal) || !extents_fit(problem, refusal) ||
        !in_range("seqlen_q * heads_q", rows_of(problem), 1, kMaxExtent, refusal) ||
        !in_range("batch * tiles", d.batch * tiles_of(problem, 16), 0, kMaxExtent, refusal))
        return false;
    const int64_t q_stride[4] = {d.q_stride[0], q_row_stride(d), 0, 1};
    if (!rows_are_even(d))
        return refuse(refusal, "q_stride is (%lld, %lld, %lld): expected rows that are heads_q times the step of a head apart",
                      (long long)d.q_stride[0], (long long)d.q_stride[1], (long long)d.q_stride[2]);
    return tma_reads("q_stride", q_stride, d.q_dtype, rows_of(problem), 1, d.batch, refusal) && writes_vectors(problem, refusal);
}

constexpr SplitCosts kSplitCosts = {kPairKeys, 1, 3};  // in pairs of blocks of keys

// How many pairs of CTAs can run at once on the current device: asked once, of the first kernel, which the question loads.
int pairs_at_once() {
    constexpr int kDevices = 64;
    static std::atomic<int> known[kDevices];  // one more than that
    int device = kDevices;
    if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return rt::clear_error(), 0;
    if (const int found = known[device].load(std::memory_order_relaxed)) return found - 1;
    const LatentKernel& kernel = kKernels[0];
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = 2;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(2);
    config.blockDim = dim3(unsigned(kernel.threads));
    config.dynamicSmemBytes = size_t(kernel.shared_bytes);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int pairs = 0;
    rt::Status s = rt::prepare_kernel(reinterpret_cast<const void*>(kernel.kernel()));
    if (s == rt::kSuccess) s = cudaOccupancyMaxActiveClusters(&pairs, kernel.kernel(), &config);
    if (s != rt::kSuccess) return rt::clear_error(), 0;
    known[device].store(pairs + 1, std::memory_order_relaxed);
    return pairs;
}

// Should a pair of CTAs share a tile's keys, in place of splits? It merges sooner than another kernel would, but takes one item. With a
// number or a size of splits it never does, so that a row's bits depend on nothing else.
bool pairs_are_faster(const rt::Device& device, const Problem& problem, const SplitParams& split) {
    constexpr int64_t kMerge = 1;
    const int64_t tiles = problem.d.batch * tiles_of(problem, 64), steps = ceil_div(problem.d.seqlen_k, kSplitCosts.keys);
    if (problem.d.num_splits > 0 || problem.d.split_size > 0 || tiles > pairs_at_once()) return false;
    return ceil_div(steps, 2) + kSplitCosts.border + kMerge < split_time(device, tiles, split.num_splits, steps, kSplitCosts);
}

bool plan_latent(const rt::Device& device, const Problem& asked, FamilyPlan* plan, Refusal* refusal) {
    const Problem problem = as_slots(asked);
    if (!can_implement(device, problem, refusal)) return false;
    const LatentKernel* const kernel = kernel_for(problem, refusal);
    if (!kernel) return false;
    const int64_t tiles = tiles_of(problem, kernel->rows);
    SplitParams split = splits_of(device, problem, problem.d.batch * tiles, kSplitCosts);
    const LatentSource source = kernel->source;
    const bool pairs = source != LatentSource::tokens && pairs_are_faster(device, problem, split);
    if (pairs) split.num_splits = split.splits = 1;
    const int64_t items = problem.d.batch * tiles * split.splits * (pairs ? 2 : 1);
    if (!in_range("batch * tiles * num_splits", items, 0, kMaxExtent, refusal)) return false;
    if (split.splits > 1 && !in_range("batch * seqlen_q * heads_q", problem.d.batch * rows_of(problem), 0, kMaxExtent, refusal))
        return false;
    plan->kernel = kernel->name;
    plan->rows = kernel->rows, plan->keys = kernel->keys;
    plan->splits_keys = true;
    plan->split = split;
    plan->blocks = min_of(items, min_of(device.multiprocessors, kMaxLatentCtas));
    plan->merge = "merge_latent_splits";
    plan->split_memory = split_memory(problem, split, false);
    plan->workspace = plan->split_memory.bytes() + slot_list_bytes(asked);
    LatentPlan& own = plan->params.emplace<LatentPlan>();
    own.kernel = kernel;
    LatentParams& params = own.a;
    set_rows(problem, &params.x);
    static_cast<SplitParams&>(params.x) = split;
    params.x.scale = problem.d.scale;
    params.x.causal = problem.causal();
    params.x.pages = pages_of(problem, nullptr);
    params.tile_rows = kernel->rows, params.tiles = int(tiles);
    params.splits = int(split.splits);
    params.ctas_of_tile = pairs ? 2 : 1;
    params.items = int(items);
    params.rows.q_step[0] = problem.d.q_stride[0] / 8, params.rows.q_step[1] = q_row_stride(problem.d) / 8;
    if (source != LatentSource::boxes) set_row_steps(problem, source, &params.rows, nullptr);
    if (source == LatentSource::bytes && problem.has(FA_OPERAND_K_DESCALE) && problem.d.k_descale_dtype != FA_E8M0)
        plan->product_dtype = FA_BF16;  // by permission
    if (problem.slots()) {
        const RowTiles of_list = row_tiles(problem, kernel->rows);
        params.rows_of_list = int(of_list.period), params.tiles_of_list = int(of_list.of_period);
        params.rows.page_size = divisor(problem.d.page_size), params.rows.slots = int(problem.d.num_pages * problem.d.page_size);
    }
    return true;
}

// Makes lists of slots, in memory.
rt::Status list_slots(const Problem& problem, const fa_forward_args_t& args, char* memory, rt::Stream stream, ListTable* to) {
    LatentKeyLists params{};
    params.from = list_table(problem, args);
    params.sequences = sequence_table(problem, args);
    params.pages = pages_of(problem, args.page_table);
    params.lists = int(lists_of_sequence(problem));
    params.keys = int(problem.d.seqlen_k), params.most = int(min_of(problem.d.list_max, problem.d.seqlen_k));
    params.rows = int(rows_of_k(problem));
    params.causal = problem.causal();
    const int64_t lists = problem.d.batch * params.lists;
    params.slots = reinterpret_cast<int32_t*>(memory), params.counts = params.slots + lists * params.most;
    *to = ListTable{
        {params.slots}, {params.counts}, {int64_t(params.lists) * params.most, 0, params.most, 1}, {params.lists, 0, 1}, params.most};
    return rt::launch_after(list_latent_slots, lists, kSlotThreads, uint64_t(ceil_div(problem.d.seqlen_k, 32)) * 4, stream, params);
}

rt::Status launch_kernels(const FamilyPlan& plan, const ForwardCall& call) {
    const LatentPlan& own = plan.params.get<LatentPlan>();
    const LatentKernel& kernel = *own.kernel;
    const Problem& asked = call.problem;
    const Problem problem = as_slots(asked);
    const fa_attention_desc_t& d = problem.d;
    const fa_forward_args_t& args = call.args;
    const rt::Stream stream = call.stream;
    LatentParams params = own.a;
    set_row_tensors(problem, args, &params.x);
    set_split_memory(plan.split_memory, call.memory, &params.x);
    params.x.pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    params.rows.q = static_cast<const char*>(args.q);
    params.rows.k = static_cast<const char*>(args.k);
    params.rows.tail = static_cast<const char*>(operand(problem, FA_OPERAND_K_TAIL, args.k_tail));
    params.rows.factor = static_cast<const char*>(operand(problem, FA_OPERAND_K_DESCALE, static_cast<const void*>(args.k_descale)));
    params.rows.list = list_table(problem, args);
    if (names_keys(asked)) {
        const rt::Status s = list_slots(asked, args, call.memory + plan.split_memory.bytes(), stream, &params.rows.list);
        if (s != rt::kSuccess) return s;
    }
    // Fetching 256 bytes for 128 costs 7 % where memory is the limit, and gains 2 % where tiles of a sequence share what comes.
    const CUtensorMapL2promotion promotion = params.tiles == 1 ? CU_TENSOR_MAP_L2_PROMOTION_NONE : CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
    const int64_t q_stride[4] = {d.q_stride[0], q_row_stride(d), 0, 1};
    if (!encode_tensor_map(&params.q, args.q, d.q_dtype, q_stride, d.dim_qk, rows_of(problem), 1, d.batch, {64}) ||
        (kernel.source == LatentSource::boxes &&
         !encode_tensor_map(&params.k, args.k, d.q_dtype, d.k_stride, d.dim_qk, rows_of_k(problem), 1, sequences_of_k(problem), {64},
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE, promotion)))
        return cudaErrorInvalidValue;
    const rt::Status s =
        rt::launch_after(kernel.kernel(), plan.blocks, kernel.threads, uint64_t(kernel.shared_bytes), stream, params, params.ctas_of_tile);
    if (s != rt::kSuccess || plan.split.splits == 1) return s;
    return rt::launch_after(merge_latent_splits, problem.d.batch * rows_of(problem), kMergeTeam * merge_teams(plan.split), 0, stream,
                            params.x);
}

fa_status_t launch_latent(const FamilyPlan& plan, const ForwardCall& call, Message* message) {
    return launched(message, launch_kernels(plan, call), plan.kernel);
}
void visit_latent(KernelVisitor visitor, void* user) {
    for (const LatentKernel& one : kKernels)
        visitor(user, {one.name, one.rows, 0, one.keys, one.threads, 1, one.shared_bytes, reinterpret_cast<const void*>(one.kernel())});
}

}  // namespace

const ForwardFamily sm90_latent_forward = {"sm90_latent", false, true, plan_latent, nullptr, launch_latent, visit_latent};

}  // namespace gpu
}  // namespace fa
