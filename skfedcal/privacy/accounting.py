"""Privacy accounting: noise for a budget, and the cost of a list of releases.

- From a Gaussian, discrete or zCDP guarantee to (eps, delta) and back.
- Privacy loss distributions of dp-accounting, an optional dependency.
"""

import functools
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType

import numpy as np
from scipy.optimize import brentq
from scipy.special import erfcx, ndtr, ndtri

from skfedcal._docs import SharedDocs
from skfedcal._params import as_number, check_choice, check_integer, check_number
from skfedcal.exceptions import PrivacyWarning
from skfedcal.privacy.events import (
    GaussianEvent,
    NoisePlan,
    PrivacyEvent,
    PureEvent,
    SampledGaussianEvent,
)
from skfedcal.privacy.samplers import (
    LatticeSlack,
    charged_note,
    lattice_slack,
)

_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(16)
# Below this mu the two terms of delta are close and their difference is integrated.
_SMALL_MU = 0.5
_TINY = 5e-324
# Where products with them still are floats.
_LEAST_EPS, _LARGEST_EPS, _LEAST_RHO = 1e-100, 1e100, 1e-200
# From here on rounding hides the difference between eps and its upper bound.
_ROUNDED_EPS = 1e15


# Entries of docstrings that are shared here.
_documented = SharedDocs(
    """
    mu : float
        GDP parameter of all releases together: sensitivity over the standard deviation
        of the noise; at least 0.
    rho : float
        At least 0.
    eps : float
        At least 0.
    delta : float
        Between 0 and 1, both excluded.
    """
)


@_documented
def gdp_delta(mu: float, eps: float) -> float:
    """Return the smallest delta of a mu-GDP mechanism at `eps`.

    Parameters
    ----------
    mu, eps

    Returns
    -------
    float

    Notes
    -----
    ``Phi(-u) - exp(eps) Phi(-v)`` with ``u = eps/mu - mu/2`` and ``v = eps/mu + mu/2``.
    As ``v^2 - u^2 = 2 eps``, both terms share the factor ``exp(-u^2/2)/2`` and the
    rest is a difference of scaled complementary error functions.

    Examples
    --------
    >>> from skfedcal.privacy import gdp_delta
    >>> f"{gdp_delta(0.2681, 1.0):.1e}"
    '1.0e-05'
    """
    mu, eps = check_number("mu", mu, 0), check_number("eps", eps, 0)
    if mu == 0 or eps == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    u, v = eps / mu - mu / 2, eps / mu + mu / 2
    if u > 40:  # exp(-u^2/2) is zero in double precision
        return 0.0
    start, length = u / math.sqrt(2), mu / math.sqrt(2)
    factor = math.exp(-u * u / 2) / 2
    if mu < _SMALL_MU:
        points = start + length * (1 + _NODES) / 2
        slopes = 2 / math.sqrt(math.pi) - 2 * points * erfcx(points)
        return factor * length / 2 * float(_NODE_WEIGHTS @ slopes)
    if u < 0:
        return float(ndtr(-u) - factor * erfcx(v / math.sqrt(2)))
    return factor * float(erfcx(start) - erfcx(v / math.sqrt(2)))


