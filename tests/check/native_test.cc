// Calls that permit native precision: q of f32 or f16 beside keys and values of fewer bits. Where a kernel makes use of it, fa_explain says
// so, and accuracy is that of bf16; elsewhere results are what they are without.
#include <gtest/gtest.h>
#include <cfloat>
#include <cstring>
#include "check/isa.h"
#include "support/shaped.h"

namespace test {
namespace {

struct NativeTypes {
    int32_t q, k, v;
};
constexpr NativeTypes kNativeTypes[] = {{FA_F32, FA_BF16, FA_BF16}, {FA_F32, FA_I8, FA_I8},     {FA_F32, FA_E4M3, FA_BF16},
                                        {FA_F32, FA_Q8_0, FA_Q8_0}, {FA_F32, FA_Q4_0, FA_Q5_1}, {FA_F16, FA_BF16, FA_BF16},
                                        {FA_F16, FA_Q8_0, FA_I8},   {FA_F32, FA_F16, FA_F16}};

class Native : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    Rng rng{derive(271, uint64_t(GetParam()))};

    Case make(const NativeTypes& types, const Shape& shape) {
        Case c = shaped(shape, types.q);
        c.d.k_dtype = types.k, c.d.v_dtype = types.v;
        c.d.precision = FA_PRECISION_NATIVE;
        if (types.k == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE;
        if (types.v == FA_I8) c.d.operands |= FA_OPERAND_V_DESCALE;
        return c;
    }
    void fill(Case& test_case) {
        test_case.bind(rng);
        test_case.fill_normal(rng, 1, test_case.d.k_dtype == FA_I8 ? 40 : 1, test_case.d.v_dtype == FA_I8 ? 40 : 1);
        test_case.set_descales(rng, 1.0 / 40);
    }
    double error_of(const Case& test_case) {
        const oracle::Reading r = test_case.reading();
        const oracle::Pairs pairs = oracle::pair_o(r, oracle::attention(r));
        return oracle::relative_norm(pairs.got, pairs.want);
    }
};

TEST_P(Native, AgreesWithTheOracle) {
    FA_USE_ISA(handle, GetParam());
    for (const NativeTypes& types : kNativeTypes)
        for (const Shape& shape : {Shape{2, 4, 2, 70, 130, 64, 64}, Shape{1, 3, 1, 33, 200, 96, 128}, Shape{1, 2, 2, 129, 64, 256, 32}})
            for (const int variant : {0, 1, 2}) {
                Case c = make(types, shape);
                if (variant == 1) causal(c, FA_ALIGN_BOTTOM_RIGHT), c.d.softcap = 5, c.d.num_splits = 2;
                if (variant == 2) c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_MASK, c.d.o_dtype = FA_F16;
                fill(c);
                if (variant == 2) {
                    c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
                    c.set_mask([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(0.8); });
                }
                ASSERT_EQ(run_and_check(handle, c), "") << c.describe();
            }
}

// One token, or two, and up to eight rows for a kv head.
TEST_P(Native, DecodingAgreesWithTheOracle) {
    FA_USE_ISA(handle, GetParam());
    for (const NativeTypes& types : kNativeTypes)
        for (const Shape& shape : {Shape{2, 4, 2, 1, 700, 64, 64}, Shape{1, 8, 2, 1, 300, 128, 128}, Shape{3, 4, 4, 1, 130, 96, 96},
                                   Shape{1, 12, 3, 2, 257, 64, 128}})
            for (const int variant : {0, 1, 2}) {
                Case c = make(types, shape);
                if (variant == 1) causal(c, FA_ALIGN_BOTTOM_RIGHT), c.d.softcap = 5, c.d.num_splits = 2;
                if (variant == 2) c.d.o_dtype = FA_F16;
                fill(c);
                ASSERT_EQ(run_and_check(handle, c), "") << c.describe();
            }
}

// q as large as its type has them, against keys of 0: an infinity of bf16 in its place would make that no number.
TEST_P(Native, LargestQueriesStayFinite) {
    FA_USE_ISA(handle, GetParam());
    for (const int64_t rows : {1, 40})
        for (const int32_t type : {FA_BF16, FA_Q8_0}) {
            Case c = make({FA_F32, type, type}, {1, 4, 1, rows, 100, 64, 64});
            fill(c);
            memset(c.k.as<char>(), 0, size_t(c.k.bytes()));
            for (int64_t i = 0; i < 4 * rows * 64; i++) c.q.as<float>()[i] = rng.chance(.5) ? -FLT_MAX : FLT_MAX;
            ASSERT_EQ(run_and_check(handle, c), "") << c.describe();
        }
}

// Ordinary data: q, P and blocks of k and v rounded once each. Four rows of a kv head are decoded, 64 are not.
TEST_P(Native, ErrorIsThatOfBf16) {
    FA_USE_ISA(handle, GetParam());
    for (const NativeTypes& types : kNativeTypes)
        for (const int64_t rows : {1, 64}) {
            Case c = make(types, {1, 4, 1, rows, 512, 128, 128});
            c.d.o_dtype = FA_F32;
            fill(c);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const double error = error_of(c);
            EXPECT_LE(error, c.rounded_to_bytes ? 2e-2 : c.p_dtype == FA_BF16 ? 6e-3 : 5e-4) << c.describe();
            EXPECT_EQ(c.rounded_q, c.p_dtype == FA_BF16);
            const int32_t isa = GetParam();
            if (isa == FA_ISA_AVX512_BF16 || isa == FA_ISA_AMX || isa == FA_ISA_NEON_BF16 || isa == FA_ISA_SVE_BF16) {
                const bool decoded = types.k == types.v && (isa == FA_ISA_AVX512_BF16 || isa == FA_ISA_AMX || types.k != FA_Q8_0);
                EXPECT_EQ(c.rounded_q, types.k != FA_F16 && (rows > 1 || decoded)) << c.describe();
            }
            c.d.precision = FA_PRECISION_DEFAULT;
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            EXPECT_FALSE(c.rounded_q);
            if (types.q == FA_F32 && testing_the_cpu()) {
                EXPECT_LE(error_of(c), 4e-6) << c.describe();
            }
        }
}

INSTANTIATE_TEST_SUITE_P(Isa, Native, testing::ValuesIn(isas_under_test()),
                         [](const auto& test) { return std::string(test.param == 0 ? "own" : isa_name(test.param)); });

}  // namespace
}  // namespace test
