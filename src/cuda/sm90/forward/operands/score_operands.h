// The host's part of operands that change scores or weights one by one and come to the forward kernels by a way of their own: the bias, and
// factors of rows and keys. What is planned of them follows from the descriptor alone; a launch makes a copy or a table in the workspace,
// or the tensor map.
#pragma once
#include "cuda/sm90/common/bias_operand.h"
#include "cuda/sm90/forward/params.h"
#include "cuda/sm90/forward/operands/prepare_factors.h"

namespace fa {
namespace gpu {
namespace {

// Have q, k or v factors other than f32 ones of a sequence and head?
bool has_block_factors(const Problem& problem) { return (problem.options & option::factors) != 0; }

// Factors of rows and of keys, as a table has them: one of all dims, those of keys the same for 16 of them, which are 16 of a sequence's.
bool block_factors_fit(const Problem& problem) {
    constexpr int64_t most = int64_t(1) << 26;
    const fa_attention_desc_t& d = problem.d;
    const auto fits = [&](uint64_t operand, const int64_t block[2], const int64_t stride[4], int64_t dims, int64_t keys) {
        return !problem.has(operand) || ((block[1] >= dims || stride[3] == 0) && (block[0] % keys == 0 || stride[1] == 0));
    };
    const bool one_by_one = d.softcap > 0 ||
                            problem.has(FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX) ||
                            problem.packed_k() || problem.paged();
    return !one_by_one && fits(FA_OPERAND_Q_DESCALE, d.q_descale_block, d.q_descale_stride, d.dim_qk, 1) &&
           fits(FA_OPERAND_K_DESCALE, d.k_descale_block, d.k_descale_stride, d.dim_qk, BlockFactors::kKeys) &&
           fits(FA_OPERAND_V_DESCALE, d.v_descale_block, d.v_descale_stride, d.dim_v, BlockFactors::kKeys) &&
           double(sequences_of_q(problem)) * double(d.heads_q) * double(rows_of_q(problem)) < double(most) &&
           double(sequences_of_k(problem)) * double(d.heads_k) * double(d.seqlen_k) < double(most);
}

// The table of factors, without its pointers; v's units lie first, then k's and v's factors, then q's.
BlockFactorParams planned_factors(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    BlockFactorParams params{};
    params.to.groups = int(round_up(d.seqlen_k, 128) / BlockFactors::kKeys);
    params.to.rows = int(rows_of_q(problem));
    params.to.heads_k = int(d.heads_k), params.to.heads_q = int(d.heads_q);
    params.kv_total = sequences_of_k(problem) * d.heads_k * params.to.groups;
    params.q_total = sequences_of_q(problem) * d.heads_q * params.to.rows;
    params.keys = int(d.seqlen_k);
    return params;
}
uint64_t unit_bytes(const BlockFactorParams& params) {
    return uint64_t(round_up(params.kv_total / params.to.groups * int64_t(sizeof(float)), 256));
}
uint64_t factor_bytes(const BlockFactorParams& params) {
    return unit_bytes(params) + uint64_t(round_up(params.kv_total * int64_t(sizeof(float2)), 256)) +
           uint64_t(params.q_total) * sizeof(float);
}
rt::Status read_factors(BlockFactorParams params, const Problem& problem, const fa_forward_args_t& args, char* memory, rt::Stream stream,
                        Sm90ForwardParams* forward) {
    params.q = q_factors(problem, args.q_descale);
    params.k = k_factors(problem, args.k_descale, nullptr);
    params.v = v_factors(problem, args.v_descale, nullptr);
    params.seqused = operand(problem, FA_OPERAND_SEQUSED_K, args.seqused_k);
    params.to.v_unit = reinterpret_cast<float*>(memory);
    params.to.kv = reinterpret_cast<float2*>(memory + unit_bytes(params));
    params.to.q = reinterpret_cast<float*>(memory + unit_bytes(params) + round_up(params.kv_total * int64_t(sizeof(float2)), 256));
    forward->factors = params.to;
    // Of the call's own factors v's unit alone is left, which the scheduler reads.
    forward->x.q_descale.data = forward->x.k_descale.data = nullptr;
    forward->x.v_descale = {params.to.v_unit, {problem.d.heads_k, 0, 1}};
    const rt::Status s = rt::set_zero(params.to.v_unit, uint64_t(unit_bytes(params)), stream);
    const int64_t blocks = ceil_div(params.kv_total + params.q_total, kBlockFactorThreads);
    return s == rt::kSuccess ? rt::launch(prepare_block_factors, blocks, kBlockFactorThreads, 0, stream, params) : s;
}

constexpr int kBiasTileRows = 64;  // of a warpgroup
bool bias_fits(const Problem& problem) {
    return !(problem.d.softcap > 0) && !problem.has(FA_OPERAND_MASK | FA_OPERAND_ALIBI) && bias_copy_fits(problem, kBiasTileRows);
}

}  // namespace
}  // namespace gpu
}  // namespace fa
