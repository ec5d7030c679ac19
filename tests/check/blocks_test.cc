// Keys and values in blocks of 32 dims: every bit pattern, every width and number of rows by every instruction set, and what is appended.
#include <gtest/gtest.h>
#include <cmath>
#include <utility>
#include <vector>
#include "isa.h"
#include "support/shaped.h"

namespace test {
namespace {

constexpr int32_t kBlockTypes[] = {FA_Q4_0, FA_Q4_1, FA_Q5_0, FA_Q5_1, FA_Q8_0};

class Blocks : public testing::TestWithParam<std::tuple<int32_t, int32_t>> {
  protected:
    const Handle handle = make_handle();
    const int32_t type = std::get<1>(GetParam());
    Rng rng{derive(331, uint64_t(type))};

    void SetUp() override { FA_USE_ISA(handle, std::get<0>(GetParam())); }

    Case make(const Shape& shape, int32_t q_dtype = FA_F32) const {
        Case c = shaped(shape, q_dtype);
        c.d.k_dtype = type, c.d.o_dtype = FA_F32;
        return c;
    }
    // Under bf16, for which some instruction sets have kernels of their own, and another type.
    void check(const Shape& shape, int64_t page_size = 0) {
        for (const int32_t q : {rng.pick<int32_t>({FA_F32, FA_F16}), int32_t(FA_BF16)}) {
            Case c = make(shape, q);
            if (page_size > 0) paged(c, page_size);
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(run_and_check(handle, c), "");
        }
    }
    // Any integers, and factors that are finite.
    void fill_bytes(const Buffer& buffer) { fill_bytes(buffer, rng); }
    void fill_bytes(const Buffer& buffer, Rng& random) const {
        const int64_t size = oracle::size_of(type);
        const bool has_min = type == FA_Q4_1 || type == FA_Q5_1;
        for (int64_t block = 0; block < buffer.bytes() / size; block++) {
            unsigned char* const at = buffer.as<unsigned char>() + block * size;
            for (int64_t n = 0; n < size; n++) at[n] = static_cast<unsigned char>(random.bits());
            for (int word = 0; word < (has_min ? 2 : 1); word++) oracle::store_block_word(at, word, random.uniform(-3, 3));
        }
    }
    // d · x is exact in f32; of a sum with m, one rounding or two.
    double slack(double value) const { return type == FA_Q4_1 || type == FA_Q5_1 ? 0x1p-22 * (std::fabs(value) + 100) : 0; }
};

// One key, so that o is v. Under bf16 queries P times a factor may be rounded to bf16.
TEST_P(Blocks, EveryBitOfAValue) {
    for (const int64_t rows : {1, 2, 4, 9, 20, 70})
        for (int round = 0; round < 8; round++) {
            const int32_t q = round % 2 ? FA_BF16 : FA_F32;
            Case c = make({1, 1, 1, rows, 1, 32, 256}, q);
            c.bind(rng);
            c.fill_normal(rng, 0);
            fill_bytes(c.v);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const oracle::Reading r = c.reading();
            for (int64_t i = 0; i < rows; i++)
                for (int64_t e = 0; e < 256; e++) {
                    const double want = oracle::load_dim(c.v.as(), r.v(0, 0, 0), e, type);
                    const double rounding = q == FA_BF16 ? 0x1p-8 * std::fabs(want) : 0;
                    EXPECT_NEAR(double(c.o.as<float>()[r.o(0, 0, i) + e]), want, slack(want) + rounding) << "dim " << e;
                }
        }
}

// q picks a dim of k: LSE over a single key is the score itself.
TEST_P(Blocks, EveryBitOfAKey) {
    for (int round = 0; round < 6; round++) {
        const int64_t heads = round < 2 ? 1 : round < 4 ? 3 : 20;
        Case c = make({64, heads, 1, 2, 1, 96, 32}, round % 2 ? FA_BF16 : FA_F32);
        c.d.flags |= FA_SCALE_EXPLICIT, c.d.scale = 1;
        c.bind(rng);
        c.fill_normal(rng);
        const auto chosen = [&](int64_t b, int64_t head, int64_t i) { return (b * 7 + head * 5 + i * 3) % 96; };
        c.set_q([&](int64_t b, int64_t head, int64_t i, int64_t e) { return e == chosen(b, head, i) ? 1.0 : 0.0; });
        fill_bytes(c.k);
        ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
        const oracle::Reading r = c.reading();
        for (int64_t b = 0; b < 64; b++)
            for (int64_t head = 0; head < heads; head++)
                for (int64_t i = 0; i < 2; i++) {
                    const double want = oracle::load_dim(c.k.as(), r.k(b, 0, 0), chosen(b, head, i), type);
                    EXPECT_NEAR(double(c.a.lse[r.lse(b, head, i)]), want, 1e-5 * std::fabs(want) + slack(want));
                }
    }
}

TEST_P(Blocks, RowsKeysAndWidths) {
    for (int64_t group = 1; group <= 17; group++) check({1, 2 * group, 2, 1, 70, 64, 32});
    for (const int64_t dim : {32, 64, 96, 128, 160, 224, 256, 512, 1024}) check({1, 3, 1, 1, 19, dim, 1056 - dim});
    for (const int64_t keys : {1, 15, 16, 17, 63, 64, 65, 129, 257, 319, 577}) check({1, keys % 5 ? 3 : 12, 3, 1, keys, 64, 96});
    for (const int64_t rows : {5, 17, 25, 70}) check({2, 4, 2, rows, 90, 64, 128});
    for (const int64_t page_size : {1, 3, 16, 64, 100}) check({2, page_size % 2 ? 6 : 12, 3, 1, 331, 32, 64}, page_size);
}

// By dots of bf16 a row has the bits that it has beside fewer rows of its kv head.
TEST_P(Blocks, BitsOfARow) {
    const int32_t isa = std::get<0>(GetParam());
    if (isa != FA_ISA_AVX512_BF16) GTEST_SKIP() << "no dots";
    if (type == FA_Q4_1 || type == FA_Q5_1) GTEST_SKIP() << "formats with an m have no dots";
    const auto run = [&](int64_t heads) {
        Case c = make({1, heads, 1, 1, 203, 96, 160}, FA_BF16);
        c.d.split_size = 128;
        Rng same(7);
        c.bind(same);
        c.set_q([](int64_t, int64_t h, int64_t, int64_t e) { return Rng(derive(uint64_t(h), uint64_t(e))).normal(); });
        fill_bytes(c.k, same), fill_bytes(c.v, same);
        EXPECT_EQ(c.run(handle), FA_OK) << handle.error();
        return std::vector<float>(c.o.as<float>(), c.o.as<float>() + heads * 160);
    };
    const std::vector<float> all = run(16);
    for (int64_t heads = 2; heads < 16; heads++) EXPECT_EQ(run(heads), std::vector<float>(all.begin(), all.begin() + heads * 160)) << heads;
}

// v of every other type, and of more or fewer heads.
TEST_P(Blocks, BesideOtherTypes) {
    for (const int32_t other : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_Q4_0, FA_Q5_1, FA_Q8_0})
        for (const int64_t rows : {1, 2, 20})
            for (const bool swapped : {false, true}) {
                Case c = make({1, 12, swapped ? 6 : 2, rows, 70, 64, 96}, FA_BF16);
                (swapped ? c.d.k_dtype : c.d.v_dtype) = other;
                if (swapped) c.d.v_dtype = type;
                c.d.heads_v = swapped ? 4 : 3;
                c.bind(rng);
                c.fill_normal(rng);
                ASSERT_EQ(run_and_check(handle, c), "");
            }
}

// Of a head's slots, one holds a block whose factor is infinite or no number.
TEST_P(Blocks, OneFactorIsNotFinite) {
    for (const double odd : {kInf, double(NAN)})
        for (const int64_t rows : {1, 30})
            for (const bool in_k : {false, true}) {
                if (in_k && odd == kInf) continue;  // a score of −∞ would remove the key
                Case c = make({1, 2, 1, rows, 70, 64, 64});
                causal(c, FA_ALIGN_BOTTOM_RIGHT);
                c.bind(rng);
                c.fill_normal(rng);
                const oracle::Reading r = c.reading();
                const int64_t block = in_k ? r.k(0, 0, 69) : r.v(0, 0, 69);
                oracle::store_block_word((in_k ? c.k : c.v).as<char>() + block * oracle::size_of(type), 0, odd);
                ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
                const int64_t last = r.o(0, 1, rows - 1);
                EXPECT_TRUE(std::isnan(c.o.as<float>()[last]) || std::isinf(c.o.as<float>()[last]));
                EXPECT_EQ(std::isfinite(c.o.as<float>()[last + 40]), !in_k) << "v's other block is whole";
                const bool whole = std::isfinite(c.o.as<float>()[r.o(0, 1, 0)]);
                EXPECT_TRUE(whole || rows == 1 || !in_k) << "row 0 does not see the last key";
            }
}

std::string name_of_blocks(const testing::TestParamInfo<Blocks::ParamType>& info) {
    const auto [isa, type] = info.param;
    return std::string(isa_name(isa)) + "_" + oracle::name_of(type);
}
INSTANTIATE_TEST_SUITE_P(Types, Blocks, testing::Combine(testing::ValuesIn(usable_isas()), testing::ValuesIn(kBlockTypes)), name_of_blocks);

// Rows that strain a quantiser: ties, zeros of both signs, one value, magnitudes at the ends of f32 and beyond f16.
std::vector<std::vector<double>> strained_rows() {
    std::vector<std::vector<double>> rows(14, std::vector<double>(32, 0.0));
    Rng rng(17);
    for (size_t c = 0; c < 32; c++) {
        const double n = double(c) - 16;
        rows[1][c] = -0.0;
        rows[2][c] = 2.5;
        rows[3][c] = -7.25;
        rows[4][c] = n / 2;  // ties of 4 bits
        rows[5][c] = 127 - 8.5 * double(c);
        rows[6][c] = c == 9 ? -1e-3 : 0;
        rows[7][c] = c == 31 ? 1e38 : n;
        rows[8][c] = 1e-45 * n;
        rows[9][c] = 1e-39 * n;
        rows[10][c] = 1e-7 * n;
        rows[11][c] = 1e6 * rng.normal();
        rows[12][c] = c % 2 ? 4 : -4;  // the first of the largest magnitude decides
        rows[13][c] = rng.normal() + 100;
    }
    return rows;
}

std::vector<unsigned char> appended(const Handle& handle, int32_t type, const std::vector<float>& row) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.k_dtype = type, d.batch = d.heads_q = d.seqlen_k = 1, d.dim_qk = int64_t(row.size());
    std::vector<unsigned char> k(row.size() / 32 * size_t(oracle::size_of(type))), v(k);
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.k_new = a.v_new = row.data(), a.seqlen_new = 1, a.k = k.data(), a.v = v.data();
    EXPECT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
    EXPECT_EQ(k, v);
    return k;
}

