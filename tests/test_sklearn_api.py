"""Contract with scikit-learn: common checks, parameters, routing, callbacks."""

import pickle
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone, is_classifier
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from skfedcal import (
    CentralDP,
    FedAccTempCalibrator,
    FedBinCalibrator,
    FederatedCalibratedClassifier,
    FederatedRunner,
    FedGaussianHead,
    FedHistogramCalibrator,
    FedMLPCalibrator,
    FedTempCalibrator,
    FedTopBinCalibrator,
    LogitTransformer,
    PrivacyLedger,
    testing,
)
from skfedcal._sklearn_compat import HAS_CALLBACKS
from skfedcal.exceptions import PrivacyWarning
from skfedcal.methods import registry
from skfedcal.methods.base import BaseCalibrator
from skfedcal.training import FedAvgClassifier

CROSS_FITTED = "fit_transform is cross-fitted, so it differs from fit().transform()"
BOOTSTRAP = "a forest draws other rows when rows are removed or repeated"
UNWEIGHTED = "a private calibrator is not weighted, only its classifier is"
UNDERFLOW = "log-probabilities stay finite where probabilities underflow to 0"

# On some processors the roundings are alike, so this may also pass; see
# test_isotonic_weights_are_repeated_rows.
ZEROS = "logarithms of isotonic probabilities: 0 and 1e-17 differ by rounding"

ONE_LABEL = "check_classifiers_one_label"

EQUIVALENCE_CHECKS = [
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
]

CHECKED = [
    *(
        testing.asking(method.load()(**case.params)).set_params(
            random_state=0 if "eps" in case.params else None
        )
        for method in registry.methods("calibrator")
        for case in method.cases
        if "check_sklearn" not in {**method.exempt, **case.exempt}
    ),
    FedAccTempCalibrator(objective="nll", search="bisect"),
    FedHistogramCalibrator(method="bins"),
    FedMLPCalibrator(hidden=(8,)),
    FedMLPCalibrator(1.0, hidden=(8,), random_state=0),
    FederatedCalibratedClassifier(),
    FederatedCalibratedClassifier(RandomForestClassifier(5, random_state=0)),
    *(
        FederatedCalibratedClassifier(method=method, cv=3)
        for method in ("sigmoid", "isotonic", "temperature")
    ),
    FederatedCalibratedClassifier(method=FedBinCalibrator(), cv=3),
    FederatedCalibratedClassifier(
        # One client is asked only with a large eps.
        method=FedTempCalibrator(30.0, if_improves=False, random_state=0),
        cv=3,
    ),
    FederatedCalibratedClassifier(cv="holdout", random_state=0),
    FedGaussianHead(),
    FedGaussianHead(method="qda"),
    FedGaussianHead(method="sample", n_virtual=50, random_state=0),
    FedGaussianHead(1.0, max_norm=10.0, random_state=0),
    LogitTransformer(LogisticRegression(), cv=None),
    LogitTransformer(RandomForestClassifier(5, random_state=0), cv=None),
    LogitTransformer(LogisticRegression()),
]

TRAINED = [
    FedAvgClassifier(
        module_params={"hidden": (16,)}, n_rounds=15, lr=0.5, random_state=0
    ),
    FedAvgClassifier("linear", n_rounds=2, eps=1.0, random_state=0),
]


def expected_failures(estimator):
    """Common checks that cannot hold, with the reason."""
    if isinstance(estimator, BaseCalibrator):
        found = testing.expected_failures(estimator)
        return {name: why for name, why in found.items() if name != ONE_LABEL}
    if isinstance(estimator, LogitTransformer) and estimator.cv is not None:
        names = ["check_transformer_general", "check_transformer_data_not_an_array"]
        return dict.fromkeys(names, CROSS_FITTED)
    if isinstance(estimator, FederatedCalibratedClassifier):
        if estimator.cv == "holdout":
            return {"check_classifiers_train": UNDERFLOW}
        if estimator.estimator is not None:
            return dict.fromkeys(EQUIVALENCE_CHECKS, BOOTSTRAP)
        if getattr(estimator.method, "eps", None) is not None:
            return dict.fromkeys(EQUIVALENCE_CHECKS, UNWEIGHTED)
    return {}


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.LogitsWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(CHECKED, expected_failed_checks=expected_failures)
def test_common_check(estimator, check):
    try:
        check(estimator)
    except AssertionError:
        name = check.func.__name__
        isotonic = getattr(estimator, "method", None) == "isotonic"
        if isinstance(estimator, FederatedCalibratedClassifier) and isotonic:
            if name in EQUIVALENCE_CHECKS:
                pytest.xfail(ZEROS)
            raise
        private = isinstance(estimator, BaseCalibrator) and estimator.eps is not None
        if not private or name != ONE_LABEL:
            raise
        # A map by class may learn from its rows which label occurs; others cannot.
        pytest.xfail(testing.expected_failures(estimator)[ONE_LABEL])


