"""Local training of a network: autograd as the oracle, and a client's own rows only."""

import numpy as np
import pytest

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.network import rounds
from skfedcal.methods.network.rounds import (
    MLPAveraging,
    MLPState,
    positive_factors,
    visiting_order,
)
from skfedcal.methods.scaling.families import canonical


def federation(sizes, c, seed=0, weights=None, scale=3.0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(sum(sizes), c)) * scale
    labels = (rows / 2 + rng.gumbel(size=rows.shape)).argmax(axis=1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(rows, labels, offsets, range(len(sizes)), c, weights)


def moved_start(algorithm, c, seed=0):
    """Parameters as after some rounds: no layer is zero."""
    start = algorithm.init(c).params
    return start + 0.05 * np.random.default_rng(seed).normal(size=start.shape)


def torch_map(layers, rows, order_preserving):
    torch = pytest.importorskip("torch")
    output = rows
    for i, layer in enumerate(layers):
        output = torch.relu(output) if i else output
        output = output @ layer[:-1] + layer[-1]
    if not order_preserving:
        return rows + output
    falling, order = rows.sort(dim=1, descending=True, stable=True)
    factors = torch.nn.functional.softplus(output).clamp(min=1e-6).gather(1, order)
    falls = (falling[:, :-1] - falling[:, 1:]) * factors[:, :-1]
    upper = falls.flip(1).cumsum(1).flip(1)  # U w of appendix B.6
    upper = torch.cat([upper, torch.zeros_like(rows[:, :1])], dim=1)
    return torch.zeros_like(upper).scatter(1, order, upper)


def torch_training(algorithm, params, data):
    """One client's local training, minibatch after minibatch, by autograd."""
    torch = pytest.importorskip("torch")
    shapes = rounds.layer_shapes(data.n_classes, algorithm.hidden)
    layers = [torch.tensor(layer) for layer in rounds.split_layers(params, shapes)]
    rows = torch.tensor(canonical(data.rows).values.T.copy())
    labels = torch.tensor(data.labels)
    loss = torch.nn.CrossEntropyLoss()
    for epoch in range(algorithm.epochs):
        visits = visiting_order(data.sizes, np.array([0]), epoch)
        for first in range(0, data.n_rows, algorithm.batch_size):
            batch = torch.tensor(visits[first : first + algorithm.batch_size])
            layers = [layer.detach().requires_grad_() for layer in layers]
            logits = torch_map(layers, rows[batch], algorithm.order_preserving)
            gradients = torch.autograd.grad(loss(logits, labels[batch]), layers)
            layers = [
                layer - algorithm.learning_rate * gradient
                for layer, gradient in zip(layers, gradients, strict=True)
            ]
    trained = [layer.detach().numpy().ravel() for layer in layers]
    return np.concatenate(trained) - params


@pytest.mark.parametrize("order_preserving", [True, False])
@pytest.mark.parametrize(
    ("c", "hidden", "n"), [(10, (64, 64), 75), (3, (8,), 33), (2, (), 5), (4, (6,), 1)]
)
def test_local_training_is_that_of_autograd(c, hidden, n, order_preserving):
    algorithm = MLPAveraging(hidden=hidden, order_preserving=order_preserving)
    data = federation([n], c)
    params = moved_start(algorithm, c)
    update = algorithm.query({"params": params}, data)["update"][0]
    expected = torch_training(algorithm, params, data)
    assert np.linalg.norm(update) > 1e-3
    np.testing.assert_allclose(update, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order_preserving", [True, False])
def test_gradients_are_those_of_autograd_also_with_ties_and_floored_factors(
    order_preserving,
):
    torch = pytest.importorskip("torch")
    algorithm = MLPAveraging(hidden=(7, 5), order_preserving=order_preserving)
    data = federation([8], 4)
    data.rows[0], data.rows[1, :2] = 1.0, 3.0
    params = moved_start(algorithm, 4)
    params[-1] = -15.0  # the factor of the last class is at its floor
    shapes = rounds.layer_shapes(4, (7, 5))
    layers = rounds.split_layers(params[None], shapes)
    present = np.ones((1, 8), dtype=bool)
    batch = rounds.Batch.of(data).take(np.arange(8)[None], present)
    leaves = [torch.tensor(layer[0], requires_grad=True) for layer in layers]
    logits = torch_map(leaves, torch.tensor(batch.rows[0]), order_preserving)
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(data.labels))
    expected = torch.autograd.grad(loss, leaves)
    for one, other in zip(algorithm.gradients(layers, batch), expected, strict=True):
        np.testing.assert_allclose(one[0], other.numpy(), rtol=0, atol=1e-12)


def hard_sizes():
    return [0, 1, 1, 2, 31, 32, 33, 0, 64, 65, 7, 150, 3, 0]


@pytest.mark.parametrize("c", [2, 3, 10, 61])
@pytest.mark.parametrize("hidden", [(64, 64), (5,)])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_client_answers_alone_as_among_others_to_the_last_bit(c, hidden, weighted):
    sizes = hard_sizes()
    rng = np.random.default_rng(c)
    weights = rng.integers(0, 3, sum(sizes)) * 0.7 if weighted else None
    data = federation(sizes, c, seed=c, weights=weights)
    algorithm = MLPAveraging(hidden=hidden, epochs=2)
    broadcast = {"params": moved_start(algorithm, c)}
    together = algorithm.query(broadcast, data)
    backwards = algorithm.query(broadcast, data.select(np.arange(len(data))[::-1]))
    for i in range(len(data)):
        for view in (data.slice(i, i + 1), data.slice(i, i + 1).compact()):
            for key, answer in algorithm.query(broadcast, view).items():
                assert answer[0].tobytes() == together[key][i].tobytes(), (i, key)
                assert answer[0].tobytes() == backwards[key][-1 - i].tobytes()


def test_cutting_clients_into_chunks_changes_no_bit(monkeypatch):
    data = federation(hard_sizes() * 3, 5)
    algorithm = MLPAveraging(hidden=(9,))
    broadcast = {"params": moved_start(algorithm, 5)}
    whole = algorithm.query(broadcast, data)["update"]
    for cells in (1, 1000):
        monkeypatch.setattr(rounds, "_CHUNK_PARAMS", cells)
        assert algorithm.query(broadcast, data)["update"].tobytes() == whole.tobytes()


def test_other_clients_change_nothing_even_if_extreme():
    data = federation([3, 1, 20, 0, 5], 10)
    algorithm = MLPAveraging()
    broadcast = {"params": moved_start(algorithm, 10)}
    before = algorithm.query(broadcast, data)
    data.rows[4:24, 1:], data.rows[4:24, 0] = -np.inf, 1e308
    data.rows[5, 3], data.rows[6:9] = -1e308, 1e4 * np.sign(data.rows[6:9] - 1)
    after = algorithm.query(broadcast, data)
    for i in (0, 1, 3, 4):
        assert before["update"][i].tobytes() == after["update"][i].tobytes()
    assert np.isfinite(after["update"]).all()


def test_steps_are_short_whatever_the_logits():
    data = federation([40, 3], 10, scale=1e4)
    data.labels[:] = (data.labels + 1) % 10  # as wrong as can be
    algorithm = MLPAveraging(learning_rate=0.1)
    update = algorithm.query({"params": moved_start(algorithm, 10)}, data)["update"]
    lengths = np.linalg.norm(update, axis=1)
    # Three passes of two steps and of one step, each of at most 10 times the rate.
    assert (lengths <= np.array([6.0, 3.0]) * (1 + 1e-12)).all()
    assert lengths[0] > 1.0


def test_rows_of_weight_zero_are_as_if_they_were_not_there():
    sizes, c = [0, 40, 1, 70, 33], 4
    weights = np.random.default_rng(0).integers(0, 2, sum(sizes)).astype(float)
    weights[40] = 0.0  # the third client has nothing left
    data = federation(sizes, c, weights=weights)
    algorithm = MLPAveraging(hidden=(6,))
    broadcast = {"params": moved_start(algorithm, c)}
    kept = data.keep_rows(weights > 0)
    unweighted = FederatedDataset(
        kept.rows[kept.order], kept.labels, kept.offsets, kept.names, c
    )
    for view, order in ((data, None), (data.select(np.array([3, 1])), [3, 1])):
        answer = algorithm.query(broadcast, view)
        plain = algorithm.query(broadcast, unweighted)
        for key, value in answer.items():
            expected = plain[key] if order is None else plain[key][order]
            np.testing.assert_array_equal(value, expected)
    assert algorithm.query(broadcast, data)["filled"].ravel().tolist() == [
        0, 1, 0, 1, 1,
    ]  # fmt: skip


def test_the_order_of_visits_is_a_permutation_that_size_and_epoch_decide():
    sizes, starts = np.array([9, 5, 9, 1]), np.array([0, 9, 14, 23])
    orders = [visiting_order(sizes, starts, epoch) for epoch in (0, 1, 1)]
    for order in orders:
        assert sorted(order[:9]) == list(range(9))
        assert sorted(order[9:14]) == list(range(9, 14))
        np.testing.assert_array_equal(order[14:23], order[:9] + 14)
    assert (orders[1] == orders[2]).all()
    assert (orders[0] != orders[1]).any()


def test_the_server_adds_the_mean_over_clients_with_rows():
    algorithm = MLPAveraging(hidden=(2,))
    state = algorithm.init(2)
    ones = np.ones_like(state.params)
    exact = algorithm.update(
        state, Sums({"update": 6 * ones, "filled": ones[:1] * 3}), 4
    )
    np.testing.assert_allclose(exact.params, state.params + 2.0)
    noisy = Sums({"update": 6 * ones}, {"update": 8.0})
    hidden = algorithm.update(algorithm.update(state, noisy, 4), noisy, 4)
    np.testing.assert_allclose(hidden.params, state.params + 3.0)
    assert (hidden.variance, hidden.rounds) == (8.0, 2)


def test_the_first_map_is_the_identity():
    state = MLPAveraging().init(10)
    shapes = rounds.layer_shapes(10, (64, 64))
    layers = rounds.split_layers(state.params, shapes)
    rows = np.random.default_rng(0).normal(size=(10, 50)) * 10
    factors, _ = positive_factors(rounds.predict(layers, rows))
    np.testing.assert_allclose(factors, 1.0, rtol=1e-15)
    assert [layer.shape for layer in layers] == [(11, 64), (65, 64), (65, 10)]
    # Table 5 of the paper: 43.08 kB to each client and back.
    assert round(state.params.nbytes / 1024, 2) == 43.08
    assert len(np.unique(layers[0])) == layers[0].size
    other = MLPAveraging(seed=1).init(10).params
    assert (other[:100] != state.params[:100]).all()


def test_noise_alone_is_no_improvement_and_a_long_move_is():
    rng = np.random.default_rng(0)
    start = np.zeros(5000)
    for _ in range(20):
        noise = 0.3 * rng.normal(size=5000)
        assert not MLPState(noise, start, 0.09).improves
        # A signal as long as the noise is not enough, one of twice the length is.
        length = 0.3 * np.sqrt(5000)
        for times, expected in ((0.9, False), (2.0, True)):
            moved = noise.copy()
            moved[7] += times * length
            assert MLPState(moved, start, 0.09).improves == expected
    assert not MLPState(start, start, 0.0).improves


def test_prediction_agrees_with_training_and_with_any_batch_to_the_last_bit():
    rng = np.random.default_rng(0)
    shapes = rounds.layer_shapes(5, (64, 7))
    layers = [rng.normal(size=shape) for shape in shapes]
    rows = rng.normal(size=(5, 70))
    out = rounds.predict(layers, rows)
    stacked = rounds.forward([layer[None] for layer in layers], rows.T[None])[-1][0]
    np.testing.assert_allclose(out, stacked.T, rtol=1e-10, atol=1e-10)
    for width in (1, 2, 9):
        parts = [
            rounds.predict(layers, rows[:, i : i + width]) for i in range(0, 70, width)
        ]
        assert np.concatenate(parts, axis=1).tobytes() == out.tobytes()
