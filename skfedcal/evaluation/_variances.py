"""Closed-form variances of counts on few levels."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, sqrt

import numpy as np


def discrete_laplace_variance(eps: float) -> float:
    """Variance of discrete Laplace noise, ``P(k) ~ exp(-eps |k|)``.

    Parameters
    ----------
    eps : float
        Budget over sensitivity.

    Returns
    -------
    variance : float
        ``2 a / (1 - a)**2``, a = exp(-eps); below ``2 / eps**2``.
    """
    return 2 * exp(-eps) / expm1(-eps) ** 2


def prefix_std(levels: Sequence[int], variances: Sequence[float]) -> float:
    """Standard deviation of the noise in a count below a threshold, at any leaf edge.

    Least squares over all levels. Levels are nested, so that the squares of a linear
    functional split into orthogonal parts, one per level, and nothing needs solving.

    Parameters
    ----------
    levels : sequence of int
        Bit depths, increasing; the last one is the height.
    variances : sequence of float
        Variance of the noise in a count of each level.

    Returns
    -------
    std : float
        Root of the mean variance over all edges. At ``eps=1`` and height 10, with eps
        divided equally: 10.95 for (2, 6, 10), 16.7 for all ten levels, 30.7 for one.
    """
    # H' S^-1 H is a sum of width / variance times the projection on vectors that are
    # constant in the nodes of a level.
    widths = 2 ** (levels[-1] - np.asarray(levels))
    weight = widths / np.asarray(variances, dtype=np.float64)
    spread = 1 / np.cumsum(weight[::-1])[::-1]
    edges = np.arange(2 ** levels[-1] + 1)[:, None]
    whole, rest = np.divmod(edges, widths)
    norms = whole * widths + rest**2 / widths
    parts = np.diff(norms, axis=1, prepend=0.0)
    return sqrt(float((parts * spread).sum(axis=1).mean()))


def raw_prefix_std(height: int, variance: float) -> float:
    """Give the same for the paper's sum of dyadic counts, without least squares.

    Parameters
    ----------
    height : int
        Binary levels h, all of them counted.
    variance : float
        Variance of the noise in each count.

    Returns
    -------
    std : float
        ``sqrt(variance * h / 2)``: every second level has a count in the sum.
    """
    return sqrt(variance * height / 2)


def auto_levels(height: int, bits: int = 4) -> tuple[int, ...]:
    """Bit depths of `bits` each, counted from the leaves: (2, 6, 10) for height 10.

    Parameters
    ----------
    height : int
        Depth of the leaves.
    bits : int, default=4
        Bits from one level to the next.

    Returns
    -------
    levels : tuple of int
        Increasing.
    """
    return tuple(range(height, 0, -bits))[::-1]
