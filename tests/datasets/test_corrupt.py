"""What holds for every kind of corruption."""

import re

import numpy as np
import pytest

from skfedcal.datasets import CORRUPTIONS, corrupt
from skfedcal.datasets.corruptions import _corrupt

SEED = 7
KINDS = list(CORRUPTIONS)
# Kinds that draw nothing.
FIXED = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
}

SHAPES = [(0, 8, 8), (0, 9, 8, 3), (1, 8, 8), (2, 8, 41, 1), (2, 33, 10, 3)]


def distance(images, kind, severity, seed=SEED):
    spoilt = corrupt(images, kind, severity, random_state=seed)
    return np.abs(spoilt.astype(float) - images).mean()


def test_there_are_fifteen_kinds_in_four_groups():
    groups = list(CORRUPTIONS.values())
    assert len(CORRUPTIONS) == 15
    counts = {group: groups.count(group) for group in groups}
    assert counts == {"noise": 3, "blur": 4, "weather": 4, "digital": 4}
    with pytest.raises(TypeError):
        CORRUPTIONS["sepia"] = "digital"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shape_and_type_stay_and_the_input_too(kind, shape):
    images = np.random.default_rng(SEED).integers(256, size=shape, dtype=np.uint8)
    before = images.copy()
    for severity in range(1, 6):
        spoilt = corrupt(images, kind, severity, random_state=SEED)
        assert spoilt.shape == shape and spoilt.dtype == np.uint8
        np.testing.assert_array_equal(images, before)


@pytest.mark.parametrize("kind", KINDS)
def test_severity_zero_is_a_copy(kind, photos):
    same = corrupt(photos, kind, 0)
    np.testing.assert_array_equal(same, photos)
    assert not np.shares_memory(same, photos)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["photos", "odd_photos", "digits"])
def test_distance_grows_with_severity(kind, which, request):
    images = request.getfixturevalue(which)
    distances = [distance(images, kind, severity) for severity in range(6)]
    assert np.all(np.diff(distances) > 0), distances


@pytest.mark.parametrize("kind", KINDS)
def test_seed_decides(kind, photos):
    first, again, other = (
        corrupt(photos[:4], kind, 3, random_state=seed) for seed in (SEED, SEED, 8)
    )
    np.testing.assert_array_equal(first, again)
    assert np.array_equal(first, other) == (kind in FIXED)


def test_a_generator_moves_on_from_call_to_call(photos):
    rng = np.random.default_rng(SEED)
    first, second = (corrupt(photos, "snow", random_state=rng) for _ in range(2))
    assert not np.array_equal(first, second)
    unseeded = [corrupt(photos, "snow") for _ in range(2)]
    assert not np.array_equal(*unseeded)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("which", ["photos", "digits"])
def test_neighbours_and_order_change_nothing(kind, which, request, monkeypatch):
    images = request.getfixturevalue(which)[:40]
    expected = corrupt(images, kind, 3, random_state=SEED)
    order = np.random.default_rng(SEED).permutation(len(images))
    moved = corrupt(images[order], kind, 3, random_state=SEED)
    np.testing.assert_array_equal(moved, expected[order])
    alone = corrupt(images[5:6], kind, 3, random_state=SEED)
    np.testing.assert_array_equal(alone, expected[5:6])
    monkeypatch.setattr(_corrupt, "CHUNK", 3 * images[0].size)
    np.testing.assert_array_equal(corrupt(images, kind, 3, random_state=SEED), expected)


@pytest.mark.parametrize("kind", ["gaussian_noise", "motion_blur"])
def test_memory_layout_changes_nothing(kind, photos):
    expected = corrupt(photos, kind, 3, random_state=SEED)
    for order in ((1, 2, 3, 0), (3, 1, 2, 0), (3, 2, 1, 0)):
        stored = np.ascontiguousarray(photos.transpose(order))
        same = stored.transpose(np.argsort(order))
        same.flags.writeable = False
        np.testing.assert_array_equal(
            corrupt(same, kind, 3, random_state=SEED), expected
        )


@pytest.mark.parametrize("kind", KINDS)
def test_grey_layouts_agree(kind, digits):
    flat = corrupt(digits[:5], kind, 4, random_state=SEED)
    deep = corrupt(digits[:5, :, :, None], kind, 4, random_state=SEED)
    np.testing.assert_array_equal(deep[..., 0], flat)


# Noise per pixel and the 8 x 8 blocks of JPEG do not grow.
@pytest.mark.parametrize(
    "kind", [k for k in KINDS if "noise" not in k and k != "jpeg_compression"]
)
def test_strength_follows_the_size_of_the_image(kind, photos):
    # The same picture at four times the size is spoilt about as much, seen from afar:
    # after averaging over what was one pixel.
    photos = photos[::5]
    large = photos.repeat(4, axis=1).repeat(4, axis=2)
    spoilt = corrupt(large, kind, 5, random_state=SEED).astype(float)
    coarse = spoilt.reshape(len(photos), 32, 4, 32, 4, 3).mean(axis=(2, 4))
    ratio = np.abs(coarse - photos).mean() / distance(photos, kind, 5)
    assert 0.75 < ratio < 1.1


@pytest.mark.parametrize("image", [np.zeros, np.ones])
@pytest.mark.parametrize("kind", KINDS)
def test_black_and_white_images_pass(image, kind):
    images = (255 * image((1, 9, 8, 3))).astype(np.uint8)
    with np.errstate(all="raise", under="ignore"):
        corrupt(images, kind, 5, random_state=SEED)


def test_table_in_the_docstring_is_the_one_in_use():
    rows, last = {}, None
    for line in corrupt.__doc__.splitlines():
        cells = re.fullmatch(r"    (\w+|\\) +((?:[\d.]+ *){5})", line)
        if cells and cells[1] != "kind":
            last = last if cells[1] == "\\" else cells[1]
            rows.setdefault(last, []).append([float(c) for c in cells[2].split()])
    used = {
        name: np.array([np.ravel(s) for s in kind.strengths]).T.tolist()
        for name, kind in _corrupt._KINDS.items()
    }
    assert rows == used


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (np.zeros((2, 8, 8)), TypeError, "must be uint8 .* got float64"),
        (np.zeros((8, 8), np.uint8), ValueError, r"got \(8, 8\)"),
        (np.zeros((1, 8, 8, 4), np.uint8), ValueError, r"got \(1, 8, 8, 4\)"),
        (np.zeros((32, 32, 3), np.uint8), ValueError, "single image as"),
        (np.zeros((1, 7, 8, 3), np.uint8), ValueError, "at least 8 x 8"),
    ],
)
def test_wrong_images_are_named(images, error, message):
    with pytest.raises(error, match=message):
        corrupt(images, "fog")


@pytest.mark.parametrize(
    ("kind", "severity", "error", "message"),
    [
        ("sepia", 1, ValueError, "kind must be one of 'gaussian_noise'.*got 'sepia'"),
        ("fog", 6, ValueError, "severity=6 is out of range; pass an integer from 0"),
        ("fog", -1, ValueError, "severity=-1 is out of range"),
        ("fog", 1.5, TypeError, "severity=1.5 is not an integer"),
        ("fog", True, TypeError, "severity=True is not an integer"),
    ],
)
def test_wrong_settings_are_named(kind, severity, error, message):
    with pytest.raises(error, match=message):
        corrupt(np.zeros((1, 8, 8), np.uint8), kind, severity)
