/* The layout and the numbers of version 0.1, frozen: a line may be added for a new field at a struct's end or a new constant; no line
 * may change. Compiling this file is the test. */
#include <flashattn.h>

#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type " has another size")
#define AT(type, field, bytes) _Static_assert(offsetof(type, field) == (bytes), #type "." #field " has moved")
#define IS(name, value) _Static_assert((name) == (value), #name " has another value")

SIZE(fa_create_info_t, 72);
AT(fa_create_info_t, struct_size, 0);
AT(fa_create_info_t, flags, 4);
AT(fa_create_info_t, backend, 8);
AT(fa_create_info_t, device, 12);
AT(fa_create_info_t, memory, 16);
AT(fa_create_info_t, log_level, 20);
AT(fa_create_info_t, stream, 24);
AT(fa_create_info_t, backend_dir, 32);
AT(fa_create_info_t, log, 40);
AT(fa_create_info_t, log_user, 48);
AT(fa_create_info_t, parallel_for, 56);
AT(fa_create_info_t, parallel_user, 64);

SIZE(fa_device_info_t, 216);
AT(fa_device_info_t, struct_size, 0);
AT(fa_device_info_t, backend, 4);
AT(fa_device_info_t, device, 8);
AT(fa_device_info_t, compute_units, 12);
AT(fa_device_info_t, memory_bytes, 16);
AT(fa_device_info_t, name, 24);
AT(fa_device_info_t, arch, 152);

SIZE(fa_attention_desc_t, 528);
AT(fa_attention_desc_t, struct_size, 0);
AT(fa_attention_desc_t, flags, 4);
AT(fa_attention_desc_t, operands, 8);
AT(fa_attention_desc_t, strided, 12);
AT(fa_attention_desc_t, alignment, 16);
AT(fa_attention_desc_t, q_dtype, 20);
AT(fa_attention_desc_t, kv_dtype, 24);
AT(fa_attention_desc_t, o_dtype, 28);
AT(fa_attention_desc_t, bias_dtype, 32);
AT(fa_attention_desc_t, algorithm, 36);
AT(fa_attention_desc_t, scale, 40);
AT(fa_attention_desc_t, softcap, 44);
AT(fa_attention_desc_t, dropout_p, 48);
AT(fa_attention_desc_t, num_splits, 52);
AT(fa_attention_desc_t, reserve_sms, 56);
AT(fa_attention_desc_t, scores_stage, 60);
AT(fa_attention_desc_t, batch, 64);
AT(fa_attention_desc_t, heads_q, 72);
AT(fa_attention_desc_t, heads_kv, 80);
AT(fa_attention_desc_t, seqlen_q, 88);
AT(fa_attention_desc_t, seqlen_k, 96);
AT(fa_attention_desc_t, dim_qk, 104);
AT(fa_attention_desc_t, dim_v, 112);
AT(fa_attention_desc_t, total_q, 120);
AT(fa_attention_desc_t, total_k, 128);
AT(fa_attention_desc_t, kv_batch, 136);
AT(fa_attention_desc_t, page_size, 144);
AT(fa_attention_desc_t, num_pages, 152);
AT(fa_attention_desc_t, page_table_stride, 160);
AT(fa_attention_desc_t, window_left, 168);
AT(fa_attention_desc_t, window_right, 176);
AT(fa_attention_desc_t, chunk, 184);
AT(fa_attention_desc_t, split_size, 192);
AT(fa_attention_desc_t, q_stride, 200);
AT(fa_attention_desc_t, k_stride, 232);
AT(fa_attention_desc_t, v_stride, 264);
AT(fa_attention_desc_t, o_stride, 296);
AT(fa_attention_desc_t, bias_stride, 328);
AT(fa_attention_desc_t, mask_stride, 360);
AT(fa_attention_desc_t, scores_stride, 392);
AT(fa_attention_desc_t, lse_stride, 424);
AT(fa_attention_desc_t, q_descale_stride, 448);
AT(fa_attention_desc_t, k_descale_stride, 472);
AT(fa_attention_desc_t, v_descale_stride, 496);
AT(fa_attention_desc_t, alibi_batch_stride, 520);

