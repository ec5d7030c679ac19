// Which kernel a call takes, and into how many splits a forward cuts the keys. Both follow from the device and the descriptor
// alone, never from data. The times that the choices compare are models with measured constants.
#pragma once
#include "gpu/common/merge.h"
#include "gpu/simt/forward.h"
#include "gpu/common/instance.h"
#include "gpu/host/extents.h"
#include "gpu/host/mma_implements.h"
#include "gpu/host/refusal.h"
#include "gpu/mma/rows.h"

namespace fa {
namespace gpu {
namespace {

int64_t latent_row_bytes(const Problem& problem) {
    return row_bytes(problem.d.k_dtype, problem.k_dims()) + (problem.d.dim_qk - problem.k_dims()) * type_bytes(problem.d.k_tail_dtype);
}

// What mma kernels take k and v of: q's type, one of 8 bits, or blocks without a smallest value; or, each by itself, of any type of 8 bits
// or fewer. Of latent attention those of q's type, and e4m3 with a tail.
enum class CacheType { like_q, bytes, blocks, scaled, latent, latent_bytes, latent_mixed, other };
CacheType cache_type(int32_t k_dtype, int32_t q_dtype) {
    if (is_block_type(k_dtype)) return block_format(k_dtype).has_min ? CacheType::other : CacheType::blocks;
    return is_byte_type(k_dtype) ? CacheType::bytes : k_dtype == q_dtype ? CacheType::like_q : CacheType::other;
}

// Can scaled_pipe.h read k and v: 32 dims at a time, which share a factor, or each half one?
bool is_scaled_cache(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    const auto reads = [&](int32_t dtype, int64_t dim, uint64_t descale, uint64_t shift, const int64_t block[2]) {
        const bool halves = block[1] == kBlockDims / 2 && !problem.has(shift),
                   shared = halves || block[1] % kBlockDims == 0 || block[1] >= dim;
        return is_scaled_type(dtype) && dim % kBlockDims == 0 && (!problem.has(descale) || (shared && !is_block_type(dtype)));
    };
    return reads(d.k_dtype, d.dim_qk, FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT, d.k_descale_block) &&
           reads(d.v_dtype, d.dim_v, FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT, d.v_descale_block);
}

// Of such a cache: how stored_pipe.h reads it. k and v are of one type, a row's factors, and shifts, which integers of 4 bits alone have,
// lie one behind the other in a vector of 16 bytes, and where halves have factors of their own, all have, and their products with numbers
// are exact.
StoredFormat stored_format(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    if (!is_scaled_cache(problem) || d.k_dtype != d.v_dtype || problem.has_score_mod() || !(d.scale > 0 && plain_scale(d.scale)) ||
        d.dropout_p > 0)
        return StoredFormat::none;
    const bool int4 = d.k_dtype == FA_I4 || d.k_dtype == FA_U4;
    const auto has_halves = [&](uint64_t descale, const int64_t block[2]) { return problem.has(descale) && block[1] == kBlockDims / 2; };
    const bool halves = has_halves(FA_OPERAND_K_DESCALE, d.k_descale_block);
    if (halves != has_halves(FA_OPERAND_V_DESCALE, d.v_descale_block)) return StoredFormat::none;
    const auto reads = [&](int64_t dim, uint64_t descale, uint64_t shift, int32_t dtype, const int64_t block[2], const int64_t stride[4]) {
        if (!problem.has(descale)) return true;
        const int64_t factors = ceil_div(dim, block[1]);
        return (factors == 1 || stride[3] == 1) && factors * type_bytes(dtype) <= 16 && (!problem.has(shift) || int4) &&
               (!halves || (d.k_dtype == FA_E2M1 && dtype == FA_E4M3));
    };
    if (!reads(d.dim_qk, FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT, d.k_descale_dtype, d.k_descale_block, d.k_descale_stride) ||
        !reads(d.dim_v, FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT, d.v_descale_dtype, d.v_descale_block, d.v_descale_stride))
        return StoredFormat::none;
    switch (d.k_dtype) {
        case FA_Q4_1: return StoredFormat::q4_1;
        case FA_Q5_0: return StoredFormat::q5_0;
        case FA_Q5_1: return StoredFormat::q5_1;
        case FA_I8: return StoredFormat::i8;
        case FA_E4M3: return StoredFormat::e4m3;
        case FA_E2M1: return halves ? StoredFormat::e2m1_halves : StoredFormat::e2m1;
        default: return int4 ? StoredFormat::int4 : StoredFormat::none;
    }
}

bool is_fp8(int32_t dtype) { return dtype == FA_E4M3 || dtype == FA_E5M2; }
// Do mma kernels widen a q of 8 bits, as they do k and v?
bool widens_q(const rt::Device& device, const fa_attention_desc_t& desc) {
    return device.matrix == MatrixUnit::mma_sync && is_fp8(desc.q_dtype) && is_byte_type(desc.k_dtype);
}

// The type that mma kernels compute with: q's, or f16 where it has 8 bits or, by permission, bf16, where with q's there are none for such a
// k. Not where probabilities are an output: those are computed from q itself, and would not be these.
int32_t mma_type(const rt::Device& device, const fa_attention_desc_t& desc) {
    if (widens_q(device, desc)) return FA_F16;
    const bool finer = desc.q_dtype == FA_F32 ? desc.k_dtype == FA_BF16 || is_scaled_type(desc.k_dtype)
                                              : desc.q_dtype == FA_F16 && desc.k_dtype == FA_BF16;
    const bool rounds =
        finer && desc.precision == FA_PRECISION_NATIVE && device.matrix == MatrixUnit::mma_sync && !(desc.operands & FA_OPERAND_SCORES);
    return rounds ? int32_t(FA_BF16) : desc.q_dtype;
}

// The mma kernels that a device has for a type of q, beside k and v of such types.
template <class T>
InstanceLists mma_sync_lists(CacheType cache) {
    if (cache == CacheType::latent) return latent_lists<MmaLatent<T>>();
    return cache == CacheType::bytes    ? lists_of<MmaByte<T>>()
           : cache == CacheType::blocks ? lists_of<MmaQuantised<T>>()
           : cache == CacheType::scaled ? lists_of<MmaScaled<T>>()
                                        : lists_of<MmaSync<T>>();
}
template <class K>
struct KernelsTag {
    using Kernels = K;
};
// On AMD's devices: lists(tag) with the kernels that a device has for f16 or bf16; else none.
template <class Lists, class T, class Pass>
Lists amd_lists(MatrixUnit unit, Pass lists) {
    switch (unit) {
        case MatrixUnit::mfma_gfx90a:
        case MatrixUnit::mfma: return lists(KernelsTag<MfmaKernels<3, T>>{});
        case MatrixUnit::mfma_gfx950: return lists(KernelsTag<MfmaKernels<4, T>>{});
        case MatrixUnit::wmma_gfx11: return lists(KernelsTag<WmmaKernels<WmmaGfx11, T>>{});
        case MatrixUnit::wmma_gfx12: return lists(KernelsTag<WmmaKernels<WmmaGfx12, T>>{});
        default: return {};
    }
}
template <class Lists, class Pass>
Lists amd_lists_of(const rt::Device& device, int32_t q_dtype, Pass lists) {
    if (q_dtype == FA_F16 && device.matrix == MatrixUnit::mfma_gfx90a) return {};
    return q_dtype == FA_F16    ? amd_lists<Lists, F16>(device.matrix, lists)
           : q_dtype == FA_BF16 ? amd_lists<Lists, Bf16>(device.matrix, lists)
                                : Lists{};
}
InstanceLists mma_instances_of(const rt::Device& device, int32_t q_dtype, CacheType cache) {
    if (cache == CacheType::other) return {};
    if (device.matrix == MatrixUnit::mma_sync) switch (q_dtype) {
            case FA_F16:
                return cache == CacheType::latent_bytes || cache == CacheType::latent_mixed ? InstanceLists{} : mma_sync_lists<F16>(cache);
            case FA_BF16:
                return cache == CacheType::latent_bytes   ? latent_lists<MmaLatentByte<Bf16>>()
                       : cache == CacheType::latent_mixed ? latent_lists<MmaLatentMixed<Bf16>, 512>()
                                                          : mma_sync_lists<Bf16>(cache);
            case FA_F32: return cache == CacheType::like_q ? lists_of<MmaTf32>() : InstanceLists{};
            case FA_E4M3:
            case FA_E5M2: return cache == CacheType::bytes ? lists_of<MmaFp8>() : InstanceLists{};
            default: return {};
        }
    if constexpr (rt::kAmdKernels) {
        if (cache != CacheType::like_q && cache != CacheType::bytes) return {};
        if (q_dtype == FA_F32)
            return cache == CacheType::like_q && is_mfma(device.matrix) ? lists_of<MfmaKernels<3, F32>>() : InstanceLists{};
        return amd_lists_of<InstanceLists>(device, q_dtype, [&](auto tag) {
            using Kernels = typename decltype(tag)::Kernels;
            return cache == CacheType::bytes ? lists_of<ByteKernels<Kernels>>() : lists_of<Kernels>();
        });
    }
    return {};
}

// Each list of mma kernels that a device can have, once.
template <class Visit>
void each_mma_list(Visit visit) {
    constexpr MatrixUnit kUnits[] = {MatrixUnit::mma_sync,    MatrixUnit::mfma_gfx90a, MatrixUnit::mfma,
                                     MatrixUnit::mfma_gfx950, MatrixUnit::wmma_gfx11,  MatrixUnit::wmma_gfx12};
    constexpr int kMost = 512;
    const Instance* seen[kMost];
    int count = 0;
    rt::Device device{};
    for (const MatrixUnit unit : kUnits) {
        device.matrix = unit;
        for (const int32_t q_dtype : {FA_F16, FA_BF16, FA_F32, FA_E4M3, FA_E5M2})
            for (int cache = 0; cache < int(CacheType::other); cache++)
                for (const Instances& list : mma_instances_of(device, q_dtype, CacheType(cache)).width) {
                    bool known = list.count == 0;
                    for (int i = 0; i < count && !known; i++) known = seen[i] == list.list;
                    if (known || count == kMost) continue;
                    seen[count++] = list.list;
                    visit(list);
                }
    }
}

// Of latent attention with a tile for k and v (latent/policies.h).
constexpr Implements kLatentForward = {
    FA_OPERAND_LSE | FA_OPERAND_SINKS | kSequenceOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_O_SCALE | FA_OPERAND_SCORES,
    option::bands | option::schedule | FA_V_IN_K};
constexpr Implements kLatentByteForward = {kLatentForward.operands | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_TAIL,
                                           kLatentForward.options | option::kv_factors};

// The kernels of latent attention for a call; other: none, or those of narrow heads are as good. Dims that a warp has, or half of them,
// share a factor.
CacheType latent_type(const Problem& problem, int32_t type) {
    constexpr int64_t kNarrow = 256, kWidest = 512, kOwnDims = 128, kTail = 64;
    const fa_attention_desc_t& d = problem.d;
    if (!problem.v_in_k() || d.dim_v <= kNarrow || d.dim_v > kWidest || !(d.scale > 0 && plain_scale(d.scale))) return CacheType::other;
    if (problem.within(kLatentForward)) return d.k_dtype == type && d.dim_qk <= kWidest + kTail ? CacheType::latent : CacheType::other;
    if (!problem.within(kLatentByteForward) || !problem.has(FA_OPERAND_K_TAIL) || d.k_dtype != FA_E4M3 || d.k_tail_dtype != FA_BF16 ||
        type != FA_BF16)
        return CacheType::other;
    const auto shares = [&](int64_t dims) {
        return !problem.has(FA_OPERAND_K_DESCALE) || d.k_descale_block[1] % dims == 0 || d.k_descale_block[1] >= problem.k_dims();
    };
    if (d.dim_v <= problem.k_dims())
        return d.dim_tail <= kTail && problem.k_dims() <= kWidest && shares(kOwnDims) ? CacheType::latent_bytes : CacheType::other;
    return d.dim_tail == kTail && problem.k_dims() == kWidest - kTail && shares(kTail) ? CacheType::latent_mixed : CacheType::other;
}

// Lists of single keys, or of slots, that query heads of a kv head share, with nothing else that says which keys a row sees: rows of 16
// bits gather what theirs names.
constexpr Implements kGather = {FA_OPERAND_LSE | FA_OPERAND_SINKS | kSequenceOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_O_SCALE |
                                    FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT,
                                option::schedule | option::list_space | FA_V_IN_K};
// And of blocks of keys that are whole tiles, with bands and full lists. kListedTile: keys of the widest tile.
constexpr int64_t kListedTile = 128;
constexpr Implements kGatherBlocks = {kGather.operands | FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT,
                                      (kGather.options & ~option::list_space) | option::bands | option::softcap};
bool gathers(const rt::Device& device, const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    const int32_t type = mma_type(device, d);
    if (device.matrix != MatrixUnit::mma_sync || !problem.has(FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST) || d.k_dtype != type ||
        type == FA_F32)
        return false;
    const bool blocks =
        (d.list_keys % kListedTile == 0 || (d.list_keys % 64 == 0 && max_of(d.dim_qk, d.dim_v) > 64)) && d.split_size % kListedTile == 0;
    if (!problem.within(blocks ? kGatherBlocks : kGather) || (d.list_keys > 1 && !blocks)) return false;
    const bool one_list = d.list_stride[1] == 0 && d.list_count_stride[1] == 0;
    return problem.kv_heads == d.heads_k && (one_list || problem.kv_heads % d.list_heads == 0) && d.scale > 0 && plain_scale(d.scale);
}

// A number that launches count in 31 bits.
bool counts_in_31_bits(const char* name, int64_t n, Refusal* refusal) {
    return n < int64_t(1) << 31 || refuse(refusal, "%s is %lld: expected less than 2^31", name, (long long)n);
}

// The mma kernels that take a call; none: it has what they do not implement, other types of k or v, wide heads, sizes
// beyond 2^31, or it needs smaller probabilities than they keep: where dropout has removed the large ones, or coarse values below them are
// 0, an output of wider range than the probabilities shows what has become of the small ones.
InstanceLists mma_instances_for(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    const int32_t type = mma_type(device, d);
    const CacheType latent = latent_type(problem, type), cache = cache_type(d.k_dtype, type);
    const bool bytes = cache == CacheType::bytes, drops = d.dropout_p > 0;
    if (device.matrix == MatrixUnit::none)
        return refuse(refusal, "arch is %s: expected a device with matrix instructions that there are kernels for", device.arch),
               InstanceLists{};
    if (drops && type == FA_F32)
        return refuse(refusal, "dropout_p is %g with q_dtype f32: expected 0, or a q of 16 bits", double(d.dropout_p)), InstanceLists{};
    if (!counts_in_31_bits("seqlen_k", d.seqlen_k, refusal) ||
        !counts_in_31_bits("seqlen_q * heads_q / heads_k", d.seqlen_q * problem.group, refusal) ||
        (problem.paged() && !counts_in_31_bits("num_pages", d.num_pages, refusal)))
        return {};
    if (gathers(device, problem)) return mma_instances_of(device, type, CacheType::like_q);
    if (widens_q(device, d))
        return implements(problem, kMmaFp8Forward, refusal) ? mma_instances_of(device, d.q_dtype, cache) : InstanceLists{};
    if (latent != CacheType::other) return mma_instances_of(device, type, latent);
    constexpr int64_t kStoredRows = 16;
    const bool decodes = rows_together(problem) <= kStoredRows && max_of(d.dim_qk, d.dim_v) <= 128 && d.split_size == 0;
    if (d.k_dtype == FA_Q5_0 && decodes && stored_format(problem) == StoredFormat::q5_0 && problem.within(kMmaScaledForward))
        return mma_instances_of(device, type, CacheType::scaled);
    const bool narrow = (drops || bytes) && cache != CacheType::blocks && type == FA_F16 && d.o_dtype != FA_F16;
    if (cache != CacheType::other && !narrow && problem.within(bytes ? kMmaByteForward : kMmaForward))
        return mma_instances_of(device, type, cache);
    const bool scaled = is_scaled_cache(problem);
    if (scaled && implements(problem, kMmaScaledForward, refusal)) return mma_instances_of(device, type, CacheType::scaled);
    if (scaled) return {};
    if (cache == CacheType::other)
        refuse(refusal,
               "k_dtype is %s and v_dtype %s beside a q_dtype of %s: expected q's, or types of 8 bits and fewer with factors of 32 dims",
               dtype_name(d.k_dtype), dtype_name(d.v_dtype), dtype_name(d.q_dtype));
    else if (narrow)
        refuse(refusal, "o_dtype is %s with %s: expected f16, as products are", dtype_name(d.o_dtype),
               drops ? "dropout_p above 0" : "k and v of 8 bits");
    else implements(problem, bytes ? kMmaByteForward : kMmaForward, refusal);
    return {};
}

// Of q8_0, most of which is bytes, tiles of 16 rows have half as many blocks on a multiprocessor and twice their stages, which takes .91 of
// the time where these are always occupied, but 1.06 of it where tiles are few.
bool prefers_stages(const rt::Device& device, const Problem& problem, const Instance& low) {
    return low.rows == 8 && problem.d.k_dtype == FA_Q8_0 &&
           10 * problem.d.batch * problem.kv_heads >= int64_t(device.multiprocessors) * low.resident * 9;
}

// Of the narrowest instances that span the head: the lowest that holds all rows of a kv head in one tile, else the one whose waves
// take the least time: a low tile reads k and v more often, a tall one may leave much of the last wave idle. With a fixed split
// size always the tallest, for a sequence's bits must not depend on the other lengths of the batch.
const Instance* choose_mma(const rt::Device& device, const Problem& problem, Refusal* refusal) {
    constexpr double kLowTiles = 1.18;  // time of low tiles over that of a tall one with as many rows
    const bool gathered = gathers(device, problem);
    const int64_t rows = rows_together(problem, problem.slots() || gathered), heads = problem.d.batch * problem.kv_heads;
    if (refusal) refusal->text[0] = 0;
    const InstanceLists mma = mma_instances_for(device, problem, refusal);
    const StoredFormat stored = stored_format(problem);
    const Instance *best = nullptr, *tallest = nullptr, *widest = nullptr;
    double min_time = 0;
    for (const Instances& list : mma.width)
        for (int i = 0; i < list.count; i++) {
            const Instance& one = list.list[i];
            if (gathered && !one.gathers) continue;
            if (one.stored != StoredFormat::none && one.stored != stored) continue;
            if (one.dims > (widest ? widest->dims : 0)) widest = &one;
            if (one.dims < problem.d.dim_qk || one.columns < problem.d.dim_v || (best && one.dims != best->dims) ||
                one.shared_bytes(0) > int64_t(device.shared_per_block))
                continue;
            const int64_t room = int64_t(device.multiprocessors) * one.resident, waves = ceil_div(heads * ceil_div(rows, one.rows), room);
            const double time = double(waves) * one.rows * one.resident * (tallest ? kLowTiles : 1);
            if (!tallest) tallest = &one;
            if (best && best->key_warps > 1 && prefers_stages(device, problem, one)) continue;
            if (best && (problem.d.split_size > 0 || (one.rows < rows && (one.key_warps > 1 || time >= min_time)))) continue;
            min_time = time;
            best = &one;
        }
    if (best || !refusal || refusal->text[0]) return best;
    if (!widest)
        refuse(refusal, "q_dtype is %s beside a k_dtype of %s: there are no matrix kernels of these for %s", dtype_name(problem.d.q_dtype),
               dtype_name(problem.d.k_dtype), device.arch);
    else if (widest->dims < problem.d.dim_qk || widest->columns < problem.d.dim_v)
        refuse(refusal, "dim_qk is %lld and dim_v %lld: expected at most %d and %d", (long long)problem.d.dim_qk,
               (long long)problem.d.dim_v, widest->dims, widest->columns);
    else
        refuse(refusal, "dim_qk is %lld and dim_v %lld, whose tiles need %lld bytes of shared memory: expected at most %llu a block on %s",
               (long long)problem.d.dim_qk, (long long)problem.d.dim_v, (long long)widest->shared_bytes(0),
               (unsigned long long)device.shared_per_block, device.arch);
    return nullptr;
}

// The lowest SIMT kernel that needs no more tiles than a taller one, of the narrowest that span v; of wider heads in parts.
const Instance& choose_simt(const rt::Device& device, const Problem& problem) {
    const int64_t rows = rows_together(problem, problem.slots() || gathers(device, problem));
    const Instances simt = simt_instances();
    const int widest = simt.list[simt.count - 1].columns;
    const Instance* best = nullptr;
    for (int i = 0; i < simt.count; i++) {
        const Instance& one = simt.list[i];
        const bool wide = one.columns >= problem.d.dim_v || one.columns == widest;
        if (wide && (!best || (one.columns == best->columns && best->rows >= 2 * rows))) best = &one;
    }
    return *best;
}

// Is there no score mod, and are rows of q, k, v and dout whole 16-byte vectors? aligned: are their addresses multiples of 16
// bytes?
bool plain_backward(const Problem& problem, bool aligned) {
    int64_t any = problem.d.dim_qk | problem.d.dim_v;
    for (int i = 0; i < 3; i++) any |= problem.d.q_stride[i] | problem.d.k_stride[i] | problem.d.v_stride[i];
    return aligned && problem.within(kPlainScores) && any * type_bytes(problem.d.q_dtype) % 16 == 0;
}

// The backward's mma kernels that a device has for a type.
BackwardLists backward_lists_of_type(const rt::Device& device, int32_t dtype) {
    if (device.matrix == MatrixUnit::mma_sync) switch (dtype) {
            case FA_F16: return backward_lists_of<MmaSync<F16>>();
            case FA_BF16: return backward_lists_of<MmaSync<Bf16>>();
            case FA_F32: return backward_lists_of<MmaTf32>();
            default: return {};
        }
    if constexpr (rt::kAmdKernels) {
        if (dtype == FA_F32) return is_mfma(device.matrix) ? backward_lists_of<MfmaKernels<3, F32>>() : BackwardLists{};
        return amd_lists_of<BackwardLists>(device, dtype, [](auto tag) { return backward_lists_of<typename decltype(tag)::Kernels>(); });
    }
    return {};
}

// The backward's mma kernel for a call, that spans its heads; NULL: none.
const BackwardInstance* choose_mma_backward(const rt::Device& device, const Problem& problem, bool aligned, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    if (device.matrix == MatrixUnit::none)
        return refuse(refusal, "arch is %s: expected a device with matrix instructions that there are kernels for", device.arch), nullptr;
    if (!implements(problem, kMmaBackward, refusal)) return nullptr;
    if (d.k_dtype != d.q_dtype)
        return refuse(refusal, "k_dtype is %s: expected %s, as q_dtype", dtype_name(d.k_dtype), dtype_name(d.q_dtype)), nullptr;
    if (!counts_in_31_bits("seqlen_q", d.seqlen_q, refusal) || !counts_in_31_bits("seqlen_k", d.seqlen_k, refusal)) return nullptr;
    const BackwardLists lists = backward_lists_of_type(device, d.q_dtype);
    int widest = 0;
    for (const BackwardInstances& list : lists.width)
        for (int i = 0; i < list.count; i++) {
            const BackwardInstance& one = list.list[i];
            const int64_t bytes = max_of(one.by_keys_bytes, one.by_rows_bytes);
            const bool room = bytes <= int64_t(device.shared_per_block);
            if (room && one.columns >= max_of(d.dim_qk, d.dim_v) && (!one.plain || plain_backward(problem, aligned))) return &one;
            if (room && one.columns > widest) widest = one.columns;
        }
    if (widest == 0) refuse(refusal, "q_dtype is %s: there are no matrix kernels of it for %s", dtype_name(d.q_dtype), device.arch);
    else
        refuse(refusal, "dim_qk is %lld and dim_v %lld: expected at most %d on %s", (long long)d.dim_qk, (long long)d.dim_v, widest,
               device.arch);
    return nullptr;
}

// The narrowest SIMT kernel that spans the heads, else the widest.
const BackwardInstance& choose_simt_backward(const Problem& problem) {
    const BackwardInstances simt = simt_backward_instances();
    const int64_t columns = max_of(problem.d.dim_qk, problem.d.dim_v);
    int i = 0;
    while (i + 1 < simt.count && simt.list[i].columns < columns) i++;
    return simt.list[i];
}

// Dims of q that a SIMT kernel keeps in shared memory: all where they fit, else those of one chunk.
int resident_dims(const rt::Device& device, int64_t (*shared_bytes)(int64_t), int64_t dim) {
    const int64_t all = round_up(dim, kDims);
    return int(all <= kResidentDims && shared_bytes(all) <= int64_t(device.shared_per_block) ? all : kDims);
}

// Is a block's mainloop short? Such a call's blocks are launched before the kernel before it has ended. They then gather on the
// multiprocessors that are free, which costs them little; long ones would read keys unevenly, a third slower at worst.
bool is_short(const Instance& kernel, int64_t keys) { return keys <= 8 * int64_t(kernel.keys); }

struct Splits {
    int64_t count;
    double time;
};

// The number of splits that should take the least time, in microseconds on an H200: what matters is their proportion. A block takes
// kStart and, for each tile of keys, what memory needs for it while it serves all blocks that run at once, but no less than one
// takes by itself, which is the more where values are widened, of whatever size, nor than arithmetic. Short blocks begin early where
// resources are free, and slow each other down. Merging costs a kernel, something for each row, and the traffic of the partial sums. Blocks
// of one length run in waves; in decode with lengths known to the device alone, the longest runs on for a while after the others have
// filled the machine.
Splits num_splits_heuristic(const rt::Device& device, const Problem& problem, const Instance& kernel, int64_t tiles) {
    constexpr double kStart = 3.3, kShortStart = 1.5, kFullStart = 2.75, kCrowding = 0.2, kMergeStart = 2.5, kMergeSplit = 0.01,
                     kMergeRow = 0.002;
    constexpr double kBytesPerUs = 4.4e6, kPartialBytesPerUs = 3e6, kFlopsPerUs = 3e8;
    constexpr double kAlone = 1.5, kAloneWidened = 0.6;  // what a block by itself gets, in parts of a multiprocessor's share of the memory
    constexpr int64_t kMaxSplits = 512;
    const fa_attention_desc_t& d = problem.d;
    const int64_t keys = max_of(kernel.keys, kSplitQuantum), key_tiles = ceil_div(d.seqlen_k, keys);
    const bool widened = is_scaled_type(d.k_dtype);
    const double room = double(device.multiprocessors) * kernel.resident, rows = double(d.batch * d.heads_q * d.seqlen_q);
    const bool latent = latent_type(problem, mma_type(device, d)) != CacheType::other && !kernel.simt;  // reads no v
    const double elements = double(keys) * double(d.dim_qk + d.dim_v),
                 bytes = double(keys * (latent ? latent_row_bytes(problem) : kv_row_bytes(problem)));
    const double alone = widened ? elements * device.multiprocessors / (kBytesPerUs * kAloneWidened)
                                 : bytes * device.multiprocessors / (kBytesPerUs * kAlone);
    const double arithmetic = room * elements * 2 * kernel.rows / kFlopsPerUs, min_tile_time = alone > arithmetic ? alone : arithmetic;
    // Over pages a multiprocessor's memory is busy only while several blocks wait for it: 64k keys of 8 heads in pages of 64 and 16
    // took 91 and 99 us in 128 blocks, 70 and 74 in 256.
    const bool suffices = !problem.paged();
    const bool ragged =
        kernel.key_warps > 1 && d.batch > 1 && (problem.packed_k() || problem.has(FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K));
    Splits best{1, 0};
    for (int64_t splits = 1; splits <= min_of(kMaxSplits, max_of(key_tiles, 1)); splits++) {
        const int64_t each = ceil_div(key_tiles, splits);
        const bool early = is_short(kernel, each * keys);
        const double blocks = double(tiles * splits), start = !early ? kStart : 2 * blocks <= room ? kShortStart : kFullStart;
        const auto wave = [&](double running) {
            const double shared = (running + (early ? kCrowding * (room - running) : 0)) * bytes / kBytesPerUs;
            return double(each) * (shared > min_tile_time ? shared : min_tile_time) + start;
        };
        const double full = floor(blocks / room), rest = blocks - full * room;
        const double last = rest > 0 ? wave(suffices ? rest : room) : 0;
        const double run = ragged ? wave(room) * (blocks / room + 1.0 / 6) : full * wave(room) + last;
        const double merge_time =
            kMergeStart + kMergeSplit * double(splits) + rows * (kMergeRow + double(splits * d.dim_v) * 8 / kPartialBytesPerUs);
        const double time = run + (splits > 1 ? merge_time : 0);
        if (splits == 1 || time < best.time) best = {splits, time};
    }
    return best;
}

// The time of a kernel for a call, in as many splits as suit it.
double time_of(const rt::Device& device, const Problem& problem, const Instance& kernel) {
    return num_splits_heuristic(device, problem, kernel,
                                problem.d.batch * problem.kv_heads * ceil_div(problem.d.seqlen_q * problem.group, kernel.rows))
        .time;
}

// Should a tile's splits be a cluster, on Hopper, and merge among themselves? Not those of a fixed size, whose bits must not depend
// on the other sequences. Two clusters of 16 blocks come to share multiprocessors while others are idle: one on 64k keys
// took 86 us in place of 67. What is saved is half a microsecond of the device's time, and a launch of the processor's. So only
// short splits do, where a team merges in few rounds.
bool can_merge_in_cluster(const Problem& problem, const Instance& kernel, int64_t splits) {
    constexpr int64_t kMaxBytes = 64 << 10, kMaxRounds = 2;
    const fa_attention_desc_t& d = problem.d;
    if (!rt::kArchKernels || kernel.columns > 256 || kernel.plain == kernel.general || splits < 2 || splits > kMaxClusterSplits ||
        d.split_size > 0 || problem.has(FA_OPERAND_SCORES))
        return false;
    const int64_t bytes = split_keys(d.seqlen_k, splits, 0) * kv_row_bytes(problem);
    const int64_t items = min_of(d.seqlen_q * problem.group, kernel.rows) * kernel.columns / 4, teams = kernel.threads / kMaxClusterSplits;
    return bytes <= kMaxBytes && items <= kMaxRounds * splits * teams;
}

}  // namespace
}  // namespace gpu
}  // namespace fa
