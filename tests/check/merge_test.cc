// fa_merge against its oracle, and against the forward that it must reassemble.
#include <gtest/gtest.h>
#include <algorithm>
#include <cfloat>
#include <cmath>
#include "support/random_case.h"
#include "support/shaped.h"
#include "support/writes.h"

namespace test {
namespace {

// One random call: any layout, any type, parts that are empty, lengths of every kind.
class RandomMerge {
  public:
    explicit RandomMerge(uint64_t seed) : rng(seed) {
        types();
        lengths();
        layouts();
        data();
    }

    std::string run(const Handle& handle) {
        Watched watched;
        watched.watch(o).watch(lse);
        const std::vector<oracle::Write> want = oracle::merge(d, a);
        on_fault_print("merge: " + describe(d));
        if (fa_merge(handle, &d, &a) != FA_OK) return "fa_merge: " + handle.error() + "\n" + describe(d);
        const std::string fault = watched.check(want);
        return fault.empty() ? "" : fault + (accumulate ? " (accumulate)" : "") + "\n" + describe(d);
    }

  private:
    Rng rng;
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    bool accumulate = false, packed = false;
    std::vector<int32_t> cu, used;
    Buffer cu_buffer, used_buffer, o_parts, lse_parts, o, lse, sinks, o_scale;
    std::array<int64_t, 5> o_stride{};  // of the parts, as they are read
    std::array<int64_t, 4> lse_stride{};

    bool has(uint32_t operand) const { return (d.operands & operand) != 0; }

    void types() {
        accumulate = rng.chance(0.25);
        if (accumulate) a.flags |= FA_MERGE_ACCUMULATE;
        d.o_dtype = accumulate ? int32_t(FA_F32) : rng.pick<int32_t>({FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2});
        d.q_dtype = rng.chance(0.5) ? d.o_dtype : 0;
        if (accumulate || rng.chance(0.7)) d.operands |= FA_OPERAND_LSE;
        if (rng.chance(0.2)) d.operands |= FA_OPERAND_SINKS;
        if (!accumulate && rng.chance(oracle::size_of(d.o_dtype) == 1 ? 0.5 : 0.2)) d.operands |= FA_OPERAND_O_SCALE;
    }

    void lengths() {
        d.batch = rng.between(0, 3), d.heads_q = rng.between(1, 5), d.seqlen_q = rng.between(0, 20);
        d.dim_v = rng.chance(0.95) ? rng.between(1, 70) : rng.between(1, 1024);
        a.parts = rng.between(0, 4);
        packed = rng.chance(0.35);
        cu.push_back(int32_t(rng.between(0, 3)));
        for (int64_t b = 0; b < d.batch; b++) {
            const int64_t room = packed ? rng.between(0, d.seqlen_q) : d.seqlen_q;
            cu.push_back(cu.back() + int32_t(room)), used.push_back(int32_t(rng.between(0, room)));
        }
        cu_buffer = ints(rng, cu), used_buffer = ints(rng, used);
        if (packed)
            d.operands |= FA_OPERAND_CU_SEQLENS_Q, d.total_q = cu.back() + rng.between(0, 3), a.cu_seqlens_q = cu_buffer.as<int32_t>();
        if (rng.chance(0.3)) d.operands |= FA_OPERAND_SEQUSED_Q, a.seqused_q = used_buffer.as<int32_t>();
    }

    oracle::Reading reading() const {
        fa_forward_args_t meta = FA_FORWARD_ARGS_INIT;
        meta.cu_seqlens_q = a.cu_seqlens_q, meta.seqused_q = a.seqused_q;
        return {d, meta};
    }

    // Elements from the first to the last of `count` ones, `stride` apart.
    template <size_t N>
    static int64_t extent(const std::array<int64_t, N>& count, const std::array<int64_t, N>& stride) {
        int64_t last = 0;
        for (size_t axis = 0; axis < N; axis++) {
            if (count[axis] == 0) return 0;
            last += (count[axis] - 1) * stride[axis];
        }
        return last + 1;
    }