SIZE(fa_forward_args_t, 232);
AT(fa_forward_args_t, struct_size, 0);
AT(fa_forward_args_t, flags, 4);
AT(fa_forward_args_t, q, 8);
AT(fa_forward_args_t, k, 16);
AT(fa_forward_args_t, v, 24);
AT(fa_forward_args_t, o, 32);
AT(fa_forward_args_t, lse, 40);
AT(fa_forward_args_t, bias, 48);
AT(fa_forward_args_t, mask, 56);
AT(fa_forward_args_t, alibi_slopes, 64);
AT(fa_forward_args_t, sinks, 72);
AT(fa_forward_args_t, causal_offset, 80);
AT(fa_forward_args_t, cu_seqlens_q, 88);
AT(fa_forward_args_t, cu_seqlens_k, 96);
AT(fa_forward_args_t, seqused_q, 104);
AT(fa_forward_args_t, seqused_k, 112);
AT(fa_forward_args_t, leftpad_k, 120);
AT(fa_forward_args_t, kv_batch_idx, 128);
AT(fa_forward_args_t, page_table, 136);
AT(fa_forward_args_t, q_descale, 144);
AT(fa_forward_args_t, k_descale, 152);
AT(fa_forward_args_t, v_descale, 160);
AT(fa_forward_args_t, o_scale, 168);
AT(fa_forward_args_t, scores, 176);
AT(fa_forward_args_t, rng_state, 184);
AT(fa_forward_args_t, seed, 192);
AT(fa_forward_args_t, offset, 200);
AT(fa_forward_args_t, stream, 208);
AT(fa_forward_args_t, workspace, 216);
AT(fa_forward_args_t, workspace_size, 224);

SIZE(fa_backward_args_t, 416);
AT(fa_backward_args_t, struct_size, 0);
AT(fa_backward_args_t, flags, 4);
AT(fa_backward_args_t, q, 8);
AT(fa_backward_args_t, k, 16);
AT(fa_backward_args_t, v, 24);
AT(fa_backward_args_t, o, 32);
AT(fa_backward_args_t, lse, 40);
AT(fa_backward_args_t, dout, 48);
AT(fa_backward_args_t, dlse, 56);
AT(fa_backward_args_t, dq, 64);
AT(fa_backward_args_t, dk, 72);
AT(fa_backward_args_t, dv, 80);
AT(fa_backward_args_t, dbias, 88);
AT(fa_backward_args_t, dsinks, 96);
AT(fa_backward_args_t, bias, 104);
AT(fa_backward_args_t, mask, 112);
AT(fa_backward_args_t, alibi_slopes, 120);
AT(fa_backward_args_t, sinks, 128);
AT(fa_backward_args_t, causal_offset, 136);
AT(fa_backward_args_t, cu_seqlens_q, 144);
AT(fa_backward_args_t, cu_seqlens_k, 152);
AT(fa_backward_args_t, seqused_q, 160);
AT(fa_backward_args_t, seqused_k, 168);
AT(fa_backward_args_t, leftpad_k, 176);
AT(fa_backward_args_t, rng_state, 184);
AT(fa_backward_args_t, seed, 192);
AT(fa_backward_args_t, offset, 200);
AT(fa_backward_args_t, dout_stride, 208);
AT(fa_backward_args_t, dlse_stride, 240);
AT(fa_backward_args_t, dq_stride, 264);
AT(fa_backward_args_t, dk_stride, 296);
AT(fa_backward_args_t, dv_stride, 328);
AT(fa_backward_args_t, dbias_stride, 360);
AT(fa_backward_args_t, stream, 392);
AT(fa_backward_args_t, workspace, 400);
AT(fa_backward_args_t, workspace_size, 408);

SIZE(fa_merge_args_t, 176);
AT(fa_merge_args_t, struct_size, 0);
AT(fa_merge_args_t, flags, 4);
AT(fa_merge_args_t, parts, 8);
AT(fa_merge_args_t, o_parts, 16);
AT(fa_merge_args_t, lse_parts, 24);
AT(fa_merge_args_t, o_parts_stride, 32);
AT(fa_merge_args_t, lse_parts_stride, 72);
AT(fa_merge_args_t, o, 104);
AT(fa_merge_args_t, lse, 112);
AT(fa_merge_args_t, sinks, 120);
AT(fa_merge_args_t, o_scale, 128);
AT(fa_merge_args_t, cu_seqlens_q, 136);
AT(fa_merge_args_t, seqused_q, 144);
AT(fa_merge_args_t, stream, 152);
AT(fa_merge_args_t, workspace, 160);
AT(fa_merge_args_t, workspace_size, 168);

