"""Newton, grid and average: one step by hand, then the limit."""

import math

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.special import logsumexp
from sklearn.isotonic import IsotonicRegression

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.held_back import fit_here
from skfedcal.methods.temperature import rounds
from skfedcal.methods.temperature.moments import hash_sample
from skfedcal.methods.temperature.rounds import (
    NEWTON_BOUND,
    START,
    TemperatureAverage,
    TemperatureGrid,
    TemperatureNewton,
    TemperatureState,
    _in_log,
    _log_root,
    _polynomial_root,
    _rational_root,
    isotonic,
    local_temperatures,
    newton_for,
    newton_step,
)


def pack(clients, c):
    rows = np.concatenate([z for z, _ in clients])
    labels = np.concatenate([y for _, y in clients])
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in clients])])
    return FederatedDataset(rows, labels, offsets, range(len(clients)), c)


def run(algorithm, data, n_rounds=None):
    """The loop of the runner without codec or noise; also the broadcasts."""
    state, seen = algorithm.init(data.n_classes), []
    for _ in range(n_rounds or algorithm.n_rounds):
        broadcast = algorithm.broadcast(state)
        seen.append(broadcast)
        spec = algorithm.spec(broadcast)
        answer = algorithm.query(broadcast, data)
        assert {k: v.shape[1:] for k, v in answer.items()} == {
            k: block.shape for k, block in spec.items()
        }
        total = Sums({k: v.sum(axis=0) for k, v in answer.items()})
        state = algorithm.update(state, total, len(data))
        if algorithm.done(state):
            break
    return state, seen


@pytest.mark.parametrize("c", [3, 60])
def test_newton_reaches_the_optimum_through_its_stages(draw, optimum, c):
    rows, labels = draw(20_000, c, 2.0, seed=c)
    state, seen = run(TemperatureNewton(), pack([(rows, labels)], c))
    assert state.converged
    assert state.temperature == pytest.approx(optimum(rows, labels), rel=1e-6)
    stages = [int(b["stage"]) for b in seen]
    assert stages == sorted(stages, reverse=True) and stages[-1] == 1
    # Only few passes over all rows: this is what makes the solver fast.
    assert stages.count(1) <= 3


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8])
def test_newton_needs_two_rounds_where_the_optimum_is_not_far(draw, temperature):
    rows, labels = draw(20_000, 10, temperature)
    _, seen = run(newton_for(20_000), pack([(rows, labels)], 10))
    assert [int(b["stage"]) for b in seen] == [8, 1]


@pytest.mark.parametrize("temperature", [1.1, 1.5, 2.2])
def test_newton_needs_two_rounds_for_few_rows_of_a_usual_network(draw, temperature):
    rows, labels = draw(1000, 10, temperature)
    state, seen = run(newton_for(1000), pack([(rows, labels)], 10))
    assert [int(b["stage"]) for b in seen] == [1, 1] and state.converged


@pytest.mark.parametrize(("n_rows", "sample"), [(0, 1), (1599, 1), (1600, 8)])
def test_only_many_rows_are_sampled(n_rows, sample):
    assert newton_for(n_rows).sample == sample


@pytest.mark.parametrize("sample", [1, 8])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_sample_does_not_move_the_optimum(draw, optimum, sample, dtype):
    for n_rows in (300, 30_000):
        rows, labels = draw(n_rows, 4, 1.7, dtype=dtype)
        data = pack([(rows, labels)], 4)
        state, seen = run(TemperatureNewton(sample=sample), data)
        assert int(seen[0]["stage"]) == sample
        assert bool(seen[0]["precise"]) is (sample == 1)
        assert state.temperature == pytest.approx(optimum(rows, labels), rel=1e-6)


@pytest.mark.parametrize("sample", [1, 8])
def test_a_loss_that_no_temperature_changes_leaves_the_input(sample):
    rows = np.full((2000, 3), 7.0)
    data = pack([(rows, np.zeros(2000, int))], 3)
    state, _ = run(TemperatureNewton(sample=sample), data)
    assert state.flat and state.temperature == 1.0


@pytest.mark.parametrize("sample", [1, 8])
@pytest.mark.parametrize("margin", [24.0, 28.0, 32.0, 40.0])
def test_rows_that_are_all_right_are_not_made_less_sure(sample, margin):
    # The loss is flat at T = 1 and not at the start, so that it ends between.
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 2000)
    rows = rng.normal(size=(2000, 3))
    rows[np.arange(2000), labels] += margin
    data = pack([(rows, labels)], 3)
    state, _ = run(TemperatureNewton(sample=sample), data)
    assert state.flat and state.temperature <= 1.0


