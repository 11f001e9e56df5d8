"""Calibration curves from (noisy) counts of scores: fit, choose and apply them.

A curve maps log-odds to calibrated log-odds. Counts have shape (2, n_leaves), negatives
and positives, and may be negative: they are unbiased, and sums of them are as well.

- Tests of the input and of a curve on counts, corrected for noise and overfitting.
- Choice of a curve, and its shrinkage weight.
- Calibrated logits of all classes from the curves of their scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation.grid import equal_mass
from skfedcal.evaluation.noise import NoiseModel
from skfedcal.methods.bins.rounds import BinTable
from skfedcal.methods.score_curves.rounds import odds_of

if TYPE_CHECKING:
    from skfedcal.methods.bins.bbq_table import Levels

Array = NDArray[Any]
Kind = Literal["steps", "line", "platt", "beta"]

# Buckets of an isotonic fit to noisy counts: many enough for the shape of a curve.
NOISY_BUCKETS = 64

# Share of the examples at either end whose log-odds are taken to be equal under noise:
# empty leaves there would add noise times large log-odds.
_TAIL = 0.002

# Pseudo-rows of a bin at what the scores in it say.
_BIN_ROWS = 1.0

# Pseudo-rows of a histogram of BBQ (N' of Naeini et al.), and the share of the average
# below which a histogram is left out.
_BBQ_ROWS, _LEAST_SHARE = 2.0, 1e-9

# Examples of the other label that either end of a monotone curve is taken to have: few
# rows of one label would say 0 or 1, and cost much log loss on the next one.
_END_ROWS = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """A calibration map of one score; monotone unless it has steps.

    kind ('steps', 'line', 'platt', 'beta'): Constant between points; straight between
        points, in probabilities; or a sigmoid of two or three coefficients.
    points: Log-odds between steps; probabilities of the corners of a line; else empty.
    values: Probabilities of steps (one more than points) or of corners; or
        coefficients: ``(a, b)`` of ``a z + b``, ``(a, b, c)`` of ``a log p - b log(1 -
        p) + c``.
    """

    kind: Kind
    points: Array
    values: Array

    def __call__(self, odds: Array) -> Array:
        """Calibrated log-odds."""
        if self.kind == "steps":
            index = np.searchsorted(self.points, odds, side="right")
            return odds_of(self.values)[index]
        if self.kind == "line":
            return odds_of(np.interp(expit(odds), self.points, self.values))
        if self.kind == "platt":
            return self.values[0] * odds + self.values[1]
        # Not a product of matrices, whose rounding depends on the number of rows.
        a, b, c = self.values
        return c - a * np.logaddexp(0, -odds) + b * np.logaddexp(0, odds)

    def check(self) -> None:
        """Raise ValueError if points and values, read from a file, are not a curve."""
        sizes = (len(self.points), len(self.values))
        fixed = {"platt": (0, 2), "beta": (0, 3)}.get(self.kind)
        if sizes != (fixed or (sizes[0], sizes[0] + (self.kind == "steps"))):
            raise ValueError("curve_points_ do not match curve_values_")
        if self.points.dtype != np.float64 or self.values.dtype != np.float64:
            raise ValueError("a curve has a wrong type")
        if not np.isfinite(self.values).all() or (np.diff(self.points) <= 0).any():
            raise ValueError("a curve has invalid values")


@dataclass(frozen=True, slots=True, eq=False)
class Leaves:
    """Counts of one score, their positions and their noise.

    counts of shape (2, n_leaves): Negatives and positives; not clipped.
    odds of shape (n_leaves,): Log-odds that represent each leaf.
    edges of shape (n_leaves - 1,): Log-odds between leaves.
    noise: Noise distribution of the counts.
    """

    counts: Array
    odds: Array
    edges: Array
    noise: NoiseModel

    @property
    def noisy(self) -> bool:
        return not self.noise.exact

    def rows(self) -> Array:
        """Number of examples in each leaf, not negative.

        Under noise they are scaled to the estimated total, because clipping alone would
        add the positive part of the noise.
        """
        out = np.maximum(self.counts.sum(axis=0), 0.0)
        if self.noisy:
            out *= max(float(self.counts.sum()), 1.0) / max(float(out.sum()), 1.0)
        return out

    def variance(self, functionals: Array) -> tuple[Array, Array]:
        """Sampling and privacy variance of functionals of shape (..., 2, n_leaves)."""
        flat = functionals.reshape(-1, *self.counts.shape)
        if not len(flat):
            return np.zeros(functionals.shape[:-2]), np.zeros(functionals.shape[:-2])
        # A few at a time: all buckets of 4096 leaves would take 300 MB.
        parts = [
            self.noise.variances(self.counts, flat[i : i + 64])
            for i in range(0, len(flat), 64)
        ]
        shape = functionals.shape[:-2]
        sampling, privacy = zip(*parts, strict=True)
        return (
            np.concatenate(sampling).reshape(shape),
            np.concatenate(privacy).reshape(shape),
        )

    def bucket_noise(self, first: Array) -> Array:
        """Standard deviation of the noise in the number of examples of each bucket."""
        if not self.noisy:
            return np.zeros(len(first))
        n_leaves = self.counts.shape[1]
        which = np.repeat(np.arange(len(first)), np.diff(np.append(first, n_leaves)))
        inside = (which == np.arange(len(first))[:, None]).astype(np.float64)
        return np.sqrt(self.variance(np.repeat(inside[:, None], 2, axis=1))[1])

    def inner_odds(self) -> Array:
        """Log-odds of the leaves; under noise limited to the range that has rows.

        The range is computed from the released counts.
        """
        if not self.noisy:
            return self.odds
        total = np.maximum.accumulate(np.cumsum(self.counts.sum(axis=0)))
        if total[-1] <= 0:
            return self.odds
        ends = np.searchsorted(total, np.array([_TAIL, 1 - _TAIL]) * total[-1])
        low, high = self.odds[np.minimum(ends, len(self.odds) - 1)]
        return np.clip(self.odds, low, high)


def fit_bins(leaves: Leaves, n_bins: int) -> Curve:
    """Frequency of positives in buckets of equal mass."""
    first = equal_mass(leaves.counts, n_bins)
    counts = np.maximum(np.add.reduceat(leaves.counts, first, axis=1), 0.0)
    rows = counts.sum(axis=0)
    middle = _means(expit(leaves.odds), leaves.counts.sum(axis=0), first)
    noise = leaves.bucket_noise(first)
    weight = _BIN_ROWS + noise
    values = (counts[1] + weight * middle) / (rows + weight)
    # None of a label makes a bin no more certain than the input, unless its rows do.
    least = (_END_ROWS + noise) / (rows + 2 * (_END_ROWS + noise))
    low, high = np.minimum(least, middle), np.minimum(least, 1 - middle)
    values = np.clip(values, low, 1 - high)
    return Curve("steps", leaves.edges[first[1:] - 1], values)


def fit_bbq(leaves: Leaves) -> Curve:
    """Average of histograms of 2, 4, ... bins of leaves; see FedBBQCalibrator."""
    return Curve("steps", leaves.edges, _average(leaves)[0].values[0])


def bbq_optimism(leaves: Leaves) -> float:
    """Coefficients of the average, and the effect of noise; see `saving`."""
    table, shares, levels, noise = _average(leaves)
    rows = np.maximum(levels.merge(leaves.counts.sum(axis=0)[None]), 0.0)
    fewer = np.hypot(*noise) * np.sqrt(leaves.counts.shape[1] / levels.size)
    # A bin is a coefficient as far as it has rows, beyond what noise makes of none.
    used = np.divide(rows, rows + fewer, out=np.zeros_like(rows), where=rows > 0)
    values = np.clip(table.values[0], 1e-9, 1 - 1e-9)
    assert table.rise is not None and table.fall is not None
    slopes = np.stack([table.fall[0] / (1 - values), table.rise[0] / values])
    noisy = np.square(noise)[:, None] * slopes
    return float(np.sum(shares * levels.sum_bins(used)) + np.sum(noisy))


def quantile_bbq(leaves: Leaves) -> tuple[list[Curve], Array]:
    """Histograms of bins of equal mass, and their weights in the average.

    B bins for all whole B from ``M**(1/3) / 10`` to ``10 M**(1/3)``, with M rows
    (Naeini et al.; section 7.3 of the paper on evaluation). The weight of a histogram
    is the probability of the labels under priors ``Beta(2 p / B, 2 (1 - p) / B)``, p
    being the middle of a bin; its values are the means of the posteriors. As in the
    paper there is no correction for noise: negative counts are zero.
    """
    from scipy.special import gammaln

    n_leaves = leaves.counts.shape[1]
    root = max(float(leaves.counts.sum()), 1.0) ** (1 / 3)
    edges = expit(np.concatenate([[-np.inf], leaves.edges, [np.inf]]))
    curves, scores, seen = [], [], set()
    for n_bins in range(max(int(np.ceil(root / 10)), 1), int(10 * root) + 1):
        first = equal_mass(leaves.counts, n_bins)
        if tuple(first) in seen:  # more bins than leaves with rows
            continue
        seen.add(tuple(first))
        counts = np.maximum(np.add.reduceat(leaves.counts, first, axis=1), 0.0)
        middle = (edges[first] + edges[np.append(first[1:], n_leaves)]) / 2
        prior = _BBQ_ROWS / len(first) * np.stack([1 - middle, middle])
        rows, weight = counts.sum(axis=0), prior.sum(axis=0)
        rise = gammaln(counts + prior) - gammaln(prior)
        scores.append(rise.sum() - np.sum(gammaln(rows + weight) - gammaln(weight)))
        values = (counts[1] + prior[1]) / (rows + weight)
        curves.append(Curve("steps", leaves.edges[first[1:] - 1], values))
    shares = np.exp(np.array(scores) - max(scores))
    kept = shares > _LEAST_SHARE * shares.sum()
    shares = np.where(kept, shares, 0.0) / shares[kept].sum()
    return [c for c, k in zip(curves, kept, strict=True) if k], shares[kept]


def fit_quantile_bbq(leaves: Leaves) -> Curve:
    """Average of histograms of bins of equal mass."""
    curves, shares = quantile_bbq(leaves)
    values = [expit(curve(leaves.odds)) for curve in curves]
    return Curve("steps", leaves.edges, shares @ np.stack(values))


def _average(leaves: Leaves) -> tuple[BinTable, Array, Levels, Array]:
    """Table of BBQ, the shares of its levels, and noise of negatives, positives."""
    from skfedcal.methods.bins.bbq_table import Levels, bbq_table

    negative, positive = leaves.counts[:, None]
    n_leaves = positive.shape[1]
    sizes = Levels.of(n_leaves).sizes
    rows = leaves.rows()
    chance = expit(leaves.odds)
    middle = [
        _means(chance, rows, np.arange(0, n_leaves, n_leaves // s)) for s in sizes
    ]
    levels = Levels(sizes, np.concatenate(middle), np.repeat(sizes, sizes))
    # Next to none instead of none: slopes are given only if there is noise.
    noise = np.full(2, 1e-100)
    if leaves.noisy:
        one = np.zeros((2, 2, n_leaves))
        one[[0, 1], [0, 1], n_leaves // 2] = 1.0
        # Local noise depends on the counts; one that is negative would have none.
        typical = replace(leaves, counts=np.full((2, n_leaves), rows.mean() / 2))
        noise = np.maximum(np.sqrt(typical.variance(one)[1]), noise)
    table, shares = bbq_table(positive, negative, (noise[1], noise[0]), levels=levels)
    return table, shares, levels, noise


def fit_isotonic(leaves: Leaves) -> Curve:
    """Monotone least squares fit to frequencies, straight between leaves or buckets."""
    from sklearn.isotonic import isotonic_regression

    n_leaves = leaves.counts.shape[1]
    first = np.arange(n_leaves)
    if leaves.noisy:
        first = equal_mass(leaves.counts, NOISY_BUCKETS)
    counts = np.maximum(np.add.reduceat(leaves.counts, first, axis=1), 0.0)
    rows = counts.sum(axis=0)
    used = rows > 0
    if not used.any():
        return Curve("line", np.array([0.0, 1.0]), np.array([0.0, 1.0]))
    middle = _means(expit(leaves.odds), leaves.counts.sum(axis=0), first)[used]
    rows, positive = rows[used], counts[1][used]
    positive[0] += _END_ROWS
    rows[0] += _END_ROWS
    rows[-1] += _END_ROWS
    fitted = isotonic_regression(positive / rows, sample_weight=rows)
    values = fitted
    if leaves.noisy:
        low, high = _margins(leaves, first[used], rows, fitted)
        values = np.clip(fitted, low, 1 - high)
    corners = np.ones(len(values), dtype=bool)
    corners[1:-1] = (values[1:-1] != values[:-2]) | (values[1:-1] != values[2:])
    return Curve("line", middle[corners], values[corners])


def _margins(
    leaves: Leaves, first: Array, rows: Array, fitted: Array
) -> tuple[float, float]:
    """Distance of the lowest and the highest value from 0 and 1 under noise.

    One standard deviation of the noise in the frequency of the step.
    """
    out = []
    for step in (fitted == fitted[0], fitted == fitted[-1]):
        ends = np.flatnonzero(step)
        last = first[ends[-1] + 1] if ends[-1] + 1 < len(first) else None
        inside = np.zeros((1, *leaves.counts.shape))
        inside[..., slice(first[ends[0]], last)] = 1.0
        noise = np.sqrt(leaves.variance(inside)[1][0])
        out.append(min(noise / rows[step].sum(), 0.25))
    return out[0], out[1]


def features(odds: Array, kind: str) -> Array:
    """Columns that a sigmoid is linear in, the constant last."""
    if kind == "platt":
        return np.stack([odds, np.ones_like(odds)], axis=-1)
    # log p and -log(1 - p), from the log-odds.
    columns = -np.logaddexp(0, -odds), np.logaddexp(0, odds), np.ones_like(odds)
    return np.stack(columns, axis=-1)


def expit(odds: Array) -> Array:
    """Probability of log-odds."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-odds))