    void layouts() {
        const int64_t outer = packed ? 1 : d.batch, rows = packed ? d.total_q : d.seqlen_q;
        const std::array<int64_t, 5> o_count = {a.parts, outer, rows, d.heads_q, d.dim_v};
        const std::array<int64_t, 4> lse_count = {a.parts, outer, d.heads_q, rows};
        if (rng.chance(0.5)) {
            d.strided = FA_STRIDED_O | FA_STRIDED_LSE;
            random_strides(rng, 3, &o_count[1], d.dim_v, d.o_stride);
            random_strides(rng, 3, &lse_count[1], 1, d.lse_stride);
            d.o_stride[3] = 1;
            if (packed) d.o_stride[0] = d.lse_stride[0] = 0;
        }
        o_stride = {outer * rows * d.heads_q * d.dim_v, rows * d.heads_q * d.dim_v, d.heads_q * d.dim_v, d.dim_v, 1};
        lse_stride = {outer * d.heads_q * rows, d.heads_q * rows, rows, 1};
        if (rng.chance(0.5)) {
            random_strides(rng, 4, o_count.data(), d.dim_v, o_stride.data());
            random_strides(rng, 4, lse_count.data(), 1, lse_stride.data());
            if (packed) o_stride[1] = lse_stride[1] = 0;
            std::copy(o_stride.begin(), o_stride.end(), a.o_parts_stride);
            std::copy(lse_stride.begin(), lse_stride.end(), a.lse_parts_stride);
        }
        const oracle::Reading r = reading();
        o_parts = Buffer(extent(o_count, o_stride) * 4, random_side(rng));
        lse_parts = Buffer(extent(lse_count, lse_stride) * 4, random_side(rng));
        o = Buffer(r.o_tensor.extent() * oracle::size_of(d.o_dtype), random_side(rng));
        lse = Buffer(has(FA_OPERAND_LSE) ? r.lse_tensor.extent() * 4 : 0, random_side(rng));
        sinks = Buffer(d.heads_q * 4, random_side(rng)), o_scale = Buffer(4, random_side(rng));
        a.o_parts = o_parts.as<float>(), a.lse_parts = lse_parts.as<float>(), a.o = o.as();
        a.lse = has(FA_OPERAND_LSE) ? lse.as<float>() : nullptr;
        a.sinks = has(FA_OPERAND_SINKS) ? sinks.as<float>() : nullptr;
        a.o_scale = has(FA_OPERAND_O_SCALE) ? o_scale.as<float>() : nullptr;
    }

    // One state; an empty one keeps its NaN.
    void draw(double heat, float* row, float* row_lse) {
        *row_lse = float(rng.chance(0.15) ? -kInf : rng.chance(0.1) ? kInf : heat * rng.normal());
        for (int64_t e = 0; e < d.dim_v && !std::isinf(*row_lse); e++) row[e] = float(rng.normal());
    }

