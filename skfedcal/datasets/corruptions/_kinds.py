"""The kinds of corruption: noise, blur, weather and digital."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import pdtr

from skfedcal.datasets._layout import import_pillow
from skfedcal.datasets.corruptions._images import (
    Array,
    Batch,
    coarse_size,
    convolve,
    displace,
    enlarge,
    filtered_noise,
    frequencies,
    gaussian_rows,
    line_kernels,
    splat,
    stretch_rows,
)

# Entries of a search guide per grey level: a few steps remain for each value.
STEPS = 256


def gaussian_noise(batch: Batch, sigma: float) -> Array:
    """Add normal noise of standard deviation `sigma` to each value."""
    noise = batch.draws.normal(0, *batch.planes.shape[1:])
    noise *= sigma
    return noise + batch.planes


def shot_noise(batch: Batch, n_photons: int) -> Array:
    """Count photons: Poisson with mean `n_photons` where the image is white."""
    levels = np.rint(batch.planes * 255)
    draw = batch.draws.fine_uniform(0, *levels.shape[1:])
    draw += levels
    found = _search(*_poisson_table(n_photons), draw.ravel()).reshape(draw.shape)
    count = found - levels.astype(np.intp) * (n_photons + 1)
    return (count / n_photons).astype(np.float32)


@lru_cache(maxsize=16)
def _poisson_table(n_photons: int) -> tuple[Array, Array]:
    """Distribution functions of all grey levels in one sorted array, and a guide.

    The function of level v is raised by v. Counts from `n_photons` on are white, so
    it ends there. Entry i of the guide is where the search for ``i / STEPS`` ends.
    """
    levels = np.arange(256.0)[:, None]
    table = levels + pdtr(np.arange(n_photons + 1.0), levels / 255 * n_photons)
    # No draw lies above, so a search never leaves its level, nor the table.
    table[:, -1] = levels[:, 0] + 1
    table[-1, -1] = np.inf
    guide = np.searchsorted(table.ravel(), np.arange(256 * STEPS + 1) / STEPS, "right")
    return table.ravel(), guide


def _search(table: Array, guide: Array, values: Array) -> Array:
    """``np.searchsorted(table, values, "right")``, from where the guide points."""
    found = guide[(values * STEPS).astype(np.intp)]
    active = np.flatnonzero(table[found] <= values)
    while active.size:
        found[active] += 1
        active = active[table[found[active]] <= values[active]]
    return found


def impulse_noise(batch: Batch, share: float) -> Array:
    """Set a share of the values to black or white, half each."""
    draw = batch.draws.uniform(0, *batch.planes.shape[1:])
    planes = np.where(draw < share / 2, np.float32(0), batch.planes)
    return np.where(draw >= 1 - share / 2, np.float32(1), planes)


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


# Weights of red, green and blue in a grey image (ITU-R BT.601).
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)

# Snow falls within 45 degrees of upright; opacity that the faintest flakes lack.
FALL = np.pi / 4
FADE = 0.5

# Needles of ice meet at 60 degrees. Share of the image behind those of one direction,
# their length, and the width of the front of the ice, as a part of its way.
NEEDLE_ANGLES = np.array([0, 1, 2]) * np.pi / 3
NEEDLE_COVER, NEEDLE_LENGTH = 0.24, 7.0
FROST_EDGE = 0.5
ICE = np.array([0.84, 0.92, 1.0], dtype=np.float32)
FOG_WHITE = np.float32(0.9)


def snow(batch: Batch, strength: tuple[float, float, float]) -> Array:
    """Cover with falling flakes, and make the scene paler.

    `strength` is the share of the image behind flakes, the length of their streaks,
    and how far the scene turns pale.
    """
    cover, length, pale = strength
    cell = max(batch.scale / 2, 1)
    # Cells that a streak passes; a lone streak keeps the opacity of its flake.
    spread = 1 + length * batch.scale / cell
    draw = batch.draws.uniform(0, 1, *coarse_size(batch, cell))
    rank = draw * (spread / cover)
    flakes = np.where(rank < 1, 1 - FADE * rank, 0)
    angles = np.pi / 2 + FALL * (2 * batch.draws.uniform(1, 1)[:, 0] - 1)
    kernels = line_kernels(length * batch.scale, angles)
    opacity = np.clip(convolve(enlarge(flakes, batch), kernels) * spread, 0, 1)
    pallor = np.maximum(batch.planes, np.minimum(1.5 * _grey(batch.planes) + 0.5, 1))
    scene = (1 - pale) * batch.planes + pale * pallor
    return scene + opacity * (1 - scene)


def frost(batch: Batch, strength: tuple[float, float]) -> Array:
    """Lay ice over the image, from the borders inwards.

    `strength` is the largest opacity, and how far inwards the ice has grown.
    """
    opacity, reach = strength
    needles = _needles(batch)
    rows, columns = (np.abs(2 * np.arange(n) / (n - 1) - 1) for n in batch.size)
    clouds = plasma(batch.draws.normal(2, *batch.size), 2.0)
    growth = (np.maximum(rows[:, None], columns) + clouds)[:, None] / 2
    front = np.clip((growth + needles / 2 - 1 + reach) / FROST_EDGE, 0, 1)
    layer = opacity * front * (1 + needles) / 2
    tint = ICE if batch.planes.shape[1] == 3 else np.array([ICE @ LUMA])
    white = tint[:, None, None] * (4 + needles) / 5
    return ((1 - layer) * batch.planes + layer * white).astype(np.float32)


def _needles(batch: Batch) -> Array:
    """Crossing needles of ice, in [0, 1)."""
    cell = max(batch.scale / 2, 1)
    spread = 1 + NEEDLE_LENGTH * batch.scale / cell
    draw = batch.draws.uniform(0, 3, *coarse_size(batch, cell))
    seeds = draw < NEEDLE_COVER / spread
    turn = np.pi / 3 * batch.draws.uniform(1, 1)[:, 0]
    total = np.zeros((len(turn), 1, *batch.size), dtype=np.float32)
    for j, angle in enumerate(NEEDLE_ANGLES):
        kernels = line_kernels(NEEDLE_LENGTH * batch.scale, turn + angle)
        total += convolve(enlarge(seeds[:, j : j + 1], batch), kernels)
    return 1 - np.exp(-total * spread)


def fog(batch: Batch, strength: tuple[float, float]) -> Array:
    """Blend with white fog, half to fully as thick as given, in clouds.

    `strength` is the largest thickness and the decay of the clouds' detail.
    """
    thickness, decay = strength
    clouds = plasma(batch.draws.normal(0, *batch.size), decay)[:, None]
    veil = np.float32(thickness) * (1 + clouds) / 2
    return (1 - veil) * batch.planes + veil * FOG_WHITE


def brightness(batch: Batch, amount: float) -> Array:
    """Add to the value of each pixel (its largest channel); hue and saturation stay."""
    value = batch.planes.max(axis=1, keepdims=True)
    lit = np.minimum(value + np.float32(amount), 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = batch.planes * (lit / value)
    return np.where(value > 0, scaled, lit)


def plasma(white: Array, decay: float) -> Array:
    """Turn white noise into clouds in [0, 1].

    Detail of half the size is weaker by `decay`, as in midpoint displacement: the
    amplitude falls as frequency to the power ``-1 - log2(decay)``.
    """
    frequency = frequencies(*white.shape[1:])
    frequency[0, 0] = np.inf
    return _stretched(filtered_noise(white, frequency ** (-1 - np.log2(decay))))


def _stretched(fields: Array) -> Array:
    """Move and scale each field to the range [0, 1]."""
    low = fields.min(axis=(1, 2), keepdims=True)
    return (fields - low) / (fields.max(axis=(1, 2), keepdims=True) - low)


def _grey(planes: Array) -> Array:
    if planes.shape[1] == 1:
        return planes
    return np.einsum("c,nchw->nhw", LUMA, planes)[:, None]


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


def jpeg_roundtrip(images: NDArray[np.uint8], quality: int) -> NDArray[np.uint8]:
    """Compress and decompress each image as baseline JPEG.

    `images` has shape (n_images, height, width, 1 or 3). Chroma is subsampled 4:2:0
    whatever the default of the codec. Each image is a file of its own, so that its
    result does not depend on the others.
    """
    pillow: Any = import_pillow('corrupt(kind="jpeg_compression")')
    result = np.empty_like(images)
    for image, decoded in zip(images, result, strict=True):
        buffer = io.BytesIO()
        source = pillow.fromarray(image if image.shape[2] == 3 else image[..., 0])
        source.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
        with pillow.open(buffer) as stored:
            decoded[:] = np.asarray(stored).reshape(decoded.shape)
    return result