@pytest.mark.parametrize("beta", [1e-4, 0.05, 1.0, 3.0, 1e4])
def test_a_fit_that_starts_near_other_rows_reaches_its_own_optimum(draw, optimum, beta):
    rows, labels = draw(90, 10, 1.5, seed=3)
    data = pack([(rows, labels)], 10)
    near = rounds.TemperatureState(beta, stage=1, precise=True, error=0.0)
    state = fit_here(TemperatureNewton(), data, near)
    assert state.converged
    assert state.temperature == pytest.approx(optimum(rows, labels), rel=1e-8)
    # Rows that are all right have no optimum, wherever the search starts.
    sure = pack([(rows, rows.argmax(axis=1))], 10)
    assert not fit_here(TemperatureNewton(), sure, near).converged


def derivatives_of(slope, order=5):
    """Derivatives 0 to `order` - 1 at 0 of a polynomial or quotient, by its series."""
    top, bottom = (np.array([*part, 0, 0, 0, 0, 0])[:order] for part in slope)
    series = np.zeros(order)
    for i in range(order):
        series[i] = top[i] - sum(series[j] * bottom[i - j] for j in range(i))
    return [series[i] * math.factorial(i) for i in range(order)]


@pytest.mark.parametrize("root", [-0.55, -0.2, -1e-3, 1e-6, 0.1, 0.7])
def test_the_slope_is_continued_by_a_quotient_of_quadratics(root):
    # (x - root) (1 + x / 9) over 1 + x / 2 + x^2 / 7 has this root and no other near.
    top = np.polymul([1 / 9, 1], [1, -root])[::-1]
    move, error = _log_root(derivatives_of((top, [1, 1 / 2, 1 / 7])))
    assert math.exp(move) - 1 == pytest.approx(root, rel=1e-12)
    assert error < 0.02


@pytest.mark.parametrize("root", [-0.2, 1e-3, 0.1])
def test_a_straight_slope_has_no_such_quotient_and_its_root_all_the_same(root):
    move, error = _log_root(derivatives_of(([-root, 1.0], [1])))
    assert math.exp(move) - 1 == pytest.approx(root, abs=2 * error + 1e-15)
    assert error < 1e-3


def test_a_root_beyond_a_pole_or_far_away_is_not_taken():
    assert _log_root(derivatives_of(([-0.5, 1.0], [1, -2.5])))[1] > 0.1
    assert _log_root([-5.0, 1.0, 0.1, 0.1, 0.1])[1] == np.inf
    assert _log_root([1.0, 0.0, 0.0, 0.0, 0.0])[1] == np.inf


def gap_of_continuations(slopes):
    """Rational minus polynomial root."""
    terms = [s / math.factorial(i) / slopes[1] for i, s in enumerate(slopes)]
    move = math.log1p(_rational_root(*terms))
    return move - _polynomial_root(*_in_log(*terms), move)[0]


def test_continuations_that_agree_by_chance_are_not_convergence():
    start = [0.3, 1.0, 0.2, -0.5]
    last = brentq(lambda s: gap_of_continuations([*start, s]), 0.0, 2.0, xtol=1e-15)
    assert _log_root([*start, last])[1] < 1e-12
    # A sixth derivative of 1 moves the root by 0.3**5 / 120, about 2e-5.
    state = newton_step(TemperatureState(stage=1), np.array([*start, last]))
    assert state.error > 2e-5


@pytest.mark.parametrize(
    ("n_classes", "low", "high"),  # 40 classes: the tolerance of large input
    [(4, 0.40, 0.42), (8, 0.51, 0.55), (40, 0.80, 0.83), (40, 1.6, 1.7)],
)
def test_newton_does_not_stop_where_the_first_step_looks_exact(
    draw, optimum, n_classes, low, high
):
    rows, labels = draw(900, n_classes)  # too few for a sample
    newton = TemperatureNewton()
    asked = newton.broadcast(TemperatureState(stage=1))

    def gap(scale):
        data = pack([(rows * scale, labels)], n_classes)
        return gap_of_continuations(newton.query(asked, data)["slopes"][0])

    scale = brentq(gap, low / START, high / START, xtol=1e-15)
    state, _ = run(newton, pack([(rows * scale, labels)], n_classes))
    best = optimum(rows * scale, labels)
    assert state.converged
    assert state.temperature == pytest.approx(best, rel=1e-6)


