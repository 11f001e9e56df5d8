"""ReliabilityDisplay: frequency against score, for rows that are at hand.

- Numbers behind a reliability diagram.
- The strip below a reliability diagram: where the scores are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from skfedcal._params import check_choice, check_flag
from skfedcal.evaluation.intervals import check_level
from skfedcal.metrics import calibration_error
from skfedcal.metrics.binning import bin_sums, row_index
from skfedcal.metrics.validation import (
    check_n_bins,
    check_problem,
    check_vector,
)
from skfedcal.plotting.display import (
    HATCHES,
    REFERENCE,
    Array,
    Display,
    documented,
    line_style,
    next_number,
    show_legend,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# A frequency of fewer rows says little; of more bins the eye gets no more. Bins of
# equal width have few rows where scores are rare: fewer of them.
_ROWS_PER_BIN, _MOST_BINS, _MOST_EVEN = 40, 15, 10


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Scores of one event, and whether it happened.

    scores of shape (n_rows,): Predicted probabilities.
    happened of shape (n_rows,): True where it did.
    """

    scores: Array
    happened: Array


class Points(NamedTuple):
    """Bins that have rows, from left to right."""

    prob_pred: Array
    prob_true: Array
    low: Array
    high: Array
    counts: Array


def read_outcomes(
    y_true: ArrayLike, y_prob: ArrayLike, target: Any, labels: ArrayLike | None
) -> Outcomes:
    """Pick the event: that the predicted class is right, or that a class is true."""
    problem = check_problem(y_true, y_prob, labels, None)
    if isinstance(target, str) and target == "top":
        top = problem.proba.argmax(axis=1)
        scores = problem.proba[np.arange(len(top)), top]
        return Outcomes(scores.astype(np.float64), problem.codes == top)
    found = check_vector(y_true if labels is None else labels, "labels")
    classes = np.unique(found).tolist()
    if isinstance(target, np.ndarray) or target not in classes:
        raise ValueError(
            f"target={target!r} is neither 'top' nor one of the classes {classes}."
        )
    column = classes.index(target)
    scores = problem.proba[:, column].astype(np.float64)
    return Outcomes(scores, problem.codes == column)


def bin_points(
    outcomes: Outcomes, n_bins: int | str, strategy: str, ci: float
) -> Points:
    """Frequency and mean score of each bin, with Clopper and Pearson's interval."""
    check_choice("strategy", strategy, ("quantile", "uniform"))
    check_level(ci)
    scores = outcomes.scores
    if isinstance(n_bins, str):
        check_choice("n_bins", n_bins, ("auto",))
        most = _MOST_BINS if strategy == "quantile" else _MOST_EVEN
        size = max(2, min(most, len(scores) // _ROWS_PER_BIN))
    else:
        check_n_bins(n_bins)
        size = int(n_bins)
    index = row_index(scores, size, strategy, None)
    sums = bin_sums(scores, outcomes.happened.astype(np.float64), index, size)
    filled = sums.weight > 0
    rows, hits = sums.weight[filled], sums.labels[filled]
    low, high = count_interval(hits, rows, ci)
    return Points(sums.proba[filled] / rows, hits / rows, low, high, rows)


def count_interval(hits: Array, rows: Array, ci: float) -> tuple[Array, Array]:
    """Interval of a frequency that is never too short (Clopper and Pearson)."""
    from scipy.special import betaincinv

    tail = (1 - float(ci)) / 2
    misses = rows - hits
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), misses + 1, tail), 0.0)
    high = np.where(
        misses > 0, betaincinv(hits + 1, np.maximum(misses, 1), 1 - tail), 1.0
    )
    return low, high


# Bars of the strip; points of a density, and its width in points.
_N_BARS, _N_POINTS, _WIDTH = 30, 400, 8.0

# The strip of each axes, so that a second curve shares it.
_STRIPS: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def strip_of(ax: Any) -> Any:
    """Axes below `ax` that share its scores; made once."""
    if ax not in _STRIPS:
        strip = _axes_below(ax)
        ax.tick_params(labelbottom=False)
        tidy(strip, "x")
        strip.set_ylabel("rows")
        _STRIPS[ax] = strip
    return _STRIPS[ax]


