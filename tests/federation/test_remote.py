"""Fitting on rows that stay elsewhere."""

import numpy as np
import pytest
from sklearn.base import clone

from skfedcal import (
    ClasswiseResiduals,
    FedBinCalibrator,
    FederatedRunner,
    FedGaussianHead,
    FedHistogramCalibrator,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    federated_accuracy_score,
    federated_roc_auc_score,
    load,
    make_federation,
    save_federation,
)
from skfedcal._numerics import softmax
from skfedcal.exceptions import FaultyClientWarning, NotEnoughClientsError
from skfedcal.federation import (
    InProcessTransport,
    MessageBackend,
    Reading,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP, SourceDP

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
]

NAMES = ["rome", "oslo", "bern", "york"]
POLICY = SitePolicy(allow_plain=True)


def federation(n_classes=3, dtype=np.float64):
    fed = make_federation(4, 200, n_classes, dtype=dtype, random_state=1)
    return dict(zip(NAMES, fed.clients, strict=True))


def remote(clients, **options):
    sites = {n: Site(n, SiteRows(*rows), policy=POLICY) for n, rows in clients.items()}
    return RemoteClients(InProcessTransport(sites), **options)


def same(here, there):
    """Two fits that predict the same bits."""
    rows = federation(len(here.classes_))["rome"][0]
    return (
        np.array_equal(here.classes_, there.classes_)
        and np.array_equal(here.predict_proba(rows), there.predict_proba(rows))
        and here.n_features_in_ == there.n_features_in_
        and here.n_clients_ == there.n_clients_
    )


# Labels and columns.


@pytest.mark.parametrize(
    "labels",
    [
        [0, 1, 2],
        [7, -3, 1000],
        ["cat", "ant", "bee"],
        [2.0, 0.0, 1.0],
        ["longer than most labels are", "b", "c"],
    ],
)
def test_labels_are_mapped_at_the_site(labels):
    """As they are here, in whatever order the columns have them."""
    clients = {
        name: (rows, np.asarray(labels)[y]) for name, (rows, y) in federation().items()
    }
    calibrator = FedBinCalibrator(classes=labels)
    here, there = calibrator.fit(clients), FedBinCalibrator(classes=labels)
    assert same(here, there.fit(remote(clients)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("input_type", ["logits", "log_proba", "proba"])
def test_scores_are_read_at_the_site(input_type, dtype):
    def turned(rows):
        proba = softmax(rows)
        return {"logits": rows, "proba": proba, "log_proba": np.log(proba)}[input_type]

    clients = {n: (turned(x), y) for n, (x, y) in federation(dtype=dtype).items()}
    options = {"classes": [0, 1, 2], "input_type": input_type}
    here = FedTempCalibrator(**options).fit(clients)
    there = FedTempCalibrator(**options).fit(remote(clients))
    assert there.temperature_ == here.temperature_


@pytest.mark.parametrize("input_type", ["logits", "proba"])
def test_one_column_of_two_classes(input_type):
    clients = {}
    for name, (rows, labels) in federation(2).items():
        column = rows[:, 1] - rows[:, 0]
        if input_type == "proba":
            column = 1 / (1 + np.exp(-column))
        clients[name] = (column, labels)
    options = {"classes": [0, 1], "input_type": input_type}
    here = FedTempCalibrator(**options).fit(clients)
    there = FedTempCalibrator(**options).fit(remote(clients, n_columns=1))
    assert there.temperature_ == here.temperature_ and there.n_features_in_ == 1
    one = ScoreHistogram.fit(clients, **options)
    two = ScoreHistogram.fit(remote(clients, n_columns=1), **options)
    assert np.array_equal(one.counts_, two.counts_)


def test_labels_of_another_kind_count_as_zero_and_sites_say_so(caplog):
    clients = federation()
    for classes, words in (
        (["0", "1", "2"], "another type"),
        ([0, 1, 3], "label is not one of the classes"),
    ):
        runner = FederatedRunner(secure=True)
        calibrator = FedTempCalibrator(classes=classes, runner=runner)
        with caplog.at_level("WARNING", logger="skfedcal.site"):
            history = calibrator.fit(remote(clients)).history_
        assert all(record.n_clients == 4 and not record.faults for record in history)
        assert words in caplog.text


def test_an_empty_site_sends_zeros():
    clients = federation()
    empty = clients | {"bern": (np.zeros((0, 3)), np.zeros(0, dtype=int))}
    here = FedBinCalibrator(classes=[0, 1, 2]).fit(empty)
    assert same(here, FedBinCalibrator(classes=[0, 1, 2]).fit(remote(empty)))


def test_files_of_sites(tmp_path):
    clients = federation()
    for name, (rows, labels) in clients.items():
        save_federation(tmp_path / f"{name}.npz", rows, labels)
    sites = {
        name: Site(name, SiteRows.load(tmp_path / f"{name}.npz"), policy=POLICY)
        for name in NAMES
    }
    found = RemoteClients(InProcessTransport(sites))
    here = FedTempCalibrator(classes=[0, 1, 2]).fit(clients)
    assert same(here, FedTempCalibrator(classes=[0, 1, 2]).fit(found))
    # A file of logits is not read as probabilities.
    own = SiteRows.load(tmp_path / f"{NAMES[0]}.npz")
    read = Reading((0, 1, 2), "proba").read(own, "a")
    assert len(read.clients.labels) == 0 and read.n_rows == len(own)
    (why,) = read.unfit
    assert why == "the file holds 'logits', the request reads 'proba'"


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"labels": np.zeros(3)}, "needs the arrays"),
        ({"logits": np.zeros((3, 2))}, "needs the arrays"),
        ({"logits": np.zeros((3, 2)), "labels": np.zeros(4)}, "one label per example"),
        ({"logits": np.array([["a"]]), "labels": np.zeros(1)}, "pass numbers"),
        ({"logits": np.zeros((2, 2)), "labels": np.array([None, 1])}, "pickled"),
    ],
)
def test_other_files_are_no_rows(arrays, words, tmp_path):
    np.savez(tmp_path / "site.npz", **arrays)
    with pytest.raises(ValueError, match=words):
        SiteRows.load(tmp_path / "site.npz")


