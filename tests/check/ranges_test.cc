// Key ranges: what bands or packed sequences say too must come out the same, and tiles of keys that nobody sees cost nothing.
#include <gtest/gtest.h>
#include <cstring>
#include "check/isa.h"
#include "check/row_sets.h"
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

class Ranges : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Isa, Ranges, testing::ValuesIn(isas_under_test()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// The kernel's name, as fa_explain has it.
std::string kernel_of(const Handle& handle, const fa_attention_desc_t& desc, int32_t op) {
    char text[FA_TEXT_MAX];
    EXPECT_EQ(fa_explain(handle, &desc, op, text, sizeof text), FA_OK) << handle.error();
    const std::string words = text;
    const size_t at = words.find("kernel ");
    return words.substr(at, words.find_first_of(" ,", at + strlen("kernel ")) - at);
}

void want_ranges(Case& test_case, int64_t intervals) {
    test_case.d.operands |= FA_OPERAND_KEY_RANGES;
    test_case.d.key_range_max = intervals;
    test_case.d.key_range_stride[3] = 1, test_case.d.key_range_stride[2] = intervals;
}

using Intervals = std::vector<int32_t> (*)(int64_t row, int64_t off);
Case with_ranges(Case test_case, int64_t intervals, Intervals row, int64_t off) {
    want_ranges(test_case, intervals);
    Rng rng(7);
    test_case.bind(rng);
    test_case.fill_normal(rng);
    test_case.set_key_ranges([&](int64_t, int64_t, int64_t i) { return row(i, off); });
    return test_case;
}
// A band said by ranges gives the bits of the band, where both take one kernel.
void expect_bits_of_band(const Handle& handle, const fa_attention_desc_t& band, int64_t intervals, Intervals row, int64_t off,
                         bool backward) {
    Case plain = shaped({band.batch, band.heads_q, band.heads_k, band.seqlen_q, band.seqlen_k, band.dim_qk, band.dim_v}, band.q_dtype);
    plain.d.num_splits = band.num_splits;
    Case said = with_ranges(std::move(plain), intervals, row, off), built_in = filled(band);
    ASSERT_EQ(run_and_check(handle, said), "");
    ASSERT_EQ(run_and_check(handle, built_in), "");
    if (kernel_of(handle, said.d, FA_OP_FORWARD) == kernel_of(handle, built_in.d, FA_OP_FORWARD)) {
        EXPECT_TRUE(bytes_of(said.o) == bytes_of(built_in.o)) << said.describe();
        EXPECT_TRUE(bytes_of(said.lse) == bytes_of(built_in.lse)) << said.describe();
    }
    if (!backward || kernel_of(handle, said.d, FA_OP_BACKWARD) != kernel_of(handle, built_in.d, FA_OP_BACKWARD)) return;
    EXPECT_TRUE(gradients(handle, std::move(said)) == gradients(handle, std::move(built_in)));
}

TEST_P(Ranges, OfACausalMaskHaveItsBits) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    const struct {
        Shape shape;
        int32_t splits;
    } calls[] = {
        {{2, 4, 2, 150, 300, 24, 16}, 1}, {{1, 2, 2, 70, 331, 64, 64}, 3}, {{2, 6, 2, 1, 300, 32, 32}, 2}, {{1, 4, 1, 3, 500, 64, 32}, 1}};
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const auto& call : calls) {
            Case c = shaped(call.shape, dtype);
            c.d.num_splits = call.splits;
            causal(c, FA_ALIGN_BOTTOM_RIGHT);
            const int64_t off = call.shape.keys - call.shape.rows;
            expect_bits_of_band(
                handle, c.d, 1, [](int64_t i, int64_t o) { return std::vector<int32_t>{0, int32_t(i + o + 1)}; }, off, true);
            // The same in pieces that touch, with an empty one between.
            expect_bits_of_band(
                handle, c.d, 3,
                [](int64_t i, int64_t o) { return std::vector<int32_t>{-9, int32_t(o), 5, 5, int32_t(o), int32_t(i + o + 1)}; }, off, true);
            window(c, 40, 0, FA_ALIGN_BOTTOM_RIGHT);
            expect_bits_of_band(
                handle, c.d, 1, [](int64_t i, int64_t o) { return std::vector<int32_t>{int32_t(i + o - 40), int32_t(i + o + 1)}; }, off,
                false);
        }
}

constexpr int64_t kDocument = 128, kDocuments = 5;

