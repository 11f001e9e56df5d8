"""Rounds: how many, with whom, what is written down, who may stop them."""

import math
from dataclasses import FrozenInstanceError, dataclass

import numpy as np
import pytest
from sklearn.base import clone

from skfedcal import FedBinCalibrator, FederatedRunner, FedTempCalibrator
from skfedcal._sklearn_compat import HAS_CALLBACKS
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.federation import InProcess
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.methods.temperature.rounds import TemperatureAverage
from skfedcal.privacy import CentralDP, PrivacyLedger
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum
from skfedcal.privacy.models import ReleasePlan

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]


def make_dataset(n_clients=12, n_rows=8, n_classes=3, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_clients * n_rows, n_classes)) * 2
    labels = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
    offsets = np.arange(n_clients + 1) * n_rows
    return FederatedDataset(rows, labels, offsets, range(n_clients), n_classes)


DATA = make_dataset()
CLIENTS = [(DATA.rows[i : i + 8], DATA.labels[i : i + 8]) for i in range(0, 96, 8)]


@dataclass(frozen=True)
class CountState:
    counts: np.ndarray
    rounds: int = 0


@dataclass(frozen=True)
class CountRows:
    """The smallest method: how many rows are there, asked again and again."""

    n_rounds: int = 5
    enough: float = math.inf

    def init(self, n_classes):
        return CountState(np.zeros(1))

    def broadcast(self, state):
        return {"round": np.asarray(state.rounds)}

    def spec(self, broadcast):
        return {"rows": BlockSpec((1,), kind="count")}

    def query(self, broadcast, clients):
        return {"rows": clients.sizes[:, None]}

    def update(self, state, total, n_clients):
        return CountState(state.counts + total["rows"], state.rounds + 1)

    def done(self, state):
        return state.counts[0] >= self.enough


def run(algorithm=None, data=DATA, mechanism=None, on_round=None, **options):
    return FederatedRunner(**options).run(
        algorithm or CountRows(),
        data,
        mechanism or ExactSum(),
        SeededEntropy(0),
        on_round=on_round,
    )


# ------------------------------------------------------------------------- rounds


def test_a_method_runs_its_rounds():
    state, history = run()
    assert state.counts[0] == 5 * 96
    assert [record.round for record in history] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("n_rounds", [1, 3, 9])
def test_the_runner_may_ask_for_other_rounds(n_rounds):
    state, history = run(n_rounds=n_rounds)
    assert len(history) == state.rounds == n_rounds


def test_rounds_of_the_runner_reach_the_estimator_and_the_bill():
    runner = FederatedRunner(n_rounds=6)
    fitted = FedTempCalibrator(eps=1.0, runner=runner, random_state=0).fit(CLIENTS)
    assert fitted.n_rounds_ == len(fitted.history_) == 6
    assert fitted.privacy_.n_rounds == 6
    runner = FederatedRunner(n_rounds=3)
    three = FedTempCalibrator(eps=1.0, runner=runner, random_state=0).fit(CLIENTS)
    assert fitted.privacy_.noise_multiplier == pytest.approx(
        math.sqrt(2) * three.privacy_.noise_multiplier, rel=1e-5
    )


def test_a_method_may_be_done_early():
    state, history = run(CountRows(enough=200))
    assert len(history) == 3
    assert state.counts[0] == 288


def test_a_listener_may_stop_early_and_gets_no_refund():
    ledger = PrivacyLedger()
    plan = ReleasePlan(12, 3, 3, 1.0, 2)
    mechanism = CentralDP(1.0).mechanism(plan, entropy=OSEntropy(), ledger=ledger)
    seen = []

    def stop_after_two(state, record):
        seen.append((state.rounds, record.round))
        return len(seen) == 2

    state, history = run(
        TemperaturePosterior(n_rounds=3), mechanism=mechanism, on_round=stop_after_two
    )
    assert seen == [(1, 0), (2, 1)]
    assert len(history) == state.rounds == 2
    assert mechanism.report().n_rounds == 3
    assert mechanism.report().eps == 1.0
    assert len(ledger) == 1


def test_a_listener_that_says_nothing_does_not_stop():
    _, history = run(on_round=lambda state, record: None)
    assert len(history) == 5


def test_what_a_listener_sees_is_what_is_recorded():
    seen = []
    _, history = run(on_round=lambda state, record: seen.append(record))
    assert all(a is b for a, b in zip(seen, history, strict=True))


