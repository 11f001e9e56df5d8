"""Privacy models: unit of privacy, trust model and budget.

An estimator's `privacy` is one of these objects. Each is turned into a mechanism before
any client is contacted.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from math import sinh, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
from sklearn.utils import check_random_state

from skfedcal._params import (
    FrozenParams,
    as_number,
    check_choice,
    check_integer,
    check_number,
)
from skfedcal._sklearn_compat import CountsClones, Interval, StrOptions
from skfedcal.exceptions import PrivacyWarning, SimulatedPrivacyWarning
from skfedcal.privacy.entropy import Entropy, OSEntropy, SeededEntropy
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.mechanisms import ExactSum, LatticeGaussian, SumMechanism

if TYPE_CHECKING:
    from skfedcal._typing import Seed
    from skfedcal.privacy.client_mechanisms import (
        DistributedGaussian,
        DistributedLaplace,
        LocalSum,
        SourceLaplace,
    )
    from skfedcal.privacy.entropy import Entropy
    from skfedcal.privacy.ledger import PrivacyLedger
    from skfedcal.privacy.mechanisms import LatticeLaplace, PureBudget
    from skfedcal.privacy.randomizers import Kind

Unit = Literal["client", "example"]
_MODEL = ("unit", "private", "validate", "strength", "mechanism")


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """What a run will release, as far as it is public beforehand.

    n_units: Number of clients, or of examples.
    n_releases: Noisy sums released in all.
    n_participations: How many of them one client can be part of.
    sampling_rate: Probability that a client takes part in a round, for Poisson
        sampling; else 1.
    n_values: Numbers per release.
    shares: Part of the budget that each release gets; empty when all get the same.
    norm: Norm in which every block is bounded: Gaussian or Laplace noise.
    n_clients: Clients that may be asked; None if these are the units.
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
    """A trust model with its budget; `unit` is the unit of privacy."""

    @property
    def unit(self) -> Unit:
        """Unit of privacy."""

    @property
    def private(self) -> bool:
        """Whether noise is added."""

    def validate(self) -> None:
        """Raise ValueError for an invalid parameter."""

    def strength(self, n_units: int) -> float:
        """Signal-to-noise ratio of one unit in one release: L2 bound over noise."""

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint", "each"],
        label: str,
    ) -> SumMechanism:
        """Build the mechanism of one run; raise ValueError for an invalid parameter."""


