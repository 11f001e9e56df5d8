"""Privacy models: who is protected from whom, and at what price.

An estimator's `privacy` is one of these objects. Each is turned into a mechanism before
any client is contacted.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Protocol

from skfedcal._params import FrozenParams, as_number
from skfedcal.exceptions import PrivacyWarning
from skfedcal.privacy._mechanisms import ExactSum, LatticeGaussian, SumMechanism

if TYPE_CHECKING:
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._laplace import LatticeLaplace, PureBudget
    from skfedcal.privacy._ledger import PrivacyLedger

Unit = Literal["client", "example"]
_MODEL = ("unit", "private", "validate", "strength", "mechanism")


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """What a run will release, as far as it is public beforehand.

    Parameters
    ----------
    n_units : int
        Clients, or examples, among which one hides.
    n_releases : int
        Noisy sums released in all.
    n_participations : int
        How many of them one client can be part of.
    sampling_rate : float
        Chance of a client to be in a round, for Poisson sampling; else 1.
    n_values : int
        Numbers per release.
    shares : tuple of float, default=()
        Part of the budget that each release gets; empty when all get the same.
    norm : {'l2', 'l1'}, default='l2'
        Norm in which every block is bounded: Gaussian or Laplace noise.
    n_clients : int, default=None
        Clients that may be asked; None if these are the units.
    """

    n_units: int
    n_releases: int
    n_participations: int
    sampling_rate: float
    n_values: int
    shares: tuple[float, ...] = ()
    norm: Literal["l1", "l2"] = "l2"
    n_clients: int | None = None


class PrivacyModel(Protocol):
    """A kind of guarantee; `unit` is what it hides."""

    @property
    def unit(self) -> Unit:
        """What the guarantee is about."""

    @property
    def private(self) -> bool:
        """Whether noise is added."""

    def validate(self) -> None:
        """Raise for a value that cannot be."""

    def strength(self, n_units: int) -> float:
        """Signal that one release may show: L2 bound of a unit over the noise."""

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint"],
        label: str,
    ) -> SumMechanism:
        """Build the mechanism of one run."""


@dataclass(frozen=True, repr=False)
class SecureAggregation(FrozenParams):
    """Exact sums over clients and no noise: what ``eps=None`` means.

    The server sees the sum and no client's contribution by itself. The sum may still
    tell something about a client: this is not differential privacy.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.privacy import SecureAggregation
    >>> FedTempCalibrator(privacy=SecureAggregation()).privacy
    SecureAggregation()
    """

    @property
    def unit(self) -> Unit:
        return "client"

    @property
    def private(self) -> bool:
        return False

    def validate(self) -> None:
        """Nothing can be wrong."""

    def strength(self, n_units: int) -> float:
        """There is no noise."""
        return float("inf")

    def mechanism(self, plan: ReleasePlan, **_: Any) -> ExactSum:
        """Build the mechanism of one run."""
        return ExactSum(n_clients=plan.n_units)


@dataclass(frozen=True, repr=False)
class CentralDP(FrozenParams):
    """Differential privacy with a server that sees exact sums and adds the noise.

    Sums of terms with an L2 bound get Gaussian noise; if all have an L1 bound, as
    counts have, they get Laplace noise, which has a pure eps and needs no `delta` or
    `accountant`.

    Parameters
    ----------
    eps : float
        Budget of the whole fit.
    delta : float, default=None
        Chance that the bound does not hold; None is ``min(1e-5, 1 / (10 K))`` for K
        clients.
    accountant : {'auto', 'gdp', 'pld', 'zcdp'}, default='auto'
        'gdp' is exact for full participation; 'pld' also counts Poisson sampling and
        needs ``pip install "skfedcal[accounting]"``; 'zcdp' is the looser accounting
        of the paper; 'auto' takes the tightest that is valid.
    unit : {'client', 'example'}, default='client'
        What is hidden: all rows of a client, or one row. One person with several rows
        is protected as a whole only by 'client'.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.privacy import CentralDP
    >>> FedTempCalibrator(privacy=CentralDP(1.0, accountant="zcdp")).privacy.eps
    1.0
    """

    eps: float
    delta: float | None = None
    accountant: Literal["auto", "gdp", "pld", "zcdp"] = "auto"
    unit: Unit = "client"

    @property
    def private(self) -> bool:
        return True

    def validate(self) -> None:
        """Raise for a value that cannot be."""
        check_eps(self.eps)
        check_delta(self.delta)
        check_choices(
            accountant=(self.accountant, ("auto", "gdp", "pld", "zcdp")),
            unit=(self.unit, ("client", "example")),
        )

    def strength(self, n_units: int) -> float:
        """L2 bound of a unit over the noise of a single release."""
        from skfedcal.privacy._accounting import calibrate

        # Sampling and the slack of discrete noise change it by little.
        accountant = "zcdp" if self.accountant == "zcdp" else "gdp"
        delta = self._delta(n_units, quiet=True)
        noise = calibrate(float(self.eps), delta, accountant=accountant)
        return 1 / noise.noise_multiplier

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint"] = "split",
        label: str = "fit",
    ) -> LatticeGaussian | LatticeLaplace:
        """Build the mechanism of one run."""
        from skfedcal.privacy._accounting import calibrate, table_slack

        if plan.norm == "l1":
            from skfedcal.privacy._laplace import LatticeLaplace

            slack = table_slack(plan.n_participations * plan.n_values)
            return LatticeLaplace(
                pure_budget(self.eps, plan, slack),
                assumptions=(*no_credit(plan), *rows_known(self.unit)),
                **account(plan, self.unit, entropy, ledger, label),
            )
        # Clients are sampled, not rows: a row comes with the others of its client,
        # which may betray that it took part. No credit for sampling then.
        rate = plan.sampling_rate if self.unit == "client" else 1.0
        noise = calibrate(
            float(self.eps),
            self._delta(plan.n_units),
            n_rounds=plan.n_participations,
            sampling_rate=rate,
            accountant=self.accountant,
            n_values=plan.n_values,
        )
        if self.unit == "example":
            known = rows_known(self.unit)
            noise = replace(noise, assumptions=(*noise.assumptions, *known))
        return LatticeGaussian(
            noise,
            shares=plan.shares,
            split=split,
            **account(plan, self.unit, entropy, ledger, label),
        )

    def _delta(self, n_units: int, quiet: bool = False) -> float:
        return usual_delta(self.delta, n_units, self.unit, quiet=quiet)


def account(
    plan: ReleasePlan,
    unit: Unit,
    entropy: Entropy,
    ledger: PrivacyLedger | None,
    label: str,
) -> dict[str, Any]:
    """Arguments of every mechanism that pays."""
    from skfedcal.privacy._ledger import PrivacyLedger

    return {
        "entropy": entropy,
        "ledger": PrivacyLedger() if ledger is None else ledger,
        "n_units": plan.n_units,
        "n_releases": plan.n_releases,
        "n_values": plan.n_values,
        "unit": unit,
        "label": label,
    }


def pure_budget(eps: float, plan: ReleasePlan, slack: float = 0.0) -> PureBudget:
    """Pure eps of a run; sampling of clients earns no credit."""
    from skfedcal.privacy._laplace import PureBudget

    return PureBudget(float(eps), plan.n_participations, plan.shares, slack)


def no_credit(plan: ReleasePlan) -> tuple[str, ...]:
    if plan.sampling_rate == 1:
        return ()
    return (f"sampling rate {plan.sampling_rate:g} is charged as 1",)


def usual_delta(
    delta: float | None, n_units: int, unit: str, *, quiet: bool = False
) -> float:
    """Delta as given, checked, or one that is small for so many units."""
    if delta is None:
        return min(1e-5, 1 / (10 * n_units))
    if n_units > 1 and delta >= 1 / n_units:
        raise ValueError(
            f"delta={float(delta):g} allows to publish one of the {n_units} "
            f"{unit}s outright; pass a delta far below 1/{n_units}, or None."
        )
    if not quiet and n_units > 1 and delta > 1 / (10 * n_units):
        warnings.warn(
            f"delta={delta:g} is large for {n_units} {unit}s; a value "
            f"below {1 / (10 * n_units):g} is usual.",
            PrivacyWarning,
            stacklevel=4,
        )
    return float(delta)


def check_model(privacy: object) -> None:
    """Raise for what is neither None nor a privacy model."""
    if privacy is None:
        return
    if isinstance(privacy, type) and hasattr(privacy, "mechanism"):
        raise TypeError(
            f"privacy={privacy.__name__} is a class; pass an object of it, such as "
            f"{privacy.__name__}(...)."
        )
    if not all(hasattr(privacy, name) for name in _MODEL):
        raise TypeError(
            f"privacy={privacy!r} is no privacy model; pass None, SecureAggregation(), "
            "CentralDP(eps=...) or another object of skfedcal.privacy."
        )


def check_eps(eps: object) -> None:
    """Raise for what is no budget."""
    # With less the scale of the noise, or its variance, would be no float.
    if not _is_real(eps) or not 1e-100 <= as_number("eps", eps) < float("inf"):
        raise ValueError(
            f"eps={eps!r} is not a privacy budget; pass a finite number > 0 "
            "(from 1e-100 on), or eps=None for no privacy."
        )


def check_delta(delta: object) -> None:
    """Raise for what is neither None nor a chance."""
    if delta is not None and (not _is_real(delta) or not 0 < delta < 1):  # type: ignore[operator]
        raise ValueError(
            f"delta={delta!r} is out of range; pass 0 < delta < 1, or None."
        )


def check_choices(**choices: tuple[object, tuple[str, ...]]) -> None:
    """Raise for a value that is none of those allowed."""
    for name, (value, allowed) in choices.items():
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"{name}={value!r} is unknown; pass one of {allowed}.")


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_count(value: object, least: int) -> bool:
    """Tell whether a value is a whole number from `least` on."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    return whole and value >= least  # type: ignore[operator]


def rows_known(unit: Unit) -> tuple[str, ...]:
    """What is assumed where single examples are hidden."""
    return ("the number of rows is public",) if unit == "example" else ()
