"""The descriptor of a call of flashattn.jax, from the shapes and dtypes of its arrays, when a program is traced."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from . import _abi
from ._arrays import dtype_code, integer
from ._forward import KEY_LISTS, SCORE_SCALARS, key_lists, place, plain_scores, ranges_shape, set_flags, set_ranges
from ._request import Request

FLOATS = ("float32", "float16", "bfloat16")
PER_HEAD = ("sinks", "bias_scale")
INTEGERS = ("cu_seqlens_q", "cu_seqlens_k", "key_ranges", *KEY_LISTS)
# The operands beside q, k and v.
BITS = {name: f"FA_OPERAND_{name.upper()}" for name in ("bias", *PER_HEAD, "mask", "rng_state",
                                                        *INTEGERS)} | {"alibi_slopes": "FA_OPERAND_ALIBI"}

Arrays = dict[str, Any]  # by name: arrays, or their shapes and dtypes


class Static(NamedTuple):
    """What is no array: known when a program is traced."""

    swapped: bool
    causal: str | None
    alignment: str | None
    window: tuple[int, int] | None
    chunk: int
    scale: float | None
    scalars: tuple[float, ...]  # each of SCORE_SCALARS
    dropout_p: float
    flags: tuple[str, ...]  # those of FLAGS that are on
    max_seqlen_q: int | None
    max_seqlen_k: int | None
    list_rows: int
    list_keys: int
    names: tuple[str, ...]  # of the operands that there are, in their order


def sizes(options: Static, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Batch, rows and heads; a packed tensor has no batch."""
    if len(shape) == 3:
        return 0, shape[0], shape[1]
    return (shape[0], shape[2], shape[1]) if options.swapped else (shape[0], shape[1], shape[2])


def strides(options: Static, shape: tuple[int, ...]) -> tuple[int, ...]:
    """(batch, row, head, element) of a dense tensor."""
    dim = shape[-1]
    if len(shape) == 3:
        return 0, shape[1] * dim, dim, 1
    inner = shape[2] * dim
    return (shape[1] * inner, dim, inner, 1) if options.swapped else (shape[1] * inner, inner, dim, 1)


def broadcast_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for length in reversed(shape):
        steps.append(0 if length == 1 else step)
        step *= length
    return tuple(reversed(steps))


