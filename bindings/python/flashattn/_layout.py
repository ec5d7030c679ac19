"""How keys and values lie in memory: dense, packed, paged, or a cache that is read through an index."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._arrays import KEYS, dtype_code, integer, tensor
from ._request import Request, batch_of, longest

DENSE = "(batch, seq, heads, dim)"
PACKED = "(total, heads, dim)"
PAGED = "(num_pages, page_size, heads, dim)"


def describe_queries(
    request: Request, q: Any, dtypes: tuple[str, ...], cu_seqlens_q: Any, max_seqlen_q: Any, name: str
) -> np.ndarray:
    """Batch, rows, heads, dimension and type of q, or of a tensor that takes its place in the descriptor."""
    desc = request.desc
    if cu_seqlens_q is None:
        array = tensor(name, q, 4, f"{DENSE}; a packed {PACKED} needs cu_seqlens")
        desc.batch, desc.seqlen_q = array.shape[:2]
        if max_seqlen_q is not None:
            raise ValueError(
                f"a longest sequence of {max_seqlen_q} is given: it belongs with cu_seqlens; {name} has {desc.seqlen_q} rows"
            )
    else:
        array = tensor(name, q, 3, f"{PACKED}, because cu_seqlens is given")
        desc.batch = batch_of("cu_seqlens_q", cu_seqlens_q)
        desc.total_q = array.shape[0]
        desc.seqlen_q = longest("max_seqlen_q", max_seqlen_q, cu_seqlens_q)
        request.integers("cu_seqlens_q", cu_seqlens_q, (desc.batch + 1,), "(batch + 1,)")
    desc.heads_q, desc.dim_qk = array.shape[-2:]
    desc.q_dtype = dtype_code(name, array.dtype, dtypes)
    return array


def describe_keys(
    request: Request,
    k: np.ndarray,
    v: np.ndarray,
    *,
    cu_seqlens_k: Any = None,
    max_seqlen_k: Any = None,
    kv_batch_idx: Any = None,
    page_table: Any = None,
) -> tuple[int, int, int]:
    """Sizes and type of k and v, with the operands that say how they are read; desc.batch is set already. Returns the shape
    (sequence or page, row, head) over which their de-scale factors lie."""
    desc = request.desc
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"k has shape {k.shape} and v {v.shape}: all axes but the last must agree")
    if k.dtype != v.dtype:
        raise TypeError(f"k has dtype {k.dtype} and v {v.dtype}: they must agree")
    if 0 in k.shape[-2:] or 0 in v.shape[-1:]:  # a zero in the descriptor would mean its default
        raise ValueError(f"k has shape {k.shape} and v {v.shape}: expected at least one head and one dimension")
    desc.kv_dtype = dtype_code("k", k.dtype, KEYS)
    desc.heads_kv, desc.dim_v = v.shape[-2:]
    request.integers("kv_batch_idx", kv_batch_idx, (desc.batch,))
    if page_table is not None:
        if cu_seqlens_k is not None:
            raise ValueError("cu_seqlens_k and page_table are both given: pages are not packed")
        return _describe_pages(request, k, page_table, max_seqlen_k, kv_batch_idx is not None)
    if cu_seqlens_k is not None:
        desc.total_k = k.shape[0]
        desc.seqlen_k = longest("max_seqlen_k", max_seqlen_k, cu_seqlens_k)
        request.integers("cu_seqlens_k", cu_seqlens_k, (desc.batch + 1,), "(batch + 1,)")
        return desc.batch, k.shape[0], k.shape[1]
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
    return k.shape[:3]


def _describe_pages(request: Request, k: np.ndarray, page_table: Any, max_seqlen_k: Any, by_index: bool) -> tuple[int, int, int]:
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
    return k.shape[:3]


def keys_axes(cu_seqlens_k: Any, page_table: Any) -> tuple[int, str]:
    """Axes that k and v must have."""
    if page_table is not None:
        return 4, f"{PAGED}, because page_table is given"
    if cu_seqlens_k is not None:
        return 3, f"{PACKED}, because cu_seqlens_k is given"
    return 4, f"{DENSE}; a packed {PACKED} needs cu_seqlens_k"
