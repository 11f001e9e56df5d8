"""Clients in shards: the bits of one process, on any executor, and what is refused."""

import hashlib
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import FunctionType

import numpy as np
import pytest

from skfedcal import (
    CentralDP,
    DistributedDP,
    FedBinCalibrator,
    FederatedRunner,
    FedGaussianHead,
    FedTempCalibrator,
    LocalDP,
    PrivacyLedger,
    ScoreHistogram,
    federated_compare_scores,
    federated_log_loss,
    federated_report,
)
from skfedcal.clients import save_federation
from skfedcal.exceptions import CheckpointError
from skfedcal.federation import ShardedClients
from skfedcal.federation.shard_rows import CACHE
from skfedcal.methods.registry import configurations
from skfedcal.privacy.entropy import KeyedEntropy, OSEntropy

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]

N_CLIENTS, N_CLASSES = 60, 4
CUTS = [0, 11, 12, 40, 60]  # clients of the shards: 11, 1, 28, 20


def make_rows(n_clients=N_CLIENTS, n_classes=N_CLASSES, seed=0):
    rng = np.random.default_rng(seed)
    owners = np.repeat(np.arange(n_clients), rng.integers(1, 12, n_clients))
    logits = 2 * rng.normal(size=(len(owners), n_classes))
    labels = (logits / 1.7 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    return logits, labels, owners


LOGITS, LABELS, OWNERS = make_rows()


def parts(cuts=CUTS):
    for low, high in pairwise(cuts):
        yield (low <= OWNERS) & (high > OWNERS)


def write(folder, write_one, ending=".npz"):
    for i, rows in enumerate(parts()):
        write_one(folder / f"part-{i}{ending}", rows)
    return folder


def write_npz(path, rows):
    # In any order within a shard.
    order = np.random.default_rng(1).permutation(np.flatnonzero(rows))
    save_federation(path, LOGITS[order], LABELS[order], client_ids=OWNERS[order])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("shards"), write_npz)


# Rows of a client in the order of the shard, which its sums depend on to the last bit.
ORDER = np.concatenate(
    [
        np.random.default_rng(1).permutation(np.flatnonzero(rows))[
            np.argsort(
                OWNERS[np.random.default_rng(1).permutation(np.flatnonzero(rows))],
                kind="stable",
            )
        ]
        for rows in parts()
    ]
)


def fit_here(estimator):
    return estimator.fit(LOGITS[ORDER], LABELS[ORDER], client_ids=OWNERS[ORDER])


def same_price(a, b):
    return replace(a.privacy_, ledger_ids=()) == replace(b.privacy_, ledger_ids=())


def assert_same(a, b):
    """The same releases, to the last bit, at the same price."""
    assert same_price(a, b)
    assert a.n_clients_ == b.n_clients_
    assert len(a.history_) == len(b.history_)
    for one, other in zip(a.history_, b.history_, strict=True):
        assert one.n_clients == other.n_clients
        assert one.n_cohorts == other.n_cohorts
        for name in one.total:
            assert np.array_equal(one.total[name], other.total[name])
    assert np.array_equal(a.predict_proba(LOGITS[:50]), b.predict_proba(LOGITS[:50]))


# --------------------------------------------------------------- the same bits


@pytest.mark.parametrize("eps", [None, 2.0])
@pytest.mark.parametrize("name", sorted(configurations()))
def test_every_method_has_the_bits_of_one_process(name, eps, folder):
    method, settings = configurations()[name]
    make = partial(method.load(), **settings, classes=range(N_CLASSES), random_state=0)
    params = {} if eps is None else {"eps": eps}
    if eps is not None and not method.has_noise:
        with pytest.raises(ValueError, match="no version with noise"):
            make(**params).fit(ShardedClients(folder))
        return
    assert_same(make(**params).fit(ShardedClients(folder)), fit_here(make(**params)))


