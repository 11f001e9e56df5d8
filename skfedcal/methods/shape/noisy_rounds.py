"""Temperature, class biases and shared shape under noise: three stages, one payment.

The residuals ``onehot - p`` of a client with skewed labels reflect its skew more than
the error of the model. The client knows its own label frequencies, however: relative to
``softmax(z / T + b + log(own / prior))``, its residual reflects the error of the model
and not the skew. It is several times shorter, and so loses less to clipping and noise.

Every stage releases means over clients of vectors of L2 norm at most 1; shares of the
budget add up in mu squared. What follows a release is the posterior mean under a prior
with a spike at "nothing to correct", so that noise alone moves the map by little. One
row per client is no special case: single rows are protected in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import exp, log, sqrt
from typing import Any

import numpy as np

from skfedcal.clients.dataset import Block, FederatedDataset
from skfedcal.contract import Array, Arrays, BlockSpec, Field, Form, Sums, check_range
from skfedcal.methods.bias_temperature.bias_moments import BIAS_BOUND
from skfedcal.methods.bias_temperature.rounds import (
    centred,
    label_counts,
    label_ratios,
)
from skfedcal.methods.shape.rounds import buffers, row_log_weights
from skfedcal.methods.shape.shape_features import (
    N_FEATURES,
    SHAPE_SD,
    WHITEN,
    order_keeping,
    raw_shape,
    shape_features,
)
from skfedcal.methods.temperature import posterior
from skfedcal.methods.temperature.moments import LOG_BOUND, row_sums
from skfedcal.methods.temperature.posterior import (
    CURVATURE_UNIT,
    PosteriorState,
    TemperaturePosterior,
)

# All constants are public; how they were chosen is in docs/research/study.rst.
# Number of clients times mu from which on biases and shape pay.
MAP_SIGNAL = 8.0
# Division of mu squared over temperature, biases and shape: in general, without biases,
# without a shape, and of the temperature alone.
SHARES, SHARES_ORDER = (0.2, 0.54, 0.26), (0.4, 0.0, 0.6)
SHARES_BIAS, SHARES_TEMPERATURE = (0.15, 0.85, 0.0), (1.0, 0.0, 0.0)
# The part of the temperature grows with its distance from 1, up to a limit.
_FAR, _MOST_FAR = 0.25, 8.0
# Releases of temperature and biases together, without a shape and with one; along a
# line; of the shape.
_ALONE, _JOINT, _LINE, _SHAPE = 5, 3, 1, 2

# Bound on the length of a client's mean residual; unit of the mean of 1 - sum p^2 in
# the same vector; bound on the residual of few rows, by the noise: one row has at most
# 1.4.
RESIDUAL_CLIP, _GINI_UNIT = 0.04, 0.45
_RESIDUAL_SUM, _RESIDUAL_RANGE = 0.4, (0.5, 3.5)
# Spread of biases, log-uniform, and of those of a model that favours no class; prior
# weight of the latter. Rows of a usual client, for chance in its labels.
_SPREADS, _SPIKE_SPREAD = np.geomspace(0.08, 1.0, 40), 0.03
BIAS_SPIKE = 0.3
_USUAL_ROWS = 50
# Root mean square move of the biases at which the temperature's past releases count
# half.
_HALF_MOVE = 0.3
# Where class frequencies are not known: bound on a client's mean slope along the biases
# that equal frequencies would have, on that of few rows, prior weight of no bias, and
# the part of mu squared that all other stages give.
_LINE_CLIP, _LINE_SUM, _LINE_SPIKE, _LINE_SHARE = 0.2, 1.0, 0.3, 0.18
# Unit of the curvature along them; error of the model; mean and spread of the part of
# them that is right.
_LINE_UNIT, _LINE_ERROR, _LINE_BEND = 0.3, 0.05, 0.3
_LINE_PART, _LINE_SPREAD = 0.6, 0.6
# Bound on a client's mean slope in the whitened shape, on the slope of few rows, and
# the unit of its curvature.
_SLOPE_CLIP, _SLOPE_SUM, _SLOPE_RANGE, _HESSIAN_UNIT = 0.25, 5.0, (0.6, 2.4), 12.0
# Prior weight of no shape; median and spread of the logarithm of the curvature; part of
# it by which its entries differ, and which its eigenvalues have at least.
SHAPE_SPIKE = 0.7
_USUAL_BEND, _BEND_SPREAD, _BEND_PART, _LEAST_BEND = 3.0, 0.8, 0.5, 0.2
# Reference of the noise in the rules for bounds.
_NOISE, _POWER = 0.03, -0.5

_UPPER = np.triu_indices(N_FEATURES)
_DIAGONAL = [0, 3, 5]
# Place of an entry of the curvature among the sums of the shape.
_PLACE = N_FEATURES + np.array([[0, 1, 2], [1, 3, 4], [2, 4, 5]])


@dataclass(frozen=True, slots=True)
class ShapeState(PosteriorState):
    """Posterior of the temperature, then of the biases, then of the shape.

    `weighted`, `bias_precision` and `gini` add up what biases are estimated from,
    `targets`, `slopes` and `hessian` what the shape is. `bias` and the whitened shape
    `theta` are those that are asked for next, and at the end the result.
    """

    bias: Array = field(default_factory=lambda: np.empty(0))
    weighted: Array = field(default_factory=lambda: np.empty(0))
    bias_precision: float = 0.0
    gini: float = 0.0
    theta: Array = field(default_factory=lambda: np.zeros(N_FEATURES))
    targets: Array = field(default_factory=lambda: np.zeros((0, N_FEATURES)))
    slopes: Array = field(default_factory=lambda: np.zeros((0, N_FEATURES)))
    hessian: Array = field(default_factory=lambda: np.zeros(len(_UPPER[0])))
    length: float = 0.0
    direction: Array = field(default_factory=lambda: np.empty(0))
    line_weight: float = 0.0
    line_total: float = 0.0
    bias_gain: float = 0.0
    shape_gain: float = 0.0
    keep_order: bool = False

    @property
    def shape(self) -> Array:
        """Weights of phi."""
        theta = raw_shape(self.theta)
        return order_keeping(theta) if self.keep_order else theta

    @property
    def matrix(self) -> None:
        """There is no matrix under noise."""

    @property
    def expected_gain(self) -> float:
        """Expected decrease of the mean log loss, never negative."""
        return self.gain + self.bias_gain + self.shape_gain

    @property
    def improves(self) -> bool:
        """Whether the map is expected to reduce the loss."""
        return self.expected_gain > 0


@dataclass(frozen=True, slots=True)
class ShapePosterior:
    """Temperature, biases and shape of least posterior expected loss.

    1. Temperature and biases, in the same rounds. For the temperature a client sends
       what it sends in `TemperaturePosterior`, at the current biases. For the biases it
       sends the sum of its residuals ``onehot(y) - p``, at probabilities that are
       adjusted to its own label frequencies, and that of ``1 - |p|^2``, over
       ``bound + 0.04 n``. The server averages Newton estimates and shrinks them.
    2. Where the class frequencies of the population are not known, residuals are
       adjusted as if they were equal. One round then asks for slope and curvature of
       the plain loss along the biases found, and the server decides how far to go: not
       at all, where it was the frequencies that differed.
    3. Shape: a client sends slope and curvature of its summed loss in the whitened
       shape, over ``bound + 0.25 n``.

    signal: Number of clients times mu, the Gaussian differential privacy of all
        releases together: the bounds of each stage.
    weights: Part of mu squared of temperature, biases and shape; a part of 0 is left
        out.
    prior: Class frequencies of the population; empty if they are not known.
    keep_order: Scale the shape down until the order of classes cannot change.
    n_rounds: Releases.
    clip: Bound on the length of a client's mean residual.
    """

    signal: float = 20.0
    weights: tuple[float, ...] = SHARES
    prior: tuple[float, ...] = ()
    keep_order: bool = False
    n_rounds: int = _JOINT + _LINE + _SHAPE
    clip: float = RESIDUAL_CLIP

    @property
    def stages(self) -> tuple[int, int, int]:
        """Releases of temperature and biases, along the line, and of the shape."""
        return _stages(tuple(self.weights), bool(self.prior), self.n_rounds)

    @property
    def shares(self) -> tuple[float, ...]:
        """Division of the budget over rounds."""
        return _shares(tuple(self.weights), bool(self.prior), self.n_rounds)

    def n_values(self, n_classes: int) -> int:
        """Largest number of values in a round."""
        joint = n_classes + 3 if self.weights[1] else 2
        return max(joint, (N_FEATURES + len(_UPPER[0])) * (self.stages[2] > 0))

    def init(self, n_classes: int) -> ShapeState:
        start = self._temperature.init(n_classes)
        zero = np.zeros(n_classes)
        return ShapeState(
            **_shared(start), bias=zero, weighted=zero, keep_order=self.keep_order
        )

    def broadcast(self, state: ShapeState) -> Arrays:
        joint, line, _ = self.stages
        if state.rounds < joint:
            return {
                **self._temperature.broadcast(state),
                "sum_bound": np.asarray(self._bound("b")),
                "bias": state.bias,
                "slope_bias": self._slope_bias(state),
                "prior": self._assumed(state),
            }
        if state.rounds < joint + line:
            return {
                **self._temperature.broadcast(state),
                # First half way: the truth may be at either end.
                "bias": self._slope_bias(state),
                "direction": state.direction if state.length else _unit(state.bias),
            }
        return {
            "log_beta": np.asarray(state.best),
            "bound": np.asarray(self._bound("s")),
            "bias": state.bias,
            "theta": state.theta,
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if "theta" in broadcast:
            return {"shape": BlockSpec((N_FEATURES + len(_UPPER[0]),), clip=1.0)}
        slopes = self._temperature.spec(broadcast)["slopes"]
        if "direction" in broadcast:
            return {"line": BlockSpec((2,), clip=1.0), "slopes": slopes}
        first, second, _ = self.weights
        if not second:
            return {"slopes": slopes}
        n_values = len(broadcast["bias"]) + 1
        far = abs(float(broadcast["log_beta"])) / _FAR
        first *= min(max(far, 1.0), _MOST_FAR)
        # Noise is divided by the root of size times weight.
        weight = (first / second) ** 2 * n_values / 2
        return {
            "residual": BlockSpec((n_values,), clip=1.0),
            "slopes": replace(slopes, weight=weight),
        }

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        if len(self.prior) not in (0, n_classes):
            raise ValueError(f"prior has {len(self.prior)} entries of {n_classes}")
        if len(self.weights) != 3 or not self.weights[0] > 0 <= min(self.weights):
            raise ValueError(f"weights={self.weights} must be three, the first above 0")
        check_range("n_rounds", self.n_rounds, 1, 1000)
        check_range("clip", self.clip, 1e-6, 1e6)
        own = {
            "log_beta": Field(low=-LOG_BOUND, high=LOG_BOUND),
            "bound": Field(low=1e-3, high=1e3),
            "bias": Field((n_classes,), low=-BIAS_BOUND, high=BIAS_BOUND),
        }
        bias = own["bias"]
        joint = {"sum_bound": own["bound"], "bias": bias, "slope_bias": bias}
        # Equal ones are assumed where none are known.
        assumed = (n_classes,) if self.prior else (0, n_classes)
        priors = [{"prior": Field((n,), low=1e-12, high=1.0)} for n in assumed]
        (slopes,) = self._temperature.forms(n_classes)
        return (
            *({**slopes, **joint, **prior} for prior in priors),
            {**slopes, "bias": bias, "direction": Field((n_classes,), low=-1, high=1)},
            {**own, "theta": Field((N_FEATURES,), low=-1e3, high=1e3)},
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        sizes = clients.sizes[:, None]
        bound, beta = float(broadcast["bound"]), exp(float(broadcast["log_beta"]))
        if "theta" in broadcast:
            out = np.zeros((len(clients), N_FEATURES + len(_UPPER[0])))
            for block in clients.blocks(_CELLS):
                out[block.clients] += _shape_sums(broadcast, block, beta)
            return {"shape": _whitened(out) / (bound + _SLOPE_CLIP * sizes)}
        clip = float(broadcast["clip"])
        divisor = bound + clip * np.maximum(sizes, 1)
        unit = np.array([1.0, clip / CURVATURE_UNIT])
        if "direction" in broadcast:
            out = np.zeros((len(clients), 4))
            for block in clients.blocks():
                out[block.clients] += _line_sums(broadcast, block, beta)
            line = out[:, :2] / (_LINE_SUM + _LINE_CLIP * sizes)
            return {"line": line, "slopes": out[:, 2:] * unit / divisor}
        if not self.weights[1]:
            return self._temperature.query(broadcast, clients)
        counts = label_counts(clients)
        ratio = label_ratios(counts, broadcast["prior"])
        sums = np.zeros((len(clients), clients.n_classes + 3))
        for block in clients.blocks():
            sums[block.clients] += _joint_sums(broadcast, block, beta, ratio)
        sums[:, : clients.n_classes] = counts - sums[:, : clients.n_classes]
        slopes = sums[:, -2:] * unit / divisor
        sums[:, -3] *= self.clip / _GINI_UNIT
        few = float(broadcast["sum_bound"]) + self.clip * sizes
        return {"residual": sums[:, :-2] / few, "slopes": slopes}

    def update(self, state: ShapeState, total: Sums, n_clients: int) -> ShapeState:
        noise = {k: max(v / n_clients, 1e-9) for k, v in total.noise.items()}
        if "shape" in total:
            mean = total["shape"] / n_clients
            state = self._add_slope(state, mean, noise.get("shape", 1e-9), n_clients)
            return replace(state, rounds=state.rounds + 1)
        own = PosteriorState(**_shared(state))
        found = self._temperature.update(own, total, n_clients)
        rounds, before = state.rounds, self._slope_bias(state)
        if "residual" in total:
            mean = total["residual"] / n_clients
            state = self._add_residual(
                state, mean, noise.get("residual", 1e-9), n_clients
            )
        if "line" in total:
            mean = total["line"] / n_clients
            state = self._add_line(state, mean, noise.get("line", 1e-9))
        # The optimum moves with the biases: past releases say less about it.
        state = replace(state, rounds=rounds + 1)
        move = float(((self._slope_bias(state) - before) ** 2).mean())
        start, keep = posterior.start(), 1 / (1 + move / _HALF_MOVE**2)
        log_like = start + keep * (found.log_like - start)
        found = replace(found, log_like=log_like, rounds=rounds + 1)
        return replace(state, **_shared(found))

    def done(self, state: ShapeState) -> bool:
        return state.rounds >= self.n_rounds

    @property
    def _temperature(self) -> TemperaturePosterior:
        n_rounds = self.stages[0]
        share = n_rounds * self._share(0) * self.weights[0] / sum(self.weights[:2])
        return TemperaturePosterior(signal=self.signal * sqrt(share), n_rounds=n_rounds)

    def _share(self, index: int) -> float:
        return self.shares[index] if self.shares else 1 / self.n_rounds

    def _bound(self, kind: str) -> float:
        """Bound on the sum of few rows, by the noise of the stage."""
        size, limits = {
            "b": (_RESIDUAL_SUM, _RESIDUAL_RANGE),
            "s": (_SLOPE_SUM, _SLOPE_RANGE),
        }[kind]
        share = self._share(-1)
        if kind == "b":
            share = self._share(0) * self.weights[1] / sum(self.weights[:2])
        noise = 1 / (max(self.signal, 1e-9) * sqrt(max(share, 1e-9)))
        # Without any limit on the signal there is no noise.
        return size * float(np.clip(max(noise / _NOISE, 1e-9) ** _POWER, *limits))

    def _add_residual(
        self, state: ShapeState, mean: Array, noise: float, n_clients: int
    ) -> ShapeState:
        """Add one release to the estimate of the biases, and shrink it anew."""
        n_free = max(len(state.bias) - 1, 1)
        n_done = state.rounds + 1
        gini = state.gini + float(mean[-1]) * _GINI_UNIT / self.clip
        unit = noise * _GINI_UNIT / self.clip
        # Not below its own noise; the mean eigenvalue where biases add up to 0.
        curvature = max(gini / n_done, unit / sqrt(n_done)) / n_free
        root = np.clip(state.bias + centred(mean[:-1]) / curvature, -3.0, 3.0)
        weight = (noise / curvature) ** -2
        weighted = state.weighted + weight * root
        precision = state.bias_precision + weight
        raw = centred(weighted / precision)
        chance = 1 / (_USUAL_ROWS * n_clients * curvature * self.clip)
        bias = raw * bias_shrinkage(float(raw @ raw), n_free, 1 / precision + chance)
        gain = 0.5 * curvature * self.clip * float(bias @ bias)
        return replace(
            state,
            bias=bias,
            weighted=weighted,
            bias_precision=precision,
            gini=gini,
            bias_gain=gain,
        )

    @property
    def _asks_line(self) -> bool:
        return self.stages[1] > 0

    def _slope_bias(self, state: ShapeState) -> Array:
        """Biases at which the temperature is asked for.

        None while these rest on an assumption, which may be far from the truth.
        """
        joint = self.stages[0]
        if self._asks_line and state.rounds < joint:
            return np.zeros_like(state.bias)
        if self._asks_line and state.rounds == joint:
            return state.bias / 2
        return state.bias

    def _assumed(self, state: ShapeState) -> Array:
        """Class frequencies to which residuals are adjusted."""
        n_classes = len(state.bias)
        known = self.prior or not self._asks_line or n_classes == 2
        return np.array(self.prior) if known else np.full(n_classes, 1 / n_classes)

    def _add_line(self, state: ShapeState, mean: Array, noise: float) -> ShapeState:
        """Add one release about how far to go along the biases."""
        length = state.length or float(np.sqrt(state.bias @ state.bias))
        if not length:
            return state
        direction = state.direction if state.length else _unit(state.bias)
        here = float(state.bias @ direction) if state.length else length / 2
        unit = _LINE_UNIT / _LINE_CLIP
        bend = max(float(mean[1]), noise) * unit
        step = float(np.clip(-mean[0] / bend, -length, length))
        # A step that is long is off by a part of its length.
        error = (noise / bend) ** 2 + _LINE_ERROR**2 + (_LINE_BEND * step) ** 2
        weight = state.line_weight + 1 / error
        total = state.line_total + (here + step) / error
        root, variance = total / weight, 1 / weight
        center, spread = _LINE_PART * length, (_LINE_SPREAD * length) ** 2
        log_odds = 0.5 * root**2 / variance - 0.5 * log(1 + spread / variance)
        log_odds -= 0.5 * (root - center) ** 2 / (spread + variance)
        log_odds += log((1 - _LINE_SPIKE) / _LINE_SPIKE)
        best = (root * spread + center * variance) / (spread + variance)
        best *= _logistic(log_odds)
        return replace(
            state,
            bias=best * direction,
            direction=direction,
            length=length,
            line_weight=weight,
            line_total=total,
            bias_gain=0.5 * bend * _LINE_CLIP * best**2,
        )

    def _add_slope(
        self, state: ShapeState, mean: Array, noise: float, n_clients: int
    ) -> ShapeState:
        """Add one release to the estimate of the shape."""
        slopes = np.vstack([state.slopes, mean[:N_FEATURES]])
        targets = np.vstack([state.targets, state.theta])
        hessian = state.hessian + _HESSIAN_UNIT * mean[N_FEATURES:]
        bend, scale = _regular_hessian(
            hessian / len(slopes), (_HESSIAN_UNIT * noise) ** 2 / len(slopes)
        )
        # Rows of a usual client, from how far its curvature is below that of many.
        part = min(scale, 3.5)
        n_rows = max(self._bound("s") * part / (1 - _SLOPE_CLIP * part), 1.0)
        variance = noise**2 + scale**2 / (n_clients * n_rows)
        precision = len(slopes) * bend @ bend / variance
        right = (bend @ (bend @ targets.T - slopes.T)).sum(axis=1) / variance
        found = np.linalg.solve(precision + np.diag(SHAPE_SD**-2.0), right)
        spread = np.eye(N_FEATURES) + precision * SHAPE_SD**2
        log_odds = 0.5 * float(right @ found) - 0.5 * float(
            np.linalg.slogdet(spread)[1]
        )
        log_odds += log((1 - SHAPE_SPIKE) / SHAPE_SPIKE)
        if len(slopes) == self.stages[2]:
            found = found * _logistic(log_odds)
        gain = 0.5 * _SLOPE_CLIP * float(found @ bend @ found)
        return replace(
            state,
            theta=found,
            slopes=slopes,
            targets=targets,
            hessian=hessian,
            shape_gain=gain,
        )


# Entries per block: with fewer the calls cost more than the passes.
_CELLS = 1 << 16


def stage_weights(signal: float, biases: bool) -> tuple[float, float, float]:
    """Part of mu squared of temperature, biases and shape, by public numbers.

    signal: Number of clients times mu.
    biases: Whether the map has biases.
    """
    if signal < MAP_SIGNAL:
        return SHARES_TEMPERATURE
    return SHARES if biases else SHARES_ORDER


def planned_stages(
    signal: float,
    weights: tuple[float, ...],
    prior: tuple[float, ...] = (),
    keep_order: bool = False,
    clip: float = RESIDUAL_CLIP,
) -> ShapePosterior:
    """Stages with as many rounds as they need, see `ShapePosterior`."""
    line = _line_rounds(weights, bool(prior))
    n_rounds = line + (_JOINT + _SHAPE if weights[2] else _ALONE)
    return ShapePosterior(signal, weights, prior, keep_order, n_rounds, clip)


# Asked for many times in a fit.
@lru_cache(maxsize=256)
def _stages(
    weights: tuple[float, ...], known: bool, n_rounds: int
) -> tuple[int, int, int]:
    """Releases of each stage, see `ShapePosterior.stages`."""
    line = _line_rounds(weights, known)
    shape = min(_SHAPE, (n_rounds - line) // 2) if weights[2] else 0
    if n_rounds < line + 2 * (shape > 0) + 1:
        return n_rounds, 0, 0
    return n_rounds - line - shape, line, shape


@lru_cache(maxsize=256)
def _shares(
    weights: tuple[float, ...], known: bool, n_rounds: int
) -> tuple[float, ...]:
    """Division of the budget over rounds, see `ShapePosterior.shares`."""
    stages = _stages(weights, known, n_rounds)
    _, line, shape = stages
    if not shape:
        return ()  # all rounds alike, also with partial cohorts
    rest = 1 - _LINE_SHARE * (line > 0)
    last = weights[2] / sum(weights)
    parts = (rest * (1 - last), _LINE_SHARE, rest * last)
    return tuple(
        part / n for part, n in zip(parts, stages, strict=True) for _ in range(n)
    )


def _line_rounds(weights: tuple[float, ...], known: bool) -> int:
    """Releases along biases that rest on an assumption about class frequencies."""
    return 0 if known or not weights[1] else _LINE


def bias_shrinkage(length: float, n_free: int, variance: float) -> float:
    """Posterior mean of biases over their estimate.

    length: Squared length of the estimate of the biases, with `n_free` free numbers.
    n_free: Biases less one.
    variance: Variance of each of its entries.
    """
    none, some = variance + _SPIKE_SPREAD**2, _SPREADS**2 + variance
    odds = -n_free / 2 * np.log(some / none) - length / 2 / some + length / 2 / none
    top = max(float(odds.max()), 0.0)
    weights = np.exp(odds - top) / len(_SPREADS)
    slab = (1 - BIAS_SPIKE) * float(weights @ (_SPREADS**2 / some))
    total = (1 - BIAS_SPIKE) * float(weights.sum()) + BIAS_SPIKE * exp(-top)
    return slab / total


def _logistic(log_odds: float) -> float:
    return 1 / (1 + exp(-float(np.clip(log_odds, -50, 50))))


def _unit(values: Array) -> Array:
    length = float(np.sqrt(values @ values))
    return values / length if length else values


def _shared(state: PosteriorState) -> dict[str, Any]:
    """Fields of the temperature's posterior."""
    return {f.name: getattr(state, f.name) for f in fields(PosteriorState)}