# ------------------------------------------------------------------------ records


def test_records_say_what_a_round_cost():
    _, history = run(cohort_size=5)
    for record in history:
        assert record.n_clients == 12
        assert record.n_cohorts == 3
        assert record.bytes_up == 8  # one count
        assert record.bytes_down == 8  # the number of the round
        assert 0 <= record.seconds < 60
        assert record.total["rows"].tolist() == [96.0]
    with pytest.raises(FrozenInstanceError):
        history[0].seconds = 0.0
    assert "total" not in repr(history[0])


def test_bytes_of_the_methods_by_hand():
    # One real of three words, and a count.
    _, history = run(TemperatureAverage())
    assert history[0].bytes_up == 24 + 8
    assert history[0].bytes_down == 8
    fitted = FedTempCalibrator(eps=1.0).fit(CLIENTS)
    # Two numbers of at most 65538 steps, of 8 bytes each: random words in a sum over 12
    # clients would fit 4 bytes once in 2^23.
    assert fitted.history_[0].bytes_up == 2 * 8
    fitted = FedBinCalibrator(eps=1.0, n_bins=5).fit(CLIENTS)
    assert fitted.history_[0].bytes_up == 2 * 3 * 5 * 4
    assert FedBinCalibrator(n_bins=5).fit(CLIENTS).history_[0].bytes_up == 2 * 3 * 5 * 8


def test_bytes_count_rows_where_rows_are_the_unit():
    # Any number of rows of 2^29 steps each fits 8 bytes but not 4.
    model = CentralDP(1e7, unit="example")
    clients = [(DATA.rows[i : i + 20], DATA.labels[i : i + 20]) for i in (0, 20)]
    fitted = FedBinCalibrator(privacy=model, n_bins=2).fit(clients)
    assert fitted.history_[0].bytes_up == 2 * 3 * 2 * 8


