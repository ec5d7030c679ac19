// Random backward calls against the oracle, in the same way.
#include "check/random_seeds.h"
#include "support/random_case.h"

namespace test {
namespace {

constexpr int kGradientShards = 10, kGradientsPerShard = 1000;

std::string run_gradients(const Handle& handle, uint64_t seed) {
    BackwardCase b(random_differentiable_case(seed));
    Rng rng(derive(seed, 2));
    const Settings s(rng);
    if (!s.set(handle)) return handle.error();
    if (b.run_forward(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
    choose_gradients(rng, b);
    b.bind(rng);
    b.fill_normal(rng, rng.pick<double>({1, 1, 8}));
    if (fa_supports(handle, &b.c.d, FA_OP_BACKWARD) != FA_OK) return "fa_supports: " + handle.error();
    if (s.own_workspace) {
        uint64_t bytes = 0;
        if (fa_workspace_size(handle, &b.c.d, FA_OP_BACKWARD, &bytes) != FA_OK) return "fa_workspace_size: " + handle.error();
        b.use_workspace(bytes, rng);
    }
    const std::string fault = run_and_check(handle, b);
    return fault.empty() ? "" : fault + s.describe();
}

class RandomBackward : public testing::TestWithParam<int> {};

TEST_P(RandomBackward, AgreesWithTheOracle) {
    run_shard(GetParam(), kGradientsPerShard, run_gradients, [](uint64_t) { return ""; });
}

INSTANTIATE_TEST_SUITE_P(Shard, RandomBackward, testing::Range(0, kGradientShards));

TEST(RandomBackwardCase, OneBySeed) { EXPECT_EQ(run_gradients(make_handle(), number_from("FA_CASE", derive(kDefaultSeed, 0, 0))), ""); }

// The generator itself: every option that has gradients turns up, and every choice among these.
TEST(RandomBackwardCase, ReachesEveryOption) {
    uint64_t operands = 0;
    uint32_t flags = 0, strided = 0, asked = 0, own_strides = 0, sums = 0;
    uint64_t types = 0;
    for (uint64_t n = 0; n < 2000; n++) {
        BackwardCase b(random_differentiable_case(derive(kDefaultSeed, 0, n)));
        Rng rng(derive(n, 2));
        choose_gradients(rng, b);
        operands |= b.c.d.operands, flags |= b.c.d.flags, strided |= b.c.d.strided;
        types |= type_bit(b.c.d.q_dtype) | type_bit(b.c.d.k_dtype) << 8 | type_bit(b.c.d.o_dtype) << 16;
        const bool asks[] = {
            b.wants_dq, b.wants_dk, b.wants_dv, b.wants_dbias, b.wants_dsinks, b.gives_dlse, (b.a.flags & FA_BACKWARD_ACCUMULATE) != 0};
        for (int bit = 0; bit < 7; bit++) asked |= 1u << (2 * bit + asks[bit]);
        const int64_t* const strides[] = {b.a.dq_stride, b.a.dk_stride, b.a.dv_stride, b.a.dout_stride, b.a.dlse_stride, b.a.dbias_stride};
        for (int bit = 0; bit < 6; bit++) own_strides |= uint32_t(strides[bit][2] != 0) << bit;
        for (int bit = 0; bit < 4; bit++) sums |= uint32_t(b.a.dbias_stride[bit] == 0) << bit;
    }
    const uint64_t none = FA_OPERAND_KV_BATCH_IDX | FA_OPERAND_PAGE_TABLE | FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE |
                          FA_OPERAND_V_DESCALE | FA_OPERAND_O_SCALE | FA_OPERAND_SCORES | FA_OPERAND_Q_TAIL | FA_OPERAND_K_TAIL |
                          FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT;
    EXPECT_EQ(operands, every_operand() & ~none);
    EXPECT_EQ(flags, fa::kAllFlags & ~uint32_t(FA_V_IN_K));
    EXPECT_EQ(strided, (FA_STRIDED_LSE << 1) - 1u);
    EXPECT_EQ(types, 0xeu | 0xf << 8 | 0xf << 16);
    EXPECT_EQ(asked, 0x3fffu);
    EXPECT_EQ(own_strides, 0x3fu);
    EXPECT_EQ(sums, 0xfu);
}

}  // namespace
}  // namespace test
