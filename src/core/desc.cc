// The descriptor: what is known, what fits together, and what zero means.
#include <math.h>
#include <string.h>
#include "core/belongings.h"
#include "core/check.h"
#include "core/factors.h"
#include "core/lists.h"
#include "core/operands.h"
#include "core/overlap.h"
#include "core/rules.h"
#include "spec/shape.h"

namespace fa {

constexpr int64_t kMaxDim = 1024;
constexpr int32_t kMaxSplits = 65536;
// Past any row or key. Longer windows, chunks and splits mean the same, and would overflow sums with row numbers.
constexpr int64_t kFar = int64_t(1) << 40;

constexpr int64_t kMaxRows = int64_t(1) << 56;  // an address space has no byte for each

// What each operation reads. The rest is ignored, so that a forward's descriptor serves the calls around it.
static uint64_t operands_read(int32_t op) {
    switch (op) {
        case FA_OP_MERGE: return FA_OPERAND_LSE | FA_OPERAND_SINKS | FA_OPERAND_O_SCALE | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q;
        case FA_OP_APPEND_KV:
            return FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE |
                   FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT | FA_OPERAND_K_TAIL |
                   FA_OPERAND_DEVICE_STATUS;
        case FA_OP_ROTARY: return FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q;
        case FA_OP_BACKWARD: return kAllOperands & ~FA_OPERAND_SCORES;
        default: return kAllOperands;
    }
}

static fa_status_t check_known(const fa_attention_desc_t& desc, Message* message) {
    FA_TRY(known_bits(message, "flags", desc.flags, kAllFlags));
    FA_TRY(known_bits(message, "operands", desc.operands, kAllOperands));
    FA_TRY(known_bits(message, "strided", desc.strided,
                      FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE | FA_STRIDED_Q_TAIL | FA_STRIDED_K_TAIL));
    FA_TRY(known_value(message, "alignment", desc.alignment, FA_ALIGN_EXPLICIT));
    FA_TRY(known_value(message, "precision", desc.precision, FA_PRECISION_NATIVE));
    FA_TRY(known_value(message, "list_space", desc.list_space, FA_LIST_SLOTS));
    FA_TRY(known_value(message, "algorithm", desc.algorithm, FA_ALGORITHM_FLASH1));
    return known_value(message, "scores_stage", desc.scores_stage, FA_SCORES_PROBABILITY);
}

static fa_status_t check_types(fa_attention_desc_t* desc, int32_t op, Message* message) {
    if (desc->q_dtype == 0 && op == FA_OP_MERGE) desc->q_dtype = desc->o_dtype;
    if (desc->q_dtype == 0)
        return fail(message, FA_INVALID_ARGUMENT, "q_dtype is not set: expected FA_F32, FA_F16, FA_BF16, FA_E4M3 or FA_E5M2");
    FA_TRY(check_dtype("q_dtype", desc->q_dtype, kQuery, message));
    FA_TRY(check_dtype("o_dtype", desc->o_dtype, kOutput, message));
    if (reads_keys(op)) {
        FA_TRY(check_dtype("k_dtype", desc->k_dtype, kKeys, message));
        FA_TRY(check_dtype("v_dtype", desc->v_dtype, kKeys, message));
        FA_TRY(check_dtype("k_descale_dtype", desc->k_descale_dtype, kFactor, message));
        FA_TRY(check_dtype("v_descale_dtype", desc->v_descale_dtype, kFactor, message));
        FA_TRY(check_dtype("k_tail_dtype", desc->k_tail_dtype, kTail, message));
    }
    if (attends(op)) {
        FA_TRY(check_dtype("q_descale_dtype", desc->q_descale_dtype, kFactor, message));
        FA_TRY(check_dtype("q_tail_dtype", desc->q_tail_dtype, kTail, message));
        FA_TRY(check_dtype("bias_dtype", desc->bias_dtype, kBias, message));
        FA_TRY(check_dtype("mask_dtype", desc->mask_dtype, kMaskBits, message));
    }
    if (desc->k_dtype == 0) desc->k_dtype = desc->q_dtype;
    if (desc->v_dtype == 0) desc->v_dtype = desc->k_dtype;
    if (op == FA_OP_BACKWARD && desc->v_dtype != desc->k_dtype)
        return fail(message, FA_UNSUPPORTED, "v_dtype is %s: no backend has another type than k's in the backward yet, expected %s",
                    fa_dtype_name(desc->v_dtype), fa_dtype_name(desc->k_dtype));
    if (desc->o_dtype == 0) desc->o_dtype = element_size(desc->q_dtype) == 1 ? int32_t(FA_BF16) : desc->q_dtype;
    if ((op == FA_OP_APPEND_KV || op == FA_OP_ROTARY) && element_size(desc->q_dtype) == 1) {
        return fail(message, FA_UNSUPPORTED, "q_dtype is %s: expected FA_F32, FA_F16 or FA_BF16 for this call",
                    fa_dtype_name(desc->q_dtype));
    }
    return FA_OK;
}

// What has a gradient.
static fa_status_t check_differentiable(const fa_attention_desc_t& desc, Message* message) {
    const struct {
        const char* name;
        int32_t type;
    } types[] = {{"q_dtype", desc.q_dtype}, {"k_dtype", desc.k_dtype}, {"v_dtype", desc.v_dtype}, {"o_dtype", desc.o_dtype}};
    for (const auto& t : types) {
        if (element_size(t.type) > 1 && unit_elements(t.type) == 1) continue;
        return fail(message, FA_UNSUPPORTED, "%s is %s: expected FA_F32, FA_F16 or FA_BF16 for the backward", t.name,
                    fa_dtype_name(t.type));
    }
    const uint64_t refused = desc.operands & (FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE | FA_OPERAND_Q_DESCALE |
                                              FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_O_SCALE | FA_OPERAND_Q_TAIL |
                                              FA_OPERAND_K_TAIL | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT);
    if (refused != 0) {
        return fail(message, FA_UNSUPPORTED, "operands is 0x%llx: expected no %s for the backward", llu(desc.operands),
                    operand_name(refused));
    }
    if (!(desc.operands & FA_OPERAND_LSE))
        return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected FA_OPERAND_LSE, which the backward reads",
                    llu(desc.operands));
    if (desc.algorithm == FA_ALGORITHM_FLASH) return FA_OK;
    return fail(message, FA_UNSUPPORTED, "algorithm is %d: expected FA_ALGORITHM_FLASH (0) for the backward", desc.algorithm);
}

