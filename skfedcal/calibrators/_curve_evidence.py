"""What counts say about the input and about a curve, noise and overfitting aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from skfedcal.calibrators._curves import (
    Array,
    Curve,
    Leaves,
    bbq_optimism,
    equal_mass,
    expit,
    features,
)

# Groups of scores in which labels are compared with them: few enough that noise
# does not hide a curve, many enough for any shape that a curve could mend.
_GROUPS = 8

# Coefficients that the ends of a monotone curve are worth beyond their own two: their
# few rows cost more log loss than a variance says. 0 to 5 were measured on calibrated
# scores of five kinds, with 100 to 20,000 rows.
_END_OPTIMISM = 2.0

# Curvature by one bin, in deviations of the noise, below which it is not taken to be:
# 0.5 gave the optimism of bins of scores of three kinds, under two laws of noise.
_LEAST_BEND = 0.5


def evidence(every: Sequence[Leaves]) -> float:
    """Deviations by which labels differ from what the scores say.

    The larger of two score tests: of slope and shift of the log-odds, and of the
    number of positives in groups of scores. The covariance is that of the noise, which
    is known, and of the sample if the scores are right: unlike a fit the test keeps its
    size where noise is as large as the counts.

    What the labels differ by is of no use if nobody knows of how many rows: it is not
    more than the deviations by which the curvature of the log loss exceeds the noise.
    """
    lines = [_score_test(leaves, _line(leaves)) for leaves in every]
    groups = [_score_test(leaves, _groups(leaves)) for leaves in every]
    tests = [deviations(*np.sum(found, axis=0)) for found in (lines, groups)]
    return min(max(tests), _known(every))


def _known(every: Sequence[Leaves]) -> float:
    """Deviations of the noise that the curvature by slope or shift is away from 0."""
    sums, variances = np.zeros(2), np.zeros(2)
    for leaves in every:
        odds = leaves.inner_odds()
        chance = expit(odds)
        bends = features(odds, "platt").T ** 2 * chance * (1 - chance)
        sums += bends @ leaves.counts.sum(axis=0)
        variances += leaves.variance(np.repeat(bends[:, None], 2, axis=1))[1]
    if not variances.all():
        return np.inf
    return float(np.min(sums / np.sqrt(variances)))


def deviations(statistic: float, freedom: float) -> float:
    """Normal deviations of a chi-squared statistic (Wilson and Hilferty)."""
    if freedom < 1:
        return -np.inf
    spread = 2 / (9 * freedom)
    return float((np.cbrt(statistic / freedom) - (1 - spread)) / np.sqrt(spread))


def _line(leaves: Leaves) -> Array:
    return features(leaves.inner_odds(), "platt").T


def _groups(leaves: Leaves) -> Array:
    n_leaves = leaves.counts.shape[1]
    # Groups that noise has a part in would gather what it has added.
    n_groups = min(_GROUPS, n_leaves)
    first = np.arange(n_groups) * n_leaves // n_groups
    if not leaves.noisy:
        first = equal_mass(leaves.counts, _GROUPS)
    which = np.searchsorted(first, np.arange(n_leaves), side="right") - 1
    return (which == np.arange(len(first))[:, None]).astype(np.float64)


def _score_test(leaves: Leaves, columns: Array) -> tuple[float, int]:
    """Squared deviation of sums of ``column * (label - chance)``, and its freedom."""
    chance = expit(leaves.inner_odds())
    functionals = np.stack([-chance, 1 - chance]) * columns[:, None]
    null = replace(leaves, counts=leaves.rows() * np.stack([1 - chance, chance]))
    size = np.sqrt(np.sum(null.variance(functionals), axis=0))
    used = size > 0
    if not used.any():
        return 0.0, 0
    functionals = functionals[used] / size[used, None, None]
    sums = np.sum(leaves.counts * functionals, axis=(1, 2))
    values, vectors = np.linalg.eigh(_covariance(null, functionals))
    # Columns that are the same for all rows that there are, such as a lone leaf's.
    free = values > 1e-6 * values[-1]
    scores = vectors[:, free].T @ sums
    return float(np.sum(scores**2 / values[free])), int(free.sum())


def _covariance(leaves: Leaves, functionals: Array) -> Array:
    """Covariance, of sample and noise, of functionals of unit variance."""
    upper = np.triu_indices(len(functionals), 1)
    out = np.eye(len(functionals))
    pairs = functionals[upper[0]] + functionals[upper[1]]
    both = np.sum(leaves.variance(pairs), axis=0)
    out[upper] = out[upper[::-1]] = (both - 2) / 2
    return out


def saving(leaves: Leaves, curve: Curve, *, averaged: bool = False) -> Array:
    """Log loss that a curve saves on these counts, and how much of it is optimism.

    Fitted and measured on the same counts the saving comes out too large: on average,
    by Stein's identity, by the covariance of the counts (of the noise, and of the
    sample) times the derivative of the logs of the curve. In coordinates of the fit
    that have unit curvature it is the sum of the variances of the scores.

    Parameters
    ----------
    leaves : Leaves
        Counts that the curve was fitted to.
    curve : Curve
        Fitted curve.
    averaged : bool, default=False
        The curve is an average over histograms (BBQ).
    """
    odds = leaves.inner_odds()
    new = curve(odds)
    logs = np.stack(
        [np.logaddexp(0, odds) - np.logaddexp(0, new),
         np.logaddexp(0, -odds) - np.logaddexp(0, -new)]
    )  # fmt: skip
    if averaged:
        # An average that is far from the input is measured with much noise: what it
        # saves has to stand out.
        noise = np.sqrt(leaves.variance(logs[None])[1][0])
        optimism = bbq_optimism(leaves) + float(noise)
    else:
        optimism = _optimism(leaves, curve, odds, new)
    return np.array([np.sum(leaves.counts * logs), optimism])


def _optimism(leaves: Leaves, curve: Curve, odds: Array, new: Array) -> float:
    sampling, privacy = leaves.variance(_whitened_scores(leaves, curve, odds, new))
    # Few rows of one label seem to vary less than they do.
    found = float(np.sum(np.maximum(sampling, 1.0) + privacy))
    return found + _END_OPTIMISM if curve.kind == "line" else found


def _whitened_scores(leaves: Leaves, curve: Curve, odds: Array, new: Array) -> Array:
    """Derivatives of the log loss by coefficients that have unit curvature."""
    chance = expit(new)
    rows = leaves.rows()
    # Of one example of each label, by the log-odds of its leaf.
    slopes = np.stack([-chance, 1 - chance])
    if curve.kind in ("platt", "beta"):
        design = features(odds, curve.kind)
        bend = (design * (rows * chance * (1 - chance))[:, None]).T @ design
        values, vectors = np.linalg.eigh(bend)
        used = values > 1e-12 * values[-1]
        white = design @ (vectors[:, used] / np.sqrt(values[used]))
        return slopes * white.T[:, None]
    # One coefficient for each run of equal values, at the nearest corner of a line.
    level = new
    if curve.kind == "line":
        between = (curve.points[1:] + curve.points[:-1]) / 2
        level = curve.values[np.searchsorted(between, expit(odds))]
    runs = np.cumsum(np.append(0, np.diff(level) != 0))
    inside = (runs == np.arange(runs[-1] + 1)[:, None]).astype(np.float64)
    bend = inside @ (rows * chance * (1 - chance))
    inside, bend = inside[bend > 0], bend[bend > 0]
    functionals = slopes * inside[:, None]
    if leaves.noisy:
        # With fewer examples of a label than the noise is wide, the logs of their
        # share follow the noise, whatever number happened to be released.
        noise = np.sqrt(leaves.variance(functionals)[1])
        bend = np.maximum(bend, _LEAST_BEND * noise)
    return functionals / np.sqrt(bend)[:, None, None]
