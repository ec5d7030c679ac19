// The host's part of the forward kernels for sm_90a: which calls they can implement, the plan of a call (its kernel, parameters, launch
// and workspace), and its launch.
// Answers depend on the device and the descriptor alone; the tensors' addresses have been checked to be multiples of 16 bytes
// before.
#include "cuda/sm90/forward/kernel_list.h"
#include "cuda/sm90/forward/operands/list_operands.h"
#include "cuda/sm90/common/latent_dispatch.h"
#include "cuda/sm90/forward/operands/pack_mask.h"
#include "cuda/sm90/forward/operands/score_operands.h"
#include "cuda/sm90/common/tensor_map.h"
#include "cuda/sm90/common/wide_dispatch.h"
#include "cuda/sm90/forward/operands/widen_kv.h"

namespace fa {
namespace gpu {
namespace {

const Sm90Kernel& sm90_kernel(const ArchKernel& arch_kernel) { return *static_cast<const Sm90Kernel*>(arch_kernel.impl); }

constexpr int kWidths[] = {64, 96, 128, 192, 256};

constexpr struct Unit {
    int32_t dtype;
    int width;
    Sm90KernelList (*kernels)();
} kUnits[] = {
#define FA_SM90_UNIT(T, width, unit) {sizeof(T) == 1 ? FA_E4M3 : kIsF16<T> ? FA_F16 : FA_BF16, width, sm90_kernels<unit>},
#include "units.inc"
#undef FA_SM90_UNIT
};
constexpr bool tries_every_width() {
    for (const Unit& unit : kUnits) {
        bool tried = false;
        for (const int width : kWidths) tried |= width == unit.width;
        if (!tried) return false;
    }
    return true;
}
static_assert(tries_every_width(), "kernels.def has a width that kWidths lacks");

// Lists and ranges, within any masks; and a boolean mask of heads that are too wide for a ScoreMod.
bool reads_key_units(const Problem& p) {
    return p.has(kRowSetOperands) || (p.has(FA_OPERAND_MASK) && type_bytes(p.d.q_dtype) == 2 && (p.d.dim_qk > 128 || p.d.dim_v > 128));
}
MaskKind mask_kind_of(const Problem& p) {
    if (reads_key_units(p)) return MaskKind::list;
    if (p.d.flags & FA_WINDOW || p.d.chunk > 0) return MaskKind::band;
    return p.causal() ? MaskKind::causal : MaskKind::none;
}

ScoreMod score_mod_of(const Problem& p) {
    return has_block_factors(p)      ? ScoreMod::factors
           : reads_key_units(p)      ? ScoreMod::none  // masks among them
           : p.has(FA_OPERAND_MASK)  ? ScoreMod::mask
           : p.has(FA_OPERAND_BIAS)  ? (reads_f32_bias(p.d) ? ScoreMod::bias_f32 : ScoreMod::bias)
           : p.d.softcap > 0         ? ScoreMod::softcap
           : p.has(FA_OPERAND_ALIBI) ? ScoreMod::alibi
                                     : ScoreMod::none;
}

// Is the softcap's polynomial (score_mod.h) good enough? Its coefficients must be normal floats, and its error, 2^-17.8 of a score,
// small beside the rounding of P.
bool softcap_polynomial_fits(const Problem& p) {
    constexpr float least = 0x1p-16f, most = 0x1p+16f;
    const float ratio = p.d.scale / p.d.softcap;
    return !p.has(FA_OPERAND_ALIBI) && p.d.softcap <= 256.f && ratio > least && ratio < most;
}

// With fewer rows a tile of 128 has some of several query heads that share k and v, where there are such. With few, and where anything but
// products and lengths is asked for, the smaller tiles of mma/forward.h are faster.
constexpr int64_t kMinRows = 128, kFewestRows = 9, kFewestPacked = 16;
// What the kernels implement, with factors of which a sequence and a head have one each; with an 8-bit q also o's, and others.
// FA_OPERAND_RNG_STATE is read with dropout only. Not splits: a fixed size promises bits that do not depend on the longest sequence.
constexpr uint64_t kDescaleOperands = FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
constexpr Implements kForward = {
    FA_OPERAND_LSE | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS | kSequenceOperands | FA_OPERAND_PAGE_TABLE |
        FA_OPERAND_RNG_STATE | kDescaleOperands,
    option::bands | FA_DETERMINISTIC | option::reserve_units | option::precision | FA_V_IN_K | option::softcap};
constexpr Implements kListForward = {(kForward.operands & ~FA_OPERAND_ALIBI) | kRowSetOperands,
                                     (kForward.options & ~option::softcap) | option::mask_dtype | option::mask_keys | option::mask_period};
constexpr Implements kByteForward = {kForward.operands | FA_OPERAND_O_SCALE, kForward.options | option::factors};
constexpr Implements kBiasForward = {kForward.operands | FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE, kForward.options | option::bias_period};

// The types that there are kernels for: q, k and v alike, once widen_kv has run, and o like them or f32; with 8 bits f32, f16, bf16 or
// e4m3.
bool types_fit(const fa_attention_desc_t& d) {
    if (d.k_dtype != d.q_dtype) return false;
    if (d.q_dtype == FA_E4M3) return d.o_dtype == FA_F32 || d.o_dtype == FA_F16 || d.o_dtype == FA_BF16 || d.o_dtype == FA_E4M3;
    return (d.q_dtype == FA_F16 || d.q_dtype == FA_BF16) && (d.o_dtype == d.q_dtype || d.o_dtype == FA_F32);
}

// Rows of a page that one TMA load brings: what divides both the page and the block of keys.
constexpr int64_t kMinPageChunk = 16;
int page_chunk_of(const Sm90Kernel& h, const Problem& p) {
    int rows = kMinPageChunk;
    while (p.d.page_size % (2 * rows) == 0 && h.block_n % (2 * rows) == 0) rows *= 2;
    return rows;
}

// How k or v is copied to q's type before the kernel runs, without its pointers: where it is of 8 bits and q is not.
WidenKvParams widening_of(const Problem& p, int32_t dtype, const int64_t stride[4], int64_t heads, int64_t dim) {
    constexpr int64_t most = int64_t(1) << 26;  // units: a copy of a GiB
    WidenKvParams x{};
    const int64_t sequences = sequences_of_k(p), rows = rows_of_k(p), units = dim / 8;
    if (type_bytes(p.d.q_dtype) != 2 || (dtype != FA_E4M3 && dtype != FA_E5M2 && dtype != FA_I8)) return x;
    if (sequences * rows > 2 * p.d.batch * round_up(p.d.seqlen_k, 64)) return x;  // a pool of which the call reads little
    if (dim % 8 != 0 || (stride[0] | stride[1] | stride[2]) % 8 != 0 ||
        double(sequences) * double(rows) * double(heads * units) > double(most))
        return x;
    for (int i = 0; i < 3; i++) x.stride[i] = stride[i];
    if (p.packed_k()) x.stride[0] = 0;
    x.rows = uint32_t(rows), x.heads = uint32_t(heads), x.units = uint32_t(units);
    x.total = uint32_t(sequences * rows * heads * units);
    return x;
}
struct DenseStrides {
    int64_t at[4];
};
DenseStrides strides_of_copy(const WidenKvParams& x) {
    const int64_t dim = 8 * int64_t(x.units), heads = x.heads;
    return {{x.rows * heads * dim, heads * dim, dim, 1}};
}
// The call as it is then.
Problem widened_problem(const Problem& p, const WidenKvParams& k, const WidenKvParams& v) {
    Problem w = p;
    const auto widen = [&](const WidenKvParams& x, int32_t* dtype, int64_t* stride) {
        if (x.total == 0) return;
        *dtype = p.d.q_dtype;
        memcpy(stride, strides_of_copy(x).at, sizeof strides_of_copy(x).at);
    };
    widen(k, &w.d.k_dtype, w.d.k_stride);
    widen(v, &w.d.v_dtype, w.d.v_stride);
    if (w.d.k_dtype == w.d.v_dtype) w.options &= ~option::v_dtype;
    return w;
}

bool is_low_call(const Problem& p) { return p.d.seqlen_q < kMinRows; }
bool low_call_fits(const Problem& p) {
    const bool plain = p.within({FA_OPERAND_LSE | FA_OPERAND_SINKS | kSequenceOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_RNG_STATE,
                                 FA_CAUSAL | FA_DETERMINISTIC | option::reserve_units | option::precision});
    return plain && p.d.seqlen_q >= kFewestRows && type_bytes(p.d.q_dtype) == 2;
}

bool can_implement(const rt::Device& device, const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    if (!device.sm90 || !types_fit(d)) return false;
    const bool lists = reads_key_units(p);
    if (!p.within(lists ? kListForward : type_bytes(d.q_dtype) == 1 ? kByteForward : p.has(FA_OPERAND_BIAS) ? kBiasForward : kForward))
        return false;
    if (lists && (type_bytes(d.q_dtype) == 1 || !lists_fit(p))) return false;
    if (!(d.scale > 0) || (d.softcap > 0 && !softcap_polynomial_fits(p))) return false;
    if (p.has(FA_OPERAND_MASK) && (d.softcap > 0 || p.has(FA_OPERAND_ALIBI))) return false;
    // With left padding a block of keys would begin within a page.
    if (p.paged() && (d.page_size % kMinPageChunk != 0 || p.has(FA_OPERAND_LEFTPAD_K) || d.num_pages < 1 || d.num_pages >= kMaxExtent))
        return false;
    if (d.seqlen_k < 1 || (is_low_call(p) && !low_call_fits(p))) return false;
    if (d.dim_qk > 256 || d.dim_v > 256 || d.dim_qk % 8 != 0 || d.dim_v % 8 != 0) return false;
    if (d.seqlen_q >= kMaxExtent || d.seqlen_k >= kMaxExtent || rows_of_q(p) >= kMaxExtent || rows_of_k(p) >= kMaxExtent ||
        rows_of_q(p) < 1 || rows_of_k(p) < 1 || d.batch * d.heads_q * ceil_div(d.seqlen_q, kMinRows) >= kMaxExtent)
        return false;
    if ((p.has(FA_OPERAND_BIAS) && !bias_fits(p)) || (has_block_factors(p) && !block_factors_fit(p))) return false;
    return tma_compatible(d.q_stride, d.q_dtype, rows_of_q(p), d.heads_q, sequences_of_q(p)) &&
           tma_compatible(d.k_stride, d.q_dtype, rows_of_k(p), d.heads_k, sequences_of_k(p)) &&
           tma_compatible(d.v_stride, d.q_dtype, rows_of_k(p), d.heads_k, sequences_of_k(p)) &&
           (d.o_stride[0] | d.o_stride[1] | d.o_stride[2]) % 8 == 0;
}

// The mask operand as it will be packed. In a call's workspace it lies behind the tile counter: spans, then bits.
PackedMask packed_mask(const Problem& p) {
    const int64_t* const stride = p.d.mask_stride;
    PackedMask m{};
    m.sequences = int(stride[0] ? p.d.batch : 1);
    m.heads = int(stride[1] ? p.d.heads_q : 1);
    m.m_blocks = int(ceil_div(p.d.seqlen_q, PackedMask::kBlockM));
    m.n_blocks = int(ceil_div(p.d.seqlen_k, PackedMask::kBlockN));
    return m;
}
uint64_t span_bytes(const PackedMask& m) { return uint64_t(round_up(m.all_tiles() * int64_t(sizeof(int2)), 256)); }
uint64_t packed_mask_bytes(const PackedMask& m) { return span_bytes(m) + uint64_t(m.words()) * sizeof(uint2); }

rt::Status pack(const PackedMask& to, const Problem& p, const uint8_t* from, rt::Stream stream) {
    const int64_t* const t = p.d.mask_stride;
    const bool words = t[3] == 1 && (t[0] | t[1] | t[2]) % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0;
    PackParams x{};
    x.to = to;
    x.from = from;
    for (int i = 0; i < 4; i++) x.stride[i] = t[i];
    x.rows = int(p.d.seqlen_q);
    x.keys = int(p.d.seqlen_k);
    x.words = words;
    const rt::Status s = rt::set_zero(to.spans, uint64_t(to.all_tiles()) * sizeof(int2), stream);
    return s == rt::kSuccess ? rt::launch(pack_mask, ceil_div(to.words(), kPackThreads), kPackThreads, 0, stream, x) : s;
}

// Heads that share a tile: as many as make the tiles fewest, by a tenth where there are as many rows as it has. Bands have no kernels of 96
// and 192 dims; those of the next width take a third longer.
int64_t packed_heads(const Problem& p) {
    const bool low = is_low_call(p);
    if (!low && !(low_call_fits(p) && has_uniform_lengths(p))) return 1;
    const int64_t dim = p.d.dim_qk;
    const bool wider = p.d.q_dtype == FA_BF16 && ((dim > 64 && dim <= 96) || (dim > 128 && dim <= 192));
    const auto tiles = [&](int64_t n) { return ceil_div(p.d.seqlen_q, kMinRows / n) * (p.group / n); };
    int64_t best = 1;
    for (int64_t n = 2; p.group % n == 0 && kMinRows / n >= kFewestPacked; n *= 2)
        if (tiles(n) < tiles(best)) best = n;
    return tiles(best) * (wider ? 40 : 30) <= tiles(1) * (low ? 30 : 27) ? best : 1;
}

// Two query heads that share k and v see the same keys in the same rows; of two tiles of one head, the later sees more.
bool pair_by_heads(const Sm90Kernel& h, const Problem& p) { return h.cluster_size > 1 && p.group % 2 == 0; }
int64_t m_blocks_of(const Sm90Kernel& h, const Problem& p) {
    return ceil_div(p.d.seqlen_q, pair_by_heads(h, p) ? h.block_m : h.block_m * h.cluster_size / packed_heads(p));
}
int64_t tiles_of(const Sm90Kernel& h, const Problem& p) {
    return p.d.batch * p.d.heads_q / (pair_by_heads(h, p) ? 2 : packed_heads(p)) * m_blocks_of(h, p);
}

// Query heads whose tiles are taken longest first, before those of the next ones: as many as have k and v in the L2 cache. The longest
// tiles read all of these. Where a head has few tiles they are much of the work, so sections are short: else memory has all
// to bring when a section begins, and little while it ends.
int64_t section_heads(const Sm90Kernel& h, const Problem& p) {
    constexpr int64_t kShortSectionTiles = 8, kShortSectionBytes = 8 << 20;
    const int64_t kv_heads = m_blocks_of(h, p) > kShortSectionTiles ? kv_heads_in_l2(p) : kv_heads_in_l2(p, kShortSectionBytes);
    return min_of(kv_heads, p.d.batch * p.kv_heads) * p.group;
}

// Is the tile schedule dynamic? Where tiles cost differently, and there is more than one for each CTA.
bool schedules_dynamically(const Sm90Kernel& h, const rt::Device& device, const Problem& p) {
    return (h.mask != MaskKind::none || !has_uniform_lengths(p)) &&
           tiles_of(h, p) > device.multiprocessors * h.tiles_at_once() / h.cluster_size;
}

// Proportional to the time that a kernel should take: tiles, in waves, times what one costs. With the dynamic schedule CTAs end
// together, but not before the longest tile does, and under a causal mask the average tile is shorter than that.
double estimated_time(const Sm90Kernel& h, const rt::Device& device, const Problem& p) {
    const int64_t tiles = tiles_of(h, p), slots = device.multiprocessors / h.cluster_size;
    const double square = p.d.seqlen_q < p.d.seqlen_k ? double(p.d.seqlen_q) / double(p.d.seqlen_k) : 1;
    const double keys = h.mask == MaskKind::causal ? 1 - .5 * square : 1;  // of the average tile
    const double shared = keys * double(tiles) / double(slots);
    const double waves = !schedules_dynamically(h, device, p) ? double(ceil_div(tiles, slots)) : shared > 1 ? shared : 1;
    return waves * h.block_m * h.cost;
}

// P is rounded to 8 bits by permission alone. Row sums of an LSE have kernels of their own where wgmma makes those of o (128 dims).
// Averages of o in f16 stand still after 2^11 of them, each of 1024 keys or more.
bool pv_product_fits(const Sm90Kernel& h, const Problem& p) {
    constexpr int64_t most_keys = int64_t(1) << 20;
    if (h.pv != PvProduct::wide && (p.d.precision != FA_PRECISION_NATIVE || p.d.seqlen_k > most_keys)) return false;
    if (h.pv == PvProduct::p8_short && p.d.seqlen_k > kUnpromotedKeys) return false;
    return h.pv == PvProduct::wide || h.max_dim_v > 128 || p.has(FA_OPERAND_LSE) == (h.pv == PvProduct::p8_lse);
}

// Of a width's kernels for a mask the one that should take the least time; NULL: none can implement the call.
const ArchKernel* fastest_kernel(int width, MaskKind mask, const rt::Device& device, const Problem& p) {
    const ScoreMod score_mod = score_mod_of(p);
    const int64_t packed = packed_heads(p);
    const ArchKernel* best = nullptr;
    double least = 0;
    for (const Unit& unit : kUnits) {
        if (unit.dtype != p.d.q_dtype || unit.width != width) continue;
        const Sm90KernelList list = unit.kernels();
        for (int i = 0; i < list.count; i++) {
            const Sm90Kernel& h = sm90_kernel(list.arch_kernel[i]);
            if (h.max_dim_v < p.d.dim_v || h.mask != mask || h.score_mod != score_mod || p.d.seqlen_k < h.min_seqlen_k) continue;
            if (!pv_product_fits(h, p) || (type_bytes(unit.dtype) == 2 && h.descale != p.has(kDescaleOperands))) continue;
            if ((h.cluster_size > 1 || warpgroup_diagonals(h.mask, h.block_n, h.block_m)) && !has_uniform_lengths(p)) continue;
            if (packed > 1 && !(h.packs_heads && h.block_m == kMinRows)) continue;
            if ((p.paged() && !h.paged_kv) || (best && h.max_dim_v != sm90_kernel(*best).max_dim_v)) continue;
            const double time = estimated_time(h, device, p);
            if (best && time >= least) continue;
            best = &list.arch_kernel[i];
            least = time;
        }
    }
    return best;
}

const ArchKernel* kernel_for(const rt::Device& device, const Problem& p) {
    if (!can_implement(device, p)) return nullptr;
    for (const int width : kWidths) {
        if (width < p.d.dim_qk) continue;
        const MaskKind kind = mask_kind_of(p);
        for (const MaskKind mask : {kind, kind == MaskKind::list ? kind : MaskKind::band})
            if (const ArchKernel* const best = fastest_kernel(width, mask, device, p)) return best;
    }
    return nullptr;
}

Sm90Call planned_call(const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    Sm90Call x{};
    set_rows(p, &x);
    x.scale = d.scale;
    x.softcap = d.softcap;
    x.alibi_batch_stride = d.alibi_batch_stride;
    x.uniform_lengths = has_uniform_lengths(p);
    if (x.uniform_lengths) x.uniform_seq = sequence_of(x.sequences, 0);
    x.pages = pages_of(p, nullptr);
    x.q_descale.strides = row_strides(d.q_descale_stride, false);
    x.k_descale.strides = row_strides(d.k_descale_stride, false);
    x.v_descale.strides = row_strides(d.v_descale_stride, false);
    return x;
}
void set_call_tensors(const Problem& p, const fa_forward_args_t& a, Sm90Call* x) {
    set_row_tensors(p, a, x);
    x->alibi_slopes = operand(p, FA_OPERAND_ALIBI, a.alibi_slopes);
    x->pages.table = operand(p, FA_OPERAND_PAGE_TABLE, a.page_table);
    x->q_descale.data = static_cast<const float*>(operand(p, FA_OPERAND_Q_DESCALE, a.q_descale));
    x->k_descale.data = static_cast<const float*>(operand(p, FA_OPERAND_K_DESCALE, a.k_descale));
    x->v_descale.data = static_cast<const float*>(operand(p, FA_OPERAND_V_DESCALE, a.v_descale));
    x->o_scale = operand(p, FA_OPERAND_O_SCALE, a.o_scale);
}

// What a plan holds for a launch.
struct Sm90Plan {
    Sm90ForwardParams forward;
    WidenKvParams k, v;
    CopyBiasParams bias;
    BlockFactorParams factors;
    KeyUnitParams units;
};

template <class T>
void (*widen_kernel(int32_t from))(WidenKvParams) {
    return from == FA_E4M3 ? widen_kv<T, E4m3> : from == FA_E5M2 ? widen_kv<T, E5m2> : widen_kv<T, I8>;
}
rt::Status widen(WidenKvParams x, const Problem& p, const fa_forward_args_t& args, int32_t dtype, const void* from, void* to,
                 rt::Stream stream) {
    x.from = static_cast<const uint8_t*>(from);
    x.to = static_cast<uint16_t*>(to);
    // Others than those of the batch's own sequences may be wanted for longer, or lie in pages.
    if (!p.packed_k() && !p.paged() && !p.has(FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_LEFTPAD_K))
        x.seqused = operand(p, FA_OPERAND_SEQUSED_K, args.seqused_k);
    const int64_t blocks = ceil_div(x.total, kWidenThreads * kWidenUnits);
    return rt::launch(p.d.q_dtype == FA_F16 ? widen_kernel<F16>(dtype) : widen_kernel<Bf16>(dtype), blocks, kWidenThreads, 0, stream, x);
}

}  // namespace

ArchPlan plan_arch_kernel(const rt::Device& device, const Problem& asked) {
    ArchPlan plan = plan_latent_kernel(device, asked);
    if (plan.kernel) return plan;
    plan = plan_wide_kernel(device, asked);
    if (plan.kernel) return plan;
    plan = {};
    Sm90Plan planned{};
    planned.k = widening_of(asked, asked.d.k_dtype, asked.d.k_stride, asked.d.heads_k, asked.d.dim_qk);
    planned.v = widening_of(asked, asked.d.v_dtype, asked.d.v_stride, asked.d.heads_v, asked.d.dim_v);
    const Problem p = widened_problem(asked, planned.k, planned.v);
    if (is_low_call(p) && (planned.k.total | planned.v.total) != 0) return plan;  // the copies would take longer than the call
    plan.kernel = kernel_for(device, p);
    if (!plan.kernel) return plan;
    const Sm90Kernel& h = sm90_kernel(*plan.kernel);
    const fa_attention_desc_t& d = p.d;
    Sm90ForwardParams& a = planned.forward;
    a.x = planned_call(p);
    a.window = window_of(p);
    a.o_columns = type_bytes(d.o_dtype) == 2 ? int(d.dim_v) : 0;
    a.o_e4m3 = d.o_dtype == FA_E4M3;
    a.o_f16 = d.o_dtype == FA_F16;
    a.page_chunk = p.paged() && h.mask != MaskKind::list ? page_chunk_of(h, p) : 0;
    a.pair_by_heads = pair_by_heads(h, p);
    a.m_blocks = int(m_blocks_of(h, p));
    a.num_tiles = int(tiles_of(h, p));
    plan.tiles = a.num_tiles * h.cluster_size;
    const int64_t packed = packed_heads(p);
    a.tile_heads = int(d.heads_q / packed);
    while (h.block_m > packed << a.head_rows_log2) a.head_rows_log2++;
    if (p.causal() || h.mask == MaskKind::list) a.section = int(section_heads(h, p) / (a.pair_by_heads ? 2 : packed));
    plan.blocks = h.cluster_size * min_of(int(ceil_div(a.num_tiles, h.tiles_at_once())), device.multiprocessors / h.cluster_size);
    plan.split.splits = 1;
    if (schedules_dynamically(h, device, p)) plan.workspace = kArchKernelBytes, plan.zeroed = 2 * sizeof *a.tile_counter;
    if (h.mask == MaskKind::list) {
        planned.units = planned_units(p, h.block_n, a.window);
        plan.workspace = kArchKernelBytes + table_bytes(p, planned.units.to);
    }
    if (h.score_mod == ScoreMod::mask) {
        a.mask = packed_mask(p);
        plan.workspace = kArchKernelBytes + packed_mask_bytes(a.mask);
    }
    if (h.score_mod == ScoreMod::factors) {
        planned.factors = planned_factors(p);
        plan.workspace = kArchKernelBytes + factor_bytes(planned.factors);
    }
    if (bias_size_of(h.score_mod) > 0) {
        a.bias = planned_bias(p);
        a.bias.heads_first = a.bias.heads_first && !a.pair_by_heads;  // whose two heads are neighbours
        planned.bias = copy_of_bias(p, a.bias, kBiasTileRows);
        if (planned.bias.units > 0) plan.workspace = kArchKernelBytes + uint64_t(bytes_of(planned.bias, p));
    }
    plan.widened = uint64_t(round_up(planned.k.bytes(), 256) + planned.v.bytes());
    if (plan.widened > 0) plan.workspace = uint64_t(round_up(int64_t(plan.workspace), 256)) + plan.widened;
    plan.params.set(planned);
    return plan;
}

rt::Status arch_kernel_memory(ArchKernelMemory* memory, rt::Stream stream, void** zeros) {
    *zeros = nullptr;
    unsigned long long id;
    if (rt::capturing(stream)) return rt::kSuccess;
    rt::Status s = cudaStreamGetId(stream, &id);
    if (s != rt::kSuccess) return s;
    int i = 0;
    while (i < memory->streams && memory->stream[i] != id) i++;
    if (i == ArchKernelMemory::kStreams) return rt::kSuccess;
    if (!memory->zeros) {
        void* fresh;
        s = cudaMalloc(&fresh, ArchKernelMemory::kStreams * kArchKernelBytes);
        if (s != rt::kSuccess) return s;
        memory->zeros = static_cast<char*>(fresh);
    }
    *zeros = memory->zeros + i * kArchKernelBytes;
    if (i < memory->streams) return rt::kSuccess;
    s = cudaMemsetAsync(*zeros, 0, kArchKernelBytes, stream);
    if (s == rt::kSuccess) memory->stream[memory->streams++] = id;
    return s;
}

rt::Status find_arch_driver(const rt::Device& device) {
    return !device.sm90 || tensor_map_encoder() ? rt::kSuccess : cudaErrorInsufficientDriver;
}

rt::Status launch_arch_kernel(const ArchPlan& plan, const Problem& p, const fa_forward_args_t& args, char* memory, bool zeroed,
                              rt::Stream stream) {
    if (is_latent_kernel(*plan.kernel)) return launch_latent_kernel(plan, p, args, memory, stream);
    if (is_wide_kernel(*plan.kernel)) return launch_wide_kernel(plan, p, args, memory, stream);
    const Sm90Kernel& h = sm90_kernel(*plan.kernel);
    const fa_attention_desc_t& d = p.d;
    const int64_t kv_sequences = sequences_of_k(p);
    const Sm90Plan planned = plan.params.get<Sm90Plan>();
    Sm90ForwardParams a = planned.forward;
    set_call_tensors(p, args, &a.x);
    // k and v as the kernel reads them: as they came, or copies, which lie behind all else in the workspace.
    struct Tensor {
        const void* data;
        DenseStrides stride;
    } k{args.k, {}}, v{args.v, {}};
    char* copy = memory + plan.workspace - plan.widened;
    const auto prepare = [&](Tensor* t, const WidenKvParams& x, int32_t dtype, const int64_t* stride) {
        memcpy(t->stride.at, stride, sizeof t->stride.at);
        if (x.total == 0) return rt::kSuccess;
        const rt::Status s = widen(x, p, args, dtype, t->data, copy, stream);
        *t = {copy, strides_of_copy(x)};
        copy += round_up(x.bytes(), 256);
        return s;
    };
    if (const rt::Status s = prepare(&k, planned.k, d.k_dtype, d.k_stride); s != rt::kSuccess) return s;
    if (const rt::Status s = prepare(&v, planned.v, d.v_dtype, d.v_stride); s != rt::kSuccess) return s;
    const int packed = int(packed_heads(p));
    const int k_box_rows = a.page_chunk ? a.page_chunk : h.k_box_rows, v_box_rows = a.page_chunk ? a.page_chunk : h.v_box_rows;
    if (!encode_tensor_map(&a.q, args.q, d.q_dtype, d.q_stride, d.dim_qk, rows_of_q(p), d.heads_q, sequences_of_q(p),
                           {h.block_m / packed, packed}) ||
        !encode_tensor_map(&a.k, k.data, d.q_dtype, k.stride.at, d.dim_qk, rows_of_k(p), d.heads_k, kv_sequences, {k_box_rows}) ||
        !encode_tensor_map(&a.v, v.data, d.q_dtype, v.stride.at, d.dim_v, rows_of_k(p), d.heads_k, kv_sequences, {v_box_rows}) ||
        (a.page_chunk && !encode_tensor_map(&a.k_missing, k.data, d.q_dtype, k.stride.at, d.dim_qk, rows_of_k(p), d.heads_k, kv_sequences,
                                            {k_box_rows}, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)))
        return cudaErrorInvalidValue;
    if (plan.zeroed > 0) {
        a.tile_counter = reinterpret_cast<int*>(memory);
        const rt::Status s = zeroed || h.mask == MaskKind::list ? rt::kSuccess : rt::set_zero(memory, plan.zeroed, stream);
        if (s != rt::kSuccess) return s;
    }
    if (h.mask == MaskKind::list) {
        const rt::Status s = list_units(planned.units, p, args, memory + kArchKernelBytes, a.tile_counter, stream, &a);
        if (s != rt::kSuccess) return s;
    }
    if (h.score_mod == ScoreMod::mask) {
        a.mask.spans = reinterpret_cast<int2*>(memory + kArchKernelBytes);
        a.mask.bits = reinterpret_cast<uint2*>(memory + kArchKernelBytes + span_bytes(a.mask));
        const rt::Status s = pack(a.mask, p, args.mask, stream);
        if (s != rt::kSuccess) return s;
    }
    if (bias_size_of(h.score_mod) > 0) {
        const rt::Status s = read_bias(planned.bias, p, args, kBiasTileRows, memory + kArchKernelBytes, stream, &a.bias, &a.bias_map);
        if (s != rt::kSuccess) return s;
    }
    if (h.score_mod == ScoreMod::factors) {
        const rt::Status s = read_factors(planned.factors, p, args, memory + kArchKernelBytes, stream, &a);
        if (s != rt::kSuccess) return s;
    }
    return rt::launch_after(h.kernel, plan.blocks, h.threads, h.shared_bytes, stream, a, h.cluster_size);
}

}  // namespace gpu
}  // namespace fa
