"""Bayesian binning: scores by hand, against a loop, and what noise does to them."""

import warnings
from math import gamma, lgamma

import numpy as np
import pytest
from scipy.special import expit

from skfedcal import FedBBQCalibrator, FedBinCalibrator, _compiled
from skfedcal.methods.bins.bbq_table import (
    Levels,
    bbq_table,
    joined_table,
    level_shares,
    log_scores,
)
from skfedcal.methods.bins.rounds import bin_table
from skfedcal.methods.buckets import bin_index


def score_by_loop(positive, negative):
    """Logarithm of the score of one histogram, as Naeini et al. print it."""
    n_bins, total = len(positive), 0.0
    for b in range(n_bins):
        p, weight = (b + 0.5) / n_bins, 2 / n_bins
        alpha, beta, rows = weight * p, weight * (1 - p), positive[b] + negative[b]
        total += lgamma(weight) - lgamma(rows + weight)
        total += lgamma(positive[b] + alpha) - lgamma(alpha)
        total += lgamma(negative[b] + beta) - lgamma(beta)
    return total


def bbq_by_loop(proba, labels, n_levels):
    """Averaged value at each row of one class, from rows and not from counts."""
    scores, values = [], []
    for level in range(1, n_levels + 1):
        n_bins = 2**level
        positive, negative = [0] * n_bins, [0] * n_bins
        bins = [min(int(p * n_bins), n_bins - 1) for p in proba]
        for b, label in zip(bins, labels, strict=True):
            positive[b] += label
            negative[b] += 1 - label
        scores.append(score_by_loop(positive, negative))
        means = [
            (positive[b] + 2 / n_bins * (b + 0.5) / n_bins)
            / (positive[b] + negative[b] + 2 / n_bins)
            for b in range(n_bins)
        ]
        values.append([means[b] for b in bins])
    shares = np.exp(np.array(scores) - max(scores))
    shares /= shares.sum()
    return shares @ np.array(values), shares


def drawn_counts(n_classes=4, n_bins=16, seed=0, rate=4.0):
    rng = np.random.default_rng(seed)
    return (
        rng.poisson(rate, (n_classes, n_bins)).astype(float),
        rng.poisson(2 * rate, (n_classes, n_bins)).astype(float),
    )


def test_scores_of_one_row_by_hand():
    # Two bins: a = p = 1/4, b = 3/4. One positive row: G(1)/G(2) * G(5/4)/G(1/4) = 1/4,
    # the prior mean; one negative row in the upper bin (p = 3/4): again 1/4.
    levels = Levels.of(2)
    one = log_scores(np.array([[1.0, 0.0]]), np.array([[0.0, 0.0]]), levels)
    two = log_scores(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]), levels)
    np.testing.assert_allclose(np.exp([one, two]).ravel(), [1 / 4, 1 / 16])


def test_score_of_more_rows_by_hand():
    # Bin 0 of 2: m = 1, n = 2, weight 1, a = 1/4, b = 3/4. Bin 1: m = 2, n = 0.
    first = gamma(1) / gamma(4) * gamma(1.25) / gamma(0.25) * gamma(2.75) / gamma(0.75)
    second = gamma(1) / gamma(3) * gamma(2.75) / gamma(0.75)
    # The rising factorials: 1/4 * (3/4 * 7/4) / 3! and (3/4 * 7/4) / 2!.
    assert first == pytest.approx(1 / 4 * 21 / 16 / 6)
    assert second == pytest.approx(21 / 16 / 2)
    found = log_scores(np.array([[1.0, 2.0]]), np.array([[2.0, 0.0]]), Levels.of(2))
    assert np.exp(found[0, 0]) == pytest.approx(first * second)


def test_scores_of_all_levels_and_classes_equal_a_loop():
    levels = Levels.of(16)
    positive, negative = drawn_counts()
    positive[2] = 0  # a class that no client has
    negative[3, 5:] = 0
    found = log_scores(levels.merge(positive), levels.merge(negative), levels)
    for j in range(4):
        for i, n_bins in enumerate([2, 4, 8, 16]):
            merged = [c[j].reshape(n_bins, -1).sum(1) for c in (positive, negative)]
            assert found[j, i] == pytest.approx(score_by_loop(*merged), rel=1e-12)


