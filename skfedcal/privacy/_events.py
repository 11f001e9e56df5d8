"""Immutable records of what a release costs."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

from skfedcal._params import as_number

__all__ = [
    "GaussianEvent",
    "PrivacyEvent",
    "PureEvent",
    "SampledGaussianEvent",
    "event_from_dict",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slack:
    """How far the noise that is drawn may be from the noise that is accounted.

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
            value = getattr(self, name)
            if not 0 <= as_number(name, value) < math.inf:
                raise ValueError(
                    f"{name}={value!r} of a {type(self).__name__} is out of range; "
                    "pass a finite number >= 0."
                )


@dataclass(frozen=True, slots=True)
class GaussianEvent(_Slack):
    """Gaussian noise: one or more rounds that are mu-GDP together.

    Parameters
    ----------
    mu : float
        Sensitivity over standard deviation, root of the sum of squares over rounds.
    eps_slack, delta_slack : float, default=0
        Distance of the noise from the law that is accounted.

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
        Largest log ratio of the chances of any output.
    eps_slack, delta_slack : float, default=0
        Distance of the noise from the law that is accounted.

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
        Chance of a client to be in a round, independent of all others.
    n_rounds : int, default=1
        Number of rounds.
    eps_slack, delta_slack : float, default=0
        Distance of the noise from the law that is accounted.

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
            raise ValueError("noise_multiplier=0 is no noise; pass a number > 0.")
        if not 0 < as_number("sampling_rate", self.sampling_rate) <= 1:
            raise ValueError(
                f"sampling_rate={self.sampling_rate!r} is out of range; "
                "pass 0 < sampling_rate <= 1."
            )
        if not (isinstance(self.n_rounds, int) and self.n_rounds >= 1):
            raise ValueError(
                f"n_rounds={self.n_rounds!r} is not a number of rounds; "
                "pass an int >= 1."
            )


PrivacyEvent = GaussianEvent | PureEvent | SampledGaussianEvent

_KINDS: dict[str, type[PrivacyEvent]] = {
    cls.kind: cls for cls in (GaussianEvent, PureEvent, SampledGaussianEvent)
}


def event_from_dict(record: Mapping[str, Any]) -> PrivacyEvent:
    """Restore an event from the output of its `to_dict`.

    Parameters
    ----------
    record : mapping
        Plain values with a `kind`.

    Returns
    -------
    PrivacyEvent

    Raises
    ------
    ValueError
        If the kind is unknown or the values do not fit it: an event that is not
        understood cannot be accounted for.
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
