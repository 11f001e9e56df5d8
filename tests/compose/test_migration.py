"""FederatedCalibratedClassifier against scikit-learn's CalibratedClassifierCV."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from skfedcal import (
    FederatedCalibratedClassifier,
    FedShapeCalibrator,
    FedTempCalibrator,
)

METHODS = ["sigmoid", "isotonic", "temperature"]
MODELS = [
    RandomForestClassifier(15, random_state=0),
    GaussianNB(),
    LinearSVC(random_state=0),
    LogisticRegression(max_iter=1000),
]
by_name = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)


@pytest.fixture(params=[2, 3], ids=["two classes", "three classes"])
def rows(request):
    X, y = make_classification(
        420, n_informative=6, n_classes=request.param, flip_y=0.1, random_state=1
    )
    ids = np.random.default_rng(0).integers(0, 20, 420)
    return X[:300], y[:300], X[300:], ids[:300]


@by_name
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ensemble", [True, False])
def test_equals_scikit_learn_for_one_client(rows, method, model, ensemble):
    X, y, test, _ = rows
    weights = np.random.default_rng(1).integers(1, 4, len(y)).astype(float)
    for weight in (None, weights):
        there = CalibratedClassifierCV(model, method=method, ensemble=ensemble)
        here = FederatedCalibratedClassifier(model, method, ensemble=ensemble)
        expected = there.fit(X, y, sample_weight=weight).predict_proba(test)
        found = here.fit(X, y, sample_weight=weight).predict_proba(test)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
        assert len(here.calibrated_classifiers_) == len(there.calibrated_classifiers_)


class Given(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities of the second of two classes are the rows."""

    def fit(self, X, y, sample_weight=None):
        self.classes_, self.n_features_in_ = np.unique(y), 1
        return self

    def predict_proba(self, X):
        # As those of naive Bayes they add up to 1 to about 1e-11 only.
        rest = 1 - X[:, 0]
        return np.column_stack([np.where(rest < 2e-11, 0.0, rest), X[:, 0]])


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["zeros and ones", "nearly one", "unrelated"])
@pytest.mark.parametrize("weighted", [False, True])
def test_equals_scikit_learn_for_extreme_probabilities(method, kind, weighted):
    rng = np.random.default_rng(3)
    values = {
        "zeros and ones": rng.choice([0.0, 0.3, 1.0], 300),
        "nearly one": 1 - 10.0 ** -rng.uniform(0, 17, 300),
        "unrelated": rng.random(300),
    }[kind]
    # Where labels are the contrary of the scores, T ends at the upper bound of both.
    chance = 0.9 - 0.8 * values if kind == "unrelated" else 0.1 + 0.8 * values
    X, y = values[:, None], (rng.random(300) < chance).astype(int)
    weight = rng.integers(0, 3, 300).astype(float) if weighted else None
    there = CalibratedClassifierCV(Given(), method=method, cv=3)
    expected = there.fit(X, y, sample_weight=weight).predict_proba(X)
    here = FederatedCalibratedClassifier(Given(), method, cv=3)
    found = here.fit(X, y, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_a_temperature_of_float32_scores_is_the_optimum(rows):
    # scikit-learn minimises a loss in float32 there and stops 1e-6 to 1e-4 beside it.
    X, y, _, _ = rows
    model = LogisticRegression(max_iter=1000).fit(X, y)
    scores = model.decision_function(X.astype(np.float32)).astype(np.float32)
    if scores.ndim == 1:
        scores = np.column_stack([-scores, scores])
    found = FedTempCalibrator().fit(scores, y).temperature_
    wide = scores.astype(np.float64)

    def loss(log_beta):
        logs = log_softmax(np.exp(log_beta) * wide, axis=1)
        return -logs[np.arange(len(y)), y].mean()

    best = minimize_scalar(loss, bounds=(-10, 10), options={"xatol": 1e-13})
    assert found == pytest.approx(np.exp(-best.x), rel=1e-6)


@by_name
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("frozen", [True, False])
def test_many_clients_equal_the_pooled_fit(rows, method, model, frozen):
    X, y, test, ids = rows
    if frozen:
        model = FrozenEstimator(clone(model).fit(X[:100], y[:100]))
        X, y, ids = X[100:], y[100:], ids[100:]
    cv = StratifiedKFold(3)
    there = CalibratedClassifierCV(model, method=method, cv=cv).fit(X, y)
    here = FederatedCalibratedClassifier(model, method, cv=cv)
    here.fit(X, y, client_ids=ids)
    np.testing.assert_allclose(
        here.predict_proba(test), there.predict_proba(test), rtol=0, atol=1e-6
    )
    pair = here.calibrated_classifiers_[0]
    assert pair.calibrator.n_clients_ == len(np.unique(ids))


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_two_jobs_give_the_bits_of_one(rows, method):
    X, y, test, ids = rows
    model = RandomForestClassifier(5, random_state=0)
    one, two = (
        FederatedCalibratedClassifier(model, method, cv=3, n_jobs=n_jobs)
        .fit(X, y, client_ids=ids)
        .predict_proba(test)
        for n_jobs in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


def test_the_default_shares_one_calibrator(rows):
    X, y, test, ids = rows
    whole = FederatedCalibratedClassifier(GaussianNB()).fit(X, y, client_ids=ids)
    assert len(whole.calibrated_classifiers_) == 5
    assert isinstance(whole.calibrator_, FedShapeCalibrator)
    with pytest.raises(AttributeError, match="There are 5 estimators"):
        whole.estimator_
    mean = np.mean(
        [pair.predict_proba(test) for pair in whole.calibrated_classifiers_], axis=0
    )
    np.testing.assert_allclose(whole.predict_proba(test), mean)
    labels = whole.classes_[mean.argmax(axis=1)]
    np.testing.assert_array_equal(whole.predict(test), labels)
    np.testing.assert_allclose(np.exp(whole.predict_log_proba(test)), mean)
    assert whole.decision_function(test).ndim == (1 if len(whole.classes_) == 2 else 2)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_an_ensemble_spends_the_budget_once(rows):
    X, y, _, ids = rows
    eps = FedTempCalibrator(8.0, random_state=0)
    for ensemble in (True, False):
        whole = FederatedCalibratedClassifier(None, eps, ensemble=ensemble)
        assert whole.fit(X, y, client_ids=ids).privacy_.eps == 8.0


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_names_pickles_clones_and_zero_weights(rows, method):
    X, y, test, ids = rows
    names = np.array(["zoo", "ant", "mole"])[y]
    whole = FederatedCalibratedClassifier(GaussianNB(), method, cv=3)
    weights = np.where(ids < 10, 1.0, 0.0)
    whole.fit(X, names, client_ids=ids, sample_weight=weights)
    assert list(whole.classes_) == sorted(set(names))
    proba = whole.predict_proba(test)
    copy = pickle.loads(pickle.dumps(whole))
    np.testing.assert_array_equal(copy.predict_proba(test), proba)
    again = clone(whole).fit(X, names, client_ids=ids, sample_weight=weights)
    np.testing.assert_array_equal(again.predict_proba(test), proba)
    with pytest.raises(ValueError, match="one class"):
        clone(whole).fit(X, ["ant"] * len(X))


@pytest.mark.parametrize("method", METHODS)
def test_a_class_that_a_client_lacks(rows, method):
    X, y, test, _ = rows
    whole = FederatedCalibratedClassifier(GaussianNB(), method, cv=StratifiedKFold(3))
    one = whole.fit(X, y).predict_proba(test)
    by_class = clone(whole).fit(X, y, client_ids=y).predict_proba(test)
    np.testing.assert_allclose(by_class, one, atol=1e-9)


def test_searches_over_methods_in_a_pipeline():
    X, y = load_iris(return_X_y=True)
    inner = FederatedCalibratedClassifier(GaussianNB(), cv=3)
    pipe = make_pipeline(StandardScaler(), inner)
    name = "federatedcalibratedclassifier__method"
    found = GridSearchCV(pipe, {name: [*METHODS, FedTempCalibrator()]}, cv=3)
    assert found.fit(X, y).best_score_ > 0.9


def test_a_column_names_the_clients(rows):
    X, y, test, ids = rows
    columns = [f"x{i}" for i in range(X.shape[1])]
    frame = pd.DataFrame(X, columns=columns)
    named = frame.assign(hospital=[f"h{i:02d}" for i in ids])
    whole = FederatedCalibratedClassifier(GaussianNB(), "sigmoid", cv=3)
    expected = clone(whole).fit(frame, y, client_ids=ids)
    found = whole.fit(named, y, client_ids="hospital")
    assert list(found.feature_names_in_) == columns
    rows = pd.DataFrame(test, columns=columns)
    np.testing.assert_array_equal(
        found.predict_proba(rows.assign(hospital="new")), expected.predict_proba(rows)
    )
    scores = cross_val_score(
        whole, named, y, params={"client_ids": "hospital"}, error_score="raise"
    )
    assert (scores > 0.5).all()
    for wrong, message in (
        ({"X": X, "client_ids": "hospital"}, "X is of type ndarray"),
        ({"X": frame, "client_ids": "hospital"}, "must name one column"),
    ):
        with pytest.raises(ValueError, match=message):
            whole.fit(y=y, **wrong)


def test_a_column_names_the_clients_of_a_calibrator(rows):
    _, y, _, ids = rows
    n_classes = y.max() + 1
    logits = np.random.default_rng(2).normal(size=(len(y), n_classes))
    names = [f"c{i}" for i in range(n_classes)]
    frame = pd.DataFrame(logits, columns=names)
    named = frame.assign(site=ids)
    found = FedTempCalibrator().fit(named, y, client_ids="site")
    expected = FedTempCalibrator().fit(frame, y, client_ids=ids)
    assert found.n_clients_ == 20
    assert found.temperature_ == expected.temperature_
    np.testing.assert_array_equal(
        found.predict_proba(named), expected.predict_proba(frame)
    )


def test_torch_in_torch_out(rows):
    torch = pytest.importorskip("torch")
    X, y, test, ids = rows
    whole = FederatedCalibratedClassifier(GaussianNB(), "isotonic", cv=3)
    expected = whole.fit(X, y, client_ids=ids).predict_proba(test)
    tensor = torch.from_numpy(test).requires_grad_()
    assert isinstance(expected, np.ndarray)
    for name in ("predict_proba", "predict_log_proba", "decision_function", "predict"):
        found = getattr(whole, name)(tensor)
        assert isinstance(found, torch.Tensor)
        assert found.device == tensor.device
        np.testing.assert_array_equal(found.numpy(), getattr(whole, name)(test))
    temperature = FedTempCalibrator().fit(np.log(whole.predict_proba(X) + 0.1), y)
    logits = torch.zeros(4, len(whole.classes_))
    assert isinstance(temperature.predict_proba(logits), torch.Tensor)
    words = clone(whole).fit(X, np.array(["a", "b", "c"])[y])
    assert isinstance(words.predict(tensor), np.ndarray)


class Unsorted(ClassifierMixin, BaseEstimator):
    """A classifier whose first column is the larger label."""

    def fit(self, X, y, sample_weight=None):
        self.classes_, self.n_features_in_ = np.array([1, 0]), X.shape[1]
        return self

    def predict_proba(self, X):
        proba = 1 / (1 + np.exp(-X[:, 0]))
        return np.column_stack([proba, 1 - proba])


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("method", ["sigmoid", "isotonic", "temperature", "auto"])
def test_columns_of_a_classifier_with_unsorted_classes(method, frozen):
    rng = np.random.default_rng(0)
    X = 2 * rng.normal(size=(400, 2))
    y = (rng.random(400) < 1 / (1 + np.exp(-X[:, 0]))).astype(int)
    model = FrozenEstimator(Unsorted().fit(X, y)) if frozen else Unsorted()
    fitted = FederatedCalibratedClassifier(model, method).fit(X, y)
    assert fitted.classes_.tolist() == [0, 1]
    best = fitted.classes_[fitted.predict_proba(X).argmax(axis=1)]
    np.testing.assert_array_equal(best, fitted.predict(X))
    assert (best == y).mean() > 0.75