def _regular_hessian(upper: Array, variance: float) -> tuple[Array, float]:
    """Curvature shrunk toward a multiple of the identity, and that multiple."""
    scale = float(upper[_DIAGONAL].mean())
    doubt = variance / 3 / max(scale, 1e-6) ** 2
    if scale > 0:
        known = _BEND_SPREAD**2
        mixed = known * log(scale) + doubt * log(_USUAL_BEND)
        scale = exp(mixed / (known + doubt))
    else:
        scale = sqrt(variance / 3)
    identity = scale * np.eye(N_FEATURES)[_UPPER]
    keep = variance / (variance + (_BEND_PART * scale) ** 2)
    full = np.zeros((N_FEATURES, N_FEATURES))
    full[_UPPER] = upper + keep * (identity - upper)
    full += np.triu(full, 1).T
    values, vectors = np.linalg.eigh(full)
    return (vectors * np.maximum(values, _LEAST_BEND * scale)) @ vectors.T, scale


def _joint_sums(
    broadcast: Arrays, block: Block, beta: float, ratio: Array | None
) -> Array:
    """Sums over a client's rows: probabilities, curvature, slope and bend of T."""
    logs, weights = row_log_weights(block, beta, reuse=True)
    out = buffers("sums", 1, (len(logs) + 3, logs.shape[1]))[0]
    adjusted = out[: len(logs)]
    tilt = np.exp(broadcast["bias"])[:, None]
    if ratio is None:
        np.multiply(weights, tilt, out=adjusted)
    else:
        own = ratio[block.clients].T * tilt
        by_row = np.repeat(own, np.diff(block.offsets), axis=1)
        np.multiply(weights, by_row, out=adjusted)
    adjusted /= row_sums(adjusted, True)
    (square,) = buffers("one", 1, logs.shape)
    np.multiply(adjusted, adjusted, out=square)
    out[-3] = 1 - row_sums(square, True)
    out[-2:] = _temperature_slopes(broadcast["slope_bias"], block, logs, weights)
    return block.sum_by_client(out)


