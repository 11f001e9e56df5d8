"""Scaling maps fitted to sums over clients: pooled loss, or averaged local fits.

- Strength of a ridge from the evidence, on the quadratic model at its centre.
- Curvature of the summed loss: client sums and server matrices.
- Limited-memory BFGS for many small problems at once, one row of parameters each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from skfedcal import _compiled
from skfedcal.clients.dataset import FederatedDataset, segment_sums
from skfedcal.contract import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
    n_classes_field,
    server_field,
)
from skfedcal.methods.graph import Value, softplus
from skfedcal.methods.map_formulas import centred_rows, stretched
from skfedcal.methods.scaling.families import (
    SMALLEST_SLOPE,
    Family,
    LabelledRows,
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
    labelled,
    loss_and_slopes,
)
from skfedcal.methods.temperature.rounds import (
    GRID_BOUND,
    SAMPLE,
    TemperatureGrid,
    TemperatureNewton,
    TemperatureState,
)

# Strengths tried: from hardly any ridge to parameters that cannot move.
_STRENGTHS = np.geomspace(0.1, 1e7, 65)

# Evidence that differs by less is the same; more ridge is then the safer choice.
_SAME = 1e-6


def ridge_strengths(
    spectra: Sequence[tuple[Array, Array]],
    given: Sequence[float | None],
    weakest: Array,
) -> Array:
    """Strength of each group of parameters: as given, or of largest evidence.

    The latter is not below `weakest`.

    Each group comes with the eigenvalues ``s`` of its curvature and the slope ``g`` of
    the loss in the eigenvectors, both summed over rows, at the centre of the ridge.
    With a normal prior of precision ``r`` the evidence is, up to a constant,
    ``sum(g^2 / (s + r) - log(1 + s / r)) / 2``: large slopes lead to a weak ridge,
    slopes within the sampling error to a strong one.
    """
    return np.array(
        [
            max(_largest_evidence(*spectrum), least) if strength is None else strength
            for spectrum, strength, least in zip(spectra, given, weakest, strict=True)
        ]
    )


def _free_numbers(spectra: Sequence[tuple[Array, Array]], strengths: Array) -> float:
    """Trace of ``H (H + R)^-1`` within the groups, for curvature H and ridge R."""
    bends = (np.maximum(values.ravel(), 0.0) for values, _ in spectra)
    return sum(
        float((s / (s + r + 1e-300)).sum())
        for s, r in zip(bends, strengths, strict=True)
    )


def _largest_evidence(eigenvalues: Array, slopes: Array) -> float:
    bends, squares = np.maximum(eigenvalues.ravel(), 0.0), slopes.ravel() ** 2
    values = np.array(
        [(squares / (bends + r) - np.log1p(bends / r)).sum() / 2 for r in _STRENGTHS]
    )
    best = int(np.flatnonzero(values >= values.max() - _SAME)[-1])
    if best in (0, len(_STRENGTHS) - 1):
        return float(_STRENGTHS[best])
    # Top of the parabola through three points: no jumps between points of the grid.
    low, top, high = values[best - 1 : best + 2]
    bend = 2 * top - low - high
    shift = float(np.clip((high - low) / (2 * bend), -0.5, 0.5)) if bend > 0 else 0.0
    return float(_STRENGTHS[best] * (_STRENGTHS[1] / _STRENGTHS[0]) ** shift)


# Two parameters per class have a curvature of 2 c^2 + c numbers: sent in every round up
# to FEW_CLASSES, once up to MANY_CLASSES. That of matrix scaling has about c^4 / 4.
FEW_CLASSES, MANY_CLASSES, FEW_FOR_MATRIX = 30, 128, 12

# Ridge, relative to the mean of the diagonal, against curvature that is singular.
_JITTER = 1e-12


class PairCurvature:
    """Whole curvature of a map with two parameters per class."""

    name = "pair"

    def size(self, n_classes: int) -> int:
        return n_classes * (2 * n_classes + 1)

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        x = data.rows.values
        parts = []
        for j, kernel in enumerate(family.kernels(params, data, proba)):  # type: ignore[attr-defined]
            mixed = kernel * x[j]
            pieces = (mixed[j:] * x[j:], mixed, kernel[j:])
            parts += [segment_sums(piece, data.offsets) for piece in pieces]
        return np.concatenate(parts, axis=1)

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        return _ridge_solve(self._matrix(sums, len(slope)), precision, n_rows, slope)

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        whole = self._matrix(sums, len(slope))
        return _spectra(whole, slope, np.arange(len(slope)) * 2 // len(slope))

    def _matrix(self, sums: Array, size: int) -> Array:
        n_classes = size // 2
        whole = np.zeros((size, size))
        first, last = whole[:n_classes], whole[n_classes:]
        at = 0
        for j in range(n_classes):
            rest = n_classes - j
            first[j, j:n_classes] = sums[at : at + rest]
            first[j, n_classes:] = sums[at + rest : at + rest + n_classes]
            last[j, n_classes + j :] = sums[at + rest + n_classes :][:rest]
            at += 2 * rest + n_classes
        return np.triu(whole) + np.triu(whole, 1).T


class ClassCurvature:
    """Curvature within each class only, of a map with two parameters per class."""

    name = "class"

    def size(self, n_classes: int) -> int:
        return 3 * n_classes

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        own = np.stack(
            [
                kernel[j]
                for j, kernel in enumerate(family.kernels(params, data, proba))  # type: ignore[attr-defined]
            ]
        )
        x = data.rows.values
        parts = [segment_sums(p, data.offsets) for p in (own * x * x, own * x, own)]
        return np.concatenate(parts, axis=1)

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        return list(zip(sums.reshape(3, -1)[::2], np.split(slope, 2), strict=True))

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        aa, ab, bb = sums.reshape(3, -1)
        aa, bb = (
            own + p for own, p in zip((aa, bb), np.split(precision, 2), strict=True)
        )
        jitter = _JITTER * (aa.mean() + bb.mean()) + 1e-30
        aa, bb = aa + jitter, bb + jitter
        one, two = np.split(slope * n_rows, 2)
        scale = aa * bb - ab * ab
        return np.concatenate([bb * one - ab * two, aa * two - ab * one]) / np.tile(
            scale, 2
        )


class FullCurvature:
    """Whole curvature of matrix scaling.

    That of a row is ``diag(p) - p p'`` for the classes times ``x x'`` for the columns
    ``x`` and a constant one; both are symmetric.
    """

    name = "full"

    def size(self, n_classes: int) -> int:
        return _half(n_classes) * _half(n_classes + 1)

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        columns = _with_ones(data.rows.values)
        products = np.concatenate([columns[j:] * x for j, x in enumerate(columns)])
        parts = []
        for j, kernel in enumerate(VectorMap().kernels(params, data, proba)):
            parts += [segment_sums(products * own, data.offsets) for own in kernel[j:]]
        return np.concatenate(parts, axis=1)

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        return _ridge_solve(self._matrix(sums, len(slope)), precision, n_rows, slope)

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        groups = MatrixMap().groups(int(np.sqrt(len(slope))))
        return _spectra(self._matrix(sums, len(slope)), slope, groups)

    def _matrix(self, sums: Array, size: int) -> Array:
        n = int(np.sqrt(size))
        blocks = sums.reshape(_half(n), -1)
        whole = blocks[_places(n)[:, :, None, None], _places(n + 1)]
        # Axes: column and class of one parameter, column and class of the other.
        return whole.transpose(2, 0, 3, 1).reshape(size, size)


class SplitCurvature:
    """Curvature of matrix scaling in two parts, as a start for a quasi-Newton method.

    Diagonal and bias have the whole curvature of vector scaling. For the rest a sum of
    products, of one matrix over classes and one over columns for each row, is
    replaced by the product of sums, the second weighted by the trace of the first.
    """

    name = "split"

    def size(self, n_classes: int) -> int:
        return PairCurvature().size(n_classes) + 2 * _half(n_classes)

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        x = data.rows.values
        parts = [PairCurvature().sums(VectorMap(), params, data, proba)]
        trace = np.zeros(x.shape[1])
        weighted = proba * data.weights
        for j, own in enumerate(proba):
            kernel = weighted[j:] * -own
            kernel[0] += weighted[j]
            trace += kernel[0]
            parts.append(segment_sums(kernel, data.offsets))
        for j, column in enumerate(x):
            parts.append(segment_sums(x[j:] * (column * trace), data.offsets))
        return np.concatenate(parts, axis=1)

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        n = int(np.sqrt(len(slope)))
        square = slope.reshape(n + 1, n)
        weights = precision.reshape(n + 1, n)
        at = PairCurvature().size(n)
        out = np.empty_like(square)
        out[:n] = self._solve_off(sums[at:], float(weights[1, 0]), square[:n] * n_rows)
        own = np.concatenate([np.diag(square), square[n]])
        ridge = np.concatenate([np.diag(weights), weights[n]])
        own = PairCurvature().solve(sums[:at], ridge, n_rows, own)
        out[np.arange(n), np.arange(n)], out[n] = np.split(own, 2)
        return out.ravel()

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        n = int(np.sqrt(len(slope)))
        square = slope.reshape(n + 1, n)
        at = PairCurvature().size(n)
        own = np.concatenate([np.diag(square), square[n]])
        scale, (right, left) = self._eigen(sums[at:], n)
        off = right.T @ (square[:n] * ~np.eye(n, dtype=bool)) @ left
        return [*PairCurvature().spectra(sums[:at], own), (scale, off)]

    def _solve_off(self, sums: Array, ridge: float, square: Array) -> Array:
        n = len(square)
        scale, (right, left) = self._eigen(sums, n)
        scale = scale + ridge
        scale += _JITTER * scale.mean() + 1e-30
        off = square * ~np.eye(n, dtype=bool)
        return right @ ((right.T @ off @ left) / scale) @ left.T

    def _eigen(self, sums: Array, n: int) -> tuple[Array, tuple[Array, Array]]:
        """Eigenvalues of the product, and eigenvectors of columns and classes."""
        classes, columns = (_symmetric(s, n) for s in np.split(sums, 2))
        low, left = np.linalg.eigh(classes)
        high, right = np.linalg.eigh(columns / max(np.trace(classes), 1e-30))
        return np.outer(high, low).clip(0), (right, left)


Curvature = PairCurvature | ClassCurvature | FullCurvature | SplitCurvature


def curvature_of(family: Family, n_classes: int) -> tuple[Curvature, bool]:
    """Choose the curvature that clients send, and whether in every round."""
    if isinstance(family, MatrixMap):
        few = n_classes <= FEW_FOR_MATRIX
        return (FullCurvature(), True) if few else (SplitCurvature(), False)
    if n_classes <= MANY_CLASSES:
        return PairCurvature(), n_classes <= FEW_CLASSES
    return ClassCurvature(), False


def _ridge_solve(whole: Array, precision: Array, n_rows: float, slope: Array) -> Array:
    diagonal = np.diag_indices_from(whole)
    whole[diagonal] += precision
    whole[diagonal] += _JITTER * np.trace(whole) / len(whole) + 1e-30
    return np.linalg.solve(whole / n_rows, slope)


def _spectra(whole: Array, slope: Array, groups: Array) -> list[tuple[Array, Array]]:
    """Eigenvalues within each group, and the slope in the eigenvectors."""
    out = []
    for group in range(groups.max() + 1):
        own = groups == group
        values, vectors = np.linalg.eigh(whole[np.ix_(own, own)])
        out.append((values, vectors.T @ slope[own]))
    return out


def _with_ones(values: Array) -> Array:
    return np.concatenate([values, np.ones((1, values.shape[1]))])


def _half(n: int) -> int:
    """Entries of a symmetric matrix that differ."""
    return n * (n + 1) // 2


def _places(n: int) -> Array:
    """Where each entry of a symmetric matrix is among those of its upper part."""
    index = np.arange(n)
    low, high = np.minimum.outer(index, index), np.maximum.outer(index, index)
    return low * n - low * (low + 1) // 2 + high


def _symmetric(upper: Array, n: int) -> Array:
    return upper[_places(n)]


# Temperature in one round; the start needs no more digits than this many points give.
_START_GRID = TemperatureGrid(n_points=24)
_START_STEPS = TemperatureNewton(sample=SAMPLE)

# Entries per block: about c passes go over each, so that it should stay in the cache.
_CELLS = 1 << 15

# A step that lowers the objective by less than this per row is the last one.
_TOLERANCE = 1e-7

# Fall that rounding may hide at the optimum; a search that ends above it has failed.
_NEAR_GAIN = 1e-6

# Share of the predicted decrease that a step must bring; shortest step tried.
_ARMIJO, _MAX_HALVINGS = 1e-4, 25

# Families that the compiled core has, and their names there.
_IN_CORE: dict[type, str] = {
    VectorMap: "vector",
    MatrixMap: "matrix",
    OrderPreservingMap: "order",
}

# Steps after which curvature is sent anew. Of a map that is not convex: CIFAR-100 then
# takes 14 rounds, not 30 (1 to 6 steps: 11 to 16). Within classes only: vector scaling
# of 1,000 classes takes 22, not 41; after fewer steps it stops 1e-6 too early.
_RENEWED, _CLASS_RENEWED = 3, 6

# Pairs of steps and slopes that the quasi-Newton method keeps.
_MEMORY = 20


def _empty() -> Array:
    return np.empty(0)


@dataclass(frozen=True, slots=True)
class PooledState:
    """Best parameters so far, and the next point to query.

    `start` is the state of a temperature fit by steps, until it has ended.
    `params` act on rows times `beta`; `slope` and `objective` belong to them. `trial`
    is ``params + step * direction``, `ridge` the strength in use by group, `n_free` the
    number of parameters less what the ridge takes. `moves` and `changes` are steps and
    changes of slope of a quasi-Newton method, oldest first.
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
    n_free: float = 0.0
    start: TemperatureState | None = None

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

    The first round finds the temperature from slopes on a grid, or a few rounds find it
    by the steps of `TemperatureNewton`, which are far less work. In each round after it
    a client sends loss, slopes and curvature at the point asked; the server accepts the
    point if the objective decreases, otherwise shortens the step. With two parameters
    per class and few classes the steps are Newton's; else a limited-memory quasi-Newton
    method starts from the curvature that clients send. That of a map that is not convex
    changes on the way, and is sent anew after each three steps; that within classes, of
    many classes, after each six.

    l2: Strength of the ridge of each group of parameters, which adds ``l2 / (2 n) *
        sum((params - start) ** 2)`` to the mean loss of n rows, in units of the
        temperature. None takes the strength of largest evidence.
    n_rounds: Most rounds.
    start_rounds: Most rounds for the temperature; 1 takes the grid.
    """

    family: Family
    l2: tuple[float | None, ...] = (1.0, 1.0)
    n_rounds: int = 100
    start_rounds: int = server_field(1)

    def init(self, n_classes: int) -> PooledState:
        start = self.family.start(n_classes)
        by_steps = self.start_rounds > 1
        return PooledState(
            n_classes,
            start,
            start,
            np.zeros(len(self.l2)),
            start=_START_STEPS.init(n_classes) if by_steps else None,
        )

    def broadcast(self, state: PooledState) -> Arrays:
        if state.start is not None:
            return _START_STEPS.broadcast(state.start)
        if state.rounds == 0:
            return {"log_beta": _START_GRID.grid}
        _, exact = curvature_of(self.family, state.n_classes)
        return {
            "n_classes": np.asarray(state.n_classes),
            "beta": np.asarray(state.beta),
            "params": state.trial,
            # A quasi-Newton method learns the change of curvature from the slopes.
            "bend": np.asarray(exact or state.rounds == 1 or self._is_stale(state)),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if "log_beta" in broadcast:
            return _START_GRID.spec(broadcast)
        if "params" not in broadcast:
            return _START_STEPS.spec(broadcast)
        n_classes = int(broadcast["n_classes"])
        blocks = {"loss": BlockSpec((2 + self.family.size(n_classes),))}
        if broadcast["bend"]:
            size = curvature_of(self.family, n_classes)[0].size(n_classes)
            blocks["curvature"] = BlockSpec((size,))
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return (
            {"log_beta": Field(_START_GRID.grid.shape)},
            {
                "n_classes": n_classes_field(n_classes),
                "beta": Field(),
                "params": Field((self.family.size(n_classes),)),
                "bend": Field((), "flag"),
            },
            *_START_STEPS.forms(n_classes),
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        if "log_beta" in broadcast:
            return _START_GRID.query(broadcast, clients)
        if "params" not in broadcast:
            return _START_STEPS.query(broadcast, clients)
        beta, params = float(broadcast["beta"]), broadcast["params"]
        answer = {
            name: np.zeros((len(clients), *block.shape))
            for name, block in self.spec(broadcast).items()
        }
        curvature, _ = curvature_of(self.family, clients.n_classes)
        if self._in_core(beta, params, clients, answer):
            return answer
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

    def _in_core(
        self, beta: float, params: Array, clients: FederatedDataset, answer: Arrays
    ) -> bool:
        """Fill the answer by the compiled core; False if it cannot."""
        kind = _IN_CORE.get(type(self.family))
        if kind is None:
            return False
        curvature, _ = curvature_of(self.family, clients.n_classes)
        bent = answer.get("curvature")
        return _compiled.scaling_sums(
            clients,
            kind,
            beta,
            params,
            "none" if bent is None else curvature.name,
            answer["loss"],
            np.empty((len(clients), 0)) if bent is None else bent,
        )

    def update(self, state: PooledState, total: Sums, n_clients: int) -> PooledState:
        if state.start is not None:
            return self._step_start(state, state.start, total, n_clients)
        if state.rounds == 0:
            found = _START_GRID.update(
                _START_GRID.init(state.n_classes), total, n_clients
            )
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
            strengths = ridge_strengths(spectra, self.l2, weakest)
            state = replace(
                state, ridge=strengths, n_free=_free_numbers(spectra, strengths)
            )
        renewed = self._is_stale(state)
        state = self._accept(state, objective, slope)
        if renewed:
            state = replace(state, moves=_empty(), changes=_empty())
        return self._aim(replace(state, curvature=bend), n_rows)

    def done(self, state: PooledState) -> bool:
        return state.finished

    def _is_stale(self, state: PooledState) -> bool:
        """Whether clients shall send the curvature at the next point too."""
        curvature, exact = curvature_of(self.family, state.n_classes)
        if isinstance(curvature, ClassCurvature):
            return len(state.moves) >= _CLASS_RENEWED
        return not exact and not self.family.convex and len(state.moves) >= _RENEWED

    def _step_start(
        self, state: PooledState, start: TemperatureState, total: Sums, n_clients: int
    ) -> PooledState:
        """One more step of the temperature; `rounds` counts from its end on."""
        start = _START_STEPS.update(start, total, n_clients)
        n_steps = state.halvings + 1
        if not _START_STEPS.done(start) and n_steps < self.start_rounds:
            return replace(state, start=start, halvings=n_steps)
        log_beta = float(np.log(start.beta))
        inside = start.converged and abs(log_beta) < GRID_BOUND
        log_beta = float(np.clip(log_beta, -GRID_BOUND, GRID_BOUND))
        return replace(
            state,
            beta=float(np.exp(log_beta)),
            bounded=not inside,
            rounds=1,
            halvings=0,
            start=None,
        )

    def _precision(self, state: PooledState) -> Array:
        return state.ridge[self.family.groups(state.n_classes)]

    def _falls(self, state: PooledState, objective: float) -> bool:
        fall = _ARMIJO * state.step * float(state.slope @ state.direction)
        # Sums are known to rounding only; near the optimum no step falls by more.
        return objective <= state.objective + fall + 1e-13 * abs(state.objective)

    def _come_back(self, state: PooledState, objective: float) -> PooledState:
        """Return to the minimum of the parabola through the known values."""
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
        """Next point to query, or the end."""
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


# Pairs kept, halvings per step, share of the predicted decrease that is asked for.
_LOCAL_MEMORY, _LOCAL_MAX_HALVINGS, _LOCAL_ARMIJO = 10, 20, 1e-4

# Share of the problems up to which their rows are copied, and the others left out.
_MOST_SELECTED = 0.75

# A problem is solved at this slope or decrease, as in scipy. Smallest curvature kept,
# as a part of the change of slope and as a number.
_FLAT, _STALLED = 1e-5, 2.2e-9
_CURVED, _TINY = 1e-10, 1e-30


_Function = Callable[[Array, Array | None], tuple[Array, Array]]


def minimise_each(function: _Function, start: Array, n_steps: int) -> Array:
    """Minimise each problem from its own row of `start` by at most `n_steps` steps.

    `function` maps parameters of shape (n_problems, size) to values and slopes, of the
    problems at given positions, or of all for None. All problems step together, but
    their steps are independent; those that have converged do not move.
    """
    params = start.copy()
    value, slope = function(params, None)
    pairs: list[_Pair] = []
    for _ in range(n_steps):
        active = np.abs(slope).max(axis=1) > _FLAT
        if not active.any():
            break
        direction = -_two_loops(slope, pairs)
        fall = _dot(direction, slope)
        direction = np.where((fall < 0)[:, None], direction, -slope)
        fall = np.where(fall < 0, fall, -_dot(slope, slope))
        step = np.where(active, 1.0, 0.0)
        if not pairs:
            # Nothing is known about the curvature yet: a step of length one at most.
            step = step / np.maximum(np.sqrt(_dot(slope, slope)), 1.0)
        step, trial, new_value, new_slope = _search(
            function, params, direction, value, fall, step
        )
        taken = (step > 0)[:, None]
        move = np.where(taken, trial - params, 0.0)
        change = np.where(taken, new_slope - slope, 0.0)
        pairs = [*pairs, _Pair.of(move, change)][-_LOCAL_MEMORY:]
        params = np.where(taken, trial, params)
        # One that cannot step any further has arrived.
        arrived = ~(value - new_value > _STALLED * np.maximum(np.abs(value), 1.0))
        value = np.where(taken[:, 0], new_value, value)
        slope = np.where(taken & ~arrived[:, None], new_slope, 0.0)
    return params


def _search(
    function: _Function,
    params: Array,
    direction: Array,
    value: Array,
    fall: Array,
    step: Array,
) -> tuple[Array, Array, Array, Array]:
    """Halve each step until its value decreases; a step of 0 means that none did.

    Values and slopes are computed where a step is still to be found.
    """
    trial, new_value, new_slope = params.copy(), value.copy(), np.zeros_like(params)
    short = np.flatnonzero(step > 0)
    for _ in range(_LOCAL_MAX_HALVINGS):
        trial[short] = params[short] + step[short, None] * direction[short]
        if len(short) > _MOST_SELECTED * len(step):
            found = function(trial, None)
            new_value[short], new_slope[short] = (one[short] for one in found)
        else:
            new_value[short], new_slope[short] = function(trial[short], short)
        enough = value[short] + _LOCAL_ARMIJO * step[short] * fall[short]
        short = short[~(new_value[short] <= enough)]
        if not len(short):
            return step, trial, new_value, new_slope
        step[short] /= 2
    step[short] = 0.0
    return step, trial, new_value, new_slope


class _Pair(NamedTuple):
    """A step of each problem, the change of slope, and what follows from both.

    inverse: One over the product of the two; 0 without enough curvature.
    scale: Product over the square of the change, if `used`.
    """

    move: Array
    change: Array
    inverse: Array
    scale: Array
    used: Array

    @classmethod
    def of(cls, move: Array, change: Array) -> _Pair:
        """Compute the products once: every later step needs them."""
        product, square = _dot(move, change), _dot(change, change)
        used = product > np.maximum(_CURVED * square, _TINY)
        inverse = np.where(used, 1 / np.where(used, product, 1.0), 0.0)
        scale = product / np.where(used, square, 1.0)
        return cls(move, change, inverse, scale, used)


def _two_loops(slope: Array, pairs: list[_Pair]) -> Array:
    out, parts = slope.copy(), []
    for pair in reversed(pairs):
        part = _dot(pair.move, out) * pair.inverse
        out -= part[:, None] * pair.change
        parts.append(part)
    scale = np.ones(len(out))
    for pair in pairs:
        scale = np.where(pair.used, pair.scale, scale)
    out *= scale[:, None]
    for pair, part in zip(pairs, reversed(parts), strict=True):
        part = part - _dot(pair.change, out) * pair.inverse
        out += part[:, None] * pair.move
    return out


def _dot(one: Array, other: Array) -> Array:
    """Inner product of each problem's rows."""
    # Entry after entry, so that the bits do not depend on the number of problems: numpy
    # adds whole rows in their order, but a single column in pairs.
    if len(one) == 1:
        return np.cumsum(one * other, axis=1)[:, -1]
    out: Array = np.add.reduce(np.multiply(one.T, other.T, order="C"), axis=0)
    return out


