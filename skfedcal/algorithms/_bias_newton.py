"""Class biases and a temperature by safeguarded Newton steps on summed derivatives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import e, exp, log

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
)
from skfedcal.algorithms._bias_moments import (
    BIAS_BOUND,
    SoftmaxMoments,
    arrow_size,
    full_size,
    gaps,
    unpack,
)
from skfedcal.algorithms._temperature import LOG_BOUND
from skfedcal.data._dataset import FederatedDataset

# Points in log(1 / T) of the first round: close together where networks lie.
START_GRID = np.array([-LOG_BOUND, -4.6, -2.3, -1.3, -0.65, 0.0, 0.65, 2.3, LOG_BOUND])

# Longest step of a round, in a bias; 1 / T changes by a factor of e at most.
_MAX_STEP = 2.0

# All products of two classes are sent up to this many classes (63 kB per client at
# 100); beyond it their diagonal, and the server learns the rest from its steps.
MAX_FULL = 128
_MEMORY = 10

# Gain per row, and length, of a step after which no further one is needed. A Newton
# step leaves about the square of its own error, a step of learned curvature a part.
_SMALL_GAIN = {True: 1e-7, False: 1e-10}
_SMALL_STEP = 1e-2

# Gain per row that rounding may hide at the optimum.
_NEAR_GAIN = 1e-6

# Slope and curvature per row below which the loss is flat in the temperature.
_FLAT = 1e-9

# A loss per row that is higher by no more than this is not worse: rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class BiasState:
    """Best point so far, the point that is asked next, and what is known of the loss.

    Points are ``(log(1 / T), b_1, ..., b_c)``. `gradient` is that at `best` in
    ``(beta, b)``; `steps` and `changes` are the last steps and the changes of the
    gradient along them, zero where there were fewer.
    """

    best: Array
    asked: Array
    gradient: Array
    steps: Array
    changes: Array
    loss: float = np.inf
    gain: float = np.inf
    started: bool = False
    finished: bool = False
    flat: bool = False

    @property
    def temperature(self) -> float:
        return exp(-self.best[0])

    @property
    def bias(self) -> Array:
        return self.best[1:] - self.best[1:].mean()

    @property
    def bounded(self) -> bool:
        """Whether the loss is flat in the temperature, or falls beyond a bound."""
        edge = np.abs(self.best) >= _bounds(len(self.best)) - 1e-6
        return self.flat or bool(edge.any())

    @property
    def converged(self) -> bool:
        """Whether the optimum was reached and lies inside the bounds."""
        # Cohorts that change can end the steps while the last gradient promises more.
        return self.finished and not self.bounded and self.gain <= _NEAR_GAIN


@dataclass(frozen=True, slots=True)
class BiasTemperatureNewton:
    """Minimise the pooled log loss in ``beta = 1 / T`` and class biases, exactly.

    The first round asks for slopes and the diagonal of the curvature at a few
    temperatures and starts from the best one. Later rounds ask for loss, gradient and
    curvature at one point. A point that is worse than the last one is drawn back toward
    it: the loss never rises from round to round.

    Parameters
    ----------
    ridge : float, default=1e-5
        Weight of ``|b|^2 / 2`` beside the mean log loss. It keeps the bias of a class
        without rows finite and makes the biases add up to 0.
    n_rounds : int, default=30
        Most rounds; outputs of real networks take 3 or 4.
    """

    ridge: float = 1e-5
    n_rounds: int = 30

    def init(self, n_classes: int) -> BiasState:
        size = n_classes + 1
        memory = np.zeros((0 if n_classes <= MAX_FULL else _MEMORY, size))
        zero = np.zeros(size)
        return BiasState(zero, zero, zero, memory, memory)

    def broadcast(self, state: BiasState) -> Arrays:
        points = state.asked[None]
        if not state.started:
            points = np.zeros((len(START_GRID), len(state.asked)))
            points[:, 0] = START_GRID
        return {"points": points, "started": np.asarray(state.started)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_points, size = broadcast["points"].shape
        full = bool(broadcast["started"]) and size - 1 <= MAX_FULL
        n_values = (full_size if full else arrow_size)(size - 1)
        return {"derivatives": BlockSpec((n_points, n_values))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        size = n_classes + 1
        return (
            {
                "points": Field((len(START_GRID), size)),
                "started": Field((), "flag"),
            },
            {"points": Field((1, size)), "started": Field((), "flag")},
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        shape = self.spec(broadcast)["derivatives"].shape
        full = bool(broadcast["started"]) and clients.n_classes <= MAX_FULL
        out = np.zeros((len(clients), *shape))
        for block in clients.blocks():
            away = gaps(block)
            for i, point in enumerate(broadcast["points"]):
                moments = SoftmaxMoments(block, away, exp(point[0]), point[1:])
                sums = moments.full() if full else moments.arrow()
                out[block.clients, i] += sums
        return {"derivatives": out}

    def update(self, state: BiasState, total: Sums, n_clients: int) -> BiasState:
        sums = total["derivatives"]
        if not sums[0, 0] > 0:  # a cohort without rows says nothing
            return state
        if not state.started:
            return _start(state, sums, self.ridge)
        n_classes = len(state.asked) - 1
        full = n_classes <= MAX_FULL
        loss, gradient, curvature = unpack(sums[0], n_classes, full)
        bias = state.asked[1:]
        loss += self.ridge / 2 * float(bias @ bias)
        if loss > state.loss + _ROUNDING * (1 + abs(state.loss)):
            return _draw_back(state, loss, gradient)
        gradient[1:] += self.ridge * bias
        curvature[1:, 1:] += self.ridge * np.eye(n_classes)
        state = _accept(state, loss, gradient)
        if not full:
            curvature = _learned(curvature, state)
        return _step(state, gradient, curvature, _SMALL_GAIN[full])

    def done(self, state: BiasState) -> bool:
        return state.finished


def _start(state: BiasState, sums: Array, ridge: float) -> BiasState:
    """Best temperature of the grid, and a first guess of the biases."""
    n_classes = len(state.asked) - 1
    parts = [unpack(row, n_classes, full=False) for row in sums]
    losses = np.array([loss for loss, _, _ in parts])
    # Among equals the one nearest to T = 1; a loss of 0 is 0 from some point on.
    order = np.argsort(np.abs(START_GRID), kind="stable")
    lowest = int(order[losses[order] <= losses.min() + _FLAT][0])
    best = np.zeros(n_classes + 1)
    best[0] = START_GRID[lowest]
    state = replace(state, best=best, loss=float(losses[lowest]), started=True)
    slopes = np.array([gradient[0] for _, gradient, _ in parts])
    bends = np.array([curvature[0, 0] for _, _, curvature in parts]) + slopes
    rising = np.flatnonzero((slopes[:-1] < 0) & (slopes[1:] > 0))
    if not rising.size:
        return replace(state, asked=best)
    i = int(rising[0])
    width = START_GRID[i + 1] - START_GRID[i]
    part = _root(slopes[i : i + 2], width * bends[i : i + 2])
    here = best.copy()
    here[0] = START_GRID[i] + part * width
    (_, left, left_curvature), (_, right, right_curvature) = parts[i : i + 2]
    gradient = (1 - part) * left + part * right
    curvature = (1 - part) * left_curvature + part * right_curvature
    gradient[0] = 0.0
    curvature[1:, 1:] += ridge * np.eye(n_classes)
    return replace(state, asked=_move(here, gradient, curvature)[0])


def _root(values: Array, slopes: Array) -> float:
    """Root in (0, 1) of the cubic with these values and slopes at 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(40):
        t = (low + high) / 2
        s = 1 - t
        value = s * s * ((1 + 2 * t) * values[0] + t * slopes[0])
        value += t * t * ((1 + 2 * s) * values[1] - s * slopes[1])
        low, high = (t, high) if value < 0 else (low, t)
    return (low + high) / 2


