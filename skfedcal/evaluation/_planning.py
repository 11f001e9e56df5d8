"""What error to expect from a score histogram, and how many examples it needs."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, inf, pi, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import as_number
from skfedcal.evaluation._grid import ScoreGrid, Space
from skfedcal.evaluation._level_noise import LevelNoise, check_planned, level_noise
from skfedcal.evaluation._levels import release_levels
from skfedcal.evaluation._plan import ExpectedError, Plan
from skfedcal.evaluation._ranking_sums import auc_with_gradient
from skfedcal.evaluation._score_model import METRICS, ScoreModel, ratio
from skfedcal.privacy._client_models import LocalDP, SourceDP

Array = NDArray[Any]

# Heights that a plan chooses from, fewer for local noise, and numbers of bins.
_HEIGHTS, _LOCAL_HEIGHTS = range(3, 13), range(3, 9)
_BINS = (2, 3, 5, 8, 10, 15, 20, 30, 50, 80, 120, 200)

# More examples than there will be.
_MOST_EXAMPLES = 1e13


def expected_error(
    metric: str,
    n_examples: float,
    *,
    privacy: Any = None,
    height: int | None = None,
    levels: Any = "auto",
    space: Literal["both", "prob", "logit"] = "both",
    positive_rate: float = 0.5,
    auc: float = 0.8,
    threshold: float = 0.5,
    n_bins: int | None = None,
    max_examples: int = 1,
    n_sources: int | None = None,
) -> ExpectedError:
    """Error to expect of a metric that is read from a score histogram.

    Computed for calibrated scores with normal log-odds, without simulation: the
    variance of the least squares counts, by the delta method.

    Parameters
    ----------
    metric : str
        'roc_auc', 'accuracy', 'precision', 'recall', 'f1', 'brier', 'log_loss', or
        'calibration': mean distance of a map of equal-mass bins from the truth.
    n_examples : float
        Examples M.
    privacy : object, default=None
        Privacy model; None is exact sums.
    height : int, default=None
        Depth of the leaves; None is what `ScoreHistogram.fit` takes: 10, and 4 to 6 by
        eps and space for local noise.
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
        For accuracy, precision, recall and f1.
    n_bins : int, default=None
        For 'calibration'; None takes the best.
    max_examples : int, default=1
        Most examples that one protected client may add.
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
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is unknown; pass one of {METRICS}.")
    if not 1 < as_number("n_examples", n_examples) < inf:
        raise ValueError(f"n_examples={n_examples!r} must be a number > 1.")
    given = {"positive_rate": positive_rate, "auc": auc, "threshold": threshold}
    for name, value in given.items():
        as_number(name, value)
    if not 1e-50 <= positive_rate <= 1 - 1e-16:
        raise ValueError(
            f"positive_rate={positive_rate!r} is no share; pass a number in (0, 1)."
        )
    _check_used(metric, privacy, n_bins, max_examples, n_sources)
    check_planned(privacy)
    levels = release_levels(privacy, height, levels, space)
    noise = level_noise(privacy, levels, max_examples=max_examples, n_sources=n_sources)
    model = ScoreModel(positive_rate, auc)
    sizes: tuple[int, ...] = (0,)
    if metric == "calibration":
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


def plan(
    metric: str,
    target: float,
    *,
    privacy: Any = None,
    n_examples: float | None = None,
    height: int | None = None,
    **options: Any,
) -> Plan:
    """How many examples a metric needs, and at which height.

    Parameters
    ----------
    metric : str
        As for `expected_error`.
    target : float
        Total error, as one standard deviation, that is wanted.
    privacy : object, default=None
        Privacy model; None is exact sums.
    n_examples : float, default=None
        Examples there are, to be told whether they are enough.
    height : int, default=None
        Depth of the leaves; None takes the best for the number of examples, or the last
        of `levels` if these are given.
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
        raise ValueError(f"target={target!r} is no error; pass a number in (0, 1).")
    local = isinstance(privacy, LocalDP)
    heights: Any = (height,)
    if height is None and isinstance(options.get("levels", "auto"), str):
        heights = _LOCAL_HEIGHTS if local else _HEIGHTS

    def best(n: float) -> ExpectedError:
        found = (
            expected_error(metric, n, privacy=privacy, height=h, **options)
            for h in heights
        )
        return min(found, key=float)

    needed = _smallest(lambda n: best(n).total <= target)
    n = n_examples if n_examples is not None else min(needed, _MOST_EXAMPLES)
    return Plan(float(target), needed, n_examples, best(n))


def _smallest(reached: Any) -> float:
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
    privacy: Any,
    n_bins: int | None,
    max_examples: int,
    n_sources: int | None,
) -> None:
    """Raise for a setting that would change nothing."""
    for name, value, default, used, what in (
        ("n_bins", n_bins, None, metric == "calibration", f"metric={metric!r}"),
        ("max_examples", max_examples, 1, not isinstance(privacy, LocalDP), "LocalDP"),
        ("n_sources", n_sources, None, isinstance(privacy, SourceDP), repr(privacy)),
    ):
        if value != default and not used:
            raise ValueError(
                f"{name}={value!r} changes nothing with {what}; leave it out."
            )


def _bin_numbers(n_bins: int | None, height: int) -> tuple[int, ...]:
    if n_bins is None:
        return tuple(size for size in _BINS if size <= 2**height)
    if not isinstance(n_bins, (int, np.integer)) or not 1 <= n_bins <= 2**height:
        raise ValueError(f"n_bins={n_bins!r} is not in 1 to {2**height}, the leaves.")
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
    if metric == "calibration":
        return _bin_parts(model, grid, noise, n_bins)
    if metric == "roc_auc":
        gradient = auc_with_gradient(cells, smooth)[1]
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
