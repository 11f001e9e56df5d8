"""The floor equals the metric on drawn labels."""

import numpy as np
import pytest

from skfedcal.metrics import _floor as floor_module
from skfedcal.metrics import (
    calibration_error,
    calibration_floor,
    classwise_calibration_error,
    expected_calibration_error,
)

METRICS = {
    "classwise_calibration_error": classwise_calibration_error,
    "expected_calibration_error": expected_calibration_error,
}


@pytest.fixture(scope="module")
def proba():
    return np.random.default_rng(0).dirichlet([0.5, 0.5, 1.0, 2.0], size=150)


def drawn_values(metric, proba, n_repeats, **options):
    rng = np.random.default_rng(12)
    labels = np.arange(proba.shape[1])
    steps = proba.cumsum(axis=1)
    values = []
    for _ in range(n_repeats):
        y = (steps < rng.random((len(proba), 1))).sum(axis=1)
        values.append(metric(y, proba, labels=labels, **options))
    return np.array(values)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"norm": "l2", "debias": True, "squared": True},
        {"norm": "max", "strategy": "quantile", "n_bins": 5},
    ],
    ids=["default", "debiased", "quantile"],
)
def test_floor_equals_a_loop_over_draws(proba, name, options):
    # Two independent means of 400 values; their difference has standard error
    # sd * sqrt(2 / 400), and 5.5 of them are passed with chance 4e-8.
    loop = drawn_values(METRICS[name], proba, 400, **options)
    floor = calibration_floor(
        proba, metric=name, n_repeats=400, random_state=0, **options
    )
    assert abs(floor.mean - loop.mean()) < 5.5 * loop.std() * np.sqrt(2 / 400)
    # The spread of 400 values is known within 1 / sqrt(2 * 399) = 3.5 % when normal,
    # less well with heavier tails: a factor 1.5 is more than 8 of these.
    assert 1 / 1.5 < floor.std / loop.std() < 1.5


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
def test_classwise_floor_follows_threshold_and_average(proba, strategy):
    options = {"threshold": 0.1, "average": "weighted", "strategy": strategy}
    loop = drawn_values(classwise_calibration_error, proba, 400, **options)
    floor = calibration_floor(proba, n_repeats=400, random_state=1, **options)
    assert abs(floor.mean - loop.mean()) < 5.5 * loop.std() * np.sqrt(2 / 400)
    per_class = calibration_floor(proba, average=None, n_repeats=50, random_state=1)
    assert per_class.mean.shape == per_class.std.shape == (4,)


@pytest.mark.parametrize("strategy", ["uniform", "quantile"])
@pytest.mark.parametrize("threshold", [0.0, 0.2])
def test_labels_of_a_draw_give_exactly_the_metric(
    proba, strategy, threshold, monkeypatch
):
    y = np.random.default_rng(5).integers(0, 4, len(proba))
    weight = np.random.default_rng(6).random(len(proba))
    options = {"strategy": strategy, "threshold": threshold, "average": None}
    monkeypatch.setattr(floor_module, "draw_labels", lambda rows, n, rng: y[None, :])
    values = floor_module._classwise(proba, weight, 1, None, **options)
    expected = classwise_calibration_error(y, proba, sample_weight=weight, **options)
    np.testing.assert_allclose(values[0], expected, rtol=0, atol=1e-12)


def test_certain_rows_have_floor_0():
    assert calibration_floor(np.eye(3), random_state=0)[:2] == (0.0, 0.0)


def test_binary_floor_uses_the_positive_column(proba):
    p = proba[:, 0]
    rng = np.random.default_rng(3)
    loop = [
        calibration_error(rng.random(150) < p, p, pos_label=True) for _ in range(400)
    ]
    for given in (p, np.column_stack([1 - p, p])):
        floor = calibration_floor(
            given, metric="calibration_error", n_repeats=400, random_state=0
        )
        gap = abs(floor.mean - np.mean(loop))
        assert gap < 5.5 * np.std(loop) * np.sqrt(2 / 400)


@pytest.mark.parametrize("metric", [*METRICS])
def test_seed_fixes_the_floor(proba, metric):
    one = calibration_floor(proba, metric=metric, n_repeats=5, random_state=3)
    assert one == calibration_floor(proba, metric=metric, n_repeats=5, random_state=3)
    assert one != calibration_floor(proba, metric=metric, n_repeats=5, random_state=4)
    assert one.n_repeats == 5


def test_generator_is_accepted(proba):
    a, b = (
        calibration_floor(proba, n_repeats=4, random_state=np.random.default_rng(0))
        for _ in range(2)
    )
    assert a == b


def test_floor_shrinks_with_rows(proba):
    small = calibration_floor(proba[:30], random_state=0)
    large = calibration_floor(np.tile(proba, (10, 1)), random_state=0)
    assert large.mean < small.mean / 2


def test_floor_options_are_checked(proba):
    with pytest.raises(ValueError, match="metric must be one of"):
        calibration_floor(proba, metric="ece")
    with pytest.raises(ValueError, match="n_repeats=1 is out of range"):
        calibration_floor(proba, n_repeats=1)
    with pytest.raises(TypeError, match=r"n_repeats=2\.0 is not an integer"):
        calibration_floor(proba, n_repeats=2.0)
    with pytest.raises(TypeError, match="n_bin"):
        calibration_floor(proba, n_bin=3)
    with pytest.raises(TypeError, match="average"):
        calibration_floor(proba, metric="expected_calibration_error", average=None)
