"""FedOneVsRestCalibrator: the maps of scikit-learn, from clients."""

import warnings

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, LinearSVC

from skfedcal import (
    FederatedDataset,
    FederatedRunner,
    FedOneVsRestCalibrator,
    SecureAggregation,
    testing,
)
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.federation import (
    InProcess,
    InProcessTransport,
    RemoteClients,
    Site,
    SitePolicy,
    SiteRows,
)
from skfedcal.methods.class_scores import rounds
from skfedcal.methods.class_scores.rounds import ScoreTable
from skfedcal.methods.held_back import HeldBackFit

DATA = {
    "breast cancer": load_breast_cancer,
    "digits": load_digits,
    "skewed": lambda return_X_y: make_classification(
        900, n_informative=6, n_classes=3, weights=[0.9, 0.07], random_state=0
    ),
}
MODELS = [
    RandomForestClassifier(25, random_state=0),
    GaussianNB(),
    KNeighborsClassifier(7),
    LinearSVC(random_state=0),
    SVC(),
    LogisticRegression(max_iter=3000),
]


def scores_of(model, X):
    """Scores that scikit-learn calibrates, and their type."""
    if hasattr(model, "decision_function"):
        return model.decision_function(X), "logits"
    return model.predict_proba(X), "proba"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:Since FrozenEstimator:UserWarning")
@pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_equals_scikit_learn_for_one_client_and_for_many(method, data, model):
    X, y = DATA[data](return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    train, rows, test = np.array_split(order, 3)
    model = model.fit(X[train], y[train])
    scores, kind = scores_of(model, X[rows])
    for weights in (None, rng.integers(0, 3, len(rows)) * 0.7):
        there = CalibratedClassifierCV(FrozenEstimator(model), method=method)
        expected = there.fit(X[rows], y[rows], sample_weight=weights)
        expected = expected.predict_proba(X[test])
        for ids in (None, rng.integers(0, 20, len(rows)), y[rows]):
            here = FedOneVsRestCalibrator(
                method=method, input_type=kind, classes=model.classes_
            ).fit(scores, y[rows], client_ids=ids, sample_weight=weights)
            found = here.predict_proba(scores_of(model, X[test])[0])
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
@pytest.mark.parametrize("factor", [1e-200, 1e-6, 1.0, 1e9, 1e200])
def test_the_unit_of_the_scores_does_not_matter(method, factor):
    if method == "isotonic" and factor < 1e-9:
        pytest.skip("scikit-learn takes scores closer than 1e-15 for one")
    rng = np.random.default_rng(1)
    scores = rng.normal(size=300)
    y = (scores + rng.normal(size=300) > 0.5).astype(int)
    plain = FedOneVsRestCalibrator(method=method).fit(scores, y)
    scaled = FedOneVsRestCalibrator(method=method).fit(scores * factor, y)
    np.testing.assert_allclose(
        scaled.predict_proba(scores * factor), plain.predict_proba(scores), atol=1e-9
    )


def test_a_far_offset_of_the_scores_is_taken_out():
    rng = np.random.default_rng(2)
    scores = rng.normal(size=400)
    y = (scores + rng.normal(size=400) > 0).astype(int)
    plain = FedOneVsRestCalibrator().fit(scores, y)
    far = FedOneVsRestCalibrator().fit(scores + 1e5, y)
    np.testing.assert_allclose(
        far.predict_proba(scores + 1e5), plain.predict_proba(scores), atol=1e-6
    )


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_equal_scores_give_the_share_of_positives(method):
    y = np.repeat([0, 1], [30, 10])
    fitted = FedOneVsRestCalibrator(method=method).fit(np.full(40, 3.0), y)
    # Platt's targets: (1 / 32 * 30 + 11 / 12 * 10) / 40.
    share = 0.25 if method == "isotonic" else (30 / 32 + 110 / 12) / 40
    assert fitted.predict_proba([3.0])[0, 1] == pytest.approx(share, abs=1e-9)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_separable_scores_and_absent_classes_have_finite_curves(method):
    scores = np.random.default_rng(3).normal(size=(60, 3))
    fitted = FedOneVsRestCalibrator(method=method, classes=["a", "b", "c"])
    fitted.fit(scores, np.where(scores[:, 0] > 0, "a", "b"), client_ids=[1, 2] * 30)
    proba = fitted.predict_proba(scores)
    assert np.isfinite(proba).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert (proba[:, 2] < 0.05).all()
    alone = FedOneVsRestCalibrator(method=method, classes=[0, 1]).fit(
        scores[:, 0], [1] * 60
    )
    assert (alone.predict_proba(scores[:, 0])[:, 1] > 0.9).all()


def test_two_columns_of_logits_are_their_difference():
    rng = np.random.default_rng(4)
    logits, y = rng.normal(size=(200, 2)), rng.integers(0, 2, 200)
    two = FedOneVsRestCalibrator(method="isotonic").fit(logits, y).predict_proba(logits)
    odds = logits[:, 1] - logits[:, 0]
    one = FedOneVsRestCalibrator(method="isotonic").fit(odds, y).predict_proba(odds)
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_zero_weights_leave_rows_out(method):
    rng = np.random.default_rng(5)
    scores, y = rng.normal(size=(240, 3)), rng.integers(0, 3, 240)
    ids, used = rng.integers(0, 6, 240), rng.random(240) < 0.5
    scores[~used] *= 1e3
    some = FedOneVsRestCalibrator(method=method).fit(
        scores, y, client_ids=ids, sample_weight=used.astype(float)
    )
    fewer = FedOneVsRestCalibrator(method=method).fit(scores[used], y[used])
    np.testing.assert_allclose(
        some.predict_proba(scores), fewer.predict_proba(scores), atol=1e-9
    )


def test_noise_is_refused_with_the_way_out():
    fitted = FedOneVsRestCalibrator(method="isotonic", eps=1.0)
    with pytest.raises(ValueError, match=r"FedHistogramCalibrator\(method='isotonic'"):
        fitted.fit(np.arange(10.0), [0, 1] * 5)


def test_the_report_says_what_the_server_learns():
    scores, y = np.arange(10.0), [0, 1] * 5
    table = FedOneVsRestCalibrator(method="isotonic", privacy=SecureAggregation())
    report = table.fit(scores, y, client_ids=[1, 2] * 5).privacy_
    assert not report.private
    assert "every distinct score" in " ".join(report.assumptions)
    assert not FedOneVsRestCalibrator().fit(scores, y).privacy_.assumptions


def test_too_few_rounds_are_said():
    with pytest.raises(ValueError, match="could not be read in 1 rounds"):
        FedOneVsRestCalibrator(
            method="isotonic", runner=FederatedRunner(n_rounds=1)
        ).fit(np.arange(10.0), [0, 1] * 5)


def dataset(scores, labels, n_clients):
    offsets = np.linspace(0, len(labels), n_clients + 1).astype(int)
    return FederatedDataset(scores, labels, offsets, range(n_clients), 3)


def test_the_table_is_that_of_all_rows_together():
    rng = np.random.default_rng(6)
    scores = rng.integers(0, 50, (700, 3)) / 7.0
    scores[:5] = [[-0.0, 0.0, np.nextafter(0, 1)]]
    labels = rng.integers(0, 3, 700)
    clients, table = dataset(scores, labels, 9), ScoreTable()
    state = table.init(3)
    while not table.done(state):
        sent = table.query(table.broadcast(state), clients)
        total = {name: testing.dense(rows).sum(axis=0) for name, rows in sent.items()}
        state = table.update(state, total, 9)
    for i in range(3):
        values, group = np.unique(scores[:, i], return_inverse=True)
        own = state.index == i
        np.testing.assert_array_equal(state.scores[own], values)
        counts = [np.bincount(group, (labels == i) == k) for k in (0, 1)]
        np.testing.assert_array_equal(state.weights[:, own], counts)


def test_a_knot_in_the_sketch_asks_again_with_another_hash(monkeypatch):
    # Two cells for each part: three scores cannot all be read.
    monkeypatch.setattr(rounds, "_SPARE", 0)
    monkeypatch.setattr(rounds, "_LOAD", 0.1)
    rng = np.random.default_rng(7)
    clients, table = (
        dataset(rng.normal(size=(40, 3)), np.zeros(40, int), 2),
        ScoreTable(),
    )
    state = table.init(3)
    for _ in range(4):
        sent = table.query(table.broadcast(state), clients)
        total = {name: testing.dense(rows).sum(axis=0) for name, rows in sent.items()}
        state = table.update(state, total, 2)
        assert not table.done(state)
    assert state.rounds == 4


def noisy_scores(n_rows=300):
    """Scores of two classes and labels."""
    rng = np.random.default_rng(0)
    scores = 2 * rng.normal(size=n_rows)
    return scores[:, None], (rng.random(n_rows) < 1 / (1 + np.exp(-scores))).astype(int)


class Failing:
    """Clients that cannot be reached in the second round."""

    def __init__(self, clients):
        self.inner, self.n_asked = InProcess(clients), 0

    def ids(self):
        return self.inner.ids()

    def total(self, request, cohort):
        self.n_asked += 1
        if self.n_asked == 2:
            raise ConnectionError
        return self.inner.total(request, cohort)


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
def test_a_stopped_fit_is_resumed(method, tmp_path):
    scores, y = noisy_scores()
    engine = Failing(FederatedDataset(scores, y, np.arange(4) * 100, range(3), 2))
    ids = np.arange(300) // 100

    def fit(resume):
        path = tmp_path / "run.npz"
        runner = FederatedRunner(backend=engine, checkpoint=path, resume=resume)
        cal = FedOneVsRestCalibrator(method=method, runner=runner)
        return cal.fit(scores, y, client_ids=ids)

    with pytest.raises(ConnectionError):
        fit(False)
    found = fit(True)
    again = fit(True)
    expected = FedOneVsRestCalibrator(method=method).fit(scores, y, client_ids=ids)
    for one in (found, again):
        np.testing.assert_array_equal(
            one.predict_proba(scores), expected.predict_proba(scores)
        )


def test_infinite_and_huge_scores_do_not_stop_an_isotonic_fit():
    scores, y = noisy_scores()
    Z = np.column_stack([np.zeros(len(scores)), scores.ravel()])
    Z[3, 0], Z[4] = -np.inf, [1e308, -1e308]
    found = FedOneVsRestCalibrator(method="isotonic").fit(Z, y)
    assert np.isfinite(found.predict_proba(Z)).all()


@pytest.mark.parametrize("method", ["sigmoid", "isotonic"])
@pytest.mark.parametrize("unit", [1e-10, 1e18])
def test_weights_that_sums_cannot_hold_are_refused(method, unit):
    scores, y = noisy_scores()
    cal = FedOneVsRestCalibrator(method=method)
    with pytest.raises(ValueError, match="scale it to about 1"):
        cal.fit(scores, y, sample_weight=np.full(len(y), unit))


def test_the_server_reads_a_table_in_a_few_passes_or_asks_again(monkeypatch):
    """A site may send a table that gives up one score in each pass."""
    scores, y = noisy_scores(3000)
    algorithm = ScoreTable()
    clients = FederatedDataset(scores, y, np.array([0, 3000]), range(1), 2)
    broadcast = {"n_cells": np.asarray(3 * 1700), "salt": np.asarray(1)}
    cells = testing.dense(algorithm.query(broadcast, clients)["cells"])[0]
    monkeypatch.setattr(rounds, "_PASSES", 20)
    assert len(rounds._read_table(cells, None, 1)[1]) == 3000
    monkeypatch.setattr(rounds, "_PASSES", 2)
    assert rounds._read_table(cells, None, 1) is None


def test_one_score_in_a_small_batch_is_not_called_a_probability():
    scores, y = noisy_scores()
    fitted = FedOneVsRestCalibrator().fit(scores, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted.predict_proba([[0.4]])


def over_sites(method="isotonic", secure=False, cls=FedOneVsRestCalibrator, **options):
    """Fit over three sites with a policy, and the rows of all of them."""
    scores, y = noisy_scores()
    Z = np.column_stack([np.zeros(len(scores)), scores.ravel()])
    owner = np.arange(len(y)) % 3
    policy = SitePolicy(allow_plain=not secure, **options)
    sites = {
        name: Site(name, SiteRows(Z[owner == i], y[owner == i]), policy=policy)
        for i, name in enumerate("abc")
    }
    runner = FederatedRunner(secure=secure)
    cal = cls(method=method, classes=[0, 1], runner=runner)
    return cal.fit(RemoteClients(InProcessTransport(sites))), Z, y


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (None, "does not name class_scores.table/1 itself"),
        (("class_scores",), "does not name class_scores.table/1 itself"),
        (("temperature", "FedOneVsRestCalibrator"), "lists the scores of single rows"),
        (("temperature", "class_scores.sigmoid/1"), "does not allow"),
    ],
)
def test_a_site_reveals_scores_only_if_its_policy_names_the_table(
    secure, methods, words, recwarn
):
    with pytest.raises(NotEnoughClientsError) as caught:
        over_sites(secure=secure, methods=methods)
    told = [str(caught.value), *(str(warning.message) for warning in recwarn)]
    assert words in " ".join(told)
    # Sums of derivatives list nothing.
    if methods != ("temperature", "class_scores.sigmoid/1"):
        over_sites("sigmoid", secure, methods=methods)