def test_table_of_one_class_equals_an_independent_loop_over_rows():
    rng = np.random.default_rng(1)
    proba = rng.random(700)
    labels = (rng.random(700) < proba**2).astype(int)
    cells = bin_index(proba, 32)
    positive = np.bincount(cells[labels == 1], minlength=32)[None].astype(float)
    negative = np.bincount(cells[labels == 0], minlength=32)[None].astype(float)
    table, shares = bbq_table(positive, negative)
    expected, weights = bbq_by_loop(proba.tolist(), labels.tolist(), 5)
    np.testing.assert_allclose(shares[0], weights, rtol=1e-9)
    np.testing.assert_allclose(table.values[0, cells], expected, rtol=1e-12)
    # More than one level counts, or this would be a test of one histogram.
    assert (shares > 1e-3).sum() > 1


def test_merging_is_histogramming_with_fewer_bins():
    rng = np.random.default_rng(2)
    edges = np.arange(65) / 64
    proba = np.concatenate([rng.random(500), edges, np.nextafter(edges[1:], 0)])
    finest = np.bincount(bin_index(proba, 64), minlength=64)[None]
    levels = Levels.of(64)
    direct = [np.bincount(bin_index(proba, n), minlength=n) for n in levels.sizes]
    assert levels.sizes == (2, 4, 8, 16, 32, 64)
    np.testing.assert_array_equal(levels.merge(finest)[0], np.concatenate(direct))


def test_one_level_is_one_histogram():
    positive, negative = drawn_counts(n_bins=2)
    table, shares = bbq_table(positive, negative)
    np.testing.assert_array_equal(shares, np.ones((4, 1)))
    plain = bin_table(positive, negative, 2 / 2)
    np.testing.assert_allclose(table.values, plain.values, rtol=1e-14)


def test_frequencies_by_hand():
    # Level 2: bins 2 and 3 are empty on the fine level, not on the coarse one.
    positive = np.array([[1.0, 0.0, 0.0, 3.0]])
    negative = np.array([[1.0, 2.0, 0.0, 1.0]])
    table, shares = bbq_table(positive, negative, frequency=True)
    coarse, fine = [1 / 4, 1 / 4, 3 / 4, 3 / 4], [1 / 2, 0, 5 / 8, 3 / 4]
    expected = shares[0, 0] * np.array(coarse) + shares[0, 1] * np.array(fine)
    np.testing.assert_allclose(table.values[0], expected)
    empty, _ = bbq_table(np.zeros((1, 4)), np.zeros((1, 4)), frequency=True)
    np.testing.assert_allclose(empty.values[0], [1 / 8, 3 / 8, 5 / 8, 7 / 8])


def test_joined_bins_by_hand():
    # Four bins of log-odds with middles -12, -4, 4 and 12, and two with -8 and 8.
    positive, negative = np.array([[0.0, 1, 1, 0]]), np.array([[3.0, 1, 0, 0]])
    shares = np.array([[0.25, 0.75]])
    found = joined_table(positive, negative, shares, Levels.of(4, "logit")).values[0]

    def height(own, other, middle, weight):
        m = expit(middle)
        return np.log((own + weight * m) / (other + weight * (1 - m)))

    # Two bins: five rows with mean (3 * -12 + 2 * -4) / 5 and one at 4.
    low, high = height(1, 4, -8, 1.0), height(1, 0, 8, 1.0)
    between = low + (high - low) * (-4 + 8.8) / (4 + 8.8)
    coarse = np.array([low, between, high, high])
    # Four bins: each at its own middle; the last has no rows and keeps its middle.
    fine = [height(0, 3, -12, 0.5), height(1, 1, -4, 0.5), height(1, 0, 4, 0.5)]
    fine = np.array([*fine, 12.0])
    np.testing.assert_allclose(found, 0.25 * expit(coarse) + 0.75 * expit(fine))


