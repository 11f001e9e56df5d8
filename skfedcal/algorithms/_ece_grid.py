"""Temperature with the least binned calibration error, by nested grids."""

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
from skfedcal.algorithms._temperature_search import bin_gaps
from skfedcal.algorithms._top_label import confidence, leads
from skfedcal.data._dataset import FederatedDataset

# Points of the first grid and of the later ones, which reach from the neighbour of the
# best point on one side to that on the other: each is 16 times as fine.
_FIRST, _NEXT = 98, 33
# Errors per row that differ by less, the resolution of what is sent, are equal; the one
# nearest to the start is taken.
_EQUAL = 3e-11


@dataclass(frozen=True, slots=True)
class EceState:
    """Grid of ``log T`` to ask, and the best point so far."""

    grid: Array
    log_t: float = 0.0
    rounds: int = 0
    bounded: bool = False

    @property
    def temperature(self) -> float:
        return float(np.exp(self.log_t))

    @property
    def interval(self) -> Array:
        """There is none: the error has jumps, and many local minima."""
        return np.full(2, np.nan)

    @property
    def converged(self) -> bool:
        return self.rounds > 0

    @property
    def learnt(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class EceGrid:
    """Minimise the calibration error of the predicted class in bins.

    The error is not unimodal in T: rows move from bin to bin. It is taken on a grid
    over the whole range, and refined around the least value there.

    Parameters
    ----------
    low, high : float
        Range of ``log T``.
    start : float, default=0.0
        Which of several equal minima: the one nearest to this ``log T``.
    n_bins : int, default=15
        Equal-width bins of confidence.
    n_rounds : int, default=7
        Grids; seven reach a step of about 1e-9.
    """

    low: float
    high: float
    start: float = 0.0
    n_bins: int = 15
    n_rounds: int = 7

    def init(self, n_classes: int) -> EceState:
        return EceState(np.linspace(self.low, self.high, _FIRST))

    def broadcast(self, state: EceState) -> Arrays:
        return {"temperatures": np.exp(state.grid)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_points = len(broadcast["temperatures"])
        return {"gaps": BlockSpec((n_points, self.n_bins)), "rows": BlockSpec((1,))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_bins", self.n_bins, 1, MAX_POINTS)
        return tuple({"temperatures": Field((size,))} for size in (_FIRST, _NEXT))

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        temperatures = broadcast["temperatures"]
        out = np.zeros((len(clients), len(temperatures), self.n_bins))
        rows = np.zeros((len(clients), 1))
        for block in clients.blocks():
            gaps, right = leads(block)
            rows[block.clients, 0] += block.sum_by_client(np.ones_like(right))
            for i, temperature in enumerate(temperatures):
                level = confidence(gaps, float(temperature))
                out[block.clients, i] += bin_gaps(block, right, level, self.n_bins)
        return {"gaps": out, "rows": rows}

    def update(self, state: EceState, total: Sums, n_clients: int) -> EceState:
        error = np.abs(total["gaps"]).sum(axis=1)
        grid = state.grid
        equal = np.flatnonzero(error <= error.min() + _EQUAL * total["rows"][0])
        best = int(equal[np.abs(grid[equal] - self.start).argmin()])
        ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        return EceState(
            np.linspace(*ends, _NEXT),
            float(grid[best]),
            state.rounds + 1,
            bool(grid[best] in (self.low, self.high)),
        )

    def done(self, state: EceState) -> bool:
        return state.rounds >= self.n_rounds
