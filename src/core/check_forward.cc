#include "core/check.h"
#include "core/metadata.h"
#include "core/operands.h"
#include "spec/shape.h"

namespace fa {

// With strides over the batch and over packed rows, sequence b has the factors of its own rows only: how far they reach is known once the
// starts can be read.
static Tensor reached(Tensor tensor, int64_t block_rows, const int32_t* cu, int64_t batch) {
    if (!tensor.bound || !cu) return tensor;
    int64_t last = -1;
    for (int64_t b = 0; b < batch; b++)
        if (cu[b + 1] > cu[b]) last = max_of(last, b * tensor.stride[0] + (cu[b + 1] - 1) / block_rows * tensor.stride[1]);
    Tensor reach =
        array_of(tensor.name, tensor.base, tensor.element,
                 last < 0 ? 0 : last + (tensor.extent[2] - 1) * tensor.stride[2] + (tensor.extent[3] - 1) * tensor.stride[3] + 1);
    reach.bound = true;  // there are gaps, where others may lie
    return reach;
}

constexpr uint64_t kDescales = FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE | FA_OPERAND_K_SHIFT | FA_OPERAND_V_SHIFT;

static fa_status_t check_descales(const Problem& problem, const fa_forward_args_t& args, bool host_metadata, Call* call) {
    if (!problem.has(kDescales) && !args.q_descale && !args.k_descale && !args.v_descale && !args.k_shift && !args.v_shift) return FA_OK;
    const int32_t* cu_q = host_metadata ? args.cu_seqlens_q : nullptr;
    const int32_t* cu_k = host_metadata ? args.cu_seqlens_k : nullptr;
    const auto of_k = [&](const Tensor& tensor) { return reached(tensor, problem.d.k_descale_block[0], cu_k, problem.d.batch); };
    const auto of_v = [&](const Tensor& tensor) { return reached(tensor, problem.d.v_descale_block[0], cu_k, problem.d.batch); };
    FA_TRY(call->with(FA_OPERAND_Q_DESCALE, Role::input,
                      reached(q_descale_tensor(problem, args.q_descale), problem.d.q_descale_block[0], cu_q, problem.d.batch)));
    FA_TRY(call->with(FA_OPERAND_K_DESCALE, Role::input, of_k(k_descale_tensor(problem, args.k_descale))));
    FA_TRY(call->with(FA_OPERAND_K_SHIFT, Role::input, of_k(k_descale_tensor(problem, args.k_shift, "k_shift"))));
    if (problem.v_in_k()) return FA_OK;
    FA_TRY(call->with(FA_OPERAND_V_DESCALE, Role::input, of_v(v_descale_tensor(problem, args.v_descale))));
    return call->with(FA_OPERAND_V_SHIFT, Role::input, of_v(v_descale_tensor(problem, args.v_shift, "v_shift")));
}

// v within k: a backend gets k's pointers for it.
static fa_status_t check_v(const Problem& problem, fa_forward_args_t* args, Call* call) {
    if (!problem.v_in_k()) return call->always(Role::input, v_tensor(problem, args->v));
    FA_TRY(call->without("v", args->v, "FA_V_IN_K"));
    FA_TRY(call->without("v_descale", args->v_descale, "FA_V_IN_K"));
    FA_TRY(call->without("v_shift", args->v_shift, "FA_V_IN_K"));
    args->v = args->k;
    args->v_descale = args->k_descale;
    args->v_shift = args->k_shift;
    return FA_OK;
}

static fa_status_t check_contents(const Problem& problem, const fa_forward_args_t& args, Message* message) {
    FA_TRY(check_input_lengths(problem, args, message));
    if (args.kv_batch_idx) FA_TRY(check_kv_batch_idx(problem, args.kv_batch_idx, message));
    const SequenceTable sequences = sequence_table(problem, args);
    const auto pages = [&](int64_t b, const Span&) {
        const Sequence s = sequence_of(sequences, b);
        return check_pages(problem, args.page_table, s.kv_index, s.k_begin, s.k_begin + s.k_len, message);
    };
    if (args.page_table) FA_TRY(each_sequence(problem.d.batch, sequences.q, pages));
    if (args.key_ranges) FA_TRY(check_key_ranges(problem, args, message));
    if (args.key_list || args.full_list) FA_TRY(check_key_lists(problem, args, message));
    if (args.bias_scale) FA_TRY(check_bias_scale(problem, args.bias_scale, message));
    return args.o_scale ? check_o_scale(*args.o_scale, message) : FA_OK;
}

fa_status_t check_forward(const Problem& problem, fa_forward_args_t* args, bool host_metadata, Regions* regions, Message* message) {
    const fa_forward_args_t& a = *args;
    Call call(problem, regions, message);
    FA_TRY(call.common(a.flags, FA_ARGS_STREAM, a.stream, a.workspace, a.workspace_size));
    FA_TRY(call.always(Role::input, q_tensor(problem, "q", a.q)));
    FA_TRY(call.always(Role::input, k_tensor(problem, a.k)));
    FA_TRY(check_v(problem, args, &call));
    FA_TRY(call.always(Role::output, o_tensor(problem, a.o)));
    FA_TRY(check_operands(problem, a, kAllOperands & ~kDescales, Role::output, &call));
    if (host_metadata) FA_TRY(check_contents(problem, a, message));
    FA_TRY(check_descales(problem, a, host_metadata, &call));
    return call.outputs_apart();
}

}  // namespace fa
