"""Strength of a ridge from the evidence, on the quadratic model at its centre."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skfedcal.algorithms._base import Array

# Strengths tried: from hardly any ridge to parameters that cannot move.
_GRID = np.geomspace(0.1, 1e7, 65)

# Evidence that differs by less is the same; more ridge is then the safer choice.
_SAME = 1e-6


def ridge_strengths(
    spectra: Sequence[tuple[Array, Array]],
    given: Sequence[float | None],
    weakest: Array,
) -> Array:
    """Strength of each group of parameters: as given, or of largest evidence.

    The latter is not below `weakest`.

    Each group comes with the eigenvalues ``s`` of its curvature and the slope ``g`` of
    the loss in the eigenvectors, both summed over rows, at the centre of the ridge.
    With a normal prior of precision ``r`` the evidence is, up to a constant,
    ``sum(g^2 / (s + r) - log(1 + s / r)) / 2``: large slopes ask for a weak ridge,
    slopes that are no more than sampling error for a strong one.
    """
    return np.array(
        [
            max(_largest_evidence(*spectrum), least) if strength is None else strength
            for spectrum, strength, least in zip(spectra, given, weakest, strict=True)
        ]
    )


def _largest_evidence(eigenvalues: Array, slopes: Array) -> float:
    bends, squares = np.maximum(eigenvalues.ravel(), 0.0), slopes.ravel() ** 2
    values = np.array(
        [(squares / (bends + r) - np.log1p(bends / r)).sum() / 2 for r in _GRID]
    )
    best = int(np.flatnonzero(values >= values.max() - _SAME)[-1])
    if best in (0, len(_GRID) - 1):
        return float(_GRID[best])
    # Top of the parabola through three points: no jumps between points of the grid.
    low, top, high = values[best - 1 : best + 2]
    bend = 2 * top - low - high
    shift = float(np.clip((high - low) / (2 * bend), -0.5, 0.5)) if bend > 0 else 0.0
    return float(_GRID[best] * (_GRID[1] / _GRID[0]) ** shift)
