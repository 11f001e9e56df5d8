"""Temperature scaling under noise: a posterior of the temperature on a grid.

What clients send, and the rounds: `TemperaturePosterior`. With ``x = log(1 / T)``, an
optimum ``x*``, curvature ``h`` and bend ``a``, the mean log loss is modelled as ``h
((exp(a d) - 1) / a - d) / a``, ``d = x - x*``. A client of n rows sends the slope and
curvature of its summed loss over ``bound + clip n``, cut to length 1. The rows of a
usual client are unknown, and the cut is a part of the model.

The flow is `start`, then for each release `add_release` and `next_point`, at last
`best_action`. Everything is a function of released numbers and public constants.
"""

from __future__ import annotations

from dataclasses import dataclass
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
_AXES = (_GRID, np.geomspace(0.06, 1.6, 7), _BENDS, np.array([1, 4, 16, 64, 400.0]))
# One axis each, which broadcast to all cells.
_OPTIMUM, _H, _A, _ROWS = np.meshgrid(*_AXES, indexing="ij", sparse=True)
_SHAPE = np.broadcast_shapes(*(np.shape(a) for a in (_OPTIMUM, _H, _A, _ROWS)))


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
    return _ROW_SLOPE * float(np.clip(ratio**_ROW_POWER, *_ROW_RANGE))


def mean_clip(noise: float, sd: float) -> float:
    """Bound on the mean slope of a client of many rows, for a posterior of width sd."""
    ratio = float(np.clip(noise / _CLIP_NOISE, *_CLIP_NOISE_RANGE))
    return float(np.clip((_CLIP_BASE + _CLIP_WIDTH * sd) / sqrt(ratio), *_CLIP_RANGE))


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
    slope = unit * ((growth - 1) / _A)
    curvature = np.minimum(unit * (growth * (clip / CURVATURE_UNIT)), 1.0)
    mean, inside = _clipped_mean(slope, scale * np.sqrt(_SPREAD**2 + _H / _ROWS))
    error = _MODEL**2 + (_TILT * away) ** 2 + (_BEND * away**2) ** 2
    variance = (unit * inside) ** 2 * error
    variance += noise**2 + unit * scale / (_ROWS * n_clients)
    variance += (_CUT * (np.clip(slope, -1, 1) - mean)) ** 2
    # A curvature of exactly 0 is certain without noise; rounding is not.
    curvature_variance = (_CURVATURE * curvature) ** 2 + (noise**2 + 1e-18)
    out: Array = (release[0] - mean) ** 2 / variance
    out += (release[1] - curvature) ** 2 / curvature_variance
    out += np.log(variance * curvature_variance)
    return log_like - 0.5 * out


def next_point(log_like: Array) -> tuple[float, float]:
    """Where to ask next, and the posterior standard deviation of the optimum.

    The prior is broad, so that questions go where the optimum may be.
    """
    return _moments(_posterior(log_like, _path_prior(_GRID)).sum(axis=(1, 2, 3)))


def best_action(log_like: Array, spike: float) -> Action:
    """Point of least expected loss, under a prior with a spike at ``T = 1``.

    log_like: Log-likelihood of all releases.
    spike: Prior probability that the model is calibrated already, see `spike_weight`.
    """
    cells = _posterior(log_like, _final_prior(_GRID, spike)).sum(axis=3)
    # Curvature-weighted probability of each optimum and bend.
    weight = (cells * _H[..., 0]).sum(axis=1)
    losses = _LOSSES @ weight.ravel()
    i = int(np.clip(losses.argmin(), 1, len(_GRID) - 2))
    left, middle, right = losses[i - 1 : i + 2]
    turn = 0.5 * (left - right) / max(left - 2 * middle + right, 1e-300)
    best = float(_GRID[i] + _STEP * np.clip(turn, -0.5, 0.5))
    gain = float(((_loss(-_GRID) - _loss(best - _GRID)) * weight).sum())
    _, sd = _moments(cells.sum(axis=(1, 2)))
    return Action(best, gain, sd) if gain > 0 else Action(0.0, 0.0, sd)