@pytest.mark.parametrize(
    "runner",
    [
        FederatedRunner(cohort="full", cohort_size=7),
        FederatedRunner(cohort="permuted", cohort_size=13),
        FederatedRunner(cohort="independent", cohort_size=13),
        FederatedRunner(cohort="poisson", cohort_size=13),
    ],
    ids=lambda runner: runner.cohort,
)
@pytest.mark.parametrize(
    "privacy",
    [
        None,
        CentralDP(eps=3),
        CentralDP(eps=3, unit="example"),
        DistributedDP(eps=3, mode="faithful", n_min=4),
        DistributedDP(eps=3, mode="fast", n_min=4),
    ],
    ids=["exact", "central", "examples", "shares", "fast"],
)
def test_cohorts_and_noise_have_the_bits_of_one_process(runner, privacy, folder):
    if runner.cohort == "poisson" and isinstance(privacy, DistributedDP):
        pytest.skip("a sample has no sure size")
    make = partial(
        FedTempCalibrator,
        privacy=privacy,
        runner=runner,
        random_state=3,
        classes=range(4),
    )
    assert_same(make().fit(ShardedClients(folder)), fit_here(make()))


@pytest.mark.parametrize("mode", ["fast", "faithful"])
def test_local_reports_have_the_bits_of_one_process(mode, folder):
    ask = partial(
        ScoreHistogram.fit,
        kind="top",
        classes=range(N_CLASSES),
        privacy=LocalDP(eps=2, mode=mode),
        random_state=0,
    )
    found = ask(ShardedClients(folder))
    here = ask(LOGITS[ORDER], LABELS[ORDER], client_ids=OWNERS[ORDER])
    assert float(found.ece()) == float(here.ece())
    assert same_price(found, here)


@pytest.mark.parametrize("privacy", [None, CentralDP(eps=5)], ids=["exact", "eps"])
def test_evaluation_has_the_answers_of_one_process(privacy, folder):
    shards = ShardedClients(folder)
    keywords = {"privacy": privacy, "random_state": 0, "max_examples_per_client": 3}
    here = (LOGITS[ORDER], LABELS[ORDER])
    for function in (federated_report, federated_log_loss):
        found = function(shards, **keywords)
        local = function(*here, client_ids=OWNERS[ORDER], **keywords)
        assert repr(found) == repr(local)


def test_calibrated_shards_are_measured_as_calibrated_rows(folder):
    shards = ShardedClients(folder)
    cal = FedTempCalibrator().fit(shards)
    after = shards.calibrated(cal)
    found = federated_log_loss(after)
    local = federated_log_loss(
        cal.predict_log_proba(LOGITS[ORDER]), LABELS[ORDER], client_ids=OWNERS[ORDER]
    )
    assert float(found) == pytest.approx(float(local), rel=1e-9)
    assert float(found) < float(federated_log_loss(shards))
    assert len(after) == len(shards) == N_CLIENTS


def test_a_map_is_compared_with_its_input_on_the_workers(folder):
    cal = FedBinCalibrator(classes=range(N_CLASSES)).fit(ShardedClients(folder))
    found = cal.comparison_
    after = -cal.predict_log_proba(LOGITS)[np.arange(len(LABELS)), LABELS].mean()
    assert found["n_rows"] == len(LABELS) and not found["held_back"]
    assert found["log_loss"] == pytest.approx(after, rel=1e-4)


def test_features_and_pairs_of_scores_in_shards(folder):
    shards = ShardedClients(folder)
    head = FedGaussianHead(classes=range(N_CLASSES)).fit(shards)
    here = FedGaussianHead(classes=range(N_CLASSES)).fit(
        LOGITS[ORDER], LABELS[ORDER], client_ids=OWNERS[ORDER]
    )
    assert np.array_equal(head.predict_proba(LOGITS), here.predict_proba(LOGITS))

    def both(rows):
        return np.hstack([LOGITS[rows], LOGITS[rows] / 1.7]), LABELS[rows], OWNERS[rows]

    two = ShardedClients([r.nonzero()[0].tolist() for r in parts()], loader=both)
    found = federated_compare_scores(two, metric="log_loss", classes=range(N_CLASSES))
    local = federated_compare_scores(
        LOGITS, LOGITS / 1.7, LABELS, metric="log_loss", client_ids=OWNERS
    )
    assert float(found) == float(local)


