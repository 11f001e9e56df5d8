"""Label-shift-aware residuals: what a client sends, what the server makes of it."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.bias_temperature.rounds import label_counts
from skfedcal.methods.shape.noisy_rounds import (
    RESIDUAL_CLIP,
    SHARES_BIAS,
    ShapePosterior,
    planned_stages,
)


def pack(clients, n_classes):
    sizes = [len(labels) for _, labels in clients]
    return FederatedDataset(
        np.concatenate([rows for rows, _ in clients]),
        np.concatenate([labels for _, labels in clients]).astype(np.int64),
        np.r_[0, np.cumsum(sizes)],
        range(len(clients)),
        n_classes,
    )


def skewed_client(frequencies, n, seed, bias=0.0):
    """Rows of a calibrated model (plus `bias`) at a client with these label counts."""
    rng = np.random.default_rng(seed)
    c = len(frequencies)
    rows = rng.normal(size=(40 * n, c)) * 1.5
    labels = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
    # Label shift: of each class as many rows as wanted, whatever their logits.
    quota = np.round(np.asarray(frequencies) * n).astype(int)
    pick = np.concatenate([np.flatnonzero(labels == j)[: quota[j]] for j in range(c)])
    return rows[pick] + bias, labels[pick]


def private(prior=(), clip=RESIDUAL_CLIP, n_rounds=5, signal=20.0):
    """Biases and a temperature; without a prior in plain residuals."""
    return ShapePosterior(signal, SHARES_BIAS, prior, n_rounds=n_rounds, clip=clip)


def ask(algorithm, clients, *, log_beta=0.0, bias=None, **values):
    state = algorithm.init(clients.n_classes)
    broadcast = {**algorithm.broadcast(state), **values}
    broadcast["log_beta"] = np.asarray(log_beta)
    if bias is not None:
        broadcast["bias"] = broadcast["slope_bias"] = np.asarray(bias, dtype=float)
    return algorithm.query(broadcast, clients)


def mean_residual(prior, client):
    algorithm = private(prior, clip=1.0)
    given = {"sum_bound": np.asarray(0.0), "prior": np.array(prior)}
    data = pack([client], len(client[0][0]))
    return ask(algorithm, data, **given)["residual"][0, :-1]


# ------------------------------------------------------------------ at the client


def test_a_message_worked_by_hand():
    rows = np.array([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
    labels = np.array([0, 2])
    prior = np.array([0.5, 0.3, 0.2])
    beta, bias = np.exp(-0.3), np.array([0.2, -0.1, -0.1])
    algorithm = private(tuple(prior))
    given = {"clip": np.asarray(0.3), "bound": np.asarray(1.5)}
    given["sum_bound"] = np.asarray(0.5)
    data = pack([(rows, labels)], 3)
    sent = ask(algorithm, data, log_beta=-0.3, bias=bias, **given)

    own = (np.array([1, 0, 1]) + 0.5 * 3 * prior) / (2 + 0.5 * 3)
    plain = softmax(beta * rows + bias, axis=1)
    adjusted = softmax(beta * rows + bias + np.log(own / prior), axis=1)
    divisor = 0.5 + RESIDUAL_CLIP * 2
    residual = (np.eye(3)[labels] - adjusted).sum(axis=0) / divisor
    gini = (1 - (adjusted**2).sum(axis=1)).sum() * RESIDUAL_CLIP / 0.45 / divisor
    np.testing.assert_allclose(sent["residual"][0], [*residual, gini], rtol=1e-12)

    mean = (plain * rows).sum(axis=1)
    slope = beta * (mean - rows[[0, 1], labels]).sum()
    bend = beta**2 * ((plain * rows**2).sum(axis=1) - mean**2).sum()
    expected = np.array([slope, bend * 0.3 / 1.5]) / (1.5 + 0.3 * 2)
    np.testing.assert_allclose(sent["slopes"][0], expected, rtol=1e-12)


def test_own_label_frequencies_take_the_skew_out_of_the_residual():
    # 4000 rows of a calibrated model at a client with mostly two classes. An adjusted
    # residual has mean 0 and a standard error below sqrt(1 / 4 / 4000) = 0.008 per
    # class; six of them bound it. The plain one shows the skew.
    client = skewed_client([0.7, 0.2, 0.05, 0.05], 4000, seed=0)
    uniform = (0.25,) * 4
    assert np.abs(mean_residual(uniform, client)).max() < 6 * 0.008
    assert np.abs(mean_residual((), client)).max() > 0.2


def test_the_fault_of_the_model_stays_in_the_residual():
    bias = np.array([1.0, -0.5, -0.5, 0.0])
    client = skewed_client([0.4, 0.3, 0.2, 0.1], 4000, seed=1, bias=bias)
    found = mean_residual((0.25,) * 4, client)
    # A class that the model favours has fewer labels than it says.
    assert found[0] < -6 * 0.008
    assert found[1] > 6 * 0.008
    assert found[2] > 6 * 0.008


def test_a_wrong_prior_looks_like_a_fault():
    client = skewed_client([0.25] * 4, 4000, seed=2)
    wrong = mean_residual((0.7, 0.1, 0.1, 0.1), client)
    assert np.abs(wrong).max() > 6 * 0.008


def test_residuals_add_up_to_zero_and_counts_are_those_of_numpy():
    rng = np.random.default_rng(0)
    clients = [
        (rng.normal(size=(n, 5)), rng.integers(0, 5, n)) for n in (0, 1, 7, 0, 30)
    ]
    data = pack(clients, 5)
    expected = [np.bincount(y, minlength=5) for _, y in clients]
    assert label_counts(data).tolist() == np.array(expected).tolist()
    assert label_counts(data.slice(1, 3)).tolist() == np.array(expected)[1:3].tolist()
    sent = ask(private((0.2,) * 5), data)
    np.testing.assert_allclose(sent["residual"][:, :-1].sum(axis=1), 0, atol=1e-12)
    assert not sent["residual"][[0, 3]].any()
    assert not sent["slopes"][[0, 3]].any()


def test_huge_and_infinite_logits_give_finite_messages():
    rows = np.array([[1e308, -1e308, 0.0], [0.0, -np.inf, -1e30], [0.0, 0.0, 0.0]])
    data = pack([(rows, np.array([1, 1, 2]))], 3)
    for prior in ((), (1 / 3,) * 3):
        for value in ask(private(prior), data).values():
            assert np.isfinite(value).all()


# ------------------------------------------------------------------ at the server


def run_exact(algorithm, data, n_rounds):
    """Rounds without noise, as if every client were under its bound."""
    state = algorithm.init(data.n_classes)
    for _ in range(n_rounds):
        sent = algorithm.query(algorithm.broadcast(state), data)
        total = {name: value.sum(axis=0) for name, value in sent.items()}
        state = algorithm.update(state, Sums(total), len(data))
    return state


def test_without_noise_the_bias_is_that_of_the_pooled_optimum():
    rng = np.random.default_rng(0)
    truth = np.array([0.8, -0.3, -0.5])
    clients = []
    for _ in range(40):
        rows = rng.normal(size=(100, 3)) * 2
        labels = (rows + truth + rng.gumbel(size=rows.shape)).argmax(axis=1)
        clients.append((rows, labels))
    data = pack(clients, 3)
    # Clients without label skew: frequencies of the population are their own.
    prior = np.bincount(data.labels) / len(data.labels)
    algorithm = private(tuple(prior), clip=1.0, n_rounds=40, signal=1e3)
    state = run_exact(algorithm, data, 40)

    def loss(theta):
        scores = np.exp(theta[0]) * data.rows + theta[1:]
        picked = log_softmax(scores, axis=1)[np.arange(len(data.labels)), data.labels]
        return -picked.mean() + 1e-9 * (theta[1:] ** 2).sum()

    best = minimize(loss, np.zeros(4), tol=1e-12).x
    bias = state.bias
    np.testing.assert_allclose(bias, best[1:] - best[1:].mean(), atol=0.05)
    assert state.best == pytest.approx(best[0], abs=0.05)
    assert state.improves and state.bias_gain > 0.02


def noisy_state(signal, seed, noise=2.0, n_clients=100):
    """State after releases of a model with this residual, at curvature 0.02."""
    rng = np.random.default_rng(seed)
    algorithm = private((0.1,) * 10)
    state = algorithm.init(10)
    for _ in range(algorithm.n_rounds):
        residual = n_clients * (signal - 0.02 * state.bias) / RESIDUAL_CLIP
        gini = n_clients * 0.18 / 0.45
        release = np.r_[residual, gini] + noise * rng.normal(size=11)
        slope = 0.4 * state.log_beta / state.clip
        slopes = n_clients * np.array([slope, 0.4 / 1.5]) + noise * rng.normal(size=2)
        total = {"residual": release, "slopes": slopes}
        state = algorithm.update(
            state, Sums(total, {"residual": noise, "slopes": noise}), n_clients
        )
    return state


def test_noise_alone_makes_a_short_bias_and_a_signal_is_found():
    signal = 0.012 * np.r_[np.ones(5), -np.ones(5)]  # biases of 0.6
    quiet = [noisy_state(np.zeros(10), seed) for seed in range(40)]
    loud = [noisy_state(signal, seed) for seed in range(40)]
    # An estimate has the variance 1 / precision; what is kept of noise is a part.
    kept = [np.sqrt(np.mean(s.bias**2) * s.bias_precision) for s in quiet]
    assert np.mean(kept) < 0.25
    found = np.mean([s.bias for s in loud], axis=0)
    np.testing.assert_allclose(found, 0.6 * np.sign(signal), atol=0.15)
    gains = [np.mean([s.bias_gain for s in group]) for group in (quiet, loud)]
    assert min(s.bias_gain for s in quiet + loud) >= 0
    assert 10 * gains[0] < gains[1]


# -------------------------------------------------------------- bounds and budget


@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_every_round_has_two_blocks_under_a_bound(n_classes):
    algorithm = private((1 / n_classes,) * n_classes)
    parts = []
    for log_beta in (0.0, -0.2, -1.0, 5.0):
        broadcast = dict(algorithm.broadcast(algorithm.init(n_classes)))
        broadcast["log_beta"] = np.asarray(log_beta)
        spec = algorithm.spec(broadcast)
        assert spec["residual"].shape == (n_classes + 1,)
        assert [block.sensitivity for block in spec.values()] == [1.0, 1.0]
        root = {k: np.sqrt(block.size * block.weight) for k, block in spec.items()}
        parts.append(root["slopes"] / root["residual"])
        total = sum(block.size for block in spec.values())
        assert total == algorithm.n_values(n_classes)
    # More goes to the temperature the farther it is from 1, up to a limit.
    assert np.array(parts) == pytest.approx(0.15 / 0.85 * np.array([1, 1, 4, 8]))
    assert algorithm.shares == ()


def test_unknown_frequencies_take_one_more_round_of_the_same_budget():
    algorithm = planned_stages(20.0, SHARES_BIAS)
    assert algorithm.stages == (5, 1, 0) and algorithm.n_rounds == 6
    assert algorithm.shares == ()
    state = algorithm.init(4)
    assert algorithm.broadcast(state)["prior"].tolist() == [0.25] * 4
    # Too few rounds for it: residuals are plain, and nothing is assumed.
    few = private(n_rounds=1)
    assert few.stages == (1, 0, 0)
    assert not few.broadcast(few.init(4))["prior"].size


def test_a_new_state_promises_nothing():
    state = private().init(3)
    assert not state.improves
    assert not state.converged


def test_a_bias_of_any_release_is_bounded():
    algorithm = private((0.1,) * 10)
    total = {"residual": np.r_[1e9, np.zeros(9), 0.0], "slopes": np.array([0.0, 40.0])}
    state = algorithm.update(algorithm.init(10), Sums(total), 100)
    assert np.abs(state.bias).max() <= 60


@pytest.mark.parametrize("clip", [0.0, -1.0, np.nan, 1e9])
def test_a_site_refuses_a_clip_out_of_range(clip):
    with pytest.raises(ValueError, match="must be between"):
        private(clip=clip).forms(3)