// v within k has nothing of its own to say; what belongs to V_DESCALE is refused with its operand off.
static fa_status_t check_v_in_k(const fa_attention_desc_t& desc, int32_t op, Message* message) {
    if (op == FA_OP_BACKWARD)
        return fail(message, FA_UNSUPPORTED,
                    "flags is 0x%x: no backend has a gradient of v within k yet, expected no FA_V_IN_K for the backward", desc.flags);
    const uint64_t own = desc.operands & (FA_OPERAND_V_DESCALE | FA_OPERAND_V_SHIFT);
    if (own)
        return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected no %s with FA_V_IN_K", llu(desc.operands),
                    operand_name(own));
    if (desc.strided & FA_STRIDED_V)
        return fail(message, FA_INVALID_ARGUMENT, "strided is 0x%x: expected no FA_STRIDED_V with FA_V_IN_K", desc.strided);
    if (desc.v_dtype != 0) return fail(message, FA_INVALID_ARGUMENT, "v_dtype is %d: expected 0 with FA_V_IN_K", desc.v_dtype);
    if (desc.heads_v != 0) return fail(message, FA_INVALID_ARGUMENT, "heads_v is %lld: expected 0 with FA_V_IN_K", ll(desc.heads_v));
    if (desc.dim_v > desc.dim_qk)
        return fail(message, FA_INVALID_ARGUMENT, "dim_v is %lld: expected dim_qk, %lld, or less with FA_V_IN_K", ll(desc.dim_v),
                    ll(desc.dim_qk));
    return FA_OK;
}

