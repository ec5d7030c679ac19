"""Attention in float64, written from the formulas in flashattn.h: one row, one head at a time, nothing clever.

Takes the keywords of flashattn.attention that have a meaning for the result, and `keep`, the dropout mask.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass
class Result:
    out: np.ndarray
    lse: np.ndarray
    scores: dict[str, np.ndarray]  # by stage


@dataclass
class Sequence:
    rows: list[int]  # where each valid row lies along q's row axis
    slots: list[tuple[int, int]]  # where each valid key lies: (first, second) index into k
    off: int


def _repeated(pairs, shape, period):
    """Sequence b and head h have the values of these modulo the period."""
    batch, heads = shape[:2] if period is None else (min(n, p or n) for n, p in zip(shape, period))
    pairs = np.broadcast_to(pairs, (batch, heads, *shape[2:]))
    return pairs[np.arange(shape[0]) % batch][:, np.arange(shape[1]) % heads]


def attention(
    q,
    k,
    v,
    *,
    causal=None,
    causal_offset=None,
    alignment=None,
    window=None,
    chunk=0,
    scale=None,
    softcap=0,
    bias=None,
    bias_scale=None,
    bias_period=None,
    mask=None,
    mask_period=None,
    mask_keys=0,
    mask_bits=False,
    key_ranges=None,
    key_list=None,
    key_list_count=None,
    full_list=None,
    full_list_count=None,
    list_rows=1,
    list_keys=1,
    alibi_slopes=None,
    sinks=None,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=None,
    max_seqlen_k=None,
    seqused_q=None,
    seqused_k=None,
    leftpad_k=None,
    kv_batch_idx=None,
    page_table=None,
    q_descale=None,
    k_descale=None,
    v_descale=None,
    dropout_p=0.0,
    keep=None,
):
    q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
    packed_q, packed_k = cu_seqlens_q is not None, cu_seqlens_k is not None
    batch = len(cu_seqlens_q) - 1 if packed_q else q.shape[0]
    heads, dim = q.shape[-2:]
    group = heads // k.shape[-2]
    most_rows = q.shape[1] if not packed_q else max_seqlen_q or int(np.diff(cu_seqlens_q).max())
    if page_table is not None:
        most_keys = max_seqlen_k or page_table.shape[1] * k.shape[1]
    elif packed_k:
        most_keys = max_seqlen_k or int(np.diff(cu_seqlens_k).max())
    else:
        most_keys = k.shape[1]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    shape = (batch, heads, most_rows, most_keys)
    bias = np.zeros(shape) if bias is None else _repeated(np.asarray(bias).astype(np.float64), shape, bias_period)
    columns = mask_keys or most_keys
    if mask_bits:
        mask = np.unpackbits(mask, -1, columns, "little")
    # Column c is that of the key c − columns behind the last one.
    pairs = (*shape[:3], columns)
    mask = np.ones(pairs, bool) if mask is None else _repeated(np.asarray(mask) != 0, pairs, mask_period)
    bias_scale = np.ones(heads) if bias_scale is None else np.asarray(bias_scale).astype(np.float64)
    slopes = np.zeros((batch, heads)) if alibi_slopes is None else np.broadcast_to(alibi_slopes, (batch, heads)).astype(np.float64)
    if key_ranges is not None:
        rows = (heads, q.shape[0]) if packed_q else (batch, heads, most_rows)
        key_ranges = np.broadcast_to(key_ranges, (*rows, *key_ranges.shape[-2:]))
    factors = {"q": q_descale, "k": k_descale, "v": v_descale}

    out = np.zeros((*q.shape[:-1], v.shape[-1]))
    lse = np.full((heads, q.shape[0]) if packed_q else (batch, heads, most_rows), -np.inf)
    scores = {stage: np.full(shape, -np.inf if stage == "biased" else 0.0) for stage in ("raw", "capped", "biased", "probability")}

    def descale(name, first, second, head):
        """The factor of one row: (sequence or page, row, head) by broadcasting."""
        if factors[name] is None:
            return 1.0
        f = np.asarray(factors[name], np.float64)
        f = f.reshape((1,) * (3 - f.ndim) + f.shape)
        return f[tuple(i if n > 1 else 0 for i, n in zip((first, second, head), f.shape))]

    for b in range(batch):
        s = _sequence(
            b,
            q,
            k,
            packed_q,
            packed_k,
            cu_seqlens_q,
            cu_seqlens_k,
            seqused_q,
            seqused_k,
            leftpad_k,
            kv_batch_idx,
            page_table,
            most_keys,
            causal or alignment,
            causal_offset,
        )
        for h in range(heads):
            kh = h // group
            keys = np.array([_at(k, slot, kh) * descale("k", b if packed_k else slot[0], slot[1], kh) for slot in s.slots])
            values = np.array([_at(v, slot, kh) * descale("v", b if packed_k else slot[0], slot[1], kh) for slot in s.slots])
            for i, row in enumerate(s.rows):
                at = (row, h) if packed_q else (b, row, h)
                sink = None if sinks is None else float(sinks[h])
                n = len(s.slots)
                raw = np.array([scale * float(q[at] * descale("q", b, row, h) @ key) for key in keys]) if n else np.zeros(0)
                capped = softcap * np.tanh(raw / softcap) if softcap else raw
                j = np.arange(n)
                scaled = bias_scale[h] * np.where(bias[b, h, i, :n] == -np.inf, 0, bias[b, h, i, :n])
                biased = capped + scaled - slopes[b, h] * np.abs(i + s.off - j)
                column = j - n + mask_keys if mask_keys else j
                kept = np.where(column < 0, True, mask[b, h, i, np.maximum(column, 0)])
                if key_ranges is not None:
                    own = key_ranges[h, row] if packed_q else key_ranges[b, h, i]
                    kept = kept & ((own[:, :1] <= j) & (j < own[:, 1:])).any(axis=0)
                kept = kept & _band(i + s.off, j, causal is not None, window, chunk)
                if key_list is not None or full_list is not None:
                    place = (h * (key_list if full_list is None else full_list).shape[-3] // heads, row // list_rows)
                    place = place if packed_q else (b, *place)
                    listed, full = (
                        np.isin(j // list_keys, [] if entries is None else entries[place][: None if count is None else count[place]])
                        for entries, count in ((key_list, key_list_count), (full_list, full_list_count))
                    )
                    kept = (kept & listed) | full
                removed = ~kept | (
                    bias[b, h, i, :n] == -np.inf
                )
                biased = np.where(removed, -np.inf, biased)
                p, total = _softmax(biased, sink)
                kept = p if keep is None else p * keep[b, h, i, :n] / (1 - dropout_p)
                out[at] = kept @ values if n else 0
                lse[(h, row) if packed_q else (b, h, row)] = total
                for stage, value in (("raw", raw), ("capped", capped), ("biased", biased), ("probability", p)):
                    scores[stage][b, h, i, :n] = value
    return Result(out, lse, scores)


def _sequence(b, q, k, packed_q, packed_k, cu_q, cu_k, used_q, used_k, leftpad, index, table, most_keys, alignment, offset):
    if packed_q:
        first, rows = int(cu_q[b]), int(cu_q[b + 1] - cu_q[b])
    else:
        first, rows = 0, q.shape[1]
    if used_q is not None:
        rows = int(used_q[b])
    pad = 0 if leftpad is None else int(leftpad[b])
    entry = b if index is None else int(index[b])
    if packed_k:
        begin, end = int(cu_k[b]), int(cu_k[b + 1])
    else:
        begin, end = 0, most_keys
    if used_k is not None:
        end = begin + int(used_k[b])
    positions = range(begin + pad, end)
    if table is not None:
        size = k.shape[1]
        slots = [(int(table[entry, n // size]), n % size) for n in positions]
    elif packed_k:
        slots = [(0, n) for n in positions]
    else:
        slots = [(entry, n) for n in positions]
    off = {"bottom-right": len(slots) - rows, "explicit": None}.get(alignment, 0)
    if alignment == "explicit":
        off = int(offset if np.ndim(offset) == 0 else offset[b])
    return Sequence(list(range(first, first + rows)), slots, off)


def _at(tensor, slot, head):
    return tensor[slot[1], head] if tensor.ndim == 3 else tensor[slot[0], slot[1], head]


def _band(at, j, causal, window, chunk):
    """Which keys j a row that stands on key `at` may see."""
    see = np.ones(len(j), bool)
    if causal:
        see &= j <= at
    if window is not None:
        left, right = window
        if left not in (None, -1):
            see &= j >= at - left
        if right not in (None, -1):
            see &= j <= at + right
    if chunk:
        see &= (j // chunk) == (at // chunk)
    return see


def _softmax(scores, sink):
    """Probabilities and the natural log of their denominator."""
    logits = scores if sink is None else np.append(scores, sink)
    top = logits.max(initial=-np.inf)
    if top == -np.inf:
        return np.zeros(len(scores)), -np.inf
    total = top + np.log(np.exp(logits - top).sum())
    return np.exp(scores - total), total
