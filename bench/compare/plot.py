"""The compared figures as bars, one panel for each suite and kind of figure. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

KINDS = {"speed": "times the speed", "time": "times the time", "microseconds": "µs", "share": "of the ceiling"}
COLOURS = {"aim": "#228833", "must": "#4477aa", "not met": "#ee6677", "WRONG": "black", "": "#bbbbbb"}


def draw(path: Path, title: str, suites: dict[str, list[dict]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "flashattn"})  # text as text, and the same file each time
    from matplotlib import pyplot

    drawn: dict[str, list[dict]] = {}
    for suite, rows in suites.items():
        for row in rows:
            if "value" in row:
                drawn.setdefault(f"{suite}: {KINDS[row['kind']]}", []).append(row)
    if not drawn:
        return
    heights = [len(rows) + 2 for rows in drawn.values()]
    figure, axes = pyplot.subplots(len(drawn), 1, figsize=(11, 0.26 * sum(heights) + 1), squeeze=False, layout="constrained",
                                   gridspec_kw={"height_ratios": heights})
    for axis, (name, rows) in zip(axes[:, 0], drawn.items()):
        draw_panel(axis, name, rows)
    figure.suptitle(title)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def draw_panel(axis, title: str, rows: list[dict]) -> None:
    places = range(len(rows))
    values = [row["value"] for row in rows]
    spread = [[row["value"] - row["low"] for row in rows], [row["high"] - row["value"] for row in rows]]
    axis.barh(places, values, xerr=spread, color=[COLOURS[row["verdict"]] for row in rows], height=0.7, ecolor="#555555")
    for bound, mark in (("must", "|"), ("aim", "d")):
        points = [(row[bound], place) for place, row in zip(places, rows) if row[bound] is not None]
        if points:
            axis.scatter(*zip(*points), marker=mark, s=60, color="black", zorder=3, label=bound)
    names = [row["name"] + (f" / {row['against']['name']}" if "against" in row else "") for row in rows]
    axis.set_yticks(places, names, fontsize=7)
    axis.invert_yaxis()
    axis.set_title(title, fontsize=9, loc="left")
    if any(row["must"] is not None for row in rows):
        axis.legend(fontsize=7, loc="lower right")
