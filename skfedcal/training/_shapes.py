"""Which shape of a row is meant as which image."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from numbers import Integral
from typing import NamedTuple

# Numbers of channels that are read as such beside two sides.
_CHANNELS = (1, 3, 4)


class ImageShape(NamedTuple):
    """Channels, height and width; and whether rows have the channels last."""

    shape: tuple[int, int, int]
    channels_last: bool = False


def n_inputs(shape: Sequence[int]) -> int:
    """Numbers of one row."""
    return prod(shape)


def check_input_shape(shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Raise unless rows of the shape `given` can be read as `shape`."""
    if not all(isinstance(n, Integral) for n in shape):
        raise TypeError(f"input_shape={shape!r}: pass whole numbers.")
    if prod(shape) != prod(given):
        raise ValueError(
            f"input_shape={shape!r} has {prod(shape)} numbers, a row of X has "
            f"{prod(given)}."
        )
    sides, wanted = ([n for n in s if n != 1] for s in (given, shape))
    if sides != wanted and sorted(sides) == sorted(wanted):
        raise ValueError(
            f"input_shape={shape!r} has the axes of a row of X, {given!r}, in another "
            "order; numbers are read in the order that they have, so that images would "
            "be scrambled. Move the axes of X: np.moveaxis(X, -1, 1) puts channels "
            "that are last first."
        )


def image_shape(shape: Sequence[int], smallest: int) -> ImageShape:
    """Read the shape of a row as that of an image with sides of at least `smallest`."""
    found = _read(tuple(int(n) for n in shape))
    if min(found.shape[1:]) < smallest:
        raise ValueError(
            f"Images of {found.shape[1]} x {found.shape[2]} pixels are too small for "
            f"this network, which needs {smallest} x {smallest}."
        )
    return found


def _read(shape: tuple[int, ...]) -> ImageShape:
    if len(shape) == 1:
        return ImageShape(_square(shape[0]))
    if len(shape) == 2:
        return ImageShape((1, shape[0], shape[1]))
    if len(shape) != 3:
        raise ValueError(
            f"Rows of shape {shape} are no images; pass (height, width), (channels, "
            "height, width) or (height, width, channels)."
        )
    if shape[-1] in _CHANNELS and shape[0] not in _CHANNELS:
        return ImageShape((shape[2], shape[0], shape[1]), True)
    return ImageShape((shape[0], shape[1], shape[2]))


def _square(size: int) -> tuple[int, int, int]:
    """Flat rows: a square, in grey or colour, channels first."""
    for channels in (1, 3):
        side = isqrt(size // channels)
        if side and channels * side * side == size:
            return channels, side, side
    raise ValueError(
        f"Rows of {size} numbers make no square image; pass input_shape, such as "
        "(1, height, width)."
    )
