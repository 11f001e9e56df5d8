"""Calibration errors of bins, with intervals that hold also where there is no error."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np

from skfedcal._params import check_flag
from skfedcal.evaluation._absolute import KNOWN, sum_interval, unfold
from skfedcal.evaluation._answers import VISIBLE, Array
from skfedcal.evaluation._calibration import CalibrationAnswers
from skfedcal.evaluation._estimate import Estimate, with_guarantee
from skfedcal.evaluation._intervals import quantile

# Up to so many rows of a bin the variance of calibrated outcomes counts, if it is more
# than that of the outcomes found: ten rows that came out alike do not have none.
_FEW_ROWS = 8.0


# Part of the rows in bins that noise could have filled from which on the squares of
# the others tell nothing: those bins were shown because of their noise.
_MOST_HIDDEN = 0.25


@dataclass(frozen=True)
class Gaps:
    """Sums of outcome minus score of some bins.

    Parameters
    ----------
    values : ndarray of shape (n_bins,)
        The sums.
    sampling, privacy : ndarray of shape (n_bins,)
        Their variances.
    rows : ndarray of shape (n_bins,)
        Number of rows.
    weights : ndarray of shape (n_bins, 2, n_buckets)
        Weights of the counts in the sums.
    inside : ndarray of shape (n_bins, n_buckets)
        Buckets of each bin.
    discretisation : float
        Bound on what taking centres for scores changes in the mean of the absolute
        sums.
    """

    values: Array
    sampling: Array
    privacy: Array
    rows: Array
    weights: Array
    inside: Array
    discretisation: float

    @property
    def variances(self) -> Array:
        return self.sampling + self.privacy


class CalibrationErrors(CalibrationAnswers):
    """Gaps between score and frequency over bins."""

    @with_guarantee
    def ece(
        self,
        n_bins: int = 15,
        *,
        strategy: str = "uniform",
        debias: bool = True,
        ci: float = 0.95,
    ) -> Estimate:
        """Mean gap between score and frequency over bins.

        Parameters
        ----------
        n_bins : int, default=15
            Number of bins; a bucket belongs to the bin of its centre.
        strategy : {'uniform', 'quantile'}, default='uniform'
            Bins of equal width, or of about equal depth.
        debias : bool, default=True
            Take off what sampling and noise alone add to an absolute value: each gap
            is the one whose expected size is the size found (folded normal). Some
            bias is left where the true error is near 0.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
            The interval is for the mean absolute gap of the population in these same
            bins. It starts at 0 where no gap can be told from sampling and noise.

        Notes
        -----
        An absolute value is biased upward and has no slope at 0, so the interval
        is not the value plus and minus its standard error. It is made from the gaps of
        all bins, which are normal: from below, the most that the absolute values can
        have added is taken off; from above, the error is spread over bins so that it
        shows least. It covers at least with chance `ci`, near 1 where the error is
        about as large as its noise.
        """
        total = sum(self._sums)
        if total <= 0:
            return self._no_rows("Calibration error")
        gaps = self._gaps(n_bins, strategy)
        sizes, sigmas = np.abs(gaps.values), np.sqrt(gaps.variances)
        known = np.where(sizes > KNOWN * sigmas, np.sign(gaps.values), 0.0)
        slope = (known[:, None, None] * gaps.weights).sum(axis=0)
        share = float((sizes * np.abs(known)).sum()) / total
        joint = self.noise_.variances(self.counts_, slope - share)
        low, high = sum_interval(sizes, sigmas, float(sum(joint)), quantile(ci))
        debias = check_flag("debias", debias)
        value = float((unfold(sizes, sigmas) if debias else sizes).sum()) / total
        errors = [
            sqrt(float(part) + float(own[known == 0].sum())) / total
            for part, own in zip(joint, (gaps.sampling, gaps.privacy), strict=True)
        ]
        return Estimate(
            min(value, 1.0),
            min(low / total, value, 1.0),
            min(max(high / total, value), 1.0),
            se_sampling=errors[0],
            se_privacy=errors[1],
            discretisation=gaps.discretisation,
        )

    @with_guarantee
    def l2_ece(
        self,
        n_bins: int = 15,
        *,
        strategy: str = "uniform",
        squared: bool = True,
        debias: bool = True,
        ci: float = 0.95,
    ) -> Estimate:
        """Mean squared gap between score and frequency over bins.

        Parameters
        ----------
        n_bins : int, default=15
            Number of bins; a bucket belongs to the bin of its centre, and a bin that
            noise alone could have filled is left out.
        strategy : {'uniform', 'quantile'}, default='uniform'
            Bins of equal width, or of about equal depth.
        squared : bool, default=True
            Return the mean square, which debiasing makes unbiased, not its root.
        debias : bool, default=True
            Subtract the variance of each gap; the result may be below 0.
        ci : float, default=0.95
            Level of the confidence interval, which is for the population in these same
            bins.

        Returns
        -------
        Estimate
        """
        total = sum(self._sums)
        if total <= 0:
            return self._no_rows("Calibration error")
        gaps = self._gaps(n_bins, strategy)
        noise = np.array([self._count_noise(np.stack([i, i])) for i in gaps.inside])
        shown = gaps.rows > VISIBLE * noise
        rows = np.where(shown, gaps.rows, 1.0)
        scale = np.where(shown, 1 / (total * rows), 0.0)
        square = gaps.values**2
        unbiased = float(((square - gaps.variances) * scale).sum())
        slope = 2 * (scale * gaps.values)[:, None, None] * gaps.weights
        slope -= (scale * square / rows)[:, None, None] * gaps.inside[:, None]
        parts = self.noise_.variances(
            self.counts_, slope.sum(axis=0) - float((square * scale).sum()) / total
        )
        each = self.noise_.covariance(self.counts_, gaps.weights)
        np.fill_diagonal(each, gaps.variances)
        free = 2 * float(scale @ each**2 @ scale)  # of squares of normal variables
        # Squares of the gaps found are too large by their variance, which enters the
        # slopes twice.
        rise = max(float(sum(parts)) - 2 * free, 0.0)
        spent = float((scale * gaps.variances).sum())
        low, high = _square_interval(unbiased, rise, free, spent, quantile(ci))
        if gaps.rows[shown].sum() < (1 - _MOST_HIDDEN) * total:
            low, high = 0.0, 1.0
        plain = float((square * scale).sum())
        value = unbiased if check_flag("debias", debias) else plain
        if not check_flag("squared", squared):
            value, low, high = (sqrt(max(v, 0.0)) for v in (value, low, high))
        change = 1.0 if squared else 1 / (2 * value) if value > 0 else nan
        first = float(sum(parts))
        factor = sqrt((rise + free) / first) if first > 0 else 0.0
        return Estimate(
            value,
            min(low, value),
            max(high, value),
            se_sampling=sqrt(float(parts[0])) * factor * change,
            se_privacy=sqrt(float(parts[1])) * factor * change,
            discretisation=gaps.discretisation,
        )

    def _gaps(self, n_bins: int, strategy: str) -> Gaps:
        member, centres = self._bins(n_bins, strategy), self.grid.centres
        residual = np.stack([-centres, 1 - centres])
        inside = member == np.unique(member)[:, None]
        weights = residual * inside[:, None]
        values = (self.counts_ * weights).sum(axis=(1, 2))
        sampling, privacy = self.noise_.variances(self.counts_, weights)
        each = self.counts_.sum(axis=0)
        rows = inside @ each
        calibrated = inside @ (each * centres * (1 - centres))
        trust = np.minimum(_FEW_ROWS / np.maximum(rows, _FEW_ROWS), 1.0)
        sampling = sampling + np.maximum(calibrated - sampling, 0.0) * trust
        edges = self.grid.edges
        off = np.maximum(centres - edges[:-1], edges[1:] - centres)
        if strategy == "uniform":
            # A row of a bucket over an edge may belong to the bin on the other side:
            # what it takes from one gap it adds to another.
            ends = np.floor(edges[:-1] * n_bins), np.ceil(edges[1:] * n_bins)
            off = off + 2 * np.abs(residual) * (ends[1] - ends[0] > 1)
        bound = float((self._seen() * off).sum()) / max(sum(self._sums), 1.0)
        return Gaps(
            values, sampling, privacy, rows, weights, inside, min(bound, 1.0)
        )  # fmt: skip


def _square_interval(
    value: float, rise: float, free: float, noise: float, z: float
) -> tuple[float, float]:
    """Interval of a weighted sum of squared means, from squares of normal variables.

    All t with ``(value - t)**2 <= z**2 * (free + slope * t)``: `free` is the variance
    where all means are 0, and `rise` what they add to it at `value`. Where that tells
    nothing, means are taken to be spread as the noise is, whose squares add `noise`.
    The lower end is that of a value without what their upper tail has in excess.
    """
    known = value > z * sqrt(free)
    slope = rise / value if known else 2 * free / noise if noise > 0 else 0.0
    ends = []
    for centre, sign in ((value - _excess(free, noise, z), -1), (value, 1)):
        centre, middle = max(centre, 0.0), max(centre, 0.0) + z * z * slope / 2
        root = sqrt(max(middle**2 - centre**2 + z * z * free, 0.0))
        ends.append(max(middle + sign * root, 0.0))
    return ends[0], ends[1]


def _excess(variance: float, mean: float, z: float) -> float:
    """By how much the upper tail of a sum of squares is longer than a normal one.

    The sum is taken for a multiple of a chi-square variable (Satterthwaite).
    """
    if variance <= 0 or mean <= 0:
        return 0.0
    from scipy.special import chdtri, ndtr

    point = chdtri(2 * mean**2 / variance, ndtr(-z)) * variance / (2 * mean)
    return max(float(point) - mean - z * sqrt(variance), 0.0)
