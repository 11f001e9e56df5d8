"""Temperature scaling by averaging local optima: Algorithm 2 of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal.algorithms._base import Array, Arrays, BlockSpec, Sums
from skfedcal.algorithms._moments import LossDerivatives
from skfedcal.data._dataset import FederatedDataset

# Local optima of clients whose rows are all right (or all wrong) lie at infinity.
LOCAL_BOUND = float(np.log(20.0))

# Derivatives used, and the error in log(T) at which a client is done.
_ORDER = 3
_TOLERANCE = 1e-7

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

    Steps to the root of the expanded slope, inside a bracket, for the clients that
    still move. Clients whose rows are all right or all wrong end at a bound (0.05 or
    20), or on the way there where their loss is zero in floating point; empty ones
    end at 1.
    """
    log_beta = np.zeros(len(clients))
    low = np.full(len(clients), -LOCAL_BOUND)
    high = np.full(len(clients), LOCAL_BOUND)
    active = np.flatnonzero(clients.sizes)
    for _ in range(max_iter):
        if not active.size:
            break
        here = log_beta[active]
        slopes = _own_slopes(clients, active, np.exp(here))
        low[active] = np.where(slopes[0] < 0, here, low[active])
        high[active] = np.where(slopes[0] > 0, here, high[active])
        target, error = _step(here, slopes, low[active], high[active])
        log_beta[active] = target
        active = active[error > _TOLERANCE]
    return np.exp(-log_beta)


def _own_slopes(clients: FederatedDataset, active: Array, beta: Array) -> Array:
    """First derivatives of each active client's loss in ``beta``, times its powers."""
    part = clients if len(active) == len(clients) else clients.select(active)
    sums = np.zeros((len(active), _ORDER))
    derivatives = LossDerivatives(clients.rows.dtype)
    for block in part.blocks():
        per_row = np.repeat(beta[block.clients], np.diff(block.offsets))
        values = derivatives(block.rows, block.labels, per_row, _ORDER)
        sums[block.clients] += block.sum_by_client(values)
    return (sums * beta[:, None] ** np.arange(1, _ORDER + 1)).T


def _step(here: Array, slopes: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """Next ``log(beta)`` of each client and an estimate of its error."""
    with np.errstate(all="ignore"):
        # Slope in x at beta (1 + x): a + b x + c x^2 / 2, scaled to b = 1.
        a, c = slopes[0] / slopes[1], slopes[2] / slopes[1]
        x = -2 * a / (1 + np.sqrt(np.maximum(1 - 2 * a * c, 0.0)))
        near = (slopes[1] > 0) & (np.abs(x) < 0.3) & (2 * a * c < 0.8)
        bend = slopes[1] + slopes[0]
        # No root of the parabola: the slope fades toward infinity, and so would steps.
        good = (bend > 0) & (2 * a * c < 1)
        newton = np.where(good, -slopes[0] / bend, np.nan)
        target = here + np.where(near, np.log1p(x), newton)
        # The cubic term left out is of the order of the quadratic one times x.
        error = np.abs(x) ** 3 * np.maximum(np.abs(c), 1.0)
    inside = (target > low) & (target < high)
    target = np.where(inside, target, (low + high) / 2)
    error = np.where(near & inside, error, high - low)
    flat = slopes[0] == 0
    return np.where(flat, here, target), np.where(flat, 0.0, error)
