// Latent attention: v is the first dims of k, which is read where it lies.
#include <gtest/gtest.h>
#include "check/row_sets.h"

namespace test {
namespace {

// One key head of 576 dims, of which 512 are the values.
Case latent(const Shape& shape, int32_t q_dtype, int32_t k_dtype = 0) {
    Case c = shaped(shape, q_dtype);
    c.d.flags = FA_V_IN_K;
    c.d.k_dtype = k_dtype;
    return c;
}

TEST(Latent, DecodesFromPages) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16})
        for (const int64_t heads : {1, 16, 128})
            for (const int64_t rows : {1, 2}) {
                Rng rng(311);
                Case c = latent({2, heads, 1, rows, heads == 128 ? 70 : 200, 576, 512}, dtype);
                causal(c, FA_ALIGN_BOTTOM_RIGHT);
                c.d.operands |= FA_OPERAND_SEQUSED_K;
                c.metadata.seqused_k = {int32_t(c.d.seqlen_k), 33};
                paged(c, 64);
                c.bind(rng);
                c.fill_normal(rng);
                EXPECT_EQ(run_and_check(handle, c), "");
            }
}

TEST(Latent, Prefills) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_BF16}) {
        Rng rng(312);
        Case c = latent({1, 4, 1, 70, 90, 576, 512}, dtype);
        causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.bind(rng);
        c.fill_normal(rng);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

// Factors and blocks are k's: they are v's as well.
TEST(Latent, OfStoredTypes) {
    const Handle handle = make_handle();
    for (const int32_t k_dtype : {FA_E4M3, FA_I8, FA_Q8_0, FA_Q4_1}) {
        Rng rng(313);
        Case c = latent({2, 8, 2, 3, 150, 96, 64}, FA_BF16, k_dtype);
        if (oracle::elements_of(k_dtype) == 1) {
            c.d.operands |= FA_OPERAND_K_DESCALE;
            c.d.k_descale_stride[0] = 300, c.d.k_descale_stride[1] = 2, c.d.k_descale_stride[2] = 1;
        }
        c.bind(rng);
        c.fill_normal(rng);
        c.set_descales(rng, 0.5);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

// The same bits as with a v that lies in k by its strides, by the same kernel.
TEST(Latent, IsAViewOfK) {
    const Handle handle = make_handle();
    for (const int64_t rows : {1, 40})
        for (const int32_t dtype : {FA_F32, FA_BF16}) {
            Rng rng(314);
            Case c = latent({2, 6, 2, rows, 130, 80, 64}, dtype);
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            const std::vector<unsigned char> expected = bytes_of(c.o);
            const std::string kernel = kernel_name(handle, c.d, FA_OP_FORWARD);
            c.d.flags = 0, c.d.strided = FA_STRIDED_V;
            const auto& stride = c.reading().k_tensor.stride;
            for (size_t axis = 0; axis < 4; axis++) c.d.v_stride[axis] = stride[axis];
            c.a.v = c.a.k;
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            if (kernel == kernel_name(handle, c.d, FA_OP_FORWARD)) {
                EXPECT_EQ(bytes_of(c.o), expected);
            }
        }
}

// New tokens come as k alone.
TEST(Latent, GrowsByTokens) {
    const Handle handle = make_handle();
    Rng rng(315);
    Case c = latent({2, 16, 1, 1, 40, 576, 512}, FA_BF16);
    c.bind(rng);
    c.fill_normal(rng);
    const Buffer cache(c.k.bytes(), Buffer::Guard::after);
    fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
    a.k_new = c.k.as(), a.seqlen_new = c.d.seqlen_k, a.k = cache.as();
    fa_attention_desc_t d = c.d;
    d.operands = 0;
    ASSERT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
    EXPECT_EQ(bytes_of(cache), bytes_of(c.k));
    c.a.k = cache.as();
    EXPECT_EQ(run_and_check(handle, c), "");
}

}  // namespace
}  // namespace test
