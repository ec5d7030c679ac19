#!/usr/bin/env python3
"""libflashattn beside PyTorch's attention on one GPU: the same tensors, one process, rivals in turn, medians of rounds.

    compare_gpu.py [--suite forward,decode,…] [--fast | --quick] [--json FILE] [--plot FILE.svg]

Needs torch with CUDA, and libflashattn with its CUDA module (FLASHATTN_LIBRARY, FLASHATTN_BACKEND_DIR). FlashAttention-3 takes part in
bf16 forwards where the package fa3-fwd is installed. What this library computes is
checked against fp64 before it is timed. Clocks follow power and temperature: absolute figures move, the ratios of rounds in which
rivals take turns do not. The exit status is 1 if a number was wrong or a call failed, not if it was slow.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "bindings" / "python")]

from compare.judge import Effort  # noqa: E402
from compare.report import compare  # noqa: E402
from compare.work import SUITES, jobs_of, parse_job, parse_suites  # noqa: E402


EFFORTS = {"full": Effort(7, 300, False), "fast": Effort(5, 100, False), "quick": Effort(3, 30, True)}
RIVALS = ("FLASH", "CUDNN", "EFFICIENT", "MATH", "FA3")


def suites_option(text: str) -> list[str]:
    try:
        return parse_suites(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def rivals_option(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    unknown = sorted(set(names) - set(RIVALS))
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is no rival; there are {', '.join(RIVALS)}")
    return names


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    suites = "\n".join(f"  {name:19} {text}" for name, text in SUITES.items())
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=f"suites:\n{suites}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=suites_option, default=list(SUITES), metavar="NAME,…", help="default all")
    effort = parser.add_mutually_exclusive_group()
    effort.add_argument("--fast", dest="effort", action="store_const", const="fast", default="full", help="shorter blocks, fewer rounds")
    effort.add_argument("--quick", dest="effort", action="store_const", const="quick", help="one group of each suite: does it run at all?")
    parser.add_argument("--rounds", type=int, help="default 7; 5 with --fast, 3 with --quick")
    parser.add_argument("--milliseconds", type=float, help="of a rival in a round: default 300; 100 with --fast, 30 with --quick")
    parser.add_argument("--rivals", type=rivals_option, default=[], metavar="NAME,…",
                        help=f"time these as well wherever torch is timed ({', '.join(RIVALS)})")
    parser.add_argument("--patience", type=float, default=180, help="seconds of silence after which a worker is taken for stuck")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="FILE.svg, for rates; the rest goes to FILE_ratios.svg. Needs matplotlib")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)  # the process that measures: its jobs
    options = parser.parse_args(arguments)
    options.effort = EFFORTS[options.effort]
    options.effort = Effort(options.rounds or options.effort.rounds, options.milliseconds or options.effort.milliseconds,
                            options.effort.first_only)
    return options


def worker_command(options: argparse.Namespace, jobs: list) -> list[str]:
    command = [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(jobs), "--rounds", str(options.effort.rounds),
               "--milliseconds", str(options.effort.milliseconds), "--rivals", ",".join(options.rivals)]
    return command + (["--quick"] if options.effort.first_only else [])


def main() -> int:
    options = options_of(None)
    if options.worker is not None:
        from compare.worker import work

        work([tuple(job) for job in options.worker], options.effort, options.rivals)
        return 0
    return compare(jobs_of(options.suite), lambda job: f"{job}: {SUITES[parse_job(job)[0]]}", lambda jobs: worker_command(options, jobs),
                   options, options.effort)


if __name__ == "__main__":
    sys.exit(main())
