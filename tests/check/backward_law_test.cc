// Laws of gradients that need no reference: sums, slopes of the loss, and what may not change a bit.
#include <gtest/gtest.h>
#include <cmath>
#include "support/random_case.h"
#include "support/shaped.h"

namespace test {
namespace {

std::vector<std::vector<unsigned char>> run_bits(const Handle& handle, BackwardCase& backward) {
    EXPECT_EQ(backward.run(handle), FA_OK) << handle.error() << "\n" << backward.describe();
    return {bytes_of(backward.dq), bytes_of(backward.dk), bytes_of(backward.dv), bytes_of(backward.dbias), bytes_of(backward.dsinks)};
}

// Its forward has been run, and dout is there.
BackwardCase ready(const Handle& handle, Case test_case, Rng& rng, bool with_dlse = false) {
    BackwardCase b(std::move(test_case));
    EXPECT_EQ(b.run_forward(handle), FA_OK) << handle.error();
    b.gives_dlse = with_dlse;
    b.bind(rng);
    b.fill_normal(rng);
    return b;
}

// Grouped heads, several tiles and chunks of keys, a bias that is summed over sequences and rows.
Case big_backward_case(Rng& rng, int32_t dtype = FA_F32) {
    Case c = shaped({2, 4, 2, 150, 700, 32, 24}, dtype);
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_SINKS;
    c.d.bias_stride[1] = 700, c.d.bias_stride[3] = 1;
    c.bind(rng);
    c.fill_normal(rng);
    c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
    for (int64_t h = 0; h < 4; h++) c.sinks.as<float>()[h] = 0.5f;
    return c;
}

TEST(Failures, F44_F45_F49_F51_F52_same_gradients_for_any_number_of_threads) {
    const Handle handle = make_handle();
    Rng rng(81);
    const auto same = [&](BackwardCase& backward) {
        ASSERT_TRUE(!testing_the_cpu() || handle.set_threads(1));
        const auto one = run_bits(handle, backward);
        for (const int64_t threads : {2, 3, 8}) {
            ASSERT_TRUE(!testing_the_cpu() || handle.set_threads(threads));
            ASSERT_TRUE(run_bits(handle, backward) == one) << threads << " threads\n" << backward.describe();
        }
    };
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Case c = big_backward_case(rng, dtype);
        c.d.flags |= FA_DETERMINISTIC;
        BackwardCase b = ready(handle, std::move(c), rng);
        same(b);
    }
    for (uint64_t n = 0; n < 150; n++) {
        BackwardCase b(random_differentiable_case(derive(81, n)));
        b.c.d.flags |= FA_DETERMINISTIC;
        ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        choose_gradients(rng, b);
        b.a.flags = 0;  // what is accumulated into differs from call to call
        b.bind(rng);
        b.fill_normal(rng);
        same(b);
    }
}

TEST(Failures, F44_F49_F51_same_gradients_every_time) {
    const Handle handle = make_handle();
    Rng rng(82);
    Case c = shaped({1, 4, 2, 37, 130, 16, 8});
    c.d.flags |= FA_DETERMINISTIC;
    c.bind(rng);
    c.fill_normal(rng);
    BackwardCase b = ready(handle, std::move(c), rng);
    const auto first = run_bits(handle, b);
    for (int n = 0; n < 1000; n++) ASSERT_TRUE(run_bits(handle, b) == first) << n;
}

TEST(Failures, F41_F50_F58_stale_workspace_backward) {
    const Handle handle = make_handle();
    Rng rng(83);
    for (int n = 0; n < 3; n++) {
        Case c = big_backward_case(rng, n == 1 ? FA_F16 : FA_F32);
        c.d.flags |= FA_DETERMINISTIC;
        if (n == 2) c.d.dropout_p = 0.3f;
        BackwardCase b = ready(handle, std::move(c), rng);
        const auto without = run_bits(handle, b);
        uint64_t bytes = 0;
        ASSERT_EQ(fa_workspace_size(handle, &b.c.d, FA_OP_BACKWARD, &bytes), FA_OK);
        b.use_workspace(bytes, rng);  // NaN before each call
        ASSERT_TRUE(run_bits(handle, b) == without) << b.describe();
        ASSERT_TRUE(b.workspace.intact());
    }
}

// Gradients that are not asked for do not change the others.
TEST(BackwardLaws, EachGradientByItself) {
    const Handle handle = make_handle();
    Rng rng(84);
    Case c = big_backward_case(rng);
    c.d.flags |= FA_DETERMINISTIC;
    BackwardCase b = ready(handle, std::move(c), rng);
    const auto all = run_bits(handle, b);
    const fa_backward_args_t full = b.a;
    void* fa_backward_args_t::* const three[] = {&fa_backward_args_t::dq, &fa_backward_args_t::dk, &fa_backward_args_t::dv};
    for (int only = 0; only < 5; only++) {
        for (int n = 0; n < 3; n++) b.a.*three[n] = n == only ? full.*three[n] : nullptr;
        b.a.dbias = only == 3 ? full.dbias : nullptr, b.a.dsinks = only == 4 ? full.dsinks : nullptr;
        const auto one = run_bits(handle, b);
        for (size_t n = 0; n < 5; n++)
            EXPECT_EQ(one[n], n == size_t(only) ? all[n] : std::vector<unsigned char>(all[n].size(), kPoison)) << only << " " << n;
    }
}

// Σ_j dS_ij and the sink's part are dLSE_i: the weights of a row, the sink's among them, always sum to 1.
TEST(BackwardLaws, RowsOfDsSumToDlse) {
    const Handle handle = make_handle();
    for (const bool with_dlse : {false, true}) {
        Rng rng(85);
        Case c = shaped({1, 2, 1, 40, 90, 24, 24});
        causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.d.softcap = 2, c.d.dropout_p = 0.3f;
        c.d.operands |= FA_OPERAND_BIAS;
        dense_pairs(c.d, c.d.bias_stride);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(0.1) ? -double(INFINITY) : rng.normal(); });
        BackwardCase b = ready(handle, std::move(c), rng, with_dlse);
        run_bits(handle, b);
        const oracle::BackwardReading r = b.reading();
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < 40; i++) {
                double sum = 0, size = 0;
                for (int64_t j = 0; j < 90; j++) {
                    const double ds = double(r.g.dbias[r.dbias(0, h, i, j)]);
                    sum += ds, size += std::fabs(ds);
                }
                ASSERT_NEAR(sum, with_dlse ? double(r.g.dlse[r.dlse(0, h, i)]) : 0, 1e-5 * (1 + size)) << "row " << i;
            }
    }
}

