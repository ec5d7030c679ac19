// The f32 tile of the backward: from scores to P and dS, and the products that add these into dq, dk and dv.
#include "cpu/backward/backward_call.h"
#include "cpu/forward/tile.h"

namespace fa {
namespace cpu {

bool softmax_backward_tile(const BackwardCall& backward, const QueryTile& tile, KeyBlock& block, int64_t key, int keys, bool through_cap,
                           BackwardScratch& scratch) {
    const Call& c = backward.c;
    float* const slope = through_cap && c.p->d.softcap > 0 ? scratch.slope : nullptr;
    if (!score_tile(c, tile, block, key, keys, scratch.w, slope)) return false;
    c.k->qk(scratch.dout, tile.vectors, tile.vectors, block.v.data + (key - block.key) * block.v.stride, block.v.stride, keys,
            int(c.p->d.dim_v), scratch.dp);
    if (c.has_dropout) apply_dropout_tile(c, tile, key, keys, scratch.dp);
    c.k->softmax_backward(scratch.w.s, scratch.dp, tile.vectors, keys, 1.f, scratch.lse, scratch.delta, slope);
    if (c.has_dropout) apply_dropout_tile(c, tile, key, keys, scratch.w.s);
    return true;
}

// acc[key][columns] += Σ_row p_or_ds[key][row] · rows[row][columns]
static void accumulate_keys(const BackwardCall& backward, const QueryTile& tile, const float* p_or_ds, int64_t columns, float* rows,
                            int64_t first, int keys, float* acc) {
    const PanelLayout from = query_panels(backward, columns), to = key_panels(backward, columns);
    for (int64_t column = 0; column < columns; column += from.widest)
        backward.c.k->gemm_nn(p_or_ds, tile.width, keys, from.at(rows, column, 0), from.vectors(column), tile.rows,
                              to.at(acc, column, first));
}

void accumulate_dqkv(const BackwardCall& backward, const QueryTile& tile, const KeyBlock& block, int64_t key, int keys, float* dq,
                     BackwardScratch& scratch) {
    const fa_attention_desc_t& d = backward.c.p->d;
    const int64_t first = key - block.key;
    if (backward.a->dv) accumulate_keys(backward, tile, scratch.w.s, d.dim_v, scratch.dout_rows, first, keys, scratch.dv);
    if (backward.a->dk) accumulate_keys(backward, tile, scratch.dp, d.dim_qk, scratch.q_rows, first, keys, scratch.dk);
    if (backward.a->dq)
        backward.c.k->gemm_tn(block.k.data + first * block.k.stride, block.k.stride, int(d.dim_qk), scratch.dp, tile.vectors, keys, dq);
}

}  // namespace cpu
}  // namespace fa
