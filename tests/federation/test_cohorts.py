"""Who takes part, and what the accountant may make of it."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from skfedcal import FedBinCalibrator, FederatedRunner, FedTempCalibrator
from skfedcal.exceptions import PrivacyWarning
from skfedcal.federation.runner import Schedule
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.privacy import CentralDP
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy

ALPHA = 1e-7

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]


def make_clients(n_clients=20, n_rows=10, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    clients = []
    for _ in range(n_clients):
        logits = rng.normal(size=(n_rows, n_classes)) * 2
        labels = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
        clients.append((logits, labels))
    return clients


CLIENTS = make_clients()


def all_cohorts(schedule, entropy=None, key=12345):
    entropy = SeededEntropy(0) if entropy is None else entropy
    return [schedule.cohorts(i, entropy, key) for i in range(schedule.n_rounds)]


# ----------------------------------------------------------------------- schedules


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_full_asks_everyone_once_in_every_round(size):
    schedule = Schedule("full", 20, size, 3)
    for cohorts in all_cohorts(schedule):
        assert len(cohorts) == math.ceil(20 / size)
        assert max(map(len, cohorts)) <= size
        assert np.concatenate(cohorts).tolist() == list(range(20))
    assert schedule.n_participations == 3
    assert schedule.sampling_rate == 1.0
    assert schedule.divisor == 20


@pytest.mark.parametrize("n_clients", [1, 7, 20])
@pytest.mark.parametrize("size", [1, 3, 7])
@pytest.mark.parametrize("n_rounds", [1, 2, 5, 13])
def test_permuted_clients_take_part_as_often_as_paid(n_clients, size, n_rounds):
    size = min(size, n_clients)
    schedule = Schedule("permuted", n_clients, size, n_rounds)
    rounds = [cohort for (cohort,) in all_cohorts(schedule)]
    per_pass = math.ceil(n_clients / size)
    for start in range(0, n_rounds, per_pass):
        one_pass = np.concatenate(rounds[start : start + per_pass])
        assert len(np.unique(one_pass)) == len(one_pass)
        if start + per_pass <= n_rounds:
            assert sorted(one_pass) == list(range(n_clients))
    times = Counter(np.concatenate(rounds).tolist())
    assert max(times.values()) <= schedule.n_participations
    assert schedule.n_participations == math.ceil(n_rounds / per_pass)
    assert schedule.divisor is None
    assert schedule.sampling_rate == 1.0
    assert all((np.diff(cohort) > 0).all() for cohort in rounds)


def test_permutations_follow_the_key_and_not_the_source():
    schedule = Schedule("permuted", 30, 10, 6)

    def flat(entropy, key):
        return np.concatenate(
            [c for cohorts in all_cohorts(schedule, entropy, key) for c in cohorts]
        ).tolist()

    assert flat(OSEntropy(), 7) == flat(SeededEntropy(1), 7)
    assert flat(OSEntropy(), 7) != flat(OSEntropy(), 8)
    # Passes have orders of their own.
    assert flat(OSEntropy(), 7)[:30] != flat(OSEntropy(), 7)[30:]


def test_independent_cohorts_have_their_size_and_get_no_credit():
    schedule = Schedule("independent", 20, 6, 200)
    rounds = [cohort for (cohort,) in all_cohorts(schedule)]
    assert all(len(c) == 6 and (np.diff(c) > 0).all() for c in rounds)
    assert len({tuple(c) for c in rounds}) > 190
    # Every client in 200 rounds with chance 0.3 each: 20 binomial counts.
    times = np.bincount(np.concatenate(rounds), minlength=20)
    low, high = stats.binom.ppf([ALPHA / 40, 1 - ALPHA / 40], 200, 0.3)
    assert low <= times.min() <= times.max() <= high
    assert schedule.n_participations == 200
    assert schedule.sampling_rate == 1.0
    assert schedule.divisor is None


def test_poisson_takes_each_client_by_a_coin_of_its_own():
    n_rounds, n_clients, rate = 400, 25, 0.2
    schedule = Schedule("poisson", n_clients, 5, n_rounds)
    assert schedule.sampling_rate == rate
    assert schedule.divisor == 5
    assert schedule.n_participations == n_rounds
    taken = np.zeros((n_rounds, n_clients), dtype=bool)
    for i, (cohort,) in enumerate(all_cohorts(schedule)):
        taken[i, cohort] = True
    # The total is binomial(10000, 0.2); so is each client's, of 400.
    low, high = stats.binom.ppf([ALPHA / 2, 1 - ALPHA / 2], taken.size, rate)
    assert low <= taken.sum() <= high
    tail = ALPHA / 2 / n_clients
    low, high = stats.binom.ppf([tail, 1 - tail], n_rounds, rate)
    assert ((low <= taken.sum(axis=0)) & (taken.sum(axis=0) <= high)).all()
    # Sizes vary as those of independent coins: (n-1) s^2 / (25 * .2 * .8) is about
    # chi-square with 399 degrees (kurtosis -0.01 of the binomial changes little).
    spread = taken.sum(axis=1).var(ddof=1) * (n_rounds - 1) / (n_clients * 0.16)
    assert ALPHA < stats.chi2.cdf(spread, n_rounds - 1) < 1 - ALPHA
    # Two clients have nothing to do with each other: 300 correlations.
    correlation = np.corrcoef(taken.T)[np.triu_indices(n_clients, 1)]
    bound = stats.norm.isf(ALPHA / 2 / len(correlation)) / math.sqrt(n_rounds)
    assert np.abs(correlation).max() < bound


# ------------------------------------------------------------------------ with fits


@pytest.mark.parametrize("eps", [None, 1.0])
@pytest.mark.parametrize("size", [1, 6, 20])
def test_cohorts_of_a_full_round_are_added_up_and_released_once(eps, size):
    whole = FedTempCalibrator(eps, random_state=0).fit(CLIENTS)
    runner = FederatedRunner(cohort="full", cohort_size=size)
    parts = FedTempCalibrator(eps, random_state=0, runner=runner).fit(CLIENTS)
    assert parts.temperature_ == whole.temperature_
    assert len(parts.history_) == len(whole.history_)
    for a, b in zip(parts.history_, whole.history_, strict=True):
        assert a.n_cohorts == math.ceil(20 / size)
        assert a.n_clients == b.n_clients == 20
        for name in b.total:
            assert np.array_equal(a.total[name], b.total[name])


def fit_bins(cohort, n_rounds=4, cohort_size=5, **params):
    runner = FederatedRunner(n_rounds, cohort=cohort, cohort_size=cohort_size)
    params = {"eps": 1.0, "delta": 1e-5, "random_state": 0, **params}
    return FedBinCalibrator(n_bins=4, runner=runner, **params).fit(CLIENTS)


def test_disjoint_cohorts_need_the_noise_of_one_round():
    z = {
        cohort: fit_bins(cohort).privacy_.noise_multiplier
        for cohort in ("full", "permuted", "independent")
    }
    assert z["full"] == z["independent"]
    assert z["independent"] == pytest.approx(2 * z["permuted"], rel=1e-5)
    assert z["permuted"] == pytest.approx(3.7306, rel=1e-4)


def test_disjoint_cohorts_count_every_row_once():
    fitted = fit_bins("permuted", eps=None, delta=None)
    whole = FedBinCalibrator(n_bins=4).fit(CLIENTS)
    assert np.array_equal(fitted.positive_, whole.positive_)
    assert np.array_equal(fitted.negative_, whole.negative_)


def test_poisson_needs_less_noise_and_says_why():
    pytest.importorskip("dp_accounting")
    report = fit_bins("poisson", cohort_size=2).privacy_
    full = fit_bins("full").privacy_
    assert report.accountant == "pld"
    assert report.noise_multiplier < 0.5 * full.noise_multiplier
    assert any("nobody who sees the result" in text for text in report.assumptions)


def test_poisson_without_dp_accounting_has_the_noise_of_full_participation(monkeypatch):
    from skfedcal.privacy import accounting

    monkeypatch.setattr(accounting, "load_pld", lambda: None)
    with pytest.warns(PrivacyWarning, match="dp-accounting is not installed"):
        report = fit_bins("poisson", cohort_size=2).privacy_
    full = fit_bins("full").privacy_
    assert report.noise_multiplier == full.noise_multiplier
    assert report.eps == 1.0


def test_the_size_of_a_poisson_sample_stays_secret():
    # Given the size m, a client was in with chance m / K instead of the rate that was
    # credited; m = K is certainty.
    pytest.importorskip("dp_accounting")
    fitted = fit_bins("poisson", n_rounds=6, cohort_size=2)
    assert [record.n_clients for record in fitted.history_] == [2] * 6


def test_poisson_rounds_without_clients_are_released_all_the_same():
    pytest.importorskip("dp_accounting")
    runner = FederatedRunner(3, cohort="poisson", cohort_size=1, min_clients=15)
    fitted = FedBinCalibrator(
        1.0, n_bins=2, runner=runner, random_state=1, delta=1e-5
    ).fit(CLIENTS)
    assert fitted.n_rounds_ == 3


def test_sampling_clients_gives_rows_no_credit():
    model = CentralDP(1.0, delta=1e-5, unit="example")
    sampled = fit_bins("poisson", eps=None, delta=None, privacy=model).privacy_
    full = fit_bins("full", eps=None, delta=None, privacy=model).privacy_
    assert sampled.noise_multiplier == full.noise_multiplier


def test_means_are_taken_over_the_public_number_of_clients():
    # Poisson: the expected size; a mean over the true size would tell it.
    seen = []

    class Spy(ClassHistograms):
        def update(self, state, total, n_clients):
            seen.append(n_clients)
            return super().update(state, total, n_clients)

    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.privacy.mechanisms import ExactSum

    rows = np.zeros((20, 3))
    data = FederatedDataset(rows, np.zeros(20, int), np.arange(21), range(20), 3)
    for cohort, expected in (
        ("full", [20] * 4),
        ("poisson", [6] * 4),
        ("independent", [6] * 4),
        ("permuted", [6, 6, 6, 2]),
    ):
        seen.clear()
        runner = FederatedRunner(4, cohort=cohort, cohort_size=6)
        runner.run(Spy(n_bins=2), data, ExactSum(), SeededEntropy(0))
        assert seen == expected
