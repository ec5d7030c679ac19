// Lists of single keys, and of slots, that the query heads of a kv head share: kernels of matrix units gather what a row's list names.
#include <gtest/gtest.h>
#include <algorithm>
#include <numeric>
#include "support/shaped.h"

namespace test {
namespace {

class GatheredLists : public testing::TestWithParam<int32_t> {
  protected:
    const Handle handle = make_handle();
    Rng rng{derive(331, uint64_t(GetParam()))};

    // Dense over (batch, list head, block of rows, entry).
    static void want_keys(fa_attention_desc_t& desc, int64_t rows, int64_t heads, int64_t most) {
        desc.operands |= FA_OPERAND_KEY_LIST | FA_OPERAND_KEY_LIST_COUNT;
        desc.list_rows = rows, desc.list_heads = heads, desc.list_max = most;
        const bool packed = desc.operands & FA_OPERAND_CU_SEQLENS_Q;
        const int64_t blocks = ((packed ? desc.total_q : desc.seqlen_q) + rows - 1) / rows;
        desc.list_stride[3] = 1, desc.list_stride[2] = most, desc.list_stride[1] = blocks * most,
        desc.list_stride[0] = packed ? 0 : heads * blocks * most;
        desc.list_count_stride[2] = 1, desc.list_count_stride[1] = blocks, desc.list_count_stride[0] = packed ? 0 : heads * blocks;
    }
    // Different keys of so many, in any order, some of them beyond a shorter sequence's end, and −1 between them. Some lists are empty.
    std::string check(Case test_case, int64_t keys) {
        test_case.bind(rng);
        test_case.fill_normal(rng);
        for (int64_t h = 0; h < test_case.sinks.bytes() / 4; h++) test_case.sinks.as<float>()[h] = float(rng.normal());
        const int64_t size = std::max<int64_t>(test_case.d.list_keys, 1), blocks = (keys + size - 1) / size;
        test_case.set_key_lists([&](int64_t, int64_t, int64_t) {
            std::vector<int32_t> all(static_cast<size_t>(blocks)), full;
            std::iota(all.begin(), all.end(), 0);
            for (size_t n = 0; n + 1 < all.size(); n++) std::swap(all[n], all[n + size_t(rng.bits() % (all.size() - n))]);
            all.resize(rng.chance(0.1) ? 0 : std::min(all.size(), size_t(test_case.d.list_max)));
            for (int32_t& entry : all)
                if (rng.chance(0.1)) entry = -1;
            if (test_case.d.operands & FA_OPERAND_FULL_LIST)
                for (; all.size() > 1 && rng.chance(0.6); all.pop_back()) full.push_back(all.back());
            return Case::Lists{all, full};
        });
        char text[512] = "";
        const bool explained = fa_explain(handle, &test_case.d, FA_OP_FORWARD, text, sizeof text) == FA_OK;
        const bool gathers = strstr(text, "fwd_mma_") || strstr(text, "_list_");  // where rows are many, Hopper has kernels for blocks
        if (!testing_the_cpu() && (!explained || !gathers)) return std::string(text) + handle.error();
        return run_and_check(handle, test_case);
    }
};
INSTANTIATE_TEST_SUITE_P(Types, GatheredLists, testing::Values(FA_F16, FA_BF16),
                         [](const auto& info) { return std::string(oracle::name_of(info.param)); });

TEST_P(GatheredLists, OfKeys) {
    for (const int64_t dim : {64, 80, 128, 256})
        for (const int64_t group : {1, 4, 12})
            for (const int64_t most : {1, 70, 200}) {
                const int64_t rows = rng.pick<int64_t>({1, 3, 33}), shared = rng.pick<int64_t>({1, 16}), heads = rng.pick<int64_t>({1, 2});
                if (dim == 256 && rows * group > 40) continue;
                Case c = shaped({2, 2 * group, 2, rows, 230, dim, rng.chance(0.7) ? dim : 48}, GetParam());
                want_keys(c.d, shared, heads, most);
                c.d.num_splits = rng.pick<int32_t>({0, 1, 3});
                if (rng.chance(0.3)) c.d.o_dtype = FA_F32;
                ASSERT_EQ(check(std::move(c), 230), "") << dim << ", group " << group << ", " << most << " entries";
            }
}

TEST_P(GatheredLists, OfSlots) {
    for (const int64_t dim : {64, 128, 256})
        for (const int64_t group : {1, 8})
            for (const int64_t page : {1, 16}) {
                Case c = shaped({2, 2 * group, 2, rng.pick<int64_t>({1, 3, 20}), 0, dim, dim}, GetParam());
                c.d.list_space = FA_LIST_SLOTS, c.d.page_size = page, c.d.num_pages = 320 / page;
                want_keys(c.d, rng.pick<int64_t>({1, 16}), rng.pick<int64_t>({1, 2}), 130);
                c.d.num_splits = rng.pick<int32_t>({0, 1, 3});
                ASSERT_EQ(check(std::move(c), 320), "") << dim << ", group " << group << ", pages of " << page;
            }
}

// Blocks of keys, some of them where masks do not act: bands, softcap, rows of several lists, pages, splits; each block once, and −1.
TEST_P(GatheredLists, OfBlocks) {
    for (const int64_t dim : {64, 128})
        for (const int64_t group : {1, 4})
            for (const int mask : {0, 1, 2, 3}) {
                const int64_t rows = rng.pick<int64_t>({1, 40, 150}), keys = 500, size = dim == 64 ? 128 : rng.pick<int64_t>({64, 128}),
                              blocks = (keys + size - 1) / size;
                if (rows * group > 400) continue;
                Case c = shaped({2, 2 * group, 2, rows, keys, dim, dim}, GetParam());
                if (mask == 1) causal(c, FA_ALIGN_BOTTOM_RIGHT);
                if (mask == 2) window(c, 200, 10, FA_ALIGN_BOTTOM_RIGHT);
                if (mask == 3) c.d.softcap = 4;
                if (rng.chance(0.3)) paged(c, 16);
                want_keys(c.d, rng.pick<int64_t>({16, 128}), rng.pick<int64_t>({1, 2}), blocks);
                c.d.list_keys = size;
                if (rng.chance(0.8)) c.d.operands |= FA_OPERAND_FULL_LIST | FA_OPERAND_FULL_LIST_COUNT;
                c.d.num_splits = rng.pick<int32_t>({0, 1, 3});
                ASSERT_EQ(check(std::move(c), keys), "") << dim << ", group " << group << ", mask " << mask;
            }
}

// Pages, packed sequences, sequences of a cache, lengths, padding; sinks; rows that do not begin with whole vectors.
TEST_P(GatheredLists, Layouts) {
    for (const int layout : {0, 1, 2, 3, 4, 5})
        for (const int64_t rows : {1, 20}) {
            Case c = shaped({3, 4, 2, rows, 90, 64, 64}, GetParam());
            if (layout == 0) paged(c, 16);
            if (layout == 1) {
                c.d.operands |= FA_OPERAND_CU_SEQLENS_K;
                c.metadata.cu_seqlens_k = {0, 3, 93, 160};
                c.d.total_k = 160;
            }
            if (layout == 2) {
                c.d.operands |= FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_LEFTPAD_K;
                c.d.kv_batch = 4;
                c.metadata.kv_batch_idx = {3, 0, 2};
                c.metadata.leftpad_k = {0, 7, 33};
            }
            if (layout == 3) {
                c.d.operands |= FA_OPERAND_SEQUSED_K | FA_OPERAND_SINKS;
                c.metadata.seqused_k = {90, 0, 41};
            }
            if (layout == 4) {
                c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_SEQUSED_Q;
                c.d.seqlen_q = 48, c.d.total_q = 100;
                c.metadata.cu_seqlens_q = {16, 32, 80, 96}, c.metadata.seqused_q = {9, 40, 16};
            }
            if (layout == 5) {
                c.d.strided = FA_STRIDED_K | FA_STRIDED_V;
                const int64_t stride[] = {90 * 129, 129, 64, 1};
                std::copy_n(stride, 4, c.d.k_stride), std::copy_n(stride, 4, c.d.v_stride);
            }
            want_keys(c.d, layout == 4 ? 16 : rng.pick<int64_t>({1, 16}), 2, 60);
            ASSERT_EQ(check(std::move(c), 90), "") << layout;
        }
}

}  // namespace
}  // namespace test
