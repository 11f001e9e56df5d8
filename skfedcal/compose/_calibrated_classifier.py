"""Features in, calibrated probabilities out."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.utils import Bunch, get_tags, indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    process_routing,
)
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from skfedcal._logit_predictions import like_input
from skfedcal._sklearn_compat import (
    CallbackSupportMixin,
    HasMethods,
    Interval,
    StrOptions,
    check_method_params,
    copy_to_fit,
    fit_context,
    fit_subtask,
    routing_enabled,
    undone_on_error,
)
from skfedcal.clients.arrays import from_tensor
from skfedcal.clients.forms import drop_client_column, split_client_column
from skfedcal.clients.partitions import as_generator, rows_by_client
from skfedcal.compose._classifier_logits import (
    check_partition,
    check_target,
    classes_of,
    copy_feature_info,
    fit_folds,
    fit_rows,
    join_folds,
    logits_of,
    predict_rows,
    sklearn_scores,
)
from skfedcal.compose.folds import encode_clients, holdout_rows, make_splits
from skfedcal.exceptions import PrivacyWarning
from skfedcal.methods import (
    FedOneVsRestCalibrator,
    FedShapeCalibrator,
    FedTempCalibrator,
)
from skfedcal.methods.base import BaseCalibrator

if TYPE_CHECKING:
    from skfedcal._typing import (
        Array,
        ArrayLike,
        CVSplits,
        Estimator,
        FloatArray,
        RandomState,
        Rows,
    )
    from skfedcal.privacy.events import PrivacyReport


# Methods of scikit-learn: its scores, its folds, its ensembles.
SKLEARN_METHODS = ("sigmoid", "isotonic", "temperature")


def make_calibrator(method, *, frozen, input_type="logits"):
    """Calibrator to be fitted; refuse or warn before any work is done."""
    if method == "auto":
        return FedShapeCalibrator()
    if method == "temperature":
        return FedTempCalibrator()
    if isinstance(method, str):
        curve: Any = method
        return FedOneVsRestCalibrator(method=curve, input_type=input_type)
    method._validate_params()
    if method.input_type != "logits":
        raise ValueError(
            f"The calibrator has input_type={method.input_type!r}, but it is given "
            "logits of the classifier; use input_type='logits'."
        )
    if method._privacy_model().private and not frozen:
        warnings.warn(
            "The budget of the calibrator does not cover the classifier, which is "
            "trained on the same clients without privacy. Pass a classifier trained "
            "elsewhere as FrozenEstimator(classifier).",
            PrivacyWarning,
            stacklevel=4,
        )
    return copy_to_fit(method)


def read_scores(method, estimator, X):
    """Scores that the calibrator of `method` is given."""
    if method in SKLEARN_METHODS:
        return sklearn_scores(estimator, X, method)[0]
    return logits_of(estimator, X)


class CalibratedPair(NamedTuple):
    """A fitted classifier and the fitted calibrator of its scores.

    Parameters
    ----------
    estimator : classifier
        The classifier.
    calibrator : calibrator
        The calibrator.
    method : {'sigmoid', 'isotonic', 'temperature', 'logits'}
        Which scores of the classifier the calibrator is given.
    """

    estimator: Any
    calibrator: Any
    method: str

    def predict_proba(self, X: Rows) -> FloatArray:
        """Calibrated probabilities, columns in the order of the classes."""
        return self.calibrated("predict_proba", X)

    def calibrated(self, name: str, X: Rows) -> Any:
        """Result of a method of the calibrator."""
        return getattr(self.calibrator, name)(
            read_scores(self.method, self.estimator, X)
        )


def name_columns(calibrator, classes):
    """Tell the calibrator which column is which class."""
    if len(classes) < 2:
        raise ValueError(
            f"y holds only one class ({classes.tolist()}); nothing can be calibrated."
        )
    given = calibrator.classes
    if given is not None and not np.array_equal(
        np.sort(np.asarray(given)), np.sort(classes)
    ):
        raise ValueError(
            f"The calibrator has classes={list(given)}, the classifier has "
            f"{classes.tolist()}; leave `classes` out."
        )
    calibrator.set_params(classes=classes)


def calibration_data(logits, y, weights, clients, names):
    """Arguments of the calibrator's `fit`.

    Named clients become lists with one entry each, so that a client without a row to
    calibrate on still counts.
    """
    if names is None:
        return {"X": logits, "y": y, "sample_weight": weights}
    arrays = (logits, y) if weights is None else (logits, y, np.asarray(weights))
    parts = rows_by_client(clients, len(names), *arrays)
    X, y, *rest = (list(part) for part in zip(*parts, strict=True))
    weights = rest[0] if rest else None
    return {"X": X, "y": y, "sample_weight": weights, "client_ids": names}


class _Rows(NamedTuple):
    """Features, labels, weights and clients of a fit."""

    X: Any
    y: Any
    weights: Any
    clients: Any
    names: Any


def _is_holdout(cv):
    return isinstance(cv, str) and cv == "holdout"


_NOT_COVERED = (
    "the classifier is public: it was trained without privacy on rows of these clients"
)


class FederatedCalibratedClassifier(
    CallbackSupportMixin, MetaEstimatorMixin, ClassifierMixin, BaseEstimator
):
    """Train a classifier and calibrate it across clients.

    The calibrator sees logits of rows that the classifier was not trained on.

    .. warning::
        A budget `eps` of the calibrator covers the calibrator only. The classifier is
        trained on the same clients in the usual way, without any privacy, and both
        its parameters and the logits it gives to others can reveal their rows. For a
        guarantee that covers all of it, pass a classifier trained on other (public)
        data, or trained with its own guarantee, as a
        :class:`sklearn.frozen.FrozenEstimator`.

    Parameters
    ----------
    estimator : classifier, default=None
        None is :class:`sklearn.linear_model.LogisticRegression`. A
        :class:`sklearn.frozen.FrozenEstimator` is not retrained, and all rows
        calibrate it.
    method : {'auto', 'sigmoid', 'isotonic', 'temperature'} or calibrator, \
            default='auto'
        'sigmoid', 'isotonic' and 'temperature' are those of
        :class:`sklearn.calibration.CalibratedClassifierCV`, on the scores that it
        uses: `decision_function`, or `predict_proba` of a classifier without. 'auto'
        is :class:`FedShapeCalibrator` (see :doc:`/guide/from_sklearn` for why). A
        calibrator is given logits, and its `classes` are set by `fit`.
    cv : int, splitter, list of splits, None or 'holdout', default=5
        Rows the calibrator learns from. A number of folds (None: 5): all rows, each
        with the scores of a classifier that was trained without its fold; every client
        shares out its own rows, class by class, and without `client_ids` the folds are
        those of :class:`sklearn.model_selection.StratifiedKFold`. A splitter: the same
        with its folds; one that needs `groups` is given `client_ids`. 'holdout': a
        share of each client's rows, which the classifier is never trained on.
    calibration_size : float, default=0.2
        Share of its rows that each client keeps for calibration with
        ``cv='holdout'``, stratified by class.
    ensemble : bool or 'auto', default='auto'
        True averages the probabilities of the classifiers of all folds. Methods of
        scikit-learn then have a calibrator for each fold, as there. 'auto' and a
        calibrator share one, fitted to the scores of all folds, so that a budget is
        spent once. False trains one more classifier, on all rows, and predicts with
        it. 'auto' is False for a frozen classifier, for ``cv='holdout'`` and for a
        calibrator; else True.
    n_jobs : int, default=None
        Classifiers of folds that are trained at the same time.
    random_state : int, RandomState instance or None, default=None
        Seed of the split for ``cv='holdout'``.

    Attributes
    ----------
    calibrated_classifiers_ : list of CalibratedPair
        Classifier and calibrator of each fold of an ensemble, else one pair.
    estimator_ : classifier
        The trained classifier, if there is one.
    calibrator_ : calibrator
        The fitted calibrator, if there is one.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    privacy_ : PrivacyReport
        The guarantee of the calibrator; of an ensemble, that of the first fold. Where
        it is private and the classifier is not frozen, it lists among its assumptions
        that the classifier is not covered.
    n_features_in_ : int
        Number of features, if `estimator_` defines it.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if `estimator_` defines them.

    See Also
    --------
    LogitTransformer : The first half, as a step of a pipeline.
    sklearn.calibration.CalibratedClassifierCV : Calibration without clients.

    Notes
    -----
    Training is central: rows of all clients are in this process, and the clients
    matter for the calibration. ``cv=5`` trains five classifiers, six with
    ``ensemble=False``, and ``cv='holdout'`` one.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skfedcal import FederatedCalibratedClassifier, FedTempCalibrator
    >>> X, y = load_digits(return_X_y=True)
    >>> client_ids = np.arange(len(y)) % 20
    >>> base = GaussianNB(var_smoothing=0.01)
    >>> clf = FederatedCalibratedClassifier(base, "sigmoid")
    >>> clf.fit(X, y, client_ids=client_ids).predict_proba(X).shape
    (1797, 10)
    >>> clf = FederatedCalibratedClassifier(base, FedTempCalibrator())
    >>> clf.fit(X, y, client_ids=client_ids).calibrator_.n_clients_
    20
    """

    _parameter_constraints = {
        "estimator": [
            HasMethods(["fit", "predict_proba"]),
            HasMethods(["fit", "decision_function"]),
            None,
        ],
        "method": [BaseCalibrator, StrOptions({"auto", *SKLEARN_METHODS})],
        "cv": [
            None,
            Interval(Integral, 2, None, closed="left"),
            HasMethods(["split", "get_n_splits"]),
            list,
            tuple,
            StrOptions({"holdout"}),
        ],
        "calibration_size": [Interval(Real, 0, 1, closed="neither")],
        "ensemble": ["boolean", StrOptions({"auto"})],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }
    # Under metadata routing `client_ids` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"client_ids": True}

    def __init__(
        self,
        estimator: Estimator | None = None,
        method: (
            BaseCalibrator | Literal["auto", "sigmoid", "isotonic", "temperature"]
        ) = "auto",
        *,
        cv: CVSplits | Literal["holdout"] | None = 5,
        calibration_size: float = 0.2,
        ensemble: bool | Literal["auto"] = "auto",
        n_jobs: int | None = None,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv
        self.calibration_size = calibration_size
        self.ensemble = ensemble
        self.n_jobs = n_jobs
        self.random_state = random_state

    @fit_context()
    def fit(
        self,
        X: Rows,
        y: ArrayLike,
        *,
        client_ids: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        **fit_params: object,
    ) -> Self:
        """Fit classifier and calibrator.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,)
            Labels.
        client_ids : array-like of shape (n_samples,) or str, default=None
            Client that owns each row; also passed to the classifier if its `fit`
            accepts it. The name of a column of a data frame X takes that column, which
            is then no feature.
        sample_weight : array-like of shape (n_samples,), default=None
            Weight of each row, for the classifier and a calibrator without privacy.
        **fit_params : dict
            Passed to `fit` of the classifier; under metadata routing, to the object
            that requests it.

        Returns
        -------
        self : object
            Fitted classifier.
        """
        target = check_target(y)
        column = client_ids if isinstance(client_ids, str) else None
        X, client_ids = split_client_column(from_tensor(X), client_ids)
        X, target = indexable(X, target)
        names, clients = encode_clients(client_ids, len(target))
        frozen = isinstance(self.estimator, FrozenEstimator)
        calibrator = make_calibrator(self.method, frozen=frozen)
        weights = None if calibrator._privacy_model().private else sample_weight
        routed = self._routed(sample_weight, client_ids, fit_params)
        with undone_on_error(self):
            self._client_column = column
            context = self._init_callback_context(max_subtasks=None)
            context.call_on_fit_task_begin(estimator=self)
            data = _Rows(X, target, weights, clients, names)
            split = make_splits(
                self.cv, X, target, client_ids, clients, routed.splitter.split
            ) if self._has_folds() else None  # fmt: skip
            if split is not None and self._averages():
                self._fit_ensemble(data, list(split), routed, calibrator, context)
            else:
                self._fit_one(data, split, routed, calibrator, context)
            copy_feature_info(self.calibrated_classifiers_[0].estimator, self)
            context.call_on_fit_task_end(estimator=self)
            return self

    def _has_folds(self):
        frozen = isinstance(self.estimator, FrozenEstimator)
        return not frozen and not _is_holdout(self.cv)

    def _averages(self):
        if self.ensemble == "auto":
            return isinstance(self.method, str)
        return self.ensemble

    @property
    def _reads(self):
        """Method of scikit-learn whose scores are read, or 'logits'."""
        return self.method if self.method in SKLEARN_METHODS else "logits"

    def _fit_one(self, data, splits, routed, calibrator, context):
        """One classifier and one calibrator."""
        estimator = copy_to_fit(self._estimator())
        read = partial(read_scores, self._reads)
        scores, rows = self._scores(data, estimator, splits, routed, read, context)
        self.classes_ = classes_of(estimator)
        pair = self._calibrate(data, estimator, calibrator, scores, rows, context)
        self.classes_ = np.sort(self.classes_)  # the order of the calibrator's columns
        self.calibrated_classifiers_ = [pair]

    def _scores(self, data, estimator, splits, routed, read, context):
        """Fit the classifier; return scores to calibrate on, and their rows."""
        X, y, params, every_row = data.X, data.y, routed.estimator.fit, slice(None)
        if isinstance(estimator, FrozenEstimator):
            return read(estimator, X), every_row
        train = None
        if splits is None:
            rng = as_generator(self.random_state)
            held = holdout_rows(y, data.clients, self.calibration_size, rng)
            train, rows = np.flatnonzero(~held), np.flatnonzero(held)
        with fit_subtask(context, "fit-estimator", self, estimator):
            fit_rows(estimator, X, y, params, train)
        if train is not None:
            return predict_rows(estimator, X, rows, train, read), rows
        splits = list(splits)
        check_partition(splits, len(y))
        classes = classes_of(estimator)
        folds = fit_folds(estimator, X, y, params, splits, classes, read, self.n_jobs)
        return join_folds([f.scores for f in folds], splits, len(y)), every_row

    def _fit_ensemble(self, data, splits, routed, calibrator, context):
        """A classifier for each fold; with scikit-learn's methods, a calibrator too."""
        shared = self._reads == "logits"
        if shared:
            check_partition(splits, len(data.y))
        estimator = copy_to_fit(self._estimator())
        classes, params = np.unique(data.y), routed.estimator.fit
        read = partial(read_scores, self._reads)
        folds = fit_folds(
            estimator, data.X, data.y, params, splits, classes, read, self.n_jobs
        )
        if not folds:
            raise ValueError("cv has no folds; pass a number of folds or a splitter.")
        self.classes_ = classes
        if not shared:
            self.calibrated_classifiers_ = [
                self._calibrate(data, fold.estimator, None, fold.scores, test, context)
                for fold, (_, test) in zip(folds, splits, strict=True)
            ]
            return
        scores = join_folds([fold.scores for fold in folds], splits, len(data.y))
        first = folds[0].estimator
        orders = {tuple(classes_of(fold.estimator).tolist()) for fold in folds}
        if len(orders) > 1:
            raise ValueError(
                f"{type(first).__name__} has its classes in another order in some "
                f"folds: {sorted(orders)}. Pass ensemble=False."
            )
        pair = self._calibrate(data, first, calibrator, scores, slice(None), context)
        self.calibrated_classifiers_ = [
            pair._replace(estimator=fold.estimator) for fold in folds
        ]

    def _calibrate(self, data, estimator, calibrator, scores, rows, context):
        """Fit the calibrator; None is a new one for the scores of `estimator`."""
        kind = "logits" if hasattr(estimator, "decision_function") else "proba"
        if calibrator is None or self._reads in ("sigmoid", "isotonic"):
            calibrator = make_calibrator(self.method, frozen=True, input_type=kind)
        name_columns(calibrator, classes_of(estimator))
        weights = check_method_params(data.X, {"w": data.weights}, rows)["w"]
        arguments = calibration_data(
            scores, data.y[rows], weights, data.clients[rows], data.names
        )
        with fit_subtask(context, "calibrate", self, calibrator):
            calibrator.fit(**arguments)
        return CalibratedPair(estimator, calibrator, self._reads)

    @property
    def estimator_(self) -> BaseEstimator:
        """The trained classifier, if there is one."""
        return self._only("estimator")

    @property
    def calibrator_(self) -> BaseCalibrator:
        """The fitted calibrator, if there is one."""
        return self._only("calibrator")

    def _only(self, name):
        pairs = vars(self).get("calibrated_classifiers_")
        if pairs is None:
            raise AttributeError(f"{name}_ is set by `fit`.")
        found = {id(getattr(pair, name)): getattr(pair, name) for pair in pairs}
        if len(found) > 1:
            raise AttributeError(
                f"There are {len(found)} {name}s, one for each fold; see "
                "calibrated_classifiers_, or fit with ensemble=False."
            )
        return next(iter(found.values()))

    def decision_function(self, X: Rows) -> FloatArray:
        """Calibrated logits.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        logits : ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column of log-odds when there are two classes.
        """
        return self._calibrated("decision_function", X)

    def predict_proba(self, X: Rows) -> FloatArray:
        """Calibrated probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        return self._calibrated("predict_proba", X)

    def predict_log_proba(self, X: Rows) -> FloatArray:
        """Logarithm of the calibrated probabilities.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`.
        """
        return self._calibrated("predict_log_proba", X)

    def predict(self, X: Rows) -> Array:
        """Most probable class of each row.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            Entries of `classes_`.
        """
        return self._calibrated("predict", X)

    @property
    def privacy_(self) -> PrivacyReport:
        """The guarantee of the calibrator; of several, that of the first fold."""
        check_is_fitted(self)
        pair = self.calibrated_classifiers_[0]
        report = pair.calibrator.privacy_
        if not report.private or isinstance(pair.estimator, FrozenEstimator):
            return report
        return replace(report, assumptions=(*report.assumptions, _NOT_COVERED))

    def get_metadata_routing(self) -> MetadataRouter:
        """Route what `fit` is given to the classifier and the splitter.

        Returns
        -------
        routing : MetadataRouter
            Where each parameter goes; `client_ids` and `sample_weight` are also used
            for the calibrator.
        """
        return (
            MetadataRouter(owner=self)
            .add_self_request(self)
            .add(
                estimator=self._estimator(),
                method_mapping=MethodMapping().add(caller="fit", callee="fit"),
            )
            .add(
                splitter=self.cv,
                method_mapping=MethodMapping().add(caller="fit", callee="split"),
            )
        )

    def _calibrated(self, method, X):
        check_is_fitted(self)
        rows = drop_client_column(self, from_tensor(X))
        pairs = self.calibrated_classifiers_
        if len(pairs) == 1:
            return like_input(pairs[0].calibrated(method, rows), X)
        proba = sum(pair.predict_proba(rows) for pair in pairs) / len(pairs)
        if method == "predict_proba":
            return like_input(proba, X)
        if method == "predict":
            return like_input(self.classes_[proba.argmax(axis=1)], X)
        with np.errstate(divide="ignore"):
            logs = np.log(proba)
        if method == "decision_function" and len(self.classes_) == 2:
            logs = logs[:, 1] - logs[:, 0]
        return like_input(logs, X)

    def _estimator(self):
        return LogisticRegression() if self.estimator is None else self.estimator

    def _routed(self, sample_weight, client_ids, fit_params):
        if routing_enabled():
            own = {"sample_weight": sample_weight, "client_ids": client_ids}
            return process_routing(self, "fit", **own, **fit_params)
        estimator = self._estimator()
        if client_ids is not None and has_fit_parameter(estimator, "client_ids"):
            fit_params["client_ids"] = client_ids
        if sample_weight is not None and has_fit_parameter(estimator, "sample_weight"):
            fit_params = {**fit_params, "sample_weight": sample_weight}
        elif sample_weight is not None and not isinstance(estimator, FrozenEstimator):
            warnings.warn(
                f"{type(estimator).__name__}.fit takes no sample_weight; only the "
                "calibrator is weighted.",
                UserWarning,
                stacklevel=4,
            )
        return Bunch(estimator=Bunch(fit=fit_params), splitter=Bunch(split={}))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = get_tags(self._estimator())
        tags.input_tags = inner.input_tags
        if inner.classifier_tags is not None:
            tags.classifier_tags.multi_class = inner.classifier_tags.multi_class
            tags.classifier_tags.poor_score = inner.classifier_tags.poor_score
        return tags
