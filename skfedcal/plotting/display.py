"""What all displays share: colours, bands, and the way from clients to axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal._docs import SharedDocs
from skfedcal._typing import Seed
from skfedcal.evaluation.histogram import ScoreHistogram
from skfedcal.evaluation.intervals import check_level, quantile, unit_band

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from skfedcal.evaluation.intervals import Estimate

# Okabe and Ito (2008): told apart with any colour vision. Black is for references.
COLOURS = (
    "#0072B2",  # blue
    "#D55E00",  # vermilion
    "#009E73",  # green
    "#CC79A7",  # purple
    "#E69F00",  # orange
    "#56B4E9",  # sky blue
)
# In grey, lines differ by these.
LINES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "++++")

REFERENCE = "0.35"


def line_style(number: int) -> dict[str, Any]:
    """Keywords of ``Axes.plot`` for the line of this number, from 0."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": LINES[number % len(LINES)],
        "marker": MARKS[number % len(MARKS)],
        "markersize": 5,
    }


def bar_style(number: int) -> dict[str, Any]:
    """Keywords of ``Axes.bar`` for the bars of this number, from 0."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "hatch": HATCHES[number % len(HATCHES)],
        "edgecolor": "white",
        "linewidth": 0.8,
    }


def set_cycle(ax: Any) -> None:
    """Let curves that give no style of their own differ by colour and line."""
    from cycler import cycler

    ax.set_prop_cycle(cycler(color=COLOURS) + cycler(linestyle=LINES))


def next_number(ax: Any) -> int:
    """Number of the next curve on these axes: how many have a style of ours."""
    return sum(1 for line in ax.lines if line.get_gid() == "skfedcal")


def tidy(ax: Any, axis: str = "both") -> None:
    """Light grid behind the data; no frame at the top and on the right."""
    ax.grid(True, axis=axis, color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


# A band has the colour of its line, at this opacity.
BAND_ALPHA = 0.2


documented = SharedDocs(
    """
    clients : list of (logits, labels) pairs, list of arrays, or array-like
        Clients in any form that `fit` reads.
    y : array-like of shape (n_samples,), or list of these, default=None
        Labels; omitted when `clients` is a list of pairs.
    client_ids : array-like of shape (n_samples,), default=None
        Client that owns each row; with a list of clients, one name per client.
    classes : array-like of shape (n_classes,), default=None
        Labels of the logit columns, in column order.
    input_type : {'logits', 'log_proba', 'proba'}, default='logits'
        What the columns hold; never guessed.
    hist : ScoreHistogram
        The histogram; nothing further is asked of clients.
    low, high : ndarray of shape (n_points,)
        Confidence interval of each point.
    name : str, default=None
        Name of the model in the legend.
    pos_label : label, default=None
        Label of the positive class, for the axes.
    ci : float, default=0.95
        Level of the confidence intervals.
    ax : matplotlib Axes, default=None
        Where to draw; None makes a new figure.
    axes : sequence of matplotlib Axes, default=None
        Where to draw, one for each model; None makes a new figure.
    ref_line : bool, default=True
        Draw the diagonal, on which calibrated scores lie.
    table : ResultTable, Comparison, data frame, dict of columns or list of dicts
        Rows with the columns named below; those of one method and setting, such as
        seeds, are averaged.
    band_kw : dict, default=None
        Keywords of ``Axes.fill_between`` for the band.
    **line_kw : dict
        Keywords of ``Axes.plot`` for the curve.
    **kwargs : dict
        Keywords of `plot`.
    y_true : array-like of shape (n_samples,)
        True labels.
    labels : array-like of shape (n_classes,), default=None
        All labels, one per column. Needed when `y_true` misses some.
    line_ : matplotlib Line2D
        The curve.
    band_ : matplotlib PolyCollection or None
        Confidence band.
    margin_ : matplotlib artist or None
        Counts or density of the scores, in the strip below.
    ref_line_ : matplotlib Line2D or None
        The diagonal.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.
    histogram_ : ScoreHistogram
        Of `from_histogram` and `from_clients`; further answers cost nothing.
    """
)


class Display:
    """Base of all displays; their parameters are fields of a dataclass."""

    ax_: Any
    figure_: Any
    plot: Callable[..., Self]

    def _set_axes(self, ax: Any, figsize: tuple[float, float] | None = None) -> Any:
        """Store and return the axes; None makes a figure of this size."""
        if ax is None:
            # The layout makes room for a strip below.
            ax = pyplot().subplots(figsize=figsize, layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax

    @staticmethod
    def _shade(ax: Any, line: Any, x: Any, ends: Any, keywords: Any = None) -> Any:
        """Fill between the ends of intervals, in the colour of a line."""
        style = {"color": line.get_color(), "alpha": BAND_ALPHA, "linewidth": 0}
        return ax.fill_between(x, *ends, **{**style, **(keywords or {})})


def show_legend(ax: Any, **style: Any) -> None:
    """Draw a legend if something has a name."""
    if ax.get_legend_handles_labels()[1]:
        ax.legend(**style)


@documented
class FedDisplay(Display):
    """Base of displays that are made from a histogram.

    Attributes
    ----------
    histogram_ : ScoreHistogram
        The histogram, if the display was made from one: further answers cost nothing.
    """

    histogram_: ScoreHistogram
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        raise NotImplementedError

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
        """Draw the curve of a histogram.

        Parameters
        ----------
        hist, ax, name, ci, **kwargs

        Returns
        -------
        display
        """
        check_histogram(hist)
        return cls._drawn(hist, cls._answers(hist, ci), ax, name, kwargs)

    @classmethod
    def _answers(cls, hist: ScoreHistogram, ci: float) -> dict[str, Any]:
        """Points of the curve and their intervals, by name of the parameter."""
        raise NotImplementedError

    @classmethod
    def _drawn(
        cls, hist: ScoreHistogram, answers: Any, ax: Any, name: Any, kwargs: Any
    ) -> Self:
        known = {k: v for k, v in answers.items() if k in cls.__dataclass_fields__}
        display = cls(**known, name=name, pos_label=hist.classes[1])
        display.histogram_ = hist
        return display.plot(ax, **kwargs)

    @classmethod
    def from_clients(
        cls,
        clients: Any,
        y: ArrayLike | Sequence[ArrayLike] | None = None,
        *,
        client_ids: ArrayLike | None = None,
        privacy: Any = None,
        random_state: Seed = None,
        ax: Axes | None = None,
        name: str | None = None,
        ci: float = 0.95,
        plot_kw: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Collect a histogram of the clients' scores, and draw it.

        The histogram is stored as `histogram_`.

        Parameters
        ----------
        clients : list of (scores, labels) pairs, list of arrays, or array-like
            In the forms that `ScoreHistogram.fit` takes.
        y, client_ids
        privacy : privacy model, default=None
            What the release shall guarantee; None is exact sums.
        random_state : int, RandomState instance or None, default=None
            None takes noise from the operating system; a seed makes the result
            repeatable, and a simulation.
        ax, name, ci
        plot_kw : dict, default=None
            Further keywords of `from_histogram`.
        **options : dict
            Further parameters of `ScoreHistogram.fit`, such as `input_type`.

        Returns
        -------
        display
        """
        drawing = dict(plot_kw or {})
        # What cannot be drawn must not be paid for.
        pyplot()
        check_level(ci)
        cls._check_drawing(drawing)
        hist = ScoreHistogram.fit(
            clients,
            y,
            client_ids=client_ids,
            privacy=privacy,
            random_state=random_state,
            **options,
        )
        return cls.from_histogram(hist, ax=ax, name=name, ci=ci, **drawing)

    @classmethod
    def _check_drawing(cls, drawing: Mapping[str, Any]) -> None:
        """Raise for invalid keywords of `from_histogram`."""

    def _set_axes(self, ax: Any, figsize: tuple[float, float] | None = None) -> Any:
        is_new = ax is None
        ax = super()._set_axes(ax, figsize)
        if is_new:
            set_cycle(ax)
        return ax


