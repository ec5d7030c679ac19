"""Suites whose calls have many query rows: limited by arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator

import torch

from . import targets
from .bench import DTYPES, Bench, normal
from .decode import eight_bit, few_bits, in_blocks
from .judge import Comparison, Group
from .problem import BLOCK, Problem
from .rivals import FA3, beside_cudnn
from .work import count_text, sets_for

TOKENS, HIDDEN = 16384, 2048  # of a forward, whatever its sequence length and head dimension


def dense(dtype: str, batch: int, n: int, heads: int, dim: int, causal: bool, dim_v: int | None = None,
          heads_kv: int | None = None) -> Problem:
    kv = heads_kv or heads
    q, k, v = (normal(batch, n, h, width, dtype=DTYPES[dtype]) for h, width in ((heads, dim), (kv, dim), (kv, dim_v or dim)))
    return Problem(q, k, v, causal=causal)


def shape_text(dtype: str, batch: int, n: int, heads: int, dim: int, causal: bool, dim_v: int | None = None,
               heads_kv: int | None = None) -> str:
    width, group = f"{dim}/{dim_v}" if dim_v else str(dim), f"{heads}/{heads_kv}" if heads_kv else f"H{heads}"
    return f"{dtype} B{batch} {group} S{count_text(n)} d{width} {'causal' if causal else 'dense'}"


def against_torch(bench: Bench, shape: tuple, rivals: list[str], bounds: dict[str, tuple[float, float]], graph: bool = False,
                  native: bool = False) -> Group:
    """One shape beside torch's kernels; bounds: {rival: (must, aim)}."""
    name = shape_text(*shape)

    def make():
        problems = [replace(dense(*shape), native=native)]
        if graph:
            p = problems[0]
            problems += [dense(*shape) for _ in range(sets_for(p.cache_bytes()) - 1)]
        contestants = {"ours": bench.ours(*problems, graph=graph)}
        wanted = bench.beside(contestants, rivals, *problems, graph=graph)
        return contestants, [Comparison(name, rival, "speed", *bounds.get(rival, (None, None))) for rival in wanted]

    return Group(name, make)