// Backends read v as a tensor like any other: k's elements with fewer dims.
static void take_v_from_k(fa_attention_desc_t* desc) {
    memcpy(desc->v_stride, desc->k_stride, sizeof desc->v_stride);
    memcpy(desc->v_descale_stride, desc->k_descale_stride, sizeof desc->v_descale_stride);
    memcpy(desc->v_descale_block, desc->k_descale_block, sizeof desc->v_descale_block);
    desc->v_descale_dtype = desc->k_descale_dtype;
    if (desc->operands & FA_OPERAND_K_DESCALE) desc->operands |= FA_OPERAND_V_DESCALE;
    if (desc->operands & FA_OPERAND_K_SHIFT) desc->operands |= FA_OPERAND_V_SHIFT;
}

static fa_status_t check_dim(const char* field, int64_t dim, Message* message) {
    if (dim > kMaxDim) return fail(message, FA_UNSUPPORTED, "%s is %lld: expected %lld or less", field, ll(dim), ll(kMaxDim));
    return in_range(message, field, dim, 1, kMaxDim);
}

// Rows hold whole units, and blocks carry their own factors.
static fa_status_t check_units(const Problem& problem, Message* message) {
    const fa_attention_desc_t& d = problem.d;
    const struct {
        const char *dtype_name, *dim_name;
        int32_t dtype;
        int64_t dim;
        uint64_t descale;
    } sides[] = {
        {"k_dtype", problem.has(FA_OPERAND_K_TAIL) ? "dim_qk - dim_tail" : "dim_qk", d.k_dtype, problem.k_dims(), FA_OPERAND_K_DESCALE},
        {"v_dtype", "dim_v", d.v_dtype, problem.v_dims(), FA_OPERAND_V_DESCALE}};
    for (const auto& side : sides) {
        const int32_t elements = unit_elements(side.dtype);
        if (side.dim % elements != 0)
            return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected a multiple of %d, the dims of a %s of %s", side.dim_name,
                        ll(side.dim), elements, is_block_type(side.dtype) ? "block" : "unit", fa_dtype_name(side.dtype));
        if (is_block_type(side.dtype) && d.operands & side.descale)
            return fail(message, FA_INVALID_ARGUMENT, "%s is %s: expected no %s, since blocks contain their own scales", side.dtype_name,
                        fa_dtype_name(side.dtype), operand_name(side.descale));
    }
    return FA_OK;
}

static fa_status_t check_sizes(Problem* problem, int32_t op, Message* message) {
    fa_attention_desc_t* const d = &problem->d;
    FA_TRY(in_range(message, "batch", d->batch, 0, kMaxSize));
    FA_TRY(in_range(message, "heads_k", d->heads_k, 0, kMaxSize));
    FA_TRY(in_range(message, "heads_v", d->heads_v, 0, kMaxSize));
    if (op == FA_OP_APPEND_KV && d->heads_q == 0) d->heads_q = d->heads_v ? common_multiple(d->heads_k, d->heads_v) : d->heads_k;
    FA_TRY(in_range(message, "heads_q", d->heads_q, 1, kMaxSize));
    FA_TRY(in_range(message, "seqlen_q", d->seqlen_q, 0, kMaxSize));
    FA_TRY(in_range(message, "seqlen_k", d->seqlen_k, 0, kMaxSize));
    FA_TRY(in_range(message, "total_q", d->total_q, 0, kMaxSize));
    FA_TRY(in_range(message, "total_k", d->total_k, 0, kMaxSize));
    FA_TRY(in_range(message, "kv_batch", d->kv_batch, 0, kMaxSize));
    FA_TRY(in_range(message, "page_size", d->page_size, 0, kMaxSize));
    FA_TRY(in_range(message, "num_pages", d->num_pages, 0, kMaxSize));
    FA_TRY(in_range(message, "page_table_stride", d->page_table_stride, 0, INT64_MAX));

    if (d->heads_k == 0) d->heads_k = d->heads_q;
    if (d->heads_v == 0) d->heads_v = d->heads_k;
    if (reads_keys(op)) {
        const struct {
            const char* name;
            int64_t heads;
        } sides[] = {{"heads_k", d->heads_k}, {"heads_v", d->heads_v}};
        for (const auto& side : sides) {
            if (d->heads_q % side.heads == 0) continue;
            return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected a divisor of heads_q, %lld", side.name, ll(side.heads),
                        ll(d->heads_q));
        }
        if (op == FA_OP_BACKWARD && d->heads_v != d->heads_k)
            return fail(message, FA_UNSUPPORTED,
                        "heads_v is %lld: no backend has another number than k's in the backward yet, expected %lld", ll(d->heads_v),
                        ll(d->heads_k));
    }

    if (op != FA_OP_MERGE) FA_TRY(check_dim("dim_qk", d->dim_qk, message));
    if (d->dim_v == 0) d->dim_v = d->dim_qk;
    if (op != FA_OP_ROTARY) FA_TRY(check_dim("dim_v", d->dim_v, message));
    if (!reads_keys(op)) return FA_OK;
    FA_TRY(check_tails(d, op, message));
    FA_TRY(check_units(*problem, message));
    return check_factors(problem, op, message);
}

