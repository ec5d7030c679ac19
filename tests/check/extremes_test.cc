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
    std::pair<Bytes, Bytes> run(Case& test_case) {
        EXPECT_EQ(test_case.run(handle), FA_OK) << handle.error();
        return {bytes_of(test_case.o), bytes_of(test_case.lse)};
    }
    static double o_at(const Case& test_case, int64_t b, int64_t h, int64_t i, int64_t e) {
        return oracle::load(test_case.o.as(), test_case.reading().o(b, h, i) + e, test_case.reading().o_dtype);
    }
    static double v_at(const Case& test_case, int64_t j, int64_t e) {
        return oracle::load(test_case.v.as(), test_case.reading().v(0, 0, j) + e, test_case.reading().k_dtype);
    }
    static float lse_at(const Case& test_case, int64_t b, int64_t h, int64_t i) {
        return test_case.lse.as<float>()[test_case.reading().lse(b, h, i)];
    }
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

// Factor times bias is what counts, however large the one and small the other.
TEST_P(Extremes, LargestAndSmallestFactorsOfTheBias) {
    FA_USE_ISA(handle, GetParam());
    const struct {
        float factor, bias;
    } moderate[] = {{FLT_MAX, 3e-39f}, {-FLT_MAX, 3e-39f}, {1e30f, 1e-30f}, {1e-30f, -2e30f},
                    {FLT_MIN, 1e38f},  {1e-45f, FLT_MAX},  {0, FLT_MAX}};
    each_kernel([&](int32_t dtype, int64_t rows) {
        Case c = two_sequences(dtype, rows, FA_OPERAND_BIAS | FA_OPERAND_BIAS_SCALE);
        dense_pairs(c.d, c.d.bias_stride);
        c.bind(rng);
        c.fill_normal(rng);
        const auto set = [&](float factor, const std::function<double(int64_t, int64_t)>& bias) {
            c.bias_scale.as<float>()[0] = c.bias_scale.as<float>()[1] = factor;
            c.set_bias([&](int64_t, int64_t, int64_t i, int64_t j) { return bias(i, j); });
        };
        for (const auto& x : moderate) {
            set(x.factor, [&](int64_t i, int64_t j) { return (i + j) % 3 * double(x.bias) / 2; });
            ASSERT_EQ(run_and_check(handle, c), "") << x.factor << " * " << x.bias;
        }
        // Below the range a key is removed, as by −∞.
        const auto some = [](int64_t i, int64_t j) { return i == 1 || j % 3 == 1; };
        set(1, [&](int64_t i, int64_t j) { return some(i, j) ? -kInf : 0; });
        const auto removed = run(c);
        for (const float factor : {-FLT_MAX, -3e38f, FLT_MAX}) {
            set(factor, [&](int64_t i, int64_t j) { return some(i, j) ? std::copysign(1.0, -double(factor)) : 0; });
            EXPECT_EQ(run(c), removed) << factor << c.describe();
        }
        set(FLT_MAX, [](int64_t i, int64_t j) { return i == 1 && j == 5 ? 1 : 0; });  // as +∞
        run(c);
        EXPECT_TRUE(std::isnan(lse_at(c, 0, 0, 1)) && !std::isnan(lse_at(c, 0, 0, 0))) << c.describe();
    });
}

// The steepest slope leaves each row the key that it stands on, the other way round the farthest one.
TEST_P(Extremes, SteepestSlopes) {
    FA_USE_ISA(handle, GetParam());
    each_kernel([&](int32_t dtype, int64_t rows) {
        for (const float slope : {1e20f, 1e30f, kWithin, 3e38f, FLT_MAX, -1e6f, -1e20f, -1e30f}) {
            Case c = shaped({1, 2, 1, rows, 70, 32, 32}, dtype);
            c.d.operands |= FA_OPERAND_ALIBI;
            c.d.alignment = FA_ALIGN_TOP_LEFT;
            c.bind(rng);
            c.fill_normal(rng);
            c.alibi.as<float>()[0] = c.alibi.as<float>()[1] = slope;
            run(c);
            for (int64_t i = 0; i < rows; i++) {
                const int64_t key = slope > 0 ? i : i < 35 ? 69 : 0;
                for (int64_t e = 0; e < 32; e++)
                    ASSERT_NEAR(o_at(c, 0, 1, i, e), v_at(c, key, e), 0.01) << slope << " row " << i << c.describe();
                ASSERT_TRUE(std::isfinite(lse_at(c, 0, 1, i))) << slope;
            }
        }
    });
}

TEST_P(Extremes, LargestAndSmallestSoftcap) {
    FA_USE_ISA(handle, GetParam());
    each_kernel([&](int32_t dtype, int64_t rows) {
        for (const float softcap : {FLT_MAX, 1e38f, FLT_MIN, 1e-45f}) {
            Case c = shaped({1, 2, 1, rows, 70, 32, 32}, dtype);
            c.d.softcap = softcap;
            c.bind(rng);
            c.fill_normal(rng);
            EXPECT_EQ(run_and_check(handle, c), "");
        }
    });
}

