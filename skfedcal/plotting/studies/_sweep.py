"""SweepDisplay: a score against eps, rounds or another setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._params import check_flag
from skfedcal.data._arrays import read_array
from skfedcal.plotting._base import BAND_ALPHA, pyplot
from skfedcal.plotting._style import REFERENCE, line_style, tidy
from skfedcal.plotting.studies._columns import (
    check_columns,
    measured,
    number,
    read_rows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[Any]

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


class SweepDisplay:
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
    ax_, figure_ : matplotlib Axes and Figure
        Where it is drawn.

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
        table : ResultTable, Comparison, data frame, dict of columns or list of dicts
            Rows with the columns named below; a column ``sd_`` and the name of the
            score holds deviations. Rows with the same setting and method, such as
            seeds, are averaged.
        x, y : str, default='eps', 'cwECE'
            Columns of setting and score.
        by : str or None, default='method'
            Column that names the line; None makes one line.
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Keywords of `plot`.

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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
        **kwargs : dict
            Keywords of `plot`.

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
        ax : matplotlib Axes, default=None
            Where to draw; None makes a new figure.
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
        if ax is None:
            size = (6.0 + 1.4 * outside, 4.0)
            ax = pyplot().subplots(figsize=size, layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
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
        self._set_axes(ax, finite, factors, end)
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
            self.bands_[name] = ax.fill_between(
                x, y - half, y + half, color=colour, alpha=BAND_ALPHA, linewidth=0
            )
            ax.errorbar(x[-1:], y[-1:], half[-1:], color=colour, alpha=0.5, capsize=3)

    def _set_axes(self, ax: Any, finite: Array, factors: bool, end: float) -> None:
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