// Rows that a backend may count, in whatever order it multiplies and with some bytes for each, without an overflow.
static fa_status_t check_rows(fa_attention_desc_t* desc, int32_t op, Message* message) {
    // No packed sequence is longer than all of them. Scores and dbias alone may have room for more, and are written throughout, if they
    // have elements.
    const uint64_t throughout = op == FA_OP_BACKWARD ? FA_OPERAND_BIAS : FA_OPERAND_SCORES;
    if (!(desc->operands & throughout) || desc->seqlen_q == 0 || desc->seqlen_k == 0) {
        if (desc->operands & FA_OPERAND_CU_SEQLENS_Q) desc->seqlen_q = min_of(desc->seqlen_q, desc->total_q);
        // Entries of lists count blocks of the longest sequence that the caller allows.
        const bool lists = (desc->operands & (FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST)) != 0 && attends(op);
        if ((desc->operands & FA_OPERAND_CU_SEQLENS_K) && !lists) desc->seqlen_k = min_of(desc->seqlen_k, desc->total_k);
    }
    int64_t rows;
    if (__builtin_mul_overflow(max_of(desc->batch, 1) * desc->heads_q, max_of(desc->seqlen_q, 1), &rows) || rows > kMaxRows) {
        return fail(message, FA_INVALID_ARGUMENT,
                    "seqlen_q is %lld: expected batch * heads_q * seqlen_q, %lld * %lld * %lld, of at most 2^56", ll(desc->seqlen_q),
                    ll(desc->batch), ll(desc->heads_q), ll(desc->seqlen_q));
    }
    return FA_OK;
}

// Keys that lie one upon the other have no bytes that would bound their number.
static fa_status_t check_keys(const fa_attention_desc_t& desc, Message* message) {
    int64_t keys;
    if (!__builtin_mul_overflow(desc.batch * desc.heads_q, desc.seqlen_k, &keys)) return FA_OK;
    return fail(message, FA_INVALID_ARGUMENT, "seqlen_k is %lld: expected batch * heads_q * seqlen_k, %lld * %lld * %lld, below 2^63",
                ll(desc.seqlen_k), ll(desc.batch), ll(desc.heads_q), ll(desc.seqlen_k));
}

// After how many sequences and heads a bias or a mask repeats, at most all.
static fa_status_t check_period(const char* field, int64_t period[2], const fa_attention_desc_t& desc, Message* message) {
    const int64_t extent[2] = {desc.batch, desc.heads_q};
    for (int i = 0; i < 2; i++) {
        if (period[i] < 0) return fail(message, FA_INVALID_ARGUMENT, "%s[%d] is %lld: expected 0 or more", field, i, ll(period[i]));
        if (period[i] == 0 || period[i] > extent[i]) period[i] = extent[i];
    }
    return FA_OK;
}