TEST(AppendBlocks, AsTheReferenceQuantises) {
    const Handle handle = make_handle();
    Rng rng(18);
    for (const int32_t type : kBlockTypes) {
        std::vector<std::vector<double>> rows = strained_rows();
        for (int n = 0; n < 300; n++) {
            const double size = std::exp2(rng.uniform(-20, 12));
            rows.emplace_back();
            for (int c = 0; c < 32; c++) rows.back().push_back(size * rng.normal());
        }
        for (size_t n = 0; n < rows.size(); n++) {
            const std::vector<float> floats(rows[n].begin(), rows[n].end());
            const std::vector<double> row(floats.begin(), floats.end());
            ASSERT_EQ(appended(handle, type, floats), oracle::quantised(row.data(), type)) << oracle::name_of(type) << ", row " << n;
        }
    }
}

// What is not finite is never hidden: its block is NaN, the next one is not.
TEST(AppendBlocks, WhatIsNotFiniteShows) {
    const Handle handle = make_handle();
    for (const int32_t type : kBlockTypes)
        for (const float odd : {float(kInf), -float(kInf), float(NAN)}) {
            std::vector<float> row(64, 1.f);
            row[5] = odd;
            const std::vector<unsigned char> bytes = appended(handle, type, row);
            for (int64_t c = 0; c < 64; c++)
                EXPECT_EQ(std::isnan(oracle::load_dim(bytes.data(), 0, c, type)), c < 32) << oracle::name_of(type) << ", dim " << c;
        }
}

}  // namespace
}  // namespace test