def test_half_precision_is_read_as_single():
    rows = SiteRows(np.zeros((2, 2), dtype=np.float16), np.zeros(2))
    assert rows.scores.dtype == np.float32
    assert SiteRows(np.zeros((2, 2), dtype=int), np.zeros(2)).scores.dtype == np.float64


@pytest.mark.parametrize(
    "options",
    [
        {"classes": (1,)},
        {"classes": (1, 1)},
        {"classes": (1, "1")},
        {"classes": (0, 1, 2), "n_columns": 1},
    ],
)
def test_agreements_that_cannot_be(options):
    with pytest.raises(ValueError):
        Reading(**options)


# What is not known here.


def test_classes_must_be_agreed():
    found = remote(federation())
    for fit in (
        FedTempCalibrator().fit,
        ScoreHistogram.fit,
        ClasswiseResiduals.fit,
        federated_accuracy_score,
    ):
        with pytest.raises(ValueError, match="pass `classes`"):
            fit(found)


@pytest.mark.parametrize("name", ["y", "client_ids", "sample_weight"])
def test_arguments_of_rows_are_refused(name):
    found = remote(federation())
    with pytest.raises(ValueError, match=f"{name} cannot be passed with RemoteClients"):
        FedTempCalibrator(classes=[0, 1, 2]).fit(found, **{name: [0, 1]})
    if name != "sample_weight":
        with pytest.raises(ValueError, match=f"{name} cannot be passed"):
            ScoreHistogram.fit(found, kind="top", classes=[0, 1, 2], **{name: [0, 1]})


def test_input_types_are_never_guessed():
    with pytest.raises(ValueError, match="input_type"):
        ScoreHistogram.fit(remote(federation(2)), classes=[0, 1], input_type="odds")


