"""Scorers in scikit-learn's model selection."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score

import skfedcal.metrics as metrics


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    return LogisticRegression(max_iter=500).fit(X, names[y]), X, names[y]


@pytest.fixture(scope="module")
def binary():
    X, y = make_classification(random_state=0)
    names = np.array(["no", "yes"])[y]
    return LogisticRegression().fit(X, names), X, names


MULTICLASS = {
    "neg_expected_calibration_error": metrics.expected_calibration_error,
    "neg_classwise_calibration_error": metrics.classwise_calibration_error,
    "neg_brier_score": metrics.brier_score,
    "log_likelihood": metrics.negative_log_likelihood,
}
BINARY = {
    "neg_l1_calibration_error": {},
    "neg_l2_calibration_error": {"norm": "l2"},
    "neg_l2_squared_calibration_error": {"norm": "l2", "squared": True},
    "neg_max_calibration_error": {"norm": "max"},
}


@pytest.mark.parametrize("name", MULTICLASS)
def test_scorer_is_the_negated_metric(iris, binary, name):
    for model, X, y in (iris, binary):
        expected = -MULTICLASS[name](y, model.predict_proba(X))
        got = metrics.get_scorer(name)(model, X, y)
        assert got == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", BINARY)
def test_binary_scorer_is_the_negated_metric(binary, name):
    model, X, y = binary
    proba = model.predict_proba(X)[:, 1]
    expected = -metrics.calibration_error(y, proba, **BINARY[name])
    got = metrics.get_scorer(name)(model, X, y)
    assert got == pytest.approx(expected, abs=1e-12)


def test_every_name_has_an_object():
    assert metrics.get_scorer_names() == sorted([*MULTICLASS, *BINARY])
    for name in metrics.get_scorer_names():
        assert f"{name}_scorer" in metrics.__all__
        scorer = getattr(metrics, f"{name}_scorer")
        assert str(pickle.loads(pickle.dumps(scorer))) == str(scorer)


def test_scorer_is_a_copy():
    one = metrics.get_scorer("log_likelihood")
    assert one is not metrics.log_likelihood_scorer


def test_scorer_takes_weights(iris):
    model, X, y = iris
    weight = np.arange(len(y)) % 3
    got = metrics.get_scorer("log_likelihood")(model, X, y, sample_weight=weight)
    expected = metrics.negative_log_likelihood(
        y, model.predict_proba(X), sample_weight=weight
    )
    assert got == pytest.approx(-expected)


def test_names_of_sklearn_and_callables_pass_through():
    assert "accuracy" in str(metrics.get_scorer("accuracy"))
    scorer = metrics.neg_brier_score_scorer
    assert metrics.get_scorer(scorer) is scorer
    with pytest.raises(ValueError, match="nonsense"):
        metrics.get_scorer("nonsense")


def test_model_selection(iris):
    _, X, y = iris
    scoring = metrics.get_scorer("neg_classwise_calibration_error")
    model = LogisticRegression(max_iter=500)
    values = cross_val_score(model, X, y, scoring=scoring, cv=3, error_score="raise")
    assert (values <= 0).all()
    search = GridSearchCV(model, {"C": [0.01, 1.0]}, scoring=scoring, cv=3)
    assert search.fit(X, y).best_params_ == {"C": 1.0}


def test_all_is_sorted_and_complete():
    assert metrics.__all__ == sorted(metrics.__all__)
    assert all(hasattr(metrics, name) for name in metrics.__all__)
