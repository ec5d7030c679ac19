// Sequences, and rows of each, of q and of k and v, as their strides count them: a packed tensor is one, and pages are sequences; and
// bytes.
#pragma once
#include "backend/problem.h"
#include "spec/shape.h"

namespace fa {
namespace gpu {

static inline int64_t rows_of_q(const Problem& p) { return p.packed_q() ? p.d.total_q : p.d.seqlen_q; }
static inline int64_t rows_of_k(const Problem& p) { return p.packed_k() ? p.d.total_k : p.paged() ? p.d.page_size : p.d.seqlen_k; }
static inline int64_t sequences_of_q(const Problem& p) { return p.packed_q() ? 1 : p.d.batch; }
static inline int64_t sequences_of_k(const Problem& p) {
    return p.packed_k() ? 1 : p.paged() ? p.d.num_pages : p.has(FA_OPERAND_KV_BATCH_IDX) ? p.d.kv_batch : p.d.batch;
}

// Bytes of a key's k and v of one head.
static inline int64_t kv_row_bytes(const Problem& p) { return row_bytes(p.d.k_dtype, p.d.dim_qk) + row_bytes(p.d.v_dtype, p.d.dim_v); }
// How many kv heads' keys and values so many bytes of the second-level cache hold.
static inline int64_t kv_heads_in_l2(const Problem& p, int64_t cache_bytes = 32 << 20) {
    return max_of(cache_bytes / max_of(p.d.seqlen_k * kv_row_bytes(p), 1), 1);
}

}  // namespace gpu
}  // namespace fa
