"""The descriptor of an attention, and the args of its inputs, from the keywords of `attention`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np
from numpy.typing import ArrayLike

from . import _abi
from ._arrays import (
    FLOATS,
    QUERIES,
    as_array,
    as_int32,
    broadcast,
    choice,
    dim_of,
    dtype_code,
    dtype_of,
    float32_array,
    integer,
    narrow,
    number,
    readable,
)
from ._layout import Order, describe_keys, describe_queries
from ._request import Request
from ._types import DEFAULTS, Array

ALIGNMENTS = {
    "top-left": _abi.FA_ALIGN_TOP_LEFT,
    "bottom-right": _abi.FA_ALIGN_BOTTOM_RIGHT,
    "explicit": _abi.FA_ALIGN_EXPLICIT,
}
PRECISIONS = {"default": _abi.FA_PRECISION_DEFAULT, "native": _abi.FA_PRECISION_NATIVE}
LIST_SPACES = {"keys": _abi.FA_LIST_KEYS, "slots": _abi.FA_LIST_SLOTS}
ALGORITHMS = {"flash": _abi.FA_ALGORITHM_FLASH, "standard": _abi.FA_ALGORITHM_STANDARD, "flash1": _abi.FA_ALGORITHM_FLASH1}
STAGES = {
    "raw": _abi.FA_SCORES_RAW,
    "capped": _abi.FA_SCORES_CAPPED,
    "biased": _abi.FA_SCORES_BIASED,
    "probability": _abi.FA_SCORES_PROBABILITY,
}
SCORE_SCALARS = ("softcap",)  # numbers of the descriptor that modify scores, 0: off; keywords of every `attention`
# Keywords that are flags of the descriptor: booleans of its flags' names.
_BOOLEANS = {name: f"FA_{name.upper()}" for name, value in DEFAULTS.items() if value is False}
FLAGS = {name: getattr(_abi, flag) for name, flag in _BOOLEANS.items() if hasattr(_abi, flag)}
KEY_LISTS = ("key_list", "key_list_count", "full_list", "full_list_count")
OPEN = -1  # a side of the window without a limit


def build(q: ArrayLike, k: ArrayLike, v: ArrayLike | None, options: Mapping[str, Any]) -> tuple[Request, np.dtype[Any]]:
    """A request that lacks only its outputs' pointers, and the dtype of o. options: all keywords of `attention`."""
    given = SimpleNamespace(**options)
    request = Request(_abi.ForwardArgs())
    desc, order = request.desc, Order(given.layout)
    q = describe_queries(request, q, order, QUERIES, given.cu_seqlens_q, given.max_seqlen_q, "q")
    desc.list_space = choice("list_space", given.list_space, LIST_SPACES)
    ndim, axes = order.keys_axes(given.cu_seqlens_k, given.page_table, desc.list_space == _abi.FA_LIST_SLOTS)
    k = order.tensor("k", k, ndim, axes)
    v = None if v is None else order.tensor("v", v, ndim, axes)
    names = ("dim_v", "cu_seqlens_k", "max_seqlen_k", "kv_batch_idx", "page_table")
    slots = describe_keys(request, k, v, **{name: options[name] for name in names})
    packed_q, packed_k = given.cu_seqlens_q is not None, given.cu_seqlens_k is not None
    q_dims, k_dims = desc.dim_qk, dim_of(k)
    _tails(request, given, order, q, k)
    whole = k_dims + _tail_of("k_tail", given.k_tail)
    if whole != desc.dim_qk:
        raise ValueError(f"k has head dimension {whole}: expected q's, {desc.dim_qk}")
    for field, array, packed in (("q", q, packed_q), ("k", k, packed_k), ("v", v, packed_k)):
        if array is not None:
            request.strided(field, array, packed=packed)
    for field in ("seqused_q", "seqused_k", "leftpad_k"):
        request.integers(field, options[field], (desc.batch,))

    rows = desc.total_q if packed_q else desc.seqlen_q
    for tensor, shape, axes, dim in (
        ("q", (desc.batch, rows, desc.heads_q), "(batch, row, head)", q_dims),
        ("k", (*slots, desc.heads_k), "(batch or page, row, head)", k_dims),
        ("v", (*slots, desc.heads_v or desc.heads_k), "(batch or page, row, head)", desc.dim_v),
    ):
        block, shift = options[f"{tensor}_descale_block"], options.get(f"{tensor}_shift")
        request.descale(tensor, options[f"{tensor}_descale"], shape, axes, dim=dim, block=block, shift=shift)
    place(request, given.causal, given.causal_offset, given.alignment, given.window, given.chunk)
    plain_scores(request, given.scale, {name: options[name] for name in SCORE_SCALARS})
    set_flags(request, options)
    _scores(request, given)
    _schedule(request, given)
    return request, _outputs(request, q.dtype, given.out_dtype, given.return_lse, given.return_scores)


