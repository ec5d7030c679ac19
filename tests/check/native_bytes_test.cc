// Keys and values in blocks without an m, few rows for a kv head, where native precision permits to round: CPUs whose instructions multiply
// bytes take blocks of q, and of P times a block's factor, in 8 bits.
#include <gtest/gtest.h>
#include <cstring>
#include <string>
#include <vector>
#include "check/isa.h"
#include "support/shaped.h"

namespace test {
namespace {

class NativeBytes : public testing::TestWithParam<std::tuple<int32_t, int32_t>> {
  protected:
    const Handle handle = make_handle();
    const int32_t isa = std::get<0>(GetParam()), type = std::get<1>(GetParam());
    Rng rng{derive(311, uint64_t(isa * 64 + type))};

    void SetUp() override {
        if (!testing_the_cpu()) GTEST_SKIP() << "GPUs round no blocks to 8 bits";
        FA_USE_ISA(handle, isa);
    }
    // Beside AMX any number of rows, elsewhere more than four.
    bool rounds(int64_t rows) const { return isa == FA_ISA_AMX || isa == FA_ISA_AMX_FP16 || (isa == FA_ISA_AVX512_BF16 && rows > 4); }
    Case make(const Shape& shape, int32_t q = FA_BF16) const {
        Case c = shaped(shape, q);
        c.d.k_dtype = c.d.v_dtype = type, c.d.o_dtype = FA_F32;
        c.d.precision = FA_PRECISION_NATIVE;
        return c;
    }
    std::string check(Case test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        return run_and_check(handle, test_case);
    }
    void set_factor(const Buffer& buffer, int64_t block, uint16_t f16) {
        oracle::store_block_word(buffer.as<char>() + block * oracle::size_of(type), 0, oracle::load(&f16, 0, FA_F16));
    }
};

TEST_P(NativeBytes, RowsKeysAndWidths) {
    for (int64_t group = 1; group <= 17; group++)
        for (const int32_t q : {FA_BF16, FA_F32, FA_F16}) {
            Case c = make({2, 2 * group, 2, 1, 70, 64, 96}, q);
            ASSERT_EQ(check(std::move(c)), "") << group;
        }
    for (const int64_t dim : {32, 64, 96, 128, 160, 256, 512, 1024}) ASSERT_EQ(check(make({1, 12, 2, 1, 45, dim, 1056 - dim})), "") << dim;
    for (const int64_t keys : {1, 3, 4, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129, 577})
        ASSERT_EQ(check(make({1, 5, 1, 1, keys, 64, 64})), "") << keys;
    for (const int64_t page_size : {1, 16, 64, 100}) {
        Case c = make({2, 10, 2, 1, 331, 64, 32});
        paged(c, page_size);
        ASSERT_EQ(check(std::move(c)), "") << page_size;
    }
}

TEST_P(NativeBytes, MasksAndScoreMods) {
    for (const int variant : {0, 1, 2, 3}) {
        Case c = make({2, 6, 2, 3, 300, 128, 128}, variant % 2 ? FA_F32 : FA_BF16);
        if (variant == 0) causal(c, FA_ALIGN_BOTTOM_RIGHT), c.d.num_splits = 3;
        if (variant == 1) c.d.softcap = 5, c.d.operands |= FA_OPERAND_SINKS;
        if (variant == 2) c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_MASK;
        if (variant == 3) window(c, 40, 0, FA_ALIGN_BOTTOM_RIGHT);
        c.bind(rng);
        c.fill_normal(rng);
        if (variant == 2) {
            c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
            c.set_mask([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(0.7); });
        }
        ASSERT_EQ(run_and_check(handle, c), "") << c.describe();
        if (isa != 0) {
            EXPECT_EQ(c.rounded_to_bytes, rounds(9));
        }
    }
}

// What fa_explain says, and that results are coarser by as much as 8 bits are, and no more.
TEST_P(NativeBytes, ErrorIsThatOf8Bits) {
    for (const int64_t heads : {1, 4, 8}) {
        Case c = make({1, heads, 1, 1, 4096, 128, 128}, FA_F32);
        c.bind(rng);
        c.fill_normal(rng);
        const auto error = [&] {
            EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
            const oracle::Reading r = c.reading();
            const oracle::Pairs pairs = oracle::pair_o(r, oracle::attention(r));
            return oracle::relative_norm(pairs.got, pairs.want);
        };
        const double native = error();
        if (isa != 0) {
            EXPECT_EQ(c.rounded_to_bytes, rounds(heads));
        }
        EXPECT_LE(native, 2e-2);
        if (rounds(heads)) {
            EXPECT_GE(native, 2e-3);
        }
        c.d.precision = FA_PRECISION_DEFAULT;
        EXPECT_LE(error(), 4e-6);
        EXPECT_FALSE(c.rounded_to_bytes);
    }
}

// A row's bits are those that it has beside other rows of its kv head.
TEST_P(NativeBytes, BitsOfARow) {
    if (!rounds(8)) GTEST_SKIP() << "rounds nothing to 8 bits";
    const auto run = [&](int64_t heads) {
        Case c = make({1, heads, 1, 1, 203, 96, 160});
        c.d.split_size = 128;
        c.bind(rng);
        const auto fixed = [](int64_t, int64_t h, int64_t i, int64_t e) {
            return Rng(derive(uint64_t(h * 1000 + i), uint64_t(e))).normal();
        };
        c.set_q(fixed), c.set_k(fixed), c.set_v(fixed);
        EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
        return std::vector<float>(c.o.as<float>(), c.o.as<float>() + heads * 160);
    };
    const std::vector<float> all = run(16);
    for (int64_t heads = rounds(1) ? 1 : 5; heads < 16; heads++)
        EXPECT_EQ(run(heads), std::vector<float>(all.begin(), all.begin() + heads * 160)) << heads;
}

// Queries of every size, and of zeros.
TEST_P(NativeBytes, SizesOfQ) {
    for (const double size : {0.0, 0x1p-120, 0x1p-60, 0x1p20, 0x1p60}) {
        Case c = make({1, 8, 1, 1, 100, 64, 64});
        c.d.flags |= FA_SCALE_EXPLICIT;
        c.d.scale = size > 1 ? float(0.1 / size) : 0.1f;
        c.bind(rng);
        c.fill_normal(rng, size);
        ASSERT_EQ(run_and_check(handle, c), "") << size;
    }
}

// Factors that are infinite or no number make the columns of their block so, and those of other blocks not.
TEST_P(NativeBytes, InfiniteFactors) {
    for (const uint16_t f16 : {uint16_t(0x7c00), uint16_t(0xfc00), uint16_t(0x7e00)}) {
        Case c = make({1, 8, 1, 1, 100, 64, 128});
        c.bind(rng);
        c.fill_normal(rng);
        set_factor(c.v, 37 * 4 + 2, f16);
        ASSERT_EQ(run_and_check(handle, c), "") << f16;
        Case scores = make({1, 8, 1, 1, 100, 64, 64});
        scores.bind(rng);
        scores.fill_normal(rng);
        set_factor(scores.k, 61 * 2, 0x7e00);
        ASSERT_EQ(run_and_check(handle, scores), "") << f16;
    }
}

// A key that the mask removes may have any factor.
TEST_P(NativeBytes, FactorsOfHiddenKeys) {
    Case c = make({1, 8, 1, 1, 100, 64, 64});
    c.d.operands |= FA_OPERAND_MASK;
    c.bind(rng);
    c.fill_normal(rng);
    c.set_mask([](int64_t, int64_t, int64_t, int64_t j) { return j % 10 != 3; });
    for (int64_t j = 3; j < 100; j += 10) set_factor(c.v, j * 2, 0x7bff);
    ASSERT_EQ(run_and_check(handle, c), "");
}

// The levels that multiply bytes, and the one that a handle has unasked. Of the others native_test.cc tells that they round nothing to 8
// bits.
std::vector<int32_t> levels() {
    std::vector<int32_t> some;
    for (const int32_t isa : isas_under_test())
        if (isa == 0 || isa == FA_ISA_AVX512_BF16 || isa == FA_ISA_AMX || isa == FA_ISA_AMX_FP16) some.push_back(isa);
    return some;
}

INSTANTIATE_TEST_SUITE_P(Isa, NativeBytes,
                         testing::Combine(testing::ValuesIn(levels()), testing::Values<int32_t>(FA_Q8_0, FA_Q5_0, FA_Q4_0)),
                         [](const auto& test) {
                             const int32_t isa = std::get<0>(test.param);
                             const int32_t type = std::get<1>(test.param);
                             const std::string name = type == FA_Q8_0 ? "q8_0" : type == FA_Q5_0 ? "q5_0" : "q4_0";
                             return (isa == 0 ? std::string("own") : std::string(isa_name(isa))) + "_" + name;
                         });

}  // namespace
}  // namespace test
