"""Attention for PyTorch: operators over libflashattn, the usual multi-head module, and SDPA.

    from flashattn.torch import MultiheadAttention, Plan, append_kv, attention, context_parallel, rotary, sdpa

    out = attention(q, k, v, causal="bottom-right")       # (batch, rows, heads, dim), differentiable
    layer = MultiheadAttention(512, heads=8, heads_kv=2)  # projections, heads, attention, concatenation
    with sdpa():                                          # torch.nn.functional.scaled_dot_product_attention, by the library
        model(x)
    with context_parallel() as cp:                        # sequences distributed over processes
        out = cp.attention(q, k, v, causal="top-left")
    append_kv(k_new, v_new, k, v, page_table=table, seqused_k=used, k_dtype="q8_0", v_dtype="q8_0")  # a cache of bytes, in pages
    out = attention(q, k, v, page_table=table, seqused_k=used + 1, k_dtype="q8_0", v_dtype="q8_0")

torch.ops.flashattn.forward and .backward are torch operators. torch.compile traces them without a graph break, also with dynamic
shapes, and torch.export exports them. The package does not depend on torch: only this module imports it. Tensors are on the CPU or
on a GPU, all on one device, in float32, float16 or bfloat16, and are read in place. On a GPU, calls go into torch's current stream,
take their workspace from torch, and can be captured into a graph. Only q, k, v, the output and one number for each row are kept for
the backward. Second and forward-mode derivatives are refused. torch.func.grad, torch.vmap and batched gradients work: the operators
are called once for each item. Under torch.autocast, q, k and v get its type. Tensors without memory (device "meta", fake tensors)
give outputs without memory.

torch.ops.flashattn.attend, .append_kv and .rotary, for inference, have no gradient. torch.compile and torch.export take them, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

import torch
from torch import nn

from ._context_parallel import context_parallel
from ._library import require
from ._prepared import in_order
from ._prepared_torch import Prepared, attention_made, settled, signature_of, unseen
from ._sdpa import sdpa
from ._torch_attention import KEYWORDS, Options, attention
from ._torch_cache import append_kv, rotary
from .handle import handle_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

require(__name__)

__all__ = ["MultiheadAttention", "Plan", "append_kv", "attention", "context_parallel", "rotary", "sdpa"]

Result = TypeVar("Result")


class Plan(Generic[Result]):
    """A call of `attention`, prepared for tensors of these shapes, strides and dtypes, for example in a decoding loop:

        plan = flashattn.torch.Plan(q, k, v, mask=mask)
        out = plan(q, k, v, mask=mask)

    Arguments are those of `attention`. Tensors are inspected, not kept. All other options apply to every call. The lengths
    of packed sequences are bounded by max_seqlen_q and max_seqlen_k, or by the longest one here. A call takes the same
    tensors by the same names. On the CPU it checks their shapes, strides and dtypes: ValueError names one that differs.
    Contents are checked in every call. In these cases the call is an ordinary call of `attention`: torch has to see it (it
    needs a gradient, is compiled, or is under a mode or a transform), it has dropout, it is on a GPU, or the library cannot
    address a tensor. Threads can share a plan. Each computes with its own handle, unless backend is a Handle. `attention`
    itself keeps plans for its last calls, which costs a few microseconds more.
    """

    @overload
    def __init__(
        self: Plan[torch.Tensor],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        return_lse: Literal[False] = ...,
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: Plan[tuple[torch.Tensor, torch.Tensor]],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        return_lse: Literal[True],
        **options: Unpack[Options],
    ) -> None: ...
    @KEYWORDS.listed
    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, return_lse: bool = False, **options: Any) -> None:
        given = settled({"q": q, "k": k, "v": v, **KEYWORDS.complete(Plan, options), "return_lse": return_lse})
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        for name in ("q", "k", "v"):
            if name not in tensors:
                raise TypeError(f"{name} is of {type(given[name]).__name__}: a Plan takes tensors of torch")
        self._names = tuple(tensors)
        self._options = {name: value for name, value in given.items() if name not in tensors}
        with torch.no_grad():
            self._signature, held = signature_of(tensors)
        self._prepared = None
        if self._signature is not None and not given["dropout_p"]:
            made = Prepared(attention_made({**given, **held}), held)
            self._prepared = made if made.copied is None else None

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **tensors: torch.Tensor) -> Result:
        """What `attention` returns."""
        given: dict[str, Any] = {"q": q, "k": k, "v": v, **tensors}
        result: Any
        if self._prepared is not None and unseen():
            signature, held = signature_of(given)
            if signature is not None:
                if signature != self._signature:
                    held = in_order(self._signature, given, signature_of)
                result = self._prepared(held.values(), handle_of(self._options["backend"] or "cpu"))
                return cast(Result, result)
        if set(given) != set(self._names):
            raise TypeError(f"the plan takes {', '.join(self._names)}, not {', '.join(given)}")
        result = attention(**given, **self._options)
        return cast(Result, result)


class MultiheadAttention(nn.Module):
    """Projections to heads, attention, and the projection of the joined heads.

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
        """x: (batch, rows, width), or packed (total, width) with cu_seqlens_q and cu_seqlens_k. context: the rows
        that keys and values come from, (batch, keys, width) or packed; None: x itself. options: keywords of `attention`, such as causal="top-left"."""
        context = x if context is None else context
        q = self.query(x).unflatten(-1, (self.heads, self.dim))
        k = self.key(context).unflatten(-1, (self.heads_kv, self.dim))
        v = self.value(context).unflatten(-1, (self.heads_kv, self.dim))
        out: torch.Tensor = attention(q, k, v, dropout_p=self.dropout if self.training else 0, **options)
        joined: torch.Tensor = self.output(out.flatten(-2))
        return joined
