// The scores output, behind the forward kernels that leave each row's final state.
#pragma once
#include "gpu/common/epilogue.h"
#include "gpu/common/merge.h"
#include "gpu/common/simt_params.h"

namespace fa {
namespace gpu {

// The scores output: a block for each row of [batch][heads_q][seqlen_q].
FA_KERNEL void FA_BOUNDS(kMergeThreads, 4) write_scores(FA_PARAM ScoresParams params) {
    const int64_t rows = params.sequences.q.seqlen, index = rt::block();
    const int64_t row = index % rows, head = index / rows % params.heads_q, batch = index / rows / params.heads_q;
    const Sequence seq = bounded_sequence(params.sequences, batch);
    const MaskRule rule = mask_rule(params.rule, seq);
    const KeyBand band = key_band(rule, row, seq.k_len);
    const int64_t kv = head / params.group, q_at = query_index(params.q_strides, seq, batch, row, head);
    float* out = params.scores + batch * params.scores_stride[0] + head * params.scores_stride[1] + row * params.scores_stride[2];
    const bool masked = params.scores_stage == FA_SCORES_BIASED || params.scores_stage == FA_SCORES_PROBABILITY;
    const float outside = params.scores_stage == FA_SCORES_BIASED ? kNegInf : 0.f;
    RowState state = empty_row();
    if (params.state && row < seq.q_len)
        state = params.state[((batch * params.kv_heads + kv) * rows + row) * params.group + head % params.group];
    for (int64_t key = rt::thread(); key < params.sequences.seqlen_k; key += kMergeThreads) {
        float* to = out + key * params.scores_stride[3];
        *to = outside;
        if (row >= seq.q_len || key >= seq.k_len) continue;
        const KeyLocation location = locate_key(params.pages, seq, key);
        if (!location.valid || (masked && !(row_keys(params.sets, seq, band, batch, head, row, key).visible & 1))) continue;
        float s = 0.f;
        for (int64_t c = 0; c < params.dim_qk; c++)
            s = fmaf(query_value(params, seq, batch, row, head, q_at, c), key_value(params, location, kv / params.kv_heads_per_k, c), s);
        s *= params.factor.product;
        if (params.scores_stage != FA_SCORES_RAW) s = cap_score(params, s);
        if (masked) s = apply_score_mod(params, rule.off, seq.k_len, batch, head, row, key, true, s);
        if (params.scores_stage == FA_SCORES_PROBABILITY) s = s == kNegInf ? 0.f : prob(s * kLog2e, state.m) * normaliser(state);
        *to = s;
    }
}

}  // namespace gpu
}  // namespace fa
