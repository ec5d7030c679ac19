// Each call, with the operands that belong to it, gives the bits that the same call in C gives, which tests/check holds against the oracle.
#include <flashattn.hpp>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace {

using flashattn::Attention;
using flashattn::F16;

std::vector<float> normal(size_t n, unsigned seed) {
    std::mt19937 engine(seed);
    std::normal_distribution<float> value;
    std::vector<float> x(n);
    for (float& element : x) element = value(engine);
    return x;
}

struct Calls : testing::Test {
    static flashattn::HandleOptions cpu() {
        flashattn::HandleOptions options;
        options.backend = FA_BACKEND_CPU;
        return options;
    }
    template <class F>
    std::string refusal(F&& call) {
        try {
            call();
        } catch (const flashattn::Error& error) {
            EXPECT_EQ(error.code(), FA_INVALID_ARGUMENT);
            return error.status().message();
        }
        return "not refused";
    }
    flashattn::Handle handle{cpu()};
};

TEST_F(Calls, ForwardWithMasksGroupsAndOutputs) {
    Attention a;
    a.batch = 2, a.heads_q = 4, a.heads_k = 2, a.seqlen_q = 3, a.seqlen_k = 5, a.dim_qk = 8, a.dim_v = 4;
    a.window(2, 1, FA_ALIGN_BOTTOM_RIGHT).scaled(0.3f);
    a.softcap = 9, a.bias_stride[2] = 5, a.bias_stride[3] = 1, a.mask_stride[3] = 1, a.scores_stage = FA_SCORES_PROBABILITY;
    a.scores_stride[0] = 60, a.scores_stride[1] = 15, a.scores_stride[2] = 5, a.scores_stride[3] = 1;
    const auto q = normal(2 * 3 * 4 * 8, 1), k = normal(2 * 5 * 2 * 8, 2), v = normal(2 * 5 * 2 * 4, 3), sinks = normal(4, 4);
    const std::vector<F16> bias(15, F16{0x3800});  // 0.5
    const uint8_t mask[] = {1, 1, 0, 1, 1};
    std::vector<float> o(2 * 3 * 4 * 4), lse(2 * 4 * 3), scores(2 * 4 * 3 * 5);
    flashattn::ForwardArgs args;
    args.q = q, args.k = k, args.v = v, args.o = o;
    args.lse = lse, args.bias = bias, args.mask = mask, args.sinks = sinks, args.scores = scores;
    handle.forward(a, args);

    fa_attention_desc_t desc = a;
    desc.q_dtype = FA_F32, desc.bias_dtype = FA_F16;
    desc.operands = FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_SINKS | FA_OPERAND_SCORES;
    std::vector<float> o_in_c(o.size()), lse_in_c(lse.size()), scores_in_c(scores.size());
    fa_forward_args_t in_c = FA_FORWARD_ARGS_INIT;
    in_c.q = q.data(), in_c.k = k.data(), in_c.v = v.data(), in_c.o = o_in_c.data(), in_c.lse = lse_in_c.data();
    in_c.bias = bias.data(), in_c.mask = mask, in_c.sinks = sinks.data(), in_c.scores = scores_in_c.data();
    ASSERT_EQ(fa_forward_ex(handle.get(), &desc, &in_c), FA_OK) << fa_last_error(handle.get());
    EXPECT_EQ(o, o_in_c);
    EXPECT_EQ(lse, lse_in_c);
    EXPECT_EQ(scores, scores_in_c);
}

