"""Merging partial results over disjoint sets of keys."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _abi
from ._arrays import QUERIES, as_array, dtype_code, dtype_of, float32_array, readable, tensor, writable
from ._dlpack import exchanged, full
from ._layout import Order
from ._request import Request, batch_of, literal, longest
from ._types import Array, BackendName, Floats, Layout
from .handle import Handle, handle_of


@overload
def merge(
    o_parts: ArrayLike,
    lse_parts: ArrayLike,
    *,
    sinks: ArrayLike | None = ...,
    cu_seqlens_q: ArrayLike | None = ...,
    max_seqlen_q: int | None = ...,
    seqused_q: ArrayLike | None = ...,
    into: tuple[Floats, Floats] | None = ...,
    out_dtype: DTypeLike = ...,
    o_scale: float | None = ...,
    return_lse: Literal[False] = ...,
    layout: Layout = ...,
    backend: BackendName | Handle | None = ...,
) -> Array: ...
@overload
def merge(
    o_parts: ArrayLike,
    lse_parts: ArrayLike,
    *,
    sinks: ArrayLike | None = ...,
    cu_seqlens_q: ArrayLike | None = ...,
    max_seqlen_q: int | None = ...,
    seqused_q: ArrayLike | None = ...,
    into: tuple[Floats, Floats] | None = ...,
    out_dtype: DTypeLike = ...,
    o_scale: float | None = ...,
    return_lse: Literal[True],
    layout: Layout = ...,
    backend: BackendName | Handle | None = ...,
) -> tuple[Array, Floats]: ...
@exchanged
def merge(
    o_parts: ArrayLike,
    lse_parts: ArrayLike,
    *,
    sinks: ArrayLike | None = None,
    cu_seqlens_q: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    seqused_q: ArrayLike | None = None,
    into: tuple[Floats, Floats] | None = None,
    out_dtype: DTypeLike = np.float32,
    o_scale: float | None = None,
    return_lse: bool = False,
    layout: Layout = "bshd",
    backend: BackendName | Handle | None = None,
) -> Array | tuple[Array, Floats]:
    """Merges attention over parts of the keys into attention over all of them.

    o_parts: float32 (parts, batch, rows, heads, dim), packed (parts, total_q, heads, dim) with cu_seqlens_q; lse_parts: float32
        (parts, batch, heads, rows), packed (parts, heads, total_q); or lists of such arrays, as attention(…, return_lse=True,
        out_dtype="float32") gives them. A part that saw no key (LSE −inf) does not count.
    sinks: (heads,) logits, if no part has included them.
    into: (o, lse) in float32 that already hold a state. The parts are merged into it in place, and it is returned.
    out_dtype, o_scale: of a new out; an 8-bit one stores saturate(out · o_scale).
    layout: "bhsd": o_parts is (parts, batch, heads, rows, dim) and out as in `attention`.

    Returns out, or (out, lse) with return_lse.
    """
    request, order = Request(_abi.MergeArgs()), Order(layout)
    desc, args = request.desc, request.args
    packed = cu_seqlens_q is not None
    ndim = 3 if packed else 4
    parts_axes = f"(parts, {order.dense[1:]}; packed (parts, total, heads, dim)"
    o_parts = order.seen(_parts("o_parts", o_parts, ndim + 1, parts_axes), ndim)
    args.parts, *rows, desc.heads_q, desc.dim_v = o_parts.shape
    if cu_seqlens_q is not None:
        desc.batch, desc.total_q = batch_of("cu_seqlens_q", cu_seqlens_q), rows[0]
        desc.seqlen_q = longest("max_seqlen_q", max_seqlen_q, cu_seqlens_q)
        request.integers("cu_seqlens_q", cu_seqlens_q, (desc.batch + 1,), "(batch + 1,)")
    else:
        if max_seqlen_q is not None:
            raise ValueError(f"max_seqlen_q is {max_seqlen_q}: it belongs with cu_seqlens_q; o_parts has {rows[1]} rows")
        desc.batch, desc.seqlen_q = rows
    lse_shape = (*rows[:-1], desc.heads_q, rows[-1])
    lse_parts = _parts("lse_parts", lse_parts, ndim, "(parts, batch, heads, rows); packed (parts, heads, total)", lse_shape)
    if lse_parts.shape != (args.parts, *lse_shape):
        raise ValueError(f"lse_parts has shape {lse_parts.shape}: expected {(args.parts, *lse_shape)}, as o_parts has it")
    if desc.heads_q == 0 or desc.dim_v == 0:  # in the descriptor zero would mean a default
        raise ValueError(f"o_parts has heads and dimensions {o_parts.shape[-2:]}: expected at least one of each")
    request.integers("seqused_q", seqused_q, (desc.batch,))
    if sinks is not None:
        request.operand(_abi.FA_OPERAND_SINKS, "sinks", float32_array("sinks", sinks, ((desc.heads_q,),), "(heads,)"))
    if o_scale is not None:
        request.operand(_abi.FA_OPERAND_O_SCALE, "o_scale", float32_array("o_scale", o_scale, ((),), "one number", factors=True))

    _point_parts(request, o_parts, lse_parts, packed)
    shape = order.shape((*rows, desc.heads_q, desc.dim_v))
    out_type = dtype_of("out_dtype", out_dtype)
    if into is None:
        o: Array = full(shape, 0, out_type)
        lse = full(lse_shape, -np.inf, np.float32)
    else:
        if not isinstance(into, (list, tuple)) or len(into) != 2:
            raise TypeError("into is no pair: expected (o, lse)")
        if out_type != np.float32:
            raise ValueError(f"out_dtype is {out_type}: into, which holds the state, has float32")
        o, lse = into
        args.flags |= _abi.FA_MERGE_ACCUMULATE
    _point_outputs(request, order, o, lse, (shape, lse_shape), with_lse=return_lse or into is not None)
    request.call(handle_of(backend))
    return (o, lse) if return_lse else o


def _parts(name: str, value: Any, ndim: int, axes: str, part_shape: tuple[int, ...] | None = None) -> Array:
    """All parts in one array. part_shape: what each must have; None: the first one's."""
    if not isinstance(value, (list, tuple)):
        array = tensor(name, value, ndim, axes)
        dtype_code(name, array.dtype, ("float32",))
        return array
    if not value:
        raise ValueError(f"{name} is empty: expected at least one part")
    parts: list[Array] = []
    for place, given in enumerate(value):
        parts.append(_parts(f"{name}[{place}]", as_array(f"{name}[{place}]", given), ndim - 1, axes.replace("parts, ", "")))
        part_shape = part_shape or parts[0].shape
        if parts[-1].shape != part_shape:
            raise ValueError(f"{name}[{place}] has shape {parts[-1].shape}: expected {part_shape}, as other parts have it")
    return np.stack(parts)