# ------------------------------------------------------------------ forms of shards


def parquet(path, rows):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {f"logit_{i}": LOGITS[rows, i] for i in range(N_CLASSES)}
    columns |= {"label": LABELS[rows], "client": OWNERS[rows]}
    parquet.write_table(pa.table(columns), path)


def csv(path, rows):
    head = [*(f"logit_{i}" for i in range(N_CLASSES)), "label", "client"]
    table = np.column_stack([LOGITS[rows], LABELS[rows], OWNERS[rows]])
    lines = [
        ",".join(map(repr, (*r[:-2], int(r[-2]), int(r[-1])))) for r in table.tolist()
    ]
    path.write_text("\n".join([",".join(head), *lines]))


def named(path, rows):
    names = np.array([f"client {i:02}" for i in np.unique(OWNERS[rows])])
    codes = np.unique(OWNERS[rows], return_inverse=True)[1]
    save_federation(
        path, LOGITS[rows], LABELS[rows], client_ids=codes, client_names=names
    )


def validation(path, rows):
    save_federation(
        path,
        LOGITS[:5],
        LABELS[:5],
        client_ids=OWNERS[:5],
        val_logits=LOGITS[rows],
        val_labels=LABELS[rows],
        val_client_ids=OWNERS[rows],
    )


@pytest.mark.parametrize(
    ("write_one", "ending", "options"),
    [
        (parquet, ".parquet", {}),
        (csv, ".csv", {}),
        (named, ".npz", {}),
        (validation, ".npz", {"split": "auto"}),
        (validation, ".npz", {"split": "val"}),
    ],
)
def test_files_of_all_kinds_are_shards(write_one, ending, options, tmp_path):
    write(tmp_path, write_one, ending)
    here = FedTempCalibrator(1.0, random_state=0, classes=range(N_CLASSES)).fit(
        LOGITS, LABELS, client_ids=OWNERS
    )
    for shards in (
        tmp_path,
        str(tmp_path / f"part-*{ending}"),
        sorted(tmp_path.iterdir()),
    ):
        cal = FedTempCalibrator(1.0, random_state=0, classes=range(N_CLASSES))
        found = cal.fit(ShardedClients(shards, **options))
        assert found.temperature_ == here.temperature_
        assert found.n_clients_ == N_CLIENTS


def test_files_without_clients_are_one_client_each(tmp_path):
    clients = [(LOGITS[i == OWNERS], LABELS[i == OWNERS]) for i in range(20)]
    for i, (logits, labels) in enumerate(clients):
        save_federation(tmp_path / f"{i:02}.npz", logits, labels)
    shards = ShardedClients(tmp_path)
    found = FedTempCalibrator(1.0, random_state=0, classes=range(4)).fit(shards)
    here = FedTempCalibrator(1.0, random_state=0, classes=range(4)).fit(clients)
    assert_same(found, here)


def test_one_column_of_log_odds_and_named_classes():
    odds, labels = LOGITS[:, 1] - LOGITS[:, 0], np.where(LABELS > 1, "yes", "no")
    shards = ShardedClients(
        [np.flatnonzero(rows).tolist() for rows in parts()],
        loader=lambda rows: (odds[rows], labels[rows], OWNERS[rows]),
    )
    cal = FedTempCalibrator(classes=["no", "yes"])
    found = cal.fit(shards)
    here = FedTempCalibrator(classes=["no", "yes"]).fit(odds, labels, client_ids=OWNERS)
    assert found.temperature_ == here.temperature_
    assert found.n_features_in_ == 1
    assert len(shards) == N_CLIENTS and shards.n_rows == len(labels)


# ------------------------------------------------------------------------ executors


class Spy:
    """Executor that sends everything through pickle, and asks every task twice."""

    n_workers = 2

    def __init__(self):
        self.sizes, self.answers = [], []

    def map(self, function, tasks):
        for task in reversed(tasks):
            sent = pickle.dumps((function, task))
            answers = []
            for _ in range(2):  # the first answer is lost
                CACHE.forget("")
                again, same = pickle.loads(sent)
                answers.append(pickle.dumps(again(same)))
            self.sizes += [len(sent), len(answers[1])]
            self.answers.append(answers)
            yield pickle.loads(answers[1])


