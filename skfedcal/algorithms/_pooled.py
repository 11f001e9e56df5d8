"""Exact fit of a scaling map to the pooled log loss, from sums over clients."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    n_classes_field,
)
from skfedcal.algorithms._canonical import labelled
from skfedcal.algorithms._curvature import curvature_of
from skfedcal.algorithms._evidence import ridge_strengths
from skfedcal.algorithms._families import Family, loss_and_slopes
from skfedcal.algorithms._temperature_grid import TemperatureGrid
from skfedcal.data._dataset import FederatedDataset

# Temperature in one round; the start needs no more digits than this many points give.
_GRID = TemperatureGrid(n_points=24)

# Entries per block: about c passes go over each, so that it should stay in the cache.
_CELLS = 1 << 15

# A step that lowers the objective by less than this per row is the last one.
_TOLERANCE = 1e-7

# Fall that rounding may hide at the optimum; a search that ends above it has failed.
_NEAR_GAIN = 1e-6

# Share of the predicted decrease that a step must bring; shortest step tried.
_ARMIJO, _MAX_HALVINGS = 1e-4, 25

# Pairs of steps and slopes that the quasi-Newton method keeps.
_MEMORY = 20


def _empty() -> Array:
    return np.empty(0)


@dataclass(frozen=True, slots=True)
class PooledState:
    """Best parameters so far, and the point that is asked next.

    `params` act on rows times `beta`; `slope` and `objective` belong to them. `trial`
    is ``params + step * direction``, `ridge` the strength in use by group. `moves` and
    `changes` are steps and changes of slope of a quasi-Newton method, oldest first.
    """

    n_classes: int
    params: Array
    trial: Array
    ridge: Array
    beta: float = 1.0
    bounded: bool = False
    rounds: int = 0
    objective: float = np.inf
    slope: Array = field(default_factory=_empty)
    direction: Array = field(default_factory=_empty)
    curvature: Array = field(default_factory=_empty)
    moves: Array = field(default_factory=_empty)
    changes: Array = field(default_factory=_empty)
    step: float = 1.0
    halvings: int = 0
    gain: float = np.inf
    finished: bool = False

    @property
    def temperature(self) -> float:
        return 1.0 / self.beta

    @property
    def converged(self) -> bool:
        """Whether the optimum was found around a temperature inside the bounds."""
        return self.finished and not self.bounded and self.gain <= _NEAR_GAIN


@dataclass(frozen=True, slots=True)
class PooledFit:
    """Minimise the mean log loss of all rows plus a ridge toward temperature scaling.

    The first round finds the temperature from slopes on a grid. In each round after it
    a client sends loss, slopes and curvature at the point asked; the server accepts
    the point if the objective falls, else comes back halfway. With two parameters per
    class and few classes the steps are Newton's; else a limited-memory quasi-Newton
    method starts from what curvature is sent.

    Parameters
    ----------
    family : VectorMap, MatrixMap or OrderPreservingMap
        The map.
    l2 : tuple of (float or None), default=(1.0, 1.0)
        Strength of the ridge of each group of parameters, which adds
        ``l2 / (2 n) * sum((params - start) ** 2)`` to the mean loss of n rows, in
        units of the temperature. None takes the strength of largest evidence.
    n_rounds : int, default=100
        Most rounds.
    """

    family: Family
    l2: tuple[float | None, ...] = (1.0, 1.0)
    n_rounds: int = 100

    def init(self, n_classes: int) -> PooledState:
        start = self.family.start(n_classes)
        return PooledState(n_classes, start, start, np.zeros(len(self.l2)))

    def broadcast(self, state: PooledState) -> Arrays:
        if state.rounds == 0:
            return {"log_beta": _GRID.grid}
        _, exact = curvature_of(self.family, state.n_classes)
        return {
            "n_classes": np.asarray(state.n_classes),
            "beta": np.asarray(state.beta),
            "params": state.trial,
            # A quasi-Newton method learns the change of curvature from the slopes.
            "bend": np.asarray(exact or state.rounds == 1),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if "log_beta" in broadcast:
            return _GRID.spec(broadcast)
        n_classes = int(broadcast["n_classes"])
        blocks = {"loss": BlockSpec((2 + self.family.size(n_classes),))}
        if broadcast["bend"]:
            size = curvature_of(self.family, n_classes)[0].size(n_classes)
            blocks["curvature"] = BlockSpec((size,))
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return (
            {"log_beta": Field(_GRID.grid.shape)},
            {
                "n_classes": n_classes_field(n_classes),
                "beta": Field(),
                "params": Field((self.family.size(n_classes),)),
                "bend": Field((), "flag"),
            },
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        if "log_beta" in broadcast:
            return _GRID.query(broadcast, clients)
        beta, params = float(broadcast["beta"]), broadcast["params"]
        answer = {
            name: np.zeros((len(clients), *block.shape))
            for name, block in self.spec(broadcast).items()
        }
        curvature, _ = curvature_of(self.family, clients.n_classes)
        for block in clients.blocks(_CELLS):
            data = labelled(block, beta, self.family.ranked)
            sums, proba = loss_and_slopes(self.family, params, data)
            where = answer["loss"][block.clients]
            where[:, 1:] += sums
            # The weights are in `data`; a block would multiply them in again.
            where[:, 0] += replace(block, weights=None).sum_by_client(data.weights)
            if "curvature" in answer:
                answer["curvature"][block.clients] += curvature.sums(
                    self.family, params, data, proba
                )
        return answer

    def update(self, state: PooledState, total: Sums, n_clients: int) -> PooledState:
        if state.rounds == 0:
            found = _GRID.update(_GRID.init(state.n_classes), total, n_clients)
            return replace(
                state, beta=found.beta, bounded=not found.converged, rounds=1
            )
        state = replace(state, rounds=state.rounds + 1)
        n_rows = max(float(total["loss"][0]), 1e-12)
        ridge = self._precision(state) / n_rows
        moved = state.trial - self.family.start(state.n_classes)
        objective = float(total["loss"][1] / n_rows + ridge @ moved**2 / 2)
        slope = total["loss"][2:] / n_rows + ridge * moved
        if state.slope.size and not self._falls(state, objective):
            return self._come_back(state, objective)
        bend = total.get("curvature", state.curvature)
        if not state.slope.size:
            curvature, _ = curvature_of(self.family, state.n_classes)
            spectra = curvature.spectra(bend, total["loss"][2:])
            weakest = self.family.weakest(state.n_classes)
            state = replace(state, ridge=ridge_strengths(spectra, self.l2, weakest))
        state = self._accept(state, objective, slope)
        return self._aim(replace(state, curvature=bend), n_rows)

    def done(self, state: PooledState) -> bool:
        return state.finished

    def _precision(self, state: PooledState) -> Array:
        return state.ridge[self.family.groups(state.n_classes)]

    def _falls(self, state: PooledState, objective: float) -> bool:
        fall = _ARMIJO * state.step * float(state.slope @ state.direction)
        # Sums are known to rounding only; near the optimum no step falls by more.
        return objective <= state.objective + fall + 1e-13 * abs(state.objective)

    def _come_back(self, state: PooledState, objective: float) -> PooledState:
        """Go back to the lowest point of the parabola through what is known."""
        if state.halvings >= _MAX_HALVINGS:
            return replace(state, trial=state.params, finished=True)
        fall = state.step * float(state.slope @ state.direction)
        bend = objective - state.objective - fall
        part = -fall / (2 * bend) if np.isfinite(bend) and bend > 0 else 0.1
        step = state.step * float(np.clip(part, 0.1, 0.5))
        return replace(
            state,
            step=step,
            trial=state.params + step * state.direction,
            halvings=state.halvings + 1,
        )

    def _accept(
        self, state: PooledState, objective: float, slope: Array
    ) -> PooledState:
        changed: dict[str, Any] = {}
        if state.slope.size:
            move, change = state.trial - state.params, slope - state.slope
            if move @ change > 1e-12 * np.linalg.norm(move) * np.linalg.norm(change):
                changed["moves"] = _append(state.moves, move)
                changed["changes"] = _append(state.changes, change)
        return replace(
            state,
            params=state.trial,
            objective=objective,
            slope=slope,
            step=1.0,
            halvings=0,
            **changed,
        )

    def _aim(self, state: PooledState, n_rows: float) -> PooledState:
        """Next point to ask, or the end."""
        curvature, exact = curvature_of(self.family, state.n_classes)
        precision = self._precision(state)

        def solve(slope: Array) -> Array:
            return curvature.solve(state.curvature, precision, n_rows, slope)

        if exact:
            direction = -solve(state.slope)
        else:
            direction = -two_loops(state.slope, state.moves, state.changes, solve)
        gain = -float(state.slope @ direction) / 2
        finished = not gain > _TOLERANCE
        trial = state.params + direction
        # So close to a minimum a Newton step cannot miss; a model of it might.
        sure = exact and self.family.convex and gain > 0
        return replace(
            state,
            direction=direction,
            params=trial if finished and sure else state.params,
            trial=trial if not finished or sure else state.params,
            gain=gain,
            finished=finished,
        )


def two_loops(slope: Array, moves: Array, changes: Array, solve: Any) -> Array:
    """Limited-memory BFGS: the inverse curvature times `slope`."""
    out, parts = slope.copy(), []
    for move, change in zip(moves[::-1], changes[::-1], strict=True):
        part = (move @ out) / (move @ change)
        out -= part * change
        parts.append(part)
    out = solve(out)
    if len(moves):
        out *= (moves[-1] @ changes[-1]) / (changes[-1] @ solve(changes[-1]))
    for move, change, part in zip(moves, changes, parts[::-1], strict=True):
        out += (part - (change @ out) / (move @ change)) * move
    return out


def _append(kept: Array, new: Array) -> Array:
    return np.vstack([kept.reshape(-1, len(new)), new])[-_MEMORY:]
