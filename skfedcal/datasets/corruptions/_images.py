"""What corruptions work on: batches of images, and random numbers per image.

Every random number is a hash of the seed, of the pixels of its image and of a counter
(SplitMix64). Order, size of the batch and the other images play no part, and all images
are drawn at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy import fft

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

    keys of shape (n_images,): One 64-bit key per image; see `image_keys`.
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


# Lengths in the table of strengths are pixels of an image of this side.
SIDE = 32
# Lengths stop shrinking below 16 pixels: a blur much narrower than a pixel is none.
SMALLEST_SCALE = 0.5


@dataclass(frozen=True, slots=True)
class Batch:
    """Images as floats, with the random numbers that belong to them.

    planes of shape (n_images, n_channels, height, width): Values in [0, 1]; 1 or 3
        channels.
    draws: Random numbers of each image.
    """

    planes: Array
    draws: Draws

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return self.planes.shape[2], self.planes.shape[3]

    @property
    def scale(self) -> float:
        """Pixels per pixel of an image of side 32."""
        return max(min(self.size) / SIDE, SMALLEST_SCALE)


def convolve(planes: Array, kernels: Array) -> Array:
    """Convolve each channel with one kernel, or with one kernel per image.

    `kernels` has shape (side, side) or (n_images, side, side), side odd. Borders are
    mirrored.
    """
    reach = kernels.shape[-1] // 2
    height, width = planes.shape[2:]
    padded = np.pad(planes, [(0, 0), (0, 0), (reach,) * 2, (reach,) * 2], "symmetric")
    shape = [fft.next_fast_len(side, real=True) for side in padded.shape[2:]]
    kernels = kernels.astype(np.float32).reshape(-1, 1, *kernels.shape[-2:])
    spectrum = fft.rfft2(padded, shape) * fft.rfft2(kernels, shape)
    result = fft.irfft2(spectrum, shape)
    # What a circular convolution wraps around stays within the first 2 * reach.
    return result[:, :, 2 * reach :, 2 * reach :][:, :, :height, :width]


def splat(offsets: Array, reach: int) -> Array:
    """Make kernels from points, each shared by the four pixels around it.

    offsets of shape (n_kernels, n_points, 2): Row and column of each point relative to
        the centre.
    reach: Kernels have the side ``2 * reach + 1``.
    """
    # The share of a pixel falls linearly with the distance, to 0 at one pixel: the
    # kernel is an average of shifted copies with linear interpolation, and acts
    # even where its points are less than a pixel apart.
    grid = np.arange(-reach, reach + 1)
    share = np.maximum(0, 1 - np.abs(offsets[..., None] - grid))
    rows, columns = share[:, :, 0], share[:, :, 1]
    return np.swapaxes(rows, 1, 2) @ columns / offsets.shape[1]


def line_kernels(length: float, angles: Array) -> Array:
    """Kernels of straight lines of a length, one per angle (0 is along a row)."""
    steps = np.linspace(-0.5, 0.5, 4 * int(np.ceil(length)) + 1) * length
    direction = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return splat(direction[:, None] * steps[:, None], int(np.ceil(length / 2)))


def gaussian_rows(size: int, sigma: float) -> Array:
    """Matrix that blurs `size` values, with a mirror at both ends."""
    distance = np.arange(size)[:, None] - np.arange(-size, 2 * size)
    weight = np.exp(-0.5 * (distance / sigma) ** 2)
    left, middle, right = np.split(
        weight / weight.sum(axis=1, keepdims=True), 3, axis=1
    )
    return (middle + left[:, ::-1] + right[:, ::-1]).astype(np.float32)


def stretch_rows(n_out: int, n_in: int, zoom: float = 1.0) -> Array:
    """Matrix that stretches `n_in` values to `n_out`, magnified about the middle."""
    places = ((np.arange(n_out) + 0.5) / n_out - 0.5) / zoom + 0.5
    places = np.clip(places * n_in - 0.5, 0, n_in - 1)
    share = np.maximum(0, 1 - np.abs(places[:, None] - np.arange(n_in)))
    return share.astype(np.float32)


def coarse_size(batch: Batch, cell: float) -> tuple[int, int]:
    """Number of cells of a side of `cell` pixels that cover an image."""
    height, width = batch.size
    return int(np.ceil(height / cell)), int(np.ceil(width / cell))


def enlarge(fields: Array, batch: Batch) -> Array:
    """Stretch fields of shape (n_images, n_fields, ...) to the size of the images."""
    rows, columns = (
        stretch_rows(n_out, n_in)
        for n_out, n_in in zip(batch.size, fields.shape[2:], strict=True)
    )
    return rows @ fields.astype(np.float32) @ columns.T


def displace(planes: Array, offsets: Array) -> Array:
    """Read each pixel from a place nearby, with linear interpolation.

    `offsets` has shape (n_images, 2, height, width), rows first; places outside an
    image read its border.
    """
    n_images, n_channels, height, width = planes.shape
    rows, columns = np.indices((height, width), dtype=np.float32)
    rows = np.clip(rows + offsets[:, 0], 0, height - 1)
    columns = np.clip(columns + offsets[:, 1], 0, width - 1)
    # The last row and column are reached by a fraction of 1: no neighbour is outside.
    top = np.minimum(rows.astype(np.intp), height - 2)
    left = np.minimum(columns.astype(np.intp), width - 2)
    down, right = (rows - top)[:, None], (columns - left)[:, None]
    corner = (top * width + left).reshape(n_images, 1, -1)
    flat = planes.reshape(n_images, n_channels, -1)

    def read(step: int) -> Array:
        return np.take_along_axis(flat, corner + step, axis=2).reshape(planes.shape)

    upper = (1 - right) * read(0) + right * read(1)
    lower = (1 - right) * read(width) + right * read(width + 1)
    return ((1 - down) * upper + down * lower).astype(np.float32, copy=False)


def filtered_noise(white: Array, gain: Array) -> Array:
    """Filter white noise of shape (..., height, width) by a gain per frequency."""
    return fft.irfft2(fft.rfft2(white) * gain.astype(np.float32), white.shape[-2:])


def frequencies(height: int, width: int) -> Array:
    """Cycles per pixel of each entry of ``rfft2``."""
    return np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
