"""Attention for PyTorch: an autograd function over libflashattn, and the usual multi-head module.

    from flashattn.torch import MultiheadAttention, attention

    out = attention(q, k, v, causal="bottom-right")       # (batch, rows, heads, dim), differentiable
    layer = MultiheadAttention(512, heads=8, heads_kv=2)  # projections, heads, attention, concatenation

The package does not depend on torch: only this module imports it. Tensors are on the CPU, in float32, float16 or bfloat16, and are
read where they lie. Nothing but q, k, v, the output and one number for each row is kept for the backward. A second derivative is
refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from . import _abi
from ._arrays import integer
from ._forward import place, plain_scores
from ._request import Request
from .handle import Handle, handle_of

_CODES = {torch.float32: _abi.FA_F32, torch.float16: _abi.FA_F16, torch.bfloat16: _abi.FA_BF16}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: str | None = None,
    alignment: str | None = None,
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
    dropout_p: float = 0,
    seed: int | None = None,
    return_lse: bool = False,
    backend: Handle | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale · q kᵀ, masked) v with gradients for q, k, v, bias and sinks, and through out and lse.

    q: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; k, v: the same with heads_kv heads, which divide
    heads. The keywords are those of flashattn.attention. bias and mask broadcast to (batch, heads, rows, keys); a bias has float32,
    float16 or bfloat16.
    dropout_p: in training only, as in torch.nn.functional. seed: of dropout; None: drawn from torch's own generator.

    Returns out, q's shape with v's head dimension and q's dtype; with return_lse also lse, float32 (batch, heads, rows) or packed
    (heads, total). Raises like flashattn.attention.
    """
    if dropout_p and seed is None:
        seed = int(torch.randint(1 << 62, ()))
    options = {"causal": causal, "alignment": alignment, "window": window, "chunk": chunk, "scale": scale, "softcap": softcap}
    options |= {"mask": mask, "alibi_slopes": alibi_slopes, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    options |= {"dropout_p": dropout_p, "seed": seed or 0}
    out, lse = _Attention.apply(q, k, v, bias, sinks, options, backend)
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
        out = attention(q, k, v, dropout_p=self.dropout if self.training else 0, **options)
        return self.output(out.flatten(-2))


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, sinks, options, backend):
        call = _Call(_abi.ForwardArgs(), q, k, v, bias, sinks, options)
        # The library does not write the gaps of packed sequences.
        out = q.new_zeros((*q.shape[:-1], v.shape[-1]))
        lse = q.new_full(call.sums, float("-inf"), dtype=torch.float32)
        call.point("o", out)
        call.point("lse", lse)
        call.run("fa_forward_ex", backend)
        ctx.save_for_backward(q, k, v, bias, sinks, out, lse)
        ctx.options, ctx.backend = options, backend
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dout, dlse):
        q, k, v, bias, sinks, out, lse = ctx.saved_tensors
        call = _Call(_abi.BackwardArgs(), q, k, v, bias, sinks, ctx.options)
        call.point("o", out)
        call.point("lse", lse)
        call.point("dout", dout.contiguous())
        call.point("dlse", dlse.contiguous())
        wanted = zip(("dq", "dk", "dv"), (q, k, v), ctx.needs_input_grad)
        gradients = [call.gradient(name, x) if need else None for name, x, need in wanted]
        for name, x, need in (("dbias", bias, ctx.needs_input_grad[3]), ("dsinks", sinks, ctx.needs_input_grad[4])):
            gradients.append(call.score_gradient(name, x) if need else None)
        call.run("fa_backward", ctx.backend)
        for n, x in ((3, bias), (4, sinks)):
            if gradients[n] is not None:
                gradients[n] = gradients[n].to(x.dtype)
        return (*gradients, None, None)


