// What becomes of one product q·k before softmax: score mods (softcap, bias, ALiBi, the mask operand), and the rule for dropout; with what
// kernels read of a call for these.
#pragma once
#include <float.h>
#include "backend/row_keys.h"
#include "gpu/common/row_params.h"
#include "spec/random.h"

namespace fa {
namespace gpu {

// Strides are of elements; pointers of operands that the call has not are NULL.
struct ScoreModParams {
    const void* bias;
    const uint8_t* mask;
    const float* alibi_slopes;
    int64_t bias_stride[4], mask_stride[4], alibi_batch_stride;
    int32_t bias_dtype;
    float softcap;
};
// The same for SIMT kernels, which know every option.
struct SimtScoreModParams : ScoreModParams {
    const float* bias_scale;
    int64_t bias_period[2], mask_period[2], mask_keys;
    RowSets sets;
    bool mask_bits;
};
struct DropoutParams {
    const uint64_t* rng_state;  // NULL: these two
    uint64_t dropout_seed, dropout_offset;
    float dropout_p, dropout_scale;  // dropout_scale: 1 / (1 − dropout_p)
    // Of the whole problem's mask, where the call's first row, key and head lie; and heads of a sequence there.
    uint32_t dropout_row, dropout_key;
    int64_t dropout_head, dropout_heads;
};

// A score in natural units, capped; and how much of a gradient passes.
FA_DEVICE float cap_score(const ScoreModParams& params, float s) {
    return params.softcap > 0 ? params.softcap * tanhf(s / params.softcap) : s;
}
FA_DEVICE float cap_score(const ScoreModParams& params, float s, float* slope) {
    if (!(params.softcap > 0)) return s;
    const float tanh_s = tanhf(s / params.softcap);
    *slope *= (1.f - tanh_s) * (1.f + tanh_s);
    return params.softcap * tanh_s;
}

// For kernels that cap many scores: a division for each, with its branch for what is out of range, would be a sixth of their code. Of the
// smallest caps the reciprocal would be infinite, and take a score of 0 to NaN.
FA_DEVICE float reciprocal_of_softcap(const ScoreModParams& params) {
    const float reciprocal = 1.f / params.softcap;
    return reciprocal < FLT_MAX ? reciprocal : FLT_MAX;
}

// A score in natural units, capped, to its final value; −inf when bias or mask removes the key. The key lies within the row's
// band, or where masks do not act (masked: they do). It is given all of a kernel's parameters, as other functions that are not inlined
// are: the address of a part of them would take registers of its own.
template <class Params>
FA_COLD float apply_score_mod(const Params& params, int64_t off, int64_t seqlen_k, int64_t batch, int64_t head, int64_t row, int64_t key,
                              bool masked, float s) {
    if (params.mask && masked) {
        const uint8_t* const begin = params.mask + pair_row(params.mask_period, params.mask_stride, batch, head, row);
        if (!mask_keeps(begin, params.mask_stride[3], params.mask_bits, key - first_masked_key(params.mask_keys, seqlen_k))) return kNegInf;
    }
    if (params.bias) {
        const int64_t at = pair_row(params.bias_period, params.bias_stride, batch, head, row) + key * params.bias_stride[3];
        const float b = load_element(params.bias, at, params.bias_dtype);
        if (b == kNegInf) return kNegInf;
        s += params.bias_scale ? params.bias_scale[head] * b : b;
    }
    if (params.alibi_slopes) {
        const int64_t distance = row + off - key;
        s -= params.alibi_slopes[batch * params.alibi_batch_stride + head] * float(distance < 0 ? -distance : distance);
    }
    return s;
}

// The mask of a sequence, with the place of its first row, key and head in it: what draws needs no parameters beside. Both a place and a
// length are below 2^31, so rows and keys of the whole are below 2^32.
struct SequenceDropout : Dropout {
    uint32_t row, key;
    int64_t batch_head;
};
FA_FN SequenceDropout dropout_of(const DropoutParams& params, int64_t batch) {
    const uint64_t* const state = params.rng_state;
    return {make_dropout(params.dropout_p, state ? state[0] : params.dropout_seed, state ? state[1] : params.dropout_offset),
            params.dropout_row, params.dropout_key, batch * params.dropout_heads + params.dropout_head};
}
FA_FN bool keeps(const SequenceDropout& dropout, int64_t head, int64_t row, int64_t key) {
    return dropout_keeps(dropout, dropout.batch_head + head, int64_t(uint32_t(row) + dropout.row), int64_t(uint32_t(key) + dropout.key));
}
FA_COLD bool keeps_cold(const SequenceDropout& dropout, int64_t head, int64_t row, int64_t key) { return keeps(dropout, head, row, key); }

}  // namespace gpu
}  // namespace fa
