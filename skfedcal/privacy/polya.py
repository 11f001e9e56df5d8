"""Shares of discrete Laplace noise that clients draw one by one.

Logarithmic variables: sizes of the arrivals that Polya shares are made of. Needs numpy
only: this is code that runs at a site.

Shares of discrete Laplace noise: any `n_shares` of them add up to the whole law. A
share is the difference of two negative binomial variables with exponent ``1 /
n_shares``. Each of these is a sum of a Poisson number of logarithmic variables. The
share of a whole block is thus a Poisson number of arrivals, each at a uniform cell,
with a uniform sign and a logarithmic size. Most shares of counts among many clients are
zero and cost one word.

Needs numpy only: this is code that runs at a site.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from skfedcal.privacy.entropy import ClientStreams, Entropy, uniform_below
from skfedcal.privacy.samplers import (
    CDF_BITS,
    PRECISION,
    Table,
    exp_fixed,
    geometric,
    look_up,
    make_table,
)

__all__ = [
    "MAX_POLYA_SCALE",
    "SIZE_ERROR",
    "PolyaLaw",
    "check_scale",
    "log_weight",
    "logarithmic",
    "polya_error",
    "polya_law",
    "polya_limit",
    "polya_shares",
    "polya_sum",
]

# The law up to this scale is one table of about 100 scales; a larger one takes long to
# make.
_TABLE_SCALE = 2.0**8
_CUT = CDF_BITS + 16
_ONE = 1 << PRECISION

# Total variation between a value and its law: K * 2**-128 for each table of K entries
# that is read. A single table has 26,000; else two tries at most, on average, read one
# table of 50 and up to four of 4,200 entries.
SIZE_ERROR = 40_000 * 2.0**-128


def logarithmic(n: int, scale: float, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` integers with ``P(k)`` proportional to ``exp(-k / scale) / k``, k >= 1.

    scale: Positive scale.
    Result of shape (n,).

    Notes
    -----
    A wide law is drawn by rejection, exactly. With ``q = exp(-1 / scale)``, a block of
    numbers from ``2**j`` to ``2**(j + 1) - 1`` is proposed with a weight of
    ``q**(2**j)`` and all its numbers alike. One of them, k, is kept with chance
    ``2**j / k * q**(k - 2**j)``, so that its weight becomes ``q**k / k``. About 0.7 of
    the proposals are kept.
    """
    if scale <= _TABLE_SCALE:
        return look_up(_table(scale)[0], entropy.uint64(n), entropy) + 1
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
    return _minus_log(_ONE - exp_fixed(denominator, numerator))


