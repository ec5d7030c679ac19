// Known failures of emptiness, stale memory and NaN. Names carry the ids of docs/failures.md.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include "check/isa.h"
#include "support/shaped.h"

namespace test {
namespace {

// Sequences of the lengths given, in every layout; each must come out right beside the others.
void expect_lengths_right(const Handle& handle, const std::vector<int32_t>& rows, const std::vector<int32_t>& keys, int64_t dim) {
    Rng rng(111);
    const int32_t most_rows = *std::max_element(rows.begin(), rows.end()), most_keys = *std::max_element(keys.begin(), keys.end());
    for (int layout = 0; layout < 8; layout++) {
        Case c = shaped({int64_t(rows.size()), 4, 2, most_rows, most_keys, dim, dim});
        const bool packed_q = layout & 1, packed_k = layout & 2;
        if (layout & 4) causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.d.operands |= packed_q ? FA_OPERAND_CU_SEQLENS_Q : FA_OPERAND_SEQUSED_Q;
        c.d.operands |= packed_k ? FA_OPERAND_CU_SEQLENS_K : FA_OPERAND_SEQUSED_K;
        c.metadata.seqused_q = rows, c.metadata.seqused_k = keys, c.metadata.cu_seqlens_q = c.metadata.cu_seqlens_k = {0};
        for (const int32_t n : rows) c.metadata.cu_seqlens_q.push_back(c.metadata.cu_seqlens_q.back() + n);
        for (const int32_t n : keys) c.metadata.cu_seqlens_k.push_back(c.metadata.cu_seqlens_k.back() + n);
        c.d.total_q = packed_q ? c.metadata.cu_seqlens_q.back() : 0, c.d.total_k = packed_k ? c.metadata.cu_seqlens_k.back() : 0;
        c.bind(rng);
        c.fill_normal(rng);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

TEST(Failures, F13_F14_F15_F40_zero_lengths_among_others) {
    const Handle handle = make_handle();
    expect_lengths_right(handle, {1, 0, 1, 1}, {5, 7, 0, 70}, 16);
    expect_lengths_right(handle, {0, 3, 60, 0}, {0, 0, 65, 9}, 16);
    expect_lengths_right(handle, {0, 0, 2}, {64, 0, 1}, 256);
    expect_lengths_right(handle, {0, 0}, {0, 0}, 8);
    expect_lengths_right(handle, {4, 4}, {0, 0}, 8);
}

TEST(Failures, F14_F74_whole_dimensions_of_zero) {
    const Handle handle = make_handle();
    Rng rng(112);
    for (const auto& [batch, rows, keys] :
         {std::tuple(0, 3, 3), std::tuple(2, 0, 3), std::tuple(2, 3, 0), std::tuple(0, 0, 0), std::tuple(2, 0, 0)})
        for (const int32_t algorithm : {FA_ALGORITHM_FLASH, FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1}) {
            Case c = shaped({batch, 2, 1, rows, keys, 4, 4});
            c.d.algorithm = algorithm;
            c.bind(rng);
            c.fill_normal(rng);
            EXPECT_EQ(run_and_check(handle, c), "");
            // A tensor without elements may be NULL.
            if (c.q.bytes() == 0) c.a.q = c.a.o = nullptr, c.a.lse = nullptr;
            if (c.k.bytes() == 0) c.a.k = c.a.v = nullptr;
            EXPECT_EQ(run_and_check(handle, c), "");
        }
}

// Arrays of lengths end at a forbidden page: nothing reads one entry more.
TEST(Failures, F16_F35_metadata_is_not_read_beyond_its_end) {
    const Handle handle = make_handle();
    for (uint64_t n = 0; n < 8; n++) {  // the guards change sides with the seed
        Rng rng(derive(113, n));
        Case c = shaped({3, 2, 2, 9, 40, 8, 8});
        c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_PAGE_TABLE | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K;
        c.d.total_q = 15, c.metadata.cu_seqlens_q = {0, 9, 9, 15};
        c.metadata.seqused_k = {40, 1, 17}, c.metadata.leftpad_k = {0, 1, 5};
        c.d.page_size = 8, c.d.num_pages = 15;
        for (int32_t page = 14; page >= 0; page--) c.metadata.page_table.push_back(page);
        c.bind(rng);
        c.fill_normal(rng);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

TEST(Failures, F35_F37_lengths_beyond_capacity_are_refused) {
    const Handle handle = make_handle();
    Rng rng(114);
    Case c = shaped({1, 1, 1, 2, 24, 8, 8});
    paged(c, 8);
    c.d.operands |= FA_OPERAND_SEQUSED_K;
    c.metadata.seqused_k = {25};
    c.bind(rng);
    EXPECT_EQ(c.run(handle), FA_INVALID_ARGUMENT);
    EXPECT_NE(handle.error().find("seqused_k"), std::string::npos) << handle.error();
    EXPECT_EQ(bytes_of(c.o), std::vector<unsigned char>(size_t(c.o.bytes()), kPoison));

    Case bad_page = shaped({1, 1, 1, 2, 24, 8, 8});
    paged(bad_page, 8);
    bad_page.metadata.page_table[2] = int32_t(bad_page.d.num_pages);
    bad_page.bind(rng);
    EXPECT_EQ(bad_page.run(handle), FA_INVALID_ARGUMENT);
    EXPECT_NE(handle.error().find("page_table"), std::string::npos) << handle.error();
}

TEST(Failures, F37_pages_of_512_keys) {
    const Handle handle = make_handle();
    Rng rng(115);
    for (const int64_t page_size : {512, 1000}) {
        Case c = shaped({2, 2, 1, 3, 1100, 8, 8});
        paged(c, page_size);
        c.bind(rng);
        c.fill_normal(rng);
        EXPECT_EQ(run_and_check(handle, c), "");
    }
}

// Rows beyond the used ones: 0 and −inf, though the memory held NaN, in every type.
TEST(Failures, F17_F40_rows_beyond_the_length_are_written) {
    const Handle handle = make_handle();
    Rng rng(116);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2}) {
        Case c = shaped({3, 2, 2, 100, 20, 8, 8}, FA_F32);
        c.d.o_dtype = dtype;
        c.d.operands |= FA_OPERAND_SEQUSED_Q;
        c.metadata.seqused_q = {0, 100, 37};
        c.bind(rng);
        c.fill_normal(rng);
        ASSERT_EQ(c.run(handle), FA_OK);
        const oracle::Reading r = c.reading();
        for (int64_t b = 0; b < 3; b++)
            for (int64_t i = r.rows(b); i < 100; i++) {
                for (int64_t e = 0; e < 8; e++) ASSERT_EQ(oracle::load(c.o.as(), r.o(b, 1, i) + e, dtype), 0);
                ASSERT_EQ(c.a.lse[r.lse(b, 1, i)], -float(kInf));
            }
    }
}

class EmptyRows : public testing::TestWithParam<int32_t> {};

// Rows without a key: o = 0 and LSE = −inf (LSE = sink with one), by whichever mask, in whichever algorithm.
TEST_P(EmptyRows, F18_F21_F62_rows_without_a_key) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (int how = 0; how < 6; how++)
        for (const int32_t algorithm : {FA_ALGORITHM_FLASH, FA_ALGORITHM_STANDARD, FA_ALGORITHM_FLASH1})
            for (const bool with_sink : {false, true}) {
                Rng rng(117);
                Case c = shaped({2, 2, 1, 70, 130, 8, 8});
                c.d.algorithm = algorithm;
                if (how == 0) causal(c, FA_ALIGN_EXPLICIT);
                if (how == 1) window(c, 3, 3, FA_ALIGN_EXPLICIT);
                if (how == 2) c.d.chunk = 16, c.d.alignment = FA_ALIGN_EXPLICIT;
                if (how <= 2) c.d.operands |= FA_OPERAND_CAUSAL_OFFSET, c.metadata.causal_offset = {-1000, 1000};
                if (how == 0) c.metadata.causal_offset = {-35, -200};
                if (how == 3) c.d.operands |= FA_OPERAND_MASK;
                if (how >= 4) c.d.operands |= FA_OPERAND_BIAS;
                if (with_sink) c.d.operands |= FA_OPERAND_SINKS;
                if (how == 3) dense_pairs(c.d, c.d.mask_stride);
                if (how >= 4) dense_pairs(c.d, c.d.bias_stride);
                c.bind(rng);
                c.fill_normal(rng);
                if (how == 3) c.set_mask([](int64_t b, int64_t, int64_t i, int64_t) { return b == 0 && i % 3 != 0; });
                if (how >= 4)
                    c.set_bias([&](int64_t b, int64_t, int64_t i, int64_t) { return b == 0 && (i % 3 != 0 || how == 5) ? 0.0 : -kInf; });
                for (int64_t h = 0; h < 2 && with_sink; h++) c.sinks.as<float>()[h] = 1.5f;
                ASSERT_EQ(run_and_check(handle, c), "") << how;
                const float lse = c.a.lse[c.reading().lse(1, 0, 0)];
                ASSERT_EQ(lse, with_sink ? 1.5f : -float(kInf)) << how;
            }
}

// Only a leading run of keys is masked, of every length around tile borders: the running maximum starts at −inf.
TEST_P(EmptyRows, F19_F22_leading_keys_masked) {
    const Handle handle = make_handle();
    FA_USE_ISA(handle, GetParam());
    for (const int64_t masked : {1, 2, 31, 63, 64, 65, 127, 128, 129, 199})
        for (const bool by_bias : {false, true}) {
            Rng rng(118);
            Case c = shaped({1, 2, 2, 50, 200, 8, 8});
            c.d.operands |= by_bias ? FA_OPERAND_BIAS : FA_OPERAND_MASK;
            dense_pairs(c.d, by_bias ? c.d.bias_stride : c.d.mask_stride);
            c.bind(rng);
            c.fill_normal(rng);
            if (by_bias) c.set_bias([&](int64_t, int64_t, int64_t i, int64_t j) { return j < masked && i != 7 ? -kInf : 0.25; });
            else c.set_mask([&](int64_t, int64_t, int64_t i, int64_t j) { return j >= masked || i == 7; });
            ASSERT_EQ(run_and_check(handle, c), "") << masked;
        }
}

INSTANTIATE_TEST_SUITE_P(Failures, EmptyRows, testing::ValuesIn(isas_under_test()), [](const auto& info) { return isa_name(info.param); });

// Calls without a row, of as many sequences and heads as a descriptor may name: the time limit is the test. A GPU may refuse so many.
void expect_quick(const Handle& handle, const fa_attention_desc_t& desc, int32_t op, const std::function<fa_status_t()>& call) {
    char text[512];
    uint64_t bytes;
    const fa_status_t can = fa_explain(handle, &desc, op, text, sizeof text);
    EXPECT_TRUE(can == FA_OK || (!testing_the_cpu() && can == FA_UNSUPPORTED)) << text;
    EXPECT_EQ(fa_workspace_size(handle, &desc, op, &bytes), can);
    EXPECT_EQ(call(), can) << handle.error();
}

fa_attention_desc_t countless() {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = std::numeric_limits<int32_t>::max(), d.heads_q = 1 << 25, d.dim_qk = 8;
    return d;
}

TEST(Failures, F78_empty_forward_does_not_count_its_sequences) {
    const Handle handle = make_handle();
    const float row[8] = {};
    fa_forward_args_t a = FA_FORWARD_ARGS_INIT;
    const auto forward = [&](const fa_attention_desc_t& desc) { return [&] { return fa_forward_ex(handle, &desc, &a); }; };
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (const uint32_t operands : {0u, uint32_t(FA_OPERAND_LSE), uint32_t(FA_OPERAND_SCORES)})
            for (const int64_t keys : {0, 100}) {
                fa_attention_desc_t d = countless();
                d.q_dtype = dtype, d.operands = operands, d.seqlen_k = keys;
                if (operands & FA_OPERAND_SCORES) dense_pairs(d, d.scores_stride);
                d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1;  // all keys are one row
                a.k = a.v = keys > 0 ? row : nullptr;
                expect_quick(handle, d, FA_OP_FORWARD, forward(d));
            }
    // A packed sequence of no row, where the longest may have many, and scores of no key.
    const int32_t starts[] = {0, 0};
    fa_attention_desc_t d = countless();
    d.batch = 1, d.seqlen_q = d.heads_q = 1 << 28, d.operands = FA_OPERAND_SCORES | FA_OPERAND_CU_SEQLENS_Q;
    a = FA_FORWARD_ARGS_INIT, a.cu_seqlens_q = starts;
    expect_quick(handle, d, FA_OP_FORWARD, forward(d));
    // Pages, none of which is looked up.
    d = countless();
    d.operands = FA_OPERAND_PAGE_TABLE, d.page_size = d.num_pages = 1;
    a = FA_FORWARD_ARGS_INIT, a.k = a.v = row, a.page_table = starts;
    d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1;
    expect_quick(handle, d, FA_OP_FORWARD, forward(d));
}

TEST(Failures, F78_empty_calls_do_not_count_their_sequences) {
    const Handle handle = make_handle();
    const float angles[4] = {}, one = 1;
    fa_attention_desc_t d = countless();
    fa_rotary_args_t r = FA_ROTARY_ARGS_INIT;
    r.max_position = 1, r.rotary_dim = 2, r.cos = r.sin = angles;
    expect_quick(handle, d, FA_OP_ROTARY, [&] { return fa_rotary(handle, &d, &r); });
    fa_merge_args_t m = FA_MERGE_ARGS_INIT;
    m.parts = 1 << 20;
    expect_quick(handle, d, FA_OP_MERGE, [&] { return fa_merge(handle, &d, &m); });
    fa_append_kv_args_t p = FA_APPEND_KV_ARGS_INIT;
    expect_quick(handle, d, FA_OP_APPEND_KV, [&] { return fa_append_kv(handle, &d, &p); });

    fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    b.forward = &f;
    d.operands = FA_OPERAND_LSE;
    expect_quick(handle, d, FA_OP_BACKWARD, [&] { return fa_backward(handle, &d, &b); });
    d.operands = FA_OPERAND_LSE | FA_OPERAND_BIAS | FA_OPERAND_SINKS;
    float dbias = 7, dsinks[4] = {7, 7, 7, 7};
    b.dbias = &dbias, b.dbias_stride[0] = 1;
    const float sinks[4] = {1, 1, 1, 1};
    f.sinks = sinks, b.dsinks = dsinks, d.heads_q = 4;
    expect_quick(handle, d, FA_OP_BACKWARD, [&] { return fa_backward(handle, &d, &b); });
    for (const float sink : dsinks) EXPECT_EQ(sink, 0);
    EXPECT_EQ(dbias, 7);
    // Keys, all of them one row, whose gradients nobody wants.
    d = countless();
    d.seqlen_k = 100, d.strided = FA_STRIDED_K | FA_STRIDED_V, d.k_stride[3] = d.v_stride[3] = 1, d.dim_qk = d.dim_v = 1,
    d.operands = FA_OPERAND_LSE;
    f = FA_FORWARD_ARGS_INIT, f.k = f.v = &one;
    b = FA_BACKWARD_ARGS_INIT, b.forward = &f;
    b.dk_stride[3] = b.dv_stride[3] = 1;
    expect_quick(handle, d, FA_OP_BACKWARD, [&] { return fa_backward(handle, &d, &b); });
}

// One row, or token, in the last of a million packed sequences: sequences times heads, or times the longest, are more than anybody waits
// for.
TEST(Failures, F78_one_row_in_a_million_sequences) {
    if (!testing_the_cpu()) GTEST_SKIP() << "a GPU's launch has fewer than 2^31 blocks, and it refuses more";
    const Handle handle = make_handle();
    constexpr int64_t kMany = 1 << 20;
    std::vector<int32_t> starts(kMany + 1, 0);
    starts[kMany] = 1;
    std::vector<float> ones(kMany, 1), o(kMany), lse(kMany), dv(kMany), angles(kMany, 1);
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = d.heads_q = kMany, d.dim_qk = d.total_q = d.total_k = d.seqlen_q = d.seqlen_k = 1;
    d.operands = FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K | FA_OPERAND_LSE;
    fa_forward_args_t f = FA_FORWARD_ARGS_INIT;
    f.q = f.k = f.v = ones.data(), f.o = o.data(), f.lse = lse.data(), f.cu_seqlens_q = f.cu_seqlens_k = starts.data();
    for (const int64_t threads : {1, 3}) {
        ASSERT_EQ(fa_param_set(handle, FA_PARAM_THREADS, threads), FA_OK);
        ASSERT_EQ(fa_forward_ex(handle, &d, &f), FA_OK) << handle.error();
        EXPECT_EQ(o, ones);
        fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
        b.forward = &f, b.dout = ones.data(), b.dv = dv.data();
        ASSERT_EQ(fa_backward(handle, &d, &b), FA_OK) << handle.error();
        EXPECT_EQ(dv, ones);
        std::fill(o.begin(), o.end(), 0.f), std::fill(dv.begin(), dv.end(), 0.f);
    }
    // With sinks that are as large as the score.
    std::vector<float> dsinks(kMany);
    d.operands |= FA_OPERAND_SINKS, f.sinks = ones.data();
    ASSERT_EQ(fa_forward_ex(handle, &d, &f), FA_OK) << handle.error();
    fa_backward_args_t b = FA_BACKWARD_ARGS_INIT;
    b.forward = &f, b.dout = ones.data(), b.dsinks = dsinks.data();
    ASSERT_EQ(fa_backward(handle, &d, &b), FA_OK) << handle.error();
    EXPECT_NEAR(dsinks[0], -0.25, 1e-6);
    EXPECT_EQ(dsinks, std::vector<float>(kMany, dsinks[0]));
    std::fill(o.begin(), o.end(), 0.f);
    fa_merge_args_t m = FA_MERGE_ARGS_INIT;
    m.parts = 1, m.o_parts = ones.data(), m.lse_parts = lse.data(), m.o = o.data(), m.cu_seqlens_q = starts.data();
    d.operands = FA_OPERAND_CU_SEQLENS_Q;
    ASSERT_EQ(fa_merge(handle, &d, &m), FA_OK) << handle.error();
    EXPECT_EQ(o, ones);

    // The first sequence has all rows.
    std::fill(starts.begin() + 1, starts.end(), kMany);
    d.heads_q = 1, d.dim_qk = 2, d.total_q = d.seqlen_q = kMany, d.total_k = 0;
    std::vector<float> x(2 * kMany, 1), out(2 * kMany);
    fa_rotary_args_t r = FA_ROTARY_ARGS_INIT;
    r.max_position = kMany, r.rotary_dim = 2, r.cos = r.sin = angles.data(), r.x = x.data(), r.out = out.data(),
    r.cu_seqlens = starts.data();
    ASSERT_EQ(fa_rotary(handle, &d, &r), FA_OK) << handle.error();
    EXPECT_EQ(out[0], 0);
    EXPECT_EQ(out[2 * kMany - 1], 2);
    std::vector<float> cache(kMany + 1);
    fa_append_kv_args_t p = FA_APPEND_KV_ARGS_INIT;
    d.operands = FA_OPERAND_KV_BATCH_IDX, d.total_q = 0, d.seqlen_k = kMany, d.kv_batch = 1, d.dim_qk = 1, d.flags = FA_V_IN_K;
    const std::vector<int32_t> same(kMany, 0);
    p.k_new = ones.data(), p.seqlen_new = p.total_new = kMany, p.cu_seqlens_new = starts.data(), p.k = cache.data(),
    p.kv_batch_idx = same.data();
    ASSERT_EQ(fa_append_kv(handle, &d, &p), FA_OK) << handle.error();
    EXPECT_EQ(cache[kMany - 1], 1);
}

// Tensors whose rows lie one upon the other have few bytes and any number of rows: what backends count of those must not overflow.
TEST(Failures, F92_rows_without_number) {
    const Handle handle = make_handle();
    uint64_t bytes = 0;
    fa_attention_desc_t d = countless();
    d.batch = 1, d.heads_q = d.heads_k = d.total_q = std::numeric_limits<int32_t>::max(), d.seqlen_q = d.seqlen_k = 1;
    d.operands = FA_OPERAND_LSE | FA_OPERAND_CU_SEQLENS_Q;
    d.strided = FA_STRIDED_Q | FA_STRIDED_K | FA_STRIDED_V | FA_STRIDED_O | FA_STRIDED_LSE;
    d.q_stride[3] = d.k_stride[3] = d.v_stride[3] = d.o_stride[3] = 1;
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16}) {
        d.q_dtype = dtype;
        const fa_status_t status = fa_workspace_size(handle, &d, FA_OP_BACKWARD, &bytes);
        EXPECT_EQ(status, testing_the_cpu() ? FA_OK : FA_UNSUPPORTED) << handle.error();
        EXPECT_LT(bytes, uint64_t(1) << 62) << handle.error();
    }
    // Keys without number, which one kernel or another would take by blocks of heads.
    d.operands = FA_OPERAND_LSE, d.total_q = 0;
    d.batch = 1 << 24, d.heads_q = d.heads_k = 1 << 7, d.seqlen_k = std::numeric_limits<int32_t>::max();
    const fa_status_t status = fa_workspace_size(handle, &d, FA_OP_BACKWARD, &bytes);
    EXPECT_EQ(status, testing_the_cpu() ? FA_OK : FA_UNSUPPORTED) << handle.error();
    d.batch = 1 << 30;
    for (const int32_t op : {FA_OP_FORWARD, FA_OP_BACKWARD}) {
        if (op == FA_OP_FORWARD) d.strided &= ~uint32_t(FA_STRIDED_O | FA_STRIDED_LSE), d.o_stride[3] = 0;
        else d.strided |= FA_STRIDED_O | FA_STRIDED_LSE, d.o_stride[3] = 1;
        EXPECT_EQ(fa_workspace_size(handle, &d, op, &bytes), FA_INVALID_ARGUMENT) << handle.error();
    }
}

// Unused slots, pages and padding hold NaN (the case fills them so); values of k and v there must not leak as 0 · NaN.
TEST(Failures, F38_F39_nan_in_unused_slots) {
    const Handle handle = make_handle();
    Rng rng(119);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2})
        for (const int64_t page_size : {0, 1, 16, 48})
            for (const int32_t used : {1, 31, 64, 65, 100}) {
                Case c = shaped({2, 2, 1, 3, 128, 24, 20}, dtype);
                if (page_size > 0) paged(c, page_size);
                c.d.operands |= FA_OPERAND_SEQUSED_K;
                c.metadata.seqused_k = {used, 128 - used};
                c.d.strided = FA_STRIDED_V;
                const int64_t rows = page_size > 0 ? page_size : 128;
                c.d.v_stride[3] = 1, c.d.v_stride[2] = 23, c.d.v_stride[1] = 25, c.d.v_stride[0] = 25 * rows + 3;
                c.bind(rng);
                c.fill_normal(rng);
                ASSERT_EQ(run_and_check(handle, c), "");
            }
}

