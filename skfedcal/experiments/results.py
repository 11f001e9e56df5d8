"""Measured values by row, as text, Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan, sqrt
from typing import Any

from skfedcal._json import dump
from skfedcal._table import text_table

Run = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ResultTable:
    """Results of an experiment: one run per row and seed, shown as means over seeds.

    Parameters
    ----------
    title : str
        What was measured.
    keys : sequence of str
        Columns that name a row, such as the method.
    values : dict of str to str
        Measured columns and the format of each, such as ``{"accuracy": ".1%"}``. A
        percent sign shows a hundred times the value.
    runs : list of dict
        All columns of each run, and its `seed`. None or nan is a value that there is
        not.
    settings : dict, default={}
        What all runs share.
    spread : collection of str, default=None
        Values whose deviation over seeds is shown; None is all of them.
    stars : dict of str to collection of tuple, default={}
        Rows, by their keys, whose value in a column is marked with a star.

    Examples
    --------
    >>> from skfedcal.experiments import ResultTable
    >>> runs = [
    ...     {"method": "a", "seed": 0, "accuracy": 0.5},
    ...     {"method": "a", "seed": 1, "accuracy": 0.7},
    ...     {"method": "b", "seed": 0, "accuracy": 0.9},
    ... ]
    >>> print(ResultTable("two methods", ["method"], {"accuracy": ".1%"}, runs))
    two methods
    method      accuracy %
    ------  --------------
    a       60.0 (sd 14.1)
    b                 90.0
    """

    title: str
    keys: Sequence[str]
    values: Mapping[str, str]
    runs: Sequence[Run]
    settings: Mapping[str, Any] = field(default_factory=dict)
    spread: Collection[str] | None = None
    stars: Mapping[str, Collection[tuple]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("values", "settings"):
            if not isinstance(getattr(self, name), Mapping):
                raise TypeError(f"{name}={getattr(self, name)!r}: pass a dict.")
        for name in ("keys", "runs"):
            if not isinstance(getattr(self, name), list | tuple):
                raise TypeError(f"{name}={getattr(self, name)!r}: pass a list.")
        if not all(isinstance(key, str) for key in self.keys):
            raise TypeError(f"keys={self.keys!r}: pass names.")
        for form in self.values.values():
            if not isinstance(form, str):
                raise TypeError(f"values has {form!r}; pass a format such as '.2f'.")
        for run in self.runs:
            if not isinstance(run, Mapping):
                raise TypeError(f"runs has {run!r}; pass a dict for each run.")
            lacking = [key for key in self.keys if key not in run]
            if lacking:
                raise ValueError(f"A run has no {lacking}; these keys name its row.")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per row: keys, means over seeds, ``sd_`` of each and ``n_runs``.

        The deviation is that of single runs (divisor n - 1), nan for one.
        """
        return [
            {**dict(zip(self.keys, name, strict=True)), **self._summary(runs)}
            for name, runs in self._groups().items()
        ]

    def pivot(self, column: str, value: str) -> ResultTable:
        """Return a table with one column per entry of a key, as papers print them.

        Parameters
        ----------
        column : str
            One of `keys`, whose entries become columns.
        value : str
            The one of `values` that these show.

        Returns
        -------
        ResultTable
        """
        entries = list(dict.fromkeys(run[column] for run in self.runs))
        names = {entry: f"{column}={entry}" for entry in entries}
        keys = [key for key in self.keys if key != column]
        merged: dict[tuple, dict[str, Any]] = {}
        for run in self.runs:
            kept = {key: run[key] for key in (*keys, "seed")}
            row = merged.setdefault(tuple(kept.values()), kept)
            row[names[run[column]]] = run[value]
        return ResultTable(
            f"{self.title}: {value}",
            keys,
            dict.fromkeys(names.values(), self.values[value]),
            list(merged.values()),
            self.settings,
        )

    def to_text(self, width: int | None = None) -> str:
        """Return the title and aligned columns.

        Parameters
        ----------
        width : int, default=None
            Where one table would be wider, columns go on in a second one below, with
            the keys again. None is one table.
        """
        n_keys = len(self.keys)
        lines = [self._header(), *self._cells()]
        parts = []
        for columns in _parts(lines, n_keys, width):
            chosen = [[line[i] for i in columns] for line in lines]
            parts.append(text_table(chosen[0], chosen[1:], n_left=n_keys))
        return "\n".join([str(self.title), "\n\n".join(parts)])

    def to_markdown(self) -> str:
        """Return a table in Markdown."""
        header = self._header()
        rule = ["---"] * len(self.keys) + ["--:"] * len(self.values)
        n_keys = len(self.keys)
        cells = [[*map(_markdown, c[:n_keys]), *c[n_keys:]] for c in self._cells()]
        return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *cells))

    def to_latex(self) -> str:
        """Return a ``tabular`` environment that needs no package."""
        form = "l" * len(self.keys) + "r" * len(self.values)
        header, *rows = (
            " & ".join(map(_latex, cells)) + r" \\"
            for cells in (self._header(), *self._cells())
        )
        lines = [rf"\begin{{tabular}}{{{form}}}", r"\hline", header, r"\hline"]
        return "\n".join([*lines, *rows, r"\hline", r"\end{tabular}"])

    def to_csv(self) -> str:
        """Return one line per row: keys, then mean and ``sd_`` of each value."""
        names = [part for name in self.values for part in (name, f"sd_{name}")]
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*self.keys, "n_runs", *names])
        for row in self.rows:
            numbers = [row[name] if _is_number(row[name]) else "" for name in names]
            writer.writerow([*(row[k] for k in self.keys), row["n_runs"], *numbers])
        return stream.getvalue()

    def to_json(self) -> str:
        """Return title, settings and all runs; a missing value is null."""
        record = {
            "title": self.title,
            "settings": _plain(self.settings),
            "keys": list(self.keys),
            "values": list(self.values),
            "runs": [_plain(run) for run in self.runs],
        }
        return dump(record, indent=1)

    def __str__(self) -> str:
        """Return the same as `to_text`."""
        return self.to_text()

    def _groups(self) -> dict[tuple, list[Run]]:
        groups: dict[tuple, list[Run]] = {}
        for run in self.runs:
            groups.setdefault(tuple(run[key] for key in self.keys), []).append(run)
        return groups

    def _summary(self, runs: Sequence[Run]) -> dict[str, Any]:
        found: dict[str, Any] = {"n_runs": len(runs)}
        for name in self.values:
            numbers = [run[name] for run in runs if _is_number(run.get(name))]
            found[name], found[f"sd_{name}"] = _mean_and_deviation(numbers)
        return found

    def _header(self) -> list[str]:
        units = [" %" if form.endswith("%") else "" for form in self.values.values()]
        shown = [name + unit for name, unit in zip(self.values, units, strict=True)]
        return [*self.keys, *shown]

    def _cells(self) -> list[list[str]]:
        return [
            [_one_line(row[key]) for key in self.keys]
            + [self._cell(row, name) for name in self.values]
            for row in self.rows
        ]

    def _cell(self, row: Mapping[str, Any], name: str) -> str:
        spread = self.spread is None or name in self.spread
        deviation = row[f"sd_{name}"] if spread else nan
        text = _shown(row[name], deviation, self.values[name])
        keys = tuple(row[key] for key in self.keys)
        return text + "*" * (keys in self.stars.get(name, ()))