def test_a_quotient_with_a_pole_on_the_way_has_no_root():
    # (x - 1 / 2) (1 + x / 5) has its root beyond the pole of 1 - 5 x / 2.
    top = np.polymul([1 / 5, 1], [1, -1 / 2])[::-1]
    for bottom, root in (([1, -2.5, 0.1], np.nan), ([1, 0.5, 0.1], 0.5)):
        slopes = derivatives_of((top, bottom))
        terms = [s / math.factorial(i) for i, s in enumerate(slopes)]
        found = _rational_root(*terms)
        assert found == pytest.approx(root, rel=1e-12, nan_ok=True)


def test_a_polynomial_that_turns_on_the_way_has_no_root():
    # It rises less and less, and is level before it gets to 0.
    assert _polynomial_root(-0.6, 1.0, -0.6, 0.0, 0.0, 0.6)[1] == np.inf
    # Roots at 1 / 3, and at 1 / 2 where it falls again.
    assert _polynomial_root(-0.2, 1.0, -1.2, 0.0, 0.0, 0.6)[1] == np.inf
    x, error = _polynomial_root(-0.3, 1.0, -0.2, 0.0, 0.0, 0.3)
    assert x - 0.2 * x * x == pytest.approx(0.3, rel=1e-12) and error < np.inf


def test_newton_stays_with_the_sample_until_it_is_near(draw, optimum):
    rows, labels = draw(20_000, 10, 8.0)
    state, seen = run(TemperatureNewton(sample=8), pack([(rows, labels)], 10))
    stages = [int(b["stage"]) for b in seen]
    assert stages.count(8) > 1 and stages.count(1) <= 2
    assert state.temperature == pytest.approx(optimum(rows, labels), rel=1e-6)


def test_newton_never_leaves_its_bracket(draw):
    rows, labels = draw(50, 3, 2.0)
    for scale in (1e-6, 1e-3, 1.0, 1e3, 1e6):
        for sign in (1, -1):
            state, _ = run(
                TemperatureNewton(), pack([(sign * scale * rows, labels)], 3)
            )
            assert abs(np.log(state.beta)) <= NEWTON_BOUND + 1e-12
            if not state.converged:
                assert state.flat or abs(np.log(state.beta)) > NEWTON_BOUND - 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hash_sample_picks_the_same_rows_whatever_the_partition(draw, dtype):
    rows, labels = draw(20_000, 3, dtype=dtype)
    one = hash_sample(pack([(rows, labels)], 3), 4)
    cut = np.array_split(np.arange(len(labels)), 37)
    many = hash_sample(pack([(rows[i], labels[i]) for i in cut], 3), 4)
    np.testing.assert_array_equal(one.rows, many.rows)
    # 20,000 coins of chance 1/4: six standard deviations are 367.
    assert abs(one.n_rows - 5000) < 367


def test_grid_finds_the_optimum_in_one_round(draw, optimum):
    for temperature in (0.015, 0.1, 1.0, 7.0, 70.0):
        for c in (2, 10, 60):
            rows, labels = draw(500, c, temperature, seed=c)
            state, seen = run(TemperatureGrid(), pack([(rows, labels)], c))
            assert len(seen) == 1 and state.converged
            assert state.temperature == pytest.approx(optimum(rows, labels), rel=1e-6)


def test_grid_ends_at_the_grid_and_says_so(draw):
    rows, labels = draw(300, 3)
    right, wrong = np.eye(3)[labels], -np.eye(3)[labels]
    for data, expected in (
        (rows * 1e4, 100.0),
        (rows * 1e-4, 0.01),
        (wrong, 100.0),
        (right, 0.01),
        (right * 5, 0.01),
        (right * 1e4, 1.0),  # no slope left anywhere but at small 1 / T
        (rows * 0, 1.0),
    ):
        state, _ = run(TemperatureGrid(), pack([(data, labels)], 3))
        assert not state.converged
        if expected != 1.0 or not data.any():
            assert state.temperature == pytest.approx(expected, rel=1e-9)


def test_isotonic_fit_equals_scikit_learn():
    rng = np.random.default_rng(0)
    for n in (1, 2, 17, 40):
        values = rng.normal(size=n).cumsum() + rng.normal(size=n) * 3
        expected = IsotonicRegression().fit_transform(np.arange(n), values)
        np.testing.assert_allclose(isotonic(values), expected, atol=1e-12)


