"""What is to be reached, (must, aim) by kind of work; None where nothing was asked, or not of such a CPU. Pure."""

from __future__ import annotations

from dataclasses import dataclass

Bounds = tuple[float, float] | None
MANY_THREADS = 16  # the counts that targets were set for: one, and so many


@dataclass(frozen=True)
class Cpu:
    name: str
    amx: bool    # bf16 tiles
    zen: bool    # AVX-512 with a BF16 dot of twice the rate of its multiply-adds

    @staticmethod
    def read(path: str = "/proc/cpuinfo") -> Cpu:
        fields: dict[str, str] = {}
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(":")
                fields.setdefault(key.strip(), value.strip())
        flags = fields.get("flags", "").split()
        amd = fields.get("vendor_id") == "AuthenticAMD"
        return Cpu(fields.get("model name", "unknown"), "amx_bf16" in flags, amd and "avx512_bf16" in flags)


def prefill(cpu: Cpu, dtype: str, dim: int, n: int, threads: int) -> Bounds:
    """Times the speed of torch's FLASH, dense."""
    narrow = dim == 64
    if threads != 1 and threads < MANY_THREADS:
        return None
    if dtype == "f32":
        if n < 512:
            return None
        if threads == 1:
            return (1.25, 1.40) if narrow else (1.08, 1.18)
        if n == 512:
            return 1.15, 1.3
        return (1.35, 1.6) if narrow else (1.2, 1.4)
    if dtype == "f16":
        return (1.15, 2.5) if narrow else (1.0, 2.5)
    if cpu.zen:
        return (2.0, 2.5) if threads == 1 else None
    if not cpu.amx:
        return None
    if n >= 2048:
        if threads == 1:
            return (4.5, 6.0) if narrow else (2.5, 3.8)
        return (3.5, 5.0) if narrow else (2.0, 3.0)
    return ((2.0, 4.0) if narrow else (1.6, 2.5)) if threads > 1 else None


def backward(cpu: Cpu, dtype: str, dim: int, threads: int) -> Bounds:
    """Times the speed of torch's FLASH, backward, dense, of 2048 rows."""
    if threads != 1 and threads < MANY_THREADS:
        return None
    if dtype == "f32":
        if threads > 1:
            return 1.1, 1.3
        return (1.05, 1.2) if dim == 64 else (1.0, 1.15)
    return (2.5, 4.0) if dtype == "bf16" and cpu.amx else None


def f16_beside_bf16(kernel: str) -> Bounds:
    """Times the speed of this library's bf16, where the CPU has f16 tiles."""
    return (0.95, 1.0) if "fp16" in kernel else None


def causal(n: int) -> Bounds:
    """Time of a causal call as a multiple of a dense one's for equal work: twice the 0.56 and 0.53 of its whole time."""
    return (1.12, 1.06) if n >= 2048 else None


def decode(heads: int, heads_kv: int, keys: int, threads: int, cold: bool) -> Bounds:
    """Times the speed of torch."""
    grouped = heads == 4 * heads_kv and keys == 16384
    return (2.5, 4.0) if grouped and not cold and threads >= MANY_THREADS else None


def option(cpu: Cpu, dtype: str, name: str) -> Bounds:
    """Time as a multiple of the plain call's, for equal work."""
    if dtype == "f32":
        return None if name == "bias of pairs" else (1.25, 1.1)
    on_tiles = not name.startswith(("bias", "softcap"))
    return (1.35, 1.15) if cpu.amx and on_tiles else None


def ceiling_share(cpu: Cpu, row: dict, avx2: bool = False) -> Bounds:
    """Share of the ceiling that a row of `flashattn bench --json` stands beside."""
    batch, heads, n, dim = row["shape"]
    plain = "causal" not in row["name"]
    if row["suite"] == "forward" and plain:
        if row["dtype"] == "f32":
            if avx2:
                return 0.75, 0.85
            usual, zen = ((0.80, 0.87), (0.86, 0.90)) if dim == 64 else ((0.82, 0.90), (0.88, 0.92))
            return zen if cpu.zen else usual
        if row["dtype"] == "bf16" and cpu.amx and n >= 2048:
            return (0.40, 0.55) if dim == 64 else (0.36, 0.55)
    if row["suite"] == "decode" and row["cold"]:
        if "," in row["dtype"]:
            return 0.75, 0.90
        heads, heads_kv = row["name"].split()[1].split("/")
        return (0.92, 0.97) if heads == heads_kv else (0.85, 0.93)
    return None


TINY_MICROSECONDS = (2.0, 0.7)  # a call of [1,1,16,64]
SCALING = (0.85, 0.95)
