"""Rounds of a run: what each cost and released, and all of them as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from math import isnan
from typing import Any, SupportsIndex, overload

import numpy as np

from skfedcal._table import text_table
from skfedcal.contract import Array


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """What one round cost and what the server saw in it.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    n_clients, n_cohorts : int
        Clients that answered, and cohorts they were asked in. With Poisson sampling the
        expected number of clients: the true one reveals who may have taken part.
    bytes_up, bytes_down : int
        Size of one client's answer and of the request it received.
    seconds : float
        Time of the round; NaN in a private run that is not a simulation, and where it
        could reveal the size of a Poisson sample.
    client_seconds : float
        Mean time that a client computed; NaN then too, and where it is not measured,
        as on an engine of real sites.
    total : dict of str to ndarray
        Released sums.
    faults : dict of str to str
        Why clients were left out, by name.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> record = FedTempCalibrator(eps=1.0, random_state=0).fit(fed.clients).history_[0]
    >>> record.round, record.n_clients, record.bytes_up, sorted(record.total)
    (0, 50, 16, ['slopes'])
    """

    round: int
    n_clients: int
    n_cohorts: int
    bytes_up: int
    bytes_down: int
    seconds: float
    client_seconds: float
    total: dict[str, Array] = field(repr=False)
    faults: dict[str, str] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Tell whether all fields are equal; NaN times are equal to each other."""
        if not isinstance(other, RoundRecord):
            return NotImplemented
        mine, its = self._numbers(), other._numbers()
        return (
            self.faults == other.faults
            and mine.keys() == its.keys()
            and all(np.array_equal(mine[key], its[key], equal_nan=True) for key in mine)
        )

    # Of a record, with its arrays, no key can be made.
    __hash__ = None  # type: ignore[assignment]

    def _numbers(self) -> dict[str, Any]:
        plain = ("round", "n_clients", "n_cohorts", "bytes_up", "bytes_down", "seconds",
                 "client_seconds")  # fmt: skip
        blocks = {f"total {name}": values for name, values in self.total.items()}
        return {name: getattr(self, name) for name in plain} | blocks


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
