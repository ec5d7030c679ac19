// The host's part of operands that change scores or weights one by one and come to the forward kernels by a way of their own: the bias, and factors
// of rows and keys. What is planned of them follows from the descriptor alone; a launch makes a copy or a table in the workspace, or the
// tensor map.
#pragma once
#include "cuda/sm90/bias.h"
#include "cuda/sm90/prepare_factors.h"
#include "cuda/sm90/tensor_map.h"

namespace fa {
namespace gpu {
namespace {

// Have q, k or v factors other than f32 ones of a sequence and head?
bool has_block_factors(const Problem& p) { return (p.options & option::factors) != 0; }

// Factors of rows and of keys, as a table has them: one of all dims, those of keys the same for 16 of them, which are 16 of a sequence's.
bool block_factors_fit(const Problem& p) {
    constexpr int64_t most = int64_t(1) << 26;
    const fa_attention_desc_t& d = p.d;
    const auto fits = [&](uint64_t operand, const int64_t block[2], const int64_t stride[4], int64_t dims, int64_t keys) {
        return !p.has(operand) || ((block[1] >= dims || stride[3] == 0) && (block[0] % keys == 0 || stride[1] == 0));
    };
    const bool one_by_one = d.softcap > 0 || p.has(FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX) || p.packed_k() || p.paged();
    return !one_by_one && fits(FA_OPERAND_Q_DESCALE, d.q_descale_block, d.q_descale_stride, d.dim_qk, 1) &&
           fits(FA_OPERAND_K_DESCALE, d.k_descale_block, d.k_descale_stride, d.dim_qk, BlockFactors::kKeys) &&
           fits(FA_OPERAND_V_DESCALE, d.v_descale_block, d.v_descale_stride, d.dim_v, BlockFactors::kKeys) &&
           double(sequences_of_q(p)) * double(d.heads_q) * double(rows_of_q(p)) < double(most) &&
           double(sequences_of_k(p)) * double(d.heads_k) * double(d.seqlen_k) < double(most);
}

// The table of factors, without its pointers; v's units lie first, then k's and v's factors, then q's.
BlockFactorParams planned_factors(const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    BlockFactorParams x{};
    x.to.groups = int(round_up(d.seqlen_k, 128) / BlockFactors::kKeys);
    x.to.rows = int(rows_of_q(p));
    x.to.heads_k = int(d.heads_k), x.to.heads_q = int(d.heads_q);
    x.kv_total = sequences_of_k(p) * d.heads_k * x.to.groups;
    x.q_total = sequences_of_q(p) * d.heads_q * x.to.rows;
    x.keys = int(d.seqlen_k);
    return x;
}
uint64_t unit_bytes(const BlockFactorParams& x) { return uint64_t(round_up(x.kv_total / x.to.groups * int64_t(sizeof(float)), 256)); }
uint64_t factor_bytes(const BlockFactorParams& x) {
    return unit_bytes(x) + uint64_t(round_up(x.kv_total * int64_t(sizeof(float2)), 256)) + uint64_t(x.q_total) * sizeof(float);
}
rt::Status read_factors(BlockFactorParams x, const Problem& p, const fa_forward_args_t& args, char* memory, rt::Stream stream, Sm90ForwardParams* a) {
    x.q = q_factors(p, args.q_descale);
    x.k = k_factors(p, args.k_descale, nullptr);
    x.v = v_factors(p, args.v_descale, nullptr);
    x.seqused = operand(p, FA_OPERAND_SEQUSED_K, args.seqused_k);
    x.to.v_unit = reinterpret_cast<float*>(memory);
    x.to.kv = reinterpret_cast<float2*>(memory + unit_bytes(x));
    x.to.q = reinterpret_cast<float*>(memory + unit_bytes(x) + round_up(x.kv_total * int64_t(sizeof(float2)), 256));
    a->factors = x.to;
    // Of the call's own factors v's unit alone is left, which the scheduler reads.
    a->x.q_descale.data = a->x.k_descale.data = nullptr;
    a->x.v_descale = {x.to.v_unit, {p.d.heads_k, 0, 1}};
    const rt::Status s = cudaMemsetAsync(x.to.v_unit, 0, unit_bytes(x), stream);
    const int64_t blocks = ceil_div(x.kv_total + x.q_total, kBlockFactorThreads);
    return s == rt::kSuccess ? rt::launch(prepare_block_factors, blocks, kBlockFactorThreads, 0, stream, x) : s;
}

// Is the bias read as f32: of that type, or of one of 16 bits that q has not?
bool reads_f32_bias(const fa_attention_desc_t& d) { return d.bias_dtype != d.q_dtype; }

// How the bias is read, without its pointers, and how it is copied before, if it is; a copy has no more than a GiB.
Sm90Bias planned_bias(const Problem& p) {
    const fa_attention_desc_t& d = p.d;
    Sm90Bias x{};
    x.sequences = int(d.bias_stride[0] ? min_of(d.bias_period[0], d.batch) : 1);
    x.heads = int(d.bias_stride[1] ? min_of(d.bias_period[1], d.heads_q) : 1);
    x.one_row = d.bias_stride[2] == 0;
    x.heads_first = x.sequences == 1 && x.heads > 1 && d.batch > 1;
    x.keep = x.sequences == d.batch && x.heads == d.heads_q ? rt::kEvictFirst : rt::kEvictLast;
    return x;
}
int32_t type_of_read_bias(const fa_attention_desc_t& d) { return reads_f32_bias(d) ? int32_t(FA_F32) : d.q_dtype; }
bool tma_reads_bias(const Problem& p, const Sm90Bias& x) {
    const fa_attention_desc_t& d = p.d;
    const int64_t stride[] = {d.bias_stride[0], d.bias_stride[2], d.bias_stride[1], 1};
    const bool even = type_of_read_bias(d) != FA_F32 ||
                      (d.seqlen_q % 8 == 0 && (x.sequences == 1 || x.heads == 1 || d.bias_stride[0] == x.heads * d.bias_stride[1]));
    return even && d.bias_stride[3] == 1 && d.bias_dtype == type_of_read_bias(d) && tma_compatible(stride, d.bias_dtype, d.seqlen_q, x.heads, x.sequences);
}
CopyBiasParams copy_of_bias(const Problem& p, const Sm90Bias& bias) {
    const fa_attention_desc_t& d = p.d;
    CopyBiasParams x{};
    if (tma_reads_bias(p, bias)) return x;
    for (int i = 0; i < 4; i++) x.stride[i] = d.bias_stride[i];
    x.dtype = d.bias_dtype;
    x.sequences = bias.sequences, x.heads = bias.heads;
    x.rows = bias.one_row ? 64 : int32_t(round_up(d.seqlen_q, 8));
    x.last_row = int32_t(d.seqlen_q - 1);
    x.keys = int32_t(d.seqlen_k);
    x.line = int32_t(round_up(d.seqlen_k, 8));
    const double units = double(x.sequences) * x.heads * x.rows * (x.line / 4);
    x.units = units < double(kMaxExtent) ? int64_t(units) : kMaxExtent;
    return x;
}
int64_t bytes_of(const CopyBiasParams& x, const Problem& p) { return round_up(4 * x.units * type_bytes(type_of_read_bias(p.d)), 256); }
bool bias_fits(const Problem& p) {
    constexpr int64_t most = int64_t(1) << 30;
    const fa_attention_desc_t& d = p.d;
    if (d.softcap > 0 || p.has(FA_OPERAND_MASK) || p.has(FA_OPERAND_ALIBI)) return false;
    return bytes_of(copy_of_bias(p, planned_bias(p)), p) <= most;
}

// The bias, copied where it must be to `copy`, as the kernel reads it.
rt::Status read_bias(CopyBiasParams x, const Problem& p, const fa_forward_args_t& args, char* copy, rt::Stream stream, Sm90ForwardParams* a) {
    const fa_attention_desc_t& d = p.d;
    const int64_t* const t = d.bias_stride;
    const int32_t dtype = type_of_read_bias(d);
    a->bias.scale = operand(p, FA_OPERAND_BIAS_SCALE, args.bias_scale);
    const bool copied = x.units > 0;
    const int64_t rows = copied ? x.rows : d.seqlen_q, line = x.line;
    const int64_t stride[] = {copied ? line * rows * x.heads : t[0], copied ? line : t[2], copied ? line * rows : t[1], 1};
    if (copied) {
        x.from = args.bias;
        x.to = copy;
        const int64_t blocks = ceil_div(x.units, kCopyBiasThreads);
        const rt::Status s = rt::launch(dtype == FA_F32 ? copy_bias<float> : copy_bias<uint16_t>, blocks, kCopyBiasThreads, 0, stream, x);
        if (s != rt::kSuccess) return s;
    }
    const void* const base = copied ? copy : args.bias;
    if (dtype == FA_F32) {
        const int64_t pairs = a->bias.heads * a->bias.sequences;
        return encode_interleaved_map(&a->bias_map, base, stride[1], a->bias.heads > 1 ? stride[2] : stride[0], d.seqlen_k, rows, pairs) ? rt::kSuccess : cudaErrorInvalidValue;
    }
    return encode_tensor_map(&a->bias_map, base, dtype, stride, d.seqlen_k, rows, a->bias.heads, a->bias.sequences, {64}) ? rt::kSuccess : cudaErrorInvalidValue;
}

}  // namespace
}  // namespace gpu
}  // namespace fa
