#include <string.h>
#include "core/call.h"
#include "core/check.h"
#include "core/dtype.h"
#include "core/metadata.h"
#include "core/rotation.h"
#include "spec/shape.h"

namespace fa {

// Every row that will be turned has its angle in the tables.
static fa_status_t check_positions(const Problem& problem, const fa_rotary_args_t& args, Message* message) {
    const LengthNames of = args.flags & FA_ROTARY_OF_K ? kLengthsOfK : kLengthsOfQ;
    const LengthNames names{"cu_seqlens", "seqused", of.longest, of.total};
    FA_TRY(check_lengths({names, args.cu_seqlens, args.seqused, problem.d.batch, problem.d.seqlen_q, problem.d.total_q}, message));
    const bool uniform = !args.cu_seqlens && !args.seqused && !args.positions && !args.position_offset;  // one stands for all
    const int64_t batch = uniform ? min_of(problem.d.batch, 1) : problem.d.batch;
    return each_sequence(batch, query_spans(problem, args.cu_seqlens, args.seqused), [&](int64_t b, const Span& rows) -> fa_status_t {
        if (args.positions) {
            const int64_t first = problem.packed_q() ? rows.begin : b * problem.d.seqlen_q;
            for (int64_t i = first; i < first + rows.length; i++)
                FA_TRY(entry_in_range(message, "positions", i, args.positions[i],
                                      {0, args.max_position - 1, "max_position", args.max_position}));
            return FA_OK;
        }
        const int64_t last = args.max_position - rows.length;  // where the first row may stand
        if (last < 0)
            return fail(message, FA_INVALID_ARGUMENT, "max_position is %lld: expected %lld or more, the rows of sequence %lld",
                        ll(args.max_position), ll(rows.length), ll(b));
        if (!args.position_offset) return FA_OK;
        return entry_in_range(message, "position_offset", b, args.position_offset[b], {0, last, "max_position", args.max_position});
    });
}

fa_status_t choose_desc(const fa_rotary_args_t& args, const fa_attention_desc_t** desc, fa_attention_desc_t* d, Message* message) {
    if (!(args.flags & FA_ROTARY_OF_K)) return FA_OK;
    FA_TRY(import_struct(d, *desc, message));
    const uint64_t cache = d->operands & (FA_OPERAND_PAGE_TABLE | FA_OPERAND_KV_BATCH_IDX);
    if (cache)
        return fail(message, FA_UNSUPPORTED, "operands is 0x%llx: expected no %s with FA_ROTARY_OF_K, since fa_append_kv rotates a cache",
                    llu(d->operands), operand_name(cache));
    if (d->k_dtype != 0) {
        FA_TRY(check_dtype("k_dtype", d->k_dtype, kKeys, message));
        if (element_size(d->k_dtype) == 1 || is_block_type(d->k_dtype))
            return fail(message, FA_UNSUPPORTED, "k_dtype is %s: expected FA_F32, FA_F16 or FA_BF16 for this call",
                        fa_dtype_name(d->k_dtype));
        d->q_dtype = d->k_dtype;
    }
    FA_TRY(in_range(message, "heads_k", d->heads_k, 0, kMaxSize));
    FA_TRY(in_range(message, "seqlen_k", d->seqlen_k, 0, kMaxSize));
    FA_TRY(in_range(message, "total_k", d->total_k, 0, kMaxSize));
    for (int i = 0; i < 4; i++)
        if (d->k_stride[i] < 0 || (d->k_stride[i] != 0 && !(d->strided & FA_STRIDED_K)))
            return fail(message, FA_INVALID_ARGUMENT, "k_stride[%d] is %lld: expected %s", i, ll(d->k_stride[i]),
                        d->k_stride[i] < 0 ? "0 or more" : "0 without FA_STRIDED_K");
    if (d->heads_k != 0) d->heads_q = d->heads_k;
    d->seqlen_q = d->seqlen_k;
    d->total_q = d->total_k;
    memcpy(d->q_stride, d->k_stride, sizeof d->q_stride);
    d->strided = d->strided & FA_STRIDED_K ? FA_STRIDED_Q : 0;
    d->operands = (d->operands & FA_OPERAND_CU_SEQLENS_K ? FA_OPERAND_CU_SEQLENS_Q : 0) |
                  (d->operands & FA_OPERAND_SEQUSED_K ? FA_OPERAND_SEQUSED_Q : 0);
    *desc = d;
    return FA_OK;
}

fa_status_t check_rotary(const Problem& problem, fa_rotary_args_t* args, bool host_metadata, Regions* regions, Message* message) {
    const fa_rotary_args_t& a = *args;
    Call call(problem, regions, message);
    FA_TRY(call.common(a.flags, FA_ARGS_STREAM | FA_ROTARY_INTERLEAVED | FA_ROTARY_OF_K, a.stream, a.workspace, a.workspace_size));
    FA_TRY(check_rotation_sizes(problem, a.max_position, a.rotary_begin, a.rotary_dim, message));

    const Tensor x = q_tensor(problem, "x", a.x);
    Tensor turned = tokens("out", a.out, problem.d.q_dtype, query_rows(problem), problem.d.heads_q, problem.d.dim_qk, a.out_stride);
    bool given = false;
    for (int64_t s : a.out_stride) given |= s != 0;
    if (!given) memcpy(turned.stride, x.stride, sizeof turned.stride);
    FA_TRY(check_strides(turned, true, message));
    FA_TRY(check_distinct(turned, message));
    put_strides(turned, args->out_stride);

    // In place, x is the output.
    const bool in_place = !regions->asked && a.x && a.x == a.out && memcmp(x.stride, a.out_stride, sizeof a.out_stride) == 0;
    if (!in_place) FA_TRY(call.always(Role::input, x));
    FA_TRY(call.always(Role::output, turned));
    FA_TRY(call.always(Role::input, angle_tensor("cos", a.cos, a.max_position, a.rotary_dim)));
    FA_TRY(call.always(Role::input, angle_tensor("sin", a.sin, a.max_position, a.rotary_dim)));
    FA_TRY(call.perhaps(
        Role::input, array_of("positions", a.positions, 4, problem.packed_q() ? problem.d.total_q : problem.d.batch * problem.d.seqlen_q)));
    FA_TRY(call.perhaps(Role::input, array_of("position_offset", a.position_offset, 4, problem.d.batch)));
    FA_TRY(call.with(FA_OPERAND_CU_SEQLENS_Q, Role::input, array_of("cu_seqlens", a.cu_seqlens, 4, problem.d.batch + 1)));
    FA_TRY(call.with(FA_OPERAND_SEQUSED_Q, Role::input, array_of("seqused", a.seqused, 4, problem.d.batch)));
    FA_TRY(call.outputs_apart());
    const bool readable = host_metadata || !(a.cu_seqlens || a.seqused || a.positions || a.position_offset);
    return readable ? check_positions(problem, a, message) : FA_OK;
}

}  // namespace fa
