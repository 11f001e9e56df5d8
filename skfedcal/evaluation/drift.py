"""Drift of a metric over periods: alarms with a stated rate, and what to do then.

- Alarms: recursive residuals of the values of all periods, and their threshold.
- Recalibration: gain in log loss, against the loss by the noise of its fit.

A value is compared with the weighted mean of the earlier ones. These residuals, each
over its standard deviation, are independent standard normal variables as long as
nothing changes, whatever the variances of the periods are [1]_. So the law of the
largest moving sum of them depends on the number of periods only, and its quantile is
the threshold of the alarms.

References
----------
.. [1] Brown, Durbin and Evans, "Techniques for testing the constancy of regression
   relationships over time", JRSS B 37(2), 1975, section 2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from math import isnan, nan, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from skfedcal.evaluation.histogram import ScoreHistogram
    from skfedcal.evaluation.intervals import Estimate

Array = NDArray[Any]

# Periods whose residuals are added up: a sudden change is seen in one of them, a small
# one in the sum of several.
WINDOWS = (1, 2, 4, 8)

# Simulated sequences of the threshold, in parts that need little memory, and the
# standard errors by which it is chosen too high.
_PARTS, _PATHS, _MARGIN = 10, 10_000, 2.0

# Log-odds are cut here: beyond it a row says nothing about a slope.
_FARTHEST = 5.0
# Newton steps and halvings of one, and the largest change of slope and shift.
_STEPS, _LARGEST_STEP = 30, 5.0
# Largest slope of the summed log loss of a client of few rows.
_CLIENT_SLOPE = 4.0
# Number of clients times mu below which a private fit asks nobody.
_LEAST_SIGNAL = 1.0


class DriftAlarm(NamedTuple):
    """A change of a metric that is more than chance.

    Attributes
    ----------
    period : int
        Period in which it was found, from 0.
    since : int
        First of the periods that differ from those before.
    metric : str
        What has changed.
    change : float
        Mean over the periods from `since` on, less that of the reference before.
    statistic, threshold : float
        Moving sum of residuals, and the size from which on it is an alarm.
    """

    period: int
    since: int
    metric: str
    change: float
    statistic: float
    threshold: float


class Recalibration(NamedTuple):
    """Whether a recalibration is worth its budget.

    Attributes
    ----------
    worth : bool
        Whether the lower end of `gain` is above `loss`.
    gain : Estimate
        Decrease of the mean log loss by a new shift, slope, or slope and shift, of the
        log-odds. Its lower end holds with 95 %. Less than the truth where most scores
        are far from correct: log-odds beyond 5 get the same correction.
    loss : float
        Expected increase of the log loss by sampling and noise of a private fit.
    eps : float or None
        Budget of that fit.
    """

    worth: bool
    gain: Estimate
    loss: float
    eps: float | None

    def __str__(self) -> str:
        verdict = "is worth" if self.worth else "is not worth"
        budget = "an exact fit" if self.eps is None else f"eps={self.eps:g}"
        return (
            f"Recalibration {verdict} {budget}: it would lower the log loss by "
            f"{self.gain:.4f} [{self.gain.low:.4f}, {self.gain.high:.4f}], and its fit "
            f"is expected to lose {self.loss:.4f}."
        )


@lru_cache(maxsize=64)
def alarm_threshold(n_periods: int, rate: float) -> float:
    """Size that a sum of residuals exceeds with chance `rate` if nothing changes.

    Parameters
    ----------
    n_periods : int
        Number of periods; the first one has no residual.
    rate : float
        Chance of any alarm in all periods.

    Returns
    -------
    threshold : float
        Quantile of the largest moving sum over `WINDOWS`, each over the root of its
        length, by simulation with a fixed seed; chosen two standard errors of the
        simulation too high.
    """
    rng = np.random.default_rng(20260711)
    largest = np.concatenate(
        [_largest(rng.standard_normal((_PATHS, n_periods - 1))) for _ in range(_PARTS)]
    )
    n = len(largest)
    above = rate * n - _MARGIN * sqrt(rate * (1 - rate) * n)
    return float(np.sort(largest)[-max(int(above), 1)])


def _largest(residuals: Array) -> Array:
    sums = np.cumsum(residuals, axis=1)
    out = np.zeros(len(residuals))
    for length in WINDOWS:
        if length <= residuals.shape[1]:
            moving = sums[:, length - 1 :].copy()
            moving[:, 1:] -= sums[:, :-length]
            np.maximum(out, np.abs(moving).max(axis=1) / sqrt(length), out=out)
    return out


class _Reference:
    """Weighted mean of the values of some periods."""

    def __init__(self) -> None:
        self.weight = self.sum = 0.0

    def add(self, value: float, variance: float) -> None:
        self.weight += 1 / variance
        self.sum += value / variance

    @property
    def mean(self) -> float:
        return self.sum / self.weight if self.weight else nan


def find_alarms(
    metric: str,
    values: Sequence[float],
    variances: Sequence[float],
    *,
    threshold: float,
    restarts: Collection[int] = (),
) -> list[DriftAlarm]:
    """Go through the periods and list the alarms.

    After an alarm the periods that caused it are the new reference.

    Parameters
    ----------
    metric : str
        Name of the metric.
    values, variances : sequence of float
        Of each period; a value that is NaN is left out.
    threshold : float
        See `alarm_threshold`.
    restarts : collection of int, default=()
        Periods that begin a new reference.
    """
    alarms: list[DriftAlarm] = []
    reference, seen, residuals = _Reference(), list[int](), list[float]()
    for period, (value, variance) in enumerate(zip(values, variances, strict=True)):
        if period in restarts:
            reference, seen, residuals = _Reference(), [], []
        if isnan(value) or not variance > 0:
            continue
        if reference.weight:
            spread = sqrt(variance + 1 / reference.weight)
            residuals.append((value - reference.mean) / spread)
        seen.append(period)
        reference.add(value, variance)
        found = [
            (sum(residuals[-n:]) / sqrt(n), n) for n in WINDOWS if n <= len(residuals)
        ]
        statistic, length = max(found, key=lambda one: abs(one[0]), default=(0.0, 0))
        if abs(statistic) <= threshold:
            continue
        before, after = _Reference(), _Reference()
        for i in seen:
            (after if i in seen[-length:] else before).add(values[i], variances[i])
        change = after.mean - before.mean
        alarms.append(
            DriftAlarm(period, seen[-length], metric, change, statistic, threshold)
        )
        reference, seen, residuals = after, seen[-length:], []
    return alarms


def cell_values(metric: str, hist: ScoreHistogram) -> Array:
    """Value of a row in each cell of a histogram, for metrics that are means of rows.

    'gap' is the score less the outcome, so that its mean is mean confidence less
    accuracy for the most probable class.
    """
    centre = np.clip(hist.grid.centres, 1e-12, 1 - 1e-12)
    zero, one = np.zeros_like(centre), np.ones_like(centre)
    if metric == "gap":
        return np.stack([centre, centre - 1])
    if metric == "confidence":
        return np.stack([centre, centre])
    if metric == "brier":
        return np.stack([centre**2, (1 - centre) ** 2])
    if metric == "log_loss":
        return np.stack([-np.log1p(-centre), -np.log(centre)])
    above = one if hist.kind == "top" else (centre >= 0.5).astype(np.float64)
    return np.stack([zero + (1 - above), above])


def mean_of_rows(
    metric: str, hist: ScoreHistogram, pooled: Array
) -> tuple[float, float]:
    """Mean over the rows of one period, and its variance.

    The spread of rows is that of the counts `pooled`, which hold more periods and so
    are less noisy; NaN where noise leaves no rows.
    """
    values = cell_values(metric, hist)
    total, rows = float(hist.counts_.sum()), float(pooled.sum())
    if total <= 0 or rows <= 0:
        return nan, nan
    mean = float((hist.counts_ * values).sum()) / total
    centre = float((pooled * values).sum()) / rows
    spread = float((pooled * (values - centre) ** 2).sum()) / rows
    noise = float(hist.noise_.variances(hist.counts_, values - mean)[1]) / total**2
    return mean, max(spread, 0.0) * hist.rows_each_ / total + noise


def recalibration(
    hist: ScoreHistogram, eps: float | None, strength: float
) -> Recalibration:
    """Compare the gain of a recalibration with the loss by its private fit.

    Decrease of the log loss of the released counts at its minimum over slope and shift
    of the log-odds, less what sampling and noise alone decrease it by. Of shift alone,
    slope alone and both the one whose lower end is highest, each with an error of
    5/3 %, so that the lower end holds with 95 %; both where none is above the loss.

    Parameters
    ----------
    hist : ScoreHistogram
        Counts of the periods that count.
    eps : float or None
        Budget of the fit.
    strength : float
        Signal-to-noise ratio of one client in it; infinite without noise.
    """
    from skfedcal.evaluation.intervals import replace

    proba = np.clip(hist.grid.centres, 1e-7, 1 - 1e-7)
    odds = np.log(proba / (1 - proba))
    parts = np.stack([np.ones_like(odds), np.clip(odds, -_FARTHEST, _FARTHEST)])
    # One parameter may be gain enough, and noise hides it later than two.
    each = [
        _gain(hist, odds, parts[part])
        for part in (slice(0, 1), slice(1, 2), slice(0, 2))
    ]
    information = float(_information(hist.counts_, proba, parts)[1, 1])
    n_clients = max(hist.n_clients_, 1)
    noise = _CLIENT_SLOPE / (n_clients * strength)
    lost = 1 / (2 * n_clients) + noise**2 / (2 * information)
    best = max(each, key=lambda one: one.low)
    worth = best.low > lost and n_clients * strength >= _LEAST_SIGNAL
    found = best if worth else each[-1]
    private = hist.privacy_ if hist.privacy_.private else None
    found = replace(
        found,
        privacy=private,
        population=hist.population_,
        estimand=hist.estimand_,
    )
    return Recalibration(bool(worth), found, lost, eps)


def _information(counts: Array, proba: Array, parts: Array) -> Array:
    """Curvature of the mean log loss in the coefficients of `parts`."""
    rows = np.maximum(counts.sum(axis=0), 0.0) * proba * (1 - proba)
    total = max(float(counts.sum()), 1.0)
    return (parts * rows) @ parts.T / total + 1e-6 * np.eye(len(parts))


def _losses(odds: Array) -> Array:
    """Log loss of a negative and of a positive at each of the log-odds."""
    return np.stack([np.logaddexp(0.0, odds), np.logaddexp(0.0, -odds)])


def _slopes(odds: Array, parts: Array) -> tuple[Array, Array]:
    """Probabilities, and slopes of the log-likelihood of each cell in each part."""
    proba = np.exp(-np.logaddexp(0.0, -odds))
    return proba, parts[:, None] * np.stack([-proba, 1 - proba])


def _minimum(counts: Array, odds: Array, parts: Array) -> Array:
    """Log-odds plus the multiples of `parts` at which the counts have least loss.

    Newton's method with step halving. Noisy counts may be below 0, and their loss
    without a minimum: the coefficients stay within `_LARGEST_STEP`.
    """
    total = max(float(counts.sum()), 1.0)
    found, least = np.zeros(len(parts)), float((counts * _losses(odds)).sum())
    for _ in range(_STEPS):
        proba, slopes = _slopes(odds + found @ parts, parts)
        score = (counts * slopes).sum(axis=(1, 2)) / total
        step = np.linalg.solve(_information(counts, proba, parts), score)
        for _ in range(_STEPS):
            there = np.clip(found + step, -_LARGEST_STEP, _LARGEST_STEP)
            loss = float((counts * _losses(odds + there @ parts)).sum())
            if loss < least:
                break
            step = step / 2
        else:
            break
        near = least - loss < 1e-9 * abs(least)
        found, least = there, loss
        if near:
            break
    return odds + found @ parts


def _gain(hist: ScoreHistogram, odds: Array, parts: Array) -> Estimate:
    """Decrease of the log loss at its minimum over the coefficients of `parts`."""
    from skfedcal.evaluation.intervals import make_estimate

    total = max(float(hist.counts_.sum()), 1.0)
    after = _minimum(hist.counts_, odds, parts)
    # At the minimum the coefficients do not change the loss to first order.
    along = (_losses(odds) - _losses(after)) / total
    sampling, privacy = map(float, hist.variances(along))
    proba, slopes = _slopes(after, parts)
    slopes, information = slopes / total, _information(hist.counts_, proba, parts)
    # cov(a, b) = (var(a + b) - var(a - b)) / 4
    pairs = slopes[:, None], slopes[None]
    spread = [sum(hist.variances(pairs[0] + sign * pairs[1])) for sign in (1, -1)]
    chance = np.linalg.solve(information, (spread[0] - spread[1]) / 4)
    # Variance of the gain of scores that are calibrated.
    least = float((chance @ chance).trace()) / 2
    share = sampling / (sampling + privacy) if sampling > 0 else 0.0
    return make_estimate(
        float((hist.counts_ * along).sum()) - float(chance.trace()) / 2,
        sampling + least * share,
        privacy + least * (1 - share),
        ci=1 - 2 * 0.05 / 3,
        bounds=None,
    )
