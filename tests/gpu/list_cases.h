// Calls with lists of blocks of keys and with ranges of keys for the tests of every kernel, and what fills them.
#pragma once
#include <algorithm>
#include <numeric>
#include "support/shaped.h"

namespace test::gpu {

// Lists that a tile's rows share and lists of each of its halves, blocks of one unit of 64 keys, of two and of three, with the last of them
// cut off; with masks and without, in bytes and in bits, and a mask alone; pages; of one length and of several, packed rows, heads that
// share lists; ranges of rows, alone and in lists; few tiles and more than there are multiprocessors.
inline std::vector<Case> list_cases() {
    struct Shape {
        int64_t batch, heads, rows, keys;
    };
    struct Blocks {
        int64_t rows, keys;
    };
    enum { dense, causal_mask, window_or_chunk, masks };
    enum {
        of_lists,
        ragged,
        packed,
        to_f32,
        in_pages,
        mask_bytes,
        mask_bits,
        mask_alone,
        ranges,
        several_ranges,
        ranges_and_lists,
        layouts
    };
    std::vector<Case> cases;
    for (const int32_t dtype : {FA_BF16, FA_F16})
        for (const auto& [dim_qk, dim_v] : {std::pair{64, 64}, {80, 72}, {128, 128}, {256, 192}})
            for (const Shape& shape : {Shape{2, 4, 300, 700}, Shape{1, 24, 768, 330}})
                for (int mask = dense; mask < masks; mask++)
                    for (int layout = of_lists; layout < layouts; layout++) {
                        const Blocks blocks = std::vector{Blocks{64, 64}, Blocks{128, 128}, Blocks{192, 64}, Blocks{256, 192},
                                                          Blocks{64, 128}}[cases.size() % 5];
                        if (shape.heads > 4 && (mask + layout) % 5 != 0) continue;
                        Case c = shaped({shape.batch, shape.heads, shape.heads / 2, shape.rows, shape.keys, dim_qk, dim_v}, dtype);
                        if (mask == causal_mask) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                        if (mask == window_or_chunk && cases.size() % 2 == 0) window(c, 200, 70, FA_ALIGN_BOTTOM_RIGHT);
                        if (mask == window_or_chunk && cases.size() % 2 == 1) c.d.chunk = 150, c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
                        if (layout == to_f32) c.d.o_dtype = FA_F32, c.d.operands |= FA_OPERAND_SINKS;
                        if (layout == ragged || layout == ranges_and_lists) {
                            c.d.operands |= FA_OPERAND_SEQUSED_K;
                            for (int64_t b = 0; b < shape.batch; b++) c.metadata.seqused_k.push_back(int32_t(b == 1 ? 0 : shape.keys - 61));
                        }
                        if (layout == packed) {
                            c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q;
                            c.metadata.cu_seqlens_q = {0};
                            for (int64_t b = 0; b < shape.batch; b++) {
                                const int32_t begin = int32_t((b * shape.rows / blocks.rows + 1) * blocks.rows);
                                c.metadata.cu_seqlens_q[size_t(b)] = begin;
                                c.metadata.cu_seqlens_q.push_back(int32_t(begin + shape.rows));
                                c.metadata.seqused_q.push_back(int32_t(shape.rows - blocks.rows));
                            }
                            c.d.total_q = c.metadata.cu_seqlens_q.back();
                        }
                        if (layout == in_pages) paged(c, blocks.keys == 128 ? 64 : 128);
                        if (layout == mask_alone && dim_qk <= 128) continue;  // they have kernels of their own
                        if (layout == mask_bytes || layout == mask_bits || layout == mask_alone) {
                            c.d.operands |= FA_OPERAND_MASK;
                            dense_pairs(c.d, c.d.mask_stride);
                        }
                        if (layout == mask_bytes) {  // rows of whole vectors, for all heads
                            c.d.mask_stride[2] = (shape.keys + 15) / 16 * 16, c.d.mask_stride[1] = 0,
                            c.d.mask_stride[0] = shape.rows * c.d.mask_stride[2];
                        }
                        if (layout == mask_bits) {  // for each head, of the last keys
                            c.d.mask_dtype = FA_BIT, c.d.mask_keys = shape.keys - 200;
                            c.d.mask_stride[2] = shape.keys / 8 + 1;
                            c.d.mask_stride[1] = shape.rows * c.d.mask_stride[2], c.d.mask_stride[0] = shape.heads * c.d.mask_stride[1];
                        }
                        if (layout >= ranges) {
                            c.d.operands |= FA_OPERAND_KEY_RANGES;
                            c.d.key_range_stride[3] = 1, c.d.key_range_stride[2] = 1;
                            if (layout == ranges) c.d.key_range_stride[1] = shape.rows, c.d.key_range_stride[0] = shape.rows * shape.heads;
                        }
                        if (layout == several_ranges) c.d.key_range_max = 3, c.d.key_range_stride[2] = 3;
                        if (layout != ranges && layout != several_ranges && layout != mask_alone) {
                            const int64_t all = (shape.keys + blocks.keys - 1) / blocks.keys, most = all / 2 + 1;
                            const int64_t heads = layout == of_lists ? shape.heads : layout == to_f32 ? 1 : 2;
                            c.d.operands |= FA_OPERAND_KEY_LIST;
                            if (layout != to_f32 || mask == dense) c.d.operands |= FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT;
                            if (layout != ragged) c.d.operands |= FA_OPERAND_KEY_LIST_COUNT;
                            c.d.list_rows = blocks.rows, c.d.list_keys = blocks.keys, c.d.list_heads = heads, c.d.list_max = most;
                            const int64_t row_blocks = ((layout == packed ? c.d.total_q : shape.rows) + blocks.rows - 1) / blocks.rows;
                            c.d.list_stride[3] = 1, c.d.list_stride[2] = most, c.d.list_stride[1] = row_blocks * most;
                            c.d.list_stride[0] = layout == packed ? 0 : heads * row_blocks * most;
                            if (c.d.operands & (FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST_COUNT)) {
                                c.d.list_count_stride[2] = 1, c.d.list_count_stride[1] = row_blocks;
                                c.d.list_count_stride[0] = layout == packed ? 0 : heads * row_blocks;
                            }
                        }
                        cases.push_back(std::move(c));
                    }
    return cases;
}

// Different blocks in any order, some of them −1, and of each list none at times; rows without a key, and with keys near a diagonal.
inline void fill_lists(Case& test_case, Rng& rng) {
    const int64_t keys = std::max<int64_t>(test_case.d.list_keys, 1), blocks = (test_case.d.seqlen_k + keys - 1) / keys;
    if (test_case.d.operands & FA_OPERAND_KEY_RANGES)
        test_case.set_key_ranges([&](int64_t, int64_t, int64_t row) {
            const int32_t end = row % 13 == 5 ? std::numeric_limits<int32_t>::max() : int32_t(2 * row + rng.between(0, 40));
            const int32_t begin = int32_t(row / 100 * 80 - 10);
            if (test_case.d.key_range_max < 2) return std::vector<int32_t>{row % 17 == 3 ? end : begin, end};
            return std::vector<int32_t>{begin, begin + 90, begin + 130, begin + 130, begin + 200, row % 11 == 7 ? begin : end};
        });
    if (test_case.d.operands & (FA_OPERAND_KEY_LIST | FA_OPERAND_FULL_LIST))
        test_case.set_key_lists([&](int64_t, int64_t, int64_t) {
            std::vector<int32_t> all(static_cast<size_t>(blocks));
            std::iota(all.begin(), all.end(), 0);
            for (size_t n = all.size(); n > 1; n--) std::swap(all[n - 1], all[size_t(rng.between(0, int64_t(n) - 1))]);
            Case::Lists lists;
            for (std::vector<int32_t>* list : {&lists.masked, &lists.full})
                for (int64_t e = rng.chance(0.2) ? 0 : rng.between(0, test_case.d.list_max); e > 0 && !all.empty(); e--, all.pop_back())
                    list->push_back(rng.chance(0.1) ? -1 : all.back());
            return lists;
        });
}

// A mask that leaves every third unit of 64 keys to no row: NaN in the v of these must not show.
inline Case with_empty_units(int64_t dim, int32_t dtype) {
    const auto empty = [](int64_t key) { return key / 64 % 3 == 1; };
    Case c = shaped({1, 4, 2, 300, 900, dim, dim}, dtype);
    c.d.operands |= FA_OPERAND_MASK | FA_OPERAND_KEY_RANGES;
    dense_pairs(c.d, c.d.mask_stride);
    c.d.key_range_stride[3] = 1, c.d.key_range_stride[2] = 1;
    Rng rng(241);
    c.bind(rng);
    c.fill_normal(rng);
    c.set_mask([&](int64_t, int64_t, int64_t, int64_t key) { return !empty(key) && rng.chance(0.5); });
    c.set_key_ranges([&](int64_t, int64_t, int64_t) { return std::vector<int32_t>{0, 900}; });
    c.set_v([&](int64_t, int64_t, int64_t key, int64_t) { return empty(key) ? double(NAN) : rng.normal(); });
    return c;
}

}  // namespace test::gpu
