"""The compiled core: accuracy, equal bits at every level, agreement with numpy.

Tests of bits run where the core was built; its numpy form is tested on every machine.
"""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import special

from skfedcal import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedBinCalibrator,
    FedMatrixCalibrator,
    FedOneVsRestCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    _compiled,
    _numerics,
    make_federation,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec
from skfedcal.methods.bias_temperature.rounds import BiasTemperatureNewton
from skfedcal.methods.buckets import ClassBins
from skfedcal.methods.class_scores.rounds import SigmoidNewton, n_scores_of
from skfedcal.methods.graph import ArrayValue
from skfedcal.methods.own_rows import split_rows
from skfedcal.methods.scaling.families import (
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
    labelled,
    loss_and_slopes,
)
from skfedcal.methods.scaling.rounds import (
    ClassCurvature,
    FullCurvature,
    PairCurvature,
    PooledFit,
    SplitCurvature,
)
from skfedcal.methods.scaling.rounds import matrix as matrix_map
from skfedcal.methods.scaling.rounds import vector as vector_map
from skfedcal.methods.temperature.moments import derivative_sums
from skfedcal.metrics import (
    binning,
    brier_score,
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
)
from skfedcal.metrics._calibration_error import classwise_gaps
from skfedcal.privacy.codec import BlockCode

needs_core = pytest.mark.skipif(_compiled.core is None, reason="no compiled core")
COLUMNS = (1, 2, 3, 7, 8, 16, 17, 31, 48, 49, 64, 100, 128, 129, 200)
DTYPES = (np.float32, np.float64)


@pytest.fixture(params=["numpy", "core"])
def either(request, monkeypatch):
    """Run a test with the core switched off and, where there is one, on."""
    if request.param == "numpy":
        monkeypatch.setattr(_compiled, "core", None)
    elif _compiled.core is None:
        pytest.skip("no compiled core")
    return request.param


@pytest.fixture
def best_level():
    """Give the core its best level back."""
    yield
    _compiled.core.use(_compiled.levels()[0])


def hard_rows(n_rows, n_columns, dtype, seed=0):
    """Logits of many scales, with -inf, ties and huge gaps."""
    rng = np.random.default_rng([seed, n_columns])
    scale = 10 ** rng.uniform(-3, 2, (n_rows, 1))
    rows = rng.normal(size=(n_rows, n_columns)) * scale
    rows[rng.random(rows.shape) < 0.02] = -np.inf
    rows[rng.random(rows.shape) < 0.02] = -3e7
    rows[:, rng.integers(n_columns)] = rng.normal(size=n_rows)
    rows[::7] = np.where(np.isfinite(rows[::7]), 1.0, -np.inf)
    return rows.astype(dtype), rng.integers(0, n_columns, n_rows)


def dataset(rows, labels, sizes, weights=None, order=None):
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    names = range(len(sizes))
    return FederatedDataset(
        rows, labels, offsets, names, rows.shape[1], weights, order=order
    )


def applied(kind, values):
    out = np.empty_like(values)
    _compiled.core.map(kind, values, out)
    return out


def largest_error(kind, values, exact):
    """Largest error in units in the last place, against mpmath."""
    import mpmath

    mpmath.mp.prec = 120
    worst = 0.0
    for x, y in zip(values.tolist(), applied(kind, values).tolist(), strict=True):
        truth = exact(mpmath, mpmath.mpf(x))
        unit = float(np.spacing(np.abs(values.dtype.type(truth))))
        worst = max(worst, float(abs(truth - y) / unit))
    return worst


@needs_core
@pytest.mark.parametrize(
    ("kind", "dtype", "exact", "values"),
    [
        (0, np.float64, lambda m, x: m.power(2, x), (-1, 1)),
        (0, np.float64, lambda m, x: m.power(2, x), (-1022, 1022)),
        (1, np.float32, lambda m, x: m.power(2, x), (-1, 1)),
        (1, np.float32, lambda m, x: m.power(2, x), (-126, 126)),
        (4, np.float64, lambda m, x: m.exp(x), (-1, 1)),
        (4, np.float64, lambda m, x: m.exp(x), (-708, 708)),
        (5, np.float32, lambda m, x: m.exp(x), (-1, 1)),
        (5, np.float32, lambda m, x: m.exp(x), (-87, 87)),
        (2, np.float64, lambda m, x: m.log(x), (0.5, 2)),
        (2, np.float64, lambda m, x: m.log(x), (1e-300, 1e300)),
        (2, np.float64, lambda m, x: m.log(x), (1 - 1e-6, 1 + 1e-6)),
        (3, np.float64, lambda m, x: m.log1p(x), (0, 1)),
        (3, np.float64, lambda m, x: m.log1p(x), (1e-20, 1e4)),
    ],
)
def test_functions_are_accurate_to_about_one_unit_in_the_last_place(
    kind, dtype, exact, values
):
    low, high = values
    rng = np.random.default_rng(0)
    if low > 0 and high / low > 1e3:
        found = np.exp(rng.uniform(np.log(low), np.log(high), 3000))
    else:
        found = rng.uniform(low, high, 3000)
    assert largest_error(kind, found.astype(dtype), exact) < 1.25


@needs_core
def test_functions_at_the_ends_of_their_range():
    far = np.array([-np.inf, -1e300, -1023.0, 0.0, 1.0, -1.0, np.nan])
    assert applied(0, far)[:6].tolist() == [0, 0, 0, 1, 2, 0.5]
    assert np.isnan(applied(0, far)[6])
    assert applied(4, far)[:4].tolist() == [0, 0, 0, 1]
    assert np.isnan(applied(4, far)[6])
    single = np.array([-np.inf, -127.0, 0.0, -3.0, np.nan], np.float32)
    assert applied(5, single)[:3].tolist() == [0, 0, 1]
    assert applied(1, single)[:4].tolist() == [0, 0, 1, 0.125]
    assert np.isnan(applied(1, single)[4])
    assert applied(2, np.array([1.0, 2.0]))[0] == 0
    assert applied(3, np.array([0.0, 1e-300])).tolist() == [0, 1e-300]


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", COLUMNS)
def test_every_level_of_instructions_gives_the_same_bits(n_columns, dtype):
    rows, labels = hard_rows(203, n_columns, dtype)
    weights = np.random.default_rng(0).random(203)
    clients = dataset(rows, labels, [0, 3, 100, 1, 99], weights)
    found = []
    for level in _compiled.levels():
        _compiled.core.use(level)
        parts = [_numerics.softmax(rows), _numerics.log_softmax(rows)]
        parts += [
            derivative_sums(clients, 0.7, order, work)[0]
            for order in (1, 2, 3, 5)
            for work in DTYPES
        ]
        found.append([part.tobytes() for part in parts])
    assert found
    assert all(other == found[0] for other in found)


@needs_core
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", COLUMNS)
def test_a_row_has_the_same_bits_beside_any_others(n_columns, dtype):
    rows, labels = hard_rows(57, n_columns, dtype)
    every = range(57)
    one_each, _ = derivative_sums(dataset(rows, labels, [1] * 57), 1.3, 5, dtype)
    proba = _numerics.softmax(rows)
    for i in every:
        alone = dataset(rows[i : i + 1], labels[i : i + 1], [1])
        sums, _ = derivative_sums(alone, 1.3, 5, dtype)
        assert sums.tobytes() == one_each[i : i + 1].tobytes()
        assert _numerics.softmax(rows[i : i + 1]).tobytes() == proba[i].tobytes()
    # In another layout, and through an order.
    for other in (np.asfortranarray(rows), np.repeat(rows, 2, axis=0)[::2]):
        sums, _ = derivative_sums(dataset(other, labels, [1] * 57), 1.3, 5, dtype)
        assert sums.tobytes() == one_each.tobytes()
        assert _numerics.softmax(other).tobytes() == proba.tobytes()
    turned = np.arange(57)[::-1]
    clients = dataset(rows[::-1], labels, [1] * 57, order=turned)
    sums, _ = derivative_sums(clients, 1.3, 5, dtype)
    assert sums.tobytes() == one_each.tobytes()