@pytest.mark.parametrize("privacy", [None, CentralDP(eps=1)], ids=["exact", "eps"])
def test_nothing_per_client_passes_through_the_driver(privacy, tmp_path):
    runner = FederatedRunner(cohort="poisson", cohort_size=30, n_rounds=2)
    largest = []
    for n_clients in (100, 3_000):
        logits, labels, owners = make_rows(n_clients)
        for i in range(2):
            rows = owners // (n_clients // 2) == i
            path = tmp_path / f"{n_clients}-{i}.npz"
            save_federation(path, logits[rows], labels[rows], client_ids=owners[rows])
        spy = Spy()
        shards = ShardedClients(str(tmp_path / f"{n_clients}-*"), executor=spy)
        FedTempCalibrator(privacy=privacy, runner=runner, classes=range(4)).fit(shards)
        largest.append(max(spy.sizes))
    assert largest[1] < largest[0] + 100 < 20_000


@pytest.mark.parametrize(
    "privacy",
    [DistributedDP(eps=1, mode="faithful", n_min=60), LocalDP(eps=1, mode="faithful")],
    ids=["shares", "local"],
)
def test_a_task_that_is_run_again_draws_the_same_noise(privacy, folder):
    # Not seeded: the noise of clients comes from a secret key of the round.
    spy, other = Spy(), Spy()
    for executor in (spy, other):
        found = ScoreHistogram.fit(
            ShardedClients(folder, executor=executor),
            kind="top",
            privacy=privacy,
            max_examples_per_client=1,
        )
        assert found.privacy_.secure
    sums = [
        [pickle.loads(answer) for answer in answers if b"PartialSum" in answer]
        for answers in spy.answers
    ]
    pairs = [pair for pair in sums if len(pair) == 2]
    assert len(pairs) >= 4
    for first, second in pairs:
        for name in first.total:
            assert np.array_equal(first.total[name], second.total[name])
    # Two runs have keys of their own.
    totals = [
        sum(
            np.concatenate([v.ravel() for v in pickle.loads(a[1]).total.values()]).sum()
            * (i + 1)
            for i, a in enumerate(run.answers)
            if b"PartialSum" in a[1]
        )
        for run in (spy, other)
    ]
    assert totals[0] != totals[1]


@pytest.mark.parametrize("make", [None, 2, partial(ThreadPoolExecutor, 3)])
def test_executors_agree(make, folder):
    executor = make() if callable(make) else make
    cal = FedBinCalibrator(1.0, random_state=0, classes=range(4))
    found = cal.fit(ShardedClients(folder, executor=executor))
    here = fit_here(FedBinCalibrator(1.0, random_state=0, classes=range(4)))
    assert_same(found, here)


def test_rows_that_do_not_fit_into_memory_are_read_again(folder):
    for cache_bytes in (0, 2_000):
        found = FedTempCalibrator().fit(ShardedClients(folder, cache_bytes=cache_bytes))
        assert_same(found, fit_here(FedTempCalibrator()))


def test_memory_is_given_back(folder):
    CACHE.forget("")
    shards = ShardedClients(folder)
    FedTempCalibrator().fit(shards)
    assert CACHE._n_bytes > LOGITS.nbytes
    del shards
    assert CACHE._n_bytes == 0


# ------------------------------------------------------------------- draws of cohorts


def test_words_of_a_key_are_those_of_the_hash():
    key = bytes(range(32))
    source = KeyedEntropy(key, 5)
    # Length of the path, then length and value of each of its numbers.
    text = b"".join(n.to_bytes(4, "little") for n in (2, 1, 5, 1, 4096))
    words = hashlib.shake_256(key + text).digest(8 * 10)
    assert source.at(4096).uint64(10).tobytes() == words
    assert np.array_equal(source.uint64(9000)[4090:4110], source.at(4090).uint64(20))
    assert not np.array_equal(source.child(1).uint64(5), source.child(2).uint64(5))
    assert "0102" not in repr(source) and "\\x01" not in repr(source)
    with pytest.raises(ValueError, match="32 bytes"):
        KeyedEntropy(b"short")


