"""One answer on every engine, to the last bit."""

import hashlib
import pickle
from dataclasses import dataclass, fields

import numpy as np
import pytest

from skfedcal import FederatedRunner, FedTempCalibrator
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import BlockSpec
from skfedcal.federation import InProcess, Joblib, PartialSum, Request, respond
from skfedcal.federation.backends import engine_of
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.methods.temperature.rounds import (
    TemperatureAverage,
    TemperatureGrid,
    TemperatureNewton,
)
from skfedcal.privacy import CentralDP, PrivacyLedger
from skfedcal.privacy.entropy import SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum
from skfedcal.privacy.models import ReleasePlan

N_CLASSES = 10

EXACT = {
    "newton": TemperatureNewton(),
    "grid": TemperatureGrid(),
    "average": TemperatureAverage(),
    "histograms": ClassHistograms(n_bins=7),
    "clipped-histograms": ClassHistograms(clip_positive=2.0, clip_negative=6.0),
    "histograms-of-log-odds": ClassHistograms(n_bins=128, space="logit"),
}
NOISY = {
    "posterior": TemperaturePosterior(),
    "grid": TemperatureGrid(n_points=9, clip=1.0),
    "average": TemperatureAverage(clip=0.5, n_rounds=2),
    "histograms": ClassHistograms(clip_positive=10.0, clip_negative=30.0),
    "per-class": ClassHistograms(
        5, clip_positive=3.0, clip_negative=9.0, per_class=True
    ),
}
CASES = [("exact", name) for name in EXACT] + [("noisy", name) for name in NOISY]


def make_dataset(sizes, dtype=np.float64, seed=0, n_classes=N_CLASSES):
    rng = np.random.default_rng(seed)
    n = int(np.sum(sizes))
    rows = (rng.normal(size=(n, n_classes)) * 3).astype(dtype)
    labels = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    names = [f"site {i}" for i in range(len(sizes))]
    return FederatedDataset(rows, labels, offsets, names, n_classes)


# Empty clients, clients of one row, and one that spans several blocks of work.
SIZES = [5, 0, 1, 30, 2, 0, 17, 1, 1, 9000, 3, 8, 40, 0, 12, 6]
DATA = make_dataset(SIZES)


def make_mechanism(kind, algorithm, n_clients, seed=1, unit="client"):
    if kind == "exact":
        return ExactSum(unit=unit)
    start = algorithm.broadcast(algorithm.init(N_CLASSES))
    n_values = sum(block.size for block in algorithm.spec(start).values())
    plan = ReleasePlan(n_clients, algorithm.n_rounds, algorithm.n_rounds, 1.0, n_values)
    return CentralDP(1.0, delta=1e-5, unit=unit).mechanism(
        plan, entropy=SeededEntropy(seed), ledger=PrivacyLedger()
    )


def algorithm_of(case):
    kind, name = case
    return (EXACT if kind == "exact" else NOISY)[name]


def digest(state, history):
    """SHA-256 of everything the server saw and concluded."""
    sha = hashlib.sha256()
    for record in history:
        for name, value in sorted(record.total.items()):
            sha.update(name.encode() + np.ascontiguousarray(value).tobytes())
    for f in fields(state):
        sha.update(np.asarray(getattr(state, f.name)).tobytes())
    return sha.hexdigest()


def run(case, backend, unit="client", **options):
    algorithm = algorithm_of(case)
    mechanism = make_mechanism(case[0], algorithm, len(backend.ids()), unit=unit)
    state, history = FederatedRunner(**options).run(
        algorithm, backend, mechanism, SeededEntropy(0), n_classes=N_CLASSES
    )
    return digest(state, history)


@dataclass
class OneByOne:
    """Every client answers by itself; answers are added up in a random order."""

    clients: FederatedDataset
    seed: int = 0

    def ids(self):
        return self.clients.names

    def total(self, request, cohort):
        order = np.random.default_rng(self.seed).permutation(cohort)
        answer = PartialSum(request.codec.zeros(), 0, 0)
        for i in order:
            answer = answer + respond(request, self.clients.slice(i, i + 1).compact())
        return answer


class Messages:
    """Sites that can be reached by bytes only; each holds its own rows."""

    def __init__(self, clients):
        self.sites = {
            name: clients.slice(i, i + 1).compact()
            for i, name in enumerate(clients.names)
        }
        self.sent = 0

    def ids(self):
        return list(self.sites)

    def total(self, request, cohort):
        letter = pickle.dumps(request)
        replies = []
        for i in cohort:
            self.sent += 1
            site = self.sites[self.ids()[i]]
            replies.append(pickle.dumps(respond(pickle.loads(letter), site)))
        answer = PartialSum(request.codec.zeros(), 0, 0)
        for reply in replies:
            answer = answer + pickle.loads(reply)
        return answer


