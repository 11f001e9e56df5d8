"""Reliability diagrams as SVG, drawn by hand so that no plotting library is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import sqrt

# Size of the square, room for the numbers beside it, height of the counts below.
SIDE, LEFT, TOP, GAP, COUNTS = 220.0, 50.0, 10.0, 12.0, 34.0
WIDTH, HEIGHT = LEFT + SIDE + 12, TOP + SIDE + GAP + COUNTS + 36


def reliability_svg(bins: Mapping[str, Sequence[float]], title: str) -> str:
    """Frequency against confidence of the predicted class, and how many rows.

    Parameters
    ----------
    bins : dict
        Sums over rows by bin: ``n``, ``confidence`` and ``hits``.
    title : str
        What is shown.
    """
    n_bins = len(bins["n"])
    most = max(bins["n"]) or 1.0
    parts = [_frame()]
    for i, (n, confidence, hits) in enumerate(
        zip(bins["n"], bins["confidence"], bins["hits"], strict=True)
    ):
        if n:
            parts.append(_bin(i, n_bins, n, confidence / n, hits / n, most))
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" '
        f'aria-label="{escape(title)}. {escape(_spoken(bins))}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _spoken(bins: Mapping[str, Sequence[float]]) -> str:
    total = sum(bins["n"]) or 1.0
    return (
        f"Mean confidence {100 * sum(bins['confidence']) / total:.1f} %, right "
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
        'text-anchor="middle">share that is right</text>'
    )
    return "".join(parts)


def _bin(
    i: int, n_bins: int, n: float, confidence: float, share: float, most: float
) -> str:
    """Gap to the diagonal, the share with its interval, and the count below."""
    step = SIDE / n_bins
    left = LEFT + i * step + 1
    low, high = wilson(share, n)
    top, bottom = _y(max(share, confidence)), _y(min(share, confidence))
    x = _x(confidence)
    height = COUNTS * n / most
    base = TOP + SIDE + GAP + COUNTS
    return (
        f'<rect class="gap" x="{left:.2f}" y="{top:.2f}" width="{step - 2:.2f}" '
        f'height="{bottom - top:.2f}"/>'
        f'<line class="band" x1="{x:.2f}" x2="{x:.2f}" y1="{_y(high):.2f}" '
        f'y2="{_y(low):.2f}"/>'
        f'<circle class="point" cx="{x:.2f}" cy="{_y(share):.2f}" r="3.2"/>'
        f'<rect class="count" x="{left:.2f}" y="{base - height:.2f}" '
        f'width="{step - 2:.2f}" height="{height:.2f}"/>'
    )


def wilson(share: float, n: float, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share of `n` rows, of about 95 %."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(middle - half, 0.0), min(middle + half, 1.0)
