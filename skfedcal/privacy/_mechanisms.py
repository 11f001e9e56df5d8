"""Mechanisms: an integer sum over clients in, what the server may see out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any, Literal, Protocol

from skfedcal.algorithms._base import BlockSpec, NoiseLaw, Sums
from skfedcal.privacy._codec import BlockCode, Codec, Integers
from skfedcal.privacy._paid import PaidSum, Spec
from skfedcal.privacy._report import PrivacyReport

if TYPE_CHECKING:
    from skfedcal.privacy._accounting import NoisePlan
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._events import PrivacyEvent
    from skfedcal.privacy._randomizers import Randomizer


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
        n_per_round: int | None = None,
    ) -> None:
        """Pay for all rounds; called before any client is contacted.

        A resumed run has the same `run_id` and says how many rounds are released. The
        runner says who will take part; what was not planned for is refused.
        """

    @property
    def seeded(self) -> bool:
        """Whether any noise comes from a seed: sites book the run as a simulation."""

    @property
    def site_entropy(self) -> Entropy | None:
        """Seeded words for clients of a simulation; None: they use their own."""

    @property
    def n_min(self) -> int:
        """Least number of clients in a sum that may be opened."""

    @property
    def max_colluders(self) -> int:
        """Clients of a sum that may tell the server what they know."""

    @property
    def event(self) -> PrivacyEvent | None:
        """What the whole run costs, once it is paid; None: nothing is promised."""

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        """Say how the blocks of one round are written."""

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        """Give what clients do to their answers before they are summed, if anything."""

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        """Turn the integer sum over `n_clients` into what the server may see.

        Adds the noise, unless clients have added it.
        """

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

    @property
    def seeded(self) -> bool:
        """There is no noise."""
        return False

    @property
    def site_entropy(self) -> None:
        """No words are needed."""

    @property
    def n_min(self) -> int:
        """Nothing is promised that a smaller sum would break."""
        return 0

    @property
    def max_colluders(self) -> int:
        """Nothing is promised that they would break."""
        return 0

    @property
    def event(self) -> None:
        """Nothing is paid."""

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        return Codec({n: BlockCode(b, exact_step(b)) for n, b in spec.items()})

    def randomizer(self, codec: Codec, round_index: int) -> None:
        """Clients send what they have."""

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        return Sums({name: c.decode(total[name]) for name, c in codec.blocks.items()})

    def report(self) -> PrivacyReport:
        return PrivacyReport(unit=self.unit, n_clients=self.n_clients)

    def describe(self) -> str:
        return repr(self)


def exact_step(block: BlockSpec) -> float | None:
    """Lattice step that writes counts of an L1 bounded block as they are."""
    counted = block.kind == "count" and block.norm == "l1" and block.clip is not None
    return 1.0 if counted else None


class LatticeGaussian(PaidSum):
    """Discrete Gaussian noise on the integer sum, once per round.

    Parameters
    ----------
    plan : NoisePlan
        Noise multiplier and the rounds it pays for.
    shares : tuple of float, default=()
        Part of the budget that each round gets, in terms of squared strength; empty
        when all rounds get the same.
    split : {'split', 'joint'}
        How noise is divided over blocks: so that the total variance is least, or the
        same for every number.
    n_releases : int
        Rounds that may be released; a further one is refused.
    **account : dict
        See `PaidSum`.
    """

    _trust = "central: the server sees exact sums and adds the noise"
    _adjacency = "zero-out"
    # Bounds of a unit that a neighbouring data set may differ by.
    _reach = 1.0

    def __init__(
        self,
        plan: NoisePlan,
        *,
        n_releases: int,
        shares: tuple[float, ...] = (),
        split: Literal["split", "joint"] = "split",
        **account: Any,
    ) -> None:
        super().__init__(n_releases=n_releases, **account)
        self.plan = plan
        self._shares = _checked_shares(shares, plan, n_releases)
        self._split = split

    def open(
        self,
        run_id: str,
        rounds_done: int = 0,
        *,
        n_participations: int | None = None,
        sampling_rate: float | None = None,
        n_per_round: int | None = None,
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
        details = {"eps": planned.eps, "delta": planned.delta}
        details["n_rounds"] = planned.n_rounds
        self._pay(planned.to_event(), run_id, rounds_done, details)

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        for name, block in spec.items():
            if block.clip is None or block.norm != "l2":
                raise ValueError(
                    f"Block {name!r} has no L2 bound, so no noise can hide a client."
                )
        self._note_bounds(spec)
        sigmas = self._sigmas(spec, round_index)
        codec = Codec(
            {
                name: BlockCode(block, step=sigmas[name] / self._lattice_sigma)
                for name, block in spec.items()
            }
        )
        self._check_bounds(codec, round_index)
        return codec

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        self._check_paid(round_index)
        self._check_bounds(codec, round_index)
        self._check_clients(n_clients, round_index)
        self._use_round(codec, round_index)
        values, noise, laws = {}, {}, {}
        for i, (name, code) in enumerate(sorted(codec.blocks.items())):
            assert code.step is not None
            source = self._entropy.child(round_index, i)
            drawn = self._draw(code.spec.size, source, n_clients)
            values[name] = code.decode(total[name] + drawn)
            noise[name] = code.step * self._drawn_sigma(n_clients)
            laws[name] = NoiseLaw("additive", noise[name] ** 2)
        return Sums(values, noise, laws)

    def report(self) -> PrivacyReport:
        return PrivacyReport(
            eps=self.plan.eps,
            delta=self.plan.delta,
            mu=self.plan.mu,
            noise_multiplier=self._reach * self.plan.noise_multiplier,
            clip=dict(self._clips),
            unit=self.unit,
            adjacency=self._adjacency,
            trust=self._trust,
            secure=self.secure,
            seeded=self.seeded,
            accountant=self.plan.accountant,
            n_rounds=self.plan.n_rounds,
            n_clients=self._n_units,
            assumptions=self.plan.assumptions,
            ledger_ids=self._ledger_ids,
        )

    def describe(self) -> str:
        parts = (self.plan, self.unit, self._split, self._shares)
        return f"{type(self).__name__}({', '.join(map(str, parts))})"

    @property
    def _lattice_sigma(self) -> float:
        """Noise that is paid for, in lattice steps."""
        from skfedcal.privacy._samplers import GAUSSIAN_SIGMA

        return GAUSSIAN_SIGMA

    def _drawn_sigma(self, n_clients: int | None) -> float:
        """Noise that is in the sum, in lattice steps."""
        return self._lattice_sigma

    def _draw(self, size: int, source: Entropy, n_clients: int | None) -> Integers:
        from skfedcal.privacy._samplers import discrete_gaussian

        return discrete_gaussian(size, source)

    def _check_clients(self, n_clients: int | None, round_index: int) -> None:
        """Refuse a sum with too little noise."""

    def _multiplier(self, round_index: int) -> float:
        """Noise over sensitivity of one round."""
        if not self._shares:
            return self.plan.noise_multiplier
        share = self._shares[round_index] * len(self._shares)
        return self.plan.noise_multiplier / sqrt(share)

    def _check_bounds(self, codec: Codec, round_index: int) -> None:
        """Check the claim on the integers that can really be sent."""
        spent = sum(c.limit * c.spec.groups for c in codec.blocks.values())
        allowed = (1 + 1e-12) / self._multiplier(round_index)
        if self._reach * sqrt(spent) / self._lattice_sigma > allowed:
            raise RuntimeError("The bounds of the codec exceed the planned budget.")

    def _sigmas(self, spec: Spec, round_index: int) -> dict[str, float]:
        bounds = {name: block.sensitivity for name, block in spec.items()}
        multiplier = self._reach * self._multiplier(round_index)
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
