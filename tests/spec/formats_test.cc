// Storage formats against their definition: widening decoded with ldexp, narrowing by a search for the nearest value in double.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>
#include "spec/numerics.h"
#include "spec/small_formats.h"

namespace fa {
namespace {

struct Format {
    const char* name;
    int bits, mantissa, bias;
    bool has_inf;    // exponent all ones means inf and NaN; else only the topmost pattern is NaN
    bool saturates;  // too large a value becomes the largest one, not inf
    float (*widen)(uint32_t);
    uint32_t (*narrow)(float);

    friend std::ostream& operator<<(std::ostream& out, const Format& format) { return out << format.name; }
    uint32_t sign() const { return 1u << (bits - 1); }
    uint32_t infinity() const { return ((1u << (bits - 1 - mantissa)) - 1) << mantissa; }  // exponent all ones
    uint32_t largest() const { return has_inf ? infinity() - 1 : sign() - 2; }

    // Value of a magnitude, in double, from the definition of a floating-point format.
    double value(uint32_t magnitude) const {
        const int exponent = int(magnitude >> mantissa);
        const double fraction = double(magnitude & ((1u << mantissa) - 1)) / double(1u << mantissa);
        return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    }
};

const Format kFormats[] = {
    {"f16", 16, 10, 15, true, false, [](uint32_t x) { return f16_to_f32(uint16_t(x)); }, [](float f) { return uint32_t(f32_to_f16(f)); }},
    {"bf16", 16, 7, 127, true, false, [](uint32_t x) { return bf16_to_f32(uint16_t(x)); },
     [](float f) { return uint32_t(f32_to_bf16(f)); }},
    {"e4m3", 8, 3, 7, false, true, [](uint32_t x) { return e4m3_to_f32(uint8_t(x)); }, [](float f) { return uint32_t(f32_to_e4m3(f)); }},
    {"e5m2", 8, 2, 15, true, true, [](uint32_t x) { return e5m2_to_f32(uint8_t(x)); }, [](float f) { return uint32_t(f32_to_e5m2(f)); }},
};

class Formats : public testing::TestWithParam<Format> {};
INSTANTIATE_TEST_SUITE_P(Spec, Formats, testing::ValuesIn(kFormats), [](const auto& info) { return std::string(info.param.name); });

// The search that narrowing is judged by: the neighbours of |x| among all finite values, then the nearer, then the even one.
class Nearest {
  public:
    explicit Nearest(const Format& format) : format_(format) {
        for (uint32_t m = 0; m <= format.largest(); m++) values_.push_back(format.value(m));
        step_ = values_.back() - values_[values_.size() - 2];
    }
    const std::vector<double>& values() const { return values_; }

    uint32_t operator()(float f) const {
        const uint32_t sign = std::signbit(f) ? format_.sign() : 0;
        const double x = std::fabs(double(f));
        if (x >= values_.back()) {
            const bool beyond = x >= values_.back() + step_ / 2 && !format_.saturates;  // a tie goes up: the largest value is odd
            return sign | (beyond ? format_.infinity() : format_.largest());
        }
        const uint32_t above = uint32_t(std::upper_bound(values_.begin(), values_.end(), x) - values_.begin()), below = above - 1;
        const double down = x - values_[below], up = values_[above] - x;
        return sign | (down < up || (down == up && below % 2 == 0) ? below : above);
    }

