"""Random words: of the operating system, of a seed, and of each client.

Random words of clients: those of one do not depend on which others are asked. A seeded
simulation gives the same bits on every engine, as a client's words depend on the seed
and on the position of the client only. Needs numpy only: code of a site.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from hashlib import shake_256
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# Words that Philox makes of one value of its counter.
_WORDS_PER_COUNT = 4
# Words that one call of a keyed hash makes, and words that are looked at together.
_WORDS_PER_HASH = 1 << 12
_WORDS_AT_ONCE = 1 << 22


class Stream(IntEnum):
    """Purpose of the random words of one run: ``entropy.child(Stream.NOISE)``.

    Each purpose reads a stream of its own, so that one seed gives independent words to
    all of them. The numbers are part of what a seed means and never change.
    """

    NOISE = 0
    # Clients of each round, if they are drawn anew, and the key of their permutations.
    COHORTS = 1
    COHORT_KEY = 2
    # Evaluation: which rows of a client count.
    ROWS = 3
    # Training, which draws no rows: first parameters, order of rows, head.
    FIRST_PARAMETERS = 3
    ROW_ORDER = 4
    HEAD = 5


class Entropy(Protocol):
    """Independent uniform 64-bit words, and the few draws that are made of them."""

    @property
    def secure(self) -> bool:
        """Whether the words are unpredictable."""
        ...

    def uint64(self, n: int) -> Words:
        """Return `n` words."""
        ...

    def bits(self, n: int) -> NDArray[np.bool_]:
        """Return `n` fair bits."""
        ...

    def bernoulli(self, n: int, p: float) -> NDArray[np.bool_]:
        """Return `n` draws that are true with probability `p`."""
        ...

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Return a random order of ``0..n-1``."""
        ...

    def child(self, *key: int) -> Entropy:
        """Return the source for one purpose, such as ``(round, block)``."""
        ...


