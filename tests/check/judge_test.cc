// The comparators and the guards must notice what they are for: answers with one planted fault each.
#include <gtest/gtest.h>
#include <cmath>
#include "support/random_case.h"
#include "support/shaped.h"

namespace test {
namespace {

// Fills the outputs of a case with the oracle's own answers.
void write_answer(Case& test_case) {
    const oracle::Reading r = test_case.reading();
    const oracle::Attention want = oracle::attention(r, {r.has(FA_OPERAND_SCORES), 1});
    for (int64_t b = 0; b < test_case.d.batch; b++)
        for (int64_t h = 0; h < test_case.d.heads_q; h++) {
            for (int64_t i = 0; i < r.padded_rows(b); i++) {
                const size_t row = size_t(want.row(b, h, i));
                const double factor = r.has(FA_OPERAND_O_SCALE) ? double(*r.a.o_scale) : 1;
                for (int64_t e = 0; e < r.dim_v; e++)
                    oracle::store(test_case.o.as(), r.o(b, h, i) + e, r.o_dtype, factor * want.o[row * size_t(r.dim_v) + size_t(e)]);
                if (r.has(FA_OPERAND_LSE)) test_case.lse.as<float>()[r.lse(b, h, i)] = float(want.lse[row]);
            }
            for (int64_t i = 0; r.has(FA_OPERAND_SCORES) && i < test_case.d.seqlen_q; i++)
                for (int64_t j = 0; j < test_case.d.seqlen_k; j++) {
                    const size_t pair = size_t(want.row(b, h, i) * test_case.d.seqlen_k + j);
                    test_case.scores.as<float>()[r.scores(b, h, i, j)] = float(want.scores[size_t(test_case.d.scores_stage)][pair]);
                }
        }
}

std::string verdict(const Case& test_case) { return check_against_oracle(test_case, FA_F32); }

TEST(Judge, AcceptsTheOraclesOwnAnswer) {
    for (uint64_t n = 1; n <= 300; n++) {
        Case c = random_case(n);
        write_answer(c);
        ASSERT_EQ(verdict(c), "") << c.describe();
    }
}

Case answered(const Shape& shape) {
    Rng rng(5);
    Case c = shaped(shape);
    c.d.strided = FA_STRIDED_O;
    c.d.o_stride[3] = 1, c.d.o_stride[2] = shape.dim_v + 1;  // one element between heads belongs to nobody
    c.d.o_stride[1] = shape.heads_q * c.d.o_stride[2], c.d.o_stride[0] = shape.rows * c.d.o_stride[1];
    c.bind(rng);
    c.fill_normal(rng);
    write_answer(c);
    return c;
}

TEST(Judge, SeesEveryPlantedFault) {
    const Shape shape{2, 3, 3, 5, 7, 4, 6};
    EXPECT_EQ(verdict(answered(shape)), "");
    const oracle::Reading r = answered(shape).reading();
    const int64_t at = r.o(1, 2, 3);

    Case c = answered(shape);
    c.o.as<float>()[at] *= 1 + 1e-5f;
    EXPECT_NE(verdict(c), "") << "an error of 1e-5";
    c = answered(shape);
    c.o.as<float>()[at] = NAN;
    EXPECT_NE(verdict(c), "") << "NaN where a number belongs, or an element that was not written";
    c = answered(shape);
    c.lse.as<float>()[r.lse(0, 1, 2)] /= float(std::log(2.0));
    EXPECT_NE(verdict(c), "") << "LSE in base 2";
    c = answered(shape);
    c.o.as<float>()[at + shape.dim_v] = 0;
    EXPECT_NE(verdict(c), "") << "a gap between two rows was written";
    c = answered(shape);
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    EXPECT_NE(verdict(c), "") << "a mask that was ignored";
}

TEST(Failures, F20_comparators_count_nan_on_one_side) {
    EXPECT_TRUE(oracle::agrees(NAN, NAN, 0));
    EXPECT_TRUE(oracle::agrees(-INFINITY, -INFINITY, 0));
    for (const double other : {0.0, 1.0, double(INFINITY), -double(INFINITY)}) {
        EXPECT_FALSE(oracle::agrees(NAN, other, 1e300));
        EXPECT_FALSE(oracle::agrees(other, NAN, 1e300));
    }
    EXPECT_FALSE(oracle::agrees(INFINITY, -INFINITY, 1e300));
    EXPECT_FALSE(oracle::agrees(INFINITY, 1e300, 1e300));
}

TEST(Judge, NormOfAnErrorAndOfNaN) {
    EXPECT_EQ(oracle::relative_norm({1, 2}, {1, 2}), 0);
    EXPECT_NEAR(oracle::relative_norm({3, 4}, {3, 4.05}), 0.05 / std::hypot(3, 4.05), 1e-12);
    EXPECT_FALSE(oracle::relative_norm({NAN, 2}, {1, 2}) <= 1);
    EXPECT_FALSE(oracle::relative_norm({1, 2}, {0, 0}) <= 1);
}

TEST(Guards, EndAndBeginAtAForbiddenPage) {
    Buffer after(12, Buffer::Guard::after), before(12, Buffer::Guard::before);
    EXPECT_DEATH(*const_cast<volatile char*>(after.as<char>() + 12) = 1, "");
    EXPECT_DEATH(*const_cast<volatile char*>(before.as<char>() - 1) = 1, "");
    EXPECT_TRUE(after.intact() && before.intact());
    *(after.as<char>() - 1) = 0;
    *(before.as<char>() + 12) = 0;
    EXPECT_FALSE(after.intact() || before.intact());
    Buffer frozen(4, Buffer::Guard::after);
    frozen.freeze(true);
    EXPECT_DEATH(*const_cast<volatile char*>(frozen.as<char>()) = 1, "");
    Buffer nothing(0, Buffer::Guard::after);
    EXPECT_DEATH(*const_cast<volatile char*>(nothing.as<char>()) = 1, "");
}

}  // namespace
}  // namespace test
