"""Rounds of a run as a table: for a notebook, and for data frames."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import isnan
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from skfedcal._table import text_table

if TYPE_CHECKING:
    from skfedcal.federation._run import RoundRecord

# Columns and how they are shown.
_COLUMNS: dict[str, Callable[[Any], str]] = {
    "round": str,
    "n_clients": str,
    "n_cohorts": str,
    "bytes_up": "{:,}".format,
    "bytes_down": "{:,}".format,
    "seconds": "{:.3g}".format,
    "client_seconds": "{:.3g}".format,
    "n_faults": str,
}


class RoundHistory(list["RoundRecord"]):
    """List of the rounds of a run that shows itself as a table.

    Parameters
    ----------
    records : iterable of RoundRecord, default=()
        Rounds, the first one first.

    See Also
    --------
    RoundRecord : One round, with the sums that were released.

    Examples
    --------
    >>> from skfedcal import FedBinCalibrator, make_federation
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> history = FedBinCalibrator().fit(fed.clients).history_
    >>> history.to_dict()["n_clients"]
    [20]
    >>> history[0].total["positive"].shape
    (10, 15)

    ``pandas.DataFrame(history.to_dict())`` has one row for each round.
    """

    def to_dict(self) -> dict[str, list[Any]]:
        """Return columns of plain numbers by name, one entry for each round."""
        return {name: [_cell(record, name) for record in self] for name in _COLUMNS}

    def __repr__(self) -> str:
        if not self:
            return "RoundHistory([])"
        return text_table(list(_COLUMNS), self._texts(), n_left=0)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        head = "".join(f"<th>{escape(name)}</th>" for name in _COLUMNS)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
            for row in self._texts()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _texts(self) -> list[list[str]]:
        return [
            [_text(_cell(record, name), form) for name, form in _COLUMNS.items()]
            for record in self
        ]

    @overload
    def __getitem__(self, index: SupportsIndex) -> RoundRecord: ...

    @overload
    def __getitem__(self, index: slice) -> RoundHistory: ...

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return RoundHistory(found) if isinstance(index, slice) else found


def _cell(record: RoundRecord, name: str) -> Any:
    return len(record.faults) if name == "n_faults" else getattr(record, name)


def _text(value: Any, form: Callable[[Any], str]) -> str:
    """Cell as it is shown; a time that was not measured is a dash."""
    return "-" if isinstance(value, float) and isnan(value) else form(value)
