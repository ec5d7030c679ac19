// Factors, shifts, tails and types of 4 bits in the descriptor, as a forward sees them.
#include "rules.h"

namespace {

constexpr fa_status_t I = FA_INVALID_ARGUMENT;

using D = fa_attention_desc_t&;

Rule<Forward> row(void (*good)(Forward*), fa_status_t status, const char* says, void (*spoil)(D)) {
    return {good, [spoil](Forward& call) { spoil(call.d); }, status, says, "", true};
}

}  // namespace

std::vector<Rule<Forward>> scaled_rows() {
    return {
        row(plain, I, "operands is 0x40: expected FA_OPERAND_K_DESCALE with FA_OPERAND_K_SHIFT",
            [](D d) { d.operands = FA_OPERAND_K_SHIFT; }),
        row(plain, I, "operands is 0x80: expected FA_OPERAND_V_DESCALE with FA_OPERAND_V_SHIFT",
            [](D d) { d.operands = FA_OPERAND_V_SHIFT; }),
        row(padded, I, "k_descale_dtype is e8m0: expected no FA_OPERAND_K_SHIFT",
            [](D d) { d.k_descale_dtype = FA_E8M0, d.operands |= FA_OPERAND_K_SHIFT; }),
        row(padded, I, "q_descale_block[0] is -5: expected 0 or more", [](D d) { d.q_descale_block[0] = -5; }),
        row(padded, I, "v_descale_block[1] is -1: expected 0 or more", [](D d) { d.v_descale_block[1] = -1; }),
        row(padded, I, "k_descale_stride[3] is -1:", [](D d) { d.k_descale_block[1] = 2, d.k_descale_stride[3] = -1; }),
        row(padded, I, "k_descale is 3 x 5 x 2 x 4 elements", [](D d) { d.k_descale_block[1] = 2, d.k_descale_stride[3] = INT64_MAX / 2; }),
        row(plain, I, "dim_tail is 0: expected 1 or more", [](D d) { d.operands = FA_OPERAND_Q_TAIL; }),
        row(plain, I, "dim_tail is 8: expected 7 or less", [](D d) { d.operands = FA_OPERAND_K_TAIL, d.dim_tail = 8; }),
        row(padded, I, "q_tail_dtype is not set: expected FA_F32, FA_F16 or FA_BF16 where q_dtype is e5m2",
            [](D d) { d.operands |= FA_OPERAND_Q_TAIL, d.dim_tail = 2; }),
        row(padded, I, "k_tail_dtype is not set:", [](D d) { d.operands |= FA_OPERAND_K_TAIL, d.dim_tail = 2; }),
        row(plain, I, "k_tail_dtype is e4m3: expected one of f32, f16, bf16",
            [](D d) { d.operands = FA_OPERAND_K_TAIL, d.dim_tail = 2, d.k_tail_dtype = FA_E4M3; }),
        row(plain, I, "q_tail_stride[3] is 0: expected an element stride of 1",
            [](D d) { d.operands = FA_OPERAND_Q_TAIL, d.dim_tail = 2, d.strided = FA_STRIDED_Q_TAIL, d.q_tail_stride[1] = 4; }),
        row(plain, I, "k_tail_stride[1] is 4: expected 0 without FA_STRIDED_K_TAIL",
            [](D d) { d.operands = FA_OPERAND_K_TAIL, d.dim_tail = 2, d.k_tail_stride[1] = 4; }),
        row(plain, I, "dim_qk is 7: expected a multiple of 2, the dims of a unit of i4",
            [](D d) { d.k_dtype = FA_I4, d.v_dtype = FA_F32, d.dim_qk = 7; }),
        row(plain, I, "dim_qk - dim_tail is 5: expected a multiple of 2, the dims of a unit of u4",
            [](D d) { d.k_dtype = FA_U4, d.v_dtype = FA_F32, d.operands = FA_OPERAND_K_TAIL, d.dim_tail = 3; }),
        row(plain, I, "operands is 0x80: expected no FA_OPERAND_V_SHIFT with FA_V_IN_K",
            [](D d) { d.flags = FA_V_IN_K, d.operands = FA_OPERAND_V_SHIFT; }),
    };
}

TEST(ScaledRows, AreChecked) { check_rules(scaled_rows()); }
TEST(ScaledRows, GoodCallWorks) {
    Handle h;
    check_good(h, scaled);
}
