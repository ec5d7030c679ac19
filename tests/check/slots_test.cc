// Lists of slots: each block of rows attends the places of a paged cache that its list names, whoever's they are.
#include <gtest/gtest.h>
#include <algorithm>
#include <cstring>
#include "check/isa.h"
#include "check/row_sets.h"
#include "support/latent.h"

namespace test {
namespace {

class Slots : public testing::TestWithParam<int32_t> {};
INSTANTIATE_TEST_SUITE_P(Isa, Slots, testing::ValuesIn(isas_under_test()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// A list that says what a page table says has its bits.
TEST_P(Slots, OfAPageTableHaveItsBits) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t group : {1, 4}) {
            const Shape shape{2, 2 * group, 2, 1, 150, 32, 32};
            Case by_table = shaped(shape, dtype);
            paged(by_table, 16);
            by_table.d.num_splits = 1;
            Rng rng(7);
            by_table.bind(rng);
            by_table.fill_normal(rng);
            Case by_list = shaped(shape, dtype);
            by_list.d.num_splits = 1, by_list.d.seqlen_k = 0;
            want_slots(by_list.d, 16, by_table.d.num_pages, 1, 1, 160);
            by_list.bind(rng);
            for (const auto& [to, from] : {std::pair{&by_list.q, &by_table.q}, {&by_list.k, &by_table.k}, {&by_list.v, &by_table.v}})
                memcpy(to->as(), from->as(), size_t(from->bytes()));
            by_list.set_key_lists([&](int64_t b, int64_t, int64_t) {
                Case::Lists lists;
                for (int64_t j = 0; j < 150; j++)
                    lists.masked.push_back(by_table.metadata.page_table[size_t(b * 10 + j / 16)] * 16 + int32_t(j % 16));
                return lists;
            });
            ASSERT_EQ(run_and_check(handle, by_table), "");
            ASSERT_EQ(run_and_check(handle, by_list), "");
            if (kernel_name(handle, by_list.d, FA_OP_FORWARD) != kernel_name(handle, by_table.d, FA_OP_FORWARD)) continue;
            EXPECT_TRUE(bytes_of(by_list.o) == bytes_of(by_table.o)) << by_list.describe();
            EXPECT_TRUE(bytes_of(by_list.lse) == bytes_of(by_table.lse)) << by_list.describe();
        }
}

// Lists for each row and for blocks of rows, for each head, for those that share a kv head and for others; splits; entries of −1 anywhere.
TEST_P(Slots, AgreeWithTheOracle) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    const struct {
        Shape shape;
        int64_t page_size, rows, heads, most;
        int32_t dtype, splits;
    } calls[] = {{{2, 4, 2, 1, 0, 32, 32}, 16, 1, 1, 200, FA_F32, 1},   {{2, 4, 2, 3, 0, 32, 32}, 1, 1, 4, 50, FA_BF16, 0},
                 {{1, 6, 2, 40, 0, 32, 16}, 64, 16, 3, 70, FA_F32, 3},  {{1, 6, 2, 70, 0, 32, 32}, 5, 32, 6, 140, FA_BF16, 2},
                 {{2, 6, 1, 33, 0, 16, 16}, 300, 16, 2, 9, FA_F32, 1},  {{1, 12, 1, 20, 0, 64, 48}, 16, 1, 1, 128, FA_F16, 1},
                 {{1, 2, 1, 200, 0, 64, 64}, 64, 128, 1, 90, FA_F32, 0}};
    for (const auto& call : calls) {
        Case c = shaped(call.shape, call.dtype);
        c.d.num_splits = call.splits;
        c.d.operands |= FA_OPERAND_SINKS;
        want_slots(c.d, call.page_size, 300 / call.page_size, call.rows, call.heads, call.most);
        c = filled(c.d);
        const int64_t all = c.d.num_pages * c.d.page_size;
        for (int64_t h = 0; h < c.d.heads_q; h++) c.sinks.as<float>()[h] = float(h) - 2;
        c.set_key_lists([&](int64_t b, int64_t h, int64_t i) {
            const int64_t block = i / call.rows, first = b * 7 + h * call.heads / call.shape.heads_q * 31 + block * 5;
            Case::Lists lists;
            for (int64_t e = 0; e < call.most - block % 3; e++)
                lists.masked.push_back(e % 5 == block % 5 ? -1 : int32_t((first + 7 * e) % all));  // 7 divides no number of slots
            return lists;
        });
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

// Packed rows count as the tensor has them; rows without a slot have no output.
TEST_P(Slots, OfPackedRowsCountTheTensorsOwn) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    Case c = shaped({3, 2, 2, 48, 0, 16, 16});
    c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q;
    c.d.total_q = 100;
    c.metadata.cu_seqlens_q = {16, 32, 80, 96}, c.metadata.seqused_q = {9, 40, 16};
    want_slots(c.d, 8, 12, 16, 2, 20);
    Rng rng(7);
    c.bind(rng);
    c.fill_normal(rng);
    c.set_key_lists([](int64_t b, int64_t h, int64_t i) {
        Case::Lists lists;
        for (int64_t e = 0; e < 10 * (i / 16); e++) lists.masked.push_back(int32_t((b * 40 + h * 3 + 5 * e) % 96));
        return lists;
    });
    ASSERT_EQ(run_and_check(handle, c), "");
}

// What no list names does not show, however wrong it is: neither in the first slot, which stands for none, nor beside those that are named.
TEST_P(Slots, HideWhatTheyLeaveOut) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const int64_t rows : {1, 40}) {
            Case c = shaped({1, 2, 1, rows, 0, 32, 32}, dtype);
            want_slots(c.d, 16, 12, 16, 1, 100);
            c = filled(c.d);
            const auto named = [](int64_t slot) { return slot % 3 == 1; };
            const auto value = [&](int64_t, int64_t, int64_t j, int64_t) { return named(j) ? 0.01 * double(j % 64) : double(NAN); };
            c.set_k(value), c.set_v(value);
            c.set_key_lists([&](int64_t, int64_t, int64_t i) {
                if (i / 16 == 1) return Case::Lists{{-1, -1, -1}, {}};
                Case::Lists lists;
                for (int32_t slot = 191; slot >= 0; slot--) {
                    if (named(slot)) lists.masked.push_back(slot);
                    else if (slot % 7 == 0) lists.masked.push_back(-1);
                }
                lists.masked.resize(std::min<size_t>(lists.masked.size(), 100));
                return lists;
            });
            ASSERT_EQ(run_and_check(handle, c), "");
        }
}

