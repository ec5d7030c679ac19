"""Rotary embedding, and writing new keys and values into a cache, of torch's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from . import _types
from ._cache_operators import append, append_arguments, rotary_arguments
from ._cache_operators import rotary as rotary_operator
from ._keywords import Keywords
from ._prepared_torch import APPEND, prepared
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack


class RotaryOptions(_types.RotaryOptions[torch.Tensor], total=False):
    """Keywords of `rotary`."""

    backend: Handle | None


class AppendOptions(_types.AppendOptions[torch.Tensor], total=False):
    """Keywords of `append_kv`."""

    backend: Handle | None


ROTARY_KEYWORDS = Keywords(RotaryOptions, "torch.Tensor")
APPEND_KEYWORDS = Keywords(AppendOptions, "torch.Tensor")


@ROTARY_KEYWORDS.listed
def rotary(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, **options: Unpack[RotaryOptions]) -> torch.Tensor:
    """Rotary embedding as flashattn.rotary has it, into a new tensor. It has no gradient.

    x: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; float32, float16, bfloat16. cos, sin:
        (max_position, rotary_dim / 2). The keywords are those of flashattn.rotary, and layout as in `attention`.
    """
    given = {"x": x, "cos": cos, "sin": sin, **ROTARY_KEYWORDS.complete(rotary, options)}
    result: torch.Tensor = rotary_operator(*rotary_arguments(given))
    return result


@prepared(APPEND)
@APPEND_KEYWORDS.listed
def append_kv(
    k_new: torch.Tensor, v_new: torch.Tensor | None, k: torch.Tensor, v: torch.Tensor | None, **options: Unpack[AppendOptions]
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
    given = {"k_new": k_new, "v_new": v_new, "k": k, "v": v, **APPEND_KEYWORDS.complete(append_kv, options)}
    append(*append_arguments(given))