# ------------------------------------------------------------------- the same bits


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_engines_agree_to_the_last_bit(case):
    expected = run(case, InProcess(DATA))
    assert run(case, Joblib(DATA, n_jobs=3, prefer="threads")) == expected
    assert run(case, OneByOne(DATA, seed=1)) == expected
    assert run(case, OneByOne(DATA, seed=2)) == expected
    assert run(case, Messages(DATA)) == expected
    assert run(case, InProcess(DATA), cohort_size=5) == expected


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_processes_agree_with_threads_to_the_last_bit(case):
    small = make_dataset([5, 0, 1, 30, 2, 17, 1, 12])
    expected = run(case, InProcess(small))
    assert run(case, Joblib(small, n_jobs=2, prefer="loky")) == expected


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_float32_rows_agree_to_the_last_bit(case):
    data = make_dataset(SIZES, np.float32)
    assert run(case, OneByOne(data)) == run(case, InProcess(data))


@pytest.mark.parametrize("case", CASES, ids="-".join)
@pytest.mark.parametrize("n_columns", [2, 10, 20, 60])
def test_a_client_answers_the_same_alone_and_in_company(case, n_columns):
    # Before clipping and rounding, which would hide most of a last bit.
    data = make_dataset([1, 2, 1, 0, 9, 1, 3, 150, 1], n_classes=n_columns)
    algorithm = algorithm_of(case)
    broadcast = algorithm.broadcast(algorithm.init(n_columns))
    together = algorithm.query(broadcast, data)
    for i in range(len(data)):
        alone = algorithm.query(broadcast, data.slice(i, i + 1).compact())
        for name, value in together.items():
            assert np.array_equal(alone[name][0], value[i])


@pytest.mark.parametrize("name", ["posterior", "grid", "histograms"])
def test_engines_agree_when_rows_are_the_unit(name):
    case = ("noisy", name)
    small = make_dataset([5, 0, 1, 30, 2, 17, 1, 12])
    expected = run(case, InProcess(small), unit="example")
    assert run(case, Messages(small), unit="example") == expected
    assert run(case, Joblib(small, n_jobs=2), unit="example") == expected


@pytest.mark.parametrize("cohort", ["permuted", "independent", "poisson"])
def test_engines_agree_on_samples_of_clients(cohort):
    case = ("noisy", "posterior")
    options = {"cohort": cohort, "cohort_size": 4}
    expected = run(case, InProcess(DATA), **options)
    assert run(case, Messages(DATA), **options) == expected
    assert run(case, Joblib(DATA, n_jobs=2), **options) == expected


def test_clients_in_any_order_give_the_same_noise_and_the_same_sum():
    order = np.random.default_rng(3).permutation(len(DATA))
    shuffled = DATA.select(order).compact()
    for case in CASES:
        assert run(case, InProcess(shuffled)) == run(case, InProcess(DATA))


# ------------------------------------------------------------------------ cohorts


@pytest.mark.parametrize(
    "cohort",
    [[], [3], [0, 1, 2], [2, 3, 4, 5], [0, 5, 2, 3], [5, 4, 3], [1, 3, 3], [7, 0]],
)
def test_any_cohort_in_any_order_is_the_clients_it_names(cohort):
    data = make_dataset([3, 0, 1, 4, 2, 2, 1, 5])
    cohort = np.array(cohort, dtype=np.int64)
    chosen = data.select(cohort)
    assert list(chosen.names) == [data.names[i] for i in cohort]
    assert chosen.sizes.tolist() == data.sizes[cohort].tolist()
    request = make_request(ClassHistograms(n_bins=3))
    expected = PartialSum(request.codec.zeros(), 0, 0)
    for i in cohort:
        expected = expected + respond(request, data.slice(i, i + 1))
    for backend in (InProcess(data), Joblib(data, n_jobs=2), Messages(data)):
        answer = backend.total(request, cohort)
        assert answer.n_clients == len(cohort)
        for name, value in expected.total.items():
            assert np.array_equal(answer.total[name], value)


def make_request(algorithm, kind="exact", unit="client"):
    broadcast = algorithm.broadcast(algorithm.init(N_CLASSES))
    mechanism = make_mechanism(kind, algorithm, 100, unit=unit)
    codec = mechanism.codec(algorithm.spec(broadcast))
    return Request(algorithm, broadcast, codec, unit)


# ----------------------------------------------------------------------- responses


def test_an_answer_is_the_sum_of_what_each_unit_may_send():
    algorithm = NOISY["histograms"]
    data = make_dataset([4, 1, 7])
    for unit in ("client", "example"):
        request = make_request(algorithm, "noisy", unit)
        answer = respond(request, data)
        units = data if unit == "client" else data.by_row()
        assert answer.n_clients == 3
        assert answer.n_units == len(units)
        values = algorithm.query(request.broadcast, units)
        for name, rows in request.codec.encode(values).items():
            assert np.array_equal(answer.total[name], rows.sum(axis=0))


def test_a_row_moves_an_answer_by_no_more_than_its_bound():
    request = make_request(NOISY["posterior"], "noisy", "example")
    data = make_dataset([12])
    code = request.codec.blocks["slopes"]
    whole = respond(request, data).total["slopes"]
    for i in range(12):
        keep = np.arange(12) != i
        moved = whole - respond(request, data.keep_rows(keep)).total["slopes"]
        assert sum(int(q) ** 2 for q in moved.ravel()) <= code.limit


