"""Rotary embedding, and writing new keys and values into a cache, of torch's tensors."""

from __future__ import annotations


import torch

from ._cache_operators import append, append_arguments, rotary_arguments
from ._cache_operators import rotary as rotary_operator
from ._prepared_torch import APPEND, prepared
from ._types import BlockName, Layout
from .handle import Handle


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    positions: torch.Tensor | None = None,
    position_offset: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    seqused_q: torch.Tensor | None = None,
    interleaved: bool = False,
    rotary_begin: int = 0,
    layout: Layout = "bshd",
    backend: Handle | None = None,
) -> torch.Tensor:
    """Rotary embedding as flashattn.rotary has it, into a new tensor. It has no gradient.

    x: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; float32, float16, bfloat16. cos, sin:
        (max_position, rotary_dim / 2). The keywords are those of flashattn.rotary, and layout as in `attention`.
    """
    result: torch.Tensor = rotary_operator(*rotary_arguments(locals()))
    return result


@prepared(APPEND)
def append_kv(
    k_new: torch.Tensor,
    v_new: torch.Tensor | None,
    k: torch.Tensor,
    v: torch.Tensor | None,
    *,
    seqused_k: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    cu_seqlens_new: torch.Tensor | None = None,
    max_seqlen_new: int | None = None,
    seqused_new: torch.Tensor | None = None,
    leftpad_k: torch.Tensor | None = None,
    kv_batch_idx: torch.Tensor | None = None,
    page_table: torch.Tensor | None = None,
    max_seqlen_k: int | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    k_descale_block: tuple[int, int] | None = None,
    v_descale_block: tuple[int, int] | None = None,
    k_shift: torch.Tensor | None = None,
    v_shift: torch.Tensor | None = None,
    k_tail: torch.Tensor | None = None,
    dynamic_scale: bool = False,
    cos: torch.Tensor | None = None,
    sin: torch.Tensor | None = None,
    interleaved: bool = False,
    rotary_begin: int = 0,
    k_dtype: BlockName | None = None,
    v_dtype: BlockName | None = None,
    layout: Layout = "bshd",
    backend: Handle | None = None,
) -> None:
    """Writes new keys and values into the cache k, v, in place. It has no gradient.

    k_new, v_new: (batch, tokens, heads_k, dim), or packed (total, heads_k, dim) with cu_seqlens_new; float32, float16, bfloat16.
    k, v: the cache, (batch, slots, heads_k, dim), or (num_pages, page_size, heads_k, dim) with page_table; float32, float16, bfloat16,
        float8_e4m3fn, float8_e5m2, int8, or bytes (uint8) of a k_dtype and v_dtype.
    k_dtype, v_dtype: what the bytes of k and v hold, for example "q8_0": dim / 32 blocks of 34 bytes in the last axis, or "i4": dim / 2
        bytes. flashattn.block_dtype(name).itemsize says how many bytes a block has.
    The other keywords are those of flashattn.append_kv. Lengths, positions and tables on a GPU are not checked before the call.

    This is the operator torch.ops.flashattn.append_kv, which changes k, v, k_tail and, with dynamic_scale, descales and shifts.
    torch.compile traces it, and on a GPU it can be captured into a graph after a first call.
    """
    append(*append_arguments(locals()))



