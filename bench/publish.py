#!/usr/bin/env python3
"""Writes what is published of bench/results: the tables of README.md and docs/performance.md, and, with matplotlib, pictures of the results
that those pages have tables of, and of context parallelism.

    publish.py [--tables]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
sys.path.insert(0, str(ROOT / "bench"))

from compare.tables import results_of, rewritten  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tables", action="store_true", help="no pictures")
    options = parser.parse_args()
    for page in PAGES:
        page.write_text(rewritten(page.read_text(), RESULTS))
    if not options.tables:
        from compare.plot import draw_results
        from compare.plot_ranks import draw_ranks

        for name in sorted({name for page in PAGES for name in results_of(page.read_text())}):
            draw_results(RESULTS / f"{name}.json")
        draw_ranks([RESULTS / f"context_parallel_h100_{gpus}.json" for gpus in (4, 2)], RESULTS / "context_parallel_h100.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
