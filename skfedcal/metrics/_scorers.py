"""Scorers for cross-validation and grid search; greater is better."""

from collections.abc import Callable
from copy import deepcopy
from functools import partial

from sklearn.metrics import get_scorer as sklearn_get_scorer
from sklearn.metrics import make_scorer

from skfedcal.metrics._calibration_error import (
    calibration_error,
    expected_calibration_error,
)
from skfedcal.metrics._classwise import classwise_calibration_error
from skfedcal.metrics._proper_scores import brier_score, negative_log_likelihood

_make = partial(make_scorer, response_method="predict_proba", greater_is_better=False)

neg_expected_calibration_error_scorer = _make(expected_calibration_error)
neg_classwise_calibration_error_scorer = _make(classwise_calibration_error)
neg_l1_calibration_error_scorer = _make(calibration_error)
neg_l2_calibration_error_scorer = _make(calibration_error, norm="l2")
neg_l2_squared_calibration_error_scorer = _make(
    calibration_error, norm="l2", squared=True
)
neg_max_calibration_error_scorer = _make(calibration_error, norm="max")
neg_brier_score_scorer = _make(brier_score)
log_likelihood_scorer = _make(negative_log_likelihood)

_SCORERS = {
    "log_likelihood": log_likelihood_scorer,
    "neg_brier_score": neg_brier_score_scorer,
    "neg_classwise_calibration_error": neg_classwise_calibration_error_scorer,
    "neg_expected_calibration_error": neg_expected_calibration_error_scorer,
    "neg_l1_calibration_error": neg_l1_calibration_error_scorer,
    "neg_l2_calibration_error": neg_l2_calibration_error_scorer,
    "neg_l2_squared_calibration_error": neg_l2_squared_calibration_error_scorer,
    "neg_max_calibration_error": neg_max_calibration_error_scorer,
}


def get_scorer_names() -> list[str]:
    """Names that :func:`get_scorer` knows besides those of scikit-learn.

    Returns
    -------
    list of str
        Sorted names.

    Examples
    --------
    >>> from skfedcal.metrics import get_scorer_names
    >>> "neg_expected_calibration_error" in get_scorer_names()
    True
    """
    return sorted(_SCORERS)


def get_scorer(scoring: str | Callable) -> Callable:
    """Return a scorer ``(estimator, X, y) -> float`` by name.

    Parameters
    ----------
    scoring : str or callable
        A name of :func:`get_scorer_names`, else anything that
        :func:`sklearn.metrics.get_scorer` accepts.

    Returns
    -------
    callable
        A copy of the scorer; pass it as `scoring` to scikit-learn.

    Notes
    -----
    The columns of `y_prob` are named by the labels of the scored fold. For folds that
    miss a class make a scorer with `labels`:
    ``make_scorer(expected_calibration_error, response_method="predict_proba",
    greater_is_better=False, labels=[0, 1, 2])``.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skfedcal.metrics import get_scorer
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> get_scorer("neg_expected_calibration_error")(model, X, y) < 0
    True
    """
    if isinstance(scoring, str) and scoring in _SCORERS:
        return deepcopy(_SCORERS[scoring])
    return sklearn_get_scorer(scoring)
