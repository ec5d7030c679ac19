// The parameters of the SIMT kernels: what they all read of a call, and those of the forward and of the scores output.
#pragma once
#include "gpu/common/score.h"
#include "spec/mask.h"

namespace fa {
namespace gpu {

// Of products q·k, forward and backward.
struct SimtProductParams : SimtScoreModParams {
    MaskRule rule;  // but for the diagonal
    int64_t dim_qk;
    const void *q, *k;
    RowStrides q_strides, k_strides;
    int32_t q_dtype, k_dtype;
    ScoreFactor factor;  // the scale, times log2 e without a score mod
    bool score_mod;      // scores leave the product in natural units, for mods that need them so
};

// The same of products whose rows may be anything that storage types, factors, tails and pages make of them.
struct SimtForwardProductParams : SimtProductParams {
    Pages pages;
    int64_t kv_heads_per_k;     // that share a head of k
    ScaledRows q_rows, k_rows;  // of plain rows the factors alone are read
    bool plain_q, plain_kv;     // what is not plain is read dim by dim; rows of k and v are so together
};

struct SimtForwardParams : RowParams, SplitParams, SimtForwardProductParams, DropoutParams {
    const void* v;
    RowStrides v_strides;
    int64_t kv_heads_per_v;
    ScaledRows v_rows;
    const float* o_scale;
    SlotLists slots;
    RowTiles tiles;
    int64_t blocks;       // of these for a sequence and kv head
    int64_t value_parts;  // parts of dim_v that are computed by blocks of their own
    int32_t v_dtype;
    int32_t q_dims;             // of q that shared memory holds at once
    bool k_aligned, v_aligned;  // rows may be read four elements at a time
    bool causal;
};

// What write_scores reads, whichever family's kernel came before.
struct ScoresParams : ShapeParams, SimtForwardProductParams {
    const RowState* state;  // of each row, in the place of split 0; NULL: the stage needs none
    float* scores;
    int64_t scores_stride[4];
    int32_t scores_stage;
};

// Dim c of a row of q, scaled, which begins with element `at`.
FA_DEVICE float query_value(const SimtForwardProductParams& params, const Sequence& seq, int64_t batch, int64_t row, int64_t head,
                            int64_t at, int64_t c) {
    const int64_t in_tensor = seq.q_begin + row;
    if (!params.plain_q) return scaled_dim(params.q_rows, params.q, params.q_dtype, at, batch, in_tensor, head, c) * params.factor.q;
    const float factor = params.q_rows.factors.factor ? row_factor(params.q_rows, batch, in_tensor, head) : 1.f;
    return load_element(params.q, at + c, params.q_dtype) * params.factor.q * factor;
}
// Dim c of a row of k.
FA_DEVICE float key_value(const SimtForwardProductParams& params, const KeyLocation& at, int64_t k_head, int64_t c) {
    const int64_t row = key_index(params.k_strides, at, k_head);
    if (!params.plain_kv) return scaled_dim(params.k_rows, params.k, params.k_dtype, row, at.outer, at.row, k_head, c);
    return load_dim(params.k, row, c, params.k_dtype) *
           (params.k_rows.factors.factor ? row_factor(params.k_rows, at.outer, at.row, k_head) : 1.f);
}

}  // namespace gpu
}  // namespace fa
