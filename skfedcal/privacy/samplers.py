"""Integer noise from 128-bit tables, and its cost in privacy.

Integer noise from 128-bit tables: one exact law for every source of entropy. A draw is
the inverse distribution function at a uniform 127-bit number. Its high part and, where
needed, the sign share one random word; the low part is drawn only when the high part
does not settle the answer.

What noise from tables costs on top of the law that is accounted. Needs numpy only: a
site counts with it what its own noise costs.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_integer
from skfedcal.privacy.entropy import Entropy, Words

__all__ = [
    "GAUSSIAN_BASE_SIGMA",
    "GAUSSIAN_SIGMA",
    "LAPLACE_SCALE",
    "MAX_CHARGED_EPS",
    "MAX_LAPLACE_SCALE",
    "TABLE_ERROR",
    "LatticeSlack",
    "charged_note",
    "discrete_gaussian",
    "discrete_gaussian_base",
    "discrete_laplace",
    "gaussian_base_limit",
    "geometric",
    "laplace_limit",
    "lattice_slack",
    "table_slack",
    "tv_slack",
]

# The law of 128*X1 + X2 for two draws of scale 512 differs from the discrete Gaussian
# of this scale by less than 1e-130 in relative terms, because 512/128 is well above
# the smoothing parameter of the integers (checked in the tests).
GAUSSIAN_BASE_SIGMA = 512
_GAUSSIAN_STEP = 128
GAUSSIAN_SIGMA = GAUSSIAN_BASE_SIGMA * math.sqrt(_GAUSSIAN_STEP**2 + 1)

LAPLACE_SCALE = 65536
# Values stay far inside int64: the tables end below 89 scales per digit.
MAX_LAPLACE_SCALE = 2.0**48

# Total variation between a value and its law. A table of K entries rounds K-1 numbers
# by at most 2^-128 each, so it is off by less than K*2^-128; a Gaussian value reads 2
# tables of 6713 entries, a Laplace value at most 10 of about 4100 at most.
TABLE_ERROR = 2.0**-112

PRECISION = 256
CDF_BITS = 127
_GUIDE_BITS = 16
_MAX_ENTRIES = 4096


class Table(NamedTuple):
    """Distribution function at 0, 1, ... in units of 2^-127, with a guide to it."""

    high: NDArray[np.uint64]
    low: NDArray[np.uint64]
    guide: NDArray[Any]  # the answer by the first bits of a word, or -1


def discrete_gaussian(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` integers with ``P(k)`` proportional to ``exp(-k^2 / (2 sigma^2))``.

    The scale is `GAUSSIAN_SIGMA`; a mechanism gets its own scale from its lattice step.

    entropy: Source of random words; two per value.
    Result of shape (n,).
    """
    coarse_and_fine = discrete_gaussian_base(2 * n, entropy)
    values = coarse_and_fine[::2] * _GAUSSIAN_STEP
    values += coarse_and_fine[1::2]
    return values


