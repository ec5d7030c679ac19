// The judge is judged first: known constants, examples small enough for paper, and comparators that must notice what they are for.
#include <gtest/gtest.h>
#include <cmath>
#include "support/shaped.h"

namespace test {
namespace {

TEST(OracleFormats, KnownCodes) {
    const struct {
        int32_t dtype;
        uint32_t code;
        double value;
    } known[] = {
        {FA_F16, 0x3c00, 1},    {FA_F16, 0x7bff, 65504},     {FA_F16, 0x0001, 0x1p-24},   {FA_F16, 0xc000, -2},
        {FA_BF16, 0x3f80, 1},   {FA_BF16, 0x4049, 3.140625}, {FA_BF16, 0x0001, 0x1p-133}, {FA_E4M3, 0x38, 1},
        {FA_E4M3, 0x7e, 448},   {FA_E4M3, 0x01, 0x1p-9},     {FA_E4M3, 0xb8, -1},         {FA_E5M2, 0x3c, 1},
        {FA_E5M2, 0x7b, 57344}, {FA_E5M2, 0x01, 0x1p-16},    {FA_I8, 0x81, -127},         {FA_F32, 0x40490fdb, 3.1415927410125732}};
    for (const auto& k : known) {
        uint32_t code = k.code, stored = 0;
        EXPECT_EQ(oracle::load(&code, 0, k.dtype), k.value) << oracle::name_of(k.dtype) << " " << k.code;
        oracle::store(&stored, 0, k.dtype, k.value);
        EXPECT_EQ(stored, k.code) << oracle::name_of(k.dtype) << " " << k.value;
    }
}

TEST(OracleFormats, RoundsToNearestEven) {
    EXPECT_EQ(oracle::rounded(2049, FA_F16), 2048);
    EXPECT_EQ(oracle::rounded(2051, FA_F16), 2052);
    EXPECT_EQ(oracle::rounded(65519.99, FA_F16), 65504);
    EXPECT_EQ(oracle::rounded(65520, FA_F16), INFINITY);
    EXPECT_EQ(oracle::rounded(0x1p-25, FA_F16), 0);
    EXPECT_EQ(oracle::rounded(0x1.8p-24, FA_F16), 0x1p-23);
    EXPECT_EQ(oracle::rounded(1 + 0x1p-8, FA_BF16), 1);
    EXPECT_EQ(oracle::rounded(1 + 0x1.8p-7, FA_BF16), 1 + 0x1p-6);
    EXPECT_EQ(oracle::rounded(1 + 0x1p-4, FA_E4M3), 1);
    EXPECT_EQ(oracle::rounded(-1e9, FA_E4M3), -448);
    EXPECT_EQ(oracle::rounded(INFINITY, FA_E5M2), 57344);
    EXPECT_EQ(oracle::rounded(2.5, FA_I8), 2);
    EXPECT_EQ(oracle::rounded(-300, FA_I8), -127);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2}) EXPECT_TRUE(std::isnan(oracle::rounded(NAN, dtype)));
}

// Every code of every small format survives, and neighbours are in order.
TEST(OracleFormats, EveryCodeRoundTrips) {
    for (const int32_t dtype : {FA_F16, FA_BF16, FA_E4M3, FA_E5M2}) {
        const uint32_t codes = oracle::size_of(dtype) == 1 ? 256 : 65536;
        for (uint32_t code = 0; code < codes; code++) {
            const double value = oracle::load(&code, 0, dtype);
            if (!std::isfinite(value)) continue;
            uint32_t stored = 0;
            oracle::store(&stored, 0, dtype, value);
            ASSERT_EQ(stored, code) << oracle::name_of(dtype);
            const uint32_t next = code + 1;
            ASSERT_TRUE(next >= codes / 2 || !(oracle::load(&next, 0, dtype) <= value)) << oracle::name_of(dtype);
        }
    }
}

// The published known answers of Philox 4x32-10.
TEST(OracleRandom, PhiloxKnownAnswers) {
    using Words = std::array<uint32_t, 4>;
    EXPECT_EQ(oracle::philox(0, Words{}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(oracle::philox(~uint64_t(0), (Words{~0u, ~0u, ~0u, ~0u})), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(oracle::philox(0x299f31d0a4093822, (Words{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344})),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(OracleRandom, KeepsTheRightShare) {
    const uint64_t key = oracle::dropout_key(7, 11);
    int64_t kept = 0;
    for (int64_t j = 0; j < 20000; j++) kept += oracle::keeps(0.3f, key, 5, 17, j);
    EXPECT_NEAR(double(kept) / 20000, 0.7, 0.02);
    EXPECT_TRUE(oracle::keeps(0, key, 0, 0, 0));
}

// scores as 1 x keys: q = 1, k = the scores themselves, d = 1, scale = 1.
Case scores_case(const std::vector<double>& scores, const std::vector<double>& values) {
    Rng rng(1);
    Case c = shaped({1, 1, 1, 1, int64_t(scores.size()), 1, 1});
    c.d.flags |= FA_SCALE_EXPLICIT;
    c.d.scale = 1;
    c.bind(rng);
    c.set_q([](auto...) { return 1.0; });
    c.set_k([&](int64_t, int64_t, int64_t j, int64_t) { return scores[size_t(j)]; });
    c.set_v([&](int64_t, int64_t, int64_t j, int64_t) { return values[size_t(j)]; });
    return c;
}

TEST(Oracle, TwoKeysOnPaper) {
    const double ln3 = double(float(std::log(3.0)));
    const Case c = scores_case({0, ln3}, {10, 20});
    const oracle::Attention want = oracle::attention(c.reading());
    EXPECT_NEAR(want.o[0], 0.25 * 10 + 0.75 * 20, 1e-6);
    EXPECT_NEAR(want.lse[0], std::log(4.0), 1e-7);
    EXPECT_NEAR(want.kappa[0], ln3, 1e-12);
    EXPECT_EQ(want.attended[0], 2);
}

// The sink takes half of the weight; the softcap of 1 turns scores into their tanh.
TEST(Oracle, SinkAndSoftcapOnPaper) {
    Case c = scores_case({0, 0}, {10, 20});
    float sink = float(std::log(2.0));
    c.d.operands |= FA_OPERAND_SINKS;
    c.a.sinks = &sink;
    EXPECT_NEAR(oracle::attention(c.reading()).o[0], 7.5, 1e-6);
    EXPECT_NEAR(oracle::attention(c.reading()).lse[0], std::log(4.0), 1e-7);

    Case capped = scores_case({3, -50}, {1, 0});
    capped.d.softcap = 1;
    EXPECT_NEAR(oracle::attention(capped.reading()).o[0], 1 / (1 + std::exp(-1 - std::tanh(3.0))), 1e-12);
}

// The classic exercise: N = 2, d_model = 4, h = 2.
TEST(Oracle, ClassicExercise) {
    Rng rng(1);
    Case c = shaped({1, 2, 2, 2, 2, 2, 2});
    c.bind(rng);
    const double q[2][4] = {{1, 0, 2, 3}, {4, 5, 6, 7}}, k[2][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    const double v[2][4] = {{0.5, 1, 1.5, 2}, {2.5, 3, 3.5, 4}};
    c.set_q([&](int64_t, int64_t h, int64_t i, int64_t e) { return q[i][2 * h + e]; });
    c.set_k([&](int64_t, int64_t h, int64_t i, int64_t e) { return k[i][2 * h + e]; });
    c.set_v([&](int64_t, int64_t h, int64_t i, int64_t e) { return v[i][2 * h + e]; });
    const oracle::Attention want = oracle::attention(c.reading());
    const double expected[2][4] = {{2.39, 2.89, 3.50, 4.00}, {2.50, 3.00, 3.50, 4.00}};
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 2; i++)
            for (int64_t e = 0; e < 2; e++) EXPECT_NEAR(want.o[size_t(want.row(0, h, i) * 2 + e)], expected[i][2 * h + e], 0.005);
}

// Who sees whom, drawn: one line a row, one column a key.
std::vector<std::string> drawing(const Case& test_case) {
    const oracle::Reading r = test_case.reading();
    std::vector<std::string> lines;
    for (int64_t i = 0; i < test_case.d.seqlen_q; i++) {
        std::string line;
        for (int64_t j = 0; j < test_case.d.seqlen_k; j++) line += r.attends(0, 0, i, j) ? '#' : '.';
        lines.push_back(line);
    }
    return lines;
}

using Lines = std::vector<std::string>;

TEST(OracleMask, CausalBothWays) {
    Case c = shaped({1, 1, 1, 3, 5, 1, 1});
    causal(c, FA_ALIGN_TOP_LEFT);
    EXPECT_EQ(drawing(c), (Lines{"#....", "##...", "###.."}));
    c.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
    EXPECT_EQ(drawing(c), (Lines{"###..", "####.", "#####"}));
    c.d.seqlen_q = 5, c.d.seqlen_k = 3;
    EXPECT_EQ(drawing(c), (Lines{"...", "...", "#..", "##.", "###"}));
}

TEST(OracleMask, WindowsAndChunks) {
    Case c = shaped({1, 1, 1, 4, 6, 1, 1});
    window(c, 1, 2, FA_ALIGN_TOP_LEFT);
    EXPECT_EQ(drawing(c), (Lines{"###...", "####..", ".####.", "..####"}));
    window(c, -1, 0, FA_ALIGN_TOP_LEFT);
    EXPECT_EQ(drawing(c), (Lines{"#.....", "##....", "###...", "####.."}));
    c.d.flags = 0, c.d.window_left = c.d.window_right = 0, c.d.chunk = 2;
    EXPECT_EQ(drawing(c), (Lines{"##....", "##....", "..##..", "..##.."}));
    const int32_t offset = -1;
    c.d.alignment = FA_ALIGN_EXPLICIT;
    c.a.causal_offset = &offset;
    EXPECT_EQ(drawing(c), (Lines{"......", "##....", "##....", "..##.."}));
}

TEST(OracleReading, PagesLeftPaddingAndBatchIndex) {
    Case c = shaped({1, 1, 1, 1, 4, 2, 2});
    c.d.operands |= FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K | FA_OPERAND_KV_BATCH_IDX;
    c.d.page_size = 2, c.d.num_pages = 9, c.d.kv_batch = 2;
    const int32_t table[] = {-7, -7, 8, 3}, used = 4, pad = 1, index = 1;
    c.a.page_table = table, c.a.seqused_k = &used, c.a.leftpad_k = &pad, c.a.kv_batch_idx = &index;
    const oracle::Reading r = c.reading();
    EXPECT_EQ(r.keys(0), 3);
    EXPECT_EQ(r.k(0, 0, 0), (8 * 2 + 1) * 2);  // slot 1: second of page 8
    EXPECT_EQ(r.k(0, 0, 1), (3 * 2 + 0) * 2);
    EXPECT_EQ(r.v(0, 0, 2), (3 * 2 + 1) * 2);
}

TEST(OracleMerge, TwoPartsAndASinkOnPaper) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = d.heads_q = d.seqlen_q = d.dim_v = 1, d.operands = FA_OPERAND_LSE | FA_OPERAND_SINKS;
    const float o_parts[] = {10, 20, NAN}, lse_parts[] = {0, float(std::log(3.0)), INFINITY}, sink = float(std::log(4.0));
    float o = 0, lse = 0;
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    a.parts = 3, a.o_parts = o_parts, a.lse_parts = lse_parts, a.o = &o, a.lse = &lse, a.sinks = &sink;
    const auto writes = oracle::merge(d, a);
    ASSERT_EQ(writes.size(), 2u);
    EXPECT_NEAR(writes[0].value, 8.75, 1e-6);
    EXPECT_NEAR(writes[1].value, std::log(8.0), 1e-6);
    EXPECT_NE(oracle::compare(writes).fault, "");
    o = 8.75f, lse = float(std::log(8.0));
    EXPECT_EQ(oracle::compare(writes).fault, "");
}

TEST(OracleRotary, QuarterTurnOnPaper) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = d.heads_q = 1, d.seqlen_q = 2, d.dim_qk = 5;
    const float x[] = {9, 9, 9, 9, 9, 1, 2, 3, 4, 5}, cos[] = {1, 1, 0, 0}, sin[] = {0, 0, 1, 1};
    float out[10];
    fa_rotary_args_t a = FA_ROTARY_ARGS_INIT;
    a.x = x, a.out = out, a.cos = cos, a.sin = sin, a.max_position = 2, a.rotary_dim = 4;
    auto row1 = [&] {
        std::vector<double> values;
        for (const oracle::Write& w : oracle::rotary(d, a))
            if (w.index >= 5) values.push_back(w.value);
        return values;
    };
    EXPECT_EQ(row1(), (std::vector<double>{-3, -4, 1, 2, 5}));
    a.flags = FA_ROTARY_INTERLEAVED;
    EXPECT_EQ(row1(), (std::vector<double>{-2, 1, -4, 3, 5}));
}

}  // namespace
}  // namespace test