def _point_parts(request: Request, o_parts: Array, lse_parts: Array, packed: bool) -> None:
    o_parts, o_strides = readable(o_parts, unit=True)
    lse_parts, lse_strides = readable(lse_parts, unit=False)
    if not any(lse_strides):  # all zero would mean dense
        lse_parts, lse_strides = readable(np.array(lse_parts, order="C"), unit=False)
    request.point("o_parts", o_parts)
    request.point("lse_parts", lse_parts)
    request.args.o_parts_stride = _with_batch(o_strides, packed)
    request.args.lse_parts_stride = _with_batch(lse_strides, packed)


def _with_batch(strides: tuple[int, ...], packed: bool) -> tuple[int, ...]:
    return (strides[0], *literal(strides[1:], packed=packed))


def _point_outputs(
    request: Request, order: Order, o: Any, lse: Any, shapes: tuple[tuple[int, ...], tuple[int, ...]], *, with_lse: bool
) -> None:
    """The arrays that the call writes: those of the caller, to merge into, or new ones."""
    desc, packed = request.desc, len(shapes[0]) == 3
    accumulate = request.args.flags & _abi.FA_MERGE_ACCUMULATE
    writable("into[0]", o, unit=True)
    _, lse_strides = writable("into[1]", lse, unit=False)
    if (o.shape, lse.shape) != shapes:
        raise ValueError(f"into has shapes {o.shape} and {lse.shape}: expected {shapes[0]} and {shapes[1]}")
    desc.q_dtype = _abi.FA_F32
    desc.o_dtype = dtype_code("into[0]" if accumulate else "out_dtype", o.dtype, ("float32",) if accumulate else QUERIES)
    dtype_code("into[1]", lse.dtype, ("float32",))
    request.strided("o", order.seen(o, o.ndim), packed=packed, written=True)
    if with_lse:
        desc.strided |= _abi.FA_STRIDED_LSE
        desc.lse_stride = literal(lse_strides, packed=packed)
        request.operand(_abi.FA_OPERAND_LSE, "lse", lse)
