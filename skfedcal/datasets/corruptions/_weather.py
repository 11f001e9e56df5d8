"""Weather: snow, frost, fog and bright light."""

from __future__ import annotations

import numpy as np

from skfedcal.datasets.corruptions._batch import (
    Batch,
    coarse_size,
    convolve,
    enlarge,
    filtered_noise,
    frequencies,
    line_kernels,
)
from skfedcal.datasets.corruptions._draws import Array

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