# Families with every curvature that the core has of them.
BENT = [
    (family, curvature)
    for family, curvatures in (
        (VectorMap(), (PairCurvature(), ClassCurvature())),
        (MatrixMap(), (FullCurvature(), SplitCurvature())),
        (OrderPreservingMap(), (PairCurvature(), ClassCurvature())),
    )
    for curvature in curvatures
]
over_bent = pytest.mark.parametrize(
    ("family", "curvature"), BENT, ids=[curvature.name for _, curvature in BENT]
)
SIZES = [0, 3, 100, 1, 0, 99]


def scaled_answer(monkeypatch, clients, family, curvature, beta=0.8):
    """Loss, slopes and curvature at parameters beside the identity."""
    name = "skfedcal.methods.scaling.rounds.curvature_of"
    monkeypatch.setattr(name, lambda family, n_classes: (curvature, True))
    n_classes = clients.rows.shape[1]
    start = family.start(n_classes)
    move = np.random.default_rng(n_classes).normal(size=start.shape) / n_classes
    broadcast = {
        "n_classes": np.asarray(n_classes),
        "beta": np.asarray(beta),
        "params": start + move,
        "bend": np.asarray(True),
    }
    return PooledFit(family, (1.0,) * 3).query(broadcast, clients)


def bytes_of(answer):
    return {name: value.tobytes() for name, value in answer.items()}


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("n_columns", [1, 2, 3, 7, 8, 9, 15, 16, 17, 31])
@over_bent
def test_scaling_has_the_same_bits_at_every_level_and_the_sums_of_numpy(
    monkeypatch, family, curvature, n_columns
):
    rows, labels = hard_rows(203, n_columns, np.float32)
    weights = np.random.default_rng(0).random(203)
    weights[::9] = 0
    clients = dataset(rows, labels, SIZES, weights)
    found = []
    for level in _compiled.levels():
        _compiled.core.use(level)
        found.append(scaled_answer(monkeypatch, clients, family, curvature))
    assert all(bytes_of(other) == bytes_of(found[0]) for other in found)
    monkeypatch.setattr(_compiled, "core", None)
    exact = scaled_answer(monkeypatch, clients, family, curvature)
    assert exact.keys() == found[0].keys()
    for name, value in exact.items():
        # p - p^2 is a small difference where p is near 1; with gaps it is multiplied by
        # the square of a distance, which differs between rows.
        size = np.abs(value).max(initial=1e-300)
        atol = 1e-12 if family.ranked else 1e-13
        np.testing.assert_allclose(found[0][name] / size, value / size, atol=atol)


@needs_core
@over_bent
def test_scaling_sums_depend_on_the_rows_of_the_client_only(
    monkeypatch, family, curvature
):
    rows, labels = hard_rows(203, 11, np.float64)
    whole = scaled_answer(monkeypatch, dataset(rows, labels, SIZES), family, curvature)
    mirror = np.arange(203)[::-1]
    for other in (
        dataset(np.asfortranarray(rows), labels, SIZES),
        dataset(rows[::-1], labels, SIZES, order=mirror),
    ):
        answer = scaled_answer(monkeypatch, other, family, curvature)
        assert bytes_of(answer) == bytes_of(whole)
    for i, start in enumerate(np.cumsum([0, *SIZES])[:-1]):
        own = slice(start, start + SIZES[i])
        alone = dataset(rows[own], labels[own], [SIZES[i]])
        answer = scaled_answer(monkeypatch, alone, family, curvature)
        for name in whole:
            assert answer[name].tobytes() == whole[name][i].tobytes()


@needs_core
@pytest.mark.parametrize("spread", [1e-15, 1e-9, 1e-4, 1.0])
@pytest.mark.parametrize("n_columns", [20, 25, 300, 70_000])
def test_order_preserving_sums_sort_entries_however_near(n_columns, spread):
    # From the smallest to the largest, far below the top, some tied, some masked:
    # insertion alone would take n^2 / 4 moves a row.
    family = OrderPreservingMap()
    rows = -20 + np.linspace(-spread, spread, n_columns)[None].repeat(2, axis=0)
    rows[:, 7:12] = rows[:, 7:8]
    rows[:, 3], rows[1, 15] = 0, -np.inf
    rows[1, ::2] = rows[1, ::2][::-1]
    clients = dataset(rows, np.array([2, 4]), [1, 1])
    params = family.start(n_columns)
    params += np.random.default_rng(0).normal(size=params.shape) / 10
    found, none = np.zeros((2, 2 + len(params))), np.zeros((2, 0))
    assert _compiled.scaling_sums(clients, "order", 2.0, params, "none", found, none)
    data = labelled(next(clients.blocks(1 << 30)), 2.0, ranked=True)
    exact = loss_and_slopes(family, params, data)[0]
    # An entry at a wrong place gets the gap of another.
    size = np.abs(exact).max(axis=1, keepdims=True)
    np.testing.assert_allclose(found[:, 1:] / size, exact / size, atol=1e-12)
    moved = np.abs(exact / size) > 1e-12
    np.testing.assert_allclose(found[:, 1:][moved], exact[moved], rtol=1e-2)


@over_bent
def test_scaling_of_rows_without_a_number_has_no_number(
    either, monkeypatch, family, curvature
):
    rows = np.zeros((3, 4))
    rows[1, 2], rows[2, 0] = np.nan, np.inf
    clients = dataset(rows, np.zeros(3, int), [1, 1, 1])
    with np.errstate(invalid="ignore"):
        answer = scaled_answer(monkeypatch, clients, family, curvature)
    assert np.isfinite(answer["loss"][0]).all()
    assert np.isnan(answer["loss"][1:, 1]).all()


def bias_answer(clients, started):
    n_classes = clients.rows.shape[1]
    rng = np.random.default_rng(n_classes)
    points = rng.normal(size=(1 if started else 9, n_classes + 1))
    broadcast = {"points": points, "started": np.asarray(started)}
    return BiasTemperatureNewton().query(broadcast, clients)["derivatives"]


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("n_columns", [1, 2, 7, 8, 9, 16, 17, 100, 129])
def test_bias_sums_have_the_same_bits_at_every_level_and_are_those_of_numpy(
    monkeypatch, n_columns, started
):
    rows, labels = hard_rows(203, n_columns, np.float32)
    weights = np.random.default_rng(0).random(203)
    weights[::9] = 0
    clients = dataset(rows, labels, SIZES, weights)
    found = []
    for level in _compiled.levels():
        _compiled.core.use(level)
        found.append(bias_answer(clients, started))
    assert all(other.tobytes() == found[0].tobytes() for other in found)
    # A client has its own rows only, in any layout and order.
    mirror = np.arange(203)[::-1]
    turned = dataset(
        np.asfortranarray(rows[::-1]), labels, SIZES, weights, order=mirror
    )
    assert bias_answer(turned, started).tobytes() == found[0].tobytes()
    for i in range(len(SIZES)):
        alone = bias_answer(clients.slice(i, i + 1), started)
        assert alone.tobytes() == found[0][i].tobytes()
    monkeypatch.setattr(_compiled, "core", None)
    exact = bias_answer(clients, started)
    size = np.abs(exact).max(axis=0) + 1e-300
    np.testing.assert_allclose(found[0] / size, exact / size, atol=1e-11)


@needs_core
def test_bias_sums_refuse_arrays_that_do_not_fit():
    rows, labels, offsets = np.zeros((4, 3)), np.zeros(4, int), np.array([0, 4])
    good = [rows, None, labels, offsets, None, np.ones((1, 4)), True]
    good += [np.zeros((1, 1, 13))]
    _compiled.core.bias_sums(*good)
    for place, other in (
        (1, np.arange(3)),
        (1, np.array([0, 1, 2, 4])),
        (2, np.array([0, 0, 0, 3])),
        (2, np.array([0, 0, 0, -1])),
        (3, np.array([0, 5])),
        (3, np.array([-1, 4])),
        (3, np.empty(0, int)),
        (4, np.ones(3)),
        (5, np.ones((1, 5))),
        (5, np.ones((2, 4))),
        (7, np.zeros((1, 1, 12))),
        (7, np.zeros((2, 1, 13))),
    ):
        with pytest.raises(IndexError):
            _compiled.core.bias_sums(*good[:place], other, *good[place + 1 :])


