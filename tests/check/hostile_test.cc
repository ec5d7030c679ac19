// Accuracy line 2, on data made to break attention, and what NaN and infinity must do.
#include <cmath>
#include <limits>
#include "check/isa.h"
#include "support/shaped.h"

namespace test {
namespace {

struct Data {
    const char* name;
    Case::Pick q, k, v;
};

// Keys 0, 63, 64 and the last lie at the borders of tiles.
constexpr int64_t kKeys = 150, kRows = 60;

std::vector<Data> hostile_data(int32_t dtype, Rng& rng) {
    const bool narrow = oracle::size_of(dtype) == 1;
    const double big = narrow ? 15 : 100, top = oracle::largest(dtype);
    const double tiny = dtype == FA_F32 ? 0x1p-149 : dtype == FA_BF16 ? 0x1p-133 : dtype == FA_F16 ? 0x1p-24 : 0x1p-9;
    const Case::Pick normal = [&](auto...) { return rng.normal(); };
    const Case::Pick one = [](auto...) { return 1.0; };
    std::vector<Data> all = {
        {"logits of ±1e4", [&, big](auto...) { return rng.chance(0.5) ? big : -big; },
         [&, big](auto...) { return rng.chance(0.5) ? big : -big; }, normal},
        {"all keys equal", normal, one, normal},
        {"ascending maxima", one, [](int64_t, int64_t, int64_t j, int64_t) { return double(j) / 8; }, normal},
        {"scores of one sign", one, [](int64_t, int64_t, int64_t j, int64_t) { return 0.1 * double(j); }, normal},
        {"descending maxima", one, [](int64_t, int64_t, int64_t j, int64_t) { return -double(j) / 8; }, normal},
        {"duplicated keys", normal, [](int64_t, int64_t, int64_t j, int64_t e) { return double((j / 2 * 7 + e) % 5) - 2; }, normal},
        {"smallest q and v", [tiny](auto...) { return tiny; }, normal,
         [tiny](int64_t, int64_t, int64_t j, int64_t) { return double(j % 3) * tiny; }},
        {"v at the type's limit", normal, normal, [top](auto...) { return top; }},
        {"v at both limits", normal, normal, [top](int64_t, int64_t, int64_t j, int64_t) { return j % 2 ? top : -top; }},
        {"cancelling v", normal, [](auto...) { return 0.0; },
         [](int64_t, int64_t, int64_t j, int64_t e) { return (j % 2 ? 1.0 : -1.0) * (100 + double(e)); }},
    };
    for (const int64_t at : {int64_t(0), int64_t(63), int64_t(64), kKeys - 1})
        all.push_back({"one huge key", [](auto...) { return 2.0; },
                       [at, big, &rng](int64_t, int64_t, int64_t j, int64_t) { return j == at ? big : rng.normal(); }, normal});
    return all;
}

void check_hostile(const Handle& handle, int32_t dtype, int64_t dim, int64_t rows, float scale) {
    Rng rng(21);
    for (const Data& data : hostile_data(dtype, rng))
        for (const bool is_causal : {false, true}) {
            Case c = shaped({1, 2, 1, rows, kKeys, dim, 5}, dtype);
            if (is_causal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = scale;
            c.bind(rng);
            c.set_q(data.q), c.set_k(data.k), c.set_v(data.v);
            EXPECT_EQ(run_and_check(handle, c, 7), "") << data.name;
        }
}

class Hostile : public testing::TestWithParam<int32_t> {};

TEST_P(Hostile, ElementWiseBoundHolds) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2})
        for (const int64_t dim : {1, 7, 64}) check_hostile(handle, dtype, dim, kRows, 1);
    for (const int64_t dim : {64, 300, 1024}) check_hostile(handle, FA_F32, dim, 10, 1 / float(dim));  // long sums of one sign
}
// Many weights that are each too small beside the largest, whose v is 0.
TEST_P(Hostile, F80_faint_weights_add_up) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    Rng rng(27);
    constexpr int64_t kMany = 1000;
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16})
        for (const int64_t rows : {2, 40})
            for (const double exponent : {23.5, 34.5, 40.5, 104.5, 106.5, 110.5, 118.5}) {
                Case c = shaped({1, 1, 1, rows, kMany, 32, 32}, dtype);
                c.d.operands |= FA_OPERAND_BIAS;
                dense_pairs(c.d, c.d.bias_stride);
                c.bind(rng);
                c.set_q([](auto...) { return 0.0; }), c.set_k([](auto...) { return 0.0; });
                const double top = dtype == FA_F16 ? 60000 : 1;
                c.set_v([&](int64_t, int64_t, int64_t j, int64_t) { return j == 7 ? 0 : top; });
                c.set_bias([&](int64_t, int64_t, int64_t, int64_t j) { return j == 7 ? 0 : -exponent * std::log(2.0); });
                ASSERT_EQ(run_and_check(handle, c), "") << exponent;
                // All are lost: the bound's factor for the number of keys is no courtesy.
                if (testing_the_cpu() && dtype == FA_F32 && exponent == 110.5) {
                    EXPECT_EQ(*c.o.as<float>(), 0);
                    EXPECT_GT(oracle::attention(c.reading()).o[0], 10 * oracle::faint_weight(FA_F32));
                }
            }
}

