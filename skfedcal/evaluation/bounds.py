"""Error bounds of the paper.

The paper [1]_ states orders of magnitude. The functions named after a theorem give
them with constant 1 unless the proof has another; they say how an error changes with
the number of examples, the budget and the number of buckets. `expected_error` gives
numbers to expect.

Where a statement of the paper does not hold, the function implements a corrected one,
and its docstring says so.

References
----------
.. [1] Cormode and Markov, "Federated Calibration and Evaluation of Binary Classifiers",
   PVLDB 16(11), 2023.
"""

from __future__ import annotations

from math import exp, expm1, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._docs import SharedDocs
from skfedcal._params import as_number, check_flag
from skfedcal.clients.arrays import read_array

Array = NDArray[Any]
Trust = Literal["exact", "distributed", "local"]


# Entries of docstrings that are shared here.
_documented = SharedDocs(
    """
    n_examples : float
        Examples M.
    n_buckets : int
        Buckets B.
    trust : {'exact', 'distributed', 'local'}, default='exact'
        Exact sums, noise added once to the sum, or noise added by every client.
    eps : float, default=None
        Privacy budget epsilon; required unless sums are exact.
    """
)


@_documented
def auc_discretisation(n_buckets: int, *, smooth: bool = True) -> float:
    """Error of the area under the ROC curve from exact counts in equal-mass buckets.

    Lemma 3 for any scores, ``1 / (2 B)``: attained when in every bucket all positives
    are above all negatives, for any share of positives. Theorem 4 for smooth scores is
    of order ``1 / B**2``; ``1 / (3 B**2)`` is what was measured on three data sets.

    Parameters
    ----------
    n_buckets
    smooth : bool, default=True
        Scores have a density that changes little inside a bucket.

    Returns
    -------
    error : float
        Bound on the absolute error; an estimate of it for smooth scores.

    Examples
    --------
    >>> from skfedcal.evaluation import auc_discretisation
    >>> auc_discretisation(100, smooth=False)
    0.005
    >>> round(auc_discretisation(100), 7)
    3.33e-05
    """
    size = _positive("n_buckets", n_buckets)
    return 1 / 3 / size / size if check_flag("smooth", smooth) else 0.5 / size


def auc_certificate(counts: Array) -> float:
    """Bound on the discretisation error of the AUC for these counts: Lemma 3.

    Parameters
    ----------
    counts : ndarray of shape (2, n_buckets)
        Negative and positive examples in each bucket.

    Returns
    -------
    bound : float
        ``sum_i p_i n_i / (2 P N)``.

    Examples
    --------
    >>> from skfedcal.evaluation import auc_certificate
    >>> auc_certificate([[8, 2, 0], [0, 2, 8]])
    0.02
    """
    pairs = read_array(counts, "counts", np.float64)
    if pairs.ndim != 2 or len(pairs) != 2:
        raise ValueError(f"counts has shape {pairs.shape}; pass (2, n_buckets).")
    if not (pairs >= 0).all() or not (pairs.sum(axis=1) > 0).all():
        raise ValueError("counts must be >= 0, with examples of both classes.")
    # Shares, so that no product of large counts overflows.
    negative, positive = pairs / pairs.max()
    return float(negative @ positive / (2 * negative.sum() * positive.sum()))


@_documented
def auc_bound(
    n_examples: float,
    n_buckets: int,
    *,
    trust: Trust = "exact",
    eps: float | None = None,
    height: int = 10,
    positive_rate: float = 0.5,
) -> float:
    """Order of the error of the AUC: Theorems 4, 5 and 6.

    Theorem 5 prints ``(1 / eps + 1 / B) / M``. Its second term is that of Theorem 4
    divided by M, which is not correct: the discretisation error of exact counts does
    not depend on M. Here it is ``1 / (3 B**2)``.

    Parameters
    ----------
    n_examples, n_buckets, trust, eps
    height : int, default=10
        Binary levels h of the hierarchy, for local noise.
    positive_rate : float, default=0.5
        Share of positives.

    Returns
    -------
    error : float
        Order of the expected absolute error.

    Examples
    --------
    >>> from skfedcal.evaluation import auc_bound
    >>> round(auc_bound(10_000, 100), 6)
    3.3e-05
    >>> round(auc_bound(10_000, 100, trust="distributed", eps=1.0), 6)
    0.000133
    """
    n_examples = _positive("n_examples", n_examples)
    start = auc_discretisation(n_buckets)
    rate = as_number("positive_rate", positive_rate)
    if not 1e-100 < rate < 1:
        raise ValueError(
            f"positive_rate must be a number in (0, 1), got {positive_rate!r}."
        )
    if _noise_share(n_examples, trust, eps) == 0:
        return start
    eps = _budget(eps)
    balance = 4 * rate * (1 - rate)
    if trust == "distributed":
        return start + 1 / (eps * n_examples * balance)
    # Variance of a range of an OUE hierarchy per example; the paper drops the 4.
    variance = 4 * _positive("height", height) ** 2 * exp(eps) / expm1(eps) ** 2
    return start + sqrt(variance / n_examples) / balance


