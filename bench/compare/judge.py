"""What is measured, what it is compared with, and whether that is good enough. Pure: no torch, no clock, no GPU."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Callable

PREFIXES = {"T": 1e12, "G": 1e9}  # of units
AT_LEAST = {"speed", "share"}  # kinds of figures whose bounds lie below
TOLERANCE = 0.02  # medians of ratios repeat to about this; a bound counts as kept within it


@dataclass
class Effort:
    rounds: int
    milliseconds: float  # of a contestant in a round; a third of it where power is not the limit
    first_only: bool     # of each suite, the first group


@dataclass
class Contestant:
    """Something that takes turns on the clock. block(milliseconds) runs it for about so long and gives the seconds of one call."""

    block: Callable[[float], float]
    work: float = 0.0  # of one call, in units of `unit` times seconds
    unit: str = ""
    error: float | None = None  # relative to fp64, of what this library computed
    limit: float | None = None
    kernel: str = ""
    samples: list[tuple[float, float]] = field(default_factory=list)  # MHz and watts of the device while it ran, where they are watched


@dataclass
class Comparison:
    """`ours` against another contestant.

    speed: our work per second over the other's; at least `must`. time: the other way round; at most `must`. microseconds: our time of
    one call, beside nobody's; at most `must`. share: what part of a ceiling is reached; at least `must`. Without a bound the figures
    are for information.
    """

    name: str
    against: str | None = None
    kind: str = "speed"
    must: float | None = None
    aim: float | None = None
    ours: str = "ours"


@dataclass
class Group:
    """Contestants that take turns with each other; made when their turn comes, because they fill the GPU's memory."""

    name: str
    make: Callable[[], tuple[dict[str, Contestant], list[Comparison]]]


@dataclass
class Times:
    seconds: dict[str, list[float]] = field(default_factory=dict)  # of each contestant, round by round


def take_turns(contestants: dict[str, Contestant], rounds: int, milliseconds: float) -> Times:
    """Rounds in alternating order (ABBA), so that what drifts with time favours nobody."""
    times = Times({name: [] for name in contestants})
    names = list(contestants)
    for n in range(rounds):
        for name in names if n % 2 == 0 else names[::-1]:
            times.seconds[name].append(contestants[name].block(milliseconds))
    return times


def values_of(c: Comparison, contestants: dict[str, Contestant], times: Times) -> list[float]:
    """The compared figure of every round."""
    ours = times.seconds[c.ours]
    if c.kind == "microseconds":
        return [1e6 * t for t in ours]
    share = contestants[c.ours].work / contestants[c.against].work
    speeds = [share * other / mine for mine, other in zip(ours, times.seconds[c.against])]
    return speeds if c.kind == "speed" else [1 / x for x in speeds]


def keeps(c: Comparison, value: float, bound: float) -> bool:
    if c.kind == "microseconds":
        return value <= bound
    return value >= bound - TOLERANCE if c.kind in AT_LEAST else value <= bound + TOLERANCE


def is_wrong(c: Comparison, contestants: dict[str, Contestant]) -> bool:
    judged = [contestants[name] for name in (c.ours, c.against) if name in contestants and contestants[name].error is not None]
    return not all(x.error <= x.limit for x in judged)  # NaN is wrong too


def verdict_of(c: Comparison, value: float, contestants: dict[str, Contestant]) -> str:
    if is_wrong(c, contestants):
        return "WRONG"
    if c.must is None:
        return ""
    if c.aim is not None and keeps(c, value, c.aim):
        return "aim"
    return "must" if keeps(c, value, c.must) else "not met"


def figures_of(name: str, contestant: Contestant, seconds: list[float]) -> dict:
    middle = statistics.median(seconds)
    figures = {"name": name, "microseconds": middle * 1e6}
    if contestant.unit:
        figures.update(rate=contestant.work / middle / PREFIXES[contestant.unit[0]], unit=contestant.unit)
    if contestant.samples:
        figures.update(zip(("sm_mhz", "watts"), map(statistics.mean, zip(*contestant.samples))))
    if contestant.kernel:
        figures["kernel"] = contestant.kernel
    if contestant.error is not None:
        figures.update(relative_error=contestant.error, error_limit=contestant.limit)
    return figures


def row_of(c: Comparison, contestants: dict[str, Contestant], times: Times) -> dict:
    row = {"name": c.name, "kind": c.kind, "must": c.must, "aim": c.aim,
           "ours": figures_of(c.ours, contestants[c.ours], times.seconds[c.ours])}
    if c.against and c.against not in contestants:
        wrong = is_wrong(c, contestants)
        return {**row, "against": {"name": c.against}, "verdict": "WRONG" if wrong else "no rival"}
    values = values_of(c, contestants, times)
    middle = statistics.median(values)
    if c.against:
        row["against"] = figures_of(c.against, contestants[c.against], times.seconds[c.against])
    row.update(value=middle, low=min(values), high=max(values), rounds=values)
    row["verdict"] = verdict_of(c, middle, contestants)
    return row


def failed_row(name: str, reason: str) -> dict:
    return {"name": name, "verdict": "failed", "reason": reason}


def is_fault(row: dict) -> bool:
    """A wrong number, or no number at all. A bound that is not met is a result, not a fault."""
    return row["verdict"] in ("WRONG", "failed")