def _parts(
    lines: Sequence[Sequence[str]], n_keys: int, width: int | None
) -> list[list[int]]:
    """Columns of each table that is as wide as `width` allows, keys first."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    keys = list(range(n_keys))
    left = sum(widths[:n_keys]) + 2 * n_keys
    parts, used = [list(keys)], left
    for i in range(n_keys, len(widths)):
        if width is not None and used + widths[i] > width and len(parts[-1]) > n_keys:
            parts.append(list(keys))
            used = left
        parts[-1].append(i)
        used += widths[i] + 2
    return parts


# Letters that mean something to LaTeX and have no form with a backslash before them.
LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{letter: f"\\{letter}" for letter in "%&_#${}"},
}


def _latex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def _markdown(text: str) -> str:
    """Name of a row, with a backslash before what would be a mark or HTML."""
    return "".join(f"\\{c}" if c in "\\|<*`[]" else c for c in text)


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def _is_number(value: Any) -> bool:
    return value is not None and not isnan(value)


def _mean_and_deviation(numbers: Sequence[float]) -> tuple[float, float]:
    if not numbers:
        return nan, nan
    mean = sum(numbers) / len(numbers)
    if len(numbers) == 1:
        return float(mean), nan
    square = sum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return float(mean), sqrt(square)


def _shown(mean: float, deviation: float, form: str) -> str:
    if isnan(mean):
        return "-"
    text = _formatted(mean, form)
    if isnan(deviation):
        return text
    return f"{text} (sd {_formatted(deviation, form.lstrip('+'))})"


def _formatted(value: float, form: str) -> str:
    text = format(value, form).removesuffix("%")
    # A negative number that is shown as nothing has no sign.
    return text if text.strip("-+0.") or text[0] != "-" else text.lstrip("-")


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON has; others as text."""
    return {str(name): _plain_value(value) for name, value in values.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, list | tuple):
        return [_plain_value(entry) for entry in value]
    if isinstance(value, float) and isnan(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
