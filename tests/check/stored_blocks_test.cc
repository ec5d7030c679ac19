// Keys and values in blocks under queries of 16 bits: kernels of matrix units copy them as they are, widen their integers, and multiply
// factors into scores and weights.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include "check/score_options.h"

namespace test {
namespace {

struct BlockTypes {
    int32_t q, kv;
};

class StoredBlocks : public testing::TestWithParam<BlockTypes> {
  protected:
    const Handle handle = make_handle();
    const BlockTypes types = GetParam();
    Rng rng{derive(281, uint64_t(types.q * 32 + types.kv))};

    Case make(const Shape& shape) const {
        Case c = shaped(shape, types.q);
        c.d.k_dtype = types.kv;
        return c;
    }
    std::string check(Case test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        return run_and_check(handle, test_case);
    }
    // Any integers, and of each block the factor that `factor` returns.
    template <class Factor>
    void fill_blocks(const Buffer& buffer, Factor factor) {
        const int64_t size = oracle::size_of(types.kv);
        for (int64_t block = 0; block < buffer.bytes() / size; block++) {
            unsigned char* const at = buffer.as<unsigned char>() + block * size;
            for (int64_t n = 0; n < size; n++) at[n] = static_cast<unsigned char>(rng.bits());
            oracle::store_block_word(at, 0, factor());
        }
    }
};

// Every key and value differs, and so does every dim of q: an element out of place shows.
TEST_P(StoredBlocks, LengthsAndWidths) {
    for (const int64_t rows : {1, 17, 70})
        for (const int64_t keys : {1, 63, 65, 129, 300})
            for (const int64_t dim : {rng.pick<int64_t>({32, 96, 160, 192, 224}), int64_t(64), int64_t(128), int64_t(256)}) {
                if (dim >= 160 && rows * keys > 2000 && rows != 17) continue;
                Case c = make({1, 2, 1, rows, keys, dim, rng.chance(0.8) ? dim : 32});
                if (rng.chance(0.5)) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                if (rng.chance(0.3)) c.d.num_splits = 2;
                if (rng.chance(0.2)) c.d.o_dtype = FA_F32;
                ASSERT_EQ(check(std::move(c)), "");
            }
}

TEST_P(StoredBlocks, Pages) {
    for (const int64_t page : {1, 48})
        for (const int64_t dim : {64, 96, 128, 256})
            for (const int64_t rows : {1, 20}) {
                Case c = make({2, 2, 1, rows, 140, dim, dim});
                paged(c, page);
                ASSERT_EQ(check(std::move(c)), "");
            }
}

// Blocks beside the tensor's own make its rows begin at any even address.
TEST_P(StoredBlocks, RowsApart) {
    for (const int64_t dim : {64, 128, 256})
        for (const int64_t gap : {1, 2, 4})
            for (const int64_t rows : {1, 20}) {
                constexpr int64_t keys = 130;
                Case c = make({1, 2, 2, rows, keys, dim, dim});
                c.d.strided = FA_STRIDED_K | FA_STRIDED_V;
                const int64_t row = 2 * dim / 32 + gap, stride[4] = {keys * row, row, dim / 32, 1};
                std::copy_n(stride, 4, c.d.k_stride);
                std::copy_n(stride, 4, c.d.v_stride);
                ASSERT_EQ(check(std::move(c)), "") << gap;
            }
}

// Rows of an even number of heads are whole pieces of 16 bytes apart, so that every other head begins 8 bytes behind one; tensors end with
// a page that nobody may read.
TEST_P(StoredBlocks, HeadsBetweenPieces) {
    for (const int64_t heads : {2, 4})
        for (const int64_t keys : {1, 14, 63, 64, 65, 129, 300})
            for (const int64_t rows : {1, 2, 3}) {
                Case c = make({2, 4 * heads, heads, rows, keys, 128, 128});
                if (rng.chance(0.5)) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                c.d.num_splits = rng.pick<int32_t>({1, 3});
                ASSERT_EQ(check(std::move(c)), "") << heads << " heads, " << keys << " keys";
            }
}

// What is done to scores and weights, which blocks have in units of their own.
TEST_P(StoredBlocks, Options) {
    for (const ScoreOption option : kScoreOptions)
        for (const int64_t rows : {1, 40}) {
            Case c = make({1, 4, 2, rows, 150, 64, 64});
            want_option(c, option);
            c.bind(rng);
            c.fill_normal(rng);
            fill_option(c, option, rng);
            ASSERT_EQ(run_and_check(handle, c), "") << int(option);
        }
}

// Integers of every value, and factors of v from the smallest to the largest, of both signs, and 0.
TEST_P(StoredBlocks, FactorsOfAnySize) {
    for (const double size : {0x1p-24, 0x1p-14, 1.0, 300.0})
        for (const int64_t rows : {1, 9, 40}) {
            Case c = make({1, 2, 1, rows, 150, 128, 256});
            c.d.o_dtype = FA_F32;
            c.bind(rng);
            c.fill_normal(rng);
            fill_blocks(c.k, [&] { return rng.uniform(-0.02, 0.02); });
            fill_blocks(c.v, [&] { return rng.chance(0.1) ? 0.0 : rng.uniform(-200, 200) * size; });
            ASSERT_EQ(run_and_check(handle, c), "") << size;
        }
}

// A factor that is no number, or infinite, spoils its own 32 columns and no others; that of a key beyond a sequence, nothing.
TEST_P(StoredBlocks, OneFactorIsNotFinite) {
    for (const double odd : {kInf, double(NAN)})
        for (const int64_t rows : {1, 20})
            for (const bool beyond : {false, true}) {
                Case c = make({2, 2, 1, rows, 40, 64, 64});
                c.d.operands |= FA_OPERAND_SEQUSED_K;
                c.metadata.seqused_k = {int32_t(beyond ? 39 : 40), 40};
                c.bind(rng);
                c.fill_normal(rng);
                const oracle::Reading r = c.reading();
                oracle::store_block_word(c.v.as<char>() + r.v(0, 0, 39) * oracle::size_of(types.kv), 0, odd);
                ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
                for (int64_t b = 0; b < 2; b++)
                    for (int64_t e = 0; e < 64; e++) {
                        const double o = oracle::load(c.o.as(), r.o(b, 0, rows - 1) + e, types.q);
                        EXPECT_EQ(std::isfinite(o), beyond || b == 1 || e >= 32) << b << ", column " << e;
                    }
            }
}

std::string name_of_types(const testing::TestParamInfo<BlockTypes>& info) {
    return std::string(oracle::name_of(info.param.kv)) + "_under_" + oracle::name_of(info.param.q);
}
INSTANTIATE_TEST_SUITE_P(Types, StoredBlocks,
                         testing::Values(BlockTypes{FA_BF16, FA_Q8_0}, BlockTypes{FA_BF16, FA_Q5_0}, BlockTypes{FA_BF16, FA_Q4_0},
                                         BlockTypes{FA_F16, FA_Q8_0}, BlockTypes{FA_F16, FA_Q5_0}, BlockTypes{FA_F16, FA_Q4_0}),
                         name_of_types);

}  // namespace
}  // namespace test
