// The oracle's gradients against what a gradient is: how the loss changes when one number in memory does. Every element of every
// input is moved, so that gradients of broadcast inputs are seen to be sums.
#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <map>
#include "oracle/backward.h"
#include "support/random_case.h"
#include "support/shaped.h"

namespace test {
namespace {

constexpr double kStep = 0x1p-11;  // moves values on the grid to floats that are exact
constexpr double kGrid = 0x1p-10;
constexpr double kTolerance = 1e-8;

double on_grid(double x) { return std::nearbyint(x / kGrid) * kGrid; }

struct Loss {
    const Case& c;
    oracle::Upstream up;

    Loss(const Case& test_case, Rng& rng) : c(test_case) {
        const oracle::Reading r = test_case.reading();
        const int64_t rows = test_case.d.batch * test_case.d.heads_q * test_case.d.seqlen_q;
        for (int64_t n = 0; n < rows * r.dim_v; n++) up.d_o.push_back(rng.normal());
        for (int64_t n = 0; n < rows; n++) up.d_lse.push_back(rng.normal());
    }

    // A row without a key has an LSE that nothing moves.
    double operator()() const {
        const oracle::Attention y = oracle::attention(c.reading());
        double sum = 0;
        for (size_t n = 0; n < y.o.size(); n++) sum += up.d_o[n] * y.o[n];
        for (size_t n = 0; n < y.lse.size(); n++) sum += std::isinf(y.lse[n]) ? 0 : up.d_lse[n] * y.lse[n];
        return sum;
    }

    // Differences of fourth order: (8 (f(h) − f(−h)) − (f(2h) − f(−2h))) / 12 h.
    double slope(float& x) const {
        const float middle = x;
        auto at = [&](double steps) {
            x = float(double(middle) + steps * kStep);
            return (*this)();
        };
        const double near = at(1) - at(-1), far = at(2) - at(-2);
        x = middle;
        return (8 * near - far) / (12 * kStep);
    }
};

// The gradient of each element of a buffer: of all that is read from it.
struct Expected {
    double value = 0, spread = 0;
};
using Places = std::map<int64_t, Expected>;

void add(Places& places, int64_t at, const oracle::Gradient& gradient, int64_t n) {
    places[at].value += gradient.value[size_t(n)];
    places[at].spread += gradient.spread[size_t(n)];
}

struct Inputs {
    Places q, k, v, bias, sinks;
    Inputs(const oracle::Reading& reading, const oracle::Gradients& gradients) {
        for (int64_t b = 0; b < reading.d.batch; b++) {
            for (int64_t h = 0; h < reading.d.heads_q; h++)
                for (int64_t i = 0; i < reading.rows(b); i++) {
                    for (int64_t e = 0; e < reading.d.dim_qk; e++)
                        add(q, reading.q(b, h, i) + e, gradients.q, gradients.row(b, h, i) * reading.d.dim_qk + e);
                    for (int64_t j = 0; j < reading.keys(b) && reading.has(FA_OPERAND_BIAS); j++)
                        add(bias, reading.bias(b, h, i, j), gradients.bias, gradients.row(b, h, i) * gradients.keys + j);
                }
            for (int64_t h = 0; h < reading.heads_k; h++)
                for (int64_t j = 0; j < reading.keys(b); j++) {
                    for (int64_t e = 0; e < reading.d.dim_qk; e++)
                        add(k, reading.k(b, h, j) + e, gradients.k, gradients.key(b, h, j) * reading.d.dim_qk + e);
                    for (int64_t e = 0; e < reading.dim_v; e++)
                        add(v, reading.v(b, h, j) + e, gradients.v, gradients.key(b, h, j) * reading.dim_v + e);
                }
        }
        for (int64_t h = 0; h < reading.d.heads_q && reading.has(FA_OPERAND_SINKS); h++) add(sinks, h, gradients.sink, h);
    }
};

// The worst difference as a share of its tolerance.
double compare(const char* name, const Loss& loss, const Buffer& buffer, const Places& places) {
    double worst = 0;
    for (const auto& [at, expected] : places) {
        float& x = buffer.as<float>()[at];
        if (x == -std::numeric_limits<float>::infinity()) continue;  // a bias that removes the key
        const double slope = loss.slope(x), share = std::fabs(slope - expected.value) / (kTolerance * (1 + expected.spread));
        worst = std::fmax(worst, share);
        EXPECT_LE(share, 1) << name << "[" << at << "]: " << expected.value << ", but the loss rises by " << slope << "\n"
                            << loss.c.describe();
    }
    return worst;
}

double compare_all(const Case& test_case, Rng& rng) {
    const Loss loss(test_case, rng);
    const oracle::Reading r = test_case.reading();
    const Inputs want(r, oracle::backward(r, loss.up));
    return std::fmax(std::fmax(compare("q", loss, test_case.q, want.q), compare("k", loss, test_case.k, want.k)),
                     std::fmax(compare("v", loss, test_case.v, want.v), std::fmax(compare("bias", loss, test_case.bias, want.bias),
                                                                                  compare("sinks", loss, test_case.sinks, want.sinks))));
}

void fill_on_grid(Case& test_case, Rng& rng) {
    const auto value = [&](auto...) { return on_grid(rng.normal()); };
    test_case.set_q(value), test_case.set_k(value), test_case.set_v(value);
    if (test_case.d.operands & FA_OPERAND_BIAS)
        test_case.set_bias([&](auto...) { return rng.chance(0.15) ? -double(INFINITY) : on_grid(rng.normal()); });
    for (int64_t h = 0; h < test_case.d.heads_q && test_case.d.operands & FA_OPERAND_SINKS; h++)
        test_case.sinks.as<float>()[h] = float(on_grid(rng.normal()));
}

TEST(OracleBackward, CentralDifferencesOfRandomCases) {
    Rng rng(61);
    constexpr int kCases = 200;
    uint32_t operands = 0;
    double worst = 0;
    for (int n = 0; n < kCases; n++) {
        Case c = random_tiny_case(rng.bits());
        operands |= c.d.operands;
        fill_on_grid(c, rng);
        worst = std::fmax(worst, compare_all(c, rng));
    }
    printf("worst difference: %.2g of %.0e\n", worst, kTolerance);
    const uint32_t smooth = FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS | FA_OPERAND_CU_SEQLENS_Q |
                            FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_LEFTPAD_K;
    EXPECT_EQ(operands & smooth, smooth);
}

// All that bends the scores at once, where random cases seldom have it.
TEST(OracleBackward, CentralDifferencesOfEverythingAtOnce) {
    for (const float softcap : {0.f, 0.5f, 3.f})
        for (const float p : {0.f, 0.4f}) {
            Rng rng(62);
            Case c = shaped({2, 4, 2, 5, 7, 3, 4});
            causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_ALIBI | FA_OPERAND_SINKS;
            c.d.bias_stride[1] = 35, c.d.bias_stride[3] = 1;  // for all sequences and rows
            c.d.softcap = softcap, c.d.dropout_p = p;
            c.bind(rng);
            c.a.dropout_seed = 3;
            fill_on_grid(c, rng);
            for (int64_t h = 0; h < 4; h++) c.alibi.as<float>()[h] = 0.3f;
            EXPECT_LE(compare_all(c, rng), 1);
        }
}

// Two keys with scores 0 and ln 3, dO = 1: o = (v0 + 3 v1) / 4, and dS = ± p0 p1 (v1 − v0).
TEST(OracleBackward, TwoKeysOnPaper) {
    Rng rng(1);
    Case c = shaped({1, 1, 1, 1, 2, 1, 1});
    c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = 0.5f;
    c.bind(rng);
    const double k1 = double(float(std::log(3.0))), k[] = {0, k1}, v[] = {10, 20};
    c.set_q([](auto...) { return 2.0; });
    c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return k[j]; });
    c.set_v([&](int64_t, int64_t, int64_t j, int64_t) { return v[j]; });
    const oracle::Gradients g = oracle::backward(c.reading(), {{1}, {}, {}, {}});
    EXPECT_NEAR(g.delta[0], 17.5, 1e-6);
    EXPECT_NEAR(g.bias.value[0], 0.25 * (10 - 17.5), 1e-6);
    EXPECT_NEAR(g.bias.value[1], 0.75 * (20 - 17.5), 1e-6);
    EXPECT_NEAR(g.q.value[0], 0.5 * 1.875 * k1, 1e-6);
    EXPECT_NEAR(g.k.value[1], 0.5 * 1.875 * 2, 1e-6);
    EXPECT_NEAR(g.v.value[0], 0.25, 1e-7);
    EXPECT_NEAR(g.v.value[1], 0.75, 1e-7);
}

