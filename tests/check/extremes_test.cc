// The finite extremes of every f32 that a call is given, in kernels for few rows and for many: what f32 can compute is right, and what goes
// beyond its range counts as infinite.
#include <cfloat>
#include <cmath>
#include "check/isa.h"
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

using Bytes = std::vector<unsigned char>;

// Below the range of scores in log2 units, and just within.
const float kBelow[] = {-FLT_MAX, -3e38f, -2.4e38f};
constexpr float kWithin = 2e38f;

const int32_t kFloats[] = {FA_F32, FA_F16, FA_BF16, FA_E4M3};

class Extremes : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    Rng rng{91};

    // Calls run(dtype, rows) for every kind of kernel.
    template <class Run>
    void each_kernel(Run run) {
        for (const int32_t dtype : kFloats)
            for (const int64_t rows : {3, 40}) run(dtype, rows);
    }
    // Sequence 1 has no keys.
    Case two_sequences(int32_t dtype, int64_t rows, uint32_t operand) {
        Case c = shaped({2, 2, 1, rows, 70, 32, 32}, dtype);
        c.d.operands |= FA_OPERAND_SEQUSED_K | operand;
        c.metadata.seqused_k = {70, 0};
        return c;
    }
    std::pair<Bytes, Bytes> run(Case& c) {
        EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
        return {bytes_of(c.o), bytes_of(c.lse)};
    }
    static double o_at(const Case& c, int64_t b, int64_t h, int64_t i, int64_t e) {
        return oracle::load(c.o.as(), c.reading().o(b, h, i) + e, c.reading().o_dtype);
    }
    static double v_at(const Case& c, int64_t j, int64_t e) {
        return oracle::load(c.v.as(), c.reading().v(0, 0, j) + e, c.reading().kv_dtype);
    }
    static float lse_at(const Case& c, int64_t b, int64_t h, int64_t i) { return c.lse.as<float>()[c.reading().lse(b, h, i)]; }
};

TEST_P(Extremes, F75_lowest_sink_is_none) {
    FA_USE_ISA(handle, GetParam());
    each_kernel([&](int32_t dtype, int64_t rows) {
        Case c = two_sequences(dtype, rows, FA_OPERAND_SINKS);
        c.bind(rng);
        c.fill_normal(rng);
        const auto set = [&](float sink) { c.sinks.as<float>()[0] = c.sinks.as<float>()[1] = sink; };
        set(-INFINITY);
        const auto none = run(c);
        for (const float sink : kBelow) {
            set(sink);
            EXPECT_EQ(run(c), none) << sink << c.describe();
        }
        for (const float sink : {-kWithin, kWithin}) {
            set(sink);
            EXPECT_EQ(run_and_check(handle, c), "");
            EXPECT_NEAR(lse_at(c, 1, 0, 0) / sink, 1, 1e-6) << c.describe();
            EXPECT_EQ(o_at(c, 1, 0, 0, 0), 0);
            if (sink < 0) EXPECT_EQ(bytes_of(c.o), none.first) << c.describe();
            else EXPECT_EQ(o_at(c, 0, 1, rows - 1, 5), 0) << c.describe();
        }
        set(FLT_MAX);  // as +∞
        run(c);
        EXPECT_TRUE(std::isnan(lse_at(c, 0, 0, 0)) && std::isnan(o_at(c, 0, 0, 0, 0))) << c.describe();
    });
}

TEST_P(Extremes, F75_lowest_bias_removes_its_key) {
    FA_USE_ISA(handle, GetParam());
    each_kernel([&](int32_t dtype, int64_t rows) {
        Case c = two_sequences(dtype, rows, FA_OPERAND_BIAS);
        dense_pairs(c.d, c.d.bias_stride);
        c.bind(rng);
        c.fill_normal(rng);
        const auto set = [&](double low) {  // row 1 has no other key, and of row 2 the first 64
            c.set_bias([&](int64_t, int64_t, int64_t i, int64_t j) { return i == 1 || (i == 2 ? j < 64 : j % 3 == 1) ? low : 0.5; });
        };
        set(-kInf);
        const auto removed = run(c);
        for (const float bias : kBelow) {
            set(bias);
            EXPECT_EQ(run(c), removed) << bias << c.describe();
        }
        // Within the range, keys that are equally low weigh alike, and one that is so high is alone.
        set(-kWithin);
        EXPECT_EQ(run_and_check(handle, c), "");
        EXPECT_NEAR(lse_at(c, 0, 1, 1) / -kWithin, 1, 1e-6) << c.describe();
        double mean = 0;
        for (int64_t j = 0; j < 70; j++) mean += v_at(c, j, 4) / 70;
        EXPECT_NEAR(o_at(c, 0, 1, 1, 4), mean, 0.02) << c.describe();
        c.set_bias([](int64_t, int64_t, int64_t i, int64_t j) { return j == (i * 7) % 70 ? kWithin : 0; });
        EXPECT_EQ(run_and_check(handle, c), "");
        for (int64_t i = 0; i < rows; i++) EXPECT_NEAR(o_at(c, 0, 0, i, 3), v_at(c, i * 7 % 70, 3), 0.01) << c.describe();
        c.set_bias([](int64_t, int64_t, int64_t i, int64_t j) { return i == 1 && j == 5 ? FLT_MAX : 0; });  // as +∞
        run(c);
        EXPECT_TRUE(std::isnan(lse_at(c, 0, 0, 1)) && !std::isnan(lse_at(c, 0, 0, 0))) << c.describe();
    });
}

INSTANTIATE_TEST_SUITE_P(Isa, Extremes, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

// A program's own LSE may be below the range, too: its row has no keys.
TEST(ExtremesOfGradients, F75_lowest_lse_has_no_gradient) {
    const Handle handle = make_handle();
    Rng rng(92);
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Case c = shaped({1, 2, 1, 40, 70, 32, 32}, dtype);
        c.bind(rng);
        c.fill_normal(rng);
        BackwardCase b(std::move(c));
        ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        b.bind(rng);
        b.fill_normal(rng);
        std::vector<Bytes> empty;
        for (const float lse : {-FLT_MAX, -INFINITY, -2.4e38f}) {
            b.c.lse.as<float>()[b.c.reading().lse(0, 1, 7)] = lse;
            ASSERT_EQ(b.run(handle), FA_OK) << handle.error();
            std::vector<Bytes> all;
            for (const Buffer* out : {&b.dq, &b.dk, &b.dv}) all.push_back(bytes_of(*out));
            if (empty.empty()) empty = all;
            EXPECT_EQ(all, empty) << lse;
            EXPECT_EQ(oracle::load(b.dq.as(), b.reading().dq(0, 1, 7), dtype), 0) << lse;
        }
    }
}

}  // namespace
}  // namespace test