def local_by_scipy(rows, labels):
    if not len(labels):
        return 1.0

    def loss(u):
        z = rows.astype(np.float64) * np.exp(u)
        return (logsumexp(z, axis=1) - z[np.arange(len(labels)), labels]).sum()

    bound = np.log(20)
    # A parabola is flat to half the digits: about 1e-7 is the best this can do.
    found = minimize_scalar(loss, bounds=(-bound, bound), method="bounded",
                            options={"xatol": 1e-12})  # fmt: skip
    return float(np.exp(-found.x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_local_temperatures_equal_a_loop_with_scipy(draw, optimum, dtype):
    clients, expected = [], []
    rng = np.random.default_rng(0)
    for i, size in enumerate(rng.integers(0, 60, 40)):
        rows, labels = draw(size, 4, rng.uniform(0.3, 5), seed=i, dtype=dtype)
        clients.append((rows, labels))
        expected.append(optimum(rows, labels, 0.05, 20.0) if size else 1.0)
        if 0.06 < expected[-1] < 19:
            assert local_by_scipy(rows, labels) == pytest.approx(expected[-1], rel=1e-5)
    found, expected = local_temperatures(pack(clients, 4)), np.array(expected)
    inside = expected > 0.05
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-6)
    # Rows that are all right: at the bound, or where float32 sees no loss any more.
    assert (~inside).any() and found[~inside].max() < 0.06


@pytest.mark.parametrize("margin", [0.1, 1.0, 5.0, 20.0, 100.0])
def test_local_temperatures_of_clear_cases_end_at_a_bound(margin):
    labels = np.array([0, 1, 2, 1])
    right = np.eye(3)[labels] * margin
    found = local_temperatures(
        pack([(right, labels), (-right, labels), (0 * right, labels)], 3)
    )
    # 0.05 is reached unless the loss is zero in floating point before.
    loss = np.log1p(2 * np.exp(-margin / found[0]))
    assert found[0] == pytest.approx(0.05, rel=1e-6) or loss == 0
    assert found[1:] == pytest.approx([20.0, 1.0], rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_local_temperatures_that_lie_on_the_start_are_found(dtype):
    # 2 of 3, 3 of 4 ... rows right by a margin that makes T = 1.5 the optimum: in many
    # of these the slope at the start is zero to the last bit.
    clients = []
    for n_right in range(2, 40):
        for n_wrong in range(1, n_right):
            rows = np.zeros((n_right + n_wrong, 2), dtype)
            rows[:, 0] = 1.5 * np.log(n_right / n_wrong)
            clients.append((rows, np.repeat([0, 1], [n_right, n_wrong])))
    found = local_temperatures(pack(clients, 2))
    # float32 moves the optimum by a few of its units, more where the margin is small.
    np.testing.assert_allclose(found, 1.5, rtol=1e-4 if dtype == np.float32 else 1e-7)


def test_local_temperatures_take_few_passes(draw, optimum, monkeypatch):
    clients = [draw(20, 5, t, seed=i) for i, t in enumerate(np.geomspace(0.3, 6, 200))]
    right = [(np.eye(3)[y] * m, y) for m in (1.0, 30.0) for y in (np.array([0, 2, 1]),)]
    passes = []
    slopes = rounds._own_slopes
    monkeypatch.setattr(
        rounds,
        "_own_slopes",
        lambda *args: (passes.append(len(args[1])), slopes(*args))[1],
    )
    found = local_temperatures(pack(clients, 5))
    expected = np.array([optimum(*own, 0.05, 20.0) for own in clients])
    inside = (expected > 0.051) & (expected < 19.9)
    assert inside.mean() > 0.8
    np.testing.assert_allclose(found[inside], expected[inside], rtol=3e-7)
    # Starts 1.6 from either end of log(T); bisection to 1e-7 would take 26 passes.
    assert sum(passes) < 4 * len(clients)
    passes.clear()
    local_temperatures(pack(right, 3))
    assert len(passes) <= 8


def test_average_is_the_mean_of_filled_clients(draw, optimum):
    clients = [draw(60, 3, t, seed=i) for i, t in enumerate((0.5, 1.0, 4.0))]
    empty = (np.empty((0, 3)), np.empty(0, dtype=int))
    state, _ = run(TemperatureAverage(), pack([*clients, empty], 3))
    mean = np.mean([optimum(z, y, 0.05, 20.0) for z, y in clients])
    assert state.temperature == pytest.approx(mean, rel=1e-7)
    # Clipped, the number of empty clients stays hidden: they count and send 0.
    clipped, _ = run(TemperatureAverage(clip=100.0), pack([*clients, empty], 3))
    assert clipped.temperature == pytest.approx(1 + (mean - 1) * 3 / 4, rel=1e-7)
