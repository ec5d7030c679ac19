"""Suites whose calls have many query rows: limited by arithmetic."""

from __future__ import annotations

from typing import Iterator

import torch

from .bench import DTYPES, Bench, normal
from .judge import Comparison, Group
from .problem import Problem
from .work import count_text, sets_for

TOKENS, HIDDEN = 16384, 2048  # of a forward, whatever its sequence length and head dimension


def dense(dtype: str, batch: int, n: int, heads: int, dim: int, causal: bool, dim_v: int | None = None) -> Problem:
    q, k = (normal(batch, n, heads, dim, dtype=DTYPES[dtype]) for _ in range(2))
    return Problem(q, k, normal(batch, n, heads, dim_v or dim, dtype=DTYPES[dtype]), causal=causal)


def shape_text(dtype: str, batch: int, n: int, heads: int, dim: int, causal: bool, dim_v: int | None = None) -> str:
    width = f"{dim}/{dim_v}" if dim_v else str(dim)
    return f"{dtype} B{batch} H{heads} S{count_text(n)} d{width} {'causal' if causal else 'dense'}"


def against_torch(bench: Bench, shape: tuple, rivals: list[str], bounds: dict[str, tuple[float, float]], graph: bool = False) -> Group:
    """One shape beside torch's kernels; bounds: {rival: (must, aim)}."""
    name = shape_text(*shape)

    def make():
        problems = [dense(*shape)]
        if graph:
            p = problems[0]
            problems += [dense(*shape) for _ in range(sets_for(p.cache_bytes()) - 1)]
        contestants = {"ours": bench.ours(*problems, graph=graph)}
        wanted = bench.beside(contestants, rivals, *problems, graph=graph)
        return contestants, [Comparison(name, rival, "speed", *bounds.get(rival, (None, None))) for rival in wanted]

    return Group(name, make)


def forward(bench: Bench) -> Iterator[Group]:
    bounds = {"FLASH": (0.9, 1.0)}
    for dtype, lengths in (("bf16", (2048, 16384)), ("f16", (4096,))):
        for dim in (128, 64, 256):
            for n in lengths:
                for causal in (False, True):
                    yield against_torch(bench, (dtype, TOKENS // n, n, HIDDEN // dim, dim, causal), ["FLASH", "CUDNN"], bounds)
    for dim, dim_v, heads in ((96, None, 16), (192, None, 12), (192, 128, 16)):
        for causal in (False, True):
            yield against_torch(bench, ("bf16", 4, 4096, heads, dim, causal, dim_v), ["FLASH", "CUDNN"], {})


def f32(bench: Bench) -> Iterator[Group]:
    for dim, bounds in ((64, (1.0, 1.2)), (128, (0.8, 0.95))):
        for causal in (False, True):
            yield against_torch(bench, ("f32", 4, 2048, 16, dim, causal), ["EFFICIENT"], {"EFFICIENT": bounds})
    yield against_torch(bench, ("f32", 2, 2048, 8, 256, False), ["EFFICIENT", "MATH"], {})


def odd(bench: Bench) -> Iterator[Group]:
    for dim, heads in ((59, 16), (111, 16), (300, 8), (1000, 4)):
        whole = -(-dim // 32) * 32

        def make(dim=dim, heads=heads, whole=whole):
            contestants = {"ours": bench.ours(dense("f32", 2, 2048, heads, dim, False)),
                           f"d{whole}": bench.ours(dense("f32", 2, 2048, heads, whole, False))}
            return contestants, [Comparison(f"f32 d{dim}", f"d{whole}", "speed", 0.6, 0.8)]

        yield Group(f"f32 d{dim}", make)


def small(bench: Bench) -> Iterator[Group]:
    for batch, heads, n, dim in ((16, 12, 64, 64), (8, 12, 64, 64), (16, 12, 256, 64), (16, 12, 2048, 64)):
        for dtype, rival in (("f16", "FLASH"), ("f32", "EFFICIENT")):
            yield against_torch(bench, (dtype, batch, n, heads, dim, False), [rival], {rival: (1.0, 1.3)}, graph=True)


def packed(lengths: list[int], heads: int, heads_kv: int, dim: int) -> Problem:
    offsets = torch.tensor([0, *lengths], device="cuda").cumsum(0).int()
    total = sum(lengths)
    return Problem(normal(total, heads, dim), normal(total, heads_kv, dim), normal(total, heads_kv, dim), causal=True, offsets=offsets)


def varlen(bench: Bench) -> Iterator[Group]:
    """The dense batch has as many sequences, all of the length that gives the same work."""
    lengths = torch.randint(128, 4097, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    same = round((sum(n * n for n in lengths) / len(lengths)) ** 0.5 / 128) * 128
    for heads, heads_kv in ((16, 16), (32, 8)):
        name = f"bf16 64 sequences of 128 … 4096, {heads}/{heads_kv} d128 causal"

        def make(heads=heads, heads_kv=heads_kv, name=name):
            alike = Problem(normal(64, same, heads, 128), normal(64, same, heads_kv, 128), normal(64, same, heads_kv, 128), causal=True)
            against = f"64 of {same}"
            contestants = {"ours": bench.ours(packed(lengths, heads, heads_kv, 128)), against: bench.ours(alike)}
            return contestants, [Comparison(name, against, "speed", 0.85, 0.95)]

        yield Group(name, make)


def options(bench: Bench) -> Iterator[Group]:
    batch, n, heads, dim = 4, 4096, 16, 128
    name = shape_text("bf16", batch, n, heads, dim, True)

    def variants(causal: bool, **fields: dict):
        plain = dense("bf16", batch, n, heads, dim, causal)
        contestants = {"plain": bench.ours(plain)}
        for option, more in fields.items():
            contestants[option] = bench.ours(Problem(plain.q, plain.k, plain.v, causal=causal, **more))
        shape = shape_text("bf16", batch, n, heads, dim, causal)
        return contestants, [Comparison(f"{option}, {shape}", "plain", "time", 1.35, 1.15, ours=option) for option in fields]

    def on_causal():
        slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device="cuda")
        return variants(True, window={"left": 1023}, ALiBi={"slopes": slopes}, sinks={"sinks": normal(heads, dtype=torch.float32)})

    def on_dense():
        mask = torch.rand(n, n, device="cuda") < 0.7
        return variants(False, mask={"mask": mask})

    yield Group(f"window, ALiBi, sinks, {name}", on_causal)
    yield Group("boolean mask", on_dense)
