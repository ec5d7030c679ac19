// Shapes that are awkward for matrix units: lengths, head dimensions, strides and groups that fill their tiles badly. Tiles of 16, 32, 64
// and 128 rows and of 32 and 64 keys are meant, and rows that are read 16 bytes at a time where their alignment allows it.
#include <gtest/gtest.h>
#include <algorithm>
#include "support/shaped.h"

namespace test {
namespace {

class MatrixShape : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    Rng rng{derive(241, uint64_t(GetParam()))};

    void expect_right(Case& test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        EXPECT_EQ(run_and_check(handle, test_case), "");
    }
    // A width that fills a kernel's, which has a loop of its own for such, or one that does not.
    int64_t dim(int64_t otherwise) { return rng.chance(0.6) ? rng.pick<int64_t>({64, 64, 64, 128}) : otherwise; }
    // No mask, or causal either way.
    void mask_somehow(Case& test_case) {
        const int64_t which = rng.between(0, 2);
        if (which > 0) causal(test_case, which == 1 ? FA_ALIGN_TOP_LEFT : FA_ALIGN_BOTTOM_RIGHT);
    }
};

TEST_P(MatrixShape, LengthsAroundTiles) {
    for (const int64_t rows : {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129})
        for (const int64_t keys : {1, 15, 31, 32, 33, 63, 64, 65, 127, 128, 129, 193}) {
            const int64_t d = dim(40);
            Case c = shaped({1, 1, 1, rows, keys, d, d}, GetParam());
            mask_somehow(c);
            expect_right(c);
        }
}

// Below, at and above what is loaded at once, and the widths for which kernels are compiled.
TEST_P(MatrixShape, HeadDimensions) {
    const int64_t dims[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 33, 63, 64, 65, 72, 96, 111, 127, 128, 129, 160, 193, 255, 256};
    for (const int64_t dim : dims)
        for (const int64_t dim_v : {dim, 257 - dim, rng.pick<int64_t>({1, 5, 64, 130})})
            for (const int64_t rows : {2, 19}) {
                Case c = shaped({1, 2, 1, rows, 70, dim, dim_v}, GetParam());
                mask_somehow(c);
                expect_right(c);
            }
}

// Distances of 0, 1, 2, 4 and 8 elements between heads: rows are then aligned to 16 bytes, to 4, or to one element.
TEST_P(MatrixShape, DistancesBetweenHeads) {
    const auto spread = [&](int64_t heads, int64_t rows, int64_t dim, int64_t (&stride)[4]) {
        stride[3] = 1;
        stride[2] = dim + rng.pick<int64_t>({0, 1, 2, 4, 8});
        stride[1] = heads * stride[2] + rng.pick<int64_t>({0, 0, 1, 2, 4});
        stride[0] = rows * stride[1] + rng.pick<int64_t>({0, 0, 1, 2, 4});
    };
    for (int n = 0; n < 60; n++) {
        const int64_t dim = rng.pick<int64_t>({24, 32, 63, 64, 100, 128}), dim_v = rng.chance(0.5) ? dim : 48;
        const int64_t rows = rng.pick<int64_t>({1, 4, 50}), keys = 90;
        Case c = shaped({2, 4, 2, rows, keys, dim, dim_v}, GetParam());
        c.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O;
        spread(4, rows, dim, c.d.q_stride), spread(2, keys, dim, c.d.k_stride);
        spread(2, keys, dim_v, c.d.v_stride), spread(4, rows, dim_v, c.d.o_stride);
        mask_somehow(c);
        expect_right(c);
    }
}

// k, q and v are slices of one tensor, as a projection leaves them, so that they begin at any element: a call copies them as one region.
TEST_P(MatrixShape, SlicesOfOneTensor) {
    constexpr int64_t kRows = 70, kHeads = 2;
    for (const int64_t dim : {40, 63, 64, 128})
        for (const int64_t gap : {0, 1, 2, 3, 4, 8}) {
            Case c = shaped({1, kHeads, kHeads, kRows, kRows, dim, dim}, GetParam());
            const int64_t slice = kHeads * dim + gap, row = 3 * slice;
            c.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V;
            for (auto* stride : {&c.d.q_stride, &c.d.k_stride, &c.d.v_stride})
                (*stride)[0] = kRows * row, (*stride)[1] = row, (*stride)[2] = dim, (*stride)[3] = 1;
            mask_somehow(c);
            c.bind(rng);
            const int64_t size = oracle::size_of(GetParam());
            const Buffer whole(kRows * row * size, Buffer::Guard::after);
            for (int64_t n = 0; n < kRows * row; n++)
                if (n % slice < kHeads * dim) oracle::store(whole.as(), n, GetParam(), rng.normal());
            c.a.k = whole.as<char>(), c.a.q = whole.as<char>() + slice * size, c.a.v = whole.as<char>() + 2 * slice * size;
            EXPECT_EQ(run_and_check(handle, c), "") << gap;
        }
}

TEST_P(MatrixShape, GroupsOfHeads) {
    for (const int64_t group : {1, 2, 3, 7, 16, 32})
        for (const int64_t rows : {1, 2, 3, 5, 11}) {
            const int64_t d = dim(48);
            Case c = shaped({2, 2 * group, 2, rows, 100, d, d}, GetParam());
            mask_somehow(c);
            expect_right(c);
        }
}

// Splits that end within a tile, at its border, at the last key and beyond; with a window, some of them hold no key of a row.
TEST_P(MatrixShape, BordersOfSplits) {
    for (const int64_t keys : {1, 64, 65, 128, 300})
        for (const int64_t size : {-5, -2, 1, 16, 63, 64, 65, 128, 299, 1000})  // negative: so many splits
            for (const int64_t rows : {1, 40}) {
                if (size == 1 && keys > 65) continue;
                const int64_t d = dim(32);
                Case c = shaped({1, 6, 2, rows, keys, d, d}, GetParam());
                if (size < 0) c.d.num_splits = int32_t(-size);
                else c.d.split_size = size;
                if (rng.chance(0.5)) window(c, rng.between(0, 70), rng.between(0, 3), FA_ALIGN_BOTTOM_RIGHT);
                expect_right(c);
            }
}

TEST_P(MatrixShape, WindowsAndChunks) {
    for (const int64_t left : {0, 1, 15, 16, 17, 63, 64, 65})
        for (const int64_t right : {0, 1, 31, 64}) {
            const int64_t d = dim(24);
            Case c = shaped({1, 1, 1, 140, 200, d, d}, GetParam());
            window(c, left, right, rng.chance(0.5) ? FA_ALIGN_TOP_LEFT : FA_ALIGN_BOTTOM_RIGHT);
            expect_right(c);
        }
    for (const int64_t chunk : {1, 3, 16, 63, 64, 65, 100}) {
        const int64_t d = dim(24);
        Case c = shaped({1, 4, 2, 70, 170, d, d}, GetParam());
        c.d.chunk = chunk, c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        expect_right(c);
    }
}

// What lies behind a sequence's keys is NaN: lengths around tiles, in a padded, a packed and a paged cache.
TEST_P(MatrixShape, LengthsWithinACache) {
    const std::vector<int32_t> lengths = {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129};
    for (const int64_t page : {-1, 0, 1, 3, 16, 64, 100})  // −1: packed, 0: padded
        for (const int64_t rows : {1, 30}) {
            const int64_t d = dim(24);
            Case c = shaped({int64_t(lengths.size()), 4, 2, rows, 129, d, d}, GetParam());
            if (page < 0) {
                c.d.operands |= FA_OPERAND_CU_SEQLENS_K;
                c.metadata.cu_seqlens_k = {3};  // slots before the first sequence are nobody's
                for (const int32_t length : lengths) c.metadata.cu_seqlens_k.push_back(c.metadata.cu_seqlens_k.back() + length);
                c.d.total_k = c.metadata.cu_seqlens_k.back() + 5;
            } else {
                c.d.operands |= FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K;
                c.metadata.seqused_k = lengths;
                for (const int32_t length : lengths) c.metadata.leftpad_k.push_back(int32_t(rng.between(0, std::min(length, 20))));
            }
            if (page > 0) paged(c, page);
            mask_somehow(c);
            expect_right(c);
        }
}

INSTANTIATE_TEST_SUITE_P(Types, MatrixShape, testing::Values(FA_F32, FA_F16, FA_BF16, FA_E4M3),
                         [](const auto& info) { return oracle::name_of(info.param); });

// Heads of 257 to 512 dims, whose columns several warps share; and of 513 to 576, of which v has 512 at most. Prefill and decoding, over
// pages and not, with rows that are and are not whole vectors of 16 bytes.
class MatrixWideHeads : public MatrixShape {};

TEST_P(MatrixWideHeads, SeveralTiles) {
    struct Form {
        Shape shape;
        int64_t page;
        int32_t splits;
    };
    const Form forms[] = {{{1, 2, 1, 70, 90, 512, 512}, 0, 1},  {{1, 1, 1, 37, 70, 388, 300}, 0, 1},  {{1, 2, 2, 40, 50, 271, 271}, 0, 2},
                          {{2, 8, 2, 1, 150, 512, 512}, 16, 3}, {{1, 12, 1, 3, 70, 320, 512}, 0, 0},  {{1, 4, 2, 30, 70, 512, 264}, 5, 1},
                          {{1, 2, 1, 40, 50, 576, 512}, 0, 1},  {{1, 16, 1, 2, 90, 576, 512}, 16, 2}, {{1, 3, 1, 9, 40, 550, 271}, 0, 1}};
    for (const Form& form : forms)
        for (const bool capped : {false, true}) {
            Case c = shaped(form.shape, GetParam());
            mask_somehow(c);
            if (form.page) paged(c, form.page);
            if (capped) c.d.softcap = 3;
            c.d.num_splits = form.splits;
            expect_right(c);
        }
}
INSTANTIATE_TEST_SUITE_P(Types, MatrixWideHeads, testing::Values(FA_F16, FA_BF16),
                         [](const auto& info) { return oracle::name_of(info.param); });

}  // namespace
}  // namespace test
