// The host's part of the bias on its way to the forward kernels: what is planned follows from the descriptor alone; a launch makes the tensor map, and
// a copy in the workspace where there must be one.
#pragma once
#include "cuda/sm90/bias.h"
#include "cuda/sm90/tensor_map.h"

namespace fa {
namespace gpu {
namespace {

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
