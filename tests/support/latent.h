// Latent attention over a cache of 8 bits: e4m3 with factors of blocks of dims, and a tail of bf16.
#pragma once
#include "support/shaped.h"

namespace test {

struct LatentForm {
    int64_t own, tail, dim_v, dims_of_factor;  // 0: one for a row
    int32_t factor_dtype;
};
inline Case latent_bytes(const LatentForm& form, int64_t batch, int64_t heads, int64_t rows, int64_t keys, int64_t heads_k = 1) {
    Case c = shaped({batch, heads, heads_k, rows, keys, form.own + form.tail, form.dim_v}, FA_BF16);
    c.d.flags = FA_V_IN_K, c.d.k_dtype = FA_E4M3, c.d.o_dtype = FA_BF16;
    c.d.operands |= FA_OPERAND_K_TAIL | FA_OPERAND_K_DESCALE;
    c.d.dim_tail = form.tail, c.d.k_tail_dtype = FA_BF16, c.d.k_descale_dtype = form.factor_dtype;
    c.d.k_descale_block[0] = 1, c.d.k_descale_block[1] = form.dims_of_factor;
    const int64_t parts = form.dims_of_factor ? (form.own + form.dims_of_factor - 1) / form.dims_of_factor : 1;
    int64_t (&stride)[4] = c.d.k_descale_stride;
    stride[3] = form.dims_of_factor ? 1 : 0, stride[2] = parts, stride[1] = heads_k * parts, stride[0] = keys * stride[1];
    return c;
}

// Tokens of 656 bytes: 512 of e4m3, four factors of f32, 64 dims of bf16. On the host each of the three lies where it would, in memory of
// its own.
constexpr int64_t kTokenDims = 512, kTokenFactorBytes = 16, kTokenBytes = kTokenDims + kTokenFactorBytes + 2 * 64;
inline bool has_whole_tokens(const fa_attention_desc_t& desc) {
    return desc.strided & FA_STRIDED_K_TAIL && desc.k_stride[1] == kTokenBytes && 2 * desc.k_tail_stride[1] == kTokenBytes &&
           4 * desc.k_descale_stride[1] == kTokenBytes;
}
// rows: of a sequence, or of a page.
inline void make_tokens_whole(Case& test_case, int64_t rows) {
    test_case.d.strided |= FA_STRIDED_K | FA_STRIDED_K_TAIL;
    const auto lay = [&](int64_t (&stride)[4], int64_t row) { stride[0] = rows * row, stride[1] = stride[2] = row, stride[3] = 1; };
    lay(test_case.d.k_stride, kTokenBytes), lay(test_case.d.k_tail_stride, kTokenBytes / 2),
        lay(test_case.d.k_descale_stride, kTokenBytes / 4);
}
}  // namespace test