TEST_F(Calls, TensorsThatAreTooShortOrOfAnotherTypeAreRefusedUntouched) {
    Attention a;
    a.batch = 1, a.heads_q = 2, a.seqlen_q = a.seqlen_k = 3, a.dim_qk = 4;
    const std::vector<float> x(24, 1), less(23, 1);
    const std::vector<F16> half(24);
    std::vector<float> o(24, 7), lse(5, 7);
    EXPECT_EQ(refusal([&] { handle.forward(a, x, less, x, o); }), "k has 92 bytes: the call would use 96");
    EXPECT_EQ(refusal([&] { handle.forward(a, less, x, x, o); }), "q has 92 bytes: the call would use 96");
    flashattn::ForwardArgs args;
    args.q = x, args.k = x, args.v = x, args.o = o, args.lse = lse;
    EXPECT_EQ(refusal([&] { handle.forward(a, args); }), "lse has 20 bytes: the call would use 24");
    a.k_dtype = FA_F32;
    EXPECT_EQ(refusal([&] { handle.forward(a, x, half, x, o); }), "k has type f16: expected f32");
    EXPECT_EQ(refusal([&] { handle.forward(a, x, x, x, {}); }).find("o "), 0u);
    EXPECT_EQ(o, std::vector<float>(24, 7));
}

TEST_F(Calls, StridesAndTypesOfTheirOwn) {
    Attention a;  // (batch, head, row, dim), one k for both sequences
    a.batch = 2, a.heads_q = 2, a.seqlen_q = 3, a.seqlen_k = 4, a.dim_qk = 4;
    a.q_strides(24, 4, 12, 1).k_strides(0, 4, 16, 1).v_strides(0, 4, 16, 1).o_strides(24, 4, 12, 1).lse_strides(6, 3, 1);
    const std::vector<F16> q(48, F16{0x3c00}), k(32, F16{0x3c00});
    const std::vector<F16> v(32, F16{0x4000});  // 2
    std::vector<float> o(48), lse(12);
    flashattn::ForwardArgs args;
    args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse;
    handle.forward(a, args);
    EXPECT_EQ(o, std::vector<float>(48, 2));  // o_dtype is f32, because o's elements are
    for (const float x : lse) EXPECT_NEAR(x, 2 + std::log(4.0f), 1e-5);
}

TEST_F(Calls, PackedSequencesAndTheirGradients) {
    Attention a;
    a.batch = 2, a.heads_q = 2, a.total_q = a.total_k = 7, a.seqlen_q = a.seqlen_k = 4, a.dim_qk = 8;
    a.causal(FA_ALIGN_TOP_LEFT);
    const int32_t cu[] = {0, 3, 7};
    const auto q = normal(7 * 16, 1), k = normal(7 * 16, 2), v = normal(7 * 16, 3), dout = normal(7 * 16, 4);
    std::vector<float> o(7 * 16), lse(14), dq(o.size()), dk(o.size()), dv(o.size());
    flashattn::ForwardArgs args;
    args.q = q, args.k = k, args.v = v, args.o = o, args.lse = lse, args.cu_seqlens_q = cu, args.cu_seqlens_k = cu;
    handle.forward(a, args);
    flashattn::BackwardArgs gradients;
    gradients.dout = dout, gradients.dq = dq, gradients.dk = dk, gradients.dv = dv;
    handle.backward(a, args, gradients);

    fa_attention_desc_t desc = a;
    desc.q_dtype = FA_F32, desc.operands = FA_OPERAND_LSE | FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
    std::vector<float> o_in_c(o.size()), lse_in_c(lse.size()), dq_in_c(o.size()), dk_in_c(o.size()), dv_in_c(o.size());
    fa_forward_args_t in_c = FA_FORWARD_ARGS_INIT;
    in_c.q = q.data(), in_c.k = k.data(), in_c.v = v.data(), in_c.o = o_in_c.data(), in_c.lse = lse_in_c.data();
    in_c.cu_seqlens_q = in_c.cu_seqlens_k = cu;
    ASSERT_EQ(fa_forward_ex(handle.get(), &desc, &in_c), FA_OK) << fa_last_error(handle.get());
    fa_backward_args_t back = FA_BACKWARD_ARGS_INIT;
    back.forward = &in_c, back.dout = dout.data(), back.dq = dq_in_c.data(), back.dk = dk_in_c.data(), back.dv = dv_in_c.data();
    ASSERT_EQ(fa_backward(handle.get(), &desc, &back), FA_OK) << fa_last_error(handle.get());
    EXPECT_EQ(o, o_in_c);
    EXPECT_EQ(dq, dq_in_c);
    EXPECT_EQ(dk, dk_in_c);
    EXPECT_EQ(dv, dv_in_c);

    // Added to once more, the same is twice as much. The gradients are f32 then, whatever q is.
    gradients.flags = FA_BACKWARD_ACCUMULATE;
    handle.backward(a, args, gradients);
    for (size_t i = 0; i < dq.size(); i++) EXPECT_FLOAT_EQ(dq[i], 2 * dq_in_c[i]);
    std::vector<F16> half(o.size());
    gradients.dv = half;
    EXPECT_EQ(refusal([&] { handle.backward(a, args, gradients); }), "dv has type f16: expected f32");
    gradients.flags = 0;
    EXPECT_EQ(refusal([&] { handle.backward(a, args, gradients); }), "dv has type f16: expected f32");
    gradients.dv = flashattn::Tensor(dv.data(), 7 * 16 - 1);
    EXPECT_EQ(refusal([&] { handle.backward(a, args, gradients); }), "dv has 444 bytes: the call would use 448");
}

