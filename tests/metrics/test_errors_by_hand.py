"""Small cases worked by hand and definitions written as loops."""

import numpy as np
import pytest

from skfedcal.exceptions import CalibrationWarning
from skfedcal.metrics import (
    brier_score,
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
    predictive_entropy,
    variation_ratio,
)


def loop_error(proba, hits, n_bins, norm):
    gaps, shares = [], []
    for b in range(n_bins):
        rows = [i for i, p in enumerate(proba) if min(int(p * n_bins), n_bins - 1) == b]
        if rows:
            gap = sum(float(proba[i]) - bool(hits[i]) for i in rows) / len(rows)
            gaps.append(abs(gap))
            shares.append(len(rows) / len(proba))
    gaps, shares = np.array(gaps), np.array(shares)
    if norm == "l1":
        return float(gaps @ shares)
    return float(np.sqrt(gaps**2 @ shares)) if norm == "l2" else float(gaps.max())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_top_label_error_equals_a_loop(make_problem, norm, dtype):
    y, proba = make_problem(400, 6, dtype=dtype)
    expected = loop_error(proba.max(axis=1), proba.argmax(axis=1) == y, 15, norm)
    got = expected_calibration_error(y, proba, norm=norm)
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize("n_classes", [3, 50])
def test_classwise_error_equals_a_loop(make_problem, norm, n_classes, dtype):
    y, proba = make_problem(400, n_classes, dtype=dtype)
    expected = [loop_error(proba[:, k], y == k, 15, norm) for k in range(n_classes)]
    got = classwise_calibration_error(y, proba, norm=norm, average=None)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
    macro = classwise_calibration_error(y, proba, norm=norm)
    assert macro == pytest.approx(np.mean(expected), abs=1e-12)
    weighted = classwise_calibration_error(y, proba, norm=norm, average="weighted")
    assert weighted == pytest.approx(np.mean(np.array(expected)[y]), abs=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_binary_error_equals_a_loop(make_problem, norm):
    y, proba = make_problem(300, 2)
    expected = loop_error(proba[:, 1], y == 1, 10, norm)
    for given in (proba[:, 1], proba):
        got = calibration_error(y, given, norm=norm, n_bins=10)
        assert got == pytest.approx(expected, abs=1e-12)


def test_threshold_drops_entries_and_averages_over_the_rest():
    proba = np.array([[0.9, 0.1], [0.3, 0.7], [0.2, 0.8]])
    # Class 0 keeps 0.9 only; class 1 keeps 0.7 and 0.8, in two of ten bins.
    got = classwise_calibration_error(
        [0, 0, 1], proba, n_bins=10, threshold=0.5, average=None
    )
    np.testing.assert_allclose(got, [0.1, (0.7 + 0.2) / 2], atol=1e-12)


def test_threshold_that_drops_a_class_counts_it_as_zero():
    proba = [[0.9, 0.1], [0.8, 0.2]]
    got = classwise_calibration_error([0, 1], proba, threshold=0.5, average=None)
    assert got[1] == 0.0


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_threshold_is_compared_in_float64(strategy):
    # float32(0.1) is above 0.1 and float32(0.7) is below 0.7.
    proba = np.array([[0.1, 0.7, 0.2], [0.1, 0.7, 0.2]], dtype=np.float32)
    kept = [
        classwise_calibration_error(
            [0, 1],
            proba,
            labels=[0, 1, 2],
            threshold=t,
            strategy=strategy,
            average=None,
        )[k]
        for t, k in ((0.1, 0), (0.7, 1))
    ]
    assert kept[0] > 0 and kept[1] == 0.0


def test_debiased_square_error_by_hand():
    # One bin, four rows: gap 0.5 - 0.75, variance 0.75 * 0.25 / 3.
    y, p = [0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]
    kwargs = {"norm": "l2", "debias": True, "n_bins": 10}
    value = calibration_error(y, p, squared=True, **kwargs)
    assert value == pytest.approx(0.0625 - 0.0625, abs=1e-15)
    negative = calibration_error([0, 0, 1, 1], p, squared=True, **kwargs)
    assert negative == pytest.approx(-1 / 12)
    assert calibration_error([0, 0, 1, 1], p, **kwargs) == 0.0


def test_debias_leaves_out_bins_of_one_row():
    assert calibration_error([0, 1], [0.9, 0.2], norm="l2", debias=True) == 0.0


def test_squared_is_the_square(make_problem):
    y, proba = make_problem()
    root = expected_calibration_error(y, proba, norm="l2")
    square = expected_calibration_error(y, proba, norm="l2", squared=True)
    assert square == pytest.approx(root**2)


def test_debiased_square_error_is_unbiased():
    # y ~ Bernoulli(p) with one p per bin, so the true error is 0 and the plain
    # estimate has bias mean(p(1-p)) / 20 = 0.0083. The 40,000 terms gap^2 - var are
    # independent, at most 1, with variance <= 2 (E gap^4 + var(var))
    # <= 2 (3 / 16 / 400 + 1 / 12 / 8000 + 1 / 4 / 76^2) < 1.06e-3. Bernstein with
    # t = 1.1e-3: 2 exp(-40000 t^2 / (2 (1.06e-3 + t / 3))) < 1e-7.
    rng = np.random.default_rng(0)
    p = np.repeat((np.arange(10) + 0.5) / 10, 20)
    options = {"n_bins": 10, "norm": "l2", "squared": True, "pos_label": True}
    draws = [rng.random(200) < p for _ in range(4000)]
    values = [calibration_error(y, p, debias=True, **options) for y in draws]
    assert abs(np.mean(values)) < 1.1e-3
    assert np.mean([calibration_error(y, p, **options) for y in draws]) > 6e-3


def test_quantile_bins_hold_equal_numbers_of_rows():
    p = np.linspace(0.01, 0.6, 40)
    hits = np.arange(40) % 2
    blocks = [abs(np.mean(p[s : s + 10] - hits[s : s + 10])) for s in range(0, 40, 10)]
    got = calibration_error(hits, p, n_bins=4, strategy="quantile")
    assert got == pytest.approx(np.mean(blocks), abs=1e-12)


def test_equal_values_share_a_quantile_bin():
    value = calibration_error([0, 1, 0, 1], [0.5] * 4, n_bins=4, strategy="quantile")
    assert value == pytest.approx(0.0)


def test_top_label_takes_the_first_of_equal_columns():
    proba = [[0.5, 0.5], [0.5, 0.5]]
    assert expected_calibration_error([0, 1], proba) == pytest.approx(0.0)
    assert expected_calibration_error([0, 0], proba, labels=[0, 1]) == 0.5


def test_proper_scores_by_hand():
    proba = [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]]
    y = ["a", "b"]
    labels = ["c", "b", "a"]
    assert brier_score(y, proba, labels=labels) == pytest.approx(0.375 / 2)
    half = brier_score(y, proba, labels=labels, scale_by_half=True)
    assert half == pytest.approx(0.375 / 4)
    nll = negative_log_likelihood(y, proba, labels=labels)
    assert nll == pytest.approx(np.log(2) / 2)