@_documented
def gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest eps of a mu-GDP mechanism at `delta`.

    Parameters
    ----------
    mu, delta

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import gdp_epsilon
    >>> round(gdp_epsilon(0.2681, 1e-5), 3)
    1.0
    """
    mu, delta = check_number("mu", mu, 0), _delta(delta)
    if mu == math.inf:
        return math.inf
    if gdp_delta(mu, 0.0) <= delta:
        return 0.0
    # Here Phi(-u) = delta, and the second term of delta only takes away.
    top = mu * (mu / 2 - float(ndtri(delta)))
    if top > _ROUNDED_EPS:
        return top
    return _root(lambda eps: _log_ratio(gdp_delta(mu, eps), delta), 0.0, top)


@_documented
def gdp_mu(eps: float, delta: float) -> float:
    """Return the largest mu such that mu-GDP implies ``(eps, delta)``.

    Parameters
    ----------
    eps, delta

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import gdp_mu
    >>> round(gdp_mu(1.0, 1e-5), 4)
    0.2681
    """
    eps, delta = _finite("eps", eps), _delta(delta)
    if eps > _LARGEST_EPS:
        raise ValueError(f"eps={eps!r} is too large; pass at most {_LARGEST_EPS:g}.")
    z = -float(ndtri(delta))
    root = math.sqrt(z * z + 2 * eps)
    # Two lower bounds: Phi(-u) >= delta(mu), and delta(mu) <= mu/sqrt(2 pi).
    low = max(2 * eps / (z + root) if z > 0 else root - z, 2 * delta)
    high = low
    while gdp_delta(high, eps) <= delta:
        high *= 2
    return _root(lambda mu: _log_ratio(gdp_delta(mu, eps), delta), low / 2, high)


@_documented
def zcdp_delta(rho: float, eps: float) -> float:
    """Return the delta at `eps` that rho-zCDP implies.

    Parameters
    ----------
    rho, eps

    Returns
    -------
    float

    Notes
    -----
    Canonne, Kamath and Steinke (2020), used as Lemma B.3 of the federated calibration
    paper: the least of ``exp((a-1)(a rho - eps)) (1-1/a)^a / (a-1)`` over orders
    ``a > 1``. The logarithm is convex in the order, and every order gives a bound.

    Examples
    --------
    >>> from skfedcal.privacy import zcdp_delta
    >>> f"{zcdp_delta(0.03, 1.0):.1e}"
    '8.4e-06'
    """
    rho, eps = check_number("rho", rho, 0), check_number("eps", eps, 0)
    if rho == 0 or eps == math.inf:
        return 0.0
    if rho > _LARGEST_EPS:
        return 1.0
    return math.exp(min(0.0, _zcdp_log_delta(rho, eps)))


@_documented
def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest eps at `delta` that Lemma B.3 gives for rho-zCDP.

    Parameters
    ----------
    rho, delta

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import zcdp_epsilon
    >>> round(zcdp_epsilon(0.03, 1e-5), 3)
    0.99
    """
    rho, delta = check_number("rho", rho, 0), _delta(delta)
    if rho == math.inf:
        return math.inf
    if zcdp_delta(rho, 0.0) <= delta:
        return 0.0
    log_delta = math.log(delta)
    top = rho + 2 * math.sqrt(-rho * log_delta)  # the simple bound of Bun and Steinke
    if top > _LARGEST_EPS:
        return top
    return _root(lambda eps: _zcdp_log_delta(rho, eps) - log_delta, 0.0, top)


@_documented
def zcdp_rho(eps: float, delta: float) -> float:
    """Return the largest rho such that Lemma B.3 gives ``(eps, delta)``.

    Parameters
    ----------
    eps : float
        Above 0.
    delta

    Returns
    -------
    float

    Examples
    --------
    >>> from skfedcal.privacy import zcdp_rho
    >>> round(zcdp_rho(1.0, 1e-5), 4)
    0.0306
    """
    eps, delta = _finite("eps", eps), _delta(delta)
    if not _LEAST_EPS <= eps <= _LARGEST_EPS:
        raise ValueError(
            f"eps={eps!r} is out of range; pass {_LEAST_EPS:g} to {_LARGEST_EPS:g}."
        )
    log_delta = math.log(delta)
    low = (eps / (math.sqrt(eps - log_delta) + math.sqrt(-log_delta))) ** 2
    high = low
    while _zcdp_log_delta(high, eps) <= log_delta:
        high *= 2
    return _root(lambda rho: _zcdp_log_delta(rho, eps) - log_delta, low / 2, high)


def _zcdp_log_delta(rho: float, eps: float) -> float:
    rho, eps = max(rho, _LEAST_RHO), min(eps, _LARGEST_EPS)  # both raise delta

    def slope(t: float) -> float:  # in the order a = 1 + exp(t)
        a_minus_1 = math.exp(t)
        return rho * (2 * a_minus_1 + 1) - eps + t - math.log1p(a_minus_1)

    low = min(-1.0, eps - 2 * rho) - 1
    high = math.log(eps / (2 * rho) + 1 / math.sqrt(2 * rho))
    if eps > 1e9:  # its rounding hides the other terms
        high += 1.0
    t = brentq(slope, low, max(high, low + 1), xtol=1e-12, maxiter=500)
    a_minus_1 = math.exp(t)
    log_a = math.log1p(a_minus_1)
    return a_minus_1 * ((a_minus_1 + 1) * rho - eps + t - log_a) - log_a


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-300, rtol=1e-14, maxiter=500))


def _log_ratio(value: float, target: float) -> float:
    return math.log(max(value, _TINY)) - math.log(target)


def _finite(name: str, value: float) -> float:
    number = check_number(name, value, 0)
    if math.isinf(number):
        raise ValueError(f"{name}={value!r} gives no privacy; pass a finite value.")
    return number


def _delta(delta: float) -> float:
    return check_number("delta", delta, 0, 1, "neither")


INSTALL = 'pip install "skfedcal[accounting]"'