def spike_weight(signal: float) -> float:
    """Prior probability that the model is calibrated already.

    signal: Number of clients times mu, the GDP parameter of all releases together.
    """
    strict = (weight for below, weight in _STRICT_SPIKES.items() if signal < below)
    return next(strict, _SPIKE)


def _clipped_mean(mean: Array, sd: Array) -> tuple[Array, Array]:
    """Mean of a normal number cut to [-1, 1], and the probability that it is inside."""
    upper, lower = (1 - mean) / sd, (-1 - mean) / sd
    above, at_upper = _normal_tail(upper)
    below, at_lower = _normal_tail(-lower)
    inside = 1 - above - below
    return mean * inside + sd * (at_lower - at_upper) + above - below, inside


def _normal_tail(values: Array) -> tuple[Array, Array]:
    """Probability above, to 8e-8, and density of a normal number; numpy has neither."""
    # Abramowitz and Stegun, Handbook of Mathematical Functions, 26.2.17.
    size = np.minimum(np.abs(values), 30.0)
    density = np.exp(-0.5 * size**2) * (1 / sqrt(2 * pi))
    t = 1 / (1 + 0.2316419 * size)
    tail = 1.781477937 + t * (-1.821255978 + t * 1.330274429)
    tail = density * (t * (0.31938153 + t * (-0.356563782 + t * tail)))
    return np.where(values > 0, tail, 1 - tail), density


def _density(x: Array, mean: float, sd: float) -> Array:
    out: Array = np.exp(-0.5 * ((x - mean) / sd) ** 2) / sd
    return out


def _path_prior(x: Array) -> Array:
    slab = 0.64 * _density(x, -0.2, 0.5) + 0.16 * _density(x, -0.1, 0.9)
    return 0.2 * _density(x, 0.0, 0.05) + slab + 1e-12


def _final_prior(x: Array, spike: float) -> Array:
    # Mean and spread of the optima of 21 public files, and a wide part around 0.
    slab = 0.5 * _density(x, -0.4, 0.3) + 0.5 * _density(x, 0.0, 0.6)
    return spike * _density(x, 0.0, 0.05) + (1 - spike) * slab + 1e-12


def _posterior(log_like: Array, prior: Array) -> Array:
    """Probability of each cell, from the prior of the optimum."""
    cells = np.exp(log_like - log_like.max()) * prior[:, None, None, None]
    out: Array = cells / cells.sum()
    return out


def _moments(weight: Array) -> tuple[float, float]:
    """Mean and standard deviation of a distribution over the grid."""
    # No BLAS: last bits of the next point would differ between processors.
    mean = float((_GRID * weight).sum())
    return mean, sqrt(max(float(((_GRID - mean) ** 2 * weight).sum()), 1e-8))


def _loss(away: Array) -> Array:
    """Loss above that of the optimum, over its curvature, for each bend."""
    away = away[..., None]
    out: Array = (np.expm1(_BENDS * away) / _BENDS - away) / _BENDS
    return out


# By action, and by optimum and bend.
_LOSSES = _loss(_GRID[:, None] - _GRID).reshape(len(_GRID), -1)


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
        sums, _ = derivative_sums(clients, beta, 2, clients.rows.dtype)
        # From beta to log(1 / T): slope beta L', curvature beta^2 L'' (the term of the
        # slope is left out), the latter scaled to about the size of the slope.
        sums *= [beta, beta**2 * clip / CURVATURE_UNIT]
        # A client without rows sends zeros.
        scale = float(broadcast["bound"]) + clip * np.maximum(clients.sizes, 1)
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
        point, sd = next_point(log_like)
        clip, bound = self._clips(noise, sd)
        precision = state.precision + max(noise, 1e-9) ** -2
        spike = spike_weight(sqrt(precision))
        best = best_action(log_like, spike)
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
