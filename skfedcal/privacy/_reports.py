"""Draw what clients report under local privacy, all clients of a group at once.

Needs numpy only: this is code that runs at a site.
"""

from __future__ import annotations

import numpy as np

from skfedcal.algorithms._base import CellRows
from skfedcal.privacy._codec import Encoded, Integers
from skfedcal.privacy._entropy import Words
from skfedcal.privacy._oracles import Oracle
from skfedcal.privacy._streams import ClientStreams

_WORD = 1 << 64


def one_hot_cells(rows: Encoded, name: str) -> Integers:
    """Cell of the single 1 of each row; -1 for a row of zeros.

    Raises
    ------
    ValueError
        If a row holds anything else: it would be two reports for the price of one.
    """
    if isinstance(rows, CellRows):
        single = (rows.rows[1:] > rows.rows[:-1]).all()
        cells = np.full(rows.n_rows, -1, dtype=np.int64)
        cells[rows.rows] = rows.cells
    else:
        flat = rows.reshape(len(rows), -1)
        sums = flat.sum(axis=1)
        single = ((flat == 0) | (flat == 1)).all() and (sums <= 1).all()
        cells = np.where(sums > 0, flat.argmax(axis=1), -1)
    if not single:
        raise ValueError(
            f"Block {name!r} of a client has more than one entry, which LocalDP would "
            "have to pay for one by one. Send one example per client "
            "(max_examples_per_client=1)."
        )
    return cells


def report(
    oracle: Oracle, cells: Integers, streams: ClientStreams, stream: int
) -> Integers:
    """Sum of the reports of clients with these cells (-1: none), per cell."""
    words = streams.words(stream, oracle.n_words)
    if oracle.kind == "rr":
        kept = words[:, 0] < np.uint64(oracle.thresholds.own)
        return np.array([(kept == (cells == 0)).sum()])
    if oracle.kind == "grr":
        none = oracle.domain
        said = _respond(oracle, np.where(cells < 0, none, cells), words[:, 0], none)
        return np.bincount(said, minlength=none + 1)[:none]
    if oracle.kind == "oue":
        other = np.uint64(oracle.thresholds.other)
        bits = words < other
        has = np.flatnonzero(cells >= 0)
        half = np.uint64(oracle.thresholds.own)
        bits[has, cells[has]] = words[has, cells[has]] < half
        return bits.sum(axis=0)
    if oracle.kind == "olh":
        return _hashed(oracle, cells, words).sum(axis=0)
    return _subsets(oracle, cells, words, streams, stream)


def _respond(oracle: Oracle, values: Integers, words: Words, last: int) -> Integers:
    """Give the own value or, in turn, each other one for `other` words of 2**64."""
    own, other = oracle.thresholds
    lies = words >= np.uint64(own)
    turn = ((words - np.uint64(own)) // np.uint64(other)).astype(np.int64)
    return np.where(lies, (values + 1 + turn) % (last + 1), values)


def _hashed(oracle: Oracle, cells: Integers, words: Words) -> np.ndarray:
    """Cells that a fresh random function sends to the part that is reported.

    The function does not depend on the value, so that only the choice of the part
    must keep eps to the last bit.
    """
    n_parts = oracle.n_values
    width = np.uint64(_WORD // n_parts)
    last = np.uint64(n_parts - 1)
    parts = np.minimum(words[:, 1:] // width, last).astype(np.int64)
    rows = np.arange(len(cells))
    mine = parts[rows, np.maximum(cells, 0)]
    said = _respond(oracle, mine, words[:, 0], n_parts - 1)
    anything = np.minimum(words[:, 0] // width, last).astype(np.int64)
    said = np.where(cells < 0, anything, said)
    return parts == said[:, None]


def _subsets(
    oracle: Oracle, cells: Integers, words: Words, streams: ClientStreams, stream: int
) -> Integers:
    """Sets of fixed size: the cells of the smallest keys, the own one first or last."""
    none, size = oracle.domain, oracle.set_size
    values = np.where(cells < 0, none, cells)
    # One bit less, so that the ends are left to the own cell.
    keys = (words[:, 1:] >> np.uint64(1)) + np.uint64(1)
    rows = np.arange(len(cells))
    for row in np.flatnonzero((np.diff(np.sort(keys, axis=1), axis=1) == 0).any(1)):
        source = streams.own(stream, int(row))
        while len(set(keys[row].tolist())) < keys.shape[1]:  # a set must be uniform
            keys[row] = (source.uint64(keys.shape[1]) >> np.uint64(1)) + np.uint64(1)
    inside = words[:, 0] < np.uint64(oracle.thresholds.own)
    keys[rows, values] = np.where(inside, np.uint64(0), np.uint64(_WORD - 1))
    chosen = np.argpartition(keys, size - 1, axis=1)[:, :size]
    return np.bincount(chosen.ravel(), minlength=none + 1)[:none]
