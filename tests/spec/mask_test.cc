// Bands against the rules read key by key; tile classes against counting.
#include <gtest/gtest.h>
#include <random>
#include "spec/mask.h"

namespace fa {
namespace {

constexpr int64_t kHuge = int64_t(1) << 60;

// The rules as the public header words them, in 128 bits: no value of a field can overflow them.
bool keeps(const MaskRule& rule, int64_t row, int64_t key, int64_t seqlen_k) {
    const __int128 at = __int128(row) + rule.off, j = key;
    if (key < 0 || key >= seqlen_k) return false;
    if (rule.left >= 0 && j < at - rule.left) return false;
    if (rule.right >= 0 && j > at + rule.right) return false;
    if (rule.chunk > 0) {
        __int128 first = at / rule.chunk * rule.chunk;
        if (first > at) first -= rule.chunk;
        if (j < first || j >= first + rule.chunk) return false;
    }
    return true;
}

void expect_band(const MaskRule& rule, int64_t row, int64_t seqlen_k) {
    const KeyBand band = key_band(rule, row, seqlen_k);
    for (int64_t j = 0; j < seqlen_k; j++)
        ASSERT_EQ(j >= band.begin && j < band.end, keeps(rule, row, j, seqlen_k))
            << "off " << rule.off << " left " << rule.left << " right " << rule.right << " chunk " << rule.chunk << " row " << row
            << " key " << j;
}

TEST(MaskSpec, FloorDivRoundsDown) {
    for (int64_t a = -30; a <= 30; a++)
        for (int64_t b = 1; b <= 9; b++) {
            const int64_t q = floor_div(a, b);
            EXPECT_LE(q * b, a);
            EXPECT_GT((q + 1) * b, a);
            EXPECT_EQ(floor_div(-a, -b), q) << "both signs turned";
        }
}

TEST(MaskSpec, BandsEqualTheRules) {
    std::mt19937 random(11);
    const auto between = [&](int a, int b) { return a + int(random() % uint32_t(b - a + 1)); };
    for (int trial = 0; trial < 20000; trial++) {
        const MaskRule r{between(-25, 25), between(-1, 8), between(-1, 8), between(0, 2) ? 0 : between(1, 9)};
        const int seqlen_k = between(0, 24);
        for (int row = 0; row < 20; row++) expect_band(r, row, seqlen_k);
    }
}

TEST(MaskSpec, NamedMasks) {
    const auto band = [](const MaskRule& rule, int64_t row, int64_t keys) {
        const KeyBand b = key_band(rule, row, keys);
        return std::pair(b.begin, b.end);
    };
    const MaskRule none{0, -1, -1, 0}, causal{0, -1, 0, 0}, decode{9, -1, 0, 0}, window{9, 3, 0, 0}, chunked{0, -1, 0, 4};
    EXPECT_EQ(band(none, 5, 10), std::pair(int64_t(0), int64_t(10)));
    EXPECT_EQ(band(causal, 0, 10), std::pair(int64_t(0), int64_t(1)));
    EXPECT_EQ(band(causal, 30, 10), std::pair(int64_t(0), int64_t(10)));
    EXPECT_EQ(band(decode, 0, 10), std::pair(int64_t(0), int64_t(10))) << "one row at the bottom right sees all keys";
    EXPECT_EQ(band(window, 0, 10), std::pair(int64_t(6), int64_t(10))) << "left 3 keeps four keys: the row's own and three more";
    EXPECT_EQ(band(chunked, 6, 10), std::pair(int64_t(4), int64_t(7)));
}

// Up to 2^60, far beyond any sequence, the sums in a band do not overflow; the core clamps longer windows and chunks.
TEST(MaskSpec, HugeFields) {
    for (const int64_t off : {int64_t(-40), int64_t(-5), int64_t(0), int64_t(3), kHuge, -kHuge})
        for (const int64_t left : {int64_t(-1), int64_t(0), int64_t(2), kHuge - 1, kHuge})
            for (const int64_t right : {int64_t(-1), int64_t(0), int64_t(2), kHuge - 1, kHuge})
                for (const int64_t chunk : {int64_t(0), int64_t(3), kHuge})
                    for (int64_t row = 0; row < 12; row++) expect_band({off, left, right, chunk}, row, 9);
}

// Empty exactly when nothing is kept, full exactly when all is: neither a wasted tile nor a needless mask.
TEST(MaskSpec, TileClassesAreExact) {
    std::mt19937 random(13);
    const auto between = [&](int a, int b) { return a + int(random() % uint32_t(b - a + 1)); };
    int seen[3] = {0, 0, 0};
    for (int trial = 0; trial < 200000; trial++) {
        const MaskRule r{between(-20, 20), between(-1, 8), between(-1, 8), between(0, 2) ? 0 : between(1, 9)};
        const int seqlen_k = between(1, 24);
        const int row = between(0, 15), rows = between(1, 8), key = between(0, seqlen_k - 1), keys = between(1, seqlen_k - key);
        int kept = 0;
        for (int i = row; i < row + rows; i++)
            for (int j = key; j < key + keys; j++) kept += keeps(r, i, j, seqlen_k);
        const TileClass want = kept == 0 ? TileClass::empty : kept == rows * keys ? TileClass::full : TileClass::partial;
        ASSERT_EQ(int(tile_class(r, row, rows, key, keys, seqlen_k)), int(want))
            << "off " << r.off << " left " << r.left << " right " << r.right << " chunk " << r.chunk << " rows " << row << "+" << rows
            << " keys " << key << "+" << keys << " of " << seqlen_k;
        seen[int(want)]++;
    }
    for (int count : seen) EXPECT_GT(count, 10000) << "the draw must reach every class";
}

TEST(MaskSpec, WordsHoldTheKeysOfAnInterval) {
    for (int64_t begin = -70; begin <= 140; begin += 7)
        for (int64_t end = begin - 3; end <= 200; end += 5)
            for (const int64_t key : {int64_t(0), int64_t(64), int64_t(101)}) {
                const uint64_t bits = key_bits(begin, end, key);
                for (int j = 0; j < kWordKeys; j++) ASSERT_EQ(bits >> j & 1, key + j >= begin && key + j < end) << begin << " " << end;
            }
    EXPECT_EQ(low_bits(INT64_MIN), 0u);
    EXPECT_EQ(low_bits(INT64_MAX), ~uint64_t(0));
    EXPECT_EQ(low_bits(3), 7u);
}

// The claim that tile classes rest on.
TEST(MaskSpec, BandsOnlyMoveRight) {
    std::mt19937 random(17);
    const auto between = [&](int a, int b) { return a + int(random() % uint32_t(b - a + 1)); };
    for (int trial = 0; trial < 20000; trial++) {
        const MaskRule r{between(-20, 20), between(-1, 8), between(-1, 8), between(0, 9)};
        const int seqlen_k = between(0, 24);
        for (int row = 0; row < 24; row++) {
            const KeyBand a = key_band(r, row, seqlen_k), b = key_band(r, row + 1, seqlen_k);
            ASSERT_LE(a.begin, b.begin);
            ASSERT_LE(a.end, b.end);
        }
    }
}

}  // namespace
}  // namespace fa
