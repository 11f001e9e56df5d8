"""Curves of cwECE against what was varied, as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isfinite
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.report.verdict import Pick

if TYPE_CHECKING:
    from skfedcal.experiments.comparison.result import Comparison

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640.0, 280.0, 52.0, 12.0, 130.0, 40.0

# Okabe and Ito's colours, told apart also by people who see few; with dashes and marks
# for print without colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "4 4", "1 2", "10 4")


def curves(comparison: Comparison, picks: Sequence[Pick]) -> str:
    """One figure per eps; nothing where nothing with numbers was varied."""
    if len(comparison.varied) != 1:
        return ""
    name = comparison.varied[0]
    figures = []
    for eps in dict.fromkeys(p.row["eps"] for p in picks if p.row["eps"] != "-"):
        lines: dict[str, list[tuple[float, float]]] = {}
        for pick in picks:
            at = _number(pick.row[name])
            if pick.row["eps"] == eps and at is not None:
                value = 100 * pick.row["cwECE"]
                lines.setdefault(pick.row["method"], []).append((at, value))
        lines = {method: sorted(points) for method, points in lines.items()}
        if any(len(points) > 1 for points in lines.values()):
            figures.append(_figure(lines, name, eps))
    if not figures:
        return ""
    return (
        f"<h2 id=curves>cwECE against {escape(name)}</h2>"
        f'<div class="curves">{"".join(figures)}</div>'
    )


def _number(value: Any) -> float | None:
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if isfinite(found) else None


def _figure(lines: dict[str, list[tuple[float, float]]], name: str, eps: str) -> str:
    places = sorted({x for points in lines.values() for x, _ in points})
    top = 1.08 * max(y for points in lines.values() for _, y in points) or 1.0
    step = (WIDTH - LEFT - RIGHT) / len(places)
    # Equal steps: rounds and budgets are mostly given as 1, 3, 10, 30.
    at = {x: LEFT + step * (i + 0.5) for i, x in enumerate(places)}
    parts = [_frame(at, top)]
    for i, (method, points) in enumerate(lines.items()):
        parts.append(_curve(i, method, [(at[x], _high(y, top)) for x, y in points]))
    title = f"cwECE in % against {name}, eps {eps}"
    parts.append(
        f'<text class="name" x="{(LEFT + WIDTH - RIGHT) / 2:g}" y="{HEIGHT - 6:g}" '
        f'text-anchor="middle">{escape(name)}</text>'
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}'
        f"</svg><figcaption>{escape(title)}</figcaption></figure>"
    )


def _high(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _frame(at: dict[float, float], top: float) -> str:
    """Axes with numbers."""
    parts = [
        f'<rect class="plot" x="{LEFT:g}" y="{TOP:g}" width="{WIDTH - LEFT - RIGHT:g}" '
        f'height="{HEIGHT - TOP - BOTTOM:g}"/>'
    ]
    parts += [
        f'<text class="tick" x="{place:.1f}" y="{HEIGHT - BOTTOM + 15:g}" '
        f'text-anchor="middle">{x:g}</text>'
        for x, place in at.items()
    ]
    for k in range(5):
        value = top * k / 4
        y = _high(value, top)
        parts.append(
            f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/><text class="tick" x="{LEFT - 5:g}" y="{y + 4:.1f}" '
            f'text-anchor="end">{value:.2f}</text>'
        )
    return "".join(parts)


def _curve(i: int, method: str, points: Sequence[tuple[float, float]]) -> str:
    """One line with its points, and its name beside the figure."""
    colour, dash = COLOURS[i % len(COLOURS)], DASHES[i % len(DASHES)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points
    )
    left, y = WIDTH - RIGHT, TOP + 14 + 18 * i
    return (
        f'<polyline class="curve" points="{path}" stroke="{colour}" '
        f'stroke-dasharray="{dash}"/>{dots}<line class="curve" stroke="{colour}" '
        f'stroke-dasharray="{dash}" x1="{left + 8:g}" x2="{left + 32:g}" '
        f'y1="{y - 4:g}" y2="{y - 4:g}"/><text class="tick" x="{left + 37:g}" '
        f'y="{y:g}">{escape(method)}</text>'
    )
