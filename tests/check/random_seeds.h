// Random calls by seeds. FA_SEED=n starts another run; FA_CASES=n has n cases in each shard; FA_CASE=n repeats the one case that a
// failure printed.
#pragma once
#include <gtest/gtest.h>
#include <cstdlib>
#include "backend/options.h"
#include "core/belongings.h"
#include "core/operands.h"
#include "support/handle.h"
#include "support/rng.h"

namespace test {

constexpr uint64_t kDefaultSeed = 20250711;

inline uint64_t number_from(const char* variable, uint64_t otherwise) {
    const char* text = getenv(variable);
    return text ? strtoull(text, nullptr, 0) : otherwise;
}

inline uint64_t every_operand() { return fa::kAllOperands; }

// One bit for each type that a random case may have: 0 (the default), f32, f16, bf16, e4m3, e5m2, i8, five of blocks, and three of 4 bits.
inline uint64_t type_bit(int32_t dtype) {
    const int32_t types[] = {0,       FA_F32,  FA_F16,  FA_BF16, FA_E4M3, FA_E5M2, FA_I8, FA_Q4_0,
                             FA_Q4_1, FA_Q5_0, FA_Q5_1, FA_Q8_0, FA_E2M1, FA_I4,   FA_U4};
    int bit = 0;
    while (types[bit] != dtype) bit++;
    return uint64_t(1) << bit;
}

// What the seed decides beside the case itself.
struct Settings {
    int32_t isa;
    int64_t threads;
    bool own_workspace;

    explicit Settings(Rng& rng)
        : isa(usable_isas()[size_t(rng.between(0, int64_t(usable_isas().size()) - 1))]),
          threads(rng.between(1, 3)),
          own_workspace(rng.chance(0.3)) {}
    // The parameters are the CPU backend's.
    bool set(const Handle& handle) const { return isa == 0 || (handle.set(FA_PARAM_MAX_ISA, isa) && handle.set_threads(threads)); }
    std::string describe() const { return std::string(" [") + isa_name(isa) + ", " + std::to_string(threads) + " threads]"; }
};

// Runs a shard's cases until a few have failed. run_one(handle, seed): what is wrong; describe(seed): the case in words.
template <class RunOne, class Describe>
void run_shard(int shard, uint64_t cases_by_default, RunOne run_one, Describe describe) {
    constexpr int kFaultsShown = 5;
    const Handle handle = make_handle();
    const uint64_t base = number_from("FA_SEED", kDefaultSeed), cases = number_from("FA_CASES", cases_by_default);
    printf("FA_SEED=%llu, shard %d, %llu cases\n", (unsigned long long)base, shard, (unsigned long long)cases);
    int faults = 0;
    for (uint64_t n = 0; n < cases && faults < kFaultsShown; n++) {
        const uint64_t seed = derive(base, uint64_t(shard), n);
        const std::string fault = run_one(handle, seed);
        if (fault.empty()) continue;
        faults++;
        ADD_FAILURE() << fault << "\nrepeat with FA_CASE=" << seed << "\n" << describe(seed);
    }
}

}  // namespace test
