"""Rows of `flashattn bench`, which measures calls and the machine's ceilings by turns in one process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from ..judge import PREFIXES, Comparison, verdict_of
from . import targets


def find_tool() -> Path | None:
    """The tool beside the library that is compared, in a build folder or an installed tree."""
    library = os.environ.get("FLASHATTN_LIBRARY")
    for step in ("../cli/flashattn", "../bin/flashattn", "../../cli/flashattn", "../../bin/flashattn"):
        tool = Path(library or "").resolve().parent / step
        if library and os.access(tool, os.X_OK):
            return tool.resolve()
    return None


def run_tool(tool: Path, threads: int, effort, *options: str, isa: str | None = None) -> list[dict]:
    command = [str(tool), "bench", "--json", "--backend", "cpu", "--threads", str(threads), "--rounds", str(effort.rounds),
               "--milliseconds", str(effort.milliseconds), *options]
    environment = {**os.environ, **({"FLASHATTN_MAX_ISA": isa} if isa else {})}
    if "FLASHATTN_LIBRARY" in environment:  # the tool is to run the library that is compared, wherever it was built
        folders = [str(Path(environment["FLASHATTN_LIBRARY"]).parent.absolute()), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        *_, reason = ["", *done.stderr.splitlines()]  # after lines of progress
        raise RuntimeError(reason or f"{tool} ended with status {done.returncode}")
    rows = [row for row in json.loads(done.stdout)["rows"] if "seconds" in row]
    return [{**row, "kernel": row["kernel"]["explanation"]} for row in rows]


def rated(name: str, rate: float, unit: str, seconds: float | None = None) -> dict:
    prefix = "T" if rate >= 1e12 else "G"
    figures = {"name": name, "rate": rate / PREFIXES[prefix], "unit": prefix + unit}
    if seconds is not None:
        figures["microseconds"] = seconds * 1e6
    return figures


def judged(row: dict, bounds: targets.Bounds) -> dict:
    row["must"], row["aim"] = bounds or (None, None)
    row["verdict"] = verdict_of(Comparison(row["name"], None, row["kind"], row["must"], row["aim"]), row["value"], {})
    return row


def share_row(found: dict, bounds: targets.Bounds) -> dict:
    """A call beside the ceiling that it is nearest to."""
    nearest = found["ceilings"][0]
    rate = found["kv_bytes_per_second" if nearest["unit"] == "B/s" else "flops_per_second"]
    ours = {**rated("ours", rate, nearest["unit"], found["seconds"]), "kernel": found["kernel"]}
    return judged({"name": f"{found['dtype']} {found['name']}", "kind": "share", "ours": ours,
                   "against": rated(nearest["name"], nearest["rate"], nearest["unit"]),
                   "value": nearest["share"], "low": nearest["low"], "high": nearest["high"]}, bounds)


def tiny_row(found: dict) -> dict:
    ours = {"name": "ours", "microseconds": found["seconds"] * 1e6, "kernel": found["kernel"]}
    return judged({"name": f"{found['dtype']} {found['name']}", "kind": "microseconds", "ours": ours, "value": found["seconds"] * 1e6,
                   "low": found["best"] * 1e6, "high": found["worst"] * 1e6}, targets.TINY_MICROSECONDS)


def scaling_rows(one: list[dict], many: list[dict]) -> list[dict]:
    """Rate on many threads, of the rate on one times what the ceiling grows by: the ratio of two shares of ceilings of one kind."""
    rows = []
    for a, b in zip(one, many):
        kind = a["ceilings"][0]["name"]
        twin = next((c for c in b["ceilings"] if c["name"] == kind), None)
        if twin is None:
            continue
        share = a["ceilings"][0]
        ours = {**rated("ours", b["flops_per_second"], "FLOP/s", b["seconds"]), "kernel": b["kernel"]}
        rows.append(judged({"name": f"{b['dtype']} {b['name']}", "kind": "share", "ours": ours,
                            "against": rated("1 thread", a["flops_per_second"], "FLOP/s", a["seconds"]),
                            "value": twin["share"] / share["share"], "low": twin["low"] / share["high"],
                            "high": twin["high"] / share["low"]}, targets.SCALING))
    return rows
