"""Which rows a client visits in which step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """Rows of every step of some clients, client after client.

    Parameters
    ----------
    rows : ndarray of shape (n_batches, batch_size)
        Places among the client's own rows; padding repeats its first row.
    mask : ndarray of shape (n_batches, batch_size)
        1 for rows that count, 0 for padding.
    first, n_steps : ndarray of shape (n_clients,)
        Where the batches of each client begin, and how many it has.
    """

    rows: Array
    mask: Array
    first: Array
    n_steps: Array


def make_steps(
    sizes: Array,
    *,
    epochs: int,
    batch_size: int | None,
    seed: tuple[int, ...],
) -> Steps:
    """Draw the order in which clients visit their rows.

    It depends on the seed and the number of rows only: neither the order of clients
    nor who else takes part changes it, and equal clients do the same.

    Parameters
    ----------
    sizes : ndarray of shape (n_clients,)
        Rows of each client.
    epochs : int
        Passes over the rows.
    batch_size : int or None
        Rows of one step; None is all rows of a client.
    seed : tuple of int
        Seed of the run and number of the round.
    """
    largest = int(sizes.max(initial=1))
    width = largest if batch_size is None else min(batch_size, largest)
    n_steps = epochs * -(-sizes // width)
    first = np.cumsum(n_steps) - n_steps
    rows = np.zeros((int(n_steps.sum()), width), dtype=np.int64)
    mask = np.zeros(rows.shape, dtype=np.float32)
    for size in np.unique(sizes):
        rng = np.random.default_rng([*seed, int(size)])
        visits = np.zeros((epochs, -(-int(size) // width) * width), dtype=np.int64)
        for epoch in range(epochs):
            visits[epoch, :size] = rng.permutation(int(size))
        there = np.tile(np.arange(visits.shape[1]) < size, (epochs, 1))
        visits, there = visits.reshape(-1, width), there.reshape(-1, width)
        own = first[sizes == size, None] + np.arange(len(visits))
        rows[own], mask[own] = visits, there
    return Steps(rows, mask, first, n_steps)
