"""From a Gaussian, discrete or zCDP guarantee to (eps, delta) and back."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from skfedcal._params import as_number
from skfedcal.privacy._slack import (
    MAX_CHARGED_EPS,
    LatticeSlack,
    check_count,
    lattice_slack,
    table_slack,
    tv_slack,
)

__all__ = [
    "MAX_CHARGED_EPS",
    "LatticeSlack",
    "check_count",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "lattice_slack",
    "table_slack",
    "tv_slack",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(16)
# Below this mu the two terms of delta are close and their difference is integrated.
_SMALL_MU = 0.5
_TINY = 5e-324
# Where products with them still are floats.
_LEAST_EPS, _LARGEST_EPS, _LEAST_RHO = 1e-100, 1e100, 1e-200
# From here on rounding hides the difference between eps and its upper bound.
_ROUNDED_EPS = 1e15


def gdp_delta(mu: float, eps: float) -> float:
    """Return the smallest delta of a mu-GDP mechanism at `eps`.

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation, in total; at least 0.
    eps : float
        At least 0.

    Returns
    -------
    float

    Notes
    -----
    ``Phi(-u) - exp(eps) Phi(-v)`` with ``u = eps/mu - mu/2`` and ``v = eps/mu + mu/2``.
    As ``v^2 - u^2 = 2 eps``, both terms share the factor ``exp(-u^2/2)/2`` and the
    rest is a difference of scaled complementary error functions.

    Examples
    --------
    >>> from skfedcal.privacy import gdp_delta
    >>> f"{gdp_delta(0.2681, 1.0):.1e}"
    '1.0e-05'
    """
    mu, eps = _at_least_zero(mu=mu), _at_least_zero(eps=eps)
    if mu == 0 or eps == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    u, v = eps / mu - mu / 2, eps / mu + mu / 2
    if u > 40:  # exp(-u^2/2) is zero in double precision
        return 0.0
    start, length = u / math.sqrt(2), mu / math.sqrt(2)
    factor = math.exp(-u * u / 2) / 2
    if mu < _SMALL_MU:
        points = start + length * (1 + _NODES) / 2
        slopes = 2 / math.sqrt(math.pi) - 2 * points * erfcx(points)
        return factor * length / 2 * float(_NODE_WEIGHTS @ slopes)
    if u < 0:
        return float(ndtr(-u) - factor * erfcx(v / math.sqrt(2)))
    return factor * float(erfcx(start) - erfcx(v / math.sqrt(2)))


def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest eps of a mu-GDP mechanism at `delta`.

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation, in total; at least 0.
    delta : float
        Between 0 and 1, both excluded.

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import gdp_epsilon
    >>> round(gdp_epsilon(0.2681, 1e-5), 3)
    1.0
    """
    mu, delta = _at_least_zero(mu=mu), _fraction(delta=delta)
    if mu == math.inf:
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # Here Phi(-u) = delta, and the second term of delta only takes away.
    top = mu * (mu / 2 - float(ndtri(delta)))
    if top > _ROUNDED_EPS:
        return top
    return _root(lambda eps: _log_ratio(gdp_delta(mu, eps), delta), 0.0, top)


