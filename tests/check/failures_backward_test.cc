// Known failures of backward passes: offsets beyond 32 bits, lengths, emptiness, NaN, strides, dropout. Names carry the ids of
// docs/failures.md.
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include "support/backward_case.h"
#include "support/shaped.h"

namespace test {
namespace {

// Forward, backward, and the check, for a case that is bound and filled.
std::string differentiate(const Handle& handle, BackwardCase& backward, Rng& rng) {
    if (backward.run_forward(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
    backward.bind(rng);
    backward.fill_normal(rng);
    return run_and_check(handle, backward);
}

std::string differentiate(const Handle& handle, Case test_case, Rng& rng) {
    BackwardCase b(std::move(test_case));
    return differentiate(handle, b, rng);
}

// More sequences, or heads, than 16 bits can count. A tile of rows for each of them has more elements than 32 bits.
TEST(Failures, F01_F02_F10_many_sequences_backward) {
    const Handle handle = make_handle();
    Rng rng(141);
    for (const auto& [batch, heads, rows, keys] : {std::tuple(70000, 1, 1, 1), std::tuple(8300, 8, 1, 2), std::tuple(1, 70000, 1, 1)}) {
        Case c = shaped({batch, heads, heads, rows, keys, 4, 4});
        c.bind(rng);
        c.fill_normal(rng);
        ASSERT_EQ(differentiate(handle, std::move(c), rng), "");
    }
}

// Every gradient, and dout, with rows or heads further apart than 32 bits can say.
TEST(Failures, F04_F31_far_strides_of_gradients) {
    if (!testing_the_cpu()) GTEST_SKIP() << "sparse host memory cannot be copied to this backend";
    const Handle handle = make_handle();
    for (const bool packed : {false, true})
        for (const int axis : {1, 2}) {
            Rng rng(142);
            Case c = shaped({packed ? 2 : 1, 2, 2, 3, 4, 5, 6});
            if (packed) {
                c.d.operands |= FA_OPERAND_CU_SEQLENS_Q | FA_OPERAND_CU_SEQLENS_K;
                c.metadata.cu_seqlens_q = {0, 3, 5}, c.metadata.cu_seqlens_k = {0, 2, 6};
                c.d.total_q = 5, c.d.total_k = 6;
            }
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(c.run(handle), FA_OK) << handle.error();
            fa_backward_args_t a = FA_BACKWARD_ARGS_INIT;
            for (int64_t* const stride : {a.dout_stride, a.dq_stride, a.dk_stride, a.dv_stride})
                stride[axis] = kFar, stride[3 - axis] = 8, stride[3] = 1;
            a.forward = &c.a;
            const oracle::BackwardReading shape(c.d, a);
            SparseBuffer dout(uint64_t(shape.dout_tensor.extent()) * 4), dq(uint64_t(shape.dq_tensor.extent()) * 4);
            SparseBuffer dk(uint64_t(shape.dk_tensor.extent()) * 4), dv(uint64_t(shape.dv_tensor.extent()) * 4);
            a.dout = dout.as<void>(), a.dq = dq.as<void>(), a.dk = dk.as<void>(), a.dv = dv.as<void>();
            if (!a.dout || !a.dq || !a.dk || !a.dv) GTEST_SKIP() << "no address space for a sparse mapping";
            const oracle::BackwardReading r(c.d, a);
            for (int64_t b = 0; b < c.d.batch; b++)
                for (int64_t h = 0; h < 2; h++)
                    for (int64_t i = 0; i < r.rows(b); i++)
                        for (int64_t e = 0; e < 6; e++) dout.as<float>()[r.dout(b, h, i) + e] = float(rng.normal());
            ASSERT_EQ(fa_backward(handle, &c.d, &a), FA_OK) << handle.error();
            const auto targets = oracle::targets(r, oracle::backward(r, r.upstream()));
            EXPECT_EQ(oracle::compare(r, targets, {FA_F32, FA_F32}).fault, "") << "axis " << axis;
        }
}

TEST(Failures, F13_F14_F15_F40_zero_lengths_backward) {
    const Handle handle = make_handle();
    Rng rng(143);
    const std::vector<std::pair<std::vector<int32_t>, std::vector<int32_t>>> lengths = {
        {{1, 0, 1, 1}, {5, 7, 0, 70}}, {{0, 3, 60, 0}, {0, 0, 65, 9}}, {{0, 0}, {0, 0}}, {{4, 4}, {0, 0}}};
    for (const auto& [rows, keys] : lengths)
        for (int layout = 0; layout < 8; layout++) {
            Case c = shaped({int64_t(rows.size()), 4, 2, *std::max_element(rows.begin(), rows.end()),
                             *std::max_element(keys.begin(), keys.end()), 16, 16});
            if (layout & 4) causal(c, FA_ALIGN_BOTTOM_RIGHT);
            c.d.operands |= layout & 1 ? FA_OPERAND_CU_SEQLENS_Q : FA_OPERAND_SEQUSED_Q;
            c.d.operands |= layout & 2 ? FA_OPERAND_CU_SEQLENS_K : FA_OPERAND_SEQUSED_K;
            c.metadata.seqused_q = rows, c.metadata.seqused_k = keys, c.metadata.cu_seqlens_q = c.metadata.cu_seqlens_k = {0};
            for (const int32_t n : rows) c.metadata.cu_seqlens_q.push_back(c.metadata.cu_seqlens_q.back() + n);
            for (const int32_t n : keys) c.metadata.cu_seqlens_k.push_back(c.metadata.cu_seqlens_k.back() + n);
            if (layout & 1) c.d.total_q = c.metadata.cu_seqlens_q.back();
            if (layout & 2) c.d.total_k = c.metadata.cu_seqlens_k.back();
            c.bind(rng);
            c.fill_normal(rng);
            ASSERT_EQ(differentiate(handle, std::move(c), rng), "");
        }
    for (const auto& [batch, rows, keys] : {std::tuple(0, 3, 3), std::tuple(2, 0, 3), std::tuple(2, 3, 0), std::tuple(0, 0, 0)}) {
        Case c = shaped({batch, 2, 1, rows, keys, 4, 4});
        c.bind(rng);
        ASSERT_EQ(differentiate(handle, std::move(c), rng), "");
    }
}

// Rows and keys beyond the used ones are written 0, though the memory held NaN; left padding is not a key.
TEST(Failures, F17_gradients_beyond_the_lengths_are_zero) {
    const Handle handle = make_handle();
    Rng rng(144);
    for (const int32_t dtype : {FA_F32, FA_F16, FA_BF16}) {
        Case c = shaped({2, 2, 1, 80, 140, 16, 24}, dtype);
        c.d.operands |= FA_OPERAND_SEQUSED_Q | FA_OPERAND_SEQUSED_K | FA_OPERAND_LEFTPAD_K;
        c.metadata.seqused_q = {33, 0}, c.metadata.seqused_k = {97, 40}, c.metadata.leftpad_k = {13, 0};
        c.bind(rng);
        c.fill_normal(rng);
        BackwardCase b(std::move(c));
        ASSERT_EQ(differentiate(handle, b, rng), "");
        const oracle::BackwardReading r = b.reading();
        EXPECT_EQ(oracle::load(r.g.dq, r.dq(0, 0, 33), dtype), 0);
        EXPECT_EQ(oracle::load(r.g.dq, r.dq(1, 1, 79) + 15, dtype), 0);
        EXPECT_EQ(oracle::load(r.g.dk, r.dk(0, 0, 12), dtype), 0);
        EXPECT_NE(oracle::load(r.g.dk, r.dk(0, 0, 13), dtype), 0);
        EXPECT_EQ(oracle::load(r.g.dv, r.dv(0, 0, 97), dtype), 0);
        EXPECT_EQ(oracle::load(r.g.dv, r.dv(1, 0, 0), dtype), 0);  // no row sees it
    }
}

// Fully masked rows, at every place, beside others; whatever q and dout hold there.
std::string empty_rows(const Handle& handle, int32_t dtype, int how, bool with_sink) {
    Rng rng(145);
    Case c = shaped({2, 2, 1, 70, 130, 8, 8}, dtype);
    if (how == 0) causal(c, FA_ALIGN_EXPLICIT), c.metadata.causal_offset = {-35, -200};
    if (how == 1) window(c, 3, 3, FA_ALIGN_EXPLICIT), c.metadata.causal_offset = {-1000, 100};
    if (how <= 1) c.d.operands |= FA_OPERAND_CAUSAL_OFFSET;
    c.d.operands |= how == 2 ? FA_OPERAND_MASK : how == 3 ? FA_OPERAND_BIAS : 0;
    if (how == 2) dense_pairs(c.d, c.d.mask_stride);
    if (how == 3) dense_pairs(c.d, c.d.bias_stride);
    if (with_sink) c.d.operands |= FA_OPERAND_SINKS;
    c.bind(rng);
    c.fill_normal(rng);
    if (how == 2) c.set_mask([](int64_t b, int64_t, int64_t i, int64_t j) { return b == 0 && i % 3 != 0 && j > 65; });
    if (how == 3) c.set_bias([](int64_t b, int64_t, int64_t i, int64_t j) { return b == 0 && i % 3 && j > 65 ? 0.0 : -kInf; });
    for (int64_t h = 0; h < 2 && with_sink; h++) c.sinks.as<float>()[h] = 1.5f;
    BackwardCase b(std::move(c));
    const std::string fault = differentiate(handle, b, rng);
    if (with_sink || fault != "") return fault;
    // The same with an LSE of +inf for such rows, and NaN for what they must not look at.
    const oracle::BackwardReading r = b.reading();
    const std::vector<unsigned char> dk = bytes_of(b.dk), dv = bytes_of(b.dv);
    for (int64_t s = 0; s < 2; s++)
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < 70; i++) {
                float& lse = b.c.lse.as<float>()[r.lse(s, h, i)];
                if (!std::isinf(lse)) continue;
                lse = float(kInf);
                for (int64_t e = 0; e < 8; e++) {
                    oracle::store(b.c.q.as(), r.q(s, h, i) + e, dtype, NAN);
                    oracle::store(b.dout.as(), r.dout(s, h, i) + e, dtype, NAN);
                    oracle::store(b.c.o.as(), r.o(s, h, i) + e, r.o_dtype, NAN);
                }
            }
    if (b.run(handle) != FA_OK) return "fa_backward: " + handle.error();
    if (bytes_of(b.dk) != dk || bytes_of(b.dv) != dv) return "dk or dv has seen them";
    return oracle::load(b.dq.as(), r.dq(how == 1 ? 0 : 1, 0, 0), dtype) == 0 ? "" : "dq of an empty row";
}

TEST(Failures, F18_F19_F21_empty_rows_backward) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (int how = 0; how < 4; how++)
            for (const bool with_sink : {false, true})
                EXPECT_EQ(empty_rows(handle, dtype, how, with_sink), "") << oracle::name_of(dtype) << ", " << how;
}

// A NaN must not disappear: it reaches all that it takes part in, and nothing that a mask keeps from it but in its own tile, where 0 · NaN
// may show: of 128 rows on some GPUs.
TEST(Failures, F42_F43_F47_nan_in_gradients) {
    const Handle handle = make_handle();
    for (int where = 0; where < 4; where++) {
        Rng rng(146);
        Case c = shaped({1, 2, 2, 200, 200, 8, 8});
        causal(c, FA_ALIGN_TOP_LEFT);
        c.bind(rng);
        c.fill_normal(rng);
        const oracle::Reading f = c.reading();
        if (where == 0) oracle::store(c.q.as(), f.q(0, 0, 190), FA_F32, NAN);
        if (where == 1) oracle::store(c.k.as(), f.k(0, 0, 195), FA_F32, NAN);
        if (where == 2) oracle::store(c.v.as(), f.v(0, 0, 195), FA_F32, NAN);
        BackwardCase b(std::move(c));
        ASSERT_EQ(b.run_forward(handle), FA_OK);
        b.bind(rng);
        b.fill_normal(rng);
        if (where == 3) oracle::store(b.dout.as(), b.reading().dout(0, 0, 190), FA_F32, NAN);
        ASSERT_EQ(b.run(handle), FA_OK);
        const oracle::BackwardReading r = b.reading();
        const auto dq = [&](int64_t h, int64_t i) { return oracle::load(b.dq.as(), r.dq(0, h, i), FA_F32); };
        const auto dk = [&](int64_t h, int64_t j) { return oracle::load(b.dk.as(), r.dk(0, h, j), FA_F32); };
        EXPECT_TRUE(std::isnan(dq(0, where == 0 || where == 3 ? 190 : 197))) << where;
        EXPECT_TRUE(std::isnan(dk(0, 10))) << where;
        EXPECT_FALSE(std::isnan(dq(0, 20))) << where << ": far above the NaN";
        for (int64_t n = 0; n < 200; n++) ASSERT_FALSE(std::isnan(dq(1, n)) || std::isnan(dk(1, n))) << where << ": another head";
    }
}

// Every remainder of tiles.
TEST(Failures, F48_tails_backward) {
    const Handle handle = make_handle();
    Rng rng(147);
    for (int64_t n = 1; n < 140; n += n < 70 ? 1 : 7) {
        Case c = shaped({1, 2, 1, n, 1 + (n * 37) % 139, 8, 12}, rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16}));
        if (rng.chance(0.5)) causal(c, FA_ALIGN_BOTTOM_RIGHT);
        c.bind(rng);
        c.fill_normal(rng);
        ASSERT_EQ(differentiate(handle, std::move(c), rng), "");
    }
}

