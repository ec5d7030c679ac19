// Sequences, and rows of each, of q and of k and v, as their strides count them: a packed tensor is one, and pages are sequences; and
// bytes.
#pragma once
#include "backend/problem.h"
#include "spec/shape.h"

namespace fa {
namespace gpu {

static inline int64_t rows_of_q(const Problem& problem) { return problem.packed_q() ? problem.d.total_q : problem.d.seqlen_q; }
static inline int64_t rows_of_k(const Problem& problem) {
    return problem.packed_k() ? problem.d.total_k : problem.paged() ? problem.d.page_size : problem.d.seqlen_k;
}
static inline int64_t sequences_of_q(const Problem& problem) { return problem.packed_q() ? 1 : problem.d.batch; }
static inline int64_t sequences_of_k(const Problem& problem) {
    return problem.packed_k()                     ? 1
           : problem.paged()                      ? problem.d.num_pages
           : problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch
                                                  : problem.d.batch;
}

// Bytes of a key's k and v of one head.
static inline int64_t kv_row_bytes(const Problem& problem) {
    return row_bytes(problem.d.k_dtype, problem.d.dim_qk) + row_bytes(problem.d.v_dtype, problem.d.dim_v);
}
// How many kv heads' keys and values so many bytes of the second-level cache hold.
static inline int64_t kv_heads_in_l2(const Problem& problem, int64_t cache_bytes = 32 << 20) {
    return max_of(cache_bytes / max_of(problem.d.seqlen_k * kv_row_bytes(problem), 1), 1);
}

}  // namespace gpu
}  // namespace fa