// Latent decoding over tokens of 656 bytes (512 e4m3, 4 f32, 64 bf16), the best 70 of a cache for each row.
TEST(SlotsOfLatentTokens, AreGatheredFromRecords) {
    const Handle handle = make_handle();
    constexpr int64_t kTokens = 192, kHeads = 16;
    Case c = shaped({1, kHeads, 1, 2, 0, 576, 512}, FA_BF16);
    fa_attention_desc_t& d = c.d;
    d.flags = FA_V_IN_K, d.k_dtype = FA_E4M3, d.o_dtype = FA_F32, d.dim_tail = 64;
    d.operands |= FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE;
    d.strided = FA_STRIDED_K | FA_STRIDED_K_TAIL;
    d.k_stride[0] = 64 * 656, d.k_stride[1] = 656, d.k_stride[3] = 1;
    d.k_tail_stride[0] = 64 * 328, d.k_tail_stride[1] = 328, d.k_tail_stride[3] = 1;
    d.k_descale_stride[0] = 64 * 164, d.k_descale_stride[1] = 164, d.k_descale_stride[3] = 1;
    d.k_descale_block[1] = 128;
    want_slots(d, 64, kTokens / 64, 1, 1, 70);
    Rng rng(9);
    c.bind(rng);
    // One buffer has all three.
    const Buffer cache(kTokens * 656, Buffer::Guard::after);
    c.a.k = cache.as(), c.a.k_descale = cache.as<char>() + 512, c.a.k_tail = cache.as<char>() + 528;
    for (int64_t t = 0; t < kTokens; t++) {
        char* const token = cache.as<char>() + t * 656;
        for (int64_t e = 0; e < 512; e++) oracle::store(token, e, FA_E4M3, rng.normal());
        for (int64_t e = 0; e < 4; e++) oracle::store(token + 512, e, FA_F32, rng.uniform(0.5, 2));
        for (int64_t e = 0; e < 64; e++) oracle::store(token + 528, e, FA_BF16, rng.normal());
    }
    c.set_q([&](int64_t, int64_t, int64_t, int64_t) { return 0.3 * rng.normal(); });
    c.set_key_lists([](int64_t, int64_t, int64_t i) {
        Case::Lists lists;
        for (int64_t e = 0; e < 70; e++) lists.masked.push_back(int32_t((i * 50 + 11 * e) % kTokens));
        return lists;
    });
    ASSERT_EQ(run_and_check(handle, c), "");
}

