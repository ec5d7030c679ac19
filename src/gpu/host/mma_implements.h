// What the portable matrix kernels implement, and what estimates of other families read of a call, too.
#pragma once
#include "backend/problem.h"

namespace fa {
namespace gpu {

// What mma kernels implement: the forward's, with k and v of q's type or in blocks, or of 8 bits, and the backward's.
constexpr uint64_t kMmaScoreOperands = FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI | FA_OPERAND_SINKS | FA_OPERAND_RNG_STATE;
constexpr uint64_t kMmaOptions = option::bands | option::schedule | option::softcap | option::dropout_p;
constexpr Implements kMmaForward = {
    FA_OPERAND_LSE | kMmaScoreOperands | kSequenceOperands | FA_OPERAND_PAGE_TABLE | FA_OPERAND_O_SCALE | FA_OPERAND_SCORES,
    kMmaOptions | FA_V_IN_K | option::precision};
constexpr Implements kMmaByteForward = {kMmaForward.operands | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE, kMmaForward.options};
constexpr Implements kMmaScaledForward = {kMmaByteForward.operands | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT,
                                          (kMmaForward.options & ~uint64_t(FA_V_IN_K)) | option::v_dtype | option::kv_factors};
constexpr Implements kMmaFp8Forward = {kMmaByteForward.operands | FA_OPERAND_Q_DESCALE, kMmaForward.options};
// Those of them without anything to do to scores and probabilities beside products and bands.
constexpr Implements kPlainScores = {kMmaFp8Forward.operands & ~(FA_OPERAND_BIAS | FA_OPERAND_MASK | FA_OPERAND_ALIBI),
                                     kMmaForward.options & ~(option::score_mods | option::dropout_p)};
constexpr Implements kMmaBackward = {FA_OPERAND_LSE | kMmaScoreOperands | kSequenceOperands | FA_OPERAND_O_SCALE, kMmaOptions};

}  // namespace gpu
}  // namespace fa
