"""Logarithmic variables: sizes of the arrivals that Polya shares are made of.

Needs numpy only: this is code that runs at a site.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from skfedcal.privacy._entropy import Entropy
from skfedcal.privacy._samplers import (
    _CDF_BITS,
    _PRECISION,
    _exp_fixed,
    _look_up,
    _make_table,
    _Table,
    geometric,
)

__all__ = ["SIZE_ERROR", "log_weight", "logarithmic"]

# The law up to this scale is one table of about 100 scales; a larger one takes long to
# make.
_TABLE_SCALE = 2.0**8
_CUT = _CDF_BITS + 16
_ONE = 1 << _PRECISION

# Total variation between a value and its law: K * 2**-128 for each table of K entries
# that is read. A single table has 26,000; else two tries at most, on average, read one
# table of 50 and up to four of 4,200 entries.
SIZE_ERROR = 40_000 * 2.0**-128


def logarithmic(n: int, scale: float, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` integers with ``P(k)`` proportional to ``exp(-k / scale) / k``, k >= 1.

    Parameters
    ----------
    n : int
        Number of values.
    scale : float
        Positive scale.
    entropy : Entropy
        Source of random words.

    Returns
    -------
    ndarray of int64, shape (n,)

    Notes
    -----
    A wide law is drawn by rejection, exactly. With ``q = exp(-1 / scale)``, a block of
    numbers from ``2**j`` to ``2**(j + 1) - 1`` is proposed with a weight of
    ``q**(2**j)`` and all its numbers alike. One of them, k, is kept with chance
    ``2**j / k * q**(k - 2**j)``, so that its weight becomes ``q**k / k``. About 0.7 of
    the proposals are kept.
    """
    if scale <= _TABLE_SCALE:
        return _look_up(_table(scale)[0], entropy.uint64(n), entropy) + 1
    out = np.zeros(n, dtype=np.int64)
    left = np.arange(n)
    while left.size:
        values, kept = _propose(left.size, scale, entropy)
        out[left[kept]] = values[kept]
        left = left[~kept]
    return out


def log_weight(scale: float) -> int:
    """Give the sum of ``exp(-k / scale) / k`` over k, in units of 2**-256."""
    if scale <= _TABLE_SCALE:
        return _table(scale)[1]
    numerator, denominator = scale.as_integer_ratio()
    return _minus_log(_ONE - _exp_fixed(denominator, numerator))


def _propose(
    n: int, scale: float, entropy: Entropy
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Give `n` proposals, and which of them are kept."""
    low = np.int64(1) << _look_up(_blocks(scale), entropy.uint64(n), entropy)
    rest = _below(low, entropy)
    # A geometric variable reaches `rest` with chance q**rest.
    kept = geometric(n, scale, entropy) >= rest
    values = low + rest
    kept[kept] = _in_first_part(low[kept], values[kept], entropy)
    return values, kept


def _in_first_part(
    low: NDArray[np.int64], values: NDArray[np.int64], entropy: Entropy
) -> NDArray[np.bool_]:
    """Say yes with chance ``low / values``: a uniform number below values is below low.

    `low` is a power of 2 above half of `values`, so that the number is soon found.
    """
    drawn = _below(2 * low, entropy)
    over = np.flatnonzero(drawn >= values)
    while over.size:
        drawn[over] = _below(2 * low[over], entropy)
        over = over[drawn[over] >= values[over]]
    return drawn < low


def _below(powers: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
    """Draw a uniform number below each of these powers of 2."""
    return entropy.uint64(len(powers)).view(np.int64) & (powers - 1)


@functools.lru_cache(maxsize=8)
def _blocks(scale: float) -> _Table:
    """Law of the blocks that are proposed."""
    numerator, denominator = scale.as_integer_ratio()
    weights: list[int] = []
    while not weights or weights[-1] >> (_PRECISION - _CUT):
        weights.append(_exp_fixed(denominator << len(weights), numerator))
    return _make_table(weights)


@functools.lru_cache(maxsize=8)
def _table(scale: float) -> tuple[_Table, int]:
    """Law of ``q**k / k`` for k = 1, 2, ..., and the sum of these in fixed point."""
    numerator, denominator = scale.as_integer_ratio()
    ratio = _exp_fixed(denominator, numerator)
    power = ratio
    weights: list[int] = []
    k = 1
    while not weights or power >> (_PRECISION - _CUT):
        weights.append(power // k)
        power = power * ratio >> _PRECISION
        k += 1
    return _make_table(weights if any(weights) else [1]), sum(weights)


def _minus_log(x: int) -> int:
    """Return ``-log(x)`` of a number between 0 and 1, both in units of 2**-256."""
    halvings = _PRECISION - x.bit_length()
    # y is in [1/2, 1), so that the series of atanh gains 3 bits a term.
    y = x << halvings
    rest = 2 * _atanh(((_ONE - y) << _PRECISION) // (_ONE + y))
    return halvings * 2 * _atanh(_ONE // 3) + rest


def _atanh(x: int) -> int:
    square = x * x >> _PRECISION
    total, power, n = 0, x, 1
    while power:
        total += power // n
        power = power * square >> _PRECISION
        n += 2
    return total
