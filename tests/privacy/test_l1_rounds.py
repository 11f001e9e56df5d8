"""Several rounds of several L1 blocks: how eps is divided, and who draws noise."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from skfedcal import FederatedRunner
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec
from skfedcal.federation import InProcess
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    PrivacyLedger,
    SourceDP,
    randomizers,
)
from skfedcal.privacy.entropy import SeededEntropy, _FromWords
from skfedcal.privacy.mechanisms import laplace_variance
from skfedcal.privacy.samplers import geometric_tables

# Seeds are fixed, so that no test can flake; a new seed fails by chance this often.
ALPHA = 1e-7
MODES = ["fast", "faithful"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@dataclass(frozen=True)
class Moments:
    """Sums of rows and counts of labels of each example; more numbers in later rounds.

    `shares` is the part of eps of each round, as an algorithm may state it.
    """

    width: int = 3
    n_labels: int = 4
    clip: float = 2.0
    n_rounds: int = 3
    weight: float = 1.0
    shares: tuple[float, ...] = ()

    def init(self, n_classes):
        return 0

    def broadcast(self, state):
        return {"round": np.asarray(state)}

    def n_values(self, n_classes):
        return self.width * self.n_rounds + self.n_labels + 1

    def spec(self, broadcast):
        width = self.width * (1 + int(broadcast["round"]))
        return {
            "sums": BlockSpec((width,), clip=self.clip, norm="l1", weight=self.weight),
            "labels": BlockSpec((self.n_labels,), "count", clip=1.0, norm="l1"),
            "mass": BlockSpec((1,), clip=0.5, norm="l1"),
        }

    def query(self, broadcast, clients):
        # Called with one "client" for each example.
        first, last = clients.offsets[0], clients.offsets[-1]
        rows, labels = clients.rows[first:last], clients.labels[first:last]
        assert len(clients) == len(rows)
        width = self.width * (1 + int(broadcast["round"]))
        sums = np.tile(rows[:, :1] / 3, (1, width)) / width
        counts = np.zeros((len(rows), self.n_labels))
        counts[np.arange(len(rows)), labels] = 1
        return {"sums": sums, "labels": counts, "mass": np.full((len(rows), 1), 1 / 7)}

    def update(self, state, total, n_clients):
        return state + 1

    def done(self, state):
        return False


def dataset(sizes=(4, 0, 9, 2)):
    n = sum(sizes)
    rows = np.linspace(-2, 2, n)[:, None]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(rows, np.arange(n) % 3, offsets, range(len(sizes)), 3)


def build(model, algorithm, data, *, entropy=None, ledger=None):
    return model.mechanism(
        FederatedRunner().release_plan(algorithm, data, model.unit),
        entropy=SeededEntropy(0) if entropy is None else entropy,
        ledger=ledger,
    )


def run(model, algorithm, data, *, seed=0, engine=None, **options):
    options.setdefault("entropy", SeededEntropy(seed))
    mechanism = build(model, algorithm, data, **options)
    _, history = FederatedRunner().run(
        algorithm, engine or data, mechanism, SeededEntropy(seed), n_classes=3
    )
    return history, mechanism


def exact(algorithm, data, index):
    values = algorithm.query({"round": np.asarray(index)}, data.by_row())
    return {name: rows.sum(axis=0) for name, rows in values.items()}


def scales_of(mechanism, algorithm, index):
    """Codec and noise of a round."""
    codec = mechanism.codec(algorithm.spec({"round": np.asarray(index)}), index)
    return codec, mechanism._scales(codec, index)


MODELS = [
    SourceDP(1.3),
    SourceDP(1.3, "faithful"),
    CentralDP(1.3, unit="example"),
    DistributedDP(1.3, unit="example"),
    DistributedDP(1.3, unit="example", mode="faithful"),
]


@pytest.mark.parametrize("model", MODELS, ids=repr)
@given(
    eps=st.floats(0.05, 20.0),
    weight=st.floats(0.01, 100.0),
    n_rounds=st.integers(1, 4),
    uneven=st.booleans(),
)
def test_rounds_and_blocks_share_eps_to_the_last_bit(
    model, eps, weight, n_rounds, uneven
):
    shares = tuple((i + 1) / math.comb(n_rounds + 1, 2) for i in range(n_rounds))
    algorithm = Moments(n_rounds=n_rounds, weight=weight, shares=shares * uneven)
    mechanism = build(replace(model, eps=eps), algorithm, dataset())
    spent = Fraction(0)
    for index in range(n_rounds):
        codec, scales = scales_of(mechanism, algorithm, index)
        for name, code in codec.blocks.items():
            spent += Fraction(code.limit) / Fraction(scales[name])
    assert spent <= Fraction(eps)
    assert spent > Fraction(eps) * Fraction(999_999, 1_000_000)


def test_blocks_of_a_round_get_parts_of_eps_by_their_weight():
    # Cube roots of the weights: 2 : 1 : 1 of 1.2 / 3 a round.
    algorithm = Moments(weight=8.0)
    mechanism = build(SourceDP(1.2), algorithm, dataset())
    for index in range(3):
        codec, scales = scales_of(mechanism, algorithm, index)
        noise = {n: scales[n] * c.step for n, c in codec.blocks.items()}
        assert noise["sums"] == pytest.approx(2.0 / 0.2, rel=1e-6)
        assert noise["labels"] == pytest.approx(1.0 / 0.1, rel=1e-6)
        assert noise["mass"] == pytest.approx(0.5 / 0.1, rel=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_noise_of_all_blocks_has_the_law_that_is_stated(model):
    # Wide blocks, so that the law shows; 4 clients, one of them without rows.
    algorithm = Moments(width=3000, n_labels=3000, n_rounds=2)
    data = dataset()
    history, mechanism = run(model, algorithm, data, seed=2)
    parts = 4 if isinstance(model, SourceDP) else 1
    for index, record in enumerate(history):
        codec, scales = scales_of(mechanism, algorithm, index)
        for name in ("sums", "labels"):
            noise = record.total[name] - exact(algorithm, data, index)[name]
            step = codec.blocks[name].step
            expected = step**2 * parts * laplace_variance(scales[name])
            # Kurtosis 6 of one law, 3 + 3/4 of the sum of four.
            error = math.sqrt((2 + 3 / parts) / len(noise))
            assert noise.var() == pytest.approx(expected, rel=5.5 * error)
            assert abs(noise.mean()) < 5.5 * math.sqrt(expected / len(noise))
        if parts == 1:  # a single Laplace variable, not a sum of several
            noise = record.total["sums"] - exact(algorithm, data, index)["sums"]
            law = stats.laplace(scale=scales["sums"] * codec.blocks["sums"].step)
            assert stats.kstest(noise, law.cdf).pvalue > ALPHA
    report = mechanism.report()
    assert report.accountant == "pure eps" and report.eps == 1.3
    assert report.unit == "example" and report.delta < 1e-8
    assert report.clip == {"sums": 2.0, "labels": 1.0, "mass": 0.5}


@pytest.mark.parametrize("name", ["sums", "labels"])
def test_sources_have_the_same_law_in_both_modes(name):
    algorithm = Moments(width=4000, n_labels=4000, n_rounds=1)
    noise = []
    for mode in MODES:
        history, _ = run(SourceDP(0.9, mode), algorithm, dataset(), seed=5)
        noise.append(history[0].total[name] - exact(algorithm, dataset(), 0)[name])
    if name == "labels":  # whole numbers: compare the chances of each
        table = [Counter(np.clip(np.rint(n), -15, 15)) for n in noise]
        keys = sorted(set(table[0]) | set(table[1]))
        counts = np.array([[t[k] for k in keys] for t in table])
        assert stats.chi2_contingency(counts).pvalue > ALPHA
    else:
        assert stats.ks_2samp(*noise).pvalue > ALPHA


# ----------------------------------------------------------- counting what is drawn


class Counting(_FromWords):
    """Words of a simulation, counted."""

    secure = False

    def __init__(self, seed=0):
        self.source, self.n_words = SeededEntropy(seed), 0

    def uint64(self, n):
        self.n_words += n
        return self.source.uint64(n)

    def child(self, *key):
        return self


class OneByOne:
    """Ask the sources one by one and note what `meter` says each of them drew."""

    def __init__(self, data, meter):
        self.inner, self.meter, self.drawn = InProcess(data), meter, []

    def ids(self):
        return self.inner.ids()

    def total(self, request, cohort):
        parts = []
        for i in cohort:
            before = self.meter()
            parts.append(self.inner.total(request, np.array([i])))
            self.drawn.append((int(i), self.meter() - before))
        return sum(parts[1:], parts[0])


def test_every_source_draws_one_variable_for_each_number_of_a_round(monkeypatch):
    algorithm, data = Moments(), dataset()
    n_drawn = [0]
    plain = randomizers.discrete_laplace

    def counted(n, scale, entropy):
        n_drawn[0] += n
        return plain(n, scale, entropy)

    monkeypatch.setattr(randomizers, "discrete_laplace", counted)
    engine = OneByOne(data, lambda: n_drawn[0])
    history, _ = run(SourceDP(1.0, "faithful"), algorithm, data, engine=engine)
    # 3, 6 and 9 sums, 4 labels and 1 mass; whatever a source holds, also nothing.
    assert engine.drawn == [(i, n) for n in (8, 11, 14) for i in range(4)]
    assert len(history) == 3


def test_words_that_a_source_reads_do_not_depend_on_its_rows():
    algorithm, data, entropy = Moments(), dataset(), Counting()
    engine = OneByOne(data, lambda: entropy.n_words)
    _, mechanism = run(
        SourceDP(1.0, "faithful"), algorithm, data, engine=engine, entropy=entropy
    )
    expected = []
    for index in range(3):
        codec, scales = scales_of(mechanism, algorithm, index)
        # A pair of geometric variables, one word for each of their digits.
        words = sum(
            2 * len(geometric_tables(scales[name])[1]) * code.spec.size
            for name, code in codec.blocks.items()
        )
        expected += [(i, words) for i in range(4)]
    assert engine.drawn == expected


@pytest.mark.parametrize("model", [MODELS[0], MODELS[2]], ids=repr)
def test_clients_draw_nothing_where_the_sum_of_the_noise_is_drawn(model):
    data, entropy = dataset(), Counting()
    engine = OneByOne(data, lambda: entropy.n_words)
    run(model, Moments(), data, engine=engine, entropy=entropy)
    assert len(engine.drawn) == 12 and not any(n for _, n in engine.drawn)
    assert entropy.n_words > 0


@pytest.mark.parametrize("model", MODELS, ids=repr)
def test_a_run_is_paid_once_with_eps(model):
    ledger = PrivacyLedger()
    run(model, Moments(), dataset(), ledger=ledger)
    (record,) = ledger.records()
    assert record["event"]["kind"] == "pure" and record["event"]["eps"] == 1.3
    assert record["details"]["unit"] == "example"
    assert record["details"]["n_rounds"] == 3
