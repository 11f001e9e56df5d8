"""FederatedCalibratedClassifier: train, hold rows back, calibrate."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GroupKFold,
    KFold,
    StratifiedKFold,
    cross_val_predict,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils import get_tags

from skfedcal import (
    FedBinCalibrator,
    FederatedCalibratedClassifier,
    FedGaussianHead,
    FedTempCalibrator,
    LogitTransformer,
    PrivacyLedger,
)
from skfedcal._sklearn_compat import HAS_CALLBACKS
from skfedcal.exceptions import PrivacyWarning


class Memory(ClassifierMixin, BaseEstimator):
    """Remember the rows it was fitted on; certain of those, not of others."""

    def __init__(self, log=None):
        self.log = log

    def __sklearn_clone__(self):
        return Memory(self.log)

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.seen_ = dict(zip(X[:, 0].tolist(), y, strict=True))
        if self.log is not None:
            self.log.append(set(self.seen_))
        return self

    def predict_proba(self, X):
        known = [self.seen_.get(row) for row in X[:, 0].tolist()]
        sure = np.array([[label == c for c in self.classes_] for label in known])
        return 0.98 * sure + (1 - 0.98 * sure.sum(axis=1, keepdims=True)) / len(
            self.classes_
        )

    def predict(self, X):
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


@pytest.mark.parametrize("cv", [5, "holdout", KFold(4), GroupKFold(3)], ids=str)
def test_calibrator_sees_no_row_of_the_training_set(features, cv):
    X, y, ids = features
    X = np.column_stack([np.arange(480), X])
    whole = FederatedCalibratedClassifier(
        Memory(), FedBinCalibrator(n_bins=20), cv=cv, random_state=0
    ).fit(X, y, client_ids=ids)
    # A row that was trained on has a class of 0.98 and would be in the last bin.
    assert whole.calibrator_.positive_[:, -1].sum() == 0
    assert whole.calibrator_.n_clients_ == 12
    n_rows = whole.calibrator_.positive_.sum()
    if cv == "holdout":
        assert n_rows + len(whole.estimator_.seen_) == 480
        assert 84 <= n_rows <= 108
    else:
        assert n_rows == len(whole.estimator_.seen_) == 480


def test_one_classifier_equals_its_parts(features):
    X, y, ids = features
    whole = FederatedCalibratedClassifier(method=FedTempCalibrator()).fit(
        X, y, client_ids=ids
    )
    assert isinstance(whole.estimator_, LogisticRegression)
    assert isinstance(whole.calibrator_, FedTempCalibrator)
    plain = LogisticRegression().fit(X, y).decision_function(X)
    expected = plain / whole.calibrator_.temperature_
    expected -= expected.max(axis=1, keepdims=True)
    np.testing.assert_allclose(whole.decision_function(X), expected)
    np.testing.assert_allclose(
        whole.predict_log_proba(X), np.log(whole.predict_proba(X))
    )
    assert (whole.predict(X) == whole.classes_[plain.argmax(axis=1)]).all()


@pytest.mark.parametrize("shuffle", [False, True])
def test_splitter_equals_cross_val_predict(features, shuffle):
    X, y, ids = features
    cv = StratifiedKFold(3, shuffle=shuffle, random_state=0 if shuffle else None)
    whole = FederatedCalibratedClassifier(None, FedTempCalibrator(), cv=cv).fit(
        X, y, client_ids=ids
    )
    logits = cross_val_predict(
        LogisticRegression(), X, y, cv=cv, method="decision_function"
    )
    expected = FedTempCalibrator().fit(logits, y, client_ids=ids)
    assert whole.calibrator_.temperature_ == pytest.approx(expected.temperature_)


@pytest.mark.parametrize(
    "classifier",
    [
        GaussianNB(),
        RandomForestClassifier(20, random_state=0),
        KNeighborsClassifier(5),
        LinearSVC(),
        SVC(),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda c: type(c).__name__,
)
@pytest.mark.parametrize("cv", [3, "holdout"])
def test_any_classifier_becomes_better_calibrated(features, classifier, cv):
    X, y, ids = features
    train, test = np.arange(480) < 320, np.arange(480) >= 320
    whole = FederatedCalibratedClassifier(
        classifier, FedTempCalibrator(), cv=cv, calibration_size=0.3, random_state=0
    ).fit(X[train], y[train], client_ids=ids[train])
    proba = whole.predict_proba(X[test])
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    after = log_loss(y[test], proba)
    # Never worse than the classifier alone by more than noise, nor than guessing.
    assert after < np.log(3)
    if hasattr(whole.estimator_, "predict_proba"):
        before = log_loss(y[test], whole.estimator_.predict_proba(X[test]))
        assert after < before + 0.02


def test_frozen_classifier_is_calibrated_by_all_rows(features):
    X, y, ids = features
    classifier = GaussianNB().fit(X[:200], y[:200])
    rows = slice(200, None)
    whole = FederatedCalibratedClassifier(
        FrozenEstimator(classifier), FedTempCalibrator()
    )
    whole.fit(X[rows], y[rows], client_ids=ids[rows])
    assert whole.estimator_.estimator is classifier
    logits = classifier.predict_log_proba(X[rows])
    expected = FedTempCalibrator().fit(logits, y[rows], client_ids=ids[rows])
    assert whole.calibrator_.temperature_ == pytest.approx(expected.temperature_)


def test_frozen_classifier_may_know_more_classes(features):
    X, y, _ = features
    classifier = LogisticRegression().fit(X, y)
    whole = FederatedCalibratedClassifier(FrozenEstimator(classifier))
    whole.fit(X[y < 2], y[y < 2])
    assert whole.predict_proba(X).shape == (480, 3)
    with pytest.raises(ValueError, match="not in `classes`"):
        whole.fit(X, y + 1)


def test_labels_are_names_in_any_order(features):
    X, y, ids = features
    names = np.array(["zebra", "ant", "mole"])
    named = FederatedCalibratedClassifier(method=FedBinCalibrator(n_bins=5))
    named.fit(X, names[y], client_ids=ids)
    assert list(named.classes_) == ["ant", "mole", "zebra"]
    renamed = FederatedCalibratedClassifier(method=FedBinCalibrator(n_bins=5))
    renamed.fit(X, np.array([2, 0, 1])[y], client_ids=ids)
    np.testing.assert_allclose(named.predict_proba(X), renamed.predict_proba(X))
    assert set(named.predict(X)) <= set(names)


def test_two_classes_have_one_column_of_log_odds(features):
    X, y, ids = features
    whole = FederatedCalibratedClassifier().fit(X, y == 0, client_ids=ids)
    score, proba = whole.decision_function(X), whole.predict_proba(X)
    assert score.shape == (480,)
    np.testing.assert_allclose(proba[:, 1], 1 / (1 + np.exp(-score)))


@pytest.mark.parametrize("cv", [3, "holdout"])
def test_sparse_and_frames_equal_arrays(features, cv):
    X, y, ids = features
    X = np.where(X > 0, X, 0)
    classifier = LogisticRegression(solver="newton-cg", tol=1e-10)

    def proba(rows):
        whole = FederatedCalibratedClassifier(classifier, cv=cv, random_state=0)
        return whole.fit(rows, y, client_ids=ids).predict_proba(rows), whole

    expected, whole = proba(X)
    assert whole.n_features_in_ == 8
    np.testing.assert_allclose(proba(csr_array(X))[0], expected, atol=1e-5)
    frame = pd.DataFrame(X, columns=list("abcdefgh"))
    found, whole = proba(frame)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    assert list(whole.feature_names_in_) == list("abcdefgh")


def test_holdout_is_repeatable(features):
    X, y, ids = features

    def temperature(seed):
        whole = FederatedCalibratedClassifier(cv="holdout", random_state=seed)
        return whole.fit(X, y, client_ids=ids).calibrator_.temperature_

    assert temperature(0) == temperature(0) != temperature(1)


def test_client_without_a_held_out_row_still_counts(features):
    X, y, _ = features
    whole = FederatedCalibratedClassifier(cv="holdout", random_state=0)
    whole.fit(X, y, client_ids=np.arange(480) // 2)
    assert whole.calibrator_.n_clients_ == 240


def test_client_names_and_order_of_rows_do_not_matter(features):
    X, y, ids = features
    temperature = [
        FederatedCalibratedClassifier(cv=KFold(4))
        .fit(X, y, client_ids=names)
        .calibrator_.temperature_
        for names in (ids, np.array([f"site {i}" for i in ids]), None)
    ]
    assert temperature[1] == pytest.approx(temperature[0], rel=1e-9)
    assert temperature[2] == pytest.approx(temperature[0], rel=1e-9)


def test_group_folds_train_without_the_client(features):
    X, y, ids = features
    log = []
    X = np.column_stack([np.arange(480), X])
    whole = FederatedCalibratedClassifier(
        Memory(log), FedBinCalibrator(), cv=GroupKFold(3)
    ).fit(X, y, client_ids=ids)
    assert whole.calibrator_.n_clients_ == 12
    sizes = sorted(len({int(ids[int(row)]) for row in seen}) for seen in log)
    assert sizes == [8, 8, 8, 12]


@pytest.mark.parametrize("cv", [3, "holdout"])
def test_weights_reach_classifier_and_calibrator(features, cv):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.0)

    def fit(**kwargs):
        whole = FederatedCalibratedClassifier(
            None, FedTempCalibrator(), cv=cv, random_state=0
        )
        return whole.fit(X, y, client_ids=ids, **kwargs)

    weighted, plain = fit(sample_weight=weights), fit()
    assert weighted.calibrator_.temperature_ != plain.calibrator_.temperature_
    assert (weighted.estimator_.coef_ != plain.estimator_.coef_).all()
    same = fit(sample_weight=np.ones(480))
    assert same.calibrator_.temperature_ == pytest.approx(
        plain.calibrator_.temperature_
    )


def test_weights_of_a_frozen_classifier_reach_the_calibrator(features):
    X, y, ids = features
    classifier = LogisticRegression().fit(X, y)
    few = ids < 6
    frozen = FederatedCalibratedClassifier(
        FrozenEstimator(classifier), FedTempCalibrator()
    )
    weighted = frozen.fit(X, y, sample_weight=few.astype(float))
    expected = FedTempCalibrator().fit(classifier.decision_function(X[few]), y[few])
    found = weighted.calibrator_.temperature_
    assert found == pytest.approx(expected.temperature_)


def test_classifier_without_weights_warns(features):
    X, y, _ = features
    whole = FederatedCalibratedClassifier(KNeighborsClassifier(), cv=2)
    with pytest.warns(UserWarning, match="only the calibrator is weighted"):
        whole.fit(X, y, sample_weight=np.ones(480))


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
def test_weights_under_privacy_reach_the_classifier_only(features):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.1)
    whole = FederatedCalibratedClassifier(method=FedTempCalibrator(5.0), cv=2)
    whole.fit(X, y, client_ids=ids, sample_weight=weights)
    expected = LogisticRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(whole.estimator_.coef_, expected.coef_)


def test_fit_parameters_go_to_the_classifier(features):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.1)
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    whole = FederatedCalibratedClassifier(pipe, cv=2, ensemble=False)
    whole.fit(X, y, client_ids=ids, logisticregression__sample_weight=weights)
    pipe.fit(X, y, logisticregression__sample_weight=weights)
    np.testing.assert_allclose(whole.estimator_[-1].coef_, pipe[-1].coef_)


def test_routing_of_weights_and_groups(features):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.1)
    with sklearn.config_context(enable_metadata_routing=True):
        classifier = LogisticRegression().set_fit_request(sample_weight=True)
        whole = FederatedCalibratedClassifier(
            classifier, cv=GroupKFold(3), ensemble=False
        )
        whole.set_fit_request(sample_weight=True)
        whole.fit(X, y, client_ids=ids, sample_weight=weights)
        with pytest.raises(ValueError, match="sample_weight"):
            FederatedCalibratedClassifier().fit(X, y, sample_weight=weights)
    expected = LogisticRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(whole.estimator_.coef_, expected.coef_)


@pytest.mark.parametrize("cv", [3, "holdout"])
@pytest.mark.parametrize("routing", [False, True])
def test_a_federated_classifier_is_trained_on_the_clients(features, cv, routing):
    X, y, ids = features
    whole = FederatedCalibratedClassifier(
        FedGaussianHead(), FedTempCalibrator(), cv=cv, random_state=0
    )
    with sklearn.config_context(enable_metadata_routing=routing):
        whole.fit(X, y, client_ids=list(ids))
    assert whole.estimator_.n_clients_ == len(np.unique(ids))
    assert whole.fit(X, y).estimator_.n_clients_ == 1


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_budget_without_a_frozen_classifier_warns_and_says_so(features):
    X, y, ids = features
    ledger = PrivacyLedger()
    whole = FederatedCalibratedClassifier(method=FedTempCalibrator(5.0, ledger=ledger))
    with pytest.warns(PrivacyWarning, match="does not cover the classifier"):
        whole.fit(X, y, client_ids=ids)
    assert whole.privacy_.eps == whole.calibrator_.privacy_.eps
    assert "trained without privacy" in whole.privacy_.assumptions[-1]
    # Folds retrain the classifier; the calibrator is fitted, and paid for, once.
    assert len(ledger) == 1


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("error::skfedcal.exceptions.PrivacyWarning")
def test_budget_of_a_frozen_classifier_is_that_of_the_calibrator(features):
    X, y, ids = features
    classifier = LogisticRegression().fit(X[::2], y[::2])
    whole = FederatedCalibratedClassifier(
        FrozenEstimator(classifier), FedBinCalibrator(5.0)
    ).fit(X[1::2], y[1::2], client_ids=ids[1::2])
    assert whole.privacy_ is whole.calibrator_.privacy_


def test_without_a_budget_nothing_is_promised(features):
    X, y, ids = features
    whole = FederatedCalibratedClassifier().fit(X, y, client_ids=ids)
    assert not whole.privacy_.private
    with pytest.raises(sklearn.exceptions.NotFittedError):
        FederatedCalibratedClassifier().privacy_


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"ensemble": "yes"}, "'ensemble' parameter"),
        ({"method": "platt"}, "'method' parameter"),
        ({"n_jobs": "two"}, "'n_jobs' parameter"),
        ({"cv": 1}, "'cv' parameter"),
        ({"cv": "prefit"}, "'cv' parameter"),
        ({"calibration_size": 1.0}, "'calibration_size' parameter"),
        ({"method": LogisticRegression()}, "'method' parameter"),
        ({"estimator": StandardScaler()}, "'estimator' parameter"),
        ({"method": FedTempCalibrator(eps=-1)}, "'eps' parameter"),
        ({"method": FedTempCalibrator(input_type="proba")}, "input_type='proba'"),
        ({"method": FedTempCalibrator(classes=[3, 4, 5])}, "leave `classes` out"),
    ],
)
def test_bad_parameters_are_named(features, params, message):
    X, y, _ = features
    with pytest.raises(ValueError, match=message):
        FederatedCalibratedClassifier(**params).fit(X, y)


def test_classes_of_the_calibrator_may_be_given_in_any_order(features):
    X, y, _ = features
    given = FederatedCalibratedClassifier(method=FedBinCalibrator(classes=[2, 0, 1]))
    plain = FederatedCalibratedClassifier(method=FedBinCalibrator())
    np.testing.assert_array_equal(
        given.fit(X, y).predict_proba(X), plain.fit(X, y).predict_proba(X)
    )
    assert given.method.classes == [2, 0, 1]


def test_bad_data_are_refused(features):
    X, y, ids = features
    whole = FederatedCalibratedClassifier()
    with pytest.raises(ValueError, match="requires y to be passed"):
        whole.fit(X, None)
    with pytest.raises(ValueError, match="multilabel"):
        whole.fit(X, np.column_stack([y == 0, y == 1]).astype(int))
    with pytest.raises(ValueError, match="client_ids has 479 entries for 480 rows"):
        whole.fit(X, y, client_ids=ids[1:])
    with pytest.raises(ValueError, match="client_ids contains None or NaN"):
        whole.fit(X, y, client_ids=np.where(ids == 0, np.nan, ids))
    with pytest.raises(ValueError, match="has seen no row of class 'rare'"):
        whole.fit(X, np.r_[np.array(["a", "b", "c"])[y[1:]], ["rare"]])


def test_tags_are_those_of_the_classifier():
    forest = get_tags(FederatedCalibratedClassifier(RandomForestClassifier()))
    assert forest.input_tags == get_tags(RandomForestClassifier()).input_tags
    assert forest.input_tags.allow_nan
    assert not get_tags(FederatedCalibratedClassifier()).input_tags.allow_nan
    assert forest.estimator_type == "classifier"


@pytest.mark.skipif(not HAS_CALLBACKS, reason="callbacks came with scikit-learn 1.9")
def test_callbacks_see_rounds_of_the_calibrator(features):
    class Names:
        max_propagation_depth = None

        def __init__(self):
            self.seen = []

        def setup(self, estimator, context): ...
        def teardown(self, estimator, context): ...
        def on_fit_task_begin(self, estimator, context): ...

        def on_fit_task_end(self, estimator, context, *, X=None):
            self.seen.append((type(estimator).__name__, context.task_name))
            # Rows of clients are shown to nobody.
            assert X is None or isinstance(estimator, LogisticRegression)

    X, y, ids = features
    names = Names()
    whole = FederatedCalibratedClassifier(GaussianNB(), FedTempCalibrator())
    whole.set_callbacks(names)
    whole.fit(X, y, client_ids=ids)
    n_rounds = whole.calibrator_.n_rounds_
    assert names.seen.count(("FedTempCalibrator", "round")) == n_rounds
    assert names.seen[-1] == ("FederatedCalibratedClassifier", "fit")
    inner = LogitTransformer(FedTempCalibrator()).set_callbacks(names)
    names.seen.clear()
    inner.fit(whole.decision_function(X), y, client_ids=ids)
    assert ("FedTempCalibrator", "round") in names.seen
