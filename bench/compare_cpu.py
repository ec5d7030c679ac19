#!/usr/bin/env python3
"""libflashattn beside PyTorch's and onnxruntime's attention on the CPU: the same tensors, one process, rivals in turn, medians of rounds.

    compare_cpu.py [--suite prefill,decode,…] [--threads 1,all] [--quick] [--json FILE] [--plot FILE.svg]

Needs torch and libflashattn (FLASHATTN_LIBRARY); onnxruntime takes part where it and onnx are installed, oneDNN's graph API does not
(cpu/rivals.py says why). What this library computes is checked against fp64 before it is timed. The suites ceilings and scaling are runs
of `flashattn bench`, which holds calls against what the machine can do. All of it takes about five minutes. Other work on the machine
moves absolute figures; the ratios of rounds in which rivals take turns move less. The exit status is 1 if a number was wrong or a call
failed, not if it was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent / "bindings" / "python")]

from compare.cpu.ceilings import find_tool  # noqa: E402
from compare.cpu.work import BY_TOOL, SUITES, jobs_of, parse_job, parse_threads  # noqa: E402
from compare.judge import Effort  # noqa: E402
from compare.report import compare  # noqa: E402
from compare.work import parse_suites  # noqa: E402

FULL, QUICK = Effort(7, 40, False), Effort(3, 10, True)


def of(parse):
    def option(text: str):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return option


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    suites = "\n".join(f"  {name:10} {text}" for name, text in SUITES.items())
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog=f"suites:\n{suites}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=of(lambda text: parse_suites(text, SUITES)), default=list(SUITES), metavar="NAME,…",
                        help="default all")
    parser.add_argument("--threads", type=of(lambda text: parse_threads(text, len(os.sched_getaffinity(0)))), default="1,all",
                        metavar="COUNT,…", help="of every rival; default 1,all. Suites that need one count take the largest")
    parser.add_argument("--quick", action="store_true", help="one group of each suite: does it run at all?")
    parser.add_argument("--rounds", type=int, help="default 7; 3 with --quick")
    parser.add_argument("--milliseconds", type=float, help="of a rival in a round, and at least one call: default 40; 10 with --quick")
    parser.add_argument("--tool", type=Path, default=find_tool(), help="the flashattn command; default the one beside the library")
    parser.add_argument("--patience", type=float, default=300, help="seconds of silence after which a worker is taken for stuck")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="FILE.svg, for rates; the rest goes to FILE_ratios.svg. Needs matplotlib")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)  # the process that measures: its jobs
    options = parser.parse_args(arguments)
    usual = QUICK if options.quick else FULL
    options.effort = Effort(options.rounds or usual.rounds, options.milliseconds or usual.milliseconds, usual.first_only)
    if options.tool is None:
        options.suite = [suite for suite in options.suite if suite not in BY_TOOL]
    return options


def worker_command(options: argparse.Namespace, jobs: list) -> list[str]:
    command = [sys.executable, "-W", "ignore", __file__, "--worker", json.dumps(jobs), "--rounds", str(options.effort.rounds),
               "--milliseconds", str(options.effort.milliseconds)]
    return command + (["--tool", str(options.tool)] if options.tool else []) + (["--quick"] if options.quick else [])


def main() -> int:
    options = options_of(None)
    if options.worker is not None:
        from compare.cpu.worker import work

        work([tuple(job) for job in options.worker], options.tool, options.effort)
        return 0
    if options.tool is None:
        print("no flashattn tool beside the library, so no suite ceilings and no scaling; --tool names it")
    return compare(jobs_of(options.suite, options.threads), lambda job: f"{job}: {SUITES[parse_job(job)[0]]}",
                   lambda jobs: worker_command(options, jobs), options, options.effort)


if __name__ == "__main__":
    sys.exit(main())
