"""Private temperature: the model by hand, then what it promises to users."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from scipy.special import log_softmax

from skfedcal import (
    CentralDP,
    DistributedDP,
    FedBiasTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    make_federation,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.temperature import posterior
from skfedcal.methods.temperature.posterior import TemperaturePosterior

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore:The noise is too large"),
]


def mean_loss(logits, labels):
    return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean()


def equal_clients(fed, n_rows, n_clients):
    """Clients of so many rows each."""
    stop = n_rows * n_clients
    return fed.logits[:stop], fed.labels[:stop], np.arange(stop) // n_rows


def asked(x=0.0, clip=0.5, bound=4.0):
    return {
        "log_beta": np.asarray(x),
        "clip": np.asarray(clip),
        "bound": np.asarray(bound),
    }


def test_tails_of_a_normal_number_are_those_of_scipy():
    x = np.linspace(-9, 9, 1001)
    tail, density = posterior._normal_tail(x, np.empty((3, len(x))))
    np.testing.assert_allclose(tail, stats.norm.sf(x), atol=1e-7)
    np.testing.assert_allclose(density, stats.norm.pdf(x))


@pytest.mark.parametrize("mean", [-3.0, -0.4, 0.0, 0.9, 5.0])
@pytest.mark.parametrize("sd", [0.05, 0.7, 4.0])
def test_the_mean_of_a_clipped_normal_number_is_its_integral(mean, sd):
    given = np.array([mean]), np.array([sd]), np.empty((8, 1))
    found, inside = posterior._clipped_mean(*given)
    law = stats.norm(mean, sd)
    middle, _ = quad(lambda u: u * law.pdf(u), -1, 1, points=[np.clip(mean, -1, 1)])
    assert found[0] == pytest.approx(middle + law.sf(1) - law.cdf(-1), abs=1e-6)
    assert inside[0] == pytest.approx(law.cdf(1) - law.cdf(-1), abs=1e-6)


def test_a_release_by_hand_in_one_cell():
    curvatures, bends, sizes, grid = posterior._AXES
    j, k, m, i = 3, 1, 2, 50
    optimum, h, a, n = grid[i], curvatures[j], bends[k], sizes[m]
    x, c, bound, s, n_clients = -0.2, 0.1, 5.0, 0.04, 30
    release = np.array([0.2, 0.01])
    d, q = x - optimum, n / (bound + c * n)
    slope = q * h * (np.exp(a * d) - 1) / a
    curvature = min(q * h * np.exp(a * d) * c / 1.5, 1.0)
    law = stats.norm(slope, q * np.sqrt(0.1**2 + h / n))
    inside = law.cdf(1) - law.cdf(-1)
    mean = quad(lambda u: u * law.pdf(u), -1, 1)[0] + law.sf(1) - law.cdf(-1)
    variance = s**2 + h * q**2 / (n * n_clients)
    variance += (h * q * inside) ** 2 * (0.01**2 + (0.1 * d) ** 2 + (0.25 * d**2) ** 2)
    variance += (0.4 * (np.clip(slope, -1, 1) - mean)) ** 2
    expected = stats.norm.logpdf(release[0], mean, np.sqrt(variance))
    spread = np.sqrt(s**2 + (0.15 * curvature) ** 2)
    expected += stats.norm.logpdf(release[1], curvature, spread)
    before = posterior.start()
    after = posterior.add_release(
        before, release, point=x, clip=c, bound=bound, noise=s, n_clients=n_clients
    )
    gained = (after - before)[j, k, m, i]
    assert gained == pytest.approx(expected + np.log(2 * np.pi), abs=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_the_action_has_the_least_expected_loss_and_never_a_negative_gain(seed):
    rng = np.random.default_rng(seed)
    log_like = posterior.start()
    for _ in range(int(rng.integers(0, 4))):
        log_like = posterior.add_release(
            log_like,
            rng.normal(size=2) * rng.choice([0.01, 0.2, 3.0]),
            point=rng.uniform(-1, 0.5),
            clip=rng.uniform(0.03, 0.5),
            bound=rng.uniform(0, 8),
            noise=rng.choice([1e-4, 0.03, 1.0]),
            n_clients=int(rng.integers(1, 1000)),
        )
    found = posterior.best_action(posterior.marginal(log_like), 0.8)
    assert found.gain >= 0 and np.isfinite(found.sd)
    # By sums over all cells, on a grid of actions.
    prior = posterior._final_prior(0.8)
    cells = np.exp(log_like - log_like.max()) * prior
    optimum, h, a = posterior._OPTIMUM, posterior._H, posterior._A
    actions = np.linspace(-2.6, 1.0, 181)
    expected = []
    for action in actions:
        away = action - optimum
        losses = h * ((np.exp(a * away) - 1) / a - away) / a
        expected.append((losses * cells).sum() / cells.sum())
    at_one = np.interp(0.0, actions, expected)
    assert at_one - min(expected) == pytest.approx(found.gain, abs=2e-4)


def test_a_likelihood_is_not_changed_by_later_releases_or_by_other_threads():
    given = {"clip": 0.1, "bound": 4.0, "noise": 0.05, "n_clients": 20}

    def likelihood(i):
        release = np.array([0.1 * i, 0.02])
        return posterior.add_release(posterior.start(), release, point=-0.1, **given)

    alone = [likelihood(i).copy() for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(likelihood, [*range(8)] * 5))
    assert all(np.array_equal(alone[i % 8], x) for i, x in enumerate(together))


def test_the_weight_of_the_spike_and_the_clips_follow_public_rules():
    weights = [posterior.spike_weight(signal) for signal in (1.4, 1.5, 3.9, 4.0, 1e9)]
    assert weights == [0.9, 0.85, 0.85, 0.8, 0.8]
    assert posterior.sum_bound(0.03) == 4.0
    assert posterior.sum_bound(100.0) == 2.0 and posterior.sum_bound(1e-9) == 8.0
    assert posterior.mean_clip(0.1, 0.5) == pytest.approx(0.10)
    assert posterior.mean_clip(0.0, 0.5) == 0.5
    assert posterior.mean_clip(5.0, 0.0) == pytest.approx(0.04)
    algorithm = TemperaturePosterior(clip=0.3)
    state = algorithm.init(3)
    assert (state.clip, state.bound) == (0.3, 0.0)


def test_what_a_client_sends_by_hand():
    # One row with gap 2 at beta = 1, label on the lower side; an empty client.
    rows, labels = np.array([[2.0, 0.0]]), np.array([1])
    data = FederatedDataset(rows, labels, np.array([0, 1, 1]), [0, 1], 2)
    p = 1 / (1 + np.exp(2.0))
    slope, curvature = 2 - 2 * p, 4 * p * (1 - p)
    for clip, bound in ((0.5, 4.0), (0.1, 0.0)):
        sent = TemperaturePosterior().query(asked(0.0, clip, bound), data)["slopes"]
        expected = np.array([slope, curvature * clip / 1.5]) / (bound + clip)
        np.testing.assert_allclose(sent, [expected, [0.0, 0.0]])


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.8, 5.0])
@pytest.mark.parametrize("n_rows", [1, 20])
def test_the_optimum_is_found_without_noise(draw, optimum, temperature, n_rows):
    rows, labels = draw(4000, 5, temperature)
    offsets = np.arange(0, len(rows) + 1, n_rows)
    data = FederatedDataset(rows, labels, offsets, range(len(offsets) - 1), 5)
    algorithm = TemperaturePosterior(signal=1000.0)
    state = algorithm.init(5)
    while not algorithm.done(state):
        sent = algorithm.query(algorithm.broadcast(state), data)["slopes"]
        sent /= np.maximum(np.linalg.norm(sent, axis=1, keepdims=True), 1.0)
        total = Sums({"slopes": sent.sum(axis=0)}, {"slopes": 1e-3 * len(data)})
        state = algorithm.update(state, total, len(data))
    # Half a step of the grid, the sampling of labels in the model, and the spike.
    assert np.log(state.temperature) == pytest.approx(
        np.log(optimum(rows, labels)), abs=0.04
    )
    assert state.converged


def test_ten_copies_of_every_row_move_the_result_by_less_than_its_deviation():
    fed = make_federation(30, n_samples=3000, temperature=1.8, random_state=0)
    moves = []
    for seed in range(5):
        found = []
        for n_copies in (1, 10):
            cal = FedTempCalibrator(1.0, random_state=seed)
            cal.fit([(np.tile(z, (n_copies, 1)), np.tile(y, n_copies))
                     for z, y in fed.clients])  # fmt: skip
            found.append(np.log(cal.temperature_))
        moves.append(found[1] - found[0])
    # At K mu = 8 the posterior is wider than 0.1.
    assert np.abs(moves).max() < 0.1


@pytest.mark.parametrize("privacy", [
    CentralDP(0.2), DistributedDP(0.2), CentralDP(0.0002, unit="example"),
])  # fmt: skip
def test_too_few_clients_are_not_asked_and_nothing_is_spent(privacy, monkeypatch):
    fed = make_federation(5, n_samples=500, n_test=0, random_state=0)
    ledger = PrivacyLedger(budget=(1.0, 1e-5))
    monkeypatch.setattr(TemperaturePosterior, "query", None)
    cal = FedTempCalibrator(privacy=privacy, ledger=ledger)
    with pytest.warns(CalibrationWarning, match="No client was asked and no privacy"):
        cal.fit(fed.clients)
    assert len(ledger) == 0 and len(cal.history_) == cal.n_rounds_ == 0
    assert (cal.temperature_, cal.expected_gain_) == (1.0, 0.0)
    assert not cal.improves_ and not cal.converged_
    assert cal.privacy_.eps == 0 and cal.privacy_.private
    np.testing.assert_allclose(
        cal.predict_proba(fed.logits),
        np.exp(log_softmax(fed.logits, axis=1)),
        atol=1e-6,
    )


def test_the_number_of_clients_in_a_cohort_decides_whether_to_ask():
    fed = make_federation(40, n_samples=800, n_test=0, random_state=0)
    few = FederatedRunner(cohort="independent", cohort_size=2)
    cal = FedTempCalibrator(1.0, runner=few, random_state=0)
    with pytest.warns(CalibrationWarning, match="No client was asked"):
        cal.fit(fed.clients)
    # A pass over all clients in cohorts of eight says as much as one round.
    many = FederatedRunner(cohort="permuted", cohort_size=8)
    cal = FedTempCalibrator(1.0, runner=many, random_state=0).fit(fed.clients)
    assert cal.n_rounds_ == 5


def test_one_round_with_a_small_cohort_is_a_fit():
    fed = make_federation(
        100, n_samples=5000, temperature=2.5, noise=0.0, n_test=0, random_state=0
    )
    one = FederatedRunner(n_rounds=1, cohort="independent", cohort_size=10)
    cal = FedTempCalibrator(runner=one, random_state=0).fit(fed.clients)
    assert cal.n_rounds_ == 1 and cal.converged_
    # 500 rows: the deviation of log T is about 0.06.
    assert abs(np.log(cal.temperature_ / 2.5)) < 0.35
    whole = FederatedRunner(n_rounds=1)
    cal = FedTempCalibrator(3.0, runner=whole, random_state=0).fit(fed.clients)
    assert cal.n_rounds_ == 1 and abs(np.log(cal.temperature_ / 2.5)) < 0.35


def test_the_acceptance_parameter_has_no_effect():
    fed = make_federation(20, n_samples=1000, n_test=0, random_state=0)
    found = [
        FedTempCalibrator(0.5, if_improves=flag, random_state=1)
        .fit(fed.clients)
        .predict_proba(fed.logits)
        for flag in (True, False)
    ]
    np.testing.assert_array_equal(*found)


def test_the_expected_gain_is_saved_and_absent_without_eps(tmp_path):
    from skfedcal import load

    fed = make_federation(50, n_samples=1000, n_test=0, random_state=0)
    cal = FedTempCalibrator(1.0, random_state=0).fit(fed.clients)
    assert cal.expected_gain_ > 0 and cal.improves_
    cal.save(tmp_path / "cal.json")
    assert load(tmp_path / "cal.json").expected_gain_ == cal.expected_gain_
    assert np.isnan(FedTempCalibrator().fit(fed.clients).expected_gain_)


@pytest.mark.parametrize(
    "n_rows", [1, 2, 5, 25, pytest.param(100, marks=pytest.mark.slow)]
)
def test_any_number_of_rows_has_the_gain_of_the_exact_temperature(n_rows):
    n_samples = 1000 * n_rows
    fed = make_federation(
        10, n_samples=n_samples, temperature=2.0, n_classes=5, random_state=0
    )
    logits, labels, ids = equal_clients(fed, n_rows, 1000)
    exact = FedTempCalibrator().fit(fed.test_logits, fed.test_labels)
    before = mean_loss(fed.test_logits, fed.test_labels)
    best = before - mean_loss(fed.test_logits / exact.temperature_, fed.test_labels)
    gains = []
    for seed in range(4):
        cal = FedTempCalibrator(1.0, random_state=seed)
        cal.fit(logits, labels, client_ids=ids)
        after = mean_loss(fed.test_logits / cal.temperature_, fed.test_labels)
        gains.append(before - after)
    assert np.mean(gains) > 0.95 * best


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_few_rows_per_client_do_not_bias_the_temperature(n_rows):
    # 12,000 rows: the mean of eight fits is within 5 % of the exact temperature.
    fed = make_federation(
        10, n_samples=12_000, temperature=2.6, n_classes=2, random_state=0
    )
    logits, labels, ids = equal_clients(fed, n_rows, 12_000 // n_rows)
    exact = FedTempCalibrator().fit(logits, labels).temperature_
    found = [
        FedTempCalibrator(1.0, random_state=seed).fit(logits, labels, client_ids=ids)
        for seed in range(8)
    ]
    mean = np.mean([cal.temperature_ for cal in found])
    assert mean == pytest.approx(exact, rel=0.05)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize(
    ("estimator", "n_clients", "eps"),
    [
        (FedTempCalibrator, 4, 1.0),
        (FedTempCalibrator, 10, 0.5),
        (FedTempCalibrator, 20, 0.5),
        (FedTempCalibrator, 20, 1.0),
        (FedBiasTempCalibrator, 20, 0.5),
        (FedBiasTempCalibrator, 20, 3.0),
    ],
)
def test_a_calibrated_model_is_harmed_little(estimator, n_clients, eps):
    """Labels drawn from the model, 50 fits: mean below 0.2 %, 95th percentile 1 %."""
    fed = make_federation(
        n_clients, n_samples=4000, temperature=1.0, alpha=0.1, random_state=0
    )
    rng = np.random.default_rng(0)
    proba = np.exp(log_softmax(fed.logits, axis=1)).cumsum(axis=1)
    test = log_softmax(fed.test_logits, axis=1)
    # The expected loss given the rows, which has no chance in the labels.
    before = -(np.exp(test) * test).sum(axis=1).mean()
    harm = []
    for seed in range(50):
        labels = (rng.random((len(proba), 1)) > proba[:, :-1]).sum(axis=1)
        cal = estimator(eps, classes=range(10), random_state=seed)
        cal.fit(fed.logits, labels, client_ids=fed.client_ids)
        after = cal.predict_log_proba(fed.test_logits)
        harm.append(-100 * ((np.exp(test) * after).sum(axis=1).mean() / before + 1))
    assert np.mean(harm) < 0.2 and np.quantile(harm, 0.95) < 1.0


@pytest.mark.parametrize(("n_clients", "eps"), [(20, 0.5), (20, 3.0), (100, 1.0)])
def test_rounded_probabilities_are_improved(n_clients, eps):
    fed = make_federation(n_clients, n_samples=5000, temperature=2.5, random_state=0)
    rounded = [
        np.round(np.exp(log_softmax(z, axis=1)), 2)
        for z in (fed.logits, fed.test_logits)
    ]
    for proba in rounded:
        top = np.arange(len(proba)), proba.argmax(axis=1)
        proba[top] += 1 - proba.sum(axis=1)
    assert (rounded[0] == 0).mean() > 0.3
    cal = FedTempCalibrator(eps, input_type="proba", random_state=0)
    cal.fit(rounded[0], fed.labels, client_ids=fed.client_ids)
    before = np.log(np.where(rounded[1] == 0, np.exp(-12), rounded[1]))
    after = cal.predict_log_proba(rounded[1])
    assert mean_loss(after, fed.test_labels) < mean_loss(before, fed.test_labels)
    right = (rounded[1].argmax(axis=1) == fed.test_labels).mean()
    assert cal.score(rounded[1], fed.test_labels) > right - 0.01


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("data", ["digits", "breast_cancer"])
def test_zeros_of_nearest_neighbours_do_no_harm(data):
    from sklearn import datasets
    from sklearn.model_selection import train_test_split
    from sklearn.neighbors import KNeighborsClassifier

    X, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    found = {name: [] for name in ("exact", "private", "bias", "private bias")}
    for seed in range(4):
        half = train_test_split(X, y, test_size=0.5, random_state=seed, stratify=y)
        model = KNeighborsClassifier(15).fit(half[0], half[2])
        proba, truth = np.round(model.predict_proba(half[1]), 2), half[3]
        proba[np.arange(len(proba)), proba.argmax(axis=1)] += 1 - proba.sum(axis=1)
        one_hot = np.eye(proba.shape[1])[truth]
        brier = ((proba - one_hot) ** 2).sum(axis=1).mean()
        before = mean_loss(np.log(np.where(proba == 0, np.exp(-12), proba)), truth)
        ids = np.arange(len(truth)) % 30
        makers = {
            "exact": FedTempCalibrator(input_type="proba"),
            "private": FedTempCalibrator(1.0, input_type="proba", random_state=seed),
            "bias": FedBiasTempCalibrator(input_type="proba"),
            "private bias": FedBiasTempCalibrator(
                1.0, input_type="proba", random_state=seed
            ),
        }
        for name, cal in makers.items():
            out = cal.fit(proba, truth, client_ids=ids).predict_proba(proba)
            right = out.argmax(axis=1) == truth
            change = right.mean() - (proba.argmax(axis=1) == truth).mean()
            after = ((out - one_hot) ** 2).sum(axis=1).mean()
            loss = mean_loss(np.log(out), truth) - before
            found[name].append((change, after / brier - 1, loss))
    for name, values in found.items():
        change, worse, loss = np.mean(values, axis=0)
        assert change > -0.01 and loss < 0.01, name
        # Where few rows are certain and wrong, the temperature of least log loss is
        # not that of least Brier score; fits under eps move less.
        assert worse < (0.01 if "private" in name or data == "digits" else 0.08), name
