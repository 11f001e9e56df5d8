"""Temperature scaling under noise: few releases, each centred on the public iterate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
)
from skfedcal.algorithms._moments import LossDerivatives
from skfedcal.data._dataset import FederatedDataset

# Public constants, chosen on the outputs of real networks (docs: privacy guide).
# Typical curvature of the mean log loss in log(1 / T), and its spread.
_CURVATURE, _CURVATURE_SD, _CURVATURE_FLOOR = 0.4, 0.3, 0.08
# Prior spread of log(1 / T) and longest step of one round.
_PRIOR_SD, _MAX_STEP = 0.8, 1.2
# Clip on a client's mean slope: the first round must see how far to go, later ones
# refine. The last clip shrinks with the noise of the mean (0.065 at eps=1, K=100).
_FIRST_CLIP, _LAST_CLIP, _CLIP_RANGE = 0.5, 0.15, (0.10, 0.50)
_REFERENCE_NOISE, _CLIP_POWER = 0.065, 0.4
# Standard deviations by which a slope must differ from 0, and the part by which the
# curvature at one temperature may be off at another.
_STANDS_OUT, _CURVATURE_BEND = 1.8, 0.3


@dataclass(frozen=True, slots=True)
class PrivateState:
    """Posterior of ``log(1 / T)`` after some releases.

    `points` are where clients were asked, `roots` and `variances` what each release
    says about the optimum. For the question whether T = 1 would do: `slopes` with the
    variances `slope_noise`, the mean of the curvatures and the variance of that mean,
    and the variance `chance` that the labels give to a slope.
    """

    log_beta: float = 0.0
    sd: float = _PRIOR_SD
    clip: float = _FIRST_CLIP
    rounds: int = 0
    points: Array = field(default_factory=lambda: np.empty(0))
    roots: Array = field(default_factory=lambda: np.empty(0))
    variances: Array = field(default_factory=lambda: np.empty(0))
    slopes: Array = field(default_factory=lambda: np.empty(0))
    slope_noise: Array = field(default_factory=lambda: np.empty(0))
    curvature: float = 0.0
    curvature_noise: float = np.inf
    chance: float = 0.0

    @property
    def temperature(self) -> float:
        return float(np.exp(-self.log_beta))

    @property
    def converged(self) -> bool:
        """Whether the releases narrowed the prior at least by half."""
        return self.sd < _PRIOR_SD / 2

    @property
    def evidence(self) -> float:
        """Slope at T = 1 over what noise and chance in the labels make of it.

        The larger of two answers: that of the first release, which was asked there, and
        that of all, by way of the mean curvature, which is sharper near T = 1. Errors
        of slopes do not depend on where they were asked, so that their variance is the
        one that is known; that of roots, which divide by a noisy curvature, is not.
        """
        if not self.slopes.size:
            return 0.0
        weights = 1 / self.slope_noise
        total = weights.sum()
        center = float(weights @ self.points / total)
        slope = float(weights @ self.slopes / total) - self.curvature * center
        bend = (_CURVATURE_BEND * self.curvature) ** 2
        doubt = center**2 * (self.curvature_noise + bend)
        first = abs(self.slopes[0]) / np.sqrt(self.slope_noise[0] + self.chance)
        return float(max(first, abs(slope) / np.sqrt(1 / total + doubt + self.chance)))

    @property
    def improves(self) -> bool:
        """Whether to use the result at all; noise alone says yes in one of ten fits."""
        return self.evidence > _STANDS_OUT


State = TypeVar("State", bound=PrivateState)


@dataclass(frozen=True, slots=True)
class TemperaturePosterior:
    """Posterior mean of the temperature from noisy slopes and curvatures.

    Each client sends the mean slope and curvature of its loss in ``log(1 / T)`` at the
    server's current value, scaled and clipped to L2 norm 1. The server turns each
    release into a Newton estimate with its known noise variance and combines them with
    a normal prior; releases taken far from where they point fade out.

    Parameters
    ----------
    clip : float, default=None
        Bound on a client's mean slope in every round; None follows a public schedule.
    curvature_clip : float, default=1.0
        Bound on a client's mean curvature.
    full_rows : int, default=25
        A client with this many rows counts fully, one with fewer in proportion.
    n_rounds : int, default=5
        Releases; more of them reach temperatures far from 1 and cost little.
    """

    clip: float | None = None
    curvature_clip: float = 1.0
    full_rows: int = 25
    n_rounds: int = 5

    def init(self, n_classes: int) -> PrivateState:
        return PrivateState(clip=_FIRST_CLIP if self.clip is None else self.clip)

    def broadcast(self, state: PrivateState) -> Arrays:
        return {"log_beta": np.asarray(state.log_beta), "clip": np.asarray(state.clip)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"slopes": BlockSpec((2,), clip=1.0)}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return ({"log_beta": Field(), "clip": Field()},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        beta = np.exp(float(broadcast["log_beta"]))
        sums = np.zeros((len(clients), 2))
        derivatives = LossDerivatives(np.float64)
        for block in clients.blocks():
            values = derivatives(block.rows, block.labels, beta, 2)
            sums[block.clients] += block.sum_by_client(values)
        slope = beta * sums[:, 0]
        curvature = beta**2 * sums[:, 1] + slope
        scale = np.maximum(clients.sizes, self.full_rows)
        units = np.array([float(broadcast["clip"]), self.curvature_clip])
        return {"slopes": np.column_stack([slope, curvature]) / scale[:, None] / units}

    def update(self, state: State, total: Sums, n_clients: int) -> State:
        slope, curvature = total["slopes"] / n_clients
        noise = total.noise.get("slopes", 0.0) / n_clients
        curvature *= self.curvature_clip
        spread = (noise * self.curvature_clip) ** 2
        state = self._add_slope(state, slope, noise, curvature, n_clients)
        curvature += spread / (spread + _CURVATURE_SD**2) * (_CURVATURE - curvature)
        curvature = max(curvature, _CURVATURE_FLOOR)
        step = float(np.clip(slope * state.clip / curvature, -_MAX_STEP, _MAX_STEP))
        state = replace(
            state,
            rounds=state.rounds + 1,
            points=np.append(state.points, state.log_beta),
            roots=np.append(state.roots, state.log_beta - step),
            variances=np.append(state.variances, (noise * state.clip / curvature) ** 2),
        )
        return self._combine(state, noise)

    def _add_slope(
        self, state: State, slope: float, noise: float, curvature: float, n_clients: int
    ) -> State:
        """Keep what tells T from 1."""
        n_rounds = state.rounds + 1
        mean = state.curvature + (curvature - state.curvature) / n_rounds
        spread = max((noise * self.curvature_clip) ** 2, 1e-18)
        return replace(
            state,
            slopes=np.append(state.slopes, slope * state.clip),
            slope_noise=np.append(
                state.slope_noise, max((noise * state.clip) ** 2, 1e-18)
            ),
            curvature=float(mean),
            curvature_noise=spread / n_rounds,
            # A row's slope has the variance of its curvature; a client has full_rows.
            chance=max(float(mean), 0.0) / (self.full_rows * n_clients),
        )

    def done(self, state: PrivateState) -> bool:
        return state.rounds >= self.n_rounds

    def _combine(self, state: State, noise: float) -> State:
        """Posterior mean, and the clip of the next round."""
        # A Newton step of length s is off by about 0.35 s^2; 0.02 is model error.
        bend = (0.35 * (state.roots - state.points) ** 2) ** 2
        weights = 1 / (state.variances + bend + 0.02**2)
        precision = weights.sum() + 1 / _PRIOR_SD**2
        clip = self.clip
        if clip is None:
            last = _LAST_CLIP * (max(noise, 1e-9) / _REFERENCE_NOISE) ** -_CLIP_POWER
            ratio = float(np.clip(last, *_CLIP_RANGE)) / _FIRST_CLIP
            part = state.rounds / max(self.n_rounds - 1, 1)
            clip = _FIRST_CLIP * ratio ** min(part, 1.0)
        return replace(
            state,
            log_beta=float(weights @ state.roots / precision),
            sd=float(precision**-0.5),
            clip=float(clip),
        )
