// A program that computes with tile registers of its own, which it configures once a thread, calls the library in between.
#include <gtest/gtest.h>
#include "isa.h"
#include "support/random_case.h"
#include "support/shaped.h"

#if defined(__x86_64__)
namespace test {
namespace {

// Unlike any of the library's: three tiles of 5 × 5 products of 8-bit integers.
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {20, 20, 20};
    uint8_t rows[16] = {5, 5, 5};
    void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this) : "memory"); }
    static TileConfig loaded() {
        TileConfig c;
        __asm__ volatile("sttilecfg %0" : "=m"(c)::"memory");
        return c;
    }
    bool operator==(const TileConfig& other) const { return memcmp(this, &other, sizeof *this) == 0; }
};

struct Square {
    int32_t value[25];
};
Square register_0() {
    Square s;
    __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(s.value), "r"(int64_t(20)) : "memory");
    return s;
}
bool operator==(const Square& a, const Square& b) { return memcmp(&a, &b, sizeof a) == 0; }
const Square kZeros{};

// With the configuration that is loaded.
Square product() {
    int8_t left[100], right[100];
    for (int i = 0; i < 100; i++) left[i] = int8_t(i * 7), right[i] = int8_t(50 - i);
    __asm__ volatile(
        "tileloadd (%0,%2,1), %%tmm1\n tileloadd (%1,%2,1), %%tmm2\n tilezero %%tmm0\n tdpbssd %%tmm2, %%tmm1, %%tmm0" ::"r"(left),
        "r"(right), "r"(int64_t(20))
        : "memory");
    return register_0();
}

// What one thread sees of its registers around some work. Registers that come back as zeros tell that the work used them.
struct Seen {
    bool kept = false, goes_on = false, used = false;
};
template <class Work>
Seen around(const Work& work) {
    const TileConfig own;
    own.load();
    const Square before = product();
    work();
    Seen seen;
    seen.kept = TileConfig::loaded() == own;
    if (!seen.kept) return seen;
    seen.used = register_0() == kZeros;
    seen.goes_on = product() == before;
    __asm__ volatile("tilerelease");
    return seen;
}

enum : uint32_t { kBackward = 1, kCausal = 2, kAlibi = 4, kNative = 8 };
struct Kernel {
    const char* name;
    Shape shape;
    int32_t q, kv;
    uint32_t is = 0;
};
void PrintTo(const Kernel& kernel, std::ostream* out) { *out << kernel.name; }

constexpr Shape kRows64 = {1, 2, 2, 130, 260, 64, 64}, kRows128 = {1, 2, 2, 130, 260, 128, 96};
Shape decoding(int64_t rows) { return {2, rows, 1, 1, 200, 128, 128}; }
const Kernel kKernels[] = {
    {"forward_d64", kRows64, FA_BF16, FA_BF16},
    {"forward", kRows128, FA_BF16, FA_BF16},
    {"forward_wide", {1, 1, 1, 70, 130, 256, 256}, FA_BF16, FA_BF16},
    {"forward_of_f16", kRows128, FA_F16, FA_F16},
    {"forward_of_bytes", kRows128, FA_BF16, FA_E4M3},
    {"forward_of_blocks", {1, 4, 2, 130, 260, 128, 128}, FA_F32, FA_Q8_0, kNative},
    {"forward_of_f32_rounded", kRows128, FA_F32, FA_BF16, kNative},
    {"refs_at_diagonal", kRows128, FA_BF16, FA_BF16, kCausal | kAlibi},
    {"backward_d64", kRows64, FA_BF16, FA_BF16, kBackward},
    {"backward", kRows128, FA_BF16, FA_BF16, kBackward},
    {"backward_causal", kRows128, FA_BF16, FA_BF16, kBackward | kCausal},
    {"decode_spread", decoding(4), FA_BF16, FA_BF16},
    {"decode_spread_of_e4m3", decoding(4), FA_BF16, FA_E4M3},
    {"decode_spread_of_e5m2", decoding(2), FA_BF16, FA_E5M2},
    {"decode_matrix", decoding(12), FA_BF16, FA_BF16},
    {"decode_matrix_of_f32_rounded", decoding(12), FA_F32, FA_BF16, kNative},
    {"decode_matrix_of_e4m3", decoding(12), FA_BF16, FA_E4M3},
    {"decode_matrix_of_integers", decoding(4), FA_BF16, FA_I8},
    {"decode_matrix_of_more_integers", decoding(12), FA_BF16, FA_I8},
    {"f32", kRows64, FA_F32, FA_F32},
    {"decode_one_row", decoding(1), FA_BF16, FA_BF16},
    {"decode_dots_of_blocks", decoding(8), FA_BF16, FA_Q4_0, kNative},
};