@needs_core
def test_scaling_refuses_arrays_that_do_not_fit():
    rows, labels, offsets = np.zeros((4, 3)), np.zeros(4, int), np.array([0, 4])
    good = [rows, None, labels, offsets, None, False, 1.0, np.ones((1, 6)), 1]
    good += [np.zeros((1, 8)), np.zeros((1, 21))]
    _compiled.core.scaling_sums(*good)
    for place, other in (
        (1, np.arange(3)),
        (1, np.array([0, 1, 2, 4])),
        (2, np.array([0, 0, 0, 3])),
        (2, np.array([0, 0, 0, -1])),
        (3, np.array([0, 5])),
        (3, np.array([-1, 4])),
        (4, np.ones(3)),
        (5, True),
        (7, np.ones((1, 7))),
        (7, np.ones((2, 6))),
        (8, 5),
        (8, 3),
        (9, np.zeros((2, 8))),
        (10, np.zeros((1, 20))),
    ):
        with pytest.raises(IndexError, match=r"fit together|out of range"):
            _compiled.core.scaling_sums(
                *[other if i == place else arg for i, arg in enumerate(good)]
            )


def mapped_rows(rows, matrix, out=None, *, proba=True):
    """Rows through a vector or a matrix beside the identity."""
    n = rows.shape[1]
    rng = np.random.default_rng(n)
    move = rng.normal(size=(n + 1 if matrix else 2, n)) / n
    start = np.concatenate([np.eye(n) if matrix else np.ones((1, n)), np.zeros((1, n))])
    out = np.empty(rows.shape, rows.dtype) if out is None else out
    assert _compiled.map_scaling(rows, matrix, start + move, out, proba=proba)
    return out, start + move


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("matrix", [False, True], ids=["vector", "matrix"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [1, 2, 3, 7, 8, 9, 15, 16, 17, 100])
def test_mapped_rows_have_the_same_bits_at_every_level_and_are_those_of_the_graph(
    n_columns, dtype, matrix
):
    rows, _ = hard_rows(57, n_columns, dtype)
    rows[np.isneginf(rows).all(axis=1), 0] = 0
    for proba in (False, True):
        found = []
        for level in _compiled.levels():
            _compiled.core.use(level)
            found.append(mapped_rows(rows, matrix, proba=proba)[0])
        assert all(other.tobytes() == found[0].tobytes() for other in found)
        assert found[0].dtype == dtype
        for other in (np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
            again, lines = mapped_rows(other, matrix, proba=proba)
            assert again.tobytes() == found[0].tobytes()
        own = rows.copy()
        mapped_rows(own, matrix, own, proba=proba)  # in place
        assert own.tobytes() == found[0].tobytes()
        alone = [
            mapped_rows(rows[i : i + 1], matrix, proba=proba)[0] for i in range(57)
        ]
        assert np.concatenate(alone).tobytes() == found[0].tobytes()
        centred = ArrayValue(_numerics.center(rows.astype(np.float64)))
        if matrix:
            cal = SimpleNamespace(matrix_=lines[:-1].T, bias_=lines[-1])
        else:
            cal = SimpleNamespace(scale_=lines[0], bias_=lines[1])
        with np.errstate(invalid="ignore", over="ignore"):
            formula = matrix_map if matrix else vector_map
            exact = formula(cal, centred).array
        if proba:
            exact = special.softmax(exact, axis=1)
        # The map of matrices is a sum of products of up to 1e6 each.
        rtol = 50 * np.finfo(dtype).eps
        np.testing.assert_allclose(found[0], exact, rtol=rtol, atol=1e-8)


@needs_core
def test_mapping_refuses_arrays_that_do_not_fit():
    rows = np.zeros((4, 3))
    good = [rows, False, np.ones((2, 3)), np.zeros((4, 3)), True]
    _compiled.core.map_scaling(*good)
    for place, other in (
        (1, True),
        (2, np.ones((2, 4))),
        (2, np.ones((3, 3))),
        (3, np.zeros((3, 3))),
        (3, np.zeros((4, 2))),
        (3, np.zeros((4, 3), np.float32)),
    ):
        with pytest.raises(IndexError, match="fit together"):
            _compiled.core.map_scaling(*good[:place], other, *good[place + 1 :])


@pytest.mark.parametrize("kind", [FedVectorCalibrator, FedMatrixCalibrator])
@pytest.mark.parametrize("dtype", DTYPES)
def test_predictions_by_the_core_are_those_of_numpy(monkeypatch, kind, dtype):
    fed = make_federation(20, n_classes=5, class_bias=0.5, random_state=0)
    rows = fed.test_logits[:300].astype(dtype)
    rows[3, 2] = -np.inf
    # Columns in another order than the classes.
    cal = kind(classes=[1, 0, 2, 4, 3]).fit(fed.clients)
    found = [cal.predict_proba(rows), cal.decision_function(rows)]
    monkeypatch.setattr(_compiled, "core", None)
    exact = [cal.predict_proba(rows), cal.decision_function(rows)]
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == other.dtype == dtype
        np.testing.assert_allclose(one, other, rtol=30 * np.finfo(dtype).eps, atol=1e-6)


def sigmoid_answer(clients, input_type, power=None):
    """Derivatives at a point beside the start, of scores of any unit."""
    size = n_scores_of(clients.n_classes)
    rng = np.random.default_rng(size)
    broadcast = {
        "stage": np.asarray(2),
        "scale": np.stack(
            [
                np.full(size, 8.0) if power is None else power,
                rng.normal(size=size) / 10,
                rng.uniform(0.01, 1, size),
            ]
        ),
        "weight": rng.uniform(0, 50, (2, size)),
        "point": 3 * rng.normal(size=(2, size)),
    }
    return SigmoidNewton(input_type).query(broadcast, clients)["sums"]


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("input_type", ["logits", "log_proba"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [1, 2, 3, 7, 8, 9, 16, 17, 130])
def test_sums_of_sigmoids_have_the_same_bits_at_every_level_and_are_those_of_numpy(
    monkeypatch, n_columns, dtype, input_type
):
    rows, labels = hard_rows(203, n_columns, dtype)
    weights = np.random.default_rng(0).random(203)
    weights[::9] = 0
    if n_columns == 1:  # one column of two classes
        labels = np.arange(203) % 2
        clients = dataset(rows, labels, SIZES, weights)
        clients = replace(clients, n_classes=2)
    else:
        clients = dataset(rows, labels, SIZES, weights)
    found = []
    for level in _compiled.levels():
        _compiled.core.use(level)
        found.append(sigmoid_answer(clients, input_type))
    assert all(other.tobytes() == found[0].tobytes() for other in found)
    mirror = np.arange(203)[::-1]
    turned = replace(clients, rows=np.asfortranarray(rows[::-1]), order=mirror)
    assert sigmoid_answer(turned, input_type).tobytes() == found[0].tobytes()
    for i in range(len(SIZES)):
        alone = sigmoid_answer(clients.slice(i, i + 1), input_type)
        assert alone.tobytes() == found[0][i].tobytes()
    monkeypatch.setattr(_compiled, "core", None)
    exact = sigmoid_answer(clients, input_type)
    size = np.abs(exact).max(axis=0) + 1e-300
    np.testing.assert_allclose(found[0] / size, exact / size, atol=1e-12)


@pytest.mark.parametrize("power", [-1072.0, -8.0, 1024.0])
def test_sums_of_sigmoids_have_no_unit(either, power):
    rows = np.random.default_rng(0).normal(size=(90, 3)) / 10
    labels = np.arange(90) % 3
    even, fine = np.zeros(3), np.full(3, power)
    with np.errstate(over="ignore"):
        scaled = np.ldexp(rows, int(power))
    if power < -1000:  # what was cut off by scaling is cut off in both
        rows = np.ldexp(scaled, -int(power))
    one = sigmoid_answer(dataset(rows, labels, [90]), "logits", even)
    other = sigmoid_answer(dataset(scaled, labels, [90]), "logits", fine)
    assert np.isfinite(one).all()
    np.testing.assert_allclose(other, one, rtol=1e-12)


@needs_core
def test_sums_of_sigmoids_refuse_arrays_that_do_not_fit():
    scores, labels, offsets = np.zeros((4, 3)), np.zeros(4, int), np.array([0, 4])
    good = [scores, None, labels, offsets, None, 0, np.ones((8, 3))]
    good += [np.zeros((1, 6, 3))]
    _compiled.core.platt_sums(*good)
    for place, other in (
        (1, np.arange(3)),
        (1, np.array([0, 1, 2, 4])),
        (2, np.array([0, 0, 0, 3])),
        (2, np.array([0, 0, 0, -1])),
        (3, np.array([0, 5])),
        (3, np.array([-1, 4])),
        (3, np.empty(0, int)),
        (4, np.ones(3)),
        (5, 2),
        (5, -1),
        (6, np.ones((7, 3))),
        (6, np.ones((8, 2))),
        (7, np.zeros((1, 5, 3))),
        (7, np.zeros((2, 6, 3))),
    ):
        with pytest.raises(IndexError, match=r"fit together|out of range"):
            _compiled.core.platt_sums(*good[:place], other, *good[place + 1 :])


@needs_core
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_columns", [2, 48, 49, 63, 64, 97, 100, 257])
def test_softmax_in_place_and_of_rows_far_apart_has_the_same_bits(n_columns, dtype):
    """The end of a row is read and written together with what follows it."""
    rows = hard_rows(9, n_columns, dtype)[0]
    for logs in (False, True):
        expected = np.empty_like(rows)
        _compiled.core.softmax(rows, expected, 0.7, logs)
        place = rows.copy()
        _compiled.core.softmax(place, place, 0.7, logs)
        assert place.tobytes() == expected.tobytes()
        # Entries around a part of a matrix stay as they are, and have no effect.
        around = np.full((11, n_columns), np.nan, dtype)
        around[1:-1] = rows
        _compiled.core.softmax(around[1:-1], around[1:-1], 0.7, logs)
        assert around[1:-1].tobytes() == expected.tobytes()
        assert np.isnan(around[[0, -1]]).all()
        wide = np.full((9, n_columns + 3), np.nan, dtype)
        wide[:, :n_columns] = rows
        for laid in (wide[:, :n_columns], rows[::-1].copy()[::-1]):
            found = np.empty_like(rows)
            _compiled.core.softmax(laid, found, 0.7, logs)
            assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("n_columns", [2, 3, 10, 49, 130])
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_is_that_of_scipy(either, n_columns, dtype):
    rows, _ = hard_rows(100, n_columns, dtype)
    tol = 1e-13 if dtype == np.float64 else 2e-5
    exact = special.softmax(rows.astype(np.float64), axis=1)
    logs = special.log_softmax(rows.astype(np.float64), axis=1)
    np.testing.assert_allclose(_numerics.softmax(rows), exact, rtol=tol, atol=1e-37)
    assert (_numerics.softmax(rows)[np.isneginf(rows)] == 0).all()
    np.testing.assert_allclose(_numerics.log_softmax(rows), logs, rtol=tol, atol=tol)
    own = rows.copy()
    assert _numerics.softmax(own, out=own) is own
    np.testing.assert_array_equal(own, _numerics.softmax(rows))


@pytest.mark.parametrize(("n_columns", "beta"), [(2, 4), (10, 1), (10, 0.05), (60, 1)])
def test_sums_are_derivatives_of_the_log_loss(either, n_columns, beta):
    import mpmath

    mpmath.mp.dps = 40
    rng = np.random.default_rng(n_columns)
    rows = rng.normal(size=(6, n_columns)) * 3
    rows[2, :-1] -= 40
    labels = rng.integers(0, n_columns, 6)
    weights = rng.random(6)
    clients = dataset(rows, labels, [2, 0, 4], weights)
    found, used = derivative_sums(clients, beta, 5, np.float64)
    assert used.tolist() == [[2 * n_columns, 2], [0, 0], [4 * n_columns, 4]]

    def loss(own):
        def value(b):
            total = mpmath.mpf(0)
            for i in own:
                z = [mpmath.mpf(v) for v in rows[i]]
                parts = mpmath.fsum(mpmath.exp(b * v) for v in z)
                total += mpmath.mpf(weights[i]) * (mpmath.log(parts) - b * z[labels[i]])
            return total

        return value

    for client, own in ((0, (0, 1)), (2, (2, 3, 4, 5))):
        exact = [float(d) for d in mpmath.diffs(loss(own), beta, 5)][1:]
        scale = np.abs(rows).max() ** np.arange(1, 6)
        np.testing.assert_allclose(found[client] / scale, exact / scale, atol=1e-13)
    assert not found[1].any()


def test_rows_without_a_number_give_no_number(either):
    rows = np.zeros((3, 4))
    rows[1, 2], rows[2, 0] = np.nan, np.inf
    clients = dataset(rows, np.zeros(3, int), [1, 1, 1])
    with np.errstate(invalid="ignore"):
        found, _ = derivative_sums(clients, 1.0, 2, np.float64)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1:]).all()


def test_samples_of_rows_are_the_same_in_both_forms(monkeypatch):
    rows, labels = hard_rows(5000, 5, np.float32)
    clients = dataset(rows, labels, [2000, 0, 3000])
    with_core = derivative_sums(clients, 1.0, 2, np.float64, step=7)
    monkeypatch.setattr(_compiled, "core", None)
    without = derivative_sums(clients, 1.0, 2, np.float64, step=7)
    assert with_core[1].tolist() == without[1].tolist()
    np.testing.assert_allclose(with_core[0], without[0], rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_forms_fit_and_predict_the_same(monkeypatch, dtype):
    fed = make_federation(20, 3000, 10, random_state=0)
    rows = fed.logits.astype(dtype)
    first = FedTempCalibrator().fit(rows, fed.labels)
    proba = first.predict_proba(rows)
    monkeypatch.setattr(_compiled, "core", None)
    second = FedTempCalibrator().fit(rows, fed.labels)
    tol = 1e-10 if dtype == np.float64 else 1e-6
    assert first.temperature_ == pytest.approx(second.temperature_, rel=tol)
    np.testing.assert_allclose(proba, second.predict_proba(rows), atol=1e-6)


BINS = [ClassBins(n, space) for n in (1, 15, 128) for space in ("prob", "logit")]


def counted(clients, bins):
    shape = (len(clients), clients.rows.shape[1], bins.n_bins)
    positive, negative = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    squares = np.zeros((len(clients), 2), np.int64)
    assert _compiled.bin_counts(clients, bins.terms, positive, negative, squares)
    for i, counts in enumerate((positive, negative)):
        found = np.einsum("ijk,ijk->i", *[counts.astype(int)] * 2)
        assert squares[:, i].tolist() == found.tolist()
    plain = np.zeros((2, *shape), np.int32)
    assert _compiled.bin_counts(clients, bins.terms, *plain)
    np.testing.assert_array_equal(plain, [positive, negative])
    return positive, negative


@needs_core
@pytest.mark.parametrize("bins", BINS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [1, 2, 3, 10, 16, 17, 60])
def test_bins_are_those_of_numpy(n_columns, dtype, bins):
    rows, labels = hard_rows(300, n_columns, dtype)
    rows = np.where(rows < -1e6, dtype(-40), rows)
    order = np.random.default_rng(0).permutation(300)
    clients = dataset(rows, labels, [100, 0, 200], order=order)
    index = bins.index(rows)[order]
    expected = np.zeros((2, 3, n_columns, bins.n_bins), int)
    for i in range(300):
        for j in range(n_columns):
            kind = 0 if j == labels[i] else 1
            expected[kind, 0 if i < 100 else 2, j, index[i, j]] += 1
    found = np.array(counted(clients, bins))
    # Entries on an edge to the last bit may go either way: none of these are.
    np.testing.assert_array_equal(found, expected)
    table = np.random.default_rng(1).random((n_columns, bins.n_bins))
    for same in (np.ascontiguousarray(rows), np.asfortranarray(rows)):
        out = np.empty(rows.shape)
        assert _compiled.bin_values(same, bins.terms, table, out)
        np.testing.assert_array_equal(out[order], table[np.arange(n_columns), index])
    assert _compiled.bin_values(rows, bins.terms, table, out, normalise=True)
    np.testing.assert_allclose(out.sum(axis=1), 1.0)


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", COLUMNS)
def test_bins_and_scores_have_the_same_bits_at_every_level(n_columns, dtype):
    rows, labels = hard_rows(200, n_columns, dtype)
    clients = dataset(rows, labels, [150, 50])
    table = np.random.default_rng(0).random((n_columns, 128))
    found = []
    for level in _compiled.levels():
        _compiled.core.use(level)
        values, scores = np.empty_like(rows), np.empty((2, 200))
        gamma = np.empty(128)
        _compiled.log_gamma(table[0] * 20, gamma)
        parts = [values, scores, gamma]
        for space in ("prob", "logit"):
            bins = ClassBins(128, space)
            parts += counted(clients, bins)
            _compiled.bin_values(rows, bins.terms, table, values, normalise=True)
            both = np.empty((4, 200))
            _compiled.bin_scores(clients, bins.terms, table, both)
            parts += [values.copy(), both]
        _compiled.scores(rows, labels, scores)
        found.append([part.tobytes() for part in parts])
    assert all(other == found[0] for other in found)


@needs_core
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", COLUMNS)
def test_bins_and_scores_of_a_row_do_not_depend_on_its_neighbours(n_columns, dtype):
    """Rows are worked on in groups of 16, whatever clients they belong to."""
    rows, labels = hard_rows(67, n_columns, dtype)
    table = np.random.default_rng(0).random((n_columns, 128)) + 0.1

    def answers(rows, labels, terms):
        clients = dataset(rows, labels, [1] * len(rows))
        shape = (len(rows), n_columns, 128)
        positive, negative = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        squares = np.zeros((len(rows), 2), np.int64)
        _compiled.bin_counts(clients, terms, positive, negative, squares)
        values, both = np.empty_like(rows), np.empty((4, len(rows)))
        _compiled.bin_values(rows, terms, table, values, normalise=True)
        _compiled.bin_scores(clients, terms, table, both)
        alone = np.empty((2, len(rows)))
        _compiled.scores(rows, labels, alone)
        np.testing.assert_array_equal(alone, both[:2])
        return positive, negative, squares, values, both.T

    for space in ("prob", "logit"):
        terms = ClassBins(128, space).terms
        found = answers(rows, labels, terms)
        for i in (0, 1, 15, 16, 40, 66):
            one = answers(rows[i : i + 1], labels[i : i + 1], terms)
            for some, own in zip(found, one, strict=True):
                assert some[i : i + 1].tobytes() == own.tobytes()


@needs_core
@pytest.mark.parametrize("sizes", [[60], [3, 0, 16, 17, 1, 23]])
def test_squares_of_counts_are_those_of_the_counts(sizes):
    rows, labels = hard_rows(60, 10, np.float32)
    clients = dataset(rows, labels, sizes, order=np.arange(60)[::-1].copy())
    for bins in (ClassBins(16, "prob"), ClassBins(16, "logit")):
        positive, negative = np.zeros((2, len(sizes), 10, 16), np.int32)
        squares = np.zeros((len(sizes), 2), np.int64)
        _compiled.bin_counts(clients, bins.terms, positive, negative, squares)
        expected = [(counts**2).sum(axis=(1, 2)) for counts in (positive, negative)]
        np.testing.assert_array_equal(squares.T, expected)


@needs_core
def test_scores_are_those_of_scikit_learn():
    rows, labels = hard_rows(100, 6, np.float64)
    rows = np.maximum(rows, -30.0)
    scores = np.empty((2, 100))
    assert _compiled.scores(rows, labels, scores)
    proba = special.softmax(rows, axis=1)
    onehot = np.eye(6)[labels]
    np.testing.assert_allclose(
        scores[0],
        -special.log_softmax(rows, axis=1)[np.arange(100), labels],
        atol=1e-12,
    )
    np.testing.assert_allclose(
        scores[1], ((proba - onehot) ** 2).sum(axis=1), atol=1e-14
    )


@needs_core
@pytest.mark.parametrize("bins", BINS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [1, 2, 7, 8, 9, 60])
def test_scores_of_bins_are_those_of_rows_and_of_values(n_columns, dtype, bins):
    rows, labels = hard_rows(90, n_columns, dtype)
    rows = np.asfortranarray(np.where(rows < -1e6, dtype(-40), rows))
    table = np.random.default_rng(0).random((n_columns, bins.n_bins)) ** 40 + 1e-300
    values, expected = np.empty(rows.shape), np.empty((4, 90))
    _compiled.bin_values(rows, bins.terms, table, values)
    _compiled.scores(rows, labels, expected[:2])
    _compiled.scores(np.log(values), labels, expected[2:])
    # A part of the clients, in another order: rows 80 to 29.
    order = np.arange(90)[::-1].copy()
    clients = dataset(rows, labels[::-1].copy(), [9, 52, 29], order=order).slice(1, 2)
    found = np.empty((4, 52))
    assert _compiled.bin_scores(clients, bins.terms, table, found)
    expected = expected[:, 80:28:-1]
    np.testing.assert_array_equal(found[:2], expected[:2])
    np.testing.assert_allclose(found[2:], expected[2:], rtol=1e-12, atol=1e-13)


@needs_core
def test_log_gamma_is_that_of_mpmath():
    import mpmath

    rng = np.random.default_rng(0)
    values = np.exp(rng.uniform(np.log(1e-12), np.log(1e6), 2000))
    values[:4] = 1.0, 2.0, 8.0, np.nextafter(8.0, 0)
    truth = np.array([float(mpmath.loggamma(x)) for x in values.tolist()])
    # Absolute error near the zeros at 1 and 2; sums of large terms do not need more.
    np.testing.assert_allclose(applied(6, values), truth, rtol=1e-15, atol=2e-14)


@needs_core
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_encoded_sums_are_those_of_the_codec(monkeypatch, norm, groups, whole):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(400, 12)) * 10 ** rng.uniform(-2, 3, (400, 1))
    values[rng.random(values.shape) < 0.5] = 0.0
    if whole:
        values = values.astype(np.int32)
    else:
        values[3, 2], values[4, 3], values[5, 1] = np.nan, np.inf, 1e300
    for step in (1.0, 0.3, 2.0**-20):
        spec = BlockSpec((12,), clip=4.0, norm=norm, groups=groups)
        code = BlockCode(spec, step)
        found = code.encode_sum(values)
        each = [code.encode_sum(values[i : i + 1]) for i in range(400)]
        assert np.array(each).sum(axis=0).tolist() == found.tolist()
        size = np.abs(each)[:, 0].reshape(400, groups, -1)
        norms = size.sum(axis=2) if norm == "l1" else (size**2).sum(axis=2)
        assert norms.max() <= code.limit
        with monkeypatch.context() as patch:
            patch.setattr(_compiled, "core", None)
            expected = code.encode_sum(values)
            # A last bit may turn a rounding now and then.
            assert np.abs(found - expected).max() <= 2


@needs_core
@pytest.mark.parametrize("dtype", DTYPES)
def test_real_numbers_have_the_limbs_of_numpy(monkeypatch, dtype):
    rng = np.random.default_rng(5)
    values = rng.normal(size=(300, 5)) * 10.0 ** rng.uniform(-14, 18, (300, 5))
    values[:4] = [
        [np.nan, np.inf, -np.inf, 1e300, -1e300],
        [0.0, -0.0, 2.0**-41, -(2.0**-41), 3 * 2.0**-41],
        [2.0**24, -(2.0**24), 2.0**-8, -(2.0**-8), 2.0**24 - 1],
        [2.0**55, -(2.0**55), 2.0**54, 5e-324, -1.0],
    ]
    with np.errstate(over="ignore"):
        values = values.astype(dtype)
    code = BlockCode(BlockSpec((5,)))
    assert code.n_limbs == 3
    found = [code.encode_sum(values), code.encode_sum(values[:, ::-1])[:, ::-1]]
    each = sum(code.encode_sum(values[i : i + 1]) for i in range(len(values)))
    monkeypatch.setattr(_compiled, "core", None)
    expected = code.encode_sum(values)
    assert expected[0].any() and expected[2].any()
    for total in (*found, each):
        np.testing.assert_array_equal(total, expected)


@needs_core
@pytest.mark.parametrize("names", [range(6), list("abcdef"), [0.5, -1, None, "", 7, 8]])
def test_both_forms_hold_back_the_same_rows(monkeypatch, names):
    rows, labels = hard_rows(400, 3, np.float64)
    offsets = np.array([0, 7, 7, 150, 151, 390, 400])
    whole = FederatedDataset(rows, labels, offsets, names, 3)
    for clients in (whole, whole.slice(2, 5), whole.slice(1, 2)):
        found = split_rows(clients)
        with monkeypatch.context() as patch:
            patch.setattr(_compiled, "core", None)
            expected = split_rows(clients)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.order, other.order)
            np.testing.assert_array_equal(one.offsets, other.offsets)
            np.testing.assert_array_equal(one.labels, other.labels)
        held, fitted = found
        assert held.n_rows + fitted.n_rows == clients.n_rows


