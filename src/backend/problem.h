// The resolved problem: what core hands to a backend once a call has been checked.
#pragma once
#include <flashattn.h>
#include "backend/options.h"
#include "spec/mask.h"
#include "spec/numerics.h"

namespace fa {

// The caller's descriptor with every default filled in: no zero type, heads_k, heads_v, dim_v, literal scale and strides,
// page_table_stride. Backends trust it: sizes are in range, products fit, operands and flags are known and consistent. Its members are
// constexpr so that GPU compilers take them for device functions, too.
struct Problem {
    fa_attention_desc_t d;
    int64_t kv_heads;       // pairs of a k and a v head that query heads share; what kernels call a kv head is the number of one
    int64_t group;          // query heads per kv head
    int64_t pages_per_row;  // ceil(seqlen_k / page_size), 0 without pages
    uint64_t options;       // in use, see options.def

    constexpr bool has(uint64_t operand) const { return (d.operands & operand) != 0; }
    // Does a kernel family implement all that the call asks for? A status word is not its business.
    constexpr bool within(const Implements& list) const {
        return (d.operands & ~(list.operands | FA_OPERAND_DEVICE_STATUS)) == 0 && (options & ~list.options) == 0;
    }
    // Is something added to scores, or are they modified otherwise, before softmax?
    constexpr bool has_addend() const { return has(FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI); }
    constexpr bool has_score_mod() const { return has_addend() || (options & option::score_mods) != 0; }
    constexpr bool packed_q() const { return has(FA_OPERAND_CU_SEQLENS_Q); }
    constexpr bool packed_k() const { return has(FA_OPERAND_CU_SEQLENS_K); }
    // Are the keys of a block of rows the slots that its list names? Key j is then entry j, and seqlen_k the most entries. Core has made
    // pairs of heads that share a list, too.
    constexpr bool slots() const { return d.list_space == FA_LIST_SLOTS; }
    constexpr bool paged() const { return has(FA_OPERAND_PAGE_TABLE) || slots(); }
    constexpr bool causal() const { return (d.flags & FA_CAUSAL) != 0; }
    // Core has then given v k's place, type, heads, strides and factors: kernels may read it as a tensor of its own. An append has no
    // heads of v.
    constexpr bool v_in_k() const { return (d.flags & FA_V_IN_K) != 0; }
    // The heads of a pair.
    constexpr int64_t k_head(int64_t kv_head) const { return d.heads_k == kv_heads ? kv_head : kv_head / (kv_heads / d.heads_k); }
    constexpr int64_t v_head(int64_t kv_head) const { return d.heads_v == kv_heads ? kv_head : kv_head / (kv_heads / d.heads_v); }
    // Dims that lie in q, k and v themselves; the rest of a head lies in the tail.
    constexpr int64_t q_dims() const { return d.dim_qk - (has(FA_OPERAND_Q_TAIL) ? d.dim_tail : 0); }
    constexpr int64_t k_dims() const { return d.dim_qk - (has(FA_OPERAND_K_TAIL) ? d.dim_tail : 0); }
    constexpr int64_t v_dims() const { return v_in_k() && d.dim_v > k_dims() ? k_dims() : d.dim_v; }
    // Is a row in one piece, of a type that kernels read by itself, and has it one f32 factor at most?
    constexpr bool plain_q() const { return !has(FA_OPERAND_Q_TAIL) && plain_factors(d.q_descale_dtype, d.q_descale_block, d.dim_qk); }
    constexpr bool plain_k() const {
        return !has(FA_OPERAND_K_TAIL | FA_OPERAND_K_SHIFT) && !is_nibble_type(d.k_dtype) &&
               plain_factors(d.k_descale_dtype, d.k_descale_block, d.dim_qk);
    }
    constexpr bool plain_v() const {
        return v_dims() == d.dim_v && !has(FA_OPERAND_V_SHIFT) && !is_nibble_type(d.v_dtype) &&
               plain_factors(d.v_descale_dtype, d.v_descale_block, d.dim_v);
    }
    static constexpr bool plain_factors(int32_t dtype, const int64_t block[2], int64_t dims) {
        return dtype == FA_F32 && block[0] == 1 && block[1] >= dims;
    }
};

// Where a call's first row, key and head lie in the dropout mask of a whole problem, and heads of a sequence there.
struct DropoutPlace {
    int64_t row, key, head, heads;
};
inline DropoutPlace dropout_place(const Problem& problem, const fa_forward_args_t& args) {
    return {args.dropout_row, args.dropout_key, args.dropout_head, args.dropout_heads > 0 ? args.dropout_heads : problem.d.heads_q};
}

// The factor of the products q·k, the scale or log2 e times it, as what q is multiplied by and what the products are. In q it costs nothing
// for each score, but may take no finite q out of f32's range, however small k is: of others q has the mantissa alone, so that the bits are
// those of a q and a scale between which a power of two has moved.
struct ScoreFactor {
    float q, product;
};
static inline ScoreFactor score_factor(float factor) {
    const float size = fabsf(factor);
    if (size == 0.f || (size >= kSmallScale && size <= 1.f)) return {factor, 1.f};
    if (size >= 0x1p+127f) return {1.f, factor};
    int exponent;
    const float mantissa = frexpf(factor, &exponent);
    return {mantissa, ldexpf(1.f, exponent)};
}
// Does log2 e times the scale have all of its digits?
FA_FN bool plain_scale(float scale) { return scale == 0.f || fabsf(scale) >= kSmallestNormal; }

// Of a sequence or head that counts modulo a period; divisions are for those beyond it alone.
FA_FN int64_t repeated(int64_t i, int64_t period) { return i < period ? i : i % period; }
// Element of a bias or a mask for a row and key 0. period: of (batch, head), at least 1 where there are any.
FA_FN int64_t pair_row(const int64_t period[2], const int64_t stride[4], int64_t batch, int64_t head, int64_t row) {
    return repeated(batch, period[0]) * stride[0] + repeated(head, period[1]) * stride[1] + row * stride[2];
}
FA_FN int64_t bias_row(const Problem& problem, int64_t batch, int64_t head, int64_t row) {
    return pair_row(problem.d.bias_period, problem.d.bias_stride, batch, head, row);
}
FA_FN int64_t mask_row(const Problem& problem, int64_t batch, int64_t head, int64_t row) {
    return pair_row(problem.d.mask_period, problem.d.mask_stride, batch, head, row);
}
// The first key that a mask of the last keys has a column for: all before it are kept.
FA_FN int64_t first_masked_key(int64_t mask_keys, int64_t seqlen_k) { return mask_keys > 0 ? seqlen_k - mask_keys : 0; }
// A mask's column, in bits or in bytes, of the row that begins at `row`. Columns before the first are kept.
FA_FN bool mask_keeps(const uint8_t* row, int64_t step, bool bits, int64_t column) {
    if (column < 0) return true;
    return bits ? row[(column >> 3) * step] >> (column & 7) & 1 : row[column * step] != 0;
}
// A bias times its head's factor. −∞ removes the key whatever the factor is.
FA_FN float scaled_bias(float bias, float scale) { return bias == kNegInf ? kNegInf : scale * bias; }

// One sequence of the batch: where its rows and keys begin and how many there are, in elements of a row index.
struct Sequence {
    int64_t q_begin;   // first row of q and o: in the packed tensor, else 0
    int64_t q_len;     // valid rows
    int64_t k_begin;   // first slot of key 0: packed start + left padding, or left padding alone
    int64_t k_len;     // valid keys, left padding excluded
    int64_t kv_index;  // sequence of the cache, or row of the page table
    int64_t off;       // row i stands on key i + off
};

// First row and length of a sequence of q.
struct Span {
    int64_t begin, length;
};
// What these follow from: arrays of a call, NULL where their operand is missing, and the lengths without them.
struct QuerySpans {
    const int32_t *cu_seqlens, *seqused;
    int64_t seqlen, total;
    constexpr bool packed() const { return cu_seqlens != nullptr; }
};
static inline QuerySpans query_spans(const Problem& problem, const int32_t* cu_seqlens, const int32_t* seqused) {
    return {problem.packed_q() ? cu_seqlens : nullptr, problem.has(FA_OPERAND_SEQUSED_Q) ? seqused : nullptr, problem.d.seqlen_q,
            problem.d.total_q};
}
FA_FN Span span_of(const QuerySpans& spans, int64_t b) {
    Span span{0, spans.seqlen};
    if (spans.packed()) {
        span.begin = spans.cu_seqlens[b];
        span.length = spans.cu_seqlens[b + 1] - span.begin;
    }
    if (spans.seqused) span.length = spans.seqused[b];
    return span;
}

// The same of all that sequences follow from.
struct SequenceTable {
    QuerySpans q;
    const int32_t *cu_seqlens_k, *seqused_k, *leftpad_k, *kv_batch_idx, *causal_offset;
    int64_t seqlen_k, total_k;
    int64_t kv_sequences;  // of the cache, or rows of the page table
    int32_t alignment;     // FA_ALIGN_…
    constexpr bool packed_k() const { return cu_seqlens_k != nullptr; }
};
static inline SequenceTable sequence_table(const Problem& problem, const fa_forward_args_t& args) {
    const auto given = [&](uint64_t operand, const int32_t* array) { return problem.has(operand) ? array : nullptr; };
    SequenceTable table;
    table.q = query_spans(problem, args.cu_seqlens_q, args.seqused_q);
    table.cu_seqlens_k = given(FA_OPERAND_CU_SEQLENS_K, args.cu_seqlens_k);
    table.seqused_k = given(FA_OPERAND_SEQUSED_K, args.seqused_k);
    table.leftpad_k = given(FA_OPERAND_LEFTPAD_K, args.leftpad_k);
    table.kv_batch_idx = given(FA_OPERAND_KV_BATCH_IDX, args.kv_batch_idx);
    table.causal_offset = problem.d.alignment == FA_ALIGN_EXPLICIT ? args.causal_offset : nullptr;
    table.seqlen_k = problem.d.seqlen_k;
    table.total_k = problem.d.total_k;
    table.kv_sequences = problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch;
    table.alignment = problem.d.alignment;
    return table;
}

FA_FN Sequence sequence_of(const SequenceTable& table, int64_t b) {
    const Span q = span_of(table.q, b);
    Sequence sequence;
    sequence.q_begin = q.begin;
    sequence.q_len = q.length;
    sequence.k_begin = table.packed_k() ? table.cu_seqlens_k[b] : 0;
    sequence.k_len = table.packed_k() ? table.cu_seqlens_k[b + 1] - sequence.k_begin : table.seqlen_k;
    if (table.seqused_k) sequence.k_len = table.seqused_k[b];
    if (table.leftpad_k) {
        sequence.k_begin += table.leftpad_k[b];
        sequence.k_len -= table.leftpad_k[b];
    }
    sequence.kv_index = table.kv_batch_idx ? table.kv_batch_idx[b] : b;
    sequence.off = table.alignment == FA_ALIGN_BOTTOM_RIGHT ? sequence.k_len - sequence.q_len
                   : table.causal_offset                    ? table.causal_offset[b]
                                                            : 0;
    return sequence;
}

// Where a key's row lies: `outer` is the page, the cache's sequence or the sequence; `row` counts within it. A page id out of range
// makes the key vanish.
struct KeyLocation {
    int64_t outer, row;
    bool valid;
};
struct Pages {
    const int32_t* table;  // [sequence][row_stride]; NULL: keys lie one behind the other
    int64_t row_stride, size, count;
};
static inline Pages pages_of(const Problem& problem, const int32_t* table) {
    return {problem.has(FA_OPERAND_PAGE_TABLE) ? table : nullptr, problem.d.page_table_stride, problem.d.page_size, problem.d.num_pages};
}
// Slots count from the sequence's first, left padding included. Three hot paths of GPUs look pages up by themselves, in 32 bits, since
// their dispatch has checked that all numbers fit: find_vec_offsets (gpu/mma/block.h), the copy path of append_rows (gpu/rows/append.h),
// whose pages have powers of two of keys, and find_paged_row (cuda/sm90/common/pages.h).
FA_FN KeyLocation locate_slot(const Pages& pages, int64_t kv_index, int64_t slot) {
    if (!pages.table) return {kv_index, slot, true};
    const int64_t page = pages.table[kv_index * pages.row_stride + slot / pages.size];
    return {page, slot % pages.size, page >= 0 && page < pages.count};
}
FA_FN KeyLocation locate_key(const Pages& pages, const Sequence& sequence, int64_t key) {
    return locate_slot(pages, sequence.kv_index, sequence.k_begin + key);
}

// The masks that are bands of keys, as the descriptor has them, but for the diagonal; and for a sequence.
static inline MaskRule mask_rule(const Problem& problem) {
    MaskRule rule{0, -1, -1, problem.d.chunk};
    if (problem.d.flags & FA_WINDOW) {
        rule.left = problem.d.window_left;
        rule.right = problem.d.window_right;
    }
    if (problem.causal()) rule.right = 0;
    return rule;
}
FA_FN MaskRule mask_rule(const MaskRule& rule, const Sequence& sequence) { return {sequence.off, rule.left, rule.right, rule.chunk}; }

// Elements between sequences (0 in packed tensors), rows and heads; with heads before rows: LSE and its gradient.
struct RowStrides {
    int64_t batch, row, head;
    constexpr int64_t index(int64_t b, int64_t i, int64_t h) const { return b * batch + i * row + h * head; }
};
static inline RowStrides row_strides(const int64_t stride[3], bool packed) { return {packed ? 0 : stride[0], stride[1], stride[2]}; }
static inline RowStrides lse_strides(const int64_t stride[3], bool packed) { return {packed ? 0 : stride[0], stride[2], stride[1]}; }

// Element index of a row of q, o or their like, and of one of LSE or its gradient. Packed tensors have no batch.
FA_FN int64_t query_index(const RowStrides& strides, const Sequence& sequence, int64_t batch, int64_t row, int64_t head) {
    return strides.index(batch, sequence.q_begin + row, head);
}
FA_FN int64_t query_index(const Problem& problem, const int64_t stride[4], const Sequence& sequence, int64_t batch, int64_t row,
                          int64_t head) {
    return (problem.packed_q() ? 0 : batch * stride[0]) + (sequence.q_begin + row) * stride[1] + head * stride[2];
}
FA_FN int64_t lse_index(const Problem& problem, const int64_t stride[3], const Sequence& sequence, int64_t batch, int64_t row,
                        int64_t head) {
    return (problem.packed_q() ? 0 : batch * stride[0]) + head * stride[1] + (sequence.q_begin + row) * stride[2];
}

}  // namespace fa
