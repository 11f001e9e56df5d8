"""Intervals against those of other packages, naive searches and simulation."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from skfedcal.evaluation.calibration import (
    KNOWN,
    _square_interval,
    folded_mean,
    sum_interval,
    unfold,
)
from skfedcal.evaluation.intervals import (
    freedom,
    quantile,
    ratio_interval,
    unit_band,
    unit_interval,
)

Z = 1.959963984540054
NO_NOISE = (0.0, 0.0, 0.0)


def test_quantiles_are_those_of_the_normal_and_of_students_law():
    assert quantile(0.95) == pytest.approx(Z)
    assert quantile(0.9, 7.0) == pytest.approx(stats.t.ppf(0.95, 7))
    for ci in (0, 1, 95):
        with pytest.raises(ValueError, match="confidence level"):
            quantile(ci)


@pytest.mark.parametrize(("part", "whole"), [(8, 20), (40, 50), (0, 30), (30, 30)])
def test_a_share_without_noise_has_the_interval_of_wilson(part, whole):
    found = ratio_interval(part, whole, NO_NOISE, Z)
    known = stats.binomtest(part, whole).proportion_ci(method="wilson")
    assert found == pytest.approx((known.low, known.high), abs=1e-12)
    share = part / whole
    sampling = share * (1 - share) / whole
    same = unit_interval(share, sampling, 0.0, Z, rows=whole)
    assert same == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("part", [1, 2, 4])
def test_few_rows_have_the_exact_end(part):
    exact = stats.binomtest(part, 500).proportion_ci(method="exact")
    wilson = stats.binomtest(part, 500).proportion_ci(method="wilson")
    low, high = ratio_interval(part, 500, NO_NOISE, Z)
    assert low == pytest.approx(exact.low) and low < wilson.low
    assert high == pytest.approx(wilson.high)
    other = ratio_interval(500 - part, 500, NO_NOISE, Z)
    assert other == pytest.approx((1 - high, 1 - low))


@pytest.mark.parametrize("noise", [(50.0, 30.0, 90.0), (900.0, -200.0, 1600.0)])
def test_noise_is_in_the_ratio_as_fieller_has_it(noise):
    part, whole = 60.0, 200.0
    own, both, all_ = noise

    def away(r):
        spread = whole * r * (1 - r) + own - 2 * r * both + r**2 * all_
        return (part - r * whole) ** 2 - Z**2 * spread

    low, high = ratio_interval(part, whole, noise, Z)
    assert low == pytest.approx(brentq(away, 0.0, 0.3) if away(0.0) > 0 else 0.0)
    assert high == pytest.approx(brentq(away, 0.3, 1.0))


def test_a_denominator_that_may_be_noise_tells_nothing():
    assert ratio_interval(3.0, 30.0, (10.0, 5.0, 400.0), Z) == (0.0, 1.0)
    assert ratio_interval(3.0, -1.0, (10.0, 5.0, 1.0), Z) == (0.0, 1.0)


@given(
    value=st.floats(-0.5, 1.5),
    sampling=st.floats(0, 0.2),
    privacy=st.floats(0, 0.5),
    rows=st.floats(1, 1e6),
)
@example(value=1.8645851828000517e-155, sampling=0.125, privacy=0.0, rows=1.0)
@example(value=5e-324, sampling=0.2, privacy=0.0, rows=1.0)
def test_an_interval_holds_its_centre_and_has_a_width(value, sampling, privacy, rows):
    low, high = unit_interval(value, sampling, privacy, Z, rows)
    assert 0 <= low <= min(max(value, 0), 1) <= high <= 1
    assert high - low > 1e-7
    wider = unit_interval(value, sampling, privacy + 0.1, Z, rows)
    assert wider[0] <= low and wider[1] >= high


def test_bands_are_intervals():
    value, zero = np.array([0.0, 0.3, 1.0]), np.zeros(3)
    low, high = unit_band(value, zero + 1e-3, zero + 1e-4, Z, zero + 50)
    for i in range(3):
        one = unit_interval(float(value[i]), 1e-3, 1e-4, Z, rows=50.0)
        assert (low[i], high[i]) == one


def test_degrees_of_freedom_are_those_of_the_law_of_a_variance():
    # A share of half: the variance of n rows of +-1/2 is (nearly) known.
    counts, half = np.array([[50.0, 50.0]]), np.array([[-0.005, 0.005]])
    assert freedom(counts, half, 0.0025, 0.0) == np.inf
    # Normal rows: n, as of an ordinary variance (n - 1, to first order in n).
    places = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    weight = places[None] / 4000
    sampling = float((weight**2).sum())
    rows = np.ones((1, 4000))
    assert freedom(rows, weight, sampling, 0.0) == pytest.approx(4000, rel=0.02)
    # Noise of the same variance, which is known: four times as many.
    both = freedom(rows, weight, sampling, sampling)
    assert both == pytest.approx(4 * freedom(rows, weight, sampling, 0.0))
    assert freedom(rows, weight, 0.0, 1.0) == np.inf


def test_folded_means_are_those_of_scipy():
    for mean in (0.0, 0.4, 2.0, 9.0):
        expected = stats.foldnorm.mean(mean)
        assert folded_mean(np.array([mean]))[0] == pytest.approx(expected)


def test_unfolding_is_the_inverse_of_folding():
    means, sigmas = np.array([0.3, 1.0, 4.0]), np.array([0.5, 2.0, 1.0])
    sizes = sigmas * folded_mean(means / sigmas)
    np.testing.assert_allclose(unfold(sizes, sigmas), means, atol=1e-9)
    assert unfold(np.array([0.5]), np.array([1.0]))[0] == pytest.approx(0, abs=1e-9)
    assert unfold(np.array([0.5]), np.array([0.0]))[0] == 0.5


def test_a_sum_with_known_signs_has_a_normal_interval():
    sizes, sigmas = np.array([8.0, 20.0]), np.array([1.0, 2.0])
    low, high = sum_interval(sizes, sigmas, 5.0, Z)
    assert (low, high) == pytest.approx((28 - Z * 5**0.5, 28 + Z * 5**0.5))
    assert sum_interval(sizes, np.zeros(2), 0.0, Z) == (28.0, 28.0)


def test_where_nothing_shows_the_interval_starts_at_zero_and_has_a_width():
    for n in (1, 5, 15, 100):
        low, high = sum_interval(np.zeros(n), np.ones(n), 0.0, Z)
        assert low == 0 and 0.3 * n < high < 3 * n
    # Noise alone of 15 bins: no more than 1.5 standard deviations each.
    noise = np.abs(stats.norm.ppf((np.arange(15) + 0.5) / 15))
    low, high = sum_interval(noise, np.ones(15), 0.0, Z)
    assert low == 0 and high < 1.5 * 15


MEANS = {
    "none": np.zeros(15),
    "equal": np.full(15, 0.8),
    "one": np.r_[np.zeros(14), 6.0],
    "some": np.r_[np.zeros(10), np.full(5, 3.0)],
    "all": np.full(15, 5.0),
    "few bins": np.array([0.5, -1.0]),
}


@pytest.mark.parametrize("name", MEANS)
def test_intervals_hold_the_sum_of_absolute_means(name):
    # 1380 or fewer of 1500 draws have a chance of 5e-7 at the least coverage, .95; it
    # is .98 or more where signs are not known.
    rng = np.random.default_rng(0)
    means = MEANS[name]
    sigmas = np.linspace(0.5, 2.0, len(means))
    truth, inside = np.abs(means * sigmas).sum(), 0
    for _ in range(1500):
        found = (means + rng.normal(size=len(means))) * sigmas
        known = np.abs(found) > KNOWN * sigmas
        joint = float((sigmas[known] ** 2).sum())
        low, high = sum_interval(np.abs(found), sigmas, joint, Z)
        inside += low <= truth <= high
    assert inside > 1380


@pytest.mark.parametrize("size", [0.0, 0.7, 3.0])
def test_intervals_hold_a_sum_of_squared_means(size):
    # 1364 or fewer of 1500 draws have a chance of 2e-6 at a coverage of .94, that of a
    # chi-square law taken for a normal one.
    rng = np.random.default_rng(1)
    means, variances = np.full(12, size), np.linspace(0.5, 2.0, 12)
    weights = np.linspace(1.0, 3.0, 12)
    truth, inside = float(weights @ means**2), 0
    free = 2 * float(((weights * variances) ** 2).sum())
    for _ in range(1500):
        found = means + rng.normal(size=12) * np.sqrt(variances)
        value = float(weights @ (found**2 - variances))
        rise = max(float((4 * weights**2 * found**2) @ variances) - 2 * free, 0.0)
        spent = float(weights @ variances)
        low, high = _square_interval(value, rise, free, spent, Z)
        inside += low <= truth <= high
    assert inside > 1364


@pytest.mark.parametrize("n", [1, 3, 12])
def test_squares_of_noise_alone_leave_zero_with_the_chance_of_their_law(n):
    # A sum of n squares less its mean, n: chi-square with n degrees.
    end = stats.chi2.isf(stats.norm.sf(Z), n) - n
    ends = [
        _square_interval(end + step, 4 * (end + step), 2.0 * n, float(n), Z)[0]
        for step in (-1e-6, 1e-6)
    ]
    assert ends[0] == 0 and ends[1] > 0
    # Normal intervals would leave it in 4.2 to 5.1 of 100 cases, not 2.5.
    assert stats.chi2.sf(n + Z * (2 * n) ** 0.5, n) > 0.04
