// Written by tools/generate_abi.py from flashattn.h. Args structs hold pointers to Go memory, which cgo lets C see only as arguments
// of a call: they are filled here.
#ifndef FLASHATTN_GO_CALLS_H
#define FLASHATTN_GO_CALLS_H

#include <flashattn.h>

static inline fa_status_t run_forward(fa_handle_t h, const fa_attention_desc_t* desc, const fa_forward_args_t* blank,
    const void* args_q,
    const void* args_k,
    const void* args_v,
    const void* args_o,
    const void* args_lse,
    const void* args_q_tail,
    const void* args_k_tail,
    const void* args_q_descale,
    const void* args_k_descale,
    const void* args_v_descale,
    const void* args_k_shift,
    const void* args_v_shift,
    const void* args_o_scale,
    const void* args_bias,
    const void* args_bias_scale,
    const void* args_mask,
    const void* args_key_ranges,
    const void* args_key_list,
    const void* args_key_list_count,
    const void* args_full_list,
    const void* args_full_list_count,
    const void* args_alibi_slopes,
    const void* args_sinks,
    const void* args_causal_offset,
    const void* args_cu_seqlens_q,
    const void* args_cu_seqlens_k,
    const void* args_seqused_q,
    const void* args_seqused_k,
    const void* args_leftpad_k,
    const void* args_kv_batch_idx,
    const void* args_page_table,
    const void* args_scores,
    const void* args_rng_state,
    const void* args_device_status) {
    fa_forward_args_t args = *blank;
    args.q = (void*)args_q;
    args.k = (void*)args_k;
    args.v = (void*)args_v;
    args.o = (void*)args_o;
    args.lse = (void*)args_lse;
    args.q_tail = (void*)args_q_tail;
    args.k_tail = (void*)args_k_tail;
    args.q_descale = (void*)args_q_descale;
    args.k_descale = (void*)args_k_descale;
    args.v_descale = (void*)args_v_descale;
    args.k_shift = (void*)args_k_shift;
    args.v_shift = (void*)args_v_shift;
    args.o_scale = (void*)args_o_scale;
    args.bias = (void*)args_bias;
    args.bias_scale = (void*)args_bias_scale;
    args.mask = (void*)args_mask;
    args.key_ranges = (void*)args_key_ranges;
    args.key_list = (void*)args_key_list;
    args.key_list_count = (void*)args_key_list_count;
    args.full_list = (void*)args_full_list;
    args.full_list_count = (void*)args_full_list_count;
    args.alibi_slopes = (void*)args_alibi_slopes;
    args.sinks = (void*)args_sinks;
    args.causal_offset = (void*)args_causal_offset;
    args.cu_seqlens_q = (void*)args_cu_seqlens_q;
    args.cu_seqlens_k = (void*)args_cu_seqlens_k;
    args.seqused_q = (void*)args_seqused_q;
    args.seqused_k = (void*)args_seqused_k;
    args.leftpad_k = (void*)args_leftpad_k;
    args.kv_batch_idx = (void*)args_kv_batch_idx;
    args.page_table = (void*)args_page_table;
    args.scores = (void*)args_scores;
    args.rng_state = (void*)args_rng_state;
    args.device_status = (void*)args_device_status;
    return fa_forward_ex(h, desc, &args);
}

static inline fa_status_t run_backward(fa_handle_t h, const fa_attention_desc_t* desc, const fa_forward_args_t* forward_blank, const fa_backward_args_t* blank,
    const void* forward_q,
    const void* forward_k,
    const void* forward_v,
    const void* forward_o,
    const void* forward_lse,
    const void* forward_q_tail,
    const void* forward_k_tail,
    const void* forward_q_descale,
    const void* forward_k_descale,
    const void* forward_v_descale,
    const void* forward_k_shift,
    const void* forward_v_shift,
    const void* forward_o_scale,
    const void* forward_bias,
    const void* forward_bias_scale,
    const void* forward_mask,
    const void* forward_key_ranges,
    const void* forward_key_list,
    const void* forward_key_list_count,
    const void* forward_full_list,
    const void* forward_full_list_count,
    const void* forward_alibi_slopes,
    const void* forward_sinks,
    const void* forward_causal_offset,
    const void* forward_cu_seqlens_q,
    const void* forward_cu_seqlens_k,
    const void* forward_seqused_q,
    const void* forward_seqused_k,
    const void* forward_leftpad_k,
    const void* forward_kv_batch_idx,
    const void* forward_page_table,
    const void* forward_scores,
    const void* forward_rng_state,
    const void* forward_device_status,
    const void* args_dout,
    const void* args_dlse,
    const void* args_dq,
    const void* args_dk,
    const void* args_dv,
    const void* args_dbias,
    const void* args_dsinks) {
    fa_forward_args_t forward = *forward_blank;
    fa_backward_args_t args = *blank;
    forward.q = (void*)forward_q;
    forward.k = (void*)forward_k;
    forward.v = (void*)forward_v;
    forward.o = (void*)forward_o;
    forward.lse = (void*)forward_lse;
    forward.q_tail = (void*)forward_q_tail;
    forward.k_tail = (void*)forward_k_tail;
    forward.q_descale = (void*)forward_q_descale;
    forward.k_descale = (void*)forward_k_descale;
    forward.v_descale = (void*)forward_v_descale;
    forward.k_shift = (void*)forward_k_shift;
    forward.v_shift = (void*)forward_v_shift;
    forward.o_scale = (void*)forward_o_scale;
    forward.bias = (void*)forward_bias;
    forward.bias_scale = (void*)forward_bias_scale;
    forward.mask = (void*)forward_mask;
    forward.key_ranges = (void*)forward_key_ranges;
    forward.key_list = (void*)forward_key_list;
    forward.key_list_count = (void*)forward_key_list_count;
    forward.full_list = (void*)forward_full_list;
    forward.full_list_count = (void*)forward_full_list_count;
    forward.alibi_slopes = (void*)forward_alibi_slopes;
    forward.sinks = (void*)forward_sinks;
    forward.causal_offset = (void*)forward_causal_offset;
    forward.cu_seqlens_q = (void*)forward_cu_seqlens_q;
    forward.cu_seqlens_k = (void*)forward_cu_seqlens_k;
    forward.seqused_q = (void*)forward_seqused_q;
    forward.seqused_k = (void*)forward_seqused_k;
    forward.leftpad_k = (void*)forward_leftpad_k;
    forward.kv_batch_idx = (void*)forward_kv_batch_idx;
    forward.page_table = (void*)forward_page_table;
    forward.scores = (void*)forward_scores;
    forward.rng_state = (void*)forward_rng_state;
    forward.device_status = (void*)forward_device_status;
    args.dout = (void*)args_dout;
    args.dlse = (void*)args_dlse;
    args.dq = (void*)args_dq;
    args.dk = (void*)args_dk;
    args.dv = (void*)args_dv;
    args.dbias = (void*)args_dbias;
    args.dsinks = (void*)args_dsinks;
    args.forward = &forward;
    return fa_backward(h, desc, &args);
}

