"""Blur: of the lens, of frosted glass, of a moving camera."""

from __future__ import annotations

import numpy as np

from skfedcal.datasets.corruptions._batch import (
    Batch,
    coarse_size,
    convolve,
    displace,
    enlarge,
    gaussian_rows,
    line_kernels,
    splat,
    stretch_rows,
)
from skfedcal.datasets.corruptions._draws import Array

# Points of the lens disk, on a spiral that covers it evenly: so many, and so many for
# each pixel in a square over the radius.
DISK_POINTS, DENSITY = 600, 8
GOLDEN_ANGLE = np.pi * (3 - 5**0.5)

# Camera shake is closer to level than to upright, as in the benchmark.
SHAKE = np.pi / 4


def defocus_blur(batch: Batch, radius: float) -> Array:
    """Average over a disk."""
    radius *= batch.scale
    n_points = DISK_POINTS + int(DENSITY * radius**2)
    order = np.arange(n_points) + 0.5
    distance, angle = radius * np.sqrt(order / n_points), order * GOLDEN_ANGLE
    points = np.stack([distance * np.sin(angle), distance * np.cos(angle)], axis=-1)
    return convolve(batch.planes, splat(points[None], int(np.ceil(radius)))[0])


def glass_blur(batch: Batch, strength: tuple[float, float]) -> Array:
    """Read each pixel from a random place up to a distance away, then blur a little."""
    reach, sigma = (length * batch.scale for length in strength)
    # Bumps of the glass grow with the image; finer ones would only blur it.
    bumps = 2 * batch.draws.uniform(0, 2, *coarse_size(batch, max(batch.scale, 1))) - 1
    planes = displace(batch.planes, np.float32(reach) * enlarge(bumps, batch))
    height, width = batch.size
    return gaussian_rows(height, sigma) @ planes @ gaussian_rows(width, sigma).T


def motion_blur(batch: Batch, length: float) -> Array:
    """Average along a line, at an angle of its own for each image."""
    angles = SHAKE * (2 * batch.draws.uniform(0, 1)[:, 0] - 1)
    return convolve(batch.planes, line_kernels(length * batch.scale, angles))


def zoom_blur(batch: Batch, zoom: float) -> Array:
    """Average over magnifications from 1 to ``1 + zoom``."""
    height, width = batch.size
    # At the border neighbouring copies are at most a pixel apart.
    n_steps = int(np.ceil(zoom * max(height, width) / 2)) + 1
    total = np.zeros_like(batch.planes)
    for factor in np.linspace(1, 1 + zoom, n_steps):
        rows = stretch_rows(height, height, factor)
        total += rows @ batch.planes @ stretch_rows(width, width, factor).T
    return total / n_steps
