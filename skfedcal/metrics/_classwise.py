"""Classwise calibration error."""

import numpy as np
from numpy.typing import ArrayLike

from skfedcal.metrics._binning import BinSums, classwise_bin_sums
from skfedcal.metrics._gaps import classwise_gaps
from skfedcal.metrics._labels import count_labels
from skfedcal.metrics._quantile import classwise_quantile_sums
from skfedcal.metrics._reduction import (
    AVERAGES,
    BinnedError,
    as_result,
    average_classes,
)
from skfedcal.metrics._validation import (
    as_columns,
    check_choice,
    check_labels,
    check_problem,
    check_rows,
    check_threshold,
)


def classwise_calibration_error(
    y_true: ArrayLike,
    y_prob: ArrayLike,
    *,
    n_bins: int = 15,
    norm: str = "l1",
    squared: bool = False,
    strategy: str = "uniform",
    threshold: float = 0.0,
    average: str | None = "macro",
    debias: bool = False,
    labels: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> float | np.ndarray:
    r"""Calibration error of every class against the rest, averaged over classes.

    With the defaults this is the classwise ECE (cwECE): for each class, the mean
    gap between its predicted probability and its frequency over bins.

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
        Mean gap, root mean square gap, or largest gap over the bins of a class.
    squared : bool, default=False
        Return the mean square gap instead of its root; only for ``norm='l2'``.
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of equal weight per class.
    threshold : float, default=0.0
        Entries of `y_prob` below this value are left out, and a class is averaged
        over the entries that are left; a class with none counts as 0.
    average : {'macro', 'weighted'} or None, default='macro'
        Plain mean over classes, mean weighted by class frequency in `y_true`, or
        one value per class.
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
    float or ndarray of shape (n_classes,)
        Error as a fraction (0.05, not 5 %); an array when ``average=None``.

    See Also
    --------
    expected_calibration_error : Only the predicted class counts.
    calibration_floor : The value that a perfect model would show.

    Notes
    -----
    With :math:`B_{kb}` the rows whose probability of class `k` falls in bin `b`,

    .. math::

        \mathrm{cwECE} = \frac 1K \sum_k \sum_b \frac{|B_{kb}|}{n}
        \left| \bar p_{kb} - \bar y_{kb} \right|.

    Bins are ``[l, r)``, the last one closed; the index is
    ``min(int(p * n_bins), n_bins - 1)`` in float64.

    Column `k` of the result with ``average=None`` equals, for probabilities that lie
    on no bin edge, ``netcal.metrics.ECE(n_bins).measure(p_k, y == k)``,
    ``torchmetrics.functional.classification.binary_calibration_error`` (which
    computes in float32) and ``probcal.metrics.ece(y == k, p_k, strategy='width')``;
    with ``strategy='quantile'`` and `n_samples` a multiple of `n_bins` it equals
    ``probcal.metrics.ece(y == k, p_k, strategy='mass')``.

    References
    ----------
    .. [1] Kull et al., "Beyond temperature scaling", NeurIPS 2019, section 2.
    .. [2] Kumar, Liang and Ma, "Verified uncertainty calibration", NeurIPS 2019.

    Examples
    --------
    >>> from skfedcal.metrics import classwise_calibration_error
    >>> y_prob = [[0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.2, 0.7]]
    >>> classwise_calibration_error(["a", "b", "c"], y_prob)
    0.2
    """
    error = BinnedError(n_bins, norm, squared, strategy, debias)
    check_threshold(threshold)
    check_choice("average", average, AVERAGES)
    if error.needs_gaps_only and sample_weight is None and threshold <= 0:
        errors, sizes = _mean_gaps(y_true, y_prob, labels, n_bins)
        return as_result(average_classes(errors, average, sizes))
    proba, codes, weight = check_problem(y_true, y_prob, labels, sample_weight)
    sums = classwise_sums(proba, codes, error, weight, threshold)
    frequency = None
    if average == "weighted":
        frequency = np.bincount(codes, weight, proba.shape[1])
    return as_result(average_classes(error(sums), average, frequency))


def _mean_gaps(
    y_true: ArrayLike, y_prob: ArrayLike, labels: ArrayLike | None, n_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean gap over equal-width bins and the size of each class."""
    proba = as_columns(y_prob)
    try:
        found = check_labels(y_true, proba)
        codes, sizes = count_labels(found, labels, proba.shape[1])
    except (TypeError, ValueError):
        # Rows are checked below, but a fault of theirs is told first.
        check_rows(proba)
        raise
    gaps = classwise_gaps(proba, codes, sizes, n_bins)
    return np.abs(gaps).sum(axis=1) / len(proba), sizes


def classwise_sums(
    proba: np.ndarray,
    codes: np.ndarray,
    error: BinnedError,
    weight: np.ndarray | None,
    threshold: float,
) -> BinSums:
    """Return the sums per class and bin that `error` needs."""
    uniform = error.strategy == "uniform"
    count = classwise_bin_sums if uniform else classwise_quantile_sums
    return count(proba, codes, error.n_bins, weight=weight, threshold=threshold)
