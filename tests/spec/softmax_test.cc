// The merge: its algebra, and that any merge of any partition of the keys is the two-pass softmax.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>
#include "spec/online_softmax.h"

namespace fa {
namespace {

constexpr double kUnit = 0x1p-24;  // roundoff of f32

// A state with its output (one column), as a kernel carries them.
struct Partial {
    RowState state = empty_row();
    float o = 0;
};

Partial join(const Partial& a, const Partial& b) {
    const Merged f = merge(a.state, b.state);
    return {f.state, a.o * f.scale_a + b.o * f.scale_b};
}

void expect_same(const Partial& a, const Partial& b) {
    EXPECT_EQ(a.state.m, b.state.m);
    EXPECT_EQ(a.state.l, b.state.l);
    EXPECT_EQ(a.o, b.o);
}

// What a state stands for, measured from a common safe_max.
double sum_from(const RowState& state, double from) { return state.l == 0 ? 0 : state.l * std::exp2(double(state.m) - from); }

class Fixture : public testing::Test {
  protected:
    std::mt19937 random{7};
    float uniform(float a, float b) { return std::uniform_real_distribution<float>(a, b)(random); }
    int below(int n) { return int(random() % uint32_t(n)); }

    Partial any_partial() {
        if (below(6) == 0) return {};
        return {{uniform(-300, 300), uniform(1, 1000)}, uniform(-10, 10)};
    }
};
using SoftmaxSpec = Fixture;

TEST_F(SoftmaxSpec, EmptyIsNeutral) {
    expect_same(join({}, {}), {});
    for (int trial = 0; trial < 1000; trial++) {
        const Partial a = any_partial();
        expect_same(join(a, {}), a);
        expect_same(join({}, a), a);
    }
    const Merged f = merge(empty_row(), {3.f, 2.f});
    EXPECT_EQ(f.scale_a, 0.f);
    EXPECT_EQ(f.scale_b, 1.f);
}

TEST_F(SoftmaxSpec, Commutative) {
    for (int trial = 0; trial < 20000; trial++) {
        const Partial a = any_partial(), b = any_partial();
        expect_same(join(a, b), join(b, a));
        const Merged ab = merge(a.state, b.state), ba = merge(b.state, a.state);
        EXPECT_EQ(ab.scale_a, ba.scale_b);
        EXPECT_EQ(ab.scale_b, ba.scale_a);
    }
}

// Each merge rounds a term by at most 4 + |Δm| units; a far term counts for as much less as it is further away.
TEST_F(SoftmaxSpec, AssociativeWithinRounding) {
    for (int trial = 0; trial < 20000; trial++) {
        const Partial a = any_partial(), b = any_partial(), c = any_partial();
        const Partial left = join(join(a, b), c), right = join(a, join(b, c));
        ASSERT_EQ(left.state.m, right.state.m) << "a maximum is never rounded";
        const double m = left.state.m == kNegInf ? 0 : left.state.m;
        const double exact = sum_from(a.state, m) + sum_from(b.state, m) + sum_from(c.state, m);
        for (const Partial& p : {left, right}) ASSERT_NEAR(p.state.l, exact, 32 * kUnit * exact);
        const auto weighed = [&](const Partial& partial) {
            return partial.state.l == 0 ? 0 : partial.o * std::exp2(double(partial.state.m) - m);
        };
        const double o = weighed(a) + weighed(b) + weighed(c);
        const double size = std::fabs(weighed(a)) + std::fabs(weighed(b)) + std::fabs(weighed(c));
        for (const Partial& p : {left, right}) ASSERT_NEAR(p.o, o, 32 * kUnit * size);
    }
}

// No state of a row with keys has l < 1: its largest score weighs exactly 1. So l == 0 can only mean empty.
TEST_F(SoftmaxSpec, OnlyAnEmptyRowHasZeroSum) {
    for (int trial = 0; trial < 2000; trial++) {
        RowState s = empty_row();
        for (int j = 0; j < 20; j++) {
            s = merge(s, {uniform(-3e4f, 3e4f), 1.f}).state;
            ASSERT_GE(s.l, 1.f);
        }
    }
}

// Keys dealt to blocks at random; a block is summed over its own maximum or key by key; blocks are merged in a random order, as a
// chain or as a tree. All of it is the softmax.
TEST_F(SoftmaxSpec, AnyFoldIsTheTwoPassSoftmax) {
    for (int trial = 0; trial < 3000; trial++) {
        const int n = 1 + below(60), parts = 1 + below(8);
        std::vector<float> score(n), value(n);
        for (int j = 0; j < n; j++) {
            score[j] = below(10) == 0 ? kNegInf : uniform(-40, 40);  // removed keys among them
            value[j] = uniform(-1, 1);
        }
        double top = -1e300, sum = 0, out = 0, size = 0;
        for (float s : score) top = std::max(top, double(s));
        for (int j = 0; j < n; j++) {
            const double w = score[j] == kNegInf ? 0 : std::exp2(double(score[j]) - top);
            sum += w;
            out += w * value[j];
            size += w * std::fabs(value[j]);
        }

        std::vector<std::vector<int>> block(parts);
        for (int j = 0; j < n; j++) block[below(parts)].push_back(j);
        std::vector<Partial> partial(parts);
        for (int p = 0; p < parts; p++) {
            if (below(2)) {
                for (int j : block[p])
                    if (score[j] != kNegInf) partial[p] = join(partial[p], {{score[j], 1.f}, value[j]});
                continue;
            }
            float m = kNegInf;
            for (int j : block[p]) m = max_fn(m, score[j]);
            partial[p].state.m = m;
            for (int j : block[p]) {
                partial[p].state.l += prob(score[j], m);
                partial[p].o += prob(score[j], m) * value[j];
            }
        }
        std::shuffle(partial.begin(), partial.end(), random);
        const bool tree = below(2);
        while (partial.size() > 1) {
            const Partial last = partial.back();
            partial.pop_back();
            Partial& into = tree ? partial[size_t(below(int(partial.size())))] : partial.front();
            into = below(2) ? join(into, last) : join(last, into);
        }

        const RowState s = partial[0].state;
        if (sum == 0) {
            EXPECT_EQ(s.l, 0.f);
            EXPECT_EQ(partial[0].o * normaliser(s), 0.f);
            EXPECT_EQ(log_sum_exp(s), kNegInf);
            continue;
        }
        ASSERT_NEAR(partial[0].o * normaliser(s), out / sum, 128 * kUnit * size / sum);
        ASSERT_NEAR(log_sum_exp(s), std::log(2.0) * (top + std::log2(sum)), 1e-5 * std::max(1.0, std::fabs(top)));
    }
}

TEST_F(SoftmaxSpec, WeightAndRescale) {
    EXPECT_EQ(prob(5.f, 5.f), 1.f);
    EXPECT_EQ(prob(2.f, 5.f), 0.125f);
    EXPECT_EQ(prob(kNegInf, 5.f), 0.f) << "a removed key weighs nothing";
    EXPECT_EQ(prob(kNegInf, kNegInf), 0.f) << "… in a row that has only removed keys, too";
    EXPECT_TRUE(std::isnan(prob(NAN, 5.f)));
    EXPECT_TRUE(std::isnan(prob(kPosInf, kPosInf)));
    EXPECT_EQ(safe_max(kNegInf), 0.f);
    EXPECT_EQ(safe_max(-7.f), -7.f);
    EXPECT_EQ(exponent_below(2.f, 5.f), -3.f);
    EXPECT_EQ(exponent_below(1e30f, 0.99999e30f), 0.f);
    EXPECT_EQ(exponent_below(kNegInf, 5.f), kNegInf);
    EXPECT_TRUE(std::isnan(exponent_below(NAN, 5.f)));
    EXPECT_EQ(rescale(3.f, 5.f), 0.25f);
    EXPECT_EQ(rescale(5.f, 5.f), 1.f);
    EXPECT_EQ(rescale(-1e30f, 1e30f), 0.f);
    EXPECT_EQ(rescale(kNegInf, kNegInf), 1.f);
    EXPECT_TRUE(std::isfinite(rescale(kNegInf, 3.f))) << "multiplies sums that are 0";
}

TEST_F(SoftmaxSpec, EmptyRow) {
    EXPECT_EQ(normaliser(empty_row()), 0.f);
    EXPECT_EQ(log_sum_exp(empty_row()), kNegInf);
    // A row whose keys were all removed has gone through the motions and is still empty.
    RowState s{kNegInf, 0.f};
    for (int j = 0; j < 4; j++) s.l += prob(kNegInf, s.m);
    EXPECT_EQ(s.l, 0.f);
    EXPECT_EQ(merge(s, s).state.l, 0.f);
}

TEST_F(SoftmaxSpec, NanIsNeverTakenForEmpty) {
    const RowState nan_only{max_fn(kNegInf, NAN), prob(NAN, kNegInf)};
    EXPECT_EQ(nan_only.m, kNegInf);
    EXPECT_TRUE(std::isnan(normaliser(nan_only)) && std::isnan(log_sum_exp(nan_only)));
    for (const RowState& other : {empty_row(), nan_only, RowState{3.f, 2.f}, RowState{-200.f, 1.f}}) {
        EXPECT_TRUE(std::isnan(merge(nan_only, other).state.l));
        EXPECT_TRUE(std::isnan(merge(other, nan_only).state.l));
    }
    const RowState infinite{kPosInf, prob(kPosInf, kPosInf)};
    EXPECT_TRUE(std::isnan(merge(infinite, {3.f, 2.f}).state.l)) << "a score of +inf";
    EXPECT_TRUE(std::isnan(log_sum_exp(from_lse(NAN))));
    EXPECT_TRUE(std::isnan(merge({3.f, 2.f}, from_lse(NAN)).state.l)) << "a part whose LSE is NaN";
}

TEST_F(SoftmaxSpec, LogSumExpIsNatural) {
    for (int trial = 0; trial < 2000; trial++) {
        const RowState s{uniform(-2e4f, 2e4f), uniform(1, 1e5)};
        const double want = std::log(2.0) * double(s.m) + std::log(double(s.l));
        ASSERT_NEAR(log_sum_exp(s), want, 2e-7 * std::max(1.0, std::fabs(want)));
    }
    EXPECT_NEAR(log_sum_exp({kLog2e * 2, 1.f}), 2.f, 1e-6f);
}

TEST_F(SoftmaxSpec, PartialStateGoesOutAndComesBack) {
    for (int trial = 0; trial < 2000; trial++) {
        const RowState a{uniform(-90, 90), uniform(1, 1e5)}, b{uniform(-90, 90), uniform(1, 1e5)};
        EXPECT_EQ(from_lse(log_sum_exp(a)).l, 1.f);
        const float direct = log_sum_exp(merge(a, b).state);
        const float through = log_sum_exp(merge(from_lse(log_sum_exp(a)), from_lse(log_sum_exp(b))).state);
        ASSERT_NEAR(direct, through, 2e-6 * std::max(1.f, std::fabs(direct)));
    }
    for (const float empty : {kNegInf, kPosInf}) {
        EXPECT_EQ(from_lse(empty).l, 0.f);
        EXPECT_EQ(merge(from_lse(empty), from_lse(empty)).state.l, 0.f);
        expect_same(join({from_lse(empty), 0.f}, {{2.f, 3.f}, 4.f}), {{2.f, 3.f}, 4.f});
    }
}

TEST_F(SoftmaxSpec, SinkIsOneMoreLogit) {
    EXPECT_NEAR(log_sum_exp(merge(empty_row(), sink_state(1.5f)).state), 1.5, 1e-6);
    for (int trial = 0; trial < 2000; trial++) {
        const int n = 1 + below(20);
        const float sink = uniform(-20, 20);
        Partial row;
        double sum = std::exp(double(sink)), out = 0;
        for (int j = 0; j < n; j++) {
            const float score = uniform(-20, 20), value = uniform(-1, 1);
            row = join(row, {{score * kLog2e, 1.f}, value});
            sum += std::exp(double(score));
            out += std::exp(double(score)) * value;
        }
        row = join(row, {sink_state(sink), 0.f});
        ASSERT_NEAR(row.o * normaliser(row.state), out / sum, 1e-5);
        ASSERT_NEAR(log_sum_exp(row.state), std::log(sum), 1e-5 * std::max(1.0, std::fabs(std::log(sum))));
    }
}

// exp(−inf) = 0: such a sink takes no part, wherever the row's own scores lie.
TEST_F(SoftmaxSpec, SinkOfMinusInfinityIsNone) {
    for (const float m : {-500.f, -5.f, 0.f, 5.f, 500.f}) expect_same(join({{m, 2.f}, 3.f}, {sink_state(kNegInf), 0.f}), {{m, 2.f}, 3.f});
    EXPECT_EQ(log_sum_exp(merge(empty_row(), sink_state(kNegInf)).state), kNegInf);
    EXPECT_TRUE(std::isnan(merge({1.f, 1.f}, sink_state(NAN)).state.l));
    EXPECT_TRUE(std::isnan(merge({1.f, 1.f}, sink_state(kPosInf)).state.l));
}

// The range of log2 units, of what comes in natural ones: below it is −∞, above it +∞, and up to it all is finite.
TEST_F(SoftmaxSpec, RangeOfNaturalUnits) {
    EXPECT_TRUE(std::isfinite(kMaxBaseE * kLog2e));
    EXPECT_TRUE(std::isinf(std::nextafter(kMaxBaseE, kPosInf) * kLog2e));
    const Partial row{{3.f, 2.f}, 5.f};
    for (const float low : {std::nextafter(-kMaxBaseE, kNegInf), -3e38f, -kMaxFloat}) {
        EXPECT_EQ(sink_state(low).l, 0.f);
        EXPECT_EQ(from_lse(low).l, 0.f);
        expect_same(join(row, {sink_state(low), 0.f}), row);
    }
    expect_same(join(row, {sink_state(-kMaxBaseE), 0.f}), row);
    EXPECT_NEAR(log_sum_exp(merge(empty_row(), sink_state(-kMaxBaseE)).state) / -kMaxBaseE, 1, 1e-6);
    const Merged high = merge(row.state, sink_state(kMaxBaseE));
    EXPECT_EQ(high.scale_a, 0.f);
    EXPECT_NEAR(log_sum_exp(high.state) / kMaxBaseE, 1, 1e-6);
    EXPECT_TRUE(std::isnan(merge(row.state, sink_state(kMaxFloat)).state.l));
    EXPECT_TRUE(std::isnan(merge(row.state, from_lse(kMaxFloat)).state.l));

    for (const float slope : {0.5f, -0.5f, kMaxBaseE, 0.f}) EXPECT_EQ(log2_slope(slope), slope * kLog2e);
    EXPECT_EQ(log2_slope(kMaxFloat), kMaxFloat);
    EXPECT_EQ(log2_slope(-3e38f), -kMaxFloat);
    EXPECT_EQ(log2_slope(kNegInf), kNegInf);
    EXPECT_TRUE(std::isnan(log2_slope(NAN)));
}

}  // namespace
}  // namespace fa
