"""Logits of any scikit-learn classifier, also of one fitted on some of the rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import TransformerMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import check_is_fitted

from skfedcal import _numerics
from skfedcal._sklearn_compat import check_method_params, safe_split

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skfedcal._typing import ArrayLike

__all__ = [
    "LogitColumns",
    "check_partition",
    "check_target",
    "classes_of",
    "copy_feature_info",
    "fit_folds",
    "fit_rows",
    "join_folds",
    "logits_of",
    "out_of_fold_logits",
    "predict_rows",
    "sklearn_scores",
]


class LogitColumns(TransformerMixin):
    """Names of the output of a transformer that gives logits."""

    def get_feature_names_out(
        self, input_features: ArrayLike | None = None
    ) -> NDArray[np.object_]:
        """Names of the columns, ``logit_<class>``.

        Parameters
        ----------
        input_features : array-like of str, default=None
            Not used.

        Returns
        -------
        names : ndarray of str objects
            One name per class.
        """
        check_is_fitted(self)
        return np.asarray([f"logit_{label}" for label in self.classes_], dtype=object)


# Forests and neighbours give probability 0 to a class that got no vote. No temperature
# can correct the log of 0 (floored at 1e-308 it drove T to 250), so such a class is
# given this much, or the least of its row.
NO_VOTE = 1e-3

# A smaller probability than rounding leaves next to 1. Naive Bayes has logarithms of
# minus a million; a few such rows that are wrong would decide the temperature alone.
LEAST_LOG = float(np.log(np.finfo(np.float64).eps))


def logits_of(estimator, X):
    """Logits of shape (n_samples, n_classes), columns in the order of `classes_`."""
    n_classes = len(classes_of(estimator))
    if hasattr(estimator, "decision_function"):
        _refuse_one_vs_one(estimator, n_classes)
        scores = _as_float(estimator.decision_function(X))
        if n_classes == 2 and scores.size == len(scores):
            return _numerics.as_two_columns(scores)
        return _check_columns(scores, n_classes, estimator, "decision_function")
    # Before `predict_proba`, whose float32 may be coarse; nothing is lost by it.
    if hasattr(estimator, "predict_log_proba"):
        method = "predict_log_proba"
        with np.errstate(divide="ignore"):
            scores = _as_float(estimator.predict_log_proba(X))
    else:
        method = "predict_proba"
        with np.errstate(divide="ignore"):
            scores = np.log(_as_float(estimator.predict_proba(X)))
    return _give_votes(_check_columns(scores, n_classes, estimator, method))


def sklearn_scores(estimator, X, method):
    """Scores that scikit-learn calibrates by `method`, and their `input_type`.

    Those of `decision_function`, or else probabilities; a temperature is that of
    ``log(p + 1e-12)``.
    """
    n_classes = len(classes_of(estimator))
    if hasattr(estimator, "decision_function"):
        _refuse_one_vs_one(estimator, n_classes)
        scores = _as_float(estimator.decision_function(X))
        if n_classes == 2 and scores.size == len(scores):
            return scores.reshape(-1, 1), "logits"
        return _check_columns(
            scores, n_classes, estimator, "decision_function"
        ), "logits"
    proba = _as_float(estimator.predict_proba(X))
    proba = _check_columns(proba, n_classes, estimator, "predict_proba")
    if method != "temperature":
        return proba, "proba"
    if n_classes == 2:
        # As scikit-learn: probabilities of naive Bayes add up to 1 to about 1e-11 only,
        # which counts next to 1e-12.
        proba = np.column_stack([1 - proba[:, 1], proba[:, 1]])
    return np.log(proba + 1e-12), "logits"


def classes_of(estimator):
    """Labels of a fitted classifier with one label per row."""
    classes = getattr(estimator, "classes_", None)
    name = type(estimator).__name__
    if classes is None:
        raise ValueError(f"{name} has no `classes_`; a fitted classifier is needed.")
    if isinstance(classes, list) or getattr(estimator, "multilabel_", False):
        raise ValueError(
            f"{name} is a multilabel or multioutput classifier; calibration needs one "
            "label per row. Fit one classifier per label."
        )
    return np.asarray(classes)


def _give_votes(log_proba):
    zero = np.isneginf(log_proba)
    log_proba = np.maximum(log_proba, LEAST_LOG)
    if not zero.any():
        return log_proba
    least = log_proba.min(axis=1, where=~zero, initial=np.log(NO_VOTE), keepdims=True)
    return np.where(zero, least, log_proba)


def _as_float(scores):
    scores = np.asarray(scores)
    return scores if scores.dtype.kind == "f" else scores.astype(np.float64)


def _check_columns(scores, n_classes, estimator, method):
    if scores.ndim != 2 or scores.shape[1] != n_classes:
        raise ValueError(
            f"{type(estimator).__name__}.{method} has the shape {scores.shape} for "
            f"{n_classes} classes; one column per class is needed."
        )
    return scores


def _refuse_one_vs_one(estimator, n_classes):
    """Three classes have three pairs: the shape alone cannot tell."""
    inner = _innermost(estimator)
    if n_classes > 2 and getattr(inner, "decision_function_shape", None) == "ovo":
        raise ValueError(
            f"{type(inner).__name__}(decision_function_shape='ovo') has one score per "
            "pair of classes; use decision_function_shape='ovr'."
        )


def _innermost(estimator):
    """Classifier inside a frozen estimator, a search or a pipeline."""
    while True:
        if isinstance(estimator, FrozenEstimator):
            estimator = estimator.estimator
        elif hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            estimator = estimator.steps[-1][1]
        else:
            return estimator


_SEVERAL_LABELS = ("multilabel", "multiclass-multioutput", "continuous-multioutput")


def check_target(y):
    """Labels as a 1-D array, one label per row."""
    if y is None:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None."
        )
    if type_of_target(y, input_name="y").startswith(_SEVERAL_LABELS):
        raise ValueError(
            "y is multilabel or multioutput; calibration needs one label per row. Fit "
            "one classifier per label."
        )
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    return y


def fit_rows(estimator, X, y, params, rows=None):
    """Fit on `rows`; entries of `params` with one value per row follow."""
    params = check_method_params(X, params, rows)
    if rows is not None:
        X, y = safe_split(estimator, X, y, rows)
    return estimator.fit(X, y, **params)


def predict_rows(estimator, X, rows, train, read=logits_of):
    """Logits of `rows`; a kernel matrix keeps the columns that were trained on."""
    return read(estimator, safe_split(estimator, X, None, rows, train)[0])


def copy_feature_info(source, target):
    """Copy the number and names of features from `source` to `target`."""
    for name in ("n_features_in_", "feature_names_in_"):
        if hasattr(source, name):
            setattr(target, name, getattr(source, name))
        elif name in vars(target):
            delattr(target, name)


def out_of_fold_logits(estimator, X, y, params, splits, classes):
    """Logits of each row from a clone that was fitted without its fold."""
    splits = list(splits)
    check_partition(splits, len(y))
    folds = fit_folds(estimator, X, y, params, splits, classes, logits_of)
    return join_folds([fold.scores for fold in folds], splits, len(y))


class Fold(NamedTuple):
    """A classifier of one fold and its scores of the rows that it has not seen."""

    estimator: Any
    scores: Any


def fit_folds(estimator, X, y, params, splits, classes, read, n_jobs=None):
    """Fit a clone on the training rows of each split, and score the test rows.

    ``read(estimator, X)`` gives the scores.
    """
    work = delayed(_fit_fold)
    return Parallel(n_jobs=n_jobs)(
        work(clone(estimator), X, y, params, split, classes, read, number)
        for number, split in enumerate(splits)
    )


def _fit_fold(estimator, X, y, params, split, classes, read, number):
    train, test = split
    fitted = fit_rows(estimator, X, y, params, train)
    unseen = np.setdiff1d(classes, classes_of(fitted))
    if unseen.size:
        raise ValueError(
            f"The classifier of fold {number} has seen no row of class "
            f"{unseen.tolist()[0]!r}: all its rows are in that fold. Pass a cv "
            "that spreads each class over two folds or more, or leave it out."
        )
    return Fold(fitted, predict_rows(fitted, X, test, train, read))


def join_folds(parts, splits, n_rows):
    """Scores of all rows in their order, from those of each fold."""
    out = np.empty((n_rows, parts[0].shape[1]), dtype=parts[0].dtype)
    for (_, test), part in zip(splits, parts, strict=True):
        out[test] = part
    return out


def check_partition(splits, n_rows):
    """Raise ValueError unless every row is in exactly one test fold."""
    if not splits:
        raise ValueError("cv has no folds; pass a number of folds or a splitter.")
    tests = np.concatenate([np.arange(n_rows)[test] for _, test in splits])
    if len(tests) != n_rows or len(np.unique(tests)) != n_rows:
        raise ValueError(
            "cv must put every row into exactly one test fold, as KFold, "
            "StratifiedKFold and GroupKFold do."
        )
