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
from skfedcal.datasets.corruptions._jpeg import jpeg_roundtrip


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
    rows, columns = (block_rows(n, int(n / side + 0.5)) for n in batch.size)
    return rows @ batch.planes @ columns.T


def block_rows(size: int, n_blocks: int) -> Array:
    """Matrix that replaces each value by the mean of its block."""
    block = np.arange(size) * n_blocks // size
    together = block[:, None] == block
    return (together / together.sum(axis=1)).astype(np.float32)


def jpeg_compression(batch: Batch, quality: int) -> Array:
    """Compress and decompress as baseline JPEG."""
    return jpeg_roundtrip(batch.planes * np.float32(255), quality) / np.float32(255)
