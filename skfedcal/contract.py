"""The contract between an algorithm and the runner: what a method implements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from operator import index
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.dataset import FederatedDataset

Array = NDArray[Any]
Arrays = Mapping[str, Array]
State = TypeVar("State")


@dataclass(frozen=True)
class BlockSpec:
    """Shape and bound of one array that a client sends.

    Parameters
    ----------
    shape : tuple of int
        Shape of one client's array.
    kind : {'count', 'real'}
        Whole numbers are summed as they are, reals in fixed point.
    clip : float, default=None
        Bound on the norm of one client's array (contribution bound). None sends it
        unclipped, which mechanisms with noise refuse.
    norm : {'l2', 'l1'}, default='l2'
        Norm that is bounded.
    groups : int, default=1
        The array is split along its first axis into this many parts, each clipped
        separately; the bound on the whole array is then ``clip * sqrt(groups)`` in L2.
    weight : float, default=1.0
        Cost of the noise variance of each number, when noise is divided over blocks.
    """

    shape: tuple[int, ...]
    kind: Literal["count", "real"] = "real"
    clip: float | None = None
    norm: Literal["l2", "l1"] = "l2"
    groups: int = 1
    weight: float = 1.0

    def __post_init__(self) -> None:
        # Plain numbers, whatever a method passes (such as an array of a broadcast):
        # mechanisms look codes up by their blocks.
        try:
            shape = tuple([int(index(n)) for n in self.shape])
        except TypeError:
            raise TypeError(
                f"shape must be a tuple of int, got {self.shape!r}."
            ) from None
        object.__setattr__(self, "shape", shape)
        for name, kind in (("clip", float), ("groups", index), ("weight", float)):
            value = getattr(self, name)
            if type(value) is int or (value is None and name == "clip"):
                continue
            try:
                if isinstance(value, str | bytes):
                    raise TypeError
                object.__setattr__(self, name, kind(value))
            except (TypeError, ValueError):
                what = "a whole number" if kind is index else "a number"
                raise TypeError(f"{name} must be {what}, got {value!r}.") from None

    @cached_property
    def size(self) -> int:
        """Number of values."""
        return prod(self.shape)

    @cached_property
    def sensitivity(self) -> float:
        """Largest norm of one client's array."""
        if self.clip is None:
            return np.inf
        parts = self.groups if self.norm == "l1" else np.sqrt(self.groups)
        return float(self.clip * parts)


class Field(NamedTuple):
    """What a site accepts as one array of a broadcast.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    kind : {'real', 'whole', 'flag'}, default='real'
        Floating-point numbers, whole numbers or booleans.
    low, high : float, default=-inf and inf
        Range of the values, ends included.
    """

    shape: tuple[int, ...] = ()
    kind: Literal["real", "whole", "flag"] = "real"
    low: float = -inf
    high: float = inf


# Arrays of one broadcast by name.
Form = Mapping[str, Field]
_DTYPES = {"real": "f", "whole": "iu", "flag": "b"}


_Number = TypeVar("_Number", int, float)

# Most bins or points of a curve that a site computes for.
MAX_POINTS = 10_000


def n_classes_field(n_classes: int) -> Field:
    """Array that repeats the number of classes."""
    return Field((), "whole", n_classes, n_classes)


