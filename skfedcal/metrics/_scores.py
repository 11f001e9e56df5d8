"""Proper scores, and scorers for cross-validation and grid search."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import get_scorer as sklearn_get_scorer
from sklearn.metrics import make_scorer

from skfedcal import _compiled
from skfedcal._numerics import label_losses
from skfedcal._params import check_choice, check_number
from skfedcal.exceptions import CalibrationWarning
from skfedcal.metrics._calibration_error import (
    calibration_error,
    classwise_calibration_error,
    expected_calibration_error,
)
from skfedcal.metrics.binning import blocks, proba_of
from skfedcal.metrics.validation import (
    check_problem,
    metrics_documented,
)

SQUARE_BLOCK = 1 << 15


@metrics_documented
def brier_score(
    y_true: ArrayLike,
    y_prob: ArrayLike,
    *,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    scale_by_half: bool | str = "auto",
) -> float:
    r"""Mean squared distance between probabilities and the one-hot label.

    Parameters
    ----------
    y_true, y_prob, labels, sample_weight
    scale_by_half : bool or 'auto', default='auto'
        Divide by 2, so that the range is [0, 1] instead of [0, 2]; 'auto' does so
        for two classes only.

    Returns
    -------
    float
        The score; 0 is best.

    Notes
    -----
    Equals ``sklearn.metrics.brier_score_loss`` with the same arguments
    (scikit-learn >= 1.7 for more than two classes).

    Examples
    --------
    >>> from skfedcal.metrics import brier_score
    >>> brier_score([0, 1, 2], [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]])
    0.146
    """
    check_choice("scale_by_half", scale_by_half, (True, False, "auto"))
    proba, codes, weight = check_problem(y_true, y_prob, labels, sample_weight)
    chosen = proba_of(proba, codes)
    # Distance to a one-hot row without building it.
    rows = _square_norms(proba) - chosen**2 + (1 - chosen) ** 2
    value = float(np.average(rows, weights=weight))
    half = proba.shape[1] == 2 if scale_by_half == "auto" else scale_by_half
    return max(value, 0.0) / (2 if half else 1)


def _square_norms(proba: np.ndarray) -> np.ndarray:
    """Return the sum of squares of each row in float64."""
    out = np.empty(len(proba))
    if _compiled.squares(proba, out):
        return out
    return np.concatenate(
        [
            np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
            for rows in blocks(proba, SQUARE_BLOCK)
        ]
    )


@metrics_documented
def negative_log_likelihood(
    y_true: ArrayLike,
    y_prob: ArrayLike,
    *,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    min_prob: float | Literal["replace"] | None = None,
) -> float:
    """Mean negative logarithm of the probability given to the true label.

    Parameters
    ----------
    y_true, y_prob, labels, sample_weight
    min_prob : float or 'replace', default=None
        Smaller probabilities count as this one; None is the machine epsilon of the
        dtype of `y_prob`, with a warning that counts labels of probability 0. With 0 a
        label that was called impossible costs infinity. 'replace' is like None, but
        probabilities of exactly 0 count as in every calibrator: as the lesser of
        exp(-12) and the least other one of the row.

    Returns
    -------
    float
        Nats per row; 0 is best.

    Notes
    -----
    Equals ``sklearn.metrics.log_loss(y_true, y_prob, labels=labels)``, except that
    probability 1 costs exactly 0. A label of probability 0 costs 36 nats in float64 and
    16 in float32, an accident of the type, and 12 or more with ``min_prob="replace"``.

    Examples
    --------
    >>> from skfedcal.metrics import negative_log_likelihood
    >>> negative_log_likelihood(["no", "yes"], [0.25, 0.5])
    0.490
    """
    proba, codes, weight = check_problem(y_true, y_prob, labels, sample_weight)
    chosen = proba_of(proba, codes)
    replaced = isinstance(min_prob, str) and min_prob == "replace"
    if replaced or min_prob is None:
        least = float(np.finfo(proba.dtype).eps)
        _warn_about_zeros(int((chosen == 0).sum()), len(chosen), replaced)
    else:
        least = check_number("min_prob", min_prob, 0, 1)
    with np.errstate(divide="ignore"):
        loss = -np.log(np.clip(chosen, least, 1.0))
    if replaced:
        loss = label_losses(proba, codes, least)
    if weight is not None:
        # 0 * inf is NaN, but a row of weight 0 is not there.
        loss, weight = loss[weight > 0], weight[weight > 0]
    return float(np.average(loss, weights=weight)) + 0.0


def _warn_about_zeros(n_zero: int, n_rows: int, replaced: bool) -> None:
    if not n_zero:
        return
    use = (
        "each counts as the lesser of exp(-12) and the least other probability of its "
        "row"
        if replaced
        else "each is scored as the machine epsilon, which dominates the mean. "
        "min_prob='replace' replaces zeros as calibrators do"
    )
    warnings.warn(
        f"{n_zero} of {n_rows} rows give their true label probability 0, whose "
        f"logarithm is -inf; {use}.",
        CalibrationWarning,
        stacklevel=3,
    )


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