def _accept(state: BiasState, loss: float, gradient: Array) -> BiasState:
    """Make the asked point the best one and remember the step to it."""
    beta = exp(state.asked[0])
    here = np.concatenate([[gradient[0] / beta], gradient[1:]])
    steps, changes = state.steps, state.changes
    if len(steps) and state.gradient.any():
        step = state.asked - state.best
        step[0] = beta - exp(state.best[0])
        steps = np.vstack([steps[1:], step])
        changes = np.vstack([changes[1:], here - state.gradient])
    return replace(
        state,
        best=state.asked,
        loss=loss,
        gradient=here,
        steps=steps,
        changes=changes,
    )


def _draw_back(state: BiasState, loss: float, gradient: Array) -> BiasState:
    """Ask at the lowest point of the cubic between the best point and a worse one."""
    first, last = exp(state.best[0]), exp(state.asked[0])
    step = state.asked - state.best
    step[0] = last - first
    slope = float(state.gradient @ step)
    end = float(gradient[0] / last * step[0] + gradient[1:] @ step[1:])
    part = 0.5
    if slope < 0 and np.isfinite(loss):
        rise = loss - state.loss
        bend = slope + end - 2 * rise
        root = np.sqrt(max((rise * 3 - end - 2 * slope) ** 2 - 3 * bend * slope, 0.0))
        denominator = rise * 3 - end - 2 * slope + root
        if denominator > 0:
            part = -slope / denominator
    part = float(np.clip(part, 0.1, 0.5))
    asked = state.best + part * step
    asked[0] = log(first + part * step[0])
    # Nothing between the two points is better than rounding can tell.
    still = float(np.abs(asked - state.best).max()) < 1e-10
    return replace(state, asked=asked, finished=still)


