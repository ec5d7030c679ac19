"""Two loss curves and their difference as an SVG, by hand."""

from __future__ import annotations

import math
from pathlib import Path

WIDTH, LEFT, RIGHT = 760, 62, 16
TOP, CURVES, GAP, BELOW, BOTTOM = 34, 250, 34, 110, 40  # heights: title, loss, gap, difference, axis
COLOURS = ("#1b6ca8", "#e07b00")


def draw(path: Path, curves: dict[str, list[float]]) -> None:
    """Writes the picture; curves: two lists of losses by name."""
    (first, a), (second, b) = curves.items()
    steps = len(a)
    differences = [abs(x - y) for x, y in zip(a, b)]
    top = math.ceil(max(a + b))
    lowest = math.floor(math.log10(max(min(d for d in differences + [1.0] if d > 0), 1e-9)))
    highest = math.ceil(math.log10(max(max(differences), 10.0**lowest * 10)))

    def x(step):
        return LEFT + (WIDTH - LEFT - RIGHT) * step / max(steps - 1, 1)

    def loss(value):
        return TOP + CURVES * (1 - value / top)

    def difference(value):
        share = (math.log10(max(value, 10.0**lowest)) - lowest) / (highest - lowest)
        return TOP + CURVES + GAP + BELOW * (1 - share)

    height = TOP + CURVES + GAP + BELOW + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">Training a character-level transformer: cross entropy (nats) at each step</text>',
    ]
    for value in range(top + 1):
        lines += _rule(loss(value), str(value))
    for power in range(lowest, highest + 1):
        lines += _rule(difference(10.0**power), f"1e{power}")
    for step in range(0, steps, max(steps // 6 // 10 * 10, 1)):
        lines.append(f'<text x="{x(step):.1f}" y="{height - 20}" text-anchor="middle">{step}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{height - 5}" text-anchor="end">step</text>')
    for losses, colour, width in ((a, COLOURS[0], 3.5), (b, COLOURS[1], 1.2)):
        lines.append(_curve([(x(n), loss(y)) for n, y in enumerate(losses)], colour, width))
    lines.append(_curve([(x(n), difference(d)) for n, d in enumerate(differences)], "#555", 1))
    for n, name in enumerate((first, second)):
        lines.append(f'<text x="{WIDTH - RIGHT - 6}" y="{TOP + 18 + 18 * n}" text-anchor="end" fill="{COLOURS[n]}">{name}</text>')
    lines.append(f'<text x="{WIDTH - RIGHT - 6}" y="{TOP + CURVES + GAP + 14}" text-anchor="end" fill="#555">difference</text>')
    path.write_text("\n".join([*lines, "</svg>", ""]))


def _rule(y: float, label: str) -> list[str]:
    return [
        f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
    ]


def _curve(points: list[tuple[float, float]], colour: str, width: float) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
