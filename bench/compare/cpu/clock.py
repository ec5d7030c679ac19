"""Seconds of one call on the CPU."""

from __future__ import annotations

import itertools
import math
import time
from typing import Callable


def block_of(calls: list[Callable[[], object]]) -> Callable[[float], float]:
    """The calls take turns (rotating sets of the same shape), also from block to block."""
    turns = itertools.cycle(calls)

    def spent(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            next(turns)()
        return (time.perf_counter() - begin) / count

    spent(1)
    one = max(spent(1), 1e-7)

    def block(milliseconds: float) -> float:
        count = math.ceil(milliseconds / 1e3 / one)
        if count > 4:  # the rival before may have left its threads spinning, and its tensors in the cache
            spent(1)
        return spent(count)

    return block
