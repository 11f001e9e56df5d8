"""Local reports: unbiased, of the announced spread, one per client, refused else."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from skfedcal import (
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    load,
    make_federation,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec, CellRows
from skfedcal.exceptions import BudgetExceededError
from skfedcal.federation import InProcess, Joblib
from skfedcal.privacy import CentralDP, LocalDP, PrivacyLedger
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7
ORACLES = ["grr", "subset", "oue", "olh"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@dataclass(frozen=True)
class Cells:
    """Count labels in blocks of several sizes; rows of label -1 count nowhere."""

    sizes: tuple[int, ...] = (8,)
    clip: float = 1.0
    sparse: bool = True
    n_rounds: int = 1

    def init(self, n_classes):
        return 0

    def broadcast(self, state):
        return {}

    def spec(self, broadcast):
        return {
            f"b{size}": BlockSpec((size,), "count", clip=self.clip, norm="l1")
            for size in self.sizes
        }

    def query(self, broadcast, clients):
        owner = np.repeat(np.arange(len(clients)), clients.sizes)
        labels = clients.labels[clients.offsets[0] : clients.offsets[-1]]
        owner, labels = owner[labels >= 0], labels[labels >= 0]
        rows = {
            f"b{size}": CellRows(owner, labels % size, len(clients), (size,))
            for size in self.sizes
        }
        return rows if self.sparse else {n: r.dense() for n, r in rows.items()}

    def update(self, state, total, n_clients):
        return state + 1

    def done(self, state):
        return False


def dataset(labels, per_client=1):
    labels = np.asarray(labels)
    n_clients = len(labels) // per_client
    offsets = np.arange(n_clients + 1) * per_client
    rows = np.zeros((len(labels), 1))
    return FederatedDataset(rows, labels, offsets, range(n_clients), 8)


LABELS = np.repeat([-1, 0, 1, 2, 7], [100, 250, 100, 30, 20])


def build(model, algorithm, data, *, seed=0, ledger=None, runner=None):
    runner = runner or FederatedRunner()
    return model.mechanism(
        runner.release_plan(algorithm, data, model.unit),
        entropy=OSEntropy() if seed is None else SeededEntropy(seed),
        ledger=ledger,
        label="Cells",
    )


def released(model, algorithm, data, *, seed=0, engine=None, runner=None, ledger=None):
    runner = runner or FederatedRunner()
    mechanism = build(model, algorithm, data, seed=seed, runner=runner, ledger=ledger)
    _, history = runner.run(
        algorithm,
        engine or data,
        mechanism,
        SeededEntropy(seed),
        n_classes=8,
    )
    return history, mechanism


# ------------------------------------------------------------------------- estimates


@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize("mode", ["fast", "faithful"])
def test_estimates_are_unbiased_also_with_clients_that_have_nothing(oracle, mode):
    data, algorithm = dataset(LABELS), Cells()
    model = LocalDP(1.0, oracle, mode=mode)
    n_runs = 400
    drawn = np.array(
        [
            released(model, algorithm, data, seed=i)[0][0].total["b8"]
            for i in range(n_runs)
        ]
    )
    truth = np.bincount(LABELS[LABELS >= 0], minlength=8)
    deviation = (drawn.mean(axis=0) - truth) / (drawn.std(axis=0) / np.sqrt(n_runs))
    # Eight t statistics, two-sided.
    assert np.abs(deviation).max() < stats.t(n_runs - 1).isf(ALPHA / 16)


@pytest.mark.parametrize("oracle", ORACLES)
def test_fast_and_faithful_agree_in_mean_and_covariance(oracle):
    data, algorithm = dataset(LABELS[::2]), Cells()
    drawn = {
        mode: np.array(
            [
                released(LocalDP(1.0, oracle, mode), algorithm, data, seed=i)[0][
                    0
                ].total["b8"]
                for i in range(500)
            ]
        )
        for mode in ("fast", "faithful")
    }
    fast, slow = drawn["fast"], drawn["faithful"]
    # Random directions: sums of cells see correlations.
    rng = np.random.default_rng(0)
    for direction in [*rng.normal(size=(4, 8)), np.ones(8), np.arange(8) < 4]:
        a, b = fast @ direction, slow @ direction
        assert stats.ttest_ind(a, b, equal_var=False).pvalue > ALPHA
        ratio = stats.f(499, 499)
        assert ratio.ppf(ALPHA) < a.var() / b.var() < ratio.isf(ALPHA)
        assert stats.ks_2samp(a, b).pvalue > ALPHA


def test_noise_and_law_say_what_is_known():
    data, algorithm = dataset(LABELS), Cells()
    mechanism = build(LocalDP(2.0, "oue"), algorithm, data)
    mechanism.open("run")
    codec = mechanism.codec(algorithm.spec({}))
    sums = mechanism.release(codec.zeros(), codec, 0, 500)
    law = sums.laws["b8"]
    q = 1 / (np.exp(2.0) + 1)
    assert (law.kind, law.p, law.n_reports, law.domain) == ("oue", 0.5, 500, 8)
    assert law.q == pytest.approx(q)
    spread = (q * (1 - q) * 7 / 8 + 0.25 / 8) / (0.5 - q) ** 2
    assert law.variance == pytest.approx(500 * spread)
    assert sums.noise["b8"] == pytest.approx(np.sqrt(500 * spread))


def test_a_single_bit_is_reported_by_randomised_response():
    data, algorithm = dataset(np.repeat([-1, 0], [300, 700])), Cells((1,))
    for oracle in ("auto", "rr"):
        for mode in ("fast", "faithful"):
            history, mechanism = released(LocalDP(3.0, oracle, mode), algorithm, data)
            codec = mechanism.codec(algorithm.spec({}))
            chosen = mechanism.oracles(codec, 0)["b1"]
            assert chosen.kind == "rr"
            p = chosen.p
            assert p == pytest.approx(np.exp(3) / (1 + np.exp(3)))
            sigma = np.sqrt(1000 * p * (1 - p)) / (2 * p - 1)
            assert abs(history[0].total["b1"][0] - 700) < 5.4 * sigma


# ------------------------------------------------------------------------- the budget


def test_rounds_and_blocks_divide_eps_and_cohorts_do_not():
    data = dataset(LABELS)
    algorithm = Cells((4, 8), n_rounds=2)
    mechanism = build(LocalDP(4.0), algorithm, data)
    codec = mechanism.codec(algorithm.spec({}))
    spent = sum(oracle.eps for oracle in mechanism.oracles(codec, 1).values())
    assert spent == pytest.approx(2.0)
    assert spent <= 2.0
    # Clients of disjoint cohorts are asked once, with the whole eps.
    runner = FederatedRunner(cohort="permuted", cohort_size=250)
    _, dealt = released(LocalDP(4.0), replace(algorithm), data, runner=runner)
    spent = sum(oracle.eps for oracle in dealt.oracles(codec, 1).values())
    assert spent == pytest.approx(4.0)
    assert dealt.report().n_rounds == 1


def test_a_client_with_several_examples_is_refused_not_charged():
    data = dataset(np.arange(60) % 8, per_client=3)
    for mode in ("fast", "faithful"):
        for sparse in (True, False):
            algorithm = Cells(sparse=sparse)
            with pytest.raises(ValueError, match="max_examples_per_client=1"):
                released(LocalDP(1.0, mode=mode), algorithm, data)
    ledger = PrivacyLedger()
    with pytest.raises(ValueError, match="max_examples_per_client=1"):
        released(LocalDP(1.0), Cells(clip=3.0), data, ledger=ledger)
    assert len(ledger) == 0  # a bound of three is seen before anything is paid


def test_the_ledger_is_debited_with_eps():
    ledger = PrivacyLedger(budget=(3.0, 1e-6))
    data = dataset(LABELS)
    released(LocalDP(2.0), Cells(), data, ledger=ledger)
    (record,) = ledger.records()
    assert record["event"]["kind"] == "pure" and record["event"]["eps"] == 2.0
    assert record["event"]["delta_slack"] == 0.0
    with pytest.raises(BudgetExceededError):
        released(LocalDP(2.0), Cells(), data, ledger=ledger)


def test_a_fast_run_is_a_simulation_whatever_its_entropy():
    data = dataset(LABELS)
    for mode, seed, real in (
        ("faithful", None, True),
        ("faithful", 0, False),
        ("fast", None, False),
        ("fast", 0, False),
    ):
        ledger = PrivacyLedger()
        mechanism = build(LocalDP(2.0, mode=mode), Cells(), data, seed=seed,
                          ledger=ledger)  # fmt: skip
        mechanism.open("run")
        report = mechanism.report()
        assert report.secure is real
        assert report.seeded is (seed is not None)
        assert ("SIMULATED" in repr(report)) is not real
        assert ("seeded" in repr(report)) is (seed is not None)
        by_holder = "SIMULATED, noise added once to the exact values"
        assert (by_holder in repr(report)) is (not real and seed is None)
        assert report.trust.startswith("local: every client randomises")
        assert ("not each report" in report.trust) == (mode == "fast")
        assert report.eps == 2.0 and report.delta == 0.0
        mode_of_record = ledger.records()[0]["mode"]
        assert mode_of_record == ("secure" if real else "simulation")


def test_a_release_is_paid_counted_and_never_repeated():
    algorithm = Cells(n_rounds=2)
    mechanism = build(LocalDP(1.0), algorithm, dataset(LABELS))
    codec = mechanism.codec(algorithm.spec({}))
    with pytest.raises(RuntimeError, match="has not been debited"):
        mechanism.release(codec.zeros(), codec, 0, 500)
    with pytest.raises(RuntimeError, match="planned for 2 rounds"):
        mechanism.open("run", n_participations=5)
    mechanism.open("run")
    with pytest.raises(RuntimeError, match="number of clients"):
        mechanism.release(codec.zeros(), codec, 0)
    mechanism.release(codec.zeros(), codec, 0, 500)
    with pytest.raises(RuntimeError, match="released already"):
        mechanism.release(codec.zeros(), codec, 0, 500)


# ------------------------------------------------------------------ engines, messages


@pytest.mark.parametrize("oracle", ["auto", "subset", "olh"])
def test_seeded_reports_are_the_same_bits_on_every_engine(oracle):
    data, model = dataset(LABELS), LocalDP(1.0, oracle, mode="faithful")
    here, _ = released(model, Cells(), data)
    dense, _ = released(model, Cells(sparse=False), data)
    there, _ = released(model, Cells(), data, engine=Joblib(data, n_jobs=3))
    pieces, _ = released(model, Cells(), data, runner=FederatedRunner(cohort_size=7))
    for other in (dense, there, pieces):
        assert np.array_equal(here[0].total["b8"], other[0].total["b8"])


def test_fast_simulation_needs_no_positions():
    data = dataset(LABELS)

    class Plain(InProcess):
        def total(self, request, cohort):
            from skfedcal.federation import respond

            return respond(request, self.clients)

    first, _ = released(LocalDP(1.0), Cells(), data, engine=Plain(data))
    second, _ = released(LocalDP(1.0), Cells(), data)
    assert np.array_equal(first[0].total["b8"], second[0].total["b8"])


@pytest.mark.parametrize("method", [FedTempCalibrator, FedBinCalibrator])
def test_methods_that_do_not_count_say_so(method):
    fed = make_federation(n_clients=20, n_samples=200, random_state=0)
    ledger = PrivacyLedger()
    message = rf"{method.__name__} cannot be used with LocalDP.*block.*CentralDP"
    with pytest.raises(ValueError, match=message):
        method(privacy=LocalDP(2.0), ledger=ledger, random_state=0).fit(fed.clients)
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("oracle", "size", "message"),
    [("rr", 4, "reports a single bit"), ("grr", 1, "is a single bit")],
)
def test_oracles_for_other_blocks_are_refused(oracle, size, message):
    with pytest.raises(ValueError, match=message):
        build(LocalDP(1.0, oracle), Cells((size,)), dataset(LABELS)).codec(
            Cells((size,)).spec({})
        )


def test_an_eps_of_nothing_is_refused():
    with pytest.raises(ValueError, match="would carry no information"):
        build(LocalDP(1e-25, "oue"), Cells(), dataset(LABELS)).codec(Cells().spec({}))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (LocalDP(-1.0), "eps=-1.0 is not a privacy budget"),
        (LocalDP(1.0, "hadamard"), "oracle must be one of .* got 'hadamard'"),
        (LocalDP(1.0, mode="quick"), "mode must be one of .* got 'quick'"),
    ],
)
def test_values_that_cannot_be_are_named(model, message):
    with pytest.raises(ValueError, match=message):
        model.validate()


def test_the_model_is_a_plain_value(tmp_path):
    model = LocalDP(2.0, "subset", "faithful")
    assert eval(repr(model)) == model
    assert clone(FedTempCalibrator(privacy=model)).privacy == model
    assert model.set_params(eps=3.0) == LocalDP(3.0, "subset", "faithful")
    assert model.unit == "client" and model.private
    assert model.strength(100) == pytest.approx(np.sinh(1.0) / 10)
    # A fitted estimator whose parameter was set afterwards can still be read.
    fed = make_federation(n_clients=20, n_samples=400, random_state=0)
    fitted = FedTempCalibrator(privacy=CentralDP(8.0), random_state=0).fit(fed.clients)
    fitted.set_params(privacy=model).save(tmp_path / "cal.json")
    assert load(tmp_path / "cal.json").privacy == model
