// The epilogue of a forward's row: from its state (m, l) and unnormalised accumulators to o and LSE, with the sink added and the
// mean taken; and o = 0, LSE = −inf for rows beyond a sequence's length. The SIMT, mma and merge kernels end their rows here.
#pragma once
#include <float.h>
#include "gpu/common/row_params.h"

namespace fa {
namespace gpu {

struct RowOutput {
    RowState state;  // sink included, true units
    float factor;    // multiplies the kept sums
};

// A function that is not inlined reads the parameters from memory, miss after miss: where that latency would show, finalize_row is
// inlined; elsewhere finalize_row_cold serves. `part`: (m, l) of the row in the units of kHeadroomUnit. Writes LSE when `first`.
FA_DEVICE RowOutput finalize_row(const RowParams& params, const Sequence& seq, int64_t batch, int64_t head, int64_t row, RowState part,
                                 bool first) {
    RowState state{part.m, part.l * kHeadroomFactor};
    float scale = 1.f;
    if (params.sinks) {
        const Merged merged = merge(state, sink_state(params.sinks[head]));
        state = merged.state;
        scale = merged.scale_a;
    }
    if (first && params.lse) params.lse[query_index(params.lse_strides, seq, batch, row, head)] = log_sum_exp(state);
    return {state, scale * normaliser(state) * kHeadroomFactor};
}

FA_COLD RowOutput finalize_row_cold(const RowParams& params, const Sequence& seq, int64_t batch, int64_t head, int64_t row, RowState part,
                                    bool first) {
    return finalize_row(params, seq, batch, head, row, part, first);
}

FA_DEVICE float normalized(float sum, float factor) {
    const float average = sum * factor + 0.f;  // −0 becomes 0: the sign of a sum without keys never shows
    return isinf(average) && isfinite(sum) ? copysignf(FLT_MAX, average) : average;  // an average of finite values is finite
}
template <class Params>
FA_DEVICE float output_value(const Params& params, float sum, float factor) {
    const float average = normalized(sum, factor) * params.dropout_scale;
    return params.o_scale ? average * params.o_scale[0] : average;
}
template <class Params>
FA_COLD void store_output(const Params& params, int64_t at, float sum, float factor) {
    store_element(params.o, at, params.o_dtype, output_value(params, sum, factor));
}
FA_COLD void store_element_cold(void* base, int64_t at, int32_t dtype, float x) { store_element(base, at, dtype, x); }

// o = 0 and LSE = −inf for rows of a padded q beyond the sequence's length, among group-major rows [first, first + rows).
template <class Params>
FA_COLD void write_padding(const Params& params, const Sequence& seq, int64_t batch, int64_t kv_head, int64_t first, int64_t rows,
                           int64_t column0, int64_t columns) {
    if (params.sequences.q.packed()) return;  // gaps of a packed tensor are not ours
    const int64_t begin = max_of(first, seq.q_len * params.group), end = min_of(first + rows, params.rows);
    columns = min_of(columns, params.dim_v - column0);
    for (int64_t i = rt::thread(); i < (end - begin) * columns; i += rt::threads()) {
        const int64_t r = begin + i / columns, row = r / params.group, head = kv_head * params.group + r % params.group, c = i % columns;
        store_element(params.o, query_index(params.o_strides, seq, batch, row, head) + column0 + c, params.o_dtype, 0.f);
        if (column0 + c == 0 && params.lse) params.lse[query_index(params.lse_strides, seq, batch, row, head)] = kNegInf;
    }
}

}  // namespace gpu
}  // namespace fa
