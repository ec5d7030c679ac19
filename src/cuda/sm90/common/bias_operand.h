// The host's part of the bias operand for sm_90a, forward and backward. What is planned of it follows from the descriptor alone; a launch
// makes the tensor map, and a copy in the workspace where one is needed, which has no more than a GiB.
#pragma once
#include "cuda/sm90/common/bias_params.h"
#include "cuda/sm90/common/copy_bias.h"
#include "cuda/sm90/common/ptx.h"
#include "cuda/sm90/common/tensor_map.h"
#include "gpu/common/row_params.h"

namespace fa {
namespace gpu {

// Is the bias read as f32: of that type, or of one of 16 bits that q has not?
inline bool reads_f32_bias(const fa_attention_desc_t& d) { return d.bias_dtype != d.q_dtype; }

// How the bias is read, without its pointers.
inline Sm90Bias planned_bias(const Problem& problem) {
    const fa_attention_desc_t& d = problem.d;
    Sm90Bias bias{};
    bias.sequences = int(d.bias_stride[0] ? min_of(d.bias_period[0], d.batch) : 1);
    bias.heads = int(d.bias_stride[1] ? min_of(d.bias_period[1], d.heads_q) : 1);
    bias.one_row = d.bias_stride[2] == 0;
    bias.heads_first = bias.sequences == 1 && bias.heads > 1 && d.batch > 1;
    bias.keep = bias.sequences == d.batch && bias.heads == d.heads_q ? rt::kEvictFirst : rt::kEvictLast;
    return bias;
}
inline int32_t type_of_read_bias(const fa_attention_desc_t& d) { return reads_f32_bias(d) ? int32_t(FA_F32) : d.q_dtype; }
inline bool tma_reads_bias(const Problem& problem, const Sm90Bias& bias) {
    const fa_attention_desc_t& d = problem.d;
    const int64_t stride[] = {d.bias_stride[0], d.bias_stride[2], d.bias_stride[1], 1};
    const bool even =
        type_of_read_bias(d) != FA_F32 ||
        (d.seqlen_q % 8 == 0 && (bias.sequences == 1 || bias.heads == 1 || d.bias_stride[0] == bias.heads * d.bias_stride[1]));
    return even && d.bias_stride[3] == 1 && d.bias_dtype == type_of_read_bias(d) &&
           tma_compatible(stride, d.bias_dtype, d.seqlen_q, bias.heads, bias.sequences);
}
// How it is copied before, if it is. tile_rows: as many as a row that serves all is there for.
inline CopyBiasParams copy_of_bias(const Problem& problem, const Sm90Bias& bias, int tile_rows) {
    const fa_attention_desc_t& d = problem.d;
    CopyBiasParams params{};
    if (tma_reads_bias(problem, bias)) return params;
    for (int i = 0; i < 4; i++) params.stride[i] = d.bias_stride[i];
    params.dtype = d.bias_dtype;
    params.sequences = bias.sequences, params.heads = bias.heads;
    params.rows = bias.one_row ? tile_rows : int32_t(round_up(d.seqlen_q, 8));
    params.last_row = int32_t(d.seqlen_q - 1);
    params.keys = int32_t(d.seqlen_k);
    params.line = int32_t(round_up(d.seqlen_k, 8));
    const double units = double(params.sequences) * params.heads * params.rows * (params.line / 4);
    params.units = units < double(kMaxExtent) ? int64_t(units) : kMaxExtent;
    return params;
}
inline int64_t bytes_of(const CopyBiasParams& params, const Problem& problem) {
    return round_up(4 * params.units * type_bytes(type_of_read_bias(problem.d)), 256);
}
inline bool bias_copy_fits(const Problem& problem, int tile_rows) {
    constexpr int64_t most = int64_t(1) << 30;
    return bytes_of(copy_of_bias(problem, planned_bias(problem), tile_rows), problem) <= most;
}

// The bias, copied where it must be to `copy`, as the kernel reads it.
inline rt::Status read_bias(CopyBiasParams params, const Problem& problem, const fa_forward_args_t& args, int tile_rows, char* copy,
                            rt::Stream stream, Sm90Bias* bias, CUtensorMap* map) {
    const fa_attention_desc_t& d = problem.d;
    const int64_t* const t = d.bias_stride;
    const int32_t dtype = type_of_read_bias(d);
    bias->scale = operand(problem, FA_OPERAND_BIAS_SCALE, args.bias_scale);
    const bool copied = params.units > 0;
    const int64_t rows = copied ? params.rows : d.seqlen_q, line = params.line;
    const int64_t stride[] = {copied ? line * rows * params.heads : t[0], copied ? line : t[2], copied ? line * rows : t[1], 1};
    if (copied) {
        params.from = args.bias;
        params.to = copy;
        const int64_t blocks = ceil_div(params.units, kCopyBiasThreads);
        const rt::Status s =
            rt::launch(dtype == FA_F32 ? copy_bias<float> : copy_bias<uint16_t>, blocks, kCopyBiasThreads, 0, stream, params);
        if (s != rt::kSuccess) return s;
    }
    const void* const base = copied ? copy : args.bias;
    if (dtype == FA_F32) {
        const int64_t pairs = bias->heads * bias->sequences;
        const int64_t step = bias->heads > 1 ? stride[2] : stride[0];
        return encode_interleaved_map(map, base, stride[1], step, d.seqlen_k, rows, pairs) ? rt::kSuccess : cudaErrorInvalidValue;
    }
    return encode_tensor_map(map, base, dtype, stride, d.seqlen_k, rows, bias->heads, bias->sequences, {tile_rows}) ? rt::kSuccess
                                                                                                                    : cudaErrorInvalidValue;
}

}  // namespace gpu
}  // namespace fa