@needs_core
def test_what_the_core_marks_must_fit_together():
    marks = np.zeros(5, np.bool_)
    names = np.zeros(2, np.int64)
    for offsets, some in (
        ([0, 2, 6], names),
        ([0, 6, 5], names),
        ([0, 5], names),
        ([1, 3, 5], names),
        ([0, 2, 5], names[:1]),
    ):
        with pytest.raises(ValueError, match="do not fit together"):
            _compiled.held_marks(np.array(offsets), some, 1, 2**63, marks)
    total = np.zeros((3, 2), np.int64)
    for values, largest in ((np.zeros((4, 3)), 1.0), (np.zeros((4, 2)), np.nan)):
        with pytest.raises(ValueError, match="do not fit together"):
            _compiled.core.limb_sum(values, largest, total)


@needs_core
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [1, 3, 10, 16, 100])
def test_one_entry_that_is_not_finite_is_found_wherever_it_lies(
    best_level, dtype, n_columns
):
    largest = np.finfo(dtype).max
    rng = np.random.default_rng(0)
    rows = rng.choice([-largest, 0, 1e-40, largest], (7, n_columns)).astype(dtype)
    # Row after row, and rows that are in steps, turned, backward or at odd addresses.
    odd = np.empty(rows.nbytes + 1, np.uint8)[1:].view(dtype).reshape(rows.shape)
    for own in (
        rows.copy(),
        np.repeat(rows, 2, axis=1)[:, ::2],
        rows.copy(order="F"),
        rows.copy()[::-1],
        odd,
    ):
        for level in _compiled.levels():
            _compiled.core.use(level)
            own[...] = rows
            assert _compiled.all_finite(own)
            for bad in (np.nan, np.inf, -np.inf):
                for place in ((0, 0), (3, n_columns // 2), (6, n_columns - 1)):
                    own[...] = rows
                    own[place] = bad
                    assert not _compiled.all_finite(own)
        own[...] = rows


@needs_core
def test_only_matrices_of_floats_are_looked_at():
    assert not _compiled.all_finite(np.zeros((2, 3), np.float16))
    assert not _compiled.all_finite(np.zeros(3))
    assert not _compiled.all_finite(np.zeros((3, 0)))
    assert _compiled.all_finite(np.zeros((0, 3)))


def test_derivatives_in_the_relative_change_are_those_times_powers(either):
    rows, labels = hard_rows(300, 5, np.float64)
    clients = dataset(rows, labels, [100, 0, 200])
    for beta in (0.7, np.array([0.7, 1.0, 2.5])):
        plain, sizes = derivative_sums(clients, beta, 5, np.float64)
        found, same = derivative_sums(clients, beta, 5, np.float64, relative=True)
        powers = [1.0] * 3
        for k in range(5):
            powers = powers * np.broadcast_to(beta, 3)
            np.testing.assert_array_equal(found[:, k], plain[:, k] * powers)
        assert sizes.tolist() == same.tolist() == [[500, 100], [0, 0], [1000, 200]]


@needs_core
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [4, 200])
def test_scores_before_and_after_a_temperature_are_those_of_each_row(dtype, n_columns):
    rows, labels = hard_rows(200, n_columns, dtype)
    order = np.random.default_rng(0).permutation(200)
    for clients in (
        dataset(rows, labels, [50, 0, 150]),
        dataset(rows, labels[order], [50, 0, 150], order=order),
        dataset(rows, labels, [50, 0, 150]).slice(2, 3),
        dataset(rows, labels[order], [50, 0, 150], order=order).slice(2, 3),
        dataset(rows[:, ::-1], labels, [200]),
    ):
        out = np.empty((4, clients.n_rows))
        assert _compiled.scaled_scores(clients, 0.4, out)
        for block in clients.blocks():
            expected = np.empty((2, clients.n_rows))
            _compiled.scores(block.rows, block.labels, expected)
            np.testing.assert_array_equal(out[:2], expected)
            _compiled.scores(block.rows * dtype(0.4), block.labels, expected)
            np.testing.assert_array_equal(out[2:], expected)


def distributions(n_rows, n_columns, dtype, seed=0):
    """Rows that are peaked, flat or tied, and labels."""
    rng = np.random.default_rng([seed, n_columns])
    rows = special.softmax(rng.normal(size=(n_rows, n_columns)) * 3, axis=1)
    rows[::5] = np.eye(n_columns)[rng.integers(n_columns, size=len(rows[::5]))]
    rows[1::7] = 1 / n_columns
    return rows.astype(dtype), rng.integers(0, n_columns, n_rows)


def summed_metrics(rows, labels, n_bins=15):
    """Bytes of all that the core adds up over rows of probabilities."""
    n_rows, n_columns = rows.shape
    top, value = np.empty(n_rows, np.int64), np.empty(n_rows)
    assert _compiled.top_labels(rows, top, value)
    gaps, columns = np.zeros((n_columns, n_bins + 1)), np.empty(n_columns)
    assert _compiled.class_gaps(rows, labels, n_bins, 1e-3, gaps, columns)
    norms, sums = np.empty(n_rows), np.zeros((3, n_bins))
    assert _compiled.squares(rows, norms)
    assert _compiled.bin_sums(value, top == labels, None, sums)
    return [x.tobytes() for x in (top, value, gaps, columns, norms, sums)]


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", COLUMNS)
def test_sums_of_metrics_have_the_same_bits_at_every_level(n_columns, dtype):
    rows, labels = distributions(131, n_columns, dtype)
    found = []
    for level in _compiled.levels():
        _compiled.core.use(level)
        found.append(summed_metrics(rows, labels))
        assert _compiled.valid_rows(rows, 1e-3) is True
    assert all(other == found[0] for other in found)


@needs_core
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [*COLUMNS, 1500])
def test_sums_of_metrics_are_those_of_numpy(monkeypatch, n_columns, dtype):
    rows, labels = distributions(301, n_columns, dtype)
    sizes = np.bincount(labels, minlength=n_columns)
    weight = np.random.default_rng(0).random(301)

    def answers(given, labels):
        top, value = binning.top_labels(given)
        yield top
        yield value
        for n_bins in (1, 15, 400):
            yield classwise_gaps(given, labels, sizes, n_bins)
            for by in (None, weight):
                sums = binning.uniform_bin_sums(value, top == labels, n_bins, by)
                yield np.stack([sums.proba, sums.labels, sums.weight])

    given = (
        (rows, labels),
        (np.asfortranarray(rows), labels.astype(np.int8) if n_columns < 99 else labels),
        (np.repeat(rows, 2, axis=1)[:, ::2], np.repeat(labels, 2)[::2]),
    )
    found = [[a.tobytes() for a in answers(*each)] for each in given]
    norms = np.empty(301)
    _compiled.squares(rows, norms)
    monkeypatch.setattr(_compiled, "core", None)
    expected = [a.tobytes() for a in answers(rows, labels)]
    assert all(each == expected for each in found)
    exact = (rows.astype(np.longdouble) ** 2).sum(axis=1)
    np.testing.assert_allclose(norms, exact.astype(np.float64), rtol=1e-14)