def test_bins_without_rows_are_not_joined():
    levels = Levels.of(8, "logit")
    positive = np.zeros((2, 8))
    positive[1, 6] = 1.0  # one row, in the last but one of eight bins
    table, shares = bbq_table(positive, 0 * positive, levels=levels)
    found = joined_table(positive, 0 * positive, shares, levels).values
    np.testing.assert_allclose(found, table.values)


def test_no_rows_keep_the_midpoints_of_the_levels():
    table, shares = bbq_table(np.zeros((1, 4)), np.zeros((1, 4)))
    np.testing.assert_allclose(shares[0], [1 / 2, 1 / 2])
    # Halves of 1/4 and 1/8, 1/4 and 3/8, 3/4 and 5/8, 3/4 and 7/8.
    np.testing.assert_allclose(table.values[0], [3 / 16, 5 / 16, 11 / 16, 13 / 16])


def test_noise_discounts_scores_and_keeps_the_input_by_hand():
    # One level of two bins; noise of deviations 2 and 3 in each count.
    table, _ = bbq_table(np.array([[6.0, 1.0]]), np.array([[2.0, -4.0]]), (2.0, 3.0))
    votes = 3 * np.sqrt(2.0**2 + 3.0**2)
    # 8 rows, prior weight 1 and the votes at the midpoint 1/4; below 0 counts as 0.
    expected = [
        (6 + (1 + votes) * 0.25) / (8 + 1 + votes),
        (1 + (1 + votes) * 0.75) / (1 + 1 + votes),
    ]
    np.testing.assert_allclose(table.values[0], expected)
    # The scores are those of fewer rows: 8 becomes 8 * 8 / (8 + 4 / odds + 9 odds) with
    # odds 1/3, and in the upper bin 1 becomes 1 / (1 + 4 / 3 + 9 * 3).
    positive, negative = np.zeros((1, 4)), np.zeros((1, 4))
    positive[0, 0], negative[0, 0], positive[0, 3] = 6.0, 2.0, 1.0
    _, shares = bbq_table(positive, negative, (2.0, 3.0))
    scored = []
    for n_bins, s, t in ((2, 8.0, 18.0), (4, 4.0, 9.0)):
        own = positive[0].reshape(n_bins, -1).sum(1)
        other = negative[0].reshape(n_bins, -1).sum(1)
        p = (np.arange(n_bins) + 0.5) / n_bins
        rows = own + other
        factor = rows / (rows + s * (1 - p) / p + t * p / (1 - p))
        scored.append(score_by_loop(own * factor, other * factor))
    expected = np.exp(scored) / np.exp(scored).sum()
    np.testing.assert_allclose(shares[0], expected)


def test_pure_noise_leaves_the_input_and_prefers_no_fine_level():
    rng = np.random.default_rng(0)
    positive, negative = 50 * rng.normal(size=(2, 60, 64))
    middle = (np.arange(64) + 0.5) / 64
    table, shares = bbq_table(positive, negative, (50.0, 50.0))
    plain, taken = bbq_table(np.maximum(positive, 0), np.maximum(negative, 0))
    near, far = (np.abs(v.values - middle).mean() for v in (table, plain))
    assert near < 0.5 * far
    # Taken for rows, noise has its weight on fine levels; allowed for, it has not.
    assert taken[:, 3:].sum() > 59
    assert shares[:, 3:].sum() < 0.2 * 60


def test_little_noise_changes_little():
    positive, negative = drawn_counts(rate=1e4)
    exact, _ = bbq_table(positive, negative)
    noisy, _ = bbq_table(positive, negative, (1e-3, 1e-3))
    np.testing.assert_allclose(noisy.values, exact.values, atol=1e-4)


def test_slopes_are_the_derivatives_of_the_values():
    positive, negative = drawn_counts(n_bins=2, rate=30.0)  # one level: shares are 1
    negative[1, 0] = -5.0
    noise = (4.0, 5.0)
    table, _ = bbq_table(positive, negative, noise)
    step = 1e-5
    up, _ = bbq_table(positive + step, negative, noise)
    down, _ = bbq_table(positive, negative + step, noise)
    np.testing.assert_allclose((up.values - table.values) / step, table.rise, rtol=1e-4)
    np.testing.assert_allclose(
        (table.values - down.values) / step, table.fall, rtol=1e-4, atol=1e-9
    )
    assert table.fall[1, 0] == 0


