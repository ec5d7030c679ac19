"""K and V in ggml's blocks of 32 dims: what quantises them, and their values."""

from __future__ import annotations

import torch
from flashattn import _abi

DIMS = 32
TYPES = {"q8_0": (_abi.FA_Q8_0, 34), "q4_0": (_abi.FA_Q4_0, 18), "q4_1": (_abi.FA_Q4_1, 20), "q5_0": (_abi.FA_Q5_0, 22),
         "q5_1": (_abi.FA_Q5_1, 24)}  # and bytes of a block


def quantise(x: torch.Tensor, kind: str) -> torch.Tensor:
    """[…, dim] as bytes […, bytes of a row]."""
    x = x.float().unflatten(-1, (-1, DIMS))
    if kind == "q8_0":
        d = x.abs().amax(-1, keepdim=True) / 127
        integers = (x / d.clamp_min(1e-30)).round_().clamp_(-127, 127).to(torch.int8).view(torch.uint8)
        return torch.cat([d.half().view(torch.uint8), integers], -1).flatten(-2)
    middle, least = middle_of(kind), x.amin(-1, keepdim=True)
    has_least = kind.endswith("_1")
    d = (x.amax(-1, keepdim=True) - least) / (2 * middle - 1) if has_least else x.gather(-1, x.abs().argmax(-1, keepdim=True)) / -middle
    inverse = torch.where(d == 0, 0, 1 / d)
    codes = ((x - least if has_least else x + d * middle) * inverse + 0.5).floor_().clamp_(0, 2 * middle - 1).to(torch.uint8)
    heads = [d.half().view(torch.uint8)]
    if has_least:
        heads.append(least.half().view(torch.uint8))
    if middle == 16:
        bits = (codes >> 4).unflatten(-1, (4, 8)) << torch.arange(8, dtype=torch.uint8, device=x.device)
        heads.append(bits.sum(-1).to(torch.uint8))
    return torch.cat([*heads, (codes[..., :16] & 15) | (codes[..., 16:] & 15) << 4], -1).flatten(-2)


def middle_of(kind: str) -> int:
    return 16 if kind.startswith("q5") else 8


def values(bytes_of_rows: torch.Tensor, kind: str) -> torch.Tensor:
    """The same backwards, in fp64."""
    blocks = bytes_of_rows.unflatten(-1, (-1, TYPES[kind][1]))
    d = blocks[..., :2].contiguous().view(torch.float16).double()
    if kind == "q8_0":
        return (d * blocks[..., 2:].contiguous().view(torch.int8).double()).flatten(-2)
    x = torch.cat([blocks[..., -16:] & 15, blocks[..., -16:] >> 4], -1).double()
    if middle_of(kind) == 16:
        fifth = blocks[..., -20:-16].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=blocks.device) & 1
        x += 16 * fifth.flatten(-2).double()
    if not kind.endswith("_1"):
        return (d * (x - middle_of(kind))).flatten(-2)
    return (d * x + blocks[..., 2:4].contiguous().view(torch.float16).double()).flatten(-2)
