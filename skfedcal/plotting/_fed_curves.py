"""Curves that clients release.

- ROC, precision against recall, and reliability, of one release.
- A metric over the periods of a monitor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from skfedcal._params import check_choice, check_flag
from skfedcal.evaluation.answers import check_bins
from skfedcal.evaluation.monitor import CalibrationMonitor, MetricSeries
from skfedcal.plotting._reliability_display import bottom_of, draw_margin
from skfedcal.plotting.display import (
    COLOURS,
    MARKS,
    REFERENCE,
    Array,
    Display,
    FedDisplay,
    band,
    check_histogram,
    documented,
    line_style,
    precision,
    rate,
    show_legend,
    tidy,
    with_interval,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from skfedcal.evaluation.drift import DriftAlarm
    from skfedcal.evaluation.histogram import ScoreHistogram
    from skfedcal.evaluation.intervals import Estimate


@documented
class RateDisplay(FedDisplay):
    """Base of curves of two rates over all thresholds, with a confidence band."""

    # Parameters for both axes, and what the axes are called.
    _axes: ClassVar[dict[str, str]]
    # Parameter with the area below the curve, and its name in the legend.
    _area: ClassVar[tuple[str, str]]
    _legend: ClassVar[str]
    # Whether the curve has steps.
    _steps: ClassVar[bool] = False
    low: Array
    high: Array
    name: str | None
    pos_label: Any

    def _chance(self) -> tuple[Any, str] | None:
        """The curve of a random score, and its area; None if it is not known."""
        raise NotImplementedError

    def plot(
        self,
        ax: Axes | None = None,
        *,
        name: str | None = None,
        plot_chance_level: bool = False,
        band_kw: dict[str, Any] | None = None,
        **line_kw: Any,
    ) -> Self:
        """Draw the curve and its band.

        Parameters
        ----------
        ax
        name : str, default=None
            Name of the model in the legend; None takes that of the display.
        plot_chance_level : bool, default=False
            Draw the curve of a random score, too.
        band_kw, **line_kw

        Returns
        -------
        display
        """
        ax = self._set_axes(ax)
        area, metric = self._area
        label = self.name if name is None else name
        if getattr(self, area) is not None:
            label = with_interval(label, metric, getattr(self, area))
        x, y = (getattr(self, axis) for axis in self._axes)
        line_style = {"drawstyle": "steps-post"} if self._steps else {}
        band_style = {"step": "post"} if self._steps else {}
        line = {**line_style, "label": label, **line_kw}
        self.line_: Line2D = ax.plot(x, y, **line)[0]
        shade = {**band_style, **(band_kw or {})}
        self.band_ = self._shade(ax, self.line_, x, (self.low, self.high), shade)
        self.chance_level_ = None
        chance = self._chance()
        if plot_chance_level and chance is not None:
            known = f"Chance level ({metric} = {chance[1]})"
            (self.chance_level_,) = ax.plot([0, 1], chance[0], "k--", label=known)
        of = "" if self.pos_label is None else f" (Positive label: {self.pos_label})"
        below, left = self._axes.values()
        ends = (-0.01, 1.01)
        ax.set(xlabel=below + of, ylabel=left + of, xlim=ends, ylim=ends)
        ax.set(aspect="equal")
        show_legend(ax, loc=self._legend)
        return self


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class FedRocDisplay(RateDisplay):
    """ROC curve of a histogram, with a confidence band.

    Made by `from_histogram` or `from_clients`.

    Parameters
    ----------
    fpr, tpr : ndarray of shape (n_points,)
        Rates of false and true positives.
    thresholds : ndarray of shape (n_points,)
        Decreasing.
    low, high : ndarray of shape (n_points,)
        Confidence interval of the true positive rate at each `fpr`.
    roc_auc : Estimate, default=None
        Area under the curve, for the legend.
    name, pos_label

    Attributes
    ----------
    line_, band_
    chance_level_ : matplotlib Line2D or None
        The curve of a random score.
    ax_, figure_, histogram_

    See Also
    --------
    FedPrecisionRecallDisplay : Precision against recall.
    FedReliabilityDisplay : Frequency against score.

    Notes
    -----
    The band is pointwise and vertical: it is for the true positive rate at a given
    false positive rate, and holds the errors of both (delta method), of sampling and
    of privacy. A noisy curve is shown after isotonic regression; the area in the
    legend is that of the counts as they were released.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FedRocDisplay, ScoreHistogram
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> labels = (rng.random(2000) < scores).astype(int)
    >>> hist = ScoreHistogram.fit(scores, labels, client_ids=np.arange(2000) % 50,
    ...                           input_type="proba")
    >>> display = FedRocDisplay.from_histogram(hist, name="model")
    >>> print(display.line_.get_label())
    model (AUC = 0.840 [0.824, 0.855])
    """

    _axes = {"fpr": "False Positive Rate", "tpr": "True Positive Rate"}
    _area = ("roc_auc", "AUC")
    _legend = "lower right"

    fpr: Array
    tpr: Array
    thresholds: Array
    low: Array
    high: Array
    roc_auc: Estimate | None = None
    name: str | None = None
    pos_label: Any = None

    @classmethod
    def _answers(cls, hist: ScoreHistogram, ci: float) -> dict[str, Any]:
        curve = hist.roc_curve()
        negatives, positives = hist.counts_.sum(axis=1)
        low, high = band(
            hist, rate(curve.fpr, negatives, 0), rate(curve.tpr, positives, 1), ci
        )
        area = hist.roc_auc(ci=ci)
        return {**curve._asdict(), "low": low, "high": high, "roc_auc": area}

    def _chance(self) -> tuple[Any, str]:
        return [0, 1], "0.5"


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class FedPrecisionRecallDisplay(RateDisplay):
    """Precision-recall curve of a histogram, with a confidence band.

    Made by `from_histogram` or `from_clients`.

    Parameters
    ----------
    precision, recall : ndarray of shape (n_points + 1,)
        The last point is (1, 0), as in scikit-learn.
    thresholds : ndarray of shape (n_points,)
        Increasing.
    low, high : ndarray of shape (n_points + 1,)
        Confidence interval of the precision at each `recall`.
    average_precision : Estimate, default=None
        Mean of precision over recall, for the legend.
    name, pos_label
    prevalence : float, default=None
        Share of positives: the precision of a random score.

    Attributes
    ----------
    line_, band_
    chance_level_ : matplotlib Line2D or None
        The precision of a random score.
    ax_, figure_, histogram_

    See Also
    --------
    FedRocDisplay : True against false positives.
    FedReliabilityDisplay : Frequency against score.

    Notes
    -----
    The band is pointwise and vertical: it is for the precision at a given recall, and
    holds the errors of both (delta method), of sampling and of privacy. Where no row is
    predicted positive it goes from 0 to 1. A noisy curve is shown after isotonic
    regression of its running sums; the average in the legend is not.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FedPrecisionRecallDisplay, ScoreHistogram
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> labels = (rng.random(2000) < scores).astype(int)
    >>> hist = ScoreHistogram.fit(scores, labels, client_ids=np.arange(2000) % 50,
    ...                           input_type="proba")
    >>> display = FedPrecisionRecallDisplay.from_histogram(hist)
    >>> print(display.line_.get_label())
    AP = 0.849 [0.829, 0.867]
    """

    _axes = {"recall": "Recall", "precision": "Precision"}
    _area = ("average_precision", "AP")
    _legend = "lower left"
    _steps = True

    precision: Array
    recall: Array
    thresholds: Array
    low: Array
    high: Array
    average_precision: Estimate | None = None
    name: str | None = None
    pos_label: Any = None
    prevalence: float | None = None

    @classmethod
    def _answers(cls, hist: ScoreHistogram, ci: float) -> dict[str, Any]:
        curve, (low, high) = hist.pr_curve(), _band(hist, ci)
        total = float(hist.counts_.sum())
        share = float(hist.counts_[1].sum()) / total if total > 0 else np.nan
        area = hist.average_precision(ci=ci)
        answers = {"low": low, "high": high, "average_precision": area}
        return {**curve._asdict(), **answers, "prevalence": share}

    def _chance(self) -> tuple[Any, str] | None:
        if self.prevalence is None:
            return None
        return [self.prevalence] * 2, f"{self.prevalence:.2f}"


def _band(hist: ScoreHistogram, ci: float) -> tuple[Array, Array]:
    """Ends of the band, in the order of the curve."""
    fpr, tpr, *_ = hist.roc_curve()
    negatives, positives = hist.counts_.sum(axis=1)
    predicted = fpr * negatives + tpr * positives
    shares = hist.pr_curve().precision[::-1]
    low, high = band(hist, rate(tpr, positives, 1), precision(shares, predicted), ci)
    known = predicted > 0
    return np.where(known, low, 0.0)[::-1], np.where(known, high, 1.0)[::-1]


_DEFAULTS = {"n_bins": 10, "strategy": "quantile", "margin": None}
_MARGINS = ("counts", "density", None)


@documented
@dataclass(kw_only=True, eq=False, repr=False)
class FedReliabilityDisplay(FedDisplay):
    """Reliability curve of a histogram, with error bars.

    Made by `from_histogram` or `from_clients`.

    Parameters
    ----------
    prob_true, prob_pred : ndarray of shape (n_points,)
        Frequency of positives and mean score of each bin.
    low, high : ndarray of shape (n_points,)
        Confidence interval of `prob_true`.
    counts : ndarray of shape (n_points,), default=None
        Estimated number of rows of each bin.
    name, pos_label

    Attributes
    ----------
    errorbar_ : matplotlib ErrorbarContainer
        Curve and error bars.
    line_, ref_line_, margin_, ax_, figure_, histogram_

    See Also
    --------
    FedRocDisplay : True against false positives.
    FedPrecisionRecallDisplay : Precision against recall.
    ReliabilityDisplay : From rows that are in this process.

    Notes
    -----
    A bin is drawn if its count is above three standard deviations of its noise. Error
    bars hold sampling and privacy. Scores are taken to be at the centre of their
    bucket; the error of the mean score of a bin is not shown.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FedReliabilityDisplay, ScoreHistogram
    >>> rng = np.random.default_rng(0)
    >>> scores = rng.random(2000)
    >>> labels = (rng.random(2000) < scores).astype(int)
    >>> hist = ScoreHistogram.fit(scores, labels, client_ids=np.arange(2000) % 50,
    ...                           input_type="proba")
    >>> display = FedReliabilityDisplay.from_histogram(hist, n_bins=4)
    >>> np.round(display.prob_pred, 1).tolist()
    [0.1, 0.4, 0.6, 0.9]
    """

    prob_true: Array
    prob_pred: Array
    low: Array
    high: Array
    counts: Array | None = None
    name: str | None = None
    pos_label: Any = None

    @classmethod
    def from_histogram(
        cls,
        hist: ScoreHistogram,
        *,
        n_bins: int = 10,
        strategy: str = "quantile",
        ax: Axes | None = None,
        name: str | None = None,
        ci: float = 0.95,
        **kwargs: Any,
    ) -> Self:
        """Draw the reliability curve of a histogram.

        Parameters
        ----------
        hist
        n_bins : int, default=10
            Number of bins.
        strategy : {'quantile', 'uniform'}, default='quantile'
            Bins of about equal depth, or of equal width.
        ax, name, ci, **kwargs

        Returns
        -------
        FedReliabilityDisplay
        """
        check_histogram(hist)
        points = hist.reliability(n_bins, strategy=strategy, ci=ci)
        return cls._drawn(hist, points._asdict(), ax, name, kwargs)

    @classmethod
    def _check_drawing(cls, drawing: Mapping[str, Any]) -> None:
        given = {**_DEFAULTS, **drawing}
        check_bins(given["n_bins"], given["strategy"])
        check_choice("margin", given["margin"], _MARGINS)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        name: str | None = None,
        ref_line: bool = True,
        margin: str | None = None,
        band_kw: dict[str, Any] | None = None,
        **line_kw: Any,
    ) -> Self:
        """Draw the points with their error bars.

        Parameters
        ----------
        ax
        name : str, default=None
            Name of the model in the legend; None takes that of the display.
        ref_line
        margin : {'counts', 'density'} or None, default=None
            Strip below with the released counts of the scores: bars, or a smooth curve.
            Only of a display that was made from a histogram.
        band_kw : dict, default=None
            Keywords of ``Axes.errorbar`` for the bars, such as `ecolor`.
        **line_kw : dict
            Keywords of ``Axes.errorbar`` for the curve.

        Returns
        -------
        FedReliabilityDisplay
        """
        check_choice("margin", margin, _MARGINS)
        ax = self._set_axes(ax)
        self.ref_line_ = None
        if ref_line:
            known = ax.get_legend_handles_labels()[1]
            label = "Perfectly calibrated"
            label = "_" + label if label in known else label
            (self.ref_line_,) = ax.plot([0, 1], [0, 1], "k:", label=label)
        number = len(ax.containers)
        mark = MARKS[(number + 1) % len(MARKS)]
        style = {"marker": mark, "label": self.name if name is None else name}
        self.errorbar_ = ax.errorbar(
            self.prob_pred,
            self.prob_true,
            yerr=np.stack([self.prob_true - self.low, self.high - self.prob_true]),
            **{**style, **(band_kw or {}), **line_kw},
        )
        self.line_ = self.errorbar_.lines[0]
        self._draw_margin(ax, margin, number)
        of = "" if self.pos_label is None else f" (Positive class: {self.pos_label})"
        ax.set_ylabel(f"Fraction of positives{of}")
        bottom_of(ax).set_xlabel(f"Mean predicted probability{of}")
        show_legend(ax, loc="lower right")
        return self

    def _draw_margin(self, ax: Any, margin: str | None, number: int) -> None:
        self.margin_ = None
        if margin is None:
            return
        hist = getattr(self, "histogram_", None)
        if hist is None:
            raise ValueError(
                f"margin={margin!r} shows the counts of a histogram, and this display "
                "has none; make it by from_histogram or from_clients."
            )
        rows = hist.counts_.sum(axis=0)
        style = number, self.line_.get_color()
        self.margin_ = draw_margin(
            ax, hist.grid.centres, margin, "linear", style, weights=rows
        )


# What the metrics of a monitor are called.
_METRICS = {"gap": "mean confidence less accuracy", "ece": "ECE", "l2_ece": "L2 ECE"}


@documented
class CalibrationMonitorDisplay(Display):
    """A metric over the periods of a monitor, with simultaneous intervals and alarms.

    Made by `from_monitor`.

    Parameters
    ----------
    series : MetricSeries
        The metric over periods.
    metric : str
        Its name.
    n_periods : int
        Periods that are paid for.
    alarms : list of DriftAlarm, default=()
        Alarms, which are drawn at the period in which they were found.

    Attributes
    ----------
    line_, band_
    alarm_lines_ : list of matplotlib Line2D
        Periods of the alarms.
    ax_, figure_

    See Also
    --------
    skfedcal.CalibrationMonitor : The monitor.

    Examples
    --------
    >>> from skfedcal import CalibrationMonitor, make_federation
    >>> from skfedcal.plotting import CalibrationMonitorDisplay
    >>> monitor = CalibrationMonitor(periods=4)
    >>> for week in range(3):
    ...     fed = make_federation(n_clients=20, n_samples=500, random_state=week)
    ...     monitor = monitor.update(fed.clients)
    >>> display = CalibrationMonitorDisplay.from_monitor(monitor, "accuracy")
    >>> display.ax_.get_ylabel(), len(display.series.value)
    ('accuracy', 3)
    """

    def __init__(
        self,
        series: MetricSeries,
        *,
        metric: str,
        n_periods: int,
        alarms: Sequence[DriftAlarm] = (),
    ) -> None:
        self.series = series
        self.metric = metric
        self.n_periods = n_periods
        self.alarms = list(alarms)

    @classmethod
    def from_monitor(
        cls,
        monitor: CalibrationMonitor,
        metric: str = "gap",
        *,
        accumulated: bool = False,
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw a metric of a monitor; nothing further is asked of clients.

        Parameters
        ----------
        monitor : CalibrationMonitor
            The monitor.
        metric : str, default='gap'
            As in `CalibrationMonitor.estimate`.
        accumulated : bool, default=False
            Of all periods up to each, in place of each period by itself.
        ax, **kwargs

        Returns
        -------
        display
        """
        if not isinstance(monitor, CalibrationMonitor):
            raise TypeError(
                f"monitor is of type {type(monitor).__name__}; pass a "
                "CalibrationMonitor."
            )
        accumulated = check_flag("accumulated", accumulated)
        display = cls(
            monitor.series(metric, accumulated=accumulated),
            metric=metric,
            n_periods=monitor.periods,
            alarms=[one for one in monitor.alarms_ if one.metric == metric],
        )
        return display.plot(ax, **kwargs)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        name: str | None = None,
        band_kw: Mapping[str, Any] | None = None,
        **line_kw: Any,
    ) -> Self:
        """Draw the metric, its intervals and the alarms.

        Parameters
        ----------
        ax, name, band_kw, **line_kw

        Returns
        -------
        CalibrationMonitorDisplay
        """
        ax = self._set_axes(ax)
        place, series = self.series.period + 1, self.series
        style = {**line_style(len(ax.lines)), "label": name, **line_kw}
        self.line_: Line2D = ax.plot(place, series.value, **style)[0]
        ends = series.low, series.high
        self.band_ = self._shade(ax, self.line_, place, ends, band_kw)
        self.alarm_lines_ = [
            ax.axvline(one.period + 1, color=COLOURS[1], linestyle=":",
                       label="_alarm" if i else "alarm")
            for i, one in enumerate(self.alarms)
        ]  # fmt: skip
        if self.metric == "gap":
            ax.axhline(0.0, color=REFERENCE, linewidth=0.8)
        ax.set_xlim(0.5, self.n_periods + 0.5)
        ax.set_xlabel(f"period, of {self.n_periods} that are paid for")
        ax.set_ylabel(_METRICS.get(self.metric, self.metric.replace("_", " ")))
        tidy(ax)
        show_legend(ax)
        return self
