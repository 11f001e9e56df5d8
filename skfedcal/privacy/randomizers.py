"""Randomizers of clients: noise shares, or local reports, before the sum.

Frequency oracles: how a client reports one value under local privacy. All chances are
integers over 2**64, rounded to the side that keeps eps: the ratio of the chances of any
report under any two values is at most ``exp(eps)``, exactly. Needs numpy only: this is
code that runs at a site.

Draw what clients report under local privacy, all clients of a group at once. Needs
numpy only: this is code that runs at a site.

Needs numpy only: this is code that runs at a site. Each call is made for a group of
clients and returns the sum over them; at a site the group is one client.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import exp, inf
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skfedcal.contract import CellRows
from skfedcal.privacy.codec import Codec, Encoded, Integers, add_up
from skfedcal.privacy.entropy import ClientStreams, Words
from skfedcal.privacy.polya import polya_law, polya_limit, polya_shares
from skfedcal.privacy.samplers import (
    PRECISION,
    discrete_gaussian_base,
    discrete_laplace,
    exp_fixed,
    gaussian_base_limit,
    geometric_tables,
    laplace_limit,
)

Kind = Literal["grr", "subset", "oue", "olh", "rr"]
ORACLES = ("grr", "subset", "oue", "olh", "rr")

_WORD = 1 << 64
# Above the error of exp in fixed point, in units of 2**-256.
_EXP_MARGIN = 1 << 32
# A hash into more parts than this gains nothing.
_MAX_PARTS = 1 << 16
# Subset selection costs a client a random choice of cells; it must be worth it.
_WORTH = 0.95


class Thresholds(NamedTuple):
    """Chances in units of 2**-64.

    `own` is that of the client's own cell (or bit), `other` that of each other one.
    """

    own: int
    other: int


@dataclass(frozen=True, slots=True)
class Oracle:
    """One way to report one of `domain` cells, or none of them.

    kind ('grr', 'subset', 'oue', 'olh', 'rr'): Generalised randomised response, subset
        selection, optimised unary encoding, optimised local hashing, or randomised
        response for a single bit.
    eps: Largest log ratio of the chances of a report.
    domain: Number of cells.

    Notes
    -----
    A report is a set of cells. With ``p`` the chance that it holds the client's own
    cell and ``q`` that it holds any other, ``(count - n q) / (p - q)`` is unbiased. A
    client without a value must hold every cell with chance ``q``: 'grr' and 'subset'
    have one more value, "none", that no cell stands for.
    """

    kind: Kind
    eps: float
    domain: int

    @property
    def n_values(self) -> int:
        """Values that a report tells apart."""
        if self.kind == "olh":
            return min(max(2, round(exp(min(self.eps, 20.0))) + 1), _MAX_PARTS)
        return self.domain + (self.kind in ("grr", "subset", "rr"))

    @property
    def set_size(self) -> int:
        """Cells of a report of subset selection, "none" included."""
        ideal = self.n_values / (exp(min(self.eps, 700.0)) + 1)
        return min(max(1, round(ideal)), self.n_values - 1)

    @property
    def thresholds(self) -> Thresholds:
        """Chances of a report, on the safe side."""
        if self.kind == "subset":
            return _subset_thresholds(self.eps, self.n_values, self.set_size)
        # One bit of unary encoding: own with chance 1/2, other as that of a pair.
        if self.kind == "oue":
            return Thresholds(_WORD // 2, _response_thresholds(self.eps, 2).other)
        return _response_thresholds(self.eps, self.n_values)

    @property
    def p(self) -> float:
        """Chance that a report holds the client's own cell."""
        return self.thresholds.own / _WORD

    @property
    def q(self) -> float:
        """Chance that a report holds any one of the other cells."""
        if self.kind == "olh":
            return 1 / self.n_values
        if self.kind == "subset":
            k = self.set_size
            return (k - self.p) / (self.n_values - 1)
        return self.thresholds.other / _WORD

    @property
    def n_words(self) -> int:
        """Random words of one report."""
        if self.kind == "oue":
            return self.domain
        if self.kind in ("olh", "subset"):
            return 1 + (self.domain if self.kind == "olh" else self.n_values)
        return 1

    def variance(self, share: float | None = None) -> float:
        """Variance of an estimated count per client; None: a share of 1/domain."""
        f = 1 / self.domain if share is None else share
        p, q = self.p, self.q
        if p <= q:
            return inf
        return (q * (1 - q) + f * (p * (1 - p) - q * (1 - q))) / (p - q) ** 2


