"""Temperature scaling: client sums and server updates.

- Exact temperature scaling by high-order steps on the summed log loss.
- Temperature scaling in one round: every client sends its slopes on a grid.
- Temperature scaling by averaging local optima: Algorithm 2 of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, inf, log, log1p, nan, sqrt
from typing import Any

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
    server_field,
)
from skfedcal.methods.graph import Value
from skfedcal.methods.temperature.moments import derivative_sums

# Exact T lies in [exp(-10), exp(10)], the bounds of scikit-learn: where predictions say
# nothing about the labels, both end at the upper one.
NEWTON_BOUND = 10.0

# First value of ``1 / T``, about the median (1.52) of what 23 sets of outputs of real
# models need.
START = 1 / 1.5

# One row in 8 brings the start close; a sample of fewer rows than this is skipped.
SAMPLE = 8
_MIN_ROWS = 200
# An error of log(beta) this small, about that of a sample of 1,000 rows, ends it.
_NEAR = 0.04
_MAX_SAMPLE_ROUNDS = 5

# Derivatives sent: enough for one pass over all rows after a good start.
_ORDER = 5
_SLOPES, _SIZES = BlockSpec((_ORDER,)), BlockSpec((2,), kind="count")
# A step this long in log(beta) is too long for a polynomial.
_REACH = 1.0

# The error of a step is at least this times its sixth power, the first one that the
# derivatives say nothing of; of 10,000 made-up sets of rows few have twice as much.
_ALIKE = 2.0

# Slope and curvature per row below which the loss is flat, well above the resolution
# of what is sent: rows that are all right pull T to 0 with ever smaller slopes.
_FLAT = 1e-9

# An error of log(beta) this small changes a mean log loss by less than a thousandth of
# what a warning looks at (`_HARM` of methods/base.py).
_SAME_LOSS = 1e-6

# Below this many entries float32 input is worked on in float64, to a tighter
# tolerance: rounding does not average out over so few rows, and time does not matter.
_SMALL = 1 << 15


@dataclass(frozen=True, slots=True)
class TemperatureState:
    """Inverse temperature, with a bracket for its logarithm.

    `stage` is the thinning of the rows, `error` an estimate of the relative error of
    `beta`; `flat` is true if the loss no longer depends on `beta`.
    """

    beta: float = START
    low: float = -NEWTON_BOUND
    high: float = NEWTON_BOUND
    stage: int = 1
    stage_rounds: int = 0
    precise: bool = True
    error: float = inf
    flat: bool = False

    @property
    def temperature(self) -> float:
        return 1.0 / self.beta

    @property
    def bounded(self) -> bool:
        """Whether the loss is flat, or falls beyond a bound."""
        return self.flat or abs(log(self.beta)) > NEWTON_BOUND - 1e-6

    @property
    def converged(self) -> bool:
        """Whether the optimum was reached and lies inside the bounds."""
        return self.error <= self.tol and not self.bounded

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

    sample: 1, or `SAMPLE`: one row in so many is asked in the first rounds, picked by a
        hash of its own first entry: the same rows whatever the partition into clients.
    """

    n_rounds: int = 60
    sample: int = server_field(1)

    def init(self, n_classes: int) -> TemperatureState:
        return TemperatureState(stage=self.sample, precise=self.sample == 1)

    def _init_near(self, state: TemperatureState) -> TemperatureState:
        """State at the optimum of other rows, to go on with all rows."""
        if state.bounded:
            return TemperatureState()
        return TemperatureState(state.beta, precise=state.precise)

    def _is_near(self, state: TemperatureState) -> bool:
        """Whether the losses of rows are those of the optimum, for a comparison."""
        return state.flat or state.error <= _SAME_LOSS

    def broadcast(self, state: TemperatureState) -> Arrays:
        return {
            "beta": np.asarray(state.beta),
            "stage": np.asarray(state.stage),
            "precise": np.asarray(state.precise),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"slopes": _SLOPES, "sizes": _SIZES}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts.

        All rows or one in eight: sums over other parts could be subtracted from each
        other, until single rows are left.
        """
        return tuple(
            {
                "beta": Field(),
                "stage": Field((), "whole", stage, stage),
                "precise": Field((), "flag"),
            }
            for stage in (1, SAMPLE)
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        beta, stage = float(broadcast["beta"]), int(broadcast["stage"])
        dtype = np.float64 if broadcast["precise"] else clients.rows.dtype
        slopes, sizes = derivative_sums(
            clients, beta, _ORDER, dtype, stage, relative=True
        )
        return {"slopes": slopes, "sizes": sizes}

    def update(
        self, state: TemperatureState, total: Sums, n_clients: int
    ) -> TemperatureState:
        n_cells, n_used = total["sizes"].tolist()
        precise = n_cells <= _SMALL
        if state.stage > 1 and n_used < _MIN_ROWS:
            return replace(state, stage=1, precise=precise)
        if state.precise != precise:
            state = replace(state, precise=precise)
        moved = newton_step(state, total["slopes"], floor=_FLAT * n_used)
        far = moved.error > _NEAR and moved.stage_rounds < _MAX_SAMPLE_ROUNDS
        if state.stage == 1 or far:
            return moved
        # Bracket and error belong to the sample: start anew with all rows.
        bound = NEWTON_BOUND - 1.0
        beta = min(max(moved.beta, exp(-bound)), exp(bound))
        return TemperatureState(beta, precise=precise)

    def done(self, state: TemperatureState) -> bool:
        return state.stage == 1 and (state.flat or state.error <= state.tol)


_WHOLE, _SAMPLED = TemperatureNewton(), TemperatureNewton(sample=SAMPLE)


def newton_for(n_rows: int) -> TemperatureNewton:
    """Steps for so many rows; of few, or of an unknown number (0), no sample is asked.

    Then rows are worked on in double precision from the first round on, which tells
    their number.
    """
    return _SAMPLED if n_rows >= SAMPLE * _MIN_ROWS else _WHOLE


def newton_step(
    state: TemperatureState, slopes: Array, floor: float = 0.0
) -> TemperatureState:
    """Move `beta` toward the root of the slope, inside the bracket.

    `slopes` are derivatives in the relative change of `beta`; the first two are not
    significant if they are at most `floor`.
    """
    here, n_steps = log(state.beta), state.stage_rounds + 1
    scaled = slopes.tolist()
    slope, curvature = scaled[:2]
    if max(abs(slope), curvature) <= floor:
        # Between T = 1 and the start, a flat loss is as low at T = 1, which leaves the
        # input unchanged: no T changes the loss, or all rows are right.
        beta = 1.0 if START <= state.beta < 1 else state.beta
        return replace(state, beta=beta, stage_rounds=n_steps, error=0.0, flat=True)
    if slope == 0:
        return replace(state, stage_rounds=n_steps, error=0.0)
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
        error = inf
        if abs(end) < NEWTON_BOUND:
            target = (low + high) / 2
        elif abs(end - here) < 1e-9:
            # At the bound the slope still points outward: nothing more to gain.
            return replace(state, stage_rounds=n_steps, error=0.0)
        else:
            target = end
    return TemperatureState(
        exp(target), low, high, state.stage, n_steps, state.precise, error
    )


def _log_root(scaled: list[float]) -> tuple[float, float]:
    """Change of ``log(beta)`` to the root of the slope, and the error of taking it."""
    slope, bend, third, fourth, fifth = scaled
    if not bend > 0:
        return 0.0, inf
    # The Taylor terms, over that of first order.
    terms = (
        slope / bend,
        bend / bend,
        third / 2 / bend,
        fourth / 6 / bend,
        fifth / 24 / bend,
    )
    x = _rational_root(*terms)
    if not x > -1:
        return _polynomial_root(*_in_log(*terms), -terms[0])
    # Both are of the same order: their gap is about the larger of the two errors.
    move = log1p(x)
    other, error = _polynomial_root(*_in_log(*terms), move)
    return move, abs(move - other) if error < inf else inf


Terms = tuple[float, float, float, float, float]


def _in_log(zero: float, one: float, two: float, three: float, four: float) -> Terms:
    """Taylor polynomial in ``log(1 + x)`` from that in ``x``."""
    return (
        zero,
        one,
        one / 2 + two,
        one / 6 + two + three,
        one / 24 + 7 * two / 12 + 3 * three / 2 + four,
    )


def _polynomial_root(
    zero: float, one: float, two: float, three: float, four: float, x: float
) -> tuple[float, float]:
    """Root of a Taylor polynomial next to `x`, and the error of taking it."""
    for _ in range(20):
        if not abs(x) < _REACH:
            return 0.0, inf
        # Horner's scheme, for the polynomial and its derivative.
        cubic = four * x + three
        square = cubic * x + two
        linear = square * x + one
        derivative = ((four * x + cubic) * x + square) * x + linear
        if derivative < 0.2:
            return 0.0, inf
        step = (linear * x + zero) / derivative
        x -= step
        # A step squares the relative error: the next one would be below the last bit.
        if abs(step) <= 1e-9 * abs(x):
            break
    # The first term left out is about |x| times the last ones kept.
    power = x**4
    error = 2 * abs(x) * max(abs(four * power), abs(three * power))
    return (x, error) if abs(x) < _REACH else (0.0, inf)


def _rational_root(
    zero: float, one: float, two: float, three: float, four: float
) -> float:
    """Root of the quotient of two quadratics with these Taylor terms; NaN if none."""
    det = two * two - one * three
    if not abs(det) > 1e-6 * (two * two + abs(three)):
        return nan
    # Denominator 1 + p x + q x^2, by the terms of third and fourth order.
    p = (one * four - two * three) / det
    q = (three * three - two * four) / det
    linear, square = one + p * zero, two + p * one + q * zero
    inside = linear * linear - 4 * square * zero
    if not (linear > 0 and inside >= 0):
        return nan
    x = -2 * zero / (linear + sqrt(inside))
    # Not beyond a pole.
    return x if min(1 + p * x + q * x * x, 1 + p * x / 2 + q * x * x / 4) > 0.2 else nan


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


# Grid in log(1 / T): T from 0.01 to 100.
GRID_BOUND = float(np.log(100.0))

# Standard deviations by which the slope at T = 1 must differ from 0.
_GRID_STANDS_OUT = 2.8


@dataclass(frozen=True, slots=True)
class GridState:
    """Accumulated slopes and their root.

    `converged` is false at either end of the grid; `improves` is true if the slope at T
    = 1 can be distinguished from noise.
    """

    slopes: Array
    beta: float = 1.0
    converged: bool = False
    rounds: int = 0
    improves: bool = True

    @property
    def temperature(self) -> float:
        return 1.0 / self.beta


@dataclass(frozen=True, slots=True)
class TemperatureGrid:
    """Find the root of the summed slope from its values on a grid of ``log(1 / T)``.

    Without noise a client sends three derivatives at each point; a quintic through two
    neighbours gives the root to about 1e-8. With noise (`clip` given) it sends its mean
    slope in ``1 / T`` only, which is monotone: an isotonic fit of the noisy curve
    gives the root.

    n_points: Grid points.
    clip: L2 bound on a client's curve.
    """

    n_points: int = 47
    clip: float | None = None
    n_rounds: int = 1

    @property
    def grid(self) -> Array:
        return np.linspace(-GRID_BOUND, GRID_BOUND, self.n_points)

    @property
    def _order(self) -> int:
        return 3 if self.clip is None else 1

    def init(self, n_classes: int) -> GridState:
        return GridState(np.zeros((self.n_points, self._order)))

    def broadcast(self, state: GridState) -> Arrays:
        return {"log_beta": self.grid}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"slopes": BlockSpec((self.n_points, self._order), clip=self.clip)}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_points", self.n_points, 1, MAX_POINTS)
        return ({"log_beta": Field((self.n_points,))},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        out = np.zeros((len(clients), self.n_points, self._order))
        for i, log_beta in enumerate(broadcast["log_beta"]):
            beta = np.exp(log_beta)
            out[:, i], _ = derivative_sums(clients, beta, self._order, np.float64)
        if self.clip is not None:
            out /= np.maximum(clients.sizes, 1)[:, None, None]
        return {"slopes": out}

    def update(self, state: GridState, total: Sums, n_clients: int) -> GridState:
        slopes = state.slopes + total["slopes"]
        improves = True
        if self.clip is None:
            log_beta, inside = _quintic_root(self.grid, slopes)
        else:
            log_beta, inside = _isotonic_root(self.grid, slopes[:, 0])
            # A root is meaningful only if the slopes at both ends exceed the noise.
            noise = total.noise.get("slopes", 0.0) * np.sqrt(state.rounds + 1)
            inside &= min(-slopes.min(), slopes.max()) > 4 * noise
            here = slopes[np.abs(self.grid).argmin(), 0]
            improves = bool(inside and abs(here) > _GRID_STANDS_OUT * noise)
        beta = float(np.exp(log_beta))
        return GridState(slopes, beta, inside, state.rounds + 1, improves)

    def done(self, state: GridState) -> bool:
        return state.rounds >= self.n_rounds


def _quintic_root(grid: Array, slopes: Array) -> tuple[float, bool]:
    """Root in ``log(beta)``, and whether it lies inside the grid."""
    beta = np.exp(grid)[:, None] ** [1, 2, 3]
    first, second, third = (slopes * beta).T
    # Slope of the loss in log(beta) with two derivatives, by the chain rule.
    values = np.column_stack([first, second + first, third + 3 * second + first])
    rising = np.flatnonzero((first[:-1] < 0) & (first[1:] >= 0))
    # A slope that fades to zero and never rises above it has no root.
    if not rising.size or not (first > 0).any():
        # A flat end (all zero) is not an optimum either; its middle is T = 1.
        end = 0.0 if not first.any() else (grid[0] if first[-1] > 0 else grid[-1])
        return float(end), False
    i = int(rising[0])
    width = grid[i + 1] - grid[i]
    left, right = (values[k] * width ** np.arange(3.0) for k in (i, i + 1))
    low, high = 0.0, 1.0
    for _ in range(60):  # bisection: exact to the last bit, and the curve is short
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _hermite(left, right, middle) < 0 else (low, middle)
        )
    return float(grid[i] + width * high), True


def _hermite(left: Array, right: Array, t: float) -> float:
    """Quintic with given value, slope and curvature at 0 and at 1."""
    s = 1 - t
    weights = [s**3 * (1 + 3 * t + 6 * t * t), s**3 * t * (1 + 3 * t), s**3 * t * t / 2]
    mirror = [t**3 * (1 + 3 * s + 6 * s * s), -(t**3) * s * (1 + 3 * s)]
    mirror.append(t**3 * s * s / 2)
    return float(np.dot(weights, left) + np.dot(mirror, right))


def _isotonic_root(grid: Array, slope: Array) -> tuple[float, bool]:
    curve = isotonic(slope)
    above = np.flatnonzero(curve >= 0)
    if not above.size or above[0] == 0:
        end = grid[-1] if not above.size else grid[0]
        return float(end), False
    i = int(above[0])
    part = -curve[i - 1] / (curve[i] - curve[i - 1])
    return float(grid[i - 1] + part * (grid[i] - grid[i - 1])), True


def isotonic(values: Array) -> Array:
    """Least-squares non-decreasing fit, by the min-max formula."""
    total = np.concatenate([[0.0], np.cumsum(values)])
    n = len(values)
    start, stop = np.arange(n)[:, None], np.arange(1, n + 1)[None, :]
    length = np.where(stop > start, stop - start, 1)
    mean = np.where(stop > start, (total[stop] - total[start]) / length, np.inf)
    # smallest[i, j]: least mean over segments that start at i and end at j or later.
    smallest = np.minimum.accumulate(mean[:, ::-1], axis=1)[:, ::-1]
    inside = np.where(stop > start, smallest, -np.inf)
    return np.maximum.accumulate(inside, axis=0).diagonal()


# Local optima of clients whose rows are all right (or all wrong) lie at infinity.
LOCAL_BOUND = float(np.log(20.0))

# First point of every client: a start may depend on no other client.
_START = -log(1.5)

# Derivatives used, and the error in log(T) at which a client is done.
_LOCAL_ORDER = 4
_TOLERANCE = 1e-7

# Longest Newton step, in log(T), at which the derivatives tell the error.
_LOCAL_NEAR = 0.5

# ``f f'' / f'^2`` of a slope f that has no root: that of a sum of exponentials is 1 at
# least, that of a slope with a root at a fair distance less.
_FADES = 0.98

# Share of clients still at work above which computing all is cheaper than picking.
_MOST = 0.8

# Standard deviations of the noise by which T must differ from 1.
_LOCAL_STANDS_OUT = 2.8


@dataclass(frozen=True, slots=True)
class AverageState:
    """The server's temperature, with the variance of the noise in it."""

    temperature: float = 1.0
    rounds: int = 0
    variance: float = 0.0

    @property
    def converged(self) -> bool:
        inside = abs(np.log(self.temperature)) < LOCAL_BOUND - 1e-6
        return self.rounds > 0 and bool(inside)

    @property
    def improves(self) -> bool:
        """Whether the change from T = 1 is more than noise alone would produce."""
        return (self.temperature - 1) ** 2 > _LOCAL_STANDS_OUT**2 * self.variance