static fa_status_t check_scores(fa_attention_desc_t* desc, Message* message) {
    if (desc->flags & FA_SCALE_EXPLICIT) {
        if (!(fabsf(desc->scale) <= kMaxBaseE)) {
            return fail(message, FA_INVALID_ARGUMENT, "scale is %g: expected a magnitude of at most %g, f32's largest over log2 e",
                        double(desc->scale), double(kMaxBaseE));
        }
    } else {
        if (desc->scale != 0.0f)
            return fail(message, FA_INVALID_ARGUMENT, "scale is %g: expected 0 without FA_SCALE_EXPLICIT", double(desc->scale));
        desc->scale = float(1.0 / sqrt(double(desc->dim_qk)));
        desc->flags |= FA_SCALE_EXPLICIT;
    }
    if (!(isfinite(desc->softcap) && desc->softcap >= 0.0f)) {
        return fail(message, FA_INVALID_ARGUMENT, "softcap is %g: expected a finite number, 0 or more", double(desc->softcap));
    }
    if (!(desc->dropout_p >= 0.0f && desc->dropout_p < 1.0f)) {
        return fail(message, FA_INVALID_ARGUMENT, "dropout_p is %g: expected 0 or more and less than 1", double(desc->dropout_p));
    }
    if (desc->bias_dtype == 0) desc->bias_dtype = FA_F32;
    if ((desc->operands & FA_OPERAND_BIAS_SCALE) && !(desc->operands & FA_OPERAND_BIAS))
        return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected FA_OPERAND_BIAS with FA_OPERAND_BIAS_SCALE",
                    llu(desc->operands));
    FA_TRY(check_period("bias_period", desc->bias_period, *desc, message));
    FA_TRY(check_period("mask_period", desc->mask_period, *desc, message));
    FA_TRY(in_range(message, "mask_keys", desc->mask_keys, 0, kMaxSize));
    if (desc->key_range_max == 0) desc->key_range_max = 1;
    return in_range(message, "key_range_max", desc->key_range_max, 1, kMaxSize);
}

static fa_status_t check_schedule(fa_attention_desc_t* desc, Message* message) {
    FA_TRY(in_range(message, "num_splits", desc->num_splits, 0, kMaxSplits));
    FA_TRY(in_range(message, "split_size", desc->split_size, 0, INT64_MAX));
    if (desc->num_splits != 0 && desc->split_size != 0) {
        return fail(message, FA_INVALID_ARGUMENT, "split_size is %lld: expected 0 when num_splits is set, %d", ll(desc->split_size),
                    desc->num_splits);
    }
    desc->split_size = min_of(desc->split_size, kFar);
    FA_TRY(in_range(message, "reserve_units", desc->reserve_units, 0, INT32_MAX));
    const bool f32 = desc->q_dtype == FA_F32 && desc->k_dtype == FA_F32 && desc->v_dtype == FA_F32 && desc->o_dtype == FA_F32;
    if (desc->algorithm != FA_ALGORITHM_FLASH && !f32) {
        return fail(message, FA_UNSUPPORTED,
                    "algorithm is %d and q_dtype, k_dtype, v_dtype, o_dtype are %s, %s, %s, %s: expected f32 for a study baseline",
                    desc->algorithm, fa_dtype_name(desc->q_dtype), fa_dtype_name(desc->k_dtype), fa_dtype_name(desc->v_dtype),
                    fa_dtype_name(desc->o_dtype));
    }
    return FA_OK;
}