// The best 150 of a cache for each row, of q's type and of 8 bits: what is gathered is all there is, whatever lies beside it.
TEST(SlotsOfLatentRows, AreGathered) {
    const Handle handle = make_handle();
    Rng rng(10);
    enum { like_q, bytes, mixed };
    for (const int kind : {like_q, bytes, mixed})
        for (const auto& [heads, page_size] : {std::pair<int64_t, int64_t>{16, 64}, {72, 5}}) {
            const LatentForm form = kind == bytes ? LatentForm{512, 64, 512, 128, FA_E8M0} : LatentForm{448, 64, 512, 64, FA_E8M0};
            Case c = kind == like_q ? shaped({2, heads, 1, 3, 0, 576, 512}, FA_BF16) : latent_bytes(form, 2, heads, 3, 0);
            c.d.flags = FA_V_IN_K;
            want_slots(c.d, page_size, 320 / page_size, 1, 1, 150);
            if (kind != like_q) {
                int64_t (&stride)[4] = c.d.k_descale_stride;
                stride[2] = 0, stride[1] = 8, stride[0] = 8 * page_size;  // whole words
            }
            char text[512] = "";
            ASSERT_EQ(fa_explain(handle, &c.d, FA_OP_FORWARD, text, sizeof text), FA_OK) << handle.error();
            if (strstr(text, "(sm_90)")) {
                EXPECT_NE(strstr(text, kind == like_q                 ? "latent_rows"
                                       : kind == mixed && heads <= 32 ? "latent_tokens"
                                                                      : "latent_bytes"),
                          nullptr)
                    << text;
            }
            c.bind(rng);
            c.fill_normal(rng);
            if (kind != like_q) c.set_descales(rng, 0.5);
            const auto named = [](int64_t slot) { return slot % 2 == 1; };
            for (int64_t slot = 0; slot < c.d.num_pages * page_size; slot++) {
                if (!named(slot))
                    memset(c.k.as<char>() + slot * (kind == like_q ? 576 * 2 : form.own), 0xff,
                           size_t(kind == like_q ? 576 * 2 : form.own));  // NaN
            }
            c.set_key_lists([&](int64_t b, int64_t, int64_t i) {
                Case::Lists lists;
                for (int64_t e = 0; e < 150 - 70 * (i % 2); e++)
                    lists.masked.push_back(e % 11 == 5 && b == 1 ? -1 : int32_t((b * 50 + i * 7 + 11 * e) % 160) * 2 + 1);
                return lists;
            });
            ASSERT_EQ(run_and_check(handle, c), "");
        }
}

// Work follows the entries, not the cache.
TEST(SlotsCost, TheRestOfTheCacheCostsNothing) {
    if (!testing_the_cpu()) GTEST_SKIP() << "the CPU backend counts";
    const Handle handle = make_handle();
    ASSERT_TRUE(handle.set(FA_PARAM_COUNT_WORK, 1));
    Case c = shaped({1, 1, 1, 1, 0, 8, 8});
    want_slots(c.d, 64, 100, 1, 1, 128);
    c = filled(c.d);
    c.set_key_lists([](int64_t, int64_t, int64_t) {
        Case::Lists lists;
        for (int32_t e = 0; e < 128; e++) lists.masked.push_back(e < 64 ? 50 * e : -1);
        return lists;
    });
    ASSERT_EQ(run_and_check(handle, c), "");
    EXPECT_EQ(handle.get(FA_STAT_FLOPS), 2 * 64 * (8 + 8));
}

// Entries that name no slot are refused where the library can read them, and skipped by a GPU.
TEST(SlotsBeyondTheCache, AreRefusedOrSkipped) {
    const Handle handle = make_handle();
    for (const int32_t wrong : {32, INT32_MAX, -2}) {
        Case c = shaped({1, 1, 1, 1, 0, 16, 16});
        want_slots(c.d, 16, 2, 1, 1, 3);
        c = filled(c.d);
        c.set_key_lists([](int64_t, int64_t, int64_t) { return Case::Lists{{3, -1, 20}, {}}; });
        ASSERT_EQ(run_and_check(handle, c), "");
        const auto right = bytes_of(c.o);
        c.key_list.as<int32_t>()[1] = wrong;
        const fa_status_t status = c.run(handle);
        if (testing_the_cpu()) EXPECT_EQ(status, FA_INVALID_ARGUMENT);
        else EXPECT_TRUE(status == FA_INVALID_ARGUMENT || (status == FA_OK && bytes_of(c.o) == right)) << handle.error();
    }
}

}  // namespace
}  // namespace test
