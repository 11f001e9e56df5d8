"""Temperature scaling under noise: a posterior of the temperature on a grid.

What clients send, and the rounds: `TemperaturePosterior`. With ``x = log(1 / T)``, an
optimum ``x*``, curvature ``h`` and bend ``a``, the mean log loss is modelled as ``h
((exp(a d) - 1) / a - d) / a``, ``d = x - x*``. A client of n rows sends the slope and
curvature of its summed loss over ``bound + clip n``, cut to length 1. The rows of a
usual client are unknown, and the cut is a part of the model.

The flow is `start`, then for each release `add_release`, `marginal` and of this
`next_point` and `best_action`. Everything is a function of released numbers and public
constants.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from math import exp, pi, sqrt
from typing import NamedTuple

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Array, Arrays, BlockSpec, Field, Form, Sums
from skfedcal.methods.temperature.moments import LOG_BOUND, derivative_sums

# All constants are public. They were chosen on six public files and confirmed on
# others; how is in docs/research/study.rst.
# Unit of the curvature in a client's vector.
CURVATURE_UNIT = 1.5
# Bound on the summed slope of few rows: one very wrong row has a slope of 3 to 5.
_ROW_SLOPE, _ROW_NOISE, _ROW_POWER, _ROW_RANGE = 4.0, 0.03, -0.3, (0.5, 2.0)
# Bound on the mean slope of many rows, by the width of the posterior and the noise.
_CLIP_BASE, _CLIP_WIDTH, _CLIP_RANGE = 0.04, 0.12, (0.03, 0.5)
_CLIP_NOISE, _CLIP_NOISE_RANGE = 0.1, (0.02, 1.0)
# Width of the posterior before the first release.
START_SD = 0.5
# Spread of clients' mean slopes beside sampling; error of the cut by an unknown spread;
# error of the curvature. Error of the optimum by the model: at the optimum, and times
# the distance to it and its square.
_SPREAD, _CUT, _CURVATURE = 0.1, 0.4, 0.15
_MODEL, _TILT, _BEND = 0.01, 0.1, 0.25
# Median and spread of the curvature at the optimum.
_H_MEDIAN, _H_LOG_SD = 0.5, 0.75
# Prior weight of a model that is calibrated already, and its value where the number of
# clients times mu is below a number: noise is then as long as a useful correction.
_SPIKE, _STRICT_SPIKES = 0.8, {1.5: 0.9, 4.0: 0.85}
# Number of clients times mu below which a release says less than the prior.
MIN_SIGNAL = 1.0

# Least clip, and inverse of the largest one, that a site accepts.
_LEAST_CLIP = 1e-12

_STEP = 0.04
_GRID = _STEP * np.arange(-65, 26)
_BENDS = np.array([-0.6, 1.0])
_AXES = (np.geomspace(0.06, 1.6, 7), _BENDS, np.array([1, 4, 16, 64, 400.0]), _GRID)
# One axis each, which broadcast to all cells. The longest is the last: loops of numpy
# over broadcast arrays are as long as the last axis.
_H, _A, _ROWS, _OPTIMUM = np.meshgrid(*_AXES, indexing="ij", sparse=True)
_SHAPE = np.broadcast_shapes(*(np.shape(a) for a in (_H, _A, _ROWS, _OPTIMUM)))


class _Kept(threading.local):
    """Memory of a thread for `add_release`: fresh pages cost more than the sums."""

    def __init__(self) -> None:
        self.cells = np.empty((11, *_SHAPE))


_kept = _Kept()


class Action(NamedTuple):
    """Point of least posterior expected loss.

    log_beta: The point, ``log(1 / T)``.
    gain: Expected decrease of the mean log loss from ``T = 1``; never negative.
    sd: Posterior standard deviation of the optimum.
    """

    log_beta: float
    gain: float
    sd: float


def sum_bound(noise: float) -> float:
    """Bound on the summed slope of a client of few rows.

    noise: Standard deviation of the noise in a released mean over clients.
    """
    ratio = max(noise, 1e-9) / _ROW_NOISE
    return _ROW_SLOPE * _clip(ratio**_ROW_POWER, *_ROW_RANGE)


def mean_clip(noise: float, sd: float) -> float:
    """Bound on the mean slope of a client of many rows, for a posterior of width sd."""
    ratio = _clip(noise / _CLIP_NOISE, *_CLIP_NOISE_RANGE)
    return _clip((_CLIP_BASE + _CLIP_WIDTH * sd) / sqrt(ratio), *_CLIP_RANGE)


def _clip(number: float, low: float, high: float) -> float:
    """Clip a single number, in a tenth of the time of `numpy.clip`."""
    return min(max(float(number), low), high)


def start() -> Array:
    """Log-likelihood before the first release, on the grid."""
    log_h = -0.5 * (np.log(_H / _H_MEDIAN) / _H_LOG_SD) ** 2
    return np.broadcast_to(log_h, _SHAPE).copy()


def add_release(
    log_like: Array,
    release: Array,
    *,
    point: float,
    clip: float,
    bound: float,
    noise: float,
    n_clients: int,
) -> Array:
    """Log-likelihood after one more release.

    log_like: Log-likelihood before it.
    release of shape (2,): Mean over clients of slope and curvature, each client cut to
        length 1.
    point, clip, bound: The broadcast: ``log(1 / T)`` and the numbers in ``bound + clip
        n``.
    noise: Standard deviation of the noise in the mean.
    n_clients: Clients in the mean.
    """
    away = point - _OPTIMUM
    growth = np.exp(np.clip(_A * away, -20, 20))
    scale = _ROWS / (bound + clip * _ROWS)
    unit = _H * scale
    work = _kept.cells
    slope, curvature, distance = work[:3]
    np.multiply(unit, (growth - 1) / _A, out=slope)
    np.multiply(unit, growth * (clip / CURVATURE_UNIT), out=curvature)
    np.minimum(curvature, 1.0, out=curvature)
    sd = scale * np.sqrt(_SPREAD**2 + _H / _ROWS)
    mean, variance = _clipped_mean(slope, sd, work[3:])
    error = _MODEL**2 + (_TILT * away) ** 2 + (_BEND * away**2) ** 2
    variance *= unit
    variance *= variance
    variance *= error
    variance += noise**2 + unit * scale / (_ROWS * n_clients)
    np.clip(slope, -1, 1, out=slope)
    slope -= mean
    slope *= _CUT
    slope *= slope
    variance += slope
    out: Array = release[0] - mean
    out *= out
    out /= variance
    np.subtract(release[1], curvature, out=distance)
    distance *= distance
    curvature *= _CURVATURE
    curvature *= curvature
    # A curvature of exactly 0 is certain without noise; rounding is not.
    curvature += noise**2 + 1e-18
    distance /= curvature
    out += distance
    variance *= curvature
    out += np.log(variance, out=variance)
    out *= -0.5
    out += log_like
    return out


def marginal(log_like: Array) -> Array:
    """Weight of curvature, bend and optimum in a likelihood, up to a factor."""
    cells = np.subtract(log_like, log_like.max(), out=_kept.cells[0])
    weight: Array = np.exp(cells, out=cells).sum(axis=2)
    return weight


def next_point(weight: Array) -> tuple[float, float]:
    """Where to ask next, and the posterior standard deviation of the optimum.

    The prior is broad, so that questions go where the optimum may be.

    weight: `marginal` of all releases.
    """
    return _moments(weight.sum(axis=(0, 1)) * _PATH_PRIOR)


def best_action(weight: Array, spike: float) -> Action:
    """Point of least expected loss, under a prior with a spike at ``T = 1``.

    weight: `marginal` of all releases.
    spike: Prior probability that the model is calibrated already, see `spike_weight`.
    """
    prior = _final_prior(spike)
    optimum = weight.sum(axis=(0, 1)) * prior
    # Curvature-weighted probability of each bend and optimum.
    weight = (weight * _H[:, 0]).sum(axis=0) * (prior / optimum.sum())
    losses = _LOSSES @ weight.ravel()
    i = min(max(int(losses.argmin()), 1), len(_GRID) - 2)
    left, middle, right = losses[i - 1 : i + 2].tolist()
    turn = 0.5 * (left - right) / max(left - 2 * middle + right, 1e-300)
    best = float(_GRID[i]) + _STEP * _clip(turn, -0.5, 0.5)
    gain = float(((_LOSS_AT_ONE - _loss(best - _GRID)) * weight).sum())
    _, sd = _moments(optimum)
    return Action(best, gain, sd) if gain > 0 else Action(0.0, 0.0, sd)


def spike_weight(signal: float) -> float:
    """Prior probability that the model is calibrated already.

    signal: Number of clients times mu, the GDP parameter of all releases together.
    """
    strict = (weight for below, weight in _STRICT_SPIKES.items() if signal < below)
    return next(strict, _SPIKE)


def _clipped_mean(mean: Array, sd: Array, work: Array) -> tuple[Array, Array]:
    """Mean of a normal number cut to [-1, 1], and the probability that it is inside.

    work of shape (8, *mean.shape): Memory, of which the result is a part.
    """
    # Both ends in one array: distance from the mean, outwards.
    ends = work[:2]
    np.subtract(1, mean, out=ends[0])
    np.add(1, mean, out=ends[1])
    ends /= sd
    (above, below), (at_upper, found) = _normal_tail(
        ends, work[2:].reshape(3, *ends.shape)
    )
    inside = np.subtract(1, above, out=ends[0])
    inside -= below
    found -= at_upper
    found *= sd
    found += np.multiply(mean, inside, out=at_upper)
    found += above
    found -= below
    return found, inside


def _normal_tail(values: Array, work: Array) -> tuple[Array, Array]:
    """Probability above, to 8e-8, and density of a normal number; numpy has neither.

    work of shape (3, *values.shape): Memory, of which the result is a part.
    """
    # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17.
    density, t, tail = work
    np.minimum(np.abs(values, out=density), 30.0, out=density)
    np.multiply(density, 0.2316419, out=t)
    t += 1
    np.divide(1, t, out=t)
    density *= density
    density *= -0.5
    np.exp(density, out=density)
    density *= 1 / sqrt(2 * pi)
    np.multiply(t, 1.330274429, out=tail)
    for factor in (-1.821255978, 1.781477937, -0.356563782, 0.31938153):
        tail += factor
        tail *= t
    tail *= density
    np.subtract(1, tail, out=tail, where=values <= 0)
    return tail, density


def _density(x: Array, mean: float, sd: float) -> Array:
    out: Array = np.exp(-0.5 * ((x - mean) / sd) ** 2) / sd
    return out


def _path_prior(x: Array) -> Array:
    slab = 0.64 * _density(x, -0.2, 0.5) + 0.16 * _density(x, -0.1, 0.9)
    return 0.2 * _density(x, 0.0, 0.05) + slab + 1e-12


@cache
def _final_prior(spike: float) -> Array:
    """Prior of the optimum on the grid, for one of the few weights of the spike."""
    # Mean and spread of the optima of 21 public files, and a wide part around 0.
    slab = 0.5 * _density(_GRID, -0.4, 0.3) + 0.5 * _density(_GRID, 0.0, 0.6)
    return spike * _density(_GRID, 0.0, 0.05) + (1 - spike) * slab + 1e-12


def _moments(weight: Array) -> tuple[float, float]:
    """Mean and standard deviation of weights on the grid."""
    weight = weight / weight.sum()
    # No BLAS: last bits of the next point would differ between processors.
    mean = float((_GRID * weight).sum())
    return mean, sqrt(max(float(((_GRID - mean) ** 2 * weight).sum()), 1e-8))


def _loss(away: Array) -> Array:
    """Loss above that of the optimum, over its curvature, for each bend."""
    away, bends = away[..., None, :], _BENDS[:, None]
    out: Array = (np.expm1(bends * away) / bends - away) / bends
    return out


_PATH_PRIOR = _path_prior(_GRID)
# By action, and by bend and optimum; the loss of the action T = 1.
_LOSSES = _loss(_GRID[:, None] - _GRID).reshape(len(_GRID), -1)
_LOSS_AT_ONE = _loss(-_GRID)


@dataclass(frozen=True, slots=True)
class PosteriorState:
    """Posterior of ``log(1 / T)`` after some releases.

    `log_beta`, `clip` and `bound` are the next broadcast, `log_like` is the likelihood
    on the grid, `sd` the width of the posterior while asking, `precision` the sum of
    the inverse noise variances. `best` is the point of least expected loss and `gain`
    what it is expected to gain over T = 1.
    """

    log_beta: float
    clip: float
    bound: float
    log_like: Array
    sd: float = START_SD
    rounds: int = 0
    precision: float = 0.0
    best: float = 0.0
    gain: float = 0.0

    @property
    def temperature(self) -> float:
        return exp(-self.best)

    @property
    def converged(self) -> bool:
        """Whether the posterior is at most half as wide as the prior."""
        return self.sd < START_SD / 2

    @property
    def improves(self) -> bool:
        """Whether the temperature is expected to reduce the loss."""
        return self.gain > 0


@dataclass(frozen=True, slots=True)
class TemperaturePosterior:
    """Temperature of least posterior expected loss, from noisy slopes and curvatures.

    A client sends slope and curvature of its summed loss in ``log(1 / T)`` at the
    server's current value, divided by ``bound + clip n`` for its n rows and clipped to
    L2 norm 1: one very wrong row cannot exceed `bound`, and the mean slope of many rows
    cannot exceed `clip`. The server keeps a posterior on a grid in which the rows of a
    usual client are unknown and the clip is a part of the likelihood
    (`skfedcal.methods.temperature.posterior`). The same rounds serve clients of one
    row and of thousands.

    clip: Bound on a client's mean slope in every round, whatever its rows; None follows
        a public schedule of `clip` and `bound`.
    signal: Number of clients times mu, the Gaussian differential privacy of all
        releases together, as far as it is known beforehand: the clips of the first
        round.
    n_rounds: Releases.
    """

    clip: float | None = None
    signal: float = 20.0
    n_rounds: int = 5

    def init(self, n_classes: int) -> PosteriorState:
        noise = sqrt(self.n_rounds) / max(self.signal, 1e-9)
        clip, bound = self._clips(noise, START_SD)
        return PosteriorState(0.0, clip, bound, start())

    def broadcast(self, state: PosteriorState) -> Arrays:
        return {
            "log_beta": np.asarray(state.log_beta),
            "clip": np.asarray(state.clip),
            "bound": np.asarray(state.bound),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"slopes": BlockSpec((2,), clip=1.0)}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return (
            {
                "log_beta": Field(low=-LOG_BOUND, high=LOG_BOUND),
                "clip": Field(low=_LEAST_CLIP, high=1 / _LEAST_CLIP),
                "bound": Field(low=0.0, high=1 / _LEAST_CLIP),
            },
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        beta, clip = exp(float(broadcast["log_beta"])), float(broadcast["clip"])
        # In the precision of the rows: its errors are far below any noise.
        sums, sizes = derivative_sums(clients, beta, 2, clients.rows.dtype)
        # From beta to log(1 / T): slope beta L', curvature beta^2 L'' (the term of the
        # slope is left out), the latter scaled to about the size of the slope.
        sums *= [beta, beta**2 * clip / CURVATURE_UNIT]
        # A client without rows sends zeros.
        scale = float(broadcast["bound"]) + clip * np.maximum(sizes[:, 1], 1)
        return {"slopes": sums / scale[:, None]}

    def update(
        self, state: PosteriorState, total: Sums, n_clients: int
    ) -> PosteriorState:
        noise = total.noise.get("slopes", 0.0) / n_clients
        log_like = add_release(
            state.log_like,
            total["slopes"] / n_clients,
            point=state.log_beta,
            clip=state.clip,
            bound=state.bound,
            noise=noise,
            n_clients=n_clients,
        )
        weight = marginal(log_like)
        point, sd = next_point(weight)
        clip, bound = self._clips(noise, sd)
        precision = state.precision + max(noise, 1e-9) ** -2
        spike = spike_weight(sqrt(precision))
        best = best_action(weight, spike)
        return PosteriorState(
            point,
            clip,
            bound,
            log_like,
            sd,
            state.rounds + 1,
            precision,
            best.log_beta,
            best.gain,
        )

    def done(self, state: PosteriorState) -> bool:
        return state.rounds >= self.n_rounds

    def _clips(self, noise: float, sd: float) -> tuple[float, float]:
        """Bounds on the mean and on the sum of slopes in the next round."""
        if self.clip is not None:
            return self.clip, 0.0
        return mean_clip(noise, sd), sum_bound(noise)
