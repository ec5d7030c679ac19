#include "core/tensor.h"
#include "core/rules.h"
#include "spec/shape.h"

namespace fa {

uint64_t span(const Tensor& tensor) {
    if (tensor.empty()) return 0;
    uint64_t last = 0;
    for (int i = 0; i < tensor.rank; i++) last += uint64_t(tensor.extent[i] - 1) * uint64_t(tensor.stride[i]);
    return (last + 1) * uint64_t(tensor.element);
}

static fa_status_t too_large(const Tensor& tensor, Message* message) {
    char shape[kMaxRank * 24];
    int at = 0;
    for (int i = 0; i < tensor.rank; i++) at += snprintf(shape + at, sizeof shape - at, "%s%lld", i ? " x " : "", ll(tensor.extent[i]));
    return fail(message, FA_INVALID_ARGUMENT, "%s is %s elements with %s_stride: expected a reach of at most 2^63 - 1 bytes", tensor.name,
                shape, tensor.name);
}

fa_status_t check_fits(const Tensor& tensor, Message* message) {
    if (tensor.empty()) return FA_OK;
    int64_t elements = 1, step, bytes;
    for (int i = 0; i < tensor.rank; i++) {
        if (__builtin_mul_overflow(tensor.extent[i] - 1, tensor.stride[i], &step) || __builtin_add_overflow(elements, step, &elements)) {
            return too_large(tensor, message);
        }
    }
    return __builtin_mul_overflow(elements, int64_t(tensor.element), &bytes) ? too_large(tensor, message) : FA_OK;
}

void put_strides(const Tensor& tensor, int64_t* to) {
    const bool empty = tensor.empty();
    for (int i = 0; i < tensor.rank; i++) to[i] = !empty && tensor.extent[i] > 1 ? tensor.stride[i] : i == tensor.rank - 1;
}

fa_status_t lay_dense(Tensor* tensor, Message* message) {
    int64_t elements = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        tensor->stride[i] = i == tensor->absent ? 0 : elements;
        if (__builtin_mul_overflow(elements, tensor->extent[i], &elements)) return too_large(*tensor, message);
    }
    return check_fits(*tensor, message);
}

fa_status_t check_strides(const Tensor& tensor, bool unit, Message* message) {
    for (int i = 0; i < tensor.rank; i++) {
        const int64_t s = tensor.stride[i];
        if (s < 0) return fail(message, FA_INVALID_ARGUMENT, "%s_stride[%d] is %lld: expected 0 or more", tensor.name, i, ll(s));
        if (i == tensor.absent && s != 0) {
            return fail(message, FA_INVALID_ARGUMENT, "%s_stride[%d] is %lld: expected 0, packed rows have no batch stride", tensor.name, i,
                        ll(s));
        }
    }
    const int last = tensor.rank - 1;
    if (unit && tensor.stride[last] != 1) {
        return fail(message, tensor.stride[last] == 0 ? FA_INVALID_ARGUMENT : FA_UNSUPPORTED,
                    "%s_stride[%d] is %lld: expected an element stride of 1", tensor.name, last, ll(tensor.stride[last]));
    }
    return check_fits(tensor, message);
}

fa_status_t lay_out(Tensor* tensor, bool unit, Message* message) {
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->stride[i] != 0) return check_strides(*tensor, unit, message);
    }
    return lay_dense(tensor, message);
}

Tensor tokens(const char* name, const void* base, int32_t dtype, const Rows& rows, int64_t heads, int64_t dim, const int64_t* s) {
    return {name,
            base,
            element_size(dtype),
            4,
            rows.packed ? 0 : kNoDim,
            false,
            {rows.packed ? 1 : rows.batch, rows.packed ? rows.total : rows.rows, heads, dim / unit_elements(dtype)},
            {s[0], s[1], s[2], s[3]}};
}

Rows query_rows(const Problem& problem) { return {problem.d.batch, problem.d.seqlen_q, problem.d.total_q, problem.packed_q()}; }

// Rows of the cache: pages stand where sequences stood.
static Rows key_rows(const Problem& problem) {
    if (problem.paged()) return {problem.d.num_pages, problem.d.page_size, 0, false};
    return {problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch, problem.d.seqlen_k, problem.d.total_k,
            problem.packed_k()};
}

Tensor q_tensor(const Problem& problem, const char* name, const void* base) {
    return tokens(name, base, problem.d.q_dtype, query_rows(problem), problem.d.heads_q, problem.q_dims(), problem.d.q_stride);
}
Tensor k_tensor(const Problem& problem, const void* base) {
    return tokens("k", base, problem.d.k_dtype, key_rows(problem), problem.d.heads_k, problem.k_dims(), problem.d.k_stride);
}
Tensor v_tensor(const Problem& problem, const void* base) {
    return tokens("v", base, problem.d.v_dtype, key_rows(problem), problem.d.heads_v, problem.d.dim_v, problem.d.v_stride);
}
Tensor q_tail_tensor(const Problem& problem, const void* base) {
    return tokens("q_tail", base, problem.d.q_tail_dtype, query_rows(problem), problem.d.heads_q, problem.d.dim_tail,
                  problem.d.q_tail_stride);
}
Tensor k_tail_tensor(const Problem& problem, const void* base) {
    return tokens("k_tail", base, problem.d.k_tail_dtype, key_rows(problem), problem.d.heads_k, problem.d.dim_tail,
                  problem.d.k_tail_stride);
}
Tensor o_tensor(const Problem& problem, const void* base) {
    return tokens("o", base, problem.d.o_dtype, query_rows(problem), problem.d.heads_q, problem.d.dim_v, problem.d.o_stride);
}

