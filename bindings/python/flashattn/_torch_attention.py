"""Attention of torch's tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch.utils.dlpack import from_dlpack

from ._cache_operators import attend, attend_arguments
from ._dlpack import converted, is_foreign
from ._keywords import Keywords, of_cache
from ._operators import arguments, forward
from ._prepared_torch import ATTENTION, prepared
from ._types import ByteOptions, CacheOptions, LocalOptions, Periods
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(Periods, ByteOptions, CacheOptions[torch.Tensor], LocalOptions[torch.Tensor], total=False):
    """Keywords of `attention` that do not change how many tensors it returns."""

    dropout_seed: int | None
    deterministic: bool | None
    backend: Handle | None


KEYWORDS = Keywords(Options, "torch.Tensor")


@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> torch.Tensor: ...
@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor | None, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[torch.Tensor, torch.Tensor]: ...
@prepared(ATTENTION)
@KEYWORDS.listed
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    *,
    return_lse: bool = False,
    **options: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ, masked) v with gradients for q, k, v, bias, sinks, bias_scale and alibi_slopes, and through out and lse.

    q: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q and cu_seqlens_k; k, v: the same with heads_k
        heads, a divisor of heads. The keywords are those of flashattn.attention. bias and mask broadcast to (batch, heads,
        rows, keys); a bias has float32, float16 or bfloat16. A gradient of bias_scale takes memory for a float32 bias of all
        heads. A gradient of alibi_slopes takes memory for two float32 tensors of (heads, rows, keys), or of (batch, heads,
        rows, keys) if sequences have different slopes, biases or diagonals. scale, softcap and dropout_p are numbers. A
        gradient of them is refused. key_ranges, key_list, full_list and their counts are those of flashattn.attention: a
        document mask, or the tensors of FlexAttention's BlockMask (kv_indices, kv_num_blocks, full_kv_indices,
        full_kv_num_blocks) with its block size as list_rows and list_keys.
    layout: "bhsd" for q, k, v and out of (batch, heads, rows, dim), as in scaled_dot_product_attention. A wrong
    layout is not detected: rows and heads are then swapped.
    max_seqlen_q, max_seqlen_k: bounds of packed lengths; None: the longest of cu_seqlens. Reading it makes
        the call wait for a GPU.
    dropout_p: in training only, as in torch.nn.functional. dropout_seed None: drawn from torch's own generator.
    deterministic: the same gradients, bit for bit, every time on a GPU, too; None: as torch.use_deterministic_algorithms says.
    backend: a Handle; None: the thread's own for the tensors' device.

    Over a cache
        dim_v, causal_offset, list_space, seqused_q, seqused_k, leftpad_k, kv_batch_idx, page_table, the descales, their blocks, the
        shifts, the tails and precision are those of flashattn.attention, and v may be None. k and v then have any of the library's
        types. Such a call, and one with q, k or v of 8 or 4 bits, has no gradient and no dropout: a tensor that requires a gradient
        raises NotImplementedError. It is the operator torch.ops.flashattn.attend. append_kv fills the cache.
        k_dtype, v_dtype: what k and v of bytes (uint8) hold, as for append_kv: "q8_0" and the other names of flashattn.block_dtype.
        Lengths, indices and tables on a GPU are not checked before the call.

    Arrays of other libraries that export DLPack, such as CuPy's and JAX's on a GPU, are taken without a copy by
    torch.from_dlpack. It makes torch's stream wait for theirs. Results are then arrays of q's library, by its from_dlpack.
    They carry no gradient.

    Returns out, q's shape with v's head dimension and q's dtype; with return_lse also lse, float32 (batch, heads, rows) or packed
    (heads, total). Raises like flashattn.attention.
    """
    given = {"q": q, "k": k, "v": v, **KEYWORDS.complete(attention, options)}
    if is_foreign(q) and not isinstance(q, torch.Tensor):
        result = attention(**{name: _tensor(name, value) for name, value in given.items()}, return_lse=return_lse)
        return tuple(converted(x, q, x) for x in result) if isinstance(result, tuple) else converted(result, q, result)
    if of_cache({"q": q, "k": k, "v": v, **options}):
        out, lse = attend(*attend_arguments(given))
        return (out, lse) if return_lse else out
    out, lse = forward(*arguments(given))
    out = out.transpose(1, 2) if given["layout"] == "bhsd" and out.ndim == 4 else out
    return (out, lse) if return_lse else out


def _tensor(name: str, value: Any) -> Any:
    """Of a call whose q is of another library, to which no gradient leads back."""
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name} requires a gradient: expected q to be a tensor of torch's, too, or none to require one")
    return from_dlpack(value) if is_foreign(value) and not isinstance(value, torch.Tensor) else value
