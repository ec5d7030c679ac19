"""Two loss curves and their difference as an SVG. Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "loss", "font.size": 8})
from matplotlib import pyplot  # noqa: E402


def draw(path: Path, curves: dict[str, list[float]]) -> None:
    """Writes the picture; curves: two lists of losses by name."""
    figure, (loss, difference) = pyplot.subplots(2, 1, sharex=True, figsize=(7.6, 4.6), layout="constrained", height_ratios=(5, 2))
    for (name, values), colour, width in zip(curves.items(), ("#1b6ca8", "#e07b00"), (3.5, 1.2)):
        loss.plot(values, color=colour, linewidth=width, label=name)
    first, second = curves.values()
    difference.semilogy([abs(x - y) for x, y in zip(first, second)], color="#555555", linewidth=1, label="difference")
    for axis in (loss, difference):
        axis.grid(axis="y", color="#dddddd")
        axis.legend(frameon=False, loc="upper right")
    difference.set_ylim(1e-9)
    difference.minorticks_off()
    loss.set_title("Training a character-level transformer: cross entropy (nats) at each step", loc="left")
    difference.set_xlabel("step")
    figure.savefig(path, metadata={"Date": None})