def test_isotonic_weights_are_repeated_rows(features):
    """What the common check would show, but for the size of probabilities near 0."""
    X, y, _ = features
    weights = np.random.default_rng(0).integers(0, 4, len(y))
    found = []
    for repeated in (False, True):
        index = np.repeat(np.arange(len(y)), weights) if repeated else np.arange(len(y))
        halves = [np.flatnonzero(index % 2 == half) for half in (0, 1)]
        model = FederatedCalibratedClassifier(
            LogisticRegression(solver="newton-cholesky", tol=1e-12),
            method="isotonic",
            cv=[(halves[0], halves[1]), (halves[1], halves[0])],
        )
        given = None if repeated else weights
        found.append(model.fit(X[index], y[index], sample_weight=given))
    first, second = (model.predict_proba(X) for model in found)
    unweighted = clone(found[0]).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-6)
    assert np.abs(first - unweighted).max() > 0.01


@pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(TRAINED)
def test_common_check_of_trainers(estimator, check):
    check(estimator)


def test_every_public_estimator_is_checked(public_estimators):
    assert {type(estimator) for estimator in CHECKED} == set(public_estimators)


def make_estimator(cls):
    """An estimator with parameters that are not the defaults."""
    if issubclass(cls, BaseCalibrator):
        runner = FederatedRunner(cohort_size=4)
        if not registry.method_of(cls).has_noise:
            return cls(method="isotonic", random_state=0)
        return cls(privacy=CentralDP(eps=3.0), runner=runner, random_state=0)
    if cls is LogitTransformer:
        return LogitTransformer(LogisticRegression(C=0.5), cv=3)
    if cls is FedGaussianHead:
        privacy = CentralDP(eps=3.0)
        return cls(privacy=privacy, max_norm=4.0, classes=range(3), random_state=0)
    return cls(LogisticRegression(C=0.5), FedBinCalibrator(n_bins=7), cv="holdout")


def fit_any(estimator, federation, features):
    """Fit on logits or on features, whichever the estimator takes."""
    if isinstance(estimator, BaseCalibrator):
        return estimator.fit(federation.clients), federation.test_logits
    X, y, _ = features
    return estimator.fit(X, y), X


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_clone_and_pickle_keep_everything(public_estimators, federation, features):
    for cls in public_estimators:
        estimator = make_estimator(cls)
        assert repr(clone(estimator).get_params()) == repr(estimator.get_params())
        before = repr(estimator.get_params())
        fitted, rows = fit_any(estimator, federation, features)
        assert repr(fitted.get_params()) == before
        again = pickle.loads(pickle.dumps(fitted))
        method = "predict_proba" if is_classifier(fitted) else "transform"
        np.testing.assert_array_equal(
            getattr(again, method)(rows), getattr(fitted, method)(rows)
        )
        assert not hasattr(clone(fitted), "classes_")


def test_set_params_reaches_frozen_objects(calibrator_class):
    privacy, runner = CentralDP(eps=1.0), FederatedRunner(cohort_size=4)
    calibrator = calibrator_class(privacy=privacy, runner=runner)
    assert calibrator.get_params()["privacy__eps"] == 1.0
    calibrator.set_params(privacy__eps=2.0, runner__cohort_size=5)
    assert calibrator.privacy == CentralDP(eps=2.0)
    assert calibrator.runner.cohort_size == 5
    assert (privacy.eps, runner.cohort_size) == (1.0, 4)
    calibrator.set_params(privacy__eps=9.0, privacy=CentralDP(eps=1.0, delta=1e-6))
    assert calibrator.privacy == CentralDP(eps=9.0, delta=1e-6)
    with pytest.raises(ValueError, match="Invalid parameter 'budget'"):
        calibrator.set_params(privacy__budget=1.0)
    with pytest.raises(ValueError, match="Invalid parameter 'nothing'"):
        calibrator.set_params(nothing=1.0)


