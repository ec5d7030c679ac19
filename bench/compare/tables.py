"""Published tables, from what a comparison has left: one row a shape, one measure a column. Pure.

A page holds a table behind a line that says what it shows, and publish.py writes it there anew:

    <!-- table RESULTS | SUITE | LAYOUT -->       RESULTS: a file of bench/results without .json
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from .work import SHARED_KB

RIVALS = {"CUDNN": "cuDNN", "FLASH": "PyTorch FLASH", "EFFICIENT": "PyTorch EFFICIENT", "MATH": "PyTorch MATH", "ORT": "onnxruntime",
          "FA3": "FlashAttention-3"}
MARKER = re.compile(r"<!-- table (.*?) -->\n(?:\|.*\n)*")
PREFIXES = {"T": 1e3, "G": 1.0}
HEADLINES = (  # of the README: results, machine, suite, row, rival, what it is
    ("gpu_h100", "H100", "forward", "bf16 B4 H16 S4k d128 causal", "CUDNN", "forward, bf16, d 128, causal, 4 × 4k rows"),
    ("gpu_h100", "H100", "backward", "bf16 B1 H16 S16k d128 causal", "CUDNN", "backward, bf16, d 128, causal, 16k rows"),
    ("cpu_emerald_rapids", "Emerald Rapids, 16 threads", "prefill, 16 threads", "bf16 H16 S2k d128", "FLASH",
     "forward, bf16, d 128, 2k rows"),
)


def rival_of(row: dict) -> str | None:
    """The key in RIVALS of what a row is compared with; None: this library itself, a ceiling, nothing."""
    name = row.get("against", {}).get("name", "").removesuffix(" causal").split(",")[0]
    return name if name in RIVALS else None


def number(x: float) -> str:
    """Three digits, all of those before the point."""
    return f"{x:.0f}" if abs(x) >= 99.95 else f"{x:.1f}" if abs(x) >= 9.995 else f"{x:.2f}"


def rate(figures: dict, unit: str) -> str:
    return number(figures["rate"] * PREFIXES[figures["unit"][0]] / PREFIXES[unit[0]]) if "rate" in figures else ""


def table(heads: list[str], lines: list[list[str]]) -> str:
    """The first column is text, the others are numbers."""
    rows = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def measured(rows: list[dict]) -> list[dict]:
    return [row for row in rows if "value" in row]


def beside_rivals(rows: list[dict]) -> str:
    """Time and rate of a call, then for each rival its rate and how many times that ours is."""
    rows = [row for row in measured(rows) if rival_of(row)]
    rivals = [rival for rival in RIVALS if any(rival_of(row) == rival for row in rows)]
    unit = rows[0]["ours"]["unit"]
    heads = ["", "µs", unit]
    for rival in rivals:
        heads += [f"{RIVALS[rival]}: {unit}", f"× {RIVALS[rival]}"]
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        found = {rival_of(row): row for row in rows if row["name"] == name}
        ours = next(iter(found.values()))["ours"]
        line = [name, number(ours["microseconds"]), rate(ours, unit)]
        for rival in rivals:
            line += [rate(found[rival]["against"], unit), f"{found[rival]['value']:.2f}"] if rival in found else ["", ""]
        lines.append(line)
    return table(heads, lines)


def by_shared(suites: dict[int, list[dict]], beside_others: bool) -> str:
    """By the KB of shared memory that a block may have: rows beside rivals, their rates and how many times the rival's; or beside this
    library itself, their times and what they are a multiple of."""
    found: dict[tuple[str, str], dict[int, list[str]]] = {}
    unit = ""
    for kb, rows in suites.items():
        for row in measured(rows):
            rival, value = rival_of(row), row["value"] if row["kind"] == "time" or beside_others else 1 / row["value"]
            if (rival is not None) == beside_others:
                unit = unit or row["ours"]["unit"]
                first = rate(row["ours"], unit) if beside_others else number(row["ours"]["microseconds"])
                found.setdefault((row["name"], RIVALS.get(rival, row["against"]["name"])), {})[kb] = [first, f"{value:.2f}"]
    heads = ["", "compared with"]
    for kb in suites:
        heads += [f"{kb} KB: {unit if beside_others else 'µs'}", "times its speed" if beside_others else "times its time"]
    text = table(heads, [[*names, *(cell for kb in suites for cell in cells.get(kb, ["", ""]))] for names, cells in found.items()])
    return text.replace("| --- | ---: |", "| --- | --- |", 1)


def is_published(row: dict) -> bool:
    """Not f16 beside bf16 on a CPU: the two rates stand in one table as they are."""
    return rival_of(row) is not None or (row["ours"]["name"], row["against"]["name"]) != ("ours", "bf16")


def beside_itself(rows: list[dict]) -> str:
    """This library against itself: time as a multiple of what a row is compared with, at equal work."""
    lines = []
    for row in measured(rows):
        if row["kind"] in ("speed", "time") and not rival_of(row) and is_published(row):
            value = row["value"] if row["kind"] == "time" else 1 / row["value"]
            lines.append([row["name"], row["against"]["name"], number(row["ours"]["microseconds"]), f"{value:.2f}"])
    text = table(["", "compared with", "µs", "times its time"], lines)
    return text.replace("| --- | ---: |", "| --- | --- |", 1)


def shares(rows: list[dict]) -> str:
    """Rates beside what the machine can do."""
    lines = []
    for row in measured(rows):
        if row["kind"] == "share" and "rate" in row["against"]:
            unit = "G" + row["ours"]["unit"][1:]
            lines.append([row["name"], row["against"]["name"], unit, rate(row["ours"], unit), rate(row["against"], unit),
                          f"{100 * row['value']:.0f}"])
    text = table(["", "beside", "unit", "ours", "the other's", "%"], lines)
    return text.replace("| --- | ---: | ---: |", "| --- | --- | --- |", 1)


def power(rows: list[dict]) -> str:
    """Clock and power where they were sampled: ours and cuDNN's."""
    lines = []
    for row in measured(rows):
        both = row["ours"], row.get("against", {})
        if rival_of(row) == "CUDNN" and all("watts" in figures for figures in both):
            lines.append([row["name"], *(text for x in both for text in (rate(x, "TFLOP/s"), f"{x['sm_mhz']:.0f}", f"{x['watts']:.0f}"))])
    return table(["", "TFLOP/s", "MHz", "W", "cuDNN: TFLOP/s", "cuDNN: MHz", "cuDNN: W"], lines)