def test_impossible_label_costs_infinity_when_asked():
    proba, y = [[1.0, 0.0], [0.0, 1.0]], [1, 1]
    kwargs = {"labels": [0, 1]}
    assert negative_log_likelihood(y, proba, min_prob=0, **kwargs) == np.inf
    with pytest.warns(CalibrationWarning, match="1 of 2 rows .* machine epsilon"):
        finite = negative_log_likelihood(y, proba, **kwargs)
    assert finite == pytest.approx(-np.log(np.finfo(float).eps) / 2)
    with pytest.warns(CalibrationWarning, match="1 of 2 rows .* least other"):
        replaced = negative_log_likelihood(y, proba, min_prob="replace", **kwargs)
    assert replaced == pytest.approx(12 / 2)
    tiny = [[1 - 1e-7, 1e-7, 0.0]]
    with pytest.warns(CalibrationWarning, match="1 of 1 rows"):
        replaced = negative_log_likelihood(
            [2], tiny, min_prob="replace", labels=[0, 1, 2]
        )
    assert replaced == pytest.approx(-np.log(1e-7))
    dropped = negative_log_likelihood(
        y, proba, min_prob=0, sample_weight=[0, 1], **kwargs
    )
    assert dropped == 0.0


def test_uncertainty_by_hand():
    proba = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=np.float32)
    np.testing.assert_allclose(predictive_entropy(proba), [np.log(2), 0])
    np.testing.assert_allclose(predictive_entropy(proba, base=2), [1, 0])
    expected = [np.log(2) / np.log(3), 0]
    np.testing.assert_allclose(predictive_entropy(proba, normalize=True), expected)
    np.testing.assert_array_equal(variation_ratio(proba), [0.5, 0.0])
    assert predictive_entropy(proba).dtype == np.float64
    np.testing.assert_allclose(variation_ratio([0.3, 0.8]), [0.3, 0.2])
