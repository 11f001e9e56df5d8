"""Calibration error of one probability per row: top label and binary."""

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfedcal.metrics._binning import bin_sums, proba_of
from skfedcal.metrics._labels import check_vector, positive_labels
from skfedcal.metrics._quantile import row_index
from skfedcal.metrics._reduction import BinnedError
from skfedcal.metrics._validation import (
    as_floats,
    check_positive,
    check_proba,
    check_problem,
    check_weight,
)


def expected_calibration_error(
    y_true: ArrayLike,
    y_prob: ArrayLike,
    *,
    n_bins: int = 15,
    norm: str = "l1",
    squared: bool = False,
    strategy: str = "uniform",
    debias: bool = False,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    r"""Gap between confidence and accuracy of the predicted class (top-label ECE).

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels.
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities, columns in sorted label order. One dimension means the
        probability of the second of two classes.
    n_bins : int, default=15
        Number of bins.
    norm : {'l1', 'l2', 'max'}, default='l1'
        Mean gap (ECE), root mean square gap, or largest gap (MCE).
    squared : bool, default=False
        Return the mean square gap instead of its root; only for ``norm='l2'``.
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of equal weight.
    debias : bool, default=False
        Subtract :math:`\bar y_b (1 - \bar y_b) / (n_b - 1)` from each squared gap
        (only for ``norm='l2'``); bins of weight 1 or less count as 0. This is the
        debiased estimator of Kumar et al., section 5. With ``squared=True`` the
        value may be negative, otherwise it is cut off at 0. It reads weights as
        counts of rows.
    labels : array-like of shape (n_classes,), default=None
        All labels, one per column of `y_prob`. Needed when `y_true` misses some.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight 0 is a row left out, weight 2 a row repeated.

    Returns
    -------
    float
        Error as a fraction (0.05, not 5 %).

    See Also
    --------
    classwise_calibration_error : Every class against the rest.
    calibration_error : Binary, probability of the positive class.
    calibration_floor : The value that a perfect model would show.

    Notes
    -----
    The prediction is the first column that reaches the row maximum. Bins are
    ``[l, r)``, the last one closed; the index is
    ``min(int(p * n_bins), n_bins - 1)`` in float64. Empty bins count as 0.

    For confidences that lie on no bin edge this equals
    ``netcal.metrics.ECE(n_bins).measure(y_prob, y)`` (``netcal.metrics.MCE`` for
    ``norm='max'``) and, in float32,
    ``torchmetrics.functional.classification.multiclass_calibration_error`` with the
    same `n_bins` and `norm`. torchmetrics keeps confidence 1.0 in a bin of its own.

    References
    ----------
    .. [1] Naeini, Cooper and Hauskrecht, "Obtaining well calibrated probabilities
       using Bayesian binning", AAAI 2015.
    .. [2] Kumar, Liang and Ma, "Verified uncertainty calibration", NeurIPS 2019.

    Examples
    --------
    >>> from skfedcal.metrics import expected_calibration_error
    >>> y_prob = [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]]
    >>> expected_calibration_error([0, 1, 2], y_prob)
    0.3
    """
    error = BinnedError(n_bins, norm, squared, strategy, debias)
    proba, codes, weight = check_problem(y_true, y_prob, labels, sample_weight)
    top = proba.argmax(axis=1)
    confidence = proba_of(proba, top)
    index = row_index(confidence, n_bins, strategy, weight)
    return float(error(bin_sums(confidence, top == codes, index, n_bins, weight)))


def calibration_error(
    y_true: ArrayLike,
    y_prob: ArrayLike,
    *,
    norm: str = "l1",
    squared: bool = False,
    n_bins: int = 15,
    strategy: str = "uniform",
    debias: bool = False,
    pos_label: int | float | bool | str | None = None,
    sample_weight: ArrayLike | None = None,
) -> float:
    r"""Binary calibration error: probability of the positive class against its rate.

    Parameters
    ----------
    y_true : array-like of shape (n_samples,)
        True labels, at most two distinct ones.
    y_prob : array-like of shape (n_samples,) or (n_samples, 2)
        Probability of the positive class, or of both classes in sorted order.
    norm : {'l1', 'l2', 'max'}, default='l1'
        Mean gap, root mean square gap, or largest gap over bins.
    squared : bool, default=False
        Return the mean square gap instead of its root; only for ``norm='l2'``.
    n_bins : int, default=15
        Number of bins.
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of equal weight.
    debias : bool, default=False
        Subtract :math:`\bar y_b (1 - \bar y_b) / (n_b - 1)` from each squared gap
        (only for ``norm='l2'``); bins of weight 1 or less count as 0. This is the
        debiased estimator of Kumar et al., section 5, and the correction of the
        reliability term by Broecker. With ``squared=True`` the value may be
        negative, otherwise it is cut off at 0. It reads weights as counts of rows.
    pos_label : int, float, bool or str, default=None
        The positive label; by default the greater one. Needed when `y_true` holds
        a single label other than 0, 1 or -1.
    sample_weight : array-like of shape (n_samples,), default=None
        Weight 0 is a row left out, weight 2 a row repeated.

    Returns
    -------
    float
        Error as a fraction (0.05, not 5 %).

    See Also
    --------
    expected_calibration_error : Multiclass, confidence of the predicted class.

    Notes
    -----
    Names and meaning of `norm` and `squared` follow the metric proposed in
    scikit-learn pull request 34261.

    For probabilities that lie on no bin edge this equals the weighted distance of
    ``sklearn.calibration.calibration_curve`` from the diagonal,
    ``netcal.metrics.ECE(n_bins).measure(y_prob, y)``,
    ``torchmetrics.functional.classification.binary_calibration_error`` (in float32)
    and ``probcal.metrics.ece(y, y_prob, strategy='width', norm=norm)``. With
    ``strategy='quantile'`` and `n_samples` a multiple of `n_bins` it equals
    ``probcal.metrics.ece(..., strategy='mass')`` and the quantile curve of
    scikit-learn; otherwise edges may differ by one row, because interpolated
    quantiles do not treat a weight of 2 as a repeated row.

    References
    ----------
    .. [1] Kumar, Liang and Ma, "Verified uncertainty calibration", NeurIPS 2019.
    .. [2] Broecker, "Estimating reliability and resolution of probability forecasts
       through decomposition of the empirical score", Climate Dynamics 39, 2012.

    Examples
    --------
    >>> from skfedcal.metrics import calibration_error
    >>> calibration_error([0, 0, 1, 1], [0.1, 0.3, 0.6, 0.8], norm="l2")
    0.27
    """
    error = BinnedError(n_bins, norm, squared, strategy, debias)
    proba = as_floats(y_prob)
    y_true = check_vector(y_true, "y_true")
    check_consistent_length(y_true, proba)
    weight = check_weight(sample_weight, len(proba))
    labels, column = positive_labels(y_true, pos_label)
    positive = positive_column(proba, column)
    index = row_index(positive, n_bins, strategy, weight)
    return float(error(bin_sums(positive, labels, index, n_bins, weight)))


def positive_column(proba: np.ndarray, column: int = 1) -> np.ndarray:
    """Return float64 probabilities of the positive class from one or two columns."""
    if proba.ndim == 2 and proba.shape[1] > 2:
        raise ValueError(
            f"y_prob has {proba.shape[1]} columns, but this metric is binary. Use "
            "classwise_calibration_error or expected_calibration_error."
        )
    if proba.ndim == 2 and proba.shape[1] == 2:
        return check_proba(proba)[:, column].astype(np.float64)
    return check_positive(proba).astype(np.float64, copy=False)