Tensor lse_tensor(const Problem& problem, const void* base) {
    const Rows r = query_rows(problem);
    return {"lse",
            base,
            4,
            3,
            r.packed ? 0 : kNoDim,
            false,
            {r.packed ? 1 : r.batch, problem.d.heads_q, r.packed ? r.total : r.rows},
            {problem.d.lse_stride[0], problem.d.lse_stride[1], problem.d.lse_stride[2]}};
}

Tensor score_tensor(const Problem& problem, const char* name, const void* base, int32_t element, const int64_t* s) {
    return {name,
            base,
            element,
            4,
            kNoDim,
            false,
            {problem.d.batch, problem.d.heads_q, problem.d.seqlen_q, problem.d.seqlen_k},
            {s[0], s[1], s[2], s[3]}};
}

Tensor pair_tensor(const Problem& problem, const char* name, const void* base, int32_t element, const int64_t* s, const int64_t* period) {
    Tensor t = score_tensor(problem, name, base, element, s);
    for (int i = 0; i < 2; i++) t.extent[i] = min_of(t.extent[i], period[i]);
    return t;
}

Tensor mask_tensor(const Problem& problem, const void* base) {
    Tensor t = pair_tensor(problem, "mask", base, 1, problem.d.mask_stride, problem.d.mask_period);
    if (problem.d.mask_keys > 0 && t.extent[3] > 0) t.extent[3] = problem.d.mask_keys;
    if (problem.d.mask_dtype == FA_BIT) t.extent[3] = ceil_div(t.extent[3], 8);
    return t;
}

Tensor key_range_tensor(const Problem& problem, const char* name, const void* base) {
    const Rows r = query_rows(problem);
    const int64_t* s = problem.d.key_range_stride;
    return {name,
            base,
            8,
            4,
            r.packed ? 0 : kNoDim,
            false,
            {r.packed ? 1 : r.batch, problem.d.heads_q, r.packed ? r.total : r.rows, problem.d.key_range_max},
            {s[0], s[1], s[2], s[3]},
            4};
}

static int64_t row_blocks(const Problem& problem, const Rows& rows) {
    return ceil_div(rows.packed ? rows.total : rows.rows, problem.d.list_rows);
}

Tensor key_list_tensor(const Problem& problem, const char* name, const void* base) {
    const Rows r = query_rows(problem);
    const int64_t* s = problem.d.list_stride;
    return {name,
            base,
            4,
            4,
            r.packed ? 0 : kNoDim,
            false,
            {r.packed ? 1 : r.batch, problem.d.list_heads, row_blocks(problem, r), problem.d.list_max},
            {s[0], s[1], s[2], s[3]}};
}

Tensor key_list_count_tensor(const Problem& problem, const char* name, const void* base) {
    const Rows r = query_rows(problem);
    const int64_t* s = problem.d.list_count_stride;
    return {name,
            base,
            4,
            3,
            r.packed ? 0 : kNoDim,
            false,
            {r.packed ? 1 : r.batch, problem.d.list_heads, row_blocks(problem, r)},
            {s[0], s[1], s[2]}};
}

// Of packed rows, each meets only its own sequence's factor: with both strides the pairs that are read are not known here.
static Tensor descale(const char* name, const void* base, int32_t dtype, const Rows& rows, int64_t batch, int64_t heads, int64_t dims,
                      const int64_t* block, const int64_t* s) {
    return {name,
            base,
            element_size(dtype),
            4,
            kNoDim,
            rows.packed && s[0] != 0 && s[1] != 0,
            {rows.packed ? batch : rows.batch, ceil_div(rows.packed ? rows.total : rows.rows, block[0]), heads, ceil_div(dims, block[1])},
            {s[0], s[1], s[2], s[3]}};
}
Tensor q_descale_tensor(const Problem& problem, const void* base) {
    return descale("q_descale", base, problem.d.q_descale_dtype, query_rows(problem), problem.d.batch, problem.d.heads_q, problem.q_dims(),
                   problem.d.q_descale_block, problem.d.q_descale_stride);
}
Tensor k_descale_tensor(const Problem& problem, const void* base, const char* name) {
    return descale(name, base, problem.d.k_descale_dtype, key_rows(problem), problem.d.batch, problem.d.heads_k, problem.k_dims(),
                   problem.d.k_descale_block, problem.d.k_descale_stride);
}
Tensor v_descale_tensor(const Problem& problem, const void* base, const char* name) {
    return descale(name, base, problem.d.v_descale_dtype, key_rows(problem), problem.d.batch, problem.d.heads_v, problem.v_dims(),
                   problem.d.v_descale_block, problem.d.v_descale_stride);
}

Tensor page_table_tensor(const Problem& problem, const void* base) {
    const int64_t rows = problem.has(FA_OPERAND_KV_BATCH_IDX) ? problem.d.kv_batch : problem.d.batch;
    return table_of("page_table", base, 4, rows, problem.pages_per_row, problem.d.page_table_stride);
}

}  // namespace fa