// ---- the scale

enum class Option { none, softcap, bias, raw_scores };

Case scaled(int32_t dtype, int64_t rows, float scale, Option option) {
    Case c = shaped({1, 2, 1, rows, 70, 16, 16}, dtype);
    c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = scale;
    if (option == Option::softcap) c.d.softcap = 5;
    if (option == Option::bias) c.d.operands |= FA_OPERAND_BIAS, dense_pairs(c.d, c.d.bias_stride);
    if (option == Option::raw_scores) c.d.operands |= FA_OPERAND_SCORES, dense_pairs(c.d, c.d.scores_stride);
    return c;
}

// q and k so large, or so small, that scores are moderate.
TEST_P(Extremes, F76_any_scale_on_scores_of_any_size) {
    FA_USE_ISA(handle, GetParam());
    each_kernel([&](int32_t dtype, int64_t rows) {
        const double most = std::sqrt(oracle::largest(dtype)) / 8, least = dtype == FA_F32 || dtype == FA_BF16 ? 1e-20 : 0.05;
        for (const float scale :
             {2.3586e38f, -2.3586e38f, 1e36f, 1e30f, 1e10f, 300.f, 1.f, -1.f, 1e-3f, 1e-10f, -1e-30f, FLT_MIN, 1e-41f}) {
            const double size = std::sqrt(1 / std::fabs(double(scale)));
            if (size < least || size > most) continue;
            for (const Option option : {Option::none, Option::softcap, Option::bias, Option::raw_scores})
                for (const double skew : {1.0, 1e-10, 1e10}) {
                    if (skew != 1 && (size * 1e-10 < least || size * 1e10 > most)) continue;
                    Case c = scaled(dtype, rows, scale, option);
                    c.bind(rng);
                    c.fill_normal(rng, size * skew, size / skew);
                    if (option == Option::bias) c.set_bias([&](auto...) { return rng.normal(); });
                    ASSERT_EQ(run_and_check(handle, c), "") << skew;
                }
        }
    });
}

// A score is as it is, whichever of its three factors is large.
TEST_P(Extremes, F76_a_scale_takes_nothing_out_of_range) {
    FA_USE_ISA(handle, GetParam());
    const struct {
        float scale, q, k;
    } all[] = {{2e38f, 0, 1},          {1e30f, 1e10f, 1e-37f}, {1e30f, 1e-37f, 1e10f}, {2, 3e38f, 2e-38f},      {1e20f, 1e15f, 1e-35f},
               {1e-30f, 1e-5f, 1e35f}, {1e-38f, 1, 3e38f},     {-1e30f, 1e8f, 1e-37f}, {1.4426f, 3e38f, 1e-37f}};
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t rows : {1, 3, 40})
            for (const int64_t dim : {1, 32})
                for (const auto& x : all) {
                    // Matrix units split an f32, of which the lower half may be too small for them.
                    if (!testing_the_cpu() && dtype == FA_F32 && x.scale < 10 && x.k < 1e-30f) continue;
                    Case c = shaped({1, 1, 1, rows, 70, dim, dim}, dtype);
                    c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = x.scale;
                    c.bind(rng);
                    c.fill_normal(rng);
                    c.set_q([&](int64_t, int64_t, int64_t, int64_t e) { return e == 0 ? x.q : 0; });
                    c.set_k([&](int64_t, int64_t, int64_t j, int64_t e) { return e == 0 && j % 2 ? x.k : 0; });
                    ASSERT_EQ(run_and_check(handle, c), "") << "scale " << x.scale << ", q " << x.q << ", k " << x.k;
                }
}

TEST_P(Extremes, F76_any_scale_backward) {
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const float scale : {1e30f, -1e25f, 1e10f, 2.f, 1e-10f, 1e-25f})
            for (const Option option : {Option::none, Option::softcap, Option::bias}) {
                const double size = std::sqrt(1 / std::fabs(double(scale)));
                Case c = scaled(dtype, 40, scale, option);
                c.bind(rng);
                c.fill_normal(rng, size, size);
                if (option == Option::bias) c.set_bias([&](auto...) { return rng.normal(); });
                BackwardCase b(std::move(c));
                ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
                b.bind(rng);
                b.fill_normal(rng);
                ASSERT_EQ(run_and_check(handle, b), "");
            }
}

// ---- factors of stored values

void fill_factors(const Buffer& buffer, float value) {
    for (int64_t n = 0; n < buffer.bytes() / 4; n++) buffer.as<float>()[n] = value;
}