def _propose(
    n: int, scale: float, entropy: Entropy
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Give `n` proposals, and which of them are kept."""
    low = np.int64(1) << look_up(_blocks(scale), entropy.uint64(n), entropy)
    rest = _below(low, entropy)
    # A geometric variable reaches `rest` with chance q**rest.
    kept = geometric(n, scale, entropy) >= rest
    values = low + rest
    kept[kept] = _in_first_part(low[kept], values[kept], entropy)
    return values, kept


def _in_first_part(
    low: NDArray[np.int64], values: NDArray[np.int64], entropy: Entropy
) -> NDArray[np.bool_]:
    """Return True with probability ``low / values``.

    A uniform number below `values` is compared with `low`.

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
def _blocks(scale: float) -> Table:
    """Law of the blocks that are proposed."""
    numerator, denominator = scale.as_integer_ratio()
    weights: list[int] = []
    while not weights or weights[-1] >> (PRECISION - _CUT):
        weights.append(exp_fixed(denominator << len(weights), numerator))
    return make_table(weights)


@functools.lru_cache(maxsize=8)
def _table(scale: float) -> tuple[Table, int]:
    """Law of ``q**k / k`` for k = 1, 2, ..., and the sum of these in fixed point."""
    numerator, denominator = scale.as_integer_ratio()
    ratio = exp_fixed(denominator, numerator)
    power = ratio
    weights: list[int] = []
    k = 1
    while not weights or power >> (PRECISION - _CUT):
        weights.append(power // k)
        power = power * ratio >> PRECISION
        k += 1
    return make_table(weights if any(weights) else [1]), sum(weights)


def _minus_log(x: int) -> int:
    """Return ``-log(x)`` of a number between 0 and 1, both in units of 2**-256."""
    halvings = PRECISION - x.bit_length()
    # y is in [1/2, 1), so that the series of atanh gains 3 bits a term.
    y = x << halvings
    rest = 2 * _atanh(((_ONE - y) << PRECISION) // (_ONE + y))
    return halvings * 2 * _atanh(_ONE // 3) + rest


def _atanh(x: int) -> int:
    square = x * x >> PRECISION
    total, power, n = 0, x, 1
    while power:
        total += power // n
        power = power * square >> PRECISION
        n += 2
    return total


# Sizes end below 100 scales: sums of them stay far inside int64.
MAX_POLYA_SCALE = 2.0**40
# Arrivals at a number: 2 log(1 + scale) on average, which is less.
_MAX_ARRIVALS = 60
# A larger mean is drawn in parts: the numbers of a table grow with it.
_MAX_MEAN = 64
# Chance, in bits, that one of the shares of a sum is beyond its limit.
_LIMIT_BITS = 100
# Stream of shares that the server draws in a simulation.
_TOGETHER = 1


class PolyaLaw(NamedTuple):
    """Law of one client's share of the noise in a block."""

    counts: Table
    n_draws: int  # of `counts`, which are added up
    scale: float  # of the sizes of arrivals
    mean: float  # arrivals per client


@functools.lru_cache(maxsize=32)
def polya_law(scale: float, size: int, n_shares: int, n_held: int = 1) -> PolyaLaw:
    """Return the law of shares of noise with ``P(k)`` as ``exp(-|k| / scale)``.

    scale: Scale of the discrete Laplace law of a sum of `n_shares` shares.
    size: Numbers in the block.
    n_shares: Shares that make up the law.
    n_held: Shares that are drawn together.
    """
    check_scale(scale)
    mean = 2 * size * log_weight(scale) * n_held // n_shares
    n_draws = max(1, -(-mean // (_MAX_MEAN << PRECISION)))
    counts = _poisson(mean // n_draws)
    return PolyaLaw(counts, n_draws, scale, mean / (1 << PRECISION))


def polya_shares(
    size: int, law: PolyaLaw, streams: ClientStreams, stream: int
) -> NDArray[np.int64]:
    """Return the sum of one share per client, of shape (size,)."""
    out = np.zeros(size, dtype=np.int64)
    words = streams.words(2 * stream, law.n_draws)
    spare = streams.given(2 * stream, words)
    flat = look_up(law.counts, spare.uint64(words.size), spare)
    arrivals = flat.reshape(words.shape).sum(axis=1)
    if streams.entropy.secure:  # words of clients are interchangeable
        _arrive(out, int(arrivals.sum()), law, streams, stream, 0)
        return out
    for client in np.flatnonzero(arrivals):
        _arrive(out, int(arrivals[client]), law, streams, stream, int(client))
    return out


def polya_sum(
    size: int, scale: float, n_held: int, n_shares: int, entropy: Entropy
) -> NDArray[np.int64]:
    """Return the sum of `n_held` shares, drawn as one."""
    law = polya_law(scale, size, n_shares, n_held)
    streams = ClientStreams(entropy.child(_TOGETHER), np.zeros(1, np.int64))
    return polya_shares(size, law, streams, 0)


def check_scale(scale: float) -> None:
    """Raise ValueError for noise that is too wide for shares."""
    if not 0 < scale <= MAX_POLYA_SCALE:
        raise ValueError(
            f"Noise of scale {scale:g} is too wide for shares (at most "
            f"{MAX_POLYA_SCALE:g}). Pass a larger eps or a smaller bound per client."
        )


def polya_error(n_values: int, n_shares: int) -> float:
    """Return a bound on the total variation of `n_shares` shares from their law.

    A table of K entries is off by K 2^-128; counts read one of at most 400 entries per
    64 arrivals.
    """
    arrivals = _MAX_ARRIVALS * n_values
    counts = 400 * (n_shares + arrivals / _MAX_MEAN) * 2.0**-128
    # Twice, for what the fixed-point weights and the cut tails leave out.
    return 2 * (counts + arrivals * SIZE_ERROR)


def polya_limit(scale: float, n_values: int) -> int:
    """Return a size that one of `n_values` shares exceeds with chance ``2**-100``.

    Each of the two parts of a share is one of several that add up to a geometric
    variable, and none of them is negative: it reaches k with chance ``exp(-k / scale)``
    at most. Over a million sums the chance is below ``2**-80``.
    """
    bits = _LIMIT_BITS + 1 + math.log2(max(n_values, 1))
    return math.ceil(scale * bits * math.log(2)) + 1


def _arrive(
    out: NDArray[np.int64],
    n: int,
    law: PolyaLaw,
    streams: ClientStreams,
    stream: int,
    client: int,
) -> None:
    if not n:
        return
    source = streams.own(2 * stream + 1, client)
    place = uniform_below(n, 2 * out.size, source)
    jump = logarithmic(n, law.scale, source)
    np.add.at(out, place >> 1, np.where(place & 1, jump, -jump))


def _poisson(mean: int) -> Table:
    """Law of the Poisson distribution with a mean in fixed point."""
    weight = total = 1 << PRECISION
    weights = [weight]
    k = 0
    while k <= math.ceil(mean / (1 << PRECISION)) or weight > total >> _CUT:
        k += 1
        weight = (weight * mean >> PRECISION) // k
        weights.append(weight)
        total += weight
    return make_table(weights)
