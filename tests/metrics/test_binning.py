"""The kernels against a plain Python loop, and their additivity."""

import tracemalloc

import numpy as np
import pytest

from skfedcal._numerics import rare_flags
from skfedcal.metrics import _calibration_error, binning, classwise_calibration_error
from skfedcal.metrics._calibration_error import classwise_gaps
from skfedcal.metrics.binning import bin_index, classwise_bin_sums, column_sums


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
        (binning, "MASK_BLOCK"),
        (binning, "WIDE_ROW"),
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


def gaps_of(proba, codes, n_bins):
    sizes = np.bincount(codes, minlength=proba.shape[1])
    return classwise_gaps(proba, codes, sizes, n_bins)


def loop_gaps(proba, codes, n_bins):
    expected = loop_sums(proba, codes, n_bins)
    return expected[0] - expected[1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3, 10, 60])
@pytest.mark.parametrize("n_bins", [1, 2, 15, 100])
def test_gaps_equal_a_loop(make_problem, monkeypatch, dtype, n_classes, n_bins):
    y, proba = make_problem(150, n_classes, dtype=dtype)
    expected = loop_gaps(proba, y, n_bins)
    layouts = (proba, np.asfortranarray(proba), np.repeat(proba, 2, axis=0)[::2])
    for given in layouts:
        got = gaps_of(given, y, n_bins)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)
    monkeypatch.setattr(_calibration_error, "GAP_BLOCK", 700)
    got = gaps_of(proba, y, n_bins)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n_bins", [3, 10, 15, 49, 100, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gaps_next_to_edges_equal_a_loop(n_bins, dtype):
    edges = np.arange(n_bins + 1) / n_bins
    values = np.concatenate([edges, np.nextafter(edges, 0), np.nextafter(edges, 1)])
    values = np.clip(values, 0, 1).astype(dtype)
    proba = np.column_stack([values, 1 - values])
    codes = np.arange(len(values)) % 2
    # Each bin has as many labels as the loop counts, or a gap would be off by 1.
    np.testing.assert_allclose(
        gaps_of(proba, codes, n_bins),
        loop_gaps(proba, codes, n_bins),
        rtol=0,
        atol=1e-11,
    )


@pytest.mark.parametrize("n_bins", [15, 4000])
def test_what_rounding_leaves_outside_falls_in_the_first_and_last_bin(n_bins):
    proba = np.array([[1.0008, -0.0], [-0.0, 0.9992], [1.0, 0.0]])
    codes = np.array([0, 1, 1])
    expected = loop_gaps(proba, codes, n_bins)
    np.testing.assert_allclose(gaps_of(proba, codes, n_bins), expected, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (3, np.nan, "row 480, column 3 is nan"),
        (3, np.inf, "row 480, column 3 is inf"),
        (3, -0.25, "row 480, column 3 is -0.25"),
        (3, 1.5, "row 480 sums to 2.5"),
    ],
)
def test_gaps_refuse_what_the_other_sums_refuse(
    make_problem, monkeypatch, dtype, place, change, message
):
    monkeypatch.setattr(_calibration_error, "GAP_BLOCK", 700)
    y, proba = make_problem(500, 50, dtype=dtype)
    proba[480] = 0
    # The rest keeps the sum at 1 where the value alone is at fault.
    proba[480, 7] = 1.25 if change == -0.25 else 1
    proba[480, place] = change
    for options in ({}, {"norm": "l2"}):
        with pytest.raises(ValueError, match=message):
            classwise_calibration_error(y, proba, **options, labels=range(50))


def test_a_fault_of_the_rows_is_told_before_one_of_the_labels(make_problem):
    y, proba = make_problem(50, 3)
    proba[7, 1] = np.nan
    for options in ({}, {"norm": "l2"}):
        for labels in (y[:-1], np.where(y == 0, 9, y), np.ones((50, 2))):
            with pytest.raises(ValueError, match="row 7, column 1 is nan"):
                classwise_calibration_error(labels, proba, **options, labels=[0, 1, 2])


@pytest.mark.parametrize("average", ["macro", "weighted", None])
def test_gaps_alone_give_the_error_of_all_sums(make_problem, average):
    y, proba = make_problem(400, 6, dtype=np.float32)
    ones = np.ones(400)
    for given in (y, y.astype(np.int16), y.astype(np.uint8), y + 3, y.astype(str)):
        got = classwise_calibration_error(given, proba, average=average)
        expected = classwise_calibration_error(
            given, proba, average=average, sample_weight=ones
        )
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-13)


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
