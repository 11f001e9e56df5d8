"""Noise: Gaussian, shot and impulse noise."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.special import pdtr

from skfedcal.datasets.corruptions._batch import Batch
from skfedcal.datasets.corruptions._draws import Array

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
