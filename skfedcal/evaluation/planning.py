"""Expected error of a score histogram, and the number of examples for a target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, hypot, inf, log, pi, sqrt
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import as_number, check_integer
from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.noise import (
    LevelNoise,
    auto_levels,
    check_planned,
    level_noise,
    release_levels,
)
from skfedcal.evaluation.ranking import auc_with_gradient, average_precision
from skfedcal.evaluation.rounds import ROWS_WEIGHT
from skfedcal.evaluation.thresholds import weights
from skfedcal.methods.buckets import Space
from skfedcal.privacy.models import CentralDP, DistributedDP, LocalDP, SourceDP

if TYPE_CHECKING:
    from skfedcal.privacy.models import PrivacyModel


@dataclass(frozen=True, slots=True)
class ExpectedError:
    """Expected error of a metric; behaves as a float, its total.

    Attributes
    ----------
    metric : str
        Which metric.
    discretisation : float
        Error of using buckets instead of scores.
    privacy : float
        Standard deviation that noise adds.
    sampling : float
        Standard deviation of sampling the examples.
    total : float
        Root of the sum of squares of the three.
    height, n_bins : int
        Depth of the leaves; bins of a calibration map, else 0.
    levels : tuple of int
        Bit depths that are counted.

    Examples
    --------
    >>> from skfedcal import DistributedDP
    >>> from skfedcal.evaluation import expected_error
    >>> error = expected_error("roc_auc", 10_000, privacy=DistributedDP(eps=1.0))
    >>> f"{error.total:.4f}: sampling {error.sampling:.4f}, privacy {error.privacy:.4f}"
    '0.0045: sampling 0.0043, privacy 0.0010'
    """

    metric: str
    discretisation: float
    privacy: float
    sampling: float
    height: int
    levels: tuple[int, ...]
    n_bins: int = 0

    @property
    def total(self) -> float:
        return hypot(self.discretisation, self.privacy, self.sampling)

    def __float__(self) -> float:
        return self.total


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """Result of `plan`.

    Attributes
    ----------
    target : float
        Requested error.
    n_needed : float
        Number of examples that reaches it; infinite if none does.
    n_examples : float or None
        Available examples.
    error : ExpectedError
        Expected error with these examples, or with the needed ones, at the best height.
    max_examples : int
        Rows of one client that count.

    ``ScoreHistogram.fit(plan=...)`` and the ``federated_...`` functions take the plan:
    its levels and its bound on rows.

    Examples
    --------
    >>> from skfedcal import DistributedDP
    >>> from skfedcal.evaluation import plan
    >>> answer = plan("roc_auc", 0.01, privacy=DistributedDP(eps=1.0))
    >>> 100 * round(answer.n_needed / 100)
    2300
    """

    target: float
    n_needed: float
    n_examples: float | None
    error: ExpectedError
    max_examples: int = 1

    @property
    def enough(self) -> bool:
        """Whether the available examples reach the target."""
        return self.n_examples is None or self.n_examples >= self.n_needed

    def __repr__(self) -> str:
        error = self.error
        bins = f", {error.n_bins} bins" if error.n_bins else ""
        need = f"needs {self.n_needed:,.0f} examples"
        if self.n_needed == inf:
            need = "cannot be reached with any number of examples"
        lines = [f"Plan: {error.metric} within {self.target:g} {need}"]
        if self.n_examples is not None:
            verdict = "enough" if self.enough else "not enough"
            each = f", {self.max_examples} of each client" * (self.max_examples > 1)
            lines.append(f"  examples   {self.n_examples:,.0f}{each}: {verdict}")
        levels = f", levels {error.levels}" if len(error.levels) > 1 else ""
        shape = f"  histogram  height {error.height}{levels}{bins}"
        lines += [
            shape if error.levels else f"  residuals  {error.n_bins} bins",
            f"  error      {error.total:.2g} = root sum of squares of privacy "
            f"{error.privacy:.2g}, sampling {error.sampling:.2g}, discretisation "
            f"{error.discretisation:.2g}",
        ]
        return "\n".join(lines)


Array = NDArray[Any]

_AT_THRESHOLD = ("accuracy", "balanced_accuracy", "precision", "recall", "f1")
RATIOS = (*_AT_THRESHOLD, "brier", "log_loss")
METRICS = ("roc_auc", "average_precision", *RATIOS, "ece", "cwece")
# Former names that are still understood.
_ALIASES = {"calibration": "ece"}

# Buckets that stand for scores without buckets, and those of one threshold, 1/2.
_FINE, _HALVES = ScoreGrid(15, "prob"), ScoreGrid(1, "prob")

# Positions inside a leaf at which straight lines are compared with the truth.
_OFFSETS = np.linspace(-0.5, 0.5, 17)


@dataclass(frozen=True, slots=True)
class ScoreModel:
    """Calibrated scores with normal log-odds in both classes.

    positive_rate: Share of positives.
    auc: Area under the ROC curve; both classes then have log-odds of standard deviation
        ``sqrt(2) * z(auc)``, z the normal quantile.
    """

    positive_rate: float = 0.5
    auc: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.positive_rate < 1:
            raise ValueError(f"positive_rate={self.positive_rate!r} is not in (0, 1).")
        if not 0.5 < self.auc < 1:
            raise ValueError(f"auc={self.auc!r} is not in (0.5, 1).")

    @property
    def spread(self) -> float:
        from scipy.special import ndtri

        return sqrt(2) * float(ndtri(self.auc))

    def below(self, score: Array) -> Array:
        """Share of all examples that are negative, or positive, and below `score`."""
        from scipy.special import logit, ndtr

        prior = log(self.positive_rate / (1 - self.positive_rate))
        shares = np.array([1 - self.positive_rate, self.positive_rate])
        signs = np.array([-0.5, 0.5]) * self.spread**2
        odds = logit(np.clip(score, 0.0, 1.0))
        return shares[:, None] * ndtr((odds - prior - signs[:, None]) / self.spread)

    def cells(self, grid: ScoreGrid) -> Array:
        """Shares of shape (2, n_buckets): negatives and positives in each bucket."""
        return _cells(self, grid)

    def discretisation(
        self, metric: str, grid: ScoreGrid, threshold: float, *, smooth: bool = False
    ) -> float:
        """Difference between the metric of leaves and of scores.

        At a threshold, the largest of those within half a leaf of it.
        """
        cells = self.cells(grid)
        if metric == "roc_auc":
            return abs(auc_with_gradient(cells, smooth)[0] - self.auc)
        if metric == "average_precision":
            fine = average_precision(self.cells(_FINE), exact=False)[0]
            return abs(average_precision(cells, exact=False)[0] - fine)
        if metric not in _AT_THRESHOLD:
            fine = ratio(metric, self.cells(_FINE), _FINE)[0]
            return abs(ratio(metric, cells, grid)[0] - fine)
        place = grid.position(threshold) + _OFFSETS / grid.n_buckets
        near = grid.probability(np.clip(place, 0.0, 1.0))
        below, total = self.below(near), cells.sum(axis=1)
        gaps = []
        for t, part in zip(near, below.T, strict=True):
            # Two buckets that the threshold separates hold the exact counts.
            exact = np.stack([part, total - part], axis=1)
            truth = ratio(metric, exact, _HALVES)[0]
            found = ratio(metric, cells, grid, t, smooth=smooth)[0]
            gaps.append(abs(found - truth))
        return max(gaps)

    def bin_spread(self, edges: Array) -> float:
        """Mean distance of scores from the mean of their bin."""
        fine, score = self.cells(_FINE).sum(axis=0), _FINE.centres
        bins = np.searchsorted(edges[1:-1], score, side="right")
        mass = np.bincount(bins, fine, len(edges) - 1)
        mean = np.bincount(bins, fine * score, len(edges) - 1) / np.maximum(
            mass, 1e-300
        )
        return float(fine @ np.abs(score - mean[bins]))


@lru_cache(maxsize=64)
def _cells(model: ScoreModel, grid: ScoreGrid) -> Array:
    return np.diff(model.below(grid.edges), axis=1)


def ratio(
    metric: str,
    cells: Array,
    grid: ScoreGrid,
    threshold: float = 0.5,
    *,
    smooth: bool = False,
) -> tuple[float, Array]:
    """Metric made of ratios of two linear functionals of counts, and its gradient."""
    if metric == "balanced_accuracy":  # mean recall of the two classes
        above = grid.above(threshold, smooth=smooth)
        sides = above if above.ndim == 2 else np.stack([above, above])
        sides = np.stack([1 - sides[0], sides[1]])
        sums = cells.sum(axis=1, keepdims=True)
        each = (sides * cells).sum(axis=1, keepdims=True) / sums
        return float(each.mean()), (sides - each) / (2 * sums)
    if metric in ("brier", "log_loss"):
        lower, centre = np.ones_like(cells), grid.centres
        upper = {
            "brier": np.stack([centre**2, (1 - centre) ** 2]),
            "log_loss": np.stack([-np.log1p(-centre), -np.log(centre)]),
        }[metric]
    else:
        upper, lower = weights(metric, grid.above(threshold, smooth=smooth))
    whole = float(np.sum(lower * cells))
    value = float(np.sum(upper * cells)) / whole
    gradient = (upper - value * lower) / whole
    if metric == "f1":
        value, gradient = 2 * value / (1 + value), gradient * 2 / (1 + value) ** 2
    return value, gradient


# Heights that a plan chooses from, fewer for local noise, and numbers of bins.
_HEIGHTS, _LOCAL_HEIGHTS = range(3, 13), range(3, 9)
_BINS = (2, 3, 5, 8, 10, 15, 20, 30, 50, 80, 120, 200)

# Bounds on the rows of a client.
_ROW_BOUNDS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)

# More examples than there will be.
_MOST_EXAMPLES = 1e13


def expected_error(
    metric: str,
    n_examples: float,
    *,
    privacy: PrivacyModel | None = None,
    height: int | None = None,
    levels: Sequence[int] | Literal["auto"] = "auto",
    space: Literal["both", "prob", "logit"] = "both",
    positive_rate: float = 0.5,
    auc: float = 0.8,
    threshold: float = 0.5,
    n_bins: int | None = None,
    n_classes: int = 2,
    max_examples: int = 1,
    n_sources: int | None = None,
) -> ExpectedError:
    """Expected error of a metric that is computed from a score histogram.

    Computed for calibrated scores with normal log-odds, without simulation: the
    variance of the least squares counts, by the delta method.

    Parameters
    ----------
    metric : str
        'roc_auc', 'average_precision', 'accuracy', 'balanced_accuracy', 'precision',
        'recall', 'f1', 'brier', 'log_loss'; 'ece': mean distance of the frequencies in
        equal-mass bins from the truth ('calibration' is an old name of it); 'cwece':
        the same for `ClasswiseResiduals`, mean over classes.
    n_examples : float
        Examples M.
    privacy : object, default=None
        Privacy model; None is exact sums.
    height : int, default=None
        Depth of the leaves; None is the default of `ScoreHistogram.fit` for the metric,
        the number of examples and the budget.
    levels : tuple of int or 'auto', default='auto'
        Bit depths that are counted, as for `ScoreHistogram.fit`; 'auto' is every
        fourth, every one for local noise, and the last one alone without noise.
    space : {'both', 'prob', 'logit'}, default='both'
        Scale on which buckets have equal width, as for `ScoreHistogram`.
    positive_rate : float, default=0.5
        Share of positives.
    auc : float, default=0.8
        Area under the ROC curve of the model.
    threshold : float, default=0.5
        For accuracy, balanced accuracy, precision, recall and f1.
    n_bins : int, default=None
        For 'ece', where None takes the best, and for 'cwece', where None is 15.
    n_classes : int, default=2
        For 'cwece'; `skfedcal.forecast` has the other metrics of several classes.
    max_examples : int, default=1
        Maximum number of examples of one client, under client-level privacy.
    n_sources : int, default=None
        Sources that each add noise, for SourceDP.

    Returns
    -------
    error : ExpectedError
        Discretisation, privacy, sampling and total.

    Examples
    --------
    >>> from skfedcal.evaluation import expected_error
    >>> error = expected_error("roc_auc", 100_000)
    >>> error.privacy, round(error.total, 4)
    (0.0, 0.0014)
    """
    metric = _ALIASES.get(metric, metric) if isinstance(metric, str) else metric
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is unknown; pass one of {METRICS}.")
    if not 1 < as_number("n_examples", n_examples) < inf:
        raise ValueError(f"n_examples={n_examples!r} must be a number > 1.")
    given = {"positive_rate": positive_rate, "auc": auc, "threshold": threshold}
    for name, value in given.items():
        as_number(name, value)
    if not 1e-50 <= positive_rate <= 1 - 1e-16:
        raise ValueError(
            f"positive_rate must be a number in (0, 1), got {positive_rate!r}."
        )
    _check_used(metric, privacy, n_bins, n_classes, max_examples, n_sources)
    check_planned(privacy)
    if metric == "cwece":
        automatic = isinstance(levels, str) and levels == "auto" and height is None
        if not automatic or isinstance(privacy, LocalDP):
            what = f"height={height!r} and levels={levels!r} have no effect"
            raise ValueError(
                f"{what if not automatic else 'LocalDP is not possible'} with "
                "metric='cwece', which has sums of real numbers in bins; pass n_bins."
            )
        noise = level_noise(
            _for_residuals(privacy), (1,), max_examples=2 * max_examples,
            n_sources=n_sources,
        )  # fmt: skip
        return _classwise(n_examples, noise, int(n_bins or 15), n_classes)
    if height is None and isinstance(levels, str) and levels == "auto":
        found_ = auto_release(metric, n_examples, privacy, max_examples, n_sources)
        levels = "auto" if found_ is None else found_
    levels = release_levels(privacy, height, levels, space)
    noise = level_noise(privacy, levels, max_examples=max_examples, n_sources=n_sources)
    model = ScoreModel(positive_rate, auc)
    sizes: tuple[int, ...] = (0,)
    if metric == "ece":
        sizes = _bin_numbers(n_bins, levels[-1])
    found = []
    for size in sizes:
        coarse, private, sampled = _parts(
            metric, model, noise, space, float(threshold), size
        )
        private *= noise.scale(n_examples)
        sampled /= sqrt(n_examples)
        found.append(
            ExpectedError(metric, coarse, private, sampled, levels[-1], levels, size)
        )
    return min(found, key=float)


def _for_residuals(privacy: PrivacyModel | None) -> Any:
    """Privacy model of residual sums; a part of eps is for the number of rows."""
    if not isinstance(privacy, CentralDP | DistributedDP) or privacy.unit == "example":
        return privacy
    return replace(privacy, eps=privacy.eps / (1 + ROWS_WEIGHT ** (1 / 3)))


def _classwise(
    n_examples: float, noise: LevelNoise, n_bins: int, n_classes: int
) -> ExpectedError:
    """Mean distance of residual sums from their means, over classes.

    Chance in the outcomes of K classes has a variance of at most 1 - 1/K in total; it
    is largest if all sums have equal parts.
    """
    size = sqrt(2 / pi)  # the mean size of a normal error
    sampled = sqrt(n_bins * (1 - 1 / n_classes) / n_classes / n_examples)
    private = n_bins * sqrt(noise.model.levels[0].variance) / n_examples
    return ExpectedError("cwece", 0.0, size * private, size * sampled, 0, (), n_bins)


# Levels that were best in simulations of three models (positive rate .3, .1 and .5, AUC
# .8, .9 and .7) for n in (1e3, 1e4, 1e5) and eps in (.5, 1, 5), by the number of
# examples over the deviation of the noise in one count: the first ones up to this many,
# and so on. Both metrics have no slope that a closed form could use.
_BEST_LEVELS: dict[str, tuple[tuple[float, tuple[int, ...]], ...]] = {
    "average_precision": ((1.5e3, (1, 4)), (1.5e4, (2, 5)), (inf, (2, 6))),
    "ece": ((2e4, (4,)), (inf, (1, 5))),
}
# The same where two levels cost more than twice the deviation: noise of a large eps is
# mostly 0, and that of half of it is not.
_BEST_ALONE: dict[str, tuple[tuple[float, tuple[int, ...]], ...]] = {
    "average_precision": ((2e4, (5,)), (4e5, (6,)), (inf, (8,))),
    "ece": _BEST_LEVELS["ece"],
}
_COSTLY = 6.0
# Scores for which levels are chosen in closed form: share of positives and AUC.
_TYPICAL = (ScoreModel(0.3, 0.8), ScoreModel(0.5, 0.7), ScoreModel(0.1, 0.9))


def auto_release(
    metric: str,
    n_examples: float,
    privacy: PrivacyModel | None,
    max_examples: float = 1,
    n_sources: int | None = None,
) -> tuple[int, ...] | None:
    """Levels for a metric from public numbers; None where they do not depend on them.

    Noise grows with the number of buckets and of levels, and wide buckets cost
    accuracy. The levels have the least geometric mean, over typical scores, of the
    root of both squares.
    """
    if not isinstance(privacy, CentralDP | DistributedDP | SourceDP):
        return None
    sources = n_sources or (1 if isinstance(privacy, SourceDP) else None)
    bound: Any = {"max_examples": max_examples, "n_sources": sources}
    if metric in _BEST_LEVELS:
        one, two = (
            max(level_noise(privacy, bits, **bound).model.levels[0].variance, 1e-300)
            for bits in ((1,), (1, 2))
        )
        best = _BEST_ALONE if two > _COSTLY * one else _BEST_LEVELS
        signal = n_examples / sqrt(one)
        return next(levels for most, levels in best[metric] if signal <= most)
    found = {}
    for levels in _candidates():
        noise = level_noise(privacy, levels, **bound)
        parts = [_parts(metric, m, noise, "both", 0.5, 0)[:2] for m in _TYPICAL]
        errors = [hypot(coarse, noise_ / n_examples) for coarse, noise_ in parts]
        found[levels] = sum(log(max(error, 1e-300)) for error in errors)
    return min(found, key=lambda levels: found[levels])


@lru_cache(maxsize=1)
def _candidates() -> tuple[tuple[int, ...], ...]:
    """Sets of levels to choose from: one, two at some distance, every fourth."""
    out = []
    for height in range(3, 12):
        pairs = [(height - gap, height) for gap in (3, 4, 5) if height - gap >= 2]
        out += [(height,), *pairs, auto_levels(height)]
    return tuple(dict.fromkeys(out))


class ErrorOptions(TypedDict, total=False):
    """Parameters of `expected_error` that `plan` hands on."""

    levels: Sequence[int] | Literal["auto"]
    space: Literal["both", "prob", "logit"]
    positive_rate: float
    auc: float
    threshold: float
    n_bins: int | None
    n_classes: int
    n_sources: int | None


def plan(
    metric: str,
    target: float,
    *,
    privacy: PrivacyModel | None = None,
    n_examples: float | None = None,
    height: int | None = None,
    max_examples: int | Literal["auto"] = 1,
    n_clients: int | None = None,
    **options: Unpack[ErrorOptions],
) -> Plan:
    """How many examples a metric needs, at which height, and how many of a client.

    Parameters
    ----------
    metric : str
        As for `expected_error`.
    target : float
        Requested total error, as one standard deviation.
    privacy : object, default=None
        Privacy model; None is exact sums.
    n_examples : float, default=None
        Available examples; the plan then says whether they are enough.
    height : int, default=None
        Depth of the leaves; None takes the best for the number of examples, or the last
        of `levels` if these are given.
    max_examples : int or 'auto', default=1
        Maximum number of examples of one client, under client-level privacy. 'auto' is
        the smallest that reaches the target with `n_examples` in `n_clients`, or that
        of the least error if none does. More rows of a client decrease sampling error
        if they are independent, not noise.
    n_clients : int, default=None
        Number of clients, for ``max_examples='auto'``.
    **options : dict
        Further parameters of `expected_error`.

    Returns
    -------
    plan : Plan
        Its text says whether there are enough.

    Examples
    --------
    >>> from skfedcal.evaluation import plan
    >>> plan("accuracy", 0.005, n_examples=5000).enough
    False
    """
    if not 0 < as_number("target", target) < 1:
        raise ValueError(f"target must be a number in (0, 1), got {target!r}.")
    heights: Sequence[int | None] = (height,)
    automatic = isinstance(options.get("levels", "auto"), str) and metric != "cwece"
    if height is None and automatic:
        heights = _LOCAL_HEIGHTS if isinstance(privacy, LocalDP) else _HEIGHTS

    def best(n: float, bound: int) -> ExpectedError:
        given: Any = {"privacy": privacy, "max_examples": bound, **options}
        found = (expected_error(metric, n, height=h, **given) for h in heights)
        return min(found, key=float)

    bound = 1 if isinstance(max_examples, str) else max_examples
    if isinstance(max_examples, str):
        bounds = _row_bounds(max_examples, n_examples, n_clients, privacy)
        found = {m: best(n, m).total for m, n in bounds.items()}
        reach = [m for m, error in found.items() if error <= target]
        bound = min(reach or found, key=lambda m: m if reach else found[m])
        n_examples = bounds[bound]
    elif n_clients is not None:
        raise ValueError(
            f"n_clients={n_clients!r} has no effect with max_examples={max_examples!r};"
            " leave it out, or pass max_examples='auto'."
        )
    needed = _smallest(lambda n: best(n, bound).total <= target)
    n = n_examples if n_examples is not None else min(needed, _MOST_EXAMPLES)
    return Plan(float(target), needed, n_examples, best(n, bound), bound)


def _row_bounds(
    word: str,
    n_examples: float | None,
    n_clients: int | None,
    privacy: PrivacyModel | None,
) -> dict[int, float]:
    """Bounds on the rows of a client to choose from, and the rows that then count."""
    if word != "auto":
        raise ValueError(f"max_examples={word!r}: pass 'auto' or an integer.")
    by_client = isinstance(privacy, CentralDP | DistributedDP)
    if not by_client or privacy.unit != "client":  # type: ignore[union-attr]
        raise ValueError(
            f"max_examples='auto' is for models that protect clients, not for "
            f"{privacy!r}; leave it out."
        )
    if n_examples is None or n_clients is None:
        raise ValueError("max_examples='auto' needs n_examples and n_clients.")
    check_integer("n_clients", n_clients, 2)
    rows = max(as_number("n_examples", n_examples) / n_clients, 1.0)
    bounds = {int(rows), *(m for m in _ROW_BOUNDS if m <= rows)}
    return {m: float(n_clients * m) for m in sorted(bounds)}


def planned_levels(
    plan: Plan | str | None,
    n_examples: float,
    privacy: PrivacyModel,
    height: int | str,
    levels: Sequence[int] | str,
    space: str,
    max_examples: int = 1,
    n_sources: int | None = None,
) -> tuple[int, ...]:
    """Depths that a collection releases: as given, as planned, or the automatic ones.

    `plan` is a `Plan`, the name of the metric to choose for, or None for 'roc_auc'.
    """
    automatic = all(isinstance(v, str) and v == "auto" for v in (height, levels))
    if isinstance(plan, Plan):
        if not automatic:
            raise ValueError(
                f"plan has levels {plan.error.levels}, but height={height!r} and "
                f"levels={levels!r} are given; leave one of them out."
            )
        if not plan.error.levels:
            raise ValueError(
                f"plan is for {plan.error.metric!r}, which a score histogram does not "
                "have; fit ClasswiseResiduals with its n_bins and max_examples."
            )
        return plan.error.levels
    metric: object = "roc_auc" if plan is None else plan
    if isinstance(metric, str):
        metric = _ALIASES.get(metric, metric)
    names = tuple(name for name in METRICS if name != "cwece")
    if not isinstance(metric, str) or metric not in names:
        raise ValueError(f"plan={plan!r}: pass a Plan or one of {names}.")
    if automatic:
        levels = (
            auto_release(metric, n_examples, privacy, max_examples, n_sources) or levels
        )
    return release_levels(privacy, height, levels, space)


def _smallest(reached: Callable[[float], bool]) -> float:
    """Smallest number of examples, to 1 %, from which on `reached` is true."""
    low, high = 2.0, _MOST_EXAMPLES
    if not reached(high):
        return inf
    if reached(low):
        return low
    while high > 1.01 * low:
        middle = sqrt(low * high)
        low, high = (low, middle) if reached(middle) else (middle, high)
    return float(ceil(high))


def _check_used(
    metric: str,
    privacy: PrivacyModel | None,
    n_bins: int | None,
    n_classes: int,
    max_examples: int,
    n_sources: int | None,
) -> None:
    """Raise an error for a setting that is not an integer or has no effect."""
    check_integer("max_examples", max_examples, 1)
    check_integer("n_classes", n_classes, 2)
    for name, value in (("n_bins", n_bins), ("n_sources", n_sources)):
        if value is not None:
            check_integer(name, value, 1)
    for name, given, default, used, what in (
        ("n_bins", n_bins, None, metric in ("ece", "cwece"), f"metric={metric!r}"),
        ("n_classes", n_classes, 2, metric == "cwece", f"metric={metric!r}"),
        ("max_examples", max_examples, 1, not isinstance(privacy, LocalDP), "LocalDP"),
        ("n_sources", n_sources, None, isinstance(privacy, SourceDP), repr(privacy)),
    ):
        if given != default and not used:
            raise ValueError(
                f"{name}={given!r} has no effect with {what}; leave it out."
            )


def _bin_numbers(n_bins: int | None, height: int) -> tuple[int, ...]:
    if n_bins is None:
        return tuple(size for size in _BINS if size <= 2**height)
    if not isinstance(n_bins, (int, np.integer)) or not 1 <= n_bins <= 2**height:
        raise ValueError(
            f"n_bins must be from 1 to {2**height}, the number of "
            f"leaves, got {n_bins!r}."
        )
    return (n_bins,)


# A search for the number of examples asks for the same parts again and again.
@lru_cache(maxsize=1024)
def _parts(
    metric: str,
    model: ScoreModel,
    noise: LevelNoise,
    space: Space,
    threshold: float,
    n_bins: int,
) -> tuple[float, float, float]:
    """Discretisation, and standard deviations of noise and sampling for one example."""
    grid = ScoreGrid(noise.height, space)
    cells, smooth = model.cells(grid), noise.model.local
    if metric == "ece":
        return _bin_parts(model, grid, noise, n_bins)
    if metric == "roc_auc":
        gradient = auc_with_gradient(cells, smooth)[1]
    elif metric == "average_precision":
        gradient = average_precision(cells, exact=False)[1]
    else:
        gradient = ratio(metric, cells, grid, threshold, smooth=smooth)[1]
    return (
        model.discretisation(metric, grid, threshold, smooth=smooth),
        float(noise.unit_std(gradient, cells)),
        sqrt(float(np.sum(cells * gradient**2))),
    )


def _bin_parts(
    model: ScoreModel, grid: ScoreGrid, noise: LevelNoise, n_bins: int
) -> tuple[float, float, float]:
    """Parts of the mean distance between a map of equal-mass bins and the truth."""
    cells = model.cells(grid)
    mass = cells.sum(axis=0)
    # A leaf belongs to the bin that the middle of its mass is in.
    bins = ((np.cumsum(mass) - mass / 2) * n_bins / mass.sum()).astype(np.intp)
    inside = np.minimum(bins, n_bins - 1) == np.arange(n_bins)[:, None]
    inside = inside[inside.any(axis=1)]
    share = inside @ mass
    value = inside @ cells[1] / share
    # Of the frequency times the share: the weight of the bin is in it.
    weights = np.stack(
        [-value[:, None] * inside, (1 - value)[:, None] * inside], axis=1
    )
    private = noise.unit_std(weights, cells).sum()
    sampled = np.sqrt(share * value * (1 - value)).sum()
    edges = grid.edges[np.append(inside.argmax(axis=1), len(mass))]
    # The mean size of a normal error, not its root mean square.
    size = sqrt(2 / pi)
    return model.bin_spread(edges), size * float(private), size * float(sampled)