def gdp_mu(eps: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies ``(eps, delta)``.

    Parameters
    ----------
    eps : float
        At least 0.
    delta : float
        Between 0 and 1, both excluded.

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import gdp_mu
    >>> round(gdp_mu(1.0, 1e-5), 4)
    0.2681
    """
    eps, delta = _finite(eps=_at_least_zero(eps=eps)), _fraction(delta=delta)
    if eps > _LARGEST_EPS:
        raise ValueError(f"eps={eps!r} is no budget; pass at most {_LARGEST_EPS:g}.")
    z = -float(ndtri(delta))
    root = math.sqrt(z * z + 2 * eps)
    # Two lower bounds: Phi(-u) >= delta(mu), and delta(mu) <= mu/sqrt(2 pi).
    low = max(2 * eps / (z + root) if z > 0 else root - z, 2 * delta)
    high = low
    while gdp_delta(high, eps) <= delta:
        high *= 2
    return _root(lambda mu: _log_ratio(gdp_delta(mu, eps), delta), low / 2, high)


def zcdp_delta(rho: float, eps: float) -> float:
    """Return the delta at `eps` that rho-zCDP implies.

    Parameters
    ----------
    rho : float
        At least 0.
    eps : float
        At least 0.

    Returns
    -------
    float

    Notes
    -----
    Canonne, Kamath and Steinke (2020), used as Lemma B.3 of the federated calibration
    paper: the least of ``exp((a-1)(a rho - eps)) (1-1/a)^a / (a-1)`` over orders
    ``a > 1``. The logarithm is convex in the order, and every order gives a bound.

    Examples
    --------
    >>> from skfedcal.privacy import zcdp_delta
    >>> f"{zcdp_delta(0.03, 1.0):.1e}"
    '8.4e-06'
    """
    rho, eps = _at_least_zero(rho=rho), _at_least_zero(eps=eps)
    if rho == 0 or eps == math.inf:
        return 0.0
    if rho > _LARGEST_EPS:
        return 1.0
    return math.exp(min(0.0, _zcdp_log_delta(rho, eps)))


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest eps at `delta` that Lemma B.3 gives for rho-zCDP.

    Parameters
    ----------
    rho : float
        At least 0.
    delta : float
        Between 0 and 1, both excluded.

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import zcdp_epsilon
    >>> round(zcdp_epsilon(0.03, 1e-5), 3)
    0.99
    """
    rho, delta = _at_least_zero(rho=rho), _fraction(delta=delta)
    if rho == math.inf:
        return math.inf
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    log_delta = math.log(delta)
    top = rho + 2 * math.sqrt(-rho * log_delta)  # the simple bound of Bun and Steinke
    if top > _LARGEST_EPS:
        return top
    return _root(lambda eps: _zcdp_log_delta(rho, eps) - log_delta, 0.0, top)


def zcdp_rho(eps: float, delta: float) -> float:
    """Return the largest rho such that Lemma B.3 gives ``(eps, delta)``.

    Parameters
    ----------
    eps : float
        Above 0.
    delta : float
        Between 0 and 1, both excluded.

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import zcdp_rho
    >>> round(zcdp_rho(1.0, 1e-5), 4)
    0.0306
    """
    eps, delta = _finite(eps=_at_least_zero(eps=eps)), _fraction(delta=delta)
    if not _LEAST_EPS <= eps <= _LARGEST_EPS:
        raise ValueError(
            f"eps={eps!r} leaves no rho; pass {_LEAST_EPS:g} to {_LARGEST_EPS:g}."
        )
    log_delta = math.log(delta)
    low = (eps / (math.sqrt(eps - log_delta) + math.sqrt(-log_delta))) ** 2
    high = low
    while _zcdp_log_delta(high, eps) <= log_delta:
        high *= 2
    return _root(lambda rho: _zcdp_log_delta(rho, eps) - log_delta, low / 2, high)


def _zcdp_log_delta(rho: float, eps: float) -> float:
    rho, eps = max(rho, _LEAST_RHO), min(eps, _LARGEST_EPS)  # both raise delta

    def slope(t: float) -> float:  # in the order a = 1 + exp(t)
        a_minus_1 = math.exp(t)
        return rho * (2 * a_minus_1 + 1) - eps + t - math.log1p(a_minus_1)

    low = min(-1.0, eps - 2 * rho) - 1
    high = math.log(eps / (2 * rho) + 1 / math.sqrt(2 * rho))
    if eps > 1e9:  # its rounding hides the other terms
        high += 1.0
    t = brentq(slope, low, max(high, low + 1), xtol=1e-12, maxiter=500)
    a_minus_1 = math.exp(t)
    log_a = math.log1p(a_minus_1)
    return a_minus_1 * ((a_minus_1 + 1) * rho - eps + t - log_a) - log_a


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _log_ratio(value: float, target: float) -> float:
    return math.log(max(value, _TINY)) - math.log(target)


def _at_least_zero(**value: float) -> float:
    ((name, number),) = value.items()
    if not as_number(name, number) >= 0:
        raise ValueError(f"{name}={number!r} is out of range; pass {name} >= 0.")
    return float(number)


def _finite(**value: float) -> float:
    ((name, number),) = value.items()
    if math.isinf(as_number(name, number)):
        raise ValueError(f"{name}={number!r} asks for no privacy; pass a finite one.")
    return number


def _fraction(**value: float) -> float:
    ((name, number),) = value.items()
    if not 0 < as_number(name, number) < 1:
        raise ValueError(f"{name}={number!r} is out of range; pass 0 < {name} < 1.")
    return float(number)