def test_set_params_through_pipeline_and_meta_estimator():
    calibrator = FedTempCalibrator(privacy=CentralDP(eps=1.0), runner=FederatedRunner())
    pipe = make_pipeline(LogitTransformer(LogisticRegression()), calibrator)
    pipe.set_params(
        fedtempcalibrator__privacy__eps=2.0, fedtempcalibrator__runner__cohort_size=3
    )
    assert pipe[-1].privacy.eps == 2.0
    assert pipe[-1].runner.cohort_size == 3
    whole = FederatedCalibratedClassifier(LogisticRegression(), clone(calibrator))
    whole.set_params(method__privacy__eps=4.0, estimator__C=0.1)
    assert whole.method.privacy.eps == 4.0
    assert whole.estimator.C == 0.1


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize(
    ("start", "grid"),
    [
        (FedTempCalibrator(), {"eps": [0.5, 50.0]}),
        (FedTempCalibrator(privacy=CentralDP(1.0)), {"privacy__eps": [0.5, 50.0]}),
        (FedBinCalibrator(), {"eps": [0.5, 500.0], "n_bins": [5]}),
        (
            FedTempCalibrator(1.0, runner=FederatedRunner()),
            {"runner__cohort_size": [2, 4]},
        ),
    ],
    ids=["eps", "privacy__eps", "eps-bin", "runner"],
)
def test_grid_search_spends_from_one_ledger(federation, start, grid):
    ledger = PrivacyLedger()
    search = GridSearchCV(
        clone(start).set_params(ledger=ledger), grid, cv=3, scoring="neg_log_loss"
    )
    search.fit(federation.logits, federation.labels, client_ids=federation.client_ids)
    assert len(ledger) == 2 * 3 + 1
    assert search.best_estimator_.n_clients_ == 12
    assert search.best_estimator_.ledger is ledger


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_grid_search_without_a_ledger_warns(federation, noisy_class):
    search = GridSearchCV(noisy_class(), {"eps": [1.0]}, cv=2, refit=False)
    with pytest.warns(PrivacyWarning, match="spends eps again"):
        search.fit(
            federation.logits, federation.labels, client_ids=federation.client_ids
        )


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_cross_validation_debits_each_fold(federation, noisy_class):
    ledger = PrivacyLedger()
    scores = cross_val_score(
        noisy_class(5.0, ledger=ledger),
        federation.logits,
        federation.labels,
        cv=5,
        scoring="neg_log_loss",
        params={"client_ids": federation.client_ids},
    )
    assert np.isfinite(scores).all()
    assert len(ledger) == 5
    assert len({record["id"] for record in ledger.records()}) == 5


@pytest.mark.parametrize("routing", [False, True])
def test_client_ids_reach_the_calibrator(features, routing):
    X, y, ids = features
    frozen = FrozenEstimator(LogisticRegression().fit(X, y))
    pipe = make_pipeline(LogitTransformer(frozen), FedTempCalibrator())
    with sklearn.config_context(enable_metadata_routing=routing):
        params = {"client_ids" if routing else "fedtempcalibrator__client_ids": ids}
        assert pipe.fit(X, y, **params)[-1].n_clients_ == 12
        grid = {"fedtempcalibrator__solver": ["newton", "grid"]}
        search = GridSearchCV(pipe, grid, cv=3).fit(X, y, **params)
        assert search.best_estimator_[-1].n_clients_ == 12
        scores = cross_val_score(pipe, X, y, scoring="neg_log_loss", params=params)
        assert np.isfinite(scores).all()
        found = cross_validate(pipe, X, y, params=params, return_estimator=True)
        assert [e[-1].n_clients_ for e in found["estimator"]] == [12] * 5


@pytest.mark.parametrize("routing", [False, True])
def test_client_ids_reach_the_classifier_with_calibrator(features, routing):
    X, y, ids = features
    whole = FederatedCalibratedClassifier(cv=3)
    params = {"client_ids": ids}
    with sklearn.config_context(enable_metadata_routing=routing):
        assert whole.fit(X, y, **params).calibrator_.n_clients_ == 12
        found = cross_validate(whole, X, y, cv=2, params=params, return_estimator=True)
        assert [e.calibrator_.n_clients_ for e in found["estimator"]] == [12] * 2
        grid = {"calibration_size": [0.2, 0.5], "cv": ["holdout"]}
        search = GridSearchCV(whole, grid, cv=2).fit(X, y, **params)
        assert search.best_estimator_.calibrator_.n_clients_ == 12
        pipe = make_pipeline(StandardScaler(), whole)
        name = "" if routing else "federatedcalibratedclassifier__"
        pipe.fit(X, y, **{f"{name}client_ids": ids})
        assert pipe[-1].calibrator_.n_clients_ == 12


