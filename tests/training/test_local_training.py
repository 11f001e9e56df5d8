"""Local training: schedules, one client or a cohort, against torch.optim."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from skfedcal.clients.dataset import FederatedDataset  # noqa: E402
from skfedcal.training._local_training import (  # noqa: E402
    ClientMemory,
    ClientTraining,
    LocalAdam,
    LocalSGD,
    Scaffold,
    class_counts,
    make_steps,
)
from skfedcal.training._losses import CrossEntropy  # noqa: E402
from skfedcal.training._objective import Objective  # noqa: E402
from skfedcal.training.modules import Network, features_of  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Tokens(nn.Module):
    """Embedding, LSTM and head, on rows of whole numbers."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x))[0][:, -1])


def mlp(*extra):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), *extra, nn.Linear(6, 3))


def conv():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 3),
    )


MODULES = {"mlp": mlp, "linear": lambda: nn.Linear(4, 3), "conv": conv, "lstm": Tokens}


def network(name="mlp", seed=0, random=False):
    torch.manual_seed(seed)
    return Network(MODULES[name]() if isinstance(name, str) else name, random)


def federation(sizes, seed=0, tokens=False, shuffled=False, names=None):
    rng = np.random.default_rng(seed)
    n = int(np.sum(sizes))
    rows = rng.normal(size=(n, 4)).astype(np.float32)
    if tokens:
        rows = rng.integers(0, 7, size=(n, 4))
    labels = rng.integers(0, 3, n)
    order = rng.permutation(n) if shuffled else None
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    names = list(range(len(sizes))) if names is None else names
    return FederatedDataset(rows, labels, offsets, names, 3, order=order)


def told(net, round_index=0, **more):
    return {"params": net.flat(), "round": np.array(round_index), **more}


def training(
    net, *, penalties=(), lr=0.1, momentum=0.0, weight_decay=0.0, adam=False, **params
):
    local = LocalSGD(lr, momentum, weight_decay, seed=(0,))
    if adam:
        local = LocalAdam(lr, weight_decay=weight_decay, seed=(0,))
    return ClientTraining(net, Objective(CrossEntropy(), penalties), local, **params)


def run(work, clients, **more):
    order = np.argsort(-clients.sizes, kind="stable")
    order = order[: np.count_nonzero(clients.sizes)]
    found = work.run(told(work.network, **more), clients, order)
    moved = np.zeros((len(clients), found.moved.shape[1]))
    moved[order] = found.moved
    return moved


# Schedules


