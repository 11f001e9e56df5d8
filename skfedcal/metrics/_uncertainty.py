"""Uncertainty of each prediction; no labels needed."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from skfedcal._params import as_number, check_flag
from skfedcal.metrics.validation import check_proba


def predictive_entropy(
    y_prob: ArrayLike, *, base: float | None = None, normalize: bool = False
) -> np.ndarray:
    r"""Entropy of each row, :math:`-\sum_k p_k \log p_k`.

    Parameters
    ----------
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one dimension means the second of two classes. For an
        ensemble pass the mean of its members.
    base : float, default=None
        Base of the logarithm; None is e.
    normalize : bool, default=False
        Divide by the entropy of the uniform distribution, so that the range is
        [0, 1] whatever the base.

    Returns
    -------
    ndarray of shape (n_samples,)
        Entropy in float64.

    Notes
    -----
    Equals ``scipy.stats.entropy(y_prob, axis=1, base=base)`` for rows that sum to 1.

    Examples
    --------
    >>> from skfedcal.metrics import predictive_entropy
    >>> predictive_entropy([[0.5, 0.5], [1.0, 0.0]], base=2)
    array([1., 0.])
    """
    normalize = check_flag("normalize", normalize)
    if base is not None and not (0 < as_number("base", base) < math.inf and base != 1):
        raise ValueError(f"base must be positive and not 1, got {base}.")
    proba = check_proba(y_prob)
    unit = math.log(proba.shape[1] if normalize else base or math.e)
    return entr(proba, dtype=np.float64).sum(axis=1) / unit


def variation_ratio(y_prob: ArrayLike) -> np.ndarray:
    """One minus the largest probability of each row.

    Parameters
    ----------
    y_prob : array-like of shape (n_samples, n_classes) or (n_samples,)
        Probabilities; one dimension means the second of two classes. Vote shares
        of an ensemble give the share of members outside the majority.

    Returns
    -------
    ndarray of shape (n_samples,)
        Values in [0, 1 - 1 / n_classes], float64.

    Examples
    --------
    >>> from skfedcal.metrics import variation_ratio
    >>> variation_ratio([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    array([0.5, 0. ])
    """
    return 1.0 - check_proba(y_prob).max(axis=1).astype(np.float64)