TEST_P(Extremes, LargestAndSmallestFactors) {
    FA_USE_ISA(handle, GetParam());
    const float pairs[][2] = {{1e30f, 1e-30f}, {1e-30f, 1e30f}, {1e36f, 1e-36f}, {FLT_MIN, 1e34f}, {-1e30f, 1e-30f}};
    for (const int32_t dtype : {FA_E4M3, FA_BF16, FA_F32})
        for (const int32_t k_dtype : {FA_E4M3, FA_I8})
            for (const int64_t rows : {1, 3, 40})
                for (const bool by_key : {false, true})
                    for (const auto& [of_q, of_k] : pairs) {
                        const bool narrow = oracle::size_of(dtype) == 1;
                        if (!narrow && of_q < 1e-35f && of_q > 0) continue;  // as values these are subnormals, which some units take for 0
                        Case c = shaped({1, 2, 1, rows, 70, 32, 32}, dtype);
                        c.d.k_dtype = k_dtype, c.d.o_dtype = FA_F32;
                        c.d.operands |= FA_OPERAND_K_DESCALE | (narrow ? FA_OPERAND_Q_DESCALE : 0);
                        if (by_key) c.d.k_descale_stride[1] = 1;
                        c.bind(rng);
                        // Integers are some forty times as large; products of stored values are in range.
                        const float size = k_dtype == FA_I8 ? of_q / 1000 : of_q;
                        c.fill_normal(rng, narrow ? 1 : double(size));
                        fill_factors(c.q_descale, size);
                        fill_factors(c.k_descale, k_dtype == FA_I8 ? of_k * 25 : of_k);
                        ASSERT_EQ(run_and_check(handle, c), "") << of_q << " " << of_k;
                    }
}

TEST_P(Extremes, LargestAndSmallestFactorsOfValues) {
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_E4M3, FA_BF16, FA_F32})
        for (const int64_t rows : {1, 3, 40})
            for (const bool by_key : {false, true})
                for (const float factor : {FLT_MAX, 1e38f, 1e-30f, FLT_MIN, 1e-45f}) {
                    Case c = shaped({1, 2, 1, rows, 70, 32, 32}, dtype);
                    c.d.k_dtype = FA_E4M3, c.d.o_dtype = FA_F32;
                    c.d.operands |= FA_OPERAND_V_DESCALE;
                    if (by_key) c.d.v_descale_stride[1] = 1;
                    c.bind(rng);
                    c.fill_normal(rng, 1, 1, 0.1);
                    c.set_v([&](int64_t, int64_t, int64_t, int64_t e) { return e % 2 ? rng.uniform(-1, 1) : 0; });
                    fill_factors(c.v_descale, factor);
                    ASSERT_EQ(run_and_check(handle, c), "") << factor;
                    ASSERT_EQ(o_at(c, 0, 0, 0, 2), 0) << factor;
                }
}

TEST_P(Extremes, LargestAndSmallestOScale) {
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16, FA_E4M3})
        for (const int64_t rows : {1, 40})
            for (const float dropout : {0.f, 0.5f})
                for (const float o_scale : {FLT_MAX, -FLT_MAX, 1e38f, FLT_MIN, 1e-45f, 0.f}) {
                    Case c = shaped({1, 2, 1, rows, 70, 32, 32}, dtype);
                    c.d.o_dtype = FA_E4M3, c.d.dropout_p = dropout;
                    c.d.operands |= FA_OPERAND_O_SCALE;
                    c.bind(rng);
                    c.fill_normal(rng);
                    c.set_v([&](int64_t, int64_t, int64_t j, int64_t e) { return e % 2 ? 1 + double(j % 3) : 0; });
                    *c.o_scale.as<float>() = o_scale;
                    ASSERT_EQ(run_and_check(handle, c), "") << o_scale;
                    const double top = std::fabs(o_scale) > 1 ? std::copysign(448, o_scale) : 0;
                    ASSERT_EQ(o_at(c, 0, 1, rows - 1, 2), 0) << o_scale << c.describe();
                    ASSERT_EQ(o_at(c, 0, 1, rows - 1, 3), top) << o_scale << c.describe();
                }
}

INSTANTIATE_TEST_SUITE_P(Isa, Extremes, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

TEST(ExtremesOfGradients, SteepestSlopes) {
    const Handle handle = make_handle();
    Rng rng(93);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16})
        for (const float slope : {1e20f, 1e30f, 2.35e38f, -1e6f, -1e20f, -1e30f, -1e36f}) {
            Case c = shaped({1, 2, 1, 40, 70, 32, 32}, dtype);
            c.d.operands |= FA_OPERAND_ALIBI;
            c.d.alignment = FA_ALIGN_TOP_LEFT;
            c.bind(rng);
            c.fill_normal(rng);
            c.alibi.as<float>()[0] = c.alibi.as<float>()[1] = slope;
            BackwardCase b(std::move(c));
            ASSERT_EQ(b.run_forward(handle), FA_OK) << handle.error();
            b.bind(rng);
            b.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, b), "") << slope;
        }
}

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
