// The kernel that copies a bias before a kernel for sm_90a reads it, where TMA cannot walk through it as it is.
#pragma once
#include "cuda/rt_cuda.h"
#include "gpu/common/memory.h"

namespace fa {
namespace gpu {

struct CopyBiasParams {
    const void* from;
    void* to;           // dense: sequences, heads, rows, keys
    int64_t stride[4];  // of `from`, in elements
    int32_t dtype;
    int32_t sequences, heads, rows, keys, line, last_row;  // line: keys of `to`, in whole vectors of four; last_row: of `from`
    int64_t units;                                         // of four keys of `to`; 0: nothing is copied
};
constexpr int kCopyBiasThreads = 256;

// To f32, or, of 16 bits, as they are.
template <class To>
FA_KERNEL void FA_BOUNDS(kCopyBiasThreads, 1) copy_bias(FA_PARAM CopyBiasParams params) {
    const int64_t unit = int64_t(blockIdx.x) * kCopyBiasThreads + threadIdx.x;
    if (unit >= params.units) return;
    const int vecs = params.line / 4, key = int(unit % vecs) * 4;
    const int64_t line = unit / vecs, row = line % params.rows, pair = line / params.rows;
    const int64_t at = pair / params.heads * params.stride[0] + pair % params.heads * params.stride[1] +
                       min_of(row, int64_t(params.last_row)) * params.stride[2];
    To value[4];
    FA_UNROLL_FOR (int i = 0; i < 4; i++) {
        const int64_t from = at + int64_t(min(key + i, params.keys - 1)) * params.stride[3];
        if constexpr (sizeof(To) == 2) value[i] = static_cast<const To*>(params.from)[from];
        else value[i] = load_element(params.from, from, params.dtype);
    }
    To* const to = static_cast<To*>(params.to) + 4 * unit;
    if constexpr (sizeof(To) == 2)
        *reinterpret_cast<uint2*>(to) = make_uint2(value[0] | uint32_t(value[1]) << 16, value[2] | uint32_t(value[3]) << 16);
    else *reinterpret_cast<float4*>(to) = make_float4(value[0], value[1], value[2], value[3]);
}

}  // namespace gpu
}  // namespace fa