def test_large_federations_are_answered_in_pieces(monkeypatch):
    from skfedcal.federation import endpoint

    request = make_request(NOISY["histograms"], "noisy")
    whole = respond(request, DATA)
    monkeypatch.setattr(endpoint, "_CHUNK_VALUES", 1000)
    pieces = respond(request, DATA)
    assert pieces.n_clients == whole.n_clients == len(DATA)
    for name, value in whole.total.items():
        assert np.array_equal(pieces.total[name], value)


@dataclass(frozen=True)
class Twice:
    """A query that sends two rows per client: twice the bound."""

    n_rounds: int = 1

    def init(self, n_classes):
        return None

    def broadcast(self, state):
        return {}

    def spec(self, broadcast):
        return {"x": BlockSpec((1,), clip=1.0)}

    def query(self, broadcast, clients):
        return {"x": np.ones((2 * len(clients), 1))}


def test_a_query_that_sends_more_rows_than_clients_is_refused():
    request = make_request(Twice(), "noisy")
    with pytest.raises(ValueError, match="one row for each client"):
        respond(request, DATA)


def test_requests_survive_pickling_and_count_their_bytes():
    request = make_request(NOISY["posterior"], "noisy")
    again = pickle.loads(pickle.dumps(request))
    assert again.algorithm == request.algorithm
    assert again.codec.blocks == request.codec.blocks
    assert request.n_bytes == 24  # three float64 numbers


# ----------------------------------------------------------- engines of the runner


def test_the_runner_takes_an_engine_instead_of_clients():
    engine = Messages(DATA)
    algorithm = NOISY["posterior"]
    state, history = FederatedRunner().run(
        algorithm,
        engine,
        make_mechanism("noisy", algorithm, len(DATA)),
        SeededEntropy(0),
        n_classes=N_CLASSES,
    )
    assert engine.sent == algorithm.n_rounds * len(DATA)
    assert digest(state, history) == run(("noisy", "posterior"), InProcess(DATA))
    with pytest.raises(ValueError, match="Pass n_classes"):
        FederatedRunner().run(algorithm, engine, ExactSum(), SeededEntropy(0))


def test_an_engine_cannot_change_who_is_asked_in_later_rounds():
    @dataclass
    class Shifting:
        inner: InProcess

        def ids(self):
            return self.inner.ids()

        def total(self, request, cohort):
            answer = self.inner.total(request, cohort)
            request.codec.blocks.popitem()
            cohort += 1
            return answer

    runner = FederatedRunner()
    exact = TemperatureNewton(), ExactSum(), SeededEntropy(0)

    def fit(engine):
        algorithm, *rest = exact
        return runner.run(algorithm, engine, *rest, n_classes=N_CLASSES)[0]

    with pytest.raises(ValueError, match="read-only"):
        fit(Shifting(InProcess(DATA)))
    # The block that it removed from its codec is in that of other runs.
    assert fit(InProcess(DATA)).converged


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_an_estimator_runs_on_the_engine_of_its_runner():
    # The rows given to `fit` settle classes, columns and the noise plan; the answers
    # come from the engine.
    data = make_dataset([5, 3, 9, 30, 2, 17, 4, 12])
    clients = {
        name: (part.rows, part.labels)
        for name, part in (
            (name, data.slice(i, i + 1).compact()) for i, name in enumerate(data.names)
        )
    }
    for eps in (None, 1.0):
        engine = Messages(data)
        runner = FederatedRunner(backend=engine)
        here = FedTempCalibrator(eps, random_state=0).fit(clients)
        there = FedTempCalibrator(eps, random_state=0, runner=runner).fit(clients)
        assert there.temperature_ == here.temperature_
        assert engine.sent == len(data) * there.n_rounds_


def test_an_engine_with_other_clients_is_refused_before_it_is_paid():
    # Noise, delta and sampling rate were planned for the clients of `fit`.
    data = make_dataset([5, 3, 9, 30])
    clients = [
        (part.rows, part.labels)
        for part in (data.slice(i, i + 1).compact() for i in range(len(data)))
    ]
    ledger = PrivacyLedger()
    engine = Messages(data)  # its names are "site 0", ..., not 0, ...
    runner = FederatedRunner(backend=engine)
    with pytest.raises(ValueError, match="not the 4 clients"):
        FedTempCalibrator(1.0, runner=runner, ledger=ledger).fit(clients)
    assert engine.sent == 0
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, InProcess(DATA)),
        ({"n_jobs": 1}, InProcess(DATA)),
        ({"n_jobs": 3}, Joblib(DATA, 3, "threads")),
        ({"backend": "threads"}, Joblib(DATA, -1, "threads")),
        ({"backend": "loky", "n_jobs": 2}, Joblib(DATA, 2, "loky")),
    ],
)
def test_the_engine_follows_the_parameters(options, expected):
    engine = engine_of(FederatedRunner(**options), DATA)
    assert type(engine) is type(expected)
    assert engine == expected