def _axes_below(ax: Any) -> Any:
    if ax.figure.get_layout_engine() is not None:
        # A child of `ax`: the layout makes room for it.
        return ax.inset_axes([0, -0.29, 1, 0.23], sharex=ax)
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    # Nothing makes room below: `ax` gives up a part of its own.
    return make_axes_locatable(ax).append_axes("bottom", "26%", pad=0.1, sharex=ax)


def bottom_of(ax: Any) -> Any:
    """Axes that carry the label of the scores: the strip if there is one."""
    return _STRIPS.get(ax, ax)


def draw_margin(
    ax: Any,
    scores: Array,
    kind: str,
    scale: str,
    style: tuple[int, Any],
    weights: Array | None = None,
) -> Any:
    """Draw how many rows have which score, as bars or as a smooth curve.

    `weights` are rows of each score, where they were counted. Under noise some are
    negative: they are added up first, or all of the noise above 0 would be shown.
    """
    strip = strip_of(ax)
    number, colour = style
    places = scale_edges(_N_BARS if kind == "counts" else _N_POINTS, scale, ax)
    if kind == "counts":  # those beyond the axis are in the bars at its ends
        scores = np.clip(scores, places[0], places[-1])
    counts = np.histogram(scores, places, weights=weights)[0].astype(float)
    if kind == "counts":
        counts = np.maximum(counts, 0.0)
        _, _, drawn = strip.hist(
            places[:-1],
            places,
            weights=counts,
            histtype="stepfilled",
            alpha=0.55,
            facecolor=colour,
            edgecolor=colour,
            hatch=HATCHES[number % len(HATCHES)] or None,
        )
        return drawn[0]
    from scipy.ndimage import gaussian_filter1d

    # Rows per bar of the same width, so that both kinds have the same height.
    smooth = gaussian_filter1d(counts, _WIDTH, mode="reflect") * _N_POINTS / _N_BARS
    smooth = np.maximum(smooth, 0.0)
    middle = _between(places, scale)
    strip.plot(middle, smooth, color=colour, linewidth=1)
    return strip.fill_between(middle, 0, smooth, color=colour, alpha=0.3, linewidth=0)


def scale_edges(size: int, scale: str, ax: Any) -> Array:
    """Edges of bins of equal width on the axis."""
    if scale == "linear":
        return np.linspace(0, 1, size + 1)
    low, high = _logit(np.array(ax.get_xlim()))
    return _expit(np.linspace(low, high, size + 1))


def _between(edges: Array, scale: str) -> Array:
    if scale == "linear":
        return (edges[1:] + edges[:-1]) / 2
    odds = _logit(edges)
    return _expit((odds[1:] + odds[:-1]) / 2)


def _logit(values: Array) -> Array:
    return np.log(values / (1 - values))


def _expit(odds: Array) -> Array:
    return 1 / (1 + np.exp(-odds))


