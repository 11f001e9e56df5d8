"""Calibration errors: top label, binary and classwise.

Probabilities minus labels per class and bin, added up while rows are checked. The mean
gap over bins needs neither counts nor labels by themselves. One sum over the few
entries above the first bin is left, and what the first bin holds is the column sum
minus the rest.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import check_consistent_length

from skfedcal import _compiled
from skfedcal._numerics import rare_flags
from skfedcal._params import check_choice, check_flag, check_number
from skfedcal.metrics.binning import (
    BinSums,
    bin_sums,
    blocks,
    classwise_bin_sums,
    classwise_quantile_sums,
    column_sums,
    row_index,
    top_labels,
    uniform_bin_sums,
)
from skfedcal.metrics.validation import (
    SUM_TOLERANCE,
    as_columns,
    as_floats,
    check_labels,
    check_n_bins,
    check_positive,
    check_proba,
    check_problem,
    check_rows,
    check_vector,
    check_weight,
    count_labels,
    fault,
    metrics_documented,
    positive_labels,
    sums_to_one,
)

NORMS = ("l1", "l2", "max")
STRATEGIES = ("uniform", "quantile")
AVERAGES = ("macro", "weighted", None)


@dataclass(frozen=True, slots=True)
class BinnedError:
    """How the gaps of all bins become one error; checked when made."""

    n_bins: int = 15
    norm: str = "l1"
    squared: bool = False
    strategy: str = "uniform"
    debias: bool = False

    def __post_init__(self) -> None:
        check_n_bins(self.n_bins)
        check_choice("norm", self.norm, NORMS)
        check_choice("strategy", self.strategy, STRATEGIES)
        for name in ("squared", "debias"):
            if check_flag(name, getattr(self, name)) and self.norm != "l2":
                raise ValueError(
                    f"{name}=True needs norm='l2', got norm={self.norm!r}."
                )

    @property
    def needs_gaps_only(self) -> bool:
        """Whether probabilities minus labels per equal-width bin are enough."""
        return self.norm == "l1" and self.strategy == "uniform"

    def __call__(self, sums: BinSums) -> np.ndarray:
        """Return the error over the last axis; empty bins contribute 0."""
        if self.norm == "l1":
            return _share(np.abs(sums.proba - sums.labels), sums.weight)
        gaps = _ratio(sums.proba - sums.labels, sums.weight)
        if self.norm == "max":
            return np.abs(gaps).max(axis=-1)
        squares = gaps**2
        if self.debias:
            squares = np.where(sums.weight > 1, squares - _rate_variance(sums), 0.0)
        value = _share(squares * sums.weight, sums.weight)
        return value if self.squared else np.sqrt(np.maximum(value, 0.0))


def average_classes(
    errors: np.ndarray, average: str | None, class_weight: np.ndarray | None
) -> np.ndarray:
    """Return the mean over classes (last axis), or the errors when None."""
    if average is None:
        return errors
    if average == "macro" or class_weight is None:
        return errors.mean(axis=-1)
    return (errors * class_weight).sum(axis=-1) / class_weight.sum(axis=-1)


def as_result(value: np.ndarray) -> float | np.ndarray:
    """Return a Python float for a scalar, the array otherwise."""
    return float(value) if np.ndim(value) == 0 else value


def _rate_variance(sums: BinSums) -> np.ndarray:
    """Return the unbiased variance of the share of labels in each bin."""
    rate = _ratio(sums.labels, sums.weight)
    return rate * (1 - rate) / np.where(sums.weight > 1, sums.weight - 1, 1.0)


def _ratio(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return value / weight, 0 where the weight is 0."""
    return np.where(weight > 0, value, 0.0) / np.where(weight > 0, weight, 1.0)