def _means(values: Array, rows: Array, first: Array) -> Array:
    """Mean of leaf values over buckets, by rows where there are any."""
    weight = np.maximum(rows, 0.0)
    sums = np.add.reduceat(np.stack([weight * values, weight]), first, axis=1)
    plain = np.add.reduceat(values, first) / np.diff(np.append(first, len(values)))
    return np.divide(sums[0], sums[1], out=plain, where=sums[1] > 0)


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
    """Target labels slightly inside (0, 1), as in Platt scaling, for finite fits."""
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
    """Newton step, with a ridge if two coefficients are not identifiable."""
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

    After clipping, the many leaves with few rows seem to have both labels. The equation
    is linear in the counts, so that its noise averages out; where it is too strong for
    a root nearby, the fit to clipped counts is kept.
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


# Groups of scores in which labels are compared with them: few enough that noise
# does not hide a curve, many enough for any shape that a curve could correct.
_GROUPS = 8

# Coefficients that the ends of a monotone curve are worth beyond their own two: their
# few rows cost more log loss than a variance says. 0 to 5 were measured on calibrated
# scores of five kinds, with 100 to 20,000 rows.
_END_OPTIMISM = 2.0

# Curvature by one bin, in deviations of the noise, below which it is not taken to be:
# 0.5 gave the optimism of bins of scores of three kinds, under two laws of noise.
_LEAST_BEND = 0.5


