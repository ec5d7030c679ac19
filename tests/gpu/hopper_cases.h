// Calls for Hopper's own kernels whose shapes or factors the other tests of kernels have not.
#pragma once
#include "support/shaped.h"

namespace test::gpu {

// Factors of 8-bit q, k and v, one for a sequence and head; over pages one for a head.
inline void descale_heads(Case& test_case) {
    test_case.d.operands |= FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
    const bool pages = (test_case.d.operands & FA_OPERAND_PAGE_TABLE) != 0;
    test_case.d.q_descale_stride[0] = test_case.d.heads_q;
    test_case.d.k_descale_stride[0] = test_case.d.v_descale_stride[0] = pages ? 0 : test_case.d.heads_k;
    test_case.d.q_descale_stride[2] = test_case.d.k_descale_stride[2] = test_case.d.v_descale_stride[2] = 1;
}

// Of blocks of q's rows and of keys, k's of another type.
inline void descale_blocks(Case& test_case, int64_t rows, int64_t keys) {
    descale_heads(test_case);
    test_case.d.k_descale_dtype = FA_BF16;
    test_case.d.q_descale_block[0] = rows, test_case.d.k_descale_block[0] = keys, test_case.d.v_descale_block[0] = 2 * keys;
    const auto lay = [](int64_t (&stride)[4], int64_t heads, int64_t blocks) { stride[1] = heads, stride[0] = heads * blocks; };
    lay(test_case.d.q_descale_stride, test_case.d.heads_q, test_case.d.seqlen_q / rows + 1);
    lay(test_case.d.k_descale_stride, test_case.d.heads_k, test_case.d.seqlen_k / keys + 1);
    lay(test_case.d.v_descale_stride, test_case.d.heads_k, test_case.d.seqlen_k / keys + 1);
}

// Heads of 257 to 512 dims, of k, of v and of both: one tile and several, an odd number of them, heads of a kv head that fill a tile's rows
// evenly and not; blocks of keys that are one and two, or end in the middle; splits, pages with sequences that have no keys, packed
// sequences of which one has no rows, and rows that see few keys or none.
inline std::vector<Case> wide_cases() {
    struct Shape {
        int64_t batch, heads, heads_k, rows, keys, dim_qk, dim_v;
    };
    enum { alike, ragged, in_pages, windowed, packed, to_f32, layouts };
    std::vector<Case> cases;
    for (const int32_t dtype : {FA_BF16, FA_F16})
        for (const Shape& shape : {Shape{2, 2, 2, 200, 300, 512, 512}, Shape{3, 4, 1, 1, 64, 512, 512}, Shape{3, 6, 1, 21, 129, 320, 264},
                                   Shape{2, 12, 2, 40, 700, 512, 64}, Shape{1, 1, 1, 321, 1000, 264, 512},
                                   Shape{1, 8, 2, 1, 5000, 512, 512}, Shape{3, 64, 1, 3, 90, 64, 512}, Shape{2, 5, 5, 64, 1, 512, 512}})
            for (const int splits : {0, 3})
                for (int layout = alike; layout < layouts; layout++) {
                    Case c = shaped({shape.batch, shape.heads, shape.heads_k, shape.rows, shape.keys, shape.dim_qk, shape.dim_v}, dtype);
                    c.d.num_splits = splits;
                    if (layout == windowed) window(c, 70, 20, FA_ALIGN_BOTTOM_RIGHT);
                    else if (layout != alike) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    if (layout == to_f32) c.d.o_dtype = FA_F32;
                    if (layout == ragged || layout == in_pages) {
                        c.d.operands |= FA_OPERAND_SEQUSED_K;
                        for (int64_t b = 0; b < shape.batch; b++)
                            c.metadata.seqused_k.push_back(int32_t(b == 2 ? 0 : shape.keys - b * shape.keys / 3));
                    }
                    if (layout == in_pages) paged(c, shape.keys > 200 ? 128 : 64);
                    if (layout == packed) {
                        c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
                        c.metadata.cu_seqlens_q = c.metadata.cu_seqlens_k = {0};
                        for (int64_t b = 0; b < shape.batch; b++) {
                            c.metadata.cu_seqlens_q.push_back(c.metadata.cu_seqlens_q.back() +
                                                              int32_t(b == 1 ? shape.rows / 3 : shape.rows));
                            c.metadata.cu_seqlens_k.push_back(c.metadata.cu_seqlens_k.back() + int32_t(b == 2 ? 0 : shape.keys - b));
                        }
                        c.d.total_q = c.metadata.cu_seqlens_q.back() + 3, c.d.total_k = c.metadata.cu_seqlens_k.back() + 5;
                    }
                    cases.push_back(std::move(c));
                }
    return cases;
}

// Fewer rows than a tile of Hopper's kernels has, and a few more, where several heads share one and where none do.
inline std::vector<Case> low_cases() {
    struct Shape {
        int64_t heads, heads_k, rows;
    };
    enum { alike, ragged, in_pages, packed, layouts };
    std::vector<Case> cases;
    for (const int32_t dtype : {FA_BF16, FA_F16})
        for (const int64_t dim : {64, 128, 256})
            for (const Shape& shape :
                 {Shape{8, 2, 20}, Shape{12, 2, 100}, Shape{16, 1, 9}, Shape{4, 4, 127}, Shape{64, 2, 33}, Shape{8, 2, 160}})
                for (int layout = alike; layout < layouts; layout++) {
                    Case c = shaped({2, shape.heads, shape.heads_k, shape.rows, 300, dim, dim}, dtype);
                    c.d.num_splits = 1;
                    if (layout != alike || shape.heads == 12) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                    if (layout == ragged) c.d.o_dtype = FA_F32, c.d.operands |= FA_OPERAND_SINKS;
                    if (layout == ragged || layout == in_pages) c.d.operands |= FA_OPERAND_SEQUSED_K, c.metadata.seqused_k = {300, 17};
                    if (layout == in_pages) paged(c, 48);
                    if (layout == packed) {
                        c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
                        c.metadata.cu_seqlens_q = {0, int32_t(shape.rows), int32_t(shape.rows + shape.rows / 3)};
                        c.metadata.cu_seqlens_k = {0, 131, 400};
                        c.d.total_q = c.metadata.cu_seqlens_q.back() + 3, c.d.total_k = 401;
                    }
                    cases.push_back(std::move(c));
                }
    return cases;
}

}  // namespace test::gpu
