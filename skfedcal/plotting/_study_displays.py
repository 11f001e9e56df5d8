"""Pictures of experiments: a score against a setting, and costs by method.

- Read rows of results from any supported container.
- SweepDisplay: a score against eps, rounds or another setting.
- CostDisplay: what a client sends and receives, by method.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isinf, isnan, nan
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from skfedcal._params import check_flag
from skfedcal.clients.arrays import read_array
from skfedcal.plotting.display import (
    REFERENCE,
    Array,
    Display,
    bar_style,
    documented,
    line_style,
    tidy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

# What tables write where a value does not concern a row.
_NOT_CONCERNED = ("", "-")


def read_rows(table: Any) -> list[dict[str, Any]]:
    """Rows as dicts: of a result table, a data frame, a dict of columns, or a list."""
    found = getattr(table, "rows", table)
    if hasattr(found, "to_dict") and hasattr(found, "columns"):  # a data frame
        found = found.to_dict("list")
    if isinstance(found, Mapping):
        columns = {name: _listed(values, name) for name, values in found.items()}
        sizes = {len(values) for values in columns.values()}
        if len(sizes) > 1:
            raise ValueError(f"The columns have different lengths: {sorted(sizes)}.")
        parts = zip(*columns.values(), strict=True)
        found = [dict(zip(columns, part, strict=True)) for part in parts]
    if isinstance(found, Iterable) and getattr(found, "ndim", 1) > 0:
        found = list(found)
    if not (isinstance(found, list) and all(isinstance(r, Mapping) for r in found)):
        raise TypeError(
            f"table is a {type(table).__name__}; pass a ResultTable, a Comparison, a "
            "data frame, a dict of columns or a list of dicts."
        )
    rows = [dict(row) for row in found]
    if not rows:
        raise ValueError("The table has no rows to draw.")
    return rows


def _listed(values: Any, name: Any) -> list[Any]:
    """Entries of a column."""
    one = isinstance(values, str | bytes) or getattr(values, "ndim", 1) == 0
    if one or not isinstance(values, Iterable):
        raise TypeError(f"Column {name!r} is {values!r}; pass a list of its entries.")
    return list(values)


def check_columns(rows: list[dict[str, Any]], *names: str | None) -> None:
    """Raise for a column that no row has, and say which there are."""
    known = list(dict.fromkeys(name for row in rows for name in row))
    for name in names:
        if name is not None and not (isinstance(name, str) and name in known):
            raise ValueError(
                f"The table has no column {name!r}; it has "
                f"{', '.join(map(str, known))}."
            )


def number(value: Any) -> float:
    """Number of a cell; inf for no noise, nan where there is none."""
    if value is None:
        return inf
    if isinstance(value, str):
        text = value.strip().lower()
        if text in _NOT_CONCERNED:
            return nan
        if text == "none":
            return inf
        value = text
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"The table has a cell {value!r}, which is not a number; leave such rows "
            "out, or pass another column."
        ) from None
    # An axis has no room for others.
    size = abs(found)
    if 0 < size < 1e-100 or 1e100 < size < inf:
        raise ValueError(f"The table has a cell {found:g}; leave the row out.")
    return found


def measured(value: Any) -> float:
    """Number of a measured cell; nan where there is none."""
    found = nan if value is None else number(value)
    return nan if isinf(found) or isnan(found) else found


# Settings that are varied by factors.
_BY_FACTORS = ("eps", "beta", "alpha", "clip", "n_clients", "clients")
_LINES_OF_REFERENCE = ("--", ":", "-.", (0, (1, 3)))

# A legend with more lines hides points wherever it is on the axes.
_MOST_INSIDE = 4


@dataclass(frozen=True, slots=True, eq=False)
class SweepLine:
    """Scores of one method, by setting.

    Parameters
    ----------
    x : ndarray of shape (n_points,)
        Settings, increasing; inf means no noise.
    y, spread : ndarray of shape (n_points,)
        Mean and deviation of the score; a deviation of nan is not known.
    """

    x: Array
    y: Array
    spread: Array


@documented
class SweepDisplay(Display):
    """A score against eps, rounds or another setting, with a line for each method.

    Made by `from_table` or `from_arrays`.

    Parameters
    ----------
    lines : dict of str to SweepLine
        By name of the method.
    references : dict of str to float, default={}
        Scores that do not depend on the setting, such as that of the model as it is.
    x_name, y_name : str
        Names of setting and score, for the axes.

    Attributes
    ----------
    lines_ : dict of str to matplotlib Line2D
        By name of the method.
    bands_ : dict of str to matplotlib PolyCollection
        One deviation around each line, where it is known.
    ref_lines_ : dict of str to matplotlib Line2D
        By name of the reference.
    ax_, figure_

    See Also
    --------
    CostDisplay : Bytes of each method.

    Notes
    -----
    A fit without noise (eps None, 'none' or inf) is drawn at the right end, with a tick
    of its own and a gap before it. Rows of a table that the setting does not concern
    ('-') are references.

    Examples
    --------
    >>> from skfedcal.plotting import SweepDisplay
    >>> display = SweepDisplay.from_arrays(
    ...     [0.5, 1, 3], {"FedTemp": [0.04, 0.03, 0.02], "FedBin": [0.09, 0.06, 0.02]},
    ...     x_name="eps", y_name="cwECE", references={"no calibration": 0.05},
    ... )
    >>> sorted(display.lines_), display.ax_.get_xscale()
    (['FedBin', 'FedTemp'], 'log')
    """

    def __init__(
        self,
        lines: Mapping[str, SweepLine],
        *,
        references: Mapping[str, float] | None = None,
        x_name: str = "eps",
        y_name: str = "cwECE",
    ) -> None:
        self.lines = dict(lines)
        self.references = dict(references or {})
        self.x_name = x_name
        self.y_name = y_name

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        x: str = "eps",
        y: str = "cwECE",
        by: str | None = "method",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw two columns of a table of results.

        Parameters
        ----------
        table
        x, y : str, default='eps', 'cwECE'
            Columns of setting and score; a column ``sd_`` and the name of the score
            holds deviations.
        by : str or None, default='method'
            Column that names the line; None makes one line.
        ax, **kwargs

        Returns
        -------
        SweepDisplay
        """
        rows = read_rows(table)
        check_columns(rows, x, y, by)
        groups: dict[str, list[tuple[float, float, float]]] = {}
        references: dict[str, list[float]] = {}
        for row in rows:
            name = y if by is None else str(row[by])
            place, value = number(row.get(x, "-")), measured(row.get(y))
            if np.isnan(value):
                continue
            if np.isnan(place):
                references.setdefault(name, []).append(value)
            else:
                entry = place, value, measured(row.get(f"sd_{y}"))
                groups.setdefault(name, []).append(entry)
        display = cls(
            {name: _line(entries) for name, entries in groups.items()},
            references={name: float(np.mean(v)) for name, v in references.items()},
            x_name=x,
            y_name=y,
        )
        return display.plot(ax, **kwargs)

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike,
        y: Mapping[str, ArrayLike],
        *,
        spread: Mapping[str, ArrayLike] | None = None,
        references: Mapping[str, float] | None = None,
        x_name: str = "eps",
        y_name: str = "cwECE",
        ax: Axes | None = None,
        **kwargs: Any,
    ) -> Self:
        """Draw given scores.

        Parameters
        ----------
        x : array-like of shape (n_points,)
            Settings; None or inf means no noise.
        y : dict of str to array-like of shape (n_points,) or (n_seeds, n_points)
            Scores by name of the method; those of several seeds are averaged.
        spread : dict of str to array-like of shape (n_points,), default=None
            Deviations, where `y` holds means.
        references : dict of str to float, default=None
            Scores that do not depend on the setting.
        x_name, y_name : str, default='eps', 'cwECE'
            Names of setting and score.
        ax, **kwargs

        Returns
        -------
        SweepDisplay
        """
        for word, value in (("y", y), ("spread", spread), ("references", references)):
            if not isinstance(value, Mapping) and (value is not None or word == "y"):
                raise TypeError(f"{word}={value!r}: pass a dict by name of the method.")
        places = np.array([number(value) for value in _vector(x, "x", object)])
        lines = {}
        for name, values in y.items():
            runs = np.atleast_2d(read_array(values, f"y[{name!r}]", np.float64))
            if runs.ndim != 2 or not len(runs):
                raise ValueError(f"y[{name!r}] has scores of shape {runs.shape}.")
            if runs.shape[1] != len(places):
                raise ValueError(
                    f"{name} has {runs.shape[1]} scores for {len(places)} settings."
                )
            given = None if spread is None else spread.get(name)
            own = _deviation(runs)
            if given is not None:
                own = _vector(given, f"spread[{name!r}]", np.float64)
            if own.shape != places.shape:
                raise ValueError(
                    f"spread of {name} has shape {own.shape}; expected one number for "
                    f"each of the {len(places)} settings."
                )
            order = np.argsort(places)
            lines[name] = SweepLine(places[order], runs.mean(axis=0)[order], own[order])
        display = cls(lines, references=references, x_name=x_name, y_name=y_name)
        return display.plot(ax, **kwargs)

    def plot(
        self, ax: Axes | None = None, *, log_x: bool | None = None, **line_kw: Any
    ) -> Self:
        """Draw the lines, their spread and the references.

        Parameters
        ----------
        ax
        log_x : bool or None, default=None
            Logarithmic axis of the setting; None decides by its name.
        **line_kw : dict
            Keywords of ``Axes.plot`` for all lines.

        Returns
        -------
        SweepDisplay
        """
        log_x = None if log_x is None else check_flag("log_x", log_x)
        if not self.lines:
            raise ValueError(f"No row has both {self.x_name!r} and {self.y_name!r}.")
        outside = ax is None and len(self.lines) + len(self.references) > _MOST_INSIDE
        ax = self._set_axes(ax, (6.0 + 1.4 * outside, 4.0))
        finite = np.unique(np.concatenate([_finite(v.x) for v in self.lines.values()]))
        factors = self.x_name in _BY_FACTORS if log_x is None else log_x
        factors = bool(factors and (finite > 0).all() and len(finite))
        end = _right_end(finite, factors)
        self.lines_: dict[str, Any] = {}
        self.bands_: dict[str, Any] = {}
        for i, (name, line) in enumerate(self.lines.items()):
            self._draw(ax, i, name, line, end, line_kw)
        self.ref_lines_: dict[str, Any] = {}
        for i, (name, value) in enumerate(self.references.items()):
            kind = _LINES_OF_REFERENCE[i % len(_LINES_OF_REFERENCE)]
            self.ref_lines_[name] = ax.axhline(
                value, color=REFERENCE, linewidth=1.2, label=name, linestyle=kind
            )
        self._set_ticks(ax, finite, factors, end)
        place: dict[str, Any] = {}
        if outside:
            place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1)}
        ax.legend(fontsize=8, framealpha=0.9, **place)
        return self

    def _draw(
        self, ax: Any, i: int, name: str, line: SweepLine, end: float, line_kw: Any
    ) -> None:
        style = {**line_style(i), "label": name, **line_kw}
        noisy = np.isfinite(line.x)
        # A gap before the point without noise: it is no eps to interpolate to.
        x = np.concatenate([line.x[noisy], [np.nan], np.full((~noisy).sum(), end)])
        y, spread = (
            np.concatenate([v[noisy], [np.nan], v[~noisy]])
            for v in (line.y, line.spread)
        )
        (self.lines_[name],) = ax.plot(x, y, **style)
        if np.isfinite(spread).any():
            half = np.nan_to_num(spread)
            colour = self.lines_[name].get_color()
            ends = (y - half, y + half)
            self.bands_[name] = self._shade(ax, self.lines_[name], x, ends)
            ax.errorbar(x[-1:], y[-1:], half[-1:], color=colour, alpha=0.5, capsize=3)

    def _set_ticks(self, ax: Any, finite: Array, factors: bool, end: float) -> None:
        tidy(ax)
        if factors:
            ax.set_xscale("log")
        ticks, names = list(finite), [f"{value:g}" for value in finite]
        if any(np.isinf(line.x).any() for line in self.lines.values()):
            ticks, names = [*ticks, end], [*names, "no noise"]
        if len(ticks) <= 12:
            ax.set_xticks(ticks, names)
            ax.set_xticks([], minor=True)
        ax.set(xlabel=self.x_name, ylabel=self.y_name)
        # Errors are read against 0.
        lowest = min(float(np.nanmin(line.y)) for line in self.lines.values())
        if lowest >= 0:
            ax.set_ylim(bottom=0)