static fa_status_t check_masks(fa_attention_desc_t* desc, Message* message) {
    if (desc->flags & FA_WINDOW) {
        FA_TRY(in_range(message, "window_left", desc->window_left, -1, INT64_MAX));
        FA_TRY(in_range(message, "window_right", desc->window_right, -1, INT64_MAX));
        desc->window_left = min_of(desc->window_left, kFar);
        desc->window_right = min_of(desc->window_right, kFar);
    } else if (desc->window_left != 0 || desc->window_right != 0) {
        const bool left = desc->window_left != 0;
        return fail(message, FA_INVALID_ARGUMENT, "%s is %lld: expected 0 without FA_WINDOW", left ? "window_left" : "window_right",
                    ll(left ? desc->window_left : desc->window_right));
    }
    FA_TRY(in_range(message, "chunk", desc->chunk, 0, INT64_MAX));
    desc->chunk = min_of(desc->chunk, kFar);

    const char* user = desc->flags & FA_CAUSAL             ? "FA_CAUSAL"
                       : desc->flags & FA_WINDOW           ? "FA_WINDOW"
                       : desc->chunk > 0                   ? "chunk"
                       : desc->operands & FA_OPERAND_ALIBI ? "FA_OPERAND_ALIBI"
                                                           : nullptr;
    if (user && desc->alignment == FA_ALIGN_UNSET) {
        return fail(message, FA_INVALID_ARGUMENT, "alignment is not set: expected FA_ALIGN_TOP_LEFT, _BOTTOM_RIGHT or _EXPLICIT with %s",
                    user);
    }
    const bool offset = (desc->operands & FA_OPERAND_CAUSAL_OFFSET) != 0;
    if (offset != (desc->alignment == FA_ALIGN_EXPLICIT)) {
        return fail(message, FA_INVALID_ARGUMENT, "alignment is %d: expected FA_ALIGN_EXPLICIT (3) %s FA_OPERAND_CAUSAL_OFFSET",
                    desc->alignment, offset ? "with" : "only with");
    }
    return FA_OK;
}

static fa_status_t check_cache(fa_attention_desc_t* desc, Message* message) {
    const uint64_t cache = desc->operands & (FA_OPERAND_PAGE_TABLE | FA_OPERAND_KV_BATCH_IDX);
    if ((desc->operands & FA_OPERAND_CU_SEQLENS_K) && cache) {
        return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected FA_OPERAND_CU_SEQLENS_K without %s", llu(desc->operands),
                    operand_name(cache));
    }
    if (desc->operands & FA_OPERAND_PAGE_TABLE) FA_TRY(in_range(message, "page_size", desc->page_size, 1, kMaxSize));
    if (desc->operands & FA_OPERAND_KV_BATCH_IDX) FA_TRY(in_range(message, "kv_batch", desc->kv_batch, desc->batch > 0, kMaxSize));
    return FA_OK;
}

static fa_status_t check_zero_strides(const Tensor& tensor, const char* owner, Message* message) {
    for (int i = 0; i < tensor.rank; i++) {
        if (tensor.stride[i] == 0) continue;
        return fail(message, FA_INVALID_ARGUMENT, "%s_stride[%d] is %lld: expected 0 without %s", tensor.name, i, ll(tensor.stride[i]),
                    owner);
    }
    return FA_OK;
}

enum class Use { read, written };

// Strides of a tensor that has a bit in `strided`; `stride` is its field.
static fa_status_t lay_strided(const fa_attention_desc_t& desc, uint32_t bit, const char* bit_name, Tensor tensor, bool unit, Use use,
                               int64_t* stride, Message* message) {
    if (desc.strided & bit) {
        FA_TRY(check_strides(tensor, unit, message));
    } else {
        FA_TRY(check_zero_strides(tensor, bit_name, message));
        FA_TRY(lay_dense(&tensor, message));
    }
    if (use == Use::written) FA_TRY(check_distinct(tensor, message));
    put_strides(tensor, stride);
    return FA_OK;
}

// Strides of a tensor that has an operand bit: always literal.
static fa_status_t lay_literal(const fa_attention_desc_t& desc, uint64_t operand, const Tensor& tensor, Use use, int64_t* stride,
                               Message* message) {
    if (!(desc.operands & operand)) return check_zero_strides(tensor, operand_name(operand), message);
    FA_TRY(check_strides(tensor, false, message));
    if (use == Use::written) FA_TRY(check_distinct(tensor, message));
    put_strides(tensor, stride);
    return FA_OK;
}

// The same for a table_of(), of whose strides one is a field.
static fa_status_t lay_table(const Tensor& tensor, int64_t* row_stride, Message* message) {
    int64_t stride[kMaxRank];
    FA_TRY(check_fits(tensor, message));
    put_strides(tensor, stride);
    *row_stride = stride[0];
    return FA_OK;
}

