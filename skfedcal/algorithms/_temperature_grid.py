"""Temperature scaling in one round: every client sends its slopes on a grid."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal.algorithms._base import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
)
from skfedcal.algorithms._moments import LossDerivatives
from skfedcal.data._dataset import FederatedDataset

# Grid in log(1 / T): T from 0.01 to 100.
GRID_BOUND = float(np.log(100.0))

# Standard deviations by which the slope at T = 1 must differ from 0.
_STANDS_OUT = 2.8


@dataclass(frozen=True, slots=True)
class GridState:
    """Summed slopes so far and the root that they have.

    `converged` is false at either end of the grid; `improves` tells whether the slope
    at T = 1 stands out of the noise.
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

    Parameters
    ----------
    n_points : int, default=47
        Grid points.
    clip : float, default=None
        L2 bound on a client's curve.
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
        derivatives = LossDerivatives(np.float64)
        for block in clients.blocks():
            for i, log_beta in enumerate(broadcast["log_beta"]):
                beta = np.exp(log_beta)
                values = derivatives(block.rows, block.labels, beta, self._order)
                out[block.clients, i] += block.sum_by_client(values)
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
            # Both ends must stand out of the noise for a root to mean anything.
            noise = total.noise.get("slopes", 0.0) * np.sqrt(state.rounds + 1)
            inside &= min(-slopes.min(), slopes.max()) > 4 * noise
            here = slopes[np.abs(self.grid).argmin(), 0]
            improves = bool(inside and abs(here) > _STANDS_OUT * noise)
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
        # A flat end (all zero) is no optimum either; the middle of it is T = 1.
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
