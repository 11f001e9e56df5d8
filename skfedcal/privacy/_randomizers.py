"""What a client adds to, or puts in place of, its answer before it is summed.

Needs numpy only: this is code that runs at a site. Each call is made for a group of
clients and returns the sum over them; at a site the group is one client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from skfedcal.privacy._codec import Codec, Encoded, Integers, add_up
from skfedcal.privacy._oracles import Oracle
from skfedcal.privacy._polya import polya_law, polya_limit, polya_shares
from skfedcal.privacy._reports import one_hot_cells, report
from skfedcal.privacy._samplers import (
    _geometric_tables,
    discrete_gaussian_base,
    discrete_laplace,
    gaussian_base_limit,
    laplace_limit,
)
from skfedcal.privacy._streams import ClientStreams

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
    """Randomness of clients; whatever they send has passed it."""

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

    Parameters
    ----------
    scales : mapping of str to float
        Scale of the whole noise of each block, in lattice steps.
    n_shares : int
        Shares that make up this noise; more only add to it.
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
    """Discrete Laplace noise of every client, for clients that trust nobody's noise.

    Parameters
    ----------
    scales : mapping of str to float
        Scale of the noise of each block, in lattice steps.
    """

    scales: Mapping[str, float]

    def _limit(self, name: str, n_values: int) -> int:
        return laplace_limit(self.scales[name])

    def _block(
        self, name: str, size: int, streams: ClientStreams, stream: int
    ) -> Integers:
        scale = self.scales[name]
        n_digits = len(_geometric_tables(float(scale))[1])
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

    Parameters
    ----------
    oracles : mapping of str to Oracle
        How each block is reported; the eps of all blocks add up.
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
    """Rows as they are, if they are what `LocalReports` could report."""

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
