#!/usr/bin/env python3
"""The README's table of CPU figures, from results of compare_cpu.py:

    readme.py cpu_one_machine.json cpu_another.json …
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

DECODE = ("B1 32/32 4096", "B1 32/8 16384", "B1 8/1 65536")


def columns_of(result: dict) -> list[int]:
    """Thread counts that were measured."""
    return sorted({int(job.split(", ")[1].split()[0]) for job in result["suites"]})


def rows_of(result: dict, suite: str, threads: int) -> list[dict]:
    return result["suites"].get(f"{suite}, {threads} thread{'s' if threads > 1 else ''}", [])


def amount(x: float) -> str:
    return f"{x:.0f}" if x >= 99.5 else f"{x:.1f}"


def beside_flash(result: dict, suite: str, threads: int, dtype: str, dim: int, n: int) -> dict | None:
    size = f"{n // 1024}k" if n >= 1024 else str(n)
    return next((r for r in rows_of(result, suite, threads) if re.fullmatch(rf"{dtype} H\d+ S{size} d{dim}", r["name"])
                 and r.get("against", {}).get("name") == "FLASH" and "value" in r), None)


def prefill_cell(result: dict, threads: int, dtype: str, dim: int, n: int) -> str:
    """Rate, times torch's, share of the ceiling."""
    beside = beside_flash(result, "prefill", threads, dtype, dim, n)
    share = next((r for r in rows_of(result, "ceilings", threads) if re.fullmatch(rf"{dtype} \[1,\d+,{n},{dim}\]", r["name"])), None)
    if beside is None:
        return ""
    ceiling = f", {100 * share['value']:.0f} %" if share else ""
    return f"{amount(beside['ours']['rate'])}, {beside['value']:.2f}×{ceiling}"


def backward_cell(result: dict, threads: int, dtype: str, dim: int) -> str:
    """Rate and times torch's."""
    beside = beside_flash(result, "backward", threads, dtype, dim, 2048)
    return f"{amount(beside['ours']['rate'])}, {beside['value']:.2f}×" if beside else ""


def decode_cell(result: dict, threads: int, dtype: str, shape: str) -> str:
    """Rate and share of reading K and V from memory."""
    row = next((r for r in rows_of(result, "ceilings", threads) if r["name"] == f"{dtype} {shape} cold"), None)
    return f"{amount(row['ours']['rate'])} GB/s, {100 * row['value']:.0f} %" if row and row["ours"]["unit"] == "GB/s" else ""


def table_of(results: list[tuple[str, dict]]) -> str:
    """results: names of machines, and what was measured there."""
    columns = [(name, result, threads) for name, result in results for threads in columns_of(result)]
    lines = ["| | " + " | ".join(f"{name}, {t} thread{'s' if t > 1 else ''}" for name, _, t in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for dtype in ("f32", "bf16", "f16"):
        for dim in (64, 128):
            for n in (512, 2048, 8192):
                cells = [prefill_cell(result, threads, dtype, dim, n) for _, result, threads in columns]
                lines.append(f"| {dtype}, d {dim}, S {n} | " + " | ".join(cells) + " |")
    for dtype in ("f32", "bf16", "f16"):
        for dim in (64, 128):
            cells = [backward_cell(result, threads, dtype, dim) for _, result, threads in columns]
            if any(cells):
                lines.append(f"| backward {dtype}, d {dim}, S 2048 | " + " | ".join(cells) + " |")
    for shape in DECODE:
        for dtype in ("bf16", "bf16, i8", "bf16, e4m3") if shape == DECODE[1] else ("bf16",):
            _, heads, keys = shape.split()
            kind = dtype.replace(", i8", " with int8 K and V").replace(", e4m3", " with e4m3 K and V")
            cells = [decode_cell(result, threads, dtype, shape) for _, result, threads in columns]
            lines.append(f"| decode {kind}, {heads.replace('/', ' heads on ')}, {keys} keys | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def machine_name(path: Path) -> str:
    return path.stem.removeprefix("cpu_").replace("_", " ").title()


if __name__ == "__main__":
    print(table_of([(machine_name(Path(path)), json.loads(Path(path).read_text())) for path in sys.argv[1:]]))