// Σ_j dv_j = Σ_i dO_i, where nothing but keys has weight.
TEST(BackwardLaws, ColumnsOfDvSumToThoseOfDout) {
    const Handle handle = make_handle();
    Rng rng(86);
    Case c = shaped({1, 4, 1, 50, 120, 16, 20});
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.bind(rng);
    c.fill_normal(rng);
    BackwardCase b = ready(handle, std::move(c), rng);
    run_bits(handle, b);
    const oracle::BackwardReading r = b.reading();
    for (int64_t e = 0; e < 20; e++) {
        double dv = 0, dout = 0;
        for (int64_t j = 0; j < 120; j++) dv += oracle::load(r.g.dv, r.dv(0, 0, j) + e, FA_F32);
        for (int64_t h = 0; h < 4; h++)
            for (int64_t i = 0; i < 50; i++) dout += oracle::load(r.g.dout, r.dout(0, h, i) + e, FA_F32);
        EXPECT_NEAR(dv, dout, 1e-4);
    }
}

// The slope of the library's own loss along a direction is the gradient's share of that direction: no oracle takes part.
TEST(BackwardLaws, SlopesAlongDirections) {
    const Handle handle = make_handle();
    for (const float softcap : {0.f, 1.5f}) {
        Rng rng(87);
        const auto make = [&] {
            Case c = shaped({2, 4, 2, 30, 45, 16, 16});
            causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.d.softcap = softcap, c.d.dropout_p = 0.2f;
            c.d.operands |= FA_OPERAND_SINKS | FA_OPERAND_ALIBI;
            c.bind(rng);
            c.a.dropout_seed = 5;
            for (int64_t h = 0; h < 4; h++) c.sinks.as<float>()[h] = 0.3f, c.alibi.as<float>()[h] = 0.05f * float(h);
            c.fill_normal(rng);
            return c;
        };
        BackwardCase b = ready(handle, make(), rng, true);
        run_bits(handle, b);
        const oracle::BackwardReading r = b.reading();
        const auto loss = [&] {
            EXPECT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            double sum = 0;
            for (int64_t s = 0; s < 2; s++)
                for (int64_t h = 0; h < 4; h++)
                    for (int64_t i = 0; i < 30; i++) {
                        sum += double(r.g.dlse[r.dlse(s, h, i)]) * double(r.a.lse[r.lse(s, h, i)]);
                        for (int64_t e = 0; e < 16; e++)
                            sum += oracle::load(r.g.dout, r.dout(s, h, i) + e, FA_F32) * oracle::load(r.a.o, r.o(s, h, i) + e, FA_F32);
                    }
            return sum;
        };
        const struct {
            const char* name;
            Buffer &input, &gradient;
        } all[] = {{"q", b.c.q, b.dq}, {"k", b.c.k, b.dk}, {"v", b.c.v, b.dv}, {"sinks", b.c.sinks, b.dsinks}};
        constexpr double kStep = 1e-2;  // errors of f32 and of the third derivative are alike
        for (const auto& one : all) {
            const int64_t n = one.input.bytes() / 4;
            float* const x = one.input.as<float>();
            const std::vector<float> middle(x, x + n);
            std::vector<double> direction(static_cast<size_t>(n));
            double share = 0, size = 0;
            for (size_t e = 0; e < direction.size(); e++) {
                direction[e] = rng.normal();
                share += direction[e] * double(one.gradient.as<float>()[e]);
                size += std::pow(double(one.gradient.as<float>()[e]), 2);
            }
            const auto at = [&](double step) {
                for (size_t e = 0; e < direction.size(); e++) x[e] = float(double(middle[e]) + step * direction[e]);
                return loss();
            };
            const double slope = (8 * (at(kStep) - at(-kStep)) - (at(2 * kStep) - at(-2 * kStep))) / (12 * kStep);
            std::copy(middle.begin(), middle.end(), x);
            EXPECT_NEAR(slope, share, 2e-3 * std::sqrt(size) + 1e-3) << one.name << ", softcap " << softcap;
        }
    }
}

