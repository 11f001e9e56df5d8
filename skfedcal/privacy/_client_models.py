"""Privacy models in which clients do not trust the server with exact sums."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sinh, sqrt
from typing import TYPE_CHECKING, Any, Literal

from skfedcal._params import FrozenParams
from skfedcal.privacy._models import (
    ReleasePlan,
    Unit,
    account,
    check_choices,
    check_delta,
    check_eps,
    is_count,
    no_credit,
    pure_budget,
    rows_known,
    usual_delta,
)

if TYPE_CHECKING:
    from skfedcal.privacy._distributed import (
        DistributedGaussian,
        DistributedLaplace,
        SourceLaplace,
    )
    from skfedcal.privacy._entropy import Entropy
    from skfedcal.privacy._ledger import PrivacyLedger
    from skfedcal.privacy._local import LocalSum
    from skfedcal.privacy._oracles import Kind

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
        Chance that the bound does not hold, for Gaussian noise; None is
        ``min(1e-5, 1 / (10 K))`` for K clients.
    n_min : int, default=None
        Clients that are sure to be in every sum: the shares of the honest ones among
        them alone make up the noise, and further ones add to it. A round that fewer
        clients answer is refused. None is all clients: no client may drop out.
    adjacency : {'zero-out', 'replace'}, default='zero-out'
        What a neighbouring data set does with a unit: send zeros, or anything else,
        which doubles the noise. The number of units is public in both. 'add-remove' is
        refused: that number is published, so that a claim to hide it would be false.
    unit : {'client', 'example'}, default='client'
        What is hidden: all rows of a client, or one row.
    mode : {'fast', 'faithful'}, default='fast'
        'faithful' draws every client's share. 'fast' draws their sum, which has the
        same law, but whoever runs it holds exact sums.
    max_colluders : int, default=0
        Clients that may tell their shares: the noise is made of ``n_min`` less these.

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

    @property
    def private(self) -> bool:
        return True

    def validate(self) -> None:
        """Raise for a value that cannot be."""
        from skfedcal.privacy._distributed import refuse_absence

        check_eps(self.eps)
        check_delta(self.delta)
        check_choices(
            adjacency=(self.adjacency, _ADJACENCIES),
            unit=(self.unit, ("client", "example")),
            mode=(self.mode, _MODES),
        )
        refuse_absence(self.adjacency, self.unit)
        for name, value, least in (
            ("n_min", 1 if self.n_min is None else self.n_min, 1),
            ("max_colluders", self.max_colluders, 0),
        ):
            if not is_count(value, least):
                raise ValueError(
                    f"{name}={value!r} is no number of clients; pass a whole number "
                    f"from {least} on."
                )

    def strength(self, n_units: int) -> float:
        """L2 bound of a unit over the noise of a single release."""
        from skfedcal.privacy._accounting import calibrate

        delta = usual_delta(self.delta, n_units, self.unit, quiet=True)
        reach = 2 if self.adjacency == "replace" else 1
        return 1 / (reach * calibrate(float(self.eps), delta).noise_multiplier)

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint"] = "split",
        label: str = "fit",
    ) -> DistributedGaussian | DistributedLaplace:
        """Build the mechanism of one run."""
        n_clients = self._n_clients(plan)
        n_min = n_clients if self.n_min is None else int(self.n_min)
        n_shares = self._n_shares(n_min)
        common = account(plan, self.unit, entropy, ledger, label)
        common |= {"n_min": n_min, "n_shares": n_shares}
        common |= {"mode": self.mode, "adjacency": self.adjacency}
        if plan.norm == "l1":
            return self._laplace(plan, n_shares, n_clients, common)
        from skfedcal.privacy._accounting import calibrate
        from skfedcal.privacy._distributed import DistributedGaussian

        noise = calibrate(
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
        from skfedcal.privacy._accounting import table_slack
        from skfedcal.privacy._conversions import tv_slack
        from skfedcal.privacy._distributed import DistributedLaplace
        from skfedcal.privacy._polya import polya_error

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
            raise ValueError("DistributedDP(unit='example') needs n_min here.")
        if n_clients is None:
            return plan.n_units
        if self.n_min is not None and self.n_min > n_clients:
            raise ValueError(
                f"n_min={self.n_min}, but there are {n_clients} clients. Pass a number "
                "of clients that are sure to answer, or None for all of them."
            )
        return n_clients

    def _n_shares(self, n_min: int) -> int:
        """Shares that make up the noise: those of honest clients."""
        honest = n_min - int(self.max_colluders)
        if honest < 1:
            raise ValueError(
                f"max_colluders={self.max_colluders} of {n_min} clients leave nobody "
                "to add noise; pass fewer, or a larger n_min."
            )
        return honest

    def _assumed(self, plan: ReleasePlan, n_min: int) -> tuple[str, ...]:
        from skfedcal.privacy._distributed import survivors_assumed

        known = survivors_assumed(n_min, self._n_shares(n_min))
        return (*known, *rows_known(self.unit), *no_credit(plan))


@dataclass(frozen=True, repr=False)
class LocalDP(FrozenParams):
    """Local differential privacy: a client randomises its report and trusts nobody.

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
        which has the same law: a simulation that protects nobody.

    Examples
    --------
    >>> from skfedcal.privacy import LocalDP
    >>> LocalDP(2.0, oracle="oue")
    LocalDP(eps=2.0, oracle='oue')
    """

    eps: float
    oracle: Literal["auto"] | Kind = "auto"
    mode: Mode = "fast"

    @property
    def unit(self) -> Unit:
        return "client"

    @property
    def private(self) -> bool:
        return True

    def validate(self) -> None:
        """Raise for a value that cannot be."""
        from skfedcal.privacy._oracles import ORACLES

        check_eps(self.eps)
        check_choices(
            oracle=(self.oracle, ("auto", *ORACLES)), mode=(self.mode, _MODES)
        )

    def strength(self, n_units: int) -> float:
        """Bound of a unit over the noise of a single release by unary encoding."""
        return sinh(min(self.eps, 700.0) / 2) / sqrt(max(n_units, 1))

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint"] = "split",
        label: str = "fit",
    ) -> LocalSum:
        """Build the mechanism of one run."""
        from skfedcal.privacy._local import LocalSum

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
    """Differential privacy of the examples of each source, whatever others do.

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

    @property
    def unit(self) -> Unit:
        return "example"

    @property
    def private(self) -> bool:
        return True

    def validate(self) -> None:
        """Raise for a value that cannot be."""
        check_eps(self.eps)
        check_choices(mode=(self.mode, _MODES))

    def strength(self, n_units: int) -> float:
        """Bound of an example over the noise of one source in a single release."""
        return float(self.eps) / sqrt(2)

    def mechanism(
        self,
        plan: ReleasePlan,
        *,
        entropy: Entropy,
        ledger: PrivacyLedger | None,
        split: Literal["split", "joint"] = "split",
        label: str = "fit",
    ) -> SourceLaplace:
        """Build the mechanism of one run."""
        from skfedcal.privacy._accounting import table_slack
        from skfedcal.privacy._distributed import SourceLaplace

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
