"""The error of o against plain fp64 attention, over rows, heads and sequences spread over the call."""

from __future__ import annotations

import torch

from .problem import Problem

SAMPLED_ROWS = 96
# Relative Frobenius norm that ordinary data keeps to, by the type of q: the promise that the library's own tests check.
LIMITS = {torch.float32: 4e-6, torch.float16: 5e-4, torch.bfloat16: 4e-3}


def spread(n: int, most: int) -> list[int]:
    """Up to `most` of 0 … n − 1, first and last among them."""
    if n <= most:
        return list(range(n))
    return sorted({round(i * (n - 1) / (most - 1)) for i in range(most)})


def head_truth(p: Problem, h: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """o of one head: q [row, dim] stands on the keys `at` of k [key, dim]."""
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
    if p.bias is not None:
        scores += p.bias[h, at - (p.bias.shape[2] - p.bias.shape[1])].double()
    if p.sinks is not None:
        sink = p.sinks[h].double().expand(len(scores), 1)
        return torch.softmax(torch.cat([scores, sink], 1), 1)[:, :-1] @ v
    return torch.softmax(scores, 1) @ v


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
            keys, values = k[:, kv].double(), v[:, kv].double()
            if p.k_descale is not None:
                keys, values = keys * p.k_descale[kv].double(), values * p.v_descale[kv].double()
            want = head_truth(p, h, q[rows, h].double(), keys, values, rows + len(k) - len(q))
            difference += (got[rows, h].double() - want).square().sum().item()
            size += want.square().sum().item()
    return (difference / size) ** 0.5