class CallersTiles : public testing::TestWithParam<std::tuple<int32_t, Kernel>> {
  protected:
    const Handle handle = make_handle();
    const Kernel kernel = std::get<1>(GetParam());
    Rng rng{derive(461, uint64_t(kernel.shape.rows * 1024 + kernel.kv))};

    void SetUp() override { FA_USE_ISA(handle, std::get<0>(GetParam())); }
    // By products of f16 alone on the higher level; the last three have none.
    bool uses_tiles() const {
        const std::string name = kernel.name;
        if (name == "forward_of_f16") return std::get<0>(GetParam()) == FA_ISA_AMX_FP16;
        return name != "f32" && name != "decode_one_row" && name != "decode_dots_of_blocks";
    }
    BackwardCase make() {
        Case c = shaped(kernel.shape, kernel.q);
        c.d.k_dtype = kernel.kv;
        if (kernel.is & kNative) c.d.precision = FA_PRECISION_NATIVE;
        if (kernel.is & kCausal) causal(c, FA_ALIGN_BOTTOM_RIGHT);
        if (kernel.is & kAlibi) c.d.operands |= FA_OPERAND_ALIBI;
        if (kernel.kv == FA_I8) c.d.operands |= FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE;
        c.bind(rng);
        c.fill_normal(rng);
        if (kernel.kv == FA_I8) c.set_descales(rng, 1);
        for (int64_t h = 0; (kernel.is & kAlibi) && h < kernel.shape.heads_q; h++) c.alibi.as<float>()[h] = 0.25f;
        BackwardCase b(std::move(c));
        EXPECT_EQ(b.run_forward(handle), FA_OK) << handle.error();
        if (!(kernel.is & kBackward)) return b;
        b.bind(rng);
        b.fill_normal(rng);
        return b;
    }
    fa_status_t call(const Handle& on, BackwardCase& backward) const {
        return (kernel.is & kBackward) ? backward.run(on) : backward.run_forward(on);
    }
};

TEST_P(CallersTiles, AreStillConfigured) {
    BackwardCase b = make();
    ASSERT_TRUE(handle.set_threads(1));
    const Seen seen = around([&] { EXPECT_EQ(call(handle, b), FA_OK) << handle.error(); });
    EXPECT_TRUE(seen.kept) << "the program's next tile instruction would end it";
    EXPECT_TRUE(seen.goes_on);
    EXPECT_EQ(seen.used, uses_tiles()) << "is this still the kernel that the test is about?";
}

// None loaded: none afterwards, or every switch of context would carry them.
TEST_P(CallersTiles, AreReleasedWhereNoneWere) {
    BackwardCase b = make();
    ASSERT_TRUE(handle.set_threads(1));
    __asm__ volatile("tilerelease");
    EXPECT_EQ(call(handle, b), FA_OK) << handle.error();
    EXPECT_EQ(TileConfig::loaded().palette, 0);
}

// The program's threads, which have a configuration each.
TEST_P(CallersTiles, AreStillConfiguredOnPoolThreads) {
    static std::vector<Seen> seen;
    fa_create_info_t info = FA_CREATE_INFO_INIT;
    info.parallel_for = [](void*, int64_t n, void (*body)(void*, int64_t), void* arg) {
        for (int64_t i = 0; i < n; i++) seen.push_back(around([&] { body(arg, i); }));
        return fa_status_t(FA_OK);
    };
    BackwardCase b = make();
    const Handle pooled = make_handle(info);
    ASSERT_TRUE(pooled.set(FA_PARAM_MAX_ISA, std::get<0>(GetParam())) && pooled.set(FA_PARAM_THREADS, 3));
    seen.clear();
    EXPECT_EQ(call(pooled, b), FA_OK) << pooled.error();
    EXPECT_FALSE(seen.empty());
    for (const Seen& one : seen) EXPECT_TRUE(one.kept && one.goes_on);
}

INSTANTIATE_TEST_SUITE_P(Amx, CallersTiles, testing::Combine(testing::Values(FA_ISA_AMX, FA_ISA_AMX_FP16), testing::ValuesIn(kKernels)),
                         [](const auto& info) {
                             return std::string(isa_name(std::get<0>(info.param))) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace
}  // namespace test
#endif
