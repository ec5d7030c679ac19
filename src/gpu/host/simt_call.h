// What calls fill in of SIMT kernels' parameters: of the forward, which the study's kernels take too, and of the scores output, with its
// launch.
#pragma once
#include "gpu/host/choose.h"
#include "gpu/host/context.h"
#include "gpu/rows/scores.h"

namespace fa {
namespace gpu {
namespace {

void set_forward_product(const Problem& problem, SimtForwardProductParams* x) {
    const fa_attention_desc_t& d = problem.d;
    set_product(problem, x);
    x->pages = pages_of(problem, nullptr);
    x->kv_heads_per_k = problem.kv_heads / d.heads_k;
    x->q_rows = {q_factors(problem, nullptr), problem.q_dims(), nullptr, row_strides(d.q_tail_stride, problem.packed_q()), d.q_tail_dtype};
    x->k_rows = {k_factors(problem, nullptr, nullptr), problem.k_dims(), nullptr, row_strides(d.k_tail_stride, problem.packed_k()),
                 d.k_tail_dtype};
    x->plain_q = problem.plain_q();
    x->plain_kv = problem.plain_k() && problem.plain_v();
}
void set_forward_product_tensors(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists,
                                 SimtForwardProductParams* x) {
    set_product_tensors(problem, args, lists, x);
    x->pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    x->q_rows.factors.factor = operand(problem, FA_OPERAND_Q_DESCALE, args.q_descale);
    x->q_rows.tail = operand(problem, FA_OPERAND_Q_TAIL, args.q_tail);
    x->k_rows.factors.factor = operand(problem, FA_OPERAND_K_DESCALE, args.k_descale);
    x->k_rows.factors.shift = operand(problem, FA_OPERAND_K_SHIFT, args.k_shift);
    x->k_rows.tail = operand(problem, FA_OPERAND_K_TAIL, args.k_tail);
}

// Of kernels whose tiles have `rows` rows and `columns` columns of v.
void set_simt_forward(const Problem& problem, const rt::Device& device, int rows, int columns, int64_t (*shared_bytes)(int64_t q_dims),
                      const SplitParams& split, SimtForwardParams* x) {
    const fa_attention_desc_t& d = problem.d;
    set_rows(problem, x);
    static_cast<SplitParams&>(*x) = split;
    set_forward_product(problem, x);
    set_dropout(problem, x);
    x->v_strides = row_strides(d.v_stride, problem.packed_k());
    x->kv_heads_per_v = problem.kv_heads / d.heads_v;
    x->v_rows = {v_factors(problem, nullptr, nullptr), problem.v_dims(), nullptr, row_strides(d.k_tail_stride, problem.packed_k()),
                 d.k_tail_dtype};
    x->v_dtype = d.v_dtype;
    x->tiles = row_tiles(problem, rows);
    x->blocks = tile_count(x->tiles, x->rows);
    x->value_parts = ceil_div(d.dim_v, columns);
    x->q_dims = resident_dims(device, shared_bytes, d.dim_qk);
    x->causal = problem.causal();
}
void set_simt_forward_tensors(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists, SimtForwardParams* x) {
    set_row_tensors(problem, args, x);
    set_forward_product_tensors(problem, args, lists, x);
    set_dropout_state(problem, args, x);
    x->v = args.v;
    x->v_rows.factors.factor = operand(problem, FA_OPERAND_V_DESCALE, args.v_descale);
    x->v_rows.factors.shift = operand(problem, FA_OPERAND_V_SHIFT, args.v_shift);
    x->v_rows.tail = x->k_rows.tail;
    x->o_scale = operand(problem, FA_OPERAND_O_SCALE, args.o_scale);
    x->slots = slot_lists(problem, args);
    x->k_aligned = vec4_aligned(args.k, x->k_strides, x->k_dtype);
    x->v_aligned = vec4_aligned(args.v, x->v_strides, x->v_dtype);
}

// Behind the kernels that leave each row's final state in `state`, where the stage needs it.
fa_status_t launch_scores(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists, const RowState* state,
                          rt::Stream stream, Message* message) {
    ScoresParams x{};
    set_shape(problem, &x);
    x.sequences = sequence_table(problem, args);
    set_forward_product(problem, &x);
    set_factor(problem.d, true, &x);
    set_forward_product_tensors(problem, args, lists, &x);
    x.state = state;
    x.scores = args.scores;
    for (int i = 0; i < 4; i++) x.scores_stride[i] = problem.d.scores_stride[i];
    x.scores_stage = problem.d.scores_stage;
    const int64_t rows = problem.d.batch * problem.d.heads_q * problem.d.seqlen_q;
    return launched(message, rt::launch(write_scores, rows, kMergeThreads, 0, stream, x), "write_scores");
}

}  // namespace
}  // namespace gpu
}  // namespace fa
