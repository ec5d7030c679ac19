"""Attention: softmax(scale · q kᵀ, masked) v, without storing the score matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import ArrayLike

from ._dlpack import exchanged
from ._forward import build, results
from ._keywords import NUMPY
from ._place import ATTENTION, also_on_gpu, place_of
from ._prepared import prepared
from ._types import Array, BackendName, Floats, Options, Stage
from .handle import Handle, handle_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    *,
    return_lse: Literal[False] = ...,
    return_scores: None = ...,
    backend: BackendName | Handle | None = ...,
    **options: Unpack[Options],
) -> Array: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    *,
    return_lse: Literal[True],
    return_scores: None = ...,
    backend: BackendName | Handle | None = ...,
    **options: Unpack[Options],
) -> tuple[Array, Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    *,
    return_lse: Literal[False] = ...,
    return_scores: Stage,
    backend: BackendName | Handle | None = ...,
    **options: Unpack[Options],
) -> tuple[Array, Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    *,
    return_lse: Literal[True],
    return_scores: Stage,
    backend: BackendName | Handle | None = ...,
    **options: Unpack[Options],
) -> tuple[Array, Floats, Floats]: ...
@overload
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    *,
    return_lse: bool = ...,
    return_scores: Stage | None = ...,
    backend: BackendName | Handle | None = ...,
    **options: Unpack[Options],
) -> Array | tuple[Array, ...]: ...
@prepared
@also_on_gpu(ATTENTION)
@exchanged
@NUMPY.listed
def attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike | None,
    *,
    return_lse: bool = False,
    return_scores: Stage | None = None,
    backend: BackendName | Handle | None = None,
    **options: Any,
) -> Array | tuple[Array, ...]:
    """softmax(scale · q kᵀ, masked) v for every query row. Accumulates in float32.

    Row i and key j count within their own sequence, after left padding. Row i is on key i + off.

    Tensors
        q: (batch, rows, heads, dim), or packed (total_q, heads, dim) with cu_seqlens_q. float32, float16, bfloat16,
            float8_e4m3fn, float8_e5m2 (the last three from ml_dtypes).
        k, v: (batch, keys, heads_k, dim), packed (total_k, heads_k, dim) with cu_seqlens_k, or paged (num_pages, page_size,
            heads_k, dim) with page_table. Each has any of q's dtypes, int8, or a flashattn.block_dtype such as "q8_0", with
            dim / 32 blocks in the last axis ("e2m1", "i4" and "u4": dim / 2 bytes). v may have another head dimension (1 …
            1024) and number of heads. Both numbers divide q's: neighbouring query heads share a key head. v None: the first
            dim_v dims of k (default all), with k's scales, as in latent attention.
        q_tail, k_tail: the last dims of q's and k's heads in separate arrays, float32, float16 or bfloat16. k_tail may have
            one head for all.
        layout: "bshd", or "bhsd" if every tensor of four axes has its heads before its rows, as in PyTorch's
            scaled_dot_product_attention: q and out (batch, heads, rows, dim), pages (num_pages, heads, page_size, dim). A
            wrong layout is not detected: rows and heads are then swapped.
        Any strides are allowed. Arrays that the library can address (adjacent elements of a head, no negative stride) are
        read in place, broadcast axes included. Others are copied first.

    Masks
        causal: "top-left" (off = 0), "bottom-right" (off = keys − rows: the last row sees the last key; for decoding) or
            "explicit" (off = causal_offset): row i keeps keys j <= i + off. None: no causal mask.
        alignment: the same words without a causal mask, for window, chunk and alibi_slopes.
        causal_offset: int or (batch,), with "explicit".
        window: (left, right) keys kept on each side of i + off, inclusive; None or −1: all.
        chunk: row i sees only keys of its own chunk, floor((i + off) / chunk). 0: off.
        mask: bool or uint8, broadcast to (batch, heads, rows, keys); true: attend.
        mask_keys: > 0: the mask has this many columns, for the last keys of a sequence. All earlier keys are attended.
        mask_bits: the mask is uint8 with eight columns a byte, as np.packbits(columns, -1, "little") gives.
        key_ranges: integers, broadcast to (batch, heads, rows, intervals, 2), packed (heads, total_q, intervals, 2): a row
            sees the keys in [begin, end) of one of its intervals. Intervals ascend and do not overlap. begin >= end is
            empty.
        key_list, full_list: integers (batch, list heads, blocks of list_rows rows, entries), packed without the batch: the
            blocks of list_keys keys that rows see, in any order; −1: unused. In blocks of full_list, only the bias
            applies. List heads divide heads. With the block size of FlexAttention's BlockMask as list_rows and
            list_keys, entries are the BlockMask's indices. If both are 1, entries are the keys of each row.
        list_space: "slots": key_list holds places of a cache, page · page_size + row in the page, and k and v are
            (num_pages, page_size, heads_k, dim). Keys then have no position, so no other mask is allowed.
        key_list_count, full_list_count: (batch, list heads, blocks of rows): number of valid entries; None: all.
        In lists and counts, batch or list heads may be 1: one for all.
        bias: added to the scores, unscaled; float32, float16, bfloat16 (float64 is converted), broadcast like mask; −inf removes.
        bias_scale: (heads,) factors of the bias. alibi_slopes(heads) and a bias of distances are ALiBi over any mask.
        bias_period, mask_period: (batch, heads) after which a bias or mask repeats. It then broadcasts to that many. 0: no
            repeat.
        alibi_slopes: (heads,) or (batch, heads); − slope · |i + off − j| is added. flashattn.alibi_slopes has the usual ones.
        sinks: (heads,) logits that take part in the softmax without a value.

    Scores
        scale: default 1 / sqrt(dim). softcap: scores become softcap · tanh(s / softcap) before the bias; 0: off.
        q_descale, k_descale, v_descale: scales of the stored values, broadcast to (sequence, row, head); for pages to
            (page, slot, head); for packed tensors row is the packed row. q's heads are query heads. float32, float16,
            bfloat16, float8_e4m3fn, float8_e8m0fnu; others are converted to float32.
        q_descale_block, k_descale_block, v_descale_block: (rows, dims) that share a scale (0: one row, all dims). Scales
            then broadcast to (sequence or page, block of rows, head, block of dims). MXFP8 and
            MXFP4 (block_dtype("e2m1")) have (0, 32).
        k_shift, v_shift: added to stored · scale; of the scales' shape and type.
        o_scale: multiplies the output before it is rounded; 8-bit outputs saturate.
        dropout_p: probability of dropping in [0, 1), by (dropout_seed, dropout_offset); see flashattn.dropout_mask.

    Lengths, as integers
        cu_seqlens_q, cu_seqlens_k: (batch + 1,) boundaries of the packed sequences. max_seqlen_q, max_seqlen_k: bounds of the
            lengths, by default the longest (of pages: what a row of page_table holds).
        seqused_q, seqused_k: (batch,) numbers of valid rows and keys. leftpad_k: (batch,) slots to skip, included in
            seqused_k.
        kv_batch_idx: (batch,) which sequence of the cache (or row of page_table) each sequence reads.
        page_table: (batch, pages) ids.

    Computing
        num_splits: parts of the keys computed in parallel; 0: chosen. split_size: fixed number of keys of a part; 0: off.
        reserve_units: SMs of a GPU left free for other streams by kernels with one block per SM, such as Hopper's up to 256
            dims.
        device_status: (1,) uint32, written: a GPU checks lengths, pages, indices and lists first, and or-s into it 1 for a
            bad length, 2 for a page, 4 for an index. A bad value is clamped or counts as absent. A CPU refuses it.
        precision: "native" permits a kernel to round q to the type of k or to bfloat16, P to the type of v or to bfloat16, and
            the values of blocks to bfloat16.
        algorithm: "flash", or for study in float32 "standard" (all scores stored) or "flash1" (keys in the outer loop).
        backend: None or "auto", "cpu", "cuda", "hip", or a Handle.

    Arrays
        NumPy arrays, objects that NumPy converts to arrays, and objects that export DLPack from ordinary memory (torch tensors,
        JAX arrays), which are read in place, too. If q is such an object, results are of its kind, in new memory. The same holds
        for the first argument of every function here. For gradients use flashattn.torch and flashattn.jax.
        On a GPU, attention, attention_backward, append_kv and convert take arrays of a library with DLPack, such as CuPy. All are
        on one device. q, k, v, the other tensors of their layout, bias and mask may have strides; all others are dense. Integers
        are int32, lengths are bounded by max_seqlen_q and max_seqlen_k, and k_shift and v_shift are not allowed. The call goes into
        the library's current stream. If __cuda_array_interface__ names that stream, the call does not wait; otherwise it does.
        Results are arrays of that library. For torch tensors and JAX arrays on a GPU use flashattn.torch and flashattn.jax.

    Returns out, or a tuple of out, lse (with return_lse) and scores (with return_scores), in this order.
        out: q's shape with v's head dimension, in out_dtype (default q's; bfloat16 for 8-bit q). A row without a key is 0.
        lse: float32 (batch, heads, rows), packed (heads, total_q): natural log of the sum of exp(score), −inf without a key.
        scores: float32 (batch, heads, rows, keys) at a stage: "raw", "capped", "biased" (masked: −inf) or "probability".

    Raises FlashAttnError with the library's message: InvalidArgumentError (a ValueError too), UnsupportedError (a
    NotImplementedError too), OutOfMemoryError (a MemoryError too); ValueError or TypeError for arrays that fit no call.
    """
    given = {**NUMPY.complete(attention, options), "return_lse": return_lse, "return_scores": return_scores}
    request, dtype = build(q, k, v, given)
    place = place_of(backend)
    outputs = results(request, given, dtype, place.room)
    place.run(request)
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


@exchanged
@NUMPY.listed
def explain(
    q: ArrayLike | None = None,
    k: ArrayLike | None = None,
    v: ArrayLike | None = None,
    *,
    return_lse: bool = False,
    return_scores: Stage | None = None,
    backend: BackendName | Handle | None = None,
    **options: Unpack[Options],
) -> str:
    """How the same call of `attention` would be computed: backend, device, kernel, tiles, splits, or why it is unsupported. An
    invalid call raises as in `attention`. Without tensors: the backend, and why others were skipped."""
    if q is None or k is None:
        return handle_of(backend).explain()
    given = {**NUMPY.complete(explain, options), "return_lse": return_lse, "return_scores": return_scores}
    request, _ = build(q, k, v, given)
    return handle_of(backend).explain(request.desc)
