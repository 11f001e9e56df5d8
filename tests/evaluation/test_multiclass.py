"""Metrics of several classes: scikit-learn's numbers, dealt classes and noise."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn import metrics

import skfedcal
from skfedcal import make_federation
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.evaluation.rounds import ClassTables
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)
AVERAGES = ["macro", "micro", "weighted", None]


@pytest.fixture(scope="module")
def fed():
    return make_federation(30, 3000, 5, class_bias=0.5, random_state=0)


@pytest.fixture(scope="module")
def rows(fed):
    logits = np.asarray(fed.logits, dtype=float)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True), np.asarray(fed.labels)


def check(found, expected, *, exact=False):
    for one, true in zip(np.atleast_1d(np.asarray(found, dtype=object)),
                         np.atleast_1d(expected), strict=True):  # fmt: skip
        assert abs(one - true) <= (1e-9 if exact else one.discretisation + 1e-12)
        assert one.low <= one <= one.high


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("name", ["precision_score", "recall_score", "f1_score"])
def test_predictions_are_those_of_sklearn(fed, rows, name, average):
    proba, labels = rows
    found = getattr(skfedcal, f"federated_{name}")(fed.clients, average=average)
    expected = getattr(metrics, name)(labels, proba.argmax(axis=1), average=average)
    check(found, expected, exact=True)


@pytest.mark.parametrize("average", AVERAGES)
def test_areas_are_those_of_sklearn(fed, rows, average):
    proba, labels = rows
    area = skfedcal.federated_roc_auc_score(
        fed.clients, multi_class="ovr", average=average
    )
    options = {"multi_class": "ovr", "average": average}
    check(area, metrics.roc_auc_score(labels, proba, **options))
    found = skfedcal.federated_average_precision_score(fed.clients, average=average)
    check(found, metrics.average_precision_score(labels, proba, average=average))
    if average in ("macro", "weighted"):
        pairs = {"multi_class": "ovo", "average": average}
        found = skfedcal.federated_roc_auc_score(fed.clients, **pairs)
        check(found, metrics.roc_auc_score(labels, proba, **pairs))
        assert found.discretisation < 1e-3


def test_other_metrics_are_those_of_sklearn(fed, rows):
    proba, labels = rows
    top = proba.argmax(axis=1)
    check(skfedcal.federated_accuracy_score(fed.clients), (top == labels).mean(),
          exact=True)  # fmt: skip
    for adjusted in (False, True):
        check(
            skfedcal.federated_balanced_accuracy_score(fed.clients, adjusted=adjusted),
            metrics.balanced_accuracy_score(labels, top, adjusted=adjusted),
            exact=True,
        )
    check(skfedcal.federated_log_loss(fed.clients), metrics.log_loss(labels, proba))
    brier = ((proba - np.eye(5)[labels]) ** 2).sum(axis=1)
    found = skfedcal.federated_brier_score_loss(fed.clients)
    check(found, brier.mean())
    # The sampling error is an upper bound.
    assert brier.std() <= found.se_sampling * np.sqrt(len(brier)) <= 2 * brier.std()
    for how in (None, "true", "pred", "all"):
        found = skfedcal.federated_confusion_matrix(fed.clients, normalize=how)
        expected = metrics.confusion_matrix(labels, top, normalize=how)
        np.testing.assert_allclose(np.array(found), expected, atol=1e-12)


@pytest.mark.slow
def test_against_torchmetrics(fed, rows):
    torch = pytest.importorskip("torch")
    peer = pytest.importorskip("torchmetrics.functional.classification")
    proba, labels = (torch.as_tensor(part) for part in rows)
    for average in ("macro", "weighted"):
        options = {"num_classes": 5, "average": average}
        area = skfedcal.federated_roc_auc_score(
            fed.clients, multi_class="ovr", average=average
        )
        check(area, float(peer.multiclass_auroc(proba, labels, **options)))
        found = skfedcal.federated_f1_score(fed.clients, average=average)
        expected = float(peer.multiclass_f1_score(proba, labels, **options))
        assert found == pytest.approx(expected, abs=1e-6)


def test_an_average_is_asked_for(fed):
    for name in ("precision", "recall", "f1"):
        function = getattr(skfedcal, f"federated_{name}_score")
        with pytest.raises(ValueError, match="There are 5 classes, but average"):
            function(fed.clients)
        with pytest.raises(ValueError, match="average='mean': pass one of"):
            function(fed.clients, average="mean")
        with pytest.raises(ValueError, match=r"threshold=0\.3"):
            function(fed.clients, average="macro", threshold=0.3)
    with pytest.raises(ValueError, match="average='micro'"):
        skfedcal.federated_roc_auc_score(
            fed.clients, multi_class="ovo", average="micro"
        )
    with pytest.raises(ValueError, match="normalize='row'"):
        skfedcal.federated_confusion_matrix(fed.clients, normalize="row")
    for option in ({"weighting": "client"}, {"levels": (2, 6)}, {"pos_label": 1}):
        with pytest.raises(ValueError, match="not used with more than two classes"):
            skfedcal.federated_log_loss(fed.clients, **option)


def test_two_classes_ignore_multi_class_as_in_sklearn():
    fed = make_federation(10, 500, 2, random_state=0)
    areas = {
        float(skfedcal.federated_roc_auc_score(fed.clients, multi_class=word))
        for word in ("raise", "ovr", "ovo")
    }
    assert len(areas) == 1
    macro = skfedcal.federated_f1_score(fed.clients, average="macro")
    logits, labels = np.asarray(fed.logits), np.asarray(fed.labels)
    expected = metrics.f1_score(labels, logits.argmax(axis=1), average="macro")
    assert macro == pytest.approx(expected, abs=1e-12)


def one_row_each(n, n_classes, seed=0):
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(n, n_classes)), rng.integers(0, n_classes, n)
    return FederatedDataset(rows, labels, np.arange(n + 1), range(n), n_classes)


ALL = ClassTables(
    ("confusion", "margins", "scores", "pairs", "top"), (0, 0, 3, 2, 4),
    n_classes=4, private=True, max_examples=1,
)  # fmt: skip


def test_what_a_row_adds_is_within_its_bound():
    data = one_row_each(400, 4)
    broadcast = ALL.broadcast(ALL.init(4))
    spec = ALL.spec(broadcast)
    for name, cells in ALL.query(broadcast, data).items():
        dense = cells.dense()
        sizes = dense.sum(axis=(1, 2))
        assert dense.shape[1:] == spec[name].shape
        assert sizes.max() == spec[name].clip and sizes.min() >= 1
    # 'pairs' and 'scores' count the same classes, the own one among the positives.
    sent = ALL.query(broadcast, data)
    own = sent["scores"].dense()[:, 4:].sum(axis=2).argmax(axis=1)
    assert (own == data.labels).all()
    one = replace(ALL, one_cell=True)
    for cells in one.query(broadcast, data).values():
        if cells.block != (3, 4):  # margins have two entries
            assert (cells.dense().sum(axis=(1, 2)) == 1).all()


@pytest.mark.parametrize("by_values", [False, True])
def test_classes_are_dealt_evenly_and_whatever_the_scores(by_values):
    n, k = 30_000, 4
    data = one_row_each(n, k)
    algorithm = replace(ALL, parts=("pairs",), heights=(0,), by_values=by_values)
    sent = algorithm.query(algorithm.broadcast(algorithm.init(k)), data)["pairs"]
    dealt = sent.total().reshape(k, k)
    for label in range(k):
        size = dealt[label, label]
        others = np.delete(dealt[label], label)
        assert others.sum() == size
        # A binomial share of 1/3; six standard deviations.
        assert (np.abs(others - size / 3) < 6 * np.sqrt(size * 2 / 9)).all()
    again = replace(algorithm, salt=1)
    other = again.query(again.broadcast(again.init(k)), data)["pairs"].total()
    assert (other != sent.total()).any()


@pytest.mark.parametrize("privacy", [CentralDP(2.0), DistributedDP(2.0, unit="example"),
                                     LocalDP(6.0)], ids=repr)  # fmt: skip
def test_noisy_numbers_are_near_the_exact_ones(privacy):
    fed = make_federation(1, 20_000, 4, class_bias=0.5, alpha=None, random_state=1)
    ask = {"clients": fed.logits, "y": fed.labels, "client_ids": np.arange(20_000)}
    ask["classes"] = range(4)
    noisy = {**ask, "privacy": privacy, "random_state": 0}
    calls = {
        "roc_auc_score": [{"multi_class": "ovr"}, {"multi_class": "ovo"}],
        "average_precision_score": [{}],
        "f1_score": [{"average": "macro"}, {"average": "weighted"}],
        "balanced_accuracy_score": [{}],
        "log_loss": [{}],
        "brier_score_loss": [{}],
    }
    for name, options in calls.items():
        function = getattr(skfedcal, f"federated_{name}")
        for option in options:
            exact, found = function(**ask, **option), function(**noisy, **option)
            assert found.se_privacy > 0 and found.high - found.low < 0.7
            # Rows were dealt, so that the sampling error counts as well.
            slack = 6 * found.se + found.discretisation * (name != "roc_auc_score")
            assert abs(found - exact) < slack, (name, option)
            assert found.eps == privacy.eps


@pytest.mark.slow
def test_intervals_of_dealt_areas_hold_the_truth():
    # 60 releases at nominal .95: fewer than 47 hits have a probability below 1e-6.
    big = make_federation(10, 200_000, 6, alpha=None, random_state=5)
    truth = {}
    for word in ("ovr", "ovo"):
        truth[word] = float(
            skfedcal.federated_roc_auc_score(big.clients, multi_class=word)
        )
    hits = {"ovr": 0, "ovo": 0}
    logits, labels = np.asarray(big.logits), np.asarray(big.labels)
    for seed in range(60):
        part = np.random.default_rng(seed).integers(0, len(labels), 3000)
        for word in hits:
            found = skfedcal.federated_roc_auc_score(
                logits[part], labels[part], client_ids=np.arange(3000),
                privacy=CentralDP(1.0), multi_class=word, classes=range(6),
                random_state=seed,
            )  # fmt: skip
            slack = found.discretisation
            hits[word] += found.low - slack <= truth[word] <= found.high + slack
    assert min(hits.values()) >= 47
