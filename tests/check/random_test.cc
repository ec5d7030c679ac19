// Random forward calls against the oracle, with guard pages around every buffer.
#include <algorithm>
#include "check/random_seeds.h"
#include "support/random_case.h"

namespace test {
namespace {

constexpr int kShards = 24, kCasesPerShard = 1000;  // each shard is a test of its own: they run in parallel

std::string run_one(const Handle& handle, uint64_t seed) {
    Case c = random_case(seed);
    Rng rng(derive(seed, 1));
    const Settings s(rng);
    if (!s.set(handle)) return handle.error();
    if (fa_supports(handle, &c.d, FA_OP_FORWARD) != FA_OK) return "fa_supports: " + handle.error();
    if (s.own_workspace) {
        uint64_t bytes = 0;
        if (fa_workspace_size(handle, &c.d, FA_OP_FORWARD, &bytes) != FA_OK) return "fa_workspace_size: " + handle.error();
        c.use_workspace(bytes, rng);
    }
    if (c.run(handle) != FA_OK) return "fa_forward_ex: " + handle.error();
    const std::string fault = check_against_oracle(c, c.p_dtype);
    return fault.empty() ? "" : fault + s.describe();
}

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, AgreesWithTheOracle) {
    run_shard(GetParam(), kCasesPerShard, run_one, [](uint64_t seed) { return random_case(seed).describe(); });
}

INSTANTIATE_TEST_SUITE_P(Shard, Random, testing::Range(0, kShards));

TEST(RandomCase, OneBySeed) {
    const uint64_t seed = number_from("FA_CASE", derive(kDefaultSeed, 0, 0));
    printf("%s\n", random_case(seed).describe().c_str());
    EXPECT_EQ(run_one(make_handle(), seed), "");
}

// The fields of the descriptor, all that there are (see options.def), and which of them some case has set.
struct FieldSeen {
    const char* name;
    size_t offset, bytes;
    bool set = false;

    void look(const fa_attention_desc_t& desc) {
        const char* const begin = reinterpret_cast<const char*>(&desc) + offset;
        set |= std::any_of(begin, begin + bytes, [](char c) { return c != 0; });
    }
};
std::vector<FieldSeen> every_field() {
    return {
#define FA_FIELD(field) {#field, offsetof(fa_attention_desc_t, field), sizeof(fa_attention_desc_t::field)},
#define FA_OPTION(field, used) FA_FIELD(field)
#include "backend/options.def"
    };
}

// The generator itself: every option turns up, alone and together, in the default run; a reserved field never does.
TEST(RandomCase, ReachesEveryOption) {
    uint64_t operands = 0;
    uint32_t flags = 0, strided = 0;
    bool mixed_types = false, mixed_heads = false;
    uint32_t factor_types = 0, factor_blocks = 0;
    uint64_t types = 0;
    int alignments = 0, stages = 0, algorithms = 0;
    std::vector<FieldSeen> fields = every_field();
    for (uint64_t n = 0; n < 3000; n++) {
        const Case c = random_case(derive(kDefaultSeed, 0, n));
        for (FieldSeen& field : fields) field.look(c.d);
        operands |= c.d.operands, flags |= c.d.flags, strided |= c.d.strided;
        types |= type_bit(c.d.q_dtype) | type_bit(c.d.k_dtype) << 16 | type_bit(c.d.v_dtype) << 32 | type_bit(c.d.o_dtype) << 48;
        const oracle::Reading r = c.reading();
        for (const auto& f : {r.q_factors, r.k_factors, r.v_factors}) {
            factor_types |= 1u << f.dtype;
            factor_blocks |= (f.rows > 1 ? 1u : 0u) | (f.dims > 1 && f.tensor.count[3] > 1 ? 2u : 0u);
        }
        mixed_types |= r.v_dtype != r.k_dtype, mixed_heads |= r.heads_v != r.heads_k;
        alignments |= 1 << c.d.alignment, stages |= 1 << c.d.scores_stage, algorithms |= 1 << c.d.algorithm;
    }
    for (const FieldSeen& field : fields) EXPECT_NE(field.set, fa::is_reserved_field(field.offset)) << field.name;
    EXPECT_EQ(operands, every_operand());
    EXPECT_EQ(flags, fa::kAllFlags);
    EXPECT_EQ(strided, (FA_STRIDED_K_TAIL << 1) - 1u);
    EXPECT_EQ(types, 0x003f'7fff'7fff'003eu);
    EXPECT_EQ(factor_types, 1u << FA_F32 | 1u << FA_F16 | 1u << FA_BF16 | 1u << FA_E4M3 | 1u << FA_E8M0);
    EXPECT_EQ(factor_blocks, 3u);
    EXPECT_TRUE(mixed_types && mixed_heads);
    EXPECT_EQ(alignments, 0xf);
    EXPECT_EQ(stages, 0xf);
    EXPECT_EQ(algorithms, 0x7);
}

}  // namespace
}  // namespace test