def evidence(every: Sequence[Leaves]) -> float:
    """Standard deviations by which labels differ from the scores.

    The larger of two score tests: of slope and shift of the log-odds, and of the
    number of positives in groups of scores. The covariance is that of the noise, which
    is known, plus that of sampling if the scores are calibrated: unlike a fit, the test
    keeps its level where noise is as large as the counts.

    A difference of labels is not informative if the number of rows is unknown: the
    result is at most the number of deviations by which the curvature of the log loss
    exceeds the noise.
    """
    lines = [_score_test(leaves, _line(leaves)) for leaves in every]
    groups = [_score_test(leaves, _groups(leaves)) for leaves in every]
    tests = [deviations(*np.sum(found, axis=0)) for found in (lines, groups)]
    return min(max(tests), _known(every))


def _known(every: Sequence[Leaves]) -> float:
    """Distance of the curvature in slope or shift from 0, in noise deviations."""
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
    """Chi-squared statistic of sums of ``column * (label - p)``, and its freedom."""
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


def saving(
    leaves: Leaves, curve: Curve, *, averaged: Literal["bbq", "bbq_quantile", ""] = ""
) -> Array:
    """Decrease of log loss by a curve on these counts, and its optimism.

    Fitted and measured on the same counts, the decrease is too large: on average, by
    Stein's identity, by the covariance of the counts (of the noise, and of the sample)
    times the derivative of the logs of the curve. In coordinates of the fit that have
    unit curvature it is the sum of the variances of the scores.

    leaves: Counts that the curve was fitted to.
    curve: Fitted curve.
    averaged: The curve is an average over histograms (BBQ), of which kind.
    """
    odds = leaves.inner_odds()
    new = curve(odds)
    logs = np.stack(
        [np.logaddexp(0, odds) - np.logaddexp(0, new),
         np.logaddexp(0, -odds) - np.logaddexp(0, -new)]
    )  # fmt: skip
    if averaged:
        # An average that is far from the input is measured with much noise: what it
        # saves has to be significant.
        noise = np.sqrt(leaves.variance(logs[None])[1][0])
        if averaged == "bbq":
            optimism = bbq_optimism(leaves)
        else:
            parts = zip(*quantile_bbq(leaves), strict=True)
            optimism = sum(
                share * _optimism(leaves, part, odds, part(odds))
                for part, share in parts
            )
        optimism += float(noise)
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


