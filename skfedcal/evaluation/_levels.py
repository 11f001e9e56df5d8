"""Levels of a histogram: which are released, and what merging does to their noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation._grid import SPACES
from skfedcal.evaluation._noise import LevelLaw, NoiseModel
from skfedcal.evaluation._variances import auto_levels
from skfedcal.privacy._client_models import LocalDP

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
    privacy: Any,
    height: int | str | None,
    levels: Sequence[int] | str,
    space: str = "both",
) -> tuple[int, ...]:
    """Depths to release under a privacy model; None is exact sums.

    One rule for what is collected and for what is foretold.
    """
    if not isinstance(space, str) or space not in SPACES:
        raise ValueError(f"space={space!r}: pass one of {SPACES}.")
    height = "auto" if height is None else height
    if not (isinstance(height, str) and height == "auto") and not is_depth(height):
        raise ValueError(
            f"height={height!r}: pass 'auto' or a whole number from 1 to {_MAX_HEIGHT}."
        )
    listed = isinstance(levels, Iterable) and getattr(levels, "shape", None) != ()
    if listed and not isinstance(levels, str):
        return _checked(levels, height)
    if not isinstance(levels, str) or levels != "auto":
        raise ValueError(
            f"levels={levels!r}: pass 'auto' or depths such as (2, 6, 10)."
        )
    local = isinstance(privacy, LocalDP)
    if height == "auto":
        height = _local_height(float(privacy.eps), space) if local else _HEIGHT
    if privacy is None or not privacy.private:
        return (int(height),)
    return auto_levels(int(height), 1 if local else _BITS_PER_LEVEL)


def _checked(levels: Iterable[int], height: int | str) -> tuple[int, ...]:
    given = tuple(levels)
    if not given:
        raise ValueError("levels is empty; pass 'auto' or depths such as (2, 6, 10).")
    for bits in given:
        if not is_depth(bits):
            raise ValueError(
                f"levels={levels!r}: {bits!r} is no depth; pass whole numbers from 1 "
                f"to {_MAX_HEIGHT}."
            )
    if any(a >= b for a, b in pairwise(given)):
        raise ValueError(f"levels={levels!r} must increase.")
    if height not in ("auto", given[-1]):
        raise ValueError(
            f"levels={levels!r} must increase to height={height!r}; leave one of the "
            "two out."
        )
    return tuple(int(bits) for bits in given)


def is_depth(bits: Any) -> bool:
    """Whether a level can have this depth."""
    whole = isinstance(bits, (int, np.integer)) and not isinstance(bits, bool)
    return whole and 1 <= bits <= _MAX_HEIGHT


def _local_height(eps: float, space: str) -> int:
    """Height by eps; the best of those measured on each grid."""
    if space == "prob":
        return 4 if eps <= 2 else 5 if eps < 4 else 6
    return 5 if eps <= 2 else 6
