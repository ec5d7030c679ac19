// Accuracy line 1, on benign data: the relative norm of the error, that of LSE, and none worse than an implementation that rounds
// after each step. Line 2 holds there as well.
#include <cmath>
#include "check/isa.h"
#include "check/plain.h"
#include "support/shaped.h"

namespace test {
namespace {

struct Types {
    int32_t q, kv, o;
};

struct Errors {
    double norm, plain_norm, lse;
    std::string element;
};

Errors measure(const Case& test_case, int64_t row_step, bool with_plain) {
    const oracle::Reading r = test_case.reading();
    const oracle::Attention want = oracle::attention(r, {false, row_step});
    const oracle::Pairs pairs = oracle::pair_o(r, want);
    Errors e{oracle::relative_norm(pairs.got, pairs.want), 0, 0, oracle::compare_o(r, want, test_case.p_dtype).fault};
    std::vector<double> plain;  // stays empty without a baseline
    for (int64_t b = 0; b < test_case.d.batch; b++)
        for (int64_t h = 0; h < test_case.d.heads_q; h++)
            for (int64_t i = 0; i < r.rows(b); i++) {
                if (!want.computed[size_t(want.row(b, h, i))]) continue;
                for (const float x : with_plain ? plain_row(r, b, h, i) : std::vector<float>()) plain.push_back(double(x));
                const double lse = want.lse[size_t(want.row(b, h, i))], got = double(r.a.lse[r.lse(b, h, i)]);
                const double error = std::fabs(got - lse) / std::fmax(1, std::fabs(lse));
                if (!(error <= e.lse)) e.lse = error;
            }
    e.plain_norm = with_plain ? oracle::relative_norm(plain, pairs.want) : INFINITY;
    return e;
}

// Only the float types of 16 and 32 bits round probabilities in a plain implementation; 8-bit ones have no such baseline.
bool has_plain_baseline(const Types& t) { return oracle::size_of(t.q) > 1 && t.q == t.kv && t.q == t.o; }

void check_benign(const Handle& handle, const Types& types, int64_t n, bool is_causal, int64_t row_step) {
    Rng rng(derive(uint64_t(n), uint64_t(types.q * 64 + types.kv * 8 + types.o)));
    Case c = shaped({1, 2, 1, n, n, 64, 64}, types.q);
    c.d.k_dtype = types.kv, c.d.o_dtype = types.o;
    if (is_causal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
    if (types.kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
    c.bind(rng);
    c.fill_normal(rng);
    c.set_descales(rng, 1.0 / 40);
    ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
    const Errors e = measure(c, row_step, has_plain_baseline(types));
    EXPECT_EQ(e.element, "") << c.describe();
    const int32_t p_dtype = c.p_dtype;
    const double limit = std::fmax(oracle::norm_limit(types.o), oracle::norm_limit(p_dtype));
    EXPECT_LE(e.norm, limit) << c.describe();
    EXPECT_LE(e.lse, c.short_products ? 2e-3 : 1e-5) << c.describe();
    EXPECT_LE(e.norm, e.plain_norm * (types.q == FA_F32 ? 1.25 : 1)) << c.describe();
    printf("q %s, kv %s, o %s, n %lld%s: |error of o| %.2g (plain %.2g, limit %.2g), LSE %.2g\n", oracle::name_of(types.q),
           oracle::name_of(types.kv), oracle::name_of(types.o), (long long)n, is_causal ? ", causal" : "", e.norm, e.plain_norm, limit,
           e.lse);
}

const Types kAll[] = {{FA_F32, FA_F32, FA_F32},   {FA_F16, FA_F16, FA_F16},  {FA_BF16, FA_BF16, FA_BF16}, {FA_E4M3, FA_E4M3, FA_BF16},
                      {FA_E5M2, FA_E5M2, FA_F16}, {FA_F32, FA_F32, FA_E4M3}, {FA_F32, FA_F32, FA_E5M2},   {FA_BF16, FA_I8, FA_BF16},
                      {FA_F16, FA_E4M3, FA_F32},  {FA_E4M3, FA_I8, FA_F32},  {FA_BF16, FA_BF16, FA_F32}};

class Accuracy : public testing::TestWithParam<int32_t> {};

TEST_P(Accuracy, EveryTypeOnBenignData) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const Types& types : kAll)
        for (const bool is_causal : {false, true}) check_benign(handle, types, 700, is_causal, 23);
}

TEST_P(Accuracy, EveryTypeOnFewKeys) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const Types& types : kAll)
        for (const bool is_causal : {false, true}) check_benign(handle, types, 70, is_causal, 3);
}
INSTANTIATE_TEST_SUITE_P(Isa, Accuracy, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

class AccuracyLong : public testing::TestWithParam<int> {};

TEST_P(AccuracyLong, EightThousandKeys) { check_benign(make_handle(), kAll[GetParam()], 8192, GetParam() % 2 == 1, 399); }
INSTANTIATE_TEST_SUITE_P(Types, AccuracyLong, testing::Range(0, 11));

// The study baselines do the same sums in another order.
TEST(AccuracyStudy, StandardAndFlash1) {
    const Handle handle = make_handle();
    for (const int32_t algorithm : {FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1})
        for (const bool is_causal : {false, true}) {
            Rng rng(11);
            Case c = shaped({2, 4, 2, 333, 517, 64, 48});
            c.d.algorithm = algorithm;
            if (is_causal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, c, 7), "");
            EXPECT_LE(measure(c, 37, false).norm, oracle::norm_limit(FA_F32)) << c.describe();
        }
}

TEST(Failures, F69_every_head_dimension) {
    const Handle handle = make_handle();
    Rng rng(12);
    for (int64_t dim = 1; dim <= 1024; dim += dim < 258 ? 1 : 37) {
        for (const auto& [qk, v] : {std::pair(dim, dim), std::pair(dim, 1 + dim / 3), std::pair(1 + dim / 3, dim)}) {
            const int32_t dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2});
            Case c = shaped({1, 2, 1, 3, 9, qk, v}, dtype);
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, c), "");
        }
    }
    for (const auto& [qk, v] : {std::pair(192, 128), std::pair(512, 512), std::pair(576, 512), std::pair(1024, 1024)}) {
        Case c = shaped({1, 4, 1, 50, 70, qk, v}, FA_BF16);
        c.bind(rng);
        c.fill_normal(rng);
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

}  // namespace
}  // namespace test
