"""Mechanisms whose noise the clients add: distributed and local privacy.

Sums of the noise of all clients, drawn in one step for simulations. They have the
distribution of the faithful mode up to floating-point precision; numpy's generator
replaces those of the clients, with a seed of 256 bits.

- Noise that clients add themselves, so that the server sees noisy sums only.
- Local privacy: every client randomises its own report; the server only debiases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, expm1, isqrt, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal.contract import BlockSpec, NoiseLaw, Sums
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.privacy.codec import BlockCode, Codec, Integers
from skfedcal.privacy.entropy import Entropy
from skfedcal.privacy.events import NoisePlan
from skfedcal.privacy.mechanisms import (
    LatticeGaussian,
    LatticeLaplace,
    NoisySum,
    PureSum,
    Spec,
)
from skfedcal.privacy.randomizers import Kind, Oracle, choose_oracle

if TYPE_CHECKING:
    from skfedcal.privacy.mechanisms import PureBudget
    from skfedcal.privacy.randomizers import Randomizer


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


Mode = Literal["fast", "faithful"]

# Draws of scale 512 may be multiplied as long as what is added to them is 4 times as
# wide as the gaps; see `discrete_gaussian`.
_GAP = (512 // 4) ** 2
_FEW = 16


def refuse_absence(adjacency: str, unit: str) -> None:
    """Raise for a neighbouring relation that published numbers contradict.

    The number of units is in the report, in the ledger and, through the default of
    delta, in the noise; and a client would take its share of the noise with it.
    """
    if adjacency != "add-remove":
        return
    why = "without the client its share of the noise would be missing"
    if unit == "example":
        why = "the number of rows is published, in the report and in the ledger"
    raise ValueError(
        f"DistributedDP(adjacency='add-remove') cannot hide whether one {unit} "
        f"exists: {why}. Pass 'zero-out', which needs the same noise and treats the "
        f"number of {'clients' if unit == 'client' else 'rows'} as public."
    )


def survivors_assumed(n_min: int, n_shares: int) -> tuple[str, ...]:
    """Assumptions of noise that is the sum of shares of honest clients."""
    return (
        f"{n_shares} or more of the clients in every sum draw their share of the noise "
        "as agreed and keep it to themselves",
        f"secure aggregation reveals no sum of fewer than {n_min} clients",
    )


class _Survivors(NoisySum):
    """Noise that is the sum of shares; sums of too few of them are refused.

    paid: What the mechanism pays.
    n_min: Clients that are guaranteed to be in every sum.
    n_shares: Number of these clients whose shares are counted as noise.
    mode ('fast', 'faithful'): Whether the sum of the shares, or each client's share, is
        drawn.
    adjacency: Which data sets are neighbours; 'replace' doubles the noise.
    **account: See `LatticeGaussian` and `LatticeLaplace`.
    """

    def __init__(
        self,
        paid: NoisePlan | PureBudget,
        *,
        n_min: int,
        n_shares: int,
        mode: Mode,
        adjacency: str,
        **account: Any,
    ) -> None:
        super().__init__(paid, **account)  # type: ignore[call-arg,arg-type]
        self.n_min, self.n_shares, self.mode = n_min, n_shares, mode
        self.max_colluders = n_min - n_shares
        self._adjacency = adjacency
        self._reach = 2 if adjacency == "replace" else 1
        self._trust = (
            "distributed: clients add the noise, the server sees noisy sums only"
        )
        if mode == "fast":
            self._trust += " (simulated: added once to the exact sum by the server)"

    def describe(self) -> str:
        paid = super().describe()  # type: ignore[safe-super]
        return f"{paid}, {self.n_min}, {self.n_shares}, {self.mode}, {self._adjacency}"

    def _check_schedule(
        self,
        n_participations: int | None,
        sampling_rate: float | None,
        n_per_round: int | None,
    ) -> None:
        super()._check_schedule(n_participations, sampling_rate, n_per_round)
        if n_per_round is not None and n_per_round < self.n_min:
            raise ValueError(
                f"The noise is the sum of the shares of {self.n_min} clients, but a "
                f"round is only guaranteed to have {n_per_round}. Pass "
                "DistributedDP(n_min=...) with the size of the smallest cohort, and "
                "do not use Poisson sampling."
            )

    def _check_clients(self, n_clients: int | None, round_index: int) -> None:
        if n_clients is None:
            raise RuntimeError("release() needs the number of clients that answered.")
        if n_clients < self.n_min:
            raise NotEnoughClientsError(
                f"{n_clients} clients answered in round {round_index}, but the noise "
                f"needs {self.n_min} shares: the sum would have less noise than was "
                "accounted for. Nothing of this round was released. Pass "
                "DistributedDP(n_min=...) to allow for dropout."
            )


class DistributedGaussian(_Survivors, LatticeGaussian):
    """Discrete Gaussian noise shares, one per client; `n_shares` of them suffice."""

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        from skfedcal.privacy.randomizers import GaussianShares

        return GaussianShares() if self.mode == "faithful" else None

    @property
    def _lattice_sigma(self) -> float:
        from skfedcal.privacy.samplers import GAUSSIAN_BASE_SIGMA

        return GAUSSIAN_BASE_SIGMA * sqrt(self.n_shares)

    def _drawn_sigma(self, n_clients: int | None) -> float:
        return self._lattice_sigma * sqrt((n_clients or self.n_min) / self.n_shares)

    def _draw(self, size: int, source: Entropy, n_clients: int | None) -> Integers:
        if self.mode == "faithful":
            return np.zeros(size, dtype=np.int64)
        # What the honest draw is paid for; the rest is other noise on top of it.
        extra = (n_clients or self.n_min) - self.n_shares
        return summed_gaussians(size, self.n_shares, source) + summed_gaussians(
            size, extra, source
        )


class DistributedLaplace(_Survivors, LatticeLaplace):
    """A Polya share per client; `n_shares` of them add up to discrete Laplace noise.

    n_clients: Clients in all.
    budget, **account: See `LatticeLaplace` and `_Survivors`.
    """

    def __init__(self, budget: PureBudget, *, n_clients: int, **account: Any) -> None:
        super().__init__(budget, model="DistributedDP", **account)
        self._shared = self.mode == "faithful" or n_clients > self.n_shares

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        from skfedcal.privacy.polya import check_scale

        codec = super().codec(spec, round_index)
        if self._shared:
            for scale in self._scales(codec, round_index).values():
                check_scale(scale)
        return codec

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        from skfedcal.privacy.randomizers import PolyaShares

        if self.mode == "fast":
            return None
        return PolyaShares(self._scales(codec, round_index), self.n_shares)

    def _n_laws(self, n_clients: int | None) -> float:
        return (n_clients or self.n_min) / self.n_shares

    def _draw(
        self, size: int, scale: float, source: Entropy, n_clients: int | None
    ) -> Integers:
        from skfedcal.privacy.polya import polya_sum

        if self.mode == "faithful":
            return np.zeros(size, dtype=np.int64)
        drawn = super()._draw(size, scale, source, n_clients)
        extra = (n_clients or self.n_min) - self.n_shares
        if extra:
            drawn = drawn + polya_sum(size, scale, extra, self.n_shares, source)
        return drawn


class SourceLaplace(LatticeLaplace):
    """Discrete Laplace noise of every source on its own sum.

    budget: Eps and how it is divided.
    mode ('fast', 'faithful'): Whether the sum of the noise, or each source's noise, is
        drawn.
    **account: See `LatticeLaplace`.
    """

    _trust = (
        "source: every client adds the noise to its own sum and trusts no other party"
    )

    def __init__(self, budget: PureBudget, *, mode: Mode, **account: Any) -> None:
        super().__init__(budget, model="SourceDP", **account)
        self.mode = mode
        if mode == "fast":
            self._trust += " (simulated: drawn once for the sum)"

    @property
    def secure(self) -> bool:
        return self.mode == "faithful" and self._entropy.secure

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        from skfedcal.privacy.randomizers import LaplaceShares

        if self.mode == "fast":
            return None
        return LaplaceShares(self._scales(codec, round_index))

    def describe(self) -> str:
        return f"{super().describe()}, {self.mode}"

    def _n_laws(self, n_clients: int | None) -> float:
        return float(n_clients or 0)

    def _check_clients(self, n_clients: int | None, round_index: int) -> None:
        if n_clients is None:
            raise RuntimeError("release() needs the number of clients that answered.")

    def _draw(
        self, size: int, scale: float, source: Entropy, n_clients: int | None
    ) -> Integers:
        if self.mode == "faithful" or not n_clients:
            return np.zeros(size, dtype=np.int64)
        return summed_laplace(size, scale, n_clients, source)


def summed_gaussians(size: int, n: int, source: Entropy) -> Integers:
    """Sum of `n` draws of the discrete Gaussian of scale 512, for each number.

    It has the law of a few draws times whole numbers whose squares add up to `n`, up to
    ``exp(-300)``: see `discrete_gaussian`.
    """
    from skfedcal.privacy.samplers import discrete_gaussian_base

    out = np.zeros(size, dtype=np.int64)
    for factor in square_parts(n):
        out += factor * discrete_gaussian_base(size, source)
    return out


def square_parts(n: int) -> list[int]:
    """Whole numbers whose squares add up to `n`, each dense enough for the next."""
    parts = []
    while n > _FEW:
        # What is left is wide enough to fill the gaps of this part.
        factor = isqrt(n - max(1, -(-n // _GAP)))
        parts.append(factor)
        n -= factor * factor
    return parts + [1] * n


class LocalSum(PureSum):
    """Unbiased estimates of counts from randomised reports.

    oracle: How clients report; 'auto' takes the one of least variance.
    mode ('fast', 'faithful'): Whether the sum of the reports, or each client's report,
        is drawn.
    budget, **account: See `PureSum`.
    """

    _adjacency = "any two values"
    _trust = "local: every client randomises its own report and trusts no other party"

    def __init__(
        self,
        budget: PureBudget,
        *,
        oracle: Literal["auto"] | Kind,
        mode: Mode,
        **account: Any,
    ) -> None:
        super().__init__(budget, **account)
        self.mode = mode
        self._oracle = oracle
        if mode == "fast":
            self._trust += (
                " (simulated: the sum of the reports was drawn, not each report)"
            )

    @property
    def secure(self) -> bool:
        """Whether the clients drew their randomness themselves."""
        return self.mode == "faithful" and self._entropy.secure

    @property
    def site_entropy(self) -> Entropy | None:
        """Clients draw nothing in a fast simulation."""
        return None if self.mode == "fast" else super().site_entropy

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        for name, block in spec.items():
            self._check_block(name, block)
        self._note_bounds(spec)
        # Not clipped but checked by the randomizer: a client that clips a row of two
        # examples would send none of them without a word.
        codec = Codec(
            {name: BlockCode(replace(b, clip=None)) for name, b in spec.items()}
        )
        oracles = self.oracles(codec, round_index)
        spread = oracles[min(oracles)].variance()
        self._multiplier = sqrt(self._n_units * spread)
        return codec

    def oracles(self, codec: Codec, round_index: int) -> dict[str, Oracle]:
        """Frequency oracle of each block of a round."""
        specs = {name: code.spec for name, code in codec.blocks.items()}
        budgets = self.budget.of_blocks(specs, round_index)
        out = {}
        for name, block in specs.items():
            if self._oracle == "auto":
                oracle = choose_oracle(budgets[name], block.size)
            else:
                oracle = Oracle(self._oracle, budgets[name], block.size)
            if not oracle.p > oracle.q:
                raise ValueError(
                    f"eps={self.budget.eps:g} is too small: a report on block "
                    f"{name!r} would carry no information. Pass a larger eps."
                )
            out[name] = oracle
        return out

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer:
        from skfedcal.privacy.randomizers import LocalReports, OneHotRows

        if self.mode == "fast":
            return OneHotRows()
        return LocalReports(self.oracles(codec, round_index))

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        self._check_paid(round_index)
        if n_clients is None:
            raise RuntimeError("release() needs the number of clients that answered.")
        oracles = self.oracles(codec, round_index)
        self._use_round(codec, round_index)
        values, noise, laws = {}, {}, {}
        for i, (name, code) in enumerate(sorted(codec.blocks.items())):
            oracle = oracles[name]
            reports = total[name][0]
            if self.mode == "fast":
                source = self._entropy.child(round_index, i)
                reports = summed_reports(oracle, reports, n_clients, source)
            p, q = oracle.p, oracle.q
            values[name] = ((reports - n_clients * q) / (p - q)).reshape(
                code.spec.shape
            )
            variance = n_clients * oracle.variance()
            noise[name] = sqrt(variance)
            laws[name] = NoiseLaw(oracle.kind, variance, p, q, n_clients, oracle.domain)
        return Sums(values, noise, laws)

    def describe(self) -> str:
        return f"LocalSum({self.budget}, {self._oracle}, {self.mode})"

    def _check_block(self, name: str, block: BlockSpec) -> None:
        if block.kind != "count" or block.norm != "l1":
            raise ValueError(
                f"{self._label} cannot be used with LocalDP, which randomises one "
                f"count of each client: clients send other numbers (block {name!r}). "
                "Pass CentralDP or DistributedDP."
            )
        if block.clip is None or not 1 <= block.clip < 2 or block.groups != 1:
            raise ValueError(
                f"Block {name!r} lets a client send {block.clip} examples, but "
                "LocalDP allows one per client. Send one example per client "
                "(max_examples_per_client=1)."
            )
        if self._oracle == "rr" and block.size > 1:
            raise ValueError(
                f"oracle='rr' reports a single bit; block {name!r} has {block.size} "
                "cells. Pass oracle='auto' or 'grr'."
            )
        if self._oracle in ("grr", "subset") and block.size == 1:
            raise ValueError(
                f"Block {name!r} is a single bit; pass oracle='auto' or 'rr'."
            )
