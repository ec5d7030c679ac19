// What calls fill in of SIMT kernels' parameters: of the forward, which the study's kernels take too, and of the scores output, with its
// launch.
#pragma once
#include "gpu/host/choose.h"
#include "gpu/host/context.h"
#include "gpu/rows/scores.h"

namespace fa {
namespace gpu {
namespace {

void set_forward_product(const Problem& problem, SimtForwardProductParams* params) {
    const fa_attention_desc_t& d = problem.d;
    set_product(problem, params);
    params->pages = pages_of(problem, nullptr);
    params->kv_heads_per_k = problem.kv_heads / d.heads_k;
    params->q_rows = {q_factors(problem, nullptr), problem.q_dims(), nullptr, row_strides(d.q_tail_stride, problem.packed_q()),
                      d.q_tail_dtype};
    params->k_rows = {k_factors(problem, nullptr, nullptr), problem.k_dims(), nullptr, row_strides(d.k_tail_stride, problem.packed_k()),
                      d.k_tail_dtype};
    params->plain_q = problem.plain_q();
    params->plain_kv = problem.plain_k() && problem.plain_v();
}
void set_forward_product_tensors(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists,
                                 SimtForwardProductParams* params) {
    set_product_tensors(problem, args, lists, params);
    params->pages.table = operand(problem, FA_OPERAND_PAGE_TABLE, args.page_table);
    params->q_rows.factors.factor = operand(problem, FA_OPERAND_Q_DESCALE, args.q_descale);
    params->q_rows.tail = operand(problem, FA_OPERAND_Q_TAIL, args.q_tail);
    params->k_rows.factors.factor = operand(problem, FA_OPERAND_K_DESCALE, args.k_descale);
    params->k_rows.factors.shift = operand(problem, FA_OPERAND_K_SHIFT, args.k_shift);
    params->k_rows.tail = operand(problem, FA_OPERAND_K_TAIL, args.k_tail);
}

// Of kernels whose tiles have `rows` rows and `columns` columns of v.
void set_simt_forward(const Problem& problem, const rt::Device& device, int rows, int columns, int64_t (*shared_bytes)(int64_t q_dims),
                      const SplitParams& split, SimtForwardParams* params) {
    const fa_attention_desc_t& d = problem.d;
    set_rows(problem, params);
    static_cast<SplitParams&>(*params) = split;
    set_forward_product(problem, params);
    set_dropout(problem, params);
    params->v_strides = row_strides(d.v_stride, problem.packed_k());
    params->kv_heads_per_v = problem.kv_heads / d.heads_v;
    params->v_rows = {v_factors(problem, nullptr, nullptr), problem.v_dims(), nullptr, row_strides(d.k_tail_stride, problem.packed_k()),
                      d.k_tail_dtype};
    params->v_dtype = d.v_dtype;
    params->tiles = row_tiles(problem, rows);
    params->blocks = tile_count(params->tiles, params->rows);
    params->value_parts = ceil_div(d.dim_v, columns);
    params->q_dims = resident_dims(device, shared_bytes, d.dim_qk);
    params->causal = problem.causal();
}
void set_simt_forward_tensors(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists, SimtForwardParams* params) {
    set_row_tensors(problem, args, params);
    set_forward_product_tensors(problem, args, lists, params);
    set_dropout_state(problem, args, params);
    params->v = args.v;
    params->v_rows.factors.factor = operand(problem, FA_OPERAND_V_DESCALE, args.v_descale);
    params->v_rows.factors.shift = operand(problem, FA_OPERAND_V_SHIFT, args.v_shift);
    params->v_rows.tail = params->k_rows.tail;
    params->o_scale = operand(problem, FA_OPERAND_O_SCALE, args.o_scale);
    params->slots = slot_lists(problem, args);
    params->k_aligned = vec4_aligned(args.k, params->k_strides, params->k_dtype);
    params->v_aligned = vec4_aligned(args.v, params->v_strides, params->v_dtype);
}

// Behind the kernels that leave each row's final state in `state`, where the stage needs it.
fa_status_t launch_scores(const Problem& problem, const fa_forward_args_t& args, const KeyLists& lists, const RowState* state,
                          rt::Stream stream, Message* message) {
    ScoresParams params{};
    set_shape(problem, &params);
    params.sequences = sequence_table(problem, args);
    set_forward_product(problem, &params);
    set_factor(problem.d, true, &params);
    set_forward_product_tensors(problem, args, lists, &params);
    params.state = state;
    params.scores = args.scores;
    for (int i = 0; i < 4; i++) params.scores_stride[i] = problem.d.scores_stride[i];
    params.scores_stage = problem.d.scores_stage;
    const int64_t rows = problem.d.batch * problem.d.heads_q * problem.d.seqlen_q;
    return launched(message, rt::launch(write_scores, rows, kMergeThreads, 0, stream, params), "write_scores");
}

}  // namespace
}  // namespace gpu
}  // namespace fa
