"""Noise of every source: each example is hidden by its own source alone."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone

from skfedcal import (
    FedAccTempCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    make_federation,
)
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec, CellRows
from skfedcal.exceptions import BudgetExceededError
from skfedcal.federation import Joblib
from skfedcal.privacy import CentralDP, DistributedDP, PrivacyLedger, SourceDP
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.mechanisms import laplace_variance

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7
MODES = ["fast", "faithful"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@dataclass(frozen=True)
class Cells:
    """Count labels."""

    size: int = 3000
    clip: float = 1.0
    kind: str = "count"
    n_rounds: int = 1

    def init(self, n_classes):
        return 0

    def broadcast(self, state):
        return {}

    def spec(self, broadcast):
        return {"x": BlockSpec((self.size,), self.kind, clip=self.clip, norm="l1")}

    def query(self, broadcast, clients):
        owner = np.repeat(np.arange(len(clients)), clients.sizes)
        labels = clients.labels[clients.offsets[0] : clients.offsets[-1]]
        rows = CellRows(owner, labels % self.size, len(clients), (self.size,))
        return {"x": rows if self.kind == "count" else rows.dense() * 1.0}

    def update(self, state, total, n_clients):
        return state + 1

    def done(self, state):
        return False


SIZES = [0, 5, 40, 0, 15]


def dataset(sizes=SIZES):
    labels = np.arange(sum(sizes)) % 4
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.zeros((len(labels), 1))
    return FederatedDataset(rows, labels, offsets, range(len(sizes)), 4)


def build(model, algorithm, data, *, seed=0, ledger=None):
    return model.mechanism(
        FederatedRunner().release_plan(algorithm, data, model.unit),
        entropy=OSEntropy() if seed is None else SeededEntropy(seed),
        ledger=ledger,
        label="Cells",
    )


def released(model, algorithm, data, *, seed=0, engine=None, runner=None, ledger=None):
    mechanism = build(model, algorithm, data, seed=seed, ledger=ledger)
    _, history = (runner or FederatedRunner()).run(
        algorithm, engine or data, mechanism, SeededEntropy(seed), n_classes=4
    )
    return history, mechanism


def source_law(n, scale, size=400):
    """Law of the sum of n discrete Laplace draws, by convolution."""
    q = math.exp(-1 / scale)
    single = (1 - q) / (1 + q) * q ** np.abs(np.arange(-60, 61))
    law = np.ones(1)
    for _ in range(n):
        law = np.convolve(law, single)
    return law, len(law) // 2


@pytest.mark.parametrize("mode", MODES)
def test_every_source_adds_noise_also_one_without_examples(mode):
    history, mechanism = released(SourceDP(1.0, mode), Cells(), dataset())
    noise = history[0].total["x"].copy()
    noise[:4] -= 15
    law, middle = source_law(5, 1.0)
    values, counts = np.unique(noise.astype(int), return_counts=True)
    expected = len(noise) * law[middle + values]
    common = expected > 8
    observed = np.append(counts[common], len(noise) - counts[common].sum())
    expected = np.append(expected[common], len(noise) - expected[common].sum())
    assert stats.chisquare(observed, expected).pvalue > ALPHA
    report = mechanism.report()
    assert report.unit == "example" and report.eps == 1.0
    assert report.n_clients == 60
    assert "no two sources hold the same example" in report.assumptions


@pytest.mark.parametrize("mode", MODES)
def test_noise_is_the_spread_of_all_sources(mode):
    algorithm, data = Cells(), dataset()
    mechanism = build(SourceDP(0.5, mode), algorithm, data)
    mechanism.open("run")
    codec = mechanism.codec(algorithm.spec({}))
    sums = mechanism.release(codec.zeros(), codec, 0, 5)
    assert sums.laws["x"].variance == pytest.approx(5 * laplace_variance(2.0))
    with pytest.raises(RuntimeError, match="released already"):
        mechanism.release(codec.zeros(), codec, 0, 5)


def test_what_one_source_sends_is_private_by_itself():
    # One source alone: the noise in its message is the whole discrete Laplace law.
    data, algorithm = dataset([7]), Cells(20_000)
    history, _ = released(SourceDP(1.0, "faithful"), algorithm, data)
    noise = history[0].total["x"].copy()
    noise[:4] -= [2, 2, 2, 1]
    law, middle = source_law(1, 1.0)
    values, counts = np.unique(noise.astype(int), return_counts=True)
    expected = len(noise) * law[middle + values]
    common = expected > 8
    observed = np.append(counts[common], len(noise) - counts[common].sum())
    expected = np.append(expected[common], len(noise) - expected[common].sum())
    assert stats.chisquare(observed, expected).pvalue > ALPHA


def test_examples_are_bounded_one_by_one():
    # A client with 40 examples is not cut: the unit is the example.
    history, _ = released(SourceDP(200.0), Cells(4), dataset())
    assert history[0].total["x"].tolist() == [15.0, 15.0, 15.0, 15.0]


def test_reals_are_written_on_a_lattice():
    history, _ = released(
        SourceDP(1.0, "faithful"), Cells(2000, kind="real"), dataset()
    )
    noise = history[0].total["x"][4:]
    # Five sources with variance 2 each; a standard error is 3.6 % of it.
    assert noise.var() == pytest.approx(10.0, rel=0.2)
    fast, _ = released(SourceDP(1.0), Cells(2000, kind="real"), dataset())
    assert stats.ks_2samp(noise, fast[0].total["x"][4:]).pvalue > ALPHA


def test_seeded_noise_is_the_same_bits_on_every_engine():
    data, model = dataset(), SourceDP(1.0, "faithful")
    here, _ = released(model, Cells(30), data)
    there, _ = released(model, Cells(30), data, engine=Joblib(data, n_jobs=2))
    pieces, _ = released(model, Cells(30), data, runner=FederatedRunner(cohort_size=2))
    assert np.array_equal(here[0].total["x"], there[0].total["x"])
    assert np.array_equal(here[0].total["x"], pieces[0].total["x"])


def test_the_ledger_is_debited_with_eps():
    ledger = PrivacyLedger(budget=(1.5, 1e-6))
    released(SourceDP(1.0), Cells(30), dataset(), ledger=ledger)
    (record,) = ledger.records()
    assert record["event"]["kind"] == "pure" and record["event"]["eps"] == 1.0
    with pytest.raises(BudgetExceededError):
        released(SourceDP(1.0), Cells(30), dataset(), ledger=ledger)


def test_only_a_faithful_run_with_real_entropy_is_real():
    for mode, seed, real in (
        ("faithful", None, True),
        ("faithful", 0, False),
        ("fast", None, False),
    ):
        report = build(SourceDP(1.0, mode), Cells(), dataset(), seed=seed).report()
        assert report.secure is real
        assert ("seeded noise" in repr(report)) is (seed is not None)
        assert ("added once to the exact values" in repr(report)) is (mode == "fast")
        assert report.trust.startswith("source: every client adds the noise")


@pytest.mark.parametrize("method", [FedTempCalibrator, FedBinCalibrator])
def test_methods_without_an_l1_bound_say_so(method):
    fed = make_federation(n_clients=20, n_samples=200, random_state=0)
    message = rf"{method.__name__} sends block .* SourceDP needs.*CentralDP"
    with pytest.raises(ValueError, match=message):
        method(privacy=SourceDP(2.0), random_state=0).fit(fed.clients)


def test_the_model_is_a_plain_value():
    model = SourceDP(2.0, "faithful")
    assert eval(repr(model)) == model
    assert clone(FedTempCalibrator(privacy=model)).privacy == model
    assert model.strength(10) == pytest.approx(2 / math.sqrt(2))
    for wrong in (SourceDP(math.inf), SourceDP(1.0, "no")):
        with pytest.raises(ValueError, match=r"is not a privacy budget|must be one of"):
            wrong.validate()


def test_an_eps_that_leaves_nothing_is_refused_before_it_is_paid():
    fed = make_federation(n_clients=5, n_samples=200, n_classes=3, random_state=0)
    for model in (SourceDP(1e-9), CentralDP(1e-9), DistributedDP(1e-9)):
        ledger = PrivacyLedger(budget=(1.0, 1e-5))
        with pytest.raises(ValueError, match="Pass a larger eps"):
            FedAccTempCalibrator(privacy=model, ledger=ledger).fit(fed.clients)
        assert ledger.spent() == 0
