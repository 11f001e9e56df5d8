"""Federated averaging through the runner: laws, limits and oracles."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skfedcal import FederatedRunner  # noqa: E402
from skfedcal.clients.dataset import FederatedDataset  # noqa: E402
from skfedcal.federation import endpoint  # noqa: E402
from skfedcal.privacy import CentralDP  # noqa: E402
from skfedcal.privacy.entropy import SeededEntropy  # noqa: E402
from skfedcal.privacy.mechanisms import ExactSum  # noqa: E402
from skfedcal.training._fedavg import FedAvg  # noqa: E402
from skfedcal.training._local_training import (  # noqa: E402
    ClientMemory,
    ClientTraining,
    LocalSGD,
    Scaffold,
)
from skfedcal.training._losses import CrossEntropy  # noqa: E402
from skfedcal.training._objective import Objective  # noqa: E402
from skfedcal.training.modules import Network  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network(seed=0):
    torch.manual_seed(seed)
    return Network(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


NETWORK = network()


def federation(sizes, seed=0):
    rng = np.random.default_rng(seed)
    n = int(np.sum(sizes))
    rows = rng.normal(size=(n, 4)).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    labels = rng.integers(0, 3, n)
    return FederatedDataset(rows, labels, offsets, list(range(len(sizes))), 3)


def algorithm(*, n_rounds=2, lr=0.2, momentum=0.0, penalties=(), **params):
    names = ("epochs", "batch_size", "correction", "cohort_size", "memory")
    own = {name: params.pop(name) for name in names if name in params}
    own.setdefault("cohort_size", 100)
    objective = Objective(CrossEntropy(), penalties)
    training = ClientTraining(NETWORK, objective, LocalSGD(lr, momentum), **own)
    return FedAvg(training, NETWORK.flat(), n_rounds=n_rounds, **params)


def run(method, clients, runner=None, mechanism=None):
    runner = FederatedRunner() if runner is None else runner
    mechanism = ExactSum() if mechanism is None else mechanism
    return runner.run(method, clients, mechanism, SeededEntropy(0))[0]


def moved(method, clients, **how):
    return run(method, clients, **how).params - method.start


def one_round(clients, **params):
    """Change of each client by itself, one row per client."""
    method = algorithm(n_rounds=1, cohort_size=1, **params)
    found = [
        run(method, clients.slice(i, i + 1)).params - method.start
        for i in range(len(clients))
    ]
    return np.array(found)


def test_one_client_and_one_full_batch_is_a_step_of_sgd():
    clients = federation([17])
    state = run(algorithm(n_rounds=1, lr=0.3, batch_size=None), clients)
    module = NETWORK.load(NETWORK.flat())
    loss = nn.functional.cross_entropy(
        module(torch.from_numpy(clients.rows)), torch.from_numpy(clients.labels)
    )
    optimiser = torch.optim.SGD(module.parameters(), lr=0.3)
    loss.backward()
    optimiser.step()
    np.testing.assert_allclose(state.params, Network(module).flat(), atol=1e-7)
    assert state.rounds == 1


@settings(max_examples=15)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=5), uniform=st.booleans())
def test_the_server_adds_the_weighted_mean(sizes, uniform):
    clients = federation(sizes)
    weighting = "uniform" if uniform else "examples"
    params = {"epochs": 2, "batch_size": 4}
    found = moved(algorithm(n_rounds=1, weighting=weighting, **params), clients)
    if not clients.n_rows:
        assert not found.any()
        return
    weights = clients.sizes > 0 if uniform else clients.sizes
    expected = np.average(one_round(clients, **params), axis=0, weights=weights)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_equal_clients_are_one_client():
    one = federation([11])
    many = one.select(np.zeros(5, dtype=int)).compact()
    params = {"n_rounds": 3, "epochs": 2, "batch_size": 4, "momentum": 0.9}
    alone = moved(algorithm(**params), one)
    for weighting in ("examples", "uniform"):
        both = moved(algorithm(weighting=weighting, **params), many)
        np.testing.assert_allclose(both, alone, atol=1e-6)


def test_order_of_clients_changes_nothing():
    clients = federation([3, 0, 8, 1, 5])
    turned = clients.select(np.array([4, 2, 1, 0, 3]))
    for cohort_size in (1, 2, 9):
        method = algorithm(n_rounds=3, batch_size=4, cohort_size=cohort_size)
        np.testing.assert_allclose(
            moved(method, turned), moved(method, clients), atol=1e-6
        )


def test_chunks_of_the_endpoint_change_nothing(monkeypatch):
    clients = federation([3, 0, 8, 1, 5])
    method = algorithm(n_rounds=3, batch_size=4)
    whole = moved(method, clients)
    monkeypatch.setattr(endpoint, "_CHUNK_VALUES", 2 * NETWORK.n_params)
    np.testing.assert_allclose(moved(method, clients), whole, atol=1e-6)


@pytest.mark.parametrize(
    "runner",
    [
        FederatedRunner(n_jobs=2),
        # Workers import torch, which takes a while.
        pytest.param(FederatedRunner(backend="loky", n_jobs=2), marks=pytest.mark.slow),
        FederatedRunner(cohort_size=2),
    ],
    ids=["threads", "loky", "cohorts"],
)
def test_engines_agree_to_the_last_bit(runner):
    clients = federation([3, 0, 8, 1, 5])
    method = algorithm(n_rounds=3, batch_size=4, cohort_size=1)
    np.testing.assert_array_equal(
        moved(method, clients, runner=runner), moved(method, clients)
    )


def test_clients_without_rows_change_nothing():
    filled, some = federation([6, 4]), federation([6, 0, 4, 0])
    for weighting in ("examples", "uniform"):
        method = algorithm(weighting=weighting)
        np.testing.assert_array_equal(moved(method, some), moved(method, filled))


def test_a_client_that_diverges_is_left_out():
    clients, rest = federation([6, 4, 5]), federation([6, 4, 5]).slice(1, 3)
    clients.rows[:6] = np.nan
    state = run(algorithm(n_rounds=1, epochs=3), clients)
    assert state.n_diverged == 1
    expected = run(algorithm(n_rounds=1, epochs=3), rest).params
    np.testing.assert_allclose(state.params, expected, atol=1e-6)


def test_server_optimiser_by_hand():
    clients = federation([6, 4])
    method = algorithm(server_lr=0.5, server_momentum=0.9)
    first = run(replace(method, n_rounds=1), clients)
    plain = run(algorithm(n_rounds=1), clients)
    step = plain.params - method.start
    np.testing.assert_allclose(first.params, method.start + 0.5 * step)
    told = method.broadcast(first)
    rows = method.query(told, clients)
    mean = rows["update"].sum(axis=0) / rows["weight"][:, 0].sum()
    second = run(method, clients)
    expected = first.params + 0.5 * (mean + 0.9 * step)
    np.testing.assert_allclose(second.params, expected, atol=1e-9)
    np.testing.assert_allclose(second.change, second.params - first.params)


# SCAFFOLD


def scaffold(**params):
    return algorithm(correction=Scaffold(), memory=ClientMemory(), **params)


def test_first_round_of_scaffold_is_averaging():
    clients = federation([6, 4, 0, 9])
    params = {"n_rounds": 1, "epochs": 2, "batch_size": 3, "momentum": 0.9}
    np.testing.assert_allclose(
        moved(scaffold(n_clients=4, **params), clients),
        moved(algorithm(**params), clients),
        atol=1e-6,
    )


def test_second_round_of_scaffold_is_not():
    clients = federation([6, 4, 9])
    difference = moved(scaffold(n_clients=3), clients) - moved(algorithm(), clients)
    assert np.abs(difference).max() > 1e-4


def test_control_of_the_server_is_the_mean_of_the_clients():
    clients = federation([6, 4, 0, 9])
    method = scaffold(n_clients=4, n_rounds=3, momentum=0.5)
    state = run(method, clients)
    own = method.training.memory.recall(
        "control", clients.names, torch.zeros(NETWORK.n_params)
    )
    np.testing.assert_allclose(state.control, own.double().mean(dim=0), atol=1e-6)


def test_control_of_the_server_counts_clients_that_were_not_asked():
    clients = federation([6, 4, 5, 9, 3])
    method = scaffold(n_clients=5, n_rounds=3)
    state = run(method, clients, FederatedRunner(cohort="independent", cohort_size=2))
    own = method.training.memory.recall(
        "control", clients.names, torch.zeros(NETWORK.n_params)
    )
    np.testing.assert_allclose(state.control, own.double().mean(dim=0), atol=1e-6)


def test_scaffold_with_one_step_per_round_is_averaging():
    # Corrections add up to zero over the clients.
    clients = federation([6, 4, 9])
    params = {"n_rounds": 4, "batch_size": None, "weighting": "uniform"}
    np.testing.assert_allclose(
        moved(scaffold(n_clients=3, **params), clients),
        moved(algorithm(**params), clients),
        atol=1e-6,
    )


# Bounds and noise


def test_a_bound_that_nobody_reaches_is_uniform_averaging():
    clients = federation([6, 4, 9])
    bounded = algorithm(weighting="uniform", clip=1e6, n_rounds=3)
    plain = algorithm(weighting="uniform", n_rounds=3)
    np.testing.assert_allclose(
        moved(bounded, clients), moved(plain, clients), atol=1e-9
    )


def test_bounded_changes_by_hand():
    clients = federation([6, 4, 9, 0])
    each = one_round(clients)
    clip = float(np.median(np.linalg.norm(each[:3], axis=1)))
    lengths = np.linalg.norm(each, axis=1, keepdims=True)
    shorter = each * np.minimum(1, clip / np.maximum(lengths, 1e-30))
    found = moved(algorithm(n_rounds=1, weighting="uniform", clip=clip), clients)
    # The divisor is the number of clients, also of those without rows.
    np.testing.assert_allclose(found, shorter.sum(axis=0) / 4, atol=1e-6)


def private(method, clients, runner, eps):
    plan = runner.release_plan(method, clients, "client")
    return CentralDP(eps).mechanism(
        plan, entropy=SeededEntropy(1), ledger=None, split="split", label="test"
    )


def test_noise_of_a_round_has_the_planned_size():
    clients = federation([4] * 30)
    method = algorithm(n_rounds=1, weighting="uniform", clip=0.5)
    runner = FederatedRunner()
    exact = moved(method, clients)
    mechanism = private(method, clients, runner, 2.0)
    noisy = moved(method, clients, runner=runner, mechanism=mechanism)
    noise = (noisy - exact) * 30
    sigma = 0.5 * mechanism.plan.noise_multiplier
    # The mean of 43 squares is outside with a chance of 1e-6 (chi-square tails).
    assert len(noise) == 43
    assert 0.271 < np.mean(noise**2) / sigma**2 < 2.43


def test_poisson_sampling_divides_by_the_planned_number():
    clients = federation([4] * 30)
    method = algorithm(n_rounds=1, weighting="uniform", clip=0.5)
    runner = FederatedRunner(cohort="poisson", cohort_size=10)
    total = {}

    def keep(_, record):
        total.update(record.total)

    state, records = runner.run(
        method, clients, ExactSum(), SeededEntropy(3), on_round=keep
    )
    np.testing.assert_allclose(state.params - method.start, total["update"] / 10)
    assert records[0].n_clients == 10


# Checkpoints


class Killed(Exception):
    pass


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_run_that_was_killed_goes_on(tmp_path, momentum):
    clients = federation([6, 4, 9, 5])
    method = algorithm(n_rounds=5, server_momentum=momentum)
    params = {"cohort": "independent", "cohort_size": 2}
    whole = run(method, clients, runner=FederatedRunner(**params))
    safe = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True, **params)

    def kill(state, record):
        record.total.clear()
        if state.rounds == 3:
            raise Killed

    with pytest.raises(Killed):
        safe.run(method, clients, ExactSum(), SeededEntropy(0), on_round=kill)
    state, records = safe.run(method, clients, ExactSum(), SeededEntropy(0))
    np.testing.assert_array_equal(state.params, whole.params)
    assert [record.round for record in records] == list(range(5))


def test_the_monitor_ends_a_run_for_good(tmp_path):
    clients, seen = federation([6, 4]), []

    def monitor(state):
        seen.append(state.rounds)
        return state.rounds == 2

    method = algorithm(n_rounds=5, monitor=monitor)
    runner = FederatedRunner(checkpoint=tmp_path / "run.npz", resume=True)
    assert run(method, clients, runner=runner).rounds == 2
    with pytest.warns(UserWarning, match="finished run"):
        again = run(method, clients, runner=runner)
    assert again.rounds == 2
    assert seen == [1, 2]
