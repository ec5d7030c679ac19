"""The process that measures: torch, onnxruntime and this library live here. It says what it does and finds as lines of JSON."""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Callable, Iterator

import torch
from flashattn._library import version_text

from ..judge import Effort, row_of, take_turns
from . import ceilings, targets
from .bench import Bench
from .rivals import packages
from .suites import MAKERS
from .work import parse_job

Step = tuple[str, Callable[[], list[dict]]]  # a name, and what gives its rows


def say(**event) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def compared_steps(suite: str, threads: int, effort: Effort) -> Iterator[Step]:
    bench = Bench(threads)
    for group in MAKERS[suite](bench):

        def rows(group=group):
            torch.manual_seed(1)
            contestants, comparisons = group.make()
            times = take_turns(contestants, effort.rounds, effort.milliseconds)
            return [row_of(c, contestants, times) for c in comparisons]

        yield group.name, rows


def ceiling_steps(tool: Path, threads: int, effort: Effort) -> Iterator[Step]:
    cpu = targets.Cpu.read()

    def shares(*options: str, isa: str | None = None) -> list[dict]:
        found = ceilings.run_tool(tool, threads, effort, *options, isa=isa)
        return [ceilings.share_row(row, targets.ceiling_share(cpu, row, isa == "avx2")) for row in found if row.get("ceilings")]

    if threads == 1:
        yield "tiny", lambda: [ceilings.tiny_row(row) for row in ceilings.run_tool(tool, threads, effort, "--shape", "1,1,16,64")]
        yield "AVX2", lambda: [{**row, "name": row["name"] + " AVX2"} for row in shares("--suite", "forward", "--dtype", "f32", isa="avx2")]
    yield "forward", lambda: shares("--suite", "forward")
    yield "decode", lambda: shares("--suite", "decode")


def scaling_steps(tool: Path, threads: int, effort: Effort) -> Iterator[Step]:
    for dtype in ("f32", "bf16"):
        for shape in ("1,16,2048,64", "1,16,2048,128"):
            options = ("--shape", shape, "--dtype", dtype)
            yield f"{dtype} [{shape}]", lambda options=options: ceilings.scaling_rows(
                ceilings.run_tool(tool, 1, effort, *options), ceilings.run_tool(tool, threads, effort, *options))


def steps_of(job: str, tool: Path, effort: Effort) -> Iterator[Step]:
    suite, threads = parse_job(job)
    if suite in MAKERS:
        return compared_steps(suite, threads, effort)
    return (ceiling_steps if suite == "ceilings" else scaling_steps)(tool, threads, effort)


def run_job(job: str, first: int, tool: Path | None, effort: Effort) -> None:
    steps = enumerate(steps_of(job, tool, effort))
    for index, (name, rows) in itertools.islice(steps, first, 1 if effort.first_only else None):
        say(event="group", suite=job, index=index, name=name)
        try:
            say(event="rows", suite=job, rows=rows())
        except Exception as error:  # one group must not cost the others
            say(event="failed", suite=job, name=name, reason=f"{type(error).__name__}: {error}".splitlines()[0])
        gc.collect()


def work(jobs: list[tuple[str, int]], tool: Path | None, effort: Effort) -> None:
    """jobs: suites with their threads, each with the index of the group to begin with."""
    bench = Bench(1)
    say(event="machine", device=bench.cpu.name, amx=bench.cpu.amx, cores=len(os.sched_getaffinity(0)),
        library=version_text(bench.library.lib.fa_version()), **packages())
    with torch.no_grad():
        for job, first in jobs:
            run_job(job, first, tool, effort)
            say(event="done", suite=job)