def test_secret_cohorts_differ_from_run_to_run(folder):
    runner = FederatedRunner(cohort="poisson", cohort_size=20, n_rounds=3)

    def answers():
        spy = Spy()
        FedTempCalibrator(solver="newton", runner=runner).fit(
            ShardedClients(folder, executor=spy)
        )
        return [a[1] for a in spy.answers[-4:]]

    assert answers() != answers()
    draws = {KeyedEntropy.draw(OSEntropy()).uint64(1).item() for _ in range(20)}
    assert len(draws) == 20


# ------------------------------------------------------------------- what is refused


def owners_of(*parts):
    """Shards with these clients, one row each."""
    return ShardedClients(
        [f"shard {i}" for i in range(len(parts))],
        loader=lambda name: (
            np.eye(2)[np.zeros(len(parts[int(name[-1])]), dtype=int)],
            np.arange(len(parts[int(name[-1])])) % 2,
            parts[int(name[-1])],
        ),
    )


@pytest.mark.parametrize("executor", [None, 2])
def test_a_client_in_two_shards_is_refused(executor, tmp_path):
    for i, rows in enumerate([OWNERS < 30, OWNERS >= 29]):
        write_npz(tmp_path / f"{i}.npz", rows)
    with pytest.raises(
        ValueError, match=r"Client 29 has rows in the shards .*0.npz and"
    ):
        FedTempCalibrator().fit(ShardedClients(tmp_path, executor=executor))


def test_owners_of_shards_in_any_order(monkeypatch):
    monkeypatch.setattr("skfedcal.federation.shards._IDS_AT_ONCE", 3)  # buckets
    even, odd = list(range(0, 20, 2)), list(range(1, 20, 2))
    assert len(owners_of(even, odd)) == 20
    names = [f"client {i}" for i in range(20)]
    assert len(owners_of(names[::2], names[1::2])) == 20
    with pytest.raises(ValueError, match="Client 7 has rows in the shards shard 0 and"):
        len(owners_of([*even, 7], odd))
    with pytest.raises(ValueError, match="Client 'client 3' has rows"):
        len(owners_of([*names[::2], "client 3"], names[1::2]))
    with pytest.raises(ValueError, match="different ways"):
        len(owners_of([1, 2], ["a", "b"]))
    with pytest.raises(ValueError, match="strings, or whole numbers"):
        len(owners_of([1.5, 2.0], [3.0, 4.0]))


def bad_nan(path, rows):
    logits = LOGITS[rows].copy()
    logits[3, 1] = np.nan
    np.savez(path, logits=logits, labels=LABELS[rows], client=OWNERS[rows])


def bad_columns(path, rows):
    save_federation(
        path, LOGITS[rows][:, :3], np.zeros(rows.sum(), int), client_ids=OWNERS[rows]
    )


def bad_labels(path, rows):
    labels = LABELS[rows].copy()
    labels[2] = N_CLASSES
    np.savez(path, logits=LOGITS[rows], labels=labels, client=OWNERS[rows])


def bad_lengths(path, rows):
    np.savez(path, logits=LOGITS[rows], labels=LABELS[rows][1:], client=OWNERS[rows])


def bad_file(path, rows):
    path.write_bytes(b"nothing")


def class_names(path, rows):
    save_federation(path, LOGITS[rows], LABELS[rows], client_ids=OWNERS[rows])
    with np.load(path) as file:
        np.savez(path, **file, class_names=np.array(list("abcd")))


def no_labels(path, rows):
    np.savez(path, logits=LOGITS[rows], client=OWNERS[rows])