def microseconds(rows: list[dict]) -> str:
    return table(["", "µs", "fastest round", "slowest round"],
                 [[row["name"], *(f"{row[key]:.2f}" for key in ("value", "low", "high"))]
                  for row in measured(rows) if row["kind"] == "microseconds"])


def calls(figures: dict) -> str:
    return table(["", "µs"], [[name, f"{value:.2f}"] for name, value in figures.items()])


LAYOUTS: dict[str, Callable[[list[dict]], str]] = {
    "rivals": beside_rivals, "itself": beside_itself, "shares": shares, "power": power, "microseconds": microseconds}


# The same of suites that run once for each of SHARED_KB.
LAYOUTS_BY_SHARED = {"rivals-by-shared": True, "itself-by-shared": False}


def suite_of(result: dict, suite: str) -> list[dict]:
    """A suite's rows, of compare_cpu.py's results or of gpu_check.sh's."""
    for part in (result, result.get("comparison", {}), result.get("gradients", {})):
        if suite in part.get("suites", {}):
            return part["suites"][suite]
    raise KeyError(suite)


def headlines(results: Callable[[str], dict]) -> str:
    lines = []
    for file, machine, suite, name, rival, what in HEADLINES:
        row = next(row for row in suite_of(results(file), suite) if row["name"] == name and rival_of(row) == rival)
        lines.append([what, machine, number(row["ours"]["rate"]), row["ours"]["unit"], RIVALS[rival], f"{row['value']:.2f}"])
    return table(["", "machine", "speed", "unit", "compared with", "times as fast"], lines).replace(
        "| --- | ---: | ---: | ---: | ---: | ---: |", "| --- | --- | ---: | --- | --- | ---: |")


def results_of(page: str) -> set[str]:
    """The results that a page has tables of."""
    return {found[1].split("|")[0].strip() for found in MARKER.finditer(page)} - {"headlines"}


def rewritten(page: str, folder: Path) -> str:
    """The page with all its tables as the results of the folder have them."""
    known: dict[str, dict] = {}

    def results(name: str) -> dict:
        if name not in known:
            known[name] = json.loads((folder / f"{name}.json").read_text())
        return known[name]

    def replaced(found: re.Match) -> str:
        words = [word.strip() for word in found[1].split("|")]
        if words == ["headlines"]:
            text = headlines(results)
        elif words[1] == "calls":
            text = calls(results(words[0])["calls"])
        elif words[2] in LAYOUTS_BY_SHARED:
            text = by_shared({kb: suite_of(results(words[0]), f"{words[1]}, {kb} KB") for kb in SHARED_KB}, LAYOUTS_BY_SHARED[words[2]])
        else:
            text = LAYOUTS[words[2]](suite_of(results(words[0]), words[1]))
        return f"<!-- table {found[1]} -->\n{text}"

    return MARKER.sub(replaced, page)