@dataclass(frozen=True, repr=False)
class SecureAggregation(FrozenParams):
    """Exact sums over clients and no noise: what ``eps=None`` means.

    Sites mask their answers, so that the server sees the sum and no answer by itself.
    Where all clients are rows of one process, nothing is masked: whoever runs it has
    the rows. The sum may reveal information about a client: this is not differential
    privacy.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.privacy import SecureAggregation
    >>> FedTempCalibrator(privacy=SecureAggregation()).privacy
    SecureAggregation()
    """

    unit: ClassVar[Unit] = "client"
    private: ClassVar[bool] = False

    def validate(self) -> None:
        """Do nothing: there are no parameters."""

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
        The delta of (eps, delta)-DP; None is ``min(1e-5, 1 / (10 K))`` for K clients.
    accountant : {'auto', 'gdp', 'pld', 'zcdp'}, default='auto'
        'gdp' is exact for full participation; 'pld' includes amplification by Poisson
        sampling and needs ``pip install "skfedcal[accounting]"``; 'zcdp' is the looser
        accounting of the paper; 'auto' takes the tightest that is valid.
    unit : {'client', 'example'}, default='client'
        Unit of privacy: all rows of a client, or one row. One person with several rows
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

    private: ClassVar[bool] = True

    def validate(self) -> None:
        """Raise ValueError for an invalid parameter."""
        check_eps(self.eps)
        check_delta(self.delta)
        check_choice("accountant", self.accountant, ("auto", "gdp", "pld", "zcdp"))
        check_choice("unit", self.unit, ("client", "example"))

    def strength(self, n_units: int) -> float:
        """L2 bound of a unit over the noise of a single release."""
        from skfedcal.privacy.accounting import calibrate_noise

        # Sampling and the slack of discrete noise change it by little.
        accountant = "zcdp" if self.accountant == "zcdp" else "gdp"
        delta = self._delta(n_units, quiet=True)
        noise = calibrate_noise(float(self.eps), delta, accountant=accountant)
        return 1 / noise.noise_multiplier

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint", "each"] = "split",
        label: str = "fit",
    ) -> LatticeGaussian | LatticeLaplace:
        """Build the mechanism of one run."""
        from skfedcal.privacy.accounting import calibrate_noise
        from skfedcal.privacy.samplers import table_slack

        self.validate()
        if plan.norm == "l1":
            from skfedcal.privacy.mechanisms import LatticeLaplace

            slack = table_slack(plan.n_participations * plan.n_values)
            return LatticeLaplace(
                pure_budget(self.eps, plan, slack),
                assumptions=(*no_credit(plan), *rows_known(self.unit)),
                **account(plan, self.unit, entropy, ledger, label),
            )
        # Clients are sampled, not rows: a row comes with the others of its client,
        # which may betray that it took part. No credit for sampling then.
        rate = plan.sampling_rate if self.unit == "client" else 1.0
        noise = calibrate_noise(
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
    from skfedcal.privacy.ledger import PrivacyLedger

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
    from skfedcal.privacy.mechanisms import PureBudget

    return PureBudget(float(eps), plan.n_participations, plan.shares, slack)


def no_credit(plan: ReleasePlan) -> tuple[str, ...]:
    """Return the note that sampling of clients is not credited."""
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
            f"delta={float(delta):g} is too large: a mechanism that publishes one of "
            f"the {n_units} {unit}s in full would satisfy it; pass a delta far below "
            f"1/{n_units}, or None."
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
    """Raise TypeError unless `privacy` is None or a privacy model."""
    if privacy is None:
        return
    if isinstance(privacy, type) and hasattr(privacy, "mechanism"):
        raise TypeError(
            f"privacy={privacy.__name__} is a class; pass an object of it, such as "
            f"{privacy.__name__}(...)."
        )
    if not all(hasattr(privacy, name) for name in _MODEL):
        raise TypeError(
            f"privacy={privacy!r} is not a privacy model; pass None, "
            "SecureAggregation(), CentralDP(eps=...) or another object of "
            "skfedcal.privacy."
        )


def check_eps(eps: object) -> None:
    """Raise ValueError unless `eps` is a valid budget."""
    # With less the scale of the noise, or its variance, would be no float.
    real = isinstance(eps, Real) and not isinstance(eps, bool)
    if not real or not 1e-100 <= as_number("eps", eps) < float("inf"):
        raise ValueError(
            f"eps={eps!r} is not a privacy budget; pass a finite number > 0 "
            "(from 1e-100 on), or eps=None for no privacy."
        )


def check_delta(delta: float | None) -> None:
    """Raise ValueError unless `delta` is None or between 0 and 1."""
    if delta is not None:
        check_number("delta", delta, 0, 1, "neither")


def rows_known(unit: Unit) -> tuple[str, ...]:
    """Assumption where the unit of privacy is an example."""
    return ("the number of rows is public",) if unit == "example" else ()


Mode = Literal["fast", "faithful"]
_MODES = ("fast", "faithful")
NO_ROWS_KNOWN = "which clients have no rows is public"
_ADJACENCIES = ("zero-out", "add-remove", "replace")


@dataclass(frozen=True, repr=False)
class DistributedDP(FrozenParams):
    """Differential privacy with noise that clients add to what the server sees.

    Every client adds a share of the noise before secure aggregation. If all that is
    sent has an L1 bound, as counts have, it gets Polya shares, which add up to discrete
    Laplace noise (pure eps); sums with an L2 bound get discrete Gaussian shares.

    Parameters
    ----------
    eps : float
        Budget of the whole fit.
    delta : float, default=None
        The delta of (eps, delta)-DP, for Gaussian noise; None is
        ``min(1e-5, 1 / (10 K))`` for K clients.
    n_min : int, default=None
        Number of clients that are guaranteed to be in every sum. The noise is
        calibrated to the shares of the honest ones among them; further shares add to
        it. A round with fewer answers is refused. None is all clients: no client may
        drop out.
    adjacency : {'zero-out', 'replace'}, default='zero-out'
        Neighbouring relation: one unit sends zeros instead, or anything else, which
        doubles the noise. The number of units is public in both. 'add-remove' is
        refused: that number is published, so that a claim to hide it would be false.
    unit : {'client', 'example'}, default='client'
        Unit of privacy: all rows of a client, or one row.
    mode : {'fast', 'faithful'}, default='fast'
        'faithful' draws every client's share. 'fast' draws their sum, which has the
        same distribution, but the server then holds exact sums.
    max_colluders : int, default=0
        Clients that may reveal their shares to the server: the noise is calibrated to
        ``n_min - max_colluders`` shares.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.privacy import DistributedDP
    >>> FedTempCalibrator(privacy=DistributedDP(1.0, n_min=90)).privacy.n_min
    90
    """

    eps: float
    delta: float | None = None
    n_min: int | None = None
    adjacency: Literal["zero-out", "replace"] = "zero-out"
    unit: Unit = "client"
    mode: Mode = "fast"
    max_colluders: int = 0

    private: ClassVar[bool] = True

    def validate(self) -> None:
        """Raise ValueError for an invalid parameter."""
        from skfedcal.privacy.client_mechanisms import refuse_absence

        check_eps(self.eps)
        check_delta(self.delta)
        check_choice("adjacency", self.adjacency, _ADJACENCIES)
        check_choice("unit", self.unit, ("client", "example"))
        check_choice("mode", self.mode, _MODES)
        refuse_absence(self.adjacency, self.unit)
        check_integer("n_min", 1 if self.n_min is None else self.n_min, 1)
        check_integer("max_colluders", self.max_colluders, 0)

    def strength(self, n_units: int) -> float:
        """L2 bound of a unit over the noise of a single release."""
        from skfedcal.privacy.accounting import calibrate_noise

        delta = usual_delta(self.delta, n_units, self.unit, quiet=True)
        reach = 2 if self.adjacency == "replace" else 1
        return 1 / (reach * calibrate_noise(float(self.eps), delta).noise_multiplier)

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint", "each"] = "split",
        label: str = "fit",
    ) -> DistributedGaussian | DistributedLaplace:
        """Build the mechanism of one run."""
        self.validate()
        n_clients = self._n_clients(plan)
        n_min = n_clients if self.n_min is None else int(self.n_min)
        n_shares = self._n_shares(n_min)
        common = account(plan, self.unit, entropy, ledger, label)
        common |= {"n_min": n_min, "n_shares": n_shares}
        common |= {"mode": self.mode, "adjacency": self.adjacency}
        if plan.norm == "l1":
            return self._laplace(plan, n_shares, n_clients, common)
        from skfedcal.privacy.accounting import calibrate_noise
        from skfedcal.privacy.client_mechanisms import DistributedGaussian

        noise = calibrate_noise(
            float(self.eps),
            usual_delta(self.delta, plan.n_units, self.unit),
            n_rounds=plan.n_participations,
            accountant="gdp",
            n_values=plan.n_values,
            n_shares=n_shares,
        )
        notes = (*noise.assumptions, *self._assumed(plan, n_min))
        return DistributedGaussian(
            replace(noise, assumptions=notes),
            shares=plan.shares,
            split=split,
            **common,
        )

    def _laplace(
        self, plan: ReleasePlan, n_shares: int, n_clients: int, common: dict[str, Any]
    ) -> DistributedLaplace:
        from skfedcal.privacy.client_mechanisms import DistributedLaplace
        from skfedcal.privacy.polya import polya_error
        from skfedcal.privacy.samplers import table_slack, tv_slack

        n_values = plan.n_participations * plan.n_values
        if self.mode == "fast":
            slack = table_slack(n_values)
        else:
            error = polya_error(n_values, n_shares * plan.n_participations)
            slack = tv_slack(error)
        return DistributedLaplace(
            pure_budget(self.eps, plan, slack),
            n_clients=n_clients,
            assumptions=self._assumed(plan, common["n_min"]),
            **common,
        )

    def _n_clients(self, plan: ReleasePlan) -> int:
        n_clients = plan.n_clients
        if n_clients is None and self.unit == "client":
            n_clients = plan.n_units
        if self.n_min is None and n_clients is None:
            raise ValueError(
                "DistributedDP(unit='example') needs n_min: the number of clients is "
                "not known here."
            )
        if n_clients is None:
            return plan.n_units
        if self.n_min is not None and self.n_min > n_clients:
            raise ValueError(
                f"n_min={self.n_min}, but there are {n_clients} clients. Pass a "
                "number of clients that are guaranteed to answer, or None for all of "
                "them."
            )
        return n_clients

    def _n_shares(self, n_min: int) -> int:
        """Shares that make up the noise: those of honest clients."""
        honest = n_min - int(self.max_colluders)
        if honest < 1:
            raise ValueError(
                f"max_colluders={self.max_colluders} of {n_min} clients leaves no "
                "honest client to add noise; pass fewer colluders, or a larger n_min."
            )
        return honest

    def _assumed(self, plan: ReleasePlan, n_min: int) -> tuple[str, ...]:
        from skfedcal.privacy.client_mechanisms import survivors_assumed

        known = survivors_assumed(n_min, self._n_shares(n_min))
        return (*known, *rows_known(self.unit), *no_credit(plan))


