"""federated_report: all metrics of one release."""

import numpy as np
import pytest
from sklearn import metrics

import skfedcal
from skfedcal import PrivacyLedger, federated_report, make_federation
from skfedcal.evaluation import ClassificationReport, multiclass
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


def proba_of(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_the_report_has_the_numbers_of_sklearn(n_classes):
    fed = make_federation(30, 3000, n_classes, random_state=0)
    labels, proba = np.asarray(fed.labels), proba_of(np.asarray(fed.logits, float))
    top = proba.argmax(axis=1)
    report = federated_report(fed.clients, debias=False)
    theirs = metrics.classification_report(labels, top, output_dict=True)
    found = report.to_dict()
    assert found["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-9)
    for name in (*map(str, range(n_classes)), "macro avg", "weighted avg"):
        for column in ("precision", "recall", "f1-score"):
            expected = theirs[name][column]
            assert found[name][column] == pytest.approx(expected, abs=1e-9)
    for k in range(n_classes):
        assert found[str(k)]["support"] == (labels == k).sum()
    balanced = metrics.balanced_accuracy_score(labels, top)
    assert found["balanced accuracy"] == pytest.approx(balanced, abs=1e-9)
    matrix = metrics.confusion_matrix(labels, top)
    np.testing.assert_array_equal(np.array(report.confusion), matrix)
    scores = proba[:, 1] if n_classes == 2 else proba
    brier = ((proba - np.eye(n_classes)[labels]) ** 2).sum(axis=1).mean()
    sure = scores if n_classes == 2 else proba.max(axis=1)
    hits = labels if n_classes == 2 else top == labels
    bins = np.minimum((sure * 15).astype(int), 14)
    gaps = np.bincount(bins, hits - sure)
    expected = {
        "roc auc": metrics.roc_auc_score(labels, scores, multi_class="ovr"),
        "average precision": metrics.average_precision_score(labels, scores),
        "log loss": metrics.log_loss(labels, proba),
        "brier": brier / 2 if n_classes == 2 else brier,
        "ece": np.abs(gaps).sum() / len(labels),
    }
    for name, value in expected.items():
        one = report[name]
        assert abs(one - value) <= one.discretisation + 1e-12, name
        assert one.low <= one <= one.high


@pytest.mark.parametrize("n_classes", [2, 4, 10])
@pytest.mark.parametrize("privacy", [CentralDP(2.0), DistributedDP(2.0), LocalDP(5.0)],
                         ids=repr)  # fmt: skip
def test_one_budget_pays_for_all_of_it(n_classes, privacy):
    n = 16_000 if isinstance(privacy, LocalDP) else 4000
    fed = make_federation(1, n, n_classes, random_state=0)
    ledger = PrivacyLedger()
    report = federated_report(
        fed.logits, fed.labels, client_ids=np.arange(n), privacy=privacy,
        classes=range(n_classes), ledger=ledger, random_state=0,
    )  # fmt: skip
    assert len(report.privacy_.ledger_ids) == 1
    assert report.privacy_.eps == privacy.eps
    exact = federated_report(fed.clients)
    for name in ("accuracy", "balanced accuracy", "roc auc", "ece"):
        found = report[name]
        assert found.eps == privacy.eps and found.se_privacy > 0
        slack = 6 * found.se + found.discretisation + 0.05 * (name == "ece")
        assert abs(found - exact[name]) < slack, name
    # Ten classes have their margins counted where noise is added once.
    sparse = n_classes == 10 and not isinstance(privacy, LocalDP)
    assert (report.confusion is None) == sparse
    assert f"eps={privacy.eps:g}" in str(report) and "Simulated" in str(report)


def test_texts_and_entries():
    fed = make_federation(10, 900, 3, random_state=0)
    named = np.array(["<b>", "mid", "zero"])[np.asarray(fed.labels)]
    report = federated_report(fed.logits, named, classes=["<b>", "mid", "zero"])
    assert isinstance(report, ClassificationReport) and str(report) == repr(report)
    html = report._repr_html_()
    assert "&lt;b&gt;" in html and "<b>" not in html
    assert report == federated_report(fed.logits, named, classes=["<b>", "mid", "zero"])
    with pytest.raises(KeyError, match="entries are"):
        report["speed"]
    full = report.to_dict(intervals=True)
    assert full["macro avg"]["recall"]["low"] < full["macro avg"]["recall"]["high"]
    assert skfedcal.federated_report is federated_report


def edge(name):
    """Clients of one of the odd forms that real data has."""
    import pandas as pd

    rng = np.random.default_rng(0)
    n_clients, each, classes = 12, 6, np.arange(3)
    if name == "one row each":
        n_clients, each = 3, 1
    if name == "strings":
        classes = np.array(["ham", "spam", "what"])
    if name == "many classes":
        classes = np.arange(101)
    out = []
    for i in range(n_clients):
        scores = rng.normal(0, 2, (each, len(classes)))
        labels = classes[rng.integers(0, len(classes), each)]
        if name == "one class":
            labels[:] = 1
        if name == "float16":
            scores = scores.astype(np.float16)
        if name == "empty client" and i == 1:
            scores, labels = scores[:0], labels[:0]
        if name == "pandas":
            scores, labels = pd.DataFrame(scores), pd.Series(labels, range(5, 11))
        out.append((scores, labels))
    return out, classes


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("eps", [None, 1.0])
@pytest.mark.parametrize(
    "name",
    ["one row each", "strings", "many classes", "one class", "float16", "empty client",
     "pandas"],
)  # fmt: skip
def test_reports_and_monitors_of_odd_clients(name, eps):
    from skfedcal import CalibrationMonitor

    clients, classes = edge(name)
    rows = {"max_examples_per_client": None if eps is None else 1}
    privacy = None if eps is None else CentralDP(eps)
    common = {"classes": classes, "random_state": 0, **rows}
    report = federated_report(clients, privacy=privacy, **common)
    assert len(report.to_dict()) > len(classes) and str(report) and report._repr_html_()
    monitor = CalibrationMonitor(eps, periods=3, **common)
    for _ in range(2):
        monitor.update(clients)
    assert monitor.summary() and len(monitor.series("ece").period) == 2
    assert (
        0 <= monitor.estimate("accuracy").low <= monitor.estimate("accuracy").high <= 1
    )
    if eps is None:
        y = np.concatenate([np.asarray(labels) for _, labels in clients])
        best = np.concatenate(
            [np.asarray(scores).argmax(axis=1) for scores, _ in clients]
        )
        right = np.mean(np.asarray(classes)[best] == y)
        assert report.to_dict()["accuracy"] == pytest.approx(right)
        assert monitor.estimate("accuracy") == pytest.approx(right)
        assert (report.confusion is None) == (name == "many classes")


def test_a_budget_that_is_too_small_for_a_monitor_says_so():
    from skfedcal import CalibrationMonitor

    clients, classes = edge("strings")
    monitor = CalibrationMonitor(1e-6, classes=classes, max_examples_per_client=1)
    with pytest.raises(ValueError, match=r"eps=1e-06.*pass a larger budget"):
        monitor.update(clients)
    assert monitor.n_periods_ == 0 and len(monitor.ledger) == 0


def parts_of(estimate):
    names = ("low", "high", "se_sampling", "se_privacy", "design_effect")
    return [float(estimate), *(getattr(estimate, name) for name in names)]


def all_parts(report, n_classes):
    rows = [report[str(k)] for k in range(n_classes)]
    columns = ("precision", "recall", "f1-score", "support")
    found = [parts_of(row[column]) for row in rows for column in columns]
    return np.array(found), np.array(
        [[parts_of(cell) for cell in row] for row in report.confusion or []]
    )


# Products of all cells, of all margins, and of the margins of each class.
@pytest.mark.parametrize("n_classes", [3, 12, 40])
@pytest.mark.parametrize("population", ["clients", "rows"])
def test_metrics_of_one_class_need_two_by_two_cells_only(
    monkeypatch, n_classes, population
):
    fed = make_federation(25, 2000, n_classes, random_state=1)
    clients = [(X, y) for X, y in fed.clients if len(y)]
    short = federated_report(clients, population=population)
    assert short["0"]["recall"].population == population

    def with_all_cells(self):
        return ((self, k) for k in range(len(self.classes_)))

    def one_by_one(self, ci):
        size = range(len(self.classes_))
        return [[self._cell(i, j, None, ci) for j in size] for i in size]

    monkeypatch.setattr(multiclass.Predictions, "_by_class", with_all_cells)
    monkeypatch.setattr(multiclass.Predictions, "_exact_cells", one_by_one)
    long = federated_report(clients, population=population)
    for found, expected in zip(
        all_parts(short, n_classes), all_parts(long, n_classes), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_report_of_many_classes_asks_each_class_once(monkeypatch):
    fed = make_federation(10, 800, 30, random_state=0)
    asked = []
    honest = multiclass.OneQuestion.roc_auc

    def counted(self, **options):
        asked.append(self)
        return honest(self, **options)

    monkeypatch.setattr(multiclass.OneQuestion, "roc_auc", counted)
    federated_report(fed.clients, population="rows")
    assert len(asked) == 30