// Gradients of parts of the keys, each with the LSE and O of the whole, add up to the whole's.
TEST(Failures, F73_gradients_of_parts_of_the_keys) {
    const Handle handle = make_handle();
    const int64_t keys = 150, cut = 61;
    const auto make = [&](int64_t first, int64_t count) {
        Rng rng(88);
        Case c = shaped({2, 2, 1, 40, count, 16, 16});
        c.bind(rng);
        const auto value = [=](int64_t what) {
            return [=](int64_t b, int64_t h, int64_t n, int64_t e) {
                return Rng(derive(uint64_t(what * 2 + b), uint64_t(h * 1000 + n + (what > 0 ? first : 0)), uint64_t(e))).normal();
            };
        };
        c.set_q(value(0)), c.set_k(value(1)), c.set_v(value(2));
        return c;
    };
    const auto dout = [](int64_t b, int64_t h, int64_t i, int64_t e) {
        return Rng(derive(uint64_t(9 + b), uint64_t(h * 1000 + i), uint64_t(e))).normal();
    };
    Rng rng(89);
    BackwardCase whole = ready(handle, make(0, keys), rng);
    whole.set_dout(dout);
    ASSERT_EQ(run_and_check(handle, whole), "");
    std::vector<float> dq(size_t(whole.dq.bytes() / 4), 0.f);
    for (const auto& [first, count] : {std::pair(int64_t(0), cut), std::pair(cut, keys - cut)}) {
        BackwardCase part = ready(handle, make(first, count), rng);
        part.set_dout(dout);
        part.c.a.o = whole.c.a.o, part.c.a.lse = whole.c.a.lse;
        run_bits(handle, part);
        for (size_t n = 0; n < dq.size(); n++) dq[n] += part.dq.as<float>()[n];
        const oracle::BackwardReading r = part.reading(), all = whole.reading();
        for (int64_t b = 0; b < 2; b++)
            for (int64_t j = 0; j < count; j++)
                for (int64_t e = 0; e < 16; e++)
                    ASSERT_NEAR(oracle::load(r.g.dk, r.dk(b, 0, j) + e, FA_F32),
                                oracle::load(all.g.dk, all.dk(b, 0, first + j) + e, FA_F32), 2e-6);
    }
    for (size_t n = 0; n < dq.size(); n++) ASSERT_NEAR(dq[n], whole.dq.as<float>()[n], 2e-6);
}

}  // namespace
}  // namespace test
