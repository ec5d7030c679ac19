// Written by tools/generate_abi.py from flashattn.h: change the header, then run it again.
operands! {
    Forward, fa_forward_args_t, FA_OP_FORWARD;
    /// As the pointer of this name in `flashattn.h`.
    input of q_dtype q 0;
    /// As the pointer of this name in `flashattn.h`.
    input of k_dtype k 0;
    /// As the pointer of this name in `flashattn.h`.
    input of v_dtype v 0;
    /// rows of a padded q beyond its length are set to 0; gaps of a packed one are not written
    output of o_dtype o 0;
    /// natural logarithm, scale and sink included; −inf if a row has no key, or is padding beyond its
    /// sequence's length
    output f32 lse FA_OPERAND_LSE;
    /// the last dim_tail dims of q; q then holds only the others
    input of q_tail_dtype q_tail FA_OPERAND_Q_TAIL;
    /// the same for k
    input of k_tail_dtype k_tail FA_OPERAND_K_TAIL;
    /// multiplies the stored values; see q_descale_stride. The products must stay finite in f32, and
    /// so must scale · q_descale · k_descale · log2 e, or rows may be NaN
    input of q_descale_dtype q_descale FA_OPERAND_Q_DESCALE;
    /// the same for k. Blocks hold their own scales: k_descale and k_shift are not allowed with
    /// them
    input of k_descale_dtype k_descale FA_OPERAND_K_DESCALE;
    /// the same for v
    input of v_descale_dtype v_descale FA_OPERAND_V_DESCALE;
    /// value = stored · descale + shift; has the type and the indices of k_descale
    input of k_descale_dtype k_shift FA_OPERAND_K_SHIFT;
    /// the same for v
    input of v_descale_dtype v_shift FA_OPERAND_V_SHIFT;
    /// one value: o is round(o · o_scale); an 8-bit o saturates
    input f32 o_scale FA_OPERAND_O_SCALE;
    /// [batch][heads_q][seqlen_q][seqlen_k] by bias_stride
    input of bias_dtype bias FA_OPERAND_BIAS;
    /// [heads_q], finite; with slopes of fa_alibi_slopes, a bias that holds distances becomes
    /// ALiBi
    input f32 bias_scale FA_OPERAND_BIAS_SCALE;
    /// the shape of bias, by mask_stride; nonzero: attend
    input u8 mask FA_OPERAND_MASK;
    /// pairs (begin, end) of keys, end exclusive, by key_range_stride: a key in no range of its row
    /// is removed. Ranges of a row ascend and do not overlap. They may be empty, or reach beyond the
    /// keys
    input i32 key_ranges FA_OPERAND_KEY_RANGES;
    /// blocks of keys in which masks apply, in any order; −1: an unused entry. Each occurs at most
    /// once in the two lists together (not checked: a repeated entry may count twice). With a list, a
    /// key in no entry is removed
    input i32 key_list FA_OPERAND_KEY_LIST;
    /// number of entries to read, up to list_max; without: list_max
    input i32 key_list_count FA_OPERAND_KEY_LIST_COUNT;
    /// blocks in which causal, window, chunk, boolean mask and ranges do not apply
    input i32 full_list FA_OPERAND_FULL_LIST;
    /// as key_list_count
    input i32 full_list_count FA_OPERAND_FULL_LIST_COUNT;
    /// [heads_q], or [batch][heads_q] by alibi_batch_stride; at most 2.35e38; see fa_alibi_slopes
    input f32 alibi_slopes FA_OPERAND_ALIBI;
    /// [heads_q] logits
    input f32 sinks FA_OPERAND_SINKS;
    /// [batch]
    input i32 causal_offset FA_OPERAND_CAUSAL_OFFSET;
    /// [batch + 1], not decreasing, within total_q; sequence b has rows [cu[b], cu[b + 1])
    input i32 cu_seqlens_q FA_OPERAND_CU_SEQLENS_Q;
    /// [batch + 1], within total_k
    input i32 cu_seqlens_k FA_OPERAND_CU_SEQLENS_K;
    /// [batch] number of valid rows, <= seqlen_q or the packed range
    input i32 seqused_q FA_OPERAND_SEQUSED_Q;
    /// [batch] number of valid keys, left padding included, <= seqlen_k or the packed range
    input i32 seqused_k FA_OPERAND_SEQUSED_K;
    /// [batch] slots to skip before key 0
    input i32 leftpad_k FA_OPERAND_LEFTPAD_K;
    /// [batch] sequence of the cache (row of the page table) that sequence b reads
    input i32 kv_batch_idx FA_OPERAND_KV_BATCH_IDX;
    /// [batch or kv_batch][ceil(seqlen_k / page_size)] page ids; unused entries are never read
    input i32 page_table FA_OPERAND_PAGE_TABLE;
    /// [batch][heads_q][seqlen_q][seqlen_k] by scores_stride; pairs outside the valid lengths get 0
    /// (raw, capped, probability) or −inf (biased). With lists: (reserved)
    output f32 scores FA_OPERAND_SCORES;
    /// {seed, offset}, read when the call runs; dropout_seed and dropout_offset must then be 0
    input u64 rng_state FA_OPERAND_RNG_STATE;
    /// one word: a GPU checks the arrays in its memory first, with one more launch, and or-s
    /// FA_BAD_… bits into it
    output u32 device_status FA_OPERAND_DEVICE_STATUS;
    /// see fa_dropout_mask; not used if dropout_p is 0
    word dropout_seed;
    /// the same
    word dropout_offset;
    /// With dropout, if the call computes a part of a larger problem: where its first row, key and head are in the dropout mask of the
    /// larger problem. Row i, key j and head h of sequence b use that mask at row dropout_row + i, key dropout_key + j and batch_head =
    /// b * dropout_heads + dropout_head + h; dropout_heads 0: heads_q.
    size dropout_row;
    /// As the field of this name in `flashattn.h`.
    size dropout_key;
    /// As the field of this name in `flashattn.h`.
    size dropout_head;
    /// As the field of this name in `flashattn.h`.
    size dropout_heads;
}
operands! {
    Backward, fa_backward_args_t, FA_OP_BACKWARD;
    /// gradient with respect to o
    input of q_dtype dout 0;
    /// gradient with respect to LSE; NULL: 0
    input f32 dlse 0;
    /// As the pointer of this name in `flashattn.h`.
    output of q_dtype dq 0;
    /// As the pointer of this name in `flashattn.h`.
    output of k_dtype dk 0;
    /// As the pointer of this name in `flashattn.h`.
    output of v_dtype dv 0;
    /// only with FA_OPERAND_BIAS; 0 if a key is removed
    output f32 dbias 0;
    /// [heads_q]; only with FA_OPERAND_SINKS
    output f32 dsinks 0;
    /// (batch, row, head, element)
    array 4 dout_stride;
    /// (batch, head, row)
    array 3 dlse_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 dq_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 dk_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 dv_stride;
    /// (batch, query head, row, key)
    array 4 dbias_stride;
}
operands! {
    Merge, fa_merge_args_t, FA_OP_MERGE;
    /// As the pointer of this name in `flashattn.h`.
    input f32 o_parts 0;
    /// As the pointer of this name in `flashattn.h`.
    input f32 lse_parts 0;
    /// As the pointer of this name in `flashattn.h`.
    output of o_dtype o 0;
    /// As the pointer of this name in `flashattn.h`.
    output f32 lse FA_OPERAND_LSE;
    /// as in the forward, and so are the fields below
    input f32 sinks FA_OPERAND_SINKS;
    /// As the pointer of this name in `flashattn.h`.
    input f32 o_scale FA_OPERAND_O_SCALE;
    /// As the pointer of this name in `flashattn.h`.
    input i32 cu_seqlens_q FA_OPERAND_CU_SEQLENS_Q;
    /// As the pointer of this name in `flashattn.h`.
    input i32 seqused_q FA_OPERAND_SEQUSED_Q;
    /// number of parts, >= 0
    size parts;
    /// (part, batch, row, head, element); all zero: dense [parts][batch][seqlen_q][heads_q][dim_v] or
    /// [parts][total_q][heads_q][dim_v] (packed: no batch stride)
    array 5 o_parts_stride;
    /// (part, batch, head, row); all zero: dense [parts][batch][heads_q][seqlen_q] or
    /// [parts][heads_q][total_q]
    array 4 lse_parts_stride;
}
operands! {
    Rotary, fa_rotary_args_t, FA_OP_ROTARY;
    /// As the pointer of this name in `flashattn.h`.
    input of q_dtype x 0;
    /// may be x itself, with x's strides
    output of q_dtype out 0;
    /// [max_position][rotary_dim / 2], dense
    input f32 cos 0;
    /// the same
    input f32 sin 0;
    /// [batch][seqlen_q], packed [total_q]; or NULL
    input i32 positions 0;
    /// [batch]; or NULL
    input i32 position_offset 0;
    /// cu_seqlens_q of the forward, for k cu_seqlens_k
    input i32 cu_seqlens FA_OPERAND_CU_SEQLENS_Q;
    /// seqused_q of the forward, for k seqused_k
    input i32 seqused FA_OPERAND_SEQUSED_Q;
    /// all zero: x's
    array 4 out_stride;
    /// rows of cos and sin
    size max_position;
    /// first rotated dim
    size rotary_begin;
    /// number of rotated dims: even, 2 … dim_qk − rotary_begin
    size rotary_dim;
}
operands! {
    AppendKv, fa_append_kv_args_t, FA_OP_APPEND_KV;
    /// the new keys
    input of q_dtype k_new 0;
    /// the new values
    input of q_dtype v_new 0;
    /// the cache
    output of k_dtype k 0;
    /// the cache
    output of v_dtype v 0;
    /// as in the forward, by their bits in desc.operands, and so are the four below
    output of k_tail_dtype k_tail FA_OPERAND_K_TAIL;
    /// As the pointer of this name in `flashattn.h`.
    output of k_descale_dtype k_descale FA_OPERAND_K_DESCALE;
    /// As the pointer of this name in `flashattn.h`.
    output of v_descale_dtype v_descale FA_OPERAND_V_DESCALE;
    /// As the pointer of this name in `flashattn.h`.
    output of k_descale_dtype k_shift FA_OPERAND_K_SHIFT;
    /// As the pointer of this name in `flashattn.h`.
    output of v_descale_dtype v_shift FA_OPERAND_V_SHIFT;
    /// [batch + 1] or NULL
    input i32 cu_seqlens_new 0;
    /// [batch] number of tokens that are given, or NULL
    input i32 seqused_new 0;
    /// [batch][seqlen_new], packed [total_new], or NULL
    input i32 positions 0;
    /// as in the forward, by their bits in desc.operands, and so are the four below
    input i32 seqused_k FA_OPERAND_SEQUSED_K;
    /// As the pointer of this name in `flashattn.h`.
    input i32 leftpad_k FA_OPERAND_LEFTPAD_K;
    /// As the pointer of this name in `flashattn.h`.
    input i32 kv_batch_idx FA_OPERAND_KV_BATCH_IDX;
    /// As the pointer of this name in `flashattn.h`.
    input i32 page_table FA_OPERAND_PAGE_TABLE;
    /// As the pointer of this name in `flashattn.h`.
    output u32 device_status FA_OPERAND_DEVICE_STATUS;
    /// [max_position][rotary_dim / 2] or NULL: no rotation
    input f32 cos 0;
    /// the same
    input f32 sin 0;
    /// tokens of a sequence; with cu_seqlens_new or seqused_new the most allowed
    size seqlen_new;
    /// with cu_seqlens_new: rows of the packed k_new, v_new
    size total_new;
    /// (batch, row, head, element); all zero: dense
    array 4 k_new_stride;
    /// the same
    array 4 v_new_stride;
    /// rows of cos and sin
    size max_position;
    /// as in fa_rotary
    size rotary_begin;
    /// as in fa_rotary
    size rotary_dim;
}
