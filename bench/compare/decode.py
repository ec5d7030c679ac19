"""Suites whose calls have few query rows: limited by reading K and V."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterator

import torch

from . import blocks, records, schemes, targets
from .bench import Bench, normal
from .judge import Comparison, Contestant, Group
from .problem import Problem
from .rivals import FA3, has_fa3
from .work import count_text, sets_for


def cache(batch: int, heads: int, heads_kv: int, keys: int, dim: int = 128, rows: int = 1) -> Problem:
    """bf16; rows > 1 are the last of the sequence, and causal."""
    k, v = (normal(batch, keys, heads_kv, dim) for _ in range(2))
    return Problem(normal(batch, rows, heads, dim), k, v, causal=rows > 1)


def rotating(make, *shape) -> list[Problem]:
    """As many sets of K and V as no cache can hold."""
    first = make(*shape)
    return [first, *(make(*shape) for _ in range(sets_for(first.cache_bytes()) - 1))]


def shape_text(batch: int, heads: int, heads_kv: int, keys: int, dim: int = 128, rows: int = 1) -> str:
    return f"B{batch} {heads}/{heads_kv} S{count_text(keys)} d{dim}" + (f" Sq{rows}" if rows > 1 else "")


def decode(bench: Bench) -> Iterator[Group]:
    usual, few_heads = targets.DECODE, targets.DECODE_FEW_HEADS
    for *shape, bounds in ((64, 32, 8, 4096, 128, usual), (1, 32, 32, 65536, 128, usual), (1, 32, 8, 65536, 128, usual),
                           (16, 32, 8, 8192, 128, usual), (128, 64, 8, 2048, 128, usual), (1, 8, 1, 131072, 128, few_heads),
                           (32, 32, 8, 8192, 64, usual)):

        def make(shape=shape, bounds=bounds):
            problems = rotating(cache, *shape)
            contestants = {"ours": bench.ours(*problems, graph=True, work="bytes")}
            wanted = bench.beside(contestants, ["CUDNN"], *problems, graph=True, work="bytes")
            return contestants, [Comparison(shape_text(*shape), name, "speed", *(bounds if name == "CUDNN" else ())) for name in wanted]

        yield Group(shape_text(*shape), make)


def decode_latency(bench: Bench) -> Iterator[Group]:
    for keys, (must, aim) in targets.DECODE_MICROSECONDS.items():
        name = shape_text(1, 32, 8, keys)

        def make(keys=keys, must=must, aim=aim, name=name):
            problems = rotating(cache, 1, 32, 8, keys)
            contestants = {"ours": bench.ours(*problems, graph=True, work="bytes")}
            wanted = bench.beside(contestants, ["CUDNN"], *problems, graph=True, work="bytes")
            return contestants, [Comparison(name, None, "microseconds", must, aim), *(Comparison(name, rival) for rival in wanted)]

        yield Group(name, make)


def speculative(bench: Bench) -> Iterator[Group]:
    for shape in ((64, 32, 8, 4096), (1, 32, 8, 65536)):

        def make(shape=shape):
            one = rotating(cache, *shape)
            contestants, comparisons = {"Sq1": bench.ours(*one, graph=True, work="bytes")}, []
            for rows in (2, 4, 8):
                more = [replace(p, q=normal(shape[0], rows, shape[1], 128), causal=True) for p in one]
                contestants[f"Sq{rows}"] = bench.ours(*more, graph=True, work="bytes")
                comparisons.append(Comparison(shape_text(*shape, rows=rows), "Sq1", "time", *targets.SPECULATIVE, ours=f"Sq{rows}"))
            return contestants, comparisons

        yield Group(shape_text(*shape, rows=8), make)


def low(bench: Bench) -> Iterator[Group]:
    for shape in ((64, 32, 8, 4096), (8, 32, 8, 16384), (1, 32, 8, 65536), (16, 32, 32, 4096)):

        def make(shape=shape):
            whole = rotating(cache, *shape, 128, 128)
            contestants, comparisons = {"Sq128": bench.ours(*whole, graph=True, work="bytes")}, []
            for rows in (9, 16, 32, 64, 100, 127):
                fewer = [replace(p, q=normal(shape[0], rows, shape[1], 128)) for p in whole]
                contestants[f"Sq{rows}"] = bench.ours(*fewer, graph=True, work="bytes")
                comparisons.append(Comparison(shape_text(*shape, rows=rows), "Sq128", "time", *targets.LOW, ours=f"Sq{rows}"))
            return contestants, comparisons

        yield Group(shape_text(*shape, rows=128), make)


def ragged(bench: Bench) -> Iterator[Group]:
    """All 64 sequences have room for 32 k keys; the alike ones use the mean of what the others use."""
    shape = (64, 32, 8, 32768)
    generator = torch.Generator().manual_seed(1)
    share = torch.rand(64, generator=generator)
    spreads = {"even": 128 + share * (32768 - 128), "geometric": 128 * 256.0 ** share}
    for name, lengths in spreads.items():
        name = f"B64 32/8 d128, lengths 128 … 32k, {name} spread"

        def make(name=name, lengths=lengths):
            p = cache(*shape)
            used = lengths.round().int().cuda()
            alike = torch.full_like(used, round(used.float().mean().item()))
            contestants: dict[str, Contestant] = {"ours": bench.ours(replace(p, used=used), graph=True, work="bytes"),
                                                  "alike": bench.ours(replace(p, used=alike), graph=True, work="bytes")}
            return contestants, [Comparison(name, "alike", "speed", *targets.RAGGED)]

        yield Group(name, make)


def in_pages(p: Problem, page: int) -> Problem:
    """The same memory cut into pages that the sequences use in a shuffled order."""
    batch, keys = p.k.shape[:2]
    pages = keys // page
    table = torch.randperm(batch * pages, device="cuda").int().view(batch, pages)
    k, v = (x.reshape(batch * pages, page, *x.shape[2:]) for x in (p.k, p.v))
    return replace(p, k=k, v=v, table=table, used=torch.full((batch,), keys, dtype=torch.int32, device="cuda"))


def paged(bench: Bench) -> Iterator[Group]:
    for shape in ((64, 32, 8, 4096), (1, 32, 8, 65536)):

        def make(shape=shape):
            plain = rotating(cache, *shape)
            contestants, comparisons = {"contiguous": bench.ours(*plain, graph=True, work="bytes")}, []
            for page, bounds in targets.PAGED.items():
                name = f"pages of {page}"
                contestants[name] = bench.ours(*(in_pages(p, page) for p in plain), graph=True, work="bytes")
                comparisons.append(Comparison(f"{name}, {shape_text(*shape)}", "contiguous", "speed", *bounds, ours=name))
            return contestants, comparisons

        yield Group(shape_text(*shape), make)


def eight_bit(kind: str, batch: int, heads: int, heads_kv: int, keys: int) -> Problem:
    """int8 or e4m3 K and V with a de-scale factor of each head, beside a bf16 q."""
    dim = 128
    k, v = (normal(batch, keys, heads_kv, dim) for _ in range(2))
    descale = torch.rand(2, heads_kv, device="cuda") + 0.5
    if kind == "int8":
        k, v = ((x * 40).round_().clamp_(-127, 127).to(torch.int8) for x in (k, v))
        descale /= 40
    else:
        k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
    return Problem(normal(batch, 1, heads, dim), k, v, k_descale=descale[0], v_descale=descale[1])


def in_blocks(kind: str, batch: int, heads: int, heads_kv: int, keys: int) -> Problem:
    """K and V in blocks of 32 dims, beside a bf16 q."""
    k, v = (blocks.quantise(normal(batch, keys, heads_kv, 128), kind) for _ in range(2))
    return Problem(normal(batch, 1, heads, 128), k, v, blocks=kind)


def with_factors(kind: str, batch: int, heads: int, heads_kv: int, keys: int) -> Problem:
    """K and V with factors of some dims of each token, beside a bf16 q."""
    k, v = (schemes.quantise(normal(batch, keys, heads_kv, 128), kind) for _ in range(2))
    return Problem(normal(batch, 1, heads, 128), k.rows, v.rows, k_descale=k.factor, v_descale=v.factor, k_shift=k.shift, v_shift=v.shift,
                   scheme=kind)


def few_bits(kind: str) -> Callable[..., Problem]:
    """What makes a problem of the kind: of kind, batch, heads, heads_kv, keys."""
    return in_blocks if kind in blocks.TYPES else with_factors if kind in schemes.SCHEMES else eight_bit


def add_quantised(bench: Bench, contestants: dict[str, Contestant], shape: tuple, bounds: dict, native: bool = False) -> list[Comparison]:
    """Each kind of cache beside the contestant bf16; bounds: of the time, by kind."""
    comparisons = []
    for kind, (must, aim) in bounds.items():
        problems = (replace(p, native=native) for p in rotating(few_bits(kind), kind, *shape))
        c = contestants[kind] = bench.ours(*problems, graph=True, work="bytes")
        # The same calls of K and V are to be compared, not bytes: the rate is of what bf16 would have read.
        c.work, c.unit = contestants["bf16"].work, "TB/s of bf16"
        comparisons.append(Comparison(f"{kind}, {shape_text(*shape)}", "bf16", "time", must, aim, ours=kind))
    return comparisons


def quantised(bench: Bench) -> Iterator[Group]:
    for shape in ((64, 32, 8, 4096), (16, 32, 8, 8192)):

        def make(shape=shape):
            contestants = {"bf16": bench.ours(*rotating(cache, *shape), graph=True, work="bytes")}
            return contestants, add_quantised(bench, contestants, shape, targets.QUANTISED)

        yield Group(shape_text(*shape), make)


def mma(bench: Bench) -> Iterator[Group]:
    shape = (64, 32, 8, 4096)
    name = f"bf16, {shape_text(*shape)}"

    def make():
        problems = rotating(cache, *shape)
        contestants = {"bf16": bench.ours(*problems, graph=True, work="bytes")}
        wanted = bench.beside(contestants, ["FLASH"], *problems, graph=True, work="bytes")
        bounds = {kind: targets.of_less_shared(of_kind, bench.shared_kb, is_time=True) for kind, of_kind in targets.DECODE_MMA.items()}
        return contestants, [Comparison(name, rival, "speed", ours="bf16") for rival in wanted] + add_quantised(bench, contestants, shape,
                                                                                                                bounds, native=True)

    yield Group(name, make)


def latent_cache(batch: int, heads: int, keys: int, rows: int = 1) -> Problem:
    """Pages of 64 in the order of their keys, so that a rival without pages may read the same memory."""
    pages = keys // 64
    k = normal(batch * pages, 64, 1, 576)
    table = torch.arange(batch * pages, device="cuda").int().view(batch, pages)
    used = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
    return Problem(normal(batch, rows, heads, 576), k, k[..., :512], causal=rows > 1, used=used, table=table, v_in_k=True)


def as_records(p: Problem) -> Problem:
    """Its cache in 8 bits, whose values times their factors may be rounded to bf16."""
    k = records.quantise(p.k)
    return replace(p, k=k, v=k, records=True, native=True)


def listed_cache(batch: int, heads: int, keys: int, listed: int) -> Problem:
    """So many keys of each sequence, in no order, as an indexer leaves them."""
    p = latent_cache(batch, heads, keys)
    places = torch.rand(batch, keys, device="cuda").topk(listed).indices + torch.arange(batch, device="cuda").unsqueeze(1) * keys
    return replace(p, used=None, table=None, slots=places.int().unsqueeze(1))


def latent(bench: Bench) -> Iterator[Group]:
    rivals = [FA3] if has_fa3() else []
    for batch, heads, keys, rows in ((128, 128, 4096, 1), (64, 128, 4096, 2), (32, 128, 4096, 1), (128, 64, 4096, 1), (128, 16, 4096, 1),
                                     (64, 16, 16384, 1), (128, 16, 8192, 2), (1, 16, 4096, 1), (1, 128, 8192, 1)):
        name = f"B{batch} H{heads} S{count_text(keys)}" + (f" Sq{rows}" if rows > 1 else "")

        def make(shape=(batch, heads, keys, rows), name=name):
            work = "flops" if shape[1] == 128 else "bytes"
            short = targets.LATENT_MICROSECONDS.get(shape[1:3]) if shape[0] == 1 else None
            problems = rotating(latent_cache, *shape)
            contestants = {"ours": bench.ours(*problems, graph=True, work=work)}
            wanted = bench.beside(contestants, rivals, *problems, graph=True, work=work)
            alone = [Comparison(name, None, "microseconds", *short)] if short else []
            own = []
            if work == "bytes" and not short:
                c = contestants["8 bits"] = bench.ours(*(as_records(p) for p in problems), graph=True, work=work)
                c.work, c.unit = contestants["ours"].work, "TB/s of bf16"
                own = [Comparison(f"8 bits, {name}", "ours", "time", *targets.LATENT_8_BITS, ours="8 bits")]
            return contestants, alone + [Comparison(name, rival, "speed", *targets.LATENT[shape[1]]) for rival in wanted] + own

        yield Group(name, make)
    for batch, heads, keys, listed in ((64, 16, 16384, 2048), (64, 128, 16384, 2048), (1, 128, 65536, 2048)):
        name = f"{listed} listed of B{batch} H{heads} S{count_text(keys)}"

        def make(shape=(batch, heads, keys, listed), name=name):
            problems, work = rotating(listed_cache, *shape), "flops" if shape[1] == 128 else "bytes"
            contestants = {f"{shape[3]} keys": bench.ours(*rotating(latent_cache, shape[0], shape[1], shape[3]), graph=True, work=work),
                           "listed": bench.ours(*problems, graph=True, work=work),
                           "listed, 8 bits": bench.ours(*(as_records(p) for p in problems), graph=True, work=work)}
            contestants["listed, 8 bits"].work = contestants["listed"].work
            return contestants, [Comparison(f"{kind}, {name}", f"{shape[3]} keys", "time", *targets.LATENT_LISTED[kind], ours=kind)
                                 for kind in ("listed", "listed, 8 bits")]

        yield Group(name, make)


def chunked(bench: Bench) -> Iterator[Group]:
    for rows in (2048, 512):
        for keys in (8192, 32768):
            shape = (1, 32, 8, keys, 128, rows)

            def make(shape=shape):
                plain = cache(*shape)
                contestants, comparisons = {"contiguous": bench.ours(plain)}, []
                for page, bounds in targets.CHUNKED.items():
                    name = f"pages of {page}"
                    contestants[name] = bench.ours(in_pages(plain, page))
                    comparisons.append(Comparison(f"{name}, {shape_text(*shape)}", "contiguous", "speed", *bounds, ours=name))
                return contestants, comparisons

            yield Group(shape_text(*shape), make)


def enqueue(bench: Bench) -> Iterator[Group]:
    shapes = {"decoding B1 32/8 S1k": (1, 32, 8, 1024), "64 rows, B8 H12 d64": (8, 12, 12, 64, 64, 64)}
    for name, shape in shapes.items():

        def make(name=name, shape=shape):
            contestant, foreign = bench.enqueue(cache(*shape))
            name = f"{name}, without {foreign * 1e6:.2f} µs of ctypes"
            return {"ours": contestant}, [Comparison(name, None, "microseconds", *targets.ENQUEUE_MICROSECONDS)]

        yield Group(name, make)
