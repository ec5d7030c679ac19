"""Runs workers until every suite is done, whatever becomes of them. Pure but for the processes; tested with workers of its own."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from dataclasses import dataclass, field
from typing import Callable

from .judge import failed_row


@dataclass
class Progress:
    """What the workers' events have told so far."""

    jobs: list[tuple[str, int]]  # suites to do, each with the group to begin with
    rows: dict[str, list[dict]]
    finished: Callable[[dict, str, list[dict]], None]
    machine: dict = field(default_factory=dict)
    under_way: str | None = None  # the group that a worker has begun and not ended
    began: bool = False           # the present worker has begun any group, or ended a suite

    def hear(self, event: dict) -> None:
        kind = event.pop("event")
        if kind == "machine":
            self.machine = event
        elif kind == "group":
            self.jobs[0] = (event["suite"], event["index"] + 1)
            self.under_way, self.began = event["name"], True
        elif kind == "done":
            self.finish_suite()
            self.began = True
        else:
            self.rows[event["suite"]] += event["rows"] if kind == "rows" else [failed_row(event["name"], event["reason"])]
            self.under_way = None

    def finish_suite(self) -> None:
        suite, _ = self.jobs.pop(0)
        self.finished(self.machine, suite, self.rows[suite])

    def broken_off(self, reason: str) -> None:
        """The worker is gone. The next one goes on behind the group that did it; if there was none, the next would fare no better."""
        if self.under_way is not None:
            self.rows[self.jobs[0][0]].append(failed_row(self.under_way, reason))
            self.under_way = None
        while self.jobs and not self.began:
            self.rows[self.jobs[0][0]].append(failed_row("all", reason))
            self.finish_suite()
        self.began = False


def lines_of(process: subprocess.Popen, patience: float):
    """The lines that the process prints; TimeoutError when it has been silent for too long."""
    lines: queue.Queue = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=patience)
        except queue.Empty:
            raise TimeoutError(f"nothing was heard for {patience:g} s, and the worker was stopped") from None
        if line is None:
            return
        yield line


def run_worker(command: list[str], progress: Progress, patience: float) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            for line in lines_of(process, patience):
                if line.startswith("{"):
                    progress.hear(json.loads(line))
                else:
                    print(line, end="")  # a library that talks
        except TimeoutError as silence:
            process.kill()
            progress.broken_off(str(silence))
            return
        except BaseException:
            process.kill()
            raise
    if progress.jobs:
        progress.broken_off(f"the worker ended with status {process.returncode}")


def run_suites(suites: list[str], command: Callable[[list], list[str]], patience: float,
               finished: Callable[[dict, str, list[dict]], None]) -> tuple[dict, dict[str, list[dict]]]:
    """command(jobs) is a worker's command line. Gives the machine and the rows of each suite; finished(machine, suite, rows) hears of
    them as they come."""
    progress = Progress([(suite, 0) for suite in suites], {suite: [] for suite in suites}, finished)
    while progress.jobs:
        run_worker(command(progress.jobs), progress, patience)
    return progress.machine, progress.rows
