"""How tensors lie in memory: dense, packed, paged, or a cache that is read through an index; and the order of their axes."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from . import _abi
from ._arrays import KEYS, choice, dim_of, dtype_code, integer, tensor
from ._request import Request, batch_of, longest
from ._types import Array

PACKED = "(total, heads, dim)"
_SWAPPED = {"bshd": 0, "bhsd": 1}  # are heads before rows in tensors of four axes?


class Order:
    """The order of axes that a caller chose for tensors of four axes; the library's is (batch, seq, heads, dim)."""

    def __init__(self, layout: str) -> None:
        self.swapped = bool(choice("layout", layout, _SWAPPED))
        self.dense = "(batch, heads, seq, dim)" if self.swapped else "(batch, seq, heads, dim)"
        self.paged = "(num_pages, heads, page_size, dim)" if self.swapped else "(num_pages, page_size, heads, dim)"

    def seen(self, array: Array, axes: int = 4) -> Array:
        """A view in the library's order of an array in the caller's, or the other way round. axes: of the tensor itself."""
        return array.swapaxes(-3, -2) if self.swapped and axes == 4 else array

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The caller's shape of a tensor."""
        if self.swapped and len(shape) == 4:
            return (shape[0], shape[2], shape[1], shape[3])
        return shape

    def tensor(self, name: str, value: ArrayLike, ndim: int, axes: str) -> Array:
        return self.seen(tensor(name, value, ndim, axes), ndim)

    def keys_axes(self, cu_seqlens_k: Any, page_table: Any, by_slots: bool = False) -> tuple[int, str]:
        """Axes that k and v must have. by_slots: do lists name slots of a cache?"""
        if page_table is not None or by_slots:
            return 4, f"{self.paged}, because {'list_space is slots' if by_slots else 'page_table is given'}"
        if cu_seqlens_k is not None:
            return 3, f"{PACKED}, because cu_seqlens_k is given"
        return 4, f"{self.dense}; a packed {PACKED} needs cu_seqlens_k"


def describe_queries(
    request: Request,
    q: ArrayLike,
    order: Order,
    dtypes: tuple[str, ...],
    cu_seqlens_q: ArrayLike | None,
    max_seqlen_q: int | None,
    name: str,
) -> Array:
    """Batch, rows, heads, dimension and type of q, or of a tensor that takes its place in the descriptor."""
    desc = request.desc
    if cu_seqlens_q is None:
        array = order.tensor(name, q, 4, f"{order.dense}; a packed {PACKED} needs cu_seqlens")
        desc.batch, desc.seqlen_q = array.shape[:2]
        if max_seqlen_q is not None:
            raise ValueError(
                f"a longest sequence of {max_seqlen_q} is given: it belongs with cu_seqlens; {name} has {desc.seqlen_q} rows"
            )
    else:
        array = order.tensor(name, q, 3, f"{PACKED}, because cu_seqlens is given")
        desc.batch = batch_of("cu_seqlens_q", cu_seqlens_q)
        desc.total_q = array.shape[0]
        desc.seqlen_q = longest("max_seqlen_q", max_seqlen_q, cu_seqlens_q)
        request.integers("cu_seqlens_q", cu_seqlens_q, (desc.batch + 1,), "(batch + 1,)")
    desc.heads_q, desc.dim_qk = array.shape[-2:]
    desc.q_dtype = dtype_code(name, array.dtype, dtypes)
    return array


def describe_keys(
    request: Request,
    k: Array,
    v: Array | None,
    *,
    dim_v: int | None = None,
    cu_seqlens_k: ArrayLike | None = None,
    max_seqlen_k: int | None = None,
    kv_batch_idx: ArrayLike | None = None,
    page_table: ArrayLike | None = None,
) -> tuple[int, int]:
    """Sizes and types of k and v (None: dim_v dims of k), with the operands that say how they are read; desc.batch is set already.
    Returns the shape (sequence or page, row) over which, with their heads, their de-scale factors lie."""
    desc = request.desc
    desc.k_dtype = dtype_code("k", k.dtype, KEYS)
    if v is None:
        desc.flags |= _abi.FA_V_IN_K
        desc.dim_v = _dim_within(dim_of(k), dim_v)
        v = k
    else:
        if dim_v is not None:
            raise ValueError(f"dim_v is {dim_v}: it belongs with v = None, where v lies within k")
        desc.v_dtype, desc.heads_v, desc.dim_v = dtype_code("v", v.dtype, KEYS), v.shape[-2], dim_of(v)
    if k.shape[:-2] != v.shape[:-2]:
        raise ValueError(f"k has {k.shape[:-2]} sequences and rows, v {v.shape[:-2]}: they must agree")
    if 0 in k.shape[-2:] or 0 in v.shape[-2:]:  # a zero in the descriptor would mean its default
        raise ValueError(f"k has heads and dimensions {k.shape[-2:]} and v {v.shape[-2:]}: expected at least one of each")
    desc.heads_k = k.shape[-2]
    request.integers("kv_batch_idx", kv_batch_idx, (desc.batch,))
    if desc.list_space == _abi.FA_LIST_SLOTS:
        desc.num_pages, desc.page_size = k.shape[:2]
    if page_table is not None:
        if cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k and page_table are both given: pages are not packed")
        return _describe_pages(request, k, page_table, max_seqlen_k, kv_batch_idx is not None)
    if cu_seqlens_k is not None:
        desc.total_k = k.shape[0]
        desc.seqlen_k = longest("max_seqlen_k", max_seqlen_k, cu_seqlens_k)
        request.integers("cu_seqlens_k", cu_seqlens_k, (desc.batch + 1,), "(batch + 1,)")
        return desc.batch, k.shape[0]
    if desc.list_space == _abi.FA_LIST_SLOTS:
        return k.shape[0], k.shape[1]
    if max_seqlen_k is not None:
        raise ValueError(f"max_seqlen_k is {max_seqlen_k}: it belongs with cu_seqlens_k or page_table; k has {k.shape[1]} rows")
    desc.seqlen_k = k.shape[1]
    if kv_batch_idx is not None:
        desc.kv_batch = k.shape[0]
    elif k.shape[0] != desc.batch:
        raise ValueError(
            f"k has {k.shape[0]} sequences, q {desc.batch}: expected as many; np.broadcast_to shares one, "
            "kv_batch_idx picks from a cache"
        )
    return k.shape[0], k.shape[1]


def _dim_within(dim: int, dim_v: int | None) -> int:
    given = dim if dim_v is None else integer("dim_v", dim_v, 63, signed=False)
    if given not in range(1, dim + 1):
        raise ValueError(f"dim_v is {given}: expected 1 to k's head dimension, {dim}")
    return given


def _describe_pages(request: Request, k: Array, page_table: ArrayLike, max_seqlen_k: int | None, by_index: bool) -> tuple[int, int]:
    desc = request.desc
    table = request.page_table(page_table)
    if by_index:
        desc.kv_batch = table.shape[0]
    elif table.shape[0] != desc.batch:
        raise ValueError(f"page_table has {table.shape[0]} rows: expected one for each of {desc.batch} sequences")
    desc.num_pages, desc.page_size = k.shape[:2]
    room = table.shape[1] * desc.page_size
    desc.seqlen_k = room if max_seqlen_k is None else integer("max_seqlen_k", max_seqlen_k, 63, signed=False)
    if desc.seqlen_k > room:
        raise ValueError(f"max_seqlen_k is {desc.seqlen_k}: a row of page_table has room for {room} keys")
    return k.shape[0], k.shape[1]
