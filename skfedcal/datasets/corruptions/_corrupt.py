"""Fifteen kinds of image corruption, in five severities."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._params import check_choice, check_integer
from skfedcal._typing import RandomState
from skfedcal.clients.arrays import read_array
from skfedcal.clients.partitions import as_generator
from skfedcal.datasets.corruptions import _kinds
from skfedcal.datasets.corruptions._images import Array, Batch, Draws, image_keys

__all__ = [
    "CORRUPTIONS",
    "corrupt",
]

# Values worked on at a time: float work arrays stay at a few megabytes.
CHUNK = 1 << 19
SMALLEST_SIDE = 8


@dataclass(frozen=True, slots=True)
class _Kind:
    """A corruption: its group, what it does, and with which strengths."""

    group: str
    function: Callable[[Batch, Any], Array]
    strengths: tuple[Any, ...]


# Lengths are in pixels of an image of side 32. Strengths that mean the same as in
# CIFAR-10-C have its values; defocus, motion and fog match it in spread and contrast.
_KINDS = {
    "gaussian_noise": _Kind(
        "noise", _kinds.gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)
    ),
    "shot_noise": _Kind("noise", _kinds.shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": _Kind(
        "noise", _kinds.impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)
    ),
    "defocus_blur": _Kind("blur", _kinds.defocus_blur, (0.3, 0.5, 0.8, 1.1, 1.5)),
    "glass_blur": _Kind(
        "blur",
        _kinds.glass_blur,
        ((0.7, 0.3), (1.0, 0.4), (1.3, 0.5), (1.6, 0.55), (2.0, 0.6)),
    ),
    "motion_blur": _Kind("blur", _kinds.motion_blur, (2.0, 3.0, 4.0, 4.8, 5.6)),
    "zoom_blur": _Kind("blur", _kinds.zoom_blur, (0.06, 0.11, 0.16, 0.21, 0.26)),
    "snow": _Kind(
        "weather",
        _kinds.snow,
        (
            (0.05, 2.0, 0.1),
            (0.1, 2.5, 0.15),
            (0.17, 3.0, 0.2),
            (0.25, 3.5, 0.25),
            (0.35, 4.0, 0.3),
        ),
    ),
    "frost": _Kind(
        "weather",
        _kinds.frost,
        ((0.5, 0.3), (0.6, 0.4), (0.65, 0.5), (0.7, 0.6), (0.75, 0.7)),
    ),
    "fog": _Kind(
        "weather",
        _kinds.fog,
        ((0.22, 3.0), (0.44, 3.0), (0.57, 2.5), (0.67, 2.0), (0.8, 1.75)),
    ),
    "brightness": _Kind("weather", _kinds.brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": _Kind("digital", _kinds.contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": _Kind(
        "digital",
        _kinds.elastic_transform,
        ((0.4, 4.0), (0.6, 3.7), (0.8, 3.4), (1.05, 3.1), (1.3, 2.8)),
    ),
    "pixelate": _Kind("digital", _kinds.pixelate, (1.15, 1.35, 1.6, 2.0, 2.5)),
    "jpeg_compression": _Kind("digital", _kinds.jpeg_compression, (80, 65, 58, 50, 40)),
}

#: Group of each kind of corruption: noise, blur, weather or digital.
CORRUPTIONS: Mapping[str, str] = MappingProxyType(
    {name: kind.group for name, kind in _KINDS.items()}
)


def corrupt(
    images: ArrayLike, kind: str, severity: int = 1, *, random_state: RandomState = None
) -> NDArray[np.uint8]:
    r"""Corrupt images in one of 15 ways.

    Parameters
    ----------
    images : array-like of uint8
        Grey images of shape (n, height, width) or (n, height, width, 1), or colour
        images (RGB) of shape (n, height, width, 3), at least 8 x 8 pixels.
    kind : str
        A key of `CORRUPTIONS`: "gaussian_noise", "shot_noise", "impulse_noise";
        "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"; "snow", "frost",
        "fog", "brightness"; "contrast", "elastic_transform", "pixelate" or
        "jpeg_compression", which needs Pillow (the extra ``vision``).
    severity : int, default=1
        From 1 to 5; 0 returns a copy.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the noise.

    Returns
    -------
    ndarray of uint8
        Corrupted images, in the shape of `images`.

    See Also
    --------
    feature_shift : Noise and drift in the columns of a table.

    Notes
    -----
    The kinds are those of ImageNet-C and CIFAR-10-C [1]_, written anew from their
    descriptions. They are not the published files, and accuracies measured on them
    are not those of the benchmark. Strengths by severity:

    ==================  =======  =======  =======  =======  =======
    kind                      1        2        3        4        5
    ==================  =======  =======  =======  =======  =======
    gaussian_noise         0.04     0.06     0.08     0.09      0.1
    shot_noise              500      250      100       75       50
    impulse_noise          0.01     0.02     0.03     0.05     0.07
    defocus_blur            0.3      0.5      0.8      1.1      1.5
    glass_blur              0.7      1.0      1.3      1.6      2.0
    \                       0.3      0.4      0.5     0.55      0.6
    motion_blur             2.0      3.0      4.0      4.8      5.6
    zoom_blur              0.06     0.11     0.16     0.21     0.26
    snow                   0.05      0.1     0.17     0.25     0.35
    \                       2.0      2.5      3.0      3.5      4.0
    \                       0.1     0.15      0.2     0.25      0.3
    frost                   0.5      0.6     0.65      0.7     0.75
    \                       0.3      0.4      0.5      0.6      0.7
    fog                    0.22     0.44     0.57     0.67      0.8
    \                       3.0      3.0      2.5      2.0     1.75
    brightness             0.05      0.1     0.15      0.2      0.3
    contrast               0.75      0.5      0.4      0.3     0.15
    elastic_transform       0.4      0.6      0.8     1.05      1.3
    \                       4.0      3.7      3.4      3.1      2.8
    pixelate               1.15     1.35      1.6      2.0      2.5
    jpeg_compression         80       65       58       50       40
    ==================  =======  =======  =======  =======  =======

    Noise: standard deviation for values in [0, 1]; photons that a white value
    counts; share of values set to black or white. Blur: radius of the disk; largest
    distance from which a pixel is read, and deviation of the blur that follows;
    length of the line, within 45 degrees of level; largest magnification less 1.
    Weather: share of the image behind flakes, length of their streaks, pallor;
    opacity of the ice and how far it has grown; thickness of the fog and decay of its
    detail; amount added to the value (in HSV). Digital: factor of the distance to the
    mean of the channel; root mean square and smoothness of the displacement; mean side
    of a block; quality.

    Lengths are pixels of an image of 32 x 32. They grow with the shorter side,
    and below 16 pixels shrink no further; for `pixelate` the part above one pixel
    grows, and does not shrink. Shares, opacities and the 8 x 8 blocks of JPEG are the
    same for all sizes. Noise, zoom, brightness, contrast and JPEG have the
    numbers of CIFAR-10-C; defocus and motion blur were set to its spread, fog
    to its loss of contrast.

    The noise of an image is a function of the seed, the kind and the pixels of that
    image alone. Order, size and other members of the batch change nothing, and
    clients that corrupt their own images with one seed get what a central run gives.
    Equal images get equal noise. The noise does not depend on `severity`: a higher
    severity adds to a lower one, e.g. the same flakes and further ones.

    "jpeg_compression" is deterministic. It saves each image with Pillow (quality of the
    table, 4:2:0 chroma subsampling) and reads it back. Builds of Pillow with different
    JPEG libraries may differ by rounding.

    References
    ----------
    .. [1] D. Hendrycks, T. Dietterich, "Benchmarking Neural Network Robustness to
       Common Corruptions and Perturbations", ICLR 2019, arXiv:1903.12261.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.datasets import corrupt
    >>> images = np.full((2, 8, 8), 100, dtype=np.uint8)
    >>> corrupt(images, "brightness", 4)[0, 0, :3]
    array([151, 151, 151], dtype=uint8)
    """
    array, severity = _check_images(images), check_integer("severity", severity, 0, 5)
    check_choice("kind", kind, _KINDS)
    seed = int(as_generator(random_state).integers(2**63))
    result = np.array(array, order="C")
    if severity == 0:
        return result
    chosen = _KINDS[kind]
    batches = result if result.ndim == 4 else result[..., np.newaxis]
    step = max(1, CHUNK // math.prod(batches.shape[1:]))
    for start in range(0, len(batches), step):
        part = batches[start : start + step]
        planes = np.moveaxis(part, 3, 1).astype(np.float32) / np.float32(255)
        batch = Batch(planes, Draws(image_keys(part, seed, kind)))
        corrupted = chosen.function(batch, chosen.strengths[severity - 1])
        part[:] = np.moveaxis(np.rint(np.clip(corrupted, 0, 1) * 255), 1, 3)
    return result


def _check_images(images: ArrayLike) -> NDArray[np.uint8]:
    array = read_array(images, "images")
    if array.dtype != np.uint8:
        raise TypeError(
            f"images must be uint8 (0 to 255), got {array.dtype}. Scale them and use "
            "images.astype('uint8')."
        )
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise ValueError(
            "images must have shape (n, height, width), (n, height, width, 1) or "
            f"(n, height, width, 3); got {array.shape}."
        )
    if min(array.shape[1:3]) < SMALLEST_SIDE:
        raise ValueError(
            f"images must be at least {SMALLEST_SIDE} x {SMALLEST_SIDE} pixels; got "
            f"shape {array.shape}. Pass a single image as images[np.newaxis]."
        )
    return array
