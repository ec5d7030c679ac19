"""Pictures of a comparison, in two files of a page each: FILE.svg has rates by sequence length, this library's beside each rival's;
FILE_ratios.svg has everything else as speed over what it is compared with. Needs matplotlib."""

from __future__ import annotations

import json
import re
from pathlib import Path

from .cpu.work import SUITES as CPU_SUITES
from .tables import PREFIXES, RIVALS, is_published, measured, rival_of
from .work import SUITES as GPU_SUITES

OURS = "libflashattn"
COLOURS = {OURS: "#1b6ca8", "CUDNN": "#7bae3a", "FLASH": "#e08a1e", "EFFICIENT": "#b65fa5", "MATH": "#9a9a9a", "ORT": "#5b8f8f",
           "FA3": "#c0392b", "itself": "#1b6ca8"}
LOG_FROM = {"bars": 100.0, "dots": 12.0}  # where those of a panel differ by more, its axis is logarithmic
FEWEST_LENGTHS = 3  # of a panel of rates
RATES = ("forward", "backward", "prefill")  # the suites that go through many lengths
TICKS = [a * 10**n for n in range(-2, 5) for a in (1, 2, 5)]  # of logarithmic axes
NAME = re.compile(r"(f32|f16|bf16) (?:B\d+ )?H\d+ S(\w+) d(\d+)(?: (dense|causal))?")


def panel_of(row: dict) -> tuple[str, str] | None:
    """Of a row by sequence length: the panel's title and the length; None: the row is of another kind."""
    found = NAME.fullmatch(row["name"])
    if not found or row["kind"] != "speed" or rival_of(row) is None:
        return None
    mask = f", {found[4]}" if found[4] else ""
    return f"{found[1]}, d {found[3]}{mask}", found[2]


def panels_of(suites: dict[str, list[dict]]) -> dict[str, dict[str, dict[str, list[dict]]]]:
    """{suite: {panel: {length: rows}}}, of the panels with some lengths."""
    panels: dict = {}
    for suite, rows in suites.items():
        for row in measured(rows) if suite.split(",")[0] in RATES else []:
            place = panel_of(row)
            if place:
                panels.setdefault(suite, {}).setdefault(place[0], {}).setdefault(place[1], []).append(row)
    for suite in list(panels):
        panels[suite] = {name: lengths for name, lengths in panels[suite].items() if len(lengths) >= FEWEST_LENGTHS}
        if not panels[suite]:
            del panels[suite]
    return panels


def use_matplotlib():
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "flashattn",  # text as text, and the same file each time
                                "font.family": "sans-serif", "font.size": 8, "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot

    return pyplot


