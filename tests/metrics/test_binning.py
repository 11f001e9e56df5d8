"""The kernels against a plain Python loop, and their additivity."""

import tracemalloc

import numpy as np
import pytest

from skfedcal.metrics import _binning, _blocks, classwise_calibration_error
from skfedcal.metrics._binning import bin_index, classwise_bin_sums
from skfedcal.metrics._blocks import column_sums, rare_flags


def loop_sums(proba, codes, n_bins, weight=None, threshold=0.0):
    n_samples, n_classes = proba.shape
    out = np.zeros((3, n_classes, n_bins))
    for i in range(n_samples):
        w = 1.0 if weight is None else float(weight[i])
        for k in range(n_classes):
            p = float(proba[i, k])
            if p >= threshold:
                b = min(int(p * n_bins), n_bins - 1)
                out[:, k, b] += w * p, w * (codes[i] == k), w
    return out


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 60])
@pytest.mark.parametrize("n_bins", [1, 2, 15, 100])
def test_sums_equal_a_loop(make_problem, dtype, n_classes, n_bins):
    y, proba = make_problem(150, n_classes, dtype=dtype)
    sums = classwise_bin_sums(proba, y, n_bins)
    expected = loop_sums(proba, y, n_bins)
    got = np.stack([sums.proba, sums.labels, sums.weight])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_weighted_and_thresholded_sums_equal_a_loop(make_problem, threshold, weighted):
    y, proba = make_problem(150, 7, dtype=np.float32)
    weight = np.random.default_rng(1).random(150) if weighted else None
    sums = classwise_bin_sums(proba, y, 15, weight=weight, threshold=threshold)
    expected = loop_sums(proba, y, 15, weight, threshold)
    got = np.stack([sums.proba, sums.labels, sums.weight])
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_bins", [3, 10, 15, 49, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_next_to_edges_equal_a_loop(n_bins, dtype):
    edges = np.arange(n_bins + 1) / n_bins
    values = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
    values = np.clip(values, 0, 1).astype(dtype)
    proba = np.column_stack([values, 1 - values])
    codes = np.arange(len(values)) % 2
    sums = classwise_bin_sums(proba, codes, n_bins)
    expected = loop_sums(proba, codes, n_bins)
    np.testing.assert_array_equal(sums.weight, expected[2])
    np.testing.assert_array_equal(sums.labels, expected[1])
    np.testing.assert_allclose(sums.proba, expected[0], rtol=0, atol=1e-12)


def test_bins_are_half_open_and_the_last_is_closed():
    np.testing.assert_array_equal(
        bin_index(np.array([0, 0.25, 0.5, 1]), 4), [0, 1, 2, 3]
    )


def test_sums_add_up_over_any_split(make_problem):
    y, proba = make_problem(500, 20)
    whole = classwise_bin_sums(proba, y, 15)
    parts = [
        classwise_bin_sums(proba[rows], y[rows], 15)
        for rows in (slice(0, 1), slice(1, 37), slice(37, 500))
    ]
    total = parts[0] + parts[1] + parts[2]
    np.testing.assert_allclose(total.proba, whole.proba, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(total.labels, whole.labels)
    np.testing.assert_array_equal(total.weight, whole.weight)


def test_blocks_do_not_change_the_sums(make_problem, monkeypatch):
    y, proba = make_problem(333, 50, dtype=np.float32)
    whole = classwise_bin_sums(proba, y, 15)
    for module, name in (
        (_binning, "MASK_BLOCK"),
        (_blocks, "CAST_BLOCK"),
    ):
        monkeypatch.setattr(module, name, 700)
    small = classwise_bin_sums(proba, y, 15)
    np.testing.assert_allclose(small.proba, whole.proba, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(small.weight, whole.weight)


def test_memory_order_does_not_change_the_sums(make_problem):
    y, proba = make_problem(100, 6)
    one = classwise_bin_sums(proba, y, 15)
    other = classwise_bin_sums(np.asfortranarray(proba), y, 15)
    np.testing.assert_array_equal(one.proba, other.proba)
    np.testing.assert_array_equal(one.labels, other.labels)


@pytest.mark.parametrize("size", [0, 5, 8, 640])
def test_rare_flags_equal_flatnonzero(size):
    flags = np.random.default_rng(size).random(size) < 0.05
    np.testing.assert_array_equal(rare_flags(flags), np.flatnonzero(flags))


@pytest.mark.parametrize("shape", [(1, 3), (17, 3), (1000, 10), (5, 700), (1, 40_000)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_column_sums_are_float64(shape, dtype):
    rows = np.random.default_rng(0).random(shape).astype(dtype)
    expected = rows.sum(axis=0, dtype=np.float64)
    got = column_sums(rows)
    np.testing.assert_allclose(got, expected, rtol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_classwise_error_needs_little_memory(make_problem, dtype):
    y, proba = make_problem(10_000, 100, dtype=dtype)
    classwise_calibration_error(y, proba)
    tracemalloc.start()
    classwise_calibration_error(y, proba)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 0.25 * proba.nbytes
