"""The error of o, or of gradients, against plain fp64 attention, over rows, heads and sequences spread over the call."""

from __future__ import annotations

import torch

from .blocks import values as values_of_blocks
from .problem import BLOCK, Problem
from .records import values as values_of_records
from .schemes import values as values_of_scheme

SAMPLED_ROWS = 96
# Relative Frobenius norm that ordinary data keeps to, by the type of q: the promise that the library's own tests check.
LIMITS = {torch.float32: 4e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3, torch.float8_e4m3fn: 4e-3}  # the last with a bf16 o
ROUNDED_P = 4e-2       # the same of an e4m3 P, by permission
ROUNDED_BLOCKS = 2e-2  # and where blocks of q and P may be integers, as those of k and v are


def limit_of(p: Problem) -> float:
    if p.native and (p.blocks or p.q.dtype.itemsize == 1):
        return ROUNDED_BLOCKS if p.blocks else ROUNDED_P
    return LIMITS[p.q.dtype]


def spread(n: int, most: int) -> list[int]:
    """Up to `most` of 0 … n − 1, first and last among them."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


def weights(p: Problem, h: int, q: torch.Tensor, k: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """Of the keys k [key, dim] for the rows q [row, dim] of one head, which stand on the keys `at`."""
    scores = q @ k.T * q.shape[1] ** -0.5
    if p.softcap:
        scores = p.softcap * torch.tanh(scores / p.softcap)
    distance = at[:, None] - torch.arange(k.shape[0], device=q.device)
    if p.slopes is not None:
        scores -= p.slopes[h].double() * distance.abs()
    if p.causal:
        scores.masked_fill_(distance < 0, -torch.inf)
    if p.left is not None:
        scores.masked_fill_(distance > p.left, -torch.inf)
    if p.mask is not None:
        rows = at - (p.mask.shape[1] - p.mask.shape[0])
        scores.masked_fill_(~p.mask[rows], -torch.inf)
    if p.kept is not None:
        scores.masked_fill_(~p.kept[h][at // BLOCK].repeat_interleave(BLOCK, 1), -torch.inf)
    if p.ranges is not None:
        keys = torch.arange(k.shape[0], device=q.device)
        scores.masked_fill_((keys < p.ranges[at, :1]) | (keys >= p.ranges[at, 1:]), -torch.inf)
    if p.bias is not None:
        scores += p.bias[h, at - (p.bias.shape[2] - p.bias.shape[1])].double()
    if p.sinks is not None:
        sink = p.sinks[h].double().expand(len(scores), 1)
        return torch.softmax(torch.cat([scores, sink], 1), 1)[:, :-1]
    return torch.softmax(scores, 1)


def relative_error(p: Problem, o: torch.Tensor) -> float:
    """|o − truth| / |truth| over a sample; infinite if any element of o was left unwritten (it was filled with NaN) or overflowed."""
    if not torch.isfinite(o).all():
        return float("inf")
    difference = size = 0.0
    group = p.heads // p.k.shape[-2]
    lengths = p.lengths()
    longest, shortest = lengths.index(max(lengths)), lengths.index(min(lengths))
    for b in sorted({0, p.batch // 2, p.batch - 1, longest, shortest}):
        q, k, v, got = p.sequence(b, o)
        rows = torch.tensor(spread(len(q), SAMPLED_ROWS), device=q.device)
        for h in spread(p.heads, 3):
            kv = h // group
            if p.records:
                keys = values_of_records(k[:, kv])
                values = keys[:, : p.dim_v]
            elif p.scheme:
                factors = ((p.k_descale, p.k_shift), (p.v_descale, p.v_shift))
                keys, values = (values_of_scheme(x[:, kv], *(f[b][: len(x), kv] if f is not None else None for f in of), p.scheme)
                                for x, of in zip((k, v), factors))
            else:
                keys, values = (values_of_blocks(x[:, kv], p.blocks) if p.blocks else x[:, kv].double() for x in (k, v))
            if p.k_descale is not None and not p.scheme:
                keys, values = keys * p.k_descale[kv].double(), values * p.v_descale[kv].double()
            want = weights(p, h, q[:, h].double()[rows], keys, rows + len(k) - len(q)) @ values
            difference += (got[rows, h].double() - want).square().sum().item()
            size += want.square().sum().item()
    return (difference / size) ** 0.5


def head_gradients(p: Problem, h: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """dq, and what the head adds to dk and dv; some rows at a time, because the matrices are large."""
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = q.shape[1] ** -0.5
    for rows in torch.arange(len(q), device=q.device).split(2048):
        w = weights(p, h, q[rows], k, rows + len(k) - len(q))
        dw = dout[rows] @ v.T
        ds = w * (dw - (w * dw).sum(1, keepdim=True)) * scale
        dq[rows] = ds @ k
        dk += ds.T @ q[rows]
        dv += w.T @ dout[rows]
    return dq, dk, dv


def gradient_error(p: Problem, dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor) -> float:
    """The largest of |dq − truth| / |truth| and the same of dk and dv, over some heads of the first and the longest sequence; infinite if
    any element was left unwritten or overflowed. Of a call without softcap."""
    if not all(torch.isfinite(x).all() for x in (dq, dk, dv)):
        return float("inf")
    difference, size = [0.0] * 3, [0.0] * 3
    group = p.heads // p.k.shape[-2]
    lengths = p.lengths()
    for b in sorted({0, lengths.index(max(lengths))}):
        q, k, v, dout, *gradients = (x.double() for x in p.of_sequence(b, p.q, p.k, p.v, p.dout, dq, dk, dv))
        for kv in spread(p.k.shape[-2], 2):
            of_heads = [head_gradients(p, h, q[:, h], k[:, kv], v[:, kv], dout[:, h]) for h in range(kv * group, (kv + 1) * group)]
            want = (torch.stack([x[0] for x in of_heads], 1), sum(x[1] for x in of_heads), sum(x[2] for x in of_heads))
            got = (gradients[0][:, kv * group : (kv + 1) * group], gradients[1][:, kv], gradients[2][:, kv])
            for n in range(3):
                difference[n] += (got[n] - want[n]).square().sum().item()
                size[n] += want[n].square().sum().item()
    return max((d / s) ** 0.5 for d, s in zip(difference, size))
