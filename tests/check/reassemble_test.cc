// Keys cut anywhere, computed apart and merged, give the unsplit answer.
#include <gtest/gtest.h>
#include <cstring>
#include "support/shaped.h"

namespace test {
namespace {

// A forward over keys [begin, end) of a longer sequence: its part of the whole.
void run_part(const Handle& handle, const Case& whole, int64_t begin, int64_t end, bool sink, float* o, float* lse) {
    const oracle::Reading r = whole.reading();
    fa_attention_desc_t d = whole.d;
    fa_forward_args_t a = whole.a;
    d.seqlen_k = end - begin;
    d.o_dtype = FA_F32;
    d.strided |= FA_STRIDED_K | FA_STRIDED_V;
    for (int axis = 0; axis < 4; axis++)
        d.k_stride[axis] = r.k_tensor.stride[size_t(axis)], d.v_stride[axis] = r.v_tensor.stride[size_t(axis)];
    a.k = whole.k.as<char>() + begin * r.k_tensor.stride[1] * oracle::size_of(r.k_dtype);
    a.v = whole.v.as<char>() + begin * r.v_tensor.stride[1] * oracle::size_of(r.k_dtype);
    // The diagonal of the whole, seen from the part.
    const std::vector<int32_t> offset(size_t(d.batch), int32_t(whole.d.seqlen_k - whole.d.seqlen_q - begin));
    if (d.flags & FA_CAUSAL) {
        d.alignment = FA_ALIGN_EXPLICIT;
        d.operands |= FA_OPERAND_CAUSAL_OFFSET;
        a.causal_offset = offset.data();
    }
    if (!sink) d.operands &= ~uint32_t(FA_OPERAND_SINKS), a.sinks = nullptr;
    a.o = o, a.lse = lse;
    ASSERT_EQ(fa_forward_ex(handle, &d, &a), FA_OK) << handle.error();
}

class Reassemble : public testing::TestWithParam<std::tuple<int32_t, bool, bool>> {};

// Split anywhere, empty parts included, merged at once or one by one: the unsplit answer.
TEST_P(Reassemble, SplitAnywhereAndMerged) {
    const auto [dtype, is_causal, with_sinks] = GetParam();
    const Handle handle = make_handle();
    Rng rng(62);
    for (int trial = 0; trial < 12; trial++) {
        Case whole = shaped({2, 4, 2, 37, 150, 16, 12}, dtype);
        whole.d.o_dtype = FA_F32;
        if (is_causal) causal(whole, FA_ALIGN_BOTTOM_RIGHT);
        if (with_sinks) whole.d.operands |= FA_OPERAND_SINKS;
        whole.bind(rng);
        whole.fill_normal(rng);
        for (int64_t h = 0; h < 4 && with_sinks; h++) whole.sinks.as<float>()[h] = float(rng.normal());

        std::vector<int64_t> cuts = {0, rng.between(0, 150), rng.between(0, 150), 150};
        if (cuts[1] > cuts[2]) std::swap(cuts[1], cuts[2]);
        const size_t o_size = 2 * 37 * 4 * 12, lse_size = 2 * 4 * 37;
        std::vector<float> o_parts(3 * o_size), lse_parts(3 * lse_size);
        for (size_t p = 0; p < 3; p++)
            run_part(handle, whole, cuts[p], cuts[p + 1], p == 1, &o_parts[p * o_size], &lse_parts[p * lse_size]);

        fa_merge_args_t a = FA_MERGE_ARGS_INIT;
        a.parts = 3, a.o_parts = o_parts.data(), a.lse_parts = lse_parts.data(), a.o = whole.o.as(), a.lse = whole.lse.as<float>();
        fa_attention_desc_t d = whole.d;
        d.operands &= ~uint32_t(FA_OPERAND_SINKS);  // it entered with part 1
        ASSERT_EQ(fa_merge(handle, &d, &a), FA_OK) << handle.error();
        ASSERT_EQ(check_against_oracle(whole, probability_dtype(handle, whole.d)), "") << cuts[1] << " " << cuts[2];

        // One by one, into the first part's state.
        memcpy(whole.o.as(), o_parts.data(), o_size * 4);
        memcpy(whole.lse.as(), lse_parts.data(), lse_size * 4);
        a.flags = FA_MERGE_ACCUMULATE, a.parts = 1;
        for (size_t p = 1; p < 3; p++) {
            a.o_parts = &o_parts[p * o_size], a.lse_parts = &lse_parts[p * lse_size];
            ASSERT_EQ(fa_merge(handle, &d, &a), FA_OK) << handle.error();
        }
        ASSERT_EQ(check_against_oracle(whole, probability_dtype(handle, whole.d)), "") << cuts[1] << " " << cuts[2];
    }
}
INSTANTIATE_TEST_SUITE_P(All, Reassemble,
                         testing::Combine(testing::Values(FA_F32, FA_F16, FA_BF16, FA_E4M3), testing::Bool(), testing::Bool()));

// Splits inside one call, of any number and size, stay within the bounds of the unsplit one.
TEST(Reassemble, SplitsInsideOneCall) {
    const Handle handle = make_handle();
    Rng rng(63);
    Case c = shaped({2, 4, 2, 37, 333, 16, 12});
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.d.operands |= FA_OPERAND_SINKS;
    c.bind(rng);
    c.fill_normal(rng);
    for (int64_t h = 0; h < 4; h++) c.sinks.as<float>()[h] = float(rng.normal());
    for (int32_t splits = 0; splits < 9; splits++) {
        c.d.num_splits = splits;
        ASSERT_EQ(run_and_check(handle, c), "");
    }
    c.d.num_splits = 0;
    for (const int64_t size : {1, 2, 31, 64, 100, 332, 333, 1000}) {
        c.d.split_size = size;
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

// As a decoding step has them; more splits than a block that merges them has threads, and more columns.
TEST(Reassemble, ManySplitsOfFewRows) {
    const Handle handle = make_handle();
    Rng rng(64);
    Case c = shaped({1, 2, 1, 3, 20000, 8, 140});
    causal(c, FA_ALIGN_BOTTOM_RIGHT);
    c.d.operands |= FA_OPERAND_SINKS;
    c.bind(rng);
    c.fill_normal(rng);
    for (int64_t h = 0; h < 2; h++) c.sinks.as<float>()[h] = float(rng.normal());
    for (const int32_t splits : {9, 300}) {
        c.d.num_splits = splits;
        ASSERT_EQ(run_and_check(handle, c), "");
    }
}

}  // namespace
}  // namespace test
