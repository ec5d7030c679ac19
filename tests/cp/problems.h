// Problems from one number, and the ways to spread them.
#pragma once
#include <gtest/gtest.h>
#include <ostream>
#include "spread.h"

namespace test {

struct Way {
    int32_t method, layout;
    const char* name;
};
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

constexpr Way kWays[] = {
    {FA_CP_METHOD_ULYSSES, FA_CP_LAYOUT_CONTIGUOUS, "ulysses"},
    {FA_CP_METHOD_ULYSSES, FA_CP_LAYOUT_ZIGZAG, "ulysses zigzag"},
    {FA_CP_METHOD_ALL_GATHER, FA_CP_LAYOUT_CONTIGUOUS, "all-gather"},
    {FA_CP_METHOD_ALL_GATHER, FA_CP_LAYOUT_ZIGZAG, "all-gather zigzag"},
    {FA_CP_METHOD_RING, FA_CP_LAYOUT_CONTIGUOUS, "ring"},
    {FA_CP_METHOD_RING, FA_CP_LAYOUT_ZIGZAG, "ring zigzag"},
};

inline std::string name_of_way(const testing::TestParamInfo<Way>& info) {
    std::string name = info.param.name;
    for (char& letter : name)
        if (!isalnum(static_cast<unsigned char>(letter))) letter = '_';
    return name;
}

// Binds and fills it.
void fill(Case& test_case, Rng& rng);

// Masks, alignments, lengths, types and operands. pairs: also bias and mask; chunks: also a chunk; differentiable: what a backward
// takes.
Case problem(uint64_t seed, bool pairs, bool chunks, bool differentiable);

// How to spread it over 2 to 8 ranks.
Spread spread_of(const Way& way, const Case& test_case, Rng& rng);

}  // namespace test
