// The scores output, behind the forward kernels that leave each row's final state.
#pragma once
#include "gpu/common/epilogue.h"
#include "gpu/common/merge.h"
#include "gpu/common/simt_params.h"

namespace fa {
namespace gpu {

// The scores output: a block for each row of [batch][heads_q][seqlen_q].
FA_KERNEL void FA_BOUNDS(kMergeThreads, 4) write_scores(FA_PARAM ScoresParams x) {
    const int64_t rows = x.sequences.q.seqlen, index = rt::block();
    const int64_t row = index % rows, head = index / rows % x.heads_q, batch = index / rows / x.heads_q;
    const Sequence seq = bounded_sequence(x.sequences, batch);
    const MaskRule rule = mask_rule(x.rule, seq);
    const KeyBand band = key_band(rule, row, seq.k_len);
    const int64_t kv = head / x.group, q_at = query_index(x.q_strides, seq, batch, row, head);
    float* out = x.scores + batch * x.scores_stride[0] + head * x.scores_stride[1] + row * x.scores_stride[2];
    const bool masked = x.scores_stage == FA_SCORES_BIASED || x.scores_stage == FA_SCORES_PROBABILITY;
    const float outside = x.scores_stage == FA_SCORES_BIASED ? kNegInf : 0.f;
    RowState state = empty_row();
    if (x.state && row < seq.q_len) state = x.state[((batch * x.kv_heads + kv) * rows + row) * x.group + head % x.group];
    for (int64_t key = rt::thread(); key < x.sequences.seqlen_k; key += kMergeThreads) {
        float* to = out + key * x.scores_stride[3];
        *to = outside;
        if (row >= seq.q_len || key >= seq.k_len) continue;
        const KeyLocation location = locate_key(x.pages, seq, key);
        if (!location.valid || (masked && !(row_keys(x.sets, seq, band, batch, head, row, key).visible & 1))) continue;
        float s = 0.f;
        for (int64_t c = 0; c < x.dim_qk; c++)
            s = fmaf(query_value(x, seq, batch, row, head, q_at, c), key_value(x, location, kv / x.kv_heads_per_k, c), s);
        s *= x.factor.product;
        if (x.scores_stage != FA_SCORES_RAW) s = cap_score(x, s);
        if (masked) s = apply_score_mod(x, rule.off, seq.k_len, batch, head, row, key, true, s);
        if (x.scores_stage == FA_SCORES_PROBABILITY) s = s == kNegInf ? 0.f : prob(s * kLog2e, state.m) * normaliser(state);
        *to = s;
    }
}

}  // namespace gpu
}  // namespace fa
