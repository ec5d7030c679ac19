// Accuracy of gradients: line 1 on benign data, against a plain implementation too; line 2 on hostile data; and that it takes an f32 o
// to have a dq where all weights are nearly alike.
#include <cmath>
#include "check/isa.h"
#include "check/plain_backward.h"
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

Case benign(int32_t dtype, bool is_causal, Rng& rng) {
    Case c = shaped({1, 2, 1, 200, 260, 64, 48}, dtype);
    if (is_causal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.bind(rng);
    c.fill_normal(rng);
    return c;
}

class BackwardAccuracy : public testing::TestWithParam<int32_t> {};

TEST_P(BackwardAccuracy, BenignDataOnEveryIsa) {
    const Handle handle = make_handle();
    for (const bool is_causal : {false, true}) {
        Rng rng(71);
        BackwardCase b(benign(GetParam(), is_causal, rng));
        ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        b.bind(rng);
        b.fill_normal(rng);
        std::vector<oracle::Target> targets = b.targets();
        const PlainGradients plain = plain_backward(b.reading());
        const std::vector<float>* const plains[] = {&plain.dq, &plain.dk, &plain.dv};
        for (const int32_t isa : usable_isas()) {
            ASSERT_TRUE(isa == 0 || handle.set(FA_PARAM_MAX_ISA, isa));
            ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            ASSERT_EQ(b.run(handle), FA_OK) << handle.error();
            EXPECT_EQ(oracle::compare(b.reading(), targets, products_of(handle, b)).fault, "") << b.describe();
            for (size_t n = 0; n < targets.size(); n++) {
                const oracle::Pairs pairs = oracle::pairs(targets[n]);
                const double norm = oracle::relative_norm(pairs.got, pairs.want);
                const double plain_norm = oracle::relative_norm({plains[n]->begin(), plains[n]->end()}, pairs.want);
                EXPECT_LE(norm, oracle::norm_limit(GetParam())) << targets[n].name << "\n" << b.describe();
                EXPECT_LE(norm, plain_norm) << targets[n].name << "\n" << b.describe();
                printf("%s, %s%s: |error of %s| %.2g (plain %.2g)\n", oracle::name_of(GetParam()), isa_name(isa),
                       is_causal ? ", causal" : "", targets[n].name, norm, plain_norm);
            }
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Type, BackwardAccuracy, testing::Values(FA_F32, FA_F16, FA_BF16),
                         [](const auto& info) { return oracle::name_of(info.param); });

// All numbers in [0, 1]: every key looks the same, and dP − Δ is what is left of two numbers that are nearly equal. With a bf16 o
// their difference is that of its rounding.
TEST(BackwardAccuracy, UniformInputsNeedAnF32O) {
    const Handle handle = make_handle();
    const auto norm_of_dq = [&](int32_t o_dtype) {
        Rng rng(72);
        Case c = shaped({1, 2, 2, 100, 400, 64, 64}, FA_BF16);
        c.d.o_dtype = o_dtype;
        c.bind(rng);
        const auto uniform = [&](int64_t, int64_t, int64_t, int64_t) { return rng.uniform(); };
        c.set_q(uniform), c.set_k(uniform), c.set_v(uniform);
        BackwardCase b(std::move(c));
        EXPECT_TRUE(testing_the_cpu() == false || handle.set(FA_PARAM_MAX_ISA, FA_ISA_GENERIC));  // P in f32
        EXPECT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        b.bind(rng);
        b.set_dout([&](int64_t, int64_t, int64_t, int64_t) { return rng.uniform(); });
        EXPECT_EQ(run_and_check(handle, b), "");
        const std::vector<oracle::Target> targets = b.targets();
        const oracle::Pairs dq = oracle::pairs(targets[0]);
        return oracle::relative_norm(dq.got, dq.want);
    };
    const double rounded = norm_of_dq(FA_BF16), kept = norm_of_dq(FA_F32);
    printf("|error of dq| with o in bf16 %.2g, in f32 %.2g\n", rounded, kept);
    EXPECT_GT(rounded, 20 * oracle::norm_limit(FA_BF16));
    // Matrix units round P as well, and so o in what they add up: a part of the error stays.
    EXPECT_LE(kept, testing_the_cpu() ? oracle::norm_limit(FA_BF16) : rounded / 2);
}

// Scores, values and upstream gradients at their worst.
class BackwardHostile : public testing::TestWithParam<int32_t> {};

TEST_P(BackwardHostile, ElementByElement) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16})
        for (int how = 0; how < 7; how++) {
            Rng rng(73);
            Case c = shaped({1, 2, 1, 70, 140, 16, 12}, dtype);
            if (how % 2) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.bind(rng);
            c.fill_normal(rng);
            const auto normal = [&](double size) {
                return [&rng, size](int64_t, int64_t, int64_t, int64_t) { return size * rng.normal(); };
            };
            if (how == 0) c.set_q(normal(100)), c.set_k(normal(100));                       // scores of ±1e4
            if (how == 1) c.set_k([](int64_t, int64_t, int64_t, int64_t) { return 1.0; });  // all alike: dq has nothing to work with
            if (how == 2) c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return j == 77 ? 60.0 : rng.normal(); });     // one huge
            if (how == 3) c.set_k([](int64_t, int64_t, int64_t j, int64_t) { return 0.05 * double(j); });                   // ascending
            if (how == 4) c.set_v([&](int64_t, int64_t, int64_t, int64_t) { return (rng.chance(0.5) ? 1 : -1) * 200.0; });  // cancelling
            if (how == 5) c.set_v(normal(1e-6));
            BackwardCase b(std::move(c));
            ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            b.bind(rng);
            b.fill_normal(rng, how == 6 ? 1e-6 : 1);
            ASSERT_EQ(run_and_check(handle, b), "") << how;
        }
}
INSTANTIATE_TEST_SUITE_P(Isa, BackwardHostile, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

// Every head dimension, and one more row and key than tiles have.
TEST(Failures, F48_F69_every_head_dimension_backward) {
    const Handle handle = make_handle();
    Rng rng(74);
    for (int64_t dim = 1; dim <= 1024; dim += dim < 130 ? 1 : 61)
        for (const auto& [qk, v] : {std::pair(dim, dim), std::pair(dim, 1 + dim / 3), std::pair(1 + dim / 3, dim)}) {
            Case c = shaped({1, 2, 1, 5, 9, qk, v}, rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16}));
            c.bind(rng);
            c.fill_normal(rng);
            BackwardCase b(std::move(c));
            ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            b.bind(rng);
            b.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, b), "");
        }
}

