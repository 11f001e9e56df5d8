"""Algorithm 2 as printed: local fits, their average, and what skew makes of it."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from skfedcal import FederatedRunner, make_federation
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods.scaling.families import (
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
    canonical,
    labelled,
)
from skfedcal.methods.scaling.rounds import LocalAverage, minimise_each
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum

FAMILIES = [VectorMap(), MatrixMap(), OrderPreservingMap()]
over_families = pytest.mark.parametrize(
    "family", FAMILIES, ids=[type(f).__name__ for f in FAMILIES]
)


def packed(clients, c):
    offsets = np.concatenate([[0], np.cumsum([len(y) for _, y in clients])])
    rows = np.concatenate([z for z, _ in clients])
    labels = np.concatenate([y for _, y in clients])
    return FederatedDataset(rows, labels, offsets, range(len(clients)), c)


def drawn(sizes=(40, 0, 25), c=3, seed=0):
    rng = np.random.default_rng(seed)
    clients = [(2 * rng.normal(size=(n, c)), rng.integers(0, c, n)) for n in sizes]
    return packed(clients, c)


def vector_loss(rows, labels):
    z = rows - rows.mean(axis=1, keepdims=True)
    index = np.arange(len(labels))

    def value_and_slope(params):
        a, b = np.split(params, 2)
        logs = log_softmax(a * z + b, axis=1)
        residual = np.exp(logs)
        residual[index, labels] -= 1
        slope = np.concatenate([(residual * z).mean(axis=0), residual.mean(axis=0)])
        return -logs[index, labels].mean(), slope

    return value_and_slope


def test_gradient_steps_are_those_of_a_plain_loop():
    data = drawn()
    algorithm = LocalAverage(VectorMap(), local_solver="gd", local_iter=7)
    answer = algorithm.query(algorithm.broadcast(algorithm.init(3)), data)
    for i in (0, 2):
        own = slice(data.offsets[i], data.offsets[i + 1])
        loss = vector_loss(data.rows[own], data.labels[own])
        params = np.repeat([1.0, 0.0], 3)
        for _ in range(7):
            params = params - 0.01 * loss(params)[1]
        expected = params - np.repeat([1.0, 0.0], 3)
        np.testing.assert_allclose(answer["update"][i], expected, atol=1e-12)
    assert not answer["update"][1].any()
    assert answer["filled"].ravel().tolist() == [1, 0, 1]


def test_local_optima_are_those_of_scipy():
    data = drawn()
    algorithm = LocalAverage(VectorMap(), local_iter=200)
    answer = algorithm.query(algorithm.broadcast(algorithm.init(3)), data)
    for i in (0, 2):
        own = slice(data.offsets[i], data.offsets[i + 1])
        loss = vector_loss(data.rows[own], data.labels[own])
        start = np.repeat([1.0, 0.0], 3)
        best = minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9})
        assert loss(start + answer["update"][i])[0] <= best.fun + 1e-7


def test_each_problem_is_solved_by_itself():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 4))
    scales = np.exp(rng.normal(size=(5, 4)))

    def bowls(some):
        def function(params, which):
            own = some if which is None else some[which]
            move = params - centres[own]
            return (scales[own] * move**2).sum(axis=1) / 2, scales[own] * move

        return function

    everyone = np.arange(5)
    together = minimise_each(bowls(everyone), np.zeros((5, 4)), 60)
    np.testing.assert_allclose(together, centres, atol=1e-4)
    for i in everyone:
        alone = minimise_each(bowls(everyone[i : i + 1]), np.zeros((1, 4)), 60)
        assert alone.tobytes() == together[i : i + 1].tobytes()


@over_families
@pytest.mark.parametrize("solver", ["gd", "lbfgs"])
def test_a_client_answers_alone_as_in_company(family, solver):
    data = drawn((1, 6, 0, 30, 2, 9), c=4)
    algorithm = LocalAverage(family, local_solver=solver, local_iter=12)
    broadcast = algorithm.broadcast(algorithm.init(4))
    together = algorithm.query(broadcast, data)
    for i in range(len(data)):
        for alone in (data.slice(i, i + 1), data.slice(i, i + 1).compact()):
            for key, answer in algorithm.query(broadcast, alone).items():
                assert answer.tobytes() == together[key][i : i + 1].tobytes()


@over_families
def test_the_server_adds_the_mean_of_filled_clients(family):
    data = drawn()
    algorithm = LocalAverage(family, local_solver="gd", n_rounds=1)
    start = algorithm.init(3)
    update = algorithm.query(algorithm.broadcast(start), data)["update"]
    state, _ = FederatedRunner().run(algorithm, data, ExactSum(), SeededEntropy(0))
    np.testing.assert_allclose(
        state.params, start.params + update.sum(axis=0) / 2, atol=1e-9
    )
    bounded = LocalAverage(family, local_solver="gd", n_rounds=1, clip=1e-3)
    state, _ = FederatedRunner().run(bounded, data, ExactSum(), SeededEntropy(0))
    norms = np.linalg.norm(update, axis=1)
    clipped = update * np.minimum(1, 1e-3 / np.maximum(norms, 1e-12))[:, None]
    # Under a bound empty clients are in the divisor: their number stays hidden.
    np.testing.assert_allclose(
        state.params, start.params + clipped.sum(axis=0) / 3, atol=1e-9
    )


@pytest.mark.parametrize("family", FAMILIES[:2], ids=["vector", "matrix"])
def test_under_skew_local_optima_lose_accuracy_and_early_stops_do_not(family):
    # Section 4 and Figure 1c of the paper: clients with few classes overfit.
    made = make_federation(
        60, 3000, 6, class_bias=0.3, alpha=0.1, n_test=3000, random_state=0
    )
    data = packed(made.clients, 6)

    def accuracy(**params):
        algorithm = LocalAverage(family, n_rounds=2, **params)
        state, _ = FederatedRunner().run(algorithm, data, ExactSum(), SeededEntropy(0))
        logits = family.logits(state.params, canonical(made.test_logits))
        return (logits.argmax(axis=0) == made.test_labels).mean()

    base = (made.test_logits.argmax(axis=1) == made.test_labels).mean()
    assert accuracy() < base - 0.05
    assert accuracy(local_solver="gd") > base - 0.01


def test_problems_that_have_arrived_are_not_computed_again():
    sizes = []

    # Round bowls need a few steps, the last two, which are narrow, many.
    scales = np.ones((8, 3))
    scales[6:] = [[1.0, 30.0, 900.0]]

    def function(params, which):
        own = scales if which is None else scales[which]
        sizes.append(len(own))
        move = params - 0.5
        return (own * move**2).sum(axis=1) / 2, own * move

    found = minimise_each(function, np.zeros((8, 3)), 100)
    np.testing.assert_allclose(found, np.full((8, 3), 0.5), atol=1e-4)
    assert sizes[0] == 8 and sizes.count(2) > len(sizes) / 2


@pytest.mark.parametrize("ranked", [False, True])
def test_selected_rows_are_those_of_the_clients_alone(ranked):
    data = drawn((1, 6, 0, 30, 2, 9), c=4)
    data.rows[10, 1] = -np.inf
    some = np.array([0, 3, 4])

    def own(clients):
        (block,) = clients.blocks(10**6)
        return labelled(block, 1.0, ranked)

    found, alone = own(data).select(some), own(data.select(some))
    for name in ("values", "masked", "ranks", "gaps"):
        one, other = getattr(found.rows, name), getattr(alone.rows, name)
        assert (one is None) == (other is None)
        np.testing.assert_array_equal(one, other)
    for name in ("labels", "weights", "offsets", "owners"):
        np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
