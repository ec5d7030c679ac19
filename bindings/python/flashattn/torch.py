"""Attention for PyTorch: operators over libflashattn, the usual multi-head module, and SDPA.

    from flashattn.torch import MultiheadAttention, Plan, attention, context_parallel, sdpa

    out = attention(q, k, v, causal="bottom-right")       # (batch, rows, heads, dim), differentiable
    layer = MultiheadAttention(512, heads=8, heads_kv=2)  # projections, heads, attention, concatenation
    with sdpa():                                          # torch.nn.functional.scaled_dot_product_attention, by the library
        model(x)
    with context_parallel() as cp:                        # sequences distributed over processes
        out = cp.attention(q, k, v, causal="top-left")

torch.ops.flashattn.forward and .backward are torch operators. torch.compile traces them without a graph break, also with dynamic
shapes, and torch.export exports them. The package does not depend on torch: only this module imports it. Tensors are on the CPU or
on a GPU, all on one device, in float32, float16 or bfloat16, and are read in place. On a GPU, calls go into torch's current stream,
take their workspace from torch, and can be captured into a graph. Only q, k, v, the output and one number for each row are kept for
the backward. Second and forward-mode derivatives are refused. torch.func.grad, torch.vmap and batched gradients work: the operators
are called once for each item. Under torch.autocast, q, k and v get its type. Tensors without memory (device "meta", fake tensors)
give outputs without memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypedDict, TypeVar, cast, overload

import torch
from torch import nn
from torch.utils.dlpack import from_dlpack

from ._context_parallel import context_parallel
from ._dlpack import converted, is_foreign
from ._keywords import refuse
from ._library import require
from ._operators import arguments, forward
from ._prepared import in_order
from ._prepared_torch import Prepared, prepared, settled, signature_of, unseen
from ._sdpa import sdpa
from ._types import Alignment, Causal, Layout
from .handle import Handle, handle_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

require(__name__)

__all__ = ["MultiheadAttention", "Plan", "attention", "context_parallel", "sdpa"]

Result = TypeVar("Result")


class Options(TypedDict, total=False):
    """Keywords of `attention` that do not change how many tensors it returns. Their meaning is documented there."""

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
@prepared
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

    q: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; k, v: the same with heads_k heads, which
        divide heads. The keywords are those of flashattn.attention. bias and mask broadcast to (batch, heads, rows, keys);
        a bias has float32, float16 or bfloat16. A gradient of bias_scale takes memory for a float32 bias of all heads. A
        gradient of alibi_slopes takes twice that of (heads, rows, keys), for each sequence if sequences have different
        slopes, biases or diagonals. scale, softcap and dropout_p are numbers. A gradient of them is refused. key_ranges,
        key_list, full_list and their counts are those of flashattn.attention: a document mask, or the tensors of
        FlexAttention's BlockMask (kv_indices, kv_num_blocks, full_kv_indices, full_kv_num_blocks) with its block size as
        list_rows and list_keys.
    layout: "bhsd" for q, k, v and out of (batch, heads, rows, dim), as in scaled_dot_product_attention. A wrong
    layout is not detected: rows and heads are then swapped.
    max_seqlen_q, max_seqlen_k: bounds of packed lengths; None: the longest of cu_seqlens. To read it, the call waits for a
        GPU.
    dropout_p: in training only, as in torch.nn.functional. dropout_seed None: drawn from torch's own generator.
    deterministic: the same gradients, bit for bit, every time on a GPU, too; None: as torch.use_deterministic_algorithms says.
    backend: a Handle; None: the thread's own for the tensors' device.

    Arrays of other libraries that export DLPack, such as CuPy's and JAX's on a GPU, are taken without a copy by
    torch.from_dlpack. It makes torch's stream wait for theirs. Results are then arrays of q's library, by its from_dlpack.
    They carry no gradient.

    Returns out, q's shape with v's head dimension and q's dtype; with return_lse also lse, float32 (batch, heads, rows) or packed
    (heads, total). Raises like flashattn.attention.
    """
    if unknown:
        refuse(attention, unknown)
    given = {
        **{"q": q, "k": k, "v": v, "layout": layout, "causal": causal, "alignment": alignment, "window": window, "chunk": chunk},
        **{"scale": scale, "softcap": softcap, "bias": bias, "bias_scale": bias_scale, "bias_period": bias_period},
        **{"mask": mask, "mask_period": mask_period, "mask_keys": mask_keys, "mask_bits": mask_bits, "key_ranges": key_ranges},
        **{"key_list": key_list, "key_list_count": key_list_count, "full_list": full_list, "full_list_count": full_list_count},
        **{"list_rows": list_rows, "list_keys": list_keys, "alibi_slopes": alibi_slopes, "sinks": sinks},
        **{"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k},
        **{"dropout_p": dropout_p, "dropout_seed": dropout_seed, "deterministic": deterministic, "backend": backend},
    }
    if is_foreign(q) and not isinstance(q, torch.Tensor):
        result = attention(**{name: _tensor(name, value) for name, value in given.items()}, return_lse=return_lse)
        return tuple(converted(x, q, x) for x in result) if isinstance(result, tuple) else converted(result, q, result)
    out, lse = forward(*arguments(given))
    out = out.transpose(1, 2) if layout == "bhsd" and out.ndim == 4 else out
    return (out, lse) if return_lse else out


def _tensor(name: str, value: Any) -> Any:
    """Of a call whose q is of another library, to which no gradient leads back."""
    if isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name} requires a gradient: expected q to be a tensor of torch's, too, or none to require one")
    return from_dlpack(value) if is_foreign(value) and not isinstance(value, torch.Tensor) else value


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
    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> None:
        call = inspect.signature(attention).bind(q, k, v, **options)
        call.apply_defaults()
        unknown = call.arguments.pop("unknown")
        if unknown:
            refuse(Plan, unknown, call.arguments)
        given = settled(dict(call.arguments))
        tensors = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
        for name in ("q", "k", "v"):
            if name not in tensors:
                raise TypeError(f"{name} is of {type(given[name]).__name__}: a Plan takes tensors of torch")
        self._names = tensors.keys()
        self._options = {name: value for name, value in given.items() if name not in tensors}
        with torch.no_grad():
            self._signature, held = signature_of(tensors)
        self._prepared = None
        if self._signature is not None and not given["dropout_p"]:
            made = Prepared({**given, **held}, held)
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
        if given.keys() != self._names:
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
        """x: (batch, rows, width). context: (batch, keys, width) that keys and values come from; None: x itself. options: keywords
        of `attention`, such as causal="top-left"."""
        context = x if context is None else context
        q = self.query(x).unflatten(-1, (self.heads, self.dim))
        k = self.key(context).unflatten(-1, (self.heads_kv, self.dim))
        v = self.value(context).unflatten(-1, (self.heads_kv, self.dim))
        out: torch.Tensor = attention(q, k, v, dropout_p=self.dropout if self.training else 0, **options)
        joined: torch.Tensor = self.output(out.flatten(-2))
        return joined