  private:
    const Format& format_;
    std::vector<double> values_;
    double step_;
};

TEST_P(Formats, WidenEveryPattern) {
    const Format& format = GetParam();
    for (uint32_t x = 0; x < 1u << format.bits; x++) {
        const uint32_t magnitude = x & (format.sign() - 1);
        const float got = format.widen(x);
        if (magnitude > (format.has_inf ? format.infinity() : format.largest())) {
            ASSERT_TRUE(std::isnan(got)) << x;
            continue;
        }
        const bool infinite = format.has_inf && magnitude == format.infinity();
        const double want = infinite ? std::numeric_limits<double>::infinity() : format.value(magnitude);
        ASSERT_EQ(std::fabs(double(got)), want) << x;
        ASSERT_EQ(std::signbit(got), (x & format.sign()) != 0) << x;
    }
}

TEST_P(Formats, NarrowUndoesWiden) {
    const Format& format = GetParam();
    for (uint32_t x = 0; x < 1u << format.bits; x++) {
        const float wide = format.widen(x);
        const uint32_t back = format.narrow(wide);
        if (std::isnan(wide)) {
            ASSERT_TRUE(std::isnan(format.widen(back))) << x;
        } else if (std::isinf(wide) && format.saturates) {
            ASSERT_EQ(back, (x & format.sign()) | format.largest()) << x;
        } else {
            ASSERT_EQ(back, x);
        }
    }
}

// Every value, every midpoint between two values, and their neighbours one f32 ulp away.
TEST_P(Formats, NarrowAroundEveryBoundary) {
    const Format& format = GetParam();
    const Nearest nearest(format);
    const auto check = [&](double at) {
        const float f = float(at);
        for (const float near : {std::nextafter(f, kNegInf), f, std::nextafter(f, kPosInf)}) {
            ASSERT_EQ(format.narrow(near), nearest(near)) << near;
            ASSERT_EQ(format.narrow(-near), nearest(-near)) << -near;
        }
    };
    const std::vector<double>& values = nearest.values();
    for (size_t i = 0; i + 1 < values.size(); i++) {
        check(values[i]);
        check((values[i] + values[i + 1]) / 2);
    }
    const double top = values.back(), step = top - values[values.size() - 2];
    for (const double at : {top, top + step / 4, top + step / 2, top + step * 3 / 4}) check(at);
    if (!std::isinf(float(top + step))) check(top + step);
}

TEST_P(Formats, NarrowRandomPatterns) {
    const Format& format = GetParam();
    const Nearest nearest(format);
    std::mt19937 random(20240229);
    for (int i = 0; i < 1000000; i++) {
        const float f = float_of(random());
        if (std::isnan(f)) {
            ASSERT_TRUE(std::isnan(format.widen(format.narrow(f))));
        } else {
            ASSERT_EQ(format.narrow(f), nearest(f)) << f;
        }
    }
}

TEST_P(Formats, NarrowEdges) {
    const Format& format = GetParam();
    const uint32_t beyond = format.saturates ? format.largest() : format.infinity();
    EXPECT_EQ(format.narrow(kPosInf), beyond);
    EXPECT_EQ(format.narrow(kNegInf), format.sign() | beyond);
    EXPECT_EQ(format.narrow(0.f), 0u);
    EXPECT_EQ(format.narrow(-0.f), format.sign());
    EXPECT_EQ(format.narrow(std::numeric_limits<float>::max()), beyond);
    // NaN of every kind: quiet, signalling, with its payload only in the bits that narrowing cuts off.
    for (const uint32_t nan : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu, 0x7fbfffffu})
        EXPECT_TRUE(std::isnan(format.widen(format.narrow(float_of(nan))))) << std::hex << nan;
}

TEST(Spec, LargestValuesOfTheEightBitFormats) {
    EXPECT_EQ(e4m3_to_f32(0x7e), kMaxE4M3);
    EXPECT_EQ(e5m2_to_f32(0x7b), kMaxE5M2);
    EXPECT_EQ(f32_to_i8(1e9f), int(kMaxI8));
}

TEST(Spec, Int8IsSymmetricNearestEven) {
    for (int i = -127; i < 127; i++) {
        const float half = float(i) + 0.5f;
        EXPECT_EQ(f32_to_i8(float(i)), i);
        EXPECT_EQ(f32_to_i8(half), i % 2 == 0 ? i : i + 1) << half;
        EXPECT_EQ(f32_to_i8(std::nextafter(half, kNegInf)), i) << half;
        EXPECT_EQ(f32_to_i8(std::nextafter(half, kPosInf)), i + 1) << half;
    }
    for (const float large : {127.f, 127.4f, 128.f, 1e30f, kPosInf}) {
        EXPECT_EQ(f32_to_i8(large), 127) << large;
        EXPECT_EQ(f32_to_i8(-large), -127) << large;
    }
    EXPECT_EQ(f32_to_i8(NAN), 0);
}

// Types of 4 bits by a search among their values, ties to the even code.
TEST(Spec, Nibbles) {
    const struct {
        float (*widen)(uint32_t);
        uint32_t (*narrow)(float);
        float least, most;
    } types[] = {{e2m1_to_f32, f32_to_e2m1, -6, 6}, {i4_to_f32, f32_to_i4, -7, 7}, {u4_to_f32, f32_to_u4, 0, 15}};
    for (const auto& t : types) {
        for (float x = -20; x <= 20; x += 0.03125f) {
            const float bounded = std::min(std::max(x, t.least), t.most), got = t.widen(t.narrow(x));
            for (uint32_t code = 0; code < 16; code++) {
                const float value = t.widen(code);
                if (value < t.least || value > t.most) continue;
                EXPECT_LE(std::fabs(got - bounded), std::fabs(value - bounded)) << x;
                const bool tie = value != got && std::fabs(got - bounded) == std::fabs(value - bounded);
                EXPECT_TRUE(!tie || t.narrow(x) % 2 == 0) << x;
            }
        }
        for (uint32_t code = 0; code < 16; code++) EXPECT_TRUE(t.widen(code) < t.least || t.narrow(t.widen(code)) == code) << code;
        EXPECT_EQ(t.narrow(NAN), 0u);
        EXPECT_EQ(t.widen(t.narrow(kPosInf)), t.most);
        EXPECT_EQ(t.widen(t.narrow(kNegInf)), t.least);
    }
    EXPECT_EQ(f32_to_e2m1(-0.f), 8u);
}

TEST(Spec, PowersOfTwo) {
    for (int byte = 0; byte < 255; byte++) {
        EXPECT_EQ(double(e8m0_to_f32(uint8_t(byte))), std::ldexp(1.0, byte - 127));
        EXPECT_EQ(f32_to_e8m0(e8m0_to_f32(uint8_t(byte))), byte);
        if (byte == 0 || byte == 254) continue;
        EXPECT_EQ(f32_to_e8m0(std::nextafterf(e8m0_to_f32(uint8_t(byte)), kPosInf)), byte + 1);
    }
    EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
    EXPECT_EQ(f32_to_e8m0(NAN), 255);
    EXPECT_EQ(f32_to_e8m0(0.f), 0);
    EXPECT_EQ(f32_to_e8m0(kPosInf), 254);
}

// No subnormal, which would have lost digits, or be 0; and finite.
TEST(Spec, DynamicDescale) {
    for (const float most : {kMaxE4M3, kMaxE5M2, kMaxI8}) {
        EXPECT_EQ(dynamic_descale(0.f, most), 1.f);
        EXPECT_EQ(dynamic_descale(3.f, most), 3.f / most);
        EXPECT_EQ(dynamic_descale(kPosInf, most), kMaxFloat);
        for (const float top : {1e-45f, 1e-40f, 1e-38f, 1e-36f, 1e-34f, 1e-33f}) {
            const float factor = dynamic_descale(top, most);
            EXPECT_EQ(factor, std::max(top / most, kSmallestNormal));
            EXPECT_LE(top / factor, most * 1.000001f);
        }
    }
}

TEST(Spec, ScalarFunctions) {
    EXPECT_EQ(kLog2e, float(1 / std::log(2.0)));
    EXPECT_EQ(kLn2, float(std::log(2.0)));
    EXPECT_TRUE(std::isinf(kPosInf) && kPosInf > 0 && kNegInf == -kPosInf);
    for (int e = -149; e < 128; e++) {
        EXPECT_EQ(exp2_fn(float(e)), std::ldexp(1.f, e));
        EXPECT_EQ(log2_fn(std::ldexp(1.f, e)), float(e));
        EXPECT_EQ(float_of(bits_of(std::ldexp(1.5f, e))), std::ldexp(1.5f, e));
    }
    EXPECT_EQ(exp2_fn(kNegInf), 0.f);
    EXPECT_EQ(bits_of(-1.f), 0xbf800000u);
    EXPECT_EQ(max_fn(2.f, -3.f), 2.f);
    EXPECT_EQ(max_fn(NAN, -3.f), -3.f) << "NaN is dropped here and carried by the sum";
    EXPECT_EQ(max_fn(2.f, NAN), 2.f);
}

}  // namespace
}  // namespace fa
