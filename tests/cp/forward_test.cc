// Every method, layout and number of ranks against the oracle, and against one device's bits where that is promised.
#include <gtest/gtest.h>
#include <algorithm>
#include <thread>
#include "problems.h"

namespace test {
namespace {

class Ways : public testing::TestWithParam<Way> {};

void agree_with_the_oracle(const Way& way, bool device) {
    for (uint64_t seed = 1; seed <= 24; seed++) {
        Case c = problem(derive(27, seed), way.method != FA_CP_METHOD_ULYSSES, way.method != FA_CP_METHOD_RING, false);
        Rng rng(derive(28, seed));
        Spread s = spread_of(way, c, rng);
        if (rng.chance(0.3)) s.gap = 3;
        s.again = rng.chance(0.1);
        s.device = device;
        ASSERT_EQ("", spread_and_check(c, s)) << way.name << ", seed " << seed << ", " << s.ranks << " ranks, block " << s.desc.block
                                              << ", chunk " << s.desc.head_chunk;
    }
}

TEST_P(Ways, AgreeWithTheOracleForAnyNumberOfRanks) { agree_with_the_oracle(GetParam(), false); }
TEST_P(Ways, AgreeInDeviceMemory) { agree_with_the_oracle(GetParam(), true); }

INSTANTIATE_TEST_SUITE_P(Cp, Ways, testing::ValuesIn(kWays), name_of_way);

TEST(Cp, UlyssesAndAllGatherHaveOneDevicesBits) {
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Case c = shaped({1, 8, 8, 512, 512, 32, 32}, dtype);
        causal(c, FA_ALIGN_BOTTOM_RIGHT);
        if (dtype == FA_BF16) window(c, 150, 0, FA_ALIGN_BOTTOM_RIGHT);
        c.d.split_size = 128;
        c.d.flags |= FA_DETERMINISTIC;
        Rng rng(7);
        fill(c, rng);
        c.d.dropout_p = 0.1f, c.a.dropout_seed = 7;
        const Handle handle = make_handle();
        ASSERT_EQ(FA_OK, c.run(handle)) << handle.error();
        const auto o = bytes_of(c.o), lse = bytes_of(c.lse);
        for (const Way& way : kWays) {
            if (way.method == FA_CP_METHOD_RING) continue;
            for (const int32_t ranks : {2, 3, 4, 5, 8}) {
                if (way.method == FA_CP_METHOD_ULYSSES && c.d.heads_k % ranks != 0) continue;
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

void decode_from_a_cache_that_is_spread(bool device) {
    for (uint64_t seed = 1; seed <= 40; seed++) {
        Rng rng(derive(29, seed));
        const int64_t heads_k = rng.between(1, 3);
        Case c =
            shaped({rng.between(1, 3), heads_k * rng.between(1, 4), heads_k, rng.pick<int64_t>({1, 1, 5}), rng.between(0, 200), 32, 32},
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
        s.device = device;
        std::vector<double> cuts;
        for (int32_t i = 1; i < s.ranks; i++) cuts.push_back(rng.uniform());
        std::sort(cuts.begin(), cuts.end());
        ASSERT_EQ("", spread_keys_and_check(c, s, cuts)) << "seed " << seed << ", " << s.ranks << " ranks";
    }
}

TEST(Cp, DecodesFromACacheThatIsSpread) { decode_from_a_cache_that_is_spread(false); }
TEST(Cp, DecodesInDeviceMemory) { decode_from_a_cache_that_is_spread(true); }

TEST(Cp, OneRankIsTheCore) {
    for (const int32_t method : {FA_CP_METHOD_AUTO, FA_CP_METHOD_RING}) {
        Case c = shaped({2, 4, 2, 20, 30, 16, 16});
        Rng rng(9);
        fill(c, rng);
        Spread s = by_rows(1, method, FA_CP_LAYOUT_CONTIGUOUS);
        s.device = method == FA_CP_METHOD_RING;
        EXPECT_EQ("", spread_and_check(c, s));
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

// What one rank must send to others at least, counted pair by pair from the definition of causal: keys that a row of another rank sees,
// once for each rank that has such rows (all-gather), or as often as they are handed on around the ring; with Ulysses the rows' heads, and
// o and LSE back.
uint64_t counted_bytes(const Case& test_case, const Way& way, int32_t ranks, int32_t rank) {
    const oracle::Reading r = test_case.reading();
    std::vector<std::vector<fa_cp_range_t>> parts(static_cast<size_t>(ranks));
    const fa_cp_desc_t spread = by_rows(ranks, way.method, way.layout).desc;
    for (int32_t n = 0; n < ranks; n++) {
        std::vector<fa_cp_range_t>& part = parts[size_t(n)];
        int64_t count = 0;
        part.resize(2);
        EXPECT_EQ(FA_OK, fa_cp_partition(&spread, n, ranks, nullptr, 1, test_case.d.seqlen_q, part.data(), 2, &count));
        part.resize(size_t(count));
    }
    const auto rows_of = [&](int32_t n) {
        uint64_t rows = 0;
        for (const fa_cp_range_t& range : parts[size_t(n)]) rows += uint64_t(range.rows);
        return rows;
    };
    const uint64_t element = r.q_dtype == FA_F32 ? 4 : 2, dims = uint64_t(test_case.d.dim_qk) * element;
    if (way.method == FA_CP_METHOD_ULYSSES) {
        const uint64_t heads = uint64_t(test_case.d.heads_q), heads_kv = uint64_t(r.heads_k + r.heads_v), others = uint64_t(ranks) - 1;
        const uint64_t there = rows_of(rank) * others / uint64_t(ranks) * (heads + heads_kv) * dims;
        uint64_t back = 0;
        for (int32_t n = 0; n < ranks; n++)
            if (n != rank) back += rows_of(n) * heads / uint64_t(ranks) * (dims + sizeof(float));
        return there + back;
    }
    // Keys of `owner` that rows of one of the ranks `first` … `last` steps behind it see, of a causal square.
    const auto seen = [&](int32_t owner, int32_t first, int32_t last) {
        int64_t bottom = -1;
        for (int32_t step = first; step <= last; step++) {
            const fa_cp_range_t& rows = parts[size_t((owner + step) % ranks)].back();
            bottom = std::max(bottom, rows.begin + rows.rows - 1);
        }
        uint64_t keys = 0;
        for (const fa_cp_range_t& range : parts[size_t(owner)])
            for (int64_t j = range.begin; j < range.begin + range.rows; j++) keys += j <= bottom;
        return keys;
    };
    const uint64_t key = uint64_t(r.heads_k + r.heads_v) * dims;
    uint64_t bytes = 0;
    for (int32_t step = 1; step < ranks; step++) {
        if (way.method == FA_CP_METHOD_RING) bytes += seen((rank - step + 1 + ranks) % ranks, step, ranks - 1) * key;
        else bytes += seen(rank, step, step) * key;
    }
    return bytes;
}

TEST(Cp, SendsHardlyMoreThanPairsOfRowAndKeyDemand) {
    for (const Way& way : kWays)
        for (const int32_t ranks : {2, 4}) {
            Case c = shaped({1, 8, 4, 512, 512, 16, 16});
            causal(c, FA_ALIGN_TOP_LEFT);
            Rng rng(10);
            fill(c, rng);
            c.d.operands |= FA_OPERAND_LSE;
            StandIn room(ranks);
            const std::vector<RankResult> results = run_spread(c, by_rows(ranks, way.method, way.layout), room);
            uint64_t sent = 0, wanted = 0, statuses = uint64_t(ranks) * uint64_t(ranks - 1) * 2 * 48;
            for (int32_t n = 0; n < ranks; n++) sent += results[size_t(n)].bytes, wanted += counted_bytes(c, way, ranks, n);
            EXPECT_EQ("", results[0].error);
            EXPECT_LE(double(sent - statuses), 1.05 * double(wanted)) << way.name << ", " << ranks << " ranks";
            EXPECT_GE(sent - statuses, wanted) << way.name << ", " << ranks << " ranks";  // else the count is wrong
        }
}

// The name of the method that ranks choose by themselves.
std::string chosen(int64_t heads_k, double rate, double flops, bool deterministic = false,
                   const std::function<void(int32_t, fa_cp_create_info_t&)>& change = nullptr) {
    Case c = shaped({1, 8, heads_k, 256, 256, 16, 16});
    causal(c, FA_ALIGN_TOP_LEFT);
    if (deterministic) c.d.flags |= FA_DETERMINISTIC;
    Rng rng(12);
    fill(c, rng);
    Spread s = by_rows(4, FA_CP_METHOD_AUTO, FA_CP_LAYOUT_ZIGZAG);
    s.change_info = [&](int32_t rank, fa_cp_create_info_t& info) {
        info.link_bytes_per_second = rate, info.link_seconds = 1e-9, info.flops_per_second = flops;
        if (change) change(rank, info);
    };
    StandIn room(4);
    const std::vector<RankResult> results = run_spread(c, s, room);
    if (results[0].status != FA_OK) return fa_status_name(results[0].status);
    for (const RankResult& r : results) EXPECT_EQ(0u, r.explained.find(results[0].explained.substr(0, 5))) << r.explained;
    EXPECT_NE(std::string::npos, results[0].explained.find("predicted: ")) << results[0].explained;
    return results[0].explained.substr(0, results[0].explained.find(';'));
}

TEST(Cp, TakesTheMethodThatShouldBeDoneFirst) {
    EXPECT_EQ("Ulysses", chosen(4, 1e12, 1e9));       // of which nothing is hidden, but which needs least beside
    EXPECT_EQ("ring", chosen(4, 1e6, 1e6));           // work is long enough to hide every message of a slow link
    EXPECT_EQ("Ulysses", chosen(4, 1e6, 1e6, true));  // under FA_DETERMINISTIC never the ring, and of one chunk nothing is hidden
    EXPECT_EQ("all-gather", chosen(2, 1e12, 1e9));    // four ranks do not divide two heads
    EXPECT_EQ("FA_PEERS_DISAGREE", chosen(4, 1e12, 1e9, false, [](int32_t rank, fa_cp_create_info_t& info) {
                  if (rank == 1) info.link_bytes_per_second = info.flops_per_second = 1e6;
              }));
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
            EXPECT_EQ(i < 3 ? 40 * row : 0, sent) << results[i].explained;  // what the next rank's first rows see
        }
    }
}

// Sequences without a row, as many as there may be: nobody counts them, by any method. Where keys stay where they are, there is one for
// all. The limit of time is the test.
TEST(Cp, F78_calls_without_a_row_do_not_count_their_sequences) {
    const float row[16] = {1};
    std::vector<Way> ways(std::begin(kWays), std::end(kWays));
    ways.push_back({FA_CP_METHOD_MERGE, FA_CP_LAYOUT_CONTIGUOUS, "merge"});
    for (const Way& way : ways)
        for (const int64_t keys : {0, way.method == FA_CP_METHOD_MERGE ? 64 : 0}) {
            StandIn room(2);
            const auto rank = [&](int32_t r) {
                const Handle handle = make_handle();
                fa_cp_transport_t transport = room.transport(r);
                fa_cp_create_info_t info = FA_CP_CREATE_INFO_INIT;
                info.transport = &transport;
                fa_cp_t cp;
                ASSERT_EQ(FA_OK, fa_cp_create(&cp, handle, &info));
                fa_cp_desc_t spread = FA_CP_DESC_INIT;
                spread.shard = way.method == FA_CP_METHOD_MERGE ? FA_CP_SHARD_KEYS : FA_CP_SHARD_ROWS;
                spread.method = way.method, spread.layout = way.layout;
                fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
                d.q_dtype = FA_F32, d.batch = INT32_MAX, d.heads_q = 2, d.seqlen_k = keys, d.dim_qk = 8;
                d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_BOTTOM_RIGHT;
                d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1;
                fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
                a.k = a.v = row;
                EXPECT_EQ(FA_OK, fa_cp_forward(cp, &d, &spread, &a)) << way.name << ": " << fa_cp_last_error(cp);
                EXPECT_EQ(FA_OK, fa_cp_destroy(cp));
            };
            std::thread other(rank, 1);
            rank(0);
            other.join();
        }
}

}  // namespace
}  // namespace test
