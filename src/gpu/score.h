// What becomes of one product q·k before softmax: score mods (softcap, bias, ALiBi, the mask operand), and the rule for bands and
// dropout. Also CallParams, what a launch of a portable kernel is given, and ForwardParams, that of a forward, which carry what these
// functions read.
#pragma once
#include "backend/row_keys.h"
#include "gpu/row_params.h"
#include "spec/mask.h"
#include "spec/random.h"

namespace fa {
namespace gpu {

// Bytes between sequences or pages, rows and heads of k or v, and of a row. outer: 0 where the tensor is packed.
struct ByteStrides {
    int64_t outer, row, head;
    int32_t row_bytes;
};

// What a call needs of an mma kernel besides products and bands, as bits. The general kernel reads them from shared memory for each
// tile and so has one loop; from the parameters, the compiler would make a loop for each combination, and run out of registers.
// kBaseE: scores are modified in natural units, not as the products come: ALiBi's distances are added to these only where
// neither they nor the slopes, divided by the scale, can overflow.
constexpr uint32_t kPaged = 1, kDropout = 2, kScoreMod = 4, kBaseE = 8, kSoftcap = 16, kBias = 32, kAlibi = 64, kMask = 128,
                   kUnalignedRows = 256;
constexpr float kSteepSlope = 0x1p+60f;

constexpr int kMaxClusterSplits = 16;  // splits that a cluster merges

// What the portable kernels of forward and backward read of a call besides, resolved by the host.
struct CallParams : RowParams {
    MaskRule rule;  // but for the diagonal
    int64_t dim_qk;
    int64_t kv_heads_per_k, kv_heads_per_v;  // that share a head of k, and of v
    const void *q, *k, *v;
    RowStrides q_strides, k_strides, v_strides;
    int32_t q_dtype, k_dtype, v_dtype, bias_dtype;
    float scale, softcap, dropout_p;
    float dropout_scale;  // 1 / (1 − dropout_p)
    bool causal;
    bool score_mod;      // scores leave the product in natural units, for mods that need them so
    ScoreFactor factor;  // SIMT kernels: the scale, times log2 e without a score mod
    const void* bias;
    const float* bias_scale;
    const uint8_t* mask;
    const float* alibi_slopes;
    int64_t bias_stride[4], mask_stride[4], alibi_batch_stride;
    int64_t bias_period[2], mask_period[2], mask_keys;  // SIMT kernels alone read these, mask_bits and bias_scale
    bool mask_bits;
    RowSets sets;               // the same
    const uint64_t* rng_state;  // NULL: these two
    uint64_t dropout_seed, dropout_offset;
    // MMA kernels: do all sequences have the same lengths? Then these are the first one's.
    bool uniform_lengths;
    uint32_t features;  // see features_of
    Sequence uniform_seq;
    MaskRule uniform_rule;
};

// What a forward call fixes besides.
struct ForwardParams : CallParams, SplitParams {
    Pages pages;
    Descale q_descale, k_descale, v_descale;
    const float* o_scale;
    float* scores;
    int64_t scores_stride[4];
    int32_t scores_stage;
    int64_t blocks;                     // row tiles of a sequence and kv head
    int64_t value_parts;                // parts of dim_v that are computed by blocks of their own
    int64_t section;                    // mma kernels: kv heads of the batch whose tiles are taken longest first; 0: in any order
    int32_t q_width, k_width, v_width;  // whether rows consist of aligned 16-byte vectors, of words of 4, or of elements
    int32_t q_dims;                     // SIMT kernels: dims of q that shared memory holds at once
    bool k_aligned;                     // SIMT kernels: rows may be read four elements at a time
    bool v_aligned;
    // MMA kernels.
    int64_t uniform_split_keys;  // keys of a split, with uniform_lengths
    ByteStrides k_bytes, v_bytes;
    bool mask_vec16;     // rows of the mask consist of aligned 16-byte vectors
    bool cluster_merge;  // the blocks of a tile's splits are a cluster, and merge among themselves
    bool o_plain;        // o has q's type, and rows may be written four elements at a time as they come
    // SIMT kernels: what rows are that are not plain; those of k and v are so together.
    bool plain_q, plain_kv;
    ScaledRows q_rows, k_rows, v_rows;
};

// Does no length, offset or start of a sequence lie in device memory?
FA_FN bool has_uniform_lengths(const Problem& p) {
    return p.d.alignment != FA_ALIGN_EXPLICIT && !p.has(FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_SEQUSED_Q |
                                                        FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX);
}

FA_FN uint32_t features_of(const Problem& p, bool score_mod, bool unaligned) {
    uint32_t features = (p.paged() ? kPaged : 0) | (p.d.dropout_p > 0 ? kDropout : 0) | (p.d.softcap > 0 ? kSoftcap : 0) |
                        (score_mod ? kScoreMod : 0) | (p.has(FA_OPERAND_BIAS) ? kBias : 0) |
                        (p.has(FA_OPERAND_ALIBI) ? kAlibi : 0) | (p.has(FA_OPERAND_MASK) ? kMask : 0);
    if (features & (kBias | kSoftcap) || (score_mod && (p.has(FA_OPERAND_K_DESCALE) || !(p.d.scale > kSmallScale))))
        features |= kBaseE;
    return features | (unaligned ? kUnalignedRows : 0);
}

// A score in natural units, capped; and how much of a gradient passes.
FA_DEVICE float cap_score(const CallParams& x, float s) { return x.softcap > 0 ? x.softcap * tanhf(s / x.softcap) : s; }
FA_DEVICE float cap_score(const CallParams& x, float s, float* slope) {
    if (!(x.softcap > 0)) return s;
    const float tanh_s = tanhf(s / x.softcap);
    *slope *= (1.f - tanh_s) * (1.f + tanh_s);
    return x.softcap * tanh_s;
}

// A score in natural units, capped, to its final value; −inf when bias or mask removes the key. The key lies within the row's
// band, or where masks do not act (masked: they do).
FA_COLD float apply_score_mod(const CallParams& x, int64_t off, int64_t seqlen_k, int64_t batch, int64_t head, int64_t row,
                              int64_t key, bool masked, float s) {
    if (x.mask && masked) {
        const uint8_t* const begin = x.mask + pair_row(x.mask_period, x.mask_stride, batch, head, row);
        if (!mask_keeps(begin, x.mask_stride[3], x.mask_bits, key - first_masked_key(x.mask_keys, seqlen_k))) return kNegInf;
    }
    if (x.bias) {
        const int64_t at = pair_row(x.bias_period, x.bias_stride, batch, head, row) + key * x.bias_stride[3];
        const float b = load_element(x.bias, at, x.bias_dtype);
        if (b == kNegInf) return kNegInf;
        s += x.bias_scale ? x.bias_scale[head] * b : b;
    }
    if (x.alibi_slopes) {
        const int64_t distance = row + off - key;
        s -= x.alibi_slopes[batch * x.alibi_batch_stride + head] * float(distance < 0 ? -distance : distance);
    }
    return s;
}

FA_FN Dropout dropout_of(const CallParams& x) {
    const uint64_t* const state = x.rng_state;
    return make_dropout(x.dropout_p, state ? state[0] : x.dropout_seed, state ? state[1] : x.dropout_offset);
}

template <class Params>
FA_FN float query_descale(const Params& x, const Sequence& s, int64_t batch, int64_t row, int64_t head) {
    return x.q_descale.data ? x.q_descale.data[query_index(x.q_descale.strides, s, batch, row, head)] : 1.f;
}

// Dim c of a row of q, scaled, which begins with element `at`.
FA_DEVICE float query_value(const ForwardParams& x, const Sequence& s, int64_t batch, int64_t row, int64_t head, int64_t at, int64_t c) {
    if (x.plain_q) return load_element(x.q, at + c, x.q_dtype) * x.factor.q * query_descale(x, s, batch, row, head);
    return scaled_dim(x.q_rows, x.q, x.q_dtype, at, batch, s.q_begin + row, head, c) * x.factor.q;
}
// Dim c of a row of k.
FA_DEVICE float key_value(const ForwardParams& x, const KeyLocation& at, int64_t k_head, int64_t c) {
    const int64_t row = key_index(x.k_strides, at, k_head);
    if (!x.plain_kv) return scaled_dim(x.k_rows, x.k, x.k_dtype, row, at.outer, at.row, k_head, c);
    return load_dim(x.k, row, c, x.k_dtype) * (x.k_descale.data ? key_descale(x.k_descale, at, k_head) : 1.f);
}

FA_COLD bool dropout_keeps_cold(const Dropout& dropout, int64_t batch_head, int64_t row, int64_t key) {
    return dropout_keeps(dropout, batch_head, row, key);
}

}  // namespace gpu
}  // namespace fa
