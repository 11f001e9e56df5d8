"""Temperature scaling by averaging local optima: Algorithm 2 of the paper."""

from __future__ import annotations

from dataclasses import dataclass

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

# Local optima of clients whose rows are all right (or all wrong) lie at infinity.
LOCAL_BOUND = float(np.log(20.0))

# First point of every client, about the median (1.52) of what 23 sets of outputs of
# real models need: a start may depend on no other client.
_START = -float(np.log(1.5))

# Derivatives used, and the error in log(T) at which a client is done.
_ORDER = 4
_TOLERANCE = 1e-7

# Longest Newton step, in log(T), at which the derivatives tell the error.
_NEAR = 0.5

# ``f f'' / f'^2`` of a slope f that has no root: that of a sum of exponentials is 1 at
# least, that of a slope with a root at a fair distance less.
_FADES = 0.98

# Share of clients still at work above which computing all is cheaper than picking.
_MOST = 0.8

# Standard deviations of the noise by which T must differ from 1.
_STANDS_OUT = 2.8


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
        """Whether the move from T = 1 is more than what noise makes of nothing."""
        return (self.temperature - 1) ** 2 > _STANDS_OUT**2 * self.variance


@dataclass(frozen=True, slots=True)
class TemperatureAverage:
    """Average of the clients' own optimal temperatures.

    A client sends the difference between its own optimum, in [0.05, 20], and the
    server's temperature; the server adds the mean of the differences.

    Parameters
    ----------
    clip : float, default=None
        Bound on the difference that a client sends.
    n_rounds : int, default=1
        Local optima do not depend on the server's value, so that rounds matter only
        with clipping, noise or changing cohorts.
    """

    clip: float | None = None
    n_rounds: int = 1

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
        moved = state.temperature + float(total["update"][0]) / n_filled
        bounds = np.exp(-LOCAL_BOUND), np.exp(LOCAL_BOUND)
        noise = total.noise.get("update", 0.0) / n_filled
        return AverageState(
            float(np.clip(moved, *bounds)), state.rounds + 1, state.variance + noise**2
        )

    def done(self, state: AverageState) -> bool:
        return False


def local_temperatures(clients: FederatedDataset, *, max_iter: int = 60) -> Array:
    """NLL-optimal temperature of each client by itself, all clients at once.

    Steps to the root of the slope, from four derivatives of the loss and inside a
    bracket, for the clients that still move. Clients whose rows are all right or all
    wrong end at a bound (0.05 or 20); empty ones, and those whose loss is flat in
    floating point, end at 1.
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
    derivatives = LossDerivatives(clients.rows.dtype)
    most = len(active) > _MOST * len(clients)
    if most:
        part, rates = clients, np.ones(len(clients))
        rates[active] = beta
    else:
        part, rates = clients.select(active), beta
    rates = rates.astype(derivatives.dtype)
    sums = np.zeros((len(part), _ORDER))
    for block in part.blocks():
        per_row = np.repeat(rates[block.clients], np.diff(block.offsets))
        values = derivatives(block.rows, block.labels, per_row, _ORDER)
        sums[block.clients] += block.sum_by_client(values)
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
        near = usable & ~fades & (np.abs(a) < _NEAR)
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
