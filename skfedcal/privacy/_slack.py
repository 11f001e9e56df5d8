"""What noise from tables costs on top of the law that is accounted.

Needs numpy only: a site counts with it what its own noise costs.
"""

import math
import numbers
from typing import NamedTuple

from skfedcal.privacy._samplers import (
    GAUSSIAN_BASE_SIGMA,
    GAUSSIAN_SIGMA,
    TABLE_ERROR,
)

__all__ = [
    "MAX_CHARGED_EPS",
    "LatticeSlack",
    "charged_note",
    "check_count",
    "lattice_slack",
    "table_slack",
    "tv_slack",
]

# The tables are off by an addition to probabilities, which costs exp(eps) in delta.
# Charged for this eps, so that the slack of a release stays valid when it is composed.
MAX_CHARGED_EPS = 40.0
# exp(-90) is far below the table error of a single value.
_HOEFFDING_EXPONENT = 90.0


class LatticeSlack(NamedTuple):
    """What discrete noise costs on top of the Gaussian that is accounted."""

    eps: float
    delta: float


def table_slack(n_values: int) -> float:
    """Return the addition to delta for drawing `n_values` from tables.

    Parameters
    ----------
    n_values : int
        Number of noisy integers that are drawn, over all rounds.

    Returns
    -------
    float
        Valid as long as the total eps is at most 40.
    """
    check_count("n_values", n_values, 0)
    # The factor 2 covers the tails and deviations that `lattice_slack` leaves out.
    return tv_slack(n_values * 2 * TABLE_ERROR)


def tv_slack(distance: float) -> float:
    """Return the addition to delta for noise at this total variation from its law.

    Valid as long as the total eps is at most 40.
    """
    return distance * (1 + math.exp(MAX_CHARGED_EPS))


def lattice_slack(n_values: int, n_shares: int | None = None) -> LatticeSlack:
    """Return the cost of the discrete Gaussian over the Gaussian.

    Parameters
    ----------
    n_values : int
        Number of noisy integers that are released, over all rounds.
    n_shares : int, optional
        Number of draws of `discrete_gaussian_base` that are certain to be in the sum.
        None means one draw of `discrete_gaussian`.

    Returns
    -------
    LatticeSlack
        With ``eta = slack.eps / 2``: a mechanism that is ``(eps, d)`` private with
        Gaussian noise is ``(eps + 2 eta, exp(eta) d + slack.delta)`` private with
        discrete noise, for a total eps of at most 40.

    Notes
    -----
    An integer sum plus a rounded Gaussian (law r) is the rounded output of the Gaussian
    mechanism, so every Gaussian formula holds for r. Noise is drawn from the discrete
    Gaussian p of the same s instead; a sum of draws of scale 512 has that law too, up
    to exp(-pi^2 512^2). With t uniform on [-1/2, 1/2]::

        r(x)/p(x) = h(x)/E_p[h],   h(x) = E_t[exp(-t^2/2s^2) cosh(xt/s^2)]
        1 - 1/(24 s^2) <= h(x) <= 1 + x^2/(24 s^4) cosh(x/2s^2)

    and E_p[h] is s sqrt(2 pi) over the sum of exp(-x^2/2s^2), which is 1 up to
    exp(-2 pi^2 s^2). So ``|log r/p| <= b = 9/s^2`` where ``|x| <= 14 s``; both laws
    leave less than 3 exp(-98) outside. Inside, under either law, the mean of the log
    ratio is at most b^2 in size (E_p[r/p] = 1), and by Hoeffding's inequality the sum
    over n independent values exceeds ``eta = n b^2 + b sqrt(2 n k)`` with chance
    exp(-k) at most. Hence ``P(A) <= exp(eta) R(A) + tau`` and the reverse for every
    event A of the noise, and so for every transcript of adaptive rounds: it is a
    function of the noise. Going from p to r and back gives 2 eta and
    ``tau (1 + exp(eps))``.
    """
    if n_shares is not None:
        check_count("n_shares", n_shares, 1)
    delta = table_slack(n_values * (n_shares or 1))
    variance = GAUSSIAN_BASE_SIGMA**2 * n_shares if n_shares else GAUSSIAN_SIGMA**2
    bound = 9 / variance
    deviation = bound * math.sqrt(2 * n_values * _HOEFFDING_EXPONENT)
    return LatticeSlack(2 * (n_values * bound**2 + deviation), delta)


def charged_note(eps: float) -> tuple[str, ...]:
    """Say so where the error of the tables is charged for less than `eps`."""
    if eps <= MAX_CHARGED_EPS:
        return ()
    charged = f"is charged for eps={MAX_CHARGED_EPS:g}"
    return (f"eps={eps:g}: the error of the noise tables {charged}",)


def check_count(name: str, value: int, least: int) -> None:
    if not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(f"{name}={value!r} is not a count; pass an int >= {least}.")