class _Call:
    """Descriptor and args for tensors on the CPU; q, k and v by their own strides, everything else dense."""

    def __init__(self, args: _abi.ForwardArgs | _abi.BackwardArgs, q, k, v, bias, sinks, options) -> None:
        for name, x in (("q", q), ("k", k), ("v", v)):
            _check(name, x, q)
        self.request = Request(args)
        self.alive: list[torch.Tensor] = []
        desc = self.request.desc
        desc.q_dtype = desc.kv_dtype = desc.o_dtype = _CODES[q.dtype]
        desc.operands = _abi.FA_OPERAND_LSE
        self._sizes(q, k, v, options)
        for name, x in (("q", q), ("k", k), ("v", v)):
            x, strides = _addressable(x)
            self.point(name, x)
            desc.strided |= getattr(_abi, f"FA_STRIDED_{name.upper()}")
            setattr(desc, f"{name}_stride", strides)
        place(self.request, options["causal"], None, options["alignment"], options["window"], options["chunk"])
        plain_scores(self.request, options["scale"], options["softcap"])
        self._operands(bias, sinks, options)
        desc.dropout_p = options["dropout_p"]
        args.seed = integer("seed", options["seed"], 64, signed=False) if options["dropout_p"] else 0

    def _sizes(self, q, k, v, options) -> None:
        desc = self.request.desc
        lengths = {name: options[f"cu_seqlens_{name}"] for name in ("q", "k")}
        ranks = {name: 4 if cu is None else 3 for name, cu in lengths.items()}
        if q.ndim != ranks["q"] or k.ndim != ranks["k"] or v.shape[:-1] != k.shape[:-1] or k.shape[-1] != q.shape[-1]:
            raise ValueError(
                f"q, k and v have shapes {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}: expected (batch, rows, heads, dim), "
                "or (total, heads, dim) with cu_seqlens, dims of q and k alike, and k and v alike but for theirs"
            )
        desc.batch = q.shape[0] if lengths["q"] is None else len(lengths["q"]) - 1
        desc.heads_q, desc.dim_qk = q.shape[-2:]
        desc.heads_kv, desc.dim_v = v.shape[-2:]
        for name, x in (("q", q), ("k", k)):
            cu = lengths[name]
            if cu is None:
                setattr(desc, f"seqlen_{name}", x.shape[1])
                if x.shape[0] != desc.batch:
                    raise ValueError(f"{name} has {x.shape[0]} sequences: expected {desc.batch}")
                continue
            setattr(desc, f"total_{name}", x.shape[0])
            setattr(desc, f"seqlen_{name}", max(int(cu.diff().max()) if len(cu) > 1 else 0, 0))
            desc.operands |= getattr(_abi, f"FA_OPERAND_CU_SEQLENS_{name.upper()}")
            self.point(f"cu_seqlens_{name}", cu.to(torch.int32).contiguous())

    @property
    def sums(self) -> tuple[int, ...]:
        """The shape of the LSE."""
        desc = self.request.desc
        packed = desc.operands & _abi.FA_OPERAND_CU_SEQLENS_Q
        return (desc.heads_q, desc.total_q) if packed else (desc.batch, desc.heads_q, desc.seqlen_q)

    def _operands(self, bias, sinks, options) -> None:
        desc = self.request.desc
        pairs = (desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k)
        for name, x in (("bias", bias), ("mask", options["mask"])):
            if x is None:
                continue
            if name == "mask":
                x = (x != 0).view(torch.uint8)
            elif x.dtype in _CODES:
                desc.bias_dtype = _CODES[x.dtype]
            else:
                raise TypeError(f"bias has dtype {x.dtype}: expected float32, float16 or bfloat16")
            seen = x.detach().broadcast_to(pairs)
            desc.operands |= getattr(_abi, f"FA_OPERAND_{name.upper()}")
            setattr(desc, f"{name}_stride", seen.stride())
            self.point(name, seen)
        slopes = options["alibi_slopes"]
        for name, bit, x in (("alibi_slopes", _abi.FA_OPERAND_ALIBI, slopes), ("sinks", _abi.FA_OPERAND_SINKS, sinks)):
            if x is None:
                continue
            if x.shape != (desc.heads_q,) and (name == "sinks" or x.shape != (desc.batch, desc.heads_q)):
                raise ValueError(f"{name} has shape {tuple(x.shape)}: expected ({desc.heads_q},)")
            desc.operands |= bit
            if x.ndim == 2:
                desc.alibi_batch_stride = desc.heads_q
            self.point(name, x.detach().to(torch.float32).contiguous())

    def point(self, field: str, x: torch.Tensor) -> None:
        if x.device.type != "cpu":
            raise ValueError(f"{field} is on {x.device}: expected the CPU")
        setattr(self.request.args, field, x.data_ptr() or None)
        self.alive.append(x)

    def gradient(self, field: str, like: torch.Tensor) -> torch.Tensor:
        """Dense, also where the input is broadcast."""
        x = torch.zeros(like.shape, dtype=like.dtype)
        self.point(field, x)
        setattr(self.request.args, f"{field}_stride", _literal(x))
        return x

    def score_gradient(self, field: str, like: torch.Tensor) -> torch.Tensor:
        """In float32; of a bias summed over what it is broadcast along."""
        x = torch.zeros(like.shape, dtype=torch.float32)
        self.point(field, x)
        if field == "dbias":
            desc = self.request.desc
            self.request.args.dbias_stride = x.broadcast_to((desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k)).stride()
        return x

    def run(self, function: str, backend: Handle | None) -> None:
        self.request.call(function, handle_of("cpu" if backend is None else backend))


def _check(name: str, x: torch.Tensor, q: torch.Tensor) -> None:
    if x.device.type != "cpu":
        raise ValueError(f"{name} is on {x.device}: expected the CPU")
    if x.dtype not in _CODES or x.dtype != q.dtype:
        raise TypeError(f"{name} has dtype {x.dtype}: expected float32, float16 or bfloat16, the same for q, k and v")


def _addressable(x: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """The tensor itself when the elements of a head lie side by side, else a copy; and its strides."""
    x = x.detach()
    if x.stride(-1) != 1:
        x = x.contiguous()
    return x, _literal(x)


def _literal(x: torch.Tensor) -> tuple[int, ...]:
    """Four strides, whatever a single dimension's own may be; a packed tensor has none for the batch."""
    strides = (*x.stride()[:-1], 1)
    return strides if x.ndim == 4 else (0, *strides)
