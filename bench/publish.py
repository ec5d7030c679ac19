#!/usr/bin/env python3
"""Publishes bench/results: the README's table and picture, which are in git, and the pictures of the site's pages, which are not. The site
has its tables by compare/tables.py when it is built.

    publish.py                      writes the README's table and picture; needs matplotlib, as the site does (docs/requirements.txt)
    publish.py --check              fails where they are not what it would write
    publish.py --pictures FOLDER    draws those of the site's pages
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
README, PICTURE = ROOT / "README.md", RESULTS / "gpu_h100.svg"
MACHINES = ("gpu_h100", "gpu_h200", "cpu_emerald_rapids", "cpu_zen_5", "cpu_zen_4", "cpu_zen_3")
RANKS = "context_parallel_h100"
sys.path.insert(0, str(ROOT / "bench"))

from compare import plot, plot_ranks, tables  # noqa: E402

PICTURES = {f"{name}_{kind}" for name in MACHINES for kind in ("rates", "ratios")} | {RANKS}


def draw_one(name: str, folder: Path) -> None:
    if name == RANKS:
        plot_ranks.draw_ranks([RESULTS / f"{RANKS}_{gpus}.json" for gpus in (4, 2)], folder / f"{RANKS}.svg")
    else:
        plot.draw_results(RESULTS / f"{name}.json", folder)


def draw_pictures(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with multiprocessing.Pool() as pool:
        pool.starmap(draw_one, [(name, folder) for name in (*MACHINES, RANKS)], chunksize=1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--check", action="store_true", help="write nothing")
    way.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw the site's")
    options = parser.parse_args()
    if options.pictures:
        draw_pictures(options.pictures)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        drawn = Path(folder) / PICTURE.name
        plot.draw_readme(PICTURE.with_suffix(".json"), drawn)
        texts = {README: tables.rewritten(README.read_text(), RESULTS), PICTURE: drawn.read_text()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path.relative_to(ROOT)}: run bench/publish.py")
        else:
            path.write_text(texts[path])
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