@dataclass(frozen=True, slots=True)
class TemperatureAverage:
    """Average of the clients' own optimal temperatures.

    A client sends the difference between its own optimum, in [0.05, 20], and the
    server's temperature; the server adds the mean of the differences.

    clip: Bound on the difference that a client sends.
    n_rounds: Local optima do not depend on the server's value, so that rounds matter
        only with clipping, noise or changing cohorts.
    server_rate: Factor of the mean that the server adds.
    """

    clip: float | None = None
    n_rounds: int = 1
    server_rate: float = server_field(1.0)

    def init(self, n_classes: int) -> AverageState:
        return AverageState()

    def broadcast(self, state: AverageState) -> Arrays:
        return {"temperature": np.asarray(state.temperature)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        blocks = {"update": BlockSpec((1,), clip=self.clip)}
        if self.clip is None:
            blocks["filled"] = BlockSpec((1,), kind="count")
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return ({"temperature": Field()},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        own, filled = local_temperatures(clients), clients.filled
        update = np.where(filled, own - broadcast["temperature"], 0.0)
        answer = {"update": update[:, None]}
        if self.clip is None:
            answer["filled"] = filled.astype(np.int64)[:, None]
        return answer

    def update(self, state: AverageState, total: Sums, n_clients: int) -> AverageState:
        # Empty clients have no optimum; under a bound their number stays hidden.
        n_filled = (
            max(float(total["filled"][0]), 1.0) if "filled" in total else n_clients
        )
        rate = self.server_rate
        moved = state.temperature + rate * (float(total["update"][0]) / n_filled)
        bounds = np.exp(-LOCAL_BOUND), np.exp(LOCAL_BOUND)
        noise = rate * total.noise.get("update", 0.0) / n_filled
        return AverageState(
            float(np.clip(moved, *bounds)), state.rounds + 1, state.variance + noise**2
        )

    def done(self, state: AverageState) -> bool:
        return False


def local_temperatures(clients: FederatedDataset, *, max_iter: int = 60) -> Array:
    """NLL-optimal temperature of each client, for all clients at once.

    Steps to the root of the slope, from four derivatives of the loss and inside a
    bracket, for the clients that still move. Clients whose predictions are all correct
    or all wrong end at a bound (0.05 or 20); empty ones, and those whose loss is flat
    in floating point, end at 1.
    """
    log_beta = np.zeros(len(clients))
    low = np.full(len(clients), -LOCAL_BOUND)
    high = np.full(len(clients), LOCAL_BOUND)
    active = np.flatnonzero(clients.sizes)
    here = np.full(len(active), _START)
    for _ in range(max_iter):
        if not active.size:
            break
        slopes = _own_slopes(clients, active, np.exp(here))
        low[active] = np.where(slopes[0] < 0, here, low[active])
        high[active] = np.where(slopes[0] > 0, here, high[active])
        target, error = _step(here, slopes, low[active], high[active])
        moves = error > _TOLERANCE
        log_beta[active] = target
        active, here = active[moves], target[moves]
    return np.exp(-log_beta)


def _own_slopes(clients: FederatedDataset, active: Array, beta: Array) -> Array:
    """First derivatives of each active client's loss in ``beta``, times its powers."""
    most = len(active) > _MOST * len(clients)
    if most:
        part, rates = clients, np.ones(len(clients))
        rates[active] = beta
    else:
        part, rates = clients.select(active), beta
    sums, _ = derivative_sums(part, rates, _LOCAL_ORDER, clients.rows.dtype)
    out = np.ascontiguousarray((sums[active] if most else sums).T)
    power = np.ones_like(beta)
    for own in out:
        power *= beta
        own *= power
    return out


def _step(here: Array, slopes: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Next ``log(beta)`` of each client and an estimate of its error."""
    one, two, three, four = slopes
    with np.errstate(all="ignore"):
        # Slope at log(beta) + v, up to a factor: a + v + b v^2 + c v^3.
        a = one / two
        b = (two + three) / (2 * two)
        c = (two + 3 * three + four) / (6 * two)
        # Steps of Halley and of Householder err by about v^3 and v^4: the gap between
        # them tells about the error of the second. Factors are from real outputs.
        halley = -a / (1 - a * b)
        bend = 1 - 2 * a * b + a * a * c
        step = -a * (1 - a * b) / bend
        square = step * step
        error = 8 * np.abs(step * (step - halley)) + square * square / 2
        usable = (two > 0) & (bend > 0.2) & (np.abs(step) < 1)
        newton = np.where(one + two > 0, -one / (one + two), np.nan)
        fades = (one < 0) & (one * three > _FADES * two * two)
        target = here + np.where(usable, step, newton)
        near = usable & ~fades & (np.abs(a) < _LOCAL_NEAR)
    inside = (target > low) & (target < high) & ~fades
    end = np.where(one < 0, high, low)
    # A bound is tried once: the slope there says whether the root lies beyond it.
    other = np.where(np.abs(end) < LOCAL_BOUND, (low + high) / 2, end)
    target = np.where(inside, target, other)
    error = np.where(near & inside, error, high - low)
    still = one == 0
    # A loss without curvature at the start is flat; one with it has its minimum there.
    stay = np.where((here == _START) & (two == 0), 0.0, here)
    return np.where(still, stay, target), np.where(still, 0.0, error)


# The map


def temperature(cal: Any, logits: Value) -> Value:
    """One temperature, that of any calibrator with `temperature_`."""
    return logits / cal.temperature_
