// Hand-made cases: a shape first, then whatever the test is about.
#pragma once
#include <limits>
#include "support/case.h"
#include "support/handle.h"

namespace test {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int64_t kFar = int64_t(1) << 33;  // elements: beyond 32 bits as a count, and more so as bytes

struct Shape {
    int64_t batch, heads_q, heads_k, rows, keys, dim_qk, dim_v;
};

// Dense, with an LSE; not yet bound.
inline Case shaped(const Shape& shape, int32_t q_dtype = FA_F32) {
    Case c;
    c.d.q_dtype = q_dtype;
    c.d.operands = FA_OPERAND_LSE;
    c.d.batch = shape.batch, c.d.heads_q = shape.heads_q, c.d.heads_k = shape.heads_k;
    c.d.seqlen_q = shape.rows, c.d.seqlen_k = shape.keys, c.d.dim_qk = shape.dim_qk, c.d.dim_v = shape.dim_v;
    return c;
}

inline void causal(Case& test_case, int32_t alignment) {
    test_case.d.flags |= FA_CAUSAL;
    test_case.d.alignment = alignment;
}

inline void window(Case& test_case, int64_t left, int64_t right, int32_t alignment) {
    test_case.d.flags |= FA_WINDOW;
    test_case.d.window_left = left, test_case.d.window_right = right, test_case.d.alignment = alignment;
}

// Strides of a dense [batch][heads][rows][keys] array, for bias, mask and scores.
inline void dense_pairs(const fa_attention_desc_t& desc, int64_t (&stride)[4]) {
    stride[3] = 1, stride[2] = desc.seqlen_k, stride[1] = desc.seqlen_q * desc.seqlen_k,
    stride[0] = desc.heads_q * desc.seqlen_q * desc.seqlen_k;
}

// Pages in descending order of id, so that none is where a plain cache would have it.
inline void paged(Case& test_case, int64_t page_size) {
    test_case.d.operands |= FA_OPERAND_PAGE_TABLE;
    test_case.d.page_size = page_size;
    const int64_t columns = (test_case.d.seqlen_k + page_size - 1) / page_size;
    test_case.d.num_pages = test_case.d.batch * columns + 1;
    for (int64_t n = 0; n < test_case.d.batch * columns; n++)
        test_case.metadata.page_table.push_back(int32_t(test_case.d.num_pages - 1 - n));
}

// Runs and compares with the oracle: "" when all is right.
inline std::string run_and_check(const Handle& handle, Case& test_case, int64_t row_step = 1) {
    if (test_case.run(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
    const std::string fault = check_against_oracle(test_case, test_case.p_dtype, row_step);
    return fault.empty() ? "" : fault + "\n" + test_case.describe();
}

// A copy of an output's bytes, for comparisons of bits.
inline std::vector<unsigned char> bytes_of(const Buffer& buffer) {
    const unsigned char* begin = buffer.as<unsigned char>();
    return buffer.bytes() > 0 ? std::vector<unsigned char>(begin, begin + buffer.bytes()) : std::vector<unsigned char>();
}

// Lists for blocks of rows, dense over (batch, list head, block of rows, entry), of slots in pages: rows · page_size of them in all.
inline void want_slots(fa_attention_desc_t& desc, int64_t page_size, int64_t pages, int64_t rows, int64_t heads, int64_t most) {
    desc.operands |= FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT;
    desc.list_space = FA_LIST_SLOTS, desc.page_size = page_size, desc.num_pages = pages;
    desc.list_rows = rows, desc.list_heads = heads, desc.list_max = most;
    const bool packed = desc.operands & FA_OPERAND_CU_SEQLENS_Q;
    const int64_t blocks = ((packed ? desc.total_q : desc.seqlen_q) + rows - 1) / rows;
    desc.list_stride[3] = 1, desc.list_stride[2] = most, desc.list_stride[1] = blocks * most,
    desc.list_stride[0] = packed ? 0 : heads * blocks * most;
    desc.list_count_stride[2] = 1, desc.list_count_stride[1] = blocks, desc.list_count_stride[0] = packed ? 0 : heads * blocks;
}

}  // namespace test
