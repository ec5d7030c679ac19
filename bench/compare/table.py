"""The results of a suite as an aligned table. Pure."""

from __future__ import annotations

import re

from .judge import AT_LEAST

TITLES = ["row", "ours", "", "", "against", "", "", "", "value", "spread", "must", "aim", "verdict", "error", "kernel"]
LEFT = {0, 4, 12, 14}


def aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.ljust(w) if c in LEFT else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def kernel_name(explanation: str) -> str:
    found = re.search(r"kernel (\S+)", explanation)
    return found.group(1).rstrip(",;") if found else explanation[:40]


def time_text(microseconds: float) -> str:
    return f"{microseconds:.4g} µs" if microseconds < 1e4 else f"{microseconds / 1e3:.4g} ms"


def rate_cells(figures: dict | None) -> list[str]:
    """Time of a call, work per second, clock and power."""
    if not figures:
        return ["", "", ""]
    rate = f"{figures['rate']:{'.0f' if figures['rate'] >= 1000 else '.3g'}} {figures['unit']}" if "rate" in figures else ""
    power = f"{figures['sm_mhz']:.0f} MHz {figures['watts']:.0f} W" if "watts" in figures else ""
    return [time_text(figures["microseconds"]) if "microseconds" in figures else "", rate, power]


def bound_text(row: dict, key: str) -> str:
    if row[key] is None:
        return ""
    return ("≥ " if row["kind"] in AT_LEAST else "≤ ") + f"{row[key]:g}"


def cells_of(row: dict) -> list[str]:
    if row["verdict"] == "failed":
        return [row["name"], *[""] * 11, "failed", "", ""]
    unit = " µs" if row["kind"] == "microseconds" else ""
    value = spread = ""
    if "value" in row:
        value, spread = f"{row['value']:.3g}{unit}", f"{row['low']:.3g} … {row['high']:.3g}"
    ours = row["ours"]
    error = f"{ours['relative_error']:.1e}" if "relative_error" in ours else ""
    return [row["name"], *rate_cells(ours), row.get("against", {}).get("name", ""), *rate_cells(row.get("against")),
            value, spread, bound_text(row, "must"), bound_text(row, "aim"),
            row["verdict"], error, kernel_name(ours.get("kernel", ""))]


def table_of(rows: list[dict]) -> str:
    if not rows:
        return "(no row)"
    text = aligned([TITLES, *(cells_of(row) for row in rows)])
    reasons = [f"{row['name']}: {row['reason']}" for row in rows if row.get("reason")]
    return "\n".join([text, *reasons])


def summary_of(suites: dict[str, list[dict]]) -> str:
    rows = [row for rows in suites.values() for row in rows]
    count = {verdict: sum(row["verdict"] == verdict for row in rows) for verdict in ("aim", "must", "not met", "WRONG", "failed")}
    return (f"{len(rows)} rows: {count['aim']} reach the aim, {count['must']} the must, {count['not met']} neither; "
            f"{count['WRONG']} WRONG, {count['failed']} failed")
