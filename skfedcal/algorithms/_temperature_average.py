"""Temperature scaling by averaging local optima: Algorithm 2 of the paper."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal.algorithms._base import Array, Arrays, BlockSpec, Sums
from skfedcal.algorithms._moments import LossDerivatives
from skfedcal.data._dataset import FederatedDataset

# Local optima of clients whose rows are all right (or all wrong) lie at infinity.
LOCAL_BOUND = float(np.log(20.0))


@dataclass(frozen=True, slots=True)
class AverageState:
    """The server's temperature."""

    temperature: float = 1.0
    rounds: int = 0

    @property
    def converged(self) -> bool:
        return self.rounds > 0


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
        own = local_temperatures(clients)
        update = np.where(clients.sizes > 0, own - broadcast["temperature"], 0.0)
        answer = {"update": update[:, None]}
        if self.clip is None:
            answer["filled"] = np.minimum(clients.sizes, 1)[:, None]
        return answer

    def update(self, state: AverageState, total: Sums, n_clients: int) -> AverageState:
        # Empty clients have no optimum; under a bound their number stays hidden.
        n_filled = (
            max(float(total["filled"][0]), 1.0) if "filled" in total else n_clients
        )
        moved = state.temperature + float(total["update"][0]) / n_filled
        bounds = np.exp(-LOCAL_BOUND), np.exp(LOCAL_BOUND)
        return AverageState(float(np.clip(moved, *bounds)), state.rounds + 1)

    def done(self, state: AverageState) -> bool:
        return False


def local_temperatures(
    clients: FederatedDataset, *, tol: float = 1e-7, max_iter: int = 60
) -> Array:
    """NLL-optimal temperature of each client by itself, all clients at once.

    Safeguarded Newton steps in ``log(1 / T)`` on the clients that still move. Clients
    whose rows are all right or all wrong end at a bound (0.05 or 20), empty ones at 1.
    """
    log_beta = np.zeros(len(clients))
    low = np.full(len(clients), -LOCAL_BOUND)
    high = np.full(len(clients), LOCAL_BOUND)
    active = np.flatnonzero(clients.sizes)
    for _ in range(max_iter):
        if not active.size:
            break
        here = log_beta[active]
        slope, curvature = _own_slopes(clients, active, np.exp(here))
        low[active] = np.where(slope < 0, here, low[active])
        high[active] = np.where(slope > 0, here, high[active])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            target = here - slope / curvature
        good = (curvature > 0) & (target > low[active]) & (target < high[active])
        target = np.where(good, target, (low[active] + high[active]) / 2)
        target = np.where(slope == 0, here, target)
        log_beta[active] = target
        active = active[np.abs(target - here) > tol]
    return np.exp(-log_beta)


def _own_slopes(
    clients: FederatedDataset, active: Array, beta: Array
) -> tuple[Array, Array]:
    """First two derivatives of each active client's loss in ``log(1 / T)``."""
    part = clients if len(active) == len(clients) else clients.select(active)
    sums = np.zeros((len(active), 2))
    derivatives = LossDerivatives(np.float64)
    for block in part.blocks():
        per_row = np.repeat(beta[block.clients], np.diff(block.offsets))
        values = derivatives(block.rows, block.labels, per_row, 2)
        for j, value in enumerate(values):
            sums[block.clients, j] += block.sum_by_client(value)
    slope = beta * sums[:, 0]
    return slope, beta**2 * sums[:, 1] + slope