TEST_F(Calls, TokensAppendedToPagesAreAttended) {
    constexpr int64_t kPages = 4, kPageSize = 2, kHeads = 2, kDim = 4;
    Attention a;
    a.batch = 1, a.heads_q = kHeads, a.seqlen_q = 1, a.seqlen_k = 6, a.dim_qk = kDim, a.page_size = kPageSize, a.num_pages = kPages;
    const int32_t table[] = {3, 0, 2};
    int32_t used[] = {0};
    std::vector<F16> k(kPages * kPageSize * kHeads * kDim), v(k.size());
    const auto k_new = normal(5 * kHeads * kDim, 1), v_new = normal(5 * kHeads * kDim, 2), q = normal(kHeads * kDim, 3);
    flashattn::AppendKvArgs append;
    append.k_new = k_new, append.v_new = v_new, append.seqlen_new = 5;
    append.k = k, append.v = v, append.page_table = table, append.seqused_k = used;
    handle.append_kv(a, append);
    EXPECT_NE(k[3 * kPageSize * kHeads * kDim].bits, 0);  // the first token is in page 3, rounded to the cache's type
    EXPECT_EQ(k[1 * kPageSize * kHeads * kDim].bits, 0);
    used[0] = 5;

    std::vector<float> o(kHeads * kDim);
    flashattn::ForwardArgs args;
    args.q = q, args.k = k, args.v = v, args.o = o, args.page_table = table, args.seqused_k = used;
    handle.forward(a, args);
    for (int64_t h = 0; h < kHeads; h++) {
        double sum = 0, values[kDim] = {};
        for (int64_t t = 0; t < 5; t++) {
            double score = 0;
            for (int64_t d = 0; d < kDim; d++) score += static_cast<double>(q[h * kDim + d]) * k_new[(t * kHeads + h) * kDim + d];
            const double p = std::exp(score / 2);
            sum += p;
            for (int64_t d = 0; d < kDim; d++) values[d] += p * v_new[(t * kHeads + h) * kDim + d];
        }
        for (int64_t d = 0; d < kDim; d++) EXPECT_NEAR(o[h * kDim + d], values[d] / sum, 4e-3);  // f16 keys and values
    }
    used[0] = 2;
    EXPECT_EQ(refusal([&] { handle.append_kv(a, append); }),
              "seqlen_k is 6: expected 7 or more, sequence 0 has 2 slots in use and 5 new tokens");
}

