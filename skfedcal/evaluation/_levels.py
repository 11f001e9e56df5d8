"""Levels of a histogram: which are released, and what merging does to their noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation._noise import LevelLaw, NoiseModel

if TYPE_CHECKING:
    from skfedcal.evaluation._collect import Statistic

Array = NDArray[Any]

# Under additive noise a level has 16 times the buckets of the one above: of the tilings
# of 10 bits, [2, 6, 10] leaves the least noise in a random prefix.
_BITS_PER_LEVEL = 4
_HEIGHT = 10
_MAX_HEIGHT = 20


def split_levels(totals: Array, depths: Sequence[int], n_tables: int) -> list[Array]:
    """Counts of each level from one flat array."""
    ends = np.cumsum([n_tables * 2**bits for bits in depths])
    parts = np.split(totals, ends[:-1])
    return [part.reshape(n_tables, -1) for part in parts]


def merged_noise(first: NoiseModel, second: NoiseModel) -> NoiseModel:
    """Law of the sum of two histograms; refuses laws of different kinds."""

    def key(law: LevelLaw) -> tuple[Any, ...]:
        return law.bits, law.kind, law.p, law.q, law.domain

    if list(map(key, first.levels)) != list(map(key, second.levels)):
        raise ValueError(
            "Histograms with different levels or kinds of noise cannot be merged; fit "
            "both with the same levels and privacy model."
        )
    return NoiseModel(
        tuple(
            replace(
                a, variance=a.variance + b.variance, n_reports=a.n_reports + b.n_reports
            )
            for a, b in zip(first.levels, second.levels, strict=True)
        )
    )


def release_levels(
    height: int | str,
    levels: Sequence[int] | str,
    statistic: Statistic,
    space: str = "both",
) -> tuple[int, ...]:
    """Depths to release."""
    if not isinstance(levels, str):
        depths = tuple(int(bits) for bits in levels)
        fits = height == "auto" or depths[-1:] == (height,)
        if not fits or list(depths) != sorted(set(depths)) or not depths:
            raise ValueError(
                f"levels={levels!r} must increase and end with height={height!r}."
            )
        height = depths[-1]
    elif levels != "auto":
        raise ValueError(
            f"levels={levels!r}: pass 'auto' or depths such as (2, 6, 10)."
        )
    if height == "auto":
        height = _local_height(statistic.model, space) if statistic.local else _HEIGHT
    if not isinstance(height, (int, np.integer)) or not 1 <= height <= _MAX_HEIGHT:
        raise ValueError(
            f"height={height!r}: pass 'auto' or a whole number from 1 to {_MAX_HEIGHT}."
        )
    if not isinstance(levels, str):
        return depths
    if not statistic.private:
        return (int(height),)
    step = 1 if statistic.local else _BITS_PER_LEVEL
    return tuple(range(int(height), 0, -step))[::-1]


def _local_height(model: Any, space: str) -> int:
    """Height by eps; the best of those measured on each grid."""
    if space == "prob":
        return 4 if model.eps <= 2 else 5 if model.eps < 4 else 6
    return 5 if model.eps <= 2 else 6
