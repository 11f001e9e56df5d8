"""Least squares on a tree of counts: levels that were noised apart made consistent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def rollup(leaves: Array, bits: int) -> Array:
    """Sum leaves of shape (..., 2**height) to the ``2**bits`` nodes above them."""
    shape = (*leaves.shape[:-1], 2**bits, leaves.shape[-1] >> bits)
    out: Array = leaves.reshape(shape).sum(axis=-1)
    return out


def wls_tree(
    totals: Sequence[Array], variances: Sequence[float], levels: Sequence[int]
) -> Array:
    """Leaf counts that fit the noisy totals of all levels best.

    Exact weighted least squares for independent noise with one variance per level, in
    time linear in the number of leaves: inverse-variance averages from the leaves up,
    then the mismatch of each node is spread over its children.

    Parameters
    ----------
    totals : sequence of ndarray of shape (..., 2**bits)
        Noisy counts of each level.
    variances : sequence of float
        Variance of one count of each level.
    levels : sequence of int
        Increasing bit depths.

    Returns
    -------
    leaves : ndarray of shape (..., 2**levels[-1])
        Unbiased and not clipped.
    """
    means = [np.asarray(total, dtype=np.float64) for total in totals]
    below = float(variances[-1])
    for i in range(len(levels) - 2, -1, -1):
        fan = 2 ** (levels[i + 1] - levels[i])
        children, own = fan * below, float(variances[i])
        # Exact children leave nothing to learn from their parent.
        weight = children / (children + own) if children > 0 else 0.0
        sums = rollup(means[i + 1], levels[i])
        means[i] = weight * means[i] + (1 - weight) * sums
        below = own * weight
    leaves = means[0]
    for i in range(1, len(levels)):
        fan = 2 ** (levels[i] - levels[i - 1])
        gap = (leaves - rollup(means[i], levels[i - 1])) / fan
        leaves = means[i] + np.repeat(gap, fan, axis=-1)
    return leaves


def wls_dual(
    functional: Array, variances: Sequence[float], levels: Sequence[int]
) -> Array:
    """Vector ``(H'WH)^-1 g`` for the linear functional ``g`` of the leaves."""
    totals: list[Array] = [
        np.zeros((*functional.shape[:-1], 2**bits)) for bits in levels
    ]
    totals[-1] = functional * float(variances[-1])
    return wls_tree(totals, variances, levels)


def wls_functional_var(
    functional: Array, variances: Sequence[float], levels: Sequence[int]
) -> Array:
    """Exact noise variance of ``(g * leaves).sum()`` over the last two axes."""
    dual = wls_dual(functional, variances, levels)
    out: Array = (functional * dual).sum(axis=(-2, -1))
    return out