def describe(options: Static, given: Arrays) -> Request:
    """The descriptor, and the args with the room behind each operand."""
    request = Request(_abi.ForwardArgs())
    desc, q, k, v = request.desc, given["q"], given["k"], given["v"]
    lengths = {name: given.get(f"cu_seqlens_{name}") for name in ("q", "k")}
    ranks = {name: 4 if cu is None else 3 for name, cu in lengths.items()}
    if (q.ndim, k.ndim, v.ndim) != (ranks["q"], ranks["k"], ranks["k"]) or k.shape[-1] != q.shape[-1]:
        raise ValueError(
            f"q, k and v have shapes {q.shape}, {k.shape} and {v.shape}: expected (batch, rows, heads, dim), or (total, heads, "
            "dim) with cu_seqlens, dims of q and k alike"
        )
    extents = {name: sizes(options, x.shape) for name, x in (("q", q), ("k", k), ("v", v))}
    if extents["k"][:2] != extents["v"][:2]:
        raise ValueError(f"k has {extents['k'][:2]} sequences and rows, v {extents['v'][:2]}: they must agree")
    if 0 in (extents["k"][2], extents["v"][2], q.shape[-1], v.shape[-1]):  # a zero in the descriptor would mean its default
        raise ValueError(f"k and v have shapes {k.shape} and {v.shape}: expected at least one head and one dim")
    desc.batch = extents["q"][0] if lengths["q"] is None else lengths["q"].shape[0] - 1 if lengths["q"].ndim else 0
    desc.heads_q, desc.heads_k, desc.heads_v = (extents[name][2] for name in ("q", "k", "v"))
    desc.dim_qk, desc.dim_v = q.shape[-1], v.shape[-1]
    for name, cu in lengths.items():
        batch, rows, _ = extents[name]
        longest = getattr(options, f"max_seqlen_{name}")
        if cu is None and batch != desc.batch:
            raise ValueError(f"{name} has {batch} sequences: expected {desc.batch}")
        if cu is None and longest is not None:
            raise ValueError(f"max_seqlen_{name} is {longest}: it belongs with cu_seqlens_{name}; {name} has {rows} rows")
        if cu is not None and cu.shape != (desc.batch + 1,):
            raise ValueError(f"cu_seqlens_{name} has shape {cu.shape}: expected (batch + 1,) = ({desc.batch + 1},)")
        setattr(desc, f"seqlen_{name}", rows if longest is None else integer(f"max_seqlen_{name}", longest, 63, signed=False))
        if cu is not None:
            setattr(desc, f"total_{name}", rows)
            desc.operands |= getattr(_abi, BITS[f"cu_seqlens_{name}"])  # which the shapes of others depend on
    for name in ("q", "k", "v"):
        if given[name].dtype != q.dtype:
            raise TypeError(f"{name} has dtype {given[name].dtype}: expected q's, {q.dtype}")
        setattr(desc, f"{name}_dtype", dtype_code(name, np.dtype(q.dtype), FLOATS))
        setattr(desc, f"{name}_stride", strides(options, given[name].shape))
    desc.o_dtype, desc.o_stride = desc.q_dtype, strides(options, (*q.shape[:-1], v.shape[-1]))
    desc.strided |= _abi.FA_STRIDED_Q | _abi.FA_STRIDED_K | _abi.FA_STRIDED_V | _abi.FA_STRIDED_O
    desc.operands |= _abi.FA_OPERAND_LSE
    place(request, options.causal, None, options.alignment, options.window, options.chunk)
    plain_scores(request, options.scale, dict(zip(SCORE_SCALARS, options.scalars)))
    desc.dropout_p = options.dropout_p
    set_flags(request, dict.fromkeys(options.flags, True))
    for name in options.names:
        x = given[name]
        point(request, name, x)
        if name in BITS and name not in KEY_LISTS:
            desc.operands |= getattr(_abi, BITS[name])
        if name in ("bias", "mask"):
            _score(desc, name, x)
        if name in PER_HEAD and x.shape != (desc.heads_q,):
            raise ValueError(f"{name} has shape {x.shape}: expected ({desc.heads_q},)")
        if name == "alibi_slopes":
            if x.shape not in ((desc.heads_q,), (desc.batch, desc.heads_q)):
                raise ValueError(f"{name} has shape {x.shape}: expected ({desc.heads_q},) or {desc.batch, desc.heads_q}")
            desc.alibi_batch_stride = desc.heads_q if x.ndim == 2 else 0
        if name == "key_ranges":
            _ranges(desc, x)
    key_lists(request, {name: given.get(name) for name in KEY_LISTS}, options.list_rows, options.list_keys,
              functools.partial(_list, request))
    return request


def _score(desc: Any, name: str, x: Any) -> None:
    pairs = (desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k)
    if any(n not in (1, m) for n, m in zip(x.shape, pairs)):
        raise ValueError(f"{name} has shape {x.shape}: expected one that broadcasts to {pairs}")
    if name == "bias":
        desc.bias_dtype = dtype_code(name, np.dtype(x.dtype), FLOATS)
    setattr(desc, f"{name}_stride", broadcast_strides(x.shape))


def point(request: Request, name: str, x: Any) -> None:
    request.point_at(name, None, x.size * x.dtype.itemsize, None)


def _ranges(desc: Any, x: Any) -> None:
    shape, axes = ranges_shape(desc, x.shape)
    if x.ndim != len(shape) or x.shape[-1] != 2 or any(n not in (1, m) for n, m in zip(x.shape, shape)):
        raise ValueError(f"key_ranges has shape {x.shape}: expected one that broadcasts to {axes} = {shape}")
    set_ranges(desc, shape, broadcast_strides(x.shape))


def _list(request: Request, bit: int, name: str, x: Any, shape: tuple[int, ...], *_: Any) -> tuple[int, ...]:
    request.desc.operands |= bit
    return broadcast_strides(shape)
