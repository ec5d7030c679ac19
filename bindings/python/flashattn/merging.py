"""Merging partial results over disjoint sets of keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import _abi
from ._arrays import QUERIES, dtype_code, dtype_of, float32_array, readable, tensor, writable
from ._request import Request, batch_of, literal, longest
from .handle import Handle, handle_of


def merge(
    o_parts: ArrayLike,
    lse_parts: ArrayLike,
    *,
    sinks: ArrayLike | None = None,
    cu_seqlens_q: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    seqused_q: ArrayLike | None = None,
    into: tuple[np.ndarray, np.ndarray] | None = None,
    out_dtype: DTypeLike = np.float32,
    o_scale: float | None = None,
    return_lse: bool = False,
    backend: str | Handle | None = None,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Folds attention over parts of the keys into attention over all of them.

    o_parts: float32 (parts, batch, rows, heads, dim), packed (parts, total_q, heads, dim) with cu_seqlens_q; lse_parts: float32
        (parts, batch, heads, rows), packed (parts, heads, total_q); or lists of such arrays, as attention(…, return_lse=True,
        out_dtype="float32") gives them. A part that saw no key (LSE −inf) does not count.
    sinks: (heads,) logits, if no part has had them.
    into: (o, lse) in float32 that hold a state already: the parts are folded into it, in place, and it is returned.
    out_dtype, o_scale: of a new out; an 8-bit one stores saturate(out · o_scale).

    Returns out, or (out, lse) with return_lse.
    """
    request = Request(_abi.MergeArgs())
    desc, args = request.desc, request.args
    packed = cu_seqlens_q is not None
    o_parts = _parts("o_parts", o_parts, 4 if packed else 5, "(parts, batch, rows, heads, dim); packed (parts, total, heads, dim)")
    lse_parts = _parts("lse_parts", lse_parts, 3 if packed else 4, "(parts, batch, heads, rows); packed (parts, heads, total)")
    args.parts, *rows, desc.heads_q, desc.dim_v = o_parts.shape
    if packed:
        desc.batch, desc.total_q = batch_of("cu_seqlens_q", cu_seqlens_q), rows[0]
        desc.seqlen_q = longest("max_seqlen_q", max_seqlen_q, cu_seqlens_q)
        request.integers("cu_seqlens_q", cu_seqlens_q, (desc.batch + 1,), "(batch + 1,)")
    else:
        desc.batch, desc.seqlen_q = rows
    lse_shape = (*rows[:-1], desc.heads_q, rows[-1])
    if lse_parts.shape != (args.parts, *lse_shape):
        raise ValueError(
            f"lse_parts has shape {lse_parts.shape}: expected {(args.parts, *lse_shape)}, from o_parts {o_parts.shape}"
        )
    if desc.dim_v == 0:  # in the descriptor zero would mean a default
        raise ValueError(f"o_parts has shape {o_parts.shape}: expected at least one dimension")
    request.integers("seqused_q", seqused_q, (desc.batch,))
    if sinks is not None:
        request.operand(_abi.FA_OPERAND_SINKS, "sinks", float32_array("sinks", sinks, ((desc.heads_q,),), "(heads,)"))
    if o_scale is not None:
        request.operand(_abi.FA_OPERAND_O_SCALE, "o_scale", float32_array("o_scale", o_scale, ((),), "one number"))

    _point_parts(request, o_parts, lse_parts, packed)
    outputs = _outputs(request, into, (*rows, desc.heads_q, desc.dim_v), lse_shape, out_dtype, return_lse, packed)
    request.call("fa_merge", handle_of(backend))
    return outputs if return_lse else outputs[0]


def _parts(name: str, value: Any, ndim: int, axes: str) -> np.ndarray:
    array = tensor(name, value, ndim, axes)
    dtype_code(name, array.dtype, ("float32",))
    return array


def _point_parts(request: Request, o_parts: np.ndarray, lse_parts: np.ndarray, packed: bool) -> None:
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


def _outputs(
    request: Request, into: Any, shape: tuple[int, ...], lse_shape: tuple[int, ...], out_dtype: Any, return_lse: bool, packed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The arrays that the call writes: those of the caller, to fold into, or new ones."""
    desc = request.desc
    if into is None:
        dtype = dtype_of("out_dtype", out_dtype)
        o, lse = np.zeros(shape, dtype), np.full(lse_shape, -np.inf, np.float32)
    else:
        o, lse = into
        request.args.flags |= _abi.FA_MERGE_ACCUMULATE
    o, o_strides = writable("into[0]" if into else "out", o, unit=True)
    lse, lse_strides = writable("into[1]" if into else "lse", lse, unit=False)
    if o.shape != shape or lse.shape != lse_shape:
        raise ValueError(f"into has shapes {o.shape} and {lse.shape}: expected {shape} and {lse_shape}")
    if into is not None:
        dtype_code("into[0]", o.dtype, ("float32",))
        dtype_code("into[1]", lse.dtype, ("float32",))
    desc.q_dtype = _abi.FA_F32
    desc.o_dtype = dtype_code("out_dtype", o.dtype, QUERIES)
    desc.strided |= _abi.FA_STRIDED_O
    desc.o_stride = literal(o_strides, packed=packed)
    request.point("o", o)
    if return_lse or into is not None:
        desc.strided |= _abi.FA_STRIDED_LSE
        desc.lse_stride = literal(lse_strides, packed=packed)
        request.operand(_abi.FA_OPERAND_LSE, "lse", lse)
    return o, lse
