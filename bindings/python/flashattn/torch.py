"""Attention for PyTorch: an autograd function over libflashattn, and the usual multi-head module.

    from flashattn.torch import MultiheadAttention, attention

    out = attention(q, k, v, causal="bottom-right")       # (batch, rows, heads, dim), differentiable
    layer = MultiheadAttention(512, heads=8, heads_kv=2)  # projections, heads, attention, concatenation

The package does not depend on torch: only this module imports it. Tensors are on the CPU or on a GPU, all on one device, in float32,
float16 or bfloat16, and are read where they lie. On a GPU calls go into torch's current stream, take their workspace from torch, and
can be captured into a graph. Nothing but q, k, v, the output and one number for each row is kept for the backward. A second derivative
is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch import nn

from ._layout import Order
from ._tensors import Call
from ._types import Alignment, Causal, Layout
from .handle import Handle

if TYPE_CHECKING:
    from typing_extensions import Unpack


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
    mask: torch.Tensor | None
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
    mask: torch.Tensor | None = None,
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
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ, masked) v with gradients for q, k, v, bias and sinks, and through out and lse.

    q: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; k, v: the same with heads_k heads, which divide
    heads. The keywords are those of flashattn.attention. bias and mask broadcast to (batch, heads, rows, keys); a bias has float32,
    float16 or bfloat16.
    layout: "bhsd" for q, k, v and out of (batch, heads, rows, dim), as scaled_dot_product_attention has them. An order that is not
    said is not noticed: rows and heads then change places.
    max_seqlen_q, max_seqlen_k: bounds of packed lengths; None: the longest of cu_seqlens, for which a GPU is waited for.
    dropout_p: in training only, as in torch.nn.functional. dropout_seed None: drawn from torch's own generator.
    deterministic: the same gradients, bit for bit, every time on a GPU, too; None: as torch.use_deterministic_algorithms says.
    backend: a Handle of one's own; None: the thread's own for the tensors' device.

    Returns out, q's shape with v's head dimension and q's dtype; with return_lse also lse, float32 (batch, heads, rows) or packed
    (heads, total). Raises like flashattn.attention.
    """
    if dropout_p and dropout_seed is None:
        dropout_seed = int(torch.randint(1 << 62, ()))
    options: dict[str, Any] = {
        "causal": causal,
        "alignment": alignment,
        "window": window,
        "chunk": chunk,
        "scale": scale,
        "softcap": softcap,
        "mask": mask,
        "alibi_slopes": alibi_slopes,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": max_seqlen_q,
        "max_seqlen_k": max_seqlen_k,
        "dropout_p": dropout_p,
        "dropout_seed": dropout_seed or 0,
        "deterministic": torch.are_deterministic_algorithms_enabled() if deterministic is None else deterministic,
    }
    swapped = Order(layout).swapped
    q, k, v = (x.transpose(1, 2) if swapped and x.ndim == 4 else x for x in (q, k, v))
    out, lse = _Attention.apply(q, k, v, bias, sinks, options, backend)
    out = out.transpose(1, 2) if swapped and out.ndim == 4 else out
    return (out, lse) if return_lse else out


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
        return self.output(out.flatten(-2))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, bias, sinks, options, backend = inputs
        call = Call(q, k, v, bias, sinks, options)
        packed = call.packed("q")
        out = call.output("o", (*q.shape[:-1], v.shape[-1]), q.dtype, gaps=packed)
        lse = call.output("lse", call.sums, torch.float32, gaps=packed, value=float("-inf"))
        call.run(backend)
        ctx.save_for_backward(q, k, v, bias, sinks, out, lse)
        ctx.options, ctx.backend = options, backend
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients_of_outputs: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        dout, dlse = gradients_of_outputs
        q, k, v, bias, sinks, out, lse = ctx.saved_tensors
        call = Call(q, k, v, bias, sinks, ctx.options, backward=True)
        call.point("o", out)
        call.point("lse", lse)
        call.point("dout", torch.zeros_like(out) if dout is None else dout.contiguous())
        if dlse is not None:
            call.point("dlse", dlse.contiguous())
        wanted = zip(("dq", "dk", "dv"), (q, k, v), ctx.needs_input_grad)
        gradients = [call.gradient(name, x) if need else None for name, x, need in wanted]
        for name, x, need in (("dbias", bias, ctx.needs_input_grad[3]), ("dsinks", sinks, ctx.needs_input_grad[4])):
            gradients.append(call.score_gradient(name, x) if need else None)
        call.run(ctx.backend)
        scores = [None if g is None else g.to(x.dtype) for g, x in zip(gradients[3:], (bias, sinks))]
        return (*gradients[:3], *scores, None, None)
