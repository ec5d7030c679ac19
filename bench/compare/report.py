"""What a comparison prints and leaves behind: a table after every suite, a summary, a JSON file, a plot."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from .judge import Effort, is_fault
from .runner import run_suites
from .table import summary_of, table_of


def compare(jobs: list[str], title_of: Callable[[str], str], command_of: Callable[[list], list[str]], options, effort: Effort) -> int:
    """Runs the jobs in workers, as run_suites does; options has patience, json and plot. The exit status: 1 if a number was wrong or a
    call failed."""
    began = time.monotonic()
    result: dict = {"date": time.strftime("%Y-%m-%d"), "effort": asdict(effort), "suites": {}}

    def finished(machine: dict, job: str, rows: list[dict]) -> None:
        seconds = round(time.monotonic() - began)
        print(f"\n== {title_of(job)} ({seconds} s)\n{table_of(rows)}", flush=True)
        result["suites"][job] = rows
        if options.json:  # after every suite: what has been measured is kept, whatever happens to this program
            options.json.write_text(json.dumps({**machine, "seconds": seconds, **result}, indent=1) + "\n")

    machine, suites = run_suites(jobs, command_of, options.patience, finished)
    print(f"\n{machine.get('device', 'no device')}, {time.monotonic() - began:.0f} s\n{summary_of(suites)}")
    if options.plot:
        draw_plot(options.plot, machine, suites)
    return int(any(is_fault(row) for rows in suites.values() for row in rows))


def draw_plot(path: Path, machine: dict, suites: dict[str, list[dict]]) -> None:
    try:
        from .plot import draw

        draw(path, f"libflashattn {machine.get('library')} on {machine.get('device')}, torch {machine.get('torch')}", suites)
    except ImportError as error:
        print(f"no plot: {error}")
