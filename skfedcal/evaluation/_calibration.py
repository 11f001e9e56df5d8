"""Answers about probabilities: Brier score, log loss, reliability curve."""

from __future__ import annotations

from math import nan, sqrt
from typing import NamedTuple

import numpy as np

from skfedcal.evaluation._answers import VISIBLE, Answers, Array, check_bins, undefined
from skfedcal.evaluation._estimate import (
    Estimate,
    make_estimate,
    replace,
    with_guarantee,
)
from skfedcal.evaluation._intervals import check_level, freedom, quantile
from skfedcal.evaluation._ranking_sums import equi_depth_edges

# Where scikit-learn's log loss takes scores that are nearer to 0 or 1.
_TINY = float(np.finfo(np.float64).eps)


class Reliability(NamedTuple):
    """Points of a reliability curve.

    Attributes
    ----------
    prob_true, prob_pred : ndarray of shape (n_points,)
        Frequency of positives and mean score of each bin.
    se : ndarray of shape (n_points,)
        Standard error of `prob_true`, of sampling and privacy together.
    counts : ndarray of shape (n_points,)
        Estimated number of rows.
    edges : ndarray of shape (n_points, 2)
        Scores between which the bin lies.
    low, high : ndarray of shape (n_points,)
        Confidence interval of `prob_true`.
    """

    prob_true: Array
    prob_pred: Array
    se: Array
    counts: Array
    edges: Array
    low: Array
    high: Array


class CalibrationAnswers(Answers):
    """Answers that take the centre of a bucket for the scores in it."""

    @with_guarantee
    def brier(self, *, ci: float = 0.95) -> Estimate:
        """Mean squared difference of score and outcome.

        Parameters
        ----------
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """
        edges = self.grid.edges
        return self._mean_loss(
            "Brier score", lambda s: np.stack([s**2, (1 - s) ** 2]), edges, 1.0, ci
        )

    @with_guarantee
    def log_loss(self, *, ci: float = 0.95) -> Estimate:
        """Mean negative log-likelihood.

        Scores nearer to 0 or 1 than the centre of the outermost buckets are taken to
        be there. `discretisation` is the bound on the difference to scikit-learn, which
        takes those within 2.2e-16 to be there: it is large if rows of the other label
        are in the outermost buckets.

        Parameters
        ----------
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """
        edges = np.clip(self.grid.edges, _TINY, 1 - _TINY)

        def loss(score: Array) -> Array:
            return np.stack([-np.log1p(-score), -np.log(score)])

        return self._mean_loss("Log loss", loss, edges, np.inf, ci)

    def reliability(
        self, n_bins: int = 10, *, strategy: str = "uniform", ci: float = 0.95
    ) -> Reliability:
        """Frequency of positives against the mean score of bins.

        Parameters
        ----------
        n_bins : int, default=10
            Number of bins; one is left out if its count is not above three standard
            deviations of its noise.
        strategy : {'uniform', 'quantile'}, default='uniform'
            Bins of equal width, or of about equal depth.
        ci : float, default=0.95
            Level of the confidence intervals.

        Returns
        -------
        Reliability
        """
        check_level(ci)
        member, points = self._bins(n_bins, strategy), []
        for b in np.unique(member):
            inside = (member == b) * np.ones((2, 1))
            share = self._share(inside * [[0.0], [1.0]], inside, ci)
            counts = self.counts_ * inside
            rows = float(counts.sum())
            if share is None or rows <= VISIBLE * self._count_noise(inside):
                continue
            where = np.flatnonzero(inside[0])
            ends = self.grid.edges[[where[0], where[-1] + 1]]
            mean = np.clip(counts.sum(axis=0) @ self.grid.centres / rows, *ends)
            points.append((share, mean, share.se, rows, *ends, share.low, share.high))
        columns = np.array(points, dtype=np.float64).reshape(-1, 8).T
        shares, means, errors, rows_of, first, last, low, high = columns
        edges = np.stack([first, last], axis=1)
        return Reliability(shares, means, errors, rows_of, edges, low, high)

    def equi_depth(self, n_buckets: int) -> Array:
        """Scores that cut the rows into buckets of about equal depth.

        Parameters
        ----------
        n_buckets : int
            Number of buckets; fewer come out where scores are tied.

        Returns
        -------
        edges : ndarray
            Increasing, from 0 to 1.
        """
        check_bins(n_buckets)
        out: Array = self.grid.edges[equi_depth_edges(self.counts_, n_buckets)]
        return out

    def _mean_loss(self, name, loss, edges, most, ci) -> Estimate:  # type: ignore[no-untyped-def]
        total = sum(self._sums)
        if total <= 0:
            return self._no_rows(name)
        values = loss(self.grid.centres)
        value = float((self.counts_ * values).sum()) / total
        ends = np.stack([loss(edges[:-1]), loss(edges[1:])])
        spread = np.abs(ends - values).max(axis=0)
        gradient = (values - value) / total
        sampling, privacy = map(float, self.noise_.variances(self.counts_, gradient))
        free = freedom(self.counts_, gradient, sampling, privacy)
        # Rows that are all alike do not show that no other ones exist.
        sampling += min(value**2, 1.0) * 4 / total**2
        found = make_estimate(
            value,
            sampling,
            privacy,
            ci=ci,
            bounds=(0.0, most),
            discretisation=float((self._seen() * spread).sum()) / total,
            freedom=free,
        )
        if np.isfinite(most) or value <= 0:
            return found
        # Without an upper bound losses are skew: second term of a logarithmic scale.
        skew = quantile(ci, free) ** 2 * sampling / (2 * value)
        return replace(found, high=found.high + skew)

    def _bins(self, n_bins: int, strategy: str) -> Array:
        """Bin of each bucket."""
        check_bins(n_bins, strategy)
        if strategy == "quantile":
            edges = equi_depth_edges(self.counts_, n_bins)
            return np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        index = (self.grid.centres * n_bins).astype(np.int64)
        return np.minimum(index, n_bins - 1)

    def _count_noise(self, mask: Array) -> float:
        """Standard deviation of the noise of a sum of counts."""
        if self.noise_.exact:
            return 0.0
        weights = mask.astype(np.float64)
        return sqrt(float(self.noise_.variances(self.counts_, weights)[1]))

    def _no_rows(self, name: str) -> Estimate:
        undefined(name, "there are no rows", "nan")
        return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)
