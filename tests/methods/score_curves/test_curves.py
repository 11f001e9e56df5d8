"""Curves by hand, against scikit-learn, and under noise."""

import numpy as np
import pytest
from scipy.special import betaln, expit, logit, softmax
from scipy.stats import chi2, norm
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from skfedcal.evaluation.grid import ScoreGrid, equal_mass
from skfedcal.evaluation.noise import LevelLaw, NoiseModel
from skfedcal.methods.score_curves.curves import (
    Curve,
    Leaves,
    choose,
    deviations,
    evidence,
    features,
    fit_bins,
    fit_curve,
    fit_isotonic,
    fit_quantile_bbq,
    fit_sigmoid,
    saving,
    shrinkage_weight,
    smoothed,
)

EXACT = NoiseModel((LevelLaw(7),))


def leaves_of(counts, noise=EXACT, space="prob"):
    counts = np.asarray(counts, dtype=float)
    grid = ScoreGrid(int(np.log2(counts.shape[1])), space)
    return Leaves(counts, logit(grid.centres), logit(grid.edges[1:-1]), noise)


def draw(rng, n, shape=lambda z: z, height=7, mean=-0.5):
    """Counts of scores whose true log-odds are normal, seen through `shape`."""
    true = rng.normal(mean, 1.6, n)
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


def test_rows_of_noisy_leaves_are_none_negative_and_as_many_as_there_are():
    counts = [[5, -3, 2, 0], [1, 1, -4, 2]]
    noise = NoiseModel((LevelLaw(2, "additive", 1.0),))
    assert leaves_of(counts, noise).rows().tolist() == [3, 0, 0, 1]
    assert leaves_of(np.abs(counts)).rows().tolist() == [6, 4, 6, 2]


def test_bins_by_hand():
    counts = np.zeros((2, 8))
    counts[:, 1], counts[:, 6] = (30, 10), (10, 30)
    curve = fit_bins(leaves_of(counts), 2)
    # One pseudo-row in each bin at the middle of its rows' leaves, 1.5/8 and 6.5/8.
    expected = [(10 + 1.5 / 8) / 41, (30 + 6.5 / 8) / 41]
    np.testing.assert_allclose(curve.values, expected)
    assert len(curve.points) == 1 and logit(0.25) <= curve.points[0] <= logit(0.75)


def test_a_bin_without_a_label_is_no_more_certain_than_its_rows_or_the_input():
    counts = np.zeros((2, 1024))
    counts[0, 0], counts[0, 100], counts[1, 1000] = 99, 99, 99
    values = fit_bins(leaves_of(counts), 3).values
    # The input: half a leaf of 1024. The others: half an example in 99 and two halves.
    np.testing.assert_allclose(values, [0.5 / 1024, 0.5 / 100, 1 - 0.5 / 100])
    # Under noise: as many examples more as its deviation.
    noise = NoiseModel((LevelLaw(10, "additive", 8.0),))
    counts = np.zeros((2, 1024))
    counts[0, 300:308], counts[1, 300:308] = 500, -1
    counts[1, 800] = 4000
    values = fit_bins(leaves_of(counts, noise), 2).values
    spread = fit_bins(leaves_of(counts), 2).values
    assert 10 * spread[0] < values[0] < 0.1 and 0.9 < values[1] < 1


@pytest.mark.parametrize("space", ["prob", "logit"])
def test_isotonic_is_that_of_scikit_learn_with_half_an_example_at_either_end(space):
    counts = draw(np.random.default_rng(0), 3000, bent)
    leaves = leaves_of(counts, space=space)
    centres = expit(leaves.odds)
    used = np.flatnonzero(counts.sum(axis=0))
    weights = counts.astype(float)
    weights[1, used[0]] += 0.5
    weights[0, used[-1]] += 0.5
    oracle = IsotonicRegression(out_of_bounds="clip").fit(
        np.tile(centres, 2), np.repeat([0.0, 1.0], len(centres)), weights.ravel()
    )
    at = np.linspace(0.001, 0.999, 500)
    found = expit(fit_isotonic(leaves)(logit(at)))
    np.testing.assert_allclose(found, oracle.predict(at), atol=1e-9)
    assert found.min() > 0 and found.max() < 1


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


