#include "core/factors.h"
#include "core/belongings.h"
#include "core/dtype.h"
#include "spec/shape.h"

namespace fa {
namespace {

// Factors of one tensor: the fields that say them.
struct Side {
    const char *block_name, *dtype_name;
    uint64_t factor, shift;
    int32_t* dtype;
    int64_t* block;
    const int64_t* stride;
    int64_t dims;
};
struct Sides {
    Side side[3];
    explicit Sides(Problem* problem) {
        fa_attention_desc_t& d = problem->d;
        side[0] = {"q_descale_block",  "q_descale_dtype", FA_OPERAND_Q_DESCALE, 0,
                   &d.q_descale_dtype, d.q_descale_block, d.q_descale_stride,   problem->q_dims()};
        side[1] = {"k_descale_block",  "k_descale_dtype", FA_OPERAND_K_DESCALE, FA_OPERAND_K_SHIFT,
                   &d.k_descale_dtype, d.k_descale_block, d.k_descale_stride,   problem->k_dims()};
        side[2] = {"v_descale_block",  "v_descale_dtype", FA_OPERAND_V_DESCALE, FA_OPERAND_V_SHIFT,
                   &d.v_descale_dtype, d.v_descale_block, d.v_descale_stride,   problem->v_dims()};
    }
};

fa_status_t check_side(const Problem& problem, const Side& side, Message* message) {
    for (int i = 0; i < 2; i++)
        if (side.block[i] < 0)
            return fail(message, FA_INVALID_ARGUMENT, "%s[%d] is %lld: expected 0 or more", side.block_name, i, ll(side.block[i]));
    if (side.shift && problem.has(side.shift)) {
        if (!problem.has(side.factor))
            return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected %s with %s", llu(problem.d.operands),
                        operand_name(side.factor), operand_name(side.shift));
        if (*side.dtype == FA_E8M0)
            return fail(message, FA_INVALID_ARGUMENT, "%s is e8m0: expected no %s, since a shift has the type of the scales",
                        side.dtype_name, operand_name(side.shift));
    }
    if (*side.dtype == 0) *side.dtype = FA_F32;
    side.block[0] = max_of(min_of(side.block[0], kMaxSize), 1);
    if (side.block[1] == 0 || side.block[1] > side.dims) side.block[1] = side.dims;
    return FA_OK;
}

}  // namespace

fa_status_t check_factors(Problem* problem, int32_t op, Message* message) {
    const Sides sides(problem);
    for (int i = attends(op) ? 0 : 1; i < 3; i++) FA_TRY(check_side(*problem, sides.side[i], message));
    return FA_OK;
}

void settle_blocks(Problem* problem) {
    const Sides sides(problem);
    for (const Side& s : sides.side) {
        if (!problem->has(s.factor)) continue;
        if (s.stride[1] == 0) s.block[0] = 1;
        if (s.stride[3] == 0) s.block[1] = s.dims;
    }
}

fa_status_t check_tails(fa_attention_desc_t* desc, int32_t op, Message* message) {
    const struct {
        const char* name;
        uint64_t operand;
        int32_t* dtype;
    } tails[] = {{"q_tail_dtype", FA_OPERAND_Q_TAIL, &desc->q_tail_dtype}, {"k_tail_dtype", FA_OPERAND_K_TAIL, &desc->k_tail_dtype}};
    bool any = false;
    for (int i = attends(op) ? 0 : 1; i < 2; i++) {
        if (!(desc->operands & tails[i].operand)) continue;
        any = true;
        if (*tails[i].dtype != 0) continue;
        if (element_size(desc->q_dtype) == 1)
            return fail(message, FA_INVALID_ARGUMENT, "%s is not set: expected FA_F32, FA_F16 or FA_BF16 where q_dtype is %s",
                        tails[i].name, fa_dtype_name(desc->q_dtype));
        *tails[i].dtype = desc->q_dtype;
    }
    if (!any) return FA_OK;
    if (desc->dim_qk == 1) return fail(message, FA_INVALID_ARGUMENT, "dim_qk is 1: expected 2 or more with a tail");
    return in_range(message, "dim_tail", desc->dim_tail, 1, desc->dim_qk - 1);
}

}  // namespace fa