// A bias and a mask end with their last row: of a tile's other rows nothing is read. Buffers end before a guard page, or begin behind one.
TEST(Failures, F48_bias_ends_with_its_rows_backward) {
    const Handle handle = make_handle();
    for (const int32_t dtype : {FA_F32, FA_BF16})
        for (uint64_t seed = 0; seed < 4; seed++) {
            Rng rng(derive(151, seed));
            Case c = shaped({1, 1, 1, 5, 130, 8, 8}, dtype);
            c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_MASK;
            c.d.flags |= FA_DETERMINISTIC;
            dense_pairs(c.d, c.d.bias_stride);
            dense_pairs(c.d, c.d.mask_stride);
            c.d.bias_stride[2] = c.d.mask_stride[2] = 8192;  // rows far apart
            c.bind(rng);
            c.fill_normal(rng);
            c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
            c.set_mask([&](int64_t, int64_t, int64_t, int64_t) { return rng.chance(0.5); });
            ASSERT_EQ(differentiate(handle, std::move(c), rng), "");
        }
}

// Backward draws the forward's mask again, from numbers and from memory alike.
TEST(Failures, F53_F54_dropout_backward) {
    const Handle handle = make_handle();
    std::vector<unsigned char> first;
    for (const bool from_state : {false, true}) {
        Rng rng(148);
        Case c = shaped({2, 2, 2, 60, 90, 8, 8});
        c.d.dropout_p = 0.4f;
        if (from_state) c.d.operands |= FA_OPERAND_RNG_STATE;
        c.bind(rng);
        if (from_state) c.rng_state.as<uint64_t>()[0] = 11, c.rng_state.as<uint64_t>()[1] = 7;
        else c.a.dropout_seed = 11, c.a.dropout_offset = 7;
        Rng values(149);
        c.fill_normal(values);
        BackwardCase b(std::move(c));
        ASSERT_EQ(differentiate(handle, b, values), "");
        EXPECT_TRUE(!from_state || bytes_of(b.dq) == first);
        first = bytes_of(b.dq);
    }
}

