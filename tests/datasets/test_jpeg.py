"""JPEG compression by Pillow, against the definition of the format (ITU-T T.81)."""

import sys

import numpy as np
import pytest
from scipy import fft

from skfedcal.datasets import corrupt

pytest.importorskip("PIL.Image")

QUALITIES = (80, 65, 58, 50, 40)

# Table K.1 of ITU-T T.81, for quality 50. The first entry of table K.2 is 17.
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
CHROMINANCE_MEAN = 17


def scaled(table, quality):
    """Quantisation table of a quality, by the rule of libjpeg."""
    factor = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((np.asarray(table) * factor + 50) // 100, 1, 255)


def quantised(images, quality):
    """Grey images after rounding the cosine coefficients of their 8 x 8 blocks."""
    n, height, width = images.shape
    blocks = images.reshape(n, height // 8, 8, width // 8, 8).swapaxes(2, 3) - 128.0
    table = scaled(LUMINANCE, quality)
    # Codecs hold coefficients in eighths and round ties, which are common in images
    # with few levels, away from zero.
    eighths = np.rint(8 * fft.dctn(blocks, axes=(3, 4), norm="ortho"))
    steps = np.copysign(np.floor(np.abs(eighths) / (8 * table) + 0.5), eighths)
    decoded = fft.idctn(steps * table, axes=(3, 4), norm="ortho").swapaxes(2, 3)
    return np.clip(np.rint(decoded.reshape(images.shape) + 128), 0, 255)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("which", ["photos", "digits"])
def test_grey_images_lose_what_the_format_says(which, severity, request):
    images = request.getfixturevalue(which)[:60]
    images = images[..., 1] if images.ndim == 4 else images
    ours = corrupt(images, "jpeg_compression", severity).astype(float)
    expected = quantised(images, QUALITIES[severity - 1])
    difference = np.abs(ours - expected)
    # A codec works in whole numbers: a coefficient next to a tie may round the other
    # way, which moves its block. The loss itself is 2 to 12 levels.
    assert difference.mean() < 0.4
    corner = difference[:, :8, :8].reshape(len(images), -1).max(axis=1)
    assert np.median(corner) <= 1
    loss = np.abs(expected - images).mean()
    assert np.abs(ours - images).mean() == pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (200, 30, 90)])
@pytest.mark.parametrize("severity", range(1, 6))
def test_flat_images_change_by_at_most_the_step_of_their_mean(colour, severity):
    images = np.full((1, 21, 17, 3), colour, dtype=np.uint8)
    spoilt = corrupt(images, "jpeg_compression", severity).astype(int)
    assert (spoilt == spoilt[0, 0, 0]).all()
    # The mean is stored in steps of q/8: half a step, plus rounding of the colours.
    quality = QUALITIES[severity - 1]
    luma, chroma = scaled(LUMINANCE[0, 0], quality), scaled(CHROMINANCE_MEAN, quality)
    assert np.abs(spoilt - images).max() <= luma / 16 + 1.772 * chroma / 16 + 2


def test_flat_grey_images_stay_within_a_level():
    images = np.arange(256, dtype=np.uint8)[:, None, None] + np.zeros(
        (1, 8, 8), np.uint8
    )
    for severity in range(1, 6):
        spoilt = corrupt(images, "jpeg_compression", severity)
        # Steps of at most 20 / 8 levels; half of one, rounded.
        assert np.abs(spoilt.astype(int) - images).max() <= 1


def test_colour_is_stored_at_half_the_resolution():
    # Columns of two colours of equal luma, in turn: only their mean is stored.
    images = np.zeros((1, 16, 16, 3), dtype=np.uint8)
    images[..., ::2, 2], images[..., 1::2, 0] = 255, 97  # about the same luma, 29
    decoded = corrupt(images, "jpeg_compression", 1).astype(int)
    before = np.abs(np.diff(images[..., 2].astype(int), axis=2)).mean()
    after = np.abs(np.diff(decoded[..., 2], axis=2)).mean()
    assert before == 255
    assert after < 10


def test_missing_pillow_is_named_with_the_command(monkeypatch):
    images = np.zeros((1, 8, 8), dtype=np.uint8)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r'pip install "skfedcal\[vision\]"'):
        corrupt(images, "jpeg_compression", 1)
    # The other kinds do not need it.
    assert corrupt(images, "brightness", 1).any()
