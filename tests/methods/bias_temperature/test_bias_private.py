"""Label-shift-aware residuals: what a client sends, what the server makes of it."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec, Sums
from skfedcal.methods.bias_temperature.rounds import (
    RESIDUAL_CLIP,
    BiasPosteriorState,
    BiasTemperaturePosterior,
    label_counts,
    shrinkage_factor,
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


def ask(algorithm, clients, *, log_beta=0.0, bias=None):
    state = algorithm.init(clients.n_classes)
    broadcast = dict(algorithm.broadcast(state))
    broadcast["log_beta"] = np.asarray(log_beta)
    if bias is not None:
        broadcast["bias"] = np.asarray(bias, dtype=float)
    return algorithm.query(broadcast, clients)


def mean_residual(prior, client):
    algorithm = BiasTemperaturePosterior(prior=prior, clip=1.0)
    return ask(algorithm, pack([client], len(client[0][0])))["residual"][0, :-1]


# ------------------------------------------------------------------ at the client


def test_a_message_worked_by_hand():
    rows = np.array([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
    labels = np.array([0, 2])
    prior = np.array([0.5, 0.3, 0.2])
    beta, bias = np.exp(-0.3), np.array([0.2, -0.1, -0.1])
    algorithm = BiasTemperaturePosterior(prior=tuple(prior))
    sent = ask(algorithm, pack([(rows, labels)], 3), log_beta=-0.3, bias=bias)

    own = (np.array([1, 0, 1]) + 0.5 * 3 * prior) / (2 + 0.5 * 3)
    plain = softmax(beta * rows + bias, axis=1)
    adjusted = softmax(beta * rows + bias + np.log(own / prior), axis=1)
    residual = (np.eye(3)[labels] - adjusted).sum(axis=0) / 10 / RESIDUAL_CLIP
    gini = (1 - (adjusted**2).sum(axis=1)).sum() / 10 / 0.45
    np.testing.assert_allclose(sent["residual"][0], [*residual, gini], rtol=1e-12)

    mean = (plain * rows).sum(axis=1)
    slope = beta * (mean - rows[[0, 1], labels]).sum() / 25
    spread = beta**2 * ((plain * rows**2).sum(axis=1) - mean**2).sum() / 25
    np.testing.assert_allclose(
        sent["slopes"][0], [slope / 0.5, spread + slope], rtol=1e-12
    )


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
    sent = ask(BiasTemperaturePosterior(prior=(0.2,) * 5), data)
    np.testing.assert_allclose(sent["residual"][:, :-1].sum(axis=1), 0, atol=1e-12)
    assert not sent["residual"][[0, 3]].any()
    assert not sent["slopes"][[0, 3]].any()


def test_huge_and_infinite_logits_give_finite_messages():
    rows = np.array([[1e308, -1e308, 0.0], [0.0, -np.inf, -1e30], [0.0, 0.0, 0.0]])
    data = pack([(rows, np.array([1, 1, 2]))], 3)
    for prior in ((), (1 / 3,) * 3):
        for value in ask(BiasTemperaturePosterior(prior=prior), data).values():
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
    state = run_exact(BiasTemperaturePosterior(n_rounds=40), data, 40)

    def loss(theta):
        scores = np.exp(theta[0]) * data.rows + theta[1:]
        picked = log_softmax(scores, axis=1)[np.arange(len(data.labels)), data.labels]
        return -picked.mean() + 1e-9 * (theta[1:] ** 2).sum()

    best = minimize(loss, np.zeros(4), tol=1e-12).x
    raw = state.weighted / state.precision
    # The shrinkage is to leave alone what chance in the labels cannot explain.
    assert 0.9 < state.shrinkage < 1
    np.testing.assert_allclose(raw - raw.mean(), best[1:] - best[1:].mean(), atol=0.05)
    assert state.log_beta == pytest.approx(best[0], abs=0.05)
    assert state.improves
    assert state.bias_improves


@pytest.mark.parametrize("n_free", [1, 9, 99])
@pytest.mark.parametrize("variance", [1e-3, 0.1, 10.0])
def test_shrinkage_is_the_posterior_mean_of_a_log_uniform_spread(n_free, variance):
    for length in (0.0, 0.5 * n_free * variance, 3 * n_free * (variance + 0.1)):

        def weight(u, power, length=length):
            total = np.exp(2 * u) + variance
            base = -n_free / 2 * np.log(total / variance) - length / 2 / total
            peak = -length / 2 / (length / n_free + variance + 1)
            return np.exp(base - peak) * (np.exp(2 * u) / total) ** power

        low, high = np.log(0.1), 0.0
        expected = (
            quad(weight, low, high, args=(1,), epsabs=0)[0]
            / quad(weight, low, high, args=(0,), epsabs=0)[0]
        )
        assert shrinkage_factor(length, n_free, variance) == pytest.approx(
            expected, rel=0.05, abs=1e-4
        )


def test_longer_estimates_are_shrunk_less():
    factors = [shrinkage_factor(length, 9, 0.1) for length in (0.0, 0.5, 1, 3, 10, 100)]
    assert factors == sorted(factors)
    assert 0 < factors[0] < 0.25
    assert 0.85 < factors[-1] < 1


def noisy_state(signal, seed, noise=2.0, n_clients=100):
    """State after releases of a model with this residual, at curvature 0.02."""
    rng = np.random.default_rng(seed)
    algorithm = BiasTemperaturePosterior(prior=(0.1,) * 10)
    state = algorithm.init(10)
    for _ in range(algorithm.n_rounds):
        residual = n_clients * (signal - 0.02 * state.bias) / RESIDUAL_CLIP
        gini = n_clients * 0.18 / 0.45
        release = np.r_[residual, gini] + noise * rng.normal(size=11)
        slope = 0.4 * state.log_beta / state.clip
        slopes = n_clients * np.array([slope, 0.4]) + noise * rng.normal(size=2)
        total = {"residual": release, "slopes": slopes}
        state = algorithm.update(
            state, Sums(total, {"residual": noise, "slopes": noise}), n_clients
        )
    return state


def test_noise_alone_makes_a_short_bias_and_is_told_from_a_signal():
    signal = 0.012 * np.r_[np.ones(5), -np.ones(5)]  # biases of 0.6
    quiet = [noisy_state(np.zeros(10), seed) for seed in range(40)]
    loud = [noisy_state(signal, seed) for seed in range(40)]
    # Shrinkage keeps a quarter of the variance of noise at most.
    scatter = [np.sqrt(np.mean(s.bias**2) / s.scatter) for s in quiet]
    assert np.mean(scatter) < 0.5
    assert all(s.bias_improves for s in loud)
    found = np.mean([s.bias for s in loud], axis=0)
    np.testing.assert_allclose(found, 0.6 * np.sign(signal), atol=0.15)
    # Noise alone is beyond 1.2 deviations in 23 % of fits (28 of 40: 1e-10), and its
    # squared length beyond three in 1 % (7 of 40: 1e-7).
    assert sum(s.improves for s in quiet) < 28
    assert sum(s.bias_improves for s in quiet) < 7


# -------------------------------------------------------------- bounds and budget


@pytest.mark.parametrize("n_classes", [2, 10, 100])
def test_every_round_has_two_blocks_under_a_bound(n_classes):
    algorithm = BiasTemperaturePosterior(prior=(1 / n_classes,) * n_classes)
    weights = []
    for log_beta in (0.0, -0.2, -1.0, 5.0):
        broadcast = dict(algorithm.broadcast(algorithm.init(n_classes)))
        broadcast["log_beta"] = np.asarray(log_beta)
        spec = algorithm.spec(broadcast)
        assert spec["residual"].shape == (n_classes + 1,)
        assert [block.sensitivity for block in spec.values()] == [1.0, 1.0]
        weights.append(spec["slopes"].weight)
        total = sum(block.size for block in spec.values())
        assert total == algorithm.n_values(n_classes)
    # More goes to the temperature the farther it is from 1, up to a limit.
    assert weights == [1.0, 1.0, 16.0, 64.0]
    assert algorithm.shares == ()


def test_label_frequencies_are_bought_with_a_fifth_of_the_budget():
    algorithm = BiasTemperaturePosterior(private_prior=True, n_rounds=6)
    assert sum(algorithm.shares) == pytest.approx(1.0)
    assert algorithm.shares[0] == pytest.approx(0.2)
    assert len(algorithm.shares) == 6
    state = algorithm.init(4)
    assert algorithm.spec(algorithm.broadcast(state)) == {
        "labels": BlockSpec((4,), clip=1.0)
    }
    clients = [(np.zeros((20, 4)), np.repeat([0, 1], 10)), (np.zeros((5, 4)), [3] * 5)]
    sent = algorithm.query(algorithm.broadcast(state), pack(clients, 4))
    # The second client has too few rows to count fully.
    assert sent["labels"].tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0, 0.5]]
    truth = np.array([0.4, 0.3, 0.2, 0.1])
    state = algorithm.update(state, Sums({"labels": 50 * truth}), 50)
    np.testing.assert_allclose(state.prior, truth, rtol=1e-6)
    assert state.doubt == 0
    assert list(algorithm.spec(algorithm.broadcast(state))) == ["residual", "slopes"]
    assert state.rounds == 0
    assert not algorithm.done(state)


def test_a_noisy_prior_is_positive_adds_up_and_leans_to_equal_parts():
    algorithm = BiasTemperaturePosterior(private_prior=True, n_rounds=6)
    rng = np.random.default_rng(0)
    for noise in (0.1, 5.0, 500.0):
        release = 100 * np.array([0.97, 0.01, 0.01, 0.01]) + noise * rng.normal(size=4)
        state = algorithm.update(
            algorithm.init(4), Sums({"labels": release}, {"labels": noise}), 100
        )
        assert (state.prior > 0).all()
        assert state.prior.sum() == pytest.approx(1.0)
        assert state.doubt > 0
    assert np.abs(state.prior - 0.25).max() < 0.2


def test_a_new_state_promises_nothing():
    state = BiasTemperaturePosterior().init(3)
    assert isinstance(state, BiasPosteriorState)
    assert not state.improves
    assert not state.converged


def test_biases_no_longer_than_noise_are_told():
    quiet = noisy_state(np.zeros(10), 0, noise=0.5)
    loud = noisy_state(0.012 * np.r_[np.ones(5), -np.ones(5)], 0)
    assert quiet.length < 4.5 * quiet.variance
    assert quiet.bias_is_noise
    assert not loud.bias_is_noise
    assert loud.variance < loud.scatter


def test_a_bias_of_any_release_is_bounded():
    algorithm = BiasTemperaturePosterior(prior=(0.1,) * 10)
    total = {"residual": np.r_[1e9, np.zeros(9), 0.0], "slopes": np.array([0.0, 40.0])}
    state = algorithm.update(algorithm.init(10), Sums(total), 100)
    assert np.abs(state.bias).max() <= 60