static fa_status_t lay_keys(Problem* problem, int32_t op, Message* message) {
    fa_attention_desc_t& d = problem->d;
    const Use use = op == FA_OP_APPEND_KV ? Use::written : Use::read;
    FA_TRY(lay_strided(d, FA_STRIDED_K, "FA_STRIDED_K", k_tensor(*problem, nullptr), true, use, d.k_stride, message));
    FA_TRY(lay_strided(d, FA_STRIDED_V, "FA_STRIDED_V", v_tensor(*problem, nullptr), true, use, d.v_stride, message));
    if (problem->has(FA_OPERAND_K_TAIL))
        FA_TRY(
            lay_strided(d, FA_STRIDED_K_TAIL, "FA_STRIDED_K_TAIL", k_tail_tensor(*problem, nullptr), true, use, d.k_tail_stride, message));
    FA_TRY(lay_literal(d, FA_OPERAND_K_DESCALE, k_descale_tensor(*problem, nullptr), Use::read, d.k_descale_stride, message));
    FA_TRY(lay_literal(d, FA_OPERAND_V_DESCALE, v_descale_tensor(*problem, nullptr), Use::read, d.v_descale_stride, message));
    return lay_table(page_table_tensor(*problem, nullptr), &d.page_table_stride, message);
}

static fa_status_t lay_tensors(Problem* problem, int32_t op, Message* message) {
    fa_attention_desc_t& d = problem->d;
    if (attends(op) || op == FA_OP_ROTARY) {
        FA_TRY(lay_strided(d, FA_STRIDED_Q, "FA_STRIDED_Q", q_tensor(*problem, "q", nullptr), true, Use::read, d.q_stride, message));
    }
    if (problem->has(FA_OPERAND_Q_TAIL))
        FA_TRY(lay_strided(d, FA_STRIDED_Q_TAIL, "FA_STRIDED_Q_TAIL", q_tail_tensor(*problem, nullptr), true, Use::read, d.q_tail_stride,
                           message));
    if (reads_keys(op)) FA_TRY(lay_keys(problem, op, message));
    if (attends(op) || op == FA_OP_MERGE) {
        const Use use = op == FA_OP_BACKWARD ? Use::read : Use::written;
        FA_TRY(lay_strided(d, FA_STRIDED_O, "FA_STRIDED_O", o_tensor(*problem, nullptr), true, use, d.o_stride, message));
        FA_TRY(lay_strided(d, FA_STRIDED_LSE, "FA_STRIDED_LSE", lse_tensor(*problem, nullptr), false, use, d.lse_stride, message));
    }
    if (attends(op)) {
        FA_TRY(lay_literal(d, FA_OPERAND_BIAS,
                           pair_tensor(*problem, "bias", nullptr, element_size(d.bias_dtype), d.bias_stride, d.bias_period), Use::read,
                           d.bias_stride, message));
        FA_TRY(lay_literal(d, FA_OPERAND_MASK, mask_tensor(*problem, nullptr), Use::read, d.mask_stride, message));
        FA_TRY(lay_literal(d, FA_OPERAND_KEY_RANGES, key_range_tensor(*problem, "key_range", nullptr), Use::read, d.key_range_stride,
                           message));
        FA_TRY(lay_literal(d, FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST, key_list_tensor(*problem, "list", nullptr), Use::read,
                           d.list_stride, message));
        FA_TRY(lay_literal(d, FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST_COUNT,
                           key_list_count_tensor(*problem, "list_count", nullptr), Use::read, d.list_count_stride, message));
        FA_TRY(check_list_bytes(*problem, message));
        FA_TRY(lay_literal(d, FA_OPERAND_Q_DESCALE, q_descale_tensor(*problem, nullptr), Use::read, d.q_descale_stride, message));
        FA_TRY(in_range(message, "alibi_batch_stride", d.alibi_batch_stride, 0, INT64_MAX));
        FA_TRY(lay_table(table_of("alibi_slopes", nullptr, 4, d.batch, d.heads_q, d.alibi_batch_stride), &d.alibi_batch_stride, message));
    }
    if (op != FA_OP_FORWARD) return FA_OK;
    return lay_literal(d, FA_OPERAND_SCORES, score_tensor(*problem, "scores", nullptr, 4, d.scores_stride), Use::written, d.scores_stride,
                       message);
}

