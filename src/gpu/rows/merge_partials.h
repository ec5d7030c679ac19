// fa_merge: one kernel, a block for each row and head, which merges the caller's partial results (o, LSE) by spec/online_softmax.h.
#pragma once
#include <float.h>
#include "gpu/common/memory.h"
#include "spec/online_softmax.h"

namespace fa {
namespace gpu {

constexpr int kRowThreads = 128;

// What merge_rows reads. Partial results are o_parts[part · o_part + …] and lse_parts[part · lse_part + …].
struct MergeParams {
    QuerySpans spans;
    int64_t heads, dim, parts;
    const float *o_parts, *lse_parts;
    void* o;
    float* lse;                    // NULL: not wanted
    const float *sinks, *o_scale;  // NULL: none
    RowStrides o_strides, o_parts_strides, lse_strides, lse_parts_strides;
    int64_t o_part, lse_part;  // elements between parts
    int32_t o_dtype;
    bool accumulate;  // o and lse hold a partial result, too
};

inline MergeParams merge_params(const Problem& problem, const fa_merge_args_t& args) {
    const bool packed = problem.packed_q();
    MergeParams params{};
    params.spans = query_spans(problem, args.cu_seqlens_q, args.seqused_q);
    params.heads = problem.d.heads_q;
    params.dim = problem.d.dim_v;
    params.parts = args.parts;
    params.o_parts = args.o_parts;
    params.lse_parts = args.lse_parts;
    params.o = args.o;
    params.lse = args.lse;
    params.sinks = problem.has(FA_OPERAND_SINKS) ? args.sinks : nullptr;
    params.o_scale = problem.has(FA_OPERAND_O_SCALE) ? args.o_scale : nullptr;
    params.o_strides = row_strides(problem.d.o_stride, packed);
    params.o_parts_strides = row_strides(args.o_parts_stride + 1, packed);
    params.lse_strides = lse_strides(problem.d.lse_stride, packed);
    params.lse_parts_strides = lse_strides(args.lse_parts_stride + 1, packed);
    params.o_part = args.o_parts_stride[0];
    params.lse_part = args.lse_parts_stride[0];
    params.o_dtype = problem.d.o_dtype;
    params.accumulate = (args.flags & FA_MERGE_ACCUMULATE) != 0;
    return params;
}

FA_KERNEL void FA_BOUNDS(kRowThreads, 1) merge_rows(FA_PARAM MergeParams params) {
    rt::fetch_parameters(params);
    rt::wait_for_predecessor();
    rt::release_successor();
    const int64_t line = rt::block() / params.spans.seqlen, i = rt::block() % params.spans.seqlen, h = line % params.heads,
                  b = line / params.heads;
    const Span span = bounded_span_of(params.spans, b);
    if (i >= span.length && params.spans.packed()) return;  // gaps of a packed tensor are not ours
    const int64_t row = span.begin + i, parts = i < span.length ? params.parts : 0;
    const int64_t o_at = params.o_strides.index(b, row, h);
    const float* const o_part = params.o_parts + params.o_parts_strides.index(b, row, h);
    const float* const lse_part = params.lse_parts + params.lse_parts_strides.index(b, row, h);
    float* const lse = params.lse ? params.lse + params.lse_strides.index(b, row, h) : nullptr;
    const bool accumulate = params.accumulate && i < span.length;
    const float before = accumulate ? *lse : kNegInf;
    rt::barrier();  // every thread has read the LSE that one of them will replace
    for (int64_t c = rt::thread(); c < params.dim; c += kRowThreads) {
        RowState state = from_lse(before);
        // Several parts at the type's limit must not overflow before they are averaged, either.
        float sum = state.l == 0.f ? 0.f : static_cast<const float*>(params.o)[o_at + c] * kHeadroomUnit;
        for (int64_t part = 0; part < parts; part++) {
            const RowState other = from_lse(lse_part[part * params.lse_part]);
            if (other.l == 0.f) continue;
            const Merged merged = merge(state, other);
            state = merged.state;
            sum = sum * merged.scale_a + o_part[part * params.o_part + c] * (merged.scale_b * kHeadroomUnit);
        }
        if (params.sinks && i < span.length) {
            const Merged merged = merge(state, sink_state(params.sinks[h]));
            state = merged.state;
            sum *= merged.scale_a;
        }
        float average = sum * (normaliser(state) * kHeadroomFactor);
        if (isinf(average) && isfinite(sum)) average = copysignf(FLT_MAX, average);  // an average of finite values is finite
        if (params.o_scale) average *= params.o_scale[0];
        store_element(params.o, o_at + c, params.o_dtype, average);
        if (c == 0 && lse) *lse = log_sum_exp(state);
    }
}

}  // namespace gpu
}  // namespace fa