# Rows that are all correct or all wrong have their optimum at infinity.
_BOUND = 50.0


# Most local steps that a site makes for one answer.
MAX_LOCAL_STEPS = 10_000
# Most products of steps and parameters; half a minute for a thousand rows.
MAX_WORK = 1e8


@dataclass(frozen=True, slots=True)
class LocalState:
    """The server's parameters, and the deviation of the noise in each."""

    n_classes: int
    params: Array
    noise: float = 0.0
    rounds: int = 0

    @property
    def temperature(self) -> float:
        return 1.0

    @property
    def converged(self) -> bool:
        inside = bool((np.abs(self.params) < _BOUND).all())
        return self.rounds > 0 and inside


@dataclass(frozen=True, slots=True)
class LocalAverage:
    """Average the updates that clients compute on their own rows.

    A client sends the difference between its parameters and the server's; the server
    adds the mean of the differences.

    local_solver: Quasi-Newton steps, or gradient steps of fixed rate on the mean loss.
    local_iter: Steps of each client and round.
    learning_rate: Rate of gradient steps.
    clip: Bound on the L2 norm of the difference that a client sends.
    server_rate: Factor of the mean that the server adds.
    """

    family: Family
    local_solver: Literal["lbfgs", "gd"] = "lbfgs"
    local_iter: int = 50
    learning_rate: float = 0.01
    clip: float | None = None
    n_rounds: int = 5
    server_rate: float = server_field(1.0)

    def init(self, n_classes: int) -> LocalState:
        return LocalState(n_classes, self.family.start(n_classes))

    def broadcast(self, state: LocalState) -> Arrays:
        return {"params": state.params}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        blocks = {"update": BlockSpec(broadcast["params"].shape, clip=self.clip)}
        if self.clip is None:
            blocks["filled"] = BlockSpec((1,), kind="count")
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("local_iter", self.local_iter, 0, MAX_LOCAL_STEPS)
        size = self.family.size(n_classes)
        check_range("local_iter * parameters", self.local_iter * size, 0, MAX_WORK)
        return ({"params": Field((size,))},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        start, filled = broadcast["params"], clients.filled
        update = np.zeros((len(clients), len(start)))
        own = np.flatnonzero(filled)
        part = clients.select(own)
        # Local steps need all rows of a client at once: no client may be cut.
        largest = int(part.sizes.max(initial=0)) * clients.n_classes
        for block in part.blocks(max(_CELLS, largest)):
            data = labelled(block, 1.0, self.family.ranked)
            update[own[block.clients]] = self._train(start, data) - start
        answer: dict[str, Array] = {"update": update}
        if self.clip is None:
            answer["filled"] = filled.astype(np.int64)[:, None]
        return answer

    def update(self, state: LocalState, total: Sums, n_clients: int) -> LocalState:
        # Under a bound the number of empty clients stays hidden.
        n_filled = (
            max(float(total["filled"][0]), 1.0) if "filled" in total else n_clients
        )
        moved = state.params + self.server_rate * (total["update"] / n_filled)
        noise = self.server_rate * total.noise.get("update", 0.0) / n_filled
        return LocalState(
            state.n_classes,
            np.clip(moved, -_BOUND, _BOUND),
            float(np.hypot(state.noise, noise)),
            state.rounds + 1,
        )

    def done(self, state: LocalState) -> bool:
        return False

    def _train(self, start: Array, data: LabelledRows) -> Array:
        """Parameters of each client after its own steps."""
        n_rows = np.maximum(np.add.reduceat(data.weights, data.offsets[:-1]), 1e-12)[
            :, None
        ]

        def mean_loss(params: Array, some: Array | None) -> tuple[Array, Array]:
            part = data if some is None else data.select(some)
            sums, _ = loss_and_slopes(self.family, params, part)
            sums /= n_rows if some is None else n_rows[some]
            return sums[:, 0], sums[:, 1:]

        params = np.tile(start, (len(n_rows), 1))
        if self.local_solver == "lbfgs":
            return minimise_each(mean_loss, params, self.local_iter)
        for _ in range(self.local_iter):
            params -= self.learning_rate * mean_loss(params, None)[1]
        return params


# The map


def vector(cal: Any, logits: Value) -> Value:
    """A scale and a bias for each class."""
    rows, masked = centred_rows(logits)
    return masked.choose(-np.inf, rows * cal.scale_ + cal.bias_)


def matrix(cal: Any, logits: Value) -> Value:
    """A matrix and a bias."""
    rows, masked = centred_rows(logits)
    return masked.choose(-np.inf, rows @ cal.matrix_.T + cal.bias_)


def order_preserving(cal: Any, logits: Value) -> Value:
    """Gaps between sorted logits, scaled class by class."""
    rows, _ = centred_rows(logits)
    slopes = softplus(rows / cal.temperature_ * cal.slope_ + cal.offset_)
    factors = slopes.at_least(SMALLEST_SLOPE) / cal.temperature_
    return stretched(cal, logits, factors, logits / cal.temperature_)
