"""Residual bins: sums, shrinkage and correction by hand; never worse than without."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, log_softmax

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.bias_temperature.rounds import (
    N_BINS,
    NODES,
    BiasTemperatureNewton,
    BiasTemperatureResidual,
    corrected,
    shrunken_residuals,
)


def dataset(rows, labels, sizes=None, weights=None):
    sizes = [len(labels)] if sizes is None else sizes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(
        rows, labels, offsets, range(len(sizes)), rows.shape[1], weights=weights
    )


def run(algorithm, data):
    state = algorithm.init(data.n_classes)
    for _ in range(algorithm.n_rounds):
        answers = algorithm.query(algorithm.broadcast(state), data)
        total = Sums({key: value.sum(axis=0) for key, value in answers.items()})
        state = algorithm.update(state, total, len(data))
        if algorithm.done(state):
            break
    return state


def curved(n, c, seed=0):
    """Rows whose labels follow a map that no bias and temperature can undo."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return np.sign(true) * np.abs(true) ** 2.5, labels


def cells(rows, labels, weights=None):
    algorithm = BiasTemperatureResidual()
    state = replace(algorithm.init(rows.shape[1]), phase=1)
    data = dataset(rows, labels, weights=weights)
    return algorithm.query(algorithm.broadcast(state), data)["cells"][0]


def test_sums_of_one_row_by_hand():
    # q = 1/2 lies half way between the nodes -1/2 (number 6) and 1/2 of its logit.
    residual, weight, variance = cells(np.zeros((1, 2)), np.array([0]))
    expected = np.zeros((3, 2, N_BINS))
    expected[0, 0, 6:8], expected[0, 1, 6:8] = 0.25, -0.25
    expected[1, :, 6:8] = 0.5
    expected[2, :, 6:8] = 0.5**2 * 0.25
    np.testing.assert_allclose([residual, weight, variance], expected)


def test_sums_below_the_first_and_above_the_last_node_by_hand():
    # Log-odds of 9 and -9: beyond both ends; there the first weight fades with q.
    residual, weight, variance = cells(np.array([[9.0, 0.0]]), np.array([1]))
    low, first = expit(-9.0), expit(NODES[0])
    assert np.flatnonzero(weight[0]).tolist() == [N_BINS - 1]
    assert np.flatnonzero(weight[1]).tolist() == [0]
    assert weight[0, -1] == 1.0
    assert weight[1, 0] == pytest.approx(low / first)
    assert residual[0, -1] == pytest.approx(-expit(9.0))
    assert residual[1, 0] == pytest.approx(1 - low)
    assert variance[1, 0] == pytest.approx(low * (1 - low))


def test_a_weight_counts_a_row_that_often():
    rows, labels = curved(50, 3)
    weights = np.random.default_rng(0).integers(0, 3, 50)
    again = np.repeat(np.arange(50), weights)
    np.testing.assert_allclose(
        cells(rows, labels, weights.astype(float)),
        cells(rows[again], labels[again]),
        atol=1e-12,
    )


def test_shrinkage_of_one_cell_by_hand():
    # Mean 3 / 10 with variance 0.9 / 10^2; spread 0.09 - 0.009: factor 0.081 / 0.09.
    # What is left of it, 0.03, is less than its noise of 0.095: nothing is added.
    out = shrunken_residuals(np.array([[3.0]]), np.array([[10.0]]), np.array([[0.9]]))
    np.testing.assert_allclose(out, [[0.3 * 0.081 / 0.09]])


def test_shrinkage_of_two_classes_by_hand():
    # The classes cancel: no common curve. Means +-0.2, variance 0.01 each: spread
    # 0.04 - 0.01, factor 3/4. The empty cell says nothing.
    residual = np.array([[2.0, 0.0], [-2.0, 0.0]])
    weight = np.array([[10.0, 0.0], [10.0, 0.0]])
    variance = np.array([[1.0, 0.0], [1.0, 0.0]])
    out = shrunken_residuals(residual, weight, variance)
    np.testing.assert_allclose(out, [[0.15, 0.0], [-0.15, 0.0]])


def test_what_noise_explains_is_shrunk_to_nothing():
    residual = np.array([[0.1, -0.1], [-0.1, 0.1]])
    out = shrunken_residuals(residual, np.ones((2, 2)), np.full((2, 2), 0.25))
    assert not out.any()


def test_correction_by_hand():
    table = np.zeros((1, N_BINS))
    table[0, 0], table[0, 6], table[0, 7], table[0, 11] = -0.9, 0.1, 0.3, 0.5

    def moved(q):
        return float(np.exp(corrected(np.log([[q]]), table))[0, 0])

    assert moved(expit(-0.5)) == pytest.approx(expit(-0.5) + 0.1)
    assert moved(0.5) == pytest.approx(0.5 + 0.2)
    assert moved(expit(-3.5)) == pytest.approx(expit(-3.5))
    assert moved(expit(5.0)) == 1.0
    # Never below a twentieth, also where the probability is far below the first node.
    assert moved(1e-5) == pytest.approx(0.05 * 1e-5)


def test_below_the_first_node_the_correction_fades_to_nothing():
    table = np.zeros((1, N_BINS))
    table[0, 0] = 2 * expit(NODES[0])
    q = np.array([[1e-3, 1e-6, 1e-300]])
    np.testing.assert_allclose(np.exp(corrected(np.log(q), table)), 3 * q)
    for extreme in (-np.inf, -1e4):
        out = corrected(np.array([[extreme]]), table)[0, 0]
        assert out == extreme or extreme > out > extreme - 4


def test_the_correction_is_continuous():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(1, N_BINS)) * 0.02
    q = expit(np.linspace(-12, 8, 200_001))[None]
    steps = np.diff(np.exp(corrected(np.log(q), table)))
    # Nodes differ by 0.1 at most and are 10,000 steps apart.
    assert np.abs(steps).max() < 1e-4


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n", [12, 200, 4000])
def test_never_worse_than_without_on_the_rows_of_the_fit(n, seed):
    rows, labels = curved(n, 4, seed)
    plain = run(BiasTemperatureNewton(), dataset(rows, labels))
    state = run(BiasTemperatureResidual(), dataset(rows, labels))
    assert state.temperature == plain.temperature
    np.testing.assert_array_equal(state.bias, plain.bias)
    before = log_softmax(rows / state.temperature + state.bias, axis=1)
    after = corrected(np.array(before.T, order="C"), state.residual).T
    after = log_softmax(after, axis=1)
    own = np.arange(n), labels
    assert after[own].mean() >= before[own].mean() - 1e-12
    if n == 4000:
        assert after[own].mean() > before[own].mean() + 1e-3


def test_a_table_that_hurts_is_left_out():
    algorithm = BiasTemperatureResidual()
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 3)) * 1.5
    labels = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
    table = rng.choice([-0.3, 0.3], size=(3, N_BINS))
    state = replace(algorithm.init(3), table=table, phase=2)
    answers = algorithm.query(algorithm.broadcast(state), dataset(rows, labels))
    total = Sums({key: value.sum(axis=0) for key, value in answers.items()})
    state = algorithm.update(state, total, 1)
    assert algorithm.done(state) and state.strength == 0.0
    assert not state.residual.any()


@pytest.mark.parametrize("n_rounds", [1, 2, 3, 5])
def test_few_rounds_leave_the_last_two_to_the_bins(n_rounds):
    rows, labels = curved(3000, 3)
    state = run(BiasTemperatureResidual(n_rounds=n_rounds), dataset(rows, labels))
    assert bool(state.residual.any()) == (n_rounds >= 3)
    assert np.isfinite(state.residual).all()