@pytest.mark.parametrize(
    "method", ["bins", "bbq", "bbq_quantile", "isotonic", "platt", "beta"]
)
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
    if method not in ("bins", "bbq", "bbq_quantile"):
        assert (np.diff(out) >= 0).all()


def test_bins_of_equal_mass_are_averaged_as_printed():
    """Naeini et al., section 3, by Beta functions and over rows."""
    counts = draw(np.random.default_rng(11), 3000, overconfident)
    leaves = leaves_of(counts)
    n_leaves = counts.shape[1]
    edges = np.linspace(0, 1, n_leaves + 1)
    logs, tables = [], []
    # 3000**(1/3) is 14.4. More bins than leaves with rows are the same bins again.
    every = {tuple(equal_mass(counts, n_bins)): None for n_bins in range(2, 145)}
    for first in map(np.array, every):
        last = np.append(first[1:], n_leaves)
        score, table = 0.0, np.zeros(n_leaves)
        for a, b in zip(first, last, strict=True):
            n, p = counts[:, a:b].sum(axis=1)
            middle = (edges[a] + edges[b]) / 2
            alpha = 2 / len(first) * middle
            beta = 2 / len(first) * (1 - middle)
            score += betaln(p + alpha, n + beta) - betaln(alpha, beta)
            table[a:b] = (p + alpha) / (p + n + alpha + beta)
        logs.append(score)
        tables.append(table)
    weights = softmax(logs)
    found = expit(fit_quantile_bbq(leaves)(leaves.odds))
    np.testing.assert_allclose(found, weights @ np.array(tables), atol=1e-6)


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


@pytest.mark.parametrize(
    "method", ["platt", "beta", "bins", "isotonic", "bbq", "bbq_quantile"]
)
@pytest.mark.parametrize("eps", [None, 1.0])
def test_the_saving_less_its_optimism_is_that_on_other_rows(method, eps):
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
        told, optimism = saving(
            leaves, curve, averaged=method if "bbq" in method else ""
        )
        gaps.append(told - optimism - n * np.sum(other * logs))
    # Six standard errors, and 3 nats (of some 300) for terms of higher order.
    assert abs(np.mean(gaps)) < 6 * np.std(gaps) / np.sqrt(repeats) + 3


def test_optimism_of_exact_counts_is_the_number_of_coefficients():
    leaves = leaves_of(draw(np.random.default_rng(9), 20_000, overconfident))
    for method, number in (("platt", 2), ("beta", 3), ("bins", 10)):
        found = saving(leaves, fit_curve(leaves, method, 10))[1]
        assert found == pytest.approx(number, rel=0.05)
    curve = fit_isotonic(leaves)
    steps = len(np.unique(curve.values))
    assert saving(leaves, curve)[1] == pytest.approx(steps + 2, abs=1)


@pytest.mark.parametrize("freedom", [1, 2, 8, 80])
def test_deviations_are_those_of_the_same_chance(freedom):
    for chance in (0.5, 0.1, 1e-2, 1e-4):
        found = deviations(chi2.isf(chance, freedom), freedom)
        assert found == pytest.approx(norm.isf(chance), abs=0.06 + 0.2 / freedom)
    assert deviations(0.0, 0) == -np.inf


def test_evidence_by_hand():
    # One leaf around 1/2 has all rows: only their number of positives can differ.
    counts = np.zeros((2, 4))
    counts[:, 2] = 40, 60
    leaves = leaves_of(counts)
    chance = expit(leaves.odds[2])
    statistic = (60 - 100 * chance) ** 2 / (100 * chance * (1 - chance))
    assert evidence([leaves]) == pytest.approx(deviations(statistic, 1))
    # Two scores have their statistics and their freedom added up.
    assert evidence([leaves] * 2) == pytest.approx(deviations(2 * statistic, 2))
    assert evidence([leaves_of(np.zeros((2, 4)))]) == -np.inf


