// Keys and values of 8 bits or fewer, each of a type of its own, with factors and shifts of 32 dims or more, of rows, or of blocks with a
// smallest value: kernels of matrix units widen them to numbers of 16 bits and multiply factors into scores and weights.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include "check/score_options.h"

namespace test {
namespace {

struct Scheme {
    const char* name;
    int32_t q, k, v, factor = 0;     // type of factors; 0: there are none
    int64_t k_dims = 0, v_dims = 0;  // that share one; 0: all
    int64_t k_rows = 1, v_rows = 1;
    bool shifted = false;
};

class StoredScaled : public testing::TestWithParam<Scheme> {
  protected:
    const Handle handle = make_handle();
    const Scheme scheme = GetParam();
    Rng rng{derive(307, uint64_t(scheme.q * 64 + scheme.k) * 64 + uint64_t(scheme.v) + uint64_t(scheme.k_dims))};

    static int64_t parts(int64_t n, int64_t of) { return of == 0 ? 1 : (n + of - 1) / of; }
    // Of a tensor with so many rows in a sequence, or in a page.
    static void lay(int64_t rows, int64_t heads, int64_t dim, int64_t block_rows, int64_t block_dims, int64_t (&block)[2],
                    int64_t (&stride)[4]) {
        block[0] = block_rows, block[1] = block_dims;
        stride[3] = block_dims ? 1 : 0, stride[2] = parts(dim, block_dims), stride[1] = heads * stride[2],
        stride[0] = parts(rows, block_rows) * stride[1];
    }
    Case make(const Shape& shape, int64_t page = 0) const {
        Case c = shaped(shape, scheme.q);
        c.d.k_dtype = scheme.k, c.d.v_dtype = scheme.v;
        if (scheme.q == FA_F32) c.d.precision = FA_PRECISION_NATIVE;
        if (page > 0) paged(c, page);
        if (scheme.factor == 0) return c;
        c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        if (scheme.shifted) c.d.operands |= FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT;
        c.d.k_descale_dtype = c.d.v_descale_dtype = scheme.factor;
        const int64_t rows = page > 0 ? page : shape.keys;
        lay(rows, shape.heads_k, shape.dim_qk, scheme.k_rows, scheme.k_dims, c.d.k_descale_block, c.d.k_descale_stride);
        lay(rows, shape.heads_k, shape.dim_v, scheme.v_rows, scheme.v_dims, c.d.v_descale_block, c.d.v_descale_stride);
        return c;
    }
    void fill(Case& test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        const auto typical = [](int32_t dtype) { return dtype == FA_I8 ? 40.0 : oracle::is_nibble(dtype) ? 4.0 : 1.0; };
        if (scheme.factor) test_case.set_descales(rng, 1 / std::max(typical(scheme.k), typical(scheme.v)));
    }
    std::string check(Case test_case) {
        fill(test_case);
        char text[512] = "";
        if (!testing_the_cpu() &&
            (fa_explain(handle, &test_case.d, FA_OP_FORWARD, text, sizeof text) != FA_OK || !strstr(text, "fwd_mma_")))
            return std::string(text) + handle.error();
        return run_and_check(handle, test_case);
    }
    int64_t widest() const { return scheme.q == FA_F16 ? 128 : 256; }
};

// Every key and value differs, and so does every dim of q: an element out of place shows.
TEST_P(StoredScaled, LengthsAndWidths) {
    for (const int64_t rows : {1, 9, 40})
        for (const int64_t keys : {1, 63, 65, 140})
            for (const int64_t dim : {rng.pick<int64_t>({32, 64, 96}), int64_t(128), rng.pick<int64_t>({160, 224, 256})}) {
                if (dim > widest() || (dim > 128 && rows * keys > 1000)) continue;
                Case c = make({2, 4, 2, rows, keys, dim, rng.chance(0.7) ? dim : 32});
                if (rng.chance(0.5)) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                c.d.num_splits = rng.pick<int32_t>({1, 2});
                if (rng.chance(0.3)) c.d.o_dtype = FA_F32;
                ASSERT_EQ(check(std::move(c)), "") << rows << " rows, " << keys << " keys, " << dim;
            }
}

// Calls with few rows, of one or two tiles, of what caches usually hold have a kernel that reads it as it is stored.
TEST_P(StoredScaled, FewRows) {
    const bool one_type = scheme.k == scheme.v && scheme.k != FA_E5M2, blocks = oracle::is_block(scheme.k);
    const bool as_stored = one_type && (!scheme.shifted || scheme.k == FA_U4) && (!blocks || scheme.k == FA_Q4_1 || scheme.k == FA_Q5_1);
    for (const int64_t group : {1, 4, 7, 12})
        for (const int64_t keys : {1, 128, 129, 400})
            for (const int64_t page : {0, 16}) {
                const int64_t dim = rng.pick<int64_t>({32, 64, 96, 128, 128});
                Case c = make({2, 2 * group, 2, 1, keys, dim, rng.chance(0.7) ? dim : 128}, page);
                c.d.num_splits = rng.pick<int32_t>({0, 1, 3});
                if (rng.chance(0.3)) c.d.o_dtype = FA_F32;
                fill(c);
                char text[512] = "";
                const bool wide =
                    oracle::is_nibble(scheme.k) && scheme.k != FA_E2M1 && group > 8;  // integers of 4 bits have one tile of 8 rows
                const bool explained = fa_explain(handle, &c.d, FA_OP_FORWARD, text, sizeof text) == FA_OK;
                EXPECT_TRUE(testing_the_cpu() || !as_stored || wide || keys == 1 || (explained && strstr(text, "fwd_mma_stored"))) << text;
                ASSERT_EQ(run_and_check(handle, c), "") << group << " heads, " << keys << " keys, " << dim;
            }
}

TEST_P(StoredScaled, Pages) {
    for (const int64_t page : {1, 48})
        for (const int64_t dim : {64, 128, 256})
            for (const int64_t rows : {1, 20}) {
                if (dim > widest()) continue;
                ASSERT_EQ(check(make({2, 2, 1, rows, 140, dim, dim}, page)), "") << page;
            }
}

// Packed sequences, sequences of a cache, padding, rows and heads apart.
TEST_P(StoredScaled, Layouts) {
    for (const int layout : {0, 1, 2, 3})
        for (const int64_t rows : {3, 30}) {
            Case c = make({3, 4, 2, rows, 90, 64, 96});
            if (layout == 0) {
                c.d.operands |= FA_OPERAND_CU_SEQLENS_K;
                c.metadata.cu_seqlens_k = {0, 3, 93, 160};
                c.d.total_k = 160;
                if (scheme.factor) c.d.k_descale_stride[0] = c.d.v_descale_stride[0] = 0;
            }
            if (layout == 1) {
                c.d.operands |= FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_LEFTPAD_K;
                c.d.kv_batch = 4;
                c.metadata.kv_batch_idx = {3, 0, 2};
                c.metadata.leftpad_k = {0, 7, 33};
            }
            if (layout == 2) {
                c.d.strided = FA_STRIDED_K | FA_STRIDED_V;
                const auto units = [](int32_t dtype, int64_t dim) {
                    return oracle::is_block(dtype) ? dim / 32 : oracle::is_nibble(dtype) ? dim / 2 : dim;
                };
                const int64_t gap = rng.pick<int64_t>({1, 3, 4});
                const int64_t k = units(scheme.k, 64), v = units(scheme.v, 96), k_row = 2 * k + gap, v_row = 2 * v + gap;
                const int64_t k_stride[] = {90 * k_row, k_row, k, 1}, v_stride[] = {90 * v_row, v_row, v, 1};
                std::copy_n(k_stride, 4, c.d.k_stride), std::copy_n(v_stride, 4, c.d.v_stride);
            }
            if (layout == 3) {
                c.d.operands |= FA_OPERAND_SEQUSED_K;
                c.metadata.seqused_k = {90, 0, 41};
            }
            ASSERT_EQ(check(std::move(c)), "") << layout;
        }
}

// What is done to scores and weights, which the numbers have in units of their own.
TEST_P(StoredScaled, Options) {
    for (const ScoreOption option : kScoreOptions)
        for (const int64_t rows : {2, 40}) {
            Case c = make({1, 4, 2, rows, 150, 64, 64});
            want_option(c, option);
            fill(c);
            fill_option(c, option, rng);
            ASSERT_EQ(run_and_check(handle, c), "") << int(option);
        }
}

// Factors of v from small to the largest whose values are numbers.
TEST_P(StoredScaled, FactorsOfAnySize) {
    if (scheme.factor == 0 || scheme.shifted) GTEST_SKIP() << "none in arrays of their own";
    const bool wide = scheme.factor == FA_F32 || scheme.factor == FA_E8M0;
    for (const double size : {wide ? 0x1p-60 : 0x1p-5, 1.0, wide ? 0x1p+111 : 50.0})
        for (const int64_t rows : {1, 40}) {
            Case c = make({1, 2, 1, rows, 150, 128, 64});
            c.d.o_dtype = FA_F32;
            c.bind(rng);
            c.fill_normal(rng);
            c.set_descales(rng, 0.2);
            const int64_t factors = c.v_descale.bytes() / oracle::size_of(scheme.factor);
            for (int64_t n = 0; n < factors; n++) oracle::store(c.v_descale.as(), n, scheme.factor, size * rng.uniform(0.5, 2));
            ASSERT_EQ(run_and_check(handle, c), "") << size;
        }
}

// Where native precision permits to round, as many rows as copies are made for compute on k and v in bf16.
TEST_P(StoredScaled, NativeCopies) {
    for (const int layout : {0, 1, 2, 3})
        for (const int64_t dim : {64, 128}) {
            Case c = make({2, 8, 2, 33, 110, dim, 96}, layout == 1 ? 16 : 0);
            c.d.precision = FA_PRECISION_NATIVE;
            if (layout == 2) {
                c.d.operands |= FA_OPERAND_CU_SEQLENS_K;
                c.metadata.cu_seqlens_k = {0, 60, 170};
                c.d.total_k = 170;
                if (scheme.factor) c.d.k_descale_stride[0] = c.d.v_descale_stride[0] = 0;
            }
            if (layout == 3) causal(c, FA_ALIGN_BOTTOM_RIGHT), c.d.o_dtype = FA_F32;
            fill(c);
            char text[512] = "";
            const bool explained = fa_explain(handle, &c.d, FA_OP_FORWARD, text, sizeof text) == FA_OK;
            const bool copied = strstr(text, "copied as bf16") != nullptr;
            EXPECT_TRUE(testing_the_cpu() || (explained && copied)) << text;
            ASSERT_EQ(run_and_check(handle, c), "") << layout;
        }
}

INSTANTIATE_TEST_SUITE_P(
    Schemes, StoredScaled,
    testing::Values(
        Scheme{"q4_1", FA_BF16, FA_Q4_1, FA_Q4_1}, Scheme{"q5_1_under_f16", FA_F16, FA_Q5_1, FA_Q5_1},
        Scheme{"q8_0_with_q4_0", FA_BF16, FA_Q8_0, FA_Q4_0}, Scheme{"q5_1_with_e4m3_under_f16", FA_F16, FA_Q5_1, FA_E4M3},
        Scheme{"q5_0_with_q8_0_native", FA_F32, FA_Q5_0, FA_Q8_0}, Scheme{"e5m2_with_i8", FA_BF16, FA_E5M2, FA_I8},
        Scheme{"i8_of_rows", FA_BF16, FA_I8, FA_I8, FA_F32}, Scheme{"e4m3_of_rows_under_f16", FA_F16, FA_E4M3, FA_E4M3, FA_F16},
        Scheme{"mxfp8", FA_BF16, FA_E4M3, FA_E4M3, FA_E8M0, 32, 32}, Scheme{"mxfp4_under_f16", FA_F16, FA_E2M1, FA_E2M1, FA_E8M0, 32, 32},
        Scheme{"e2m1_with_e4m3_factors", FA_BF16, FA_E2M1, FA_E2M1, FA_E4M3, 32, 64},
        Scheme{"nvfp4", FA_BF16, FA_E2M1, FA_E2M1, FA_E4M3, 16, 16}, Scheme{"nvfp4_under_f16", FA_F16, FA_E2M1, FA_I8, FA_E4M3, 16, 16},
        Scheme{"nvfp4_of_both_under_f16", FA_F16, FA_E2M1, FA_E2M1, FA_E4M3, 16, 16},
        Scheme{"mxfp8_under_f16", FA_F16, FA_E4M3, FA_E4M3, FA_E8M0, 32, 32},
        Scheme{"i8_with_bf16_factors", FA_BF16, FA_I8, FA_I8, FA_BF16, 64, 32},
        Scheme{"u4_of_both_under_f16", FA_F16, FA_U4, FA_U4, FA_F16, 32, 32, 1, 1, true},
        Scheme{"q4_1_under_f16", FA_F16, FA_Q4_1, FA_Q4_1}, Scheme{"u4_with_shifts", FA_BF16, FA_U4, FA_U4, FA_F16, 32, 64, 1, 1, true},
        Scheme{"e2m1_with_shifts", FA_BF16, FA_E2M1, FA_E2M1, FA_F16, 32, 128, 1, 1, true},
        Scheme{"u4_with_shifts_under_f16", FA_F16, FA_U4, FA_I4, FA_BF16, 0, 32, 1, 1, true},
        Scheme{"i4_of_blocks_of_rows", FA_BF16, FA_I4, FA_I4, FA_F16, 64, 0, 16, 3},
        Scheme{"i4_with_e5m2_native", FA_F32, FA_I4, FA_E5M2, FA_F32, 32, 128}),
    [](const testing::TestParamInfo<Scheme>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace test
