"""Suites of the backward: gradients of q, k and v from what a forward has left."""

from __future__ import annotations

from dataclasses import replace
from typing import Iterator

import torch

from . import targets
from .bench import Bench
from .judge import Comparison, Group
from .prefill import HIDDEN, TOKENS, dense, packed, rival_of_mma, shape_text, shapes_of_mma
from .problem import Problem


def differentiated(p: Problem) -> Problem:
    return replace(p, dout=torch.randn(*p.q.shape[:-1], p.v.shape[-1], device="cuda", dtype=p.q.dtype))


def against_torch(bench: Bench, shape: tuple, bounds: dict[str, tuple]) -> Group:
    """bounds: (must, aim) by rival."""
    name = shape_text(*shape)

    def make():
        p = differentiated(dense(*shape))
        contestants = {"ours": bench.gradients(p)}
        wanted = bench.beside(contestants, list(bounds), p)
        return contestants, [Comparison(name, rival, "speed", *bounds.get(rival, (None, None))) for rival in wanted]

    return Group(name, make)


def against_cudnn(bench: Bench) -> Iterator[Group]:
    for (dim, causal), by_length in targets.BACKWARD_CUDNN.items():
        for n, bounds in by_length.items():
            yield against_torch(bench, ("bf16", TOKENS // n, n, HIDDEN // dim, dim, causal), {"CUDNN": bounds, "FLASH": (None, None)})
    for dim in (64, 128, 256):
        yield against_torch(bench, ("f16", 4, 4096, HIDDEN // dim, dim, True), {"CUDNN": targets.BACKWARD_F16})


def f32(bench: Bench) -> Iterator[Group]:
    for dim in (64, 128):
        for causal in (False, True):
            yield against_torch(bench, ("f32", 4, 2048, 16, dim, causal), {"EFFICIENT": targets.BACKWARD_F32})


def mma(bench: Bench) -> Iterator[Group]:
    for shape in shapes_of_mma():
        bounds = targets.of_shape(targets.BACKWARD_MMA, shape, bench.shared_kb)
        yield against_torch(bench, shape, {rival_of_mma(shape[4]): bounds})


def wide(bench: Bench) -> Iterator[Group]:
    for n in (1024, 4096, 16384):
        for causal in (False, True):
            yield against_torch(bench, ("bf16", TOKENS // n, n, HIDDEN // 512, 512, causal), {"EFFICIENT": (None, None)})


def same(bench: Bench) -> Iterator[Group]:
    for dim, bounds in targets.DETERMINISTIC.items():
        for causal in (False, True):
            for n in (1024, 4096, 16384):
                shape = ("bf16", TOKENS // n, n, HIDDEN // dim, dim, causal)

                def make(shape=shape, bounds=bounds):
                    p = differentiated(dense(*shape))
                    contestants = {"ours": bench.gradients(p, deterministic=True), "free": bench.gradients(p)}
                    return contestants, [Comparison(shape_text(*shape), "free", "time", *bounds)]

                yield Group(shape_text(*shape), make)


def varlen(bench: Bench) -> Iterator[Group]:
    lengths = torch.randint(128, 4097, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    like = round((sum(n * n for n in lengths) / len(lengths)) ** 0.5 / 128) * 128
    name = "bf16 64 sequences of 128 … 4096, 16/16 d128 causal"

    def unlike():
        contestants = {"ours": bench.gradients(differentiated(packed(lengths, 16, 16, 128))),
                       f"64 of {like}": bench.gradients(differentiated(dense("bf16", 64, like, 16, 128, True)))}
        return contestants, [Comparison(name, f"64 of {like}")]

    def grouped():
        whole = dense("bf16", 4, 4096, 32, 128, True)
        few = Problem(whole.q, *(x[:, :, :4].contiguous() for x in (whole.k, whole.v)), causal=True)
        contestants = {"ours": bench.gradients(differentiated(few)), "32/32": bench.gradients(differentiated(whole))}
        return contestants, [Comparison("bf16 B4 S4k 32/4 d128 causal", "32/32")]

    yield Group(name, unlike)
    yield Group("bf16 B4 S4k 32/4 d128 causal", grouped)
