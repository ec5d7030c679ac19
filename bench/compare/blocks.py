"""K and V in ggml's blocks of 32 dims: what quantises them, and their values."""

from __future__ import annotations

import torch
from flashattn import _abi

DIMS = 32
TYPES = {"q8_0": (_abi.FA_Q8_0, 34), "q4_0": (_abi.FA_Q4_0, 18)}  # and bytes of a block


def quantise(x: torch.Tensor, kind: str) -> torch.Tensor:
    """[…, dim] as bytes […, bytes of a row]."""
    x = x.float().unflatten(-1, (-1, DIMS))
    if kind == "q8_0":
        d = x.abs().amax(-1, keepdim=True) / 127
        integers = (x / d.clamp_min(1e-30)).round_().clamp_(-127, 127).to(torch.int8).view(torch.uint8)
    else:
        d = x.gather(-1, x.abs().argmax(-1, keepdim=True)) / -8
        inverse = torch.where(d == 0, 0, 1 / d)
        codes = (x * inverse + 8.5).floor_().clamp_(0, 15).to(torch.uint8)
        integers = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([d.half().view(torch.uint8), integers], -1).flatten(-2)


def values(bytes_of_rows: torch.Tensor, kind: str) -> torch.Tensor:
    """The same backwards, in fp64."""
    blocks = bytes_of_rows.unflatten(-1, (-1, TYPES[kind][1]))
    d, integers = blocks[..., :2].contiguous().view(torch.float16).double(), blocks[..., 2:]
    if kind == "q8_0":
        x = integers.contiguous().view(torch.int8).double()
    else:
        x = torch.cat([integers & 15, integers >> 4], -1).double() - 8
    return (d * x).flatten(-2)
