// Keys and values in blocks, or of which one is, beside as many rows as copies are made for where native precision permits to round: GPUs
// then compute on copies in bf16.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include "support/shaped.h"

namespace test {
namespace {

struct CopiedTypes {
    int32_t q, k, v;
};

class NativeBlocks : public testing::TestWithParam<CopiedTypes> {
  protected:
    const Handle handle = make_handle();
    const CopiedTypes types = GetParam();
    Rng rng{derive(293, uint64_t((types.q * 512 + types.k) * 512 + types.v))};

    void SetUp() override {
        if (testing_the_cpu()) GTEST_SKIP() << "the CPU makes no such copies";
    }
    Case make(const Shape& shape) const {
        Case c = shaped(shape, types.q);
        c.d.k_dtype = types.k, c.d.v_dtype = types.v;
        c.d.precision = FA_PRECISION_NATIVE;
        return c;
    }
    std::string explanation(const Case& test_case) {
        char text[512] = "";
        return fa_explain(handle, &test_case.d, FA_OP_FORWARD, text, sizeof text) == FA_OK ? text : handle.error();
    }
    bool copies(const Case& test_case) { return explanation(test_case).find("copied as bf16") != std::string::npos; }
    std::string check(Case test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        if (!copies(test_case)) return explanation(test_case);
        return run_and_check(handle, test_case);
    }
};

TEST_P(NativeBlocks, LengthsAndWidths) {
    for (const int64_t rows : {32, 130})
        for (const int64_t keys : {1, 65, 200})
            for (const int64_t dim : {32, 96, 128, 256}) {
                Case c = make({2, 8, 2, rows, keys, dim, dim == 96 ? 64 : dim});
                if (dim == 256 && keys == 200) continue;
                if (rng.chance(0.5)) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                if (rng.chance(0.3)) c.d.num_splits = 2;
                if (rng.chance(0.4)) c.d.o_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16});
                ASSERT_EQ(check(std::move(c)), "");
            }
}

// Where rows lie: pages, packed sequences, sequences of a cache, rows and heads apart, lengths in device memory.
TEST_P(NativeBlocks, Layouts) {
    for (const int layout : {0, 1, 2, 3, 4}) {
        Case c = make({3, 4, 2, 70, 90, 64, 96});
        const auto blocks = [](int32_t dtype, int64_t dim) { return oracle::is_block(dtype) ? dim / 32 : dim; };
        const int64_t k_row = 3 * blocks(types.k, 64), v_row = 3 * blocks(types.v, 96);
        if (layout == 0) paged(c, 16);
        if (layout == 1) {
            c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
            c.metadata.cu_seqlens_q = {0, 70, 75, 140}, c.metadata.cu_seqlens_k = {0, 3, 93, 160};
            c.d.total_q = 140, c.d.total_k = 160;
        }
        if (layout == 2) {
            c.d.operands |= FA_OPERAND_KV_BATCH_IDX;
            c.d.kv_batch = 4;
            c.metadata.kv_batch_idx = {3, 0, 2};
        }
        if (layout == 3) {
            c.d.strided = FA_STRIDED_K | FA_STRIDED_V;
            const int64_t k[] = {90 * k_row, k_row, k_row / 3, 1}, v[] = {90 * v_row, v_row, v_row / 3, 1};
            std::copy_n(k, 4, c.d.k_stride), std::copy_n(v, 4, c.d.v_stride);
        }
        if (layout == 4) {
            c.d.operands |= FA_OPERAND_SEQUSED_K;
            c.metadata.seqused_k = {90, 0, 41};
        }
        ASSERT_EQ(check(std::move(c)), "") << layout;
    }
}

// What is done to scores and weights has no part in the copies.
TEST_P(NativeBlocks, Options) {
    for (const int option : {0, 1, 2}) {
        Case c = make({1, 4, 2, 80, 150, 64, 64});
        if (option == 0) c.d.softcap = 3;
        if (option == 1) window(c, 30, 5, FA_ALIGN_BOTTOM_RIGHT);
        if (option == 2) c.d.operands |= FA_OPERAND_SINKS;
        c.bind(rng);
        c.fill_normal(rng);
        if (option == 2)
            for (int n = 0; n < 4; n++) c.sinks.as<float>()[n] = float(rng.normal());
        ASSERT_EQ(run_and_check(handle, c), "") << option;
    }
}

// One key, so that o is v: every value rounded once.
TEST_P(NativeBlocks, EachValueIsRoundedOnce) {
    Case c = make({4, 1, 1, 128, 1, 32, 256});
    c.d.o_dtype = FA_F32;
    c.bind(rng);
    c.fill_normal(rng, 0);  // a weight of 1
    ASSERT_TRUE(copies(c)) << explanation(c);
    ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
    const oracle::Reading r = c.reading();
    for (int64_t b = 0; b < 4; b++)
        for (int64_t e = 0; e < 256; e++)
            EXPECT_EQ(oracle::load(c.o.as(), r.o(b, 0, 127) + e, FA_F32),
                      oracle::rounded(oracle::load_dim(c.v.as(), r.v(b, 0, 0), e, types.v), FA_BF16))
                << b << " " << e;
}

// Few rows, an output of probabilities, no permission, or a pool of pages that is much larger than what is read: no copies.
TEST_P(NativeBlocks, WhereThereAreNone) {
    Case few = make({1, 4, 2, 63, 200, 64, 64}), scores = make({1, 4, 2, 100, 200, 64, 64}), exact = make({1, 4, 2, 100, 200, 64, 64}),
         pool = make({1, 4, 2, 100, 200, 64, 64});
    scores.d.operands |= FA_OPERAND_SCORES;
    dense_pairs(scores.d, scores.d.scores_stride);
    exact.d.precision = FA_PRECISION_DEFAULT;
    paged(pool, 16);
    pool.d.num_pages = 33;
    for (Case* const c : {&few, &scores, &exact, &pool}) {
        c->bind(rng);
        c->fill_normal(rng);
        EXPECT_FALSE(copies(*c)) << explanation(*c);
        EXPECT_EQ(run_and_check(handle, *c), "");
    }
}

std::string name_of_types(const testing::TestParamInfo<CopiedTypes>& info) {
    return std::string(oracle::name_of(info.param.k)) + "_" + oracle::name_of(info.param.v) + "_under_" + oracle::name_of(info.param.q);
}
INSTANTIATE_TEST_SUITE_P(Types, NativeBlocks,
                         testing::Values(CopiedTypes{FA_BF16, FA_Q8_0, FA_Q8_0}, CopiedTypes{FA_F32, FA_Q4_0, FA_Q5_1},
                                         CopiedTypes{FA_F16, FA_Q4_1, FA_Q5_0}, CopiedTypes{FA_BF16, FA_BF16, FA_Q4_0},
                                         CopiedTypes{FA_F32, FA_Q5_1, FA_E4M3}),
                         name_of_types);

}  // namespace
}  // namespace test