def test_evidence_of_slope_and_shift_is_the_score_test_of_a_logistic_model():
    rng = np.random.default_rng(11)
    counts = draw(rng, 2000, lambda z: z + 0.2)
    leaves = leaves_of(counts)
    rows = np.stack([leaves.odds, np.ones_like(leaves.odds)], axis=1)
    chance = expit(leaves.odds)
    total = counts.sum(axis=0)
    score = rows.T @ (counts[1] - total * chance)
    bend = (rows * (total * chance * (1 - chance))[:, None]).T @ rows
    expected = score @ np.linalg.solve(bend, score)
    # Eight groups say less about a small shift.
    assert evidence([leaves]) == pytest.approx(deviations(expected, 2), rel=1e-3)


@pytest.mark.parametrize("mean", [-0.5, -4.0])
@pytest.mark.parametrize("eps", [None, 3.0, 0.02])
def test_evidence_of_calibrated_scores_has_its_size(eps, mean):
    rng = np.random.default_rng(12)
    repeats = 300
    found = []
    for _ in range(repeats):
        # With -4 most groups are empty but for noise.
        counts = draw(rng, 2000, height=10 if eps is None else 7, mean=mean)
        leaves = leaves_of(counts) if eps is None else noised(rng, counts, eps)
        found.append(evidence([leaves]))
    # By the two tests, at most twice 2.3 % beyond 2; six deviations of a count of 300,
    # and some for the tails of Laplace noise.
    assert np.mean(np.array(found) > 2) < 0.046 + 6 * np.sqrt(0.046 / repeats)
    # Beyond 3.5 twice 0.02 %: three of 300 by a chance below 1e-4, and of noise.
    assert np.sum(np.array(found) > 3.5) <= 3


def test_the_worth_of_a_curve_by_hand():
    assert (
        shrinkage_weight(1.9, 2.0)
        == shrinkage_weight(2.0, 2.0)
        == shrinkage_weight(-1.0, 2.0)
        == 0.0
    )
    assert shrinkage_weight(4.0, 2.0) == pytest.approx(0.75)
    assert shrinkage_weight(20.0, 2.0) == pytest.approx(0.99)


def test_auto_takes_the_line_for_a_line_and_the_curve_for_a_curve():
    rng = np.random.default_rng(6)
    straight = noised(rng, draw(rng, 30_000, overconfident), 1.0)
    curved = noised(rng, draw(rng, 30_000, bent), 1.0)
    assert choose([straight], "auto", 15).method == "platt"
    assert choose([curved], "auto", 15).method == "isotonic"
    # With noise that hides the shape two coefficients are left.
    hidden = noised(rng, draw(rng, 300, bent), 0.1)
    assert choose([hidden], "auto", 15).method == "platt"


@pytest.mark.parametrize("method", ["platt", "isotonic", "bins", "bbq", "bbq_quantile"])
def test_a_curve_is_used_where_it_helps(method):
    rng = np.random.default_rng(7)
    for _ in range(10):
        helps = choose([noised(rng, draw(rng, 20_000, overconfident), 1.0)], method, 15)
        assert helps.weight > 0.9 and helps.evidence > 10 and helps.gain > 0.02
    harms = [
        choose([noised(rng, draw(rng, 20_000), 1.0)], method, 15) for _ in range(40)
    ]
    # Beyond 3.5 deviations by a chance of 1e-3 at most.
    assert sum(choice.weight > 0 for choice in harms) <= 1


@pytest.mark.parametrize("n_rows", [100, 1000])
@pytest.mark.parametrize(
    "method", ["auto", "platt", "beta", "isotonic", "bins", "bbq", "bbq_quantile"]
)
def test_few_rows_of_calibrated_scores_make_no_harmful_curve(method, n_rows):
    rng = np.random.default_rng(8)
    at = np.sort(rng.normal(-0.5, 1.6, 500))
    chance = expit(at)
    harm = []
    for _ in range(60):
        choice = choose([leaves_of(draw(rng, n_rows, height=10))], method, 15)
        new = choice.weight * choice.curves[0](at) + (1 - choice.weight) * at
        loss = chance * np.logaddexp(0, -new) + (1 - chance) * np.logaddexp(0, new)
        best = chance * np.logaddexp(0, -at) + (1 - chance) * np.logaddexp(0, at)
        harm.append(np.mean(loss - best))
    # The curves themselves lose 0.01 (platt) to 0.14 (bins) with 100 rows.
    assert np.mean(harm) < 0.005 and np.max(harm) < 0.1