// Documents one behind the other are packed sequences, to the bit where they begin with whole tiles of keys.
TEST_P(Ranges, OfDocumentsArePackedSequences) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Case said = shaped({1, 4, 2, kDocument * kDocuments, kDocument * kDocuments, 64, 32}, dtype);
        said.d.num_splits = 1;
        said = with_ranges(
            std::move(said), 1, [](int64_t i, int64_t) { return std::vector<int32_t>{int32_t(i / kDocument * kDocument), int32_t(i + 1)}; },
            0);
        Case packed = shaped({kDocuments, 4, 2, kDocument, kDocument, 64, 32}, dtype);
        packed.d.num_splits = 1;
        packed.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
        packed.d.total_q = packed.d.total_k = kDocument * kDocuments;
        for (int64_t b = 0; b <= kDocuments; b++)
            packed.metadata.cu_seqlens_q.push_back(int32_t(b * kDocument)), packed.metadata.cu_seqlens_k.push_back(int32_t(b * kDocument));
        causal(packed, FA_ALIGN_TOP_LEFT);
        Rng rng(7);
        packed.bind(rng);
        for (auto buffer : {&Case::q, &Case::k, &Case::v})
            memcpy((packed.*buffer).as(), (said.*buffer).as(), size_t((said.*buffer).bytes()));
        ASSERT_EQ(run_and_check(handle, said), "");
        ASSERT_EQ(run_and_check(handle, packed), "");
        if (kernel_of(handle, said.d, FA_OP_FORWARD) != kernel_of(handle, packed.d, FA_OP_FORWARD)) continue;
        EXPECT_TRUE(bytes_of(said.o) == bytes_of(packed.o)) << isa_name(GetParam());
    }
}

constexpr int64_t kSinks = 4, kWindow = 64;

// Sinks beside a window: keys between are not visited, however many there are.
TEST(RangesCost, UnseenTilesCostNothing) {
    if (!testing_the_cpu()) GTEST_SKIP() << "the CPU backend counts";
    const Handle handle = make_handle();
    ASSERT_TRUE(handle.set(FA_PARAM_COUNT_WORK, 1));
    constexpr int64_t rows = 640;
    Case c = shaped({1, 1, 1, rows, rows, 16, 16});
    c.d.num_splits = 1;
    c = with_ranges(
        std::move(c), 2,
        [](int64_t i, int64_t) {
            const int64_t sinks = std::min(kSinks, i + 1);
            return std::vector<int32_t>{0, int32_t(sinks), int32_t(std::max(i + 1 - kWindow, sinks)), int32_t(i + 1)};
        },
        0);
    ASSERT_EQ(run_and_check(handle, c), "");
    // Two of the window's tiles and the sinks' for each tile of rows, in products of 2 · (16 + 16) operations a pair.
    const int64_t tile_rows = handle.get(FA_STAT_TILE_ROWS), tile_keys = handle.get(FA_STAT_TILE_KEYS);
    const int64_t tiles = (tile_rows + kWindow + tile_keys - 1) / tile_keys + 2;
    EXPECT_LE(handle.get(FA_STAT_FLOPS), rows * tiles * tile_keys * 2 * 32);
    EXPECT_LT(handle.get(FA_STAT_FLOPS), rows * rows * 2 * 32 / 2);
}

// A row whose ranges hold no key has no output; NaN in keys that no range holds does not show.
TEST_P(Ranges, HideWhatTheyLeaveOut) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    const struct {
        int32_t dtype, algorithm;
        int64_t rows;
    } calls[] = {{FA_F32, 0, 1},
                 {FA_F32, 0, 3},
                 {FA_F32, 0, 40},
                 {FA_BF16, 0, 1},
                 {FA_BF16, 0, 3},
                 {FA_BF16, 0, 40},
                 {FA_F32, FA_ALGORITHM_STANDARD, 40},
                 {FA_F32, FA_ALGORITHM_FLASH1, 40}};
    for (const auto& call : calls) {
        Case c = shaped({1, 2, 1, call.rows, 200, 32, 32}, call.dtype);
        c.d.algorithm = call.algorithm;
        c = with_ranges(
            std::move(c), 2,
            [](int64_t i, int64_t) {
                return i % 3 == 1 ? std::vector<int32_t>{190, 17, 300, 400} : std::vector<int32_t>{int32_t(i), 20, 130, int32_t(131 + i)};
            },
            0);
        c.set_k([](int64_t, int64_t, int64_t j, int64_t) { return j >= 60 && j < 128 ? double(NAN) : 0.01 * double(j); });
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

}  // namespace
}  // namespace test
