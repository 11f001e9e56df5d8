"""Bias and temperature: derivatives, the optimum, and steps that never do harm."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from skfedcal.clients.dataset import BLOCK_CELLS, FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.bias_temperature.bias_moments import SoftmaxMoments, gaps, unpack
from skfedcal.methods.bias_temperature.rounds import (
    MAX_FULL,
    BiasTemperatureNewton,
    BiasTemperatureResidual,
)
from skfedcal.methods.temperature.moments import hash_sample


def dataset(rows, labels, sizes=None, weights=None):
    sizes = [len(labels)] if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(
        rows, labels, offsets, range(len(sizes)), rows.shape[1], weights=weights
    )


def biased(n, c, seed=0, temperature=2.0, spread=1.0):
    """Rows of a model with class biases and a temperature, and drawn labels."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return temperature * (true + spread * rng.normal(size=c)), labels


def objective(point, rows, labels, ridge=0.0, weights=None):
    """Mean log loss at (beta, b), with its ridge."""
    logs = log_softmax(point[0] * rows + point[1:], axis=1)
    loss = -np.average(logs[np.arange(len(labels)), labels], weights=weights)
    return loss + ridge / 2 * point[1:] @ point[1:]


def central(rows, labels, ridge, weights=None):
    def both(point):
        logs = log_softmax(point[0] * rows + point[1:], axis=1)
        residual = np.exp(logs)
        residual[np.arange(len(labels)), labels] -= 1
        share = np.ones(len(labels)) if weights is None else weights
        residual *= (share / share.sum())[:, None]
        slope = np.concatenate([[(residual * rows).sum()], residual.sum(axis=0)])
        slope[1:] += ridge * point[1:]
        return objective(point, rows, labels, ridge, weights), slope

    start = np.concatenate([[1.0], np.zeros(rows.shape[1])])
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(both, start, jac=True, method="L-BFGS-B", options=options)
    return found.x


def run(algorithm, data, n_rounds=40):
    """States after each round."""
    states = [algorithm.init(data.n_classes)]
    for _ in range(n_rounds):
        answers = algorithm.query(algorithm.broadcast(states[-1]), data)
        total = Sums({key: value.sum(axis=0) for key, value in answers.items()})
        states.append(algorithm.update(states[-1], total, len(data)))
        if algorithm.done(states[-1]):
            break
    return states


def derivatives(data, beta, bias, full):
    total = 0.0
    for block in data.blocks():
        moments = SoftmaxMoments(block, gaps(block), beta, bias)
        total = total + (moments.full() if full else moments.arrow()).sum(axis=0)
    return unpack(total, data.n_classes, full)


@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_and_curvature_against_finite_differences(weighted):
    rng = np.random.default_rng(1)
    rows, labels = biased(60, 4, seed=1)
    weights = rng.random(60) if weighted else None
    data = dataset(rows, labels, [13, 0, 47], weights)
    beta, bias = 0.7, rng.normal(size=4)

    def loss(step):
        point = np.concatenate([[beta * (1 + step[0])], bias + step[1:]])
        return objective(point, rows, labels, weights=weights)

    value, gradient, curvature = derivatives(data, beta, bias, full=True)
    assert value == pytest.approx(loss(np.zeros(5)), rel=1e-13)
    unit, h = np.eye(5), 1e-4
    for i in range(5):
        slope = (loss(h * unit[i]) - loss(-h * unit[i])) / (2 * h)
        assert gradient[i] == pytest.approx(slope, abs=1e-7)
        for j in range(5):
            bend = sum(
                s * t * loss(h * (s * unit[i] + t * unit[j]))
                for s in (1, -1)
                for t in (1, -1)
            ) / (4 * h * h)
            assert curvature[i, j] == pytest.approx(bend, abs=1e-6)


def test_the_arrow_is_the_diagonal_of_the_full_curvature():
    rows, labels = biased(200, 6)
    data = dataset(rows, labels)
    bias = np.linspace(-1, 1, 6)
    loss, gradient, curvature = derivatives(data, 0.4, bias, full=True)
    other, slopes, arrow = derivatives(data, 0.4, bias, full=False)
    assert other == loss
    np.testing.assert_array_equal(slopes, gradient)
    np.testing.assert_allclose(arrow[0], curvature[0])
    np.testing.assert_allclose(np.diag(arrow)[1:], 6 / 5 * np.diag(curvature)[1:])
    assert np.count_nonzero(arrow[1:, 1:]) == 6