SIZE(fa_rotary_args_t, 144);
AT(fa_rotary_args_t, struct_size, 0);
AT(fa_rotary_args_t, flags, 4);
AT(fa_rotary_args_t, x, 8);
AT(fa_rotary_args_t, out, 16);
AT(fa_rotary_args_t, out_stride, 24);
AT(fa_rotary_args_t, cos, 56);
AT(fa_rotary_args_t, sin, 64);
AT(fa_rotary_args_t, max_position, 72);
AT(fa_rotary_args_t, rotary_dim, 80);
AT(fa_rotary_args_t, positions, 88);
AT(fa_rotary_args_t, position_offset, 96);
AT(fa_rotary_args_t, cu_seqlens_q, 104);
AT(fa_rotary_args_t, seqused_q, 112);
AT(fa_rotary_args_t, stream, 120);
AT(fa_rotary_args_t, workspace, 128);
AT(fa_rotary_args_t, workspace_size, 136);

SIZE(fa_append_kv_args_t, 248);
AT(fa_append_kv_args_t, struct_size, 0);
AT(fa_append_kv_args_t, flags, 4);
AT(fa_append_kv_args_t, k_new, 8);
AT(fa_append_kv_args_t, v_new, 16);
AT(fa_append_kv_args_t, seqlen_new, 24);
AT(fa_append_kv_args_t, total_new, 32);
AT(fa_append_kv_args_t, k_new_stride, 40);
AT(fa_append_kv_args_t, v_new_stride, 72);
AT(fa_append_kv_args_t, k, 104);
AT(fa_append_kv_args_t, v, 112);
AT(fa_append_kv_args_t, cu_seqlens_new, 120);
AT(fa_append_kv_args_t, seqused_new, 128);
AT(fa_append_kv_args_t, positions, 136);
AT(fa_append_kv_args_t, seqused_k, 144);
AT(fa_append_kv_args_t, leftpad_k, 152);
AT(fa_append_kv_args_t, kv_batch_idx, 160);
AT(fa_append_kv_args_t, page_table, 168);
AT(fa_append_kv_args_t, k_descale, 176);
AT(fa_append_kv_args_t, v_descale, 184);
AT(fa_append_kv_args_t, cos, 192);
AT(fa_append_kv_args_t, sin, 200);
AT(fa_append_kv_args_t, max_position, 208);
AT(fa_append_kv_args_t, rotary_dim, 216);
AT(fa_append_kv_args_t, stream, 224);
AT(fa_append_kv_args_t, workspace, 232);
AT(fa_append_kv_args_t, workspace_size, 240);

SIZE(fa_status_t, 4);
SIZE(fa_handle_t, 8);

IS(FA_OK, 0);
IS(FA_INVALID_ARGUMENT, 10);
IS(FA_UNSUPPORTED_FIELD, 11);
IS(FA_UNSUPPORTED, 20);
IS(FA_OUT_OF_MEMORY, 30);
IS(FA_WORKSPACE_TOO_SMALL, 31);
IS(FA_NO_DEVICE, 40);
IS(FA_BACKEND_MISSING, 41);
IS(FA_BACKEND_INCOMPATIBLE, 42);
IS(FA_DEVICE_ERROR, 50);
IS(FA_INVALID_STATE, 60);
IS(FA_INTERNAL, 90);

IS(FA_BACKEND_AUTO, 0);
IS(FA_BACKEND_CPU, 1);
IS(FA_BACKEND_CUDA, 2);
IS(FA_BACKEND_HIP, 3);

IS(FA_MEMORY_DEFAULT, 0);
IS(FA_MEMORY_HOST, 1);
IS(FA_MEMORY_DEVICE, 2);

IS(FA_LOG_NONE, 0);
IS(FA_LOG_ERROR, 1);
IS(FA_LOG_INFO, 2);
IS(FA_LOG_DEBUG, 3);

