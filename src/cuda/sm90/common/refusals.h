// The conditions that several families for sm_90a have in common, each with its sentence (gpu/host/refusal.h).
#pragma once
#include <string.h>
#include "cuda/sm90/common/tensor_map.h"
#include "gpu/host/refusal.h"

namespace fa {
namespace gpu {

constexpr uint64_t kSm90SharedBytes = 232448;  // that a block may have, and that kernels are made for
inline bool is_sm90(const rt::Device& device, Refusal* refusal) {
    if (device.sm90) return true;
    if (strcmp(device.arch, "sm_90") != 0) return refuse(refusal, "arch is %s: expected sm_90", device.arch);
    if (device.shared_per_block < kSm90SharedBytes)
        return refuse(refusal, "FLASHATTN_MAX_SHARED is %llu: expected it unset, or %llu or more, for kernels that are made for so much",
                      (unsigned long long)(device.shared_per_block >> 10), (unsigned long long)(kSm90SharedBytes >> 10));
    return refuse(refusal, "CUDA_FORCE_PTX_JIT is set: expected it unset, or 0, for kernels that are machine code only");
}
// Is a number from `least` to less than `end`?
inline bool in_range(const char* name, int64_t n, int64_t least, int64_t end, Refusal* refusal) {
    if (n >= least && n < end) return true;
    if (end == least + 1) return refuse(refusal, "%s is %lld: expected %lld", name, (long long)n, (long long)least);
    return refuse(refusal, "%s is %lld: expected %lld to %lld", name, (long long)n, (long long)least, (long long)end - 1);
}
inline bool in_eights(const char* name, int64_t n, Refusal* refusal) {
    return n % 8 == 0 || refuse(refusal, "%s is %lld: expected a multiple of 8", name, (long long)n);
}
inline bool is_positive_scale(const Problem& problem, Refusal* refusal) {
    return problem.d.scale > 0 || refuse(refusal, "scale is %g: expected one above 0", double(problem.d.scale));
}
inline bool is_half(const char* name, int32_t dtype, Refusal* refusal) {
    return dtype == FA_F16 || dtype == FA_BF16 || refuse(refusal, "%s is %s: expected f16 or bf16", name, dtype_name(dtype));
}
inline bool is_like_q(const Problem& problem, Refusal* refusal) {
    return problem.d.k_dtype == problem.d.q_dtype ||
           refuse(refusal, "k_dtype is %s: expected %s, as q_dtype", dtype_name(problem.d.k_dtype), dtype_name(problem.d.q_dtype));
}
inline bool is_like_q_or_f32(const Problem& problem, Refusal* refusal) {
    return problem.d.o_dtype == problem.d.q_dtype || problem.d.o_dtype == FA_F32 ||
           refuse(refusal, "o_dtype is %s: expected %s, as q_dtype, or f32", dtype_name(problem.d.o_dtype), dtype_name(problem.d.q_dtype));
}
inline bool has_whole_splits(const Problem& problem, Refusal* refusal) {
    return problem.d.split_size % kSplitQuantum == 0 ||
           refuse(refusal, "split_size is %lld: expected a multiple of %lld", (long long)problem.d.split_size, (long long)kSplitQuantum);
}
// Rows and keys of a call, and of the tensors that they lie in.
inline bool extents_fit(const Problem& problem, Refusal* refusal) {
    return in_range("seqlen_q", problem.d.seqlen_q, 1, kMaxExtent, refusal) &&
           in_range("seqlen_k", problem.d.seqlen_k, 1, kMaxExtent, refusal) &&
           in_range(problem.packed_q() ? "total_q" : "seqlen_q", rows_of_q(problem), 1, kMaxExtent, refusal) &&
           in_range(problem.packed_k() ? "total_k"
                    : problem.paged()  ? "page_size"
                                       : "seqlen_k",
                    rows_of_k(problem), 1, kMaxExtent, refusal);
}

inline bool tma_reads(const char* name, const int64_t stride[4], int32_t dtype, int64_t rows, int64_t heads, int64_t sequences,
                      Refusal* refusal) {
    return tma_compatible(stride, dtype, rows, heads, sequences) ||
           refuse(refusal, "%s is (%lld, %lld, %lld): expected multiples of %d above 0, below 2^40 bytes", name, (long long)stride[0],
                  (long long)stride[1], (long long)stride[2], int(16 / type_bytes(dtype)));
}
// Of q's type.
inline bool tma_reads_tensors(const Problem& problem, Refusal* refusal) {
    const fa_attention_desc_t& d = problem.d;
    return tma_reads("q_stride", d.q_stride, d.q_dtype, rows_of_q(problem), d.heads_q, sequences_of_q(problem), refusal) &&
           tma_reads("k_stride", d.k_stride, d.q_dtype, rows_of_k(problem), d.heads_k, sequences_of_k(problem), refusal) &&
           tma_reads("v_stride", d.v_stride, d.q_dtype, rows_of_k(problem), d.heads_k, sequences_of_k(problem), refusal);
}
inline bool writes_vectors(const Problem& problem, Refusal* refusal) {
    const int64_t* const o = problem.d.o_stride;
    return (o[0] | o[1] | o[2]) % 8 == 0 ||
           refuse(refusal, "o_stride is (%lld, %lld, %lld): expected multiples of 8", (long long)o[0], (long long)o[1], (long long)o[2]);
}

}  // namespace gpu
}  // namespace fa
