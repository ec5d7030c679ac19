// Tensors that live inside each other, and the short call.
#include <gtest/gtest.h>
#include <cstring>
#include "support/shaped.h"

namespace test {
namespace {

// One [batch][rows][4][heads][dim] array holds q, k, v and o: slices that interleave and share no element.
TEST(Layout, InterleavedQkvo) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3}) {
        const int64_t batch = 2, rows = 70, heads = 3, dim = 10, size = oracle::size_of(dtype);
        Rng rng(151);
        Case c = shaped({batch, heads, heads, rows, rows, dim, dim}, dtype);
        causal(c, FA_ALIGN_TOP_LEFT);
        c.d.o_dtype = dtype;
        c.d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O;
        const int64_t stride[4] = {rows * 4 * heads * dim, 4 * heads * dim, dim, 1};
        for (int axis = 0; axis < 4; axis++)
            c.d.q_stride[axis] = c.d.k_stride[axis] = c.d.v_stride[axis] = c.d.o_stride[axis] = stride[axis];
        c.bind(rng);
        c.fill_normal(rng);
        const Buffer all(batch * stride[0] * size, Buffer::Guard::after);
        auto slice = [&](int64_t n) { return all.as<char>() + n * heads * dim * size; };
        for (int64_t at = 0; at + heads * dim <= c.reading().q_tensor.extent(); at += stride[1]) {
            memcpy(slice(0) + at * size, c.q.as<char>() + at * size, size_t(heads * dim * size));
            memcpy(slice(1) + at * size, c.k.as<char>() + at * size, size_t(heads * dim * size));
            memcpy(slice(2) + at * size, c.v.as<char>() + at * size, size_t(heads * dim * size));
        }
        c.a.q = slice(0), c.a.k = slice(1), c.a.v = slice(2), c.a.o = slice(3);
        ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
        const oracle::Reading r = c.reading();
        EXPECT_EQ(oracle::compare_o(r, oracle::attention(r), c.p_dtype).fault, "") << c.describe();
    }
}

TEST(Layout, ShortCallEqualsTheLongOne) {
    const Handle handle = make_handle();
    Rng rng(152);
    Case c = shaped({2, 4, 2, 33, 77, 24, 16}, FA_BF16);
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.d.operands = 0;
    c.bind(rng);
    c.fill_normal(rng);
    ASSERT_EQ(run_and_check(handle, c), "");
    const std::vector<unsigned char> expected = bytes_of(c.o);
    memset(c.o.as(), kPoison, size_t(c.o.bytes()));
    ASSERT_EQ(fa_forward(handle, &c.d, c.a.q, c.a.k, c.a.v, c.a.o), FA_OK);
    EXPECT_EQ(bytes_of(c.o), expected);
}

// Several sequences may read one sequence of a cache, each with its own length.
TEST(Layout, SharedCacheSequence) {
    const Handle handle = make_handle();
    Rng rng(153);
    Case c = shaped({3, 2, 1, 2, 90, 8, 8});
    c.d.operands |= FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K;
    c.d.kv_batch = 5;
    c.metadata.kv_batch_idx = {4, 4, 1}, c.metadata.seqused_k = {90, 31, 65}, c.metadata.leftpad_k = {0, 30, 1};
    c.bind(rng);
    c.fill_normal(rng);
    EXPECT_EQ(run_and_check(handle, c), "");
}

}  // namespace
}  // namespace test
