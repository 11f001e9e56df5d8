"""Figures of the page as SVG, and the values that its script draws them from.

- Reliability diagrams: every bin shows its numbers when it is pointed at or focused.
- Curves of cwECE against what was varied.

No plotting library is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any

from skfedcal.experiments.report.verdict import Pick

if TYPE_CHECKING:
    from skfedcal.experiments.comparison.result import Comparison

# Size of the square, room for the numbers beside it, height of the counts below.
SIDE, LEFT, TOP, GAP, COUNTS = 220.0, 50.0, 10.0, 12.0, 34.0
WIDTH, HEIGHT = LEFT + SIDE + 12, TOP + SIDE + GAP + COUNTS + 36

# What report.js needs to draw the same.
FRAME = {"side": SIDE, "left": LEFT, "top": TOP, "gap": GAP, "counts": COUNTS}

BIN_HEADS = ("confidence", "rows", "mean confidence", "accuracy", "95 % interval")
BIN_TEXT = (
    "Confidence {0}: {1} rows, mean confidence {2}, accuracy {3}, 95 % interval {4}"
)

# With a blank that does not end a line.
PERCENT = "\u00a0%"
# Decimals of shares: less than a tenth of a pixel.
DECIMALS = 5


@dataclass(frozen=True, slots=True)
class Bin:
    """Rows of one bin of confidence, rounded as they are shown and embedded.

    place, n_bins: Index of the bin, and number of bins.
    n: Rows.
    confidence, accuracy: Means over its rows.
    low, high: Interval of the accuracy, of about 95 %.
    """

    place: int
    n_bins: int
    n: float
    confidence: float
    accuracy: float
    low: float
    high: float

    @property
    def cells(self) -> list[str]:
        """Numbers as text, in the order of BIN_HEADS."""
        low, high = self.place / self.n_bins, (self.place + 1) / self.n_bins
        return [
            f"{low:.3g} to {high:.3g}",
            f"{self.n:,.0f}" if self.n < 1e15 else f"{self.n:.3g}",
            f"{100 * self.confidence:.1f}{PERCENT}",
            f"{100 * self.accuracy:.1f}{PERCENT}",
            f"{100 * self.low:.1f} to {100 * self.high:.1f}{PERCENT}",
        ]

    def to_list(self) -> list[Any]:
        """Values for report.js."""
        numbers = (self.confidence, self.accuracy, self.low, self.high)
        return [self.place, self.n, *numbers, self.cells]


def read_bins(bins: Mapping[str, Sequence[float]]) -> list[Bin]:
    """Bins that have rows.

    bins: Sums over rows by bin: ``n``, ``confidence`` and ``hits``.
    """
    n_bins, found = len(bins["n"]), []
    sums = zip(bins["n"], bins["confidence"], bins["hits"], strict=True)
    for i, (n, confidence, hits) in enumerate(sums):
        if n:
            values = (confidence / n, hits / n, *wilson(hits / n, n))
            rounded = (round(value, DECIMALS) for value in values)
            found.append(Bin(i, n_bins, float(f"{n:.12g}"), *rounded))
    return found


def reliability_svg(bins: Mapping[str, Sequence[float]], title: str) -> str:
    """Accuracy against confidence of the predicted class, and how many rows."""
    found = read_bins(bins)
    most = max((one.n for one in found), default=1.0)
    drawn = "".join(
        f'<g class="bin" role="img"><title>{BIN_TEXT.format(*one.cells)}</title>'
        f"{''.join(_shapes(one, most))}</g>"
        for one in found
    )
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="group" '
        f'aria-label="{escape(title)}. {escape(means_text(bins))}">{_frame()}'
        f'<g class="bins">{drawn}</g></svg>'
    )


def means_text(bins: Mapping[str, Sequence[float]]) -> str:
    """Say the means over all rows of a diagram."""
    total = sum(bins["n"]) or 1.0
    return (
        f"Mean confidence {100 * sum(bins['confidence']) / total:.1f} %, accuracy "
        f"{100 * sum(bins['hits']) / total:.1f} %, {total:.0f} rows."
    )


def _x(value: float) -> float:
    return LEFT + SIDE * value


def _y(value: float) -> float:
    return TOP + SIDE * (1 - value)


def _frame() -> str:
    """Axes, grid, numbers and the diagonal of a perfect model."""
    parts = [
        f'<rect class="plot" x="{LEFT:g}" y="{TOP:g}" width="{SIDE:g}" '
        f'height="{SIDE:g}"/>'
    ]
    low = TOP + SIDE + GAP + COUNTS
    for k in range(5):
        value = k / 4
        parts.append(
            f'<line class="grid" x1="{_x(value):g}" x2="{_x(value):g}" y1="{TOP:g}" '
            f'y2="{TOP + SIDE:g}"/><line class="grid" x1="{LEFT:g}" '
            f'x2="{LEFT + SIDE:g}" y1="{_y(value):g}" y2="{_y(value):g}"/>'
            f'<text class="tick" x="{LEFT - 5:g}" y="{_y(value) + 4:g}" '
            f'text-anchor="end">{value:g}</text><text class="tick" x="{_x(value):g}" '
            f'y="{low + 14:g}" text-anchor="middle">{value:g}</text>'
        )
    parts.append(
        f'<line class="perfect" x1="{_x(0):g}" y1="{_y(0):g}" x2="{_x(1):g}" '
        f'y2="{_y(1):g}"/>'
    )
    middle = TOP + SIDE / 2
    parts.append(
        f'<text class="name" x="{_x(0.5):g}" y="{low + 29:g}" text-anchor="middle">'
        "confidence</text>"
        f'<text class="name" transform="translate(11 {middle:g}) rotate(-90)" '
        'text-anchor="middle">accuracy</text>'
    )
    return f'<g aria-hidden="true">{"".join(parts)}</g>'


def _shapes(one: Bin, most: float) -> Iterator[str]:
    """Area to point at, gap to the diagonal, accuracy with its interval, and rows.

    `shapes` in report.js draws the same.
    """
    step = SIDE / one.n_bins
    edge = LEFT + one.place * step
    top = _y(max(one.accuracy, one.confidence))
    bottom = _y(min(one.accuracy, one.confidence))
    x = _x(one.confidence)
    base = TOP + SIDE + GAP + COUNTS
    height = COUNTS * one.n / most
    yield _rect("hit", edge, TOP, step, base - TOP)
    yield _rect("gap", edge + 1, top, step - 2, bottom - top)
    yield (
        f'<line class="band" x1="{x:.2f}" x2="{x:.2f}" y1="{_y(one.high):.2f}" '
        f'y2="{_y(one.low):.2f}"/>'
    )
    yield f'<circle class="point" cx="{x:.2f}" cy="{_y(one.accuracy):.2f}" r="3.2"/>'
    yield _rect("count", edge + 1, base - height, step - 2, height)


def _rect(name: str, x: float, y: float, width: float, height: float) -> str:
    return (
        f'<rect class="{name}" x="{x:.2f}" y="{y:.2f}" '
        f'width="{max(width, 0.5):.2f}" height="{height:.2f}"/>'
    )


def wilson(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share of `n` rows, of about 95 %."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)


# Size of the figure, and edges of the plot in it.
CURVE_WIDTH, CURVE_HEIGHT = 640.0, 280.0
CURVE_LEFT, CURVE_RIGHT, CURVE_TOP, CURVE_BOTTOM = 52.0, 510.0, 12.0, 240.0

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
            figures.append(_curve_figure(lines, name, eps))
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


def _curve_figure(
    lines: dict[str, list[tuple[float, float]]], name: str, eps: str
) -> str:
    places = sorted({x for points in lines.values() for x, _ in points})
    top = 1.08 * max(y for points in lines.values() for _, y in points) or 1.0
    step = (CURVE_RIGHT - CURVE_LEFT) / len(places)
    # Equal steps: rounds and budgets are mostly given as 1, 3, 10, 30.
    at = {x: CURVE_LEFT + step * (i + 0.5) for i, x in enumerate(places)}
    parts = [_curve_frame(at, top)]
    for i, (method, points) in enumerate(lines.items()):
        parts.append(_curve(i, method, [(at[x], _curve_y(y, top)) for x, y in points]))
    title = f"cwECE in % against {name}, eps {eps}"
    parts.append(
        f'<text class="name" x="{(CURVE_LEFT + CURVE_RIGHT) / 2:g}" '
        f'y="{CURVE_HEIGHT - 6:g}" text-anchor="middle">{escape(name)}</text>'
    )
    return (
        f'<figure><svg viewBox="0 0 {CURVE_WIDTH:g} {CURVE_HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(parts)}'
        f"</svg><figcaption>{escape(title)}</figcaption></figure>"
    )


def _curve_y(value: float, top: float) -> float:
    return CURVE_TOP + (CURVE_BOTTOM - CURVE_TOP) * (1 - value / top)


def _curve_frame(at: dict[float, float], top: float) -> str:
    """Axes with numbers."""
    parts = [
        f'<rect class="plot" x="{CURVE_LEFT:g}" y="{CURVE_TOP:g}" '
        f'width="{CURVE_RIGHT - CURVE_LEFT:g}" height="{CURVE_BOTTOM - CURVE_TOP:g}"/>'
    ]
    parts += [
        f'<text class="tick" x="{place:.1f}" y="{CURVE_BOTTOM + 15:g}" '
        f'text-anchor="middle">{x:g}</text>'
        for x, place in at.items()
    ]
    for k in range(5):
        value = top * k / 4
        y = _curve_y(value, top)
        parts.append(
            f'<line class="grid" x1="{CURVE_LEFT:g}" x2="{CURVE_RIGHT:g}" y1="{y:.1f}" '
            f'y2="{y:.1f}"/><text class="tick" x="{CURVE_LEFT - 5:g}" y="{y + 4:.1f}" '
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
    left, y = CURVE_RIGHT, CURVE_TOP + 14 + 18 * i
    return (
        f'<polyline class="curve" points="{path}" stroke="{colour}" '
        f'stroke-dasharray="{dash}"/>{dots}<line class="curve" stroke="{colour}" '
        f'stroke-dasharray="{dash}" x1="{left + 8:g}" x2="{left + 32:g}" '
        f'y1="{y - 4:g}" y2="{y - 4:g}"/><text class="tick" x="{left + 37:g}" '
        f'y="{y:g}">{escape(method)}</text>'
    )
