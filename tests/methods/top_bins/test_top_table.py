"""Values of bins from counts: a dense oracle, limits, and what shrinking is for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import multivariate_normal
from sklearn.isotonic import IsotonicRegression

from skfedcal.methods.bins.rounds import HistogramState
from skfedcal.methods.top_bins.estimator import frequency_table, monotone, shrunk_table

N_BINS = 15
MIDDLE = (np.arange(N_BINS) + 0.5) / N_BINS


def state(right, wrong, noise=0.0):
    pair = (np.asarray(x, dtype=float)[None] for x in (right, wrong))
    return HistogramState(*pair, noise, noise)


def sampled(rng, n_rows=3000, gain=1.0, n_classes=10, noise=0.0):
    """Counts of rows that are mostly confident, right with a chance of their own.

    `gain` is what is left of the distance to chance: 1 is calibrated.
    """
    rows = rng.multinomial(n_rows, np.exp(4 * MIDDLE) / np.exp(4 * MIDDLE).sum())
    truth = 1 / n_classes + gain * (MIDDLE - 1 / n_classes)
    truth = np.clip(truth, 0, 1)
    right = rng.binomial(rows, truth)
    drawn = np.rint(rng.laplace(0, max(noise, 1e-9) / np.sqrt(2), (2, N_BINS)))
    return state(right + drawn[0], rows - right + drawn[1], noise), truth, rows


def dense(counts, n_classes, at=MIDDLE, kept=slice(None), residuals=()):
    """The same posterior from inverses of full matrices, one factor after another."""
    right, wrong, v = counts.positive[0], counts.negative[0], counts.noise_positive**2
    n = np.maximum(right + wrong, 0)
    r = right - at * (right + wrong)
    for i in residuals:
        r[i] = residuals[i]
    up, down = np.maximum(right, 0), np.maximum(wrong, 0)
    f = up / np.maximum(up + down, 1e-9)
    draw = np.maximum(f * (1 - f), at * (1 - at))
    noise = np.diag((n + 1) * draw + v * (at**2 + (1 - at) ** 2))
    lever = MIDDLE - 1 / n_classes
    far = MIDDLE[:, None] - MIDDLE
    prior = np.outer(lever, lever) + 0.04 * np.exp(-0.5 * (far / 0.3) ** 2)
    prior += 0.01 * np.eye(N_BINS)
    n, r = n[kept], r[kept]
    prior, noise = (m[kept][:, kept] for m in (prior, noise))
    means, trusts, evidence = [], [], []
    for factor in (0, 0.15, 0.4, 1):
        cov = factor**2 * prior
        gram = np.diag(n) @ cov @ np.diag(n) + noise
        gain = cov @ np.diag(n) @ np.linalg.inv(gram)
        means.append(gain @ r)
        trusts.append(np.diag(gain @ np.diag(n)))
        evidence.append(multivariate_normal.logpdf(r, np.zeros(len(r)), gram))
    chance = np.exp(np.array(evidence) - max(evidence))
    chance /= chance.sum()
    return MIDDLE[kept] + chance @ means, chance @ trusts, chance[0]


def mean_confidence(counts):
    """Mean of a density in each bin whose logarithm is linear, by integration."""
    rows = np.maximum(counts.positive[0] + counts.negative[0], 1)
    logs = np.log(rows + 2 * counts.noise_positive)
    found = []
    for i in range(N_BINS):
        below, above = logs[i] - logs[i - 1], logs[(i + 1) % N_BINS] - logs[i]
        slope = {0: above, N_BINS - 1: 2 * below}.get(i, (below + above) / 2)
        places = np.linspace(-0.5, 0.5, 20_001)
        weights = np.exp(slope * places)
        found.append(trapezoid(places * weights) / trapezoid(weights))
    return MIDDLE + np.array(found) / N_BINS


@pytest.mark.parametrize("noise", [0.0, 5.0, 60.0])
@pytest.mark.parametrize("n_classes", [2, 10])
def test_the_posterior_is_that_of_full_matrices(noise, n_classes):
    rng = np.random.default_rng(0)
    for gain in (0.3, 0.9, 1.0):
        counts, _, _ = sampled(rng, 500, gain, n_classes, noise)
        found = shrunk_table(counts, n_classes)
        values, trust, _ = dense(counts, n_classes)
        np.testing.assert_allclose(found.values, values, rtol=1e-8)
        np.testing.assert_allclose(found.trust, trust, rtol=1e-6, atol=1e-9)
        cut = np.maximum([counts.positive[0], counts.negative[0]], 0)
        counts = state(*cut, noise)
        at = mean_confidence(counts)
        nothing = max(doubted(counts, n_classes, at, i) for i in range(N_BINS))
        assert found.nothing == pytest.approx(nothing, rel=1e-3, abs=1e-9)


def doubted(counts, n_classes, at, one):
    """Chance of no error if one bin is left out, or moved by eight deviations."""
    without = dense(counts, n_classes, at, np.arange(N_BINS) != one)[2]
    rows = (counts.positive + counts.negative)[0, one]
    residual = counts.positive[0, one] - at[one] * rows
    margin = 8 * counts.noise_positive * np.hypot(at[one], 1 - at[one])
    left = np.sign(residual) * max(abs(residual) - margin, 0)
    return min(without, dense(counts, n_classes, at, residuals={one: left})[2])


def test_many_rows_decide_alone():
    rng = np.random.default_rng(1)
    truth = rng.random(N_BINS)
    rows = np.full(N_BINS, 10**7)
    found = shrunk_table(state(truth * rows, (1 - truth) * rows), 10)
    np.testing.assert_allclose(found.values, truth, atol=1e-4)
    np.testing.assert_allclose(found.trust, 1, atol=1e-4)
    assert found.noticeable


@pytest.mark.parametrize(
    "counts",
    [state(np.zeros(N_BINS), np.zeros(N_BINS)), state(MIDDLE, 1 - MIDDLE, 1e6)],
    ids=["no rows", "no signal"],
)
def test_nothing_seen_leaves_the_input(counts):
    found = shrunk_table(counts, 10)
    np.testing.assert_allclose(found.values, MIDDLE, atol=1e-6)
    np.testing.assert_allclose(found.trust, 0, atol=1e-6)
    # As likely as before: one of four factors.
    assert found.nothing == pytest.approx(0.25, abs=1e-6)
    assert not found.noticeable


@given(
    cells=st.lists(
        st.floats(-1e9, 1e9), min_size=2 * N_BINS, max_size=2 * N_BINS
    ),
    noise=st.floats(0, 1e9),
    n_classes=st.integers(1, 1000),
)  # fmt: skip
def test_any_release_gives_numbers(cells, noise, n_classes):
    right, wrong = np.array(cells).reshape(2, N_BINS)
    counts = state(right, wrong, noise)
    for table in (shrunk_table(counts, n_classes), frequency_table(counts)):
        table = monotone(table, counts)
        assert np.isfinite(table.values).all()
        assert ((table.trust >= 0) & (table.trust <= 1)).all()
        assert (np.diff(table.values) >= 0).all()


def test_frequencies_by_hand():
    found = frequency_table(state([3.0, 0, -2, 5], [1.0, 0, 4, -1]))
    np.testing.assert_allclose(found.values, [0.75, 0.375, 0, 1], atol=1e-8)
    assert (found.trust == 1).all()


def test_monotone_values_are_those_of_isotonic_regression():
    counts, _, _ = sampled(np.random.default_rng(2), 300)
    table = frequency_table(counts)
    rows = (counts.positive + counts.negative)[0] + 1
    oracle = IsotonicRegression().fit(MIDDLE, table.values, rows).predict(MIDDLE)
    found = monotone(table, counts)
    np.testing.assert_allclose(found.values, oracle)
    assert found.trust is table.trust


@pytest.mark.parametrize("gain", [0.3, 0.7, 1.0])
def test_shrunk_values_are_nearer_to_the_truth_than_frequencies(gain):
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(60):
        counts, truth, rows = sampled(rng, 1500, gain, noise=20.0)
        tables = shrunk_table(counts, 10), frequency_table(counts)
        errors.append([(rows * (t.values - truth) ** 2).sum() for t in tables])
    shrunk, plain = np.transpose(errors)
    # Paired, 60 times, and many deviations from equal.
    gap = plain - shrunk
    assert gap.mean() > 6 * gap.std() / np.sqrt(60)
    assert shrunk.mean() < 0.5 * plain.mean()


@pytest.mark.parametrize("noise", [0.0, 5.0, 50.0])
def test_a_calibrated_input_is_seldom_corrected(noise):
    rng = np.random.default_rng(4)
    found = [
        shrunk_table(sampled(rng, 1500, 1.0, noise=noise)[0], 10).noticeable
        for _ in range(200)
    ]
    # The odds must turn by a factor of 19 / 3, which they do in 1 of 6 cases at most
    # where nothing is wrong (Markov). They are less easily turned.
    assert sum(found) < 0.02 * 200


def test_a_calibrated_input_that_is_very_sure_is_not_corrected():
    """Its accuracy is that of its rows, not the midpoint of the last bin."""
    rng = np.random.default_rng(6)
    confidence = 1 - rng.beta(0.15, 6.0, size=3_000)
    right = rng.random(3_000) < confidence
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    hits, misses = (np.bincount(bins[r], minlength=N_BINS) for r in (right, ~right))
    assert hits[-1] / (hits + misses)[-1] > 0.99
    for noise in (1.0, 5.0, 20.0):
        assert not shrunk_table(state(hits, misses, noise), 10).noticeable
        # What is wrong by as much as the bin is wide is still seen.
        half = misses + hits // 4
        assert shrunk_table(state(hits - hits // 4, half, noise), 10).noticeable


@pytest.mark.parametrize("size", [3.0, 6.0, 8.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_one_large_noise_value_is_no_evidence(sign, size):
    rows = np.round(500 * np.exp(4 * MIDDLE) / np.exp(4 * MIDDLE).sum())
    for cell in range(2 * N_BINS):
        counts = np.array([MIDDLE * rows, (1 - MIDDLE) * rows])
        counts.reshape(-1)[cell] += sign * size * 14.0
        assert not shrunk_table(state(*counts, 14.0), 10).noticeable


@pytest.mark.parametrize("n_bins", [1, 2, 3])
def test_few_bins_have_a_chance_too(n_bins):
    for wrong in (0.0, 500.0):
        counts = HistogramState(
            np.full((1, n_bins), 500.0), np.full((1, n_bins), wrong), 2.0, 2.0
        )
        assert 0 <= shrunk_table(counts, 10).nothing <= 1


def test_an_input_that_is_too_sure_is_noticed():
    rng = np.random.default_rng(5)
    found = [
        shrunk_table(sampled(rng, 1500, 0.5, noise=20.0)[0], 10).noticeable
        for _ in range(50)
    ]
    assert all(found)