TEST_F(Calls, PartsMergeIntoTheWhole) {
    Attention a;
    a.batch = 1, a.heads_q = 2, a.seqlen_q = 3, a.seqlen_k = 8, a.dim_qk = 4;
    const auto q = normal(24, 1), k = normal(64, 2), v = normal(64, 3);
    std::vector<float> whole(24), o_parts(48), lse_parts(12), merged(24), lse(6);
    handle.forward(a, q, k, v, whole);
    a.seqlen_k = 4;
    for (int part = 0; part < 2; part++) {
        flashattn::ForwardArgs args;
        args.q = q, args.k = {k.data() + 32 * part, 32}, args.v = {v.data() + 32 * part, 32};
        args.o = {o_parts.data() + 24 * part, 24}, args.lse = {lse_parts.data() + 6 * part, 6};
        handle.forward(a, args);
    }
    flashattn::MergeArgs args;
    args.parts = 2, args.o_parts = o_parts, args.lse_parts = lse_parts, args.o = merged, args.lse = lse;
    handle.merge(a, args);
    for (size_t i = 0; i < whole.size(); i++) EXPECT_NEAR(merged[i], whole[i], 1e-6);
    args.parts = 3;
    EXPECT_EQ(refusal([&] { handle.merge(a, args); }), "o_parts has 192 bytes: the call would use 288");
}

TEST_F(Calls, RotaryTurnsPairsByTheirPosition) {
    Attention a;
    a.batch = 1, a.heads_q = 1, a.seqlen_q = 2, a.dim_qk = 4;
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float cosine[] = {1, 1, 0, -1}, sine[] = {0, 0, 1, 0};
    float out[8] = {};
    flashattn::RotaryArgs args;
    args.x = x, args.out = out, args.cos = cosine, args.sin = sine, args.max_position = 2, args.rotary_dim = 4;
    handle.rotary(a, args);
    const float expected[] = {1, 2, 3, 4, -7, -6, 5, -8};
    for (int i = 0; i < 8; i++) EXPECT_EQ(out[i], expected[i]) << i;
    args.cos = {cosine, 3};
    EXPECT_EQ(refusal([&] { handle.rotary(a, args); }), "cos has 12 bytes: the call would use 16");
}

// Packed keys, of another type and other heads than q.
TEST_F(Calls, RotaryOfTheKeysOfADescriptor) {
    Attention a;
    a.q_dtype = FA_F16, a.batch = 2, a.heads_q = 4, a.heads_k = 1, a.total_k = 3, a.seqlen_k = 2, a.dim_qk = 2;
    const float x[] = {1, 2, 3, 4, 5, 6}, cosine[] = {1, 0}, sine[] = {0, 1};  // position 1: a quarter turn
    const int32_t cu_seqlens[] = {0, 2, 3};
    float out[6];
    flashattn::RotaryArgs args;
    args.flags = FA_ROTARY_OF_K;
    args.x = x, args.out = out, args.cos = cosine, args.sin = sine, args.max_position = 2, args.rotary_dim = 2;
    args.cu_seqlens = cu_seqlens;
    handle.rotary(a, args);
    const float expected[] = {1, 2, -4, 3, 5, 6};
    for (int i = 0; i < 6; i++) EXPECT_EQ(out[i], expected[i]) << i;
    args.flags = 0;
    EXPECT_EQ(refusal([&] { handle.rotary(a, args); }), "x has type f32: expected f16");
}