def _temperature_slopes(
    bias: Array, block: Block, logs: Array, weights: Array
) -> tuple[Array, Array]:
    """Slope and curvature of each row's loss in ``log(1 / T)``, at these biases."""
    proba = _tilted(weights, bias)
    proba *= logs
    mean = row_sums(proba, True)
    proba *= logs
    bend = row_sums(proba, True) - mean**2
    return mean - logs[block.labels, np.arange(logs.shape[1])], bend


def _line_sums(broadcast: Arrays, block: Block, beta: float) -> Array:
    """Sums over a client's rows: slopes and curvatures along biases, and of T."""
    along, bias = broadcast["direction"][:, None], broadcast["bias"]
    logs, weights = row_log_weights(block, beta, reuse=True)
    proba = _tilted(weights, bias)
    proba *= along
    mean = row_sums(proba, True)
    proba *= along
    bend = row_sums(proba, True) - mean**2
    slope = mean - broadcast["direction"][block.labels]
    line = slope, bend * (_LINE_CLIP / _LINE_UNIT)
    slopes = _temperature_slopes(bias, block, logs, weights)
    return block.sum_by_client(np.array([*line, *slopes]))


def _shape_sums(broadcast: Arrays, block: Block, beta: float) -> Array:
    """Sums over a client's rows: slope and curvature in the features of the shape."""
    logs, weights = row_log_weights(block, beta, reuse=True)
    planes = shape_features(logs, buffers("planes", N_FEATURES, logs.shape))
    weighted = buffers("weighted", N_FEATURES, logs.shape)
    theta, bias = raw_shape(broadcast["theta"]), broadcast["bias"]
    # Labels may be of a type that products do not fit into.
    own = block.labels.astype(np.intp) * logs.shape[1] + np.arange(logs.shape[1])
    picked = planes.reshape(N_FEATURES, -1).take(own, axis=1)
    if theta.any():
        scores = logs
        scores += bias[:, None]
        for weight, plane in zip(theta, planes, strict=True):
            np.multiply(plane, weight, out=weighted[0])
            scores += weighted[0]
        scores -= scores.max(axis=0)
        weights, bias = np.exp(scores, out=scores), np.zeros(len(logs))
    proba = _tilted(weights, bias)
    out = np.empty((N_FEATURES + len(_UPPER[0]), logs.shape[1]))
    np.multiply(proba, planes, out=weighted)
    means = [row_sums(w, True) for w in weighted]
    np.subtract(means, picked, out=out[:N_FEATURES])
    for k, (a, b) in enumerate(zip(*_UPPER, strict=True)):
        np.multiply(weighted[a], planes[b], out=proba)
        out[N_FEATURES + k] = row_sums(proba, True) - means[a] * means[b]
    return block.sum_by_client(out)


def _whitened(sums: Array) -> Array:
    """Slopes and curvatures in the whitened features, from those in the features."""
    out = np.zeros_like(sums)
    for i in range(N_FEATURES):
        for m in range(i, N_FEATURES):
            out[:, i] += WHITEN[m, i] * sums[:, m]
    for k, (a, b) in enumerate(zip(*_UPPER, strict=True)):
        for m in range(a, N_FEATURES):
            for j in range(b, N_FEATURES):
                weight = WHITEN[m, a] * WHITEN[j, b] / _HESSIAN_UNIT
                out[:, N_FEATURES + k] += weight * sums[:, _PLACE[m, j]]
    return out


def _tilted(weights: Array, bias: Array) -> Array:
    """Probabilities in proportion to ``weights exp(bias)``, in a buffer."""
    (out,) = buffers("one", 1, weights.shape)
    np.multiply(weights, np.exp(bias)[:, None], out=out)
    out /= row_sums(out, True)
    return np.asarray(out)