# Grid of privacy losses for noise multipliers between 1 and 3. The rounding is always
# upwards; at 1e-4 the multipliers of the usual settings are right to 5 digits.
_GRID = 1e-4
_MULTIPLIER_TOLERANCE = 1e-5
# For rounding when the slack of the lattice is taken off eps and put back.
_MARGIN = 1e-10
# Less noise than this is of no use, and its losses need grids without end.
_MIN_MULTIPLIER = 0.05


def load_pld() -> ModuleType | None:
    """Return the PLD module of dp-accounting, or None if it is not installed."""
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError:
        return None
    return privacy_loss_distribution


def require_pld(what: str = "accountant='pld'") -> ModuleType:
    """Return the PLD module of dp-accounting, or raise with the install command."""
    module = load_pld()
    if module is None:
        raise ImportError(f"{what} needs dp-accounting: {INSTALL}")
    return module


@functools.lru_cache(maxsize=256)
def pld_epsilon(events: tuple[PrivacyEvent, ...], delta: float) -> float:
    """Return eps at `delta` of rounds whose noise was fixed in advance."""
    return _epsilon(events, delta, _grid(events))


@functools.lru_cache(maxsize=256)
def pld_multiplier(
    eps: float, delta: float, n_rounds: int, sampling_rate: float
) -> float:
    """Return the least noise multiplier of Poisson sampled rounds, rounded up."""
    target = eps * (1 - _MARGIN)

    def excess(log_z: float, coarseness: float = 1.0) -> float:
        rounds = (SampledGaussianEvent(math.exp(log_z), sampling_rate, n_rounds),)
        return _epsilon(rounds, delta, coarseness * _grid(rounds)) - target

    # Unamplified noise is always enough; halve until it is not.
    high = math.log(math.sqrt(n_rounds) / gdp_mu(target, delta))
    low = high
    while low > math.log(_MIN_MULTIPLIER) and excess(low, 10) <= 0:
        high, low = low, low - math.log(2)
    if low == high or excess(low, 10) <= 0:
        return math.exp(high)
    log_z = brentq(excess, low, high, args=(10,), xtol=1e-4)
    step = 1e-3
    slope = (excess(log_z + step, 10) - excess(log_z - step, 10)) / (2 * step)
    # Newton steps on the fine grid, aimed at the middle of the accepted interval.
    allowed = _MULTIPLIER_TOLERANCE * -slope
    value = excess(log_z)
    for _ in range(8):
        if -allowed <= value <= 0:
            break
        log_z -= (value + allowed / 2) / slope
        value = excess(log_z)
    while value > 0:
        log_z += _MULTIPLIER_TOLERANCE
        value = excess(log_z)
    return math.exp(log_z)


def _epsilon(events: Sequence[PrivacyEvent], delta: float, grid: float) -> float:
    module = require_pld()
    total = module.identity(grid)
    bare: Counter[PrivacyEvent] = Counter()
    for event in events:
        match event:
            case SampledGaussianEvent(noise_multiplier=z, sampling_rate=rate):
                bare[SampledGaussianEvent(z, rate)] += event.n_rounds
            case GaussianEvent(mu=mu):
                bare[GaussianEvent(mu)] += 1
            case PureEvent(eps=eps):
                bare[PureEvent(eps)] += 1
    for event, count in bare.items():
        total = total.compose(_distribution(module, event, grid).self_compose(count))
    return float(total.get_epsilon_for_delta(delta))


def _distribution(module: ModuleType, event: PrivacyEvent, grid: float):  # type: ignore[no-untyped-def]
    match event:
        case SampledGaussianEvent(noise_multiplier=z, sampling_rate=rate):
            return module.from_gaussian_mechanism(
                z, sampling_prob=rate, value_discretization_interval=grid
            )
        case GaussianEvent(mu=mu):
            return module.from_gaussian_mechanism(
                1 / mu, value_discretization_interval=grid
            )
        case PureEvent(eps=eps):
            parameters = module.common.DifferentialPrivacyParameters(eps, 0)
            return module.from_privacy_parameters(parameters, grid)


def _grid(events: Sequence[PrivacyEvent]) -> float:
    """Return a grid that suits the losses of the event with the least noise."""
    z = min(map(_multiplier, events))
    if z < 1:
        return _GRID / z**2
    return _GRID * min(1.0, 3 / z)


def _multiplier(event: PrivacyEvent) -> float:
    match event:
        case SampledGaussianEvent(noise_multiplier=z):
            return z
        case GaussianEvent(mu=mu):
            return 1 / mu
        case PureEvent(eps=eps):
            return 1 / eps


_ACCOUNTANTS = ("auto", "gdp", "zcdp", "pld")


