"""Exact temperature scaling by high-order steps on the summed log loss."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, factorial, log, log1p

import numpy as np

from skfedcal.algorithms._base import Array, Arrays, BlockSpec, Sums
from skfedcal.algorithms._moments import LossDerivatives
from skfedcal.data._dataset import FederatedDataset

# T lies in [exp(-LOG_BOUND), exp(LOG_BOUND)] = [1e-4, 1e4].
LOG_BOUND = log(1e4)

# One row in 32, then one in 8, brings the start close; a sample this small is skipped.
_STAGES = (32, 8, 1)
_MIN_ROWS, _BORROW_ROWS = 200, 1000
# A step in log(beta) this short ends a sample: the next one mends what is left.
_NEAR = {32: 1.0, 8: 0.3}
_MAX_SAMPLE_ROUNDS = 4

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
    `beta`; `flat` tells that the loss no longer depends on `beta`; `fifth` is the fifth
    derivative over the second, from the sample; NaN without a large one.
    """

    beta: float = 1.0
    low: float = -LOG_BOUND
    high: float = LOG_BOUND
    stage: int = _STAGES[0]
    stage_rounds: int = 0
    precise: bool = False
    error: float = np.inf
    flat: bool = False
    fifth: float = np.nan

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
    sign of the slope brackets the optimum; the root of the Taylor polynomial of the
    slope is the next point where that polynomial is good, a Newton step on the log
    scale where it is not, a bisection where the step leaves the bracket.

    The rows used in the first rounds are picked by a hash of their own first entry:
    the same rows whatever the partition into clients.
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
            "slopes": BlockSpec((_order(int(broadcast["stage"])),)),
            "sizes": BlockSpec((2,), kind="count"),
        }

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        beta, stage = float(broadcast["beta"]), int(broadcast["stage"])
        dtype = np.float64 if broadcast["precise"] else clients.rows.dtype
        used = hash_sample(clients, stage) if stage > 1 else clients
        derivatives = LossDerivatives(dtype)
        order = _order(stage)
        slopes = np.zeros((len(clients), order))
        for block in used.blocks():
            values = derivatives(block.rows, block.labels, beta, order)
            slopes[block.clients] += block.sum_by_client(values)
        # Derivatives in x, where beta * (1 + x) is the next point: whatever the scale
        # of the logits, they are neither too large nor too small to be sent.
        slopes *= beta ** np.arange(1, order + 1)
        cells = clients.sizes * clients.rows.shape[1]
        return {"slopes": slopes, "sizes": np.array([cells, used.sizes]).T}

    def update(
        self, state: TemperatureState, total: Sums, n_clients: int
    ) -> TemperatureState:
        n_cells, n_used = total["sizes"]
        precise = bool(n_cells <= _SMALL)
        if state.stage > 1 and n_used < _MIN_ROWS:
            return replace(state, stage=_after(state.stage), precise=precise)
        moved = newton_step(state, total["slopes"], floor=_FLAT * n_used)
        moved = replace(moved, precise=precise, stage_rounds=state.stage_rounds + 1)
        far = abs(log(moved.beta / state.beta)) > _NEAR.get(state.stage, 0.0)
        if state.stage == 1 or (far and moved.stage_rounds < _MAX_SAMPLE_ROUNDS):
            return moved
        # Bracket and error belong to the sample: start anew with more rows.
        bound = LOG_BOUND - 1.0
        beta = float(np.clip(moved.beta, exp(-bound), exp(bound)))
        enough = n_used >= _BORROW_ROWS and total["slopes"][1] > 0
        fifth = total["slopes"][4] / total["slopes"][1] if enough else np.nan
        return TemperatureState(
            beta, stage=_after(state.stage), precise=precise, fifth=float(fifth)
        )

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
    # A fifth derivative from the sample saves one from all rows; good to 50 % or so.
    borrowed = len(scaled) < 5 and np.isfinite(state.fifth)
    if borrowed:
        scaled.append(curvature * state.fifth)
    x, error = _taylor_root(scaled, 0.5 if borrowed else 0.0)
    move = log1p(x) if error < 0.1 else _log_newton(slope, curvature)
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


def _taylor_root(scaled: list[float], doubt: float) -> tuple[float, float]:
    """Root of the Taylor polynomial of the slope, and the error of taking it.

    `doubt` is the relative error of the last derivative.
    """
    if not scaled[1] > 0:
        return 0.0, np.inf
    terms = [s / factorial(i) / scaled[1] for i, s in enumerate(scaled)]
    x = -terms[0]
    for _ in range(8):
        if not abs(x) < 0.3:
            return 0.0, np.inf
        value = derivative = 0.0
        for term in reversed(terms):
            derivative = derivative * x + value
            value = value * x + term
        if derivative < 0.2:
            return 0.0, np.inf
        x -= value / derivative
    # The first term left out is about |x| times the last ones kept.
    power = len(terms) - 1
    last = abs(terms[-1] * x**power)
    before = abs(terms[-2] * x**power)
    error = 2 * abs(x) * max(last, before) + doubt * last
    return (x, error) if abs(x) < 0.3 else (0.0, np.inf)


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
    bits = np.ascontiguousarray(clients.rows[:, 0], dtype=np.float64).view(np.uint64)
    keep = bits * np.uint64(0x9E3779B97F4A7C15) < np.uint64(2**64 // step)
    return clients.keep_rows(keep)


def _order(stage: int) -> int:
    """Derivatives sent: enough for one pass over all rows after a good start."""
    return 4 if stage == 1 else 5


def _after(stage: int) -> int:
    return _STAGES[_STAGES.index(stage) + 1]