@dataclass(frozen=True, repr=False)
class LocalDP(FrozenParams):
    """Local differential privacy: every client randomises its own report.

    Only for methods that count one example per client. Rounds, and the blocks of a
    round, share eps.

    Parameters
    ----------
    eps : float
        Budget of a client over the whole fit.
    oracle : {'auto', 'grr', 'subset', 'oue', 'olh', 'rr'}, default='auto'
        How a cell is reported: generalised randomised response, subset selection,
        optimised unary encoding, optimised local hashing, or, for a single bit,
        randomised response. 'auto' takes the least variance.
    mode : {'fast', 'faithful'}, default='fast'
        'faithful' draws every client's report. 'fast' draws the sum of the reports,
        which has the same distribution: a simulation that protects no client.

    Examples
    --------
    >>> from skfedcal.privacy import LocalDP
    >>> LocalDP(2.0, oracle="oue")
    LocalDP(eps=2.0, oracle='oue')
    """

    eps: float
    oracle: Literal["auto"] | Kind = "auto"
    mode: Mode = "fast"

    unit: ClassVar[Unit] = "client"
    private: ClassVar[bool] = True

    def validate(self) -> None:
        """Raise ValueError for an invalid parameter."""
        from skfedcal.privacy.randomizers import ORACLES

        check_eps(self.eps)
        check_choice("oracle", self.oracle, ("auto", *ORACLES))
        check_choice("mode", self.mode, _MODES)

    def strength(self, n_units: int) -> float:
        """Bound of a unit over the noise of a single release by unary encoding."""
        return sinh(min(self.eps, 700.0) / 2) / sqrt(max(n_units, 1))

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint", "each"] = "split",
        label: str = "fit",
    ) -> LocalSum:
        """Build the mechanism of one run."""
        from skfedcal.privacy.client_mechanisms import LocalSum

        self.validate()
        return LocalSum(
            pure_budget(self.eps, plan),
            oracle=self.oracle,
            mode=self.mode,
            # A histogram leaves out clients that have nothing to report.
            assumptions=(NO_ROWS_KNOWN, *no_credit(plan)),
            **account(plan, self.unit, entropy, ledger, label),
        )


