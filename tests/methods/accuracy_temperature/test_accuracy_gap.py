"""The gap between accuracy and confidence: rows, parts, exact root, binned error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_allclose
from scipy.optimize import brentq, brute
from scipy.special import softmax

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.accuracy_temperature.gap_curve import GapCurves
from skfedcal.methods.accuracy_temperature.rounds import (
    AccuracyRoot,
    EceGrid,
    GapParts,
    TemperatureSearch,
    clipped_loss,
    clipped_slope,
    confidence_moments,
    gap_steps,
    leads,
)

LOW, HIGH = np.log([0.25, 32.0])


def dataset(rows, labels, sizes=None, weights=None):
    rows = np.atleast_2d(rows)
    sizes = [len(rows)] if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(
        rows,
        np.asarray(labels),
        offsets,
        range(len(sizes)),
        rows.shape[1],
        weights=weights,
    )


def block(rows, labels):
    return next(dataset(rows, labels).blocks())


def solve(algorithm, data):
    """Run without noise, as the server would."""
    state = algorithm.init(data.n_classes)
    for _ in range(algorithm.n_rounds):
        answers = algorithm.query(algorithm.broadcast(state), data)
        sums = Sums({name: value.sum(axis=0) for name, value in answers.items()})
        state = algorithm.update(state, sums, len(data))
        if algorithm.done(state):
            break
    return state


def naive_gap(rows, labels, temperature):
    proba = softmax(rows.astype(np.float64) / temperature, axis=1)
    return (rows.argmax(axis=1) == labels) - proba.max(axis=1)


def test_parts_of_two_rows_by_hand():
    # Confidence 3/4 at T = 1, sqrt(3) / (1 + sqrt(3)) at T = 2; one right, one wrong.
    rows = np.array([[np.log(3.0), 0.0], [np.log(3.0), 0.0]])
    algorithm = GapParts(0.0, np.log(8.0), n_points=2)
    half = np.sqrt(3) / (1 + np.sqrt(3))
    answers = algorithm.query(
        {"temperatures": [1.0, 2.0]}, dataset(rows, [0, 1], [1, 1])
    )
    expected = [[0.25, 0.75 - half, 0.0], [-half, 0.0, 0.75 - half]]
    assert_allclose(answers["parts"], expected, atol=1e-15)
    gaps = answers["parts"] @ gap_steps(2).T
    assert_allclose(gaps, [[0.25, 1 - half], [-0.75, -half]], atol=1e-15)


@given(data=st.data(), n_points=st.integers(2, 6), c=st.integers(2, 5))
def test_a_row_sends_at_most_one_in_l1_and_gaps_can_be_had_back(data, n_points, c):
    values = st.floats(-1e4, 1e4) | st.floats(-5, 5)
    rows = data.draw(hnp.arrays(np.float64, (3, c), elements=values))
    labels = data.draw(hnp.arrays(np.int64, 3, elements=st.integers(0, c - 1)))
    algorithm = GapParts(LOW, HIGH, n_points=n_points)
    alone = dataset(rows, labels, [1, 1, 1])
    parts = algorithm.query(algorithm.broadcast(algorithm.init(c)), alone)["parts"]
    assert (np.abs(parts).sum(axis=1) <= 1 + 1e-12).all()
    clear = np.sort(rows, axis=1)[:, -1] > np.sort(rows, axis=1)[:, -2]
    gaps = parts @ gap_steps(n_points).T
    for i, point in enumerate(algorithm.points):
        expected = naive_gap(rows, labels, np.exp(point))
        assert_allclose(gaps[clear, i], expected[clear], atol=1e-9)


@pytest.mark.parametrize("n_points", [2, 3, 6])
def test_noise_in_a_gap_is_that_of_as_many_numbers_as_there_are_temperatures(n_points):
    steps = gap_steps(n_points)
    i = np.arange(n_points)
    assert_allclose(steps @ steps.T, n_points - np.abs(i[:, None] - i))


def test_rounds_add_up_and_their_noise_is_known():
    algorithm = GapParts(LOW, HIGH, n_points=3, full_rows=10, n_rounds=2)
    rounds = [
        np.array([-3.0, 4.0, 6.0, 1.0, 2.0]),
        np.array([-1.0, 6.0, 2.0, 3.0, 0.0]),
    ]
    state = algorithm.init(4)
    for parts in rounds:
        state = algorithm.update(state, Sums({"parts": parts}, {"parts": 1.5}), 20)
    i = np.arange(3)
    # Two rounds of 20 clients: the sum over 40, twice the variance of one.
    expected = GapCurves(4, LOW, HIGH).posterior(
        algorithm.points,
        np.array([-10.0, 4.0, 14.0]) / 40,
        2 * 1.5**2 / 40**2 * (3 - np.abs(i[:, None] - i)),
        400.0,
    )
    assert algorithm.done(state)
    assert (state.log_t, state.sd) == pytest.approx((expected.mean, expected.sd))
    assert_allclose(np.log(state.interval), [expected.low, expected.high])


@pytest.mark.parametrize("full_rows", [0, 10])
def test_rounds_that_ask_the_same_clients_know_no_more_rows(draw, full_rows):
    data = dataset(*draw(300, 4, 2.0), [10] * 30)
    params = {"n_points": 6, "full_rows": full_rows, "n_clients": 30}
    once = solve(GapParts(LOW, HIGH, **params), data)
    again = solve(GapParts(LOW, HIGH, n_rounds=9, **params), data)
    assert again.sd == pytest.approx(once.sd) and again.sd > 0.05
    # Two halves of the clients, one after the other, are all of them.
    algorithm = GapParts(LOW, HIGH, n_rounds=2, **params)
    state = algorithm.init(4)
    for half in (data.slice(0, 15), data.slice(15, 30)):
        answers = algorithm.query(algorithm.broadcast(state), half)
        sums = Sums({name: value.sum(axis=0) for name, value in answers.items()})
        state = algorithm.update(state, sums, 15)
    assert state.sd == pytest.approx(once.sd)


@pytest.mark.parametrize(
    "algorithm",
    [
        GapParts(LOW, HIGH, full_rows=0, n_rounds=2),
        TemperatureSearch(LOW, HIGH, full_rows=0, n_rounds=2),
    ],
)
def test_a_cohort_without_rows_sends_nothing_and_is_no_error(algorithm):
    data = dataset(np.empty((0, 3)), np.empty(0, dtype=int), [0, 0])
    state = solve(algorithm, data)
    assert np.isfinite(state.log_t) and np.isfinite(state.interval).all()


def test_a_client_sends_means_and_in_proportion_less_with_few_rows():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(24, 3)), rng.integers(0, 3, 24)
    broadcast = {"temperatures": np.array([0.7, 2.0])}
    data = dataset(rows, labels, [20, 4, 0])
    single = GapParts(LOW, HIGH, full_rows=1).query(broadcast, data.by_row())["parts"]
    whole = GapParts(LOW, HIGH, full_rows=10).query(broadcast, data)["parts"]
    assert_allclose(whole[0], single[:20].mean(axis=0))
    assert_allclose(whole[1], single[20:].sum(axis=0) / 10)
    assert_allclose(whole[2], 0)
    sums = GapParts(LOW, HIGH, full_rows=0).query(broadcast, data)
    assert_allclose(sums["parts"][0], single[:20].sum(axis=0))
    assert_allclose(sums["rows"][:, 0], [20, 4, 0])


def test_classes_that_share_the_largest_logit_share_the_hit():
    rows = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 2.0], [0.0, 3.0, 1.0]])
    assert_allclose(leads(block(rows, [0, 1, 0]))[1], [0.5, 1 / 3, 0])
    assert_allclose(leads(block(rows, [2, 2, 1]))[1], [0, 1 / 3, 1])


def test_derivatives_of_the_confidence_are_those_in_log_t(draw):
    rows, labels = draw(50, 4, 2.0)
    gaps, _ = leads(block(rows, labels))
    step = 1e-4
    value, slope, bend = confidence_moments(gaps, 1.7)
    low, high = (confidence_moments(gaps, 1.7 * np.exp(s))[0] for s in (-step, step))
    assert_allclose(value, softmax(rows / 1.7, axis=1).max(axis=1), rtol=1e-14)
    assert_allclose(slope, (high - low) / (2 * step), atol=1e-8)
    assert_allclose(bend, (high - 2 * value + low) / step**2, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0, 12.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_root_is_that_of_scipy(draw, temperature, dtype):
    rows, labels = draw(2000, 5, temperature, dtype=dtype)

    def gap(u):
        return naive_gap(rows, labels, np.exp(u)).sum()

    state = solve(AccuracyRoot(LOW, HIGH), dataset(rows, labels, [1200, 0, 800]))
    assert state.converged and not state.bounded
    assert state.log_t == pytest.approx(brentq(gap, LOW, HIGH, xtol=1e-13), abs=1e-9)


def test_exact_root_takes_few_rounds_and_knows_its_sampling_error(draw):
    rows, labels = draw(3000, 10, 5.0)
    algorithm, data = AccuracyRoot(LOW, HIGH), dataset(rows, labels)
    state = algorithm.init(10)
    n_rounds = 0
    while not algorithm.done(state):
        n_rounds += 1
        answers = algorithm.query(algorithm.broadcast(state), data)
        state = algorithm.update(state, Sums({"gap": answers["gap"].sum(axis=0)}), 1)
    assert n_rounds <= 6
    at = naive_gap(rows, labels, state.temperature)
    later = naive_gap(rows, labels, state.temperature * np.exp(1e-5))
    slope = (later - at).sum() / 1e-5
    assert state.sd == pytest.approx(np.sqrt((at**2).sum()) / slope, rel=1e-3)
    assert_allclose(
        np.log(state.interval),
        state.log_t + 1.96 * state.sd * np.array([-1, 1]),
        rtol=1e-4,
    )


@pytest.mark.parametrize(("labels", "end"), [([0, 0, 0], LOW), ([1, 1, 1], HIGH)])
def test_rows_that_are_all_right_or_all_wrong_stop_at_an_end(labels, end):
    rows = np.array([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    state = solve(AccuracyRoot(LOW, HIGH), dataset(rows, labels))
    assert state.bounded and state.log_t == end
    # Nothing is known of where the root is, however sure the gap is.
    assert state.sd == np.inf


def test_a_gap_without_slope_stays_where_it_starts():
    state = solve(AccuracyRoot(LOW, HIGH, 0.3), dataset(np.zeros((4, 3)), [0, 1, 2, 0]))
    assert state.converged and state.log_t == 0.3


def naive_ece(rows, labels, temperature, n_bins):
    gap = naive_gap(rows, labels, temperature)
    level = softmax(rows / temperature, axis=1).max(axis=1)
    bins = np.minimum((level * n_bins).astype(int), n_bins - 1)
    return np.abs(np.bincount(bins, gap, n_bins)).sum() / len(labels)


def nested_grids(error):
    """By scipy: a grid over the range, then ever finer ones around the best."""
    low, high, n_points = LOW, HIGH, 98
    for _ in range(7):
        best, _, grid, values = brute(
            lambda u: error(u[0]),
            [slice(low, high, n_points * 1j)],
            finish=None,
            full_output=True,
        )
        i = int(values.argmin())
        low, high = grid[max(i - 1, 0)], grid[min(i + 1, n_points - 1)]
        n_points = 33
    return float(best)


@pytest.mark.parametrize("seed", range(3))
def test_least_binned_error_is_that_of_nested_grids_by_scipy(draw, seed):
    rows, labels = draw(300, 4, 2.0, seed=seed)
    state = solve(EceGrid(LOW, HIGH), dataset(rows, labels, [100, 200]))
    expected = nested_grids(lambda u: naive_ece(rows, labels, np.exp(u), 15))
    assert state.log_t == pytest.approx(expected, abs=2e-7)
    coarse = [naive_ece(rows, labels, t, 15) for t in np.geomspace(0.25, 32, 98)]
    assert naive_ece(rows, labels, state.temperature, 15) <= min(coarse)


def test_of_equal_errors_the_one_nearest_to_the_start_is_taken():
    state = solve(EceGrid(LOW, HIGH, 0.7), dataset(np.zeros((4, 3)), [0, 1, 2, 0]))
    assert state.log_t == pytest.approx(0.7, abs=1e-6) and not state.bounded


def test_a_clipped_loss_is_the_loss_up_to_the_clip():
    rows = np.array([[5.0, 0.0, 1.0], [50.0, 0.0, 1.0], [-1e308, 1e308, 0.0]])
    labels = np.array([0, 1, 0])
    gaps, _ = leads(block(rows, labels))
    values = clipped_loss(gaps, labels, 2.0, 10.0)
    first = -np.log(softmax(rows[0] / 2)[0])
    assert_allclose(values, [first, 10.0, 10.0], rtol=1e-14)


def test_a_clipped_slope_rises_with_t_and_crosses_zero_at_the_least_loss(draw, optimum):
    rows, labels = draw(500, 3, 3.0)
    gaps, _ = leads(block(rows, labels))

    def total(u, clip):
        return clipped_slope(gaps, labels, np.exp(u), clip).sum()

    free = brentq(lambda u: total(u, np.inf), LOW, HIGH, xtol=1e-13)
    assert np.exp(free) == pytest.approx(optimum(rows, labels), rel=1e-9)
    values = clipped_slope(gaps, labels, 1.0, 0.5)
    assert np.abs(values).max() == 0.5
    curve = [total(u, 0.5) for u in np.linspace(LOW, HIGH, 200)]
    assert (np.diff(curve) >= 0).all()
