"""The peer calls that the docstrings name give the same numbers."""

import numpy as np
import pytest
from scipy import stats
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss

from skfedcal.metrics import (
    brier_score,
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
    predictive_entropy,
)

# torchmetrics computes in float32: sums of 600 values in [0, 1] lose about
# 600 * 6e-8 relative, and a gap can be a thousandth of its terms.
FLOAT32 = 2e-5


def curve_error(y, p, n_bins, strategy):
    """Return the weighted distance of scikit-learn's curve from the diagonal."""
    rate, mean = calibration_curve(y, p, n_bins=n_bins, strategy=strategy)
    edges = np.linspace(0, 1, n_bins + 1)
    if strategy == "quantile":
        edges = np.percentile(p, edges * 100)
    counts = np.bincount(np.searchsorted(edges[1:-1], p), minlength=n_bins)
    return np.average(abs(rate - mean), weights=counts[counts > 0])


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_binary_error_is_the_distance_of_sklearn_curve(make_problem, strategy):
    y, proba = make_problem(600, 2)
    got = calibration_error(y, proba[:, 1], n_bins=15, strategy=strategy)
    expected = curve_error(y, proba[:, 1], 15, strategy)
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
@pytest.mark.parametrize(
    ("ours", "theirs"), [("uniform", "width"), ("quantile", "mass")]
)
def test_binary_error_equals_probcal(make_problem, norm, ours, theirs):
    probcal = pytest.importorskip("probcal.metrics")
    y, proba = make_problem(600, 2)
    p = proba[:, 1]
    expected = probcal.ece(y, p, n_bins=15, strategy=theirs, norm=norm)
    assert calibration_error(y, p, strategy=ours, norm=norm) == pytest.approx(
        expected, abs=1e-12
    )


def test_weighted_binary_error_equals_probcal(make_problem):
    probcal = pytest.importorskip("probcal.metrics")
    y, proba = make_problem(600, 2)
    weight = np.random.default_rng(1).random(600) + 0.1
    expected = probcal.ece(y, proba[:, 1], strategy="width", sample_weight=weight)
    got = calibration_error(y, proba[:, 1], sample_weight=weight)
    assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"), [("uniform", "width"), ("quantile", "mass")]
)
def test_each_class_equals_probcal(make_problem, ours, theirs):
    probcal = pytest.importorskip("probcal.metrics")
    y, proba = make_problem(600, 4)
    expected = [
        probcal.ece((y == k).astype(int), proba[:, k], strategy=theirs)
        for k in range(4)
    ]
    got = classwise_calibration_error(y, proba, strategy=ours, average=None)
    np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize(("norm", "name"), [("l1", "ECE"), ("max", "MCE")])
def test_top_label_error_equals_netcal(make_problem, norm, name):
    netcal = pytest.importorskip("netcal.metrics")
    y, proba = make_problem(600, 6)
    expected = getattr(netcal, name)(15).measure(proba, y)
    got = expected_calibration_error(y, proba, norm=norm)
    assert got == pytest.approx(expected, abs=1e-12)


def test_binary_and_each_class_equal_netcal(make_problem):
    netcal = pytest.importorskip("netcal.metrics")
    y, proba = make_problem(600, 4)
    expected = [
        netcal.ECE(15).measure(proba[:, k], (y == k).astype(int)) for k in range(4)
    ]
    got = classwise_calibration_error(y, proba, average=None)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    one = calibration_error(y == 2, proba[:, 2])
    assert one == pytest.approx(expected[2], abs=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_top_label_error_equals_torchmetrics(make_problem, norm):
    torch = pytest.importorskip("torch")
    peer = pytest.importorskip("torchmetrics.functional.classification")
    y, proba = make_problem(600, 6, dtype=np.float32)
    expected = peer.multiclass_calibration_error(
        torch.tensor(proba), torch.tensor(y), num_classes=6, n_bins=15, norm=norm
    )
    got = expected_calibration_error(y, proba, norm=norm)
    assert got == pytest.approx(float(expected), abs=FLOAT32)


@pytest.mark.parametrize("norm", ["l1", "l2", "max"])
def test_each_class_equals_torchmetrics(make_problem, norm):
    torch = pytest.importorskip("torch")
    peer = pytest.importorskip("torchmetrics.functional.classification")
    y, proba = make_problem(600, 4, dtype=np.float32)
    expected = [
        float(
            peer.binary_calibration_error(
                torch.tensor(proba[:, k]), torch.tensor(y == k).int(), 15, norm
            )
        )
        for k in range(4)
    ]
    got = classwise_calibration_error(y, proba, norm=norm, average=None)
    np.testing.assert_allclose(got, expected, atol=FLOAT32)
    one = calibration_error(y == 1, proba[:, 1], norm=norm)
    assert one == pytest.approx(expected[1], abs=FLOAT32)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_proper_scores_equal_sklearn(make_problem, n_classes):
    y, proba = make_problem(300, n_classes)
    proba[7] = np.eye(n_classes)[(y[7] + 1) % n_classes]
    weight = np.random.default_rng(0).random(300)
    for w in (None, weight):
        expected = log_loss(y, proba, sample_weight=w)
        got = negative_log_likelihood(y, proba, sample_weight=w)
        assert got == pytest.approx(expected, abs=1e-12)
    if n_classes == 2:
        expected = brier_score_loss(y, proba[:, 1], sample_weight=weight)
    else:
        try:
            expected = brier_score_loss(y, proba, sample_weight=weight)
        except ValueError:
            pytest.skip("multiclass Brier score needs scikit-learn 1.7")
    got = brier_score(y, proba, sample_weight=weight)
    assert got == pytest.approx(expected, abs=1e-12)


def test_entropy_equals_scipy(make_problem):
    _, proba = make_problem(100, 5)
    expected = stats.entropy(proba, axis=1, base=2)
    np.testing.assert_allclose(predictive_entropy(proba, base=2), expected, rtol=1e-12)
