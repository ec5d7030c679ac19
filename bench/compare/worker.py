"""The process that measures: torch, the GPU and this library live here. It says what it does and finds as lines of JSON.

A GPU that a kernel has harmed serves its process no more, and a kernel may never end: so the program that asks is another process
(runner.py), which starts a new worker after the group that failed.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
from contextlib import closing

import torch
from flashattn._library import version_text

from . import backward, decode, prefill
from .bench import Bench
from .judge import Effort, Group, row_of, take_turns
from .sensors import Sensors
from .work import parse_job

MAKERS = {"forward": prefill.forward, "forward-mma": prefill.mma, "forward-e4m3": prefill.e4m3,
          "forward-e4m3-native": prefill.e4m3_native, "wide": prefill.wide, "f32": prefill.f32, "odd": prefill.odd,
          "decode": decode.decode, "decode-mma": decode.mma, "decode-latency": decode.decode_latency, "speculative": decode.speculative,
          "low": decode.low, "ragged": decode.ragged, "paged": decode.paged, "quantised": decode.quantised, "latent": decode.latent,
          "prefill-8bit": prefill.over_8bit, "prefill-mma": prefill.over_8bit_by_mma, "chunked": decode.chunked, "small": prefill.small,
          "varlen": prefill.varlen, "options": prefill.options, "lists": prefill.lists, "backward": backward.against_cudnn,
          "backward-f32": backward.f32, "backward-mma": backward.mma, "backward-wide": backward.wide, "backward-same": backward.same,
          "backward-varlen": backward.varlen, "enqueue": decode.enqueue}
# Against itself, in graphs, or limited by memory: less at the mercy of power than forwards that fill the device, whose power is told.
LIGHT = {"odd", "decode-mma", "decode-latency", "speculative", "low", "ragged", "paged", "quantised", "prefill-8bit", "chunked", "small",
         "varlen", "options", "lists", "enqueue"}
SENSED = 200  # milliseconds of a contestant whose power is sampled


def say(**event) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def measure(group: Group, rounds: int, milliseconds: float, sensors: Sensors | None) -> list[dict]:
    torch.manual_seed(1)
    contestants, comparisons = group.make()
    times = take_turns(contestants, rounds, milliseconds)
    if sensors:
        for contestant in contestants.values():
            sensors.watch(contestant, max(milliseconds, SENSED))
    return [row_of(c, contestants, times) for c in comparisons]


def run_job(bench: Bench, job: str, first: int, effort: Effort, sensors: Sensors) -> None:
    suite, _ = parse_job(job)
    light = suite in LIGHT
    milliseconds = effort.milliseconds / (3 if light else 1)
    for index, group in enumerate(MAKERS[suite](bench)):
        if index < first:
            continue
        if effort.first_only and index > 0:
            break
        say(event="group", suite=job, index=index, name=group.name)
        try:
            say(event="rows", suite=job, rows=measure(group, effort.rounds, milliseconds, None if light else sensors))
        except Exception as error:  # one group must not cost the others
            say(event="failed", suite=job, name=group.name, reason=f"{type(error).__name__}: {error}".splitlines()[0])
        gc.collect()
        torch.cuda.synchronize()  # raises if the GPU was harmed: this process then ends, and a new one goes on
        torch.cuda.empty_cache()


def work(jobs: list[tuple[str, int]], effort: Effort, rivals: list[str]) -> None:
    """jobs, each with the index of the group to begin with: the first, and those that follow with as much shared memory. The library reads
    the environment once, so others are for another process."""
    if not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU")
    _, shared_kb = parse_job(jobs[0][0])
    if shared_kb:
        os.environ["FLASHATTN_MAX_SHARED"] = str(shared_kb)
    bench = Bench(rivals, shared_kb)
    say(event="machine", device=torch.cuda.get_device_name(), torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
        library=version_text(bench.library.lib.fa_version()))
    with torch.no_grad(), closing(Sensors(f"GPU-{torch.cuda.get_device_properties(0).uuid}")) as sensors:
        for job, first in itertools.takewhile(lambda each: parse_job(each[0])[1] == shared_kb, jobs):
            run_job(bench, job, first, effort, sensors)
            say(event="done", suite=job)
