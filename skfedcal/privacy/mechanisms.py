"""Mechanisms: turn an integer sum over clients into a release.

- What all noisy mechanisms share: pay once, release each round once.
- Discrete Laplace noise on integer sums with L1 sensitivity: pure eps.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, fsum, log2, nextafter, sinh, sqrt
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal.contract import BlockSpec, NoiseLaw, Sums
from skfedcal.privacy.codec import BlockCode, Codec, Integers
from skfedcal.privacy.events import NoisePlan, PrivacyEvent, PrivacyReport, PureEvent
from skfedcal.privacy.samplers import charged_note

if TYPE_CHECKING:
    from skfedcal.privacy.entropy import Entropy
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.randomizers import Randomizer

Spec = Mapping[str, BlockSpec]


class NoisySum:
    """Base of mechanisms with noise: debit a run once, release each round once.

    entropy: Source of the noise.
    ledger: Debited with the whole run before the first round.
    n_units: Number of clients (or examples).
    unit: Unit of privacy.
    n_releases: Rounds that may be released; a further one is refused.
    n_values: Numbers that a round may release, as accounted for.
    label, population: For the ledger.
    """

    def __init__(
        self,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger,
        n_units: int,
        n_releases: int,
        n_values: int,
        unit: Literal["client", "example"] = "client",
        label: str = "fit",
        population: str = "default",
    ) -> None:
        self.unit = unit
        self._entropy = entropy
        self._ledger = ledger
        self._n_units = n_units
        self._releases_left = n_releases
        self._n_values = n_values
        self._label = label
        self._population = population
        self._receipt: str | None = None
        self.event: PrivacyEvent | None = None
        self._next_round = 0
        self._clips: dict[str, float | None] = {}

    # Clients in a sum that may be opened, and those of them whose noise does not count:
    # no noise is made of shares.
    n_min = max_colluders = 0
    _trust = "central: the server sees exact sums and adds the noise"
    _adjacency = "zero-out"
    # Bounds of a unit that a neighbouring data set may differ by.
    _reach = 1

    @property
    def secure(self) -> bool:
        """Whether the noise is secret; False for a simulation."""
        return self._entropy.secure

    @property
    def seeded(self) -> bool:
        """Whether any noise comes from a seed, with which anyone can remove it."""
        return not self._entropy.secure

    @property
    def site_entropy(self) -> Entropy | None:
        """Seeded words for clients of a simulation; None: they use their own."""
        return None if self._entropy.secure else self._entropy.child(_SITES)

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        """Return the randomizer that clients apply to their answers, or None."""
        return None

    def open(
        self,
        run_id: str,
        rounds_done: int = 0,
        *,
        n_participations: int | None = None,
        sampling_rate: float | None = None,
        n_per_round: int | None = None,
    ) -> None:
        """Pay for all rounds, if no client takes part more often than was planned."""
        self._check_schedule(n_participations, sampling_rate, n_per_round)
        event, details = self._payment()
        self._pay(event, run_id, rounds_done, details)

    def planned_event(self) -> PrivacyEvent:
        """Privacy event that `open` will pay for."""
        return self._payment()[0]

    def _pay(
        self,
        event: PrivacyEvent,
        run_id: str,
        rounds_done: int,
        details: dict[str, Any],
    ) -> None:
        self._releases_left -= rounds_done
        self._next_round = rounds_done
        self.event = event
        self._receipt = self._ledger.debit(
            event,
            label=self._label,
            population=self._population,
            mode="secure" if self.secure else "simulation",
            run_id=run_id,
            details={
                "unit": self.unit,
                "n_units": self._n_units,
                "adjacency": self._adjacency,
                "trust": self._trust,
                **details,
            },
        )

    def report(self) -> PrivacyReport:
        """Return the guarantee."""
        return PrivacyReport(
            clip=dict(self._clips),
            unit=self.unit,
            adjacency=self._adjacency,
            trust=self._trust,
            secure=self.secure,
            seeded=self.seeded,
            n_clients=self._n_units,
            ledger_ids=() if self._receipt is None else (self._receipt,),
            **self._guarantee(),
        )

    def _check_schedule(
        self,
        n_participations: int | None,
        sampling_rate: float | None,
        n_per_round: int | None,
    ) -> None:
        """Refuse a run that the noise was not planned for."""

    @abstractmethod
    def _payment(self) -> tuple[PrivacyEvent, dict[str, Any]]:
        """Event of the whole run, and details for the ledger."""

    @abstractmethod
    def describe(self) -> str:
        """Return all settings as text, which identifies the run."""

    @abstractmethod
    def _guarantee(self) -> dict[str, Any]:
        """Fields of the report that depend on the noise."""

    def _note_bounds(self, spec: Spec) -> None:
        """Keep the bounds of the first round for the report."""
        self._clips = {**{n: b.sensitivity for n, b in spec.items()}, **self._clips}

    def _check_paid(self, round_index: int) -> None:
        if self._receipt is None:
            raise RuntimeError(
                "release() was called before open(): the ledger has not been debited."
            )
        if round_index < self._next_round:
            raise RuntimeError(f"Round {round_index} has been released already.")

    def _use_round(self, codec: Codec, round_index: int) -> None:
        """Count the round as released, before its noise is drawn."""
        size = sum(code.spec.size for code in codec.blocks.values())
        if self._releases_left < 1 or size > self._n_values:
            raise RuntimeError(
                f"Round {round_index} releases {size} numbers, but the ledger was "
                f"debited for {self._releases_left} more rounds of {self._n_values} "
                "numbers."
            )
        self._releases_left -= 1
        self._next_round = round_index + 1

    def _noisy(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        draw: Callable[[str, int, Entropy], Integers],
        deviation: Callable[[str], float],
    ) -> Sums:
        """Add `draw(name, size, source)` to each block; `deviation` is in steps."""
        self._use_round(codec, round_index)
        values, noise, laws = {}, {}, {}
        for i, (name, code) in enumerate(sorted(codec.blocks.items())):
            assert code.step is not None
            source = self._entropy.child(round_index, i)
            values[name] = code.decode(total[name] + draw(name, code.spec.size, source))
            noise[name] = code.step * deviation(name)
            laws[name] = NoiseLaw("additive", noise[name] ** 2)
        return Sums(values, noise, laws)

    def _check_clients(self, n_clients: int | None, round_index: int) -> None:
        """Refuse a sum with too little noise."""


# Clients of a simulation read other streams than the server, whose streams are named
# by a round and a block.
_SITES = 1 << 32


class SumMechanism(Protocol):
    """Decides how clients encode, pays, and turns an integer sum into a release.

    It does not depend on the method. The order is fixed: `open` (the ledger is
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
        runner passes the participation; more than was planned for is refused.
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
        """Clients of a sum that may collude with the server."""

    @property
    def event(self) -> PrivacyEvent | None:
        """Privacy event of the whole run, once it is debited; None: no guarantee."""

    def planned_event(self) -> PrivacyEvent | None:
        """Privacy event that `open` will pay for; None: no guarantee."""

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        """Return the encoding of the blocks of one round."""

    def randomizer(self, codec: Codec, round_index: int) -> Randomizer | None:
        """Return the randomizer that clients apply before the sum, or None."""

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
        """Return the guarantee."""

    def describe(self) -> str:
        """Return all settings as text, which identifies the run."""


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
        """Exact sums have no least number of clients."""
        return 0

    @property
    def max_colluders(self) -> int:
        """Exact sums have no guarantee that colluders could weaken."""
        return 0

    @property
    def event(self) -> None:
        """Nothing is paid."""

    def planned_event(self) -> None:
        """Nothing will be paid."""

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        return Codec(dict(_exact_codes(tuple(spec.items()))))

    def randomizer(self, codec: Codec, round_index: int) -> None:
        """Clients send their answers unchanged."""

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


@lru_cache(maxsize=64)
def _exact_codes(
    blocks: tuple[tuple[str, BlockSpec], ...],
) -> tuple[tuple[str, BlockCode], ...]:
    """Codes without noise: the same objects for the same blocks, in all runs."""
    return tuple((name, BlockCode(block, exact_step(block))) for name, block in blocks)


def exact_step(block: BlockSpec) -> float | None:
    """Lattice step that writes counts of an L1 bounded block as they are."""
    counted = block.kind == "count" and block.norm == "l1" and block.clip is not None
    return 1.0 if counted else None


class LatticeGaussian(NoisySum):
    """Discrete Gaussian noise on the integer sum, once per round.

    plan: Noise multiplier and the rounds it pays for.
    shares: Share of the squared GDP parameter ``mu ** 2`` that each round gets; empty
        when all rounds get the same.
    split: How noise is divided over blocks: so that the total variance is least, the
        same for every number, or in proportion to the bound of each block.
    n_releases: Rounds that may be released; a further one is refused.
    **account: See `NoisySum`.
    """

    def __init__(
        self,
        plan: NoisePlan,
        *,
        n_releases: int,
        shares: tuple[float, ...] = (),
        split: Literal["split", "joint", "each"] = "split",
        **account: Any,
    ) -> None:
        super().__init__(n_releases=n_releases, **account)
        self.plan = plan
        self._shares = _checked_shares(shares, plan, n_releases)
        self._split = split

    def _check_schedule(
        self,
        n_participations: int | None,
        sampling_rate: float | None,
        n_per_round: int | None,
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

    def _payment(self) -> tuple[PrivacyEvent, dict[str, Any]]:
        plan = self.plan
        details = {"eps": plan.eps, "delta": plan.delta, "n_rounds": plan.n_rounds}
        return plan.to_event(), details

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        for name, block in spec.items():
            if block.clip is None or block.norm != "l2":
                raise ValueError(
                    f"Block {name!r} has no L2 bound: its sensitivity is infinite, so "
                    "no noise can protect a client."
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
        return self._noisy(
            total,
            codec,
            round_index,
            lambda name, size, source: self._draw(size, source, n_clients),
            lambda name: self._drawn_sigma(n_clients),
        )

    def _guarantee(self) -> dict[str, Any]:
        return {
            "eps": self.plan.eps,
            "delta": self.plan.delta,
            "mu": self.plan.mu,
            "noise_multiplier": self._reach * self.plan.noise_multiplier,
            "accountant": self.plan.accountant,
            "n_rounds": self.plan.n_rounds,
            "assumptions": self.plan.assumptions,
        }

    def describe(self) -> str:
        parts = (self.plan, self.unit, self._split, self._shares)
        return f"{type(self).__name__}({', '.join(map(str, parts))})"

    @property
    def _lattice_sigma(self) -> float:
        """Noise that is paid for, in lattice steps."""
        from skfedcal.privacy.samplers import GAUSSIAN_SIGMA

        return GAUSSIAN_SIGMA

    def _drawn_sigma(self, n_clients: int | None) -> float:
        """Noise that is in the sum, in lattice steps."""
        return self._lattice_sigma

    def _draw(self, size: int, source: Entropy, n_clients: int | None) -> Integers:
        from skfedcal.privacy.samplers import discrete_gaussian

        return discrete_gaussian(size, source)

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
        if self._split == "each":
            share = multiplier * sqrt(len(bounds))
            return {name: bound * share for name, bound in bounds.items()}
        # Least total cost of the noise in all released numbers.
        weights = [block.size * block.weight for block in spec.values()]
        factors = split_noise(list(bounds.values()), weights)
        return {
            name: float(f) * multiplier for name, f in zip(bounds, factors, strict=True)
        }


def split_noise(
    clips: ArrayLike, weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the division of noise over separately clipped blocks with least variance.

    clips of shape (n_blocks,): L2 bound of each block of a client's contribution.
    weights of shape (n_blocks,): Cost of the noise variance of each block; equal if
        None.
    Result of shape (n_blocks,): Factors: the noise ``factor / mu`` per block makes the
        release mu-GDP, as ``sum((clips / sigma) ** 2) == mu ** 2``, and has the least
        ``sum(weights * sigma ** 2)``.
    """
    bounds = np.asarray(clips, dtype=np.float64)
    costs = np.ones_like(bounds) if weights is None else np.asarray(weights, float)
    for name, values in (("clips", bounds), ("weights", costs)):
        if values.ndim != 1 or not np.all((values > 0) & np.isfinite(values)):
            raise ValueError(f"{name}={values!r} must be a list of positive numbers.")
    if bounds.shape != costs.shape:
        raise ValueError(
            f"There are {bounds.size} clips but {costs.size} weights; pass one each."
        )
    roots = np.sqrt(costs)
    return np.sqrt(bounds / roots * np.sum(bounds * roots))


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


# Scale of the noise on reals, in lattice steps: weights that are multiples of 2**-16
# stay what they are, and tables of the noise stay small.
_REAL_SCALE = 2.0**24
# Largest bound in lattice steps, half of what the codec allows.
_REAL_RADIUS = 2.0**29

# Beyond this the variance, and sums of several, are no floats.
_LARGEST_SCALE = 1e150
# For rounding when a budget is divided.
_MARGIN = 1e-12


@dataclass(frozen=True, slots=True)
class PureBudget:
    """A pure eps for a run.

    eps: Of the whole run, for one unit.
    n_rounds: Rounds that a unit takes part in; each gets the same part of eps.
    shares: Part of eps that each round gets, where these differ.
    delta_slack: Addition to delta for noise that is sampled from tables.
    """

    eps: float
    n_rounds: int
    shares: tuple[float, ...] = ()
    delta_slack: float = 0.0

    def __post_init__(self) -> None:
        shares = self.shares
        if shares and (
            len(shares) != self.n_rounds
            or min(shares) <= 0
            or fsum(shares) > 1 + _MARGIN
        ):
            raise ValueError(
                f"shares={shares} must be positive and add up to 1, one for each of "
                f"{self.n_rounds} rounds in which every client takes part."
            )

    def of_round(self, round_index: int) -> float:
        share = self.shares[round_index] if self.shares else 1 / self.n_rounds
        return self.eps * share * (1 - _MARGIN)

    def of_blocks(self, spec: Spec, round_index: int) -> dict[str, float]:
        """Eps of each block: least total cost of the noise in blocks of one bound."""
        weights = {name: block.weight ** (1 / 3) for name, block in spec.items()}
        whole = self.of_round(round_index) / fsum(weights.values())
        return {name: whole * weight for name, weight in weights.items()}


class PureSum(NoisySum):
    """Base of mechanisms with a pure eps; a subclass sets `_multiplier`.

    budget: Eps and its division over rounds and blocks.
    assumptions: Assumptions of the guarantee, for the report.
    **account: See `NoisySum`.
    """

    def __init__(
        self, budget: PureBudget, *, assumptions: tuple[str, ...] = (), **account: Any
    ) -> None:
        super().__init__(**account)
        self.budget = budget
        self._assumptions = assumptions
        self._multiplier = 0.0

    def _check_schedule(
        self,
        n_participations: int | None,
        sampling_rate: float | None,
        n_per_round: int | None,
    ) -> None:
        if (n_participations or 0) > self.budget.n_rounds:
            raise RuntimeError(
                f"The noise was planned for {self.budget.n_rounds} rounds; the run has "
                f"up to {n_participations} per client."
            )

    def _payment(self) -> tuple[PrivacyEvent, dict[str, Any]]:
        budget = self.budget
        event = PureEvent(budget.eps, delta_slack=budget.delta_slack)
        return event, {"eps": budget.eps, "n_rounds": budget.n_rounds}

    def _guarantee(self) -> dict[str, Any]:
        return {
            "eps": self.budget.eps,
            "delta": self.budget.delta_slack,
            "noise_multiplier": self._multiplier,
            "accountant": "pure eps",
            "n_rounds": self.budget.n_rounds,
            "assumptions": self._assumptions,
        }


class LatticeLaplace(PureSum):
    """Discrete Laplace noise on the integer sum, once per round.

    model: For messages.
    budget, assumptions, **account: See `PureSum`.
    """

    _real_scale = _REAL_SCALE

    def __init__(
        self,
        budget: PureBudget,
        *,
        assumptions: tuple[str, ...] = (),
        model: str = "CentralDP",
        **account: Any,
    ) -> None:
        known = (*assumptions, *charged_note(budget.eps))
        super().__init__(budget, assumptions=known, **account)
        self._model = model

    def codec(self, spec: Spec, round_index: int = 0) -> Codec:
        blocks = {name: self._fitting(name, block) for name, block in spec.items()}
        self._note_bounds(blocks)
        budgets = self.budget.of_blocks(blocks, round_index)
        codec = Codec(
            {
                name: BlockCode(block, self._step(block, budgets[name]))
                for name, block in blocks.items()
            }
        )
        for name, code in codec.blocks.items():
            if code.limit < 1:
                raise ValueError(
                    f"eps={budgets[name]:g} for block {name!r} needs a lattice step "
                    f"of {code.step:g}, but a unit may send at most "
                    f"{code.spec.clip:g}, which would be rounded to zero. Pass a "
                    "larger eps."
                )
        scales = self._scales(codec, round_index)
        name = min(scales)
        self._multiplier = sqrt(laplace_variance(scales[name])) / codec.blocks[
            name
        ].limit  # fmt: skip
        return codec

    def release(
        self,
        total: Mapping[str, Integers],
        codec: Codec,
        round_index: int,
        n_clients: int | None = None,
    ) -> Sums:
        self._check_paid(round_index)
        self._check_clients(n_clients, round_index)
        scales = self._scales(codec, round_index)
        parts = self._n_laws(n_clients)
        return self._noisy(
            total,
            codec,
            round_index,
            lambda name, size, source: self._draw(
                size, scales[name], source, n_clients
            ),
            lambda name: sqrt(parts * laplace_variance(scales[name])),
        )

    def describe(self) -> str:
        return f"{type(self).__name__}({self.budget}, {self.unit}, {self._reach})"

    def _fitting(self, name: str, block: BlockSpec) -> BlockSpec:
        """Block with an L1 bound; a single number has the same bound in both norms."""
        if block.clip is not None and block.size == 1:
            return replace(block, norm="l1")
        if block.clip is None or block.norm != "l1":
            raise ValueError(
                f"{self._label} sends block {name!r} of {block.size} numbers without "
                f"an L1 bound, which {self._model} needs. Pass CentralDP or "
                "DistributedDP."
            )
        if block.kind == "count" and block.clip < 1:
            raise ValueError(
                f"Block {name!r} counts whole examples but is clipped to "
                f"{block.clip:g}; pass a bound of at least 1."
            )
        return block

    def _step(self, block: BlockSpec, eps: float) -> float:
        if block.kind == "count":
            return 1.0
        assert block.clip is not None
        noise = self._reach * block.sensitivity / eps
        if not noise < _LARGEST_SCALE:
            raise ValueError(
                f"eps={eps!r} is too small: noise of scale {noise:g} overflows "
                "float64; pass a larger eps."
            )
        finest = max(noise / self._real_scale / 2, block.clip / _REAL_RADIUS)
        return float(2.0 ** ceil(log2(finest)))

    def _scales(self, codec: Codec, round_index: int) -> dict[str, float]:
        """Noise of each block, from the integers that can really be sent."""
        specs = {name: code.spec for name, code in codec.blocks.items()}
        budgets = self.budget.of_blocks(specs, round_index)
        return {
            name: _scale(self._reach * code.limit * code.spec.groups, budgets[name])
            for name, code in codec.blocks.items()
        }

    def _n_laws(self, n_clients: int | None) -> float:
        """Variance in the sum over that of the noise that is paid for."""
        return 1.0

    def _draw(
        self, size: int, scale: float, source: Entropy, n_clients: int | None
    ) -> Integers:
        from skfedcal.privacy.samplers import discrete_laplace

        return discrete_laplace(size, scale, source)


def laplace_variance(scale: float) -> float:
    """Variance of the discrete Laplace law ``exp(-|k| / scale)``."""
    half = 0.5 / scale
    return 0.5 / sinh(half) ** 2 if half < 300 else 0.0


def _scale(reach: int, eps: float) -> float:
    """Least float with ``reach / scale <= eps``."""
    scale = reach / eps
    if not scale < _LARGEST_SCALE:
        raise ValueError(
            f"eps={eps!r} is too small: noise of scale {scale:g} overflows float64; "
            "pass a larger eps."
        )
    while Fraction(reach) > Fraction(eps) * Fraction(scale):
        scale = nextafter(scale, float("inf"))
    return scale