def server_field(default: _Number) -> _Number:
    """Field of an algorithm that sites do not need: it is not sent to them."""
    value: _Number = dataclasses.field(default=default, metadata={"server": True})
    return value


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise if a parameter is outside the range that a site accepts.

    Raises
    ------
    ValueError
        Naming the parameter, the value and the range.
    """
    if not low <= value <= high:
        raise ValueError(f"{name}={value!r} must be between {low:g} and {high:g}")


@dataclass(frozen=True, slots=True, eq=False)
class CellRows:
    """Sparse rows of counts, such as histograms of one example per client.

    A query may return it in place of a dense array: memory then grows with the number
    of examples, not of cells.

    Parameters
    ----------
    rows : ndarray of int
        Row of each entry, not decreasing.
    cells : ndarray of int
        Where in the flattened block the entry adds 1.
    n_rows : int
        Number of rows, empty ones included.
    block : tuple of int
        Shape of one row.
    values : ndarray of shape (n_entries, k), default=None
        Numbers that an entry adds in place of 1, to the `k` cells from ``k * cell`` on.
        For blocks without a bound, which are sent exactly.
    """

    rows: Array
    cells: Array
    n_rows: int
    block: tuple[int, ...]
    values: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the dense array."""
        return (self.n_rows, *self.block)

    def __len__(self) -> int:
        return self.n_rows

    def dense(self) -> Array:
        """Count the entries of each cell, one row per client."""
        size = prod(self.block)
        if self.values is not None:
            n_cells = size // self.values.shape[1]
            where = self.rows * n_cells + self.cells
            sums = _sum_at(where, self.values, self.n_rows * n_cells)
            return sums.reshape(self.shape)
        flat = np.bincount(self.rows * size + self.cells, minlength=self.n_rows * size)
        return flat.reshape(self.shape)

    def total(self) -> Array:
        """Sum over rows, flattened."""
        size = prod(self.block)
        if self.values is not None:
            n_cells = size // self.values.shape[1]
            return _sum_at(self.cells, self.values, n_cells).reshape(-1)
        return np.bincount(self.cells, minlength=size)

    def merged(self) -> CellRows:
        """One entry for each cell of each row, with the sum of its `values`."""
        if self.values is None:
            raise ValueError("Entries of counts have no values to be added.")
        n_cells = prod(self.block) // self.values.shape[1]
        _, first, own = np.unique(
            self.rows * n_cells + self.cells, return_index=True, return_inverse=True
        )
        return dataclasses.replace(
            self,
            rows=self.rows[first],
            cells=self.cells[first],
            values=_sum_at(own, self.values, len(first)),
        )


def _sum_at(where: Array, values: Array, size: int) -> Array:
    """Sums of shape (size, k) of the values (n, k) that go to the same place.

    Values are added one after the other, so that the same ones have the same sum.
    """
    out = np.zeros((values.shape[1], size), dtype=values.dtype)
    for sums, column in zip(out, values.T, strict=True):
        np.add.at(sums, where, column)
    return out.T


Rows = Mapping[str, Array] | Mapping[str, CellRows] | Mapping[str, Array | CellRows]


@dataclass(frozen=True, slots=True)
class NoiseLaw:
    """Distribution of the noise in each number of a released block.

    Parameters
    ----------
    kind : {'additive', 'grr', 'subset', 'oue', 'olh', 'rr'}
        'additive' for independent noise; otherwise the frequency oracle with which
        clients report.
    variance : float
        Variance of one number; where clients report, of a count with frequency
        ``1 / domain``.
    p, q : float, default=1 and 0
        Probability that a report contains the client's own cell, and any other cell.
    n_reports : int, default=0
        Clients that report on this block.
    domain : int, default=0
        Number of cells.
    n_units : int, default=0
        Clients that the estimates are scaled up to; 0 if they are not scaled.
    """

    kind: str
    variance: float
    p: float = 1.0
    q: float = 0.0
    n_reports: int = 0
    domain: int = 0
    n_units: int = 0


class Sums(dict[str, Array]):
    """Sums over clients as the server may see them.

    Attributes
    ----------
    noise : dict of str to float
        Standard deviation of the noise in each block; empty when there is none.
    laws : dict of str to NoiseLaw
        Law of the noise in each block; empty when there is none.
    """

    def __init__(
        self,
        values: Arrays,
        noise: Mapping[str, float] | None = None,
        laws: Mapping[str, NoiseLaw] | None = None,
    ):
        super().__init__(values)
        self.noise = dict(noise) if noise else {}
        self.laws = dict(laws) if laws else {}


class FederatedAlgorithm(Protocol[State]):
    """What a client computes and what the server does with the sum.

    The runner repeats ``broadcast -> query -> clip, encode, sum, noise -> update`` for
    `n_rounds` or until `done`. An algorithm is a frozen dataclass of plain numbers and
    strings: it holds no data, draws no noise and knows no budget. Its state is a frozen
    dataclass of arrays and numbers.

    Further members are optional: ``shares``, one positive number per round, adding up
    to 1, divides the budget over rounds where all clients take part in all of them;
    ``n_values(n_classes)`` gives the largest number of values of a round, where a later
    round releases more than the first; ``forms(n_classes)`` lists the broadcasts that a
    site accepts, and raises ValueError where the parameters do not fit the number of
    classes or ask for more work than a site does. See `round_shares`,
    `values_per_round` and `check_broadcast`. ``by_place`` is true if what a row adds
    depends on its place among the rows: sites refuse it where single rows are
    protected, because a row would then change what others add. ``values_at_once`` is
    how many numbers the clients of one query may send together, where many clients in
    one query are much faster than a few; a simulation asks clients in such groups.
    ``lists_rows`` is true if the server reads single rows from the sum: sites answer it
    only if their policy names the algorithm itself.
    """

    @property
    def n_rounds(self) -> int:
        """Rounds to run, and to pay for."""

    def init(self, n_classes: int) -> State:
        """State before the first round."""

    def broadcast(self, state: State) -> Arrays:
        """Give the part of the state that every client receives."""

    def spec(self, broadcast: Arrays) -> Mapping[str, BlockSpec]:
        """Give shapes and public bounds; the only source of sensitivity."""

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        """Compute what each client sends, one leading row per client, not yet clipped.

        Counts with few entries may be `CellRows`. Called with one client at a site and
        with thousands in a simulation.
        """

    def update(self, state: State, total: Sums, n_clients: int) -> State:
        """Make the next state from nothing but the (noisy) sums."""

    def done(self, state: State) -> bool:
        """Whether further rounds are unnecessary."""


