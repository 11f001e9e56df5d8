"""Random numbers that belong to an image, not to its place in a batch.

Every number is a hash of the seed, of the pixels of its image and of a counter
(SplitMix64). Order, size of the batch and the other images play no part, and all
images are drawn at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Array = NDArray[Any]

# Increment and multipliers of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

# Counters of a stream: more than the numbers that one image can need of one kind.
STREAM = 1 << 40


@dataclass(frozen=True, slots=True)
class Draws:
    """Streams of random numbers, one row per image.

    Parameters
    ----------
    keys : ndarray of shape (n_images,)
        One 64-bit key per image; see `image_keys`.
    """

    keys: Words

    def uniform(self, stream: int, *shape: int) -> Array:
        """Uniform numbers in [0, 1), in steps of ``2**-24``."""
        words = self._words(stream, math.prod(shape)) >> np.uint64(40)
        return (words.astype(np.float32) * np.float32(2**-24)).reshape(-1, *shape)

    def fine_uniform(self, stream: int, *shape: int) -> Array:
        """Uniform numbers in [0, 1), in steps of ``2**-53``."""
        words = self._words(stream, math.prod(shape)) >> np.uint64(11)
        return (words * 2.0**-53).reshape(-1, *shape)

    def normal(self, stream: int, *shape: int) -> Array:
        """Standard normal numbers, by the polar form of two uniform ones."""
        size = math.prod(shape)
        half = (size + 1) // 2
        words = self._words(stream, half)
        # One half of a word is never 0, for the logarithm; the largest radius is 6.8.
        high = (words >> np.uint64(32)).astype(np.float32)
        radius = np.sqrt(-2 * np.log((high + np.float32(0.5)) * np.float32(2**-32)))
        angle = (words & np.uint64(0xFFFFFFFF)).astype(np.float32)
        angle *= np.float32(2 * np.pi * 2**-32)
        numbers = np.empty((len(words), 2 * half), dtype=np.float32)
        np.multiply(radius, np.cos(angle), out=numbers[:, :half])
        np.multiply(radius, np.sin(angle), out=numbers[:, half:])
        return numbers[:, :size].reshape(-1, *shape)

    def _words(self, stream: int, size: int) -> Words:
        counters = np.arange(1, size + 1, dtype=np.uint64) + np.uint64(stream * STREAM)
        return _mix(self.keys[:, None] + counters * GOLDEN)


def image_keys(images: NDArray[np.uint8], seed: int, name: str) -> Words:
    """Hash the pixels of each image, a seed and a name to one word."""
    flat = images.reshape(len(images), math.prod(images.shape[1:]))
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 8)))
    # Little-endian on any machine, so that a seed means the same numbers.
    words = flat.view("<u8").astype(np.uint64)
    place = _mix(np.arange(1, words.shape[1] + 1, dtype=np.uint64) * GOLDEN)
    content = _mix(words + place).sum(axis=1, dtype=np.uint64)
    salt = np.array([seed, crc32(name.encode())], dtype=np.uint64)
    return _mix(_mix(content + _mix(salt[:1])) + _mix(salt[1:]))


def _mix(words: Words) -> Words:
    """Scramble words, in place; the output function of SplitMix64."""
    words ^= words >> np.uint64(30)
    words *= FIRST
    words ^= words >> np.uint64(27)
    words *= SECOND
    words ^= words >> np.uint64(31)
    return words
