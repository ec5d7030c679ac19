// The kernel that makes the table of de-scale factors before a forward whose factors change along rows or keys, or are of another type than
// f32.
#pragma once
#include "backend/factors.h"
#include "cuda/sm90/forward/operands/block_factors.h"

namespace fa {
namespace gpu {

struct BlockFactorParams {
    BlockFactors to;
    Factors q, k, v;
    int64_t kv_total, q_total;
    int keys;
    const int32_t* seqused;  // keys of a sequence that have factors; NULL: all
};
constexpr int kBlockFactorThreads = 256;

FA_KERNEL void FA_BOUNDS(kBlockFactorThreads, 1) prepare_block_factors(FA_PARAM BlockFactorParams params) {
    const auto factor = [](const Factors& factors, int64_t outer, int64_t row, int64_t head) {
        return factors.factor ? load_factor(factors.factor, factor_index(factors, outer, row, head), factors.dtype) : 1.f;
    };
    const int64_t i = int64_t(blockIdx.x) * kBlockFactorThreads + threadIdx.x;
    if (i < params.kv_total) {
        const int64_t pair = i / params.to.groups, sequence = pair / params.to.heads_k, head = pair % params.to.heads_k,
                      key = i % params.to.groups * BlockFactors::kKeys;
        const bool there = key < params.keys && (!params.seqused || key < params.seqused[sequence]);
        const float k = there ? nan_if_infinite(factor(params.k, sequence, key, head)) : 1.f,
                    v = there ? factor(params.v, sequence, key, head) : 0.f;
        params.to.kv[i] = make_float2(k, v);
        if (there) atomicMax(reinterpret_cast<int*>(params.to.v_unit + pair), __float_as_int(fabsf(v)));
    } else if (const int64_t j = i - params.kv_total; j < params.q_total) {
        const int64_t line = j / params.to.rows;
        params.to.q[j] = nan_if_infinite(factor(params.q, line / params.to.heads_q, j % params.to.rows, line % params.to.heads_q));
    }
}

}  // namespace gpu
}  // namespace fa