IS(FA_PARAM_THREADS, 1);
IS(FA_PARAM_MAX_ISA, 2);
IS(FA_PARAM_LOG_LEVEL, 3);
IS(FA_PARAM_COUNT, 4);
IS(FA_STAT_TILE_ROWS, 100);
IS(FA_STAT_TILE_KEYS, 101);
IS(FA_STAT_FLOPS, 102);
IS(FA_STAT_BYTES_READ, 103);
IS(FA_STAT_BYTES_WRITTEN, 104);
IS(FA_STAT_EXTRA_BYTES, 105);

IS(FA_ISA_GENERIC, 1);
IS(FA_ISA_AVX2, 2);
IS(FA_ISA_AVX512, 3);
IS(FA_ISA_AVX512_BF16, 4);
IS(FA_ISA_AMX, 5);
IS(FA_ISA_AMX_FP16, 6);
IS(FA_ISA_NEON, 16);
IS(FA_ISA_SVE, 17);

IS(FA_F32, 1);
IS(FA_F16, 2);
IS(FA_BF16, 3);
IS(FA_E4M3, 4);
IS(FA_E5M2, 5);
IS(FA_I8, 6);

IS(FA_CAUSAL, 0x1);
IS(FA_WINDOW, 0x2);
IS(FA_SCALE_EXPLICIT, 0x4);
IS(FA_DETERMINISTIC, 0x8);

IS(FA_ALIGN_UNSET, 0);
IS(FA_ALIGN_TOP_LEFT, 1);
IS(FA_ALIGN_BOTTOM_RIGHT, 2);
IS(FA_ALIGN_EXPLICIT, 3);

IS(FA_ALGORITHM_FLASH, 0);
IS(FA_ALGORITHM_STANDARD, 1);
IS(FA_ALGORITHM_FLASH1, 2);

IS(FA_SCORES_RAW, 0);
IS(FA_SCORES_CAPPED, 1);
IS(FA_SCORES_BIASED, 2);
IS(FA_SCORES_PROBABILITY, 3);

IS(FA_STRIDED_Q, 0x1);
IS(FA_STRIDED_K, 0x2);
IS(FA_STRIDED_V, 0x4);
IS(FA_STRIDED_O, 0x8);
IS(FA_STRIDED_LSE, 0x10);

IS(FA_OPERAND_LSE, 0x1);
IS(FA_OPERAND_BIAS, 0x2);
IS(FA_OPERAND_MASK, 0x4);
IS(FA_OPERAND_ALIBI, 0x8);
IS(FA_OPERAND_SINKS, 0x10);
IS(FA_OPERAND_CAUSAL_OFFSET, 0x20);
IS(FA_OPERAND_CU_SEQLENS_Q, 0x40);
IS(FA_OPERAND_CU_SEQLENS_K, 0x80);
IS(FA_OPERAND_SEQUSED_Q, 0x100);
IS(FA_OPERAND_SEQUSED_K, 0x200);
IS(FA_OPERAND_LEFTPAD_K, 0x400);
IS(FA_OPERAND_KV_BATCH_IDX, 0x800);
IS(FA_OPERAND_PAGE_TABLE, 0x1000);
IS(FA_OPERAND_Q_DESCALE, 0x2000);
IS(FA_OPERAND_K_DESCALE, 0x4000);
IS(FA_OPERAND_V_DESCALE, 0x8000);
IS(FA_OPERAND_O_SCALE, 0x10000);
IS(FA_OPERAND_SCORES, 0x20000);
IS(FA_OPERAND_RNG_STATE, 0x40000);

IS(FA_OP_FORWARD, 1);
IS(FA_OP_MERGE, 2);
IS(FA_OP_APPEND_KV, 3);
IS(FA_OP_ROTARY, 4);
IS(FA_OP_BACKWARD, 5);

IS(FA_ARGS_STREAM, 0x1);

IS(FA_BACKWARD_ACCUMULATE, 0x2);

IS(FA_MERGE_ACCUMULATE, 0x2);

IS(FA_ROTARY_INTERLEAVED, 0x2);
IS(FA_APPEND_DYNAMIC_SCALE, 0x4);