// Heads of 257 to 512 dims on matrix units, whose tiles are low: several of rows and of keys, under each mask, of grouped heads, and with
// the same bits asked for or not.
class BackwardWideHeads : public testing::TestWithParam<int32_t> {};

TEST_P(BackwardWideHeads, SeveralTiles) {
    const Handle handle = make_handle();
    for (int form = 0; form < 6; form++) {
        Rng rng(derive(75, uint64_t(form)));
        const int64_t dim = form < 2 ? 512 : form < 4 ? 388 : 271;
        Case c = shaped({1, 2, form % 2 ? 2 : 1, form % 2 ? 37 : 70, form % 2 ? 70 : 37, dim, dim - (form == 4 ? 9 : 0)}, GetParam());
        if (form % 3 == 0) causal(c, FA_ALIGN_BOTTOM_RIGHT);  // of more rows than keys: some see none
        if (form == 4) window(c, 20, 3, FA_ALIGN_BOTTOM_RIGHT);
        if (form == 5) c.d.softcap = 3;
        if (form == 2 || form == 3) c.d.flags |= FA_DETERMINISTIC;
        c.bind(rng);
        c.fill_normal(rng);
        BackwardCase b(std::move(c));
        ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        b.bind(rng);
        b.fill_normal(rng, form == 5 ? 1000 : 1);
        ASSERT_EQ(run_and_check(handle, b), "") << form;
    }
}
INSTANTIATE_TEST_SUITE_P(Type, BackwardWideHeads, testing::Values(FA_F16, FA_BF16),
                         [](const auto& info) { return oracle::name_of(info.param); });

}  // namespace
}  // namespace test