def _tail_of(name: str, tail: ArrayLike | None) -> int:
    shape: tuple[int, ...] = () if tail is None else as_array(name, tail).shape
    return shape[-1] if shape else 0


def _tails(request: Request, given: SimpleNamespace, order: Order, q: Any, k: Any) -> None:
    """The last dims of q and k where they lie in arrays of their own. q has said dim_qk without its own."""
    desc = request.desc
    desc.dim_qk += _tail_of("q_tail", given.q_tail)
    for name, tail, whole in (("q", given.q_tail, q), ("k", given.k_tail, k)):
        if tail is None:
            continue
        array = order.tensor(f"{name}_tail", tail, whole.ndim, f"{name}'s axes")
        if array.shape[:-2] != whole.shape[:-2] or array.shape[-2] not in (1, whole.shape[-2]):
            raise ValueError(f"{name}_tail has shape {array.shape}: expected {name}'s rows and heads, {whole.shape[:-1]}, or one head")
        desc.operands |= getattr(_abi, f"FA_OPERAND_{name.upper()}_TAIL")
        setattr(desc, f"{name}_tail_dtype", dtype_code(f"{name}_tail", array.dtype, FLOATS))
        if desc.dim_tail not in (0, array.shape[-1]):
            raise ValueError(f"{name}_tail has {array.shape[-1]} dims: expected q_tail's, {desc.dim_tail}")
        desc.dim_tail = array.shape[-1]
        array = np.broadcast_to(array, (*whole.shape[:-1], desc.dim_tail))
        request.strided(f"{name}_tail", array, packed=whole.ndim == 3)


def named_causal(causal: Any) -> str | None:
    """The word of a causal mask, or None."""
    if causal is True:
        raise TypeError(
            'causal is True: say "top-left" or "bottom-right". Libraries differ in where the diagonal lies when there '
            "are more keys than rows, so there is no default"
        )
    if causal is None or causal is False:
        return None
    choice("causal", causal, ALIGNMENTS)
    return str(causal)


def window_sides(window: Any) -> tuple[Any, Any]:
    """Left and right side, OPEN where there is no limit."""
    try:
        left, right = window
    except (TypeError, ValueError):
        raise TypeError(f"window is {window!r}: expected (left, right)") from None
    return OPEN if left is None else left, OPEN if right is None else right


def place(request: Request, causal: Any, causal_offset: Any, alignment: Any, window: Any, chunk: Any) -> None:
    desc = request.desc
    causal = named_causal(causal)
    if causal is not None:
        desc.flags |= _abi.FA_CAUSAL
        desc.alignment = ALIGNMENTS[causal]
    if alignment is not None:
        placed = choice("alignment", alignment, ALIGNMENTS)
        if desc.flags & _abi.FA_CAUSAL and placed != desc.alignment:
            raise ValueError(f"causal is {causal!r} and alignment {alignment!r}: they name the same thing and must agree")
        desc.alignment = placed
    if causal_offset is not None:
        offsets = as_array("causal_offset", causal_offset)
        request.integers("causal_offset", np.broadcast_to(offsets, (desc.batch,)) if offsets.ndim == 0 else offsets, (desc.batch,))
    if window is not None:
        left, right = window_sides(window)
        desc.flags |= _abi.FA_WINDOW
        desc.window_left, desc.window_right = integer("window[0]", left, 64), integer("window[1]", right, 64)
    desc.chunk = integer("chunk", chunk, 64)


def plain_scores(request: Request, scale: Any, scalars: Mapping[str, Any]) -> None:
    """scalars: each of SCORE_SCALARS."""
    desc = request.desc
    if scale is not None:
        desc.flags |= _abi.FA_SCALE_EXPLICIT
        desc.scale = number("scale", scale)
    for name in SCORE_SCALARS:
        setattr(desc, name, number(name, scalars[name]))


