"""The similarity matrix as a picture."""

from __future__ import annotations

import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # no display is needed

import matplotlib.pyplot as plt
import numpy as np

LABEL_LENGTH = 44
BRIGHTEST = 0.6  # similarity of the last colour: only the diagonal lies beyond
DARK = 0.36  # similarity from which a number is white on its cell


def draw(path: Path, texts: list[tuple[str, str]], similarities: np.ndarray) -> None:
    """Writes a heat map; lines part the topics."""
    count = len(texts)
    figure, axes = plt.subplots(figsize=(11, 8.5))
    image = axes.imshow(similarities, cmap="YlGnBu", vmin=0, vmax=BRIGHTEST)
    for row in range(count):
        for column in range(count):
            value = similarities[row, column]
            axes.text(
                column,
                row,
                f"{round(value, 2) + 0.0:.2f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if value > DARK else "black",
            )
    axes.set_yticks(range(count), [f"{short(text)}  {n}" for n, (_, text) in enumerate(texts, 1)], fontsize=8)
    axes.set_xticks(range(count), range(1, count + 1), fontsize=8)
    topics = [topic for topic, _ in texts]
    starts = [n for n in range(count) if n == 0 or topics[n] != topics[n - 1]]
    for start in starts[1:]:
        axes.axhline(start - 0.5, color="black", linewidth=1)
        axes.axvline(start - 0.5, color="black", linewidth=1)
    top = axes.secondary_xaxis("top")
    ends = [*starts[1:], count]
    top.set_xticks([(start + end - 1) / 2 for start, end in zip(starts, ends)], [topics[start] for start in starts], fontsize=10)
    top.tick_params(length=0)
    figure.colorbar(image, ax=axes, shrink=0.8, extend="max", label="cosine similarity")
    axes.set_title("Sentence similarity, all-MiniLM-L6-v2 with attention by libflashattn", fontsize=12, pad=28)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def short(text: str) -> str:
    """The first words of a text."""
    return textwrap.shorten(text, LABEL_LENGTH, placeholder=" …")
