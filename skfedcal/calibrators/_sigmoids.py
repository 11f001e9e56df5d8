"""Platt and beta curves: logistic fits to (noisy) counts."""

from __future__ import annotations

from typing import Literal

import numpy as np

from skfedcal.calibrators._curves import Array, Curve, Leaves, expit, features

_MAX_NEWTON = 100


def fit_sigmoid(leaves: Leaves, kind: Literal["platt", "beta"]) -> Curve:
    """Logistic fit on features of the log-odds, with slopes that are not negative."""
    odds = leaves.inner_odds()
    rows = features(odds, kind)
    clipped = np.maximum(leaves.counts, 0.0)
    start = np.zeros(rows.shape[1])
    start[:-1] = 1.0
    free = np.ones(len(start), dtype=bool)
    while True:
        start[~free] = 0.0
        found = _newton(rows, smoothed(clipped), start, free)
        falling = free & (found < 0)
        falling[-1] = False
        if not falling.any():
            break
        free &= ~falling
    if leaves.noisy:
        found = _unclipped(rows, leaves.counts, found, free)
    return Curve(kind, np.empty(0), found)


def smoothed(counts: Array) -> Array:
    """Labels a little short of certain, as Platt does: sums of both are kept finite."""
    negative, positive = counts.sum(axis=1)
    hit, miss = (positive + 1) / (positive + 2), 1 / (negative + 2)
    moved = counts[1] * hit + counts[0] * miss
    return np.stack([counts.sum(axis=0) - moved, moved])


def _newton(rows: Array, counts: Array, start: Array, free: Array) -> Array:
    """Least log loss over the free coefficients; counts are not negative."""
    used = counts.sum(axis=0) > 0
    rows, counts = rows[used], counts[:, used]
    total = counts.sum(axis=0)

    def loss(weights: Array) -> float:
        z = rows @ weights
        return float(np.logaddexp(0, z) @ total - z @ counts[1])

    found, value = start.copy(), loss(start)
    for _ in range(_MAX_NEWTON):
        step = _step(rows, counts, found, free)
        scale = 1.0
        while loss(found + scale * step) > value + 1e-12 and scale > 1e-8:
            scale /= 2
        found = found + scale * step
        value = loss(found)
        if np.abs(scale * step).max() < 1e-10 * (1 + np.abs(found).max()):
            break
    return found


def _step(rows: Array, counts: Array, at: Array, free: Array) -> Array:
    """Newton step, with a ridge where two coefficients cannot be told apart."""
    chance = expit(rows @ at)
    total = counts.sum(axis=0)
    slope = rows[:, free].T @ (counts[1] - total * chance)
    bend = (rows[:, free] * (total * chance * (1 - chance))[:, None]).T @ rows[:, free]
    bend = bend + (1e-10 * np.trace(bend) + 1e-12) * np.eye(len(bend))
    step = np.zeros(len(at))
    step[free] = np.linalg.solve(bend, slope)
    return step


def _unclipped(rows: Array, counts: Array, start: Array, free: Array) -> Array:
    """Root of the score equation with unbiased counts, near the fit to clipped ones.

    Clipping makes the many leaves with few rows look as if they had both labels. The
    equation is linear in the counts, so that its noise averages out; where it is too
    strong for a root nearby, the fit to clipped counts is kept.
    """
    found = start
    for _ in range(_MAX_NEWTON):
        try:
            step = _step(rows, counts, found, free)
        except np.linalg.LinAlgError:
            return start
        found = found + step
        far = np.abs(found - start).max() > 2 + np.abs(start).max()
        if far or not np.isfinite(found).all():
            return start
        if np.abs(step).max() < 1e-9:
            return start if (found[:-1] < 0).any() else found
    return start
