// Accuracy line 3: exact counting. With k = 0 all scores are equal, so LSE is the logarithm of the number of keys attended, and with
// v_j = one-hot of j the output says which ones. No tolerance hides an off-by-one here, at any length.
#include "check/counting.h"
#include "check/isa.h"

namespace test {
namespace {

// Lengths around the borders of tiles of t.
std::vector<int64_t> borders(int64_t t) {
    std::vector<int64_t> lengths;
    for (const int64_t n : {int64_t(0), int64_t(1), int64_t(2), t - 1, t, t + 1, 2 * t - 1, 2 * t + 1})
        if (n >= 0 && std::find(lengths.begin(), lengths.end(), n) == lengths.end()) lengths.push_back(n);
    return lengths;
}

void set_rule(Case& test_case, int rule) {
    const int64_t n = test_case.d.seqlen_k;
    switch (rule) {
        case 0: break;
        case 1: causal(test_case, FA_ALIGN_TOP_LEFT); break;
        case 2: causal(test_case, FA_ALIGN_BOTTOM_RIGHT); break;
        case 3: window(test_case, n / 3, 2, FA_ALIGN_BOTTOM_RIGHT); break;
        case 4: window(test_case, 0, 0, FA_ALIGN_TOP_LEFT); break;
        case 5: window(test_case, -1, n / 2, FA_ALIGN_TOP_LEFT), test_case.d.chunk = n / 2 + 1; break;
        default: test_case.d.chunk = 5, test_case.d.alignment = FA_ALIGN_BOTTOM_RIGHT; break;
    }
}
constexpr int kRules = 7;

// Where the backend doesn't tell its tiles, the usual ones.
int64_t tile(const Handle& handle, int32_t figure) { return testing_the_cpu() ? handle.get(figure) : 64; }

class Tails : public testing::TestWithParam<int32_t> {};

// All pairs of lengths around the tile borders, under every band mask, key by key.
TEST_P(Tails, EveryKeyAtEveryTileBorder) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    const int64_t tile_rows = tile(handle, FA_STAT_TILE_ROWS), tile_keys = tile(handle, FA_STAT_TILE_KEYS);
    ASSERT_GT(tile_rows, 0);
    ASSERT_GT(tile_keys, 0);
    Rng rng(3);
    for (const int64_t rows : borders(tile_rows))
        for (const int64_t keys : borders(tile_keys))
            for (int rule = 0; rule < kRules; rule++) {
                Case c = counting_shape(2, 1, rows, keys);
                set_rule(c, rule);
                ASSERT_EQ(count(handle, c, rng), "") << "tiles " << tile_rows << " x " << tile_keys << "\n" << c.describe();
            }
}

// Heads that share keys share tiles: the row borders then fall between heads.
TEST_P(Tails, GroupedHeads) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    Rng rng(3);
    for (const int64_t group : {2, 3, 7})
        for (const int64_t rows : borders(tile(handle, FA_STAT_TILE_ROWS) / group))
            for (int rule = 0; rule < kRules; rule++) {
                Case c = counting_shape(2, 2 * group, rows, tile(handle, FA_STAT_TILE_KEYS) + 1);
                c.d.heads_k = 2;
                set_rule(c, rule);
                ASSERT_EQ(count(handle, c, rng), "") << c.describe();
            }
}

