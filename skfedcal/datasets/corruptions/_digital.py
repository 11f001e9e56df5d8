"""Digital: contrast, warping, coarse pixels and compression."""

from __future__ import annotations

import numpy as np

from skfedcal.datasets.corruptions._batch import (
    Batch,
    displace,
    filtered_noise,
    frequencies,
)
from skfedcal.datasets.corruptions._draws import Array
from skfedcal.datasets.formats._pillow import jpeg_roundtrip


def contrast(batch: Batch, factor: float) -> Array:
    """Draw each channel towards its mean over the image."""
    mean = batch.planes.mean(axis=(2, 3), keepdims=True)
    return mean + np.float32(factor) * (batch.planes - mean)


def elastic_transform(batch: Batch, strength: tuple[float, float]) -> Array:
    """Warp by a smooth random field of displacements."""
    amount, smoothness = (length * batch.scale for length in strength)
    gain = np.exp(-2 * (np.pi * smoothness * frequencies(*batch.size)) ** 2)
    gain[0, 0] = 0
    field = filtered_noise(batch.draws.normal(0, 2, *batch.size), gain)
    size = np.sqrt(np.mean(field**2, axis=(1, 2, 3), keepdims=True))
    return displace(batch.planes, np.float32(amount) * field / size)


def pixelate(batch: Batch, block: float) -> Array:
    """Replace blocks by their mean; `block` is their mean side."""
    # A pixel is the smallest block: only what exceeds it grows with the image.
    side = 1 + (block - 1) * max(batch.scale, 1)
    rows, columns = (_blocks(n, int(n / side + 0.5)) for n in batch.size)
    means = block_means(rows) @ batch.planes @ block_means(columns).T
    # Copies, since products that should be equal may differ in their last bits.
    return means[..., rows[:, None], columns]


def _blocks(size: int, n_blocks: int) -> np.ndarray:
    """Return the block of each of `size` pixels in a line."""
    return np.arange(size) * n_blocks // size


def block_means(block: np.ndarray) -> Array:
    """Matrix that takes the values of a line to the means of its blocks."""
    within = np.arange(block[-1] + 1)[:, None] == block
    return (within / within.sum(axis=1, keepdims=True)).astype(np.float32)


def jpeg_compression(batch: Batch, quality: int) -> Array:
    """Compress and decompress as baseline JPEG, by Pillow."""
    images = np.rint(np.moveaxis(batch.planes, 1, 3) * np.float32(255))
    decoded = jpeg_roundtrip(np.ascontiguousarray(images, dtype=np.uint8), quality)
    return np.moveaxis(decoded, 3, 1) / np.float32(255)