class Wrapped(FedOneVsRestCalibrator):
    """Asks for the table inside an algorithm that holds rows back."""

    def _make_algorithm(self, setting):
        return HeldBackFit(super()._make_algorithm(setting))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("methods", [None, ("class_scores",), ("held_back",)])
def test_a_table_of_a_part_of_the_rows_is_refused_too(methods, secure):
    with pytest.raises(NotEnoughClientsError):
        over_sites(secure=secure, cls=Wrapped, methods=methods)


@pytest.mark.parametrize("secure", [False, True])
def test_a_site_that_names_the_table_answers_it(secure):
    there, Z, y = over_sites(secure=secure, methods=("class_scores.table/1",))
    here = FedOneVsRestCalibrator(method="isotonic").fit(Z, y)
    np.testing.assert_allclose(there.predict_proba(Z), here.predict_proba(Z))
    assert "numbers of clients" in "".join(there.privacy_.assumptions)


@pytest.mark.parametrize("secure", [False, True])
def test_a_simulation_has_no_policy_to_name_the_table(secure):
    scores, y = noisy_scores()
    ids = np.arange(len(y)) % 5
    here = FedOneVsRestCalibrator(
        method="isotonic", runner=FederatedRunner(secure=secure)
    ).fit(scores, y, client_ids=ids)
    expected = FedOneVsRestCalibrator(method="isotonic").fit(scores, y)
    np.testing.assert_array_equal(
        here.predict_proba(scores), expected.predict_proba(scores)
    )


def test_sites_without_a_usable_row_are_named():
    empty = {"powers": np.zeros((1, 264)), "weights": np.zeros((2, 1))}
    for algorithm, sums in (
        (rounds.SigmoidNewton(), empty),
        (ScoreTable(), {"sizes": np.zeros(1)}),
    ):
        with pytest.raises(ValueError, match="No client has a row that can be used"):
            algorithm.update(algorithm.init(2), sums, 3)
