"""LogitTransformer: any classifier as a step that gives logits."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import csr_array
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits, make_multilabel_classification
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    cross_val_predict,
    train_test_split,
)
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils import get_tags

from skfedcal import FedTempCalibrator, LogitTransformer
from skfedcal.exceptions import PrivacyWarning


class LeastSquares(ClassifierMixin, BaseEstimator):
    """Scores in the dtype of X; `fit` takes an argument of its own."""

    def fit(self, X, y, scale=1.0):
        self.classes_, codes = np.unique(y, return_inverse=True)
        target = np.eye(len(self.classes_), dtype=X.dtype)[codes]
        self.coef_ = np.linalg.lstsq(X, scale * target, rcond=None)[0]
        return self

    def decision_function(self, X):
        scores = X @ self.coef_
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X):
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return self.classes_[(scores > 0).astype(int)]
        return self.classes_[scores.argmax(axis=1)]


@pytest.fixture
def binary(features):
    X, y, _ = features
    return X[y < 2], y[y < 2]


@pytest.mark.parametrize(
    "classifier",
    [
        LogisticRegression(),
        LinearDiscriminantAnalysis(),
        GaussianNB(),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda c: type(c).__name__,
)
def test_softmax_of_logits_is_the_classifier(features, classifier):
    X, y, _ = features
    step = LogitTransformer(classifier).fit(X, y)
    expected = step.estimator_.predict_proba(X)
    np.testing.assert_allclose(softmax(step.transform(X), axis=1), expected, atol=1e-12)


def test_two_classes_have_two_columns(binary):
    X, y = binary
    step = LogitTransformer(LogisticRegression()).fit(X, y)
    logits = step.transform(X)
    score = step.estimator_.decision_function(X)
    np.testing.assert_array_equal(logits, np.column_stack([-score / 2, score / 2]))
    assert step.fit_transform(X, y).shape == (len(y), 2)


def test_fit_transform_agrees_with_cross_val_predict(features):
    X, y, _ = features
    logits = LogitTransformer(LogisticRegression(), cv=4).fit_transform(X, y)
    expected = cross_val_predict(
        LogisticRegression(), X, y, cv=4, method="decision_function"
    )
    np.testing.assert_allclose(logits, expected)


@pytest.mark.parametrize(
    "cv",
    [3, KFold(3), list(StratifiedKFold(3).split(np.zeros(480), np.arange(480) % 2))],
)
def test_any_partition_is_a_cv(features, cv):
    X, y, _ = features
    logits = LogitTransformer(LogisticRegression(), cv=cv).fit_transform(X, y)
    assert np.isfinite(logits).all()


def test_cv_must_be_a_partition(features):
    X, y, _ = features
    step = LogitTransformer(LogisticRegression(), cv=ShuffleSplit(3, random_state=0))
    with pytest.raises(ValueError, match="exactly one test fold"):
        step.fit_transform(X, y)


@pytest.mark.parametrize("cv", [1, "prefit", 2.5])
def test_bad_cv_is_named(features, cv):
    X, y, _ = features
    with pytest.raises(ValueError, match="'cv' parameter of LogitTransformer"):
        LogitTransformer(LogisticRegression(), cv=cv).fit(X, y)


def test_estimator_without_scores_is_refused(features):
    X, y, _ = features
    with pytest.raises(ValueError, match="'estimator' parameter"):
        LogitTransformer(StandardScaler()).fit(X, y)


def test_class_missing_in_a_fold_is_an_error(features):
    X, y, _ = features
    labels = np.array(["a", "b", "c"], dtype=object)[y]
    labels[17] = "rare"
    step = LogitTransformer(LogisticRegression(), cv=KFold(4))
    with pytest.raises(ValueError, match=r"fold 0 has seen no row of class 'rare'"):
        step.fit_transform(X, labels)
    labels[470] = "rare"
    names = step.fit(X, labels).get_feature_names_out()
    assert step.fit_transform(X, labels).shape == (480, 4)
    assert list(names) == ["logit_a", "logit_b", "logit_c", "logit_rare"]


def test_frozen_estimator_is_used_as_it_is(features):
    X, y, _ = features
    classifier = LogisticRegression().fit(X[:200], y[:200])
    step = LogitTransformer(FrozenEstimator(classifier))
    logits = step.fit_transform(X, y)
    np.testing.assert_array_equal(logits, classifier.decision_function(X))
    assert step.estimator_.estimator is classifier
    np.testing.assert_array_equal(step.fit_transform(X), logits)


def test_without_cv_fit_transform_is_fit_and_transform(features):
    X, y, _ = features
    step = LogitTransformer(LogisticRegression(), cv=None)
    np.testing.assert_array_equal(step.fit_transform(X, y), step.fit(X, y).transform(X))


def test_class_without_votes_keeps_the_order_of_the_row(features):
    X, y, _ = features
    for classifier in (
        KNeighborsClassifier(5),
        RandomForestClassifier(10, random_state=0),
    ):
        step = LogitTransformer(classifier, cv=None).fit(X, y)
        logits, proba = step.transform(X), step.estimator_.predict_proba(X)
        np.testing.assert_allclose(logits[proba > 0], np.log(proba[proba > 0]))
        assert (proba == 0).any()
        lowest = np.where(proba > 0, proba, 1e-3).min(axis=1, keepdims=True)
        assert (
            logits[proba == 0]
            == np.broadcast_to(np.log(lowest), proba.shape)[proba == 0]
        ).all()


def test_forest_is_improved_by_a_temperature(features):
    X, y, _ = features
    forest = RandomForestClassifier(10, random_state=0)
    pipe = make_pipeline(LogitTransformer(forest), FedTempCalibrator()).fit(X, y)
    # With zeros floored at 1e-308 the temperature is above 200.
    assert 0.2 < pipe[-1].temperature_ < 5


def test_logarithms_of_naive_bayes_end_where_rounding_does():
    X = np.array([[0.0], [1.0], [500.0], [501.0]])
    logits = LogitTransformer(GaussianNB(), cv=None).fit_transform(X, [0, 0, 1, 1])
    gaps = np.abs(logits[:, 1] - logits[:, 0])
    np.testing.assert_allclose(gaps, -np.log(2.0**-52))


def test_naive_bayes_on_digits_is_as_calibrated_as_by_scikit_learn():
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, random_state=0, stratify=y)
    losses = [
        log_loss(y_test, model.fit(X, y).predict_proba(X_test))
        for model in (
            CalibratedClassifierCV(GaussianNB(), method="isotonic", ensemble=False),
            make_pipeline(LogitTransformer(GaussianNB()), FedTempCalibrator()),
        )
    ]
    # Logarithms down to -1e9 made it 2.4; isotonic curves have far more freedom.
    assert losses[1] < 0.7
    assert losses[0] < losses[1] + 1


@pytest.mark.parametrize("n_classes", [3, 4])
@pytest.mark.parametrize("wrap", [lambda c: c, make_pipeline, FrozenEstimator])
def test_one_vs_one_scores_are_refused(features, n_classes, wrap):
    X, y, _ = features
    y = np.where(X[:, 0] > 1, n_classes - 1, y)
    classifier = SVC(decision_function_shape="ovo")
    if wrap is FrozenEstimator:
        classifier.fit(X, y)
    step = LogitTransformer(wrap(classifier), cv=None).fit(X, y)
    with pytest.raises(ValueError, match=r"SVC\(decision_function_shape='ovo'\)"):
        step.transform(X)


def test_one_vs_one_inside_a_search_is_refused(features):
    X, y, _ = features
    grid = {"decision_function_shape": ["ovo"]}
    step = LogitTransformer(GridSearchCV(SVC(), grid, cv=2), cv=2)
    with pytest.raises(ValueError, match="one score per pair"):
        step.fit_transform(X, y)


def test_one_vs_one_of_two_classes_is_one_score(binary):
    X, y = binary
    step = LogitTransformer(SVC(decision_function_shape="ovo"))
    assert step.fit_transform(X, y).shape == (len(y), 2)


def test_wrong_number_of_columns_is_an_error(features):
    class Odd(LeastSquares):
        def decision_function(self, X):
            return super().decision_function(X)[:, :2]

    X, y, _ = features
    with pytest.raises(ValueError, match=r"shape \(480, 2\) for 3 classes"):
        LogitTransformer(Odd(), cv=None).fit(X, y).transform(X)


def test_multilabel_is_refused():
    X, y = make_multilabel_classification(60, random_state=0)
    step = LogitTransformer(RandomForestClassifier(3, random_state=0))
    for target in (y, csr_array(y), y.tolist()):
        with pytest.raises(ValueError, match="multilabel"):
            step.fit(X, target)
    several = MultiOutputClassifier(LogisticRegression()).fit(X, y)
    with pytest.raises(ValueError, match="multilabel"):
        LogitTransformer(FrozenEstimator(several)).fit(X)


def test_target_is_required(features):
    X, _, _ = features
    for method in ("fit", "fit_transform"):
        with pytest.raises(ValueError, match="requires y to be passed"):
            getattr(LogitTransformer(LogisticRegression()), method)(X)


def test_continuous_target_is_refused(features):
    X, _, _ = features
    with pytest.raises(ValueError, match="continuous"):
        LogitTransformer(LogisticRegression()).fit(X, X[:, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_dtype_of_the_classifier_is_kept(features, dtype, n_classes):
    X, y, _ = features
    X, y = X[y < n_classes].astype(dtype), y[y < n_classes]
    step = LogitTransformer(LeastSquares(), cv=3)
    logits = step.fit_transform(X, y)
    assert logits.dtype == step.transform(X).dtype == dtype
    assert logits.shape == (len(y), n_classes)


def test_whole_number_scores_become_floats():
    class Votes(LeastSquares):
        def decision_function(self, X):
            return (X > 0).astype(int)

    X = np.random.default_rng(0).normal(size=(30, 3))
    step = LogitTransformer(Votes(), cv=None)
    assert step.fit_transform(X, np.arange(30) % 3).dtype == np.float64


def test_frames_in_and_frames_out(features):
    X, y, _ = features
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(8)], index=range(5, 485))
    step = LogitTransformer(LogisticRegression()).set_output(transform="pandas")
    out = step.fit_transform(frame, pd.Series(np.array(["a", "b", "c"])[y]))
    assert list(out.columns) == ["logit_a", "logit_b", "logit_c"]
    assert list(out.index) == list(frame.index)
    assert list(step.feature_names_in_) == list(frame.columns)
    assert step.n_features_in_ == 8
    assert list(step.transform(frame).columns) == list(out.columns)
    pipe = make_pipeline(clone(step), FedTempCalibrator()).fit(frame, y)
    assert list(pipe[-1].feature_names_in_) == ["logit_0", "logit_1", "logit_2"]
    assert list(pipe[:-1].get_feature_names_out()) == ["logit_0", "logit_1", "logit_2"]


def test_feature_info_of_a_second_fit_replaces_the_first(features):
    X, y, _ = features
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(8)])
    step = LogitTransformer(LogisticRegression()).fit(frame, y)
    step.fit(X[:, :3], y)
    assert step.n_features_in_ == 3
    assert not hasattr(step, "feature_names_in_")


def test_text_goes_through():
    words = ["good fine", "bad poor", "fine good good", "poor"] * 5
    labels = ["yes", "no"] * 10
    model = make_pipeline(CountVectorizer(), MultinomialNB())
    step = LogitTransformer(model, cv=2)
    logits = step.fit_transform(words, labels)
    assert logits.shape == (20, 2)
    assert (step.classes_[logits.argmax(axis=1)] == labels).all()


def test_sparse_equals_dense(features):
    X, y, _ = features
    X = np.where(X > 0, X, 0)
    step = LogitTransformer(LogisticRegression(), cv=3)
    np.testing.assert_allclose(
        step.fit_transform(csr_array(X), y), step.fit_transform(X, y), atol=1e-3
    )


def test_kernel_matrix_is_cut_both_ways(features):
    X, y, _ = features
    kernel = X @ X.T
    # With the default tolerance, where the solver stops depends on last bits.
    made = [SVC(kernel=name, tol=1e-10) for name in ("precomputed", "linear")]
    step, plain = (LogitTransformer(classifier, cv=3) for classifier in made)
    expected = plain.fit_transform(X, y)
    np.testing.assert_allclose(step.fit_transform(kernel, y), expected, atol=1e-6)
    assert get_tags(step).input_tags.pairwise


def test_tags_are_those_of_the_classifier():
    forest = LogitTransformer(RandomForestClassifier())
    assert get_tags(forest).input_tags == get_tags(RandomForestClassifier()).input_tags
    assert get_tags(forest).input_tags.allow_nan
    nearest = LogitTransformer(LinearDiscriminantAnalysis())
    assert not get_tags(nearest).input_tags.allow_nan
    assert not get_tags(nearest).input_tags.sparse
    assert get_tags(nearest).target_tags.required


def test_fit_parameters_follow_the_folds(features):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.5)
    step = LogitTransformer(LogisticRegression(), cv=3)
    logits = step.fit_transform(X, y, sample_weight=weights)
    expected = cross_val_predict(
        LogisticRegression(),
        X,
        y,
        cv=3,
        method="decision_function",
        params={"sample_weight": weights},
    )
    np.testing.assert_allclose(logits, expected)
    whole = LogisticRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(step.transform(X), whole.decision_function(X))
    scaled = LogitTransformer(LeastSquares()).fit(X, y, scale=3.0).transform(X)
    plain = LogitTransformer(LeastSquares()).fit(X, y).transform(X)
    np.testing.assert_allclose(scaled, 3 * plain)


def test_routing_reaches_classifier_and_splitter(features):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.5)
    with sklearn.config_context(enable_metadata_routing=True):
        classifier = LogisticRegression().set_fit_request(sample_weight=True)
        step = LogitTransformer(classifier, cv=GroupKFold(4))
        logits = step.fit_transform(X, y, sample_weight=weights, groups=ids)
        pipe = make_pipeline(
            step, FedTempCalibrator().set_fit_request(sample_weight=True)
        )
        pipe.fit(X, y, sample_weight=weights, groups=ids, client_ids=ids)
    assert pipe[-1].n_clients_ == 12
    splits = list(GroupKFold(4).split(X, y, ids))
    train, test = splits[0]
    fold = LogisticRegression().fit(X[train], y[train], sample_weight=weights[train])
    np.testing.assert_allclose(logits[test], fold.decision_function(X[test]))


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_private_calibrator_inside_folds_warns(features):
    X, y, ids = features
    calibrator = FedTempCalibrator(5.0)
    logits = LogisticRegression().fit(X, y).decision_function(X)
    step = LogitTransformer(calibrator, cv=2)
    with pytest.warns(PrivacyWarning, match="spends eps again"):
        step.fit_transform(logits, y, client_ids=ids)
