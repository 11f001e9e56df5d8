"""JPEG against the codec of Pillow."""

import io

import numpy as np
import pytest
from PIL import Image

from skfedcal.datasets import corrupt
from skfedcal.datasets.corruptions._jpeg import (
    CHROMINANCE,
    LUMINANCE,
    double,
    halve,
    jpeg_roundtrip,
    scaled_table,
)

QUALITIES = (80, 65, 58, 50, 40)


def pillow(image, quality):
    """Decoded image and the tables of the file."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=quality)
    decoded = Image.open(buffer)
    return np.asarray(decoded), decoded.quantization


@pytest.mark.parametrize("quality", [1, 10, 40, 49, 50, 51, 80, 95, 100])
def test_tables_are_those_of_libjpeg(quality):
    _, tables = pillow(np.zeros((8, 8, 3), np.uint8), quality)
    for number, table in enumerate((LUMINANCE, CHROMINANCE)):
        ours = scaled_table(table, quality)
        np.testing.assert_array_equal(np.reshape(tables[number], (8, 8)), ours)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("which", ["photos", "odd_photos", "tiny", "grey", "digits"])
def test_decoded_images_are_those_of_pillow(which, severity, request):
    name = {"grey": "odd_photos", "tiny": "photos"}.get(which, which)
    images = request.getfixturevalue(name)[:60]
    # In tiny images most of a block of colours is padding.
    part = {"grey": np.s_[..., 1], "tiny": np.s_[:, :9, :8]}.get(which, np.s_[:])
    images = np.ascontiguousarray(images[part])
    ours = corrupt(images, "jpeg_compression", severity).astype(float)
    quality = QUALITIES[severity - 1]
    theirs = np.stack([pillow(image, quality)[0] for image in images]).astype(float)
    difference = np.abs(ours - theirs)
    # Codecs work in whole numbers; a coefficient next to a tie may round the other
    # way, which moves its block. Other blocks agree up to rounding, of the colours too.
    # The loss itself is 2 to 12 levels.
    assert difference.mean() < 0.4
    corner = difference[:, :8, :8].reshape(len(images), -1).max(axis=1)
    assert np.median(corner) <= (1 if images.ndim == 3 else 2)
    loss = np.abs(theirs - images).mean()
    assert np.abs(ours - images).mean() == pytest.approx(loss, rel=0.01)


@pytest.mark.parametrize("colour", [(0, 0, 0), (255, 255, 255), (200, 30, 90)])
@pytest.mark.parametrize("severity", range(1, 6))
def test_flat_images_change_by_at_most_the_step_of_their_mean(colour, severity):
    images = np.full((1, 21, 17, 3), colour, dtype=np.uint8)
    spoilt = corrupt(images, "jpeg_compression", severity).astype(int)
    assert (spoilt == spoilt[0, 0, 0]).all()
    # The mean is kept in steps of q/8: half a step, plus rounding of the colours.
    quality = QUALITIES[severity - 1]
    luma, chroma = (scaled_table(t, quality)[0, 0] for t in (LUMINANCE, CHROMINANCE))
    assert np.abs(spoilt - images).max() <= luma / 16 + 1.772 * chroma / 16 + 2


def test_flat_grey_images_stay_within_a_level():
    images = np.arange(256, dtype=np.uint8)[:, None, None] + np.zeros(
        (1, 8, 8), np.uint8
    )
    for severity in range(1, 6):
        spoilt = corrupt(images, "jpeg_compression", severity)
        # Steps of at most 20 / 8 levels; half of one, rounded.
        assert np.abs(spoilt.astype(int) - images).max() <= 1


def test_fine_table_loses_only_the_rounding():
    planes = np.random.default_rng(0).integers(256, size=(3, 1, 16, 24))
    planes = planes.astype(np.float32)
    # Quality 100 rounds coefficients to whole numbers: an error of about 1/sqrt(12) in
    # each coefficient and so in each pixel; seven of them are not reached.
    assert np.abs(jpeg_roundtrip(planes, 100) - planes).max() <= 2


def test_halving_and_doubling_worked_by_hand():
    planes = np.array([[[[10, 20, 50, 50], [30, 40, 50, 52]]]], dtype=np.float32)
    # 100 / 4, and 202 / 4 = 50.5, which the second column rounds up.
    np.testing.assert_array_equal(halve(planes), [[[[25, 51]]]])
    wide = double(np.array([[[[0, 80]]]], dtype=np.float32))
    np.testing.assert_array_equal(wide, [[[[0, 20, 60, 80], [0, 20, 60, 80]]]])