@dataclass(frozen=True, repr=False)
class SourceDP(FrozenParams):
    """Differential privacy of the examples of each source, whatever other parties do.

    Every client is a source, such as a hospital, that adds discrete Laplace noise to
    its own sum: the guarantee for its examples needs no other client and no server. An
    example that two sources hold is protected with twice the eps.

    Parameters
    ----------
    eps : float
        Budget of an example over the whole fit.
    mode : {'fast', 'faithful'}, default='fast'
        'faithful' draws every source's noise. 'fast' draws its sum, which has the same
        law: a simulation.

    Examples
    --------
    >>> from skfedcal.privacy import SourceDP
    >>> SourceDP(1.0).unit
    'example'
    """

    eps: float
    mode: Mode = "fast"

    unit: ClassVar[Unit] = "example"
    private: ClassVar[bool] = True

    def validate(self) -> None:
        """Raise ValueError for an invalid parameter."""
        check_eps(self.eps)
        check_choice("mode", self.mode, _MODES)

    def strength(self, n_units: int) -> float:
        """Bound of an example over the noise of one source in a single release."""
        return float(self.eps) / sqrt(2)

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint", "each"] = "split",
        label: str = "fit",
    ) -> SourceLaplace:
        """Build the mechanism of one run."""
        from skfedcal.privacy.client_mechanisms import SourceLaplace
        from skfedcal.privacy.samplers import table_slack

        self.validate()
        slack = table_slack(plan.n_participations * plan.n_values)
        return SourceLaplace(
            pure_budget(self.eps, plan, slack),
            mode=self.mode,
            assumptions=(
                "no two sources hold the same example",
                *rows_known(self.unit),
                *no_credit(plan),
            ),
            **account(plan, self.unit, entropy, ledger, label),
        )


