// Philox against its published vectors; the dropout counter, threshold and statistics. All seeds are fixed.
#include <gtest/gtest.h>
#include <cmath>
#include <set>
#include "spec/random.h"

namespace fa {
namespace {

void expect_words(const Philox4& got, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    EXPECT_EQ(got.word[0], a);
    EXPECT_EQ(got.word[1], b);
    EXPECT_EQ(got.word[2], c);
    EXPECT_EQ(got.word[3], d);
}

// The known-answer vectors of Random123 for philox4x32-10.
TEST(RandomSpec, PhiloxKnownAnswers) {
    expect_words(philox(0, 0, 0, 0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    expect_words(philox(~0u, ~0u, ~0u, ~0u, ~0u, ~0u), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
    expect_words(philox(0xa4093822, 0x299f31d0, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344),  // digits of pi
                 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(RandomSpec, KeyComesFromSeedAndOffset) {
    const Dropout d = make_dropout(0.5f, 0x299f31d0a4093822u, 0x85a308d3243f6a88u);
    const Philox4 key = philox(0xa4093822, 0x299f31d0, 0x243f6a88, 0x85a308d3, 0, 0);
    EXPECT_EQ(d.key0, key.word[0]);
    EXPECT_EQ(d.key1, key.word[1]);
}

TEST(RandomSpec, CounterIsQuadRowAndBothHalvesOfTheHead) {
    const Dropout d = make_dropout(0.5f, 1, 2);
    const int64_t head = (int64_t(9) << 32) | 8;
    const Philox4 want = philox(d.key0, d.key1, 5, 7, 8, 9), got = dropout_words(d, head, 7, 5);
    expect_words(got, want.word[0], want.word[1], want.word[2], want.word[3]);
    for (int64_t key = 0; key < 256; key++) {
        const Philox4 words = philox(d.key0, d.key1, uint32_t(key / 4), 7, 8, 9);
        ASSERT_EQ(dropout_keeps(d, head, 7, key), words.word[key % 4] >= d.threshold) << key;
    }
}

TEST(RandomSpec, AWordOfExactlyTheThresholdKeeps) {
    Dropout d = make_dropout(0.5f, 1, 2);
    d.threshold = dropout_words(d, 3, 4, 0).word[1];
    EXPECT_TRUE(dropout_keeps(d, 3, 4, 1));
    d.threshold++;
    EXPECT_FALSE(dropout_keeps(d, 3, 4, 1));
}

TEST(RandomSpec, ThresholdIsExact) {
    EXPECT_EQ(make_dropout(0.f, 1, 2).threshold, 0u);
    EXPECT_EQ(make_dropout(0x1p-33f, 1, 2).threshold, 0u);
    EXPECT_EQ(make_dropout(0x1p-32f, 1, 2).threshold, 1u);
    EXPECT_EQ(make_dropout(0.25f, 1, 2).threshold, 0x40000000u);
    EXPECT_EQ(make_dropout(0.1f, 1, 2).threshold, uint32_t(std::floor(double(0.1f) * 4294967296.0)));
    EXPECT_EQ(make_dropout(1 - 0x1p-24f, 1, 2).threshold, 0xffffff00u);
    EXPECT_EQ(make_dropout(0.f, 1, 2).rescale, 1.f);
    EXPECT_EQ(make_dropout(0.75f, 1, 2).rescale, 4.f);
    EXPECT_EQ(make_dropout(1 - 0x1p-24f, 1, 2).rescale, 0x1p+24f);
}

TEST(RandomSpec, ZeroProbabilityKeepsEverything) {
    const Dropout d = make_dropout(0.f, 123, 456);
    for (int64_t row = 0; row < 64; row++)
        for (int64_t key = 0; key < 256; key++) ASSERT_TRUE(dropout_keeps(d, row % 5, row, key));
}

// Every coordinate, low or high word, draws another stream.
TEST(RandomSpec, EveryCoordinateCounts) {
    const auto pattern = [](uint64_t seed, uint64_t offset, int64_t head, int64_t row, int64_t key) {
        const Dropout d = make_dropout(0.5f, seed, offset);
        uint64_t bits = 0;
        for (int64_t j = 0; j < 64; j++) bits = bits << 1 | uint64_t(dropout_keeps(d, head, row, key + j));
        return bits;
    };
    const int64_t high = int64_t(1) << 32;
    const std::set<uint64_t> seen{pattern(1, 1, 1, 1, 0),        pattern(2, 1, 1, 1, 0),        pattern(1 + high, 1, 1, 1, 0),
                                  pattern(1, 2, 1, 1, 0),        pattern(1, 1 + high, 1, 1, 0), pattern(1, 1, 2, 1, 0),
                                  pattern(1, 1, 1 + high, 1, 0), pattern(1, 1, 1, 2, 0),        pattern(1, 1, 1, 1, 64)};
    EXPECT_EQ(seen.size(), 9u);
    EXPECT_EQ(pattern(3, 4, 5, 6, 8), pattern(3, 4, 5, 6, 8));
}

// Kept fraction, and agreement of neighbours along each axis, within five standard deviations of independent draws.
TEST(RandomSpec, DrawsLookIndependent) {
    constexpr int64_t kRows = 512, kKeys = 1024;
    for (const float p : {0.1f, 0.5f, 0.9f}) {
        const Dropout d = make_dropout(p, 0x9e3779b97f4a7c15u, 77), other = make_dropout(p, 0x9e3779b97f4a7c15u, 78);
        int64_t kept = 0, both_key = 0, both_row = 0, both_head = 0, both_offset = 0;
        for (int64_t i = 0; i < kRows; i++)
            for (int64_t j = 0; j < kKeys; j++) {
                const bool keep = dropout_keeps(d, 3, i, j);
                kept += keep;
                both_key += keep && dropout_keeps(d, 3, i, j + 1);
                both_row += keep && dropout_keeps(d, 3, i + 1, j);
                both_head += keep && dropout_keeps(d, 4, i, j);
                both_offset += keep && dropout_keeps(other, 3, i, j);
            }
        const double n = double(kRows * kKeys), q = 1 - double(p);
        EXPECT_NEAR(double(kept) / n, q, 5 * std::sqrt(q * (1 - q) / n)) << p;
        // Pairs that share a draw are not independent of each other, which at most doubles the variance: hence the factor 10.
        for (const int64_t both : {both_key, both_row, both_head, both_offset})
            EXPECT_NEAR(double(both) / n, q * q, 10 * std::sqrt(q * q * (1 - q * q) / n)) << p;
    }
}

}  // namespace
}  // namespace fa
