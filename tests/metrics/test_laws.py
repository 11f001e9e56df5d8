"""Laws that hold for any input (hypothesis)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from skfedcal.metrics import (
    brier_score,
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)

ERRORS = {
    "ece": expected_calibration_error,
    "cw": classwise_calibration_error,
}
SCORES = {**ERRORS, "brier": brier_score, "nll": negative_log_likelihood}
SETTINGS = st.fixed_dictionaries(
    {
        "n_bins": st.integers(1, 20),
        "norm": st.sampled_from(["l1", "l2", "max"]),
        "strategy": st.sampled_from(["uniform", "quantile"]),
    }
)


@st.composite
def problems(draw, min_rows=1):
    """Return labels, probabilities with ties, zeros and atoms on edges."""
    n_rows = draw(st.integers(min_rows, 25))
    n_classes = draw(st.integers(2, 6))
    counts = draw(
        arrays(np.int64, (n_rows, n_classes), elements=st.integers(0, 20))
    ).astype(float)
    counts[counts.sum(axis=1) == 0] = 1
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    proba = (counts / counts.sum(axis=1, keepdims=True)).astype(dtype)
    y = draw(arrays(np.int64, n_rows, elements=st.integers(0, n_classes - 1)))
    return y, proba, np.arange(n_classes)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@given(problem=problems(), options=SETTINGS)
def test_error_lies_between_0_and_1(error, problem, options):
    y, proba, labels = problem
    assert 0 <= error(y, proba, labels=labels, **options) <= 1 + 1e-6


@given(problem=problems())
def test_norms_are_ordered(problem):
    y, proba, labels = problem
    l1, l2, top = (
        expected_calibration_error(y, proba, labels=labels, norm=norm)
        for norm in ("l1", "l2", "max")
    )
    assert l1 <= l2 + 1e-12 and l2 <= top + 1e-12


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@given(problem=problems(), seed=st.integers(0, 99))
def test_order_of_rows_changes_nothing(score, problem, seed):
    y, proba, labels = problem
    rows = np.random.default_rng(seed).permutation(len(y))
    one = score(y, proba, labels=labels)
    assert score(y[rows], proba[rows], labels=labels) == pytest.approx(one, abs=1e-12)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@given(problem=problems(), seed=st.integers(0, 99))
def test_order_of_classes_changes_nothing(strategy, problem, seed):
    y, proba, labels = problem
    place = np.random.default_rng(seed).permutation(len(labels))
    one, other = (
        classwise_calibration_error(t, p, labels=labels, strategy=strategy)
        for t, p in ((y, proba), (place[y], proba[:, np.argsort(place)]))
    )
    assert one == pytest.approx(other, abs=1e-12)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@given(problem=problems(), data=st.data())
def test_weight_is_a_number_of_repeats(score, problem, data):
    y, proba, labels = problem
    weight = data.draw(arrays(np.int64, len(y), elements=st.integers(0, 3)))
    weight[0] = 1
    options = data.draw(SETTINGS) if score in ERRORS.values() else {}
    repeated = np.repeat(np.arange(len(y)), weight)
    one = score(y, proba, labels=labels, sample_weight=weight, **options)
    other = score(y[repeated], proba[repeated], labels=labels, **options)
    assert one == pytest.approx(other, abs=1e-10)


@given(problem=problems(), data=st.data())
def test_weight_is_a_number_of_repeats_when_debiased(problem, data):
    y, proba, labels = problem
    weight = data.draw(arrays(np.int64, len(y), elements=st.integers(0, 3)))
    weight[0] = 1
    repeated = np.repeat(np.arange(len(y)), weight)
    kwargs = {"labels": labels, "norm": "l2", "squared": True, "debias": True}
    for error in ERRORS.values():
        one = error(y, proba, sample_weight=weight, **kwargs)
        other = error(y[repeated], proba[repeated], **kwargs)
        assert one == pytest.approx(other, abs=1e-10)


@given(problem=problems(), threshold=st.floats(0, 1), data=st.data())
def test_weight_is_a_number_of_repeats_above_a_threshold(problem, threshold, data):
    y, proba, labels = problem
    weight = data.draw(arrays(np.int64, len(y), elements=st.integers(1, 3)))
    repeated = np.repeat(np.arange(len(y)), weight)
    for average in ("macro", "weighted"):
        kwargs = {"labels": labels, "threshold": threshold, "average": average}
        one = classwise_calibration_error(y, proba, sample_weight=weight, **kwargs)
        other = classwise_calibration_error(y[repeated], proba[repeated], **kwargs)
        assert one == pytest.approx(other, abs=1e-10)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@given(problem=problems())
def test_perfect_prediction_scores_0(score, problem):
    y, proba, labels = problem
    perfect = np.eye(len(labels), dtype=proba.dtype)[y]
    assert score(y, perfect, labels=labels) == 0


@given(problem=problems(), n_bins=st.integers(1, 10), factor=st.integers(2, 4))
def test_merging_bins_never_raises_the_l1_error(problem, n_bins, factor):
    y, proba, labels = problem
    # Coarse edges are fine edges only if p * n_bins rounds alike, which powers of
    # two times the same count guarantee.
    coarse, fine = (
        classwise_calibration_error(y, proba, labels=labels, n_bins=n_bins * f)
        for f in (1, 2 ** (factor - 1))
    )
    assert coarse <= fine + 1e-12


@given(problem=problems(), other=problems())
def test_l1_error_of_merged_rows_is_at_most_the_weighted_mean(problem, other):
    y, proba, labels = problem
    rows = len(other[0])
    spare = np.resize(other[1].astype(proba.dtype).ravel(), (rows, len(labels))) + 0.1
    spare /= spare.sum(axis=1, keepdims=True)
    target = other[0] % len(labels)
    parts = [(y, proba), (target, spare)]
    errors = [classwise_calibration_error(t, p, labels=labels) for t, p in parts]
    merged = classwise_calibration_error(
        np.concatenate([y, target]), np.concatenate([proba, spare]), labels=labels
    )
    mean = np.average(errors, weights=[len(y), rows])
    assert merged <= mean + 1e-9


@given(problem=problems())
def test_binary_error_is_the_classwise_error_of_each_class(problem):
    y, proba, labels = problem
    each = classwise_calibration_error(y, proba, labels=labels, average=None)
    for k, value in enumerate(each):
        one = calibration_error(y == k, proba[:, k], pos_label=True)
        assert one == pytest.approx(value, abs=1e-12)


@settings(max_examples=20)
@given(problem=problems())
def test_one_dimension_is_the_second_of_two_classes(problem):
    y, proba, _ = problem
    second = proba[:, 0]
    both = np.column_stack([1 - second, second])
    for score in SCORES.values():
        one = score(y % 2, second, labels=[0, 1])
        assert one == pytest.approx(score(y % 2, both, labels=[0, 1]), abs=1e-12)
