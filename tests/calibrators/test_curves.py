"""Curves by hand, against scikit-learn, and under noise."""

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from skfedcal.calibrators._curve_choice import fit_curve, fit_curves, gain
from skfedcal.calibrators._curves import (
    Curve,
    Leaves,
    equal_mass,
    features,
    fit_bins,
    fit_isotonic,
    fit_sigmoid,
    smoothed,
)
from skfedcal.evaluation._grid import ScoreGrid
from skfedcal.evaluation._noise import LevelLaw, NoiseModel

EXACT = NoiseModel((LevelLaw(7),))


def leaves_of(counts, noise=EXACT, space="prob"):
    counts = np.asarray(counts, dtype=float)
    grid = ScoreGrid(int(np.log2(counts.shape[1])), space)
    return Leaves(counts, logit(grid.centres), logit(grid.edges[1:-1]), noise)


def draw(rng, n, shape=lambda z: z, height=7):
    """Counts of scores whose true log-odds are normal, seen through `shape`."""
    true = rng.normal(-0.5, 1.6, n)
    labels = (rng.random(n) < expit(true)).astype(int)
    size = 2**height
    bucket = np.minimum((expit(shape(true)) * size).astype(int), size - 1)
    return np.bincount(labels * size + bucket, minlength=2 * size).reshape(2, size)


def noised(rng, counts, eps, levels=(3, 7)):
    chance = -np.expm1(-eps / len(levels))
    totals = []
    for bits in levels:
        total = counts.reshape(2, 2**bits, -1).sum(axis=-1)
        more = rng.geometric(chance, total.shape) - rng.geometric(chance, total.shape)
        totals.append(total + more)
    variance = 2 * (1 - chance) / chance**2
    noise = NoiseModel(tuple(LevelLaw(b, "additive", variance) for b in levels))
    return leaves_of(noise.estimate(totals), noise)


def overconfident(z):
    return 2 * z + 0.7


def bent(z):
    return np.sinh(z) + 0.3


def test_curves_by_hand():
    odds = np.array([-2.0, 0.0, 1.0, 30.0])
    steps = Curve("steps", np.array([0.0, 2.0]), np.array([0.1, 0.5, 0.8]))
    np.testing.assert_allclose(expit(steps(odds)), [0.1, 0.5, 0.5, 0.8])
    line = Curve("line", np.array([0.25, 0.75]), np.array([0.4, 0.6]))
    np.testing.assert_allclose(expit(line(logit([0.1, 0.5, 0.9]))), [0.4, 0.5, 0.6])
    platt = Curve("platt", np.empty(0), np.array([0.5, 1.0]))
    np.testing.assert_allclose(platt(odds), 0.5 * odds + 1)
    beta = Curve("beta", np.empty(0), np.array([2.0, 0.5, 0.1]))
    p = expit(odds[:3])
    np.testing.assert_allclose(
        beta(odds[:3]), 2 * np.log(p) - 0.5 * np.log(1 - p) + 0.1
    )


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_certain_values_stay_finite(value):
    curve = Curve("steps", np.empty(0), np.array([value]))
    assert np.isfinite(curve(np.array([-1e6, 0.0, 1e6]))).all()


def test_buckets_of_equal_mass_by_hand():
    counts = np.array([[1, 1, 0, 2, 0, 0, 1, 3], [0, 0, 0, 0, 0, 0, 0, 0]])
    assert equal_mass(counts, 2).tolist() == [0, 4]
    assert equal_mass(counts, 4).tolist() == [0, 2, 4, 7]
    # All examples in one leaf: nothing to divide.
    spike = np.zeros((2, 8))
    spike[:, 3] = 50
    assert len(equal_mass(spike, 4)) <= 3
    assert equal_mass(np.zeros((2, 8)), 4).tolist() == [0, 2, 4, 6]


def test_bins_by_hand():
    counts = np.zeros((2, 8))
    counts[:, 1], counts[:, 6] = (30, 10), (10, 30)
    curve = fit_bins(leaves_of(counts), 2)
    # One pseudo-row in each bin at the middle of its rows' leaves, 1.5/8 and 6.5/8.
    expected = [(10 + 1.5 / 8) / 41, (30 + 6.5 / 8) / 41]
    np.testing.assert_allclose(curve.values, expected)
    assert len(curve.points) == 1 and logit(0.25) <= curve.points[0] <= logit(0.75)


@pytest.mark.parametrize("space", ["prob", "logit"])
def test_isotonic_is_that_of_scikit_learn_on_leaf_centres(space):
    counts = draw(np.random.default_rng(0), 3000, bent)
    leaves = leaves_of(counts, space=space)
    centres = expit(leaves.odds)
    rows = np.repeat(np.tile(centres, 2), counts.ravel())
    labels = np.repeat([0.0, 1.0], counts.sum(axis=1))
    oracle = IsotonicRegression(out_of_bounds="clip").fit(rows, labels)
    at = np.linspace(0.001, 0.999, 500)
    # Values are kept half an example away from 0 and 1.
    np.testing.assert_allclose(
        expit(fit_isotonic(leaves)(logit(at))), oracle.predict(at), atol=0.5 / 3000
    )


