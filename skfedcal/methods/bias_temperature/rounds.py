"""Bias and temperature scaling: client sums and server updates.

Residual bins: correction of the remaining error, by class and probability. Bins are hat
functions with nodes one apart in the logit of the probability, so that the correction
is continuous. Below the first node it fades in proportion to the probability: a class
without probability gets none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import e, exp, log
from typing import Any

import numpy as np

from skfedcal import _compiled
from skfedcal.clients.dataset import Block, FederatedDataset
from skfedcal.contract import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    server_field,
)
from skfedcal.methods.bias_temperature.bias_moments import (
    BIAS_BOUND,
    SoftmaxMoments,
    arrow_size,
    full_size,
    gaps,
    unpack,
)
from skfedcal.methods.graph import Value, log1p, log_softmax
from skfedcal.methods.temperature.moments import LOG_BOUND, hash_sample, row_sums

# Points in log(1 / T) of the first round: close together where networks lie.
START_GRID = np.array([-LOG_BOUND, -4.6, -2.3, -1.3, -0.65, 0.0, 0.65, 2.3, LOG_BOUND])

# The first round may ask one row in so many. Sites accept no other part: sums over
# several parts could be subtracted from each other, until single rows are left.
SAMPLE = 8

# Longest step of a round, in a bias; 1 / T changes by a factor of e at most.
_MAX_STEP = 2.0

# All products of two classes are sent up to this many classes (63 kB per client at
# 100); beyond it their diagonal, and the server estimates the rest from its steps
# (BFGS).
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
    """Best point so far, the next point to query, and the derivatives of the loss.

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
    temperatures, for a start. Later rounds ask for loss, gradient and curvature at one
    point. A step to a worse point is shortened: the loss never increases from round to
    round.

    ridge: Weight of ``|b|^2 / 2`` beside the mean log loss. It keeps the bias of a
        class without rows finite and makes the biases add up to 0.
    n_rounds: Most rounds; outputs of real networks take 3 or 4.
    sample: 1, or `SAMPLE`: one row in so many is asked in the first round, by a hash of
        its first entry (`hash_sample`). The first round is nine times the work of
        another one, and the start needs no more digits.
    """

    ridge: float = 1e-5
    n_rounds: int = 30
    sample: int = server_field(1)

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
        out = {"points": points, "started": np.asarray(state.started)}
        if not state.started and self.sample > 1:
            out["sample"] = np.asarray(self.sample)
        return out

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_points, size = broadcast["points"].shape
        full = bool(broadcast["started"]) and size - 1 <= MAX_FULL
        n_values = (full_size if full else arrow_size)(size - 1)
        return {"derivatives": BlockSpec((n_points, n_values))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        size = n_classes + 1
        grid = {
            "points": Field((len(START_GRID), size)),
            "started": Field((), "flag"),
        }
        return (
            grid,
            {**grid, "sample": Field((), "whole", SAMPLE, SAMPLE)},
            {"points": Field((1, size)), "started": Field((), "flag")},
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        started = bool(broadcast["started"])
        full = started and clients.n_classes <= MAX_FULL
        points = broadcast["points"].copy()
        points[:, 0] = np.exp(points[:, 0])
        out = np.zeros((len(clients), *self.spec(broadcast)["derivatives"].shape))
        part = clients
        if "sample" in broadcast:
            part = hash_sample(clients, int(broadcast["sample"]))
        if _compiled.bias_sums(part, points, full, out):
            return {"derivatives": out}
        for block in part.blocks():
            away = gaps(block)
            for i, (beta, *bias) in enumerate(points):
                moments = SoftmaxMoments(block, away, beta, np.array(bias))
                sums = moments.full() if full else moments.arrow()
                out[block.clients, i] += sums
        return {"derivatives": out}

    def update(self, state: BiasState, total: Sums, n_clients: int) -> BiasState:
        sums = total["derivatives"]
        if not sums[0, 0] > 0:  # a cohort without rows says nothing
            # Where entries repeat, as in a column of zeros, a sample may be empty.
            return state if self.sample == 1 else replace(state, started=True)
        if not state.started:
            return _start(state, sums, self.ridge, self.sample)
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


def _start(state: BiasState, sums: Array, ridge: float, sample: int) -> BiasState:
    """Temperature of least loss, by the points of the grid, and a guess of the biases.

    With a `sample` there is no loss to compare with: the next one is accepted.
    """
    n_classes = len(state.asked) - 1
    parts = [unpack(row, n_classes, full=False) for row in sums]
    losses = np.array([loss for loss, _, _ in parts])
    # Among equals the one nearest to T = 1; a loss of 0 is 0 from some point on.
    order = np.argsort(np.abs(START_GRID), kind="stable")
    lowest = int(order[losses[order] <= losses.min() + _FLAT][0])
    here = np.zeros(n_classes + 1)
    here[0] = START_GRID[lowest]
    loss = float(losses[lowest]) if sample == 1 else np.inf
    state = replace(state, best=here.copy(), loss=loss, started=True)
    slopes = np.array([gradient[0] for _, gradient, _ in parts])
    bends = np.array([curvature[0, 0] for _, _, curvature in parts]) + slopes
    rising = np.flatnonzero((slopes[:-1] < 0) & (slopes[1:] > 0))
    if not rising.size:
        return replace(state, asked=state.best)
    i = int(rising[0])
    width = START_GRID[i + 1] - START_GRID[i]
    part = _root(slopes[i : i + 2], width * bends[i : i + 2])
    here[0] = START_GRID[i] + part * width
    (_, left, left_curvature), (_, right, right_curvature) = parts[i : i + 2]
    gradient = (1 - part) * left + part * right
    curvature = (1 - part) * left_curvature + part * right_curvature
    gradient[0] = 0.0
    # A bias of the sample is as uncertain as its slope; few are larger than one.
    ridge += 1 / sums[0, 0] if sample > 1 else 0.0
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
    """Make the queried point the best one and store the step to it."""
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
    """Query the minimum of the cubic between the best point and a worse one."""
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
    """Newton step inside the bounds: its end, its gain, and whether it is complete."""
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


# Pseudo-rows per class in a client's own label frequencies.
_SMOOTHING = 0.5


def label_counts(clients: FederatedDataset) -> Array:
    """Rows of each client by class."""
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    start, stop = clients.offsets[0], clients.offsets[-1]
    cell = owner * clients.n_classes + clients.labels[start:stop]
    shape = (len(clients), clients.n_classes)
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    return counts.reshape(shape).astype(np.float64)


def centred(values: Array) -> Array:
    """Shift to mean 0, because a constant added to all biases has no effect."""
    out: Array = values - values.mean()
    return out


def label_ratios(counts: Array, prior: Array) -> Array | None:
    """Label frequencies of each client over those of the population."""
    if not prior.size:
        return None
    own = counts + _SMOOTHING * len(prior) * prior
    own /= np.einsum("ij->i", own)[:, None]
    out: Array = own / prior
    return out


NODES = np.arange(-6.5, 5.0)
N_BINS = len(NODES)
LOWEST = 1 / (1 + np.exp(-NODES[0]))

# A probability is not lowered below this part of itself.
KEPT = 0.05

# Shares of the correction whose loss is compared at the end.
STRENGTHS = (0.0, 0.5, 1.0)

# Variance added to each cell when the spread of all is estimated: one with very many
# rows must not decide alone.
_SPREAD = 1e-6

# A cell with less weight than this says nothing.
_EMPTY = 1e-9

_STEPS, _RESIDUALS, _CHECK, _FINISHED = range(4)


@dataclass(frozen=True, slots=True)
class ResidualState(BiasState):
    """Bias and temperature, then a table of corrections and its strength."""

    table: Array = field(default_factory=lambda: np.zeros((0, N_BINS)))
    strength: float = 0.0
    phase: int = _STEPS
    rounds: int = 0

    @property
    def residual(self) -> Array:
        """Corrections of shape (n_classes, n_bins) that are added to probabilities."""
        return self.strength * self.table


@dataclass(frozen=True, slots=True)
class BiasTemperatureResidual:
    """Bias and temperature scaling, then residual bins: two more rounds.

    One round sums the residuals between labels and probabilities, the next one the loss
    with and without the correction, which is left out if it does not help.

    ridge, sample: As in `BiasTemperatureNewton`.
    n_rounds: Most rounds; the last two are for the bins.
    """

    ridge: float = 1e-5
    n_rounds: int = 32
    sample: int = server_field(1)

    @property
    def _newton(self) -> BiasTemperatureNewton:
        n_rounds = max(1, self.n_rounds - 2)
        return BiasTemperatureNewton(self.ridge, n_rounds, self.sample)

    def init(self, n_classes: int) -> ResidualState:
        start = self._newton.init(n_classes)
        return ResidualState(
            start.best,
            start.asked,
            start.gradient,
            start.steps,
            start.changes,
            table=np.zeros((n_classes, N_BINS)),
        )

    def broadcast(self, state: ResidualState) -> Arrays:
        phase = np.asarray(state.phase)
        if state.phase == _STEPS:
            return {**self._newton.broadcast(state), "phase": phase}
        if state.phase == _RESIDUALS:
            return {"point": state.best, "phase": phase}
        return {"point": state.best, "table": state.table, "phase": phase}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if broadcast["phase"] == _STEPS:
            return self._newton.spec(broadcast)
        if broadcast["phase"] == _RESIDUALS:
            return {"cells": BlockSpec((3, len(broadcast["point"]) - 1, N_BINS))}
        return {"losses": BlockSpec((len(STRENGTHS),))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        point, table = Field((n_classes + 1,)), Field((n_classes, N_BINS))

        def phase(index: int) -> Form:
            return {"phase": Field((), "whole", index, index)}

        steps = self._newton.forms(n_classes)
        return (
            *({**form, **phase(_STEPS)} for form in steps),
            {"point": point, **phase(_RESIDUALS)},
            {"point": point, "table": table, **phase(_CHECK)},
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        if broadcast["phase"] == _STEPS:
            return self._newton.query(broadcast, clients)
        beta, bias = float(np.exp(broadcast["point"][0])), broadcast["point"][1:]
        ((name, spec),) = self.spec(broadcast).items()
        out = np.zeros((len(clients), *spec.shape))
        for block in clients.blocks():
            moments = SoftmaxMoments(block, gaps(block), beta, bias)
            if broadcast["phase"] == _RESIDUALS:
                out[block.clients] += _cells(block, moments)
            else:
                out[block.clients] += _losses(block, moments, broadcast["table"])
        return {name: out}

    def update(
        self, state: ResidualState, total: Sums, n_clients: int
    ) -> ResidualState:
        state = replace(state, rounds=state.rounds + 1)
        if state.phase == _STEPS:
            state = self._newton.update(state, total, n_clients)  # type: ignore[assignment]
            ready = state.finished or state.rounds >= self._newton.n_rounds
            return replace(state, phase=_RESIDUALS) if ready else state
        if state.phase == _RESIDUALS:
            table = shrunken_residuals(*total["cells"])
            phase = _CHECK if table.any() else _FINISHED
            return replace(state, table=table, phase=phase)
        best = STRENGTHS[int(np.argmin(total["losses"]))]
        return replace(state, strength=best, phase=_FINISHED)

    def done(self, state: ResidualState) -> bool:
        return state.phase == _FINISHED


def shrunken_residuals(residual: Array, weight: Array, variance: Array) -> Array:
    """Correction of each class and bin from summed residuals.

    First the curve of all classes together, then the deviation of each class from it,
    both shrunk by how far their variance exceeds the sampling variance of the labels.

    residual, weight, variance of shape (n_classes, n_bins): Sums of ``h (y - q)``, ``h
        s`` and ``h^2 q (1 - q)``, for the hat function h and the factor s that fades
        below the first node.
    Result of shape (n_classes, n_bins): Corrections in [-1, 1].
    """
    common = _shrunken(residual.sum(axis=0), weight.sum(axis=0), variance.sum(axis=0))
    own = _shrunken(residual - weight * common, weight, variance)
    return np.clip(common + own, -1.0, 1.0)


def _shrunken(residual: Array, weight: Array, variance: Array) -> Array:
    filled = weight > _EMPTY
    size = np.where(filled, weight, 1.0)
    mean, noise = residual / size, variance / size**2
    trust = filled / (noise + _SPREAD)
    spread = float((trust * (mean**2 - noise)).sum() / max(float(trust.sum()), 1e-300))
    if spread <= 0:
        return np.zeros_like(mean)
    return np.where(filled, mean * spread / (spread + noise), 0.0)


def corrected(log_proba: Array, table: Array) -> Array:
    """Logarithm of the corrected probabilities, which need not add up to 1.

    log_proba of shape (n_classes, n_rows): Logarithm of probabilities.
    table of shape (n_classes, n_bins): Corrections.
    Result of shape (n_classes, n_rows).
    """
    proba = np.exp(log_proba)
    index, part = _position(log_proba, proba)
    row = np.arange(len(table))[:, None]
    change = table[row, index] * (1 - part) + table[row, index + 1] * part
    moved = proba + change * _fade(proba)
    lowered = moved <= KEPT * proba
    # In logarithms where nothing is added: probabilities that underflow stay finite.
    out = np.log(np.where(lowered, 1.0, np.minimum(moved, 1.0)))
    return np.where(lowered, log_proba + np.log(KEPT), out)


def _position(log_proba: Array, proba: Array) -> tuple[Array, Array]:
    """Node at or below each probability, and the part of the way to the next."""
    with np.errstate(divide="ignore"):
        logit = log_proba - np.log1p(-np.minimum(proba, 1.0))
    place = np.clip(logit - NODES[0], 0.0, N_BINS - 1.0)
    index = np.minimum(place.astype(np.intp), N_BINS - 2)
    return index, place - index


def _fade(proba: Array) -> Array:
    return np.minimum(proba / LOWEST, 1.0)


def _cells(block: Block, moments: SoftmaxMoments) -> Array:
    """Sums of residual, weight and variance by client, class and bin."""
    proba = moments.proba
    with np.errstate(divide="ignore"):
        index, part = _position(np.log(proba), proba)
    n_classes, n_rows = proba.shape
    n_clients = block.clients.stop - block.clients.start
    shape = (n_clients, n_classes, N_BINS)
    owner = np.repeat(np.arange(n_clients), np.diff(block.offsets))
    cell = (owner * n_classes + np.arange(n_classes)[:, None]) * N_BINS + index
    residual = -proba
    residual[block.labels, np.arange(n_rows)] += 1
    weights = 1.0 if block.weights is None else block.weights
    out = np.empty((3, *shape))
    for k, (values, power) in enumerate(
        ((residual, 1), (_fade(proba), 1), (proba * (1 - proba), 2))
    ):
        values = values * weights
        # Entry after entry in the order of rows: a client's sums are its own.
        below = np.bincount(
            cell.ravel(), (values * (1 - part) ** power).ravel(), out[k].size
        )
        above = np.bincount(
            cell.ravel() + 1, (values * part**power).ravel(), out[k].size
        )
        out[k] = (below + above).reshape(shape)
    return out.swapaxes(0, 1)


def _losses(block: Block, moments: SoftmaxMoments, table: Array) -> Array:
    """Log loss by client for each strength of the correction."""
    proba = moments.proba
    own = block.labels, np.arange(proba.shape[1])
    with np.errstate(divide="ignore"):
        log_proba = np.log(proba)
    # Where a probability underflows its logarithm is known from the loss.
    log_proba[own] = -moments.loss
    losses = [moments.loss]
    for strength in STRENGTHS[1:]:
        moved = corrected(log_proba, strength * table)
        losses.append(np.log(row_sums(np.exp(moved), True)) - moved[own])
    return block.sum_by_client(np.array(losses))


# The map


def bias_temperature(cal: Any, logits: Value) -> Value:
    """A temperature, class biases and residual bins."""
    order = cal._columns.astype(np.intp)
    bias = np.empty_like(cal.bias_)
    bias[order] = cal.bias_
    out = logits / cal.temperature_ + bias
    if cal.residual_ is None or not cal.residual_.any():
        return out
    table = np.empty_like(cal.residual_)
    table[order] = cal.residual_
    return _corrected(log_softmax(out), table)


def _corrected(log_proba: Value, table: Array) -> Value:
    """Probabilities plus the correction of the bins, as `rounds.corrected`."""
    proba = log_proba.exp()
    logit = log_proba - log1p(-proba.at_most(1.0))
    place = (logit - NODES[0]).at_least(0.0).at_most(N_BINS - 1.0)
    index = place.floor().at_most(N_BINS - 2.0)
    part = place - index
    cell = index + np.arange(len(table))[None] * N_BINS
    change = cell.take_from(table) * (1.0 - part)
    change += (cell + 1.0).take_from(table) * part
    moved = proba + change * (proba / LOWEST).at_most(1.0)
    raised = moved > proba * KEPT
    return raised.choose(
        raised.choose(moved.at_most(1.0), 1.0).log(), log_proba + np.log(KEPT)
    )
