"""ClientTemperaturesDisplay: how the best temperature differs between clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal.algorithms import local_temperatures
from skfedcal.calibrators import FedTempCalibrator
from skfedcal.plotting._base import pyplot
from skfedcal.plotting._style import COLOURS, REFERENCE, tidy
from skfedcal.plotting.studies._read_clients import read_clients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

Array = NDArray[Any]

# Local optima are searched between these; one at an end is none.
_LOWEST, _HIGHEST = 0.05, 20.0


class ClientTemperaturesDisplay:
    """Temperature that each client would fit alone, and that of all.

    It shows each client separately. Use it for simulations, not for private data.

    Parameters
    ----------
    temperatures : ndarray of shape (n_clients,)
        Optimum of each client; nan for one without rows.
    sizes : ndarray of shape (n_clients,)
        Rows of each client.
    pooled : float
        Optimum of all rows together.

    Attributes
    ----------
    points_ : matplotlib PathCollection
        Clients with an optimum, sorted by temperature.
    bounded_ : matplotlib PathCollection or None
        Clients whose rows are all right or all wrong: no temperature is best.
    pooled_line_, mean_line_ : matplotlib Line2D
        Optimum of all rows, and mean of the clients' optima.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    See Also
    --------
    skfedcal.client_temperatures : The numbers.
    LabelSkewDisplay : Labels of the clients.

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> from skfedcal.plotting import ClientTemperaturesDisplay
    >>> fed = make_federation(n_clients=40, temperature=2.0, random_state=0)
    >>> display = ClientTemperaturesDisplay.from_clients(fed.clients)
    >>> len(display.temperatures), round(display.pooled, 1)
    (40, 2.0)
    """

    def __init__(self, temperatures: Array, sizes: Array, pooled: float) -> None:
        self.temperatures = temperatures
        self.sizes = sizes
        self.pooled = pooled

    @classmethod
    def from_clients(
        cls,
        clients: Any,
        y: ArrayLike | Sequence[ArrayLike] | None = None,
        *,
        client_ids: ArrayLike | None = None,
        classes: ArrayLike | None = None,
        input_type: str = "logits",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Fit each client alone, and draw.

        Parameters
        ----------
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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        ClientTemperaturesDisplay
        """
        dataset, _ = read_clients(clients, y, client_ids, classes, input_type)
        own = np.where(dataset.filled, local_temperatures(dataset), np.nan)
        pooled = FedTempCalibrator(classes=classes, input_type=input_type)
        pooled.fit(clients, y, client_ids=client_ids)
        return cls(own, dataset.sizes, pooled.temperature_).plot(ax, **kwargs)

    def plot(self, ax: Axes | None = None, **point_kw: Any) -> Self:
        """Draw clients from the lowest temperature to the highest.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **point_kw : dict
            Keywords of ``Axes.scatter`` for clients with an optimum.

        Returns
        -------
        ClientTemperaturesDisplay
        """
        if ax is None:
            ax = pyplot().subplots(figsize=(6.0, 4.0), layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        filled = np.flatnonzero(np.isfinite(self.temperatures))
        order = filled[np.argsort(self.temperatures[filled], kind="stable")]
        values, sizes = self.temperatures[order], np.asarray(self.sizes)[order]
        place = np.arange(1, len(order) + 1)
        ends = (values <= _LOWEST * 1.001) | (values >= _HIGHEST * 0.999)
        area = 12 + 90 * sizes / max(sizes.max(initial=1), 1)
        style = {"color": COLOURS[0], "alpha": 0.75, "edgecolor": "white"}
        self.points_ = ax.scatter(
            place[~ends], values[~ends], area[~ends],
            **{**style, "label": "client (area: number of rows)", **point_kw},
        )  # fmt: skip
        self.bounded_ = None
        if ends.any():
            self.bounded_ = ax.scatter(
                place[ends], values[ends], 30, marker="x", color=COLOURS[1],
                label="all rows right, or all wrong: no optimum",
            )  # fmt: skip
        mean = float(values.mean()) if len(values) else np.nan
        self.pooled_line_ = ax.axhline(
            self.pooled,
            color="k",
            lw=1.4,
            label=f"all rows together: {self.pooled:.2f}",
        )
        self.mean_line_ = ax.axhline(
            mean, color=REFERENCE, ls="--", lw=1.2, label=f"mean of clients: {mean:.2f}"
        )
        ax.set_yscale("log")
        _set_ticks(ax, values)
        tidy(ax, "y")
        ax.set(
            xlabel="client, sorted", ylabel="temperature fitted to the client's rows"
        )
        ax.legend(fontsize=8, framealpha=0.9)
        return self


def _set_ticks(ax: Any, values: Array) -> None:
    """Plain numbers on the logarithmic axis."""
    ticks = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20])
    low, high = np.min(values, initial=1.0) / 1.3, np.max(values, initial=1.0) * 1.3
    shown = ticks[(ticks >= low) & (ticks <= high)]
    ax.set_ylim(low, high)
    ax.set_yticks(shown, [f"{tick:g}" for tick in shown])
    ax.set_yticks([], minor=True)