@given(
    sizes=st.lists(st.integers(1, 23), min_size=1, max_size=6),
    epochs=st.integers(1, 3),
    batch_size=st.sampled_from([None, 1, 4, 10, 50]),
)
def test_every_epoch_visits_each_row_once(sizes, epochs, batch_size):
    sizes = np.array(sizes)
    steps = make_steps(sizes, epochs=epochs, batch_size=batch_size, seed=(3, 1))
    assert len(steps.rows) == steps.n_steps.sum()
    for i, size in enumerate(sizes):
        width = size if batch_size is None else batch_size
        assert steps.n_steps[i] == epochs * -(-size // width)
        own = slice(steps.first[i], steps.first[i] + steps.n_steps[i])
        rows, there = steps.rows[own], steps.mask[own] > 0
        used = rows[there].reshape(epochs, size)
        np.testing.assert_array_equal(np.sort(used, axis=1), [np.arange(size)] * epochs)
        assert there.any(axis=1).all()
        assert not rows[~there].any()


def test_order_depends_on_seed_round_and_size_only():
    def one(sizes, seed):
        return make_steps(np.array(sizes), epochs=2, batch_size=4, seed=seed)

    alone = one([9], (0, 5)).rows
    among = one([30, 9, 9], (0, 5)).rows[-2 * len(alone) :]
    np.testing.assert_array_equal(among, np.vstack([alone, alone]))
    assert (one([9], (0, 6)).rows != alone).any()
    assert (one([9], (1, 5)).rows != alone).any()


def test_class_counts_of_a_slice():
    clients = federation([3, 0, 5, 2]).slice(1, 4)
    counts = class_counts(clients)
    for i in range(3):
        own = clients.labels[clients.offsets[i] : clients.offsets[i + 1]]
        np.testing.assert_array_equal(counts[i], np.bincount(own, minlength=3))


# Networks


@pytest.mark.parametrize("name", MODULES)
def test_flat_parameters_there_and_back(name):
    net = network(name)
    flat = net.flat()
    assert len(flat) == net.n_params == sum(p.numel() for p in net.module.parameters())
    other = network(name, seed=1).load(flat)
    for key, value in net.module.state_dict().items():
        torch.testing.assert_close(other.state_dict()[key], value, rtol=0, atol=0)
    assert not other.training


class Odd(nn.Module):
    """A weight that two layers share, one that is not used, one that stays."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.idle, self.still = nn.Linear(2, 2), nn.Linear(4, 4)
        self.still.requires_grad_(False)

    def forward(self, x):
        return self.second(torch.tanh(self.still(self.first(x))))


def test_steps_on_the_module_are_those_with_swapped_parameters():
    torch.manual_seed(0)
    network = Network(Odd())
    before = {n: p.detach().clone() for n, p in network.module.named_parameters()}
    flat = torch.randn(network.n_params)
    x, y = torch.randn(7, 4), torch.arange(7) % 4

    def slopes(params, leaves):
        loss = nn.functional.cross_entropy(network.logits(params, x), y)
        parts = torch.autograd.grad(loss, leaves, materialize_grads=True)
        return loss.detach(), torch.cat([part.reshape(-1) for part in parts])

    swapped = flat.clone().requires_grad_()
    wanted = slopes(network.unflatten(swapped), [swapped])
    with network.bound(flat) as params:
        found = slopes(params, list(params.values()))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        flat -= 0.1 * found[1]  # moves the parameters of the module
        moved = slopes(params, list(params.values()))
        # Others may still be asked about, as penalties do.
        other = network.logits(network.unflatten(swapped), x)
        assert torch.equal(nn.functional.cross_entropy(other, y), wanted[0])
    swapped = flat.clone().requires_grad_()
    wanted = slopes(network.unflatten(swapped), [swapped])
    assert all(torch.equal(a, b) for a, b in zip(moved, wanted, strict=True))
    assert not torch.equal(moved[0], found[0])
    for name, param in network.module.named_parameters():
        assert torch.equal(param, before[name])
    with pytest.raises(KeyError), network.bound(flat):
        raise KeyError
    assert torch.equal(network.module.first.bias, before["first.bias"])


def test_frozen_parameters_stay_out():
    module = mlp()
    module[0].requires_grad_(False)
    net = Network(module)
    assert net.n_params == 6 * 3 + 3
    frozen = module[0].weight.clone()
    moved = run(training(net, epochs=3, cohort_size=9), federation([8, 8]))
    assert moved.shape == (2, 21)
    assert (moved != 0).any()
    torch.testing.assert_close(net.load(net.flat() + 1)[0].weight, frozen)


@pytest.mark.parametrize("name", MODULES)
def test_features_are_the_input_of_the_last_layer(name):
    net = network(name)
    x = torch.from_numpy(federation([6], tokens=name == "lstm").rows)
    logits, features = net.logits_and_features(dict(net.module.named_parameters()), x)
    torch.testing.assert_close(net.head(features), logits)
    torch.testing.assert_close(features_of(net.module, x), features)


# Training


def by_torch(net, clients, i, steps, kind=torch.optim.SGD, **settings):
    """Parameters of client `i` after steps of torch over the same batches."""
    module = net.load(net.flat()).train()
    optimiser = kind(module.parameters(), **settings)
    start, stop = clients.offsets[i], clients.offsets[i + 1]
    where = np.arange(start, stop)
    rows = where if clients.order is None else clients.order[where]
    x, y = torch.from_numpy(clients.rows[rows]), torch.from_numpy(clients.labels[where])
    for place in range(steps.first[i], steps.first[i] + steps.n_steps[i]):
        picked = steps.rows[place][steps.mask[place] > 0]
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[picked]), y[picked]).backward()
        optimiser.step()
    return Network(module).flat()


@pytest.mark.parametrize("cohort_size", [1, 10])
@pytest.mark.parametrize("name", MODULES)
def test_equals_torch_optim(name, cohort_size):
    net = network(name)
    clients = federation([9, 4, 1, 0, 12], tokens=name == "lstm", shuffled=True)
    settings = {"lr": 0.2, "momentum": 0.7, "weight_decay": 0.01}
    work = training(net, epochs=2, batch_size=4, cohort_size=cohort_size, **settings)
    moved = run(work, clients, round_index=3)
    steps = make_steps(clients.sizes, epochs=2, batch_size=4, seed=(0, 3))
    for i in (0, 1, 2, 4):
        expected = by_torch(net, clients, i, steps, **settings) - net.flat()
        np.testing.assert_allclose(moved[i], expected, atol=2e-6)
    assert not moved[3].any()


@pytest.mark.parametrize("cohort_size", [1, 10])
@pytest.mark.parametrize("name", MODULES)
def test_adam_equals_torch_optim(name, cohort_size):
    net = network(name)
    clients = federation([9, 4, 1, 0, 12], tokens=name == "lstm", shuffled=True)
    settings = {"lr": 0.01, "weight_decay": 0.1}
    params = {"epochs": 2, "batch_size": 4, "cohort_size": cohort_size}
    moved = run(training(net, adam=True, **settings, **params), clients, round_index=3)
    steps = make_steps(clients.sizes, epochs=2, batch_size=4, seed=(0, 3))
    for i in (0, 1, 2, 4):
        end = by_torch(net, clients, i, steps, torch.optim.Adam, **settings)
        expected = end - net.flat()
        # The quotient of a gradient near zero and its root has few digits in float32.
        np.testing.assert_allclose(moved[i], expected, atol=2e-4)
        assert np.linalg.norm(moved[i] - expected) < 1e-3 * np.linalg.norm(expected)
    assert not moved[3].any()


@given(
    sizes=st.lists(st.integers(0, 14), min_size=1, max_size=7),
    cohort_size=st.integers(1, 8),
    batch_size=st.sampled_from([None, 1, 5, 32]),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_cohorts_change_nothing(sizes, cohort_size, batch_size, momentum):
    net, clients = network(), federation(sizes, seed=len(sizes))
    params = {"epochs": 2, "batch_size": batch_size, "momentum": momentum}
    if not clients.sizes.any():
        return
    alone = run(training(net, **params), clients)
    together = run(training(net, cohort_size=cohort_size, **params), clients)
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_cohorts_change_nothing_for_any_layer(name):
    net = network(name)
    clients = federation([5, 3, 1, 8], tokens=name == "lstm")
    alone = run(training(net, epochs=3, batch_size=2), clients)
    together = run(training(net, epochs=3, batch_size=2, cohort_size=4), clients)
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_one_by_one_a_client_is_alone_to_the_last_bit():
    net, sizes = network(), [6, 11, 1, 3]
    clients = federation(sizes, shuffled=True)
    work = training(net, epochs=2, batch_size=4, momentum=0.5)
    together = run(work, clients)
    for i in range(len(sizes)):
        own = clients.select(np.array([i])).compact()
        np.testing.assert_array_equal(run(work, own)[0], together[i])


@pytest.mark.parametrize("cohort_size", [1, 4])
def test_rows_of_others_never_enter(cohort_size):
    net, clients = network(), federation([6, 11, 1, 3])
    work = training(net, epochs=2, batch_size=4, cohort_size=cohort_size)
    before = run(work, clients)
    poisoned = clients.rows.copy()
    poisoned[6:17] = np.nan  # the largest client, which comes first in a cohort
    clients = FederatedDataset(
        poisoned, clients.labels, clients.offsets, clients.names, 3
    )
    after = run(work, clients)
    np.testing.assert_array_equal(after[[0, 2, 3]], before[[0, 2, 3]])
    assert not after[1].any()


def test_divergence_is_noticed():
    net, clients = network("linear"), federation([6, 4])
    clients.rows[:6] = 1e30
    work = training(net, epochs=3, cohort_size=2)
    found = work.run(told(net), clients, np.array([0, 1]))
    np.testing.assert_array_equal(found.finite, [False, True])
    assert not found.moved[0].any()
    assert found.moved[1].any()


# Dropout


def dropout_net():
    torch.manual_seed(0)
    return Network(mlp(nn.Dropout(0.5)), random=True)


@pytest.mark.parametrize("cohort_size", [1, 3])
def test_dropout_is_seeded_and_leaves_the_generator_alone(cohort_size):
    net, clients = dropout_net(), federation([8, 8, 8])
    work = training(net, epochs=3, cohort_size=cohort_size)
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = run(work, clients)
    torch.testing.assert_close(torch.random.get_rng_state(), before, rtol=0, atol=0)
    torch.manual_seed(6)
    np.testing.assert_array_equal(run(work, clients), first)
    assert (run(work, clients, round_index=1) != first).any()


def test_dropout_differs_between_equal_clients():
    net, one = dropout_net(), federation([8])
    twice = one.select(np.array([0, 0])).compact()
    twins = FederatedDataset(twice.rows, twice.labels, twice.offsets, ["a", "b"], 3)
    for cohort_size in (1, 2):
        moved = run(training(net, cohort_size=cohort_size), twins)
        assert (moved[0] != moved[1]).any()


def test_dropout_alone_depends_on_neither_order_nor_company():
    net = dropout_net()
    clients = federation([8, 3, 5], names=["a", "b", "c"])
    work = training(net, epochs=2)
    moved = run(work, clients)
    turned = clients.select(np.array([2, 0]))
    np.testing.assert_array_equal(run(work, turned), moved[[2, 0]])


# Corrections and memory


@pytest.mark.parametrize("cohort_size", [1, 3])
def test_scaffold_by_hand(cohort_size):
    net, clients = network("linear"), federation([6, 4, 9])
    sizes, lr, momentum = clients.sizes, 0.1, 0.5
    memory = ClientMemory()
    work = training(
        net,
        lr=lr,
        momentum=momentum,
        epochs=2,
        batch_size=3,
        correction=Scaffold(),
        cohort_size=cohort_size,
        memory=memory,
    )
    rng = np.random.default_rng(0)
    zero = np.zeros(net.n_params, np.float32)
    order = np.argsort(-sizes)
    first = work.run(told(net, control=zero), clients, order)
    plain = run(
        training(net, lr=lr, momentum=momentum, epochs=2, batch_size=3), clients
    )
    np.testing.assert_allclose(first.moved, plain[order], atol=1e-6)
    n_steps = 2 * -(-sizes[order] // 3)
    own = -first.moved * (1 - momentum) / (lr * n_steps[:, None])
    np.testing.assert_allclose(first.steered, own, atol=1e-5)

    control = rng.normal(size=net.n_params).astype(np.float32)
    second = work.run(told(net, 1, control=control), clients, order)
    steps = make_steps(sizes, epochs=2, batch_size=3, seed=(0, 1))
    for j, i in enumerate(order):
        end = drifted(net, clients, i, steps, control - own[j], lr, momentum)
        moved = end - net.flat()
        np.testing.assert_allclose(second.moved[j], moved, atol=1e-5)
        change = -control - moved * (1 - momentum) / (lr * n_steps[j])
        np.testing.assert_allclose(second.steered[j], change, atol=1e-4)


def drifted(net, clients, i, steps, shift, lr, momentum):
    """Parameters after steps whose gradients have `shift` added, by hand."""
    module = net.load(net.flat()).train()
    flat, velocity = net.flat().astype(np.float64), 0.0
    start, stop = clients.offsets[i], clients.offsets[i + 1]
    x = torch.from_numpy(clients.rows[start:stop])
    y = torch.from_numpy(clients.labels[start:stop])
    for place in range(steps.first[i], steps.first[i] + steps.n_steps[i]):
        picked = steps.rows[place][steps.mask[place] > 0]
        module = Network(module).load(flat.astype(np.float32)).train()
        nn.functional.cross_entropy(module(x[picked]), y[picked]).backward()
        slopes = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
        velocity = momentum * velocity + slopes + shift
        flat = flat - lr * velocity
    return flat


def test_memory_is_by_name_and_stays_here():
    import pickle

    memory = ClientMemory()
    memory.keep("params", ["a", "b"], torch.tensor([[1.0], [2.0]]))
    found = memory.recall("params", ["b", "c", "a"], torch.tensor([9.0]))
    np.testing.assert_array_equal(found, [[2.0], [9.0], [1.0]])
    other = memory.recall("control", ["a"], torch.tensor([0.0]))
    np.testing.assert_array_equal(other, [[0.0]])
    with pytest.raises(TypeError, match="backend='threads'"):
        pickle.dumps(memory)


def test_memory_is_asked_for_where_it_is_needed():
    net = network()
    work = training(net, correction=Scaffold())
    with pytest.raises(ValueError, match="pass memory"):
        work.run(told(net, control=net.flat()), federation([3]), np.array([0]))
