"""Selection and weights of the rows that a client reports."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from skfedcal import _compiled
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Array

# Weights of the rows of a client are multiples of this, so that they add up to 1
# without rounding.
WEIGHT_UNIT = 2.0**-16

# Salt of the hash that holds rows back, and the share of rows that it takes.
_HOLD_BACK = 0x5EED
HELD_SHARE = 0.2
_HELD_BELOW = 2**64 // 5


def packed(clients: FederatedDataset) -> tuple[Array, Array, Array]:
    """Rows, labels and client positions of all rows, client after client."""
    start, stop = int(clients.offsets[0]), int(clients.offsets[-1])
    where = slice(start, stop) if clients.order is None else clients.order[start:stop]
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    return clients.rows[where], clients.labels[start:stop], owner


def kept_rows(clients: FederatedDataset, limit: int, salt: int) -> Array:
    """Positions among the packed rows of at most `limit` rows of each client.

    The choice is by a hash of the row's number at its client, of the client's name and
    of a public `salt`: it depends on no value of any row and on no other client. The
    name is included because clients may sort their rows in the same way, and would then
    all report the same kind of rows.
    """
    sizes = clients.sizes
    first = clients.offsets[:-1] - clients.offsets[0]
    if not len(sizes) or sizes.max() <= limit:
        return np.arange(clients.n_rows)
    number = np.arange(clients.n_rows) - np.repeat(first, sizes)
    owner = np.repeat(np.arange(len(clients)), sizes)
    own = hashed(name_numbers(clients.names), salt + 1)
    order = np.lexsort((hashed(number ^ own[owner].astype(np.int64), salt), owner))
    # Rows stay packed client after client, so `number` is also the rank in `order`.
    return np.sort(order[number < limit])


def held_back_rows(clients: FederatedDataset, *, held: bool) -> FederatedDataset:
    """Return the fifth of each client's rows that fits leave out, or the other rows.

    The choice is by a hash of the row's number at its client and of the client's name:
    it is public, depends on no value of any row and on no other client, and is the same
    in every round.
    """
    return _kept(clients, _held_marks(clients) == held)


def split_rows(clients: FederatedDataset) -> tuple[FederatedDataset, FederatedDataset]:
    """Return both parts of `held_back_rows`: the fifth, and the other rows."""
    mark = _held_marks(clients)
    return _kept(clients, mark), _kept(clients, ~mark)


def _held_marks(clients: FederatedDataset) -> NDArray[np.bool_]:
    """Whether each row, in packed order, is held back."""
    names, marks = name_numbers(clients.names), np.empty(clients.n_rows, np.bool_)
    if _compiled.held_marks(clients.offsets, names, _HOLD_BACK, _HELD_BELOW, marks):
        return marks
    sizes = clients.sizes
    first = np.repeat(clients.offsets[:-1] - clients.offsets[0], sizes)
    number = np.arange(clients.n_rows) - first
    return _is_held(number, np.repeat(hashed(names, _HOLD_BACK + 1), sizes))


def _kept(clients: FederatedDataset, mark: NDArray[np.bool_]) -> FederatedDataset:
    """Rows that are marked."""
    return clients.keep_packed(mark.nonzero()[0])


def held_back_mark(n_rows: int, name: Hashable) -> Array:
    """Whether each row of one client is held back, by its number and the name."""
    own = hashed(name_numbers([name]), _HOLD_BACK + 1)
    return _is_held(np.arange(n_rows), own)


def _is_held(number: Array, own: Array) -> Array:
    mixed = hashed(number ^ own.astype(np.int64), _HOLD_BACK)
    return mixed < np.uint64(_HELD_BELOW)


def name_numbers(names: Sequence[Hashable]) -> Array:
    """Integers from the names of clients, the same at a site and in a simulation."""
    if isinstance(names, range):
        return np.arange(names.start, names.stop, names.step)
    return np.array(
        [n if _fits(n) else crc32(repr(n).encode()) for n in names],
        dtype=np.int64,
    )


def _fits(name: Hashable) -> bool:
    """Whether a name is an integer of 64 bits."""
    return isinstance(name, int) and -(2**63) <= name < 2**63


def row_weights(sizes: Array) -> Array:
    """Weight of every row such that each client's rows add up to exactly 1."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    number = np.arange(total) - np.repeat(ends - sizes, sizes)
    unit, size = int(1 / WEIGHT_UNIT), np.repeat(sizes, sizes)
    steps = ((number + 1) * unit) // size - (number * unit) // size
    return steps * WEIGHT_UNIT


def hashed(values: Array, salt: int) -> NDArray[np.uint64]:
    """Mix integers and a salt to 64 bits (splitmix64)."""
    start = np.uint64((salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + start
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
