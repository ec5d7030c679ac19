#include "core/check.h"
#include "core/inputs.h"
#include "core/metadata.h"
#include "spec/shape.h"

namespace fa {

constexpr uint32_t kForwardArgsV1 = 232;  // bytes of the struct in version 0.1; it only grows
static_assert(kForwardArgsV1 <= sizeof(fa_forward_args_t), "a struct never shrinks");

static fa_status_t check_tensors(const Problem& p, const fa_forward_args_t& a, Call* call) {
    const fa_attention_desc_t& d = p.d;
    const Role in = Role::input, out = Role::output;
    FA_TRY(call->always(in, q_tensor(p, "q", a.q)));
    FA_TRY(call->always(in, k_tensor(p, a.k)));
    FA_TRY(call->always(in, v_tensor(p, a.v)));
    FA_TRY(call->always(out, o_tensor(p, a.o)));
    FA_TRY(call->with(FA_OPERAND_LSE, out, lse_tensor(p, a.lse)));
    FA_TRY(call->with(FA_OPERAND_SCORES, out, score_tensor(p, "scores", a.scores, 4, d.scores_stride)));
    FA_TRY(check_inputs(p, a, call));
    FA_TRY(call->with(FA_OPERAND_KV_BATCH_IDX, in, array_of("kv_batch_idx", a.kv_batch_idx, 4, d.batch)));
    FA_TRY(call->with(FA_OPERAND_PAGE_TABLE, in, page_table_tensor(p, a.page_table)));
    return call->with(FA_OPERAND_O_SCALE, in, array_of("o_scale", a.o_scale, 4, 1));
}

// With strides over the batch and over packed rows, sequence b has the factors of its own rows only: how far they reach is known once the
// starts can be read.
static Tensor reached(Tensor t, const int32_t* cu, int64_t batch) {
    if (!t.bound || !cu) return t;
    int64_t last = -1;
    for (int64_t b = 0; b < batch; b++)
        if (cu[b + 1] > cu[b]) last = max_of(last, b * t.stride[0] + (cu[b + 1] - 1) * t.stride[1]);
    Tensor reach = array_of(t.name, t.base, t.element, last < 0 ? 0 : last + (t.extent[2] - 1) * t.stride[2] + 1);
    reach.bound = true;  // there are gaps, where others may lie
    return reach;
}

static fa_status_t check_descales(const Problem& p, const fa_forward_args_t& a, bool host_metadata, Call* call) {
    const fa_attention_desc_t& d = p.d;
    if (!p.has(FA_OPERAND_Q_DESCALE | FA_OPERAND_K_DESCALE | FA_OPERAND_V_DESCALE) && !a.q_descale && !a.k_descale && !a.v_descale) return FA_OK;
    const int32_t* cu_q = host_metadata ? a.cu_seqlens_q : nullptr;
    const int32_t* cu_k = host_metadata ? a.cu_seqlens_k : nullptr;
    const Tensor q = q_descale_tensor(p, a.q_descale);
    const Tensor k = kv_descale_tensor(p, "k_descale", a.k_descale, d.k_descale_stride);
    const Tensor v = kv_descale_tensor(p, "v_descale", a.v_descale, d.v_descale_stride);
    FA_TRY(call->with(FA_OPERAND_Q_DESCALE, Role::input, reached(q, cu_q, d.batch)));
    FA_TRY(call->with(FA_OPERAND_K_DESCALE, Role::input, reached(k, cu_k, d.batch)));
    return call->with(FA_OPERAND_V_DESCALE, Role::input, reached(v, cu_k, d.batch));
}

static fa_status_t check_contents(const Problem& p, const fa_forward_args_t& a, Message* m) {
    FA_TRY(check_input_lengths(p, a, m));
    if (a.kv_batch_idx) FA_TRY(check_kv_batch_idx(p, a.kv_batch_idx, m));
    for (int64_t b = 0; a.page_table && b < p.d.batch; b++) {
        const Sequence s = sequence_of(p, a, b);
        FA_TRY(check_pages(p, a.page_table, s.kv_index, s.k_begin, s.k_begin + s.k_len, m));
    }
    return a.o_scale ? check_o_scale(*a.o_scale, m) : FA_OK;
}

fa_status_t check_forward(const Problem& p, const fa_forward_args_t* user, bool host_metadata, fa_forward_args_t* out,
                          Regions* regions, Message* m) {
    FA_TRY(import_struct(out, user, sizeof *out, kForwardArgsV1, "fa_forward_args_t", m));
    const fa_forward_args_t& a = *out;
    Call call(p, regions, m);
    FA_TRY(call.common(a.flags, FA_ARGS_STREAM, a.stream, a.workspace, a.workspace_size));
    FA_TRY(check_tensors(p, a, &call));
    if (host_metadata) FA_TRY(check_contents(p, a, m));
    FA_TRY(check_descales(p, a, host_metadata, &call));
    return call.outputs_apart();
}

}  // namespace fa
