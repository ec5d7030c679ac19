// Data that is awkward for matrix units, where weights are rounded to the type of v, keys of a tile are dealt out to several warps and
// merged at the end, and a product is over before anything can be masked.
#include <gtest/gtest.h>
#include <cmath>
#include "support/shaped.h"

namespace test {
namespace {

// Few rows and many take different kernels.
constexpr int64_t kFewAndMany[] = {2, 70};

class MatrixData : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    Rng rng{derive(251, uint64_t(GetParam()))};
    const Case::Pick normal = [this](auto...) { return rng.normal(); };

    Case make(int64_t rows, int64_t keys, int64_t dim, int64_t dim_v) { return shaped({1, 2, 2, rows, keys, dim, dim_v}, GetParam()); }
    void spoil(const Buffer& buffer, int64_t at, double value) { oracle::store(buffer.as(), at, GetParam(), value); }
};

// One key outweighs all others: the maximum lies with one warp, one split, the first tile or the last.
TEST_P(MatrixData, OneHugeKey) {
    for (const int64_t at : {0, 15, 16, 31, 32, 48, 63, 64, 79, 127, 128, 149})
        for (const int64_t rows : kFewAndMany)
            for (const int32_t splits : {1, 3}) {
                Case c = at % 2 ? make(rows, 150, 33, 17) : make(rows, 150, 64, 64);
                c.d.num_splits = splits;
                c.bind(rng);
                c.set_q([](auto...) { return 2.0; }), c.set_v(normal);
                c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return j == at ? 100 : rng.normal(); });
                EXPECT_EQ(run_and_check(handle, c), "") << at;
            }
}

// Only keys [first, first + 3) are left: most warps and splits see none at all.
TEST_P(MatrixData, FewKeysLeft) {
    for (const int64_t first : {0, 14, 16, 31, 47, 62, 63, 64, 125, 147})
        for (const int64_t rows : kFewAndMany)
            for (const int32_t splits : {1, 3}) {
                Case c = make(rows, 150, 64, 64);
                c.d.operands |= FA_OPERAND_MASK | (first % 2 ? FA_OPERAND_SINKS : 0);
                dense_pairs(c.d, c.d.mask_stride);
                c.d.num_splits = splits;
                c.bind(rng);
                c.fill_normal(rng);
                c.set_mask([&](int64_t, int64_t, int64_t i, int64_t j) { return i != 1 && j >= first && j < first + 3; });
                for (int h = 0; h < 2 && first % 2; h++) c.sinks.as<float>()[h] = float(rng.normal());
                EXPECT_EQ(run_and_check(handle, c), "") << first;
            }
}

// Sums near the end of the type's range, or of f32's, whose average lies within it.
TEST_P(MatrixData, ValuesAtTheLimit) {
    const double top = oracle::largest(GetParam());
    const Case::Pick values[] = {[=](auto...) { return top; }, [=](int64_t, int64_t, int64_t j, int64_t) { return j % 2 ? top : -top; },
                                 [=](int64_t, int64_t, int64_t j, int64_t) { return j < 64 ? top : -top; },
                                 [=](int64_t, int64_t, int64_t j, int64_t e) { return std::ldexp(top, -int(j % 3 + e % 5)); }};
    for (const auto& value : values)
        for (const int64_t rows : {2, 70, 130})
            for (const int n : {0, 1, 2, 3, 4, 5}) {
                const bool equal = n & 1, cut = n & 2, to_f32 = n & 4;
                if ((rows > 70 && cut) || (to_f32 && GetParam() == FA_F32)) continue;  // an f32 o is what f32 has anyway
                Case c = equal ? make(rows, 140, 24, 40) : make(rows, 140, 64, 64);
                c.d.num_splits = cut ? 2 : 1;
                if (to_f32) c.d.o_dtype = FA_F32;
                c.bind(rng);
                c.fill_normal(rng);
                if (equal) c.set_k([](auto...) { return 0.0; });
                c.set_v(value);
                EXPECT_EQ(run_and_check(handle, c), "");
            }
}

