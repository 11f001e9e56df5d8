"""Records of privacy: what a release costs, and what a fit guarantees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from math import inf
from typing import Any, ClassVar

from skfedcal._params import check_integer, check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slack:
    """Difference between the noise that is drawn and the noise that is accounted.

    For every event the chances under the two laws, one way or the other, agree up to a
    factor ``exp(eps_slack / 2)`` and an addition that `delta_slack` pays for.
    """

    kind: ClassVar[str]

    eps_slack: float = 0.0
    delta_slack: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values, for JSON."""
        return {"kind": self.kind, **asdict(self)}

    def _check(self, *names: str) -> None:
        for name in (*names, "eps_slack", "delta_slack"):
            check_number(name, getattr(self, name), 0, math.inf, "left")


@dataclass(frozen=True, slots=True)
class GaussianEvent(_Slack):
    """Gaussian noise: one or more rounds that are mu-GDP together.

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation, root of the sum of squares over rounds.
    eps_slack, delta_slack : float, default=0
        Difference between the noise that is drawn and the distribution accounted for.

    Examples
    --------
    >>> from skfedcal.privacy import GaussianEvent, compose_epsilon
    >>> round(compose_epsilon([GaussianEvent(0.2), GaussianEvent(0.2)], delta=1e-5), 3)
    1.061
    """

    kind: ClassVar[str] = "gaussian"

    mu: float

    def __post_init__(self) -> None:
        self._check("mu")


@dataclass(frozen=True, slots=True)
class PureEvent(_Slack):
    """A release with pure eps, such as Laplace noise or randomised response.

    Parameters
    ----------
    eps : float
        Bound on the privacy loss: largest log ratio of the probabilities of any output.
    eps_slack, delta_slack : float, default=0
        Difference between the noise that is drawn and the distribution accounted for.

    Examples
    --------
    >>> from skfedcal.privacy import PureEvent, compose_epsilon
    >>> compose_epsilon([PureEvent(1.0)], delta=1e-5)
    1.0
    """

    kind: ClassVar[str] = "pure"

    eps: float

    def __post_init__(self) -> None:
        self._check("eps")


@dataclass(frozen=True, slots=True)
class SampledGaussianEvent(_Slack):
    """Rounds of Gaussian noise, each with a secret Poisson sample of the clients.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation over sensitivity of one round.
    sampling_rate : float
        Probability that a client takes part in a round, independent of all others.
    n_rounds : int, default=1
        Number of rounds.
    eps_slack, delta_slack : float, default=0
        Difference between the noise that is drawn and the distribution accounted for.

    Examples
    --------
    >>> from skfedcal.privacy import SampledGaussianEvent
    >>> SampledGaussianEvent(4.0, sampling_rate=0.1, n_rounds=12).to_dict()["kind"]
    'sampled_gaussian'
    """

    kind: ClassVar[str] = "sampled_gaussian"

    noise_multiplier: float
    sampling_rate: float
    n_rounds: int = 1

    def __post_init__(self) -> None:
        self._check("noise_multiplier")
        if self.noise_multiplier == 0:
            raise ValueError("noise_multiplier=0 means no noise; pass a number > 0.")
        check_number("sampling_rate", self.sampling_rate, 0, 1, "right")
        check_integer("n_rounds", self.n_rounds, 1)


PrivacyEvent = GaussianEvent | PureEvent | SampledGaussianEvent

_KINDS: dict[str, type[PrivacyEvent]] = {
    cls.kind: cls for cls in (GaussianEvent, PureEvent, SampledGaussianEvent)
}


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """Noise that is calibrated to a budget, fixed before the first round.

    Parameters
    ----------
    eps, delta : float
        The guarantee of all rounds together, slack included.
    noise_multiplier : float
        Standard deviation over L2 sensitivity of one round.
    n_rounds : int
        Number of rounds.
    sampling_rate : float
        Probability that a client takes part in a round.
    accountant : {"gdp", "zcdp", "pld"}
        Accountant that the noise was calibrated with.
    mu : float or None
        All rounds are mu-GDP together; None if sampling was credited.
    eps_slack, delta_slack : float
        Part of the budget for the difference between discrete and Gaussian noise.
    assumptions : tuple of str
        Assumptions of the guarantee, as text.

    Examples
    --------
    >>> from skfedcal.privacy import calibrate_noise
    >>> round(calibrate_noise(1.0, 1e-5, n_rounds=5).noise_multiplier, 3)
    8.342
    """

    eps: float
    delta: float
    noise_multiplier: float
    n_rounds: int
    sampling_rate: float
    accountant: str
    mu: float | None
    eps_slack: float
    delta_slack: float
    assumptions: tuple[str, ...]

    def to_event(self) -> GaussianEvent | SampledGaussianEvent:
        """Return the record of all rounds, for a ledger."""
        if self.mu is not None:
            return GaussianEvent(
                self.mu, eps_slack=self.eps_slack, delta_slack=self.delta_slack
            )
        return SampledGaussianEvent(
            self.noise_multiplier,
            self.sampling_rate,
            self.n_rounds,
            eps_slack=self.eps_slack,
            delta_slack=self.delta_slack,
        )


