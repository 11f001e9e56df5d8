"""The one data type that algorithms see: the rows of all clients, packed."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._numerics import FEW_COLUMNS

Array = NDArray[Any]

# Entries per block: large enough to spread numpy's cost per call, small enough for the
# cache. Blocks of few columns also carry several float64 values per row.
FEW_COLUMNS_CELLS, BLOCK_CELLS = 1 << 17, 1 << 18


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a few clients, or a piece of one large client.

    rows, labels, weights: As in `FederatedDataset`; `weights` is None when all rows
        count once.
    clients: Positions of the clients that own these rows.
    offsets: Start of each client inside the block, and the end.
    """

    rows: Array
    labels: Array
    weights: Array | None
    clients: slice
    offsets: Array

    def sum_by_client(self, values: Array) -> Array:
        """Add up `values` of shape (..., n_rows) to shape (n_clients, ...)."""
        if self.weights is not None:
            values = values * self.weights
        return segment_sums(values, self.offsets)


@dataclass(frozen=True, slots=True, eq=False)
class FederatedDataset:
    """Rows of all clients with offsets; clients are slices, nothing is copied.

    Parameters
    ----------
    rows : ndarray of shape (n_rows, ...)
        Logits (or features) of all clients, client after client.
    labels : ndarray of shape (n_rows,)
        Class of each row, as a column number in ``range(n_classes)``.
    offsets : ndarray of shape (n_clients + 1,)
        Client ``i`` owns the rows ``offsets[i]:offsets[i + 1]``.
    names : sequence of length n_clients
        Names of the clients.
    n_classes : int
        Number of classes, present here or not.
    weights : ndarray of shape (n_rows,), default=None
        Weight of each row.
    order : ndarray of shape (n_rows,), default=None
        Where packed row ``i`` lies in `rows`. None when `rows` is packed already;
        otherwise blocks are gathered as they are needed, so that an array in any
        order is used without a copy. `labels` and `weights` are always packed.

    Attributes
    ----------
    n_clients : int
        Number of clients.
    n_rows : int
        Number of rows of all clients.
    sizes : ndarray of shape (n_clients,)
        Number of rows of each client.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FederatedDataset
    >>> rows = np.array([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    >>> labels, offsets = np.array([0, 1, 0]), np.array([0, 2, 3])
    >>> clients = FederatedDataset(rows, labels, offsets, ["a", "b"], n_classes=2)
    >>> clients.n_clients, clients.sizes.tolist()
    (2, [2, 1])
    """

    rows: Array
    labels: Array
    offsets: Array
    names: Sequence[Hashable]
    n_classes: int
    weights: Array | None = None
    order: Array | None = None
    n_clients: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Shapes only: a view of some clients is made often, and must cost nothing.
        rows, labels, offsets, names = self.rows, self.labels, self.offsets, self.names
        if not type(rows) is type(labels) is type(offsets) is np.ndarray:
            _check_arrays(rows=rows, labels=labels, offsets=offsets)
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
            raise ValueError("offsets must be a vector of whole numbers.")
        if labels.ndim != 1 or not rows.ndim:
            raise ValueError("labels must be a vector, and rows an array of rows.")
        sized = type(names) in (range, list) or hasattr(names, "__len__")
        if not sized or getattr(names, "shape", None) == ():
            raise TypeError(f"names={names!r}: pass a list of names.")
        n_clients = len(offsets) - 1
        object.__setattr__(self, "n_clients", n_clients)
        if len(names) != n_clients:
            raise ValueError(f"{len(names)} names are given for {n_clients} clients.")

    def __len__(self) -> int:
        return self.n_clients

    @property
    def n_rows(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    @property
    def sizes(self) -> Array:
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def filled(self) -> Array:
        """Whether each client has a row of positive weight."""
        if self.weights is None:
            return self.sizes > 0
        start, stop = self.offsets[0], self.offsets[-1]
        return self.sum_by_client(self.weights[start:stop]) > 0

    def slice(self, start: int, stop: int) -> FederatedDataset:
        """Clients ``start`` to ``stop``, as a view."""
        return replace(
            self,
            offsets=self.offsets[start : stop + 1],
            names=self.names[start:stop],
        )

    def select(self, positions: Array) -> FederatedDataset:
        """Return the clients at these positions, in this order.

        Neighbours are a view; others are gathered block by block as they are needed.
        """
        positions = np.asarray(positions)
        n_picked = len(positions)
        if not n_picked:
            return self.slice(0, 0)
        first, stop = int(positions[0]), int(positions[-1]) + 1
        neighbours = first >= 0 and stop - first == n_picked
        if neighbours and (n_picked < 3 or (positions[1:] > positions[:-1]).all()):
            everyone = (first, stop) == (0, self.n_clients)
            return self if everyone else self.slice(first, stop)
        sizes = self.sizes[positions]
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        shift = np.repeat(self.offsets[positions] - offsets[:-1], sizes)
        packed = np.arange(offsets[-1]) + shift
        return replace(
            self,
            labels=self.labels[packed],
            offsets=offsets,
            names=_Picked(self.names, positions),
            weights=None if self.weights is None else self.weights[packed],
            order=packed if self.order is None else self.order[packed],
        )

    def keep_rows(self, keep: Array) -> FederatedDataset:
        """Return the rows of `rows` where `keep` is true; clients may become empty."""
        if self.order is not None:
            keep = keep[self.order]
        return self.keep_packed(
            np.flatnonzero(keep[self.offsets[0] : self.offsets[-1]])
        )

    def keep_packed(self, numbers: Array) -> FederatedDataset:
        """Return the rows of these numbers, rising, among the packed rows."""
        packed = np.asarray(numbers) + int(self.offsets[0])
        return FederatedDataset(
            self.rows,
            self.labels[packed],
            packed.searchsorted(self.offsets),
            self.names,
            self.n_classes,
            None if self.weights is None else self.weights[packed],
            packed if self.order is None else self.order[packed],
        )

    def compact(self) -> FederatedDataset:
        """Return a copy that holds these clients' rows and nothing else."""
        start, stop = self.offsets[0], self.offsets[-1]
        where = slice(start, stop)
        return replace(
            self,
            rows=self.rows[where if self.order is None else self.order[where]].copy(),
            labels=self.labels[where].copy(),
            offsets=self.offsets - start,
            weights=None if self.weights is None else self.weights[where].copy(),
            order=None,
        )

    def by_row(self) -> FederatedDataset:
        """Make every row a client of its own."""
        start, stop = self.offsets[0], self.offsets[-1]
        return replace(
            self, offsets=np.arange(start, stop + 1), names=range(stop - start)
        )

    def blocks(self, cells: int | None = None) -> Iterator[Block]:
        """Cut the rows into blocks of about `cells` entries; None picks a good size.

        A block holds whole clients, or a piece of one client that is cut from its
        own first row on. Sums over blocks therefore depend, to the last bit, on the
        client's own rows only.
        """
        width = max(1, self.rows[:1].size)
        if cells is None:
            cells = FEW_COLUMNS_CELLS if width <= FEW_COLUMNS else BLOCK_CELLS
        limit = max(1, cells // width)
        first = 0
        while first < self.n_clients:
            start = self.offsets[first]
            last = int(np.searchsorted(self.offsets, start + limit, side="right")) - 1
            if last > first:
                yield self._block(first, last, start, self.offsets[last])
                first = last
                continue
            for piece in range(start, self.offsets[first + 1], limit):
                stop = min(piece + limit, self.offsets[first + 1])
                yield self._block(first, first + 1, piece, stop)
            first += 1

    def sum_by_client(self, values: Array) -> Array:
        """Add up `values` of shape (..., n_rows) to shape (n_clients, ...)."""
        return segment_sums(values, self.offsets - self.offsets[0])

    def _gather(self, start: int, stop: int) -> Array:
        """Packed rows; a gathered block is valid until the next one."""
        if self.order is None:
            return self.rows[start:stop]
        index = self.order[start:stop]
        out = scratch("rows", (len(index), *self.rows.shape[1:]), self.rows.dtype)
        # The mode that needs no buffer; `order` is always inside.
        return np.take(self.rows, index, axis=0, out=out, mode="clip")

    def _block(self, first: int, last: int, start: int, stop: int) -> Block:
        where = slice(start, stop)
        # Of a piece of a client, offsets end where it ends.
        inside = np.minimum(self.offsets[first : last + 1], stop)
        return Block(
            self._gather(start, stop),
            self.labels[where],
            None if self.weights is None else self.weights[where],
            slice(first, last),
            np.maximum(inside, start) - start,
        )


def _check_arrays(**values: Any) -> None:
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            kind = type(value).__name__
            raise TypeError(f"{name} is of type {kind}; pass an array.")


class _Picked(Sequence[Hashable]):
    """Names at some positions; a list of a hundred thousand would take longer."""

    def __init__(self, names: Sequence[Hashable], positions: Array) -> None:
        self._names, self._positions = names, positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Picked(self._names, self._positions[index])
        return self._names[self._positions[index]]


def segment_sums(values: Array, offsets: Array) -> Array:
    """Sum ``values[..., offsets[i]:offsets[i + 1]]`` for each ``i``, ``i`` first."""
    # Not a difference of running totals: a sum must depend, to the last bit, on its
    # own entries only. reduceat needs non-empty segments.
    starts = offsets[:-1]
    filled = starts < offsets[1:]
    if filled.all():
        return np.add.reduceat(values, starts, axis=-1).T
    out = np.zeros((len(starts), *values.shape[:-1]), dtype=values.dtype)
    if filled.any():
        out[filled] = np.add.reduceat(values, starts[filled], axis=-1).T
    return out


# Buffers are kept between calls: fresh pages cost more than work on them.
# A larger buffer (a row of a million columns) is not kept.
_KEEP_BYTES = 1 << 22

_kept = threading.local()


def scratch(name: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """Array with arbitrary content, valid until this thread asks for `name` again."""
    n_bytes = prod(shape) * np.dtype(dtype).itemsize
    buffer = getattr(_kept, name, None)
    if buffer is None or buffer.nbytes < n_bytes:
        buffer = np.empty(n_bytes, dtype=np.uint8)
        if n_bytes <= _KEEP_BYTES:
            setattr(_kept, name, buffer)
    return buffer[:n_bytes].view(dtype).reshape(shape)
