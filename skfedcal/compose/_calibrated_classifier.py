"""Features in, calibrated probabilities out."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, Self

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
from skfedcal.clients.partitions import as_generator, rows_by_client
from skfedcal.compose._classifier_logits import (
    check_target,
    classes_of,
    copy_feature_info,
    fit_rows,
    logits_of,
    out_of_fold_logits,
    predict_rows,
)
from skfedcal.compose.folds import encode_clients, holdout_rows, make_splits
from skfedcal.exceptions import PrivacyWarning
from skfedcal.methods import FedTempCalibrator
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


def clone_calibrator(calibrator, *, frozen):
    """Clone to be fitted; refuse or warn before any work is done."""
    if calibrator is None:
        return FedTempCalibrator()
    calibrator._validate_params()
    if calibrator.input_type != "logits":
        raise ValueError(
            f"The calibrator has input_type={calibrator.input_type!r}, but it is given "
            "logits of the classifier; use input_type='logits'."
        )
    if calibrator._privacy_model().private and not frozen:
        warnings.warn(
            "The budget of the calibrator does not cover the classifier, which is "
            "trained on the same clients without privacy. Pass a classifier trained "
            "elsewhere as FrozenEstimator(classifier).",
            PrivacyWarning,
            stacklevel=4,
        )
    return copy_to_fit(calibrator)


def name_columns(calibrator, classes):
    """Tell the calibrator which column is which class."""
    if len(classes) < 2:
        raise ValueError(
            f"y holds only one class ({classes.tolist()}); nothing can be calibrated."
        )
    given = calibrator.classes
    if given is not None and not np.array_equal(np.sort(np.asarray(given)), classes):
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
    calibrator : calibrator, default=None
        None is :class:`FedTempCalibrator`. Its `classes` are set by `fit`.
    cv : int, splitter, list of splits or 'holdout', default=5
        Rows the calibrator learns from. A number of folds: all rows, each with the
        logits of a classifier that was trained without its fold; every client shares
        out its own rows, class by class. A splitter: the same with its folds; one
        that needs `groups` is given `client_ids`. The classifier is then trained on
        all rows. 'holdout': a share of each client's rows, which the classifier is
        never trained on.
    calibration_size : float, default=0.2
        Share of its rows that each client keeps for calibration with
        ``cv='holdout'``, stratified by class.
    random_state : int, RandomState instance or None, default=None
        Seed of the split for ``cv='holdout'``.

    Attributes
    ----------
    estimator_ : classifier
        The trained classifier.
    calibrator_ : calibrator
        The fitted calibrator.
    classes_ : ndarray of shape (n_classes,)
        Sorted labels; the order of the columns of `predict_proba`.
    privacy_ : PrivacyReport
        The guarantee of the calibrator. Unless the classifier is frozen, it lists
        among its assumptions that the classifier is not covered.
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
    matter for the calibration. ``cv=5`` trains six classifiers, ``cv='holdout'`` one.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skfedcal import FederatedCalibratedClassifier, FedTempCalibrator
    >>> X, y = load_digits(return_X_y=True)
    >>> client_ids = np.arange(len(y)) % 20
    >>> base = GaussianNB(var_smoothing=0.01)
    >>> clf = FederatedCalibratedClassifier(base, FedTempCalibrator())
    >>> clf.fit(X, y, client_ids=client_ids).calibrator_.n_clients_
    20
    >>> clf.predict_proba(X).shape
    (1797, 10)
    """

    _parameter_constraints = {
        "estimator": [
            HasMethods(["fit", "predict_proba"]),
            HasMethods(["fit", "decision_function"]),
            None,
        ],
        "calibrator": [BaseCalibrator, None],
        "cv": [
            Interval(Integral, 2, None, closed="left"),
            HasMethods(["split", "get_n_splits"]),
            list,
            tuple,
            StrOptions({"holdout"}),
        ],
        "calibration_size": [Interval(Real, 0, 1, closed="neither")],
        "random_state": ["random_state"],
    }
    # Under metadata routing `client_ids` reaches `fit` without set_fit_request.
    __metadata_request__fit = {"client_ids": True}

    def __init__(
        self,
        estimator: Estimator | None = None,
        calibrator: BaseCalibrator | None = None,
        *,
        cv: CVSplits | Literal["holdout"] = 5,
        calibration_size: float = 0.2,
        random_state: RandomState = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.calibration_size = calibration_size
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
        client_ids : array-like of shape (n_samples,), default=None
            Client that owns each row; also passed to the classifier if its `fit`
            accepts it.
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
        X, target = indexable(X, target)
        names, clients = encode_clients(client_ids, len(target))
        frozen = isinstance(self.estimator, FrozenEstimator)
        calibrator = clone_calibrator(self.calibrator, frozen=frozen)
        weights = None if calibrator._privacy_model().private else sample_weight
        routed = self._routed(sample_weight, client_ids, fit_params)
        with undone_on_error(self):
            context = self._init_callback_context(max_subtasks=2)
            context.call_on_fit_task_begin(estimator=self)
            made = self._fit_estimator(X, target, client_ids, clients, routed, context)
            logits, rows = made
            self.classes_ = classes_of(self.estimator_)
            name_columns(calibrator, self.classes_)
            weights = check_method_params(X, {"w": weights}, rows)["w"]
            data = calibration_data(logits, target[rows], weights, clients[rows], names)
            with fit_subtask(context, "calibrate", self, calibrator):
                self.calibrator_ = calibrator.fit(**data)
            copy_feature_info(self.estimator_, self)
            context.call_on_fit_task_end(estimator=self)
            return self

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
        """The guarantee of the calibrator."""
        check_is_fitted(self)
        report = self.calibrator_.privacy_
        if not report.private or isinstance(self.estimator_, FrozenEstimator):
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
        return getattr(self.calibrator_, method)(logits_of(self.estimator_, X))

    def _estimator(self):
        return LogisticRegression() if self.estimator is None else self.estimator

    def _fit_estimator(self, X, y, client_ids, clients, routed, context):
        """Set `estimator_`; return logits to calibrate on and the rows they are of."""
        self.estimator_ = estimator = copy_to_fit(self._estimator())
        every_row = slice(None)
        if isinstance(estimator, FrozenEstimator):
            return logits_of(estimator, X), every_row
        params, train = routed.estimator.fit, None
        if self.cv == "holdout":
            rng = as_generator(self.random_state)
            held = holdout_rows(y, clients, self.calibration_size, rng)
            train, rows = np.flatnonzero(~held), np.flatnonzero(held)
        with fit_subtask(context, "fit-estimator", self, estimator):
            fit_rows(estimator, X, y, params, train)
        if train is not None:
            return predict_rows(estimator, X, rows, train), rows
        split_params = routed.splitter.split
        splits = make_splits(self.cv, X, y, client_ids, clients, split_params)
        classes = classes_of(estimator)
        return out_of_fold_logits(estimator, X, y, params, splits, classes), every_row

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
