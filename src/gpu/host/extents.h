// Sequences, and rows of each, of q and of k and v, as their strides count them: a packed tensor is one, and pages are sequences.
#pragma once
#include "backend/problem.h"

namespace fa {
namespace gpu {

static inline int64_t rows_of_q(const Problem& p) { return p.packed_q() ? p.d.total_q : p.d.seqlen_q; }
static inline int64_t rows_of_k(const Problem& p) { return p.packed_k() ? p.d.total_k : p.paged() ? p.d.page_size : p.d.seqlen_k; }
static inline int64_t sequences_of_q(const Problem& p) { return p.packed_q() ? 1 : p.d.batch; }
static inline int64_t sequences_of_k(const Problem& p) {
    return p.packed_k() ? 1 : p.paged() ? p.d.num_pages : p.has(FA_OPERAND_KV_BATCH_IDX) ? p.d.kv_batch : p.d.batch;
}

}  // namespace gpu
}  // namespace fa