# Beyond these a step of the lattice is no longer a normal number.
CLIP_RANGE = Interval(Real, 1e-50, 1e50, closed="both")


class PrivacyMixin(CountsClones):
    """Adds `eps`, `delta`, `clip`, `privacy`, `ledger` and `random_state`."""

    eps: float | None
    delta: float | None
    privacy: PrivacyModel | None
    ledger: PrivacyLedger | None
    random_state: Seed

    _privacy_constraints = {
        "eps": [Interval(Real, 0, None, closed="neither"), None],
        "delta": [Interval(Real, 0, 1, closed="neither"), None],
        "clip": [CLIP_RANGE, StrOptions({"auto"})],
        "privacy": "no_validation",  # by `_privacy_model`
        "ledger": [PrivacyLedger, None],
        "random_state": ["random_state"],
    }

    def set_params(self, **params: object) -> Self:
        """Set parameters; ``privacy__eps`` and the like replace the frozen object.

        Parameters
        ----------
        **params : dict
            Parameters by name.

        Returns
        -------
        self : object
            The estimator.
        """
        plain = {k: v for k, v in params.items() if "__" not in k}
        super().set_params(**plain)  # type: ignore[misc]
        nested: dict[str, Any] = {}
        for key, value in params.items():
            name, _, inner = key.partition("__")
            if not inner:
                continue
            holder = getattr(self, name, None)
            if isinstance(holder, FrozenParams):
                setattr(self, name, holder.set_params(**{inner: value}))
            else:
                nested[key] = value
        super().set_params(**nested)  # type: ignore[misc]
        return self

    def _privacy_model(self) -> PrivacyModel:
        """Read `eps`, `delta` and `privacy`, checked."""
        model = self.privacy
        if model is not None:
            check_model(model)
            if self.eps is not None or self.delta is not None:
                raise ValueError(
                    f"Both eps={self.eps!r}, delta={self.delta!r} and privacy={model!r}"
                    " are given; put the budget into the privacy object."
                )
        elif self.eps is None or as_number("eps", self.eps) == np.inf:
            if self.delta is not None:
                raise ValueError(
                    f"delta={self.delta!r} is given without eps, so nothing would be "
                    "private; set eps, or leave delta out."
                )
            model = SecureAggregation()
        else:
            model = CentralDP(eps=self.eps, delta=self.delta)
        model.validate()
        return model

    def _entropy(self, model: PrivacyModel) -> Entropy:
        """Source of noise and sampling; warn if the noise could be repeated."""
        return make_entropy(self.random_state, private=model.private, stacklevel=5)


def make_entropy(random_state: Seed, *, private: bool, stacklevel: int) -> Entropy:
    """Source of noise and sampling; warn if the noise could be repeated."""
    if random_state is None:
        return OSEntropy()
    if private:
        warnings.warn(
            f"random_state={random_state!r} makes the noise repeatable: this "
            "fit is a simulation and guarantees nothing. Use random_state=None for "
            "a release.",
            SimulatedPrivacyWarning,
            stacklevel=stacklevel,
        )
    if isinstance(random_state, (int, np.integer)):
        return SeededEntropy(int(random_state))
    return SeededEntropy(int(check_random_state(random_state).randint(2**31)))