@pytest.mark.parametrize(
    ("write_one", "text"),
    [
        (bad_nan, r"Shard .*part-2.npz: .*row 3 of logits has NaN"),
        (
            bad_columns,
            r"Shard .*part-2.npz has 3 columns of scores, .*part-0.npz has 4",
        ),
        (bad_labels, r"Shard .*part-2.npz: y contains labels not in `classes`: \[4\]"),
        (bad_lengths, r"Shard .*part-2.npz: .*labels has shape"),
        (class_names, r"Shard .*part-2.npz: .*names its classes"),
        (bad_file, r"Shard .*part-2.npz: .*not an .npz file"),
        (no_labels, r"Shard .*part-2.npz: .*needs the arrays 'logits'"),
    ],
)
def test_a_bad_shard_is_named_before_anything_is_paid(write_one, text, tmp_path):
    write(tmp_path, write_npz)
    write_one(tmp_path / "part-2.npz", list(parts())[2])
    ledger = PrivacyLedger(require_secure=False)
    with pytest.raises(ValueError, match=text):
        FedTempCalibrator(1.0, ledger=ledger).fit(ShardedClients(tmp_path))
    assert not len(ledger)


def test_a_missing_shard_is_named(folder):
    with pytest.raises(FileNotFoundError, match=r"Shard /nowhere/a\.npz"):
        FedTempCalibrator().fit(ShardedClients(["/nowhere/a.npz"]))
    with pytest.raises(FileNotFoundError, match="no shards there"):
        ShardedClients(str(folder / "*.parquet"))


def test_a_shard_that_changes_during_a_run_is_refused(tmp_path):
    write(tmp_path, write_npz)
    shards = ShardedClients(tmp_path, cache_bytes=0)
    ledger = PrivacyLedger(require_secure=False)
    cal = FedTempCalibrator(1.0, ledger=ledger)
    cal.fit(shards)
    write_npz(tmp_path / "part-2.npz", (OWNERS >= 13) & (OWNERS < 40))
    with pytest.raises(ValueError, match=r"part-2.npz has changed since"):
        cal.fit(shards)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"shards": []}, ValueError, "shards is empty"),
        ({"shards": 3}, TypeError, "pass a folder, a pattern or a list"),
        ({"shards": [1, 2]}, TypeError, "pass paths, or a loader"),
        ({"shards": ["a.npz", "a.npz"]}, ValueError, "a shard twice"),
        ({"shards": ["a"], "executor": "spark"}, TypeError, "executor='spark'"),
        ({"shards": ["a"], "executor": 0}, ValueError, "executor=0"),
        ({"shards": ["a"], "loader": 5}, TypeError, "loader must be a function"),
        ({"shards": ["a"], "split": "train"}, ValueError, "split must be one of"),
        ({"shards": ["a"], "columns": {"x": "y"}}, ValueError, "unknown role"),
        ({"shards": ["a"], "cache_bytes": -1}, ValueError, "cache_bytes=-1"),
    ],
)
def test_arguments_are_checked_at_once(arguments, error, text):
    with pytest.raises(error, match=text):
        ShardedClients(**arguments)


def test_what_needs_rows_here_is_refused(folder):
    shards = ShardedClients(folder)
    for arguments in ({"y": LABELS}, {"client_ids": OWNERS}, {"sample_weight": LABELS}):
        with pytest.raises(ValueError, match="cannot be passed with ShardedClients"):
            FedTempCalibrator().fit(shards, **arguments)
    for runner, text in (
        (FederatedRunner(backend="threads"), "backend='threads'"),
        (FederatedRunner(n_jobs=2), "n_jobs=2"),
        (FederatedRunner(cohort_size=20, secure=True), "masks would hide nothing"),
    ):
        with pytest.raises(ValueError, match=text):
            FedTempCalibrator(runner=runner).fit(shards)
    with pytest.raises(ValueError, match="shards have no parts of rows"):
        shards.part("held")
    with pytest.raises(ValueError, match="pass positions of shards"):
        shards.subset([1, 1])
    with pytest.raises(TypeError, match="pass a fitted calibrator"):
        shards.calibrated(3)


# ------------------------------------------------------------------ lost workers


