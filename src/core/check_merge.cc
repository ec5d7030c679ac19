#include "core/call.h"
#include "core/check.h"
#include "core/metadata.h"

namespace fa {

static Tensor o_parts_tensor(const Problem& problem, const fa_merge_args_t& args) {
    const Rows r = query_rows(problem);
    const int64_t* s = args.o_parts_stride;
    return {"o_parts",
            args.o_parts,
            4,
            5,
            r.packed ? 1 : kNoDim,
            false,
            {args.parts, r.packed ? 1 : r.batch, r.packed ? r.total : r.rows, problem.d.heads_q, problem.d.dim_v},
            {s[0], s[1], s[2], s[3], s[4]}};
}

static Tensor lse_parts_tensor(const Problem& problem, const fa_merge_args_t& args) {
    const Rows r = query_rows(problem);
    const int64_t* s = args.lse_parts_stride;
    return {"lse_parts",
            args.lse_parts,
            4,
            4,
            r.packed ? 1 : kNoDim,
            false,
            {args.parts, r.packed ? 1 : r.batch, problem.d.heads_q, r.packed ? r.total : r.rows},
            {s[0], s[1], s[2], s[3]}};
}

fa_status_t check_merge(const Problem& problem, fa_merge_args_t* args, bool host_metadata, Regions* regions, Message* message) {
    const fa_merge_args_t& a = *args;
    Call call(problem, regions, message);
    FA_TRY(call.common(a.flags, FA_ARGS_STREAM | FA_MERGE_ACCUMULATE, a.stream, a.workspace, a.workspace_size));
    FA_TRY(in_range(message, "parts", a.parts, 0, kMaxSize));
    if (a.flags & FA_MERGE_ACCUMULATE) {
        if (problem.d.o_dtype != FA_F32) {
            return fail(message, FA_INVALID_ARGUMENT, "o_dtype is %s: expected FA_F32 with FA_MERGE_ACCUMULATE",
                        fa_dtype_name(problem.d.o_dtype));
        }
        if (problem.has(FA_OPERAND_O_SCALE))
            return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected no FA_OPERAND_O_SCALE with FA_MERGE_ACCUMULATE",
                        llu(problem.d.operands));
        if (!problem.has(FA_OPERAND_LSE)) {
            return fail(message, FA_INVALID_ARGUMENT, "operands is 0x%llx: expected FA_OPERAND_LSE with FA_MERGE_ACCUMULATE",
                        llu(problem.d.operands));
        }
    }

    Tensor o_parts = o_parts_tensor(problem, a), lse_parts = lse_parts_tensor(problem, a);
    FA_TRY(lay_out(&o_parts, true, message));
    FA_TRY(lay_out(&lse_parts, false, message));
    put_strides(o_parts, args->o_parts_stride);
    put_strides(lse_parts, args->lse_parts_stride);

    FA_TRY(call.always(Role::input, o_parts));
    FA_TRY(call.always(Role::input, lse_parts));
    FA_TRY(call.always(Role::output, o_tensor(problem, a.o)));
    FA_TRY(call.with(FA_OPERAND_LSE, Role::output, lse_tensor(problem, a.lse)));
    FA_TRY(call.with(FA_OPERAND_SINKS, Role::input, array_of("sinks", a.sinks, 4, problem.d.heads_q)));
    FA_TRY(call.with(FA_OPERAND_O_SCALE, Role::input, array_of("o_scale", a.o_scale, 4, 1)));
    FA_TRY(call.with(FA_OPERAND_CU_SEQLENS_Q, Role::input, array_of("cu_seqlens_q", a.cu_seqlens_q, 4, problem.d.batch + 1)));
    FA_TRY(call.with(FA_OPERAND_SEQUSED_Q, Role::input, array_of("seqused_q", a.seqused_q, 4, problem.d.batch)));
    FA_TRY(call.outputs_apart());

    if (!host_metadata) return FA_OK;
    FA_TRY(check_lengths({kLengthsOfQ, a.cu_seqlens_q, a.seqused_q, problem.d.batch, problem.d.seqlen_q, problem.d.total_q}, message));
    return a.o_scale ? check_o_scale(*a.o_scale, message) : FA_OK;
}

}  // namespace fa
