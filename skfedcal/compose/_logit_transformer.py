"""A classifier as a pipeline step that outputs logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import check_cv
from sklearn.utils import Bunch, get_tags, indexable
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    process_routing,
)
from sklearn.utils.validation import check_is_fitted

from skfedcal._sklearn_compat import (
    CallbackSupportMixin,
    HasMethods,
    copy_to_fit,
    fit_context,
    fit_subtask,
    routing_enabled,
    undone_on_error,
)
from skfedcal.compose._classifier_logits import (
    LogitColumns,
    check_target,
    classes_of,
    copy_feature_info,
    fit_rows,
    logits_of,
    out_of_fold_logits,
)

if TYPE_CHECKING:
    from skfedcal._typing import ArrayLike, CVSplits, Estimator, FloatArray, Rows


class LogitTransformer(
    CallbackSupportMixin, MetaEstimatorMixin, LogitColumns, BaseEstimator
):
    """Turn the scores of a classifier into one logit column per class.

    Parameters
    ----------
    estimator : classifier
        Has `decision_function` or `predict_proba`. Wrap a trained model in
        :class:`sklearn.frozen.FrozenEstimator` to use it as it is.
    cv : int, splitter, iterable of splits or None, default=5
        `fit_transform` returns out-of-fold logits, so that the next step is not
        calibrated on rows that the classifier was trained on. None, or a frozen
        estimator, gives the output of `transform`.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on all rows; used by `transform`.
    classes_ : ndarray of shape (n_classes,)
        Labels of the columns.
    n_features_in_ : int
        Number of features, if `estimator_` defines it.
    feature_names_in_ : ndarray of shape (`n_features_in_`,)
        Names of the features, if `estimator_` defines them.

    See Also
    --------
    FederatedCalibratedClassifier : Classifier and calibrator in one estimator.

    Notes
    -----
    Log-odds d of two classes become ``(-d/2, d/2)``, whose softmax is the sigmoid of d.
    Without `decision_function` the logits are log-probabilities; a class of probability
    0 is given 0.001, or the smallest probability of its row if that is less.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from skfedcal import FedTempCalibrator, LogitTransformer
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = LogisticRegression(max_iter=500)
    >>> pipe = make_pipeline(LogitTransformer(classifier), FedTempCalibrator())
    >>> pipe.fit(X, y).predict_proba(X).shape
    (150, 3)
    """

    _parameter_constraints = {
        "estimator": [
            HasMethods(["fit", "predict_proba"]),
            HasMethods(["fit", "decision_function"]),
        ],
        "cv": ["cv_object", None],
    }

    def __init__(self, estimator: Estimator, *, cv: CVSplits | None = 5) -> None:
        self.estimator = estimator
        self.cv = cv

    @fit_context()
    def fit(self, X: Rows, y: ArrayLike | None = None, **params: object) -> Self:
        """Fit the classifier unless it is frozen.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,), default=None
            Labels; only a frozen estimator does without.
        **params : dict
            Passed to `fit` of the classifier; under metadata routing, to the object
            that requests it.

        Returns
        -------
        self : object
            Fitted transformer.
        """
        with undone_on_error(self):
            context = self._init_callback_context(max_subtasks=1)
            context.call_on_fit_task_begin(estimator=self)
            self.estimator_ = copy_to_fit(self.estimator)
            if not self._frozen:
                y = check_target(y)
                params = self._routed(params).estimator.fit
                with fit_subtask(context, "fit-estimator", self, self.estimator_):
                    fit_rows(self.estimator_, X, y, params)
            self.classes_ = classes_of(self.estimator_)
            copy_feature_info(self.estimator_, self)
            context.call_on_fit_task_end(estimator=self)
            return self

    def fit_transform(
        self, X: Rows, y: ArrayLike | None = None, **params: object
    ) -> FloatArray:
        """Fit, and return logits of rows that the classifier has not seen.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,), default=None
            Labels; only a frozen estimator does without.
        **params : dict
            As in `fit`; also reaches the splitter under metadata routing.

        Returns
        -------
        logits : ndarray of shape (n_samples, n_classes)
            Out-of-fold logits, or those of `transform` without `cv`.
        """
        self.fit(X, y, **params)
        if self.cv is None or self._frozen:
            return self.transform(X)
        X, y = indexable(X, check_target(y))
        routed = self._routed(params)
        splitter = check_cv(self.cv, y, classifier=True)
        splits = splitter.split(X, y, **routed.splitter.split)
        return out_of_fold_logits(
            self.estimator, X, y, routed.estimator.fit, splits, self.classes_
        )

    def transform(self, X: Rows) -> FloatArray:
        """Logits of the classifier that was fitted on all rows.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features)
            Features.

        Returns
        -------
        logits : ndarray of shape (n_samples, n_classes)
            One column per entry of `classes_`, in the dtype of the classifier.
        """
        check_is_fitted(self)
        return logits_of(self.estimator_, X)

    def get_metadata_routing(self) -> MetadataRouter:
        """Route what `fit` is given to the classifier and the splitter.

        Returns
        -------
        routing : MetadataRouter
            Where each parameter goes.
        """
        callers = ("fit", "fit_transform")
        to_fit, to_split = MethodMapping(), MethodMapping()
        for caller in callers:
            to_fit.add(caller=caller, callee="fit")
            to_split.add(caller=caller, callee="split")
        return (
            MetadataRouter(owner=self)
            .add(estimator=self.estimator, method_mapping=to_fit)
            .add(splitter=self.cv, method_mapping=to_split)
        )

    @property
    def _frozen(self):
        return isinstance(self.estimator, FrozenEstimator)

    def _routed(self, params):
        if routing_enabled():
            return process_routing(self, "fit", **params)
        return Bunch(estimator=Bunch(fit=params), splitter=Bunch(split={}))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags
