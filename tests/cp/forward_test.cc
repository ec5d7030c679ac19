// Every method, layout and number of ranks against the oracle, and against one device's bits where that is promised.
#include <gtest/gtest.h>
#include <algorithm>
#include "problems.h"

namespace test {
namespace {

class Ways : public testing::TestWithParam<Way> {};

TEST_P(Ways, AgreeWithTheOracleForAnyNumberOfRanks) {
    const Way way = GetParam();
    for (uint64_t seed = 1; seed <= 24; seed++) {
        Case c = problem(derive(27, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, false);
        Rng rng(derive(28, seed));
        Spread s = spread_of(way, c, rng);
        if (rng.chance(0.3)) s.gap = 3;
        s.again = rng.chance(0.1);
        ASSERT_EQ("", spread_and_check(c, s)) << way.name << ", seed " << seed << ", " << s.ranks << " ranks, block "
                                              << s.desc.block << ", chunk " << s.desc.head_chunk;
    }
}

INSTANTIATE_TEST_SUITE_P(Cp, Ways, testing::ValuesIn(kWays), name_of_way);

TEST(Cp, UlyssesAndAllGatherHaveOneDevicesBits) {
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Case c = shaped({1, 8, 8, 512, 512, 32, 32}, dtype);
        causal(c, FA_ALIGN_BOTTOM_RIGHT);
        if (dtype == FA_BF16) window(c, 150, 0, FA_ALIGN_BOTTOM_RIGHT);
        c.d.split_size = 128;
        Rng rng(7);
        fill(c, rng);
        const Handle handle = make_handle();
        ASSERT_EQ(FA_OK, c.run(handle)) << handle.error();
        const auto o = bytes_of(c.o), lse = bytes_of(c.lse);
        for (const Way& way : kWays) {
            if (way.method == FA_CP_METHOD_RING) continue;
            for (const int32_t ranks : {2, 4, 8}) {
                StandIn room(ranks);
                for (const RankResult& r : run_spread(c, by_rows(ranks, way.method, way.layout), room))
                    ASSERT_EQ(FA_OK, r.status) << r.error;
                EXPECT_EQ(o, bytes_of(c.o)) << way.name << ", " << ranks << " ranks";
                EXPECT_EQ(lse, bytes_of(c.lse)) << way.name << ", " << ranks << " ranks";
            }
        }
    }
}

TEST(Cp, TheRingHasTheSameBitsEveryTime) {
    Case c = shaped({1, 4, 2, 300, 300, 32, 32});
    causal(c, FA_ALIGN_TOP_LEFT);
    Rng rng(8);
    fill(c, rng);
    std::vector<unsigned char> first;
    for (int repeat = 0; repeat < 3; repeat++) {
        StandIn room(3);
        for (const RankResult& r : run_spread(c, by_rows(3, FA_CP_METHOD_RING, FA_CP_LAYOUT_ZIGZAG), room))
            ASSERT_EQ(FA_OK, r.status) << r.error;
        if (repeat == 0) first = bytes_of(c.o);
        EXPECT_EQ(first, bytes_of(c.o));
    }
}

TEST(Cp, DecodesFromACacheThatIsSpread) {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        Rng rng(derive(29, seed));
        const int64_t heads_k = rng.between(1, 3);
        Case c = shaped(
            {rng.between(1, 3), heads_k * rng.between(1, 4), heads_k, rng.pick<int64_t>({1, 1, 5}), rng.between(0, 200), 32, 32},
            rng.pick<int32_t>({FA_F32, FA_BF16}));
        c.seed = seed;
        if (rng.chance(0.3)) c.d.k_dtype = FA_Q8_0, c.d.v_dtype = FA_Q4_0;
        const int32_t alignment = rng.pick<int32_t>({FA_ALIGN_BOTTOM_RIGHT, FA_ALIGN_EXPLICIT});
        if (rng.chance(0.6)) causal(c, alignment);
        if (rng.chance(0.3)) window(c, rng.between(0, 60), -1, alignment);
        if (rng.chance(0.3)) c.d.operands |= FA_OPERAND_ALIBI, c.d.alignment = alignment;
        if (rng.chance(0.3)) c.d.operands |= FA_OPERAND_SINKS;
        if (rng.chance(0.2)) c.d.operands &= ~FA_OPERAND_LSE;
        if (c.d.alignment == FA_ALIGN_EXPLICIT) {
            c.d.operands |= FA_OPERAND_CAUSAL_OFFSET;
            for (int64_t b = 0; b < c.d.batch; b++) c.metadata.causal_offset.push_back(int32_t(rng.between(0, c.d.seqlen_k)));
        }
        if (rng.chance(0.3)) {  // rows of different lengths, those before the first and behind the last belong to nobody
            c.d.operands |= FA_OPERAND_CU_SEQLENS_Q;
            c.metadata.cu_seqlens_q.push_back(1);
            for (int64_t b = 0; b < c.d.batch; b++)
                c.metadata.cu_seqlens_q.push_back(c.metadata.cu_seqlens_q.back() + int32_t(rng.between(0, c.d.seqlen_q)));
            c.d.total_q = c.metadata.cu_seqlens_q.back() + 1;
        }
        fill(c, rng);
        Spread s;
        s.ranks = int32_t(rng.between(2, 5));
        s.page_size = rng.chance(0.4) ? rng.between(1, 20) : 0;
        s.desc.shard = FA_CP_SHARD_KEYS;
        std::vector<double> cuts;
        for (int32_t i = 1; i < s.ranks; i++) cuts.push_back(rng.uniform());
        std::sort(cuts.begin(), cuts.end());
        ASSERT_EQ("", spread_keys_and_check(c, s, cuts)) << "seed " << seed << ", " << s.ranks << " ranks";
    }
}

TEST(Cp, OneRankIsTheCore) {
    for (const int32_t method : {FA_CP_METHOD_AUTO, FA_CP_METHOD_RING}) {
        Case c = shaped({2, 4, 2, 20, 30, 16, 16});
        Rng rng(9);
        fill(c, rng);
        EXPECT_EQ("", spread_and_check(c, by_rows(1, method, FA_CP_LAYOUT_CONTIGUOUS)));
    }
}

// What is left of an explanation's "it sends N bytes, the least is M".
void sent_and_least(const std::string& text, uint64_t* sent, uint64_t* least) {
    const size_t at = text.find("it sends ");
    ASSERT_NE(std::string::npos, at) << text;
    unsigned long long a = 0, b = 0;
    ASSERT_EQ(2, sscanf(text.c_str() + at, "it sends %llu bytes, the least is %llu", &a, &b)) << text;
    *sent = a, *least = b;
}

TEST(Cp, SendsWhatItExplainsAndHardlyMoreThanTheLeast) {
    constexpr uint64_t kStatuses = 2 * 48;  // of each peer, at the beginning and at the end
    for (const Way& way : kWays) {
        Case c = shaped({1, 8, 8, 256, 256, 16, 16});
        window(c, 20, 0, FA_ALIGN_TOP_LEFT);
        Rng rng(10);
        fill(c, rng);
        StandIn room(4);
        for (const RankResult& r : run_spread(c, by_rows(4, way.method, way.layout), room)) {
            ASSERT_EQ(FA_OK, r.status) << r.error;
            uint64_t sent = 0, least = 0;
            sent_and_least(r.explained, &sent, &least);
            EXPECT_EQ(sent + 3 * kStatuses, r.bytes) << way.name << ": " << r.explained;
            EXPECT_LE(double(sent), 1.05 * double(least)) << way.name;
        }
    }
}

TEST(Cp, RanksOutsideTheBandNeitherSendNorCompute) {
    Case c = shaped({1, 4, 4, 256, 256, 16, 16});
    window(c, 40, 0, FA_ALIGN_TOP_LEFT);
    Rng rng(11);
    fill(c, rng);
    const uint64_t row = 4 * 16 * sizeof(float) * 2;  // of k and v
    for (const int32_t method : {FA_CP_METHOD_ALL_GATHER, FA_CP_METHOD_RING}) {
        StandIn room(4);
        const std::vector<RankResult> results = run_spread(c, by_rows(4, method, FA_CP_LAYOUT_CONTIGUOUS), room);
        uint64_t sent = 0, least = 0;
        for (size_t i = 0; i < 4; i++) {
            sent_and_least(results[i].explained, &sent, &least);
            const uint64_t rows = method == FA_CP_METHOD_RING ? 64 : 40;  // a whole shard, or what the next rank's first rows see
            EXPECT_EQ(i < 3 ? rows * row : 0, sent) << results[i].explained;
        }
    }
}

}  // namespace
}  // namespace test
