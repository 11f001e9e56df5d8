"""Privacy loss distributions of dp-accounting, an optional dependency."""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from types import ModuleType

from scipy.optimize import brentq

from skfedcal.privacy._conversions import gdp_mu
from skfedcal.privacy._events import (
    GaussianEvent,
    PrivacyEvent,
    PureEvent,
    SampledGaussianEvent,
)

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


def require_pld() -> ModuleType:
    """Return the PLD module of dp-accounting or say how to get it."""
    module = load_pld()
    if module is None:
        raise ImportError(f"accountant='pld' needs dp-accounting: {INSTALL}")
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
