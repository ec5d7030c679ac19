"""Pictures of a comparison, as wide as a page of the site: rates by sequence length, this library's beside each rival's; and of everything
else the speed over what it is compared with. Drawing needs matplotlib, of 3.6 or later."""

from __future__ import annotations

import json
import re
import textwrap
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
WIDTH, COLUMNS = 8.2, 3  # inches; panels of rates in a row
README_PANELS = ("forward: bf16, d 128, causal", "forward: bf16, d 64, dense", "backward: bf16, d 128, causal")
NAME = re.compile(r"(f32|f16|bf16) (?:B\d+ )?H\d+ S(\w+) d(\d+)(?: (dense|causal))?")


def panel_of(row: dict) -> tuple[str, str] | None:
    """Of a row by sequence length: the panel's title and the length; None: the row is of another kind."""
    found = NAME.fullmatch(row["name"])
    if not found or row["kind"] != "speed" or rival_of(row) is None:
        return None
    mask = f", {found[4]}" if found[4] else ""
    return f"{found[1]}, d {found[3]}{mask}", found[2]


def panels_of(suites: dict[str, list[dict]]) -> dict[str, dict[str, list[dict]]]:
    """{suite and panel: {length: rows}}, of the panels with some lengths."""
    panels: dict = {}
    for suite, rows in suites.items():
        for row in measured(rows) if suite.split(",")[0] in RATES else []:
            place = panel_of(row)
            if place:
                panels.setdefault(f"{suite}: {place[0]}", {}).setdefault(place[1], []).append(row)
    return {name: lengths for name, lengths in panels.items() if len(lengths) >= FEWEST_LENGTHS}


def readme_panels(result: dict) -> dict[str, dict[str, list[dict]]]:
    panels = panels_of(suites_of(result))
    return {name: panels[name] for name in README_PANELS}


def best_of(rows: list[dict]) -> str:
    """What stands above this library's bar: its multiple of the fastest rival's speed."""
    return f"{min(row['value'] for row in rows):.2f}×"


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


def framed(pyplot, title: str, height: float):
    """A figure, its part of that height to draw into, and the part below for a legend."""
    figure = pyplot.figure(figsize=(WIDTH, height + 0.3), layout="constrained")
    body, foot = figure.subfigures(2, 1, height_ratios=(height, 0.3))
    body.suptitle(title, fontsize=9)
    return figure, body, foot


def legend(foot, names: list[str]) -> None:
    from matplotlib.patches import Patch

    labels = {OURS: OURS, "itself": "itself", **RIVALS}
    foot.legend(handles=[Patch(color=COLOURS[name], label=labels[name]) for name in COLOURS if name in names], loc="center",
                ncols=len(COLOURS), frameon=False)


def draw_rates(path: Path, title: str, panels: dict[str, dict[str, list[dict]]]) -> None:
    """Bars of each sequence length side by side; above ours, its multiple of the fastest rival's speed."""
    if not panels:
        return
    pyplot = use_matplotlib()
    lines = -(-len(panels) // COLUMNS)
    figure, body, foot = framed(pyplot, f"{title}\nby sequence length; above this library's bars: times the speed of the fastest rival "
                                "beside it", 2.1 * lines + 0.4)
    axes = body.subplots(lines, COLUMNS, squeeze=False).flat
    shown: list[str] = []
    for axis, (name, lengths) in zip(axes, panels.items()):
        shown += draw_bars(axis, lengths)
        axis.set_title(name, fontsize=8)
        axis.set_ylabel(next(iter(lengths.values()))[0]["ours"]["unit"], fontsize=7)
    for axis in axes:  # that are left
        axis.set_visible(False)
    legend(foot, shown)
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
        for n, name in enumerate(given):
            height = figures[name]["rate"] * PREFIXES[figures[name]["unit"][0]] / unit
            heights.append(height)
            at = place + (n - (len(given) - 1) / 2) * width
            axis.bar(at, height, width=width * 0.94, color=COLOURS[name])
            if name == OURS:
                axis.annotate(best_of(rows), (at, height), xytext=(0, 1.5), textcoords="offset points", ha="center", va="bottom",
                              fontsize=6)
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


def title_of(suite: str) -> str:
    name, _, threads = suite.partition(", ")
    text = {**GPU_SUITES, **(CPU_SUITES if threads else {})}.get(name, name).partition(";")[0]
    return textwrap.fill(f"{text} ({threads})" if threads else text, 96)


def draw_ratios(path: Path, title: str, suites: dict[str, list[dict]]) -> None:
    """One line a row that no panel of rates has, with a dot for each that it is compared with, and from the lowest to the highest round."""
    shown = {id(row) for lengths in panels_of(suites).values() for rows in lengths.values() for row in rows}
    groups: dict[str, dict[str, list[dict]]] = {}
    for suite, rows in suites.items():
        for row in measured(rows):
            if row["kind"] in ("speed", "time") and id(row) not in shown and is_published(row):
                groups.setdefault(suite, {}).setdefault(row["name"], []).append(row)
    if not groups:
        return
    pyplot = use_matplotlib()
    heights = [len(rows) + 2.6 + title_of(suite).count("\n") for suite, rows in groups.items()]
    figure, body, foot = framed(pyplot, f"{title}\nspeed over what each row is compared with: median and range of the rounds; right of the line "
                                "the row's first name is faster", 0.15 * sum(heights) + 0.4)
    axes = body.subplots(len(groups), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    compared: list[str] = []
    for axis, (suite, rows) in zip(axes, groups.items()):
        compared += draw_dots(axis, suite, rows)
    legend(foot, compared)
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
    axis.set_yticks(range(len(rows)), [name + (f" / {other}" if other else "") for name, other in zip(rows, against)], fontsize=6.5)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=6.5, pad=1)
    axis.grid(axis="x", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.set_title(title_of(suite), fontsize=7.5, loc="right", pad=3)
    return compared


def draw(path: Path, title: str, suites: dict[str, list[dict]]) -> None:
    draw_rates(path, title, panels_of(suites))
    draw_ratios(path.with_stem(path.stem + "_ratios"), title, suites)


def suites_of(result: dict) -> dict[str, list[dict]]:
    """Of compare_cpu.py's results or of gpu_check.sh's."""
    parts = [result] if "suites" in result else [result["comparison"], result["gradients"]]
    return {suite: rows for part in parts for suite, rows in part["suites"].items()}


def title_of_results(file: Path, result: dict) -> str:
    one = result.get("comparison", result)
    machine = one["device"] if "NVIDIA" in one["device"] else file.stem.removeprefix("cpu_").replace("_", " ").title()
    return f"libflashattn on {machine}, PyTorch {one['torch'].split('+')[0]}, {one['date']}"


def draw_results(file: Path, folder: Path) -> None:
    """The pictures of a file of results: NAME_rates.svg and NAME_ratios.svg."""
    result = json.loads(file.read_text())
    title, suites = title_of_results(file, result), suites_of(result)
    draw_rates(folder / f"{file.stem}_rates.svg", title, panels_of(suites))
    draw_ratios(folder / f"{file.stem}_ratios.svg", title, suites)


def draw_readme(file: Path, path: Path) -> None:
    result = json.loads(file.read_text())
    draw_rates(path, title_of_results(file, result), readme_panels(result))