// Logits up to 1e4 of either sign, maxima that rise or fall from key to key, products that cancel; in heads of every width.
TEST_P(MatrixData, SteepScores) {
    const Case::Pick one = [](auto...) { return 1.0; };
    const Case::Pick sign = [this](auto...) { return rng.chance(0.5) ? 10.0 : -10.0; };
    const std::pair<Case::Pick, Case::Pick> data[] = {
        {sign, sign},
        {one, [](int64_t, int64_t, int64_t j, int64_t) { return double(j) / 8; }},
        {one, [](int64_t, int64_t, int64_t j, int64_t) { return -double(j) / 8; }},
        {one, [](int64_t, int64_t, int64_t j, int64_t e) { return (e % 2 ? 1 : -1) * (1 + double(j % 16) / 16); }},
        {[](auto...) { return 1e-30; }, normal}};
    for (const auto& [q, k] : data)
        for (const int64_t dim : {16, 64, 128, 250})
            for (const int64_t rows : kFewAndMany) {
                Case c = make(rows, 130, dim, 16);
                c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = 1;
                if (rows > 2) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                c.bind(rng);
                c.set_q(q), c.set_k(k), c.set_v(normal);
                EXPECT_EQ(run_and_check(handle, c, 3), "") << dim;
            }
}

// Everything that works on scores between the two products, one by one and together.
TEST_P(MatrixData, OptionsOnScores) {
    for (int n = 0; n < 64; n++) {
        const bool cap = n & 1, bias = n & 2, mask = n & 4, alibi = n & 8, drop = n & 16, sinks = n & 32;
        Case c = shaped({2, 6, 2, rng.pick<int64_t>({1, 3, 50}), rng.pick<int64_t>({65, 100, 130}), 24, 24}, GetParam());
        c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = rng.pick<float>({0.2f, 0.2f, -0.3f, 0.f, 2.f});
        if (cap) c.d.softcap = rng.pick<float>({1e-3f, 0.5f, 30.f, 1e4f});
        c.d.operands |=
            (bias ? FA_OPERAND_BIAS : 0) | (mask ? FA_OPERAND_MASK : 0) | (alibi ? FA_OPERAND_ALIBI : 0) | (sinks ? FA_OPERAND_SINKS : 0);
        if (bias) c.d.bias_dtype = rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16}), dense_pairs(c.d, c.d.bias_stride);
        if (bias && rng.chance(0.5)) c.d.bias_stride[0] = c.d.bias_stride[2] = 0;
        if (mask) dense_pairs(c.d, c.d.mask_stride);
        if (alibi) c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
        if (drop) c.d.dropout_p = 0.3f, c.a.dropout_seed = 7, c.a.dropout_offset = uint64_t(n);
        c.bind(rng);
        c.fill_normal(rng);
        if (bias) c.set_bias([&](auto...) { return rng.chance(0.2) ? -kInf : rng.normal(); });
        if (mask) c.set_mask([&](auto...) { return rng.chance(0.7); });
        if (alibi) fa_alibi_slopes(6, 0, c.alibi.as<float>());
        for (int h = 0; h < 6 && sinks; h++) c.sinks.as<float>()[h] = float(rng.normal());
        EXPECT_EQ(run_and_check(handle, c), "") << n;
    }
}

// Softcap and ALiBi over many rows, for which a device may have kernels of their own: weak and strong, with steep scores, with distances to
// both sides of the diagonal, and with a NaN in one row.
TEST_P(MatrixData, OptionsOnScoresOfManyRows) {
    struct Option {
        float softcap, slope;
    };
    for (const Option& option : {Option{50, 0}, {2, 0}, {0.01f, 0}, {0, 0.02f}, {0, 3}, {0, -0.1f}, {0, 1e30f}})
        for (const double heat : {1.0, 20.0})
            for (const bool windows : {false, true}) {
                Case c = shaped({1, 1, 1, 200, 400, 16, 16}, GetParam());
                c.d.alignment = FA_ALIGN_TOP_LEFT;
                if (windows) window(c, 150, 30, FA_ALIGN_BOTTOM_RIGHT);
                c.d.softcap = option.softcap;
                if (option.slope != 0) c.d.operands |= FA_OPERAND_ALIBI;
                c.bind(rng);
                const int64_t spoilt = heat > 1 ? 77 : -1;
                c.set_q([&](int64_t, int64_t, int64_t i, int64_t) { return i == spoilt ? double(NAN) : heat * rng.normal(); });
                c.set_k([&](auto...) { return rng.normal(); });
                c.set_v([&](auto...) { return rng.normal(); });
                if (option.slope != 0) c.alibi.as<float>()[0] = option.slope;
                EXPECT_EQ(run_and_check(handle, c, 3), "") << option.softcap << ' ' << option.slope << ' ' << heat;
            }
}