@needs_core
@pytest.mark.parametrize("n_columns", [2, 10, 16, 60, 130])
def test_likeliest_classes_are_the_first_ones(n_columns):
    rng = np.random.default_rng(n_columns)
    rows = rng.integers(0, 3, size=(200, n_columns)) / 8
    top, value = np.empty(200, np.int64), np.empty(200)
    for given in (rows, rows.astype(np.float32)):
        _compiled.top_labels(given, top, value)
        np.testing.assert_array_equal(top, rows.argmax(axis=1))
        np.testing.assert_array_equal(value, rows.max(axis=1))


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [2, 10, 17, 60, 1100])
def test_a_fault_of_any_entry_is_found(n_columns, dtype):
    """At every level, since signs of lanes are collected by other instructions."""
    rows, labels = distributions(70, n_columns, dtype)
    gaps, columns = np.zeros((n_columns, 16)), np.empty(n_columns)

    def valid(given):
        gaps[:] = 0
        found = _compiled.class_gaps(given, labels, 15, 1e-3, gaps, columns)
        assert found is _compiled.valid_rows(given, 1e-3)
        return found

    faults = (np.nan, -np.nan, np.inf, -np.inf, -1e-30, 1.5, 1e30)
    for level in _compiled.levels():
        _compiled.core.use(level)
        assert valid(rows)
        assert valid(np.where(rows == 0, dtype(-0.0), rows))
        for n, row in enumerate((0, 33, 63, 69)):
            for column in {0, n_columns // 2, n_columns - 1}:
                for change in faults[n % 2 :: 2]:
                    bad = rows.copy()
                    bad[row, column] = change
                    assert not valid(bad), (level, row, column, change)
        assert not valid(rows * dtype(0.9985))
        assert not valid(rows * dtype(1.0015))
        assert valid(rows * dtype(1.0005))


@needs_core
@pytest.mark.usefixtures("best_level")
def test_so_many_bins_are_told_apart_in_double_precision():
    """8388610 - 0.5 is 8388610 in single precision, and no number of a bin."""
    n_bins = (1 << 23) + 2
    logits = np.array([[30.0, -30.0], [-30.0, 30.0], [0.0, 0.0]])
    table, out = np.zeros((3, n_bins)), np.empty_like(logits)
    table[:, 0], table[:, -1], table[:, n_bins // 2] = 1, 2, 3
    for level in _compiled.levels():
        _compiled.core.use(level)
        for slack in (0.0, -1.0, np.nan):
            _compiled.core.bin_values(
                logits, n_bins, 16.0, slack, table[:2], False, out
            )
            np.testing.assert_array_equal(out, [[2, 1], [1, 2], [3, 3]])


@needs_core
@pytest.mark.usefixtures("best_level")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n_columns", [2, 17, 60, 1100])
def test_an_entry_below_0_after_a_large_one_is_found(n_columns, dtype):
    """The row adds up to 1: the large entry has no bin, and must not be counted."""
    rows, labels = distributions(70, n_columns, dtype)
    memory, columns = np.zeros((n_columns + 8, 16)), np.empty(n_columns)
    for level in _compiled.levels():
        _compiled.core.use(level)
        for row in (0, 69):
            bad = rows.copy()
            bad[row] = 0
            bad[row, -2:] = 4, -3
            gaps = memory[:n_columns]
            assert not _compiled.class_gaps(bad, labels, 15, 1e-3, gaps, columns)
            np.testing.assert_array_equal(memory[n_columns:], 0)


@needs_core
def test_sums_of_metrics_refuse_arrays_that_do_not_fit():
    core, rows, labels = _compiled.core, np.full((2, 4), 0.25), np.zeros(2, int)
    columns = np.empty(4)

    def gaps(width=16, n_bins=15, codes=labels, columns=columns, rows=rows):
        core.class_gaps(rows, codes, n_bins, 1e-3, np.zeros((4, width)), columns)

    gaps()
    for wrong in (
        {"width": 15},
        {"n_bins": 0},
        {"codes": labels[:1]},
        {"columns": columns[:3]},
        {"rows": rows[:, :3].copy()},
    ):
        with pytest.raises(IndexError, match="do not fit"):
            gaps(**wrong)
    with pytest.raises(IndexError, match="do not fit"):
        core.top_labels(rows, np.empty(3, int), np.empty(2))
    with pytest.raises(IndexError, match="do not fit"):
        core.squares(rows, np.empty(3))
    for sums in (np.zeros((2, 5)), np.zeros((3, 0))):
        with pytest.raises(IndexError, match="do not fit"):
            core.bin_sums(np.ones(2), np.ones(2, bool), None, sums)
    with pytest.raises(IndexError, match="do not fit"):
        core.bin_sums(np.ones(2), np.ones(2, bool), np.ones(3), np.zeros((3, 5)))


@needs_core
def test_labels_that_are_no_column_belong_to_no_entry():
    rows = np.full((3, 4), 0.25)
    gaps, columns = np.zeros((4, 16)), np.empty(4)
    assert _compiled.class_gaps(rows, np.array([-1, 4, 2]), 15, 1e-3, gaps, columns)
    np.testing.assert_array_equal(gaps.sum(axis=1), [0.75, 0.75, -0.25, 0.75])


def test_scores_of_probabilities_are_the_same_in_both_forms(monkeypatch):
    rows, labels = distributions(500, 12, np.float32)
    names = np.array(list("abcdefghijkl"))[labels]
    weight = np.random.default_rng(0).random(500)

    def answers():
        for y in (labels, labels.astype(np.uint8), names, names.astype(object)):
            for by in (None, weight):
                yield expected_calibration_error(y, rows, sample_weight=by)
                yield classwise_calibration_error(y, rows, sample_weight=by)
        yield calibration_error(labels == 3, rows[:, 3])
        yield calibration_error(labels == 3, rows[:, 3], sample_weight=weight)
        yield expected_calibration_error(labels, rows, strategy="quantile")

    found, brier = list(answers()), brier_score(labels, rows)
    monkeypatch.setattr(_compiled, "core", None)
    assert found == list(answers())
    assert brier == pytest.approx(brier_score(labels, rows), rel=1e-15)


@needs_core
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("bins", BINS, ids=str)
def test_a_row_without_a_number_has_no_bins(bins, bad):
    rows = np.zeros((2, 3))
    rows[1, 1] = bad
    with pytest.raises(ValueError, match="not finite"):
        counted(dataset(rows, np.zeros(2, int), [2]), bins)


@pytest.mark.parametrize("space", ["prob", "logit"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_forms_of_bins_fit_and_predict_the_same(monkeypatch, space, dtype):
    fed = make_federation(20, 2000, 7, random_state=0)
    rows = fed.logits.astype(dtype)
    for make in (FedBBQCalibrator, FedBinCalibrator):
        first = make(space=space).fit(rows, fed.labels)
        proba = first.predict_proba(rows)
        logs = first.predict_log_proba(rows)
        with monkeypatch.context() as patch:
            patch.setattr(_compiled, "core", None)
            second = make(space=space).fit(rows, fed.labels)
            np.testing.assert_array_equal(first.positive_, second.positive_)
            tol = 1e-12 if dtype == np.float64 else 1e-6
            np.testing.assert_allclose(proba, second.predict_proba(rows), atol=tol)
            np.testing.assert_allclose(
                logs, second.predict_log_proba(rows), rtol=1e-5, atol=tol
            )
            for name, value in first.comparison_.items():
                assert value == pytest.approx(second.comparison_[name], rel=1e-5)


@needs_core
def test_arrays_that_do_not_fit_are_refused_by_the_core():
    core = _compiled.core
    rows, labels, one = np.zeros((2, 3)), np.zeros(2, int), 1.0
    offsets, used = np.array([0, 2]), np.zeros((1, 2), np.int64)

    def sums(rows=rows, order=None, labels=labels, offsets=offsets, weights=None):
        out = np.zeros((1, 2))
        core.derivative_sums(
            rows, order, labels, offsets, weights, one, 1, 1, 0, out, used
        )

    sums()
    for labels_out in ([0, 3], [-1, 0]):
        with pytest.raises(IndexError, match="label is out of range"):
            sums(labels=np.array(labels_out))
    with pytest.raises(IndexError, match="offsets are out of range"):
        sums(offsets=np.array([0, 5]))
    with pytest.raises(IndexError, match="order is out of range"):
        sums(order=np.array([0, 7]))
    with pytest.raises(IndexError, match="do not fit"):
        sums(weights=np.ones(3))
    with pytest.raises(TypeError, match="rows must have 2 dimensions"):
        sums(rows=np.zeros((2, 3), np.int64))
    with pytest.raises(ValueError, match="differ in shape"):
        core.softmax(rows, np.zeros((2, 4)), 1.0, False)
    with pytest.raises(TypeError, match="4 arguments"):
        core.softmax(rows)
    with pytest.raises(ValueError, match="no level"):
        core.use("nine")

    def scores(order=None, labels=labels, n_bins=2, rows=rows):
        table = np.ones((3, n_bins))
        core.bin_scores(rows, order, labels, 2, 0.0, 0.0, table, np.empty((4, 2)))

    scores()
    for wrong in ([0, 3], [-1, 0]):
        with pytest.raises(IndexError, match="label is out of range"):
            scores(labels=np.array(wrong))
    with pytest.raises(IndexError, match="order is out of range"):
        scores(order=np.array([0, 2]))
    with pytest.raises(IndexError, match="do not fit"):
        scores(n_bins=4)
    with pytest.raises(ValueError, match="not finite"):
        scores(rows=np.full((2, 3), np.nan))


def info(value):
    env = {**os.environ, "SKFEDCAL_CORE": value}
    code = "from skfedcal import _compiled; print(_compiled.arithmetic())"
    # -P: the package that runs here, not the one in the folder.
    return subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True
    )


def test_a_variable_of_the_environment_switches_the_core_off():
    assert info("off").stdout.strip() == "numpy"


@needs_core
def test_a_variable_of_the_environment_chooses_a_level():
    level = _compiled.levels()[-1]
    assert info(level).stdout.strip() == _compiled.arithmetic()
    assert "must be 'off' or one of" in info("sse9").stderr


@needs_core
def test_a_core_of_another_version_is_not_used(monkeypatch):
    monkeypatch.setattr(_compiled, "_INTERFACE", _compiled._INTERFACE + 1)
    with pytest.warns(RuntimeWarning, match="of another version of skfedcal"):
        assert _compiled._load() is None
    monkeypatch.setenv("SKFEDCAL_CORE", _compiled.levels()[-1])
    with pytest.raises(ImportError, match="of another version of skfedcal, and SKF"):
        _compiled._load()


@needs_core
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("number_texts", (b"abc", 2, np.zeros(1, "q"), np.zeros(1, "q"))),
        ("number_texts", (b"abc", 0, np.zeros(1, "q"), np.zeros(1, "q"))),
        ("number_texts", (b"abc", 1, np.zeros(2, "q"), np.zeros(3, "q"))),
        (
            "number_texts",
            (b"abc", np.array([0, 4]), np.zeros(1, "q"), np.zeros(1, "q")),
        ),
        (
            "number_texts",
            (b"abc", np.array([2, 1]), np.zeros(1, "q"), np.zeros(1, "q")),
        ),
        (
            "number_texts",
            (b"abc", np.array([-1, 1]), np.zeros(1, "q"), np.zeros(1, "q")),
        ),
        (
            "number_texts",
            (b"abc", np.zeros(0, "q"), np.zeros(0, "q"), np.zeros(0, "q")),
        ),
        ("number_texts", (b"abc", np.zeros(2), np.zeros(1, "q"), np.zeros(1, "q"))),
        ("number_objects", (np.zeros(3, object), np.zeros(3, "q"), np.zeros(2, "q"))),
        ("number_objects", (np.zeros(3), np.zeros(3, "q"), np.zeros(3, "q"))),
        ("text_order", (b"abc", 1, 1, np.array([3]), np.zeros(1, "q"))),
        ("text_order", (b"abc", 1, 4, np.array([0]), np.zeros(1, "q"))),
        ("text_order", (b"abc", 1, 1, np.array([0]), np.zeros(2, "q"))),
        ("group_rows", (np.array([0, 2]), np.zeros(2, "q"), np.zeros(2, "q"))),
        ("group_rows", (np.array([0, 0]), np.ones(1, "q"), np.zeros(2, "q"))),
        ("group_rows", (np.array([0, 0]), np.zeros(1, "q"), np.zeros(3, "q"))),
    ],
)
def test_ids_that_do_not_fit_are_refused_by_the_core(name, args):
    with pytest.raises((IndexError, TypeError)):
        getattr(_compiled.core, name)(*args)


def misaligned(array):
    """The same numbers one byte beside where C has them, as fields of records are."""
    out = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype)
    out = out.reshape(array.shape)
    out[...] = array
    assert not out.flags.aligned
    return out


