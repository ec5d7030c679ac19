"""K and V with factors of some dims of each token in arrays of their own: what quantises them, and their values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from flashattn import _abi


@dataclass(frozen=True)
class Scheme:
    dtype: int            # of k and v
    factor: int           # the type of factors
    dims: int             # that share one
    shifted: bool = False


SCHEMES = {"MXFP8": Scheme(_abi.FA_E4M3, _abi.FA_E8M0, 32), "MXFP4": Scheme(_abi.FA_E2M1, _abi.FA_E8M0, 32),
           "NVFP4": Scheme(_abi.FA_E2M1, _abi.FA_E4M3, 16), "u4 with shifts": Scheme(_abi.FA_U4, _abi.FA_F16, 32, shifted=True)}
STORED = {_abi.FA_E8M0: torch.uint8, _abi.FA_E4M3: torch.float8_e4m3fn, _abi.FA_F16: torch.float16}
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass
class Cache:
    """k or v: bytes [batch, keys, heads, bytes of a row], factors and shifts [batch, keys, heads, factors of a row]."""

    rows: torch.Tensor
    factor: torch.Tensor
    shift: torch.Tensor | None


def factor_values(factor: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    return torch.exp2(factor.double() - 127) if scheme.factor == _abi.FA_E8M0 else factor.double()


def stored_factor(wanted: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    if scheme.factor == _abi.FA_E8M0:
        return (wanted.log2().ceil() + 127).clamp(0, 254).to(torch.uint8)
    return wanted.to(STORED[scheme.factor])


def quantise(x: torch.Tensor, kind: str) -> Cache:
    scheme = SCHEMES[kind]
    x = x.float().unflatten(-1, (-1, scheme.dims))
    shift = x.amin(-1).half() if scheme.shifted else None
    if shift is not None:
        x = x - shift.float().unsqueeze(-1)
    most = {_abi.FA_E4M3: 448.0, _abi.FA_E2M1: 6.0, _abi.FA_U4: 15.0}[scheme.dtype]
    factor = stored_factor((x.abs().amax(-1) / most).clamp_min(2.0**-9), scheme)
    codes = (x / factor_values(factor, scheme).float().unsqueeze(-1)).flatten(-2)
    if scheme.dtype == _abi.FA_E4M3:
        return Cache(codes.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8), factor, shift)
    if scheme.dtype == _abi.FA_E2M1:
        between = torch.tensor([(a + b) / 2 for a, b in zip(E2M1, E2M1[1:])], device=x.device)
        nibbles = torch.bucketize(codes.abs(), between).to(torch.uint8) | (codes < 0).to(torch.uint8) << 3
    else:
        nibbles = codes.round().clamp(0, most).to(torch.uint8)
    return Cache(nibbles[..., ::2] | nibbles[..., 1::2] << 4, factor, shift)


def values(rows: torch.Tensor, factor: torch.Tensor, shift: torch.Tensor | None, kind: str) -> torch.Tensor:
    """The same backwards, in fp64."""
    scheme = SCHEMES[kind]
    if scheme.dtype == _abi.FA_E4M3:
        codes = rows.contiguous().view(torch.float8_e4m3fn).double()
    else:
        nibbles = torch.stack([rows & 15, rows >> 4], -1).flatten(-2).long()
        table = torch.tensor([*E2M1, *(-x for x in E2M1)], dtype=torch.float64, device=rows.device)
        codes = table[nibbles] if scheme.dtype == _abi.FA_E2M1 else nibbles.double()
    x = codes.unflatten(-1, (-1, scheme.dims)) * factor_values(factor, scheme).unsqueeze(-1)
    return (x if shift is None else x + shift.double().unsqueeze(-1)).flatten(-2)
