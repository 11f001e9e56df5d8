"""Sums of what clients draw, drawn at once: exact in distribution, for simulations.

The laws are those of the faithful mode up to the precision of floating-point numbers;
numpy's generator stands in for the clients, with a seed of 256 bits.
"""

from __future__ import annotations

from math import exp, expm1

import numpy as np

from skfedcal.privacy._codec import Integers
from skfedcal.privacy._entropy import Entropy
from skfedcal.privacy._oracles import Oracle


def generator(entropy: Entropy) -> np.random.Generator:
    """Return numpy's generator with a seed from `entropy`."""
    seed = [int(word) for word in entropy.uint64(4)]
    return np.random.Generator(np.random.PCG64DXSM(seed))


def summed_laplace(size: int, scale: float, n: int, entropy: Entropy) -> Integers:
    """Sum of `n` discrete Laplace draws, for each number.

    A draw is a difference of geometric variables, whose sums are negative binomial.
    """
    if exp(-1 / scale) == 0.0:
        return np.zeros(size, dtype=np.int64)
    rng = generator(entropy)
    stop = -expm1(-1 / scale)
    return rng.negative_binomial(n, stop, size) - rng.negative_binomial(n, stop, size)


def summed_reports(
    oracle: Oracle, counts: Integers, n_clients: int, entropy: Entropy
) -> Integers:
    """Sum of the reports of `n_clients` clients with these counts of values.

    Exact in the joint law of all cells: for unary encoding and hashing with a fresh
    random function the cells are independent; generalised response keeps a value with
    chance p - q and else reports any value; subset selection goes through the cells.
    """
    rng = generator(entropy)
    p, q = oracle.p, oracle.q
    if oracle.kind == "grr":
        kept = rng.binomial(counts, p - q)
        n_values = oracle.n_values
        rest = n_clients - int(kept.sum())
        none = n_clients - int(counts.sum())
        rest -= int(rng.binomial(none, p - q))
        said = rng.multinomial(rest, np.full(n_values, 1 / n_values))
        return np.asarray(kept + said[: oracle.domain])
    if oracle.kind == "subset":
        return _summed_subsets(oracle, counts, n_clients, rng)
    return np.asarray(rng.binomial(counts, p) + rng.binomial(n_clients - counts, q))


def _summed_subsets(
    oracle: Oracle, counts: Integers, n_clients: int, rng: np.random.Generator
) -> Integers:
    """Go through the values one by one, with clients grouped by what they still name.

    A client whose own value is still to come names ``r`` more of the other values that
    are left, all sets being alike, so that it names the next one with chance r over
    their number; groups lose the clients whose own value comes up, who are a random
    part of them.
    """
    size, n_values = oracle.set_size, oracle.n_values
    counts = np.append(counts, n_clients - int(counts.sum()))
    own = rng.binomial(counts, oracle.p)  # clients that name their own value
    with_own, without = _group(size, size - 1, own), _group(size, size, counts - own)
    past = np.zeros(size + 1, dtype=np.int64)
    left = np.arange(size + 1)
    out = np.zeros(n_values, dtype=np.int64)
    for value in range(n_values):
        n_left = n_values - value
        here = _taken(with_own, int(own[value]), rng)
        here += _taken(without, int(counts[value] - own[value]), rng)
        out[value] = own[value]
        for group, n_free in (
            (with_own, n_left - 1),
            (without, n_left - 1),
            (past, n_left),
        ):
            named = rng.binomial(group, np.minimum(left / max(n_free, 1), 1.0))
            out[value] += named.sum()
            group -= named
            group[:-1] += named[1:]
        past += here
    return out[:-1]


def _group(size: int, left: int, counts: Integers) -> Integers:
    out = np.zeros(size + 1, dtype=np.int64)
    out[left] = counts.sum()
    return out


def _taken(group: Integers, n: int, rng: np.random.Generator) -> Integers:
    """Take `n` clients out of the groups at random."""
    taken = rng.multivariate_hypergeometric(group, n)
    group -= taken
    return np.asarray(taken)
