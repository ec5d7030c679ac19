"""Rotary embedding, and writing new keys and values into a cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import _abi
from ._arrays import FLOATS, dim_of, dtype_code, has_factors, int32_array, integer, readable, real, writable
from ._dlpack import exchanged
from ._layout import PACKED, Order, describe_keys, describe_queries
from ._place import APPEND, also_on_gpu, place_of
from ._request import Request, batch_of, literal, longest
from ._types import Array, BackendName, Layout
from .handle import Handle


@exchanged
def rotary(
    x: ArrayLike,
    cos: ArrayLike,
    sin: ArrayLike,
    *,
    positions: ArrayLike | None = None,
    position_offset: ArrayLike | None = None,
    cu_seqlens_q: ArrayLike | None = None,
    max_seqlen_q: int | None = None,
    seqused_q: ArrayLike | None = None,
    interleaved: bool = False,
    rotary_begin: int = 0,
    out: Array | None = None,
    layout: Layout = "bshd",
    backend: BackendName | Handle | None = None,
) -> Array:
    """Rotary embedding: dims [rotary_begin, rotary_begin + rotary_dim) of each head are rotated by the angle of the row's
    position. The other dims are copied.

    x: (batch, rows, heads, dim), or packed (total, heads, dim) with cu_seqlens_q; float32, float16, bfloat16.
    cos, sin: (max_position, rotary_dim / 2).
    positions: (batch, rows), packed (total,); or position_offset: (batch,), row i is at position_offset[b] + i; by default at i.
    seqused_q: (batch,) number of valid rows; the others are not written (0 in a new out).
    interleaved: pairs are dims (2t, 2t + 1); else halves (t, t + rotary_dim / 2). rotary_begin: the first rotated dim.
    out: of x's shape and dtype, may be x itself, unless x had to be copied; by default a new array. It is returned.
    layout: "bhsd": x is (batch, heads, rows, dim), as in `attention`.
    """
    request, order = Request(_abi.RotaryArgs()), Order(layout)
    desc, args = request.desc, request.args
    x = describe_queries(request, x, order, FLOATS, cu_seqlens_q, max_seqlen_q, "x")
    packed = cu_seqlens_q is not None
    x, strides = readable(x, unit=True)
    request.point("x", x)
    desc.strided |= _abi.FA_STRIDED_Q
    desc.q_stride = literal(strides, packed=packed)
    request.integers("seqused_q", seqused_q, (desc.batch,))
    _angles(request, cos, sin, interleaved, rotary_begin)
    rows = (desc.total_q,) if packed else (desc.batch, desc.seqlen_q)
    if positions is not None:
        request.point("positions", int32_array("positions", positions, rows, "(total,)" if packed else "(batch, rows)"))
    if position_offset is not None:
        request.point("position_offset", int32_array("position_offset", position_offset, (desc.batch,), "(batch,)"))
    shape = order.shape(x.shape)
    place = place_of(backend)
    out = place.room(shape, x.dtype, 0) if out is None else out
    writable("out", out, unit=True)
    if out.shape != shape or out.dtype != x.dtype:
        raise ValueError(f"out is {out.shape} of {out.dtype}: expected x's {shape} of {x.dtype}")
    seen, out_strides = writable("out", order.seen(out, out.ndim), unit=True)
    request.point("out", seen)
    args.out_stride = literal(out_strides, packed=packed)
    place.run(request)
    return out


@also_on_gpu(APPEND)
@exchanged
def append_kv(
    k_new: ArrayLike,
    v_new: ArrayLike | None,
    k: Array,
    v: Array | None,
    *,
    seqused_k: ArrayLike | None = None,
    positions: ArrayLike | None = None,
    cu_seqlens_new: ArrayLike | None = None,
    max_seqlen_new: int | None = None,
    seqused_new: ArrayLike | None = None,
    leftpad_k: ArrayLike | None = None,
    kv_batch_idx: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
    max_seqlen_k: int | None = None,
    k_descale: ArrayLike | None = None,
    v_descale: ArrayLike | None = None,
    k_descale_block: tuple[int, int] | None = None,
    v_descale_block: tuple[int, int] | None = None,
    k_shift: ArrayLike | None = None,
    v_shift: ArrayLike | None = None,
    k_tail: Array | None = None,
    dynamic_scale: bool = False,
    cos: ArrayLike | None = None,
    sin: ArrayLike | None = None,
    interleaved: bool = False,
    rotary_begin: int = 0,
    device_status: Array | None = None,
    layout: Layout = "bshd",
    backend: BackendName | Handle | None = None,
) -> None:
    """Writes new keys and values into the cache k, v, in place.

    k_new, v_new: (batch, tokens, heads_k, dim), or packed (total, heads_k, dim) with cu_seqlens_new (batch + 1,); float32,
        float16, bfloat16. Heads and dimensions are the cache's. seqused_new: (batch,) number of given tokens. v_new and v
        are None if v is part of k.
    k, v: the cache, (batch, slots, heads_k, dim), or (num_pages, page_size, heads_k, dim) with page_table; any dtypes of
        `attention`. Blocks are quantised byte for byte as ggml's reference does. leftpad_k, kv_batch_idx, page_table,
        max_seqlen_k and layout are those of `attention`.
    seqused_k: (batch,) slots in use before the call: token t goes to slot seqused_k[b] + t; without it, tokens start at the
        left padding. The caller adds the new tokens to it afterwards.
    positions: (batch, tokens), packed (total,): the slot of each token instead, −1 skips it. Slots count left padding.
    k_descale, v_descale, k_shift, v_shift: an 8-bit or 4-bit cache stores saturate(round((x − shift) / descale)); their
        shapes, and k_descale_block and v_descale_block, are those of `attention`. With dynamic_scale, scales of 8-bit and
        4-bit caches are computed and written: (sequence or page, slot, heads_k), or with a block (0, dims) (sequence or
        page, slot, heads_k, block of dims), with distinct entries. Only "u4" has shifts then.
    k_tail: the cache of the last dims of k, (batch, slots, heads_k, dim) or in pages; k_new has all dims.
    cos, sin: (max_position, rotary_dim / 2): k_new is rotated first, position = slot − left padding. interleaved and
        rotary_begin as in `rotary`.
    device_status: as in `attention`.
    """
    request, order = Request(_abi.AppendKvArgs()), Order(layout)
    desc, args = request.desc, request.args
    packed = cu_seqlens_new is not None
    ndim, axes = order.keys_axes(None, page_table)
    if (v is None) != (v_new is None):
        raise ValueError(f"{'v' if v is None else 'v_new'} is None: expected v and v_new, or neither, where v lies within k")
    for field, cache in (("k", k), ("v", v)):
        if cache is not None:
            writable(field, cache, unit=True)
            request.strided(field, order.tensor(field, cache, ndim, axes), packed=False, written=True)
    k, v = order.seen(k), None if v is None else order.seen(v)
    pairs: dict[str, tuple[ArrayLike, Array]] = {"k_new": (k_new, k)}
    if v_new is not None and v is not None:
        pairs["v_new"] = (v_new, v)
    tail = None if k_tail is None else order.tensor("k_tail", k_tail, ndim, axes)
    _new_tokens(request, order, pairs, cu_seqlens_new, max_seqlen_new, 0 if tail is None else tail.shape[-1])
    slots = describe_keys(request, k, v, max_seqlen_k=max_seqlen_k, kv_batch_idx=kv_batch_idx, page_table=page_table)
    desc.heads_q, desc.dim_qk = math.lcm(desc.heads_k, desc.heads_v or desc.heads_k), dim_of(k)
    if tail is not None:
        _tail(request, tail, k)
    for field, value in (("seqused_k", seqused_k), ("leftpad_k", leftpad_k)):
        request.integers(field, value, (desc.batch,))
    if seqused_new is not None:
        request.point("seqused_new", int32_array("seqused_new", seqused_new, (desc.batch,), "(batch,)"))
    if positions is not None:
        shape = (args.total_new,) if packed else (desc.batch, args.seqlen_new)
        request.point("positions", int32_array("positions", positions, shape, "(total,)" if packed else "(batch, tokens)"))
    if dynamic_scale:
        args.flags |= _abi.FA_APPEND_DYNAMIC_SCALE
    for tensor, cache, factors, block, shift in (("k", k, k_descale, k_descale_block, k_shift),
                                                 ("v", v, v_descale, v_descale_block, v_shift)):
        if cache is None and factors is None:
            continue
        dim, shape = dim_of(k if cache is None else cache), (*slots, desc.heads_k if tensor == "k" else desc.heads_v or desc.heads_k)
        if dynamic_scale and cache is not None and has_factors(cache.dtype):
            _written_descale(request, tensor, factors, shift, request.factor_shape(tensor, shape, dim, block))
        else:
            request.descale(tensor, factors, shape, "(sequence or page, slot, head)", dim=dim, block=block, shift=shift)
    if cos is not None or sin is not None:
        _angles(request, cos, sin, interleaved, rotary_begin)
    request.status(device_status)
    place_of(backend).run(request)


def _new_tokens(
    request: Request,
    order: Order,
    pairs: dict[str, tuple[ArrayLike, Array]],
    cu_seqlens_new: ArrayLike | None,
    max_seqlen_new: int | None,
    tail: int,
) -> None:
    """tail: dims of k_new that go to k_tail. pairs: the new keys and, unless they lie within them, the new values, each with the cache that
    it goes to."""
    desc, args = request.desc, request.args
    packed = cu_seqlens_new is not None
    ndim, axes = (
        (3, f"{PACKED}, because cu_seqlens_new is given")
        if packed
        else (4, f"{order.dense}; a packed {PACKED} needs cu_seqlens_new")
    )
    found = {name: order.tensor(name, value, ndim, axes) for name, (value, _) in pairs.items()}
    for name, array in found.items():
        cache = pairs[name][1]
        expected = (cache.shape[-2], dim_of(cache) + (tail if name == "k_new" else 0))
        if array.shape[-2:] != expected:
            raise ValueError(f"{name} has heads and dimensions {array.shape[-2:]}: expected the cache's, {expected}")
    k_new = found["k_new"]
    v_new = found.get("v_new", k_new)
    if k_new.shape[:-2] != v_new.shape[:-2] or k_new.dtype != v_new.dtype:
        raise ValueError(
            f"k_new has tokens {k_new.shape[:-2]} of {k_new.dtype} and v_new {v_new.shape[:-2]} of {v_new.dtype}: they must agree"
        )
    desc.q_dtype = dtype_code("k_new", k_new.dtype, FLOATS)
    if cu_seqlens_new is not None:
        desc.batch, args.total_new = batch_of("cu_seqlens_new", cu_seqlens_new), k_new.shape[0]
        args.seqlen_new = longest("max_seqlen_new", max_seqlen_new, cu_seqlens_new)
        request.point("cu_seqlens_new", int32_array("cu_seqlens_new", cu_seqlens_new, (desc.batch + 1,), "(batch + 1,)"))
    else:
        desc.batch, args.seqlen_new = k_new.shape[:2]
    for name, array in found.items():
        array, strides = readable(array, unit=True)
        request.point(name, array)
        setattr(args, f"{name}_stride", literal(strides, packed=packed))


def _tail(request: Request, tail: Array, k: Array) -> None:
    if tail.shape[:-1] != k.shape[:-1]:
        raise ValueError(f"k_tail has shape {tail.shape}: expected k's slots and heads, {k.shape[:-1]}")
    desc = request.desc
    desc.operands |= _abi.FA_OPERAND_K_TAIL
    desc.k_tail_dtype, desc.dim_tail = dtype_code("k_tail", tail.dtype, FLOATS), tail.shape[-1]
    desc.dim_qk += desc.dim_tail
    request.strided("k_tail", tail, packed=False, written=True)


def _written_descale(request: Request, tensor: str, factors: Any, shift: Any, shape: tuple[int, ...]) -> None:
    for field, array in ((f"{tensor}_descale", factors), (f"{tensor}_shift", shift)):
        if array is None and field.endswith("shift"):
            continue
        array, strides = writable(field, array, unit=False)
        if array.shape != shape:
            raise ValueError(f"{field} has shape {array.shape}: expected {shape}, one factor for each slot and head")
        if field.endswith("descale"):
            request.factors(field, array, strides)
            continue
        if array.dtype != factors.dtype or strides != writable("factors", factors, unit=False)[1]:
            raise ValueError(f"{field} has dtype {array.dtype} and strides {array.strides}: expected those of {tensor}_descale")
        request.operand(getattr(_abi, f"FA_OPERAND_{field.upper()}"), field, array)


def _angles(request: Request, cos: Any, sin: Any, interleaved: bool, begin: int) -> None:
    args = request.args
    if cos is None or sin is None:
        raise ValueError("cos and sin belong together: one is missing")
    cos, sin = real("cos", cos), real("sin", sin)
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise ValueError(f"cos has shape {cos.shape} and sin {sin.shape}: expected (max_position, rotary_dim / 2) for both")
    args.max_position, args.rotary_dim = cos.shape[0], 2 * cos.shape[1]
    args.rotary_begin = integer("rotary_begin", begin, 64)
    for field, array in (("cos", cos), ("sin", sin)):
        request.point(field, np.ascontiguousarray(array))
    if interleaved:
        args.flags |= _abi.FA_ROTARY_INTERLEAVED