# Least distance of a logit axis from 0 and 1: further out a frequency needs more rows
# than there are.
_NEAREST = 1e-6


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class ReliabilityDisplay(Display):
    """Reliability diagram of the predicted class or of one class.

    Made by `from_predictions` or `from_estimator`. All rows and labels are in this
    process: for public test rows and simulations. `FedReliabilityDisplay` draws what
    clients release.

    Parameters
    ----------
    prob_true, prob_pred : ndarray of shape (n_points,)
        How often the event happened, and its mean score, in each bin.
    low, high : ndarray of shape (n_points,)
        Confidence interval of `prob_true`.
    counts : ndarray of shape (n_points,)
        Rows of each bin.
    scores : ndarray of shape (n_rows,)
        Scores of all rows, for the strip below.
    target : 'top' or label, default='top'
        The event: that the most probable class is right, or that a class is true.
    error : float, default=None
        Calibration error, for the legend.
    name

    Attributes
    ----------
    line_, band_, margin_, ref_line_, ax_, figure_

    See Also
    --------
    FedReliabilityDisplay : From a histogram of clients' scores.
    skfedcal.plotting.plot_reliability : Several models side by side.
    skfedcal.plotting.plot_reliability_grid : All classes.

    Notes
    -----
    Intervals are those of Clopper and Pearson, bin by bin: they hold for each bin, not
    for all of them at once. They are about the rows being a sample; scores are taken as
    they are. Curves differ by line and mark as well as by colour.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.plotting import ReliabilityDisplay
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> labels = (rng.random(2000) < scores).astype(int)
    >>> display = ReliabilityDisplay.from_predictions(labels, scores, target=1,
    ...                                               n_bins=4)
    >>> display.prob_pred.round(1).tolist(), display.counts.tolist()
    ([0.1, 0.4, 0.6, 0.9], [508.0, 499.0, 481.0, 512.0])
    """

    prob_true: Array
    prob_pred: Array
    low: Array
    high: Array
    counts: Array
    scores: Array
    target: Any = "top"
    error: float | None = None
    name: str | None = None

    @classmethod
    def from_predictions(
        cls,
        y_true: ArrayLike,
        y_prob: ArrayLike,
        *,
        target: Any = "top",
        labels: ArrayLike | None = None,
        n_bins: int | str = "auto",
        strategy: str = "auto",
        ci: float = 0.95,
        name: str | None = None,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the diagram of probabilities.

        Parameters
        ----------
        y_true
        y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
            Probabilities, columns in sorted label order. One dimension means the
            probability of the second of two classes.
        target : 'top' or label, default='top'
            The most probable class, or one class against the rest.
        labels
        n_bins : int or 'auto', default='auto'
            Bins; 'auto' is one for each 40 rows, from 2 to 15, or 10 of equal width.
        strategy : {'auto', 'quantile', 'uniform'}, default='auto'
            Bins of about equal depth, or of equal width. 'auto' is the latter for one
            class on a linear axis, where most scores are close to 0.
        ci, name, ax, **kwargs

        Returns
        -------
        ReliabilityDisplay
        """
        outcomes = read_outcomes(y_true, y_prob, target, labels)
        check_choice("strategy", strategy, ("auto", "uniform", "quantile"))
        check_choice("scale", kwargs.get("scale", "linear"), ("linear", "logit"))
        if strategy == "auto":
            even = not _is_top(target) and kwargs.get("scale", "linear") == "linear"
            strategy = "uniform" if even else "quantile"
        points = bin_points(outcomes, n_bins, strategy, ci)
        display = cls(
            **points._asdict(),
            scores=outcomes.scores,
            target=target,
            error=_error(outcomes),
            name=name,
        )
        return display.plot(ax, **kwargs)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: ArrayLike,
        *,
        name: str | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw the diagram of a fitted classifier.

        Parameters
        ----------
        estimator : classifier
            Fitted, with `predict_proba` and `classes_`.
        X : array-like of shape (n_samples, n_features)
            Its input; of a calibrator, scores.
        y : array-like of shape (n_samples,)
            True labels.
        name : str, default=None
            Name in the legend; None is that of the class.
        **kwargs : dict
            Further keywords of `from_predictions`.

        Returns
        -------
        ReliabilityDisplay
        """
        check_classifier(estimator)
        kwargs.setdefault("labels", estimator.classes_)
        shown = type(estimator).__name__ if name is None else name
        proba = estimator.predict_proba(X)
        return cls.from_predictions(y, proba, name=shown, **kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        name: str | None = None,
        ref_line: bool = True,
        band: bool = True,
        margin: str | None = "counts",
        scale: str = "linear",
        band_kw: dict[str, Any] | None = None,
        **line_kw: Any,
    ) -> Self:
        """Draw curve, band, diagonal and strip.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw, with other curves if there are any; None makes a new figure.
        name : str, default=None
            Name of the model in the legend; None takes that of the display.
        ref_line
        band : bool, default=True
            Draw the confidence band.
        margin : {'counts', 'density'} or None, default='counts'
            Strip below with the scores of all rows: bars, a smooth curve, or none.
        scale : {'linear', 'logit'}, default='linear'
            Scale of both axes; 'logit' shows scores near 0 and 1.
        band_kw, **line_kw

        Returns
        -------
        ReliabilityDisplay
        """
        check_choice("margin", margin, ("counts", "density", None))
        check_choice("scale", scale, ("linear", "logit"))
        ref_line, band = check_flag("ref_line", ref_line), check_flag("band", band)
        if not isinstance(band_kw, dict | None):
            raise TypeError(f"band_kw={band_kw!r}: pass a dict of keywords, or None.")
        ax = self._set_axes(ax, (4.8, 5.4))
        number = next_number(ax)
        self._set_scale(ax, scale, first=number == 0)
        self.ref_line_ = _diagonal(ax, scale) if ref_line and number == 0 else None
        style = {**line_style(number), "label": self._label(name), **line_kw}
        low, high = ax.get_ylim() if scale == "logit" else (0.0, 1.0)
        value = np.clip(self.prob_true, low, high)
        self.line_: Line2D = ax.plot(self.prob_pred, value, gid="skfedcal", **style)[0]
        colour = self.line_.get_color()
        self.band_ = None
        if band:
            ends = np.clip([self.low, self.high], low, high)
            self.band_ = self._shade(ax, self.line_, self.prob_pred, ends, band_kw)
        self.margin_ = None
        if margin is not None:
            self.margin_ = draw_margin(ax, self.scores, margin, scale, (number, colour))
        self._set_labels(ax)
        return self

    def _set_scale(self, ax: Any, scale: str, first: bool) -> None:
        if scale == "linear":
            if first:
                ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
            return
        inner = self.prob_true[(self.prob_true > 0) & (self.prob_true < 1)]
        values = np.concatenate([self.prob_pred, inner])
        low = max(float(np.min(values, initial=0.1)) / 2, _NEAREST)
        high = min(float(np.max(values, initial=0.9)) / 2 + 0.5, 1 - _NEAREST)
        if not first:
            low, high = min(low, ax.get_xlim()[0]), max(high, ax.get_xlim()[1])
        # On a logit axis 0 and 1 are infinitely far: they are drawn at its ends.
        ax.set(xscale="logit", yscale="logit")
        ax.set(xlim=(low, high), ylim=(low, high))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:.7g}")
            axis.set_minor_formatter("")

    def _label(self, name: str | None) -> str:
        shown = self.name if name is None else name
        if self.error is None:
            return "" if shown is None else shown
        error = f"{'ECE' if _is_top(self.target) else 'error'} {100 * self.error:.1f} %"
        return error if shown is None else f"{shown} ({error})"

    def _set_labels(self, ax: Any) -> None:
        top = _is_top(self.target)
        below = "Confidence" if top else f"Predicted probability of {self.target}"
        left = "Accuracy" if top else f"Frequency of {self.target}"
        tidy(ax)
        ax.set_ylabel(left)
        bottom = bottom_of(ax)
        ax.set_xlabel("")
        bottom.set_xlabel(below)
        show_legend(ax, loc="upper left", fontsize=8, framealpha=0.9)


def check_classifier(estimator: Any) -> None:
    """Raise unless the estimator is a fitted classifier."""
    if not hasattr(estimator, "predict_proba"):
        raise TypeError(
            f"{estimator!r} has no predict_proba; pass a fitted classifier."
        )
    check_is_fitted(estimator)


def _is_top(target: Any) -> bool:
    return isinstance(target, str) and target == "top"


def _diagonal(ax: Any, scale: str) -> Any:
    ends = np.array([0.0, 1.0])
    if scale == "logit":
        ends = np.array([_NEAREST, 1 - _NEAREST])
    (line,) = ax.plot(
        ends, ends, color=REFERENCE, linestyle=":", label="Perfectly calibrated"
    )
    return line


def _error(outcomes: Outcomes) -> float:
    """Calibration error in 15 bins of equal width, as the metrics have it."""
    happened = outcomes.happened.astype(int)
    return float(calibration_error(happened, outcomes.scores, pos_label=1))