static inline fa_status_t run_merge(fa_handle_t h, const fa_attention_desc_t* desc, const fa_merge_args_t* blank,
    const void* args_o_parts,
    const void* args_lse_parts,
    const void* args_o,
    const void* args_lse,
    const void* args_sinks,
    const void* args_o_scale,
    const void* args_cu_seqlens_q,
    const void* args_seqused_q) {
    fa_merge_args_t args = *blank;
    args.o_parts = (void*)args_o_parts;
    args.lse_parts = (void*)args_lse_parts;
    args.o = (void*)args_o;
    args.lse = (void*)args_lse;
    args.sinks = (void*)args_sinks;
    args.o_scale = (void*)args_o_scale;
    args.cu_seqlens_q = (void*)args_cu_seqlens_q;
    args.seqused_q = (void*)args_seqused_q;
    return fa_merge(h, desc, &args);
}

static inline fa_status_t run_rotary(fa_handle_t h, const fa_attention_desc_t* desc, const fa_rotary_args_t* blank,
    const void* args_x,
    const void* args_out,
    const void* args_cos,
    const void* args_sin,
    const void* args_positions,
    const void* args_position_offset,
    const void* args_cu_seqlens,
    const void* args_seqused) {
    fa_rotary_args_t args = *blank;
    args.x = (void*)args_x;
    args.out = (void*)args_out;
    args.cos = (void*)args_cos;
    args.sin = (void*)args_sin;
    args.positions = (void*)args_positions;
    args.position_offset = (void*)args_position_offset;
    args.cu_seqlens = (void*)args_cu_seqlens;
    args.seqused = (void*)args_seqused;
    return fa_rotary(h, desc, &args);
}

static inline fa_status_t run_append_kv(fa_handle_t h, const fa_attention_desc_t* desc, const fa_append_kv_args_t* blank,
    const void* args_k_new,
    const void* args_v_new,
    const void* args_k,
    const void* args_v,
    const void* args_k_tail,
    const void* args_k_descale,
    const void* args_v_descale,
    const void* args_k_shift,
    const void* args_v_shift,
    const void* args_cu_seqlens_new,
    const void* args_seqused_new,
    const void* args_positions,
    const void* args_seqused_k,
    const void* args_leftpad_k,
    const void* args_kv_batch_idx,
    const void* args_page_table,
    const void* args_device_status,
    const void* args_cos,
    const void* args_sin) {
    fa_append_kv_args_t args = *blank;
    args.k_new = (void*)args_k_new;
    args.v_new = (void*)args_v_new;
    args.k = (void*)args_k;
    args.v = (void*)args_v;
    args.k_tail = (void*)args_k_tail;
    args.k_descale = (void*)args_k_descale;
    args.v_descale = (void*)args_v_descale;
    args.k_shift = (void*)args_k_shift;
    args.v_shift = (void*)args_v_shift;
    args.cu_seqlens_new = (void*)args_cu_seqlens_new;
    args.seqused_new = (void*)args_seqused_new;
    args.positions = (void*)args_positions;
    args.seqused_k = (void*)args_seqused_k;
    args.leftpad_k = (void*)args_leftpad_k;
    args.kv_batch_idx = (void*)args_kv_batch_idx;
    args.page_table = (void*)args_page_table;
    args.device_status = (void*)args_device_status;
    args.cos = (void*)args_cos;
    args.sin = (void*)args_sin;
    return fa_append_kv(h, desc, &args);
}

#endif
