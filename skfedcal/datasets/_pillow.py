"""Pillow, an optional dependency: JPEG images and files."""

from __future__ import annotations

import io
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "import_pillow",
    "jpeg_roundtrip",
]


def import_pillow(caller: str) -> ModuleType:
    """Import ``PIL.Image``; the error names the pip command."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            f"{caller} needs Pillow, which is not installed. Run: "
            'pip install "skfedcal[vision]", or pip install pillow.'
        ) from error
    return Image


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