INSTANTIATE_TEST_SUITE_P(Isa, Tails, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

TEST(Count, SplitsAnywhere) {
    const Handle handle = make_handle();
    Rng rng(4);
    for (int rule = 0; rule < kRules; rule++)
        for (const int64_t keys : {1, 63, 64, 65, 200})
            for (int variant = 0; variant < 12; variant++) {
                Case c = counting_shape(2, 2, 5, keys);
                const int64_t sizes[] = {1, 7, 63, 64, 65, 100};
                if (variant < 6) c.d.num_splits = variant + 1;
                else c.d.split_size = sizes[variant - 6];
                set_rule(c, rule);
                ASSERT_EQ(count(handle, c, rng), "") << c.describe();
            }
}

TEST(Count, PagesOfAnySize) {
    const Handle handle = make_handle();
    Rng rng(5);
    for (const int64_t page_size : {1, 2, 3, 7, 16, 63, 64, 65, 100, 256})
        for (const int64_t keys : {1, 64, 65, 130}) {
            Case c = counting_shape(3, 2, 4, keys);
            causal(c, FA_ALIGN_BOTTOM_RIGHT);
            paged(c, page_size);
            c.d.operands |= FA_OPERAND_SEQUSED_K;
            c.metadata.seqused_k = {int32_t(keys), int32_t(keys / 2), 0};
            ASSERT_EQ(count(handle, c, rng), "") << c.describe();
        }
}

TEST(Count, BooleanMaskAndMinusInfinityBias) {
    const Handle handle = make_handle();
    Rng rng(6);
    for (const double density : {0.0, 0.02, 0.5, 1.0})
        for (const bool by_bias : {false, true}) {
            Case c = counting_shape(2, 3, 70, 131);
            c.d.operands |= by_bias ? FA_OPERAND_BIAS : FA_OPERAND_MASK;
            dense_pairs(c.d, by_bias ? c.d.bias_stride : c.d.mask_stride);
            c.bind(rng);
            if (by_bias) c.set_bias([&](auto...) { return rng.chance(density) ? 0.0 : -INFINITY; });
            else c.set_mask([&](auto...) { return rng.chance(density); });
            ASSERT_EQ(count_bound(handle, c), "") << c.describe();
        }
}

// Kept weights are exactly 1 / (n (1 − p)), dropped ones exactly 0; the helper that is exported says the same.
TEST(Count, DropoutKeyByKey) {
    const Handle handle = make_handle();
    Rng rng(7);
    for (const float p : {0.1f, 0.5f, 0.875f}) {
        Case c = counting_shape(2, 3, 50, 131);
        c.d.dropout_p = p;
        c.a.dropout_seed = rng.bits(), c.a.dropout_offset = rng.bits();
        c.d.num_splits = 2;
        ASSERT_EQ(count(handle, c, rng), "") << c.describe();
        const oracle::Reading r = c.reading();
        std::vector<uint8_t> keep(size_t(50 * 131));
        for (int64_t bh = 0; bh < 6; bh++) {
            ASSERT_EQ(fa_dropout_mask(p, c.a.dropout_seed, c.a.dropout_offset, bh, 0, 50, 0, 131, keep.data()), FA_OK);
            for (int64_t i = 0; i < 50; i++)
                for (int64_t j = 0; j < 131; j++) ASSERT_EQ(keep[size_t(i * 131 + j)], r.kept(bh / 3, bh % 3, i, j));
        }
    }
}

TEST(Count, DropoutFarFromTheOrigin) {
    const uint64_t key = oracle::dropout_key(1, ~uint64_t(0));
    uint8_t keep[12];
    for (const int64_t bh : {int64_t(0), int64_t(1) << 31, (int64_t(1) << 32) + 5, int64_t(1) << 50})
        for (const int64_t row : {int64_t(0), int64_t(0x7ffffff0)})
            for (const int64_t first : {int64_t(0), int64_t(1), int64_t(0x7ffffff1)}) {
                ASSERT_EQ(fa_dropout_mask(0.5f, 1, ~uint64_t(0), bh, row, 2, first, 6, keep), FA_OK);
                for (int n = 0; n < 12; n++) ASSERT_EQ(keep[n], oracle::keeps(0.5f, key, bh, row + n / 6, first + n % 6));
            }
}

TEST(Count, ManyRows) {
    const Handle handle = make_handle();
    Rng rng(8);
    Case c = counting_shape(1, 1, 65537, 3);
    window(c, 65535, 0, FA_ALIGN_TOP_LEFT);
    EXPECT_EQ(count(handle, c, rng), "");
}

}  // namespace
}  // namespace test