@pytest.mark.parametrize(
    "kind", [FedTempCalibrator, FedVectorCalibrator, FedBiasTempCalibrator,
             FedOneVsRestCalibrator, FedBinCalibrator]
)  # fmt: skip
def test_arrays_may_lie_anywhere_in_memory(kind):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(200, 3)), rng.integers(0, 3, 200)
    ids, weights = rng.integers(0, 4, 200), rng.random(200)
    some = {} if kind is FedBinCalibrator else {"sample_weight": weights}
    whole = kind().fit(rows, labels, client_ids=ids, **some)
    some = {name: misaligned(value) for name, value in some.items()}
    moved = kind().fit(
        misaligned(rows), misaligned(labels), client_ids=misaligned(ids), **some
    )
    expected = whole.predict_proba(rows)
    np.testing.assert_array_equal(moved.predict_proba(misaligned(rows)), expected)


def test_a_dataset_may_lie_anywhere_in_memory():
    rows, labels = hard_rows(60, 3, np.float64)
    order = np.random.default_rng(0).permutation(60)
    weights = np.linspace(0, 2, 60)
    sizes = [10, 0, 50]
    found = []
    for move in (np.asarray, misaligned):
        clients = dataset(
            move(rows), move(labels), sizes, move(weights), order=move(order)
        )
        clients = replace(clients, offsets=move(clients.offsets))
        found.append(derivative_sums(clients, 0.7, 5, np.float64)[0])
    np.testing.assert_array_equal(*found)


def test_labels_of_a_foreign_byte_order_are_left_to_numpy():
    rows, labels = hard_rows(60, 3, np.float64)
    clients = dataset(rows, labels, [60])
    foreign = replace(clients, labels=clients.labels.astype(">i4"))
    found = [derivative_sums(c, 0.7, 5, np.float64)[0] for c in (clients, foreign)]
    np.testing.assert_allclose(*found, rtol=1e-9)


def test_metrics_take_arrays_that_lie_anywhere_in_memory():
    rng = np.random.default_rng(0)
    labels, weights = rng.integers(0, 2, 90), rng.random(90)
    proba = rng.random(90)
    both = np.column_stack([1 - proba, proba])
    for score, rows in (
        (calibration_error, proba),
        (expected_calibration_error, both),
        (classwise_calibration_error, both),
    ):
        expected = score(labels, rows)
        assert score(misaligned(labels), misaligned(rows)) == expected
        if score is not classwise_calibration_error:
            expected = score(labels, rows, sample_weight=weights)
            moved = misaligned(labels), misaligned(rows)
            assert score(*moved, sample_weight=misaligned(weights)) == expected
