"""Metrics of probabilities: Brier score, log loss, calibration errors.

- Sums of absolute values of normal variables, and their bias by sampling and noise.
- Calibration errors of bins, with intervals that are valid also at a true error of 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan, pi, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_flag
from skfedcal.evaluation.answers import (
    VISIBLE,
    Answers,
    answers_documented,
    check_bins,
    undefined,
)
from skfedcal.evaluation.intervals import (
    Estimate,
    check_level,
    make_estimate,
    quantile,
    replace,
    with_guarantee,
)
from skfedcal.methods.buckets import equi_depth_edges

if TYPE_CHECKING:
    from skfedcal.privacy.events import PrivacyReport

Array = NDArray[Any]

# A mean this many standard deviations from 0 has a known sign: the absolute value adds
# 0.0008 of them then.
KNOWN = 3.0

# A mean may be so many standard deviations nearer to 0 than its estimate. Measured:
# intervals hold a sum of 15 means of 0 in 97 to 99 of 100 cases; with 1.0, 93 to 97.
_NEARER = 1.5

# Points at which the upper end of an interval is looked for, and halvings of `unfold`.
_POINTS, _HALVINGS = 801, 60


def folded_mean(mean: Array) -> Array:
    """Mean of the absolute value of a normal variable of variance 1."""
    from scipy.special import ndtr

    out: Array = sqrt(2 / pi) * np.exp(-(mean**2) / 2) + mean * (1 - 2 * ndtr(-mean))
    return out


def unfold(sizes: Array, sigmas: Array) -> Array:
    """Mean of the normal variable whose absolute value is expected to be `sizes`.

    0 where `sizes` is below the expected size of noise alone.
    """
    safe = np.where(sigmas > 0, sigmas, 1.0)
    target = sizes / safe
    low, high = np.zeros_like(target), target.copy()
    for _ in range(_HALVINGS):  # the folded mean rises with the mean
        middle = (low + high) / 2
        below = folded_mean(middle) < target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    out: Array = np.where(sigmas > 0, low * safe, sizes)
    return out


def sum_interval(
    sizes: Array, sigmas: Array, variance: float, z: float
) -> tuple[float, float]:
    """Interval of the sum of the absolute means of normal variables.

    sizes, sigmas: Absolute values found, and standard deviations.
    variance: Of the sum of those with a known sign (`KNOWN`), which may depend on each
        other.
    z: Half width in standard errors.
    Result: `low` subtracts the largest possible bias of each absolute value. `high` is
        the largest sum that is not rejected when it is spread over the variables so
        that it is hardest to detect, which is evenly, because the folded mean is
        convex.
    """
    scaled = np.where(sigmas > 0, sizes / np.where(sigmas > 0, sigmas, 1.0), np.inf)
    least = np.maximum(np.minimum(scaled, 99.0) - _NEARER, 0.0)
    added = float((sigmas * (folded_mean(least) - least)).sum())
    unknown = scaled <= KNOWN
    spread, width = (sigmas[unknown] ** 2).sum(), float(sigmas[unknown].sum())
    total, open_ = float(sizes.sum()), float(sizes[unknown].sum())
    low = max(total - added - z * sqrt(variance + spread), 0.0)
    if width <= 0:
        return low, total + z * sqrt(variance)
    # Less than noise alone has on average tells no more than that.
    found = max(open_, width * sqrt(2 / pi))
    mean = np.linspace(0.0, (found + z * sqrt(variance + spread)) / width + 1, _POINTS)
    folded = folded_mean(mean)
    free = np.maximum(1 + mean**2 - folded**2, 0.0)
    seen = width * folded - z * np.sqrt(variance + spread * free)
    last = int(np.flatnonzero(seen <= found)[-1])
    high = np.interp(found, seen[last : last + 2], mean[last : last + 2])
    return low, total - open_ + width * float(high)


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


class CalibrationCurve(tuple[Array, Array, Array]):
    """Points of `federated_calibration_curve`; unpacks into its first three.

    Attributes
    ----------
    prob_true, prob_pred, error : ndarray of shape (n_points,)
        Frequency of positives, mean score, and standard error of the frequency.
    low, high : ndarray of shape (n_points,)
        Confidence interval of `prob_true`.
    counts : ndarray of shape (n_points,)
        Estimated number of rows.
    privacy : PrivacyReport or None
        Privacy guarantee of the release; None for exact counts.
    population : {'clients', 'rows'}
        What errors and intervals are for.
    estimand : str
        What counts how much, such as 'every row counts once'.

    Examples
    --------
    >>> from skfedcal import federated_calibration_curve
    >>> clients = [([0.1, 0.1, 0.9], [0, 1, 1]), ([0.1, 0.1], [0, 0])]
    >>> curve = federated_calibration_curve(clients, n_bins=2, input_type="proba")
    >>> curve.population, curve.estimand, curve.privacy
    ('clients', 'every row counts once', None)
    """

    low: Array
    high: Array
    counts: Array
    privacy: PrivacyReport | None
    population: str
    estimand: str | None

    def __new__(cls, points: Reliability, about: Answers) -> Self:
        self = super().__new__(cls, points[:3])
        self.low, self.high, self.counts = points.low, points.high, points.counts
        self.privacy = about.privacy_ if about.privacy_.private else None
        self.population, self.estimand = about.population_, about.estimand_
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore_curve, (tuple(self), self.__dict__)

    @property
    def prob_true(self) -> Array:
        return self[0]

    @property
    def prob_pred(self) -> Array:
        return self[1]

    @property
    def error(self) -> Array:
        return self[2]

    def __repr__(self) -> str:
        lines = [
            f"  {pred:.3f}: {true:.3f} in [{low:.3f}, {high:.3f}]"
            for true, pred, low, high in zip(
                *self[:2], self.low, self.high, strict=True
            )
        ]
        about = f"population={self.population!r}, estimand={self.estimand!r}"
        if self.privacy is not None:
            about += f", eps={self.privacy.eps:g}, unit={self.privacy.unit!r}"
        return "\n".join([f"CalibrationCurve({about})", *lines])


def _restore_curve(
    arrays: tuple[Array, ...], about: dict[str, Any]
) -> CalibrationCurve:
    curve = tuple.__new__(CalibrationCurve, arrays)
    curve.__dict__.update(about)
    return curve


@answers_documented
class CalibrationAnswers(Answers):
    """Metrics that use the centre of a bucket for the scores in it."""

    @with_guarantee
    def brier(self, *, ci: float = 0.95) -> Estimate:
        """Mean squared difference of score and outcome.

        Parameters
        ----------
        ci

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

        Scores nearer to 0 or 1 than the centres of the outermost buckets are clipped to
        these centres. `discretisation` bounds the difference to scikit-learn, which
        clips at 2.2e-16: it is large if rows of the other label are in the outermost
        buckets.

        Parameters
        ----------
        ci

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
        strategy, ci

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
        """Scores that divide the rows into buckets of about equal size.

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
        sampling, privacy, free = map(float, self._spread(gradient))
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


# Up to so many rows of a bin the variance of calibrated outcomes counts, if it is more
# than that of the outcomes found: ten rows that came out alike do not have none.
_FEW_ROWS = 8.0


# Bin widths within which an edge of a bucket is an edge of a bin.
_SAME_EDGE = 1e-9


# Part of the rows in bins that noise could have filled from which on the squares of
# the others tell nothing: those bins were shown because of their noise.
_MOST_HIDDEN = 0.25


@dataclass(frozen=True)
class Gaps:
    """Sums of outcome minus score of some bins.

    values of shape (n_bins,): The sums.
    sampling, privacy of shape (n_bins,): Their variances.
    rows of shape (n_bins,): Number of rows.
    weights of shape (n_bins, 2, n_buckets): Weights of the counts in the sums.
    inside of shape (n_bins, n_buckets): Buckets of each bin.
    discretisation: Bound on the change of the mean absolute sum by using centres for
        scores.
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


