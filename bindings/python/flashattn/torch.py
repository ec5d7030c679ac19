"""Attention for PyTorch: operators over libflashattn, the usual multi-head module, and SDPA.

    from flashattn.torch import MultiheadAttention, attention, context_parallel, sdpa

    out = attention(q, k, v, causal="bottom-right")       # (batch, rows, heads, dim), differentiable
    layer = MultiheadAttention(512, heads=8, heads_kv=2)  # projections, heads, attention, concatenation
    with sdpa():                                          # torch.nn.functional.scaled_dot_product_attention, by the library
        model(x)
    with context_parallel() as cp:                        # sequences that are spread over processes
        out = cp.attention(q, k, v, causal="top-left")

torch.ops.flashattn.forward and .backward are operators of torch's: torch.compile traces them without a graph break, with shapes
that change, and torch.export writes them down. The package does not depend on torch: only this module imports it. Tensors are on
the CPU or on a GPU, all on one device, in float32, float16 or bfloat16, and are read where they lie. On a GPU calls go into torch's
current stream, take their workspace from torch, and can be captured into a graph. Nothing but q, k, v, the output and one number
for each row is kept for the backward. Second and forward-mode derivatives are refused; torch.func.grad, torch.vmap and batched
gradients work, the operators being called once for each item. Under torch.autocast q, k and v get its type. Tensors without memory
(of the device "meta", fake ones) give outputs without memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from ._arrays import choice, integer
from ._context_parallel import context_parallel
from ._dlpack import converted, is_foreign
from ._forward import ALIGNMENTS, named_causal, window_sides
from ._keywords import refuse
from ._layout import Order
from ._library import require
from ._operators import forward
from ._sdpa import sdpa
from ._tensors import constant
from ._types import Alignment, Causal, Layout
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack

require(__name__)

__all__ = ["MultiheadAttention", "attention", "context_parallel", "sdpa"]


class Options(TypedDict, total=False):
    """Keywords of `attention` that do not change how many tensors it returns; their meaning is told there."""

    layout: Layout
    causal: Causal | None
    alignment: Alignment | None
    window: Sequence[int | None] | None
    chunk: int
    scale: float | None
    softcap: float
    bias: torch.Tensor | None
    bias_scale: torch.Tensor | None
    bias_period: tuple[int, int] | None
    mask: torch.Tensor | None
    mask_period: tuple[int, int] | None
    mask_keys: int
    mask_bits: bool
    key_ranges: torch.Tensor | None
    key_list: torch.Tensor | None
    key_list_count: torch.Tensor | None
    full_list: torch.Tensor | None
    full_list_count: torch.Tensor | None
    list_rows: int
    list_keys: int
    alibi_slopes: torch.Tensor | None
    sinks: torch.Tensor | None
    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_k: torch.Tensor | None
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    dropout_p: float
    dropout_seed: int | None
    deterministic: bool | None
    backend: Handle | None


@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> torch.Tensor: ...
@overload
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[torch.Tensor, torch.Tensor]: ...
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    layout: Layout = "bshd",
    causal: Causal | None = None,
    alignment: Alignment | None = None,
    window: Sequence[int | None] | None = None,
    chunk: int = 0,
    scale: float | None = None,
    softcap: float = 0,
    bias: torch.Tensor | None = None,
    bias_scale: torch.Tensor | None = None,
    bias_period: tuple[int, int] | None = None,
    mask: torch.Tensor | None = None,
    mask_period: tuple[int, int] | None = None,
    mask_keys: int = 0,
    mask_bits: bool = False,
    key_ranges: torch.Tensor | None = None,
    key_list: torch.Tensor | None = None,
    key_list_count: torch.Tensor | None = None,
    full_list: torch.Tensor | None = None,
    full_list_count: torch.Tensor | None = None,
    list_rows: int = 1,
    list_keys: int = 1,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0,
    dropout_seed: int | None = None,
    deterministic: bool | None = None,
    return_lse: bool = False,
    backend: Handle | None = None,
    **unknown: Any,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ, masked) v with gradients for q, k, v, bias, sinks, bias_scale and alibi_slopes, and through out and lse.

    q: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; k, v: the same with heads_k heads, which divide
    heads. The keywords are those of flashattn.attention. bias and mask broadcast to (batch, heads, rows, keys); a bias has float32,
    float16 or bfloat16.
    A gradient of bias_scale takes memory for a float32 bias of all heads, one of alibi_slopes twice that of (heads, rows, keys), for each
    sequence where these have slopes, biases or diagonals of their own. scale, softcap and dropout_p are numbers, of which a gradient is refused.
    key_ranges, key_list, full_list and their counts as flashattn.attention has them: a document mask, or the tensors of FlexAttention's
    BlockMask (kv_indices, kv_num_blocks, full_kv_indices, full_kv_num_blocks) with its block size as list_rows and list_keys.
    layout: "bhsd" for q, k, v and out of (batch, heads, rows, dim), as scaled_dot_product_attention has them. An order that is not
    said is not noticed: rows and heads then change places.
    max_seqlen_q, max_seqlen_k: bounds of packed lengths; None: the longest of cu_seqlens, for which a GPU is waited for.
    dropout_p: in training only, as in torch.nn.functional. dropout_seed None: drawn from torch's own generator.
    deterministic: the same gradients, bit for bit, every time on a GPU, too; None: as torch.use_deterministic_algorithms says.
    backend: a Handle of one's own; None: the thread's own for the tensors' device.

    Arrays of other libraries that export DLPack, as CuPy's and JAX's on a GPU, are taken without a copy by torch.from_dlpack, which
    has torch's stream wait for theirs; results are then arrays of q's library, by its from_dlpack. No gradient goes through them.

    Returns out, q's shape with v's head dimension and q's dtype; with return_lse also lse, float32 (batch, heads, rows) or packed
    (heads, total). Raises like flashattn.attention.
    """
    if unknown:
        refuse(attention, unknown)
    if is_foreign(q) and not isinstance(q, torch.Tensor):
        given = {name: _tensor(name, value) for name, value in locals().items() if name != "unknown"}
        out = attention(**given)
        return tuple(converted(x, q, x) for x in out) if isinstance(out, tuple) else converted(out, q, out)
    seed, dropout_p = None, constant("dropout_p", dropout_p)
    if dropout_p:
        # A tensor, so that a compiled program draws it anew; 64 bits, of which torch's integers count the uppermost as the sign.
        seed = torch.randint(1 << 62, ()) if dropout_seed is None else torch.tensor(_signed(dropout_seed))
    swapped = Order(layout).swapped
    q, k, v = (x.transpose(1, 2) if swapped and x.ndim == 4 else x for x in (q, k, v))
    if alignment is not None:
        choice("alignment", alignment, ALIGNMENTS)
    out, lse = forward(
        *(q, k, v, bias, sinks, alibi_slopes, bias_scale, mask, key_ranges, key_list, key_list_count, full_list, full_list_count),
        *(cu_seqlens_q, cu_seqlens_k, seed),
        *(max_seqlen_q, max_seqlen_k, named_causal(causal), alignment, None if window is None else window_sides(window), chunk),
        *(bias_period, mask_period, mask_keys, mask_bits, list_rows, list_keys),
        *(None if scale is None else constant("scale", scale), constant("softcap", softcap), dropout_p),
        torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic,
        0 if backend is None else backend.pointer,
    )
    out = out.transpose(1, 2) if swapped and out.ndim == 4 else out
    return (out, lse) if return_lse else out


