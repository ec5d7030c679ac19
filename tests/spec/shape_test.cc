#include <gtest/gtest.h>
#include <vector>
#include "spec/shape.h"

namespace fa {
namespace {

TEST(ShapeSpec, Rounding) {
    for (int64_t a = 0; a < 200; a++)
        for (int64_t b = 1; b < 70; b++) {
            const int64_t c = ceil_div(a, b);
            ASSERT_GE(c * b, a);
            ASSERT_LT((c - 1) * b, a);
            ASSERT_EQ(round_up(a, b), c * b);
        }
    EXPECT_EQ(ceil_div(INT64_MAX, 2), INT64_MAX / 2 + 1) << "no a + b − 1 that overflows";
    EXPECT_EQ(min_of(-3, 2), -3);
    EXPECT_EQ(min_of(2, -3), -3);
    EXPECT_EQ(max_of(-3, 2), 2);
    EXPECT_EQ(max_of(2, -3), 2);
}

// Contiguous groups, each kv head serving as many query heads as any other.
TEST(ShapeSpec, HeadGroups) {
    for (int64_t heads_k = 1; heads_k <= 12; heads_k++)
        for (int64_t group = 1; group <= 12; group++) {
            const int64_t heads_q = heads_k * group;
            std::vector<int64_t> served(size_t(heads_k), 0);
            for (int64_t h = 0; h < heads_q; h++) {
                const int64_t kv = kv_head(h, heads_q, heads_k);
                ASSERT_EQ(kv, h * heads_k / heads_q);
                ASSERT_TRUE(h == 0 || kv >= kv_head(h - 1, heads_q, heads_k));
                served[size_t(kv)]++;
            }
            for (int64_t count : served) ASSERT_EQ(count, group);
        }
}

// Every key in one split, no split empty, none but the last short.
void expect_partition(int64_t keys, int64_t num_splits, int64_t split_size) {
    const int64_t size = split_keys(keys, num_splits, split_size), count = split_count(keys, num_splits, split_size);
    SCOPED_TRACE(testing::Message() << keys << " keys, num_splits " << num_splits << ", split_size " << split_size);
    ASSERT_GE(size, 1);
    ASSERT_GE(count, 1);
    int64_t covered = 0;
    for (int64_t s = 0; s < count; s++) {
        const int64_t begin = s * size, end = min_of(keys, begin + size);
        ASSERT_EQ(begin, covered);
        ASSERT_TRUE(end > begin || keys == 0);
        covered = end;
    }
    ASSERT_EQ(covered, keys);
}

TEST(ShapeSpec, SplitsCoverEveryKeyOnce) {
    for (int64_t keys = 0; keys <= 1100; keys++) {
        for (int64_t num_splits = 0; num_splits <= 20; num_splits++) expect_partition(keys, num_splits, 0);
        for (int64_t split_size : {1, 7, 63, 64, 65, 500, 5000}) expect_partition(keys, 3, split_size);
    }
}

TEST(ShapeSpec, SplitsAreWholeQuantaUnlessTheSizeIsFixed) {
    for (int64_t keys = 1; keys <= 1100; keys++) {
        EXPECT_EQ(split_count(keys, 0, 0), 1);
        EXPECT_EQ(split_count(keys, 1, 0), 1);
        EXPECT_EQ(split_keys(keys, 1, 0), keys) << "one split need not be a multiple";
        for (int64_t num_splits = 2; num_splits <= 20; num_splits++) {
            ASSERT_EQ(split_keys(keys, num_splits, 0) % kSplitQuantum, 0);
            ASSERT_LE(split_count(keys, num_splits, 0), num_splits);
        }
        for (int64_t num_splits = 0; num_splits <= 3; num_splits++) ASSERT_EQ(split_keys(keys, num_splits, 37), 37);
    }
    EXPECT_EQ(split_count(0, 5, 0), 1) << "a sequence without keys still has its empty state";
    EXPECT_EQ(split_count(0, 5, 64), 1);
    EXPECT_EQ(split_keys(0, 5, 0), 1);
}

}  // namespace
}  // namespace fa