# -------------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_rounds": 0}, r"n_rounds=0.*from 1 to inf"),
        ({"n_rounds": 2.5}, r"n_rounds=2\.5"),
        ({"cohort_size": 0}, r"cohort_size=0.*from 1 to 12"),
        ({"cohort_size": 13}, r"cohort_size=13.*there are 12 clients"),
        ({"min_clients": 0}, r"min_clients=0"),
        ({"min_clients": 13}, r"min_clients=13"),
        (
            {"cohort": "permuted", "cohort_size": 4, "min_clients": 5},
            r"min_clients=5.*from 1 to 4",
        ),
        ({"cohort": "random"}, r"cohort='random'.*'poisson'"),
        ({"backend": "ray"}, r"backend='ray'.*'threads', 'loky'"),
        ({"resume": True}, "needs a checkpoint"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_too_few_answers_are_an_error_and_nothing_is_released():
    class Deaf(InProcess):
        def total(self, request, cohort):
            return super().total(request, cohort[:3])

    ledger = PrivacyLedger()
    plan = ReleasePlan(12, 3, 3, 1.0, 2)
    mechanism = CentralDP(1.0).mechanism(plan, entropy=OSEntropy(), ledger=ledger)
    released = []
    mechanism.release = lambda *args: released.append(args)
    with pytest.raises(NotEnoughClientsError, match="3 clients answered in round 0"):
        FederatedRunner(min_clients=4).run(
            TemperaturePosterior(n_rounds=3),
            Deaf(DATA),
            mechanism,
            SeededEntropy(0),
            n_classes=3,
        )
    assert released == []
    assert len(ledger) == 1


def test_a_runner_does_not_change_and_is_its_own_clone():
    runner = FederatedRunner(cohort="permuted", cohort_size=3)
    with pytest.raises(FrozenInstanceError):
        runner.cohort = "full"
    estimator = FedTempCalibrator(runner=runner)
    assert clone(estimator).runner is runner
    changed = clone(estimator).set_params(runner__cohort_size=4)
    assert changed.runner.cohort_size == 4
    assert runner.cohort_size == 3
    assert "runner__n_rounds" in estimator.get_params()


def test_a_runner_of_a_subclass_may_have_more_fields():
    @dataclass(frozen=True, repr=False)
    class Named(FederatedRunner):
        label: str = "study"

    plain = FedTempCalibrator().fit(CLIENTS)
    named = FedTempCalibrator(runner=Named(label="other")).fit(CLIENTS)
    assert named.temperature_ == plain.temperature_
    with pytest.raises(ValueError, match="cohort_size=13"):
        FedTempCalibrator(runner=Named(cohort_size=13)).fit(CLIENTS)


def test_runs_do_not_share_anything():
    # The same runner, twice: rounds, records and noise are those of a fresh one.
    runner = FederatedRunner(n_rounds=2)
    first = FedBinCalibrator(1.0, runner=runner, random_state=0).fit(CLIENTS)
    second = FedBinCalibrator(1.0, runner=runner, random_state=0).fit(CLIENTS)
    assert np.array_equal(first.positive_, second.positive_)
    assert len(second.history_) == 2


def test_histograms_add_up_over_rounds():
    state, _ = run(ClassHistograms(n_bins=4), n_rounds=3)
    once, _ = run(ClassHistograms(n_bins=4))
    assert np.array_equal(state.positive, 3 * once.positive)


# ---------------------------------------------------------------------- callbacks


@pytest.mark.skipif(not HAS_CALLBACKS, reason="scikit-learn without callbacks")
def test_a_callback_sees_every_round_and_may_stop():
    class Watch:
        def __init__(self, stop_after=None):
            self.stop_after = stop_after
            self.rounds = []

        def setup(self, estimator, context):
            pass

        def teardown(self, estimator, context):
            pass

        def on_fit_task_begin(self, estimator, context):
            pass

        def on_fit_task_end(self, estimator, context):
            if context.task_name != "round":
                return False
            self.rounds.append(context.task_id)
            return self.stop_after == len(self.rounds)

    ledger = PrivacyLedger()
    make = {"eps": 1.0, "ledger": ledger, "runner": FederatedRunner(n_rounds=3)}
    watch = Watch()
    fitted = FedTempCalibrator(**make).set_callbacks(watch).fit(CLIENTS)
    assert len(watch.rounds) == fitted.n_rounds_ == 3
    watch = Watch(stop_after=1)
    fitted = FedTempCalibrator(**make).set_callbacks(watch).fit(CLIENTS)
    assert fitted.n_rounds_ == 1
    assert fitted.privacy_.n_rounds == 3
    assert [r["event"]["mu"] for r in ledger.records()] == [fitted.privacy_.mu] * 2


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
def test_a_mechanism_refuses_a_schedule_it_was_not_planned_for():
    from skfedcal.privacy import PrivacyLedger, calibrate_noise
    from skfedcal.privacy.entropy import SeededEntropy
    from skfedcal.privacy.mechanisms import LatticeGaussian

    def mechanism(**plan):
        return LatticeGaussian(
            calibrate_noise(1.0, 1e-5, **plan),
            entropy=SeededEntropy(0),
            ledger=PrivacyLedger(),
            n_units=10,
            n_releases=9,
            n_values=2,
        )

    with pytest.raises(RuntimeError, match="planned for 2 rounds"):
        mechanism(n_rounds=2).open("a", n_participations=3, sampling_rate=1.0)
    sampled = mechanism(n_rounds=2, sampling_rate=0.1, accountant="pld")
    with pytest.raises(RuntimeError, match=r"sampling rate 0\.1"):
        sampled.open("b", n_participations=2, sampling_rate=0.5)
    sampled.open("c", n_participations=2, sampling_rate=0.1)


@pytest.mark.parametrize("cohort", ["independent", "poisson"])
def test_a_sample_needs_a_size(cohort):
    with pytest.raises(ValueError, match="pass cohort_size, or cohort='full'"):
        FederatedRunner(cohort=cohort).schedule(TemperaturePosterior(), 10)


def test_times_are_hidden_in_a_private_run_and_shown_in_a_simulation():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(5, 3)), rng.integers(0, 3, 5)) for _ in range(20)]
    times = {
        name: [
            value
            for record in FedTempCalibrator(classes=range(3), **options)
            .fit(clients)
            .history_
            for value in (record.seconds, record.client_seconds)
        ]
        for name, options in {
            "exact": {},
            "private": {"eps": 1.0},
            "simulated": {"eps": 1.0, "random_state": 0},
        }.items()
    }
    assert np.isnan(times["private"]).all()
    assert np.isfinite(times["simulated"]).all()
    assert np.isfinite(times["exact"]).all()