def choose_oracle(eps: float, domain: int) -> Oracle:
    """Return the oracle of least variance at a share of 1/domain.

    Subset selection is taken where it is better by 5 % at least. Local hashing has the
    variance of unary encoding and is never better.
    """
    if domain == 1:
        return Oracle("rr", eps, 1)
    plain = min(
        (Oracle("grr", eps, domain), Oracle("oue", eps, domain)),
        key=lambda oracle: oracle.variance(),
    )
    subset = Oracle("subset", eps, domain)
    return subset if subset.variance() < _WORTH * plain.variance() else plain


@functools.lru_cache(maxsize=256)
def _response_thresholds(eps: float, n_values: int) -> Thresholds:
    """Own and every other value; the chances add up to 1 exactly."""
    x = _exp_above(eps)
    other = -(-(x << 64) // ((1 << PRECISION) + (n_values - 1) * x))
    return Thresholds(_WORD - (n_values - 1) * other, other)


@functools.lru_cache(maxsize=256)
def _subset_thresholds(eps: float, n_values: int, size: int) -> Thresholds:
    """Own value in the set, and, for completeness, not in it."""
    x, one = _exp_above(eps), 1 << PRECISION
    own = (size << (64 + PRECISION)) // (size * one + (n_values - size) * x)
    return Thresholds(own, _WORD - own)


def _exp_above(eps: float) -> int:
    """Bound ``exp(-eps)`` from above, in units of 2**-256."""
    numerator, denominator = float(eps).as_integer_ratio()
    return min(exp_fixed(numerator, denominator) + _EXP_MARGIN, 1 << PRECISION)


def one_hot_cells(rows: Encoded, name: str) -> Integers:
    """Cell of the single 1 of each row; -1 for a row of zeros.

    Raises ValueError: If a row has more than one entry: eps accounts for a single
        report.
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
            f"Block {name!r} of a client has more than one entry, but LocalDP allows "
            "one per client. Send one example per client (max_examples_per_client=1)."
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


# Words of one group of clients (8 MB).
_CHUNK_WORDS = 1 << 20

Totals = dict[str, NDArray[np.int64]]


class Bound(NamedTuple):
    """Largest size of an integer in an answer, given the units of a client.

    `unit` counts once for each unit, `share` once for each client.
    """

    unit: int
    share: int = 0


class Randomizer(Protocol):
    """Randomisation that clients apply to their answers before they send them."""

    def bounds(self, codec: Codec, n_clients: int) -> dict[str, Bound]:
        """Largest integers that clients send, in sums over `n_clients`."""

    def reports(self, encoded: Mapping[str, Encoded], streams: ClientStreams) -> Totals:
        """Give the sum of what the units send, one row of `encoded` each."""

    def shares(self, codec: Codec, streams: ClientStreams) -> Totals:
        """Give the sum of the noise that clients add, one share each."""


class _Shares:
    """Noise that does not depend on the answer."""

    def bounds(self, codec: Codec, n_clients: int) -> dict[str, Bound]:
        return {
            name: Bound(code.largest, self._limit(name, code.spec.size * n_clients))
            for name, code in codec.blocks.items()
        }

    def _limit(self, name: str, n_values: int) -> int:
        """Largest size of a share, where so many numbers of a block are drawn."""
        raise NotImplementedError

    def reports(self, encoded: Mapping[str, Encoded], streams: ClientStreams) -> Totals:
        return {name: add_up(rows) for name, rows in encoded.items()}

    def shares(self, codec: Codec, streams: ClientStreams) -> Totals:
        return {
            name: self._block(name, code.spec.size, streams, i)[None]
            for i, (name, code) in enumerate(sorted(codec.blocks.items()))
        }

    def _block(
        self, name: str, size: int, streams: ClientStreams, stream: int
    ) -> Integers:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PolyaShares(_Shares):
    """Shares that add up to discrete Laplace noise.

    scales: Scale of the whole noise of each block, in lattice steps.
    n_shares: Shares that make up this noise; more only add to it.
    """

    scales: Mapping[str, float]
    n_shares: int

    def _limit(self, name: str, n_values: int) -> int:
        return polya_limit(self.scales[name], n_values)

    def _block(
        self, name: str, size: int, streams: ClientStreams, stream: int
    ) -> Integers:
        law = polya_law(self.scales[name], size, self.n_shares)
        out = np.zeros(size, dtype=np.int64)
        for part in _parts(streams, law.n_draws):
            out += polya_shares(size, law, part, stream)
        return out


@dataclass(frozen=True, slots=True)
class LaplaceShares(_Shares):
    """Discrete Laplace noise of every client, independent of the noise of others.

    scales: Scale of the noise of each block, in lattice steps.
    """

    scales: Mapping[str, float]

    def _limit(self, name: str, n_values: int) -> int:
        return laplace_limit(self.scales[name])

    def _block(
        self, name: str, size: int, streams: ClientStreams, stream: int
    ) -> Integers:
        scale = self.scales[name]
        n_digits = len(geometric_tables(float(scale))[1])
        out = np.zeros(size, dtype=np.int64)
        for part in _parts(streams, 2 * n_digits * size):
            words = part.words(stream, 2 * n_digits * size)
            # The sampler reads one digit of all values after another.
            by_digit = words.reshape(len(part), n_digits, 2 * size).swapaxes(0, 1)
            source = part.given(stream, by_digit)
            drawn = discrete_laplace(len(part) * size, scale, source)
            out += drawn.reshape(len(part), size).sum(axis=0)
        return out


@dataclass(frozen=True, slots=True)
class GaussianShares(_Shares):
    """One draw of the discrete Gaussian of scale 512 per client and number."""

    def _limit(self, name: str, n_values: int) -> int:
        return gaussian_base_limit()

    def _block(
        self, name: str, size: int, streams: ClientStreams, stream: int
    ) -> Integers:
        out = np.zeros(size, dtype=np.int64)
        for part in _parts(streams, size):
            source = part.given(stream, part.words(stream, size))
            drawn = discrete_gaussian_base(len(part) * size, source)
            out += drawn.reshape(len(part), size).sum(axis=0)
        return out


@dataclass(frozen=True, slots=True)
class LocalReports:
    """Randomised reports in place of one-hot rows.

    oracles: Frequency oracle of each block; the eps of all blocks add up.
    """

    oracles: Mapping[str, Oracle]

    def bounds(self, codec: Codec, n_clients: int) -> dict[str, Bound]:
        return dict.fromkeys(codec.blocks, Bound(1))

    def reports(self, encoded: Mapping[str, Encoded], streams: ClientStreams) -> Totals:
        out = {}
        for i, (name, rows) in enumerate(sorted(encoded.items())):
            oracle = self.oracles[name]
            cells = one_hot_cells(rows, name)
            total = np.zeros(oracle.domain, dtype=np.int64)
            for part, own in _with_cells(streams, cells, oracle.n_words):
                total += report(oracle, own, part, i)
            out[name] = total[None]
        return out

    def shares(self, codec: Codec, streams: ClientStreams) -> Totals:
        return codec.zeros()


@dataclass(frozen=True, slots=True)
class OneHotRows:
    """Unchanged rows, checked to be rows that `LocalReports` could report."""

    def bounds(self, codec: Codec, n_clients: int) -> dict[str, Bound]:
        return dict.fromkeys(codec.blocks, Bound(1))

    def reports(self, encoded: Mapping[str, Encoded], streams: ClientStreams) -> Totals:
        for name, rows in encoded.items():
            one_hot_cells(rows, name)
        return {name: add_up(rows) for name, rows in encoded.items()}

    def shares(self, codec: Codec, streams: ClientStreams) -> Totals:
        return codec.zeros()


def _parts(streams: ClientStreams, n_words: int) -> Iterator[ClientStreams]:
    chunk = max(1, _CHUNK_WORDS // n_words)
    for start in range(0, len(streams), chunk):
        yield streams.part(start, start + chunk)


def _with_cells(
    streams: ClientStreams, cells: Integers, n_words: int
) -> Iterator[tuple[ClientStreams, Integers]]:
    chunk = max(1, _CHUNK_WORDS // n_words)
    for start in range(0, len(streams), chunk):
        yield streams.part(start, start + chunk), cells[start : start + chunk]