# Deviations of the labels from the scores that a curve needs to be used at all. Noise
# makes curves that do much harm, and has longer tails than a normal law; overfitting
# alone makes curves that their weight takes care of.
_NEEDED_EXACT, _NEEDED_NOISY = 1.0, 3.5

# Methods that 'auto' has to choose from; of equal savings the first is taken.
AUTO = ("platt", "isotonic")


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Curves of one method, with their evidence, gain and weight.

    method: Method of the curves.
    curves: One for each score.
    gain: Estimated decrease of the log loss per row on new rows.
    evidence: Standard deviations by which labels differ from the scores.
    weight: Weight of the curves in the calibrated log-odds, the rest being that of the
        input; 0 if the evidence or the gain is too small.
    """

    method: str
    curves: list[Curve]
    gain: float
    evidence: float
    weight: float


def fit_curve(leaves: Leaves, method: str, n_bins: int) -> Curve:
    """Fit one curve by the name of its method."""
    if method == "bins":
        return fit_bins(leaves, n_bins)
    if method == "bbq":
        return fit_bbq(leaves)
    if method == "bbq_quantile":
        return fit_quantile_bbq(leaves)
    if method == "isotonic":
        return fit_isotonic(leaves)
    return fit_sigmoid(leaves, "platt" if method == "platt" else "beta")


def choose(every: Sequence[Leaves], method: str, n_bins: int) -> Choice:
    """Fit a curve to each score; 'auto' takes the method with the larger gain."""
    found = []
    for name in AUTO if method == "auto" else (method,):
        curves = [fit_curve(leaves, name, n_bins) for leaves in every]
        pairs = zip(every, curves, strict=True)
        kind: Any = name if name.startswith("bbq") else ""
        savings = [saving(*pair, averaged=kind) for pair in pairs]
        apparent, optimism = np.sum(savings, axis=0)
        found.append((apparent - optimism, apparent, optimism, name, curves))
    gain, apparent, optimism, name, curves = max(found, key=lambda entry: entry[0])
    rows = max(float(every[0].counts.sum()), 1.0)
    shown = evidence(every)
    enough = shown > _needed(every[0].noisy)
    weight = shrinkage_weight(apparent, optimism) if enough else 0.0
    return Choice(name, curves, float(gain / rows), shown, weight)


def in_words(
    method: str, gain: float, shown: float, weight: float | None, *, noisy: bool
) -> str:
    """Text of `reason_`; `weight` is None for a curve without shrinkage."""
    needed = _needed(noisy)
    out = (
        f"Labels differ from the scores by {max(shown, 0.0):.1f} standard "
        f"deviations ({needed:g} needed)"
    )
    if shown > needed:
        out += f"; {method} would lower the log loss by {gain:.4f} on new rows"
    if weight is None:
        return f"{out}; the curve is used without shrinkage (if_improves=False)."
    if weight == 0:
        return f"{out}; the input is returned unchanged."
    return f"{out}; the curve has a weight of {100 * weight:.0f} %."


def _needed(noisy: bool) -> float:
    return _NEEDED_NOISY if noisy else _NEEDED_EXACT


def shrinkage_weight(apparent: float, optimism: float) -> float:
    """Shrinkage weight of a curve, 0 to 1.

    In units of its optimism, a decrease of 1 vanishes on new rows, and for 2 a weight
    of three quarters is best (James and Stein). Beyond, the weight approaches 1 faster
    than is optimal for log loss, so that well-determined curves are not shrunk to the
    input.
    """
    if apparent <= optimism:
        return 0.0
    return float(1 - (optimism / apparent) ** 2)