def test_the_number_of_rows_must_be_public_to_hide_one():
    model = CentralDP(1.0, unit="example")
    calibrator = FedTempCalibrator(privacy=model, classes=[0, 1, 2], random_state=0)
    ledger = PrivacyLedger()
    with pytest.raises(ValueError, match=r"RemoteClients\(..., n_rows=...\)"):
        calibrator.set_params(ledger=ledger).fit(remote(federation()))
    assert len(ledger) == 0
    calibrator.set_params(ledger=None)
    here = calibrator.fit(federation()).temperature_
    assert calibrator.fit(remote(federation(), n_rows=200)).temperature_ == here


def test_a_false_number_of_rows_tells_nothing():
    model = CentralDP(1.0, unit="example")
    calibrator = FedTempCalibrator(
        privacy=model, classes=[0, 1, 2], runner=FederatedRunner(secure=True)
    )
    # Nobody is told how many rows a site has; noise is planned for what was declared.
    fitted = calibrator.fit(remote(federation(), n_rows=20))
    assert fitted.privacy_.n_clients == 20
    assert all(not record.faults for record in fitted.history_)


@pytest.mark.parametrize(
    "model", [DistributedDP(1.0), LocalDP(1.0), SourceDP(1.0)], ids=str
)
def test_noise_of_sites_is_not_drawn_here(model):
    ledger = PrivacyLedger()
    with pytest.raises(ValueError, match="Pass mode='faithful'"):
        ScoreHistogram.fit(
            remote(federation(2), n_rows=200),
            classes=[0, 1],
            privacy=model,
            ledger=ledger,
        )
    if isinstance(model, DistributedDP):
        with pytest.raises(ValueError, match="Pass mode='faithful'"):
            FedTempCalibrator(privacy=model, classes=[0, 1]).fit(remote(federation(2)))
    assert len(ledger) == 0


def test_an_engine_beside_the_clients_is_refused():
    found = remote(federation())
    runner = FederatedRunner(backend=InProcessTransport({}))
    with pytest.raises(ValueError, match="Leave backend out"):
        FedTempCalibrator(classes=[0, 1, 2], runner=runner).fit(found)


def test_a_ready_engine_is_used_as_it_is():
    sites = {n: Site(n, SiteRows(*rows)) for n, rows in federation().items()}
    engine = MessageBackend(InProcessTransport(sites), secure=True)
    found = RemoteClients(engine)
    assert len(found) == 4 and repr(found) == "RemoteClients(4 sites)"
    runner = FederatedRunner(secure=True)
    FedTempCalibrator(classes=[0, 1, 2], runner=runner).fit(found)
    # The sites of this engine mask, asked to or not.
    FedTempCalibrator(classes=[0, 1, 2]).fit(found)
    plain = RemoteClients(MessageBackend(InProcessTransport(sites)))
    with pytest.raises(ValueError, match="does not mask"):
        FedTempCalibrator(classes=[0, 1, 2], runner=runner).fit(plain)


# What comes out.


def test_the_result_is_saved_and_loaded_like_any_other(tmp_path):
    found = FedHistogramCalibrator(classes=["a", "b", "c"])
    clients = {
        n: (x, np.array(["a", "b", "c"])[y]) for n, (x, y) in federation().items()
    }
    found.fit(remote(clients)).save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    rows = clients["rome"][0]
    assert np.array_equal(again.predict_proba(rows), found.predict_proba(rows))
    assert np.array_equal(again.predict(rows), found.predict(rows))


def test_evaluation_answers_as_it_does_here():
    clients = federation(2)
    options = {"classes": [0, 1]}
    for function in (federated_roc_auc_score, federated_accuracy_score):
        assert function(remote(clients), **options) == function(clients, **options)
    cut = {"threshold": 0.3, **options}
    here = federated_accuracy_score(clients, **cut)
    assert federated_accuracy_score(remote(clients), **cut) == here
    with pytest.raises(ValueError, match="There are 3 classes"):
        ScoreHistogram.fit(remote(federation()), classes=[0, 1, 2])
    with pytest.raises(ValueError, match="pos_label=5 is not a class"):
        ScoreHistogram.fit(remote(clients), classes=[0, 1], pos_label=5)


