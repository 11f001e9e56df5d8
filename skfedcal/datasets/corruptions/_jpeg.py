"""What baseline JPEG does to an image, without the bytes in between.

Entropy coding loses nothing, so the loss is that of colour conversion, halved colour
resolution, and rounding of the cosine coefficients of 8x8 blocks (ITU-T T.81).
"""

from __future__ import annotations

import numpy as np
from scipy import fft

from skfedcal.datasets.corruptions._draws import Array

BLOCK = 8

# Tables K.1 and K.2 of ITU-T T.81; quality 50.
LUMINANCE = np.array(
    [
        [16, 11, 10, 16, 24, 40, 51, 61],
        [12, 12, 14, 19, 26, 58, 60, 55],
        [14, 13, 16, 24, 40, 57, 69, 56],
        [14, 17, 22, 29, 51, 87, 80, 62],
        [18, 22, 37, 56, 68, 109, 103, 77],
        [24, 35, 55, 64, 81, 104, 113, 92],
        [49, 64, 78, 87, 103, 121, 120, 101],
        [72, 92, 95, 98, 112, 100, 103, 99],
    ]
)
CHROMINANCE = np.full((BLOCK, BLOCK), 99)
CHROMINANCE[:4, :4] = [
    [17, 18, 24, 47],
    [18, 21, 26, 66],
    [24, 26, 56, 99],
    [47, 66, 99, 99],
]

# JFIF: luma, and two colour differences around 128.
TO_YCC = np.array(
    [
        [0.299, 0.587, 0.114],
        [-0.168736, -0.331264, 0.5],
        [0.5, -0.418688, -0.081312],
    ],
    dtype=np.float32,
)
TO_RGB = np.array(
    [[1, 0, 1.402], [1, -0.344136, -0.714136], [1, 1.772, 0]], dtype=np.float32
)


def jpeg_roundtrip(planes: Array, quality: int) -> Array:
    """Compress and decompress channels with values in [0, 255].

    `planes` has shape (n_images, 1 or 3, height, width). Colour differences are
    stored at half the resolution (4:2:0).
    """
    luminance = scaled_table(LUMINANCE, quality)
    if planes.shape[1] == 1:
        return code_blocks(planes, luminance)
    height, width = planes.shape[2:]
    colours = np.rint(np.einsum("ij,njhw->nihw", TO_YCC, planes))
    colours[:, 1:] += 128
    luma = code_blocks(colours[:, :1], luminance)
    # Codecs repeat the last column before they halve the width, and the last row after.
    halved = halve(_pad_to_multiple(colours[:, 1:], 2, 2 * BLOCK))
    coded = code_blocks(halved, scaled_table(CHROMINANCE, quality))
    coded = coded[:, :, :, : (width + 1) // 2]
    chroma = double(coded)[:, :, :height, :width] - 128
    return np.einsum("ij,njhw->nihw", TO_RGB, np.concatenate([luma, chroma], axis=1))


def scaled_table(table: Array, quality: int) -> Array:
    """Quantisation table of a quality from 1 to 100, by the rule of libjpeg."""
    factor = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((table * factor + 50) // 100, 1, 255).astype(np.float32)


def code_blocks(planes: Array, table: Array) -> Array:
    """Round the cosine coefficients of each block to multiples of a table."""
    n_images, n_channels, height, width = planes.shape
    padded = _pad_to_multiple(planes, BLOCK, BLOCK) - 128
    rows, columns = padded.shape[2] // BLOCK, padded.shape[3] // BLOCK
    blocks = padded.reshape(n_images, n_channels, rows, BLOCK, columns, BLOCK)
    blocks = np.swapaxes(blocks, 3, 4)
    coefficients = fft.dctn(blocks, axes=(4, 5), norm="ortho")
    coefficients = _round_half_away(coefficients, table)
    blocks = np.swapaxes(fft.idctn(coefficients, axes=(4, 5), norm="ortho"), 3, 4)
    decoded = blocks.reshape(padded.shape)[:, :, :height, :width]
    return np.clip(np.rint(decoded + 128), 0, 255)


def _round_half_away(coefficients: Array, table: Array) -> Array:
    """Round to multiples of a table, ties away from zero.

    Ties are common in images that were compressed before. Codecs see them since they
    hold coefficients in eighths.
    """
    eighths = np.rint(8 * coefficients)
    steps = np.floor(np.abs(eighths) / (8 * table) + np.float32(0.5))
    return np.copysign(steps * table, eighths)


def halve(planes: Array) -> Array:
    """Mean of each square of four pixels; both sides are even."""
    pairs = planes[:, :, ::2] + planes[:, :, 1::2]
    total = pairs[..., ::2] + pairs[..., 1::2]
    # Ties go down and up in turn, as in libjpeg.
    bias = 1 + np.arange(total.shape[-1], dtype=np.float32) % 2
    return np.floor((total + bias) / 4)


def double(planes: Array) -> Array:
    """Interpolate to twice the size: three parts of the near pixel, one of the far."""
    for axis in (2, 3):
        far = [(1, 1) if i == axis else (0, 0) for i in range(4)]
        padded = np.moveaxis(np.pad(planes, far, "edge"), axis, -1)
        near = 3 * padded[..., 1:-1]
        pairs = np.stack([near + padded[..., :-2], near + padded[..., 2:]], axis=-1)
        planes = np.moveaxis(pairs.reshape(*pairs.shape[:-2], -1) / 4, -1, axis)
    return np.rint(planes)


def _pad_to_multiple(planes: Array, rows: int, columns: int) -> Array:
    """Repeat the last row and column until the sides are multiples of these."""
    height, width = planes.shape[2:]
    margin = [(0, 0), (0, 0), (0, -height % rows), (0, -width % columns)]
    return np.pad(planes, margin, "edge")