def test_slopes_of_a_plain_table_are_the_derivatives_of_the_values():
    positive, negative = drawn_counts(rate=10.0)
    table, step = bin_table(positive, negative, 3.0), 1e-5
    up = bin_table(positive + step, negative, 3.0).values
    down = bin_table(positive, negative + step, 3.0).values
    np.testing.assert_allclose((up - table.values) / step, table.rise, rtol=1e-4)
    np.testing.assert_allclose((table.values - down) / step, table.fall, rtol=1e-4)


@pytest.mark.skipif(_compiled.core is None, reason="no compiled core")
@pytest.mark.parametrize("rate", [0.02, 1, 50])
@pytest.mark.parametrize("n_levels", [1, 2, 7])
def test_lines_of_the_core_are_those_of_numpy(monkeypatch, n_levels, rate):
    rng = np.random.default_rng(n_levels)
    levels = Levels.of(2**n_levels, "logit")
    shape = (23, 2**n_levels)
    positive, negative = rng.poisson(rate, shape), 3.5 * rng.poisson(rate, shape)
    positive[4] = negative[4] = 0  # a class without rows
    negative[5, :-1] = positive[5, :-1] = 0
    own, other = levels.merge(positive.astype(float)), levels.merge(negative)
    shares = level_shares(own, other, levels)
    shares[::3, 0] = 0  # left out of one histogram
    found = joined_table(positive, negative, shares, levels).values
    monkeypatch.setattr(_compiled, "core", None)
    expected = joined_table(positive, negative, shares, levels).values
    assert found.tobytes() == expected.tobytes()


@pytest.mark.skipif(_compiled.core is None, reason="no compiled core")
def test_lines_refuse_arrays_that_do_not_fit():
    table, odds, classes = np.ones((3, 2)), np.arange(4.0), np.arange(3)

    def lines(rows=table, place=table, classes=classes, odds=odds, width=4):
        out = np.empty((3, width))
        _compiled.join_lines((rows, place, table), classes, odds, 64.0, out)

    lines()
    for wrong in (
        {"rows": table[:, ::2]},
        {"place": table[:2]},
        {"rows": np.ones((3, 4))[:, ::2]},
        {"classes": np.array([0, 1, 3])},
        {"classes": np.array([0, 1, -1])},
        {"classes": classes[:2]},
        {"odds": odds[:3]},
        {"width": 6},
    ):
        with pytest.raises(IndexError, match="do not fit"):
            lines(**wrong)


def test_empty_bins_do_not_change_the_scores_of_others():
    """Many empty bins are left out, few are not; both ways have the same bits."""
    rng = np.random.default_rng(0)
    levels = Levels.of(8)
    full = [levels.merge(rng.poisson(3, (4, 8)) + 1.0) for _ in range(2)]
    empty = [np.concatenate([each, np.zeros((9, each.shape[1]))]) for each in full]
    found = log_scores(*empty, levels)
    assert found[:4].tobytes() == log_scores(*full, levels).tobytes()
    np.testing.assert_array_equal(found[4:], 0.0)


def test_levels_that_are_shared_cannot_be_changed():
    levels = Levels.of(8)
    assert levels is Levels.of(8)
    for array in (levels.middle, levels.size):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize("weighting", [None, "all", "changed"])
def test_all_predictions_find_the_same_bins_of_single_precision(weighting):
    # 6e-8 - 4 is -4 in single precision, an edge of the bins of log-odds.
    rows = np.array([[5.9604645e-08, 4.0], [1.0, -1.0]], dtype=np.float32)
    cal = FedBBQCalibrator(n_levels=3) if weighting is None else None
    cal = cal or FedBinCalibrator(weighting=weighting, space="logit")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cal.fit(rows, [0, 1])
    proba = cal.predict_proba(rows)
    np.testing.assert_allclose(np.exp(cal.predict_log_proba(rows)), proba, rtol=1e-5)
    assert cal.predict(rows).tolist() == proba.argmax(axis=1).tolist()
    assert cal.predict_log_proba(rows).dtype == np.float32
