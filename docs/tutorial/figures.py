#!/usr/bin/env python3
"""Draws the tutorial's figures from what its programs print when asked for `figure`.

figures.py PROGRAMS FOLDER    PROGRAMS: the folder of the compiled programs
"""
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

plt.rcParams.update(
    {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "svg.hashsalt": "flashattn",
        "svg.fonttype": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#e4e7eb",
        "axes.axisbelow": True,
        "axes.edgecolor": "#64748b",
        "legend.frameon": False,
        "axes.titlesize": 10.5,
        "lines.linewidth": 1.8,
    }
)
BLUE, ORANGE, GREEN, GREY = "#0b5cad", "#d9730d", "#2f8a4c", "#94a3b8"


def rows(programs, name):
    printed = subprocess.run([programs / name, "figure"], check=True, capture_output=True, text=True).stdout
    return [line.split() for line in printed.splitlines()]


def canvas(columns=1, height=3.1):
    return plt.subplots(1, columns, figsize=(7.4, height), layout="constrained")


def attention(data):
    figure, axes = canvas(3, 2.9)
    maps = np.array(data, float).reshape(3, 24, 24)
    for axis, values, title in zip(axes, maps, ("no mask", "causal", "causal, window of 6")):
        image = axis.imshow(values, cmap="Blues", vmin=0, vmax=0.5)
        axis.set_title(title)
        axis.grid(False)
        axis.set_xlabel("key")
    axes[0].set_ylabel("query row")
    figure.colorbar(image, ax=axes, shrink=0.75, label="probability")
    return figure


def softmax(data):
    figure, (left, right) = canvas(2)
    key, score, value, m, l, _, mean = np.array(data, float).T
    left.plot(key, score, "o", color=GREY, ms=3.5, label="score")
    left.step(key, m, where="post", color=BLUE, label="m, largest so far")
    left.plot(key, np.log(l) + m, color=ORANGE, label="m + ln l, the LSE so far")
    left.legend(fontsize=8.5, loc="lower right")
    right.plot(key, value, "o", color=GREY, ms=3.5, label="value")
    right.plot(key, mean, color=BLUE, label="o / l, output so far")
    right.legend(fontsize=8.5, loc="lower right")
    left.set_ylim(bottom=-7)  # room for the legends
    right.set_ylim(bottom=-4)
    for axis in (left, right):
        axis.set_xlabel("keys seen")
    return figure


def blocks(data):
    figure, axis = canvas()
    for name, colour, label in (
        ("product", BLUE, "product of 128 × 128 matrices, by block"),
        ("attention", ORANGE, "attention, 128 rows of 32, by rows of a tile"),
    ):
        x, y = np.array([row[1:] for row in data if row[0] == name], float).T
        axis.loglog(x, y, "o-", color=colour, base=2, label=label, ms=4.5)
    axis.set_xlabel("block: rows that are in fast memory together")
    axis.set_ylabel("elements loaded")
    axis.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], ["1", "2", "4", "8", "16", "32", "64", "128"])
    axis.legend()
    return figure


def forward(data):
    figure, (left, right) = canvas(2, 3.4)
    for name, colour in (("standard", GREY), ("flash1", ORANGE), ("flash", BLUE)):
        for suffix, style, kind in (("", "o", "counted, 12 × 64"), ("-64", "-", "formula, 64 × 64")):
            found = np.array([[row[0], row[3], row[4]] for row in data if row[1] == name + suffix], float)
            left.loglog(found[:, 0], found[:, 1] / 2**20, style, color=colour, ms=4.5, label=f"{name}, {kind}")
            seen = found[found[:, 2] > 0]
            right.loglog(seen[:, 0], seen[:, 2] / 2**20, style, color=colour, ms=4.5, label=f"{name}, {kind}")
    left.set_title("traffic of a head, MB")
    right.set_title("extra memory of a head, MB (flash: none)")
    left.legend(fontsize=8)
    for axis in (left, right):
        axis.set_xlabel("rows and keys, N")
        axis.set_xticks([64, 256, 1024, 4096, 16384], ["64", "256", "1k", "4k", "16k"])
        axis.minorticks_off()
    return figure


def backward(data):
    figure, axis = canvas()
    step, error = np.array(sorted(data, key=lambda row: -float(row[0])), float).T
    axis.loglog(step, np.maximum(error, 1e-16), "o", color=BLUE, ms=4, label="|difference − dq| of one element, fp64")
    axis.loglog(step[:9], error[0] * (step[:9] / step[0]) ** 2, "--", color=GREY, label="step²: what a difference leaves out")
    axis.loglog(step[22:], 2.2e-16 / step[22:], "--", color=ORANGE, label="2⁻⁵² / step: what rounding adds")
    axis.set_xlabel("step")
    axis.set_ylabel("error")
    axis.legend(fontsize=9)
    return figure


def parallel(data):
    figure, axis = canvas()
    for splits, colour in (("1", GREY), ("4", ORANGE), ("16", BLUE)):
        x, y = np.array([row[1:] for row in data if row[0] == splits], float).T
        axis.plot(x, 100 * y, color=colour, label=f"{splits} split{'s' * (splits != '1')} of the keys", lw=1.3)
    axis.set_xlabel("tiles: sequences × heads × blocks of rows")
    axis.set_ylabel("of 132 multiprocessors busy, %")
    axis.set_ylim(0, 103)
    axis.legend(loc="lower right")
    return figure


def main(programs, folder):
    programs, folder = Path(programs), Path(folder)
    folder.mkdir(exist_ok=True)
    for draw in (attention, softmax, blocks, forward, backward, parallel):
        figure = draw(rows(programs, draw.__name__))
        figure.savefig(folder / f"{draw.__name__}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    main(*sys.argv[1:])
