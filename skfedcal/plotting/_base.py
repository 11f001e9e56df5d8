"""What all displays share: the way from clients to axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from skfedcal._typing import RandomState
from skfedcal.evaluation._histogram import ScoreHistogram
from skfedcal.evaluation._intervals import check_level
from skfedcal.plotting._style import set_cycle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from skfedcal.evaluation._estimate import Estimate

# A band has the colour of its line, at this opacity.
BAND_ALPHA = 0.2


class FedDisplay:
    """Base of displays that are made from a histogram.

    Attributes
    ----------
    histogram_ : ScoreHistogram
        The histogram, if the display was made from one: further answers cost nothing.
    """

    histogram_: ScoreHistogram
    ax_: Any
    figure_: Any

    @classmethod
    def from_histogram(cls, hist: ScoreHistogram, **kwargs: Any) -> Self:
        """Draw a histogram."""
        raise NotImplementedError

    @classmethod
    def from_clients(
        cls,
        clients: Any,
        y: ArrayLike | Sequence[ArrayLike] | None = None,
        *,
        client_ids: ArrayLike | None = None,
        privacy: Any = None,
        random_state: RandomState = None,
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
        y : array-like of shape (n_samples,), or list of these, default=None
            Labels; omitted when `clients` is a list of pairs.
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row; with a list of clients, one name per client.
        privacy : privacy model, default=None
            What the release shall guarantee; None is exact sums.
        random_state : int, RandomState instance or None, default=None
            None takes noise from the operating system; a seed makes the result
            repeatable, and a simulation.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        name : str, default=None
            Name of the model in the legend.
        ci : float, default=0.95
            Level of the confidence intervals.
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

    def _set_axes(self, ax: Any) -> Any:
        """Store and return the axes; create them if None is given."""
        plt = pyplot()
        if ax is None:
            # The layout makes room for a strip below.
            ax = plt.subplots(layout="constrained")[1]
            set_cycle(ax)
        self.ax_ = ax
        self.figure_ = self.ax_.figure
        return self.ax_


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