def _line(entries: list[tuple[float, float, float]]) -> SweepLine:
    """Means of entries with the same setting, in order."""
    values = np.array(entries)
    places = np.unique(values[:, 0])
    own = [values[values[:, 0] == place] for place in places]
    spread = [
        rows[0, 2] if len(rows) == 1 else float(rows[:, 1].std(ddof=1)) for rows in own
    ]
    means = [float(rows[:, 1].mean()) for rows in own]
    return SweepLine(places, np.array(means), np.array(spread))


def _vector(values: Any, what: str, dtype: Any) -> Array:
    array = read_array(values, what, dtype)
    if array.ndim != 1:
        raise ValueError(f"{what} has shape {array.shape}; pass one entry per setting.")
    return array


def _deviation(runs: Array) -> Array:
    if len(runs) == 1:
        return np.full(runs.shape[1], np.nan)
    return np.asarray(runs.std(axis=0, ddof=1))


def _finite(values: Array) -> Array:
    return values[np.isfinite(values)]


def _right_end(finite: Array, factors: bool) -> float:
    """Place of a fit without noise: one step beyond the largest setting."""
    if not len(finite):
        return 1.0
    if factors:
        ratio = (finite[-1] / finite[0]) ** (1 / max(len(finite) - 1, 1))
        return float(finite[-1] * max(ratio, 2.0))
    step = (finite[-1] - finite[0]) / max(len(finite) - 1, 1)
    return float(finite[-1] + (step or 1.0))


_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))


@documented
class CostDisplay(Display):
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
    ax_, figure_

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
        ax, **kwargs

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
        table
        columns : str or dict of str to str, default='bytes'
            Column to draw, or columns by the name of the part that they are. Rows
            without a number are left out.
        by : str, default='method'
            Column that names the method.
        ax, **kwargs

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
        ax
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
        ax = self._set_axes(ax, (6.2, 1.0 + 0.32 * len(names) * len(parts)))
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
