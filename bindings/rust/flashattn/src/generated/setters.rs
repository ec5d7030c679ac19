// Written by tools/generate_abi.py from flashattn.h: change the header, then run it again.
of_attention! {
    /// FA_F32, FA_F16, FA_BF16, FA_E4M3, FA_E5M2; required
    dtype q_dtype;
    /// those, FA_I8, 4-bit types and blocks; 0: q's
    dtype k_dtype;
    /// as k_dtype; 0: k's. In a backward it must be k's (another type: reserved)
    dtype v_dtype;
    /// as q_dtype; 0: q's, or bf16 if q is an 8-bit float
    dtype o_dtype;
    /// FA_F32, FA_F16, FA_BF16; 0: q's
    dtype q_tail_dtype;
    /// the same
    dtype k_tail_dtype;
    /// FA_F32 (also by 0), FA_F16, FA_BF16, FA_E4M3, FA_E8M0
    dtype q_descale_dtype;
    /// the same, for k_descale and k_shift (which cannot be FA_E8M0)
    dtype k_descale_dtype;
    /// the same, for v_descale and v_shift
    dtype v_descale_dtype;
    /// FA_F32 (also by 0), FA_F16, FA_BF16
    dtype bias_dtype;
    /// 0: a byte for each pair; FA_BIT: key j is bit j & 7 of byte j >> 3, and strides count bytes
    dtype mask_dtype;
    /// FA_LIST_…
    choice ListSpace list_space;
    /// FA_ALGORITHM_…
    choice Algorithm algorithm;
    /// FA_PRECISION_…
    choice Precision precision;
    /// FA_SCORES_…, with FA_OPERAND_SCORES
    choice ScoresStage scores_stage;
    /// parts of the keys that are computed in parallel, up to 65536; 0: chosen from descriptor and device
    small num_splits;
    /// GPU: number of SMs (compute_units of fa_device_info_t) left free for other streams; at least two are
    /// used. Kernels with one block per SM, such as Hopper's up to 256 dims, leave them free. All others
    /// choose their splits for the remaining SMs. No effect on the CPU
    small reserve_units;
    /// > 0: caps scores to ± softcap; 0: off
    real softcap;
    /// probability of dropping, in [0, 1)
    real dropout_p;
    /// sequences; batch, seqlen_q, seqlen_k may be 0
    size batch;
    /// query heads
    size heads_q;
    /// divides heads_q: head h reads k head h · heads_k / heads_q; 0: heads_q
    size heads_k;
    /// the same for v; 0: heads_k. In a backward it must be heads_k (another number: reserved)
    size heads_v;
    /// rows of a sequence; with cu_seqlens_q or seqused_q the longest allowed
    size seqlen_q;
    /// keys of a sequence; with cu_seqlens_k, seqused_k or pages the longest allowed
    size seqlen_k;
    /// head dimension of q and k, 1 … 1024
    size dim_qk;
    /// head dimension of v and o, 1 … 1024, with FA_V_IN_K at most dim_qk; 0: dim_qk
    size dim_v;
    /// with q_tail or k_tail: number of the last dims of q and k that are in the tail; below dim_qk
    size dim_tail;
    /// with cu_seqlens_q: rows of the packed q, o
    size total_q;
    /// with cu_seqlens_k: rows of the packed k, v
    size total_k;
    /// with kv_batch_idx: sequences in the cache
    size kv_batch;
    /// with page_table or FA_LIST_SLOTS: keys of a page, >= 1
    size page_size;
    /// with the same: pages in the cache; ids are 0 … num_pages − 1
    size num_pages;
    /// entries between two rows of the table; 0: ceil(seqlen_k / page_size)
    size page_table_stride;
    /// > 0: row i sees only keys of its own chunk, floor((i + off) / chunk); 0: off
    size chunk;
    /// fixed number of keys of a split: the bits of a sequence then do not depend on the rest of the batch; 0:
    /// off. Must be 0 if num_splits is set
    size split_size;
    /// number of columns of the mask, for the last keys of a sequence; earlier keys are kept; 0: all keys
    size mask_keys;
    /// intervals of a row in key_ranges; 0: 1
    size key_range_max;
    /// entries stored for a block of rows, in key_list and in full_list
    size list_max;
    /// rows of the tensor that share a list: 1 or a multiple of 16; packed sequences begin at multiples of
    /// it; 0: 1
    size list_rows;
    /// keys that an entry e names, from e · list_keys on: 1 or a multiple of 16; 0: 1
    size list_keys;
    /// number of lists over the heads, a divisor of heads_q: head h has list h · list_heads / heads_q; 0:
    /// heads_q
    size list_heads;
    /// (sequences, heads) after which the bias repeats: b mod period[0], h mod period[1]; 0: no
    /// repeat
    array 2 bias_period;
    /// the same for the mask
    array 2 mask_period;
    /// (rows, dims) that share a scale; 0: one row, all dims
    array 2 q_descale_block;
    /// the same for k_descale and k_shift
    array 2 k_descale_block;
    /// the same for v_descale and v_shift
    array 2 v_descale_block;
    /// Strides, in units of the type (elements, except for 4-bit and block types): (batch, row, head, unit). The last is 1.
    /// Any other stride of an input may be 0, which broadcasts it. Strides are never negative. Along a dimension of size 0 or 1, any
    /// stride from 0 on is allowed and has no effect. Dense is [batch][seqlen][heads][dim]. Packed is [total][heads][dim], without a
    /// batch stride: give 0. Paged is [num_pages][page_size][heads][dim], with the page stride in [0].
    array 4 FA_STRIDED_Q q_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 FA_STRIDED_K k_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 FA_STRIDED_V v_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 FA_STRIDED_O o_stride;
    /// as q_stride
    array 4 FA_STRIDED_Q_TAIL q_tail_stride;
    /// as k_stride; a stride of 0 between heads: all heads share one tail
    array 4 FA_STRIDED_K_TAIL k_tail_stride;
    /// (batch, query head, row, key), always literal, any value >= 0; rows and keys as the masks count them.
    array 4 bias_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 mask_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 scores_stride;
    /// (batch, head, row); dense: [batch][heads_q][seqlen_q], packed [heads_q][total_q] (no batch stride)
    array 3 FA_STRIDED_LSE lse_stride;
    /// (batch, block of rows, head, block of dims), always literal. The scale of a value is descale[b · s0 + floor(row / block[0]) ·
    /// s1 + head · s2 + floor(dim / block[1]) · s3]. row is counted in the tensor (packed row, cache slot, slot in the page), so a
    /// block of packed rows may span two sequences. b is the sequence, the cache's sequence, or the page. q counts query heads. Dims
    /// of tails have no scale.
    array 4 q_descale_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 k_descale_stride;
    /// As the field of this name in `flashattn.h`.
    array 4 v_descale_stride;
    /// (batch, query head, row, interval), in pairs, always literal; row is counted in the tensor
    /// (packed: no batch stride)
    array 4 key_range_stride;
    /// of both lists: (batch, list head, block of rows, entry), always literal; packed: no batch
    /// stride
    array 4 list_stride;
    /// (batch, list head, block of rows)
    array 3 list_count_stride;
    /// slopes[b · stride + head]; 0: one slope per head for all sequences
    size alibi_batch_stride;
    /// same bits every time; a forward always has them
    flag deterministic FA_DETERMINISTIC;
    /// v is the dims [0, dim_v) of k, with its scales: v and v_new are NULL, and all v fields except
    /// dim_v are 0. Forward only
    flag v_in_k FA_V_IN_K;
}
