"""Discrete Laplace noise on integer sums whose terms have a bound in L1: pure eps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, fsum, log2, nextafter, sinh, sqrt
from typing import TYPE_CHECKING, Any

from skfedcal.algorithms._base import BlockSpec, NoiseLaw, Sums
from skfedcal.privacy._codec import BlockCode, Codec, Integers
from skfedcal.privacy._events import PureEvent
from skfedcal.privacy._paid import PaidSum, Spec, refuse_plan
from skfedcal.privacy._report import PrivacyReport
from skfedcal.privacy._slack import charged_note

if TYPE_CHECKING:
    from skfedcal.privacy._entropy import Entropy

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

    Parameters
    ----------
    eps : float
        Of the whole run, for one unit.
    n_rounds : int
        Rounds that a unit takes part in; each gets the same part of eps.
    shares : tuple of float, default=()
        Part of eps that each round gets, where these differ.
    delta_slack : float, default=0.0
        What noise from tables costs.
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


class LatticeLaplace(PaidSum):
    """Discrete Laplace noise on the integer sum, once per round.

    Parameters
    ----------
    budget : PureBudget
        Eps and how it is divided.
    assumptions : tuple of str, default=()
        What must hold, for the report.
    model : str, default='CentralDP'
        For messages.
    **account : dict
        See `PaidSum`.
    """

    _trust = "central: the server sees exact sums and adds the noise"
    _adjacency = "zero-out"
    # Bounds of a unit that a neighbouring data set may differ by.
    _reach = 1
    _real_scale = _REAL_SCALE

    def __init__(
        self,
        budget: PureBudget,
        *,
        assumptions: tuple[str, ...] = (),
        model: str = "CentralDP",
        **account: Any,
    ) -> None:
        super().__init__(**account)
        self.budget = budget
        self._assumptions = (*assumptions, *charged_note(budget.eps))
        self._model = model
        self._multiplier = 0.0

    def open(
        self,
        run_id: str,
        rounds_done: int = 0,
        *,
        n_participations: int | None = None,
        sampling_rate: float | None = None,
        n_per_round: int | None = None,
    ) -> None:
        budget = self.budget
        refuse_plan(budget.n_rounds, n_participations)
        event = PureEvent(budget.eps, delta_slack=budget.delta_slack)
        details = {"eps": budget.eps, "n_rounds": budget.n_rounds}
        self._pay(event, run_id, rounds_done, details)

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
                    f"eps={budgets[name]:g} for {name!r} needs noise of whole steps of "
                    f"{code.step:g}, and a unit may send {code.spec.clip:g} only: "
                    "nothing would be left of it. Pass a larger eps."
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
        self._use_round(codec, round_index)
        values, noise, laws = {}, {}, {}
        for i, (name, code) in enumerate(sorted(codec.blocks.items())):
            assert code.step is not None
            source = self._entropy.child(round_index, i)
            drawn = self._draw(code.spec.size, scales[name], source, n_clients)
            values[name] = code.decode(total[name] + drawn)
            parts = self._n_laws(n_clients)
            noise[name] = code.step * sqrt(parts * laplace_variance(scales[name]))
            laws[name] = NoiseLaw("additive", noise[name] ** 2)
        return Sums(values, noise, laws)

    def report(self) -> PrivacyReport:
        budget = self.budget
        return PrivacyReport(
            eps=budget.eps,
            delta=budget.delta_slack,
            noise_multiplier=self._multiplier,
            clip=dict(self._clips),
            unit=self.unit,
            adjacency=self._adjacency,
            trust=self._trust,
            secure=self.secure,
            seeded=self.seeded,
            accountant="pure eps",
            n_rounds=budget.n_rounds,
            n_clients=self._n_units,
            assumptions=self._assumptions,
            ledger_ids=self._ledger_ids,
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
                f"an L1 bound, which {self._model} cannot hide. Pass CentralDP or "
                "DistributedDP."
            )
        if block.kind == "count" and block.clip < 1:
            raise ValueError(
                f"Block {name!r} counts whole examples but is clipped to "
                f"{block.clip:g}; pass a bound of 1 at least."
            )
        return block

    def _step(self, block: BlockSpec, eps: float) -> float:
        if block.kind == "count":
            return 1.0
        assert block.clip is not None
        noise = self._reach * block.sensitivity / eps
        if not noise < _LARGEST_SCALE:
            raise ValueError(f"eps={eps!r} is too small for any noise; pass a larger.")
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
        from skfedcal.privacy._samplers import discrete_laplace

        return discrete_laplace(size, scale, source)

    def _check_clients(self, n_clients: int | None, round_index: int) -> None:
        """Refuse a sum with too little noise."""


def laplace_variance(scale: float) -> float:
    """Variance of the discrete Laplace law ``exp(-|k| / scale)``."""
    half = 0.5 / scale
    return 0.5 / sinh(half) ** 2 if half < 300 else 0.0


def _scale(reach: int, eps: float) -> float:
    """Least float with ``reach / scale <= eps``."""
    scale = reach / eps
    if not scale < _LARGEST_SCALE:
        raise ValueError(
            f"eps={eps!r} asks for noise of scale {scale:g}, which no number holds; "
            "pass a larger eps."
        )
    while Fraction(reach) > Fraction(eps) * Fraction(scale):
        scale = nextafter(scale, float("inf"))
    return scale
