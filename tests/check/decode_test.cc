// Decoding token by token must say what one prefill says: append with rotation, rotate q, attend, one row at a time.
#include <gtest/gtest.h>
#include "support/shaped.h"
#include "support/writes.h"

namespace test {
namespace {

constexpr int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kTokens = 83, kDim = 24, kDimV = 20;

struct Form {
    int32_t dtype, k_dtype;
    int64_t page_size;  // 0: none
    bool left_padding, interleaved;
};

// A cache, its tokens, and both ways through it.
class Conversation {
  public:
    Conversation(const Form& form, const Handle& handle) : form(form), handle(handle), rng(91), angles(rng, kTokens, kDim) {
        d.q_dtype = form.dtype, d.k_dtype = form.k_dtype;
        d.batch = kBatch, d.heads_q = kHeads, d.heads_k = kKvHeads, d.dim_qk = kDim, d.dim_v = kDimV;
        d.flags = FA_CAUSAL, d.alignment = FA_ALIGN_BOTTOM_RIGHT, d.o_dtype = FA_F32;
        d.operands = FA_OPERAND_SEQUSED_K | (form.left_padding ? FA_OPERAND_LEFTPAD_K : 0);
        d.seqlen_k = kTokens + (form.left_padding ? 5 : 0);
        if (form.page_size > 0) {
            d.operands |= FA_OPERAND_PAGE_TABLE;
            d.page_size = form.page_size;
            d.num_pages = kBatch * ((d.seqlen_k + d.page_size - 1) / d.page_size);
            table.resize(size_t(d.num_pages));
            for (size_t n = 0; n < table.size(); n++) table[n] = int32_t(table.size() - 1 - n);
        }
        const int64_t size = oracle::size_of(form.dtype);
        q = normal(kBatch * kTokens * kHeads * kDim, size), k_new = normal(kBatch * kTokens * kKvHeads * kDim, size);
        v_new = normal(kBatch * kTokens * kKvHeads * kDimV, size);
        const oracle::Reading r(d, FA_FORWARD_ARGS_INIT);
        k = Buffer(r.k_tensor.extent() * oracle::size_of(r.k_dtype), Buffer::Guard::after);
        v = Buffer(r.v_tensor.extent() * oracle::size_of(r.k_dtype), Buffer::Guard::after);
    }

    bool rounded = false;  // the weights of some step, to fewer bits than f32 has

    // Tokens [first, first + count): into the cache, then their rows of o.
    void step(int64_t first, int64_t count, std::vector<float>& o) {
        append(first, count);
        const Buffer turned = rotate(first, count);
        attend(first, count, turned, o);
    }

    std::vector<unsigned char> cache() const {
        std::vector<unsigned char> all = bytes_of(k);
        const std::vector<unsigned char> values = bytes_of(v);
        all.insert(all.end(), values.begin(), values.end());
        return all;
    }

  private:
    Form form;
    const Handle& handle;
    Rng rng;
    Angles angles;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    std::vector<int32_t> table;
    Buffer q, k_new, v_new, k, v;

    Buffer normal(int64_t count, int64_t size) {
        Buffer buffer(count * size, Buffer::Guard::after);
        for (int64_t n = 0; n < count; n++) oracle::store(buffer.as(), n, form.dtype, rng.normal());
        return buffer;
    }
    const void* token(const Buffer& all, int64_t first, int64_t row) const {
        return all.as<char>() + first * row * oracle::size_of(form.dtype);
    }
    int32_t padding(int64_t b) const { return form.left_padding ? int32_t(2 + 3 * b) : 0; }
    std::vector<int32_t> lengths(int64_t tokens) const { return {int32_t(tokens) + padding(0), int32_t(tokens) + padding(1)}; }

    void append(int64_t first, int64_t count) {
        const std::vector<int32_t> used = lengths(first), left = {padding(0), padding(1)};
        fa_append_kv_args_t a = FA_APPEND_KV_ARGS_INIT;
        a.flags = form.interleaved ? FA_ROTARY_INTERLEAVED : 0;
        a.k_new = token(k_new, first, kKvHeads * kDim), a.v_new = token(v_new, first, kKvHeads * kDimV), a.seqlen_new = count;
        a.k_new_stride[0] = kTokens * kKvHeads * kDim, a.k_new_stride[1] = kKvHeads * kDim, a.k_new_stride[2] = kDim, a.k_new_stride[3] = 1;
        a.v_new_stride[0] = kTokens * kKvHeads * kDimV, a.v_new_stride[1] = kKvHeads * kDimV, a.v_new_stride[2] = kDimV,
        a.v_new_stride[3] = 1;
        a.k = k.as(), a.v = v.as(), a.seqused_k = used.data();
        if (form.left_padding) a.leftpad_k = left.data();
        if (form.page_size > 0) a.page_table = table.data();
        a.cos = angles.cos.as<float>(), a.sin = angles.sin.as<float>(), a.max_position = kTokens, a.rotary_dim = kDim;
        ASSERT_EQ(fa_append_kv(handle, &d, &a), FA_OK) << handle.error();
    }