fa_status_t resolve(const fa_attention_desc_t* user, int32_t op, Problem* problem, Message* message) {
    FA_TRY(in_range(message, "op", op, FA_OP_FORWARD, FA_OP_BACKWARD));
    fa_attention_desc_t& d = problem->d;
    FA_TRY(import_struct(&d, user, message));
    FA_TRY(check_known(d, message));
    const uint64_t given = d.operands;
    d.operands &= operands_read(op);
    if (op == FA_OP_APPEND_KV && (d.operands & FA_OPERAND_CU_SEQLENS_K)) {
        return fail(message, FA_INVALID_ARGUMENT,
                    "operands is 0x%llx: expected no FA_OPERAND_CU_SEQLENS_K, since packed keys have no room to append", llu(d.operands));
    }
    // An append stores whole rows of k unless they have a tail.
    if (op == FA_OP_APPEND_KV && (given & FA_OPERAND_Q_TAIL) && !(given & FA_OPERAND_K_TAIL)) d.dim_tail = 0;
    FA_TRY(check_belongings(d, op, message));
    if (!attends(op)) d.list_space = FA_LIST_KEYS;
    if (d.list_space == FA_LIST_SLOTS) d.seqlen_k = 0;  // the entries' number, when that is known to be one
    const bool v_in_k = reads_keys(op) && (d.flags & FA_V_IN_K);
    if (v_in_k) FA_TRY(check_v_in_k(d, op, message));
    FA_TRY(check_types(&d, op, message));
    if (op == FA_OP_BACKWARD) FA_TRY(check_differentiable(d, message));
    FA_TRY(check_sizes(problem, op, message));
    if (op != FA_OP_APPEND_KV && d.total_q != 0 && !problem->packed_q())
        return fail(message, FA_INVALID_ARGUMENT, "total_q is %lld: expected 0 without FA_OPERAND_CU_SEQLENS_Q", ll(d.total_q));
    if (reads_keys(op)) FA_TRY(check_cache(&d, message));
    if (op != FA_OP_APPEND_KV) FA_TRY(check_rows(&d, op, message));
    if (attends(op)) {
        FA_TRY(check_scores(&d, message));
        FA_TRY(check_lists(&d, op, message));
        FA_TRY(check_schedule(&d, message));
        FA_TRY(check_masks(&d, message));
        if (op == FA_OP_FORWARD && d.scores_stage != 0 && !problem->has(FA_OPERAND_SCORES))
            return fail(message, FA_INVALID_ARGUMENT, "scores_stage is %d: expected 0 without FA_OPERAND_SCORES", d.scores_stage);
    }
    problem->kv_heads = common_multiple(d.heads_k, d.heads_v);
    if (problem->slots()) problem->kv_heads = common_multiple(problem->kv_heads, d.list_heads);
    problem->group = reads_keys(op) ? d.heads_q / problem->kv_heads : 1;
    problem->pages_per_row = problem->has(FA_OPERAND_PAGE_TABLE) ? ceil_div(d.seqlen_k, d.page_size) : 0;
    if (problem->has(FA_OPERAND_PAGE_TABLE) && d.page_table_stride == 0) d.page_table_stride = problem->pages_per_row;
    if (v_in_k && op == FA_OP_APPEND_KV) d.heads_v = 0;  // it comes with k
    FA_TRY(lay_tensors(problem, op, message));
    if (attends(op)) FA_TRY(check_keys(d, message));
    if (reads_keys(op)) settle_blocks(problem);
    if (v_in_k && op == FA_OP_FORWARD) take_v_from_k(&d);
    problem->options = attends(op) ? options_of(d) : 0;
    return FA_OK;
}

}  // namespace fa