def _learned(curvature: Array, state: BiasState) -> Array:
    """Curvature corrected along past steps (BFGS)."""
    beta = exp(state.best[0])
    for step, change in zip(state.steps, state.changes, strict=True):
        # Steps were in beta; the curvature is in its relative change.
        step, change = step.copy(), change.copy()
        step[0] /= beta
        change[0] *= beta
        product = float(step @ change)
        along = curvature @ step
        length = float(step @ along)
        if product <= 1e-10 * length or length <= 0:
            continue
        curvature = curvature + np.outer(change, change) / product
        curvature -= np.outer(along, along) / length
    return curvature


def _step(
    state: BiasState, gradient: Array, curvature: Array, small: float
) -> BiasState:
    """Move on from the best point; a step that gains little is the last one."""
    flat = max(abs(gradient[0]), curvature[0, 0]) <= _FLAT
    asked, gain, whole = _move(state.best, gradient, curvature)
    length = float(np.abs(asked - state.best).max())
    finished = whole and gain <= small and length <= _SMALL_STEP
    finished |= length == 0.0
    # The last step is not checked: so short a step gains what it promises.
    best = asked if finished else state.best
    return replace(
        state, best=best, asked=asked, gain=gain, finished=finished, flat=flat
    )


def _move(here: Array, gradient: Array, curvature: Array) -> tuple[Array, float, bool]:
    """Newton step inside the bounds: where to, its gain, and whether it is whole."""
    bounds = _bounds(len(here))
    free = ~((here <= -bounds) & (gradient > 0)) & ~((here >= bounds) & (gradient < 0))
    free[0] &= max(abs(gradient[0]), curvature[0, 0]) > _FLAT
    step = np.zeros_like(here)
    part = curvature[np.ix_(free, free)]
    # Rounding leaves an arrow without its point, or a flat temperature, singular.
    part[np.diag_indices_from(part)] += 1e-13 + 1e-12 * np.diag(part).max(initial=0.0)
    step[free] = _solve(part, -gradient[free])
    if free[1:].all():
        # A common shift of the biases changes nothing but the ridge.
        step[1:] -= step[1:].mean()
    gain = -float(gradient @ step) / 2
    longest = float(np.abs(step[1:]).max())
    share = min(1.0, _MAX_STEP / max(longest, 1e-300))
    limit = e - 1 if step[0] > 0 else 1 - 1 / e
    share = min(share, limit / max(abs(step[0]), 1e-300))
    asked = here + share * step
    asked[0] = here[0] + np.log1p(share * step[0])
    return np.clip(asked, -bounds, bounds), gain, share == 1.0


def _solve(matrix: Array, right: Array) -> Array:
    """Solution, or the step of the diagonal alone where that does not descend."""
    try:
        found = np.linalg.solve(matrix, right)
    except np.linalg.LinAlgError:
        found = np.full_like(right, np.nan)
    if np.isfinite(found).all() and found @ right >= 0:
        return found
    return right / np.maximum(np.diag(matrix), 1e-12)


def _bounds(size: int) -> Array:
    out = np.full(size, BIAS_BOUND)
    out[0] = LOG_BOUND
    return out
