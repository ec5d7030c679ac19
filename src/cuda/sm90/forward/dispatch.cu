// The host's part of the forward kernels for sm_90a: which calls they can implement, the plan of a call (its kernel, parameters, launch
// and workspace), and its launch.
// Answers depend on the device and the descriptor alone; the tensors' addresses have been checked to be multiples of 16 bytes
// before.
#include "cuda/sm90/common/refusals.h"
#include "cuda/sm90/common/tensor_map.h"
#include "cuda/sm90/forward/kernel_list.h"
#include "cuda/sm90/forward/operands/list_operands.h"
#include "cuda/sm90/forward/operands/pack_mask.h"
#include "cuda/sm90/forward/operands/score_operands.h"
#include "cuda/sm90/forward/operands/widen_kv.h"
#include "cuda/sm90/forward/rows.h"
#include "gpu/host/arch.h"
#include "gpu/host/family.h"
#include "gpu/host/mma_implements.h"

namespace fa {
namespace gpu {

extern const ForwardFamily sm90_forward;

namespace {

constexpr struct Unit {
    int32_t dtype;
    int width;
    Sm90KernelList (*kernels)();
} kUnits[] = {
#define FA_SM90_UNIT(T, width, unit) {sizeof(T) == 1 ? FA_E4M3 : kIsF16<T> ? FA_F16 : FA_BF16, width, sm90_kernels<unit>},
#include "units.inc"
#undef FA_SM90_UNIT
};

// Lists and ranges, within any masks; and a boolean mask of heads that are too wide for a ScoreMod.
bool reads_key_units(const Problem& problem) {
    return problem.has(kRowSetOperands) ||
           (problem.has(FA_OPERAND_MASK) && type_bytes(problem.d.q_dtype) == 2 &&
            max_of(problem.d.dim_qk, problem.d.dim_v) > (problem.d.q_dtype == FA_F16 ? kMaskDimsF16 : kMaskDimsBf16));
}
MaskKind mask_kind_of(const Problem& problem) {
    if (reads_key_units(problem)) return MaskKind::list;
    if (problem.d.flags & FA_WINDOW || problem.d.chunk > 0) return MaskKind::band;
    return problem.causal() ? MaskKind::causal : MaskKind::none;
}

ScoreMod score_mod_of(const Problem& problem) {
    return has_block_factors(problem)      ? ScoreMod::factors
           : reads_key_units(problem)      ? ScoreMod::none  // masks among them
           : problem.has(FA_OPERAND_MASK)  ? ScoreMod::mask
           : problem.has(FA_OPERAND_BIAS)  ? (reads_f32_bias(problem.d) ? ScoreMod::bias_f32 : ScoreMod::bias)
           : problem.d.softcap > 0         ? ScoreMod::softcap
           : problem.has(FA_OPERAND_ALIBI) ? ScoreMod::alibi
                                           : ScoreMod::none;
}

// Is the softcap's polynomial (score_mod.h) good enough? Its coefficients must be normal floats, and its error, 2^-17.8 of a score,
// small beside the rounding of P.
bool softcap_polynomial_fits(const Problem& problem) {
    constexpr float least = 0x1p-16f, most = 0x1p+16f;
    const float ratio = problem.d.scale / problem.d.softcap;
    return !problem.has(FA_OPERAND_ALIBI) && problem.d.softcap <= 256.f && ratio > least && ratio < most;
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
bool types_fit(const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (d.q_dtype != FA_E4M3)
        return (d.q_dtype == FA_F16 || d.q_dtype == FA_BF16 ||
                refuse(refusal, "q_dtype is %s: expected f16, bf16 or e4m3", dtype_name(d.q_dtype))) &&
               is_like_q(problem, refusal) && is_like_q_or_f32(problem, refusal);
    return is_like_q(problem, refusal) && (d.o_dtype == FA_F32 || d.o_dtype == FA_F16 || d.o_dtype == FA_BF16 || d.o_dtype == FA_E4M3 ||
                                           refuse(refusal, "o_dtype is %s: expected f32, f16, bf16 or e4m3", dtype_name(d.o_dtype)));
}

// Rows of a page that one TMA load brings: what divides both the page and the block of keys.
constexpr int64_t kMinPageChunk = 16;
int page_chunk_of(const Sm90Kernel& kernel, const Problem& problem) {
    int rows = kMinPageChunk;
    while (problem.d.page_size % (2 * rows) == 0 && kernel.block_n % (2 * rows) == 0) rows *= 2;
    return rows;
}

// How k or v is copied to q's type before the kernel runs, without its pointers: where it is of 8 bits and q is not.
WidenKvParams widening_of(const Problem& problem, int32_t dtype, const int64_t stride[4], int64_t heads, int64_t dim) {
    constexpr int64_t most = int64_t(1) << 26;  // units: a copy of a GiB
    WidenKvParams widening{};
    const int64_t sequences = sequences_of_k(problem), rows = rows_of_k(problem), units = dim / 8;
    if (type_bytes(problem.d.q_dtype) != 2 || (dtype != FA_E4M3 && dtype != FA_E5M2 && dtype != FA_I8)) return widening;
    if (sequences * rows > 2 * problem.d.batch * round_up(problem.d.seqlen_k, 64))
        return widening;  // a pool of which the call reads little
    if (dim % 8 != 0 || (stride[0] | stride[1] | stride[2]) % 8 != 0 ||
        double(sequences) * double(rows) * double(heads * units) > double(most))
        return widening;
    for (int i = 0; i < 3; i++) widening.stride[i] = stride[i];
    if (problem.packed_k()) widening.stride[0] = 0;
    widening.rows = uint32_t(rows), widening.heads = uint32_t(heads), widening.units = uint32_t(units);
    widening.total = uint32_t(sequences * rows * heads * units);
    return widening;
}
struct DenseStrides {
    int64_t at[4];
};
DenseStrides strides_of_copy(const WidenKvParams& widening) {
    const int64_t dim = 8 * int64_t(widening.units), heads = widening.heads;
    return {{widening.rows * heads * dim, heads * dim, dim, 1}};
}
// The call as it is then.
Problem widened_problem(const Problem& problem, const WidenKvParams& k, const WidenKvParams& v) {
    Problem widened = problem;
    const auto widen = [&](const WidenKvParams& widening, int32_t* dtype, int64_t* stride) {
        if (widening.total == 0) return;
        *dtype = problem.d.q_dtype;
        memcpy(stride, strides_of_copy(widening).at, sizeof strides_of_copy(widening).at);
    };
    widen(k, &widened.d.k_dtype, widened.d.k_stride);
    widen(v, &widened.d.v_dtype, widened.d.v_stride);
    if (widened.d.k_dtype == widened.d.v_dtype) widened.options &= ~option::v_dtype;
    return widened;
}

bool is_low_call(const Problem& problem) { return problem.d.seqlen_q < kMinRows; }
constexpr Implements kLowForward = {FA_OPERAND_LSE | FA_OPERAND_SINKS | kSequenceOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_RNG_STATE,
                                    FA_CAUSAL | FA_DETERMINISTIC | option::reserve_units | option::precision};
bool low_call_fits(const Problem& problem, Refusal* refusal) {
    if (problem.d.seqlen_q < kFewestRows)
        return refuse(refusal, "seqlen_q is %lld: expected %lld or more", (long long)problem.d.seqlen_q, (long long)kFewestRows);
    if (type_bytes(problem.d.q_dtype) == 2 && problem.within(kLowForward)) return true;
    if (!refusal) return false;
    Refusal more;
    if (is_half("q_dtype", problem.d.q_dtype, &more)) implements(problem, kLowForward, &more);
    return refuse(refusal, "seqlen_q is %lld, below %lld, where %.160s", (long long)problem.d.seqlen_q, (long long)kMinRows, more.text);
}

bool scores_fit(const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!is_positive_scale(problem, refusal)) return false;
    if (d.softcap > 0 && !softcap_polynomial_fits(problem))
        return refuse(refusal,
                      "softcap is %g, with a scale of %g: expected up to 256, 2^-16 to 2^16 of the scale, without FA_OPERAND_ALIBI",
                      double(d.softcap), double(d.scale));
    if (problem.has(FA_OPERAND_MASK) && (d.softcap > 0 || problem.has(FA_OPERAND_ALIBI)))
        return refuse(refusal, "operands has FA_OPERAND_MASK beside %s: expected one of them",
                      d.softcap > 0 ? "softcap" : "FA_OPERAND_ALIBI");
    if (problem.has(FA_OPERAND_BIAS) && !bias_fits(problem))
        return refuse(refusal, "operands has FA_OPERAND_BIAS: expected no softcap, mask or ALiBi beside it, and a copy of at most a GiB");
    if (has_block_factors(problem) && !block_factors_fit(problem))
        return refuse(refusal, "k_descale_block is %lld x %lld: expected factors of whole rows, of %d keys alike, of dense tensors",
                      (long long)d.k_descale_block[0], (long long)d.k_descale_block[1], int(BlockFactors::kKeys));
    return true;
}
// With left padding a block of keys would begin within a page.
bool pages_fit(const Problem& problem, Refusal* refusal) {
    if (!problem.paged()) return true;
    if (problem.d.page_size % kMinPageChunk != 0)
        return refuse(refusal, "page_size is %lld: expected a multiple of %lld", (long long)problem.d.page_size, (long long)kMinPageChunk);
    if (problem.has(FA_OPERAND_LEFTPAD_K))
        return refuse(refusal, "operands has FA_OPERAND_LEFTPAD_K with pages: a block of keys would begin in one");
    return in_range("num_pages", problem.d.num_pages, 1, kMaxExtent, refusal);
}

bool can_implement(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (!is_sm90(device, refusal) || !types_fit(problem, refusal)) return false;
    const bool lists = reads_key_units(problem), bytes = type_bytes(d.q_dtype) == 1;
    if (!implements(problem, lists ? kListForward : bytes ? kByteForward : problem.has(FA_OPERAND_BIAS) ? kBiasForward : kForward, refusal))
        return false;
    if (lists && bytes) return refuse(refusal, "q_dtype is e4m3 with lists or ranges of keys: expected f16 or bf16");
    if (lists && !lists_fit(problem))
        return refuse(refusal,
                      "list_keys is %lld and list_rows %lld: expected multiples of %d and %d, pages of whole ones, and tables that fit",
                      (long long)d.list_keys, (long long)d.list_rows, int(KeyUnitTable::kKeys), int(KeyUnitTable::kRows));
    return scores_fit(problem, refusal) && pages_fit(problem, refusal) && (!is_low_call(problem) || low_call_fits(problem, refusal)) &&
           in_eights("dim_qk", d.dim_qk, refusal) && in_eights("dim_v", d.dim_v, refusal) &&
           in_range("dim_qk", d.dim_qk, 8, 257, refusal) && in_range("dim_v", d.dim_v, 8, 257, refusal) && extents_fit(problem, refusal) &&
           in_range("batch * heads_q * tiles", d.batch * d.heads_q * ceil_div(d.seqlen_q, kMinRows), 0, kMaxExtent, refusal) &&
           tma_reads_tensors(problem, refusal) && writes_vectors(problem, refusal);
}

// The mask operand as it will be packed. In a call's workspace it lies behind the tile counter: spans, then bits.
PackedMask packed_mask(const Problem& problem) {
    const int64_t* const stride = problem.d.mask_stride;
    PackedMask mask{};
    mask.sequences = int(stride[0] ? problem.d.batch : 1);
    mask.heads = int(stride[1] ? problem.d.heads_q : 1);
    mask.m_blocks = int(ceil_div(problem.d.seqlen_q, PackedMask::kBlockM));
    mask.n_blocks = int(ceil_div(problem.d.seqlen_k, PackedMask::kBlockN));
    return mask;
}
uint64_t span_bytes(const PackedMask& mask) { return uint64_t(round_up(mask.all_tiles() * int64_t(sizeof(int2)), 256)); }
uint64_t packed_mask_bytes(const PackedMask& mask) { return span_bytes(mask) + uint64_t(mask.words()) * sizeof(uint2); }

rt::Status pack(const PackedMask& to, const Problem& problem, const uint8_t* from, rt::Stream stream) {
    const int64_t* const t = problem.d.mask_stride;
    const bool words = t[3] == 1 && (t[0] | t[1] | t[2]) % 4 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0;
    PackParams params{};
    params.to = to;
    params.from = from;
    for (int i = 0; i < 4; i++) params.stride[i] = t[i];
    params.rows = int(problem.d.seqlen_q);
    params.keys = int(problem.d.seqlen_k);
    params.words = words;
    const rt::Status s = rt::set_zero(to.spans, uint64_t(to.all_tiles()) * sizeof(int2), stream);
    return s == rt::kSuccess ? rt::launch(pack_mask, ceil_div(to.words(), kPackThreads), kPackThreads, 0, stream, params) : s;
}

// Heads that share a tile: as many as make the tiles fewest, by a tenth where there are as many rows as it has. Where kernels of narrower
// heads pack none, those of the next width that do take a third longer.
int64_t packed_heads(const Problem& problem) {
    const bool low = is_low_call(problem);
    if (!low && !(low_call_fits(problem, nullptr) && has_uniform_lengths(problem))) return 1;
    const bool wider = packs_in_wider_heads(problem.d.q_dtype, problem.d.dim_qk);
    const auto tiles = [&](int64_t n) { return ceil_div(problem.d.seqlen_q, kMinRows / n) * (problem.group / n); };
    int64_t best = 1;
    for (int64_t n = 2; problem.group % n == 0 && kMinRows / n >= kFewestPacked; n *= 2)
        if (tiles(n) < tiles(best)) best = n;
    return tiles(best) * (wider ? 40 : 30) <= tiles(1) * (low ? 30 : 27) ? best : 1;
}

// Two query heads that share k and v see the same keys in the same rows; of two tiles of one head, the later sees more.
bool pair_by_heads(const Sm90Kernel& kernel, const Problem& problem) { return kernel.cluster_size > 1 && problem.group % 2 == 0; }
int64_t m_blocks_of(const Sm90Kernel& kernel, const Problem& problem) {
    return ceil_div(problem.d.seqlen_q,
                    pair_by_heads(kernel, problem) ? kernel.block_m : kernel.block_m * kernel.cluster_size / packed_heads(problem));
}
int64_t tiles_of(const Sm90Kernel& kernel, const Problem& problem) {
    return problem.d.batch * problem.d.heads_q / (pair_by_heads(kernel, problem) ? 2 : packed_heads(problem)) *
           m_blocks_of(kernel, problem);
}

// Query heads whose tiles are taken longest first, before those of the next ones: as many as have k and v in the L2 cache. The longest
// tiles read all of these. Where a head has few tiles they are much of the work, so sections are short: else memory has all
// to bring when a section begins, and little while it ends.
int64_t section_heads(const Sm90Kernel& kernel, const Problem& problem) {
    constexpr int64_t kShortSectionTiles = 8, kShortSectionBytes = 8 << 20;
    const int64_t kv_heads =
        m_blocks_of(kernel, problem) > kShortSectionTiles ? kv_heads_in_l2(problem) : kv_heads_in_l2(problem, kShortSectionBytes);
    return min_of(kv_heads, problem.d.batch * problem.kv_heads) * problem.group;
}

// Is the tile schedule dynamic? Where tiles cost differently, and there is more than one for each CTA.
bool schedules_dynamically(const Sm90Kernel& kernel, const rt::Device& device, const Problem& problem) {
    return (kernel.mask != MaskKind::none || !has_uniform_lengths(problem)) &&
           tiles_of(kernel, problem) > device.multiprocessors * kernel.tiles_at_once() / kernel.cluster_size;
}

// Proportional to the time that a kernel should take: tiles, in waves, times what one costs. With the dynamic schedule CTAs end
// together, but not before the longest tile does, and under a causal mask the average tile is shorter than that.
double estimated_time(const Sm90Kernel& kernel, const rt::Device& device, const Problem& problem) {
    const int64_t tiles = tiles_of(kernel, problem), slots = device.multiprocessors / kernel.cluster_size;
    const double square = problem.d.seqlen_q < problem.d.seqlen_k ? double(problem.d.seqlen_q) / double(problem.d.seqlen_k) : 1;
    const double keys = kernel.mask == MaskKind::causal ? 1 - .5 * square : 1;  // of the average tile
    const double shared = keys * double(tiles) / double(slots);
    const double waves = !schedules_dynamically(kernel, device, problem) ? double(ceil_div(tiles, slots)) : shared > 1 ? shared : 1;
    return waves * kernel.block_m * kernel.cost;
}

// P is rounded to 8 bits by permission alone. Row sums of an LSE have kernels of their own where wgmma makes those of o (128 dims).
// Averages of o in f16 stand still after 2^11 of them, each of 1024 keys or more.
bool pv_product_fits(const Sm90Kernel& kernel, const Problem& problem) {
    constexpr int64_t most_keys = int64_t(1) << 20;
    if (kernel.pv != PvProduct::wide && (problem.d.precision != FA_PRECISION_NATIVE || problem.d.seqlen_k > most_keys)) return false;
    if (kernel.pv == PvProduct::p8_short && problem.d.seqlen_k > kUnpromotedKeys) return false;
    return kernel.pv == PvProduct::wide || kernel.max_dim_v > 128 || problem.has(FA_OPERAND_LSE) == (kernel.pv == PvProduct::p8_lse);
}

// What keeps a kernel from a call, the first thing first; all: nothing does.
enum class Lacks { type, score_mod, mask, width, keys, precision, factors, lengths, heads, pages, nothing };
Lacks lacks(const Sm90Kernel& kernel, const Unit& unit, int width, MaskKind mask, ScoreMod score_mod, int64_t packed,
            const Problem& problem) {
    if (unit.dtype != problem.d.q_dtype) return Lacks::type;
    if (kernel.score_mod != score_mod) return Lacks::score_mod;
    if (kernel.mask != mask) return Lacks::mask;
    if (unit.width != width || kernel.max_dim_v < problem.d.dim_v) return Lacks::width;
    if (problem.d.seqlen_k < kernel.min_seqlen_k) return Lacks::keys;
    if (!pv_product_fits(kernel, problem)) return Lacks::precision;
    if (type_bytes(unit.dtype) == 2 && kernel.descale != problem.has(kDescaleOperands)) return Lacks::factors;
    if ((kernel.cluster_size > 1 || warpgroup_diagonals(kernel.mask, kernel.block_n, kernel.block_m)) && !has_uniform_lengths(problem))
        return Lacks::lengths;
    if (packed > 1 && !(kernel.packs_heads && kernel.block_m == kMinRows)) return Lacks::heads;
    return problem.paged() && !kernel.paged_kv ? Lacks::pages : Lacks::nothing;
}

// Of a width's kernels for a mask the one that should take the least time; NULL: none can implement the call. `most`: the last thing that
// one lacks.
const Sm90Kernel* fastest_kernel(int width, MaskKind mask, const rt::Device& device, const Problem& problem, Lacks* most) {
    const ScoreMod score_mod = score_mod_of(problem);
    const int64_t packed = packed_heads(problem);
    const Sm90Kernel* best = nullptr;
    double least = 0;
    for (const Unit& unit : kUnits) {
        if (unit.dtype != problem.d.q_dtype || unit.width != width) continue;
        const Sm90KernelList list = unit.kernels();
        for (int i = 0; i < list.count; i++) {
            const Sm90Kernel& kernel = list.kernel[i];
            const Lacks missing = lacks(kernel, unit, width, mask, score_mod, packed, problem);
            if (missing > *most) *most = missing;
            if (missing != Lacks::nothing || (best && kernel.max_dim_v != best->max_dim_v)) continue;
            const double time = estimated_time(kernel, device, problem);
            if (best && time >= least) continue;
            best = &kernel;
            least = time;
        }
    }
    return best;
}

const char* words_of(ScoreMod score_mod) {
    switch (score_mod) {
        case ScoreMod::softcap: return "softcap";
        case ScoreMod::alibi: return "FA_OPERAND_ALIBI";
        case ScoreMod::mask: return "FA_OPERAND_MASK";
        case ScoreMod::bias:
        case ScoreMod::bias_f32: return "FA_OPERAND_BIAS";
        case ScoreMod::factors: return "factors of rows or keys";
        default: return "these masks";
    }
}
bool refuse_kernel(const Problem& problem, Lacks missing, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    const long long dim_qk = d.dim_qk, dim_v = d.dim_v;
    switch (missing) {
        case Lacks::precision:
            return refuse(refusal, "precision is %d and seqlen_k %lld: no kernel of these products for dim_qk %lld and dim_v %lld",
                          int(d.precision), (long long)d.seqlen_k, dim_qk, dim_v);
        case Lacks::factors:
            return refuse(refusal, "operands has factors of q, k or v with %s: no kernel has both for dim_qk %lld and dim_v %lld",
                          words_of(score_mod_of(problem)), dim_qk, dim_v);
        case Lacks::lengths:
            return refuse(refusal, "operands has lengths that differ, with dim_qk %lld and dim_v %lld: expected the same", dim_qk, dim_v);
        case Lacks::heads:
            return refuse(refusal, "heads_q is %lld and heads_k %lld: no kernel packs these heads with dim_qk %lld and dim_v %lld",
                          (long long)d.heads_q, (long long)d.heads_k, dim_qk, dim_v);
        case Lacks::pages:
            return refuse(refusal, "operands has FA_OPERAND_PAGE_TABLE with %s: no kernel has both for dim_qk %lld and dim_v %lld",
                          words_of(score_mod_of(problem)), dim_qk, dim_v);
        default:
            return refuse(refusal, "q_dtype is %s, dim_qk %lld and dim_v %lld with %s: there is no such kernel", dtype_name(d.q_dtype),
                          dim_qk, dim_v, words_of(score_mod_of(problem)));
    }
}

const Sm90Kernel* kernel_for(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    if (!can_implement(device, problem, refusal)) return nullptr;
    Lacks most = Lacks::type;
    for (const int width : kWidths.at) {
        if (width < problem.d.dim_qk) continue;
        const MaskKind kind = mask_kind_of(problem);
        for (const MaskKind mask : {kind, kind == MaskKind::list ? kind : MaskKind::band})
            if (const Sm90Kernel* const best = fastest_kernel(width, mask, device, problem, &most)) return best;
    }
    refuse_kernel(problem, most, refusal);
    return nullptr;
}

// The time that a family for any address must take less than to have the call, for its tiles are smaller, or it cuts keys: where rows do
// not fill a tile, or there are so few tiles that most of the machine would be idle. There a multiprocessor's rate is about twice that of
// an mma kernel. Multiprocessors that are all busy draw so much power that their clocks fall. 0: no other time matters.
double limit_of(const rt::Device& device, const Problem& problem, int64_t rows, int64_t tiles) {
    constexpr double kStart = 3, kFlopsPerUs = 6.7e6, kFullFlopsPerUs = 5e6, kBytesPerUs = 3e6, kMargin = 1.1;
    const fa_attention_desc_t& d = problem.d;
    const double flops = double(rows * d.seqlen_k) * double(2 * (d.dim_qk + d.dim_v));  // of a tile
    if (d.seqlen_q < rows && d.num_splits != 1) {
        const double waves = double(ceil_div(tiles, device.multiprocessors)),
                     tile = flops / (2 * tiles <= device.multiprocessors ? kFlopsPerUs : kFullFlopsPerUs),
                     memory = double(d.batch * problem.kv_heads * d.seqlen_k) * double(kv_row_bytes(problem)) / kBytesPerUs,
                     run = waves * (kStart + tile);
        return kMargin * (run > memory ? run : memory);
    }
    const bool cut_short = d.flags & FA_WINDOW || d.chunk > 0 || (problem.causal() && d.alignment != FA_ALIGN_BOTTOM_RIGHT);
    if (2 * d.batch * d.heads_q * ceil_div(d.seqlen_q, rows) > device.multiprocessors || d.num_splits == 1 || cut_short ||
        !problem.within(kPlainScores))
        return 0;
    return (kStart + flops / kFlopsPerUs) / kMargin;
}

Sm90Call planned_call(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    Sm90Call call{};
    set_rows(problem, &call);
    call.scale = d.scale;
    call.softcap = d.softcap;
    call.alibi_batch_stride = d.alibi_batch_stride;
    call.uniform_lengths = has_uniform_lengths(problem);
    if (call.uniform_lengths) call.uniform_seq = sequence_of(call.sequences, 0);
    call.pages = pages_of(problem, nullptr);
    call.q_descale.strides = row_strides(d.q_descale_stride, false);
    call.k_descale.strides = row_strides(d.k_descale_stride, false);
    call.v_descale.strides = row_strides(d.v_descale_stride, false);
    return call;
}
void set_call_tensors(const Problem& problem, const fa_forward_args_t& args, Sm90Call* call) {
    set_row_tensors(problem, args, call);
    call->alibi_slopes = operand(problem, FA_OPERAND_ALIBI, args.alibi_slopes);
    call->pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    call->q_descale.data = static_cast<const float*>(operand(problem, FA_OPERAND_Q_DESCALE, args.q_descale));
    call->k_descale.data = static_cast<const float*>(operand(problem, FA_OPERAND_K_DESCALE, args.k_descale));
    call->v_descale.data = static_cast<const float*>(operand(problem, FA_OPERAND_V_DESCALE, args.v_descale));
    call->o_scale = operand(problem, FA_OPERAND_O_SCALE, args.o_scale);
}

// What a plan holds for a launch.
struct Sm90Plan {
    const Sm90Kernel* kernel;
    uint64_t widened;  // bytes at the workspace's end in which copies of 8-bit k and v in q's type lie
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
rt::Status widen(WidenKvParams widening, const Problem& problem, const fa_forward_args_t& args, int32_t dtype, const void* from, void* to,
                 rt::Stream stream) {
    widening.from = static_cast<const uint8_t*>(from);
    widening.to = static_cast<uint16_t*>(to);
    // Others than those of the batch's own sequences may be wanted for longer, or lie in pages.
    if (!problem.packed_k() && !problem.paged() && !problem.has(FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_LEFTPAD_K))
        widening.seqused = operand(problem, FA_OPERAND_SEQUSED_K, args.seqused_k);
    const int64_t blocks = ceil_div(widening.total, kWidenThreads * kWidenUnits);
    return rt::launch(problem.d.q_dtype == FA_F16 ? widen_kernel<F16>(dtype) : widen_kernel<Bf16>(dtype), blocks, kWidenThreads, 0, stream,
                      widening);
}

bool plan_sm90(const rt::Device& device, const Problem& asked, FamilyPlan* plan, Refusal* refusal) {
    const WidenKvParams k = widening_of(asked, asked.d.k_dtype, asked.d.k_stride, asked.d.heads_k, asked.d.dim_qk),
                        v = widening_of(asked, asked.d.v_dtype, asked.d.v_stride, asked.d.heads_v, asked.d.dim_v);
    const Problem problem = widened_problem(asked, k, v);
    if (is_low_call(problem) && (k.total | v.total) != 0)  // the copies would take longer than the call
        return is_sm90(device, refusal) && refuse(refusal, "seqlen_q is %lld: expected %lld or more with k or v of 8 bits",
                                                  (long long)problem.d.seqlen_q, (long long)kMinRows);
    const Sm90Kernel* const found = kernel_for(device, problem, refusal);
    if (!found) return false;
    const Sm90Kernel& kernel = *found;
    Sm90Plan& planned = plan->params.emplace<Sm90Plan>();
    planned.kernel = found;
    planned.k = k, planned.v = v;
    plan->kernel = kernel.name;
    plan->rows = kernel.rows, plan->keys = kernel.block_n;
    const fa_attention_desc_t& d = problem.d;
    Sm90ForwardParams& params = planned.forward;
    params.x = planned_call(problem);
    params.window = window_of(problem);
    params.o_columns = type_bytes(d.o_dtype) == 2 ? int(d.dim_v) : 0;
    params.o_e4m3 = d.o_dtype == FA_E4M3;
    params.o_f16 = d.o_dtype == FA_F16;
    params.page_chunk = problem.paged() && kernel.mask != MaskKind::list ? page_chunk_of(kernel, problem) : 0;
    params.pair_by_heads = pair_by_heads(kernel, problem);
    params.m_blocks = int(m_blocks_of(kernel, problem));
    params.num_tiles = int(tiles_of(kernel, problem));
    plan->limit = limit_of(device, asked, kernel.rows, params.num_tiles * kernel.cluster_size);
    const int64_t packed = packed_heads(problem);
    params.tile_heads = int(d.heads_q / packed);
    while (kernel.block_m > packed << params.head_rows_log2) params.head_rows_log2++;
    if (problem.causal() || kernel.mask == MaskKind::list)
        params.section = int(section_heads(kernel, problem) / (params.pair_by_heads ? 2 : packed));
    plan->blocks =
        kernel.cluster_size * min_of(int(ceil_div(params.num_tiles, kernel.tiles_at_once())), device.multiprocessors / kernel.cluster_size);
    plan->split.splits = 1;
    if (schedules_dynamically(kernel, device, problem)) plan->workspace = kZeroedBytes, plan->zeroed = 2 * sizeof *params.tile_counter;
    if (kernel.mask == MaskKind::list) {
        planned.units = planned_units(problem, kernel.block_n, params.window);
        plan->workspace = kZeroedBytes + table_bytes(problem, planned.units.to);
    }
    if (kernel.score_mod == ScoreMod::mask) {
        params.mask = packed_mask(problem);
        plan->workspace = kZeroedBytes + packed_mask_bytes(params.mask);
    }
    if (kernel.score_mod == ScoreMod::factors) {
        planned.factors = planned_factors(problem);
        plan->workspace = kZeroedBytes + factor_bytes(planned.factors);
    }
    if (bias_size_of(kernel.score_mod) > 0) {
        params.bias = planned_bias(problem);
        params.bias.heads_first = params.bias.heads_first && !params.pair_by_heads;  // whose two heads are neighbours
        planned.bias = copy_of_bias(problem, params.bias, kBiasTileRows);
        if (planned.bias.units > 0) plan->workspace = kZeroedBytes + uint64_t(bytes_of(planned.bias, problem));
    }
    planned.widened = uint64_t(round_up(planned.k.bytes(), 256) + planned.v.bytes());
    if (planned.widened > 0) plan->workspace = uint64_t(round_up(int64_t(plan->workspace), 256)) + planned.widened;
    plan->widens = planned.widened > 0;
    return true;
}

rt::Status launch_kernels(const FamilyPlan& plan, const ForwardCall& call) {
    const Sm90Plan& planned = plan.params.get<Sm90Plan>();
    const Sm90Kernel& kernel = *planned.kernel;
    const Problem& problem = call.problem;
    const fa_attention_desc_t& d = problem.d;
    const fa_forward_args_t& args = call.args;
    char* const memory = call.memory;
    const rt::Stream stream = call.stream;
    const int64_t kv_sequences = sequences_of_k(problem);
    Sm90ForwardParams params = planned.forward;
    set_call_tensors(problem, args, &params.x);
    // k and v as the kernel reads them: as they came, or copies, which lie behind all else in the workspace.
    struct Tensor {
        const void* data;
        DenseStrides stride;
    } k{args.k, {}}, v{args.v, {}};
    char* copy = memory + plan.workspace - planned.widened;
    const auto prepare = [&](Tensor* tensor, const WidenKvParams& widening, int32_t dtype, const int64_t* stride) {
        memcpy(tensor->stride.at, stride, sizeof tensor->stride.at);
        if (widening.total == 0) return rt::kSuccess;
        const rt::Status s = widen(widening, problem, args, dtype, tensor->data, copy, stream);
        *tensor = {copy, strides_of_copy(widening)};
        copy += round_up(widening.bytes(), 256);
        return s;
    };
    if (const rt::Status s = prepare(&k, planned.k, d.k_dtype, d.k_stride); s != rt::kSuccess) return s;
    if (const rt::Status s = prepare(&v, planned.v, d.v_dtype, d.v_stride); s != rt::kSuccess) return s;
    const int packed = int(packed_heads(problem));
    const int k_box_rows = params.page_chunk ? params.page_chunk : kernel.k_box_rows,
              v_box_rows = params.page_chunk ? params.page_chunk : kernel.v_box_rows;
    if (!encode_tensor_map(&params.q, args.q, d.q_dtype, d.q_stride, d.dim_qk, rows_of_q(problem), d.heads_q, sequences_of_q(problem),
                           {kernel.block_m / packed, packed}) ||
        !encode_tensor_map(&params.k, k.data, d.q_dtype, k.stride.at, d.dim_qk, rows_of_k(problem), d.heads_k, kv_sequences,
                           {k_box_rows}) ||
        !encode_tensor_map(&params.v, v.data, d.q_dtype, v.stride.at, d.dim_v, rows_of_k(problem), d.heads_k, kv_sequences, {v_box_rows}) ||
        (params.page_chunk && !encode_tensor_map(&params.k_missing, k.data, d.q_dtype, k.stride.at, d.dim_qk, rows_of_k(problem), d.heads_k,
                                                 kv_sequences, {k_box_rows}, CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)))
        return cudaErrorInvalidValue;
    if (plan.zeroed > 0) {
        params.tile_counter = reinterpret_cast<int*>(memory);
        const rt::Status s = call.zeroed || kernel.mask == MaskKind::list ? rt::kSuccess : rt::set_zero(memory, plan.zeroed, stream);
        if (s != rt::kSuccess) return s;
    }
    if (kernel.mask == MaskKind::list) {
        const rt::Status s = list_units(planned.units, problem, args, memory + kZeroedBytes, params.tile_counter, stream, &params);
        if (s != rt::kSuccess) return s;
    }
    if (kernel.score_mod == ScoreMod::mask) {
        params.mask.spans = reinterpret_cast<int2*>(memory + kZeroedBytes);
        params.mask.bits = reinterpret_cast<uint2*>(memory + kZeroedBytes + span_bytes(params.mask));
        const rt::Status s = pack(params.mask, problem, args.mask, stream);
        if (s != rt::kSuccess) return s;
    }
    if (bias_size_of(kernel.score_mod) > 0) {
        const rt::Status s =
            read_bias(planned.bias, problem, args, kBiasTileRows, memory + kZeroedBytes, stream, &params.bias, &params.bias_map);
        if (s != rt::kSuccess) return s;
    }
    if (kernel.score_mod == ScoreMod::factors) {
        const rt::Status s = read_factors(planned.factors, problem, args, memory + kZeroedBytes, stream, &params);
        if (s != rt::kSuccess) return s;
    }
    return rt::launch_after(kernel.kernel, plan.blocks, kernel.threads, kernel.shared_bytes, stream, params, kernel.cluster_size);
}

fa_status_t launch_sm90(const FamilyPlan& plan, const ForwardCall& call, Message* message) {
    return launched(message, launch_kernels(plan, call), plan.kernel);
}
void visit_sm90(KernelVisitor visitor, void* user) {
    for (const Unit& unit : kUnits) {
        const Sm90KernelList list = unit.kernels();
        for (int i = 0; i < list.count; i++) {
            const Sm90Kernel& kernel = list.kernel[i];
            visitor(user, {kernel.name, kernel.rows, 0, kernel.block_n, kernel.threads, 1, kernel.shared_bytes,
                           reinterpret_cast<const void*>(kernel.kernel)});
        }
    }
}

}  // namespace

const ForwardFamily sm90_forward = {"sm90", false, true, plan_sm90, nullptr, launch_sm90, visit_sm90};

rt::Status zeroed_memory(ZeroedMemory* memory, rt::Stream stream, void** zeros) {
    *zeros = nullptr;
    unsigned long long id;
    if (rt::capturing(stream)) return rt::kSuccess;
    rt::Status s = cudaStreamGetId(stream, &id);
    if (s != rt::kSuccess) return s;
    int i = 0;
    while (i < memory->streams && memory->stream[i] != id) i++;
    if (i == ZeroedMemory::kStreams) return rt::kSuccess;
    if (!memory->zeros) {
        void* fresh;
        s = cudaMalloc(&fresh, ZeroedMemory::kStreams * kZeroedBytes);
        if (s != rt::kSuccess) return s;
        memory->zeros = static_cast<char*>(fresh);
    }
    *zeros = memory->zeros + i * kZeroedBytes;
    if (i < memory->streams) return rt::kSuccess;
    s = cudaMemsetAsync(*zeros, 0, kZeroedBytes, stream);
    if (s == rt::kSuccess) memory->stream[memory->streams++] = id;
    return s;
}

rt::Status find_arch_driver(const Host& host, rt::Device* device) {
    device->sm90 = device->sm90 && !host.forces_ptx && device->shared_per_block >= kSm90SharedBytes;
    return !device->sm90 || tensor_map_encoder() ? rt::kSuccess : cudaErrorInsufficientDriver;
}

}  // namespace gpu
}  // namespace fa