def test_reports_of_sites():
    """Levels are dealt over the sites, each of which reports once."""
    found = ScoreHistogram.fit(
        remote(federation(2)),
        classes=[0, 1],
        privacy=LocalDP(50.0, mode="faithful"),
        height=2,
    )
    assert len(found.history_) == 2 and found.n_clients_ == 4
    assert found.n_examples_ == pytest.approx(4.0, abs=1e-6)


def test_a_private_fit_pays_at_the_server_once():
    ledger = PrivacyLedger(budget=(1.0, 1e-5))
    runner = FederatedRunner(secure=True)
    FedTempCalibrator(eps=1.0, delta=1e-5, classes=[0, 1, 2], ledger=ledger,
                      runner=runner).fit(remote(federation()))  # fmt: skip
    assert len(ledger) == 1


# Features.


def features():
    rng = np.random.default_rng(0)
    labels = rng.choice(["a", "b", "c"], 300)
    rows = rng.normal(size=(300, 4)) + (labels == "b")[:, None]
    return {f"s{i}": (rows[i::5], labels[i::5]) for i in range(5)}


@pytest.mark.parametrize("options", [{}, {"eps": 5.0, "max_norm": 4.0}])
def test_a_head_from_sites_is_that_of_one_process(options):
    clients = features()
    head = FedGaussianHead(
        classes=["c", "a", "b"],
        random_state=0,
        runner=FederatedRunner(secure=True),
        **options,
    )
    here = clone(head).set_params(runner=None).fit(clients)
    there = head.fit(remote(clients, n_columns=4))
    np.testing.assert_array_equal(there.coef_, here.coef_, strict=True)
    assert there.classes_.tolist() == here.classes_.tolist() == ["a", "b", "c"]
    assert there.n_features_in_ == 4 and there.n_clients_ == 5


def test_what_a_head_must_be_told():
    sites = remote(features(), n_columns=4)
    with pytest.raises(ValueError, match="pass `classes`"):
        FedGaussianHead().fit(sites)
    with pytest.raises(ValueError, match=r"RemoteClients\(..., n_columns=...\)"):
        FedGaussianHead(classes=["a", "b", "c"]).fit(remote(features()))
    with pytest.raises(ValueError, match="y cannot be passed"):
        FedGaussianHead(classes=["a", "b", "c"]).fit(sites, [1])


def test_features_are_no_logits(tmp_path):
    rows, labels = features()["s0"]
    np.savez(tmp_path / "site.npz", features=rows, labels=labels)
    own = SiteRows.load(tmp_path / "site.npz")
    assert own.kind == "features"
    asked = Reading(("a", "b", "c"), n_columns=4, rows="features")
    assert asked.dataset(own, "s0").rows.shape == rows.shape
    for reading, rows_, words in (
        (Reading(("a", "b", "c", "d")), own, "holds 'features', the request reads 'l"),
        (asked, SiteRows(rows, labels, "logits"), "holds 'logits', the request reads"),
    ):
        read = reading.read(rows_, "s0")
        assert words in next(iter(read.unfit)) and not len(read.clients.labels)
    bad = SiteRows(np.where(rows > 1, np.inf, rows), labels)
    read = asked.read(bad, "s0")
    n_bad = int((rows > 1).any(axis=1).sum())
    assert read.unfit["scores are not 'features'"] == n_bad > 0
    assert len(read.clients.labels) == len(labels) - n_bad
    with pytest.raises(ValueError, match="the number of features"):
        Reading(("a", "b"), rows="features")


def test_networks_are_not_trained_by_sites_that_do_not_allow_it():
    from skfedcal.training import FedAvgClassifier

    with (
        pytest.warns(FaultyClientWarning, match="policy .allow_training. does not"),
        pytest.raises(NotEnoughClientsError, match="0 clients answered"),
    ):
        FedAvgClassifier(classes=[0, 1, 2]).fit(remote(features(), n_columns=4))