class Failing:
    """Executor whose workers are lost in one round."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def map(self, function, tasks):
        self.calls += 1
        if self.calls == self.at:
            raise ConnectionError("the worker is gone")
        return map(function, tasks)


def test_a_run_that_lost_its_workers_is_resumed_and_paid_once(folder, tmp_path):
    ledger = PrivacyLedger(require_secure=False)
    make = partial(FedTempCalibrator, 1.0, random_state=0, classes=range(4))
    whole = make().fit(ShardedClients(folder))
    path = tmp_path / "run.json"
    with pytest.raises(ConnectionError):
        make(ledger=ledger, runner=FederatedRunner(checkpoint=path)).fit(
            ShardedClients(folder, executor=Failing(4))
        )
    assert len(ledger) == 1
    runner = FederatedRunner(checkpoint=path, resume=True)
    found = make(ledger=ledger, runner=runner).fit(ShardedClients(folder))
    assert found.temperature_ == whole.temperature_
    assert len(ledger) == 1


def test_a_checkpoint_of_other_shards_is_refused(folder, tmp_path):
    path = tmp_path / "run.json"
    shards = ShardedClients(folder)
    FedTempCalibrator(runner=FederatedRunner(checkpoint=path)).fit(shards)
    runner = FederatedRunner(checkpoint=path, resume=True)
    with pytest.raises(CheckpointError):
        FedTempCalibrator(runner=runner).fit(shards.subset([0, 1, 3]))


# A loader that stops its worker once, by a mark that it leaves in a folder.
def dies_once(item):
    path, mark = item
    if not os.path.exists(mark):
        open(mark, "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    with np.load(path) as file:
        return file["logits"], file["labels"], file["client"]


def check_cluster(executor, folder, marks):
    """The bits of one process, also when a worker is killed in the middle."""
    make = partial(FedTempCalibrator, 1.0, random_state=0, classes=range(N_CLASSES))
    here = fit_here(make())
    assert_same(make().fit(ShardedClients(folder, executor=executor)), here)
    histogram = partial(ScoreHistogram.fit, kind="top", random_state=0)
    found = histogram(ShardedClients(folder, executor=executor))
    local = histogram(LOGITS[ORDER], LABELS[ORDER], client_ids=OWNERS[ORDER])
    assert float(found.ece()) == float(local.ece())
    with pytest.raises(FileNotFoundError, match="Shard /nowhere"):
        make().fit(ShardedClients(["/nowhere/a.npz"], executor=executor))
    ledger = PrivacyLedger(require_secure=False)
    items = [
        (str(path), str(marks / f"{i // 2}"))
        for i, path in enumerate(sorted(folder.iterdir()))
    ]
    lost = ShardedClients(items, loader=by_value(dies_once), executor=executor)
    assert_same_result(make(ledger=ledger).fit(lost), here)
    assert len(ledger) == 1
    assert len(list(marks.iterdir())) == 2  # two workers were killed


def assert_same_result(a, b):
    assert a.temperature_ == b.temperature_
    for one, other in zip(a.history_, b.history_, strict=True):
        for name in one.total:
            assert np.array_equal(one.total[name], other.total[name])


def by_value(function):
    """Copy that is sent with its code: workers cannot import the tests."""
    names = {name: globals()[name] for name in ("np", "os", "signal")}
    copy = FunctionType(function.__code__, names, function.__name__)
    copy.__module__ = "__main__"
    return copy


@pytest.mark.slow
def test_a_dask_cluster_has_the_bits_of_one_process(folder, tmp_path):
    distributed = pytest.importorskip("distributed")
    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with (
        distributed.LocalCluster(processes=True, **settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        pids = client.run(os.getpid)
        assert len(set(pids.values()) - {os.getpid()}) == 2
        check_cluster(client, folder, tmp_path)


@pytest.mark.slow
def test_a_ray_cluster_has_the_bits_of_one_process(folder, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
    try:
        check_cluster("ray", folder, tmp_path)
    finally:
        ray.shutdown()


def test_a_shard_and_a_link_to_it_are_one_shard(tmp_path):
    (tmp_path / "a.npz").touch()
    try:
        (tmp_path / "b.npz").symlink_to(tmp_path / "a.npz")
    except OSError:
        pytest.skip("no links here")
    with pytest.raises(ValueError, match="a shard twice"):
        ShardedClients([tmp_path / "a.npz", tmp_path / "b.npz"])
    with pytest.raises(ValueError, match="a shard twice"):
        ShardedClients(tmp_path)
