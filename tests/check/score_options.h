// What calls do to scores and weights, in turn: kernels that keep these in units of their own have to undo them.
#pragma once
#include <gtest/gtest.h>
#include "support/shaped.h"

namespace test {

enum class ScoreOption { softcap, window, bias, alibi_and_sinks, scores };
constexpr ScoreOption kScoreOptions[] = {ScoreOption::softcap, ScoreOption::window, ScoreOption::bias, ScoreOption::alibi_and_sinks,
                                         ScoreOption::scores};

inline void want_option(Case& test_case, ScoreOption option) {
    switch (option) {
        case ScoreOption::softcap: test_case.d.softcap = 3; break;
        case ScoreOption::window: window(test_case, 30, 5, FA_ALIGN_BOTTOM_RIGHT); break;
        case ScoreOption::bias: test_case.d.operands |= FA_OPERAND_BIAS, dense_pairs(test_case.d, test_case.d.bias_stride); break;
        case ScoreOption::alibi_and_sinks:
            test_case.d.operands |= FA_OPERAND_ALIBI | FA_OPERAND_SINKS, test_case.d.alignment = FA_ALIGN_BOTTOM_RIGHT;
            break;
        case ScoreOption::scores: test_case.d.operands |= FA_OPERAND_SCORES, dense_pairs(test_case.d, test_case.d.scores_stride); break;
    }
}
// Of a case that has been bound and filled.
inline void fill_option(Case& test_case, ScoreOption option, Rng& rng) {
    if (option == ScoreOption::bias) test_case.set_bias([&](int64_t, int64_t, int64_t, int64_t) { return rng.normal(); });
    if (option != ScoreOption::alibi_and_sinks) return;
    ASSERT_EQ(fa_alibi_slopes(int32_t(test_case.d.heads_q), 0, test_case.alibi.as<float>()), FA_OK);
    for (int64_t n = 0; n < test_case.d.heads_q; n++) test_case.sinks.as<float>()[n] = float(rng.normal());
}

}  // namespace test