// The judge of gradients sees what it is for.
TEST(Failures, F20_judge_of_gradients_sees_planted_faults) {
    const auto verdict = [](const std::function<void(BackwardCase&, const oracle::BackwardReading&)>& plant) {
        Rng rng(150);
        Case c = shaped({1, 2, 1, 9, 11, 4, 4});
        c.d.operands |= FA_OPERAND_BIAS | FA_OPERAND_SINKS;
        dense_pairs(c.d, c.d.bias_stride);
        c.bind(rng);
        c.fill_normal(rng);
        c.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
        c.sinks.as<float>()[0] = c.sinks.as<float>()[1] = 0.5f;
        BackwardCase b(std::move(c));
        b.a.dq_stride[0] = 1000, b.a.dq_stride[1] = 10, b.a.dq_stride[2] = 5, b.a.dq_stride[3] = 1;  // an element between heads
        const Handle handle = make_handle();
        EXPECT_EQ(differentiate(handle, b, rng), "");
        plant(b, b.reading());
        return b.check({FA_F32, FA_F32});
    };
    EXPECT_EQ(verdict([](BackwardCase&, const oracle::BackwardReading&) {}), "");
    using B = BackwardCase;
    using R = oracle::BackwardReading;
    EXPECT_NE(verdict([](B& b, const R& r) { b.dq.as<float>()[r.dq(0, 1, 3)] += 1e-4f; }), "");
    EXPECT_NE(verdict([](B& b, const R& r) { b.dk.as<float>()[r.dk(0, 0, 3)] *= 0.5f; }), "") << "a head of the group left out";
    EXPECT_NE(verdict([](B& b, const R& r) { b.dv.as<float>()[r.dv(0, 0, 10) + 3] = NAN; }), "") << "a tail that was not written";
    EXPECT_NE(verdict([](B& b, const R& r) { b.dbias.as<float>()[r.dbias(0, 0, 8, 10)] = 0; }), "");
    EXPECT_NE(verdict([](B& b, const R&) { b.dsinks.as<float>()[1] *= -1; }), "");
    EXPECT_NE(verdict([](B& b, const R& r) { b.dq.as<float>()[r.dq(0, 0, 3) + 4] = 0; }), "") << "a gap was written";
}

}  // namespace
}  // namespace test