    Buffer rotate(int64_t first, int64_t count) {
        fa_attention_desc_t rows = d;
        rows.seqlen_q = count;
        rows.strided = FA_STRIDED_Q;
        rows.q_stride[0] = kTokens * kHeads * kDim, rows.q_stride[1] = kHeads * kDim, rows.q_stride[2] = kDim, rows.q_stride[3] = 1;
        Buffer out(kBatch * count * kHeads * kDim * oracle::size_of(form.dtype), Buffer::Guard::after);
        const std::vector<int32_t> offset(kBatch, int32_t(first));
        fa_rotary_args_t a = FA_ROTARY_ARGS_INIT;
        a.flags = form.interleaved ? FA_ROTARY_INTERLEAVED : 0;
        a.x = token(q, first, kHeads * kDim), a.out = out.as(), a.position_offset = offset.data();
        a.out_stride[0] = count * kHeads * kDim, a.out_stride[1] = kHeads * kDim, a.out_stride[2] = kDim, a.out_stride[3] = 1;
        a.cos = angles.cos.as<float>(), a.sin = angles.sin.as<float>(), a.max_position = kTokens, a.rotary_dim = kDim;
        EXPECT_EQ(fa_rotary(handle, &rows, &a), FA_OK) << handle.error();
        return out;
    }

    void attend(int64_t first, int64_t count, const Buffer& turned, std::vector<float>& o) {
        fa_attention_desc_t rows = d;
        rows.seqlen_q = count;
        rows.strided = FA_STRIDED_O;
        rows.o_stride[0] = kTokens * kHeads * kDimV, rows.o_stride[1] = kHeads * kDimV, rows.o_stride[2] = kDimV, rows.o_stride[3] = 1;
        const std::vector<int32_t> used = lengths(first + count), left = {padding(0), padding(1)};
        fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
        a.q = turned.as(), a.k = k.as(), a.v = v.as(), a.o = o.data() + first * kHeads * kDimV, a.seqused_k = used.data();
        if (form.left_padding) a.leftpad_k = left.data();
        if (form.page_size > 0) a.page_table = table.data();
        rounded |= probability_dtype(handle, rows) != FA_F32;
        ASSERT_EQ(fa_forward_ex(handle, &rows, &a), FA_OK) << handle.error();
    }
};

TEST(Decode, TokenByTokenEqualsOnePrefill) {
    const Handle handle = make_handle();
    const Form forms[] = {{FA_F32, FA_F32, 0, false, false}, {FA_F32, FA_F32, 16, true, true},  {FA_BF16, FA_BF16, 5, false, true},
                          {FA_F16, FA_F32, 1, true, false},  {FA_F32, FA_E4M3, 0, true, false}, {FA_BF16, FA_E5M2, 64, false, false}};
    for (const Form& form : forms) {
        std::vector<float> at_once(size_t(kBatch * kTokens * kHeads * kDimV)), one_by_one = at_once, mixed = at_once;
        Conversation a(form, handle), b(form, handle), c(form, handle);
        a.step(0, kTokens, at_once);
        for (int64_t t = 0; t < kTokens; t++) b.step(t, 1, one_by_one);
        c.step(0, 17, mixed), c.step(17, 1, mixed), c.step(18, 50, mixed), c.step(68, kTokens - 68, mixed);
        EXPECT_EQ(a.cache(), b.cache());
        EXPECT_EQ(a.cache(), c.cache());
        for (const std::vector<float>* other : {&one_by_one, &mixed}) {
            const std::vector<double> got(other->begin(), other->end()), want(at_once.begin(), at_once.end());
            // Other kernels may serve one row than serve many, and round weights to q's type against other maxima.
            const bool rounded = a.rounded || b.rounded || c.rounded;
            EXPECT_LE(oracle::relative_norm(got, want), !rounded               ? 1e-6
                                                        : form.dtype == FA_F16 ? 1e-3
                                                                               : 8e-3)
                << oracle::name_of(form.dtype) << " " << oracle::name_of(form.k_dtype);
        }
    }
}

}  // namespace
}  // namespace test
