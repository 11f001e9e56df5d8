"""Frequency oracles: how a client reports one value under local privacy.

All chances are integers over 2**64, rounded to the side that keeps eps: the ratio of
the chances of any report under any two values is at most ``exp(eps)``, exactly. Needs
numpy only: this is code that runs at a site.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import exp, inf
from typing import Literal, NamedTuple

from skfedcal.privacy._samplers import _PRECISION, _exp_fixed

__all__ = ["ORACLES", "Oracle", "choose_oracle"]

Kind = Literal["grr", "subset", "oue", "olh", "rr"]
ORACLES = ("grr", "subset", "oue", "olh", "rr")

_WORD = 1 << 64
# Above the error of exp in fixed point, in units of 2**-256.
_EXP_MARGIN = 1 << 32
# A hash into more parts than this gains nothing.
_MAX_PARTS = 1 << 16
# Subset selection costs a client a random choice of cells; it must be worth it.
_WORTH = 0.95


class Thresholds(NamedTuple):
    """Chances in units of 2**-64.

    `own` is that of the client's own cell (or bit), `other` that of each other one.
    """

    own: int
    other: int


@dataclass(frozen=True, slots=True)
class Oracle:
    """One way to report one of `domain` cells, or none of them.

    Parameters
    ----------
    kind : {'grr', 'subset', 'oue', 'olh', 'rr'}
        Generalised randomised response, subset selection, optimised unary encoding,
        optimised local hashing, or randomised response for a single bit.
    eps : float
        Largest log ratio of the chances of a report.
    domain : int
        Number of cells.

    Notes
    -----
    A report is a set of cells. With ``p`` the chance that it holds the client's own
    cell and ``q`` that it holds any other, ``(count - n q) / (p - q)`` is unbiased. A
    client without a value must hold every cell with chance ``q``: 'grr' and 'subset'
    have one more value, "none", that no cell stands for.
    """

    kind: Kind
    eps: float
    domain: int

    @property
    def n_values(self) -> int:
        """Values that a report tells apart."""
        if self.kind == "olh":
            return min(max(2, round(exp(min(self.eps, 20.0))) + 1), _MAX_PARTS)
        return self.domain + (self.kind in ("grr", "subset", "rr"))

    @property
    def set_size(self) -> int:
        """Cells of a report of subset selection, "none" included."""
        ideal = self.n_values / (exp(min(self.eps, 700.0)) + 1)
        return min(max(1, round(ideal)), self.n_values - 1)

    @property
    def thresholds(self) -> Thresholds:
        """Chances of a report, on the safe side."""
        if self.kind == "subset":
            return _subset_thresholds(self.eps, self.n_values, self.set_size)
        # One bit of unary encoding: own with chance 1/2, other as that of a pair.
        if self.kind == "oue":
            return Thresholds(_WORD // 2, _response_thresholds(self.eps, 2).other)
        return _response_thresholds(self.eps, self.n_values)

    @property
    def p(self) -> float:
        """Chance that a report holds the client's own cell."""
        return self.thresholds.own / _WORD

    @property
    def q(self) -> float:
        """Chance that a report holds any one of the other cells."""
        if self.kind == "olh":
            return 1 / self.n_values
        if self.kind == "subset":
            k = self.set_size
            return (k - self.p) / (self.n_values - 1)
        return self.thresholds.other / _WORD

    @property
    def n_words(self) -> int:
        """Random words of one report."""
        if self.kind == "oue":
            return self.domain
        if self.kind in ("olh", "subset"):
            return 1 + (self.domain if self.kind == "olh" else self.n_values)
        return 1

    def variance(self, share: float | None = None) -> float:
        """Variance of an estimated count per client; None: a share of 1/domain."""
        f = 1 / self.domain if share is None else share
        p, q = self.p, self.q
        if p <= q:
            return inf
        return (q * (1 - q) + f * (p * (1 - p) - q * (1 - q))) / (p - q) ** 2


def choose_oracle(eps: float, domain: int) -> Oracle:
    """Return the oracle of least variance at a share of 1/domain.

    Subset selection is taken where it is better by 5 % at least. Local hashing has the
    variance of unary encoding and is never better.
    """
    if domain == 1:
        return Oracle("rr", eps, 1)
    plain = min(
        (Oracle("grr", eps, domain), Oracle("oue", eps, domain)),
        key=lambda oracle: oracle.variance(),
    )
    subset = Oracle("subset", eps, domain)
    return subset if subset.variance() < _WORTH * plain.variance() else plain


@functools.lru_cache(maxsize=256)
def _response_thresholds(eps: float, n_values: int) -> Thresholds:
    """Own and every other value; the chances add up to 1 exactly."""
    x = _exp_above(eps)
    other = -(-(x << 64) // ((1 << _PRECISION) + (n_values - 1) * x))
    return Thresholds(_WORD - (n_values - 1) * other, other)


@functools.lru_cache(maxsize=256)
def _subset_thresholds(eps: float, n_values: int, size: int) -> Thresholds:
    """Own value in the set, and, for completeness, not in it."""
    x, one = _exp_above(eps), 1 << _PRECISION
    own = (size << (64 + _PRECISION)) // (size * one + (n_values - size) * x)
    return Thresholds(own, _WORD - own)


def _exp_above(eps: float) -> int:
    """Bound ``exp(-eps)`` from above, in units of 2**-256."""
    numerator, denominator = float(eps).as_integer_ratio()
    return min(_exp_fixed(numerator, denominator) + _EXP_MARGIN, 1 << _PRECISION)
