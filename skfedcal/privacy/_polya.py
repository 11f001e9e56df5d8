"""Shares of discrete Laplace noise: any `n_shares` of them add up to the whole law.

A share is the difference of two negative binomial variables with exponent
``1 / n_shares``. Each of these is a sum of a Poisson number of logarithmic variables.
The share of a whole block is thus a Poisson number of arrivals, each at a uniform cell,
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

from skfedcal.privacy._entropy import Entropy
from skfedcal.privacy._logarithmic import SIZE_ERROR, log_weight, logarithmic
from skfedcal.privacy._samplers import (
    _CDF_BITS,
    _PRECISION,
    _look_up,
    _make_table,
    _Table,
)
from skfedcal.privacy._streams import ClientStreams, uniform_below

__all__ = [
    "MAX_POLYA_SCALE",
    "PolyaLaw",
    "check_scale",
    "polya_error",
    "polya_law",
    "polya_limit",
    "polya_shares",
    "polya_sum",
]

# Sizes end below 100 scales: sums of them stay far inside int64.
MAX_POLYA_SCALE = 2.0**40
# Arrivals at a number: 2 log(1 + scale) on average, which is less.
_MAX_ARRIVALS = 60
# A larger mean is drawn in parts: the numbers of a table grow with it.
_MAX_MEAN = 64
_CUT = _CDF_BITS + 16
# Chance, in bits, that one of the shares of a sum is beyond its limit.
_LIMIT_BITS = 100
# Stream of shares that the server draws in a simulation.
_TOGETHER = 1


class PolyaLaw(NamedTuple):
    """Law of one client's share of the noise in a block."""

    counts: _Table
    n_draws: int  # of `counts`, which are added up
    scale: float  # of the sizes of arrivals
    mean: float  # arrivals per client


@functools.lru_cache(maxsize=32)
def polya_law(scale: float, size: int, n_shares: int, n_held: int = 1) -> PolyaLaw:
    """Return the law of shares of noise with ``P(k)`` as ``exp(-|k| / scale)``.

    Parameters
    ----------
    scale : float
        Scale of the discrete Laplace law of a sum of `n_shares` shares.
    size : int
        Numbers in the block.
    n_shares : int
        Shares that make up the law.
    n_held : int, default=1
        Shares that are drawn together.
    """
    check_scale(scale)
    mean = 2 * size * log_weight(scale) * n_held // n_shares
    n_draws = max(1, -(-mean // (_MAX_MEAN << _PRECISION)))
    counts = _poisson(mean // n_draws)
    return PolyaLaw(counts, n_draws, scale, mean / (1 << _PRECISION))


def polya_shares(
    size: int, law: PolyaLaw, streams: ClientStreams, stream: int
) -> NDArray[np.int64]:
    """Return the sum of one share per client, of shape (size,)."""
    out = np.zeros(size, dtype=np.int64)
    words = streams.words(2 * stream, law.n_draws)
    spare = streams.given(2 * stream, words)
    flat = _look_up(law.counts, spare.uint64(words.size), spare)
    arrivals = flat.reshape(words.shape).sum(axis=1)
    if streams.entropy.secure:  # nobody can tell whose words these are
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
    """Refuse noise that is too wide for shares."""
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


def _poisson(mean: int) -> _Table:
    """Law of the Poisson distribution with a mean in fixed point."""
    weight = total = 1 << _PRECISION
    weights = [weight]
    k = 0
    while k <= math.ceil(mean / (1 << _PRECISION)) or weight > total >> _CUT:
        k += 1
        weight = (weight * mean >> _PRECISION) // k
        weights.append(weight)
        total += weight
    return _make_table(weights)