@pytest.mark.parametrize("kind", ["platt", "beta"])
def test_sigmoids_are_logistic_regressions_on_smoothed_labels(kind):
    leaves = leaves_of(draw(np.random.default_rng(1), 3000, overconfident))
    rows = features(leaves.odds, kind)[:, :-1]
    weights = smoothed(leaves.counts)
    oracle = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(
        np.tile(rows, (2, 1)), np.repeat([0, 1], 128), weights.ravel()
    )
    found = fit_sigmoid(leaves, kind).values
    np.testing.assert_allclose(found[:-1], oracle.coef_[0], rtol=1e-4)
    assert found[-1] == pytest.approx(oracle.intercept_[0], rel=1e-3)


@pytest.mark.parametrize("kind", ["platt", "beta"])
def test_slopes_are_never_negative(kind):
    counts = draw(np.random.default_rng(2), 2000)[::-1]
    found = fit_sigmoid(leaves_of(counts), kind).values
    assert (found[:-1] >= 0).all()
    if kind == "platt":
        # Only the base rate, with Platt's targets, is left.
        target = smoothed(counts)[1].sum() / counts.sum()
        assert found.tolist() == [0.0, pytest.approx(logit(target))]


@pytest.mark.parametrize("method", ["bins", "bbq", "isotonic", "platt", "beta"])
@pytest.mark.parametrize(
    "counts",
    [
        np.zeros((2, 8)),
        np.eye(2, 8),
        np.eye(2, 8)[:, ::-1],
        np.stack([np.ones(8), np.zeros(8)]),
        np.stack([np.zeros(8), np.full(8, 1e6)]),
    ],
    ids=["empty", "separated", "reversed", "negative", "positive"],
)
def test_hard_counts_give_a_finite_curve(method, counts):
    curve = fit_curve(leaves_of(counts), method, 4)
    out = curve(np.array([-1e6, -3.0, 0.0, 3.0, 1e6]))
    assert np.isfinite(out).all()
    if method not in ("bins", "bbq"):
        assert (np.diff(out) >= 0).all()


def test_the_score_equation_is_solved_with_unclipped_counts():
    rng = np.random.default_rng(3)
    leaves = noised(rng, draw(rng, 20_000, overconfident), 0.05)
    assert leaves.counts.min() < 0
    found = fit_sigmoid(leaves, "platt").values
    rows = features(leaves.inner_odds(), "platt")
    chance = expit(rows @ found)
    score = rows.T @ (leaves.counts[1] - leaves.counts.sum(axis=0) * chance)
    np.testing.assert_allclose(score, 0, atol=1e-5)


def test_unclipped_counts_have_no_bias_toward_one_half():
    rng = np.random.default_rng(4)
    counts = draw(rng, 5000, overconfident)
    exact = fit_sigmoid(leaves_of(counts), "platt").values[0]
    noisy = [noised(rng, counts, 0.3) for _ in range(60)]
    slopes = [fit_sigmoid(leaves, "platt").values[0] for leaves in noisy]
    clipped = [
        fit_sigmoid(leaves_of(np.maximum(x.counts, 0)), "platt").values[0]
        for x in noisy
    ]
    # The noise of one slope is 0.03; the mean of 60 is known to 0.004.
    assert abs(np.mean(slopes) - exact) < 0.02
    assert np.mean(clipped) < exact - 0.015


@pytest.mark.parametrize("method", ["platt", "beta", "bins", "isotonic"])
@pytest.mark.parametrize("eps", [None, 1.0])
def test_the_gain_is_that_on_other_rows(method, eps):
    rng = np.random.default_rng(5)
    n, repeats = 4000, 80
    other = draw(rng, 2_000_000, overconfident) / 2_000_000
    gaps = []
    for _ in range(repeats):
        counts = draw(rng, n, overconfident)
        leaves = leaves_of(counts) if eps is None else noised(rng, counts, eps)
        curve = fit_curve(leaves, method, 10)
        at = leaves.inner_odds()
        new = curve(at)
        logs = np.logaddexp(0, [at, -at]) - np.logaddexp(0, [new, -new])
        told, variance = gain(leaves, curve)
        gaps.append(told - n * np.sum(other * logs))
    # Six standard errors, and 3 nats (of some 300) for terms of higher order.
    assert abs(np.mean(gaps)) < 6 * np.std(gaps) / np.sqrt(repeats) + 3
    # The deviation that is told is that of the gain about the truth.
    assert 0.6 < np.std(gaps) / np.sqrt(variance) < 1.6


def test_auto_takes_the_line_for_a_line_and_the_curve_for_a_curve():
    rng = np.random.default_rng(6)
    straight = noised(rng, draw(rng, 30_000, overconfident), 1.0)
    curved = noised(rng, draw(rng, 30_000, bent), 1.0)
    assert fit_curves([straight], "auto", 15)[0] == "platt"
    assert fit_curves([curved], "auto", 15)[0] == "isotonic"
    # With noise that hides the shape two coefficients are left.
    assert (
        fit_curves([noised(rng, draw(rng, 300, bent), 0.1)], "auto", 15)[0] == "platt"
    )


@pytest.mark.parametrize("method", ["platt", "isotonic", "bins"])
def test_a_gain_is_noticed_where_there_is_one(method):
    rng = np.random.default_rng(7)
    helps = [
        fit_curves([noised(rng, draw(rng, 20_000, overconfident), 1.0)], method, 15)[2]
        for _ in range(10)
    ]
    harms = [
        fit_curves([noised(rng, draw(rng, 20_000), 1.0)], method, 15)[2]
        for _ in range(40)
    ]
    assert all(helps)
    # Two standard deviations: 2.3 % by chance, of a gain that is below 0 on average.
    assert sum(harms) <= 5