@_documented
def rates_bound(
    n_examples: float,
    *,
    trust: Trust = "exact",
    eps: float | None = None,
    n_buckets: int | None = None,
) -> tuple[float, float]:
    """Order of the error of precision, recall and accuracy: Theorem 2.

    Parameters
    ----------
    n_examples, trust, eps
    n_buckets : int, default=None
        Buckets B; None takes the number that balances buckets and noise, or as many as
        there are examples for exact sums.

    Returns
    -------
    error : float
        Order of the error at the best threshold near the one asked for.
    n_buckets : float
        Buckets it is for.

    Examples
    --------
    >>> from skfedcal.evaluation import rates_bound
    >>> error, n_buckets = rates_bound(10_000, trust="distributed", eps=1.0)
    >>> round(error, 4), round(n_buckets)
    (0.0043, 464)
    """
    n_examples = _positive("n_examples", n_examples)
    noise = _noise_share(n_examples, trust, eps)
    if n_buckets is None:
        buckets = n_examples if not noise else noise ** (-2 / 3)
    else:
        buckets = _positive("n_buckets", n_buckets)
    return 1 / buckets + sqrt(buckets) * noise, buckets


@_documented
def threshold_uncertainty(
    n_examples: float,
    height: int,
    *,
    trust: Trust = "exact",
    eps: float | None = None,
) -> float:
    """How far the threshold may be from the one asked for: section 2.3, Theorem 2.

    The paper's hierarchy has all of `height` binary levels, and answers at leaf edges
    only. Straight lines inside leaves remove most of the term ``2**-height``.

    Parameters
    ----------
    n_examples
    height : int
        Binary levels h.
    trust, eps

    Returns
    -------
    width : float
        Order of the distance between the two thresholds, for scores spread over [0, 1].

    Examples
    --------
    >>> from skfedcal.evaluation import threshold_uncertainty
    >>> round(threshold_uncertainty(10_000, 10, trust="distributed", eps=1.0), 4)
    0.0041
    """
    n_examples = _positive("n_examples", n_examples)
    depth = _positive("height", height)
    noise = _noise_share(n_examples, trust, eps)
    power = 1.5 if trust == "distributed" else 1.0
    return float(depth**power * noise + 2.0**-depth)


@_documented
def calibration_bound(
    n_examples: float,
    *,
    trust: Trust = "exact",
    eps: float | None = None,
    n_buckets: float | None = None,
) -> tuple[float, float]:
    """Order of the calibration error after binning: Theorems 7 and 8.

    Parameters
    ----------
    n_examples, trust, eps
    n_buckets : float, default=None
        Buckets B; None takes the number of the theorem: ``M**(1/3)``, under local noise
        ``(eps sqrt(M))**(1/2)`` if that is smaller.

    Returns
    -------
    error : float
        ``1 / B + sqrt(B / M)`` plus the error of the noise.
    n_buckets : float
        Buckets it is for.

    Examples
    --------
    >>> from skfedcal.evaluation import calibration_bound
    >>> error, n_buckets = calibration_bound(10_000, trust="local", eps=1.0)
    >>> round(error, 2), round(n_buckets)
    (0.23, 10)
    """
    n_examples = _positive("n_examples", n_examples)
    noise = _noise_share(n_examples, trust, eps)
    if n_buckets is not None:
        n_buckets = _positive("n_buckets", n_buckets)
    buckets = float(n_buckets or n_examples ** (1 / 3))
    if n_buckets is None and trust == "local":
        buckets = min(buckets, noise**-0.5)
    return 1 / buckets + sqrt(buckets / n_examples) + buckets * noise, buckets


def _noise_share(n_examples: float, trust: Trust, eps: float | None) -> float:
    """Size of the noise in a count over the number of examples, up to a constant."""
    known = ("exact", "distributed", "local")
    if not isinstance(trust, str) or trust not in known:
        raise ValueError(f"trust={trust!r} is unknown; pass one of {known}.")
    if trust == "exact":
        return 0.0
    size = n_examples if trust == "distributed" else sqrt(n_examples)
    return 1 / (_budget(eps) * size)


def _budget(eps: float | None) -> float:
    # Beyond these its exponential, or the variance of the noise, overflows float64.
    if eps is None or not 1e-100 <= as_number("eps", eps) <= 300:
        raise ValueError(
            f"eps must be a number from 1e-100 to 300, got {eps!r}; for exact sums "
            "pass trust='exact'."
        )
    return float(eps)


def _positive(name: str, value: Any) -> float:
    number = as_number(name, value)
    if not 1e-100 < number < 1e100:
        raise ValueError(f"{name}={value!r}: pass a number above 0 and below 1e100.")
    return number