    void data() {
        const oracle::Reading r = reading();
        const double heat = rng.pick<double>({1, 30, 3000});
        for (int64_t h = 0; h < d.heads_q; h++) sinks.as<float>()[h] = rng.chance(0.1) ? -float(kInf) : float(2 * rng.normal());
        *o_scale.as<float>() = float(rng.uniform(0.5, 4));
        for (int64_t b = 0; b < d.batch; b++)
            for (int64_t i = 0; i < r.rows(b); i++)
                for (int64_t h = 0; h < d.heads_q; h++) {
                    const int64_t row = packed ? cu[size_t(b)] + i : i, outer = packed ? 0 : b;
                    for (int64_t p = 0; p < a.parts; p++)
                        draw(heat, o_parts.as<float>() + p * o_stride[0] + outer * o_stride[1] + row * o_stride[2] + h * o_stride[3],
                             lse_parts.as<float>() + p * lse_stride[0] + outer * lse_stride[1] + h * lse_stride[2] + row * lse_stride[3]);
                    if (accumulate) draw(heat, o.as<float>() + r.o(b, h, i), lse.as<float>() + r.lse(b, h, i));
                }
    }
};

TEST(Merge, RandomPartsAgreeWithTheOracle) {
    const Handle handle = make_handle();
    for (uint64_t n = 0; n < 3000; n++) ASSERT_EQ(RandomMerge(derive(61, n)).run(handle), "") << "number " << n;
}

// Hand-sized algebra: the empty state is neutral, two of them stay empty, NaN comes through.
struct Pair {
    float o, lse;
};
Pair merge_two(const Handle& handle, Pair x, Pair y) {
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = d.heads_q = d.seqlen_q = d.dim_v = 1, d.operands = FA_OPERAND_LSE;
    const float o_parts[] = {x.o, y.o}, lse_parts[] = {x.lse, y.lse};
    Pair out{NAN, NAN};
    fa_merge_args_t a = FA_MERGE_ARGS_INIT;
    a.parts = 2, a.o_parts = o_parts, a.lse_parts = lse_parts, a.o = &out.o, a.lse = &out.lse;
    EXPECT_EQ(fa_merge(handle, &d, &a), FA_OK) << handle.error();
    return out;
}

TEST(Failures, F23_F24_F25_F26_merging_empty_states) {
    const Handle handle = make_handle();
    const float inf = float(kInf);
    for (const float empty : {-inf, inf})
        for (const float stale : {0.f, float(NAN), inf, 1e30f}) {
            const Pair both = merge_two(handle, {stale, empty}, {stale, -empty});
            EXPECT_EQ(both.o, 0);
            EXPECT_EQ(both.lse, -inf);
            for (const bool first : {false, true}) {
                const Pair one =
                    first ? merge_two(handle, {stale, empty}, {2.5f, 0.75f}) : merge_two(handle, {2.5f, 0.75f}, {stale, empty});
                EXPECT_EQ(one.o, 2.5f);
                EXPECT_NEAR(one.lse, 0.75f, 1e-6);
            }
        }
    EXPECT_TRUE(std::isnan(merge_two(handle, {1, float(NAN)}, {1, 0}).lse));
    EXPECT_TRUE(std::isnan(merge_two(handle, {1, 0}, {1, float(NAN)}).o));
    EXPECT_TRUE(std::isnan(merge_two(handle, {float(NAN), 0}, {1, 0}).o));
}

// Below the range of log2 units an LSE is as −∞, and so is a sink; above it, as +∞ of a score.
TEST(Failures, F75_lowest_lse_of_a_part_is_empty) {
    const Handle handle = make_handle();
    for (const float lowest : {-FLT_MAX, -3e38f, -2.4e38f})
        for (const float stale : {0.f, 7.f, float(NAN)}) {
            const Pair both = merge_two(handle, {stale, lowest}, {stale, lowest});
            EXPECT_EQ(both.o, 0);
            EXPECT_EQ(both.lse, -float(kInf));
            for (const Pair& one : {merge_two(handle, {stale, lowest}, {2.5f, 0.75f}), merge_two(handle, {2.5f, 0.75f}, {stale, lowest})}) {
                EXPECT_EQ(one.o, 2.5f);
                EXPECT_NEAR(one.lse, 0.75f, 1e-6);
            }
        }
    const Pair low = merge_two(handle, {3, -2e38f}, {5, -2e38f}), high = merge_two(handle, {3, 2e38f}, {5, 1e38f});
    EXPECT_EQ(low.o, 4);
    EXPECT_NEAR(low.lse / -2e38f, 1, 1e-6);
    EXPECT_EQ(high.o, 3);
    EXPECT_NEAR(high.lse / 2e38f, 1, 1e-6);
    EXPECT_TRUE(std::isnan(merge_two(handle, {1, FLT_MAX}, {1, 0}).lse));
}

TEST(Failures, F75_lowest_sink_of_a_merge_is_none) {
    const Handle handle = make_handle();
    fa_attention_desc_t d = FA_ATTENTION_DESC_INIT;
    d.q_dtype = FA_F32, d.batch = d.heads_q = d.seqlen_q = d.dim_v = 1, d.operands = FA_OPERAND_LSE | FA_OPERAND_SINKS;
    const float part = 3, part_lse = 0.5f;
    for (const int64_t parts : {0, 1})
        for (const uint32_t flags : {uint32_t(0), uint32_t(FA_MERGE_ACCUMULATE)})
            for (const float sink : {-FLT_MAX, -2.4e38f, -float(kInf)}) {
                const bool empty = parts == 0 && flags == 0;
                float o = 3, lse = parts == 0 ? 0.5f : sink;  // what is accumulated into is that part, or below the range
                fa_merge_args_t a = FA_MERGE_ARGS_INIT;
                a.flags = flags, a.parts = parts, a.o_parts = &part, a.lse_parts = &part_lse, a.o = &o, a.lse = &lse, a.sinks = &sink;
                ASSERT_EQ(fa_merge(handle, &d, &a), FA_OK) << handle.error();
                EXPECT_EQ(o, empty ? 0 : 3) << sink;
                EXPECT_EQ(lse, empty ? -float(kInf) : 0.5f) << sink;
            }
}

TEST(Failures, F27_lse_is_the_natural_logarithm) {
    const Handle handle = make_handle();
    const Pair whole = merge_two(handle, {1, float(std::log(3.0))}, {5, 0});
    EXPECT_NEAR(whole.o, (3 * 1 + 1 * 5) / 4.0, 1e-6);
    EXPECT_NEAR(whole.lse, std::log(4.0), 1e-6);
    // The order of parts changes nothing beyond rounding, and neither does their grouping.
    const Pair x{0.5f, 1}, y{-2, -3}, z{7, 0.25f};
    EXPECT_NEAR(merge_two(handle, x, y).o, merge_two(handle, y, x).o, 1e-6);
    EXPECT_NEAR(merge_two(handle, merge_two(handle, x, y), z).o, merge_two(handle, x, merge_two(handle, y, z)).o, 1e-6);
}

}  // namespace
}  // namespace test
