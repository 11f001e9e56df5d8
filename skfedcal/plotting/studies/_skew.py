"""LabelSkewDisplay: which labels each client has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from skfedcal.plotting._base import pyplot
from skfedcal.plotting._style import COLOURS, tidy
from skfedcal.plotting.studies._read_clients import read_clients

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

Array = NDArray[Any]

# More names than this leave no room on an axis.
_MOST_NAMES = 30


class LabelSkewDisplay:
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
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

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

    def __init__(self, counts: Array, classes: Any, names: Any) -> None:
        self.counts = counts
        self.classes = classes
        self.names = names

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
        """Count the labels of each client, and draw.

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
            What the columns hold; they are checked, and not used.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        LabelSkewDisplay
        """
        dataset, known = read_clients(clients, y, client_ids, classes, input_type)
        n_classes = len(known.classes)
        owner = np.repeat(np.arange(len(dataset)), dataset.sizes)
        cells = owner * n_classes + dataset.labels
        counts = np.bincount(cells, minlength=len(dataset) * n_classes)
        counts = counts.reshape(len(dataset), n_classes)[:, known.order]
        return cls(counts, known.classes, dataset.names).plot(ax, **kwargs)

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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        sizes : bool, default=True
            Draw the rows of each client on the right.
        cmap : str, default='Blues'
            Colour map; one that only darkens is readable in grey.

        Returns
        -------
        LabelSkewDisplay
        """
        n_clients, n_classes = self.counts.shape
        if ax is None:
            size = (6.4, float(np.clip(0.16 * n_clients + 1.4, 3.0, 8.0)))
            ax = pyplot().subplots(figsize=size, layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
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