TEST(Failures, F42_nan_in_masked_keys_and_bias) {
    const Handle handle = make_handle();
    Rng rng(120);
    Case c = shaped({1, 2, 2, 100, 100, 8, 8});
    causal(c, FA_ALIGN_TOP_LEFT);
    c.d.operands |= FA_OPERAND_BIAS;
    dense_pairs(c.d, c.d.bias_stride);
    c.bind(rng);
    c.fill_normal(rng);
    c.set_bias([](int64_t, int64_t, int64_t i, int64_t j) { return j > i ? NAN : 0.5; });
    oracle::store(c.k.as(), c.reading().k(0, 0, 99), FA_F32, NAN);
    ASSERT_EQ(run_and_check(handle, c), "");  // NaN in the last row alone
    EXPECT_FALSE(std::isnan(c.a.lse[c.reading().lse(0, 0, 98)]));
}

TEST(Failures, F43_nan_input_is_not_turned_into_zeros) {
    const Handle handle = make_handle();
    Rng rng(121);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16}) {
        Case c = shaped({1, 2, 2, 20, 30, 8, 8}, dtype);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_q([](auto...) { return NAN; });
        ASSERT_EQ(c.run(handle), FA_OK);
        for (int64_t n = 0; n < c.o.bytes() / oracle::size_of(dtype); n++) ASSERT_TRUE(std::isnan(oracle::load(c.o.as(), n, dtype)));
        for (int64_t n = 0; n < 40; n++) ASSERT_TRUE(std::isnan(c.a.lse[n]));
    }
}

}  // namespace
}  // namespace test