def set_flags(request: Request, given: Mapping[str, Any]) -> None:
    """given: those of FLAGS that a function has."""
    for name, flag in FLAGS.items():
        if given.get(name):
            request.desc.flags |= flag


def repeating(desc: Any, period: Sequence[int]) -> tuple[int, int, int, int]:
    """The shape of pairs of which no more sequences and heads are there than a period has."""
    batch, heads = (min(n, p) if p > 0 else n for n, p in zip((desc.batch, desc.heads_q), period))
    return (batch, heads, desc.seqlen_q, desc.seqlen_k)


def check_mask(mask: Any, dtypes: Sequence[Any], keys: Any = 0, bits: bool = False) -> None:
    """dtypes: bool and uint8 of the mask's library. What says how a mask is stored needs one."""
    if mask is None:
        if keys or bits:
            raise ValueError(f"{f'mask_keys is {keys!r}' if keys else 'mask_bits is true'}: expected a mask")
    elif mask.dtype not in dtypes:
        raise TypeError(f"mask has dtype {mask.dtype}: expected bool or uint8, true where a key is attended; numbers to add are a bias")


def mask_columns(request: Request, pairs: tuple[int, ...], keys: Any, bits: bool, shape: Sequence[int], words: bool) -> tuple[int, ...]:
    """The shape of a mask of so many columns, in bytes; shape: as it is given. words: has it uint8?"""
    request.desc.mask_keys = integer("mask_keys", keys, 64)
    if keys > 0:
        pairs = (*pairs[:3], keys)
    if not bits:
        return pairs
    if not words:
        raise TypeError("mask_bits is true: expected a mask of uint8, eight columns in each")
    request.desc.mask_dtype = _abi.FA_BIT
    width = -(-pairs[3] // 8)
    if tuple(shape[-1:]) != (width,):
        raise ValueError(f"mask has shape {tuple(shape)}: expected {width} bytes along the keys, with mask_bits")
    return (*pairs[:3], width)


def set_period(request: Request, field: str, value: Any, owner: Any) -> None:
    if value is None:
        return
    try:
        batch, heads = value
    except (TypeError, ValueError):
        raise TypeError(f"{field} is {value!r}: expected (batch, heads)") from None
    if owner is None:
        raise ValueError(f"{field} is {value!r}: expected the {field.partition('_')[0]} that repeats")
    setattr(request.desc, field, (integer(f"{field}[0]", batch, 64), integer(f"{field}[1]", heads, 64)))


def _scores(request: Request, given: SimpleNamespace) -> None:
    desc, bias, mask, alibi_slopes, sinks = request.desc, given.bias, given.mask, given.alibi_slopes, given.sinks
    set_period(request, "bias_period", given.bias_period, bias)
    set_period(request, "mask_period", given.mask_period, mask)
    if given.bias_scale is not None:
        factors = float32_array("bias_scale", given.bias_scale, ((desc.heads_q,),), "(heads,)", factors=True)
        request.operand(_abi.FA_OPERAND_BIAS_SCALE, "bias_scale", factors)
    if bias is not None:
        bias = as_array("bias", bias)
        if bias.dtype == np.float64:
            bias = narrow("bias", bias)
        desc.bias_dtype = dtype_code("bias", bias.dtype, FLOATS)
        request.matrix(_abi.FA_OPERAND_BIAS, "bias", bias, repeating(desc, desc.bias_period))
    mask = None if mask is None else as_array("mask", mask)
    check_mask(mask, (np.bool_, np.uint8), given.mask_keys, given.mask_bits)
    if mask is not None:
        shape = mask_columns(request, repeating(desc, desc.mask_period), given.mask_keys, given.mask_bits, mask.shape,
                             mask.dtype == np.uint8)
        request.matrix(_abi.FA_OPERAND_MASK, "mask", mask, shape)
    if given.key_ranges is not None:
        key_ranges(request, given.key_ranges)

    def put(bit: int, name: str, value: ArrayLike, shape: tuple[int, ...], axes: str, dense: bool) -> tuple[int, ...]:
        array = broadcast(name, as_int32(name, as_array(name, value)), shape, axes)
        array, strides = readable(np.ascontiguousarray(array) if dense else array, unit=True)
        request.operand(bit, name, array)
        return strides

    key_lists(request, {name: getattr(given, name) for name in KEY_LISTS}, given.list_rows, given.list_keys, put)
    if alibi_slopes is not None:
        shapes = ((desc.heads_q,), (desc.batch, desc.heads_q))
        slopes = float32_array("alibi_slopes", alibi_slopes, shapes, "(heads,) or (batch, heads)", factors=True)
        request.operand(_abi.FA_OPERAND_ALIBI, "alibi_slopes", slopes)
        desc.alibi_batch_stride = desc.heads_q if slopes.ndim == 2 else 0
    if given.o_scale is not None:
        request.operand(_abi.FA_OPERAND_O_SCALE, "o_scale", float32_array("o_scale", given.o_scale, ((),), "one number", factors=True))
    if sinks is not None:
        request.operand(_abi.FA_OPERAND_SINKS, "sinks", float32_array("sinks", sinks, ((desc.heads_q,),), "(heads,)"))


def key_ranges(request: Request, value: ArrayLike) -> None:
    """Pairs of keys, with the packed rows' own axes where there are such."""
    pairs = as_int32("key_ranges", as_array("key_ranges", value))
    shape, axes = ranges_shape(request.desc, pairs.shape)
    seen, strides = readable(broadcast("key_ranges", pairs, shape, axes), unit=True, even=True)
    request.operand(_abi.FA_OPERAND_KEY_RANGES, "key_ranges", seen)
    set_ranges(request.desc, shape, strides)


def ranges_shape(desc: _abi.AttentionDesc, given: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """Of pairs of keys that have this shape so far, and what its axes are."""
    intervals = given[-2] if len(given) > 1 else 1
    if desc.operands & _abi.FA_OPERAND_CU_SEQLENS_Q:
        return (desc.heads_q, desc.total_q, intervals, 2), "(heads, total_q, intervals, 2)"
    return (desc.batch, desc.heads_q, desc.seqlen_q, intervals, 2), "(batch, heads, rows, intervals, 2)"


def set_ranges(desc: _abi.AttentionDesc, shape: Sequence[int], strides: Sequence[int]) -> None:
    """strides: of elements; those of the descriptor are of pairs."""
    pairs = [stride // 2 for stride in strides[:-1]]
    desc.key_range_max, desc.key_range_stride = shape[-2], (*([0] if len(shape) == 4 else []), *pairs)


def list_shapes(shapes: Mapping[str, tuple[int, ...]], packed: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of lists and their counts, once those with one sequence or one head are broadcast to the others'. Packed ones have no
    sequences."""
    axes = ("list heads",) if packed else ("batch", "list heads")
    for name, shape in shapes.items():
        wanted = (*axes, "blocks of rows") if name.endswith("count") else (*axes, "blocks of rows", "entries")
        if len(shape) != len(wanted) or 0 in shape[len(axes) - 1 : len(axes)]:
            raise ValueError(f"{name} has shape {shape}: expected ({', '.join(wanted)})")
    columns = zip(*(shape[: len(axes)] for shape in shapes.values()))
    lead = tuple(next((n for n in lengths if n != 1), 1) for lengths in columns)
    for name, shape in shapes.items():
        if any(n not in (1, m) for n, m in zip(shape, lead)):
            raise ValueError(f"{name} has shape {shape}: expected ({', '.join(axes)}) = {lead} as the other lists and counts have, or 1")
    return {name: (*lead, *shape[len(axes) :]) for name, shape in shapes.items()}


def key_lists(request: Request, given: Mapping[str, Any], list_rows: Any, list_keys: Any, put: Callable[..., tuple[int, ...]]) -> None:
    """given: each of KEY_LISTS. put: takes bit, field, value, shape and axes of an operand of integers, which may have to be broadcast, and
    whether it must be dense; returns its strides, 0 along an axis of 1."""
    desc = request.desc
    desc.list_rows, desc.list_keys = integer("list_rows", list_rows, 64), integer("list_keys", list_keys, 64)
    lists = {name: given[name] for name in KEY_LISTS if given[name] is not None}
    for name in lists:
        if name.removesuffix("_count") not in lists:
            raise ValueError(f"{name} is given: expected the list that it counts")
    if not lists:
        if list_rows != 1 or list_keys != 1 or desc.list_space != _abi.FA_LIST_KEYS:
            raise ValueError("list_rows, list_keys and list_space say nothing without key_list or full_list")
        desc.list_rows = desc.list_keys = 0
        return
    packed = bool(desc.operands & _abi.FA_OPERAND_CU_SEQLENS_Q)
    rows = desc.total_q if packed else desc.seqlen_q
    shapes = list_shapes({name: tuple(np.shape(value)) for name, value in lists.items()}, packed)
    whole = next(iter(shapes.values()))  # of a list, for its count comes behind it
    heads, blocks, most = whole[-3], -(-rows // max(desc.list_rows, 1)), whole[-1]
    batch = () if packed else (desc.batch if whole[0] != 1 else 1,)
    desc.list_heads, desc.list_max = heads, most
    for field, names, last, entries in (
        ("list_stride", KEY_LISTS[::2], (most,), ", entries"),
        ("list_count_stride", KEY_LISTS[1::2], (), ""),
    ):
        shape, axes = (*batch, heads, blocks, *last), f"({'' if packed else 'batch, '}list heads, blocks of rows{entries})"
        these = {name: lists[name] for name in names if name in lists}
        for name, value in these.items():
            if shapes[name] != shape:
                raise ValueError(f"{name} has shape {tuple(np.shape(value))}: expected {axes} = {shape}, of which batch and heads may be 1")
        for dense in (False, True):
            found = {put(getattr(_abi, f"FA_OPERAND_{name.upper()}"), name, x, shape, axes, dense) for name, x in these.items()}
            if len(found) == 1:  # else both are written out, for the descriptor has strides for one
                setattr(desc, field, (*((0,) if packed else ()), *found.pop()))
                break


def _schedule(request: Request, given: SimpleNamespace) -> None:
    desc, args = request.desc, request.args
    desc.dropout_p = number("dropout_p", given.dropout_p, 1)
    args.dropout_seed = integer("dropout_seed", given.dropout_seed, 64, signed=False)
    args.dropout_offset = integer("dropout_offset", given.dropout_offset, 64, signed=False)
    desc.num_splits = integer("num_splits", given.num_splits, 32)
    desc.reserve_units = integer("reserve_units", given.reserve_units, 32)
    desc.split_size = integer("split_size", given.split_size, 64)
    desc.algorithm = choice("algorithm", given.algorithm, ALGORITHMS)
    desc.precision = choice("precision", given.precision, PRECISIONS)
    request.status(given.device_status)


def results(
    request: Request, given: Mapping[str, Any], dtype: np.dtype[Any], room: Callable[[tuple[int, ...], Any, float | None], Array]
) -> list[Array]:
    """Outputs of what `build` has built: out, and lse and scores where they are asked for. room: an array of a shape and dtype, all of a
    value, or, with None, as it comes."""
    desc, order = request.desc, Order(given["layout"])
    packed = given["cu_seqlens_q"] is not None
    rows = (desc.total_q,) if packed else (desc.batch, desc.seqlen_q)
    # The library writes every row of a padded tensor, but not the gaps of a packed one.
    outputs = [room(order.shape((*rows, desc.heads_q, desc.dim_v)), dtype, 0 if packed else None)]
    request.strided("o", order.seen(outputs[0], outputs[0].ndim), packed=packed, written=True)
    if given["return_lse"]:
        shape = (desc.heads_q, desc.total_q) if packed else (desc.batch, desc.heads_q, desc.seqlen_q)
        outputs.append(room(shape, np.float32, -np.inf))
        request.point("lse", outputs[-1])
    if given["return_scores"] is not None:
        outputs.append(room((desc.batch, desc.heads_q, desc.seqlen_q, desc.seqlen_k), np.float32, None))
        request.point("scores", outputs[-1])
    return outputs


def _outputs(request: Request, q_dtype: np.dtype[Any], out_dtype: Any, return_lse: Any, return_scores: Any) -> np.dtype[Any]:
    desc = request.desc
    if out_dtype is None and desc.q_dtype in (_abi.FA_E4M3, _abi.FA_E5M2):
        out_dtype = "bfloat16"
    dtype = q_dtype if out_dtype is None else dtype_of("out_dtype", out_dtype)
    desc.o_dtype = dtype_code("out_dtype", dtype, QUERIES)
    if return_lse:
        desc.operands |= _abi.FA_OPERAND_LSE
    if return_scores is not None:
        desc.operands |= _abi.FA_OPERAND_SCORES
        desc.scores_stage = choice("return_scores", return_scores, STAGES)
        desc.scores_stride = (desc.heads_q * desc.seqlen_q * desc.seqlen_k, desc.seqlen_q * desc.seqlen_k, desc.seqlen_k, 1)
    return dtype