// In one row of q, or in one key at a tile's border: it shows in the rows concerned and in no other.
TEST_P(MatrixData, NotANumberInARowOrKey) {
    for (const int64_t key : {0, 15, 16, 63, 64, 79, 127, 128})
        for (const double value : {double(NAN), kInf, -kInf})
            for (const int32_t splits : {1, 3}) {
                Case c = splits == 1 ? make(140, 140, 64, 64) : make(140, 140, 40, 24);
                causal(c, FA_ALIGN_TOP_LEFT);
                c.d.num_splits = splits;
                c.bind(rng);
                c.fill_normal(rng);
                const int64_t element = rng.between(0, 39);
                spoil(c.k, c.reading().k(0, 0, key) + element, value);
                spoil(c.q, c.reading().q(0, 1, key) + element, NAN);
                EXPECT_EQ(run_and_check(handle, c), "") << key << " " << value;
                EXPECT_TRUE(std::isnan(c.a.lse[c.reading().lse(0, 1, key)]));
                EXPECT_EQ(key > 0 && std::isnan(c.a.lse[c.reading().lse(0, 0, key - 1)]), false);
            }
}

// Keys that a mask, a bias of −inf, the diagonal or a window removes may hold anything in k. Here v holds it as well, in whole tiles that
// no row attends; those must not be read for their values.
TEST_P(MatrixData, NotANumberWhereNobodyLooks) {
    for (int how = 0; how < 4; how++)
        for (const int64_t rows : kFewAndMany)
            for (const int64_t dim : {24, 64, 128}) {
                Case c = make(rows, 260, dim, dim);
                const auto removed = [&](int64_t j) { return how < 2 ? j % 5 == 2 : how == 2 ? j >= rows : j >= rows + 3; };
                if (how == 0) c.d.operands |= FA_OPERAND_MASK, dense_pairs(c.d, c.d.mask_stride);
                if (how == 1) c.d.operands |= FA_OPERAND_BIAS, dense_pairs(c.d, c.d.bias_stride);
                if (how == 2) causal(c, FA_ALIGN_TOP_LEFT);
                if (how == 3) window(c, 3, 3, FA_ALIGN_TOP_LEFT);
                c.bind(rng);
                c.fill_normal(rng);
                c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return !removed(j) ? rng.normal() : j % 2 ? kInf : NAN; });
                const int64_t last_tile = (rows + 66) / 64 * 64;
                if (how > 1) c.set_v([&](int64_t, int64_t, int64_t j, int64_t) { return j < last_tile + 64 ? rng.normal() : NAN; });
                if (how == 0) c.set_mask([&](int64_t, int64_t, int64_t, int64_t j) { return !removed(j); });
                if (how == 1) c.set_bias([&](int64_t, int64_t, int64_t, int64_t j) { return removed(j) ? -kInf : 0.0; });
                EXPECT_EQ(run_and_check(handle, c), "") << how;
            }
}

// In an attended v: its column is spoiled for the rows that attend it, maybe for others, and nothing else is.
TEST_P(MatrixData, NotANumberInAValue) {
    for (const int64_t key : {0, 63, 64, 100})
        for (const double value : {double(NAN), kInf})
            for (const int32_t splits : {1, 2}) {
                if (GetParam() == FA_E4M3 && std::isinf(value)) continue;  // it has none
                constexpr int64_t kColumn = 17;
                const int64_t dim = key % 2 ? 24 : 64;
                Case c = make(130, 130, dim, dim);
                causal(c, FA_ALIGN_TOP_LEFT);
                c.d.num_splits = splits;
                c.bind(rng);
                c.fill_normal(rng);
                const oracle::Reading r = c.reading();
                const int64_t at = r.v(0, 0, key) + kColumn;
                const double before = oracle::load(c.v.as(), at, GetParam());
                spoil(c.v, at, value);
                ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
                for (int64_t i = key; i < 130; i++)
                    EXPECT_FALSE(std::isfinite(oracle::load(c.o.as(), r.o(0, 0, i) + kColumn, r.o_dtype))) << i;
                spoil(c.v, at, before);
                const oracle::Attention want = oracle::attention(r);
                for (int64_t i = 0; i < 130; i++)
                    oracle::store(c.o.as(), r.o(0, 0, i) + kColumn, r.o_dtype, want.o[size_t(want.row(0, 0, i) * dim + kColumn)]);
                EXPECT_EQ(check_against_oracle(c, c.p_dtype), "") << key;
            }
}

INSTANTIATE_TEST_SUITE_P(Types, MatrixData, testing::Values(FA_F32, FA_F16, FA_BF16, FA_E4M3),
                         [](const auto& info) { return oracle::name_of(info.param); });

}  // namespace
}  // namespace test