def check_histogram(hist: Any) -> None:
    """Raise for what cannot be drawn."""
    if not isinstance(hist, ScoreHistogram):
        raise TypeError(
            f"hist is of type {type(hist).__name__}; pass a ScoreHistogram."
        )


def pyplot() -> Any:
    """Import matplotlib; the error names the pip command."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            'A display needs matplotlib: pip install "skfedcal[plot]".'
        ) from error
    return plt


def with_interval(name: str | None, metric: str, value: Estimate) -> str:
    """Label of a curve: the name of its model and an area with its interval."""
    area = f"{metric} = {value:.3f} [{value.low:.3f}, {value.high:.3f}]"
    return area if name is None else f"{name} ({area})"


Array = NDArray[Any]

# Points of a curve whose errors are computed; those between are interpolated.
_POINTS = 257


class Coordinate(NamedTuple):
    """One coordinate of a curve at all edges of buckets, from the top down.

    value of shape (n_buckets + 1,): Points of the curve.
    slope of shape (n_buckets + 1, 2, 2): Slope of the value in the counts of
        (negatives, positives) that lie (at or above, below) the edge.
    rows of shape (n_buckets + 1,): Rows that the value is a share of.
    """

    value: Array
    slope: Array
    rows: Array


def rate(value: Array, total: float, row: int) -> Coordinate:
    """Part of the negatives (row 0) or positives (row 1) at or above each edge."""
    slope = np.zeros((len(value), 2, 2))
    slope[:, row] = np.stack([1 - value, -value], axis=1) / max(total, 1.0)
    return Coordinate(value, slope, np.full(len(value), total))


def precision(value: Array, predicted: Array) -> Coordinate:
    """Part of the rows at or above each edge that are positive."""
    slope = np.zeros((len(value), 2, 2))
    slope[:, :, 0] = np.stack([-value, 1 - value], axis=1)
    slope /= np.maximum(predicted, 1.0)[:, None, None]
    return Coordinate(value, slope, predicted)


def band(
    hist: ScoreHistogram, x: Coordinate, y: Coordinate, ci: float
) -> tuple[Array, Array]:
    """Ends, at every edge, of the interval of `y` where the curve is at `x`.

    Both coordinates of a point have errors. To first order the curve at the same place
    is off by ``dy - slope * dx``, whose variance is that of its gradient. The slope is
    that of the chord over the interval of `x`, so that a jump counts with its height.
    """
    z, size = quantile(ci), hist.grid.n_buckets
    point = np.arange(0, size + 1, max(1, size // (_POINTS - 1)))
    reach = z * np.sqrt(sum(_variances(hist, point, x.slope[point])))
    chord = _chord(x.value, y.value, x.value[point], reach)[:, None, None]
    both = _variances(hist, point, y.slope[point] - chord * x.slope[point])
    everywhere = np.arange(size + 1)
    sampling, privacy = (np.interp(everywhere, point, part) for part in both)
    return unit_band(y.value, sampling, privacy, z, y.rows)


def _variances(hist: ScoreHistogram, point: Array, slope: Array) -> tuple[Array, Array]:
    """Variances, of sampling and of privacy, of values at some edges."""
    size = hist.grid.n_buckets
    above = np.arange(size) >= size - point[:, None, None]
    gradient = np.where(above, slope[:, :, :1], slope[:, :, 1:])
    return hist.variances(gradient)


def _chord(x: Array, y: Array, place: Array, half: Array) -> Array:
    """Slope of the curve from ``place - half`` to ``place + half``; `x` increases."""
    low, high = np.maximum(place - half, x[0]), np.minimum(place + half, x[-1])
    rise = np.interp(high, x, y) - np.interp(low, x, y)
    width = high - low
    # Without an error of x its slope does not matter.
    out: Array = np.where(width > 0, rise / np.where(width > 0, width, 1.0), 0.0)
    return out
