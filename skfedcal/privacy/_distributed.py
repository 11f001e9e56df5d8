"""Noise that clients add themselves, so that the server sees noisy sums only."""

from __future__ import annotations

from math import isqrt, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.privacy._codec import Codec, Integers
from skfedcal.privacy._laplace import LatticeLaplace
from skfedcal.privacy._mechanisms import LatticeGaussian
from skfedcal.privacy._paid import Spec

if TYPE_CHECKING:
    from skfedcal.privacy._accounting import NoisePlan
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._laplace import PureBudget
    from skfedcal.privacy._randomizers import Randomizer

Mode = Literal["fast", "faithful"]

# Draws of scale 512 may be multiplied as long as what is added to them is 4 times as
# wide as the gaps; see `discrete_gaussian`.
_GAP = (512 // 4) ** 2
_FEW = 16


def refuse_absence(adjacency: str, unit: str) -> None:
    """Raise for a neighbouring relation that what is published contradicts.

    The number of units is in the report, in the ledger and, through the default of
    delta, in the noise; and a client would take its share of the noise with it.
    """
    if adjacency != "add-remove":
        return
    why = "its share of the noise would be missing with it"
    if unit == "example":
        why = "the number of rows is published, in the report and in the ledger"
    raise ValueError(
        f"DistributedDP(adjacency='add-remove') cannot hide whether one {unit} exists: "
        f"{why}. Pass 'zero-out', which needs the same noise and takes the number of "
        f"{'clients' if unit == 'client' else 'rows'} for public."
    )


def survivors_assumed(n_min: int, n_shares: int) -> tuple[str, ...]:
    """What must hold for noise that is made of the shares of honest clients."""
    return (
        f"{n_shares} or more of the clients in every sum draw their share of the noise "
        "as agreed and keep it to themselves",
        f"secure aggregation opens no sum of fewer than {n_min} clients",
    )


class _Survivors:
    """Refuse sums of fewer shares than the guarantee needs."""

    n_min: int
    n_shares: int
    max_colluders: int
    mode: Mode

    def check_plan(self, n_per_round: int | None) -> None:
        if n_per_round is not None and n_per_round < self.n_min:
            raise ValueError(
                f"The noise is made of the shares of {self.n_min} clients, but a round "
                f"is sure to have {n_per_round} only. Pass DistributedDP(n_min=...) "
                "for the smallest cohort, and no Poisson sampling."
            )

    def _check_clients(self, n_clients: int | None, round_index: int) -> None:
        if n_clients is None:
            raise RuntimeError("release() needs the number of clients that answered.")
        if n_clients < self.n_min:
            raise NotEnoughClientsError(
                f"{n_clients} clients answered in round {round_index}, but the noise "
                f"is made of {self.n_min} shares, so that the sum would show more than "
                "was paid for. Nothing of this round was released. Pass "
                "DistributedDP(n_min=...) to allow for clients that drop out."
            )

    @property
    def trust(self) -> str:
        text = "distributed: clients add the noise, the server sees noisy sums only"
        if self.mode == "fast":
            text += " (simulated: drawn once for all of them, by who holds exact sums)"
        return text


class DistributedGaussian(_Survivors, LatticeGaussian):
    """A draw of the discrete Gaussian per client; `n_shares` of them are enough.

    Parameters
    ----------
    plan : NoisePlan
        Noise multiplier and the rounds it pays for.
    n_min : int
        Clients that are sure to be in every sum.
    n_shares : int
        Those of them whose shares make up the noise.
    mode : {'fast', 'faithful'}
        Whether the sum of the shares, or each client's share, is drawn.
    adjacency : str
        Which data sets are neighbours; 'replace' doubles the noise.
    **account : dict
        See `LatticeGaussian`.
    """

    def __init__(
        self,
        plan: NoisePlan,
        *,
        n_min: int,
        n_shares: int,
        mode: Mode,
        adjacency: str,
        **account: Any,
    ) -> None:
        super().__init__(plan, **account)
        self.n_min, self.n_shares, self.mode = n_min, n_shares, mode
        self.max_colluders = n_min - n_shares
        self._adjacency = adjacency
        self._reach = 2.0 if adjacency == "replace" else 1.0
        self._trust = self.trust

    def open(
        self, run_id: str, rounds_done: int = 0, *, n_per_round: int | None = None,
        **schedule: Any,
    ) -> None:  # fmt: skip
        self.check_plan(n_per_round)
        super().open(run_id, rounds_done, n_per_round=n_per_round, **schedule)

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        from skfedcal.privacy._randomizers import GaussianShares

        return GaussianShares() if self.mode == "faithful" else None

    def describe(self) -> str:
        least = f"{self.n_min}, {self.n_shares}"
        return f"{super().describe()}, {least}, {self.mode}, {self._adjacency}"

    @property
    def _lattice_sigma(self) -> float:
        from skfedcal.privacy._samplers import GAUSSIAN_BASE_SIGMA

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

    Parameters
    ----------
    budget : PureBudget
        Eps and how it is divided.
    n_min : int
        Clients that are sure to be in every sum.
    n_shares : int
        Those of them whose shares make up the noise.
    n_clients : int
        Clients in all.
    mode : {'fast', 'faithful'}
        Whether the sum of the shares, or each client's share, is drawn.
    adjacency : str
        Which data sets are neighbours; 'replace' doubles the noise.
    **account : dict
        See `LatticeLaplace`.
    """

    def __init__(
        self,
        budget: PureBudget,
        *,
        n_min: int,
        n_shares: int,
        n_clients: int,
        mode: Mode,
        adjacency: str,
        **account: Any,
    ) -> None:
        super().__init__(budget, model="DistributedDP", **account)
        self.n_min, self.n_shares, self.mode = n_min, n_shares, mode
        self.max_colluders = n_min - n_shares
        self._adjacency = adjacency
        self._reach = 2 if adjacency == "replace" else 1
        self._trust = self.trust
        self._shared = mode == "faithful" or n_clients > n_shares

    def open(
        self, run_id: str, rounds_done: int = 0, *, n_per_round: int | None = None,
        **schedule: Any,
    ) -> None:  # fmt: skip
        self.check_plan(n_per_round)
        super().open(run_id, rounds_done, n_per_round=n_per_round, **schedule)

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        from skfedcal.privacy._polya import check_scale

        codec = super().codec(spec, round_index)
        if self._shared:
            for scale in self._scales(codec, round_index).values():
                check_scale(scale)
        return codec

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        from skfedcal.privacy._randomizers import PolyaShares

        if self.mode == "fast":
            return None
        return PolyaShares(self._scales(codec, round_index), self.n_shares)

    def describe(self) -> str:
        least = f"{self.n_min}, {self.n_shares}"
        return f"{super().describe()}, {least}, {self.mode}, {self._adjacency}"

    def _n_laws(self, n_clients: int | None) -> float:
        return (n_clients or self.n_min) / self.n_shares

    def _draw(
        self, size: int, scale: float, source: Entropy, n_clients: int | None
    ) -> Integers:
        from skfedcal.privacy._polya import polya_sum

        if self.mode == "faithful":
            return np.zeros(size, dtype=np.int64)
        drawn = super()._draw(size, scale, source, n_clients)
        extra = (n_clients or self.n_min) - self.n_shares
        if extra:
            drawn = drawn + polya_sum(size, scale, extra, self.n_shares, source)
        return drawn


class SourceLaplace(LatticeLaplace):
    """Discrete Laplace noise of every source on its own sum.

    Parameters
    ----------
    budget : PureBudget
        Eps and how it is divided.
    mode : {'fast', 'faithful'}
        Whether the sum of the noise, or each source's noise, is drawn.
    **account : dict
        See `LatticeLaplace`.
    """

    _trust = "source: every client adds the noise to its own sum and trusts nobody"

    def __init__(self, budget: PureBudget, *, mode: Mode, **account: Any) -> None:
        super().__init__(budget, model="SourceDP", **account)
        self.mode = mode
        if mode == "fast":
            self._trust += " (simulated: drawn once for all of them)"

    @property
    def secure(self) -> bool:
        return self.mode == "faithful" and self._entropy.secure

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        from skfedcal.privacy._randomizers import LaplaceShares

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
        from skfedcal.privacy._fast import summed_laplace

        if self.mode == "faithful" or not n_clients:
            return np.zeros(size, dtype=np.int64)
        return summed_laplace(size, scale, n_clients, source)


def summed_gaussians(size: int, n: int, source: Entropy) -> Integers:
    """Sum of `n` draws of the discrete Gaussian of scale 512, for each number.

    It has the law of a few draws times whole numbers whose squares add up to `n`, up to
    ``exp(-300)``: see `discrete_gaussian`.
    """
    from skfedcal.privacy._samplers import discrete_gaussian_base

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
