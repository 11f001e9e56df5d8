"""How much noise a budget asks for, and what a list of releases has cost."""

import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._params import as_number
from skfedcal.exceptions import PrivacyWarning
from skfedcal.privacy._conversions import (
    LatticeSlack,
    check_count,
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    lattice_slack,
    table_slack,
    zcdp_delta,
    zcdp_epsilon,
    zcdp_rho,
)
from skfedcal.privacy._events import (
    GaussianEvent,
    PrivacyEvent,
    PureEvent,
    SampledGaussianEvent,
)
from skfedcal.privacy._pld import (
    INSTALL,
    load_pld,
    pld_epsilon,
    pld_multiplier,
    require_pld,
)
from skfedcal.privacy._slack import charged_note

__all__ = [
    "LatticeSlack",
    "NoisePlan",
    "calibrate",
    "compose_epsilon",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "lattice_slack",
    "split_noise",
    "table_slack",
    "zcdp_delta",
    "zcdp_epsilon",
    "zcdp_rho",
]

_ACCOUNTANTS = ("auto", "gdp", "zcdp", "pld")
# Relative margin for rounding in the solvers and in the lattice step.
_MARGIN = 1e-10


@dataclass(frozen=True, slots=True)
class NoisePlan:
    """Noise that keeps a budget, fixed before the first round.

    Parameters
    ----------
    eps, delta : float
        The guarantee of all rounds together, slack included.
    noise_multiplier : float
        Standard deviation over L2 sensitivity of one round.
    n_rounds : int
        Number of rounds.
    sampling_rate : float
        Chance of a client to be in a round.
    accountant : {"gdp", "zcdp", "pld"}
        What the noise was computed with.
    mu : float or None
        All rounds are mu-GDP together; None if sampling was credited.
    eps_slack, delta_slack : float
        Part of the budget that pays for discrete noise.
    assumptions : tuple of str
        What must hold for the guarantee, in words.

    Examples
    --------
    >>> from skfedcal.privacy import calibrate
    >>> round(calibrate(1.0, 1e-5, n_rounds=5).noise_multiplier, 3)
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


def calibrate(
    eps: float,
    delta: float,
    *,
    n_rounds: int = 1,
    sampling_rate: float = 1.0,
    accountant: str = "auto",
    n_values: int = 0,
    n_shares: int | None = None,
) -> NoisePlan:
    """Return the least noise that keeps ``(eps, delta)`` over all rounds.

    Parameters
    ----------
    eps : float
        Above 0 and finite.
    delta : float
        Between 0 and 1, both excluded.
    n_rounds : int, default=1
        Number of rounds, each with the same noise.
    sampling_rate : float, default=1.0
        Chance of a client to be in a round, independent of all others.
    accountant : {"auto", "gdp", "zcdp", "pld"}, default="auto"
        "gdp" is exact without sampling. "pld" credits sampling and needs
        dp-accounting. "zcdp" is Lemma B.3 of the paper, and no credit for sampling.
        "auto" is "gdp" without sampling and "pld" with it.
    n_values : int, default=0
        Noisy integers that are released per round; their slack is part of the budget.
    n_shares : int, optional
        Number of noise shares that are certain to be in every sum, if clients add the
        noise; None if one party draws it.

    Returns
    -------
    NoisePlan

    Examples
    --------
    >>> from skfedcal.privacy import calibrate
    >>> calibrate(1.0, 1e-5, n_rounds=12).noise_multiplier
    12.923
    """
    _check_budget(eps, delta)
    check_count("n_rounds", n_rounds, 1)
    check_count("n_values", n_values, 0)
    if not 0 < as_number("sampling_rate", sampling_rate) <= 1:
        raise ValueError(
            f"sampling_rate={sampling_rate!r} is out of range; "
            "pass 0 < sampling_rate <= 1."
        )
    name, notes = _choose(accountant, sampling_rate)
    eps, delta, n_rounds = float(eps), float(delta), int(n_rounds)
    slack = lattice_slack(n_rounds * n_values, n_shares)
    inner_eps, inner_delta = _without_slack(eps, delta, slack)
    mu = None
    if name == "pld" and sampling_rate < 1:
        z = pld_multiplier(inner_eps, inner_delta, n_rounds, float(sampling_rate))
    else:
        mu = _total_mu(name, inner_eps, inner_delta)
        z = math.sqrt(n_rounds) / mu
    if n_values:
        notes += charged_note(eps)
    rate = float(sampling_rate)
    return NoisePlan(eps, delta, z, n_rounds, rate, name, mu, *slack, notes)


def split_noise(
    clips: ArrayLike, weights: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Return the best shares of noise for blocks that are clipped one by one.

    Parameters
    ----------
    clips : array-like of shape (n_blocks,)
        L2 bound of each block of a client's contribution.
    weights : array-like of shape (n_blocks,), optional
        Cost of the noise variance of each block; equal if None.

    Returns
    -------
    ndarray of shape (n_blocks,)
        Factors: the noise ``factor / mu`` per block makes the release mu-GDP, as
        ``sum((clips / sigma) ** 2) == mu ** 2``, and has the least
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


def compose_epsilon(events: Sequence[PrivacyEvent], delta: float) -> float:
    """Return the eps at `delta` of all events together.

    Parameters
    ----------
    events : sequence of PrivacyEvent
        What was released, about the same clients.
    delta : float
        Between 0 and 1, both excluded.

    Returns
    -------
    float
        Exact for Gaussian events. Else the least of the bounds at hand: pure eps added
        to the Gaussian eps, zCDP, and dp-accounting if it is installed. Infinite if
        the slack of the events is more than `delta`.

    Examples
    --------
    >>> from skfedcal.privacy import calibrate, compose_epsilon
    >>> round(compose_epsilon([calibrate(1.0, 1e-5).to_event()] * 2, 1e-5), 2)
    1.47
    """
    events = _check_events(events)
    eps_slack = math.fsum(event.eps_slack for event in events)
    delta_slack = math.fsum(event.delta_slack for event in events)
    _check_delta(delta)
    delta = (delta - delta_slack) * math.exp(-eps_slack / 2)
    if delta <= 0:
        return math.inf
    mu_squared = math.fsum(map(_mu_squared, events))
    pure = [event.eps for event in events if isinstance(event, PureEvent)]
    bounds = [math.fsum(pure)]
    if mu_squared:
        bounds = [gdp_epsilon(math.sqrt(mu_squared), delta) + bounds[0]]
    if any(pure):
        rho = (mu_squared + math.fsum(eps**2 for eps in pure)) / 2
        bounds.append(zcdp_epsilon(rho, delta))
    mixed = len(pure) > 1 or (any(pure) and mu_squared > 0)
    if (mixed or any(map(_is_amplified, events))) and load_pld() is not None:
        bounds.append(pld_epsilon(tuple(filter(_costs, events)), delta))
    return min(bounds) + eps_slack


def _choose(accountant: str, sampling_rate: float) -> tuple[str, tuple[str, ...]]:
    """Return the accountant to use and what it takes for granted."""
    if accountant not in _ACCOUNTANTS:
        raise ValueError(
            f"accountant={accountant!r} is unknown; pass one of {_ACCOUNTANTS}."
        )
    if accountant == "pld":
        require_pld()
    if sampling_rate == 1:
        return ("gdp" if accountant == "auto" else accountant), ()
    unamplified = (f"sampling rate {sampling_rate:g} is charged as 1",)
    if accountant == "zcdp":
        return "zcdp", unamplified
    if accountant == "gdp":
        raise ValueError(
            f"accountant='gdp' needs sampling_rate=1, got {sampling_rate!r}; "
            "pass accountant='pld', or 'zcdp' for no credit for sampling."
        )
    if load_pld() is None:
        warnings.warn(
            "dp-accounting is not installed: the noise is that of full participation, "
            f"which is valid but more than sampling needs. To use less: {INSTALL}",
            PrivacyWarning,
            stacklevel=3,
        )
        return "gdp", unamplified
    return "pld", (
        f"every client is in a round with chance {sampling_rate:g}, independent of all "
        "others, and nobody who sees the result knows who took part",
    )


def _without_slack(
    eps: float, delta: float, slack: LatticeSlack
) -> tuple[float, float]:
    inner_eps = eps - slack.eps
    inner_delta = (delta - slack.delta) * math.exp(-slack.eps / 2)
    if inner_eps <= 0 or inner_delta <= 0:
        raise ValueError(
            f"eps={eps!r}, delta={delta!r} does not even pay for discrete noise "
            f"({slack.eps:.2g}, {slack.delta:.2g}); release fewer values or pass "
            "a larger budget."
        )
    return inner_eps, inner_delta


@functools.lru_cache(maxsize=256)
def _total_mu(accountant: str, eps: float, delta: float) -> float:
    if accountant == "zcdp":
        return math.sqrt(2 * zcdp_rho(eps, delta)) * (1 - _MARGIN)
    return gdp_mu(eps, delta) * (1 - _MARGIN)


def _mu_squared(event: PrivacyEvent) -> float:
    """Return the GDP parameter of an event without credit for sampling, squared."""
    match event:
        case GaussianEvent(mu=mu):
            return mu**2
        case SampledGaussianEvent(noise_multiplier=z, n_rounds=n_rounds):
            return n_rounds / z**2
    return 0.0


def _is_amplified(event: PrivacyEvent) -> bool:
    return isinstance(event, SampledGaussianEvent) and event.sampling_rate < 1


def _costs(event: PrivacyEvent) -> bool:
    return _mu_squared(event) > 0 or (isinstance(event, PureEvent) and event.eps > 0)


def _check_events(events: Sequence[PrivacyEvent]) -> tuple[PrivacyEvent, ...]:
    kinds = (GaussianEvent, PureEvent, SampledGaussianEvent)
    one = not isinstance(events, Iterable) or getattr(events, "shape", None) == ()
    found: tuple[PrivacyEvent, ...] = (events,) if one else tuple(events)  # type: ignore[assignment]
    for event in found:
        if not isinstance(event, kinds):
            raise TypeError(
                f"events holds a {type(event).__name__}; pass a list of privacy events."
            )
    return found


def _check_budget(eps: float, delta: float) -> None:
    if not 0 < as_number("eps", eps) < math.inf:
        raise ValueError(f"eps={eps!r} is not a budget; pass a finite eps > 0.")
    _check_delta(delta)


def _check_delta(delta: float) -> None:
    if not 0 < as_number("delta", delta) < 1:
        raise ValueError(f"delta={delta!r} is out of range; pass 0 < delta < 1.")
