"""What the other classes get: oracles, and what no one may lose."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit, logit, softmax

from skfedcal.methods import map_formulas
from skfedcal.methods.graph import ArrayValue
from skfedcal.methods.top_bins.estimator import share_rest, temper_to


def move_top(rows, before, own):
    columns = (ArrayValue(np.asarray(x)[:, None]) for x in (before, own))
    with np.errstate(all="ignore"):
        found = map_formulas.move_top(ArrayValue(rows), *columns, rows.shape[1])
    return found.array


def centred(seed, n_classes, scale, n=20):
    rows = np.random.default_rng(seed).normal(size=(n, n_classes)) * scale
    return rows - rows.max(axis=1, keepdims=True)


@given(
    seed=st.integers(0, 999),
    n_classes=st.integers(2, 30),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    level=st.floats(0.01, 1 - 1e-9),
)
def test_the_temperature_of_a_row_gives_its_top_class_what_is_asked(
    seed, n_classes, scale, level
):
    rows = centred(seed, n_classes, scale)
    own = np.full(20, 1 / n_classes + (1 - 1 / n_classes) * level)
    found = temper_to(rows, own)
    np.testing.assert_allclose(softmax(found, axis=1).max(axis=1), own, rtol=1e-11)
    # One positive factor for each row.
    used = rows < 0
    ratio = np.where(used, found, -np.inf) / np.where(used, rows, 1.0)
    factor = np.where(used, ratio, np.nan)
    inside = found > -1e6
    spread = np.nanmax(np.where(inside, factor, np.nan), axis=1)
    np.testing.assert_allclose(
        np.nanmin(np.where(inside, factor, np.nan), axis=1), spread, rtol=1e-12
    )
    assert (spread > 0).all()


def test_the_temperature_is_that_of_a_root_finder():
    rows = centred(1, 6, 3.0)
    own = np.linspace(0.2, 0.99, 20)
    found = temper_to(rows, own)

    def excess(factor, row, value):
        return softmax(factor * row).max() - value

    for row, value, out in zip(rows, own, found, strict=True):
        factor = brentq(excess, 1e-9, 1e6, args=(row, value), xtol=1e-15)
        np.testing.assert_allclose(out, factor * row, rtol=1e-7)


def test_its_own_probability_leaves_a_row_as_it_is():
    rows = centred(2, 5, 2.0)
    own = softmax(rows, axis=1).max(axis=1)
    np.testing.assert_allclose(temper_to(rows, own), rows, rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("own", [1e-300, 0.05, 0.2])
def test_less_than_an_equal_share_keeps_the_order(own, dtype):
    rows = centred(3, 5, 2.0).astype(dtype)
    found = temper_to(rows, np.full(20, own)).astype(dtype)
    proba = softmax(found, axis=1)
    np.testing.assert_allclose(proba, 0.2, atol=1e-2)
    np.testing.assert_array_equal(proba.argmax(axis=1), rows.argmax(axis=1))
    np.testing.assert_array_equal(np.argsort(found), np.argsort(rows))


def test_classes_that_are_equal_stay_so():
    rows = np.array([[0.0, 0.0, -1.0], [0.0, 0.0, 0.0], [0.0, -2.0, -2.0]])
    proba = softmax(temper_to(rows, np.full(3, 0.9)), axis=1)
    np.testing.assert_allclose(proba[0], [0.5, 0.5, 0.0], atol=1e-12)
    np.testing.assert_allclose(proba[1], 1 / 3)
    np.testing.assert_allclose(proba[2], [0.9, 0.05, 0.05])
    # Within reach: two halves of 0.8.
    near = softmax(temper_to(rows[:1], np.array([0.4])), axis=1)
    np.testing.assert_allclose(near, [[0.4, 0.4, 0.2]])


def test_masked_classes_and_denormal_gaps_do_no_harm():
    rows = np.array([[0.0, -np.inf, -1.0], [0.0, -np.inf, -np.inf], [0, -5e-324, -1]])
    with np.errstate(all="raise", under="ignore"):
        proba = softmax(temper_to(rows, np.full(3, 0.7)), axis=1)
    np.testing.assert_allclose(proba[0], [0.7, 0.0, 0.3], atol=1e-12)
    np.testing.assert_allclose(proba[1], [0.7, 0.15, 0.15])
    np.testing.assert_allclose(proba[2], [0.5, 0.5, 0.0], atol=1e-12)


def test_each_row_is_solved_by_itself_to_the_last_bit():
    rows, own = centred(4, 7, 4.0), np.linspace(0.2, 0.999, 20)
    whole = temper_to(rows, own)
    for i in range(20):
        one = temper_to(rows[i : i + 1], own[i : i + 1])
        assert one.tobytes() == whole[i : i + 1].tobytes()


@given(seed=st.integers(0, 999), n_classes=st.integers(2, 8))
def test_the_rest_is_shared_in_proportion(seed, n_classes):
    rows = centred(seed, n_classes, 2.0)
    top, own = rows.argmax(axis=1), np.linspace(0.01, 0.99, 20)
    found = np.exp(share_rest(rows, top, own))
    proba = softmax(rows, axis=1)
    for i in range(20):
        expected = proba[i] * (1 - own[i]) / (1 - proba[i, top[i]])
        expected[top[i]] = own[i]
        np.testing.assert_allclose(found[i], expected, rtol=1e-9)


@given(
    seed=st.integers(0, 999),
    n_classes=st.integers(2, 8),
    scale=st.sampled_from([1e-3, 1.0, 3.0]),
)
def test_a_top_that_falls_is_tempered_and_one_that_rises_leaves_proportions(
    seed, n_classes, scale
):
    rows = centred(seed, n_classes, scale)
    top = rows.argmax(axis=1)
    others = np.where(np.arange(n_classes) == top[:, None], -np.inf, rows)
    before = -np.logaddexp.reduce(others, axis=1)
    own = before + np.linspace(-3, 3, 20)
    found = move_top(rows, before, own)
    falls = own < before
    tempered = temper_to(rows, expit(own))
    np.testing.assert_allclose(found[falls], tempered[falls], rtol=1e-7)
    proba, expected = softmax(found, axis=1), np.exp(share_rest(rows, top, expit(own)))
    np.testing.assert_allclose(proba[~falls], expected[~falls], rtol=1e-7)
    np.testing.assert_array_equal(np.argsort(found, axis=1), np.argsort(rows, axis=1))


def test_two_that_are_almost_equal_do_not_rule_out_the_third():
    rows = np.array([[0.0, -1e-3, -5.0]])
    before = -np.logaddexp(-1e-3, -5.0)
    found = softmax(move_top(rows, np.array([before]), logit([0.55])), axis=1)[0]
    assert found[0] == pytest.approx(0.55)
    assert found[1] / found[2] == pytest.approx(np.exp(5 - 1e-3))
    # A temperature would.
    assert softmax(temper_to(rows, np.array([0.55])), axis=1)[0, 2] < 1e-300


def test_a_single_class_is_certain():
    rows, own = np.zeros((3, 1)), np.full(3, 0.4)
    assert not temper_to(rows, own).any()
    assert not share_rest(rows, np.zeros(3, dtype=int), own).any()