def discrete_gaussian_base(n: int, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` values of the discrete Gaussian with scale `GAUSSIAN_BASE_SIGMA`.

    entropy: Source of random words; one per value.
    Result of shape (n,).
    """
    words = entropy.uint64(n)
    values = look_up(_gaussian_table(), words, entropy)
    # The table holds the law of |X|, in which zero counts once: its sign is of no
    # consequence. The last bit of a word is not part of the look-up.
    sign = (words & np.uint64(1)).view(np.int64)
    values ^= -sign
    values += sign
    return values


def discrete_laplace(n: int, scale: float, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` integers with ``P(k)`` proportional to ``exp(-|k| / scale)``.

    scale: Positive scale, at most `MAX_LAPLACE_SCALE`.
    Result of shape (n,).

    Notes
    -----
    The difference of two geometric variables has this law. A geometric variable is
    memoryless, so its digits in any base are independent: each has a small table.
    """
    if not 0 < scale <= MAX_LAPLACE_SCALE:
        raise ValueError(
            f"scale={scale!r} is out of range for the discrete Laplace distribution; "
            f"pass 0 < scale <= {MAX_LAPLACE_SCALE:.0f}."
        )
    pairs = geometric(2 * n, scale, entropy)
    return pairs[::2] - pairs[1::2]


def gaussian_base_limit() -> int:
    """Return the largest size of a draw of `discrete_gaussian_base`."""
    return len(_gaussian_table().high) - 1


def laplace_limit(scale: float) -> int:
    """Return the largest size of a draw of `discrete_laplace`."""
    base, tables = geometric_tables(float(scale))
    return sum(base**i * (len(table.high) - 1) for i, table in enumerate(tables))


def geometric(n: int, scale: float, entropy: Entropy) -> NDArray[np.int64]:
    """Draw `n` integers with ``P(k)`` proportional to ``exp(-k / scale)``, k >= 0.

    scale: Positive scale, at most `MAX_LAPLACE_SCALE`.
    Result of shape (n,).
    """
    base, tables = geometric_tables(float(scale))
    values = np.zeros(n, dtype=np.int64)
    for table in reversed(tables):
        values *= base
        values += look_up(table, entropy.uint64(n), entropy)
    return values


def look_up(table: Table, words: Words, entropy: Entropy) -> NDArray[np.int64]:
    """Return the number of table entries that do not exceed the uniform number."""
    first_bits = (words >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)
    index = table.guide.take(first_bits).astype(np.int64)
    open_ = np.flatnonzero(index < 0)
    if open_.size:
        index[open_] = _search(table, words[open_] >> np.uint64(1), entropy)
    return index


def _search(table: Table, high: Words, entropy: Entropy) -> NDArray[np.int64]:
    last = np.searchsorted(table.high, high, side="right")
    first = np.searchsorted(table.high, high, side="left")
    ties = np.flatnonzero(first != last)
    if ties.size:  # about one word in 2^50: no need for speed
        lows = entropy.uint64(ties.size)
        for i, low in zip(ties, lows, strict=True):
            tied = table.low[first[i] : last[i]]
            last[i] = first[i] + np.searchsorted(tied, low, side="right")
    return last


# lru_cache is safe under threads: at worst two of them compute the same table.
@functools.lru_cache(maxsize=1)
def _gaussian_table() -> Table:
    """Law of |X| for the discrete Gaussian of scale 512."""
    double_variance = 2 * GAUSSIAN_BASE_SIGMA**2
    # w_k = exp(-k^2/2s^2): w_{k+1} = w_k r_k and r_{k+1} = r_k exp(-2/2s^2)
    ratio = exp_fixed(1, double_variance)
    drop = exp_fixed(2, double_variance)
    weight = 1 << PRECISION
    weights = [weight]
    while weight >> (PRECISION - CDF_BITS - 16):
        weight = weight * ratio >> PRECISION
        ratio = ratio * drop >> PRECISION
        weights.append(2 * weight)
    return make_table(weights)


@functools.lru_cache(maxsize=32)
def geometric_tables(scale: float) -> tuple[int, tuple[Table, ...]]:
    """Return a base and the laws of the digits, lowest first; the last is open."""
    numerator, denominator = scale.as_integer_ratio()
    reach = math.ceil(scale * CDF_BITS * math.log(2)) + 1
    n_digits = 1
    while _MAX_ENTRIES**n_digits < reach:
        n_digits += 1
    base = math.ceil(reach ** (1 / n_digits))
    ratios = [exp_fixed(denominator * base**i, numerator) for i in range(n_digits)]
    tables = [make_table(_powers(ratio, base)) for ratio in ratios[:-1]]
    tables.append(make_table(_powers(ratios[-1], None)))
    return base, tuple(tables)


def _powers(ratio: int, count: int | None) -> list[int]:
    """Return the first powers of a fixed-point ratio: `count`, or all that matter."""
    power = 1 << PRECISION
    powers: list[int] = []
    while power >> (PRECISION - CDF_BITS - 16) and len(powers) != count:
        powers.append(power)
        power = power * ratio >> PRECISION
    return powers


def make_table(weights: Sequence[int]) -> Table:
    total = sum(weights)
    cdf = []
    partial = 0
    for weight in weights:
        partial += weight
        cdf.append(((partial << (CDF_BITS + 1)) + total) // (2 * total))
        if cdf[-1] >> CDF_BITS:  # the rest of the law rounds to nothing
            break
    pairs = np.frombuffer(b"".join(c.to_bytes(16, "little") for c in cdf), "<u8")
    pairs = pairs.reshape(-1, 2).astype(np.uint64)
    high, low = pairs[:, 1].copy(), pairs[:, 0].copy()
    shift = np.uint64(63 - _GUIDE_BITS)
    bins = (high[:-1] >> shift).astype(np.intp)
    inside = np.bincount(bins, minlength=1 << _GUIDE_BITS)
    # A bin without an entry has one answer, and no word in it can tie with an entry.
    width = np.int16 if len(cdf) < 1 << 15 else np.int32
    guide = np.where(inside == 0, np.cumsum(inside), -1).astype(width)
    return Table(high, low, guide)


def exp_fixed(numerator: int, denominator: int) -> int:
    """Return ``exp(-numerator/denominator)`` in units of 2^-256."""
    if numerator > 256 * denominator:  # below 2^-256
        return 0
    # Halved until small, so that the Taylor series is short; the guard bits pay for
    # the squarings, each of which doubles the error.
    halvings = 16
    precision = PRECISION + 64
    small = (numerator << precision) // (denominator << halvings)
    term = total = 1 << precision
    n = 0
    while term:
        n += 1
        term = (term * small >> precision) // n
        total += -term if n % 2 else term
    for _ in range(halvings):
        total = total * total >> precision
    return total >> (precision - PRECISION)


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

    n_values: Number of noisy integers that are drawn, over all rounds.
    Result: Valid as long as the total eps is at most 40.
    """
    check_integer("n_values", n_values, 0)
    # The factor 2 covers the tails and deviations that `lattice_slack` leaves out.
    return tv_slack(n_values * 2 * TABLE_ERROR)


def tv_slack(distance: float) -> float:
    """Return the addition to delta for noise at this total variation from its law.

    Valid as long as the total eps is at most 40.
    """
    return distance * (1 + math.exp(MAX_CHARGED_EPS))


def lattice_slack(n_values: int, n_shares: int | None = None) -> LatticeSlack:
    """Return the cost of the discrete Gaussian over the Gaussian.

    n_values: Number of noisy integers that are released, over all rounds.
    n_shares: Number of draws of `discrete_gaussian_base` that are certain to be in the
        sum. None means one draw of `discrete_gaussian`.
    Result: With ``eta = slack.eps / 2``: a mechanism that is ``(eps, d)`` private with
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
        check_integer("n_shares", n_shares, 1)
    delta = table_slack(n_values * (n_shares or 1))
    variance = GAUSSIAN_BASE_SIGMA**2 * n_shares if n_shares else GAUSSIAN_SIGMA**2
    bound = 9 / variance
    deviation = bound * math.sqrt(2 * n_values * _HOEFFDING_EXPONENT)
    return LatticeSlack(2 * (n_values * bound**2 + deviation), delta)


def charged_note(eps: float) -> tuple[str, ...]:
    """Return a note where the error of the tables is charged for less than `eps`."""
    if eps <= MAX_CHARGED_EPS:
        return ()
    charged = f"is charged for eps={MAX_CHARGED_EPS:g}"
    return (f"eps={eps:g}: the error of the noise tables {charged}",)