def forward(bench: Bench) -> Iterator[Group]:
    rivals = beside_cudnn()
    for (dim, causal), by_length in targets.FORWARD_CUDNN.items():
        for n, bounds in by_length.items():
            yield against_torch(bench, ("bf16", TOKENS // n, n, HIDDEN // dim, dim, causal), rivals,
                                {"CUDNN": bounds, FA3: targets.FORWARD_FA3[dim]})
    for dim in (64, 128, 256):
        for causal in (False, True):
            yield against_torch(bench, ("f16", 4, 4096, HIDDEN // dim, dim, causal), ["CUDNN"], {})
    for dim, dim_v, heads in ((96, None, 16), (192, None, 12), (192, 128, 16)):
        for causal in (False, True):
            bounds = {"CUDNN": targets.FORWARD_OTHER_CUDNN[dim, dim_v]}
            yield against_torch(bench, ("bf16", 4, 4096, heads, dim, causal, dim_v), rivals, bounds)


def shapes_of_mma() -> Iterator[tuple]:
    """Of forward-mma and backward-mma; at the end with a quarter of the heads for k and v."""
    for dim in (64, 96, 128, 192, 256, 512):
        for causal in (False, True):
            for n in (512, 1024, 4096, 16384):
                yield "bf16", TOKENS // n, n, HIDDEN // dim, dim, causal
    for dim in (64, 128, 256):
        for causal in (False, True):
            yield "bf16", 4, 4096, HIDDEN // dim, dim, causal, None, HIDDEN // dim // 4


def rival_of_mma(dim: int) -> str:
    return "FLASH" if dim <= 256 else "EFFICIENT"


def mma(bench: Bench) -> Iterator[Group]:
    for shape in shapes_of_mma():
        rival = rival_of_mma(shape[4])
        yield against_torch(bench, shape, [rival], {rival: targets.of_shape(targets.FORWARD_MMA, shape, bench.shared_kb)})


def e4m3(bench: Bench, native: bool = False) -> Iterator[Group]:
    rivals = beside_cudnn()
    for (dim, causal), by_length in (targets.FORWARD_E4M3_NATIVE if native else targets.FORWARD_E4M3).items():
        for n, bounds in by_length.items():
            shape = ("e4m3", TOKENS // n, n, HIDDEN // dim, dim, causal)
            yield against_torch(bench, shape, rivals, dict.fromkeys(rivals, bounds), native=native)


def e4m3_native(bench: Bench) -> Iterator[Group]:
    return e4m3(bench, native=True)


def wide(bench: Bench) -> Iterator[Group]:
    for n in (1024, 4096, 16384):
        for causal in (False, True):
            yield against_torch(bench, ("bf16", TOKENS // n, n, HIDDEN // 512, 512, causal), ["EFFICIENT"], {"EFFICIENT": targets.WIDE})


def over_8bit(bench: Bench) -> Iterator[Group]:
    batch, n, heads, heads_kv, dim = 4, 4096, 16, 4, 128
    for causal in (False, True):
        name = f"B{batch} {heads}/{heads_kv} S{count_text(n)} d{dim} {'causal' if causal else 'dense'}"

        def make(causal=causal, name=name):
            q, (k, v) = normal(batch, n, heads, dim), (normal(batch, n, heads_kv, dim) for _ in range(2))
            contestants, comparisons = {"bf16": bench.ours(Problem(q, k, v, causal=causal))}, []
            for kind in ("int8", "e4m3"):
                contestants[kind] = bench.ours(replace(eight_bit(kind, batch, heads, heads_kv, n), q=q, causal=causal))
                comparisons.append(Comparison(f"{kind}, {name}", "bf16", "speed", *targets.PREFILL_8BIT, ours=kind))
            for kind in ("q8_0", "q4_0"):
                problem = replace(in_blocks(kind, batch, heads, heads_kv, n), q=q, causal=causal)
                rounded = f"{kind} native"
                contestants[kind], contestants[rounded] = bench.ours(problem), bench.ours(replace(problem, native=True))
                comparisons.append(Comparison(f"{kind}, {name}", "bf16", "speed", ours=kind))
                comparisons.append(Comparison(f"{rounded}, {name}", "bf16", "speed", *targets.PREFILL_BLOCKS, ours=rounded))
            return contestants, comparisons

        yield Group(name, make)
    for rows, n in ((512, 4096), (512, 16384), (4096, 16384)):  # a chunk at the end of a cache
        name = f"B1 32/8 q{count_text(rows)} S{count_text(n)} d128 causal"

        def chunk(rows=rows, n=n, name=name):
            q, (k, v) = normal(1, rows, 32, 128), (normal(1, n, 8, 128) for _ in range(2))
            contestants, comparisons = {"bf16": bench.ours(Problem(q, k, v, causal=True))}, []
            for kind in ("q8_0", "q4_0"):
                contestants[kind] = bench.ours(replace(in_blocks(kind, 1, 32, 8, n), q=q, causal=True, native=True))
                comparisons.append(Comparison(f"{kind} native, {name}", "bf16", "speed", *targets.PREFILL_BLOCKS, ours=kind))
            return contestants, comparisons

        yield Group(name, chunk)


def over_8bit_by_mma(bench: Bench) -> Iterator[Group]:
    batch, n, heads, heads_kv, dim = 4, 4096, 16, 4, 128
    for causal in (False, True):
        shape = "bf16", batch, n, heads, dim, causal, None, heads_kv
        name = shape_text(*shape)

        def make(causal=causal, shape=shape, name=name):
            plain = dense(*shape)
            contestants = {"bf16": bench.ours(plain)}
            wanted = bench.beside(contestants, ["FLASH"], plain)
            comparisons = [Comparison(name, rival, "speed", ours="bf16") for rival in wanted]
            for kind, bounds in targets.PREFILL_MMA.items():
                cache = few_bits(kind)(kind, batch, heads, heads_kv, n)
                contestants[kind] = bench.ours(replace(cache, q=plain.q, causal=causal, native=True))
                comparisons.append(Comparison(name.replace("bf16", kind), "bf16", "speed", *targets.of_less_shared(bounds, bench.shared_kb),
                                              ours=kind))
            return contestants, comparisons

        yield Group(name, make)


def f32(bench: Bench) -> Iterator[Group]:
    for dim, bounds in targets.FORWARD_F32.items():
        for causal in (False, True):
            yield against_torch(bench, ("f32", 4, 2048, 16, dim, causal), ["EFFICIENT"], {"EFFICIENT": bounds})
    yield against_torch(bench, ("f32", 2, 2048, 8, 256, False), ["EFFICIENT", "MATH"], {})


def odd(bench: Bench) -> Iterator[Group]:
    for dim, heads in ((59, 16), (111, 16), (300, 8), (1000, 4)):
        whole = -(-dim // 32) * 32

        def make(dim=dim, heads=heads, whole=whole):
            contestants = {"ours": bench.ours(dense("f32", 2, 2048, heads, dim, False)),
                           f"d{whole}": bench.ours(dense("f32", 2, 2048, heads, whole, False))}
            return contestants, [Comparison(f"f32 d{dim}", f"d{whole}", "speed", *targets.ODD)]

        yield Group(f"f32 d{dim}", make)


def small(bench: Bench) -> Iterator[Group]:
    for batch, heads, n, dim in ((16, 12, 64, 64), (8, 12, 64, 64), (16, 12, 256, 64), (16, 12, 2048, 64)):
        for dtype, rival in (("f16", "FLASH"), ("f32", "EFFICIENT")):
            yield against_torch(bench, (dtype, batch, n, heads, dim, False), [rival], {rival: targets.SMALL}, graph=True)
    for dim in (64, 128):
        for n in (1024, 2048, 4096):
            for causal in (False, True):
                yield against_torch(bench, ("bf16", 1, n, 8, dim, causal), ["CUDNN"], {"CUDNN": targets.SMALL_CUDNN}, graph=True)


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
            return contestants, [Comparison(name, against, "speed", *targets.PACKED)]

        yield Group(name, make)

    def grouped():
        contestants = {"ours": bench.ours(Problem(normal(4, 4096, 32, 128), normal(4, 4096, 4, 128), normal(4, 4096, 4, 128), causal=True)),
                       "32/32": bench.ours(dense("bf16", 4, 4096, 32, 128, True))}
        return contestants, [Comparison("bf16 B4 S4k 32/4 d128 causal", "32/32", "speed", *targets.GROUPED)]

    yield Group("bf16 B4 S4k 32/4 d128 causal", grouped)

    def windowed():
        plain = dense("bf16", 1, 16384, 16, 128, True)
        contestants = {"ours": bench.ours(Problem(plain.q, plain.k, plain.v, causal=True, left=1023)), "causal": bench.ours(plain)}
        return contestants, [Comparison("bf16 B1 S16k 16 heads d128 window 1024", "causal", "speed", *targets.WINDOW)]

    yield Group("bf16 B1 S16k 16 heads d128 window 1024", windowed)


def lists(bench: Bench) -> Iterator[Group]:
    """Blocks of 128 × 128 anywhere, for each head its own, those on the diagonal among them; key ranges that say what causal says."""
    share = 0.1
    for dim in (64, 128, 256):
        for n in (4096, 16384):
            for causal in (False, True):
                shape = ("bf16", TOKENS // n, n, HIDDEN // dim, dim, causal)
                name = shape_text(*shape)

                def make(shape=shape, name=name):
                    plain = dense(*shape)
                    heads, blocks = plain.heads, shape[2] // BLOCK
                    kept = (torch.rand(heads, blocks, blocks, device="cuda") < share) | torch.eye(blocks, dtype=torch.bool, device="cuda")
                    whole = torch.ones_like(kept)
                    below = torch.ones_like(kept[0]).tril() if plain.causal else whole[0]
                    contestants = {"plain": bench.ours(plain), "lists": bench.ours(replace(plain, kept=kept & below)),
                                   "of all": bench.ours(replace(plain, kept=whole & below))}
                    comparisons = [Comparison(f"a tenth of the blocks, {name}", "plain", "speed", *targets.LISTS, ours="lists"),
                                   Comparison(f"all blocks, {name}", "plain", "speed", ours="of all")]
                    if plain.causal:
                        last = torch.arange(shape[2], device="cuda", dtype=torch.int32) + 1
                        contestants["ranges"] = bench.ours(replace(plain, causal=False,
                                                                   ranges=torch.stack([torch.zeros_like(last), last], 1)))
                        comparisons.append(Comparison(f"ranges, {name}", "plain", "speed", *targets.RANGES, ours="ranges"))
                    return contestants, comparisons

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
        return contestants, [Comparison(f"{option}, {shape}", "plain", "time", *targets.OPTION, ours=option) for option in fields]

    def on_causal():
        slopes = torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], device="cuda")
        return variants(True, window={"left": 1023}, ALiBi={"slopes": slopes}, sinks={"sinks": normal(heads, dtype=torch.float32)})

    def on_dense():
        mask = torch.rand(n, n, device="cuda") < 0.7
        return variants(False, mask={"mask": mask})

    yield Group(f"window, ALiBi, sinks, {name}", on_causal)
    yield Group("boolean mask", on_dense)

    for causal in (False, True):
        shape = shape_text("bf16", batch, n, heads, dim, causal)

        def biased(causal=causal, shape=shape):
            plain = dense("bf16", batch, n, heads, dim, causal)
            shared, own = normal(1, n, n), normal(heads, n, n)
            biases = {"bias": shared, "bias of heads": own, "f32 bias": shared.float(), "f32 bias of heads": own.float()}
            contestants = {"plain": bench.ours(plain)}
            for option, bias in biases.items():
                contestants[option] = bench.ours(Problem(plain.q, plain.k, plain.v, causal=causal, bias=bias.expand(heads, n, n)))
            return contestants, [Comparison(f"{option}, {shape}", "plain", "time", *targets.BIAS, ours=option) for option in biases]

        yield Group(f"bias, {shape}", biased)

    for dim, bounds in targets.SOFTCAP.items():
        for causal in (False, True):
            shape = shape_text("bf16", batch, n, HIDDEN // dim, dim, causal)

            def capped(dim=dim, causal=causal, shape=shape, bounds=bounds):
                plain = dense("bf16", batch, n, HIDDEN // dim, dim, causal)
                softcap = Problem(plain.q, plain.k, plain.v, causal=causal, softcap=30.0)
                contestants = {"plain": bench.ours(plain), "softcap": bench.ours(softcap)}
                return contestants, [Comparison(f"softcap, {shape}", "plain", "time", *bounds, ours="softcap")]

            def halves(dim=dim, causal=causal, shape=shape):
                contestants = {dtype: bench.ours(dense(dtype, batch, n, HIDDEN // dim, dim, causal)) for dtype in ("f16", "bf16")}
                return contestants, [Comparison(f"f16, {shape.replace('bf16 ', '')}", "bf16", "speed", *targets.F16, ours="f16")]

            yield Group(f"softcap, {shape}", capped)
            yield Group(f"f16, {shape}", halves)
