"""A picture of context parallelism over the GPUs of one host, from the files of bench/context_parallel_gpu.cc: what part of a GPU's own
speed each method keeps, by tokens of a GPU. Needs matplotlib."""

from __future__ import annotations

import json
from pathlib import Path

from .plot import framed, save, use_matplotlib
from .work import count_text

WAYS = {"ulysses": "#1b6ca8", "all-gather": "#7bae3a", "ring": "#e08a1e"}


def draw_ranks(files: list[Path], path: Path) -> None:
    """A panel for each file and mask."""
    results = [json.loads(file.read_text()) for file in files]
    pyplot = use_matplotlib()
    figure, body, foot = framed(pyplot, f"forward and backward, {results[0]['device']}, {results[0]['date']}", 2.4)
    axes = body.subplots(1, 2 * len(results), sharey=True)
    for axis, (result, causal) in zip(axes, [(result, causal) for result in results for causal in (True, False)]):
        rows = [row for row in result["rows"] if row["what"] == "training" and row["causal"] == causal]
        for way, colour in WAYS.items():
            points = sorted((row["tokens_per_gpu"], row["efficiency"]) for row in rows if row["way"] == way)
            axis.plot([x for x, _ in points], [y for _, y in points], "o-", color=colour, label=way, markersize=3.5, linewidth=1.2)
        tokens = sorted({row["tokens_per_gpu"] for row in rows})
        axis.set_xscale("log", base=2)
        axis.set_xticks(tokens, [count_text(n) for n in tokens])
        axis.axhline(1, color="black", linewidth=0.8)
        axis.grid(axis="y", color="#e5e5e5", linewidth=0.6)
        axis.set_title(f"{result['gpus']} GPUs, {'causal' if causal else 'dense'}")
        axis.set_xlabel("tokens of a GPU")
    axes[0].set_ylabel("of a GPU's own speed")
    axes[0].set_ylim(0.5, 1.06)
    foot.legend(*axes[0].get_legend_handles_labels(), loc="center", ncols=len(WAYS), frameon=False)
    save(pyplot, figure, path)
