"""FedReliabilityDisplay: frequency against score with error bars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skfedcal.evaluation.answers import check_bins
from skfedcal.metrics.validation import check_choice
from skfedcal.plotting._display import MARKS, Array, FedDisplay, check_histogram
from skfedcal.plotting._reliability_display import bottom_of, draw_margin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from skfedcal.evaluation.histogram import ScoreHistogram

_DEFAULTS = {"n_bins": 10, "strategy": "quantile", "margin": None}
_MARGINS = ("counts", "density", None)


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
    name : str, default=None
        Name of the model, for the legend.
    pos_label : label, default=None
        Label of the positive class, for the axes.

    Attributes
    ----------
    errorbar_ : matplotlib ErrorbarContainer
        Curve and error bars.
    line_ : matplotlib Line2D
        The curve.
    ref_line_ : matplotlib Line2D or None
        The diagonal.
    margin_ : matplotlib artist or None
        Counts or density of the scores, in the strip below.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.
    histogram_ : ScoreHistogram
        Of `from_histogram` and `from_clients`; further answers cost nothing.

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

    def __init__(
        self,
        *,
        prob_true: Array,
        prob_pred: Array,
        low: Array,
        high: Array,
        counts: Array | None = None,
        name: str | None = None,
        pos_label: Any = None,
    ) -> None:
        self.prob_true = prob_true
        self.prob_pred = prob_pred
        self.low = low
        self.high = high
        self.counts = counts
        self.name = name
        self.pos_label = pos_label

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
        hist : ScoreHistogram
            The histogram; nothing further is asked of clients.
        n_bins : int, default=10
            Number of bins.
        strategy : {'quantile', 'uniform'}, default='quantile'
            Bins of about equal depth, or of equal width.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend.
        ci : float, default=0.95
            Level of the error bars.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        FedReliabilityDisplay
        """
        check_histogram(hist)
        points = hist.reliability(n_bins, strategy=strategy, ci=ci)
        display = cls(
            prob_true=points.prob_true,
            prob_pred=points.prob_pred,
            low=points.low,
            high=points.high,
            counts=points.counts,
            name=name,
            pos_label=hist.classes[1],
        )
        display.histogram_ = hist
        return display.plot(ax, **kwargs)

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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend; None takes that of the display.
        ref_line : bool, default=True
            Draw the diagonal, on which calibrated scores lie.
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
        if ax.get_legend_handles_labels()[1]:
            ax.legend(loc="lower right")
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
