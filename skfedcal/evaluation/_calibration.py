"""Answers about probabilities: Brier score, log loss, calibration errors."""

from __future__ import annotations

from math import nan, sqrt
from typing import NamedTuple

import numpy as np

from skfedcal.evaluation._answers import VISIBLE, Answers, Array, check_bins, undefined
from skfedcal.evaluation._estimate import Estimate, make_estimate
from skfedcal.evaluation._ranking import equi_depth_edges


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
    """

    prob_true: Array
    prob_pred: Array
    se: Array
    counts: Array
    edges: Array


class CalibrationAnswers(Answers):
    """Answers that take the centre of a bucket for the scores in it."""

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

    def log_loss(self, *, ci: float = 0.95) -> Estimate:
        """Mean negative log-likelihood.

        Scores nearer to 0 or 1 than the centre of the outermost buckets are taken to
        be there: their loss would have no bound.

        Parameters
        ----------
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """
        centres = self.grid.centres
        edges = np.clip(self.grid.edges, centres[0], centres[-1])

        def loss(score: Array) -> Array:
            return np.stack([-np.log1p(-score), -np.log(score)])

        return self._mean_loss("Log loss", loss, edges, np.inf, ci)

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
        """
        total = sum(self._sums)
        if total <= 0:
            return self._no_rows("Calibration error")
        gaps, variances, weights, discretisation = self._gaps(n_bins, strategy)
        sizes = np.abs(gaps)
        if debias:
            sizes = unfold(sizes, np.sqrt(variances.sum(axis=0)))
        value = float(sizes.sum()) / total
        slope = (np.sign(gaps)[:, None, None] * weights).sum(axis=0)
        return self._estimate(
            value, (slope - value) / total, ci, discretisation=discretisation
        )

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
            Number of bins; a bucket belongs to the bin of its centre.
        strategy : {'uniform', 'quantile'}, default='uniform'
            Bins of equal width, or of about equal depth.
        squared : bool, default=True
            Return the mean square, which debiasing makes unbiased, not its root.
        debias : bool, default=True
            Subtract the variance of each gap; the result may be below 0.
        ci : float, default=0.95
            Level of the confidence interval.

        Returns
        -------
        Estimate
        """
        total = sum(self._sums)
        if total <= 0:
            return self._no_rows("Calibration error")
        gaps, parts, weights, discretisation = self._gaps(n_bins, strategy)
        rows = np.array([(self.counts_ * (w != 0)).sum() for w in weights])
        noise = np.array([self._count_noise(w != 0) for w in weights])
        shown = rows > VISIBLE * noise
        variances = parts.sum(axis=0)
        scale = np.where(shown, 1 / (total * np.where(shown, rows, 1.0)), 0.0)
        squares = gaps**2 - variances if debias else gaps**2
        value = float((squares * scale).sum())
        # Of the square of a normal variable; its mean square, too, is an estimate.
        spread = 4 * np.maximum(gaps**2 - variances, 0.0) * variances + 2 * variances**2
        share = np.where(
            variances > 0, parts / np.where(variances > 0, variances, 1), 0
        )
        both = (share * spread * scale**2).sum(axis=1)
        if squared:
            return make_estimate(
                value,
                both[0],
                both[1],
                ci=ci,
                bounds=None,
                discretisation=discretisation,
            )
        low = make_estimate(value, both[0], both[1], ci=ci, bounds=None)
        root = sqrt(max(value, 0.0))
        slope = 1 / (2 * root) if root > 0 else nan
        return Estimate(
            root,
            sqrt(max(low.low, 0.0)),
            sqrt(max(low.high, 0.0)),
            se_sampling=sqrt(both[0]) * slope,
            se_privacy=sqrt(both[1]) * slope,
            discretisation=discretisation,
        )

    def reliability(
        self, n_bins: int = 10, *, strategy: str = "uniform"
    ) -> Reliability:
        """Frequency of positives against the mean score of bins.

        Parameters
        ----------
        n_bins : int, default=10
            Number of bins; one is left out if its count is not above three standard
            deviations of its noise.
        strategy : {'uniform', 'quantile'}, default='uniform'
            Bins of equal width, or of about equal depth.

        Returns
        -------
        Reliability
        """
        member, centres, edges = self._bins(n_bins, strategy), self.grid.centres, []
        points = []
        for b in range(int(member.max()) + 1):
            inside = member == b
            counts = self.counts_[:, inside]
            rows, positive = float(counts.sum()), float(counts[1].sum())
            mask = np.broadcast_to(inside, self.counts_.shape)
            if not inside.any() or rows <= VISIBLE * self._count_noise(mask):
                continue
            share = positive / rows
            gradient = np.stack([-share * inside, (1 - share) * inside]) / rows
            variance = sum(map(float, self.noise_.variances(self.counts_, gradient)))
            where = np.flatnonzero(inside)
            ends = self.grid.edges[[where[0], where[-1] + 1]]
            mean = float(counts.sum(axis=0) @ centres[inside]) / rows
            points.append(
                (np.clip(share, 0, 1), np.clip(mean, *ends), sqrt(variance), rows)
            )
            edges.append(ends)
        columns = np.array(points, dtype=np.float64).reshape(-1, 4).T
        shares, means, errors, rows_of = columns
        return Reliability(
            shares, means, errors, rows_of, np.array(edges).reshape(-1, 2)
        )

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
        return self._estimate(
            value,
            (values - value) / total,
            ci,
            bounds=(0.0, most),
            discretisation=float((self._seen() * spread).sum()) / total,
        )

    def _bins(self, n_bins: int, strategy: str) -> Array:
        """Bin of each bucket."""
        check_bins(n_bins, strategy)
        if strategy == "quantile":
            edges = equi_depth_edges(self.counts_, n_bins)
            return np.repeat(np.arange(len(edges) - 1), np.diff(edges))
        index = (self.grid.centres * n_bins).astype(np.int64)
        return np.minimum(index, n_bins - 1)

    def _gaps(self, n_bins: int, strategy: str) -> tuple[Array, Array, Array, float]:
        """Sum of outcome minus score of each bin, its two variances, its weights.

        The last entry bounds what taking centres for scores changes in the mean gap.
        """
        member, centres = self._bins(n_bins, strategy), self.grid.centres
        residual = np.stack([-centres, 1 - centres])
        used = np.unique(member)
        weights = residual * (member == used[:, None])[:, None]
        gaps = (self.counts_ * weights).sum(axis=(1, 2))
        variances = np.stack(self.noise_.variances(self.counts_, weights))
        edges = self.grid.edges
        off = np.maximum(centres - edges[:-1], edges[1:] - centres)
        if strategy == "uniform":
            # A row of a bucket over an edge may belong to the bin on the other side:
            # what it takes from one gap it adds to another.
            ends = np.floor(edges[:-1] * n_bins), np.ceil(edges[1:] * n_bins)
            off = off + 2 * np.abs(residual) * (ends[1] - ends[0] > 1)
        bound = float((self._seen() * off).sum()) / max(sum(self._sums), 1.0)
        return gaps, variances, weights, min(bound, 1.0)

    def _count_noise(self, mask: Array) -> float:
        """Standard deviation of the noise of a sum of counts."""
        if self.noise_.exact:
            return 0.0
        weights = mask.astype(np.float64)
        return sqrt(float(self.noise_.variances(self.counts_, weights)[1]))

    def _no_rows(self, name: str) -> Estimate:
        undefined(name, "there are no rows", "nan")
        return Estimate(nan, nan, nan, se_sampling=nan, se_privacy=nan)


def unfold(sizes: Array, sigmas: Array) -> Array:
    """Mean of the normal variable whose absolute value is expected to be `sizes`.

    0 where `sizes` is below what noise alone is expected to have.
    """
    from scipy.special import ndtr

    safe = np.where(sigmas > 0, sigmas, 1.0)
    target = sizes / safe
    low, high = np.zeros_like(target), target.copy()
    for _ in range(60):  # halving: the folded mean rises with the mean
        middle = (low + high) / 2
        folded = np.sqrt(2 / np.pi) * np.exp(-(middle**2) / 2)
        folded += middle * (1 - 2 * ndtr(-middle))
        low = np.where(folded < target, middle, low)
        high = np.where(folded < target, high, middle)
    out: Array = np.where(sigmas > 0, low * safe, sizes)
    return out