INSTANTIATE_TEST_SUITE_P(Isa, Hostile, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

// The largest f16 logit there is, by a product and by a bias.
TEST(HostileLogits, SixtyThousand) {
    const Handle handle = make_handle();
    Rng rng(22);
    for (const int32_t dtype : {FA_F16, FA_F32, FA_BF16}) {
        Case c = shaped({1, 1, 1, 5, 70, 1, 3}, dtype);
        c.bind(rng);
        c.set_q([](int64_t, int64_t, int64_t i, int64_t) { return i % 2 ? 65504.0 : -65504.0; });
        c.set_k([](int64_t, int64_t, int64_t j, int64_t) { return j % 3 ? -1.0 : 1.0; });
        c.set_v([&](auto...) { return rng.normal(); });
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

TEST(HostileParameters, ScaleAndSoftcap) {
    const Handle handle = make_handle();
    Rng rng(23);
    for (const float scale : {0.f, -0.f, -1.f, 1e-8f, 1e-38f, 300.f, -2e4f})
        for (const float softcap : {0.f, 1e-6f, 1e-38f, 1.f, 1e6f, 1e30f}) {
            Case c = shaped({1, 2, 2, 9, 130, 11, 7});
            c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = scale, c.d.softcap = softcap;
            c.d.operands |= FA_OPERAND_SCORES, c.d.scores_stage = FA_SCORES_CAPPED;
            dense_pairs(c.d, c.d.scores_stride);
            c.bind(rng);
            c.fill_normal(rng);
            EXPECT_EQ(run_and_check(handle, c), "");
        }
}

TEST(HostileParameters, BiasAlibiAndSinks) {
    const Handle handle = make_handle();
    Rng rng(24);
    for (const double size : {1e-30, 1.0, 1e4, 1e30}) {
        Case c = shaped({2, 3, 3, 20, 100, 8, 8});
        c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_SINKS | FA_OPERAND_ALIBI;
        c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        dense_pairs(c.d, c.d.bias_stride);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_bias([&](auto...) { return size * rng.normal(); });
        for (int h = 0; h < 3; h++) c.sinks.as<float>()[h] = float(size * rng.normal()), c.alibi.as<float>()[h] = float(0.01 * size * h);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

// A sink of −inf is no sink; one of +inf is a score of +inf.
TEST(HostileParameters, InfiniteSinks) {
    const Handle handle = make_handle();
    Rng rng(25);
    for (const int64_t keys : {0, 1, 100}) {
        Case c = shaped({1, 2, 2, 5, keys, 4, 4});
        c.d.operands |= FA_OPERAND_SINKS;
        c.bind(rng);
        c.fill_normal(rng);
        c.sinks.as<float>()[0] = c.sinks.as<float>()[1] = -float(kInf);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

// Windows, chunks and splits so large that adding a row number to them would overflow.
TEST(HostileParameters, LongestWindowChunkAndSplit) {
    const Handle handle = make_handle();
    Rng rng(26);
    const int64_t longest = std::numeric_limits<int64_t>::max();
    for (const int32_t offset : {std::numeric_limits<int32_t>::min(), -3, 0, 3, std::numeric_limits<int32_t>::max()})
        for (int which = 0; which < 4; which++) {
            Case c = shaped({1, 1, 1, 6, 80, 4, 4});
            window(c, which == 0 ? longest : -1, which == 1 ? longest : -1, FA_ALIGN_EXPLICIT);
            c.d.operands |= FA_OPERAND_CAUSAL_OFFSET;
            c.metadata.causal_offset = {offset};
            if (which == 2) c.d.chunk = longest;
            if (which == 3) c.d.split_size = longest;
            c.bind(rng);
            c.fill_normal(rng);
            EXPECT_EQ(run_and_check(handle, c), "");
        }
}

// ---- NaN and infinity

constexpr int64_t kPoisonedKey = 70;  // causal: rows from here on attend it

Case poisonable(int32_t dtype, Rng& rng) {
    Case c = shaped({1, 2, 2, 100, 100, 8, 6}, dtype);
    causal(c, FA_ALIGN_TOP_LEFT);
    c.bind(rng);
    c.fill_normal(rng);
    return c;
}

void spoil(const Buffer& buffer, int64_t at, int32_t dtype, double value) { oracle::store(buffer.as(), at, dtype, value); }

const int32_t kFloatTypes[] = {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2};

// The oracle carries NaN and +inf by the rules; agreement of NaN with NaN alone makes it exact.
TEST(NotANumber, InARowOfQ) {
    const Handle handle = make_handle();
    Rng rng(31);
    for (const int32_t dtype : kFloatTypes) {
        Case c = poisonable(dtype, rng);
        spoil(c.q, c.reading().q(0, 1, 50) + 3, dtype, NAN);
        EXPECT_EQ(run_and_check(handle, c), "");
        EXPECT_TRUE(std::isnan(c.lse.as<float>()[c.reading().lse(0, 1, 50)]));
        EXPECT_FALSE(std::isnan(c.lse.as<float>()[c.reading().lse(0, 1, 51)]));
    }
}

TEST(NotANumber, InAnAttendedKey) {
    const Handle handle = make_handle();
    Rng rng(32);
    for (const int32_t dtype : kFloatTypes)
        for (const int64_t splits : {1, 3}) {
            Case c = poisonable(dtype, rng);
            c.d.num_splits = int32_t(splits);
            spoil(c.k, c.reading().k(0, 0, kPoisonedKey), dtype, NAN);
            EXPECT_EQ(run_and_check(handle, c), "");
            EXPECT_FALSE(std::isnan(c.lse.as<float>()[c.reading().lse(0, 0, kPoisonedKey - 1)]));
            EXPECT_TRUE(std::isnan(c.lse.as<float>()[c.reading().lse(0, 0, kPoisonedKey)]));
        }
}

// A row whose only score is NaN is not an empty row.
TEST(NotANumber, AloneInARow) {
    const Handle handle = make_handle();
    Rng rng(33);
    Case c = poisonable(FA_F32, rng);
    spoil(c.k, c.reading().k(0, 0, 0), FA_F32, NAN);
    EXPECT_EQ(run_and_check(handle, c), "");
    EXPECT_TRUE(std::isnan(c.lse.as<float>()[0]));
}

// Attended v: NaN in its column, for the rows that attend it. Rows that don't may be spoiled in that column too (0 · NaN), in no other.
TEST(NotANumber, InAnAttendedValue) {
    const Handle handle = make_handle();
    Rng rng(34);
    for (const int32_t dtype : kFloatTypes)
        for (const double value : {double(NAN), kInf}) {
            if (value == kInf && oracle::size_of(dtype) == 1) continue;  // 8-bit types store none
            Case c = poisonable(dtype, rng);
            const oracle::Reading r = c.reading();
            const int64_t column = 4, element = r.v(0, 0, kPoisonedKey) + column;
            const double before = oracle::load(c.v.as(), element, dtype);
            spoil(c.v, element, dtype, value);
            ASSERT_EQ(c.run(handle), FA_OK);
            for (int64_t i = kPoisonedKey; i < 100; i++)
                EXPECT_FALSE(std::isfinite(oracle::load(c.o.as(), r.o(0, 0, i) + column, r.o_dtype)));
            for (int64_t i = 0; i < 100; i++) {
                EXPECT_TRUE(std::isfinite(c.lse.as<float>()[r.lse(0, 0, i)]));
                for (int64_t e = 0; e < 6; e++)
                    EXPECT_TRUE(e == column || std::isfinite(oracle::load(c.o.as(), r.o(0, 0, i) + e, r.o_dtype)));
            }
            // With the column out of the way everything else must be right.
            spoil(c.v, element, dtype, before);
            const oracle::Attention want = oracle::attention(r);
            for (int64_t i = 0; i < 100; i++) oracle::store(c.o.as(), r.o(0, 0, i) + column, r.o_dtype, want.o[size_t(i * 6 + column)]);
            EXPECT_EQ(check_against_oracle(c, c.p_dtype), "");
        }
}

// A removed key never shows, whatever is in k and bias.
TEST(NotANumber, BehindEveryMask) {
    const Handle handle = make_handle();
    Rng rng(35);
    for (int how = 0; how < 4; how++) {
        Case c = shaped({1, 2, 2, 70, 130, 8, 6});
        c.d.operands |= how == 0 ? FA_OPERAND_MASK : FA_OPERAND_BIAS;
        dense_pairs(c.d, how == 0 ? c.d.mask_stride : c.d.bias_stride);
        if (how == 1) causal(c, FA_ALIGN_TOP_LEFT);
        if (how == 2) window(c, 5, 5, FA_ALIGN_TOP_LEFT);
        c.bind(rng);
        c.fill_normal(rng);
        const auto bad_key = [&](int64_t j) { return how == 1 ? j >= 70 : how == 2 ? j >= 75 : j % 4 == 1; };
        c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return bad_key(j) ? (j % 8 == 1 ? kInf : NAN) : rng.normal(); });
        if (how == 0) c.set_mask([&](int64_t, int64_t, int64_t, int64_t j) { return !bad_key(j); });
        else c.set_bias([&](int64_t, int64_t, int64_t, int64_t j) { return !bad_key(j) ? 0.5 : how == 3 ? -kInf : NAN; });
        EXPECT_EQ(run_and_check(handle, c), "") << how;
    }
}

TEST(Infinity, AsAScore) {
    const Handle handle = make_handle();
    Rng rng(36);
    // By bias: +inf spoils its row, −inf removes the key.
    Case c = shaped({1, 1, 1, 10, 90, 4, 4});
    c.d.operands |= FA_OPERAND_BIAS;
    dense_pairs(c.d, c.d.bias_stride);
    c.bind(rng);
    c.fill_normal(rng);
    c.set_bias([](int64_t, int64_t, int64_t i, int64_t j) { return i == 3 && j == 80 ? kInf : i == 5 && j != 80 ? -kInf : 0.0; });
    EXPECT_EQ(run_and_check(handle, c), "");
    EXPECT_TRUE(std::isnan(c.lse.as<float>()[3]));

    // By the product: +inf spoils, −inf weighs nothing, also when it comes first or is alone.
    for (const double k0 : {kInf, -kInf})
        for (const int64_t keys : {1, 2, 70}) {
            Case p = shaped({1, 1, 1, 2, keys, 1, 2});
            p.bind(rng);
            p.set_q([](auto...) { return 1.0; });
            p.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return j == 0 ? k0 : rng.normal(); });
            p.set_v([&](auto...) { return rng.normal(); });
            EXPECT_EQ(run_and_check(handle, p), "") << k0 << " " << keys;
        }
}

}  // namespace
}  // namespace test
