#include "core/inputs.h"
#include "core/metadata.h"

namespace fa {

fa_status_t check_inputs(const Problem& p, const fa_forward_args_t& a, Call* call) {
    const fa_attention_desc_t& d = p.d;
    const Role in = Role::input;
    // Most calls give none of these, and the smallest calls take a microsecond: what is not there is not described.
    const auto with = [&](uint32_t operand, const void* pointer, auto describe) {
        return pointer || p.has(operand) ? call->with(operand, in, describe()) : FA_OK;
    };
    if (p.has(FA_OPERAND_RNG_STATE) && (a.seed != 0 || a.offset != 0)) {
        return fail(call->message, FA_INVALID_ARGUMENT, "seed is %llu and offset is %llu: expected 0 with FA_OPERAND_RNG_STATE",
                    static_cast<unsigned long long>(a.seed), static_cast<unsigned long long>(a.offset));
    }
    FA_TRY(with(FA_OPERAND_BIAS, a.bias, [&] { return score_tensor(p, "bias", a.bias, element_size(d.bias_dtype), d.bias_stride); }));
    FA_TRY(with(FA_OPERAND_MASK, a.mask, [&] { return score_tensor(p, "mask", a.mask, 1, d.mask_stride); }));
    FA_TRY(with(FA_OPERAND_ALIBI, a.alibi_slopes,
                [&] { return table_of("alibi_slopes", a.alibi_slopes, 4, d.batch, d.heads_q, d.alibi_batch_stride); }));
    FA_TRY(with(FA_OPERAND_SINKS, a.sinks, [&] { return array_of("sinks", a.sinks, 4, d.heads_q); }));
    FA_TRY(with(FA_OPERAND_CAUSAL_OFFSET, a.causal_offset, [&] { return array_of("causal_offset", a.causal_offset, 4, d.batch); }));
    FA_TRY(with(FA_OPERAND_CU_SEQLENS_Q, a.cu_seqlens_q, [&] { return array_of("cu_seqlens_q", a.cu_seqlens_q, 4, d.batch + 1); }));
    FA_TRY(with(FA_OPERAND_CU_SEQLENS_K, a.cu_seqlens_k, [&] { return array_of("cu_seqlens_k", a.cu_seqlens_k, 4, d.batch + 1); }));
    FA_TRY(with(FA_OPERAND_SEQUSED_Q, a.seqused_q, [&] { return array_of("seqused_q", a.seqused_q, 4, d.batch); }));
    FA_TRY(with(FA_OPERAND_SEQUSED_K, a.seqused_k, [&] { return array_of("seqused_k", a.seqused_k, 4, d.batch); }));
    FA_TRY(with(FA_OPERAND_LEFTPAD_K, a.leftpad_k, [&] { return array_of("leftpad_k", a.leftpad_k, 4, d.batch); }));
    return with(FA_OPERAND_RNG_STATE, a.rng_state, [&] { return array_of("rng_state", a.rng_state, 8, 2); });
}

fa_status_t check_input_lengths(const Problem& p, const fa_forward_args_t& a, Message* m) {
    const Lengths q{"q", a.cu_seqlens_q, a.seqused_q, p.d.batch, p.d.seqlen_q, p.d.total_q};
    const Lengths k{"k", a.cu_seqlens_k, a.seqused_k, p.d.batch, p.d.seqlen_k, p.d.total_k};
    FA_TRY(check_lengths(q, m));
    FA_TRY(check_lengths(k, m));
    return a.leftpad_k ? check_leftpad(k, a.leftpad_k, m) : FA_OK;
}

}  // namespace fa