// The best slots of a paged cache; a CPU refuses what a GPU's status word would tell of.
TEST_F(Calls, ForwardOverListsOfSlots) {
    Attention a;
    a.batch = 1, a.heads_q = 2, a.heads_k = 1, a.seqlen_q = 1, a.dim_qk = 4;
    a.list_space = FA_LIST_SLOTS, a.page_size = 2, a.num_pages = 3, a.list_max = 3, a.list_heads = 1;
    a.list_stride[2] = 3, a.list_stride[3] = 1;
    const auto q = normal(2 * 4, 1), cache = normal(6 * 4, 2);
    int32_t slots[] = {4, 1, -1};
    uint32_t word = 0;
    std::vector<float> o(2 * 4), by_hand(2 * 4);
    flashattn::ForwardArgs args;
    args.q = q, args.k = cache, args.v = cache, args.o = o, args.key_list = slots, args.device_status = {&word, 1};
    handle.forward(a, args);
    EXPECT_EQ(word, 0u);

    Attention plain;
    plain.batch = 1, plain.heads_q = 2, plain.heads_k = 1, plain.seqlen_q = 1, plain.seqlen_k = 2, plain.dim_qk = 4;
    std::vector<float> keys(cache.begin() + 4 * 4, cache.begin() + 5 * 4);
    keys.insert(keys.end(), cache.begin() + 4, cache.begin() + 2 * 4);
    handle.forward(plain, q, keys, keys, by_hand);
    for (int i = 0; i < 8; i++) EXPECT_NEAR(o[i], by_hand[i], 1e-6) << i;
    slots[0] = 6;
    EXPECT_NE(refusal([&] { handle.forward(a, args); }).find("key_list"), std::string::npos);
}

TEST_F(Calls, ConversionsOfLayoutsAndTypes) {
    const std::vector<F16> x{{0x3c00}, {0x4000}, {0x4200}, {0x4400}, {0x4500}, {0x4600}};  // 1 … 6
    std::vector<float> out(6, 1), zeros(2, 7);
    flashattn::Conversion turn, clear;
    turn.x = x, turn.out = out, turn.size[1] = 3, turn.size[2] = 2;  // (3, 2) to (2, 3)
    turn.x_stride[1] = 2, turn.x_stride[2] = 1, turn.out_stride[1] = 1, turn.out_stride[2] = 3;
    clear.out = zeros, clear.size[3] = 2;
    handle.convert({turn, clear});
    EXPECT_EQ(out, (std::vector<float>{1, 3, 5, 2, 4, 6}));
    EXPECT_EQ(zeros, (std::vector<float>{0, 0}));
    turn.flags = FA_CONVERT_ACCUMULATE;
    handle.convert({turn});
    EXPECT_EQ(out, (std::vector<float>{2, 6, 10, 4, 8, 12}));
    turn.x_stride[1] = 3;
    EXPECT_EQ(refusal([&] { handle.convert({clear, turn}); }), "list[1].x has 12 bytes: the call would use 16");
    turn.x_stride[1] = 2, turn.out_stride[2] = INT64_MAX / 2;
    EXPECT_NE(refusal([&] { handle.convert({turn}); }).find("list[0].out has 24 bytes"), std::string::npos);
    turn.out_stride[2] = 3, turn.size[1] = -1;
    EXPECT_NE(refusal([&] { handle.convert({turn}); }).find("size[1] is -1"), std::string::npos);
    EXPECT_EQ(out, (std::vector<float>{2, 6, 10, 4, 8, 12}));
}

// v within k is left out.
TEST_F(Calls, LatentAttention) {
    Attention a;
    a.flags = FA_V_IN_K;
    a.batch = 1, a.heads_q = 4, a.heads_k = 1, a.seqlen_q = 2, a.seqlen_k = 5, a.dim_qk = 8, a.dim_v = 6;
    const auto q = normal(2 * 4 * 8, 1), k_new = normal(5 * 8, 2);
    std::vector<float> k(5 * 8), o(2 * 4 * 6), o_in_c(o.size());
    flashattn::AppendKvArgs append;
    append.k_new = k_new, append.seqlen_new = 5, append.k = k;
    handle.append_kv(a, append);
    EXPECT_EQ(k, k_new);
    handle.forward(a, q, k, {}, o);

    fa_attention_desc_t desc = a;
    desc.q_dtype = FA_F32;
    ASSERT_EQ(fa_forward(handle.get(), &desc, q.data(), k.data(), nullptr, o_in_c.data()), FA_OK);
    EXPECT_EQ(o, o_in_c);
}

}  // namespace
