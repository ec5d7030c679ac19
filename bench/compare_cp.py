#!/usr/bin/env python3
"""libflashattn-cp on two cores of this machine, over MPI: overhead with one rank, speed with two, bytes sent, and what the closed form of
`flashattn study --ranks` says, given the speed of one rank, of its memory and of the link, which are measured in the same run. Times are
the least of the rounds; the overhead, and one of the two speeds, are of the processors' time, which other work on the machine hardly
changes.

    compare_cp.py BUILD_DIR [--rounds N] [--rows N] [--json FILE]       BUILD_DIR: configured with -DFA_BENCH=ON, where MPI is, and built
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
from datetime import date
from pathlib import Path

METHODS = ("ulysses", "all-gather", "ring")
SHAPE = {"rows": 8192, "heads": 8, "heads_k": 8, "dim": 64}
UNITS = {"s": 1, "ms": 1e-3, "µs": 1e-6}
BACKWARD = 2.5  # times the forward's operations


def processor() -> str:
    found = re.search(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def measured(build: Path, method: str, rounds: int) -> dict:
    command = ["mpirun", "-n", "2", "--allow-run-as-root", "--bind-to", "none", build / "bench" / "fa_bench_context_parallel", method,
               *(str(SHAPE[key]) for key in ("rows", "heads", "heads_k", "dim")), str(rounds)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def predicted(build: Path, result: dict) -> float:
    """Seconds of forward and backward by the closed form."""
    flops = 2.0 * SHAPE["rows"] ** 2 * SHAPE["heads"] * SHAPE["dim"] * (1 + BACKWARD)  # causal: half of 4 n² d for each head
    speed = flops / sum(result[p]["core_processor_seconds"] for p in ("forward", "backward"))
    command = [build / "cli" / "flashattn", "study", "--ranks", "2", "--shape", f"1,{SHAPE['heads']},{SHAPE['rows']},{SHAPE['dim']}",
               "--kv-heads",
               str(SHAPE["heads_k"]), "--speed", str(speed / 1e12), "--link-rate", str(result["link_gb_per_second"]), "--latency",
               str(result["link_microseconds"]), "--memory", str(result["memory_gb_per_second"])]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        cells = re.split(r"  +", line)
        if result["method"] in cells:
            value, unit = cells[-2].split()
            return float(value) * UNITS[unit]
    raise RuntimeError(f"flashattn study has no line of {result['method']}")


def row_of(build: Path, result: dict) -> dict:
    passes = [result["forward"], result["backward"]]
    core, spread = (sum(p[f"{way}_seconds"] for p in passes) for way in ("core", "spread"))
    worked = {way: sum(p[f"{way}_processor_seconds"] for p in passes) for way in ("core", "alone", "spread")}
    return {**result, "overhead_of_one_rank": worked["alone"] / worked["core"] - 1, "speed_of_two_ranks": core / spread,
            "speed_by_processors": worked["core"] / worked["spread"], "predicted_seconds": predicted(build, result),
            "spread_seconds": spread, "spread_processor_seconds": worked["spread"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=SHAPE["rows"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    SHAPE["rows"] = options.rows
    rows = [row_of(options.build, measured(options.build, method, options.rounds)) for method in METHODS]
    print(f"{processor()}; causal, zigzag, bf16, {SHAPE['rows']} rows, {SHAPE['heads']} heads of {SHAPE['dim']}; one thread a rank; {options.rounds} rounds")
    for r in rows:
        print(f"{r['method']:10} one rank {100 * r['overhead_of_one_rank']:+.1f} %, two ranks {r['speed_of_two_ranks']:.2f} times the speed of one "
              f"({r['speed_by_processors']:.2f} by their processors' time), {r['spread_seconds']:.3f} s, {r['spread_processor_seconds']:.3f} s of a processor, "
              f"predicted {r['predicted_seconds']:.3f} s ({100 * (r['predicted_seconds'] / r['spread_processor_seconds'] - 1):+.0f} %)")
    if options.json:
        options.json.write_text(json.dumps({"processor": processor(), "date": date.today().isoformat(), "rounds": options.rounds,
                                            "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