class _FromWords:
    """Draws that are computed from `uint64` alone, in the same way for every source."""

    def uint64(self, n: int) -> Words:
        raise NotImplementedError

    def bits(self, n: int) -> NDArray[np.bool_]:
        words = self.uint64((n + 63) // 64).astype("<u8", copy=False)
        return np.unpackbits(words.view(np.uint8), count=n).view(np.bool_)

    def bernoulli(self, n: int, p: float) -> NDArray[np.bool_]:
        if not 0 <= p <= 1:
            raise ValueError(f"p={p!r} is not a probability; pass 0 <= p <= 1.")
        words = self.uint64(n)
        # Rounded down to a multiple of 2^-64, from the exact value of the float: a
        # client is never sampled more often than the accountant was told.
        threshold = int(Fraction(p) * 2**64)
        if threshold == 2**64:
            return np.ones(n, dtype=np.bool_)
        return words < np.uint64(threshold)

    def permutation(self, n: int) -> NDArray[np.int64]:
        # Distinct keys have a uniform order, so a draw with ties (chance < n^2/2^65)
        # is thrown away as a whole and the result is exactly uniform.
        while True:
            keys = self.uint64(n)
            order = np.argsort(keys)
            ordered = keys[order]
            if not np.any(ordered[1:] == ordered[:-1]):
                return order.astype(np.int64, copy=False)


class OSEntropy(_FromWords):
    """Words from the operating system's generator, for real releases.

    Examples
    --------
    >>> from skfedcal.privacy.entropy import OSEntropy
    >>> OSEntropy().uint64(3).dtype
    dtype('uint64')
    """

    secure = True

    def uint64(self, n: int) -> Words:
        words = np.frombuffer(os.urandom(8 * n), dtype="<u8")
        return words.astype(np.uint64, copy=False)

    def child(self, *key: int) -> OSEntropy:
        return self


class SeededEntropy(_FromWords):
    """Words from a seed, for simulations that can be repeated.

    Only the raw stream of the bit generator is used: numpy keeps it stable over
    versions, which it does not promise for its distributions.

    seed: Any non-negative integer.
    *key: Non-negative integers that name one of the streams of the seed.

    Examples
    --------
    >>> from skfedcal.privacy.entropy import SeededEntropy
    >>> SeededEntropy(7).child(1, 2).bits(4).tolist()
    [False, False, True, True]
    """

    secure = False

    def __init__(self, seed: int, *key: int) -> None:
        self._path = tuple(
            _natural(name, value)
            for name, value in (("seed", seed), *(("key", part) for part in key))
        )
        words = np.random.SeedSequence(_prefix_free(self._path))
        self._generator = np.random.Philox(words)

    def uint64(self, n: int) -> Words:
        return self._generator.random_raw(n)

    def child(self, *key: int) -> SeededEntropy:
        """Return the stream of ``(seed, *key)``, whatever this one has drawn."""
        return SeededEntropy(*self._path, *key)

    def at(self, n_words: int) -> SeededEntropy:
        """Return the same stream after its first `n_words` words, a multiple of 4.

        The stream is a function of a counter, so that nothing is drawn on the way.
        """
        if n_words % _WORDS_PER_COUNT:
            raise ValueError(f"n_words={n_words!r} is not a multiple of 4.")
        source = SeededEntropy(*self._path)
        source._generator.advance(n_words // _WORDS_PER_COUNT)
        return source

    def __repr__(self) -> str:
        return f"SeededEntropy{self._path}"


class KeyedEntropy(_FromWords):
    """Words from a secret key, for real releases that are computed on many workers.

    The words are SHAKE-256 of key, path and place: whoever has the key computes those
    of any place alone, and the same ones when a worker is lost and asked again; without
    the key they are unpredictable.

    secret: 32 bytes from the operating system, which are never written anywhere.
    *path: Non-negative integers that name one of the streams of the key.

    Examples
    --------
    >>> from skfedcal.privacy.entropy import KeyedEntropy
    >>> source = KeyedEntropy(bytes(32), 5)
    >>> bool((source.at(10).uint64(3) == source.uint64(13)[10:]).all())
    True
    """

    secure = True

    def __init__(self, secret: bytes, *path: int) -> None:
        if len(secret) != 32:
            raise ValueError(f"A key has 32 bytes, got {len(secret)}.")
        self._secret = secret
        self._path = tuple(_natural("path", part) for part in path)
        self._place = 0

    @classmethod
    def draw(cls, entropy: Entropy) -> KeyedEntropy:
        """Return a source whose key is drawn from another source."""
        return cls(entropy.uint64(4).tobytes())

    def uint64(self, n: int) -> Words:
        first, self._place = self._place, self._place + n
        skip = first % _WORDS_PER_HASH
        hashes = range(first - skip, first + n, _WORDS_PER_HASH)
        words = b"".join(self._hash(start, first + n) for start in hashes)
        drawn = np.frombuffer(words, dtype="<u8")[skip : skip + n]
        return drawn.astype(np.uint64, copy=False)

    def _hash(self, start: int, stop: int) -> bytes:
        """Words of one call of the hash, from its first one on and before `stop`."""
        text = np.array(_prefix_free((*self._path, start)), dtype="<u4").tobytes()
        n_words = min(stop - start, _WORDS_PER_HASH)
        return shake_256(self._secret + text).digest(8 * n_words)

    def child(self, *key: int) -> KeyedEntropy:
        """Return the stream of another path, whatever this one has drawn."""
        return KeyedEntropy(self._secret, *self._path, *key)

    def at(self, n_words: int) -> KeyedEntropy:
        """Return the same stream after its first `n_words` words."""
        source = self.child()
        source._place = n_words
        return source

    def __repr__(self) -> str:
        return f"KeyedEntropy(secret key, {self._path})"


def words_at(source: SeededEntropy | KeyedEntropy, first: int, n: int) -> Words:
    """Return words ``first`` to ``first + n`` of a stream, whatever was drawn."""
    skip = first % _WORDS_PER_COUNT
    return source.at(first - skip).uint64(skip + n)[skip:]


def words_by_rank(
    source: SeededEntropy | KeyedEntropy, n: int, ranks: tuple[int, int]
) -> tuple[int, int, int]:
    """Find the words of two ranks among `n` words, without keeping all of them.

    These are words ``skipped`` to ``skipped + n`` of the stream: a draw with equal
    words at these ranks is thrown away, as `permutation` throws away all draws with
    equal words (a chance below ``n**2 / 2**65``, the only difference of the two).

    Result skipped: Words of the stream that are thrown away.
    Result low, high: Word of each rank, from 0.
    """
    skipped = 0
    while True:
        counts = np.zeros(1 << 16, dtype=np.int64)
        for words in _chunks(source, skipped, n):
            counts += np.bincount(words >> np.uint64(48), minlength=1 << 16)
        ends = np.cumsum(counts)
        bins = np.unique(np.searchsorted(ends, ranks, side="right"))
        found = []
        for words in _chunks(source, skipped, n):
            top = words >> np.uint64(48)
            found.append(words[(top == bins[0]) | (top == bins[-1])])
        near = np.sort(np.concatenate(found))
        if not (near[1:] == near[:-1]).any():
            # Words of a bin follow those of all lower bins.
            before = np.repeat(ends[bins] - counts[bins].cumsum(), counts[bins])
            place = np.arange(len(near)) + before
            low, high = (int(near[np.searchsorted(place, rank)]) for rank in ranks)
            return skipped, low, high
        skipped += n


def _chunks(
    source: SeededEntropy | KeyedEntropy, first: int, n: int
) -> Iterator[Words]:
    for start in range(0, n, _WORDS_AT_ONCE):
        yield words_at(source, first + start, min(_WORDS_AT_ONCE, n - start))


def draw_seed(entropy: Entropy, stream: Stream) -> int:
    """Draw a number below 2**63, the largest seed that torch takes too."""
    return int(entropy.child(stream).uint64(1)[0] >> np.uint64(1))


def _natural(name: str, value: int) -> int:
    number = operator.index(value)
    if number < 0:
        raise ValueError(f"{name}={value!r} is negative; pass an integer >= 0.")
    return number


def _prefix_free(path: tuple[int, ...]) -> list[int]:
    """Write a path as 32-bit words such that no two paths give the same words.

    `SeedSequence` joins the words of its integers and pads with zeros: ``[1]`` and
    ``[1, 0]``, or ``[2**32]`` and ``[0, 1]``, would be one stream.
    """
    words = [len(path)]
    for part in path:
        n_words = (part.bit_length() + 31) // 32
        words.append(n_words)
        words += [(part >> 32 * i) & 0xFFFFFFFF for i in range(n_words)]
    return words


Positions = NDArray[np.int64]

# Streams of words that are read one client after another come after all others.
_OWN = 1 << 32
_SPARE = 1 << 33


@dataclass(frozen=True, slots=True)
class ClientStreams:
    """Words for a group of clients.

    entropy: The operating system's, or that of one round of a simulation.
    positions: Place of each client among all clients; not used with real entropy.
    """

    entropy: Entropy
    positions: Positions

    def __len__(self) -> int:
        return len(self.positions)

    def part(self, start: int, stop: int) -> ClientStreams:
        """Give the streams of some of the clients."""
        return ClientStreams(self.entropy, self.positions[start:stop])

    def words(self, stream: int, n_words: int) -> Words:
        """Give `n_words` of each client, in one row per client."""
        if not isinstance(self.entropy, SeededEntropy):
            drawn = self.entropy.uint64(len(self) * n_words)
            return drawn.reshape(len(self), n_words)
        width = -(-n_words // 4) * 4
        source = self.entropy.child(stream)
        breaks = np.flatnonzero(np.diff(self.positions) != 1) + 1
        runs = [
            source.at(int(run[0]) * width).uint64(len(run) * width)
            for run in np.split(self.positions, breaks)
            if len(run)
        ]
        joined = np.concatenate(runs) if runs else np.zeros(0, np.uint64)
        return joined.reshape(len(self), width)[:, :n_words]

    def own(self, stream: int, client: int) -> Entropy:
        """Give a source of one client, for draws of unknown length."""
        return self.entropy.child(stream, _OWN + int(self.positions[client]))

    def given(self, stream: int, words: Words) -> Entropy:
        """Give a source that hands out `words` first, then spare ones."""
        first = int(self.positions[0]) if len(self) else 0
        return _Given(words.ravel(), self.entropy.child(stream, _SPARE + first))


class _Given(_FromWords):
    """Words drawn beforehand; samplers need more about once in 2**50 draws."""

    def __init__(self, words: Words, spare: Entropy) -> None:
        self._words, self._spare = words, spare
        self.secure = spare.secure

    def uint64(self, n: int) -> Words:
        if n > len(self._words):
            return self._spare.uint64(n)
        out, self._words = self._words[:n], self._words[n:]
        return out

    def child(self, *key: int) -> Entropy:
        return self._spare.child(*key)


def uniform_below(n: int, bound: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` whole numbers below `bound`, each with exactly the same chance."""
    limit = 2**64 // bound * bound
    words = entropy.uint64(n)
    if limit < 2**64:
        over = np.flatnonzero(words >= np.uint64(limit))
        while over.size:  # words of an incomplete last turn are thrown away
            words = words.copy()
            words[over] = entropy.uint64(over.size)
            over = over[words[over] >= np.uint64(limit)]
    return (words % np.uint64(bound)).astype(np.int64)