def event_from_dict(record: Mapping[str, Any]) -> PrivacyEvent:
    """Restore an event from the output of its `to_dict`.

    record: Plain values with a `kind`.
    Raises ValueError: If the kind is unknown or the values do not fit it: an event that
        is not understood cannot be accounted for.
    """
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"Unknown kind of privacy event {kind!r}; known are {sorted(_KINDS)}. "
            "The record may come from a newer version of skfedcal."
        )
    cls = _KINDS[kind]
    values = {name: value for name, value in record.items() if name != "kind"}
    expected = {field.name for field in fields(cls)}
    if set(values) != expected:
        raise ValueError(
            f"A {kind!r} privacy event has the fields {sorted(expected)}, "
            f"got {sorted(values)}."
        )
    return cls(**values)


@dataclass(frozen=True, slots=True, repr=False)
class PrivacyReport:
    """The guarantee of a finished fit.

    Attributes
    ----------
    eps, delta : float
        Differential privacy of everything the fit released; ``eps=inf``: none.
    mu : float or None
        The same as Gaussian differential privacy, where that is exact.
    noise_multiplier : float
        Standard deviation of the noise over the sensitivity, per round.
    clip : dict
        Bound on each block that a client sends, in the first round.
    unit : {'client', 'example'}
        Unit of privacy: what one neighbouring data set changes.
    adjacency : str
        Neighbouring relation.
    trust : str
        Trust model: who adds the noise and what the server sees.
    secure : bool
        Whether noise came from the operating system and was drawn by the parties that
        the trust model names. False: the fit is a simulation.
    accountant : str
        Accountant that composed the rounds.
    n_rounds, n_clients : int
        Rounds paid for, and number of units (clients, or examples).
    assumptions : tuple of str
        Assumptions of the guarantee.
    ledger_ids : tuple of str
        Records of the ledger that paid for it.
    seeded : bool
        Whether noise came from a seed, with which anyone can remove it.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> fed = make_federation(n_clients=50, n_samples=1000, random_state=0)
    >>> report = FedTempCalibrator(eps=1.0).fit(fed.clients).privacy_
    >>> report.eps, report.unit, report.n_rounds, report.secure
    (1.0, 'client', 5, True)
    """

    eps: float = inf
    delta: float = 0.0
    mu: float | None = None
    noise_multiplier: float = 0.0
    clip: dict[str, float | None] = field(default_factory=dict)
    unit: str = "client"
    adjacency: str = "zero-out"
    trust: str = "exact: the server sees the sum over clients without noise"
    secure: bool = False
    accountant: str = "none"
    n_rounds: int = 0
    n_clients: int = 0
    assumptions: tuple[str, ...] = ()
    ledger_ids: tuple[str, ...] = ()
    seeded: bool = False

    @property
    def private(self) -> bool:
        """Whether noise was added."""
        return self.eps < inf

    def __repr__(self) -> str:
        if not self.private:
            return f"PrivacyReport(no differential privacy; {self.trust})"
        bounds = ", ".join(
            f"{k} {v:.4g}" for k, v in self.clip.items() if v is not None
        )
        lines = [
            f"PrivacyReport({self._simulated}eps={self.eps:g}, delta={self.delta:.3g}",
            f"  protects one {self.unit} of {self.n_clients} "
            f"(adjacency: {self.adjacency})",
            f"  noise {self.noise_multiplier:.4f} x the bound, {self.n_rounds} "
            f"round(s), accountant {self.accountant}"
            + (f", mu={self.mu:.4f}" if self.mu is not None else ""),
            f"  bounds: {bounds}",
            f"  trust: {self.trust}",
            *(f"  assumes: {text}" for text in self.assumptions),
            f"  ledger: {', '.join(i[:12] for i in self.ledger_ids) or 'none'})",
        ]
        return "\n".join(lines)

    @property
    def _simulated(self) -> str:
        if self.secure:
            return ""
        if self.seeded:
            return "SIMULATED, seeded noise: no guarantee; "
        return "SIMULATED, noise added once to the exact values; "