@pytest.mark.parametrize("ridge", [1e-5, 1e-2])
@pytest.mark.parametrize(
    ("n", "c", "temperature"), [(3000, 2, 1.0), (3000, 10, 3.0), (4000, 30, 0.3)]
)
def test_the_optimum_of_scipy_in_few_rounds(n, c, temperature, ridge):
    rows, labels = biased(n, c, seed=c, temperature=temperature, spread=0.5)
    state = run(BiasTemperatureNewton(ridge), dataset(rows, labels))
    # One unit of beta is worth more where logits are large: the same for scipy.
    expected = central(rows / temperature, labels, ridge)
    assert len(state) - 1 <= 4
    final = state[-1]
    assert final.converged
    assert temperature / final.temperature == pytest.approx(expected[0], rel=1e-5)
    np.testing.assert_allclose(final.bias, expected[1:], atol=1e-5)
    assert abs(final.bias.sum()) < 1e-12


def test_the_optimum_with_learned_curvature():
    # Pairs of classes that only compete with each other: far from diagonal.
    c = MAX_FULL + 2
    rng = np.random.default_rng(0)
    pair = rng.integers(0, c // 2, 2500)
    rows = rng.normal(size=(2500, c))
    rows[np.arange(2500), 2 * pair] += 6
    rows[np.arange(2500), 2 * pair + 1] += 6
    labels = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
    rows = 2 * (rows + rng.normal(size=c))
    states = run(BiasTemperatureNewton(1e-3), dataset(rows, labels))
    final = states[-1]
    # The diagonal alone takes 11 rounds.
    assert final.converged and len(states) - 1 <= 9
    found = np.concatenate([[1 / final.temperature], final.bias])
    expected = central(rows, labels, 1e-3)
    assert objective(found, rows, labels, 1e-3) == pytest.approx(
        objective(expected, rows, labels, 1e-3), abs=1e-8
    )
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_weights_are_repeated_rows():
    rows, labels = biased(200, 4)
    weights = np.random.default_rng(0).integers(0, 4, 200).astype(float)
    repeated = np.repeat(np.arange(200), weights.astype(int))
    one = run(BiasTemperatureNewton(), dataset(rows, labels, weights=weights))[-1]
    other = run(BiasTemperatureNewton(), dataset(rows[repeated], labels[repeated]))[-1]
    np.testing.assert_allclose(one.best, other.best, atol=1e-9)


@pytest.mark.parametrize("constant", [None, 0.0, 1.0])
@pytest.mark.parametrize("c", [2, 10, 40])
def test_a_start_from_a_sample_of_rows_ends_at_the_same_optimum(c, constant):
    rows, labels = biased(3000, c, seed=c, temperature=3.0)
    if constant is not None:  # the hash picks all rows for 0 and none for 1
        rows = rows - rows[:, :1] + constant
        picked = hash_sample(dataset(rows, labels), 8).n_rows
        assert picked == (0 if constant else 3000)
    data = dataset(rows, labels)
    whole, part = (
        run(BiasTemperatureNewton(sample=sample), data)[-1] for sample in (1, 8)
    )
    assert whole.converged
    assert part.converged
    assert part.loss == pytest.approx(whole.loss, abs=1e-7)
    np.testing.assert_allclose(part.best, whole.best, atol=1e-4)


@pytest.mark.parametrize("seed", range(12))
def test_the_loss_never_rises_from_round_to_round(seed):
    rng = np.random.default_rng(seed)
    c, scale = int(rng.integers(2, 7)), 10.0 ** rng.uniform(-3, 3)
    rows = rng.normal(size=(40, c)) * scale + rng.normal(size=c) * 5
    labels = rng.integers(0, c, 40) if seed % 3 else rows.argmax(axis=1) // 2
    ridge = 1e-5
    losses = []
    for state in run(BiasTemperatureNewton(ridge), dataset(rows, labels))[1:]:
        point = np.concatenate([[np.exp(state.best[0])], state.best[1:]])
        losses.append(objective(point, rows, labels, ridge))
    uncalibrated = objective(np.eye(c + 1)[0], rows, labels)
    for before, after in zip([uncalibrated, *losses[:-1]], losses, strict=True):
        assert after <= before + 1e-9 * (1 + abs(before))


def test_a_worse_point_is_drawn_back_toward_the_best_one():
    rows, labels = biased(500, 4)
    algorithm, data = BiasTemperatureNewton(), dataset(rows, labels)
    good = run(algorithm, data)[2]
    far = good.best + np.array([0.0, 8.0, -8.0, 3.0, -3.0])
    astray = replace(good, asked=far, finished=False)
    answers = algorithm.query(algorithm.broadcast(astray), data)
    total = Sums({key: value.sum(axis=0) for key, value in answers.items()})
    state = algorithm.update(astray, total, 1)
    np.testing.assert_array_equal(state.best, good.best)
    assert state.loss == good.loss
    part = (state.asked - good.best)[1:] / (far - good.best)[1:]
    np.testing.assert_allclose(part, part[0])
    assert 0.1 <= part[0] <= 0.5


def test_a_cohort_without_rows_changes_nothing():
    algorithm = BiasTemperatureNewton()
    state = algorithm.init(3)
    nobody = dataset(np.empty((0, 3)), np.empty(0, dtype=int), [0, 0])
    answers = algorithm.query(algorithm.broadcast(state), nobody)
    total = Sums({key: value.sum(axis=0) for key, value in answers.items()})
    assert algorithm.update(state, total, 2) is state


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_scale_of_the_logits_is_taken_up_by_the_temperature(scale):
    rows, labels = biased(800, 5)
    one = run(BiasTemperatureNewton(), dataset(rows, labels))[-1]
    other = run(BiasTemperatureNewton(), dataset(scale * rows, labels))[-1]
    assert other.temperature == pytest.approx(scale * one.temperature, rel=1e-6)
    np.testing.assert_allclose(other.bias, one.bias, atol=1e-6)


def questions(c):
    """Every kind of question that clients of `c` classes are asked."""
    rng = np.random.default_rng(c)
    point = np.concatenate([[-0.3], rng.normal(size=c)])
    newton, whole = BiasTemperatureNewton(), BiasTemperatureResidual()
    start = newton.init(c)
    yield newton, newton.broadcast(start)
    yield newton, newton.broadcast(replace(start, asked=point, started=True))
    state = replace(whole.init(c), best=point, phase=1)
    yield whole, whole.broadcast(state)
    table = rng.normal(size=(c, 12)) * 0.02
    yield whole, whole.broadcast(replace(state, table=table, phase=2))


@pytest.mark.parametrize(
    ("layout", "dtype"),
    [("C", np.float64), ("F", np.float32), ("shuffled", np.float32)],
)
@pytest.mark.parametrize("c", [2, 10, 60, MAX_FULL + 3])
def test_all_clients_at_once_answer_as_each_would_alone(dtype, c, layout):
    rng = np.random.default_rng(c)
    limit = BLOCK_CELLS // c // (8 if c < 100 else 1)
    sizes = np.r_[0, 1, 1, 2, 3, 7, 0, 29, 1, limit + 3, 1, 0, limit, 8, 9, 0]
    n = sizes.sum()
    rows = (rng.normal(size=(n, c)) * 4).astype(dtype)
    rows[5, 1:], rows[6, 0] = -np.inf, 1e30
    labels = rng.integers(0, c, n).astype(np.int16)
    weights = rng.random(n) if layout == "F" else None
    order = rng.permutation(n) if layout == "shuffled" else np.arange(n)
    data = replace(dataset(rows, labels, sizes, weights), order=order)
    if layout != "shuffled":
        data = replace(data, order=None, rows=np.array(rows, order=layout))
    for algorithm, broadcast in questions(c):
        together = algorithm.query(broadcast, data)
        for i in range(len(sizes)):
            own = slice(data.offsets[i], data.offsets[i + 1])
            alone = dataset(
                np.array(rows[order[own]], order="C"),
                labels[own].copy(),
                weights=None if weights is None else weights[own].copy(),
            )
            for key, answer in algorithm.query(broadcast, alone).items():
                same = answer.tobytes() == together[key][i : i + 1].tobytes()
                assert same, (key, i, int(sizes[i]))


@pytest.mark.parametrize("c", [3, MAX_FULL + 1])
def test_answers_have_the_shapes_that_are_announced(c):
    data = dataset(np.zeros((5, c)), np.zeros(5, dtype=int), [2, 3])
    for algorithm, broadcast in questions(c):
        shapes = {k: v.shape[1:] for k, v in algorithm.query(broadcast, data).items()}
        assert shapes == {k: b.shape for k, b in algorithm.spec(broadcast).items()}
