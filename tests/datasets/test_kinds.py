"""What each kind of corruption does, by hand and by its own law."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import ndimage, stats

from skfedcal.datasets import corrupt
from skfedcal.datasets.corruptions import _kinds
from skfedcal.datasets.corruptions._images import Batch, Draws

SEED = 11
# Deviations of a normal estimate that it leaves with probability 4e-8.
Z = 5.5
SEVERITIES = range(1, 6)


def flat(level, side=128, n_channels=3):
    return np.full((1, side, side, n_channels), level, dtype=np.uint8)


def batch(planes, keys=None):
    keys = np.arange(len(planes)) if keys is None else keys
    return Batch(
        np.asarray(planes, dtype=np.float32), Draws(np.asarray(keys, dtype=np.uint64))
    )


@pytest.mark.parametrize(
    ("severity", "sigma"), list(enumerate((0.04, 0.06, 0.08, 0.09, 0.1), 1))
)
def test_gaussian_noise_has_its_deviation(severity, sigma):
    images = flat(128)
    residual = corrupt(images, "gaussian_noise", severity, random_state=SEED) - 128.0
    # Rounding adds a variance of 1/12; 5 deviations remain to either end of the range.
    deviation = np.sqrt((255 * sigma) ** 2 + 1 / 12)
    n = residual.size
    assert abs(residual.mean()) < Z * deviation / np.sqrt(n)
    assert abs(residual.std() - deviation) < Z * deviation / np.sqrt(2 * n)
    # Channels are independent.
    correlation = np.corrcoef(residual.reshape(-1, 3).T)[np.triu_indices(3, 1)]
    assert np.abs(correlation).max() < Z / np.sqrt(n / 3)


@pytest.mark.parametrize(
    ("severity", "n_photons"), list(enumerate((500, 250, 100, 75, 50), 1))
)
def test_shot_noise_is_poisson(severity, n_photons):
    level = 100
    spoilt = corrupt(flat(level), "shot_noise", severity, random_state=SEED)
    n = spoilt.size
    mean = level / 255 * n_photons
    # White is at least five deviations away; rounding to levels is at most half of one
    # and averages out: 0.02 levels over hundreds of counts.
    error = 255 * np.sqrt(mean) / n_photons
    assert abs(spoilt.mean() - level) < Z * error / np.sqrt(n) + 0.02
    if n_photons > 100:
        return
    # With few photons each count is a grey level of its own: the whole law.
    levels = np.rint(255 * np.arange(n_photons + 1) / n_photons)
    observed = (spoilt.ravel()[:, None] == levels).sum(axis=0)
    assert observed.sum() == n
    expected = n * stats.poisson.pmf(np.arange(n_photons + 1), mean)
    common = expected >= 10
    statistic = np.sum((observed - expected)[common] ** 2 / expected[common])
    assert statistic < stats.chi2.isf(1e-7, common.sum())
    assert observed[~common].sum() < 10 * (~common).sum()


def test_shot_noise_leaves_black_and_grows_with_light():
    assert not corrupt(flat(0), "shot_noise", 5, random_state=SEED).any()
    spread = [
        corrupt(flat(level), "shot_noise", 1, random_state=SEED).std()
        for level in (20, 80, 180)
    ]
    # Fourfold light, twice the noise.
    assert spread[1] / spread[0] == pytest.approx(2, rel=0.05)
    assert spread[2] / spread[0] == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    ("severity", "share"), list(enumerate((0.01, 0.02, 0.03, 0.05, 0.07), 1))
)
def test_impulse_noise_hits_its_share_half_black_half_white(severity, share):
    spoilt = corrupt(flat(100), "impulse_noise", severity, random_state=SEED)
    n = spoilt.size
    for value in (0, 255):
        hits = np.sum(spoilt == value)
        assert abs(hits - n * share / 2) < Z * np.sqrt(n * share / 2)
    assert np.isin(spoilt, [0, 100, 255]).all()


def test_impulses_of_a_severity_are_kept_by_the_next():
    hits = [
        corrupt(flat(100), "impulse_noise", severity, random_state=SEED) != 100
        for severity in SEVERITIES
    ]
    for fewer, more in pairwise(hits):
        assert not (fewer & ~more).any()


@pytest.mark.parametrize(
    "kind",
    ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast"]
    + ["elastic_transform", "pixelate"],
)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_flat_images_stay(kind, severity):
    images = np.full((1, 17, 23, 3), (13, 140, 251), dtype=np.uint8)
    spoilt = corrupt(images, kind, severity, random_state=SEED)
    np.testing.assert_array_equal(spoilt, images)


@pytest.mark.parametrize(
    ("blur", "strength"), [(_kinds.defocus_blur, 1.5), (_kinds.motion_blur, 5.6)]
)
def test_blur_keeps_the_mean_of_what_is_away_from_the_border(blur, strength):
    planes = np.full((3, 1, 40, 48), 0.2)
    planes[:, :, 12:28, 16:32] = np.random.default_rng(SEED).random((3, 1, 16, 16))
    blurred = blur(batch(planes), strength)
    np.testing.assert_allclose(
        blurred.mean(axis=(1, 2, 3)), planes.mean(axis=(1, 2, 3)), rtol=1e-5
    )
    assert (blurred.std(axis=(1, 2, 3)) < planes.std(axis=(1, 2, 3))).all()


def test_defocus_spreads_a_point_over_a_disk():
    planes = np.zeros((1, 1, 96, 96))
    planes[0, 0, 48, 48] = 1
    spread = _kinds.defocus_blur(batch(planes), 3.0)[0, 0]  # nine pixels at this size
    rows, columns = np.indices(spread.shape) - 48
    radius = np.hypot(rows, columns)
    # Flat inside, nothing outside, a pixel of transition.
    inside = spread[radius < 8]
    assert inside.min() > 0.8 / (np.pi * 81) and inside.max() < 1.2 / (np.pi * 81)
    assert np.abs(spread[radius > 10.5]).max() < 1e-6
    # A disk has the second moment r**2 / 4 per axis; linear interpolation adds 1/6.
    for axis in (rows, columns):
        assert (spread * axis**2).sum() == pytest.approx(81 / 4 + 1 / 6, rel=0.01)


def test_motion_angles_stay_within_45_degrees_of_level():
    planes = np.zeros((400, 1, 33, 33))
    planes[:, :, 16, 16] = 1
    spread = _kinds.motion_blur(batch(planes), 8.0)[:, 0]
    rows, columns = np.indices(spread.shape[1:]) - 16
    cross = (spread * rows * columns).sum(axis=(1, 2))
    tall, wide = ((spread * axis**2).sum(axis=(1, 2)) for axis in (rows, columns))
    angle = np.arctan2(2 * cross, wide - tall) / 2
    assert np.abs(angle).max() < np.pi / 4 + 0.05
    # Uniform over the range; 1e-7 for a false alarm.
    law = stats.uniform(-np.pi / 4 - 0.05, np.pi / 2 + 0.1)
    assert stats.kstest(angle, law.cdf).pvalue > 1e-7


def test_zoom_blur_spares_the_middle(photos):
    change = np.abs(corrupt(photos, "zoom_blur", 5).astype(float) - photos)
    profile = change.mean(axis=(0, 3))
    border = np.concatenate([profile[:4].ravel(), profile[-4:].ravel()])
    assert profile[14:18, 14:18].mean() < 0.4 * border.mean()


def test_glass_reads_each_pixel_from_nearby(photos):
    spoilt = corrupt(photos, "glass_blur", 1, random_state=SEED).astype(int)
    # 0.7 pixels away and a blur of deviation 0.3: at most two pixels in all.
    size = (1, 5, 5, 1)
    assert (spoilt <= ndimage.maximum_filter(photos, size).astype(int) + 1).all()
    assert (spoilt >= ndimage.minimum_filter(photos, size).astype(int) - 1).all()


def test_brightness_adds_to_the_value_and_keeps_the_hue():
    colours = [(0, 0, 0), (100, 100, 100), (100, 40, 0), (20, 0, 10), (240, 120, 60)]
    images = np.tile(np.array(colours, np.uint8)[:, None, None], (1, 8, 8, 1))
    spoilt = corrupt(images, "brightness", 4)[:, 0, 0]  # 0.2 * 255 = 51
    # 100 -> 151: times 1.51; 20 -> 71: times 3.55; 240 -> 255: times 1.0625.
    expected = [
        (51, 51, 51),
        (151, 151, 151),
        (151, 60, 0),
        (71, 0, 36),
        (255, 128, 64),
    ]
    assert np.abs(spoilt - np.array(expected, dtype=float)).max() <= 0.5
    grey = corrupt(images[:, :, :, 0], "brightness", 4)[:, 0, 0]
    np.testing.assert_array_equal(grey, [51, 151, 151, 71, 255])


def test_contrast_draws_each_channel_to_its_mean():
    images = np.empty((1, 8, 8, 3), np.uint8)
    images[:, :4], images[:, 4:] = (60, 0, 200), (100, 200, 200)
    spoilt = corrupt(images, "contrast", 2)  # factor 0.5
    np.testing.assert_array_equal(spoilt[0, 0, 0], [70, 50, 200])
    np.testing.assert_array_equal(spoilt[0, 7, 0], [90, 150, 200])


def test_pixelate_keeps_blocks_and_averages_within_them():
    blocks = np.random.default_rng(SEED).integers(256, size=(2, 16, 16), dtype=np.uint8)
    images = blocks.repeat(2, axis=1).repeat(2, axis=2)
    # Severity 4 makes 16 blocks of two pixels out of 32.
    np.testing.assert_array_equal(corrupt(images, "pixelate", 4), images)
    checks = np.indices((32, 32)).sum(axis=0)[None] % 2 * 200
    spoilt = corrupt(checks.astype(np.uint8), "pixelate", 4)
    np.testing.assert_array_equal(spoilt, np.full((1, 32, 32), 100))
    # Unequal blocks of 8 pixels in 3: 3, 3 and 2 of them.
    line = np.arange(8.0)[None, None, :, None].repeat(3, axis=3)
    spoilt = _kinds.pixelate(batch(line), 8 / 3)[0, 0, :, 0]
    np.testing.assert_allclose(spoilt, [1, 1, 1, 4, 4, 4, 6.5, 6.5])


@pytest.mark.parametrize(
    ("severity", "n_blocks"), list(enumerate((28, 24, 20, 16, 13), 1))
)
def test_pixelate_leaves_so_many_rows_of_blocks(severity, n_blocks, photos):
    spoilt = corrupt(photos, "pixelate", severity).astype(int)
    steps = np.any(np.diff(spoilt, axis=1) != 0, axis=(0, 2, 3))
    assert steps.sum() + 1 == n_blocks


def test_elastic_displacement_has_its_size_and_is_smooth():
    # The same key gives both ramps the same field: one shows rows, the other columns.
    ramp = np.indices((64, 64))[:, None] / 64
    warped = _kinds.elastic_transform(batch(ramp, [5, 5]), (1.0, 4.0))
    shift = 64 * (warped - ramp)[:, 0]
    inner = shift[:, 6:-6, 6:-6]  # borders clip
    assert np.sqrt(np.mean(inner**2)) == pytest.approx(2.0, rel=0.2)
    # Smooth over eight pixels: neighbours differ by about 2 / (8 * sqrt(2)).
    assert np.abs(np.diff(inner, axis=1)).max() < 1


@pytest.mark.parametrize("severity", SEVERITIES)
def test_snow_only_brightens_and_its_streaks_fall(severity, photos):
    assert (corrupt(photos, "snow", severity, random_state=SEED) >= photos).all()
    dark = np.zeros((60, 32, 32), np.uint8)
    dark[:, 0, 0] = np.arange(60)  # images of their own
    spoilt = corrupt(dark, "snow", severity, random_state=SEED) / 255
    cover, pallor = [(0.05, 0.1), (0.1, 0.15), (0.17, 0.2), (0.25, 0.25), (0.35, 0.3)][
        severity - 1
    ]
    # Black turns pale by half the pallor. A flake has an opacity of 3/4 on average, and
    # streaks overlap: a little less than the cover in all.
    opacity = ((spoilt - pallor / 2) / (1 - pallor / 2)).mean()
    assert 0.55 * cover < opacity < 0.85 * cover
    down, across = (np.abs(np.diff(spoilt, axis=axis)).mean() for axis in (1, 2))
    assert down < 0.95 * across


@pytest.mark.parametrize("severity", SEVERITIES)
def test_frost_is_bluish_and_grows_from_the_border(severity):
    images = np.full((40, 32, 32, 3), 60, dtype=np.uint8)
    images[:, 0, 0, 0] = np.arange(40)
    change = corrupt(images, "frost", severity, random_state=SEED).astype(int) - images
    assert change[:, 1:].min() >= 0
    red, green, blue = change.mean(axis=(0, 1, 2))
    assert red < green < blue
    profile = change.mean(axis=(0, 3))
    border = np.concatenate([profile[:3].ravel(), profile[-3:].ravel()])
    assert border.mean() > 1.3 * profile[12:20, 12:20].mean()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_fog_is_white_and_takes_contrast(severity, photos):
    thickness = (0.22, 0.44, 0.57, 0.67, 0.8)[severity - 1]
    spoilt = corrupt(photos, "fog", severity, random_state=SEED).astype(float)
    white = 0.9 * 255
    # From half to the full thickness of the way to white, and half a level.
    way = white - photos
    low, high = np.sort([thickness / 2 * way, thickness * way], axis=0)
    change = spoilt - photos
    assert (change >= low - 0.51).all() and (change <= high + 0.51).all()


@pytest.mark.parametrize("decay", [3.0, 1.75])
def test_detail_of_clouds_decays_as_given(decay):
    white = Draws(np.arange(200, dtype=np.uint64)).normal(0, 32, 32)
    clouds = _kinds.plasma(white, decay)
    low, high = clouds.min(axis=(1, 2)), clouds.max(axis=(1, 2))
    np.testing.assert_allclose([low, high], [np.zeros(200), np.ones(200)], atol=1e-6)
    power = np.mean(np.abs(np.fft.rfft2(clouds)) ** 2, axis=0)
    slow, fast = power[0, [1, 2, 3, 4]], power[0, [2, 4, 6, 8]]
    # Twice the frequency: half the amplitude of white noise in the plane, and a
    # further 1 / decay. Means of 200 exponential powers, 7 % each and 10 % a ratio.
    ratio = slow / fast / (2 * decay) ** 2
    assert (np.abs(np.log(ratio)) < Z * 0.1).all()