def save(pyplot, figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def legend(figure, names: list[str]) -> None:
    from matplotlib.patches import Patch

    labels = {OURS: OURS, "itself": "itself", **RIVALS}
    figure.legend(handles=[Patch(color=COLOURS[name], label=labels[name]) for name in names], loc="outside lower center",
                  ncols=len(names), frameon=False, fontsize=9)


def draw_rates(path: Path, title: str, suites: dict[str, list[dict]]) -> None:
    """A row of panels for each suite, bars of each sequence length side by side; above ours, its multiple of the fastest rival's speed."""
    panels = panels_of(suites)
    if not panels:
        return
    pyplot = use_matplotlib()
    columns = max(len(row) for row in panels.values())
    figure, axes = pyplot.subplots(len(panels), columns, figsize=(13, 2.6 * len(panels) + 0.9), squeeze=False, layout="constrained")
    shown: list[str] = []
    for line, (suite, row) in zip(axes, panels.items()):
        for axis in line[len(row):]:
            axis.set_visible(False)
        for n, (axis, (name, lengths)) in enumerate(zip(line, row.items())):
            shown += draw_bars(axis, lengths)
            axis.set_title(name, fontsize=9)
            if n == 0:
                unit = next(iter(lengths.values()))[0]["ours"]["unit"]
                axis.set_ylabel(f"{suite}\n{unit}", fontsize=9)
    legend(figure, [name for name in COLOURS if name in shown])
    figure.suptitle(f"{title}\nby sequence length; above this library's bars: times the speed of the fastest rival beside it", fontsize=10)
    save(pyplot, figure, path)


def draw_bars(axis, lengths: dict[str, list[dict]]) -> list[str]:
    rivals = [rival for rival in RIVALS if any(rival_of(row) == rival for rows in lengths.values() for row in rows)]
    names = [OURS, *rivals]
    width = 0.8 / len(names)
    heights: list[float] = []
    for place, rows in enumerate(lengths.values()):
        unit = PREFIXES[rows[0]["ours"]["unit"][0]]
        figures = {OURS: rows[0]["ours"], **{rival_of(row): row["against"] for row in rows}}
        given = [name for name in names if name in figures]  # of some lengths there are fewer: their bars stand together
        best = min(row["value"] for row in rows)
        for n, name in enumerate(given):
            height = figures[name]["rate"] * PREFIXES[figures[name]["unit"][0]] / unit
            heights.append(height)
            at = place + (n - (len(given) - 1) / 2) * width
            axis.bar(at, height, width=width * 0.94, color=COLOURS[name])
            if name == OURS:
                axis.annotate(f"{best:.2f}×", (at, height), xytext=(0, 1.5), textcoords="offset points", ha="center", va="bottom", fontsize=6)
    if max(heights) > LOG_FROM["bars"] * min(heights):
        axis.set_yscale("log")
        axis.set_ylim(min(heights) / 1.5, max(heights) * 1.6)
        name_ticks(axis.yaxis, axis.get_ylim())
    else:
        axis.set_ylim(0, max(heights) * 1.12)
    axis.set_xticks(range(len(lengths)), [f"{length}" for length in lengths])
    axis.tick_params(labelsize=7)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    return names


def name_ticks(axis, limits: tuple[float, float]) -> None:
    """On a logarithmic axis, as plain numbers."""
    from matplotlib.ticker import NullFormatter, NullLocator

    inside = [tick for tick in TICKS if limits[0] <= tick <= limits[1]]
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(inside, [f"{tick:g}" for tick in inside])


def ratio_of(row: dict) -> tuple[float, float, float]:
    """Speed over the other's: median, lowest, highest round."""
    values = row["value"], row["low"], row["high"]
    return values if row["kind"] == "speed" else (1 / row["value"], 1 / row["high"], 1 / row["low"])


def balanced(heights: dict[str, float]) -> list[list[str]]:
    """The suites, in their order, in up to three columns of which the tallest is as low as may be."""
    names = list(heights)
    cuts = [(a, b) for a in range(1, len(names)) for b in range(a + 1, len(names))] or [(len(names), len(names))]

    def parts(cut: tuple[int, int]) -> list[list[str]]:
        return [column for column in (names[:cut[0]], names[cut[0]:cut[1]], names[cut[1]:]) if column]

    return parts(min(cuts, key=lambda cut: max(sum(heights[name] for name in column) for column in parts(cut))))


def title_of(suite: str) -> str:
    name, _, threads = suite.partition(", ")
    text = {**GPU_SUITES, **(CPU_SUITES if threads else {})}.get(name, name).partition(";")[0]
    return f"{text} ({threads})" if threads else text


def draw_ratios(path: Path, title: str, suites: dict[str, list[dict]]) -> None:
    """One line a row, with a dot for each that it is compared with, and from the lowest to the highest round; in three columns."""
    shown = {place for row in panels_of(suites).values() for lengths in row.values() for rows in lengths.values() for place in map(id, rows)}
    groups: dict[str, dict[str, list[dict]]] = {}
    for suite, rows in suites.items():
        for row in measured(rows):
            if row["kind"] in ("speed", "time") and id(row) not in shown and is_published(row):
                groups.setdefault(suite, {}).setdefault(row["name"], []).append(row)
    if not groups:
        return
    pyplot = use_matplotlib()
    heights_of = {suite: len(rows) + 2.6 for suite, rows in groups.items()}
    columns = balanced(heights_of)
    tallest = max(sum(heights_of[suite] for suite in column) for column in columns)
    figure = pyplot.figure(figsize=(6.0 * len(columns), 0.17 * tallest + 1.2), layout="constrained")
    compared: list[str] = []
    for part, column in zip(figure.subfigures(1, len(columns), squeeze=False)[0], columns):
        heights = [heights_of[suite] for suite in column]
        spare = tallest - sum(heights)
        axes = part.subplots(len(column) + (spare > 1), 1, squeeze=False, gridspec_kw={"height_ratios": heights + ([spare] if spare > 1 else [])})[:, 0]
        for axis, suite in zip(axes, column):
            compared += draw_dots(axis, suite, groups[suite])
        for axis in axes[len(column):]:
            axis.set_visible(False)
    legend(figure, [name for name in COLOURS if name in compared])
    figure.suptitle(
        f"{title}\nspeed over what each row is compared with, median and range of the rounds; right of the line the row's first name is the faster one",
        fontsize=10)
    save(pyplot, figure, path)


def draw_dots(axis, suite: str, rows: dict[str, list[dict]]) -> list[str]:
    compared, ends = [], []
    for place, found in enumerate(rows.values()):
        for row in found:
            value, low, high = ratio_of(row)
            kind = rival_of(row) or "itself"
            compared.append(kind)
            ends += [low, high]
            axis.plot([low, high], [place, place], color=COLOURS[kind], linewidth=1.2, alpha=0.45, solid_capstyle="butt")
            axis.plot(value, place, "o", color=COLOURS[kind], markersize=3.6)
    axis.axvline(1, color="black", linewidth=0.9)
    least, most = min(*ends, 1), max(*ends, 1)
    if most > LOG_FROM["dots"] * least:
        axis.set_xscale("log")
        axis.set_xlim(least / 1.25, most * 1.25)
        name_ticks(axis.xaxis, axis.get_xlim())
    else:
        axis.set_xlim(least - 0.06 * (most - least), most + 0.06 * (most - least))
    against = [next((row["against"]["name"] for row in found if rival_of(row) is None), "") for found in rows.values()]
    axis.set_yticks(range(len(rows)), [name + (f" / {other}" if other else "") for name, other in zip(rows, against)], fontsize=5.7)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=6, pad=1)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_title(title_of(suite), fontsize=7, loc="right", pad=3)
    return compared


def draw(path: Path, title: str, suites: dict[str, list[dict]]) -> None:
    draw_rates(path, title, suites)
    draw_ratios(path.with_stem(path.stem + "_ratios"), title, suites)


def draw_results(file: Path) -> None:
    """The pictures of a file of results, beside it."""
    result = json.loads(file.read_text())
    parts = [result] if "suites" in result else [result["comparison"], result["gradients"]]
    one = parts[0]
    machine = one["device"] if "NVIDIA" in one["device"] else file.stem.removeprefix("cpu_").replace("_", " ").title()
    title = f"libflashattn on {machine}, PyTorch {one['torch'].split('+')[0]}, {one['date']}"
    draw(file.with_suffix(".svg"), title, {suite: rows for part in parts for suite, rows in part["suites"].items()})
