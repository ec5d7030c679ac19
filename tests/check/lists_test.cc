// Lists of keys: a block mask that says what a band says has its bits, absent blocks cost nothing, and rows, heads and sequences find their
// own.
#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include <numeric>
#include "check/isa.h"
#include "check/row_sets.h"
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

class Lists : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Isa, Lists, testing::ValuesIn(isas_under_test()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// Both lists with their counts, dense over (batch, list head, block of rows, entry).
void want_lists(Case& test_case, int64_t rows, int64_t keys, int64_t heads, int64_t most) {
    test_case.d.operands |= FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT | FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT;
    test_case.d.list_rows = rows, test_case.d.list_keys = keys, test_case.d.list_heads = heads, test_case.d.list_max = most;
    const bool packed = test_case.d.operands & FA_OPERAND_CU_SEQLENS_Q;
    const int64_t blocks = ((packed ? test_case.d.total_q : test_case.d.seqlen_q) + rows - 1) / rows;
    test_case.d.list_stride[3] = 1, test_case.d.list_stride[2] = most, test_case.d.list_stride[1] = blocks * most;
    test_case.d.list_stride[0] = packed ? 0 : heads * blocks * most;
    test_case.d.list_count_stride[2] = 1, test_case.d.list_count_stride[1] = blocks,
    test_case.d.list_count_stride[0] = packed ? 0 : heads * blocks;
}

// FlexAttention's way to say causal: full blocks below the diagonal, the mask in those on it, nothing above.
TEST_P(Lists, OfACausalMaskHaveItsBits) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t block : {16, 64, 128}) {
            Case plain = shaped({2, 4, 2, 300, 300, 64, 32}, dtype);
            causal(plain, FA_ALIGN_TOP_LEFT);
            plain.d.num_splits = 1;
            const fa_attention_desc_t built_in = plain.d;
            const int64_t blocks = (300 + block - 1) / block;
            want_lists(plain, block, block, 2, blocks);
            Case said = filled(plain.d), of_mask = filled(built_in);
            said.set_key_lists([&](int64_t, int64_t, int64_t i) {
                std::vector<int32_t> full(size_t(i / block));
                std::iota(full.rbegin(), full.rend(), 0);  // in any order
                return Case::Lists{{int32_t(i / block)}, full};
            });
            ASSERT_EQ(run_and_check(handle, said), "");
            ASSERT_EQ(run_and_check(handle, of_mask), "");
            if (kernel_name(handle, said.d, FA_OP_FORWARD) == kernel_name(handle, built_in, FA_OP_FORWARD)) {
                EXPECT_TRUE(bytes_of(said.o) == bytes_of(of_mask.o)) << said.describe();
                EXPECT_TRUE(bytes_of(said.lse) == bytes_of(of_mask.lse)) << said.describe();
            }
            if (kernel_name(handle, said.d, FA_OP_BACKWARD) != kernel_name(handle, built_in, FA_OP_BACKWARD)) continue;
            EXPECT_TRUE(gradients(handle, std::move(said)) == gradients(handle, std::move(of_mask)));
        }
}

