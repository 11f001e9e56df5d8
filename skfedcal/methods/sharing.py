"""Set the probability of the most probable class, and adjust the others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal import _numerics

Array = NDArray[Any]

# The most even vector leaves the others this part less than an equal share, so that
# float32 still tells the order.
AHEAD = 1e-3

# Exponents beyond this are exactly 0.
VANISHED = 800.0
MAX_FACTOR = 1e300

# Steps of Newton's method; it rises toward the root and has 1e-12 after six or so.
_MAX_STEPS, _CLOSE = 200, 1e-12


def temper_to(logits: Array, own: Array) -> Array:
    """Divide each row by the temperature that gives its largest entry `own`.

    The order of the classes does not change. Values that cannot be reached, such as
    less than an equal share, or more than one half for two tied classes, are
    approximated.

    Parameters
    ----------
    logits : ndarray of shape (n_rows, n_classes)
        Centred logits.
    own : ndarray of shape (n_rows,)
        Probability of the largest, strictly inside (0, 1).

    Returns
    -------
    logits : ndarray of shape (n_rows, n_classes), float64
    """
    return temper_to_odds(logits, -np.log((1 - own) / own))


def temper_to_odds(logits: Array, own: Array) -> Array:
    """As `temper_to`, with log-odds, which are accurate also close to 0 and 1."""
    # Not negated: -0.0 would have the wrong sign to divide by.
    gaps = np.minimum(np.abs(logits.astype(np.float64, order="C")), _numerics.MAX_SPAN)
    n_others = gaps.shape[1] - 1
    if not n_others:
        return -gaps
    others = np.ones(gaps.shape, dtype=bool)
    others[np.arange(len(gaps)), gaps.argmin(axis=1)] = False
    target = np.minimum(-own, np.log(n_others * (1 - AHEAD)))
    factor = _factors(gaps[others].reshape(-1, n_others), target)
    return np.maximum(-factor[:, None] * gaps, -_numerics.MAX_SPAN)


def share_rest(logits: Array, top: Array, own: Array) -> Array:
    """Logarithms of probabilities: `own` for class `top`, the rest in proportion.

    Another class may then have more than `top`. Parameters as for `temper_to`.
    """
    rows = np.maximum(logits.astype(np.float64), -_numerics.MAX_SPAN)
    if rows.shape[1] == 1:
        return np.zeros(rows.shape)
    which = (np.arange(len(rows)), top)
    rows[which] = -np.inf
    rows -= rows.max(axis=1, keepdims=True)
    rows -= np.log(np.einsum("ij->i", np.exp(rows)))[:, None]
    rows += np.log1p(-own)[:, None]
    rows[which] = np.log(own)
    return rows


def _factors(gaps: Array, target: Array) -> Array:
    """Solve ``log(sum(exp(-factor * gaps))) = target`` for each row by Newton's method.

    The left side is convex and decreasing: from a start where it is too large, no step
    overshoots. A row that has converged is not changed by the steps of others.
    """
    least = gaps.min(axis=1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # Not even the sum of equal terms is smaller, nor is one of them alone.
        mean = np.einsum("ij->i", gaps) / gaps.shape[1]
        start = np.fmax((np.log(gaps.shape[1]) - target) / mean, -target / least)
        apart = np.where(gaps > 0, gaps, np.inf).min(axis=1)
        highest = np.minimum(VANISHED / apart, MAX_FACTOR)
    factor = np.fmin(start, highest)
    extra = gaps - least[:, None]
    going = np.arange(len(gaps))
    for _ in range(_MAX_STEPS):
        if not len(going):
            break
        now, more = factor[going], extra[going]
        terms = np.exp(-now[:, None] * more)
        total = np.einsum("ij->i", terms)
        excess = np.log(total) - now * least[going] - target[going]
        slope = least[going] + np.einsum("ij,ij->i", terms, more) / total
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            step = np.fmax(excess / slope, 0.0)
        factor[going] = np.fmin(now + step, highest[going])
        going = going[(step > _CLOSE * now) & (now < highest[going])]
    return factor
