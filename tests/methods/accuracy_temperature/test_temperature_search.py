"""Golden section and bisection by single queries: points, brackets, objectives."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import softmax

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.accuracy_temperature.gap_curve import GapCurves
from skfedcal.methods.accuracy_temperature.rounds import TemperatureSearch


def answer(function, algorithm, noise=0.0):
    """Run on a function of log T in place of clients; also the points asked."""
    state, asked = algorithm.init(3), []
    while not algorithm.done(state):
        point = float(np.log(algorithm.broadcast(state)["temperature"]))
        asked.append(point)
        value = np.atleast_1d(function(point)).astype(float)
        sums = Sums({"value": value}, {"value": noise} if noise else None)
        state = algorithm.update(state, sums, 1)
    return state, asked


def test_golden_section_narrows_a_bracket_around_the_minimum():
    # Worked by hand: seven points of which the last is never asked.
    algorithm = TemperatureSearch(0.5, 3.0, "nll", n_rounds=6)
    state, asked = answer(lambda u: abs(u - 2.0), algorithm)
    golden = (np.sqrt(5) - 1) / 2
    assert_allclose(asked[:2], [3 - 2.5 * golden, 0.5 + 2.5 * golden])
    assert_allclose([state.low, state.high], [1.82, 2.05], atol=0.006)
    assert len(asked) == 6 and len(set(np.round(asked, 9))) == 6
    assert state.high - state.low == pytest.approx(2.5 * golden**5)


@pytest.mark.parametrize("root", [-1.1, 0.0, 0.3, 1.9, 3.2])
@pytest.mark.parametrize("search", ["golden", "bisect"])
def test_each_query_keeps_the_root_of_a_monotone_gap(root, search):
    low, high = np.log([0.25, 32.0])
    algorithm = TemperatureSearch(low, high, "accuracy", search, n_rounds=25)
    state, asked = answer(lambda u: np.tanh(u - root) / 2, algorithm)
    assert state.low <= root <= state.high
    shrink = 0.5**25 if search == "bisect" else ((np.sqrt(5) - 1) / 2) ** 24
    assert state.high - state.low == pytest.approx((high - low) * shrink, rel=1e-6)
    assert len(asked) == 25


@pytest.mark.parametrize("best", [0.6, 1.0, 1.7, 2.9])
@pytest.mark.parametrize("steps", [1, 5, 12])
def test_linear_golden_section_is_that_of_appendix_c(best, steps):
    def size(t):
        return abs(np.tanh(t - best))

    low, high, ratio = 0.5, 3.0, (np.sqrt(5) - 1) / 2
    for _ in range(steps):
        first, second = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (first, high) if size(first) >= size(second) else (low, second)
    search = TemperatureSearch(
        np.log(0.5), np.log(3.0), "accuracy", "golden_linear", n_rounds=steps + 1
    )
    state, asked = answer(lambda u: size(np.exp(u)), search)
    assert state.temperature == pytest.approx((low + high) / 2)
    assert_allclose(np.exp(asked[:2]), [3 - 2.5 * ratio, 0.5 + 2.5 * ratio])
    assert len(asked) == steps + 1


def test_bisection_by_hand():
    algorithm = TemperatureSearch(0.0, 4.0, "accuracy", "bisect", n_rounds=3)
    state, asked = answer(lambda u: u - 2.7, algorithm)
    assert_allclose(asked, [2, 3, 2.5])
    assert (state.low, state.high, state.log_t) == (2.5, 3.0, 2.75)


def test_values_of_clients_are_those_of_a_naive_loop(draw):
    rows, labels = draw(40, 4, 2.0)
    offsets = np.array([0, 15, 15, 40])
    clients = FederatedDataset(rows, labels, offsets, range(3), 4)
    proba = softmax(rows / 1.3, axis=1)
    level, right = proba.max(axis=1), proba.argmax(axis=1) == labels
    gaps = right - level
    losses = np.minimum(-np.log(proba[np.arange(40), labels]), 1.5)
    bins = np.minimum((level * 7).astype(int), 6)
    binned = np.stack(
        [np.bincount(bins[a:b], gaps[a:b], 7) for a, b in ((0, 15), (15, 40))]
    )
    for objective, expected in (
        ("accuracy", [[gaps[:15].sum()], [gaps[15:].sum()]]),
        ("nll", [[losses[:15].sum()], [losses[15:].sum()]]),
        ("ece", binned),
    ):
        algorithm = TemperatureSearch(-1, 3, objective, loss_clip=1.5, n_bins=7)
        sent = algorithm.query({"temperature": np.asarray(1.3)}, clients)["value"]
        assert_allclose(sent[[0, 2]], np.array(expected) / [[15], [25]], atol=1e-12)
        assert_allclose(sent[1], 0)
        spec = algorithm.spec({})["value"]
        bound = 1.5 if objective == "nll" else 1.0
        assert (spec.norm, spec.clip, spec.size) == ("l1", bound, sent.shape[1])


@pytest.mark.parametrize("search", ["golden", "bisect"])
def test_answers_that_noise_explains_are_no_news(search):
    rng = np.random.default_rng(0)
    algorithm = TemperatureSearch(-1.0, 3.0, "nll", search)
    fits = [answer(lambda _: rng.normal(), algorithm, 1.0)[0] for _ in range(400)]
    # Chance of chi-square with 5 or 6 degrees to be 2.2 times as large: .05 or .04;
    # 40 of 400 are 4.6 standard deviations above.
    assert sum(state.learnt for state in fits) < 40
    clear, _ = answer(lambda u: 20 * (u - 0.4) ** 2 - 30, algorithm, 1.0)
    assert clear.learnt and np.isnan(clear.interval).all()


def test_a_search_for_accuracy_gives_an_interval_that_shrinks_with_the_noise():
    algorithm = TemperatureSearch(*np.log([0.25, 32.0]), full_rows=1)
    widths = []
    for noise in (0.3, 0.03, 0.003):
        state, _ = answer(lambda u: np.tanh(u - 0.5) / 3, algorithm, noise)
        widths.append(np.diff(np.log(state.interval))[0])
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.parametrize("full_rows", [1, 10])
def test_the_interval_of_a_search_is_that_of_its_answers_and_their_rows(full_rows):
    low, high = np.log([0.25, 32.0])
    algorithm = TemperatureSearch(low, high, n_rounds=3, full_rows=full_rows)
    state, values = algorithm.init(3), np.array([-0.2, 0.3, 0.05])
    points = []
    for value in values:
        points.append(np.log(algorithm.broadcast(state)["temperature"]))
        sums = Sums({"value": np.array([40 * value])}, {"value": 2.0})
        state = algorithm.update(state, sums, 40)
    # 40 answers, each of so many rows; noise of 2 in their sum.
    expected = GapCurves(3, low, high).posterior(
        np.array(points), values, 0.05**2 * np.eye(3), 40.0 * full_rows
    )
    assert_allclose(np.log(state.interval), [expected.low, expected.high])
