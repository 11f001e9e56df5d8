"""FedTopBinCalibrator: histogram binning of the most probable class."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal import _numerics
from skfedcal._docs import documented
from skfedcal._sklearn_compat import Interval, StrOptions
from skfedcal.methods.base import BaseCalibrator
from skfedcal.methods.bins.rounds import (
    BinTable,
    HistogramState,
    bin_table,
    noticeable_gain,
)
from skfedcal.methods.buckets import ClassBins, bin_index
from skfedcal.methods.map_formulas import AHEAD, MAX_FACTOR, VANISHED
from skfedcal.methods.top_bins.rounds import TopBinCounts, top_label

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, InputType, Seed
    from skfedcal.contract import FederatedAlgorithm
    from skfedcal.federation.runner import FederatedRunner
    from skfedcal.methods.base import FitSetting
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.models import PrivacyModel


Array = NDArray[Any]

# Prior of what is wrong with the confidence: too high or too low in proportion to how
# far it is above chance, with a deviation of 1; any smooth error; and one by bin.
_SMOOTH, _LENGTH, _SINGLE = 0.2, 0.3, 0.1

# The prior is shrunk by these factors, all as likely. With 0 nothing is wrong, which
# must become less likely than this before it is given up. For each of these many bins,
# those that speak most against it, it must be so without the bin, or with the bin moved
# toward the input by so many deviations of the noise (Laplace noise exceeds them in 1
# of 80,000): one of the two is enough.
_FACTORS = np.array([0.0, 0.15, 0.4, 1.0])
_MAX_NOTHING = 0.05
_DOUBTED, _MARGIN = 5, 8.0

# Slope of the log density in the last bin, over that from the bin before: confidences
# crowd at 1. From outputs of networks.
_CROWDED = 2.0

# Pseudo-rows of an empty bin, where the input is not leant on.
_EMPTY = 1e-9

# Steps of Newton's method; it rises toward the root and has 1e-12 after six or so.
_MAX_STEPS, _CLOSE = 200, 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class TopTable:
    """Table of calibrated confidences.

    values of shape (n_bins,): New confidence in the middle of the bin.
    trust of shape (n_bins,): Weight of the counts of the bin, from 0 to 1: inside the
        bin, the new confidence has a slope of ``1 - trust`` in the old one.
    nothing: Posterior probability that the input needs no correction; NaN if not known.
    """

    values: Array
    trust: Array
    nothing: float = np.nan

    @property
    def noticeable(self) -> bool:
        """Whether the counts contradict the input."""
        return self.nothing < _MAX_NOTHING


def frequency_table(state: HistogramState) -> TopTable:
    """Frequencies of correct predictions; the midpoint for an empty bin."""
    values = plain_bins(state).values[0]
    return TopTable(values, np.ones(len(values)))


def plain_bins(state: HistogramState) -> BinTable:
    """Table of frequencies with its derivatives."""
    return bin_table(state.positive, state.negative, _EMPTY)


def shrunk_table(state: HistogramState, n_classes: int) -> TopTable:
    """Posterior mean of each bin around the input, from counts with known noise.

    With `r` correct and `w` wrong predictions in a bin with midpoint `m`, the residual
    ``(1 - m) r - m w`` is unbiased for ``n d``: `n` rows times the error `d` of the
    confidence. Its variance is that of `n` draws and of the noise. `d` has a normal
    prior over bins.
    """
    middle = ClassBins(state.positive.shape[1]).midpoints
    slope, seen, _ = _observed(state, middle)
    error, trust, _ = _posterior(_covariance(middle, n_classes), slope, seen)
    return TopTable(middle + error, trust, chance_of_nothing(state, n_classes))


def _observed(state: HistogramState, confidence: Array) -> tuple[Array, Array, Array]:
    """Slopes of residuals in the error, residuals, and the deviation of their noise.

    All over the standard deviation of draws and noise together.
    """
    right, wrong = state.positive[0], state.negative[0]
    rows = np.maximum(right + wrong, 0.0)
    residual = (1 - confidence) * right - confidence * wrong
    # Of one draw, by the frequency or by the input, whichever is larger: a few rows of
    # one kind would look certain.
    hit = plain_bins(state).values[0]
    single = np.maximum(hit * (1 - hit), confidence * (1 - confidence))
    noise = np.hypot(
        (1 - confidence) * state.noise_positive, confidence * state.noise_negative
    )
    spread = np.sqrt((rows + 1) * single + noise**2)
    return rows / spread, residual / spread, noise / spread


def chance_of_nothing(state: HistogramState, n_classes: int) -> float:
    """Posterior probability that the input needs no correction, from released counts.

    Not that the accuracy of a bin is its midpoint: rows of a calibrated network lie
    close to 1 in the last bin. Negative counts are noise.
    """
    state = replace(
        state,
        positive=np.maximum(state.positive, 0.0),
        negative=np.maximum(state.negative, 0.0),
    )
    n_bins = state.positive.shape[1]
    middle = ClassBins(n_bins).midpoints
    confidence = middle + _mean_place(state) / n_bins
    slope, seen, noise = _observed(state, confidence)
    covariance = _covariance(middle, n_classes)
    bins = np.arange(n_bins)
    chances = []
    for one in np.argsort(-np.abs(seen), kind="stable")[:_DOUBTED]:
        left = max(abs(seen[one]) - _MARGIN * noise[one], 0.0)
        moved = np.where(bins == one, np.copysign(left, seen), seen)
        own = []
        for kept in (bins[bins != one], bins):
            part = covariance[np.ix_(kept, kept)]
            own.append(_posterior(part, slope[kept], moved[kept])[2])
        chances.append(min(own))
    return max(chances)


def _mean_place(state: HistogramState) -> Array:
    """Mean place of the rows in their bins, from -1/2 to 1/2.

    The log density is linear in each bin, with slopes from the counts of neighbours.
    """
    rows = np.maximum(state.positive[0] + state.negative[0], 1.0)
    if len(rows) == 1:
        return np.zeros(1)
    # The counts of bins that are no more than noise become alike.
    logs = np.log(rows + state.noise_positive + state.noise_negative)
    steps = np.diff(logs)
    slope = np.concatenate(
        [steps[:1], (steps[1:] + steps[:-1]) / 2, _CROWDED * steps[-1:]]
    )
    steep = np.abs(slope) > 1e-3
    safe = np.where(steep, slope, 1.0)
    return np.where(steep, 0.5 / np.tanh(safe / 2) - 1 / safe, slope / 12)


def monotone(table: TopTable, state: HistogramState) -> TopTable:
    """Non-decreasing values, nearest by weighted least squares."""
    from sklearn.isotonic import isotonic_regression

    rows = np.maximum(state.positive[0] + state.negative[0], 0.0) + 1
    values = isotonic_regression(table.values, sample_weight=rows)
    return replace(table, values=values)


def _covariance(middle: Array, n_classes: int) -> Array:
    lever = middle - 1 / n_classes
    gap = (middle[:, None] - middle) / _LENGTH
    smooth = _SMOOTH**2 * np.exp(-(gap**2) / 2)
    return np.outer(lever, lever) + smooth + _SINGLE**2 * np.eye(len(middle))


def _posterior(
    covariance: Array, slope: Array, seen: Array
) -> tuple[Array, Array, float]:
    """Mean of d from ``seen = slope * d + normal noise``, averaged over `_FACTORS`.

    Also the derivative of each mean by its own observed ``d``, and the posterior
    probability of the factor 0.
    """
    values, vectors = np.linalg.eigh(slope[:, None] * covariance * slope)
    scales = _FACTORS[:, None] ** 2
    spread = 1 + scales * np.maximum(values, 0.0)
    turned = vectors.T @ seen
    evidence = -0.5 * (turned**2 / spread + np.log(spread)).sum(axis=1)
    chance = np.exp(evidence - evidence.max())
    chance /= chance.sum()
    shrunk = chance @ (scales / spread)
    gain = (covariance * slope) @ vectors * shrunk
    trust = np.einsum("ij,ij->i", gain, slope[:, None] * vectors)
    return gain @ turned, np.clip(trust, 0.0, 1.0), float(chance[0])


# Rows of a client that count under privacy, if a client is protected as a whole.
_ROWS = 10

# A calibrated confidence is strictly between 0 and 1.
_LIMITS = np.finfo(np.float64)


@documented
class FedTopBinCalibrator(BaseCalibrator):
    """Set the confidence in the predicted class to its observed accuracy.

    Confidences, the probabilities of the most probable classes, fall into bins. Clients
    send the numbers of correct and of wrong predictions in each bin; a row enters one
    of them. One round.

    Parameters
    ----------
    eps : float, default=None
        Privacy budget epsilon for a whole client (client-level differential privacy).
        None adds no noise. To protect single rows pass `privacy`.
    delta : float, default=None
        Accepted for a uniform interface and not used: Laplace noise gives pure
        eps-differential privacy.
    n_bins : int, default=15
        Equal-width bins of [0, 1].
    shrink : bool, default=True
        Take the posterior mean of each bin, with a prior around the input confidence
        that is smooth over bins, given sampling and the known noise. False takes the
        frequency, as in the paper.
    monotone : bool, default=True
        Make the values non-decreasing over bins.
    keep_order : bool, default=True
        Divide the logits of each row by the temperature that gives its predicted class
        the new confidence: the order of classes does not change. False scales the other
        classes in proportion; `predict` may then return one of these, with a
        probability that no bin has measured.
    clip : int or 'auto', default='auto'
        Maximum number of rows that a client contributes; of more rows, a fixed choice
        by row number is used. 'auto' is 10 under privacy, 1 if the unit of privacy is a
        row or a report, and all rows without privacy.
    if_improves : bool, default=True
        Under privacy, return the input unchanged unless the released counts contradict
        it (`improves_`).
    hold_back
    privacy : privacy model, default=None
        Privacy model to use instead of `eps` and `delta`: SourceDP, CentralDP,
        DistributedDP, LocalDP or SecureAggregation.
    ledger, classes, input_type, runner, random_state

    Attributes
    ----------
    bin_edges_ : ndarray of shape (n_bins + 1,)
        Edges of the bins.
    counts_ : ndarray of shape (2, n_bins)
        Released counts of correct and wrong predictions; may be negative under noise.
    bin_values_ : ndarray of shape (n_bins,)
        Calibrated confidence in the middle of each bin.
    bin_trust_ : ndarray of shape (n_bins,)
        Weight of the counts of each bin, from 0 to 1. At 1 all confidences of the bin
        get its value; below, they keep a part of their differences.
    classes_
    improves_ : bool
        Under privacy, whether the counts contradict the input; without it False if
        `hold_back` found harm.
    comparison_
    n_clients_, n_rounds_, privacy_, history_

    See Also
    --------
    FedBinCalibrator : Bins of every class against the rest.
    FedHistogramCalibrator : Other curves, from finer counts.

    Notes
    -----
    A confidence p in a bin with middle m, value v and trust a becomes
    ``v + (1 - a) (p - m)``, with `keep_order` not less than 1 of `n_classes`. `predict`
    is the most probable class of `predict_proba`.

    With r correct and w wrong predictions the residual ``(1 - m) r - m w`` measures
    ``n d``, n = r + w rows times the error d of the confidence, with the variance of n
    draws and of the noise. The prior of d is normal: an error in proportion to
    ``m - 1 / n_classes``, a smooth one, and one of the bin alone. It is averaged over
    four strengths, one of which is 0. `improves_` asks for odds of 19 to 1 against that
    one, for every bin either without it or with it moved toward the input by eight
    deviations of the noise; m is then a mean confidence, estimated from the counts of
    neighbouring bins.
    With ``shrink=False`` it is that of FedBinCalibrator.

    One row moves one count by 1. The paper releases the numbers of correct and of all
    predictions, which a row changes by 2 in total, and needs twice the noise. Under
    SourceDP every source adds noise of its own; the same eps with CentralDP or
    DistributedDP and ``unit='example'`` adds it once, and is much more accurate.

    References
    ----------
    .. [1] "Privacy Preserving Recalibration under Domain Shift", appendix C.2.3;
       anonymous text under review.
    .. [2] Zadrozny and Elkan, "Obtaining Calibrated Probability Estimates from Decision
       Trees and Naive Bayesian Classifiers", ICML 2001.

    Examples
    --------
    >>> from skfedcal import FedTopBinCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, random_state=0)
    >>> cal = FedTopBinCalibrator().fit(fed.clients)
    >>> cal.bin_values_[[5, 10, 14]].round(2)
    array([0.23, 0.48, 0.91])
    """

    _parameter_constraints = {
        **BaseCalibrator._parameter_constraints,
        "n_bins": [Interval(Integral, 1, 2**20, closed="both")],
        "shrink": ["boolean"],
        "monotone": ["boolean"],
        "keep_order": ["boolean"],
        "clip": [Interval(Real, 1, 1e50, closed="both"), StrOptions({"auto"})],
    }
    _fitted_names = ("bin_edges_", "counts_", "bin_values_", "bin_trust_")

    def __init__(
        self,
        eps: float | None = None,
        *,
        delta: float | None = None,
        n_bins: int = 15,
        shrink: bool = True,
        monotone: bool = True,
        keep_order: bool = True,
        clip: float | Literal["auto"] = "auto",
        if_improves: bool = True,
        hold_back: bool = False,
        privacy: PrivacyModel | None = None,
        ledger: PrivacyLedger | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        runner: FederatedRunner | None = None,
        random_state: Seed = None,
    ) -> None:
        self.eps = eps
        self.delta = delta
        self.n_bins = n_bins
        self.shrink = shrink
        self.monotone = monotone
        self.keep_order = keep_order
        self.clip = clip
        self.if_improves = if_improves
        self.hold_back = hold_back
        self.privacy = privacy
        self.ledger = ledger
        self.classes = classes
        self.input_type = input_type
        self.runner = runner
        self.random_state = random_state

    def _make_algorithm(self, setting: FitSetting) -> FederatedAlgorithm[Any]:
        rows: Any = self._n_rows(setting)
        return TopBinCounts(
            n_bins=int(self.n_bins),
            # A row by itself is one row; the choice would be by its number, 0.
            max_examples=None if setting.unit == "example" else rows,
            clip=float(rows) if setting.private else None,
            weighted=setting.weighted,
        )

    def _n_rows(self, setting: FitSetting) -> int | None:
        from skfedcal.privacy.models import LocalDP

        if not isinstance(self.clip, str):
            if self.clip >= 2 and setting.private and setting.unit == "example":
                raise ValueError(
                    f"clip={self.clip!r} is not used with unit='example', where the "
                    "bound is one row; leave it out."
                )
            return int(self.clip)
        if not setting.private:
            return None
        single = setting.unit == "example" or isinstance(self.privacy, LocalDP)
        return 1 if single else _ROWS

    def _set_state(self, state: Any) -> None:
        if self.shrink:
            table = shrunk_table(state, len(self.classes_))
            self._gain = table.noticeable
        else:
            table = frequency_table(state)
            noisy = state.noise_positive > 0
            bins = ClassBins(self.n_bins)
            self._gain = not noisy or noticeable_gain(state, plain_bins(state), bins)
        if self.monotone:
            table = monotone(table, state)
        self.bin_edges_ = np.arange(self.n_bins + 1) / self.n_bins
        self.counts_ = np.concatenate([state.positive, state.negative])
        self.bin_values_ = np.clip(table.values, 0.0, 1.0)
        self.bin_trust_ = table.trust

    def _improves(self) -> bool:
        return self._gain

    def _calibrate(self, logits: Array) -> Array:
        top, confidence = top_label(logits)
        bins = bin_index(confidence, self.n_bins)
        inside = confidence - ClassBins(self.n_bins).midpoints[bins]
        own = self.bin_values_[bins] + (1 - self.bin_trust_[bins]) * inside
        own = np.clip(own, _LIMITS.tiny, 1 - _LIMITS.epsneg)
        keep = self.keep_order
        out = temper_to(logits, own) if keep else share_rest(logits, top, own)
        return out.astype(logits.dtype, copy=False)

    def _check_restored(self) -> None:
        shapes = (self.n_bins + 1,), (2, self.n_bins), (self.n_bins,), (self.n_bins,)
        for name, shape in zip(self._fitted_names, shapes, strict=True):
            value = getattr(self, name)
            if value.shape != shape or value.dtype != np.float64:
                raise ValueError(f"{name} has a wrong shape or type")
        for name in ("bin_values_", "bin_trust_"):
            value = getattr(self, name)
            if not ((value >= 0) & (value <= 1)).all():
                raise ValueError(f"{name} has values outside [0, 1]")


def temper_to(logits: Array, own: Array) -> Array:
    """Divide each row by the temperature that gives its largest entry `own`.

    The order of the classes does not change. Values that cannot be reached, such as
    less than an equal share, or more than one half for two tied classes, are
    approximated.

    logits of shape (n_rows, n_classes): Centred logits.
    own of shape (n_rows,): Probability of the largest, strictly inside (0, 1).
    Result of shape (n_rows, n_classes), float64.
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