def _share(value: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the sum of `value` over bins divided by the weight of all bins."""
    return _ratio(value.sum(axis=-1), weight.sum(axis=-1))


# Elements per pass: numpy's cost per call on a block is about that of 50,000 elements.
# The flags of a block take an eighth of 10,000 x 100 float32 probabilities.
GAP_BLOCK = 3 << 17

# Above this many classes few entries leave the first of the usual bins.
MANY_CLASSES = 45


def classwise_gaps(
    proba: np.ndarray, codes: np.ndarray, sizes: np.ndarray, n_bins: int
) -> np.ndarray:
    """Return the sum of ``proba - onehot(codes)`` per class and equal-width bin.

    proba of shape (n_samples, n_classes), float32 or float64: Probabilities; a row that
        is not a distribution raises ValueError.
    codes of shape (n_samples,), intp: Column number of the label of each row.
    sizes of shape (n_classes,): Number of rows of each class.
    Result of shape (n_classes, n_bins), float64.
    """
    n_classes = proba.shape[1]
    # Bins for what is above 1 by rounding are folded into the last one in the end:
    # faster than a minimum over all entries.
    width = int(n_bins * (1 + 2 * SUM_TOLERANCE)) + 1
    gaps = np.zeros((n_classes, width))
    columns = -sizes.astype(np.float64)
    start = 0
    for rows in blocks(proba, GAP_BLOCK):
        own = np.empty(n_classes)
        found = _block_gaps(rows, codes[start : start + len(rows)], n_bins, width, own)
        if found is None:
            raise ValueError(fault(proba))
        gaps += found
        columns += own
        start += len(rows)
    gaps[:, 0] += columns - gaps.sum(axis=1)
    gaps[:, n_bins - 1] += gaps[:, n_bins:].sum(axis=1)
    return gaps[:, :n_bins]


def _block_gaps(
    rows: np.ndarray, labels: np.ndarray, n_bins: int, width: int, columns: np.ndarray
) -> np.ndarray | None:
    """Return the gaps of entries above the first bin; None for a faulty row.

    columns of shape (n_classes,): Gets the sums of all entries.
    """
    gaps = np.zeros((rows.shape[1], width))
    good = _compiled.class_gaps(rows, labels, n_bins, SUM_TOLERANCE, gaps, columns)
    if good is not None:
        return gaps if good else None
    where = _above_first_bin(rows, n_bins)
    value = rows.reshape(-1).take(where)
    ones = np.ones(rows.shape[1], rows.dtype)
    if not (sums_to_one(rows, ones) and value.min(initial=0) >= 0):
        return None
    columns[:] = column_sums(rows)
    return _listed_gaps(value, where, labels, n_bins, gaps.shape)


def _above_first_bin(rows: np.ndarray, n_bins: int) -> np.ndarray:
    """Return the positions of entries above the first bin, below 0 or NaN."""
    # Read as whole numbers without sign, floats with a sign are the largest ones.
    # The cut is a little low, since `p * n_bins` may round up to 1: entries of the
    # first bin that pass are counted there and cost nothing.
    bits = np.uint32 if rows.dtype == np.float32 else np.uint64
    cut = rows.dtype.type((1.0 - 1e-6) / n_bins).view(bits)
    flags = (rows.view(bits) >= cut).reshape(-1)
    where = rare_flags(flags) if rows.shape[1] > MANY_CLASSES else flags.nonzero()[0]
    # 32-bit numbers are several times faster to divide, and half as many bytes.
    return where.astype(np.int32)


def _listed_gaps(
    value: np.ndarray,
    where: np.ndarray,
    labels: np.ndarray,
    n_bins: int,
    shape: tuple[int, ...],
) -> np.ndarray:
    """Return the sums of listed entries, less 1 for a label, per class and bin."""
    n_classes, width = shape
    row = where // n_classes
    cell = where - row * n_classes
    own = labels.astype(np.int32).take(row) == cell
    if n_classes * width >= 1 << 31:
        cell = cell.astype(np.int64)
    cell *= width
    # Twice in one buffer: the lists of a small array are larger than the array.
    gap = value.astype(np.float64)
    gap *= n_bins
    cell += gap.astype(np.int32)
    np.copyto(gap, value)
    gap -= own
    return np.bincount(cell, gap, n_classes * width).reshape(shape)


@metrics_documented
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
    y_true, y_prob, n_bins
    norm : {'l1', 'l2', 'max'}, default='l1'
        Mean gap (ECE), root mean square gap, or largest gap (MCE).
    squared
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of equal weight.
    debias, labels, sample_weight

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
    top, confidence = top_labels(proba)
    return float(error(_binary_sums(confidence, top == codes, error, weight)))


@metrics_documented
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
    squared, n_bins
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
    sample_weight

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
    return float(error(_binary_sums(positive, labels, error, weight)))


def _binary_sums(
    proba: np.ndarray, labels: np.ndarray, error: BinnedError, weight: np.ndarray | None
) -> BinSums:
    """Return the sums of one binary problem over the bins of `error`."""
    if error.strategy == "uniform":
        return uniform_bin_sums(proba, labels, error.n_bins, weight)
    index = row_index(proba, error.n_bins, error.strategy, weight)
    return bin_sums(proba, labels, index, error.n_bins, weight)


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


@metrics_documented
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
    y_true, y_prob, n_bins
    norm : {'l1', 'l2', 'max'}, default='l1'
        Mean gap, root mean square gap, or largest gap over the bins of a class.
    squared
    strategy : {'uniform', 'quantile'}, default='uniform'
        Bins of equal width, or of equal weight per class.
    threshold : float, default=0.0
        Entries of `y_prob` below this value are left out, and a class is averaged
        over the entries that are left; a class with none counts as 0.
    average : {'macro', 'weighted'} or None, default='macro'
        Plain mean over classes, mean weighted by class frequency in `y_true`, or
        one value per class.
    debias, labels, sample_weight

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
    check_number("threshold", threshold, 0, 1)
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
