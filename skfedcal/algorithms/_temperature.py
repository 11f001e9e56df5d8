"""Exact temperature scaling by high-order steps on the summed log loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, factorial, log, log1p, sqrt

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

# T lies in [exp(-LOG_BOUND), exp(LOG_BOUND)] = [1e-4, 1e4].
LOG_BOUND = log(1e4)

# One row in 8 brings the start close; a sample of fewer rows than this is skipped.
_SAMPLE = 8
_MIN_ROWS = 200
# An error of log(beta) this small, about that of a sample of 1,000 rows, ends it.
_NEAR = 0.04
_MAX_SAMPLE_ROUNDS = 5

# Rows that are hashed at a time, so that it takes no array of their number.
_HASH_ROWS = 1 << 14

# Derivatives sent: enough for one pass over all rows after a good start.
_ORDER = 5
# A step this long in log(beta) is too long for a polynomial.
_REACH = 1.0

# The error of a step is at least this times its sixth power, the first one that the
# derivatives say nothing of; of 10,000 made-up sets of rows few have twice as much.
_ALIKE = 2.0

# Slope and curvature per row below which the loss is flat, well above the resolution
# of what is sent: rows that are all right pull T to 0 with ever smaller slopes.
_FLAT = 1e-9

# Below this many entries float32 input is worked on in float64, to a tighter
# tolerance: rounding does not average out over so few rows, and time does not matter.
_SMALL = 1 << 15


@dataclass(frozen=True, slots=True)
class TemperatureState:
    """Inverse temperature, with a bracket for its logarithm.

    `stage` is the thinning of the rows, `error` an estimate of the relative error of
    `beta`; `flat` tells that the loss no longer depends on `beta`.
    """

    beta: float = 1.0
    low: float = -LOG_BOUND
    high: float = LOG_BOUND
    stage: int = _SAMPLE
    stage_rounds: int = 0
    precise: bool = False
    error: float = np.inf
    flat: bool = False

    @property
    def temperature(self) -> float:
        return 1.0 / self.beta

    @property
    def bounded(self) -> bool:
        """Whether the loss is flat, or falls beyond a bound."""
        return self.flat or abs(log(self.beta)) > LOG_BOUND - 1e-6

    @property
    def converged(self) -> bool:
        """Whether the optimum was reached and lies inside the bounds."""
        return not self.bounded and self.error <= self.tol

    @property
    def tol(self) -> float:
        return 1e-11 if self.precise else 3e-7


@dataclass(frozen=True, slots=True)
class TemperatureNewton:
    """Minimise the pooled log loss in ``beta = 1 / T``, exactly.

    Clients send the first derivatives of their summed loss. The loss is convex, so the
    sign of the slope brackets the optimum. The slope is continued from its derivatives
    in two ways; where their roots agree, that is the next point. Elsewhere it is a
    Newton step on the log scale, or a bisection where the step leaves the bracket.

    The rows used in the first round are picked by a hash of their own first entry: the
    same rows whatever the partition into clients.
    """

    n_rounds: int = 60

    def init(self, n_classes: int) -> TemperatureState:
        return TemperatureState()

    def broadcast(self, state: TemperatureState) -> Arrays:
        return {
            "beta": np.asarray(state.beta),
            "stage": np.asarray(state.stage),
            "precise": np.asarray(state.precise),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {
            "slopes": BlockSpec((_ORDER,)),
            "sizes": BlockSpec((2,), kind="count"),
        }

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return (
            {
                "beta": Field(),
                "stage": Field((), "whole", 1, _SAMPLE),
                "precise": Field((), "flag"),
            },
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        beta, stage = float(broadcast["beta"]), int(broadcast["stage"])
        dtype = np.float64 if broadcast["precise"] else clients.rows.dtype
        used = hash_sample(clients, stage) if stage > 1 else clients
        derivatives = LossDerivatives(dtype)
        slopes = np.zeros((len(clients), _ORDER))
        for block in used.blocks():
            values = derivatives(block.rows, block.labels, beta, _ORDER)
            slopes[block.clients] += block.sum_by_client(values)
        # Derivatives in x, where beta * (1 + x) is the next point: whatever the scale
        # of the logits, they are neither too large nor too small to be sent.
        slopes *= beta ** np.arange(1, _ORDER + 1)
        cells = clients.sizes * clients.rows.shape[1]
        return {"slopes": slopes, "sizes": np.array([cells, used.sizes]).T}

    def update(
        self, state: TemperatureState, total: Sums, n_clients: int
    ) -> TemperatureState:
        n_cells, n_used = total["sizes"]
        precise = bool(n_cells <= _SMALL)
        if state.stage > 1 and n_used < _MIN_ROWS:
            return replace(state, stage=1, precise=precise)
        moved = newton_step(state, total["slopes"], floor=_FLAT * n_used)
        moved = replace(moved, precise=precise, stage_rounds=state.stage_rounds + 1)
        far = moved.error > _NEAR and moved.stage_rounds < _MAX_SAMPLE_ROUNDS
        if state.stage == 1 or far:
            return moved
        # Bracket and error belong to the sample: start anew with all rows.
        bound = LOG_BOUND - 1.0
        beta = min(max(moved.beta, exp(-bound)), exp(bound))
        return TemperatureState(beta, stage=1, precise=precise)

    def done(self, state: TemperatureState) -> bool:
        return state.stage == 1 and (state.flat or state.error <= state.tol)


def newton_step(
    state: TemperatureState, slopes: Array, floor: float = 0.0
) -> TemperatureState:
    """Move `beta` toward the root of the slope, inside the bracket.

    `slopes` are derivatives in the relative change of `beta`; the first two say nothing
    if they are at most `floor`.
    """
    here = log(state.beta)
    scaled = [float(s) for s in slopes]
    slope, curvature = scaled[:2]
    if max(abs(slope), curvature) <= floor:
        return replace(state, error=0.0, flat=True)
    if slope == 0:
        return replace(state, error=0.0)
    low, high = (here, state.high) if slope < 0 else (state.low, here)
    move, error = _log_root(scaled)
    if error > 0.2:
        move = _log_newton(slope, curvature)
    if state.stage == 1:
        # Two continuations may also agree by chance; a sample need not be exact.
        error = max(error, _ALIKE * move**6)
    target = here + move
    if not low < target < high:
        end = low if slope > 0 else high
        error = np.inf
        if abs(end) < LOG_BOUND:
            target = (low + high) / 2
        elif abs(end - here) < 1e-9:
            # At the bound the slope still points outward: nothing more to gain.
            return replace(state, error=0.0)
        else:
            target = end
    return replace(state, beta=exp(target), low=low, high=high, error=error)


def _log_root(scaled: list[float]) -> tuple[float, float]:
    """Change of ``log(beta)`` to the root of the slope, and the error of taking it."""
    if not scaled[1] > 0:
        return 0.0, np.inf
    terms = [s / factorial(i) / scaled[1] for i, s in enumerate(scaled)]
    x = _rational_root(terms)
    if not x > -1:
        return _polynomial_root(_in_log(terms), -terms[0])
    # Both are of the same order: their gap is about the larger of the two errors.
    move = log1p(x)
    other, error = _polynomial_root(_in_log(terms), move)
    return move, abs(move - other) if error < np.inf else np.inf


def _in_log(terms: list[float]) -> list[float]:
    """Taylor polynomial in ``log(1 + x)`` from that in ``x``."""
    zero, one, two, three, four = terms
    return [
        zero,
        one,
        one / 2 + two,
        one / 6 + two + three,
        one / 24 + 7 * two / 12 + 3 * three / 2 + four,
    ]


def _polynomial_root(terms: list[float], x: float) -> tuple[float, float]:
    """Root of a Taylor polynomial next to `x`, and the error of taking it."""
    for _ in range(20):
        if not abs(x) < _REACH:
            return 0.0, np.inf
        value = derivative = 0.0
        for term in reversed(terms):
            derivative = derivative * x + value
            value = value * x + term
        if derivative < 0.2:
            return 0.0, np.inf
        step = value / derivative
        x -= step
        if abs(step) <= 1e-15 * abs(x):
            break
    # The first term left out is about |x| times the last ones kept.
    power = len(terms) - 1
    error = 2 * abs(x) * max(abs(terms[-1] * x**power), abs(terms[-2] * x**power))
    return (x, error) if abs(x) < _REACH else (0.0, np.inf)


def _rational_root(terms: list[float]) -> float:
    """Root of the quotient of two quadratics with these Taylor terms; NaN if none."""
    zero, one, two, three, four = terms
    det = two * two - one * three
    if not abs(det) > 1e-6 * (two * two + abs(three)):
        return np.nan
    # Denominator 1 + p x + q x^2, by the terms of third and fourth order.
    p = (one * four - two * three) / det
    q = (three * three - two * four) / det
    linear, square = one + p * zero, two + p * one + q * zero
    inside = linear * linear - 4 * square * zero
    if not (linear > 0 and inside >= 0):
        return np.nan
    x = -2 * zero / (linear + sqrt(inside))
    # Not beyond a pole.
    return (
        x if min(1 + p * x + q * x * x, 1 + p * x / 2 + q * x * x / 4) > 0.2 else np.nan
    )


def _log_newton(slope: float, curvature: float) -> float:
    """Newton step in ``log(beta)``, at most 2 long."""
    bend = curvature + slope
    if bend > 0 and slope <= 2 * bend:
        step = -slope / bend
    elif curvature > 0:
        step = log(max(1 - slope / curvature, 0.25))
    else:
        step = -2.0 if slope > 0 else 2.0
    return min(max(step, -2.0), 2.0)


def hash_sample(clients: FederatedDataset, step: int) -> FederatedDataset:
    """About one row in `step`, picked by a hash of the row's own first entry."""
    # Multiplicative hashing: the high bits of the product are well mixed.
    keep = np.empty(len(clients.rows), dtype=np.bool_)
    for start in range(0, len(keep), _HASH_ROWS):
        where = slice(start, start + _HASH_ROWS)
        first = np.ascontiguousarray(clients.rows[where, 0], dtype=np.float64)
        bits = first.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        np.less(bits, np.uint64(2**64 // step), out=keep[where])
    return clients.keep_rows(keep)
