// The calls that treat each row by itself: fa_merge, fa_append_kv, fa_rotary. A block for each row and head.
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
struct AppendParams {
    Problem p;
    fa_append_kv_args_t a;
};
struct RotaryParams {
    Problem p;
    fa_rotary_args_t a;
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

// Element c of a row after rotation by the angle of its position.
FA_DEVICE float rotated(const void* base, int64_t at, int32_t dtype, int64_t c, const float* cos, const float* sin, int64_t dim, bool interleaved) {
    const float self = load_element(base, at + c, dtype);
    if (c >= dim) return self;
    const int64_t pair = interleaved ? c / 2 : c % (dim / 2);
    const bool second = interleaved ? (c & 1) != 0 : c >= dim / 2;
    const int64_t other_at = interleaved ? c ^ 1 : second ? c - dim / 2 : c + dim / 2;
    const float other = load_element(base, at + other_at, dtype);
    return second ? other * sin[pair] + self * cos[pair] : self * cos[pair] - other * sin[pair];
}

constexpr int kMaxDim = 1024, kHeld = kMaxDim / kRowThreads;

FA_KERNEL void FA_BOUNDS(kRowThreads, 1) rotate_rows(FA_PARAM RotaryParams x) {
    const fa_attention_desc_t& d = x.p.d;
    const fa_rotary_args_t& a = x.a;
    const int64_t h = rt::block() % d.heads_q, i = rt::block() / d.heads_q % d.seqlen_q, b = rt::block() / d.heads_q / d.seqlen_q;
    const Span span = query_span(x.p, a.cu_seqlens_q, a.seqused_q, b);
    if (i >= span.length) return;
    const int64_t batch = x.p.packed_q() ? 0 : b, row = span.begin + i;
    int64_t position = i + (a.position_offset ? a.position_offset[b] : 0);
    if (a.positions) position = a.positions[x.p.packed_q() ? row : b * d.seqlen_q + i];
    position = clamp(position, 0, a.max_position - 1);
    const float* cos = a.cos + position * (a.rotary_dim / 2);
    const float* sin = a.sin + position * (a.rotary_dim / 2);
    const int64_t from = batch * d.q_stride[0] + row * d.q_stride[1] + h * d.q_stride[2];
    const int64_t to = batch * a.out_stride[0] + row * a.out_stride[1] + h * a.out_stride[2];
    float held[kHeld];  // all is read before anything is written: out may be x
    for (int n = 0; n < kHeld; n++) {
        const int64_t c = rt::thread() + n * kRowThreads;
        if (c < d.dim_qk) held[n] = rotated(a.x, from, d.q_dtype, c, cos, sin, a.rotary_dim, (a.flags & FA_ROTARY_INTERLEAVED) != 0);
    }
    rt::barrier();
    for (int n = 0; n < kHeld; n++) {
        const int64_t c = rt::thread() + n * kRowThreads;
        if (c < d.dim_qk) store_element(a.out, to + c, d.q_dtype, held[n]);
    }
}

FA_FN float largest_value(int32_t dtype) { return dtype == FA_E4M3 ? kMaxE4M3 : dtype == FA_E5M2 ? kMaxE5M2 : kMaxI8; }

// The largest of all threads' values; a barrier on either side.
FA_DEVICE float block_max(float x) {
    float* shared = reinterpret_cast<float*>(rt::shared_memory());
    rt::barrier();
    shared[rt::thread()] = x;
    rt::barrier();
    for (int n = kRowThreads / 2; n > 0; n /= 2) {
        if (rt::thread() < n) shared[rt::thread()] = max_fn(shared[rt::thread()], shared[rt::thread() + n]);
        rt::barrier();
    }
    return shared[0];
}

// One token and head of k or v into its slot. cos NULL: no rotation.
FA_DEVICE void append_head(const AppendParams& x, const void* from, int64_t from_at, int64_t dim, const float* cos, const float* sin,
                           void* cache, int64_t to_at, float* descale) {
    const fa_attention_desc_t& d = x.p.d;
    float held[kHeld], top = 0.f;
    for (int n = 0; n < kHeld; n++) {
        const int64_t c = rt::thread() + n * kRowThreads;
        if (c >= dim) continue;
        held[n] = cos ? rotated(from, from_at, d.q_dtype, c, cos, sin, x.a.rotary_dim, (x.a.flags & FA_ROTARY_INTERLEAVED) != 0)
                      : load_element(from, from_at + c, d.q_dtype);
        top = max_fn(top, fabsf(held[n]));
    }
    float factor = descale ? *descale : 1.f;
    if (descale && (x.a.flags & FA_APPEND_DYNAMIC_SCALE) && type_bytes(d.kv_dtype) == 1) {
        top = block_max(top);
        factor = top > 0.f ? top / largest_value(d.kv_dtype) : 1.f;
        if (rt::thread() == 0) *descale = factor;
    }
    for (int n = 0; n < kHeld; n++) {
        const int64_t c = rt::thread() + n * kRowThreads;
        if (c < dim) store_element(cache, to_at + c, d.kv_dtype, descale ? held[n] / factor : held[n]);
    }
}

FA_KERNEL void FA_BOUNDS(kRowThreads, 1) append_rows(FA_PARAM AppendParams x) {
    const fa_attention_desc_t& d = x.p.d;
    const fa_append_kv_args_t& a = x.a;
    const int64_t h = rt::block() % d.heads_kv, t = rt::block() / d.heads_kv % a.seqlen_new, b = rt::block() / d.heads_kv / a.seqlen_new;
    int64_t begin = 0, length = a.seqlen_new, batch = b;
    if (a.cu_seqlens_new) {
        begin = clamp(a.cu_seqlens_new[b], 0, a.total_new);
        length = clamp(a.cu_seqlens_new[b + 1] - begin, 0, min_of(a.seqlen_new, a.total_new - begin));
        batch = 0;
    }
    if (a.seqused_new) length = clamp(a.seqused_new[b], 0, length);
    if (t >= length) return;
    const int64_t leftpad = x.p.has(FA_OPERAND_LEFTPAD_K) ? a.leftpad_k[b] : 0;
    int64_t slot = (x.p.has(FA_OPERAND_SEQUSED_K) ? a.seqused_k[b] : leftpad) + t;
    if (a.positions) slot = a.positions[a.cu_seqlens_new ? begin + t : b * a.seqlen_new + t];
    if (slot < 0 || slot >= d.seqlen_k) return;
    const int64_t position = slot - leftpad;
    int64_t outer = x.p.has(FA_OPERAND_KV_BATCH_IDX) ? a.kv_batch_idx[b] : b;
    if (outer < 0 || outer >= (x.p.has(FA_OPERAND_KV_BATCH_IDX) ? d.kv_batch : d.batch)) return;
    if (x.p.paged()) {
        outer = a.page_table[outer * d.page_table_stride + slot / d.page_size];
        slot %= d.page_size;
        if (outer < 0 || outer >= d.num_pages) return;
    }
    if (a.cos && (position < 0 || position >= a.max_position)) return;
    const float* cos = a.cos ? a.cos + position * (a.rotary_dim / 2) : nullptr;
    const float* sin = a.sin ? a.sin + position * (a.rotary_dim / 2) : nullptr;
    const int64_t row = begin + t;
    const int64_t* ks = d.k_descale_stride;
    const int64_t* vs = d.v_descale_stride;
    float* k_descale = x.p.has(FA_OPERAND_K_DESCALE) ? a.k_descale + outer * ks[0] + slot * ks[1] + h * ks[2] : nullptr;
    float* v_descale = x.p.has(FA_OPERAND_V_DESCALE) ? a.v_descale + outer * vs[0] + slot * vs[1] + h * vs[2] : nullptr;
    append_head(x, a.k_new, batch * a.k_new_stride[0] + row * a.k_new_stride[1] + h * a.k_new_stride[2], d.dim_qk, cos, sin, a.k,
                outer * d.k_stride[0] + slot * d.k_stride[1] + h * d.k_stride[2], k_descale);
    append_head(x, a.v_new, batch * a.v_new_stride[0] + row * a.v_new_stride[1] + h * a.v_new_stride[2], d.dim_v, nullptr, nullptr, a.v,
                outer * d.v_stride[0] + slot * d.v_stride[1] + h * d.v_stride[2], v_descale);
}

}  // namespace gpu
}  // namespace fa
