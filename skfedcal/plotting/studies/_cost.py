"""CostDisplay: what a client sends and receives, by method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from skfedcal._params import check_flag
from skfedcal.plotting._base import pyplot
from skfedcal.plotting._style import bar_style, tidy
from skfedcal.plotting.studies._columns import check_columns, measured, read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


class CostDisplay:
    """Bytes of one client over a whole fit, by method.

    Made by `from_estimators` or `from_table`.

    Parameters
    ----------
    costs : dict of str to dict of str to float
        Bytes of each direction, or of any other part, by name of the method.

    Attributes
    ----------
    bars_ : dict of str to matplotlib BarContainer
        By name of the part.
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

    See Also
    --------
    SweepDisplay : Scores against settings.

    Examples
    --------
    >>> from skfedcal import FedBinCalibrator, FedTempCalibrator, make_federation
    >>> from skfedcal.plotting import CostDisplay
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> fitted = {"FedTemp": FedTempCalibrator().fit(fed.clients),
    ...           "FedBin": FedBinCalibrator().fit(fed.clients)}
    >>> display = CostDisplay.from_estimators(fitted)
    >>> display.costs["FedBin"]["up"] > display.costs["FedTemp"]["up"]
    True
    """

    def __init__(self, costs: Mapping[str, Mapping[str, float]]) -> None:
        self.costs = {name: dict(parts) for name, parts in costs.items()}

    @classmethod
    def from_estimators(
        cls, estimators: Mapping[str, Any], *, ax: Axes | None = None, **kwargs: Any
    ) -> Self:
        """Draw the costs of fitted estimators.

        Parameters
        ----------
        estimators : dict of str to estimator
            Fitted, with `history_`, by name.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        CostDisplay
        """
        if not isinstance(estimators, Mapping):
            raise TypeError(
                f"estimators={estimators!r}: pass a dict of name and fitted estimator."
            )
        costs = {}
        for name, estimator in estimators.items():
            rounds = list(getattr(estimator, "history_", ()))
            if not rounds:
                raise ValueError(
                    f"{name} has no history_ of rounds; pass an estimator as `fit` "
                    "leaves it (a loaded estimator has no history_)."
                )
            costs[name] = {
                "up": float(sum(record.bytes_up for record in rounds)),
                "down": float(sum(record.bytes_down for record in rounds)),
            }
        return cls(costs).plot(ax, **kwargs)

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        columns: Mapping[str, str] | str = "bytes",
        by: str = "method",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw columns of a table of results.

        Parameters
        ----------
        table : ResultTable, Comparison, data frame, dict of columns or list of dicts
            Rows with the columns named below; those of one method are averaged. Rows
            without a number are left out.
        columns : str or dict of str to str, default='bytes'
            Column to draw, or columns by the name of the part that they are.
        by : str, default='method'
            Column that names the method.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Keywords of `plot`.

        Returns
        -------
        CostDisplay
        """
        rows = read_rows(table)
        if not isinstance(columns, str | Mapping):
            raise TypeError(
                f"columns={columns!r}: pass the name of a column, or a dict."
            )
        parts = {columns: columns} if isinstance(columns, str) else dict(columns)
        if by is None or None in parts.values():
            raise ValueError("columns and by must name columns, got None.")
        check_columns(rows, by, *parts.values())
        found: dict[str, dict[str, list[float]]] = {}
        for row in rows:
            own = {part: measured(row.get(column)) for part, column in parts.items()}
            if np.isnan(list(own.values())).any():
                continue
            if min(own.values(), default=0.0) < 0:
                raise ValueError(f"A cost of {row[by]} is below 0: {own}.")
            kept = found.setdefault(str(row[by]), {part: [] for part in parts})
            for part, value in own.items():
                kept[part].append(value)
        costs = {
            name: {part: float(np.mean(v)) for part, v in kept.items()}
            for name, kept in found.items()
        }
        return cls(costs).plot(ax, **kwargs)

    def plot(
        self, ax: Axes | None = None, *, log: bool = True, sort: bool = True
    ) -> Self:
        """Draw a group of bars for each method, with their values.

        Parameters
        ----------
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        log : bool, default=True
            Logarithmic axis.
        sort : bool, default=True
            The cheapest method first; else in the given order.

        Returns
        -------
        CostDisplay
        """
        log, sort = check_flag("log", log), check_flag("sort", sort)
        if not self.costs:
            raise ValueError("No method has a number of bytes to draw.")
        names = list(self.costs)
        if sort:
            names.sort(key=lambda name: sum(self.costs[name].values()))
        parts = list(dict.fromkeys(part for own in self.costs.values() for part in own))
        if ax is None:
            height = 1.0 + 0.32 * len(names) * len(parts)
            ax = pyplot().subplots(figsize=(6.2, height), layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        places, thick = np.arange(len(names)), 0.8 / len(parts)
        self.bars_: dict[str, Any] = {}
        for i, part in enumerate(parts):
            values = [self.costs[name].get(part, 0.0) for name in names]
            shift = (i - (len(parts) - 1) / 2) * thick
            self.bars_[part] = bars = ax.barh(
                places + shift, values, thick * 0.92, label=part, **bar_style(i)
            )
            ax.bar_label(bars, [_bytes(v) for v in values], padding=3, fontsize=8)
        if log:
            _set_log(ax, [v for own in self.costs.values() for v in own.values() if v])
        ax.xaxis.set_major_formatter(lambda value, _: _bytes(value))
        ax.set_yticks(places, names)
        ax.invert_yaxis()
        tidy(ax, "x")
        ax.set_xlabel("bytes of one client in a whole fit")
        if not log:
            ax.margins(x=0.2)
        if len(parts) > 1:
            ax.legend(fontsize=8)
        return self


def _set_log(ax: Any, values: list[float]) -> None:
    """Logarithmic axis from a power of ten on, with room for the numbers."""
    first = 10 ** np.floor(np.log10(min(values, default=1.0)) - 0.01)
    last = max(values, default=1.0)
    ax.set_xscale("log")
    ax.set_xlim(first, last * (last / first) ** 0.2)
    ax.xaxis.set_minor_formatter("")


def _bytes(value: float) -> str:
    """Size in a unit that suits it."""
    for size, unit in _UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return "0"
