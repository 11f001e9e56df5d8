"""Posterior of the temperature from noisy gaps, against slower ways to the same."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.stats import gamma, multivariate_normal, t

from skfedcal.methods.accuracy_temperature import gap_curve
from skfedcal.methods.accuracy_temperature.gap_curve import (
    CURVE_GRID,
    GapCurves,
    _gamma_curve,
)

LOW, HIGH = np.log([0.25, 32.0])


@pytest.mark.parametrize(("n_classes", "shape"), [(2, 0.8), (10, 1.8), (1000, 6.0)])
def test_curves_are_mean_confidences_under_a_gamma_law(n_classes, shape):
    law = gamma(shape, scale=1 / shape)
    curve = _gamma_curve(n_classes, shape)

    def weighed(lead, scale):
        return law.pdf(lead) / (1 + (n_classes - 1) * np.exp(-lead / scale))

    for i in (60, 85, 90, 100, 120):
        ends = ((0, 0.1), (0.1, 2), (2, 30))
        parts = [quad(weighed, *e, args=(np.exp(CURVE_GRID[i]),))[0] for e in ends]
        assert curve[i] == pytest.approx(sum(parts), abs=2e-3)
    assert (np.diff(curve) <= 0).all()


def slow_log_posterior(curves, grid, points, gaps, noise, n_rows):
    """The same sum, term by term."""
    out = np.zeros(len(grid))
    for i, root in enumerate(grid):
        away = points - root

        def smooth(d):
            d = np.sqrt(3) * np.abs(d) / gap_curve._LENGTH
            return (1 + d) * np.exp(-d)

        free = np.array(
            [[smooth(a - b) - smooth(a) - smooth(b) + 1 for a in away] for b in away]
        )
        spread = noise + gap_curve._FREEDOM**2 * free
        spread += gap_curve._JITTER**2 * np.eye(len(points))
        for shape in gap_curve._SHAPES:
            curve = _gamma_curve(curves.n_classes, shape)
            for level in gap_curve._LEVELS:
                k = curves.n_classes
                accuracy = 1 / k + (1 - 1 / k) / (1 + np.exp(-level))
                start = np.interp(-accuracy, -curve, CURVE_GRID)
                mean = accuracy - np.interp(start + away, CURVE_GRID, curve)
                chance = gap_curve._ROW_VARIANCE * accuracy * (1 - accuracy) / n_rows
                prior = np.exp(-(((level - 1.0) / 1.6) ** 2) / 2)
                prior *= np.exp(-((np.log(shape / 1.6) / 0.6) ** 2) / 2)
                out[i] += prior * multivariate_normal(mean, spread + chance).pdf(gaps)
    scale = np.where(grid < curves.center, 0.4, 0.8)
    return np.log(out) + t(3).logpdf((grid - curves.center) / scale)


@pytest.mark.parametrize("n_points", [1, 2, 4])
def test_posterior_is_the_sum_over_all_curves(n_points):
    rng = np.random.default_rng(n_points)
    curves = GapCurves(10, LOW, HIGH, center=0.2)
    points = np.linspace(LOW, HIGH, n_points + 2)[1:-1]
    gaps = np.sort(rng.normal(0, 0.2, n_points))
    root = rng.normal(size=(n_points, n_points)) * 0.05
    noise = root @ root.T + 0.02**2 * np.eye(n_points)
    grid = np.linspace(LOW, HIGH, 9)
    fast = curves._log_posterior(grid, points, gaps, noise, 300.0)
    slow = slow_log_posterior(curves, grid, points, gaps, noise, 300.0)
    assert_allclose(fast - fast[0], slow - slow[0], atol=1e-6)


def gap_of(rows, labels):
    gaps = rows - rows.max(axis=1, keepdims=True)
    right = (rows.argmax(axis=1) == labels).mean()
    return lambda u: right - np.mean(1 / np.exp(gaps * np.exp(-u)).sum(axis=1))


@pytest.mark.parametrize("c", [2, 10, 40])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.5, 9.0])
def test_six_temperatures_without_noise_leave_little_open(draw, c, temperature):
    rows, labels = draw(20_000, c, temperature, spread=2.0)
    gap = gap_of(rows, labels)
    points = np.linspace(LOW, HIGH, 8)[1:-1]
    values = np.array([gap(u) for u in points])
    posterior = GapCurves(c, LOW, HIGH).posterior(
        points, values, np.zeros((6, 6)), 20_000
    )
    assert abs(gap(posterior.mean)) < 0.01
    assert posterior.low < np.log(temperature) < posterior.high
    assert posterior.sd < 0.08 and posterior.learnt


@pytest.mark.parametrize("noise", [1e-6, 0.01, 0.3])
def test_the_interval_leaves_out_a_fortieth_on_either_side(noise):
    points = np.linspace(LOW, HIGH, 6)[1:-1]
    gaps = np.array([-0.25, -0.05, 0.12, 0.3])
    told = points, gaps, noise * np.eye(4), 200.0
    curves = GapCurves(10, LOW, HIGH, center=0.2)
    posterior = curves.posterior(*told)
    grid = np.linspace(LOW, HIGH, 2001)
    weight = np.exp(curves._log_posterior(grid, *told))
    below = np.cumsum(weight) / weight.sum()
    found = np.interp([posterior.low, posterior.high], grid, below)
    assert_allclose(found, [0.025, 0.975], atol=0.004)


def test_noise_beyond_measure_leaves_the_prior():
    posterior = GapCurves(10, LOW, HIGH).posterior(
        np.array([0.0, 1.0]), np.array([3.0, -40.0]), 1e6 * np.eye(2), 100
    )
    grid = np.linspace(LOW, HIGH, 4001)
    scale = np.where(grid < 0, 0.4, 0.8)
    weight = t(3).pdf(grid / scale)
    weight /= weight.sum()
    mean = weight @ grid
    sd = np.sqrt(weight @ (grid - mean) ** 2)
    assert posterior.mean == pytest.approx(mean, abs=0.01)
    assert posterior.sd == pytest.approx(sd, abs=0.01)
    assert posterior.prior_sd == pytest.approx(sd, abs=0.01)
    assert not posterior.learnt


def test_a_narrow_posterior_is_resolved():
    # With one point on the root, noise of 1e-4 and a slope of about 0.2 in log T.
    curves = GapCurves(10, LOW, HIGH)
    for root in (0.1234, 1.3, 2.9):
        points = np.array([root - 0.7, root, root + 0.7])
        gaps = np.array([-0.15, 0.0, 0.16])
        posterior = curves.posterior(points, gaps, 1e-8 * np.eye(3), 1e9)
        assert posterior.mean == pytest.approx(root, abs=0.003)
        assert posterior.sd < 0.01
        assert posterior.low < root < posterior.high


def test_a_public_curve_that_is_the_true_one_brings_the_root_nearer():
    # Rows of few distinct leads: a curve with steps, unlike any of the family.
    rng = np.random.default_rng(0)
    rows = np.zeros((4000, 3))
    rows[np.arange(4000), rng.integers(0, 3, 4000)] = rng.choice([0.3, 25.0], 4000)
    right = rng.random(4000) < 0.6
    labels = np.where(right, rows.argmax(axis=1), (rows.argmax(axis=1) + 1) % 3)
    gap = gap_of(rows, labels)
    points = np.linspace(LOW, HIGH, 4)[1:-1]
    values = np.array([gap(u) for u in points])
    noise = 1e-6 * np.eye(2)
    public = tuple(right.mean() - gap(u) for u in CURVE_GRID)
    left = []
    for curve in ((), public):
        curves = GapCurves(3, LOW, HIGH, 0.0, curve)
        left.append(abs(gap(curves.posterior(points, values, noise, 1e5).mean)))
    assert left[1] < left[0]
