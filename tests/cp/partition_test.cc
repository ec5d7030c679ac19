// Who has what.
#include <flashattn_cp.h>
#include <gtest/gtest.h>
#include <vector>

namespace {

fa_cp_desc_t spread(int32_t layout, int64_t block = 0) {
    fa_cp_desc_t s = FA_CP_DESC_INIT;
    s.shard = FA_CP_SHARD_ROWS;
    s.layout = layout;
    s.block = block;
    return s;
}

TEST(CpPartition, EachRowIsOnOneRankAndLocalRowsFollowEachOther) {
    const std::vector<int32_t> lengths = {0, 1, 7, 64, 1000};
    std::vector<int32_t> cu = {0};
    for (const int32_t length : lengths) cu.push_back(cu.back() + length);
    const int64_t batch = int64_t(lengths.size());
    for (const int32_t layout : {FA_CP_LAYOUT_CONTIGUOUS, FA_CP_LAYOUT_ZIGZAG})
        for (const int64_t block : {1, 8, 4096})
            for (const int32_t ranks : {1, 2, 3, 4, 8, 100}) {
                std::vector<int> owners(size_t(cu.back()), 0);
                for (int32_t rank = 0; rank < ranks; rank++) {
                    const fa_cp_desc_t s = spread(layout, block);
                    fa_cp_range_t ranges[10];
                    int64_t count = -1, local = 0, counted = -1;
                    ASSERT_EQ(FA_OK, fa_cp_partition(&s, rank, ranks, cu.data(), batch, 0, ranges, 10, &count))
                        << fa_cp_last_error(nullptr);
                    ASSERT_EQ(FA_OK, fa_cp_partition(&s, rank, ranks, cu.data(), batch, 0, nullptr, 0, &counted));
                    EXPECT_EQ(count, counted);
                    for (int64_t i = 0; i < count; i++) {
                        EXPECT_EQ(local, ranges[i].local);
                        EXPECT_GT(ranges[i].rows, 0);
                        EXPECT_EQ(0, ranges[i].begin % block);
                        for (int64_t row = 0; row < ranges[i].rows; row++)
                            owners[size_t(cu[size_t(ranges[i].sequence)] + ranges[i].begin + row)]++;
                        local += ranges[i].rows;
                    }
                }
                EXPECT_EQ(std::vector<int>(size_t(cu.back()), 1), owners) << ranks << " ranks, block " << block;
            }
}

TEST(CpPartition, ZigzagGivesEachRankAnEarlyAndALatePart) {
    const fa_cp_desc_t s = spread(FA_CP_LAYOUT_ZIGZAG);
    const int64_t expected[4][4] = {{0, 8, 56, 8}, {8, 8, 48, 8}, {16, 8, 40, 8}, {24, 16, 0, 0}};  // the middle's parts are neighbours
    for (int32_t rank = 0; rank < 4; rank++) {
        fa_cp_range_t ranges[2] = {};
        int64_t count = 0;
        ASSERT_EQ(FA_OK, fa_cp_partition(&s, rank, 4, nullptr, 1, 64, ranges, 2, &count));
        EXPECT_EQ(rank < 3 ? 2 : 1, count);
        EXPECT_EQ(expected[rank][0], ranges[0].begin);
        EXPECT_EQ(expected[rank][1], ranges[0].rows);
        EXPECT_EQ(expected[rank][2], ranges[1].begin);
        EXPECT_EQ(expected[rank][3], ranges[1].rows);
    }
}

TEST(CpPartition, WrongArgumentsHaveTheirSentence) {
    fa_cp_desc_t s = spread(FA_CP_LAYOUT_CONTIGUOUS);
    const int32_t falling[] = {0, 5, 4};
    fa_cp_range_t ranges[4];
    int64_t count = 0;
    const auto said = [](fa_status_t status, const char* sentence) {
        EXPECT_EQ(FA_INVALID_ARGUMENT, status);
        EXPECT_NE(std::string::npos, std::string(fa_cp_last_error(nullptr)).find(sentence)) << fa_cp_last_error(nullptr);
    };
    said(fa_cp_partition(&s, 2, 2, nullptr, 1, 8, ranges, 4, &count), "rank is 2");
    said(fa_cp_partition(&s, 0, 0, nullptr, 1, 8, ranges, 4, &count), "ranks is 0");
    said(fa_cp_partition(&s, 0, 2, falling, 2, 0, ranges, 4, &count), "cu_seqlens[2] is 4");
    said(fa_cp_partition(&s, 0, 2, falling, 2, 8, ranges, 4, &count), "seqlen is 8");
    said(fa_cp_partition(&s, 0, 2, nullptr, 3, 8, ranges, 2, &count), "capacity is 2: expected 3 or more");
    said(fa_cp_partition(&s, 0, 2, nullptr, 3, 8, nullptr, 2, &count), "ranges is NULL");
    said(fa_cp_partition(&s, 0, 2, nullptr, 3, 8, ranges, 4, nullptr), "count is NULL");
    said(fa_cp_partition(nullptr, 0, 2, nullptr, 3, 8, ranges, 4, &count), "fa_cp_desc_t is NULL");
    said(fa_cp_partition(&s, 0, 2, falling, 2, -1, ranges, 4, &count), "seqlen is -1: expected 0 or more");
    s.shard = FA_CP_SHARD_KEYS;
    said(fa_cp_partition(&s, 0, 2, nullptr, 1, 8, ranges, 4, &count), "spread.shard is FA_CP_SHARD_KEYS");
}

// Sequences that are all the same are not counted one by one: the limit of time is the test.
TEST(CpPartition, CountsNoSequenceThatIsLikeTheOthers) {
    const fa_cp_desc_t s = spread(FA_CP_LAYOUT_ZIGZAG);
    constexpr int64_t kMost = INT32_MAX;
    fa_cp_range_t ranges[3];
    int64_t count = -1;
    EXPECT_EQ(FA_OK, fa_cp_partition(&s, 1, 2, nullptr, kMost, 0, ranges, 3, &count));
    EXPECT_EQ(0, count);
    for (int i = 0; i < 20; i++) EXPECT_EQ(FA_OK, fa_cp_partition(&s, 0, 2, nullptr, kMost, 8, nullptr, 0, &count));
    EXPECT_EQ(2 * kMost, count);
    EXPECT_EQ(FA_INVALID_ARGUMENT, fa_cp_partition(&s, 0, 2, nullptr, kMost, 8, ranges, 3, &count));
    EXPECT_EQ(2 * kMost, count);
    EXPECT_EQ(1, ranges[2].sequence);
}

}  // namespace
