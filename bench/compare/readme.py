#!/usr/bin/env python3
"""The README's tables of GPU figures, from what tools/gpu_check.sh leaves:

    readme.py gpu_h200.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LENGTHS = {"S512": "S 512", "S1k": "1k", "S4k": "4k", "S16k": "16k"}  # in names of rows: in the tables
SAME = "the same over shuffled pages of 64 / 16"
DECODE = (  # title, suite, rows
    ("batch 64, 32 heads on 8, 4k keys", "decode", ("B64 32/8 S4k d128",)),
    (SAME, "paged", ("pages of 64, B64 32/8 S4k d128", "pages of 16, B64 32/8 S4k d128")),
    ("the same, K and V in e4m3 / int8", "quantised", ("e4m3, B64 32/8 S4k d128", "int8, B64 32/8 S4k d128")),
    ("batch 1, 32 on 32, 64k", "decode", ("B1 32/32 S64k d128",)),
    ("batch 1, 32 on 8, 64k", "decode", ("B1 32/8 S64k d128",)),
    (SAME, "paged", ("pages of 64, B1 32/8 S64k d128", "pages of 16, B1 32/8 S64k d128")),
    ("batch 16, 32 on 8, 8k", "decode", ("B16 32/8 S8k d128",)),
    ("batch 128, 64 on 8, 2k", "decode", ("B128 64/8 S2k d128",)),
    ("batch 1, 8 on 1, 128k", "decode", ("B1 8/1 S128k d128",)),
    ("batch 32, 32 on 8, 8k, d 64", "decode", ("B32 32/8 S8k d64",)),
    ("batch 1, 32 on 8, 4k / 16k", "decode-latency", ("B1 32/8 S4k d128", "B1 32/8 S16k d128")),
)


def row_of(rows: list[dict], length: str, dim: int, mask: str) -> dict | None:
    """In bf16, beside cuDNN; None where that was not measured."""
    for row in rows:
        words = row["name"].split()
        if words[0] == "bf16" and words[3:] == [length, f"d{dim}", mask] and row.get("against", {}).get("name") == "CUDNN" and "value" in row:
            return row
    return None


def speed(row: dict | None) -> str:
    """TFLOP/s, and times the speed of cuDNN."""
    return f"{row['ours']['rate']:.0f}, {row['value']:.2f}×" if row else ""


def power(figures: dict) -> str:
    """TFLOP/s, MHz and watts; "" where these were not sampled."""
    return f"{figures['rate']:.0f}, {figures['sm_mhz']:.0f}, {figures['watts']:.0f}" if "watts" in figures else ""


def speeds(rows: list[dict]) -> str:
    lines = ["| | " + " | ".join(LENGTHS.values()) + " |", "|---" * (len(LENGTHS) + 1) + "|"]
    for dim in (64, 128, 256):
        for mask in ("dense", "causal"):
            lines.append(f"| d {dim}, {mask} | " + " | ".join(speed(row_of(rows, length, dim, mask)) for length in LENGTHS) + " |")
    return "\n".join(lines)


def powers(rows: list[dict]) -> str:
    lines = ["| S 16k | libflashattn | CUDNN |", "|---|---|---|"]
    for dim in (64, 128, 256):
        for mask in ("dense", "causal"):
            row = row_of(rows, "S16k", dim, mask)
            lines.append(f"| d {dim}, {mask} | " + (f"{power(row['ours'])} | {power(row['against'])}" if row else " | ") + " |")
    return "\n".join(lines)


def decoding(suites: dict[str, list[dict]]) -> str:
    """Microseconds of a call. A row beside cuDNN carries its time, too."""
    lines = ["| | libflashattn | CUDNN |", "|---|---|---|"]
    for title, suite, names in DECODE:
        found = [[row for row in suites.get(suite, []) if row["name"] == name and "value" in row] for name in names]
        ours = [rows[0]["ours"]["microseconds"] for rows in found if rows]
        cudnn = [row["against"]["microseconds"] for rows in found for row in rows if row.get("against", {}).get("name") == "CUDNN"]
        cells = [" / ".join(f"{time:.1f}" for time in times) for times in (ours, cudnn)]
        lines.append(f"| {title} | {cells[0]} | {cells[1]} |".replace("|  |", "| |"))
    return "\n".join(lines)


def tables_of(result: dict) -> list[str]:
    """result: the file's contents. The forward, its power, the backward, decode."""
    forward = result["comparison"]["suites"]["forward"]
    return [speeds(forward), powers(forward), speeds(result["gradients"]["suites"]["backward"]), decoding(result["comparison"]["suites"])]


if __name__ == "__main__":
    print("\n\n".join(tables_of(json.loads(Path(sys.argv[1]).read_text()))))