def test_one_array_serves_group_folds_and_calibrator(features):
    X, y, ids = features
    with sklearn.config_context(enable_metadata_routing=True):
        calibrator = FedTempCalibrator().set_fit_request(client_ids="groups")
        pipe = make_pipeline(LogitTransformer(LogisticRegression()), calibrator)
        found = cross_validate(
            pipe,
            X,
            y,
            cv=GroupKFold(4),
            params={"groups": ids},
            return_estimator=True,
        )
        assert [e[-1].n_clients_ for e in found["estimator"]] == [9] * 4
        whole = FederatedCalibratedClassifier(cv=3).set_fit_request(client_ids="groups")
        search = GridSearchCV(whole, {"cv": [2, 3]}, cv=GroupKFold(4))
        search.fit(X, y, groups=ids)
        assert search.best_estimator_.calibrator_.n_clients_ == 12


def test_groups_of_the_splitter_are_not_taken_for_clients(features):
    X, y, ids = features
    found = cross_validate(
        make_pipeline(LogitTransformer(LogisticRegression()), FedTempCalibrator()),
        X,
        y,
        cv=GroupKFold(4),
        groups=ids,
        params={"fedtempcalibrator__client_ids": ids},
        return_estimator=True,
    )
    assert [e[-1].n_clients_ for e in found["estimator"]] == [9] * 4


def test_sample_weight_must_be_requested_under_routing(features):
    X, y, ids = features
    weights = np.where(ids < 6, 1.0, 0.0)
    with sklearn.config_context(enable_metadata_routing=True):
        pipe = make_pipeline(
            LogitTransformer(LogisticRegression()), FedTempCalibrator()
        )
        with pytest.raises(ValueError, match="sample_weight"):
            pipe.fit(X, y, sample_weight=weights)
        pipe = make_pipeline(
            LogitTransformer(LogisticRegression().set_fit_request(sample_weight=True)),
            FedTempCalibrator().set_fit_request(sample_weight=False),
        ).fit(X, y, sample_weight=weights)
    plain = LogisticRegression().fit(X, y, sample_weight=weights)
    np.testing.assert_allclose(pipe[0].estimator_.coef_, plain.coef_)


@pytest.mark.parametrize(
    "calibrator",
    [
        FedTempCalibrator(),
        FedTempCalibrator(solver="grid"),
        FedTempCalibrator(solver="average"),
        FedBinCalibrator(),
        FedBinCalibrator(n_bins=4, normalize="logit", clip=20.0),
        FedTopBinCalibrator(),
    ],
    ids=str,
)
def test_weight_zero_removes_and_weight_two_repeats(federation, calibrator):
    logits, labels = federation.logits, federation.labels
    ids, test = federation.client_ids, federation.test_logits
    weights = np.random.default_rng(0).integers(0, 4, size=len(labels))
    repeated = np.repeat(np.arange(len(labels)), weights)
    weighted = clone(calibrator).fit(
        logits, labels, client_ids=ids, sample_weight=weights
    )
    copied = clone(calibrator).fit(
        logits[repeated], labels[repeated], client_ids=ids[repeated]
    )
    np.testing.assert_allclose(
        weighted.predict_proba(test), copied.predict_proba(test), rtol=1e-6
    )
    ones = clone(calibrator).fit(
        logits, labels, client_ids=ids, sample_weight=np.ones(len(labels))
    )
    plain = clone(calibrator).fit(logits, labels, client_ids=ids)
    np.testing.assert_allclose(
        ones.predict_proba(test), plain.predict_proba(test), rtol=1e-6
    )


@pytest.mark.parametrize("params", [{"eps": 1.0}, {"privacy": CentralDP(1.0)}])
def test_sample_weight_is_refused_under_privacy(clients, noisy_class, params):
    weights = [np.ones(len(y)) for _, y in clients]
    with pytest.raises(ValueError, match="sample_weight cannot be used with privacy"):
        noisy_class(**params).fit(clients, sample_weight=weights)


def test_feature_names_of_frames(federation, calibrator_class):
    logits, labels = federation.logits, federation.labels
    frame = pd.DataFrame(logits, columns=["a", "b", "c"])
    calibrator = calibrator_class().fit(
        frame, pd.Series(labels), client_ids=pd.Series(federation.client_ids)
    )
    assert list(calibrator.feature_names_in_) == ["a", "b", "c"]
    assert calibrator.n_clients_ == 12
    with pytest.warns(UserWarning, match="valid feature names"):
        plain = calibrator.predict_proba(logits)
    np.testing.assert_allclose(calibrator.predict_proba(frame), plain, rtol=1e-12)
    with pytest.raises(ValueError, match="feature names"):
        calibrator.predict(frame[["b", "a", "c"]])
    pairs = [(frame[:300], labels[:300]), (frame[300:], labels[300:])]
    assert list(calibrator_class().fit(pairs).feature_names_in_) == ["a", "b", "c"]