// Parts of the keys with the state of the whole: their gradients are the whole's.
TEST(OracleBackward, PartsOfTheKeysWithTheStateOfTheWhole) {
    auto keys_from = [](int64_t first, int64_t count) {
        Rng rng(63);
        Case c = shaped({1, 2, 1, 3, count, 4, 5});
        c.bind(rng);
        const auto value = [&](int64_t what) {
            return [=](int64_t, int64_t h, int64_t n, int64_t e) {
                return Rng(derive(uint64_t(what), uint64_t(h * 100 + n + (what > 0 ? first : 0)), uint64_t(e))).normal();
            };
        };
        c.set_q(value(0)), c.set_k(value(1)), c.set_v(value(2));
        return c;
    };
    const Case whole = keys_from(0, 9), low = keys_from(0, 4), high = keys_from(4, 5);
    Rng rng(64);
    oracle::Upstream up = Loss(whole, rng).up;
    const oracle::Gradients want = oracle::backward(whole.reading(), up);
    const oracle::Attention state = oracle::attention(whole.reading());
    up.o = state.o, up.lse = state.lse;
    const oracle::Gradients a = oracle::backward(low.reading(), up), b = oracle::backward(high.reading(), up);
    for (size_t n = 0; n < want.q.value.size(); n++) EXPECT_NEAR(a.q.value[n] + b.q.value[n], want.q.value[n], 1e-12);
    for (size_t n = 0; n < a.k.value.size(); n++) EXPECT_NEAR(a.k.value[n], want.k.value[n], 1e-12);
    for (size_t n = 0; n < b.v.value.size(); n++) EXPECT_NEAR(b.v.value[n], want.v.value[a.v.value.size() + n], 1e-12);

    for (const double none : {double(INFINITY), -double(INFINITY)}) {
        up.lse.assign(up.lse.size(), none);
        const oracle::Gradients g = oracle::backward(low.reading(), up);
        EXPECT_EQ(g.q.value, std::vector<double>(g.q.value.size(), 0.0));
        EXPECT_EQ(g.v.value, std::vector<double>(g.v.value.size(), 0.0));
    }
}

}  // namespace
}  // namespace test
