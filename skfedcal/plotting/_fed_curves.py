"""ROC and precision-recall curves with their confidence bands.

- FedRocDisplay: a ROC curve with its confidence band.
- FedPrecisionRecallDisplay: precision against recall with its confidence band.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skfedcal.plotting._display import (
    BAND_ALPHA,
    Array,
    FedDisplay,
    band,
    check_histogram,
    precision,
    rate,
    with_interval,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

    from skfedcal.evaluation.histogram import ScoreHistogram
    from skfedcal.evaluation.intervals import Estimate


class FedRocDisplay(FedDisplay):
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
    name : str, default=None
        Name of the model, for the legend.
    pos_label : label, default=None
        Label of the positive class, for the axes.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The curve.
    band_ : matplotlib PolyCollection
        The band.
    chance_level_ : matplotlib Line2D or None
        The curve of a random score.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.
    histogram_ : ScoreHistogram
        Of `from_histogram` and `from_clients`; further answers cost nothing.

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
    model (AUC = 0.840 [0.823, 0.856])
    """

    def __init__(
        self,
        *,
        fpr: Array,
        tpr: Array,
        thresholds: Array,
        low: Array,
        high: Array,
        roc_auc: Estimate | None = None,
        name: str | None = None,
        pos_label: Any = None,
    ) -> None:
        self.fpr = fpr
        self.tpr = tpr
        self.thresholds = thresholds
        self.low = low
        self.high = high
        self.roc_auc = roc_auc
        self.name = name
        self.pos_label = pos_label

    @classmethod
    def from_histogram(
        cls,
        hist: ScoreHistogram,
        *,
        ax: Axes | None = None,
        name: str | None = None,
        ci: float = 0.95,
        **kwargs: Any,
    ) -> Self:
        """Draw the ROC curve of a histogram.

        Parameters
        ----------
        hist : ScoreHistogram
            The histogram; nothing further is asked of clients.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend.
        ci : float, default=0.95
            Level of the band and of the interval in the legend.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        FedRocDisplay
        """
        check_histogram(hist)
        curve = hist.roc_curve()
        negatives, positives = hist.counts_.sum(axis=1)
        low, high = band(
            hist, rate(curve.fpr, negatives, 0), rate(curve.tpr, positives, 1), ci
        )
        display = cls(
            fpr=curve.fpr,
            tpr=curve.tpr,
            thresholds=curve.thresholds,
            low=low,
            high=high,
            roc_auc=hist.roc_auc(ci=ci),
            name=name,
            pos_label=hist.classes[1],
        )
        display.histogram_ = hist
        return display.plot(ax, **kwargs)

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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend; None takes that of the display.
        plot_chance_level : bool, default=False
            Draw the curve of a random score, too.
        band_kw : dict, default=None
            Keywords of ``Axes.fill_between`` for the band.
        **line_kw : dict
            Keywords of ``Axes.plot`` for the curve.

        Returns
        -------
        FedRocDisplay
        """
        ax = self._set_axes(ax)
        name = self.name if name is None else name
        if self.roc_auc is not None:
            name = with_interval(name, "AUC", self.roc_auc)
        self.line_: Line2D = ax.plot(self.fpr, self.tpr, **{"label": name, **line_kw})[
            0
        ]
        shade = {"color": self.line_.get_color(), "alpha": BAND_ALPHA, "linewidth": 0}
        self.band_ = ax.fill_between(
            self.fpr, self.low, self.high, **{**shade, **(band_kw or {})}
        )
        self.chance_level_ = None
        if plot_chance_level:
            (self.chance_level_,) = ax.plot(
                [0, 1], [0, 1], "k--", label="Chance level (AUC = 0.5)"
            )
        of = "" if self.pos_label is None else f" (Positive label: {self.pos_label})"
        ax.set(
            xlabel=f"False Positive Rate{of}",
            ylabel=f"True Positive Rate{of}",
            xlim=(-0.01, 1.01),
            ylim=(-0.01, 1.01),
            aspect="equal",
        )
        if ax.get_legend_handles_labels()[1]:
            ax.legend(loc="lower right")
        return self


class FedPrecisionRecallDisplay(FedDisplay):
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
    name : str, default=None
        Name of the model, for the legend.
    pos_label : label, default=None
        Label of the positive class, for the axes.
    prevalence : float, default=None
        Share of positives: the precision of a random score.

    Attributes
    ----------
    line_ : matplotlib Line2D
        The curve.
    band_ : matplotlib PolyCollection
        The band.
    chance_level_ : matplotlib Line2D or None
        The precision of a random score.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.
    histogram_ : ScoreHistogram
        Of `from_histogram` and `from_clients`; further answers cost nothing.

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
    AP = 0.849 [0.828, 0.867]
    """

    def __init__(
        self,
        *,
        precision: Array,
        recall: Array,
        thresholds: Array,
        low: Array,
        high: Array,
        average_precision: Estimate | None = None,
        name: str | None = None,
        pos_label: Any = None,
        prevalence: float | None = None,
    ) -> None:
        self.precision = precision
        self.recall = recall
        self.thresholds = thresholds
        self.low = low
        self.high = high
        self.average_precision = average_precision
        self.name = name
        self.pos_label = pos_label
        self.prevalence = prevalence

    @classmethod
    def from_histogram(
        cls,
        hist: ScoreHistogram,
        *,
        ax: Axes | None = None,
        name: str | None = None,
        ci: float = 0.95,
        **kwargs: Any,
    ) -> Self:
        """Draw the precision-recall curve of a histogram.

        Parameters
        ----------
        hist : ScoreHistogram
            The histogram; nothing further is asked of clients.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend.
        ci : float, default=0.95
            Level of the band and of the interval in the legend.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        FedPrecisionRecallDisplay
        """
        check_histogram(hist)
        curve, (low, high) = hist.pr_curve(), _band(hist, ci)
        total = float(hist.counts_.sum())
        share = float(hist.counts_[1].sum()) / total if total > 0 else np.nan
        display = cls(
            precision=curve.precision,
            recall=curve.recall,
            thresholds=curve.thresholds,
            low=low,
            high=high,
            average_precision=hist.average_precision(ci=ci),
            name=name,
            pos_label=hist.classes[1],
            prevalence=share,
        )
        display.histogram_ = hist
        return display.plot(ax, **kwargs)

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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend; None takes that of the display.
        plot_chance_level : bool, default=False
            Draw the precision of a random score, too.
        band_kw : dict, default=None
            Keywords of ``Axes.fill_between`` for the band.
        **line_kw : dict
            Keywords of ``Axes.plot`` for the curve.

        Returns
        -------
        FedPrecisionRecallDisplay
        """
        ax = self._set_axes(ax)
        name = self.name if name is None else name
        if self.average_precision is not None:
            name = with_interval(name, "AP", self.average_precision)
        line = {"drawstyle": "steps-post", "label": name, **line_kw}
        self.line_: Line2D = ax.plot(self.recall, self.precision, **line)[0]
        shade = {"color": self.line_.get_color(), "alpha": BAND_ALPHA, "linewidth": 0}
        self.band_ = ax.fill_between(
            self.recall,
            self.low,
            self.high,
            **{"step": "post", **shade, **(band_kw or {})},
        )
        self.chance_level_ = None
        if plot_chance_level and self.prevalence is not None:
            (self.chance_level_,) = ax.plot(
                [0, 1],
                [self.prevalence] * 2,
                "k--",
                label=f"Chance level (AP = {self.prevalence:.2f})",
            )
        of = "" if self.pos_label is None else f" (Positive label: {self.pos_label})"
        ax.set(
            xlabel=f"Recall{of}",
            ylabel=f"Precision{of}",
            xlim=(-0.01, 1.01),
            ylim=(-0.01, 1.01),
            aspect="equal",
        )
        if ax.get_legend_handles_labels()[1]:
            ax.legend(loc="lower left")
        return self


def _band(hist: ScoreHistogram, ci: float) -> tuple[Array, Array]:
    """Ends of the band, in the order of the curve."""
    fpr, tpr, *_ = hist.roc_curve()
    negatives, positives = hist.counts_.sum(axis=1)
    predicted = fpr * negatives + tpr * positives
    shares = hist.pr_curve().precision[::-1]
    low, high = band(hist, rate(tpr, positives, 1), precision(shares, predicted), ci)
    known = predicted > 0
    return np.where(known, low, 0.0)[::-1], np.where(known, high, 1.0)[::-1]