def round_shares(algorithm: FederatedAlgorithm[Any]) -> tuple[float, ...]:
    """Share of the budget of each round; empty when all rounds get the same."""
    return tuple(getattr(algorithm, "shares", None) or ())


def first_spec(
    algorithm: FederatedAlgorithm[Any], n_classes: int
) -> Mapping[str, BlockSpec]:
    """Blocks of the first round."""
    return algorithm.spec(algorithm.broadcast(algorithm.init(n_classes)))


def bound_norm(
    algorithm: FederatedAlgorithm[Any],
    n_classes: int,
    spec: Mapping[str, BlockSpec] | None = None,
) -> Literal["l1", "l2"]:
    """Norm in which the blocks of the first round are bounded: 'l1' if all are.

    spec: These blocks, where they are at hand.
    """
    if spec is None:
        spec = first_spec(algorithm, n_classes)
    norms = {block.norm for block in spec.values()}
    return "l1" if norms == {"l1"} else "l2"


def values_per_round(
    algorithm: FederatedAlgorithm[Any],
    n_classes: int,
    spec: Mapping[str, BlockSpec] | None = None,
) -> int:
    """Largest number of values that a round releases.

    spec: Blocks of the first round, where they are at hand.
    """
    n_values = getattr(algorithm, "n_values", None)
    if n_values is not None:
        return int(n_values(n_classes))
    if spec is None:
        spec = first_spec(algorithm, n_classes)
    return sum(block.size for block in spec.values())


def broadcast_forms(
    algorithm: FederatedAlgorithm[Any], n_classes: int
) -> tuple[Form, ...]:
    """Broadcasts that a site accepts from this algorithm.

    Where the algorithm does not list them, they have the names, shapes and types of the
    first one.

    Raises
    ------
    ValueError
        If the parameters of the algorithm do not fit the number of classes.
    """
    listed = getattr(algorithm, "forms", None)
    if listed is not None:
        return tuple(listed(n_classes))
    first = algorithm.broadcast(algorithm.init(n_classes))
    kinds = {code: kind for kind, codes in _DTYPES.items() for code in codes}
    return (
        {
            name: Field(np.shape(array), kinds[np.asarray(array).dtype.kind])  # type: ignore[arg-type]
            for name, array in first.items()
        },
    )


def check_broadcast(
    algorithm: FederatedAlgorithm[Any], broadcast: Arrays, n_classes: int
) -> None:
    """Refuse a broadcast that the algorithm would not send.

    Raises
    ------
    ValueError
        Naming the array. The text depends on the broadcast only.
    """
    forms = broadcast_forms(algorithm, n_classes)
    faults = [_broadcast_fault(form, broadcast) for form in forms]
    if all(faults):
        # That of the form with the same names, if there is one.
        named = [i for i, form in enumerate(forms) if set(form) == set(broadcast)]
        raise ValueError(faults[named[-1]] if named else faults[0])


def _broadcast_fault(form: Form, broadcast: Arrays) -> str:
    if set(form) != set(broadcast):
        return f"arrays {sorted(broadcast)} instead of {sorted(form)}"
    for name, field in form.items():
        array = broadcast[name]
        if array.shape != field.shape or array.dtype.kind not in _DTYPES[field.kind]:
            return (
                f"array {name!r} is {array.dtype} of shape {array.shape} instead of "
                f"{field.kind} numbers of shape {field.shape}"
            )
        if field.kind != "flag" and array.size:
            low, high = array.min(), array.max()
            if not (field.low <= low and high <= field.high):
                return (
                    f"array {name!r} must be between {field.low:g} and {field.high:g}"
                )
    return ""