@answers_documented
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
        strategy
        debias : bool, default=True
            Correct the upward bias of absolute values by sampling and noise: each gap
            is estimated as the one whose expected absolute value is the observed one
            (folded normal distribution). Some bias remains where the true error is near
            0.
        ci

        Returns
        -------
        Estimate
            The interval is for the mean absolute gap of the population in these same
            bins. It starts at 0 where no gap can be distinguished from sampling and
            noise.

        Notes
        -----
        An absolute value is biased upward and has no slope at 0, so the interval
        is not the value plus and minus its standard error. It is computed from the gaps
        of all bins, which are normal: for the lower end, the largest possible bias of
        the absolute values is subtracted; for the upper end, the error is spread over
        bins so that it is hardest to detect. Its coverage is at least `ci`, and near 1
        where the error is about as large as its noise.
        """
        total = sum(self._sums)
        if total <= 0:
            return self._no_rows("Calibration error")
        gaps = self._gaps(n_bins, strategy)
        sizes, sigmas = np.abs(gaps.values), np.sqrt(gaps.variances)
        known = np.where(sizes > KNOWN * sigmas, np.sign(gaps.values), 0.0)
        slope = (known[:, None, None] * gaps.weights).sum(axis=0)
        share = float((sizes * np.abs(known)).sum()) / total
        *joint, free = self._spread(slope - share)
        z = quantile(ci, float(free) if self.moments_ else inf)
        low, high = sum_interval(sizes, sigmas, float(sum(joint)), z)
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
        strategy
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
        *parts, few = self._spread(
            slope.sum(axis=0) - float((square * scale).sum()) / total
        )
        each = self._covariance(gaps.weights)
        np.fill_diagonal(each, gaps.variances)
        z = quantile(ci, float(few) if self.moments_ else inf)
        free = 2 * float(scale @ each**2 @ scale)  # of squares of normal variables
        # Squares of the gaps found are too large by their variance, which enters the
        # slopes twice.
        rise = max(float(sum(parts)) - 2 * free, 0.0)
        spent = float((scale * gaps.variances).sum())
        low, high = _square_interval(unbiased, rise, free, spent, z)
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
        sampling, privacy = self.variances(weights)
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
            place = edges * n_bins
            near = np.rint(place)
            # Edges come from exp, whose last bits differ between processors: an edge
            # such as 0.5 must not lie on one side of itself.
            place = np.where(np.abs(place - near) < _SAME_EDGE, near, place)
            over = np.ceil(place[1:]) - np.floor(place[:-1]) > 1
            off = off + 2 * np.abs(residual) * over
        bound = float((self._seen() * off).sum()) / max(sum(self._sums), 1.0)
        return Gaps(
            values, sampling, privacy, rows, weights, inside, min(bound, 1.0)
        )  # fmt: skip


def _square_interval(
    value: float, rise: float, free: float, noise: float, z: float
) -> tuple[float, float]:
    """Interval of a weighted sum of squared means, from squares of normal variables.

    All t with ``(value - t)**2 <= z**2 * (free + slope * t)``: `free` is the variance
    where all means are 0, and `rise` is what the means add to it at `value`. Where
    `rise` is not informative, the means are assumed to be distributed like the noise,
    whose squares add `noise`. The lower end is corrected for the excess length of the
    upper tail.
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
    """Excess length of the upper tail of a sum of squares over a normal tail.

    The sum is approximated by a multiple of a chi-square variable (Satterthwaite).
    """
    if variance <= 0 or mean <= 0:
        return 0.0
    from scipy.special import chdtri, ndtr

    point = chdtri(2 * mean**2 / variance, ndtr(-z)) * variance / (2 * mean)
    return max(float(point) - mean - z * sqrt(variance), 0.0)
