// Few query rows for a kv head: every storage type, size of group, width of head and way to hold keys goes through kernels of its own.
#include <gtest/gtest.h>
#include <limits>
#include "isa.h"
#include "support/shaped.h"

namespace test {
namespace {

struct Keys {
    int32_t q, kv;
};

class FewRows : public testing::TestWithParam<std::tuple<int32_t, Keys>> {
  protected:
    const Handle handle = make_handle();
    const Keys types = std::get<1>(GetParam());
    Rng rng{derive(311, uint64_t(types.q * 16 + types.kv))};

    void SetUp() override { FA_USE_ISA(handle, std::get<0>(GetParam())); }

    void fill(Case& test_case, Rng& random) const {
        test_case.fill_normal(random);
        if (types.kv == FA_I8) test_case.set_descales(random, 1);
    }
    void check(const Shape& shape, int64_t page_size = 0) {
        Case c = shaped(shape, types.q);
        c.d.k_dtype = types.kv, c.d.o_dtype = FA_F32;
        if (types.kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        if (page_size > 0) paged(c, page_size);
        c.bind(rng);
        fill(c, rng);
        ASSERT_EQ(run_and_check(handle, c), "");
    }
};

// One byte beyond a row, and the guard page behind the last one ends the test.
TEST_P(FewRows, EveryWidthOfAHead) {
    for (int64_t dim = 1; dim <= 140; dim += dim < 36 ? 1 : 13) check({1, 2, 1, 1, 17, dim, 141 - dim});
    for (const int64_t dim : {192, 255, 512, 545, 1024}) check({1, 3, 3, 1, 5, dim, dim > 512 ? dim - 64 : dim});
}

TEST_P(FewRows, EveryNumberOfRows) {
    for (int64_t group = 1; group <= 17; group++) check({1, 2 * group, 2, 1, 70, 40, 36});
    for (const int64_t rows : {2, 3, 5, 8}) check({1, 4, 2, rows, 130, 24, 33});
}

// Heads that fill matrix tiles, whose rows are few or fill the tiles, too.
TEST_P(FewRows, WholeTiles) {
    for (const int64_t group : {1, 2, 3, 4, 5, 9}) {
        check({1, 2 * group, 2, 1, 90, 64, 128});
        check({1, group, 1, 1, 133, 192, 64});
    }
    for (const int64_t keys : {1, 15, 17, 33, 64, 65, 321}) {
        check({1, 6, 2, 1, keys, 128, 64});
        check({2, 2, 2, 2, keys, 64, 64}, 16);
    }
    check({1, 33, 33, 1, 70, 64, 64});
}

// Among heads that share a walk through the keys, one whose q is infinite, or no number.
TEST_P(FewRows, OneHeadIsNotFinite) {
    for (const float odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        Case c = shaped({1, 6, 3, 1, 150, 64, 64}, types.q);
        c.d.k_dtype = types.kv, c.d.o_dtype = FA_F32;
        if (types.kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        c.bind(rng);
        fill(c, rng);
        c.set_q([&](int64_t, int64_t h, int64_t, int64_t e) { return h == 2 && e == 7 ? odd : rng.normal(); });
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

// One element of v is infinite, or no number: its column shows it, and its neighbours do not.
TEST_P(FewRows, OneElementOfVIsNotFinite) {
    if (types.kv == FA_I8) GTEST_SKIP() << "int8 has no such numbers";
    for (const int64_t group : {1, 3, 4, 7, 8, 10})
        for (const float odd :
             {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
            for (const int64_t key : {0, 21, 140}) {
                Case c = shaped({1, 2 * group, 2, 1, 150, 64, 64}, types.q);
                c.d.k_dtype = types.kv, c.d.o_dtype = FA_F32;
                c.bind(rng);
                c.fill_normal(rng);
                const int64_t column = key % 5 + group % 2;
                c.set_v([&](int64_t, int64_t h, int64_t j, int64_t e) { return h == 1 && j == key && e == column ? odd : rng.normal(); });
                ASSERT_EQ(run_and_check(handle, c), "") << group << " rows, key " << key;
            }
}

// Around the borders of parts, blocks, and lists of addresses; several heads at once and one.
TEST_P(FewRows, EveryNumberOfKeys) {
    for (const int64_t keys : {1, 15, 16, 17, 63, 64, 65, 127, 129, 255, 256, 257, 319, 321, 577, 1100}) {
        check({1, 3, 3, 1, keys, 8, 16});
        check({1, 2, 1, 1, keys, 16, 8});
    }
}

TEST_P(FewRows, Pages) {
    for (const int64_t page_size : {1, 3, 16, 64, 100}) check({2, 6, 3, 1, 331, 24, 20}, page_size);
}

// A few columns of a band, at every offset from the blocks of keys.
TEST_P(FewRows, Windows) {
    for (const int64_t left : {0, 1, 15, 16, 63, 100})
        for (const int64_t rows : {1, 3}) {
            Case c = shaped({1, 4, 2, rows, 203, 8, 8}, types.q);
            c.d.k_dtype = types.kv, c.d.o_dtype = FA_F32;
            if (types.kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
            window(c, left, 0, FA_ALIGN_BOTTOM_RIGHT);
            c.bind(rng);
            fill(c, rng);
            ASSERT_EQ(run_and_check(handle, c), "");
        }
}

// Keys that a window leaves out may hold no numbers, and on the CPU their values, too: tiles of GPUs multiply these by 0. Where a kernel
// then reads what is widened first, a head's factor acts once, too.
TEST_P(FewRows, FactorsBesideNoNumbers) {
    for (const int64_t rows : {1, 3}) {
        Case c = shaped({1, 4, 2, rows, 90, 64, 64}, types.q);
        c.d.k_dtype = types.kv, c.d.o_dtype = FA_F32, c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        c.d.k_descale_stride[2] = c.d.v_descale_stride[2] = 1;
        window(c, 10, 0, FA_ALIGN_BOTTOM_RIGHT);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_descales(rng, 0.4);
        const int64_t row_bytes = 2 * 64 * oracle::size_of(types.kv);
        for (const int64_t key : {3, 66, 70})
            for (const Buffer* rows_of : {&c.k, &c.v})
                if (rows_of == &c.k || testing_the_cpu()) memset(rows_of->as<char>() + key * row_bytes, 0x7f, size_t(row_bytes));
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

// A short sequence among long ones has the bits that it has among short ones: its own length alone chooses the kernels.
TEST_P(FewRows, AmongLongSequences) {
    auto run = [&](int32_t length, int64_t row_bound) {
        Case c = shaped({2, 4, 2, row_bound, 300, 32, 32}, types.q);
        c.d.k_dtype = types.kv, c.d.o_dtype = FA_F32, c.d.split_size = 128;
        if (types.kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        c.d.operands |= FA_OPERAND_SEQUSED_Q;
        c.metadata.seqused_q = {int32_t(row_bound), length};
        Rng same(5);
        c.bind(same);
        const auto value = [](int64_t b, int64_t h, int64_t i, int64_t e) {
            return Rng(derive(uint64_t(b * 100 + h), uint64_t(i), uint64_t(e))).normal();
        };
        c.fill_normal(same);
        Rng factors(6);
        if (types.kv == FA_I8) c.set_descales(factors, 1);
        c.set_q(value), c.set_k(value), c.set_v(value);
        EXPECT_EQ(run_and_check(handle, c), "");
        const oracle::Reading r = c.reading();
        std::vector<float> rows;
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < length; i++)
                for (int64_t e = 0; e < 32; e++) rows.push_back(c.o.as<float>()[r.o(1, h, i) + e]);
        return rows;
    };
    for (const int32_t length : {3, 6}) EXPECT_EQ(run(length, length), run(length, 90));  // each row is two, of two heads
}

std::string name_of_keys(const testing::TestParamInfo<FewRows::ParamType>& info) {
    const auto [isa, types] = info.param;
    return std::string(isa_name(isa)) + "_" + oracle::name_of(types.q) + "_" + oracle::name_of(types.kv);
}

INSTANTIATE_TEST_SUITE_P(Types, FewRows,
                         testing::Combine(testing::ValuesIn(usable_isas()),
                                          testing::Values(Keys{FA_F32, FA_F32}, Keys{FA_F16, FA_F16}, Keys{FA_BF16, FA_BF16},
                                                          Keys{FA_F32, FA_E4M3}, Keys{FA_BF16, FA_E5M2}, Keys{FA_BF16, FA_E4M3},
                                                          Keys{FA_F16, FA_I8}, Keys{FA_BF16, FA_I8})),
                         name_of_keys);

}  // namespace
}  // namespace test