@_documented
def calibrate_noise(
    eps: float,
    delta: float,
    *,
    n_rounds: int = 1,
    sampling_rate: float = 1.0,
    accountant: str = "auto",
    n_values: int = 0,
    n_shares: int | None = None,
) -> NoisePlan:
    """Return the least noise with which all rounds together are ``(eps, delta)``-DP.

    Parameters
    ----------
    eps : float
        Above 0 and finite.
    delta
    n_rounds : int, default=1
        Number of rounds, each with the same noise.
    sampling_rate : float, default=1.0
        Probability that a client takes part in a round, independent of all others.
    accountant : {"auto", "gdp", "zcdp", "pld"}, default="auto"
        "gdp" is exact without sampling. "pld" includes amplification by sampling and
        needs dp-accounting. "zcdp" is Lemma B.3 of the paper, without amplification by
        sampling. "auto" is "gdp" without sampling and "pld" with it.
    n_values : int, default=0
        Noisy integers that are released per round; their slack is part of the budget.
    n_shares : int, optional
        Number of noise shares that are guaranteed to be in every sum, if clients add
        the noise; None if the server adds it.

    Returns
    -------
    NoisePlan

    Examples
    --------
    >>> from skfedcal.privacy import calibrate_noise
    >>> calibrate_noise(1.0, 1e-5, n_rounds=12).noise_multiplier
    12.923
    """
    _check_budget(eps, delta)
    check_number("sampling_rate", sampling_rate, 0, 1, "right")
    name, notes = _choose(accountant, sampling_rate)
    check_integer("n_rounds", n_rounds, 1)
    check_integer("n_values", n_values, 0)
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
    """Return what `calibrate_noise` returns: the name before 0.1, removed in 0.2.

    .. deprecated:: 0.1
        Use :func:`calibrate_noise`, which takes the same parameters.

    Parameters
    ----------
    eps, delta, n_rounds, sampling_rate, accountant, n_values, n_shares
        See `calibrate_noise`.

    Returns
    -------
    NoisePlan

    Examples
    --------
    >>> from skfedcal.privacy import calibrate_noise
    >>> calibrate_noise(1.0, 1e-5).n_rounds
    1
    """
    warnings.warn(
        "skfedcal.privacy.calibrate is deprecated and will be removed in 0.2; use "
        "skfedcal.privacy.calibrate_noise.",
        DeprecationWarning,
        stacklevel=2,
    )
    return calibrate_noise(
        eps,
        delta,
        n_rounds=n_rounds,
        sampling_rate=sampling_rate,
        accountant=accountant,
        n_values=n_values,
        n_shares=n_shares,
    )


@_documented
def compose_epsilon(events: Sequence[PrivacyEvent], delta: float) -> float:
    """Return the eps at `delta` of the composition of all events.

    Parameters
    ----------
    events : sequence of PrivacyEvent
        Releases about the same clients.
    delta

    Returns
    -------
    float
        Exact for Gaussian events. Else the smallest of the available bounds: pure eps
        added to the Gaussian eps, zCDP, and dp-accounting if it is installed. Infinite
        if the slack of the events is more than `delta`.

    Examples
    --------
    >>> from skfedcal.privacy import calibrate_noise, compose_epsilon
    >>> round(compose_epsilon([calibrate_noise(1.0, 1e-5).to_event()] * 2, 1e-5), 2)
    1.47
    """
    events = _check_events(events)
    eps_slack = math.fsum(event.eps_slack for event in events)
    delta_slack = math.fsum(event.delta_slack for event in events)
    _delta(delta)
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
    """Return the accountant to use and its assumptions."""
    check_choice("accountant", accountant, _ACCOUNTANTS)
    if accountant == "pld":
        require_pld()
    if sampling_rate == 1:
        return ("gdp" if accountant == "auto" else accountant), ()
    unamplified = (f"sampling rate {sampling_rate:g} is charged as 1",)
    if accountant == "zcdp":
        return "zcdp", unamplified
    if accountant == "gdp":
        raise ValueError(
            f"accountant='gdp' needs sampling_rate=1, got {sampling_rate!r}; pass "
            "accountant='pld', or 'zcdp' without amplification by sampling."
        )
    if load_pld() is None:
        warnings.warn(
            "dp-accounting is not installed: the noise is calibrated for full "
            "participation, which is valid but more than needed with sampling. To "
            f"use less: {INSTALL}",
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
            f"eps={eps!r}, delta={delta!r} is less than the cost of discrete noise "
            f"alone (eps {slack.eps:.2g}, delta {slack.delta:.2g}); release fewer "
            "values or pass a larger budget."
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
    _delta(delta)
