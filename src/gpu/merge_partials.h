// fa_merge: one kernel, a block for each row and head, which merges the caller's partial results (o, LSE) by spec/online_softmax.h.
// Also the bounds of a sequence of q as device memory gives them, for kernels that go through rows.
#pragma once
#include <float.h>
#include "gpu/memory.h"
#include "spec/online_softmax.h"

namespace fa {
namespace gpu {

constexpr int kRowThreads = 128;

struct MergeParams {
    Problem p;
    fa_merge_args_t a;
};
// First row and length of a sequence of q, forced into the tensor.
struct Span {
    int64_t begin, length;
};
FA_FN Span query_span(const Problem& p, const int32_t* cu, const int32_t* used, int64_t b) {
    Span s{0, p.d.seqlen_q};
    if (p.packed_q()) {
        s.begin = clamp(cu[b], 0, p.d.total_q);
        s.length = clamp(cu[b + 1] - s.begin, 0, min_of(p.d.seqlen_q, p.d.total_q - s.begin));
    }
    if (p.has(FA_OPERAND_SEQUSED_Q)) s.length = clamp(used[b], 0, s.length);
    return s;
}

FA_KERNEL void FA_BOUNDS(kRowThreads, 1) merge_rows(FA_PARAM MergeParams x) {
    rt::fetch_parameters(x);
    rt::wait_for_predecessor();
    rt::release_successor();
    const fa_attention_desc_t& d = x.p.d;
    const fa_merge_args_t& a = x.a;
    const int64_t i = rt::block() % d.seqlen_q, h = rt::block() / d.seqlen_q % d.heads_q, b = rt::block() / d.seqlen_q / d.heads_q;
    const Span span = query_span(x.p, a.cu_seqlens_q, a.seqused_q, b);
    if (i >= span.length && x.p.packed_q()) return;  // gaps of a packed tensor are not ours
    const int64_t batch = x.p.packed_q() ? 0 : b, row = span.begin + i, parts = i < span.length ? a.parts : 0;
    const int64_t o_at = batch * d.o_stride[0] + row * d.o_stride[1] + h * d.o_stride[2];
    const int64_t o_part = batch * a.o_parts_stride[1] + row * a.o_parts_stride[2] + h * a.o_parts_stride[3];
    const int64_t lse_part = batch * a.lse_parts_stride[1] + h * a.lse_parts_stride[2] + row * a.lse_parts_stride[3];
    float* lse = a.lse ? a.lse + batch * d.lse_stride[0] + h * d.lse_stride[1] + row * d.lse_stride[2] : nullptr;
    const bool accumulate = (a.flags & FA_MERGE_ACCUMULATE) && i < span.length;
    const float before = accumulate ? *lse : kNegInf;
    rt::barrier();  // every thread has read the LSE that one of them will replace
    for (int64_t c = rt::thread(); c < d.dim_v; c += kRowThreads) {
        RowState state = from_lse(before);
        // In units of 2^-32: several parts at the type's limit must not overflow before they are averaged.
        float sum = state.l == 0.f ? 0.f : static_cast<const float*>(a.o)[o_at + c] * 0x1p-32f;
        for (int64_t part = 0; part < parts; part++) {
            const RowState s = from_lse(a.lse_parts[part * a.lse_parts_stride[0] + lse_part]);
            if (s.l == 0.f) continue;
            const Fold f = fold(state, s);
            state = f.state;
            sum = sum * f.scale_a + a.o_parts[part * a.o_parts_stride[0] + o_part + c] * (f.scale_b * 0x1p-32f);
        }
        if (x.p.has(FA_OPERAND_SINKS) && i < span.length) {
            const Fold f = fold(state, sink_state(a.sinks[h]));
            state = f.state;
            sum *= f.scale_a;
        }
        float average = sum * (normaliser(state) * 0x1p+32f);
        if (isinf(average) && isfinite(sum)) average = copysignf(FLT_MAX, average);  // an average of finite values is finite
        if (x.p.has(FA_OPERAND_O_SCALE)) average *= a.o_scale[0];
        store_element(a.o, o_at + c, d.o_dtype, average);
        if (c == 0 && lse) *lse = log_sum_exp(state);
    }
}

}  // namespace gpu
}  // namespace fa
