"""Read rows of results from any supported container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf, isinf, isnan, nan
from typing import Any

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