def test_chain_of_calibrators(features):
    X, y, ids = features
    chain = make_pipeline(
        StandardScaler(),
        LogitTransformer(LogisticRegression()),
        LogitTransformer(FedTempCalibrator()),
        FedBinCalibrator(n_bins=5),
    ).fit(X, y, fedbincalibrator__client_ids=ids)
    np.testing.assert_allclose(chain.predict_proba(X).sum(axis=1), 1)
    assert chain.score(X, y) > 0.5


def test_function_transformer_wraps_any_model(features):
    X, y, ids = features
    model = LogisticRegression().fit(X, y)
    pipe = make_pipeline(
        FunctionTransformer(model.decision_function), FedTempCalibrator()
    )
    pipe.fit(X, y, fedtempcalibrator__client_ids=ids)
    assert pipe.predict_proba(X).shape == (480, 3)


def test_html_repr_names_the_estimator(public_estimators, federation, features):
    for cls in public_estimators:
        estimator = cls() if cls is not LogitTransformer else make_estimator(cls)
        assert cls.__name__ in estimator._repr_html_()
        fitted, _ = fit_any(estimator, federation, features)
        html = fitted._repr_html_()
        assert cls.__name__ in html
        assert "Fitted" in html


class Recorder:
    """Callback that keeps each round and may stop after some."""

    def __init__(self, n_rounds=None):
        self.n_rounds = n_rounds
        self.seen = []

    def setup(self, estimator, context): ...
    def teardown(self, estimator, context): ...
    def on_fit_task_begin(self, estimator, context): ...

    def on_fit_task_end(
        self, estimator, context, *, X=None, y=None, fitted_estimator=None
    ):
        assert X is None
        assert y is None
        if context.task_name != "round":
            return False
        self.seen.append(fitted_estimator)
        return len(self.seen) == self.n_rounds


needs_callbacks = pytest.mark.skipif(
    not HAS_CALLBACKS, reason="callbacks came with scikit-learn 1.9"
)


@needs_callbacks
def test_callbacks_see_each_round(clients, calibrator_class):
    recorder = Recorder()
    calibrator = calibrator_class().set_callbacks(recorder).fit(clients)
    assert len(recorder.seen) == calibrator.n_rounds_ == len(calibrator.history_)
    logits = clients[0][0]
    np.testing.assert_array_equal(
        recorder.seen[-1].predict_proba(logits), calibrator.predict_proba(logits)
    )


@needs_callbacks
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_early_stop_refunds_nothing(clients):
    def fit(callbacks):
        ledger = PrivacyLedger()
        runner = FederatedRunner(n_rounds=3)
        calibrator = FedTempCalibrator(2.0, ledger=ledger, runner=runner)
        return calibrator.set_callbacks(*callbacks).fit(clients), ledger

    full, full_ledger = fit([])
    stopped, ledger = fit([Recorder(n_rounds=1)])
    assert (stopped.n_rounds_, full.n_rounds_) == (1, 3)
    for name in ("eps", "delta", "mu", "noise_multiplier", "n_rounds"):
        assert getattr(stopped.privacy_, name) == getattr(full.privacy_, name)
    assert len(ledger) == len(full_ledger) == 1
    assert ledger.spent(1e-5) == full_ledger.spent(1e-5) > 0
    assert ledger.records()[0]["event"] == full_ledger.records()[0]["event"]


@needs_callbacks
@pytest.mark.filterwarnings("error:.*does not support callbacks")
def test_progress_bar_shows_rounds(clients, features, capsys):
    pytest.importorskip("rich")
    from sklearn.callback import ProgressBar

    X, y, ids = features
    FedTempCalibrator().set_callbacks(ProgressBar()).fit(clients)
    assert "FedTempCalibrator" in capsys.readouterr().out
    pipe = make_pipeline(
        StandardScaler(), LogitTransformer(LogisticRegression()), FedTempCalibrator()
    )
    pipe.set_callbacks(ProgressBar()).fit(X, y, fedtempcalibrator__client_ids=ids)
    shown = capsys.readouterr().out
    assert "LogitTransformer" in shown
    assert "FedTempCalibrator" in shown


def test_a_subclass_has_parameters_of_its_own():
    class Named(FedTempCalibrator):
        def __init__(self, eps=None, *, name="a"):
            super().__init__(eps)
            self.name = name

    before = FedTempCalibrator().get_params()
    FedTempCalibrator._get_param_names().append("other")  # what is remembered stays
    named = clone(Named(name="b"))
    assert named.get_params() == {"eps": None, "name": "b"}
    assert FedTempCalibrator().get_params() == before