def _tensor(name: str, value: Any) -> Any:
    """Of a call whose q is of another library, to which no gradient leads back."""
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name} requires a gradient: expected q to be a tensor of torch's, too, or none to require one")
    return from_dlpack(value) if is_foreign(value) and not isinstance(value, torch.Tensor) else value


def _signed(seed: int) -> int:
    integer("dropout_seed", seed, 64, signed=False)
    return seed - (1 << 64) if seed >> 63 else seed


class MultiheadAttention(nn.Module):
    """Projections to heads, attention, and the projection of what they give, side by side.

    width: of the inputs and the output. heads: query heads, each of width / heads dimensions. heads_kv: key and value heads, a
    divisor of heads (None: as many). bias: of the projections. dropout: of attention weights, in training.
    """

    def __init__(self, width: int, heads: int, heads_kv: int | None = None, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        heads_kv = heads if heads_kv is None else heads_kv
        if heads < 1 or width % heads or heads_kv < 1 or heads % heads_kv:
            raise ValueError(f"width is {width}, heads {heads}, heads_kv {heads_kv}: each must divide the one before it")
        self.heads, self.heads_kv, self.dim, self.dropout = heads, heads_kv, width // heads, dropout
        self.query = nn.Linear(width, width, bias)
        self.key = nn.Linear(width, heads_kv * self.dim, bias)
        self.value = nn.Linear(width, heads_kv * self.dim, bias)
        self.output = nn.Linear(width, width, bias)

    def forward(self, x: torch.Tensor, context: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
        """x: (batch, rows, width). context: (batch, keys, width) that keys and values come from; None: x itself. options: keywords
        of `attention`, such as causal="top-left"."""
        context = x if context is None else context
        q = self.query(x).unflatten(-1, (self.heads, self.dim))
        k = self.key(context).unflatten(-1, (self.heads_kv, self.dim))
        v = self.value(context).unflatten(-1, (self.heads_kv, self.dim))
        out: torch.Tensor = attention(q, k, v, dropout_p=self.dropout if self.training else 0, **options)
        joined: torch.Tensor = self.output(out.flatten(-2))
        return joined
