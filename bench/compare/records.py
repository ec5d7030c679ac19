"""Tokens of latent attention's cache of 8 bits: 512 e4m3, an f32 factor for each 128 of them, 64 bf16."""

from __future__ import annotations

import torch

BYTES = 656
OWN, TAIL, DIMS_OF_FACTOR = 512, 64, 128
FACTORS_AT, TAIL_AT = OWN, OWN + OWN // DIMS_OF_FACTOR * 4


def quantise(x: torch.Tensor) -> torch.Tensor:
    """[…, 576] as bytes […, 656]."""
    own = x[..., :OWN].float().unflatten(-1, (-1, DIMS_OF_FACTOR))
    factor = own.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 448
    parts = (own / factor).to(torch.float8_e4m3fn).flatten(-2), factor.squeeze(-1), x[..., OWN:].bfloat16()
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], -1)


def values(tokens: torch.Tensor) -> torch.Tensor:
    """The same backwards, in fp64."""
    own = tokens[..., :OWN].contiguous().view(torch.float8_e4m3fn).double().unflatten(-1, (-1, DIMS_OF_FACTOR))
    factor = tokens[..., FACTORS_AT:TAIL_AT].contiguous().view(torch.float32).double()
    return torch.cat([(own * factor.unsqueeze(-1)).flatten(-2), tokens[..., TAIL_AT:].contiguous().view(torch.bfloat16).double()], -1)
