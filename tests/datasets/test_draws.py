import numpy as np
from scipy import stats

from skfedcal.datasets.corruptions._images import Draws, image_keys

SEED = 3
N_IMAGES, N_NUMBERS = 20, 5000


def keys(n_images=N_IMAGES):
    return np.random.default_rng(SEED).integers(2**63, size=n_images).astype(np.uint64)


def test_words_are_those_of_splitmix64():
    # First outputs of the published generator for the seed 1234567.
    words = Draws(np.array([1234567], dtype=np.uint64))._words(0, 3)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert words.tolist() == [expected]


def test_numbers_follow_their_laws():
    draws = Draws(keys())
    # A law that holds fails a Kolmogorov-Smirnov test with probability 1e-7.
    for numbers, law in (
        (draws.uniform(0, N_NUMBERS), "uniform"),
        (draws.fine_uniform(1, N_NUMBERS), "uniform"),
        (draws.normal(2, N_NUMBERS), "norm"),
        (draws.normal(3, 71, 71), "norm"),
    ):
        assert numbers.shape[0] == N_IMAGES
        assert stats.kstest(numbers.ravel().astype(float), law).pvalue > 1e-7
    uniform = draws.uniform(0, N_NUMBERS)
    assert uniform.min() >= 0 and uniform.max() < 1


def test_images_streams_and_halves_are_uncorrelated():
    draws = Draws(keys())
    first, second = draws.normal(0, N_NUMBERS), draws.normal(1, N_NUMBERS)
    half = N_NUMBERS // 2
    rows = np.vstack([first[:, :half], first[:, half:], second[:, :half]])
    correlation = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    # 1770 correlations of about N(0, 1 / 2500); six deviations: 4e-6 in all.
    assert np.abs(correlation).max() < 6 / np.sqrt(half)


def test_every_pixel_seed_and_name_counts_for_the_key():
    image = np.random.default_rng(SEED).integers(256, size=(1, 9, 9, 3), dtype=np.uint8)
    changed = np.repeat(image, image.size, axis=0)
    flat = changed.reshape(image.size, -1)
    flat[np.arange(image.size), np.arange(image.size)] ^= 128
    swapped = image[:, ::-1]
    found = [image_keys(changed, 1, "fog"), image_keys(swapped, 1, "fog")]
    found += [image_keys(image, 1, name) for name in ("fog", "snow")]
    found += [image_keys(image, seed, "fog") for seed in (2, 2**63 - 1)]
    everything = np.concatenate(found)
    assert len(np.unique(everything)) == len(everything)
    # Two changes that would cancel in a sum of the plain words.
    twice = image.reshape(1, -1).copy()
    twice[0, [7, 15]] ^= 128
    assert image_keys(twice, 1, "fog") != image_keys(image, 1, "fog")