// Few rows, many; heads with lists of their own; single keys for single rows; blocks of keys for each row.
TEST_P(Lists, AgreeWithTheOracle) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    const struct {
        Shape shape;
        int64_t rows, keys, heads, most;
        int32_t dtype;
    } calls[] = {{{2, 4, 2, 1, 400, 32, 32}, 1, 1, 1, 50, FA_F32},    {{2, 4, 2, 1, 400, 32, 32}, 1, 1, 4, 50, FA_BF16},
                 {{1, 6, 2, 40, 300, 32, 16}, 1, 16, 3, 6, FA_F32},   {{1, 6, 2, 70, 300, 32, 32}, 16, 64, 6, 4, FA_BF16},
                 {{2, 2, 2, 150, 200, 16, 16}, 48, 48, 1, 3, FA_F32}, {{1, 2, 1, 200, 1000, 64, 64}, 128, 128, 1, 4, FA_BF16}};
    for (const auto& call : calls)
        for (const bool masked : {false, true}) {
            Case c = shaped(call.shape, call.dtype);
            if (masked) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            want_lists(c, call.rows, call.keys, call.heads, call.most);
            c = filled(c.d);
            const int64_t blocks = (call.shape.keys + call.keys - 1) / call.keys;
            c.set_key_lists([&](int64_t b, int64_t h, int64_t i) {
                Case::Lists lists;
                const int64_t first = b * 7 + h * call.heads / call.shape.heads_q * 3 + i / call.rows * 5;
                for (int64_t e = 0; e < call.most && 2 * e + 1 < blocks; e++) {
                    lists.masked.push_back(e % 4 == 3 ? -1 : int32_t((first + 2 * e) % blocks / 2 * 2));
                    const int32_t full = int32_t((first + 2 * e) % (blocks - 1) / 2 * 2 + 1);
                    if (e % 3 != 1 && std::count(lists.full.begin(), lists.full.end(), full) == 0) lists.full.push_back(full);  // each once
                }
                return lists;
            });
            ASSERT_EQ(run_and_check(handle, c), "");
        }
}

// Packed sequences begin with blocks of rows, and have gaps behind them.
TEST(ListsOfPackedRows, CountTheTensorsOwn) {
    const Handle handle = make_handle();
    Case c = shaped({3, 2, 2, 48, 90, 16, 16});
    c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q;
    c.d.total_q = 100;
    c.metadata.cu_seqlens_q = {16, 32, 80, 96}, c.metadata.seqused_q = {9, 40, 16};
    want_lists(c, 16, 16, 2, 3);
    Rng rng(7);
    c.bind(rng);
    c.fill_normal(rng);
    c.set_key_lists(
        [](int64_t b, int64_t h, int64_t i) { return Case::Lists{{int32_t(b), int32_t(h + 2)}, {int32_t(4 + (i / 16 + b) % 2)}}; });
    ASSERT_EQ(run_and_check(handle, c), "");
}

// A tenth of the blocks: at most an eighth of the work.
TEST(ListsCost, AbsentBlocksCostNothing) {
    if (!testing_the_cpu()) GTEST_SKIP() << "the CPU backend counts";
    const Handle handle = make_handle();
    ASSERT_TRUE(handle.set(FA_PARAM_COUNT_WORK, 1));
    const int64_t block = 16 * handle.get(FA_STAT_TILE_ROWS), blocks = 10, n = block * blocks, keys = 64 * blocks;
    Case dense = shaped({1, 1, 1, n, keys, 8, 8});
    dense.d.num_splits = 1;
    Case c = filled(dense.d);
    ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
    const int64_t all = handle.get(FA_STAT_FLOPS);
    want_lists(dense, block, 64, 1, 1);
    c = filled(dense.d);
    c.set_key_lists([&](int64_t, int64_t, int64_t i) {
        const int32_t own = int32_t(i / block * 7 % blocks);
        return i / block % 2 ? Case::Lists{{own}, {}} : Case::Lists{{}, {own}};
    });
    ASSERT_EQ(run_and_check(handle, c, 37), "");
    EXPECT_LE(handle.get(FA_STAT_FLOPS) * 8, all);
    EXPECT_GE(handle.get(FA_STAT_FLOPS) * 10, all);
}

// Rows without an entry have no output, and NaN in blocks that no list names does not show.
TEST_P(Lists, HideWhatTheyLeaveOut) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t rows : {1, 40}) {
            Case c = shaped({1, 2, 1, rows, 640, 32, 32}, dtype);
            want_lists(c, 16, 64, 1, 2);
            c = filled(c.d);
            c.set_key_lists([](int64_t, int64_t, int64_t i) { return i / 16 == 1 ? Case::Lists{{-1}, {}} : Case::Lists{{0, 7}, {4}}; });
            c.set_k([](int64_t, int64_t, int64_t j, int64_t) { return j >= 64 && j < 256 ? double(NAN) : 0.01 * double(j % 64); });
            ASSERT_EQ(run_and_check(handle, c), "");
        }
}

}  // namespace
}  // namespace test
