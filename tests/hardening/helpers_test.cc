// The helpers against the header's words, recomputed here from scratch.
#include <math.h>
#include <array>
#include "workload.h"

namespace hardening {
namespace {

using Words = std::array<uint32_t, 4>;

Words philox(uint64_t key, Words c) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int i = 0; i < 10; i++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        const uint64_t a = 0xd2511f53ull * c[0], b = 0xcd9e8d57ull * c[2];
        c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(b), static_cast<uint32_t>(a >> 32) ^ c[3] ^ k1,
             static_cast<uint32_t>(a)};
    }
    return c;
}

bool keeps(float p, uint64_t seed, uint64_t offset, int64_t batch_head, int64_t i, int64_t j) {
    const Words k = philox(seed, {static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32), 0, 0});
    const uint64_t bh = static_cast<uint64_t>(batch_head);
    const Words r = philox(k[0] | static_cast<uint64_t>(k[1]) << 32, {static_cast<uint32_t>(j >> 2), static_cast<uint32_t>(i),
                                                                      static_cast<uint32_t>(bh), static_cast<uint32_t>(bh >> 32)});
    return r[static_cast<size_t>(j & 3)] >= floor(static_cast<double>(p) * 4294967296.0);
}

// Published with the generator (Random123, known-answer vectors for philox4x32-10): the recomputation above is the real thing.
TEST(Dropout, RecomputationMatchesPublishedVectors) {
    EXPECT_EQ(philox(0, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    EXPECT_EQ(philox(~0ull, {~0u, ~0u, ~0u, ~0u}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox(0x299f31d0a4093822ull, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Dropout, MaskFollowsTheFormula) {
    const struct {
        float p;
        uint64_t seed, offset;
        int64_t batch_head, row, rows, key, keys;
    } cases[] = {{0.f, 1, 2, 0, 0, 2, 0, 5},
                 {0.5f, 0, 0, 0, 0, 7, 0, 33},
                 {0.1f, 42, 7, 3, 5, 4, 1, 10},
                 {0.9f, ~0ull, ~0ull, int64_t(1) << 40, 100, 3, 6, 9},
                 {0.3f, 1ull << 63, 1ull << 32, INT64_MAX, (int64_t(1) << 31) - 2, 2, (int64_t(1) << 31) - 5, 5}};
    for (const auto& c : cases) {
        std::vector<uint8_t> keep(static_cast<size_t>(c.rows * c.keys) + 1, 7);
        ASSERT_EQ(fa_dropout_mask(c.p, c.seed, c.offset, c.batch_head, c.row, c.rows, c.key, c.keys, keep.data()), FA_OK)
            << fa_last_error(nullptr);
        for (int64_t r = 0; r < c.rows; r++)
            for (int64_t k = 0; k < c.keys; k++)
                EXPECT_EQ(keep[static_cast<size_t>(r * c.keys + k)], keeps(c.p, c.seed, c.offset, c.batch_head, c.row + r, c.key + k));
        EXPECT_EQ(keep.back(), 7);
    }
}

// 200,000 draws: four standard deviations of the mean are below 0.005.
TEST(Dropout, DropsTheShareAskedFor) {
    for (const float p : {0.1f, 0.5f, 0.75f}) {
        std::vector<uint8_t> keep(200 * 1000);
        ASSERT_EQ(fa_dropout_mask(p, 11, 22, 33, 0, 200, 0, 1000, keep.data()), FA_OK);
        double kept = 0;
        for (const uint8_t k : keep) kept += k;
        EXPECT_NEAR(kept / 200000, 1 - p, 0.005);
    }
}

TEST(Dropout, RefusesBadArguments) {
    uint8_t keep[4];
    const int64_t end = int64_t(1) << 31;
    const auto refused = [&](float p, int64_t batch_head, int64_t row, int64_t rows, int64_t key, int64_t keys, uint8_t* to,
                             const char* sentence) {
        EXPECT_EQ(fa_dropout_mask(p, 0, 0, batch_head, row, rows, key, keys, to), FA_INVALID_ARGUMENT) << sentence;
        EXPECT_TRUE(holds(fa_last_error(nullptr), sentence));
    };
    refused(1.f, 0, 0, 1, 0, 1, keep, "p is 1: expected at least 0 and below 1");
    refused(-0.1f, 0, 0, 1, 0, 1, keep, "p is -0.1");
    refused(NAN, 0, 0, 1, 0, 1, keep, "p is nan");
    refused(0, -1, 0, 1, 0, 1, keep, "batch_head is -1: expected 0 or more");
    refused(0, 0, -1, 1, 0, 1, keep, "row is -1: expected 0 to 2^31");
    refused(0, 0, end + 1, 0, 0, 1, keep, "row is 2147483649");
    refused(0, 0, 0, -1, 0, 1, keep, "rows is -1");
    refused(0, 0, end - 1, 2, 0, 1, keep, "rows is 2: expected 0 to 1, since row + rows may reach 2^31");
    refused(0, 0, 0, 1, -1, 1, keep, "key is -1");
    refused(0, 0, 0, 1, 1, INT64_MAX, keep, "keys is 9223372036854775807");
    refused(0, 0, 0, 1, 0, 1, nullptr, "keep is NULL");
    EXPECT_EQ(fa_dropout_mask(0, 0, 0, 0, 0, 0, 0, 5, nullptr), FA_OK);
    EXPECT_EQ(fa_dropout_mask(0, 0, 0, 0, 0, 5, end, 0, nullptr), FA_OK);
    EXPECT_STREQ(fa_last_error(nullptr), "");
}

TEST(Alibi, PowersOfTwo) {
    for (const int64_t heads : {1, 2, 4, 8, 16, 64}) {
        std::vector<float> slopes(static_cast<size_t>(heads));
        ASSERT_EQ(fa_alibi_slopes(heads, 0, slopes.data()), FA_OK);
        for (int64_t h = 1; h <= heads; h++)
            EXPECT_FLOAT_EQ(slopes[static_cast<size_t>(h - 1)],
                            static_cast<float>(pow(2., -8. * static_cast<double>(h) / static_cast<double>(heads))));
    }
}

TEST(Alibi, OtherCounts) {
    std::vector<float> six(6), eight(8);
    ASSERT_EQ(fa_alibi_slopes(6, 0, six.data()), FA_OK);
    ASSERT_EQ(fa_alibi_slopes(8, 0, eight.data()), FA_OK);
    const std::vector<float> four = {0.25f, 0.0625f, 0.015625f, 0.00390625f};
    EXPECT_EQ(std::vector<float>(six.begin(), six.begin() + 4), four);
    EXPECT_EQ(six[4], eight[0]);
    EXPECT_EQ(six[5], eight[2]);
    float three[3];
    ASSERT_EQ(fa_alibi_slopes(3, 0, three), FA_OK);
    EXPECT_EQ(three[0], 0.0625f);
    EXPECT_EQ(three[1], 0.00390625f);
    EXPECT_EQ(three[2], 0.25f);
}

// 2^(-max_bias h / heads): the usual slopes are those of 8.
TEST(Alibi, MaxBias) {
    float usual[6], eight[6], four[6];
    ASSERT_EQ(fa_alibi_slopes(6, 0, usual), FA_OK);
    ASSERT_EQ(fa_alibi_slopes(6, 8, eight), FA_OK);
    ASSERT_EQ(fa_alibi_slopes(6, 4, four), FA_OK);
    for (int h = 0; h < 6; h++) {
        EXPECT_EQ(eight[h], usual[h]);
        EXPECT_FLOAT_EQ(four[h] * four[h], eight[h]);
    }
    for (const float wrong : {-1.f, HUGE_VALF, NAN}) EXPECT_EQ(fa_alibi_slopes(6, wrong, four), FA_INVALID_ARGUMENT) << wrong;
    EXPECT_TRUE(holds(fa_last_error(nullptr), "max_bias is nan: expected a finite number, 0 or more"));
}

TEST(Alibi, RefusesBadArguments) {
    float slope = 7;
    EXPECT_EQ(fa_alibi_slopes(-1, 0, &slope), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(nullptr), "heads is -1: expected 0 to 2^31 - 1"));
    EXPECT_EQ(fa_alibi_slopes(INT64_MAX, 0, &slope), FA_INVALID_ARGUMENT);
    EXPECT_EQ(fa_alibi_slopes(1, 0, nullptr), FA_INVALID_ARGUMENT);
    EXPECT_TRUE(holds(fa_last_error(nullptr), "slopes is NULL"));
    EXPECT_EQ(fa_alibi_slopes(0, 0, nullptr), FA_OK);
    EXPECT_EQ(slope, 7);
}

TEST(Version, IsTheHeaders) {
    EXPECT_EQ(fa_version(), FA_VERSION);
    EXPECT_EQ(FA_VERSION, FA_VERSION_MAJOR * 10000 + FA_VERSION_MINOR * 100 + FA_VERSION_PATCH);
}

TEST(Names, OfInstructionSets) {
    EXPECT_STREQ(fa_isa_name(FA_ISA_AVX512_BF16), "avx512_bf16");
    EXPECT_STREQ(fa_isa_name(FA_ISA_SVE), "sve");
    EXPECT_EQ(fa_isa_name(0), nullptr);
    EXPECT_EQ(fa_isa_name(2), nullptr);
}

TEST(Names, OfTypesAndTheirUnits) {
    EXPECT_STREQ(fa_dtype_name(FA_F32), "f32");
    EXPECT_STREQ(fa_dtype_name(FA_Q8_0), "q8_0");
    EXPECT_EQ(fa_dtype_name(0), nullptr);
    EXPECT_EQ(fa_dtype_name(276), nullptr);
    const struct {
        int32_t dtype;
        int64_t elements, bytes;
    } units[] = {{FA_F32, 1, 4}, {FA_BF16, 1, 2},   {FA_E4M3, 1, 1},   {FA_I4, 2, 1},
                 {FA_BIT, 8, 1}, {FA_Q4_0, 32, 18}, {FA_Q5_1, 32, 24}, {FA_Q8_0, 32, 34}};
    for (const auto& unit : units) {
        int64_t elements = 0, bytes = 0;
        EXPECT_EQ(fa_dtype_unit(unit.dtype, &elements, &bytes), FA_OK);
        EXPECT_EQ(elements, unit.elements) << unit.dtype;
        EXPECT_EQ(bytes, unit.bytes) << unit.dtype;
        EXPECT_EQ(fa_dtype_unit(unit.dtype, nullptr, nullptr), FA_OK);
    }
    EXPECT_EQ(fa_dtype_unit(4, nullptr, nullptr), FA_UNSUPPORTED_FIELD);
    EXPECT_TRUE(holds(fa_last_error(nullptr), "dtype is 4: unknown, expected a type"));
}

}  // namespace
}  // namespace hardening
