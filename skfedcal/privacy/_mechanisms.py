"""Mechanisms: an integer sum over clients in, what the server may see out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, sqrt
from typing import TYPE_CHECKING, Literal, Protocol

from skfedcal.algorithms._base import BlockSpec, Sums
from skfedcal.privacy._codec import BlockCode, Codec, Integers
from skfedcal.privacy._report import PrivacyReport

if TYPE_CHECKING:
    from skfedcal.privacy._accounting import NoisePlan
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._ledger import PrivacyLedger

Spec = Mapping[str, BlockSpec]


class SumMechanism(Protocol):
    """Decides how clients encode, pays, and turns an integer sum into a release.

    It cannot tell temperature from bins. The order is fixed: `open` (the ledger is
    debited), then `codec` and `release` for each round.
    """

    @property
    def unit(self) -> Literal["client", "example"]:
        """What one encoded row stands for."""

    def open(
        self,
        run_id: str,
        rounds_done: int = 0,
        *,
        n_participations: int | None = None,
        sampling_rate: float | None = None,
    ) -> None:
        """Pay for all rounds; called before any client is contacted.

        A resumed run has the same `run_id` and says how many rounds are released. The
        runner says who will take part; what was not planned for is refused.
        """

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        """Say how the blocks of one round are written."""

    def release(
        self, total: Mapping[str, Integers], codec: Codec, round_index: int
    ) -> Sums:
        """Add noise to the integer sum and decode it."""

    def report(self) -> PrivacyReport:
        """Say what is guaranteed."""

    def describe(self) -> str:
        """Write down all settings, to tell one run from another."""


@dataclass(frozen=True, slots=True)
class ExactSum:
    """No noise: the exact sum, clipped only where the algorithm says so."""

    unit: Literal["client", "example"] = "client"
    n_clients: int = 0

    def open(self, run_id: str, rounds_done: int = 0, **_: float | None) -> None:
        """Nothing to pay."""

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        return Codec({name: BlockCode(block) for name, block in spec.items()})

    def release(
        self, total: Mapping[str, Integers], codec: Codec, round_index: int
    ) -> Sums:
        return Sums({name: c.decode(total[name]) for name, c in codec.blocks.items()})

    def report(self) -> PrivacyReport:
        return PrivacyReport(unit=self.unit, n_clients=self.n_clients)

    def describe(self) -> str:
        return repr(self)


class LatticeGaussian:
    """Discrete Gaussian noise on the integer sum, once per round.

    Parameters
    ----------
    plan : NoisePlan
        Noise multiplier and the rounds it pays for.
    entropy : Entropy
        Where noise comes from.
    ledger : PrivacyLedger
        Debited with the whole plan before the first round.
    n_units : int
        Clients (or examples) among which one hides.
    unit : {'client', 'example'}
        What is hidden.
    n_releases : int
        Rounds that may be released; a further one is refused.
    n_values : int
        Numbers that a round may release, as told to the accountant.
    shares : tuple of float, default=()
        Part of the budget that each round gets, in terms of squared strength; empty
        when all rounds get the same.
    split : {'split', 'joint'}
        How noise is divided over blocks: so that the total variance is least, or the
        same for every number.
    label, population : str
        For the ledger.
    """

    def __init__(
        self,
        plan: NoisePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger,
        n_units: int,
        n_releases: int,
        n_values: int,
        shares: tuple[float, ...] = (),
        unit: Literal["client", "example"] = "client",
        split: Literal["split", "joint"] = "split",
        label: str = "fit",
        population: str = "default",
    ) -> None:
        self.plan = plan
        self.unit = unit
        self._entropy = entropy
        self._ledger = ledger
        self._n_units = n_units
        self._releases_left = n_releases
        self._n_values = n_values
        self._shares = _checked_shares(shares, plan, n_releases)
        self._split = split
        self._label = label
        self._population = population
        self._receipt: str | None = None
        self._next_round = 0
        self._clips: dict[str, float | None] = {}

    def open(
        self,
        run_id: str,
        rounds_done: int = 0,
        *,
        n_participations: int | None = None,
        sampling_rate: float | None = None,
    ) -> None:
        planned = self.plan
        if (n_participations or 0) > planned.n_rounds or (
            sampling_rate is not None
            and planned.mu is None
            and sampling_rate > planned.sampling_rate
        ):
            raise RuntimeError(
                f"The noise was planned for {planned.n_rounds} rounds at sampling rate "
                f"{planned.sampling_rate:g}; the run has up to {n_participations} at "
                f"{sampling_rate}."
            )
        self._releases_left -= rounds_done
        self._next_round = rounds_done
        self._receipt = self._ledger.debit(
            self.plan.to_event(),
            label=self._label,
            population=self._population,
            mode="secure" if self._entropy.secure else "simulation",
            run_id=run_id,
            details={
                "eps": self.plan.eps,
                "delta": self.plan.delta,
                "unit": self.unit,
                "n_units": self._n_units,
                "n_rounds": self.plan.n_rounds,
            },
        )

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        from skfedcal.privacy._samplers import GAUSSIAN_SIGMA

        for name, block in spec.items():
            if block.clip is None or block.norm != "l2":
                raise ValueError(
                    f"Block {name!r} has no L2 bound, so no noise can hide a client."
                )
        self._clips = {**{n: b.sensitivity for n, b in spec.items()}, **self._clips}
        sigmas = self._sigmas(spec, round_index)
        codec = Codec(
            {
                name: BlockCode(block, step=sigmas[name] / GAUSSIAN_SIGMA)
                for name, block in spec.items()
            }
        )
        self._check_bounds(codec, round_index)
        return codec

    def release(
        self, total: Mapping[str, Integers], codec: Codec, round_index: int
    ) -> Sums:
        from skfedcal.privacy._samplers import GAUSSIAN_SIGMA, discrete_gaussian

        if self._receipt is None:
            raise RuntimeError("release() before open(): nothing has been paid.")
        if round_index < self._next_round:
            raise RuntimeError(f"Round {round_index} has been released already.")
        self._check_bounds(codec, round_index)
        size = sum(code.spec.size for code in codec.blocks.values())
        if self._releases_left < 1 or size > self._n_values:
            raise RuntimeError(
                f"Round {round_index} releases {size} numbers; paid for are "
                f"{self._releases_left} more rounds of {self._n_values} numbers."
            )
        self._releases_left -= 1
        self._next_round = round_index + 1
        values, noise = {}, {}
        for i, (name, code) in enumerate(sorted(codec.blocks.items())):
            assert code.step is not None
            source = self._entropy.child(round_index, i)
            drawn = discrete_gaussian(code.spec.size, source)
            values[name] = code.decode(total[name] + drawn)
            noise[name] = code.step * GAUSSIAN_SIGMA
        return Sums(values, noise)

    def report(self) -> PrivacyReport:
        return PrivacyReport(
            eps=self.plan.eps,
            delta=self.plan.delta,
            mu=self.plan.mu,
            noise_multiplier=self.plan.noise_multiplier,
            clip=dict(self._clips),
            unit=self.unit,
            trust="central: the server sees exact sums and adds the noise",
            secure=self._entropy.secure,
            accountant=self.plan.accountant,
            n_rounds=self.plan.n_rounds,
            n_clients=self._n_units,
            assumptions=self.plan.assumptions,
            ledger_ids=() if self._receipt is None else (self._receipt,),
        )

    def describe(self) -> str:
        parts = (self.plan, self.unit, self._split, self._shares)
        return f"LatticeGaussian({', '.join(map(str, parts))})"

    def _multiplier(self, round_index: int) -> float:
        """Noise over sensitivity of one round."""
        if not self._shares:
            return self.plan.noise_multiplier
        share = self._shares[round_index] * len(self._shares)
        return self.plan.noise_multiplier / sqrt(share)

    def _check_bounds(self, codec: Codec, round_index: int) -> None:
        """Check the claim on the integers that can really be sent."""
        from skfedcal.privacy._samplers import GAUSSIAN_SIGMA

        spent = sum(c.limit * c.spec.groups for c in codec.blocks.values())
        allowed = (1 + 1e-12) / self._multiplier(round_index)
        if sqrt(spent) / GAUSSIAN_SIGMA > allowed:
            raise RuntimeError("The bounds of the codec exceed the planned budget.")

    def _sigmas(self, spec: Spec, round_index: int) -> dict[str, float]:
        bounds = {name: block.sensitivity for name, block in spec.items()}
        multiplier = self._multiplier(round_index)
        if self._split == "joint":
            joint = multiplier * sqrt(sum(b * b for b in bounds.values()))
            return dict.fromkeys(bounds, joint)
        # Least total cost of the noise in all released numbers.
        from skfedcal.privacy._accounting import split_noise

        weights = [block.size * block.weight for block in spec.values()]
        factors = split_noise(list(bounds.values()), weights)
        return {
            name: float(f) * multiplier for name, f in zip(bounds, factors, strict=True)
        }


def _checked_shares(
    shares: tuple[float, ...], plan: NoisePlan, n_releases: int
) -> tuple[float, ...]:
    """Shares that add up to what is paid: squared strengths of all rounds."""
    if not shares:
        return ()
    if plan.mu is None or not len(shares) == n_releases == plan.n_rounds:
        raise ValueError(
            f"{len(shares)} unequal shares of the budget need {len(shares)} rounds in "
            f"which every client takes part; there are {n_releases}, and cohorts leave "
            "clients out or are drawn at random. Use FederatedRunner(cohort='full') "
            "and leave n_rounds to the method."
        )
    if min(shares) <= 0 or fsum(shares) > 1 + 1e-12:
        raise ValueError(f"shares={shares} must be positive and add up to 1.")
    return shares
