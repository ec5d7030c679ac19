"""The suites that run in this process: this library and its rivals on the same tensors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Iterator

import torch

from ..judge import Comparison, Group
from ..problem import Problem
from ..work import count_text
from . import targets
from .bench import Bench, normal
from .work import COLD_BYTES, heads_for


def dense(dtype: str, batch: int, n: int, heads: int, dim: int, causal: bool = False, dim_v: int | None = None) -> Problem:
    q, k = (normal(batch, n, heads, dim, dtype=dtype) for _ in range(2))
    return Problem(q, k, normal(batch, n, heads, dim_v or dim, dtype=dtype), causal=causal)


def compared(name: str, contestants: dict, rivals: list[str], bounds: dict[str, targets.Bounds]) -> list[Comparison]:
    return [Comparison(name, rival, "speed", *(bounds.get(rival) or (None, None))) for rival in rivals if rival in contestants
            or rival == "FLASH"]


def prefill(bench: Bench) -> Iterator[Group]:
    for dtype in ("f32", "bf16", "f16"):
        for dim in (64, 128):
            for n in (512, 2048, 8192):
                yield prefill_group(bench, dtype, dim, n)


def prefill_group(bench: Bench, dtype: str, dim: int, n: int) -> Group:
    heads = heads_for(n, bench.threads)
    name = f"{dtype} H{heads} S{count_text(n)} d{dim}"
    rivals = ["FLASH", "MATH", "ORT"] if n == 512 else ["FLASH"]  # the others store all scores

    def make():
        p = dense(dtype, 1, n, heads, dim)
        contestants = {"ours": bench.ours(p)}
        bench.beside(contestants, rivals, p)
        bounds = {"FLASH": targets.prefill(bench.cpu, dtype, dim, n, bench.threads)}
        comparisons = compared(name, contestants, rivals, bounds)
        if n > 512:
            masked = replace(p, causal=True)
            contestants["causal"] = bench.ours(masked)
            beside: dict = {}
            bench.beside(beside, ["FLASH"], masked)
            contestants.update({"FLASH causal": c for c in beside.values()})
            comparisons += [Comparison(f"{name} causal", "FLASH causal", "speed", ours="causal"),
                            Comparison(f"{name} causal", "ours", "time", *(targets.causal(n) or (None, None)), ours="causal")]
        if dtype == "f16":
            contestants["bf16"] = bench.ours(replace(p, **{x: getattr(p, x).bfloat16() for x in "qkv"}))
            comparisons.append(Comparison(name, "bf16", "speed", *(targets.f16_beside_bf16(contestants["ours"].kernel) or (None, None))))
        return contestants, comparisons

    return Group(name, make)


def backward(bench: Bench) -> Iterator[Group]:
    n = 2048
    heads = heads_for(n, bench.threads)
    for dtype in ("f32", "bf16", "f16"):
        for dim in (64, 128):
            name = f"{dtype} H{heads} S{count_text(n)} d{dim}"

            def make(dtype=dtype, dim=dim, name=name):
                dense_one = dense(dtype, 1, n, heads, dim)
                dense_one.dout = torch.randn_like(dense_one.v)
                contestants, comparisons = {}, []
                for mask, p in (("", dense_one), (" causal", replace(dense_one, causal=True))):
                    contestants[f"ours{mask}"] = bench.gradients(p)
                    beside: dict = {}
                    bench.beside(beside, ["FLASH"], p)
                    contestants.update({f"FLASH{mask}": c for c in beside.values()})
                    bounds = None if mask else targets.backward(bench.cpu, dtype, dim, bench.threads)
                    comparisons.append(Comparison(name + mask, f"FLASH{mask}", "speed", *(bounds or (None, None)), ours=f"ours{mask}"))
                return contestants, comparisons

            yield Group(name, make)


def cache(dtype: str, batch: int, heads: int, heads_kv: int, keys: int, dim: int = 128, dim_v: int | None = None) -> Problem:
    k, v = normal(batch, keys, heads_kv, dim, dtype=dtype), normal(batch, keys, heads_kv, dim_v or dim, dtype=dtype)
    return Problem(normal(batch, 1, heads, dim, dtype=dtype), k, v)


def rotating(p: Problem) -> list[Problem]:
    """Sets of K and V that no cache holds together."""
    return [p, *(replace(p, k=p.k.clone(), v=p.v.clone()) for _ in range(math.ceil(COLD_BYTES / p.cache_bytes()) - 1))]


def decode(bench: Bench) -> Iterator[Group]:
    shapes = ((1, 32, 32, 4096), (1, 32, 8, 16384), (1, 8, 1, 65536))
    for dtype in ("bf16", "f16", "f32"):
        for shape in shapes if dtype == "bf16" else shapes[1:2]:
            for cold in (False, True) if dtype == "bf16" else (False,):
                yield decode_group(bench, dtype, shape, cold)


def decode_group(bench: Bench, dtype: str, shape: tuple, cold: bool) -> Group:
    batch, heads, heads_kv, keys = shape
    name = f"{dtype} B{batch} {heads}/{heads_kv} S{count_text(keys)} d128 {'cold' if cold else 'hot'}"
    rivals = ["FLASH"] if cold or dtype == "bf16" else ["FLASH", "ORT"]

    def make():
        problems = [cache(dtype, *shape)]
        if cold:
            problems = rotating(problems[0])
        contestants = {"ours": bench.ours(*problems, work="bytes")}
        bench.beside(contestants, rivals, *problems, work="bytes")
        bounds = {"FLASH": targets.decode(heads, heads_kv, keys, bench.threads, cold)}
        return contestants, compared(name, contestants, rivals, bounds)

    return Group(name, make)


def models(bench: Bench) -> Iterator[Group]:
    shapes = [(dim, None) for dim in (32, 40, 48, 64, 72, 80, 96, 112, 128, 160, 192, 256)] + [(192, 128), (1024, None)]
    for dtype in ("bf16", "f32"):
        for dim, dim_v in shapes:
            heads = 2 if dim == 1024 else 8
            name = f"{dtype} H{heads} S1k d{dim}" + (f"/{dim_v}" if dim_v else "")

            def make(dtype=dtype, heads=heads, dim=dim, dim_v=dim_v, name=name):
                p = dense(dtype, 1, 1024, heads, dim, dim_v=dim_v)
                contestants = {"ours": bench.ours(p)}
                rivals = ["MATH"] if dim_v else ["FLASH"]
                bench.beside(contestants, rivals, p)
                return contestants, compared(name, contestants, rivals, {})

            yield Group(name, make)
        name = f"{dtype} B8 16/1 S4k d576/512, one row"

        def latent(dtype=dtype, name=name):
            p = cache(dtype, 8, 16, 1, 4096, 576, 512)
            contestants = {"ours": bench.ours(p)}
            bench.beside(contestants, ["MATH"], p)
            return contestants, compared(name, contestants, ["MATH"], {})

        yield Group(name, latent)


def packed_problem(dtype: str, lengths: list[int], heads: int, dim: int) -> Problem:
    offsets = torch.tensor([0, *lengths]).cumsum(0).int()
    q, k, v = (normal(sum(lengths), heads, dim, dtype=dtype) for _ in range(3))
    return Problem(q, k, v, offsets=offsets)


def packed(bench: Bench) -> Iterator[Group]:
    lengths = torch.randint(8, 129, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    for dtype in ("bf16", "f32"):
        name = f"{dtype} 64 sequences of 8 … 128, H12 d64"

        def make(dtype=dtype, name=name):
            contestants = {"ours": bench.ours(packed_problem(dtype, lengths, 12, 64))}
            beside: dict = {}
            bench.beside(beside, ["FLASH"], dense(dtype, 64, 128, 12, 64))
            for c in beside.values():  # what is asked for is the sequences; the padding is torch's own affair
                c.work = contestants["ours"].work
                contestants["FLASH, padded"] = c
            return contestants, [Comparison(name, "FLASH, padded")]

        yield Group(name, make)


def in_pages(p: Problem, page: int) -> Problem:
    """The same memory cut into pages that are used in a shuffled order."""
    pages = p.k.shape[1] // page
    k, v = (x.reshape(pages, page, *x.shape[2:]) for x in (p.k, p.v))
    return replace(p, k=k, v=v, table=torch.randperm(pages).int()[None], used=torch.tensor([p.k.shape[1]], dtype=torch.int32))


def variants_of(dtype: str, plain: Problem) -> dict[str, Problem]:
    n, heads, dim = plain.q.shape[1:]
    slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)])
    lower = torch.ones(n, n, dtype=torch.bool).tril()
    return {"window of 1024 in 32k": replace(dense(dtype, 1, 32768, 1, dim, True), left=1023), "ALiBi": replace(plain, slopes=slopes),
            "sinks": replace(plain, sinks=torch.randn(heads)), "softcap": replace(plain, softcap=20.0),
            "mask, 7 of 10": replace(plain, mask=torch.rand(n, n) < 0.7), "mask, triangle": replace(plain, mask=lower),
            "bias of keys": replace(plain, bias=torch.randn(heads, 1, n).expand(heads, n, n)),
            "bias of pairs": replace(plain, bias=torch.randn(n, n).expand(heads, n, n)), "pages of 16": in_pages(plain, 16),
            "pages of 64": in_pages(plain, 64), "packed": packed_problem(dtype, [700, 300, 1000, 450], heads, dim)}


def options(bench: Bench) -> Iterator[Group]:
    for dtype in ("f32", "bf16"):
        name = f"{dtype} H8 S1k d128"

        def make(dtype=dtype, name=name):
            plain = dense(dtype, 1, 1024, 8, 128)
            contestants = {"plain": bench.ours(plain)}
            for option, p in variants_of(dtype, plain).items():
                contestants[option] = bench.ours(p)
                if option == "mask, triangle":
                    contestants[option].work *= 0.5 * (1 + 1 / 1024)  # the pairs that are left, whether or not the kernel knows
            return contestants, [Comparison(f"{option}, {name}", "plain", "time",
                                            *(targets.option(bench.cpu, dtype, option) or (None, None)),
                                            ours=option) for option in contestants if option != "plain"]

        yield Group(name, make)


MAKERS = {"prefill": prefill, "backward": backward, "decode": decode, "models": models, "packed": packed, "options": options}
