"""Random words of clients: each reads its own, whoever else is asked with it.

A seeded simulation gives the same bits on every engine, as a client's words depend on
the seed and on the position of the client only. Needs numpy only: code of a site.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from skfedcal.privacy._entropy import Entropy, SeededEntropy, Words, _FromWords

Positions = NDArray[np.int64]

# Streams of words that are read one client after another come after all others.
_OWN = 1 << 32
_SPARE = 1 << 33


@dataclass(frozen=True, slots=True)
class ClientStreams:
    """Words for a group of clients.

    Parameters
    ----------
    entropy : Entropy
        The operating system's, or that of one round of a simulation.
    positions : ndarray of int
        Place of each client among all clients; of no consequence for real entropy.
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
    """Words that are there already; samplers ask for more once in 2**50 draws."""

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
