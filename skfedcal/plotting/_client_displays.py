"""Pictures of single clients, for simulations: label skew and temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator

from skfedcal._params import check_choice
from skfedcal.clients.arrays import INPUT_TYPES
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.clients.forms import ClassMap, make_dataset
from skfedcal.methods import FedTempCalibrator
from skfedcal.methods.temperature.rounds import local_temperatures
from skfedcal.plotting.display import (
    COLOURS,
    REFERENCE,
    Array,
    Display,
    documented,
    tidy,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from skfedcal._typing import InputType


# More names than this leave no room on an axis.
_MOST_NAMES = 30


@documented
class ClientsDisplay(Display):
    """Base of displays that show each client separately, from rows at hand."""

    @classmethod
    def from_clients(
        cls,
        clients: Any,
        y: ArrayLike | Sequence[ArrayLike] | None = None,
        *,
        client_ids: ArrayLike | None = None,
        classes: ArrayLike | None = None,
        input_type: InputType = "logits",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Count or fit each client alone, and draw.

        Parameters
        ----------
        clients, y, client_ids, classes, input_type, ax, **kwargs

        Returns
        -------
        display
        """
        check_choice("input_type", input_type, INPUT_TYPES)
        dataset, known = make_dataset(
            BaseEstimator(), clients, y, client_ids, classes=classes,
            input_type=input_type,
        )  # fmt: skip
        return cls._of(dataset, known).plot(ax, **kwargs)

    @classmethod
    def _of(cls, clients: FederatedDataset, known: ClassMap) -> Self:
        raise NotImplementedError


@documented
@dataclass(eq=False, repr=False)
class LabelSkewDisplay(ClientsDisplay):
    """Heat map of the labels of each client, with the number of its rows.

    It shows each client separately. Use it for simulations, not for private data.

    Parameters
    ----------
    counts : ndarray of shape (n_clients, n_classes)
        Rows of each client by label.
    classes : sequence of labels
        One per column.
    names : sequence of str
        Names of the clients.

    Attributes
    ----------
    image_ : matplotlib AxesImage
        Share of each label at each client, clients with the same main label together.
    order_ : ndarray of shape (n_clients,)
        Client of each row of the picture.
    bars_ : matplotlib BarContainer or None
        Rows of each client.
    colorbar_ : matplotlib Colorbar
        Scale of the shares.
    ax_, figure_

    See Also
    --------
    ClientTemperaturesDisplay : Temperatures of the clients.

    Notes
    -----
    The skew in the title is the mean over clients of the total variation distance
    between their labels and those of all: 0 if all are alike, near 1 if each client has
    one of many classes.

    Examples
    --------
    >>> from skfedcal import make_federation
    >>> from skfedcal.plotting import LabelSkewDisplay
    >>> fed = make_federation(n_clients=20, n_classes=4, alpha=0.1, random_state=0)
    >>> display = LabelSkewDisplay.from_clients(fed.clients)
    >>> display.counts.shape, round(display.skew, 1)
    ((20, 4), 0.6)
    """

    counts: Array
    classes: Any
    names: Any

    @classmethod
    def _of(cls, clients: FederatedDataset, known: ClassMap) -> Self:
        n_classes = len(known.classes)
        owner = np.repeat(np.arange(len(clients)), clients.sizes)
        cells = owner * n_classes + clients.labels
        counts = np.bincount(cells, minlength=len(clients) * n_classes)
        counts = counts.reshape(len(clients), n_classes)[:, known.order]
        return cls(counts, known.classes, clients.names)

    @property
    def shares(self) -> Array:
        """Share of each label at each client; 0 for one without rows."""
        rows = self.counts.sum(axis=1, keepdims=True)
        shares: Array = self.counts / np.maximum(rows, 1)
        return shares

    @property
    def skew(self) -> float:
        """Mean distance between the labels of a client and those of all, 0 to 1."""
        rows = self.counts.sum(axis=1)
        if not rows.any():
            return 0.0
        overall = self.counts.sum(axis=0) / rows.sum()
        return float(np.abs(self.shares - overall)[rows > 0].sum(axis=1).mean() / 2)

    def plot(
        self, ax: Axes | None = None, *, sizes: bool = True, cmap: str = "Blues"
    ) -> Self:
        """Draw the shares, and the number of rows beside them.

        Parameters
        ----------
        ax
        sizes : bool, default=True
            Draw the rows of each client on the right.
        cmap : str, default='Blues'
            Colour map; one that only darkens is readable in grey.

        Returns
        -------
        LabelSkewDisplay
        """
        n_clients, n_classes = self.counts.shape
        height = float(np.clip(0.16 * n_clients + 1.4, 3.0, 8.0))
        ax = self._set_axes(ax, (6.4, height))
        shares = self.shares
        main = shares.argmax(axis=1)
        self.order_ = np.lexsort((-shares.max(axis=1), main))
        self.image_ = ax.imshow(
            shares[self.order_], aspect="auto", cmap=cmap, vmin=0, vmax=1,
            interpolation="nearest",
        )  # fmt: skip
        ax.set(xlabel="label", ylabel="client")
        _names(ax.xaxis, [str(label) for label in self.classes], rotate=n_classes > 12)
        _names(ax.yaxis, [str(self.names[i]) for i in self.order_], rotate=False)
        ax.set_title(f"label skew {self.skew:.2f}", fontsize=10)
        self.bars_ = None
        if sizes:
            place = ax.inset_axes((1.02, 0, 0.2, 1), sharey=ax)
            self.bars_ = place.barh(
                np.arange(n_clients), self.counts.sum(axis=1)[self.order_],
                color=COLOURS[0], height=0.8,
            )  # fmt: skip
            place.tick_params(labelleft=False, left=False)
            tidy(place, "x")
            place.set_xlabel("rows")
        self.colorbar_ = self.figure_.colorbar(
            self.image_, ax=ax, location="bottom", shrink=0.7, aspect=30,
            label="share of the client's rows",
        )  # fmt: skip
        return self


def _names(axis: Any, names: list[str], *, rotate: bool) -> None:
    if len(names) <= _MOST_NAMES:
        axis.set_ticks(np.arange(len(names)), names, fontsize=8)
        if rotate:
            axis.set_tick_params(rotation=90)
    else:
        axis.set_ticks([])
        axis.set_label_text(f"{axis.get_label_text()} ({len(names)})")


# Local optima are searched between these; one at an end is none.
_LOWEST, _HIGHEST = 0.05, 20.0


@documented
@dataclass(eq=False, repr=False)
class ClientTemperaturesDisplay(ClientsDisplay):
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
    ax_, figure_

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

    temperatures: Array
    sizes: Array
    pooled: float

    @classmethod
    def _of(cls, clients: FederatedDataset, known: ClassMap) -> Self:
        own = np.where(clients.filled, local_temperatures(clients), np.nan)
        pooled = FedTempCalibrator(classes=np.arange(len(known.classes)))
        packed = clients.compact()
        pooled.fit(packed.rows, packed.labels)
        return cls(own, clients.sizes, pooled.temperature_)

    def plot(self, ax: Axes | None = None, **point_kw: Any) -> Self:
        """Draw clients from the lowest temperature to the highest.

        Parameters
        ----------
        ax
        **point_kw : dict
            Keywords of ``Axes.scatter`` for clients with an optimum.

        Returns
        -------
        ClientTemperaturesDisplay
        """
        ax = self._set_axes(ax, (6.0, 4.0))
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
        all_rows = f"all rows together: {self.pooled:.2f}"
        self.pooled_line_ = ax.axhline(self.pooled, color="k", lw=1.4, label=all_rows)
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
