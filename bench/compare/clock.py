"""Seconds of one call on the GPU, by events over a block of calls whose first third is dropped."""

from __future__ import annotations

import math
import time
from typing import Callable

import torch

from .work import GRAPH_CALLS


def gpu_block(run: Callable[[], object], calls: int) -> Callable[[float], float]:
    """run() enqueues `calls` calls. Clocks follow power, so a block is to be long, and its beginning, at the clocks that the rival
    before it left, does not count."""
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))

    def spent(runs: int) -> float:
        dropped = runs // 3
        begin.record()
        for _ in range(dropped):
            run()
        middle.record()
        for _ in range(runs - dropped):
            run()
        end.record()
        end.synchronize()
        return middle.elapsed_time(end) / (runs - dropped)

    run()
    torch.cuda.synchronize()
    one = max(spent(1), 1e-3)

    def block(milliseconds: float) -> float:
        return spent(max(1, math.ceil(milliseconds / one))) / calls / 1e3

    return block


def cpu_block(run: Callable[[], object], calls: int) -> Callable[[float], float]:
    """CPU time of one call that only enqueues; `calls` of them fit into the GPU's queue, which is empty when they begin."""

    def block(milliseconds: float) -> float:
        spent, count, until = 0.0, 0, time.perf_counter() + milliseconds / 1e3
        while count == 0 or time.perf_counter() < until:
            begin = time.perf_counter()
            for _ in range(calls):
                run()
            spent += time.perf_counter() - begin
            count += calls
            torch.cuda.synchronize()
        return spent / count

    run()
    torch.cuda.synchronize()
    return block


def captured(calls: list[Callable[[], object]]) -> tuple[Callable[[], object], int]:
    """A graph of the calls, over and over until there are GRAPH_CALLS; gives its launch and how many calls that is."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    repeat = math.ceil(GRAPH_CALLS / len(calls))
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            for call in calls:
                call()

    def launch(tensors_of=calls):  # a graph knows addresses only: the calls must live as long as it does
        graph.replay()

    return launch, repeat * len(calls)
