"""Shared shape, class biases and a matrix on exact sums, and the choice among them.

Maps are named by their parts: T a temperature, S a shape, B a temperature and class
biases, BS a shape and biases, SM a matrix on top of S. With the log-probabilities
``l`` at a first temperature, all but the matrix are linear in their parameters,
``l + a l + theta . phi(l) + b``, so that the loss is convex and a few Newton steps on
summed derivatives end at the optimum of the pooled rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from skfedcal._numerics import MAX_SPAN
from skfedcal.clients.dataset import Block, FederatedDataset, scratch
from skfedcal.contract import Array, Arrays, BlockSpec, Field, Form, Sums
from skfedcal.methods.bias_temperature.bias_moments import BIAS_BOUND
from skfedcal.methods.graph import Value, log_softmax
from skfedcal.methods.map_formulas import centred_rows
from skfedcal.methods.own_rows import held_back_rows
from skfedcal.methods.scaling.families import MatrixMap, canonical
from skfedcal.methods.scaling.rounds import PooledFit, PooledState
from skfedcal.methods.shape.shape_features import (
    FLOOR,
    N_FEATURES,
    SHAPE_SD,
    SOFT,
    order_keeping,
    raw_shape,
    shaped,
    whitened_features,
)
from skfedcal.methods.temperature.moments import row_sums

# From few numbers to many, in the order in which a choice is made.
MAPS = ("none", "T", "S", "B", "BS", "SM")
# Beyond this many classes clients do not send products of two classes.
MAX_BIAS_CLASSES = 128
# From this many classes on a class seldom has the rows for a bias of its own.
MANY_CLASSES = 50

# Prior spread of a bias, which is the ridge. That of a matrix, its diagonal, bias and
# rest, has the largest evidence: with few rows it is so strong that nothing moves.
_BIAS_SD, _MATRIX_RIDGE = 0.5, (None, None, None)
# A change of the temperature has hardly any ridge, and stays within these factors.
_SCALE_RIDGE, _SCALE_RANGE = 1e-6, (-0.9, 9.0)
# Newton steps end where the next one would lower the loss per row by less.
_SMALL_GAIN = 1e-8
_ROUNDING, _NEAR_GAIN = 1e-12, 1e-6
_SHAPE_BOUND = 50.0

# Rounds of each stage at most, with a choice: first fits, matrix, fits on all rows.
_STEPS, _MATRIX_STEPS, _LAST_STEPS = 6, 10, 3
# The same where rounds are limited, and the least numbers of rounds of a choice with
# and without a matrix.
_FEW_STEPS, _FEW_MATRIX_STEPS, _FEW_LAST_STEPS = 3, 4, 1
MIN_ROUNDS, MIN_ROUNDS_MATRIX, _MANY_ROUNDS = 6, 11, 30

# Rows below which nothing is held back; held-back loss below which a matrix is not
# used: few very wrong rows decide about it then.
MIN_ROWS, LEAST_LOSS = 100, 0.1
# Summed loss that a map must leave: where it is less, some five errors at most decide
# how sure a model may be, and after a lucky draw it becomes far too sure.
LEAST_SUM = 10.0
# A row that is more wrong than this counts as this in the comparison.
_LARGEST_LOSS = 100.0

_START, _NEWTON, _MATRIX, _COMPARE, _DONE = range(5)
_ALL, _FITTED, _HELD = range(3)

# Entries per block: several passes go over each.
_CELLS = 1 << 15


@dataclass(frozen=True, slots=True)
class MapState(PooledState):
    """Maps fitted so far; the fields of `PooledState` are those of the matrix.

    `points`, `asked` and `aims` have one row per map: the best parameters, those that
    are asked for and the Newton step; a row is the change of scale, the shape and the
    biases. `linear` are the names of these maps, `kinds` those that are compared, with
    their mean `losses`, and `kind` is the map in use. `gain_error` is the standard
    error of the difference between its loss and that of the input, paired by rows.
    """

    points: Array = field(default_factory=lambda: np.empty((0, 0)))
    asked: Array = field(default_factory=lambda: np.empty((0, 0)))
    aims: Array = field(default_factory=lambda: np.empty((0, 0)))
    values: Array = field(default_factory=lambda: np.empty(0))
    gains: Array = field(default_factory=lambda: np.empty(0))
    free: Array = field(default_factory=lambda: np.empty(0))
    active: Array = field(default_factory=lambda: np.empty(0, dtype=bool))
    stage: int = _START
    part: int = _ALL
    stage_rounds: int = 0
    kind: str = "none"
    chosen: bool = False
    kinds: str = ""
    linear: str = ""
    held_back: bool = False
    keep_order: bool = False
    n_rows: float = 0.0
    losses: Array = field(default_factory=lambda: np.empty(0))
    errors: Array = field(default_factory=lambda: np.empty(0))
    brier: Array = field(default_factory=lambda: np.empty(0))
    n_compared: float = 0.0
    gain_error: float = 0.0

    @property
    def temperature(self) -> float:
        """Temperature of the map in use."""
        if self.kind == "none":
            return 1.0
        return 1 / float(self.beta * (1 + self._point[0]))

    @property
    def shape(self) -> Array:
        """Weights of phi of the map in use."""
        theta = raw_shape(self._point[1 : N_FEATURES + 1])
        return order_keeping(theta) if self.keep_order else theta

    @property
    def bias(self) -> Array:
        """Biases of the map in use, those after a matrix included; they add up to 0."""
        bias = self._point[N_FEATURES + 1 :]
        if self.kind == "SM":
            bias = self.params[self.n_classes**2 :]
        return np.asarray(bias - bias.mean())

    @property
    def matrix(self) -> Array | None:
        """Matrix of the map in use, or None."""
        if self.kind != "SM":
            return None
        square = self.params[: self.n_classes**2]
        return np.asarray(square.reshape(self.n_classes, self.n_classes).T)

    @property
    def converged(self) -> bool:
        """Whether the optimum of the map in use was found."""
        found = self.kind == "none" or bool(self.gains[self._index] <= _NEAR_GAIN)
        found &= self.kind != "SM" or self.finished
        return found and not self.bounded

    @property
    def _index(self) -> int:
        return self.linear.split().index({"SM": "S"}.get(self.kind, self.kind))

    @property
    def _point(self) -> Array:
        """Parameters of the map in use; those of S under a matrix."""
        if self.kind == "none":
            return np.zeros(N_FEATURES + 1 + self.n_classes)
        return np.asarray(self.points[self._index])


@dataclass(frozen=True, slots=True)
class MapNewton:
    """Fit maps to the pooled log loss, exactly, and choose one by held-back loss.

    The first round finds a temperature from slopes on a grid. In the next ones clients
    send loss, slopes and curvature of all maps at once, then those of the matrix. For a
    choice the maps are fitted to four fifths of each client's rows; one round compares
    them, with the input, on the others; and the last rounds continue the fit of the
    chosen map with all rows.

    kinds: Maps to fit, out of 'T', 'S', 'B', 'BS' and 'SM'.
    choose: Compare the maps on held-back rows. Without it there is one map.
    margin: Standard errors by which a map must be better than one with fewer numbers.
    brier_margin: Standard errors by which a map must be better than the input in the
        Brier score.
    keep_order: Scale the shape down until the order of classes cannot change.
    n_rounds: Most rounds.
    """

    kinds: tuple[str, ...] = ("S",)
    choose: bool = False
    margin: float = 0.0
    brier_margin: float = 0.0
    keep_order: bool = False
    n_rounds: int = 60

    @property
    def linear(self) -> tuple[str, ...]:
        """Maps that are fitted side by side; S is needed under a matrix."""
        return tuple(
            kind
            for kind in MAPS[1:-1]
            if kind in self.kinds or (kind == "S" and "SM" in self.kinds)
        )

    def init(self, n_classes: int) -> MapState:
        start = self._matrix.init(n_classes)
        zero = np.zeros((len(self.linear), N_FEATURES + 1 + n_classes))
        return MapState(
            n_classes,
            start.params,
            start.trial,
            start.ridge,
            points=zero,
            asked=zero,
            aims=zero,
            values=np.full(len(zero), np.inf),
            gains=np.full(len(zero), np.inf),
            free=np.zeros(len(zero)),
            active=np.ones(len(zero), dtype=bool),
            kind=self.linear[0],
            kinds=" ".join(self.kinds),
            linear=" ".join(self.linear),
            keep_order=self.keep_order,
        )

    def broadcast(self, state: MapState) -> Arrays:
        if state.stage == _START:
            return self._matrix.broadcast(state)
        scale, part = np.asarray(state.beta), np.asarray(state.part)
        if state.stage == _NEWTON:
            return {
                "scale": scale,
                "part": part,
                "points": state.asked,
                "active": state.active,
            }
        own = {"scale": scale, "part": part, "shape": self._shape(state)}
        if state.stage == _MATRIX:
            return {**self._matrix.broadcast(state), **own, "beta": np.asarray(1.0)}
        params = state.params if "SM" in self.kinds else np.empty(0)
        return {**own, "points": self._kept(state.points), "matrix": params}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if "log_beta" in broadcast or "params" in broadcast:
            return self._matrix.spec(broadcast)
        if "active" not in broadcast:
            n_maps = len(self.kinds) + 1
            return {
                "losses": BlockSpec((1 + n_maps + n_maps * (n_maps - 1) // 2,)),
                "scores": BlockSpec((3 * n_maps - 1,)),
            }
        n_classes = broadcast["points"].shape[1] - N_FEATURES - 1
        return {
            kind: BlockSpec((_size(kind, n_classes),))
            for kind, active in zip(self.linear, broadcast["active"], strict=True)
            if active
        }

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        if not self.kinds or not set(self.kinds) <= set(MAPS[1:]):
            raise ValueError(f"kinds={self.kinds} must be some of {MAPS[1:]}")
        if n_classes > MAX_BIAS_CLASSES and {"B", "BS"} & set(self.kinds):
            raise ValueError(f"biases need at most {MAX_BIAS_CLASSES} classes")
        if n_classes > MAX_BIAS_CLASSES and "SM" in self.kinds:
            raise ValueError(f"a matrix needs at most {MAX_BIAS_CLASSES} classes")
        n_maps = len(self.linear)
        points = Field((n_maps, N_FEATURES + 1 + n_classes))
        own = {"scale": Field(), "part": Field((), "whole", _ALL, _FITTED)}
        start, matrix, *_ = self._matrix.forms(n_classes)
        params = matrix["params"] if "SM" in self.kinds else Field((0,))
        shape = {"shape": Field((N_FEATURES,))}
        return (
            start,
            {**own, "points": points, "active": Field((n_maps,), "flag")},
            {**own, **shape, **matrix},
            {
                "scale": Field(),
                "part": Field((), "whole", _ALL, _HELD),
                "points": points,
                "matrix": params,
                **shape,
            },
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        if "log_beta" in broadcast:
            return self._matrix.query(broadcast, clients)
        part, every = int(broadcast["part"]), clients
        if part != _ALL:
            clients = held_back_rows(clients, held=part == _HELD)
        scale = float(broadcast["scale"])
        if "params" in broadcast:
            rows = _shaped_rows(clients, scale, broadcast["shape"])
            return self._matrix.query(broadcast, rows)
        out = {
            name: np.zeros((len(clients), *block.shape))
            for name, block in self.spec(broadcast).items()
        }
        if "active" not in broadcast:
            n_maps = len(self.kinds) + 1
            for block in every.blocks(_CELLS):
                scores = self._scores_of(broadcast, block, row_log_proba(block, scale))
                squares = (scores[n_maps + 1 :] - scores[n_maps]) ** 2
                scores = np.concatenate([scores, squares])
                out["scores"][block.clients] += block.sum_by_client(scores)
            for block in clients.blocks(_CELLS):
                scores = self._scores_of(broadcast, block, row_log_proba(block, scale))
                out["losses"][block.clients] += _compared(block, scores[:n_maps])
            return out
        for block in clients.blocks(_CELLS):
            logs = row_log_proba(block, scale)
            planes = whitened_features(logs) if {"S", "BS"} & set(out) else logs[None]
            for kind, point in zip(self.linear, broadcast["points"], strict=True):
                if kind in out:
                    out[kind][block.clients] += _sums(kind, block, logs, planes, point)
        return out

    def update(self, state: MapState, total: Sums, n_clients: int) -> MapState:
        if state.stage == _START:
            state = self._matrix.update(state, total, n_clients)  # type: ignore[assignment]
            part = _FITTED if self.choose else _ALL
            return replace(state, stage=_NEWTON, part=part)
        state = replace(state, stage_rounds=state.stage_rounds + 1)
        if state.stage == _COMPARE:
            return self._chosen(state, total["losses"], total["scores"])
        if state.stage == _MATRIX:
            matrix = self._matrix
            if state.chosen:
                # The evidence is at the centre of the ridge, where the fit began.
                matrix = replace(matrix, l2=tuple(state.ridge.tolist()))
            state = matrix.update(state, total, n_clients)  # type: ignore[assignment]
            over = state.finished or state.stage_rounds >= self._limit(state)
            return self._after(state) if over else state
        state = self._step(state, total)
        few = self.choose and not state.chosen and _fewer(state, MIN_ROWS)
        if few and state.part == _FITTED:
            # Too few rows to hold any back: a temperature, or nothing, with all.
            only = np.array([kind == "T" for kind in self.linear])
            return _restarted(state, only, _ALL)
        over = not state.active.any() or state.stage_rounds >= self._limit(state)
        return self._after(state) if over else state

    def done(self, state: MapState) -> bool:
        return state.stage == _DONE

    @property
    def _matrix(self) -> PooledFit:
        return PooledFit(MatrixMap(), _MATRIX_RIDGE)

    def _limit(self, state: MapState) -> int:
        """Rounds of this stage at most."""
        few = self.choose and self.n_rounds < _MANY_ROUNDS
        if not self.choose and state.stage == _NEWTON:
            return 3 * _STEPS
        if state.stage == _MATRIX:
            limits = _MATRIX_STEPS, _FEW_MATRIX_STEPS
        else:
            limits = _STEPS, _FEW_STEPS
        if state.chosen:
            limits = _LAST_STEPS, _FEW_LAST_STEPS
        return limits[few]

    def _shape(self, state: MapState) -> Array:
        """Weights of phi under a matrix."""
        if "S" not in self.linear:
            return np.zeros(N_FEATURES)
        return raw_shape(state.points[self.linear.index("S")][1 : N_FEATURES + 1])

    def _kept(self, points: Array) -> Array:
        """Parameters as they are used: scaled down where the order is kept."""
        if not self.keep_order:
            return points
        out = points.copy()
        for point in out:
            theta = raw_shape(point[1 : N_FEATURES + 1])
            used = order_keeping(theta)
            if used is not theta:
                point[1 : N_FEATURES + 1] *= float(used @ theta) / float(theta @ theta)
        return out

    def _step(self, state: MapState, total: Sums) -> MapState:
        """Take one Newton step of every map that has not converged."""
        points, asked, aims = (
            a.copy() for a in (state.points, state.asked, state.aims)
        )
        values, gains, active, n_free = (
            a.copy() for a in (state.values, state.gains, state.active, state.free)
        )
        n_rows = state.n_rows
        for i, kind in enumerate(self.linear):
            if kind not in total:
                continue
            n_rows = max(float(total[kind][0]), 1e-12)
            free, ridge = _free(kind, state.n_classes), _ridge(kind, state.n_classes)
            value, slope, curvature = _unpacked(total[kind], kind, state.n_classes)
            ridge = ridge / n_rows
            here = asked[i, free]
            value += float(ridge @ here**2) / 2
            if value > values[i] + _ROUNDING * (1 + abs(values[i])):
                # Back along the step; convexity makes some part of it better.
                aims[i] /= 4
                active[i] = bool(np.abs(aims[i]).max() > 1e-9)
            else:
                points[i], values[i] = asked[i], value
                slope += ridge * here
                penalised = curvature + np.diag(ridge + 1e-12)
                # Free parameters, less what the ridge takes.
                n_free[i] = np.trace(np.linalg.solve(penalised, curvature))
                curvature = penalised
                aims[i] = 0.0
                aims[i, free] = -np.linalg.solve(curvature, slope)
                gains[i] = -float(slope @ aims[i, free]) / 2
                active[i] = gains[i] > _SMALL_GAIN
            asked[i] = _bounded(points[i] + aims[i])
            if not active[i] and gains[i] > 0:
                points[i] = asked[i]  # so short a Newton step gains what it promises
        return replace(
            state,
            points=points,
            asked=asked,
            aims=aims,
            values=values,
            gains=gains,
            free=n_free,
            active=active,
            n_rows=n_rows,
            kind=self._first_kind(state),
        )

    def _first_kind(self, state: MapState) -> str:
        """Map in use while fits go on."""
        if state.chosen:
            return state.kind
        return self.linear[0] if self.choose else self.linear[-1]

    def _after(self, state: MapState) -> MapState:
        """Go to the next stage."""
        matrix = "SM" in self.kinds and (not state.chosen or state.kind == "SM")
        whole = state.part == _ALL
        few = self.choose and not state.chosen and whole
        if state.stage == _NEWTON and matrix and not few:
            return replace(
                state,
                stage=_MATRIX,
                stage_rounds=0,
                objective=np.inf,
                slope=np.empty(0),
                moves=np.empty(0),
                changes=np.empty(0),
                trial=state.params,
                halvings=0,
                finished=False,
            )
        if self.choose and not state.chosen:
            held = _ALL if whole else _HELD
            return replace(state, stage=_COMPARE, part=held, stage_rounds=0)
        kind = state.kind if state.chosen else self.kinds[-1]
        return replace(state, stage=_DONE, kind=kind)

    def _scores_of(self, broadcast: Arrays, block: Block, logs: Array) -> Array:
        """Log loss and Brier score of each row by each map, the input first."""
        every = [row_log_proba(block, 1.0)]
        planes = whitened_features(logs)
        for kind in self.kinds:
            if kind == "SM":
                under = _under_matrix(
                    logs, float(broadcast["scale"]), broadcast["shape"]
                )
                rows = canonical(under.T)
                every.append(MatrixMap().logits(broadcast["matrix"], rows))
            else:
                point = broadcast["points"][self.linear.index(kind)]
                every.append(_scores(logs, planes, point, whole=True))
        found = np.array([_row_scores(s, block.labels) for s in every])
        # All losses, then all Brier scores.
        return found.swapaxes(0, 1).reshape(2 * len(every), -1)

    def _chosen(self, state: MapState, sums: Array, scores: Array) -> MapState:
        """Walk from few numbers to many; a richer map must be better.

        Better is a lower sum of losses over all rows and number of free parameters:
        that is what a parameter gains on the rows of its fit by chance (Akaike), and
        held-back rows alone are few. A map must not be worse than the input in the log
        loss of held-back rows, nor in the Brier score of all: where probabilities of 0
        were replaced, the log loss depends on by what, and a few rows on which the
        model was sure and wrong decide about it.
        """
        n_maps = len(self.kinds) + 1
        n_rows = max(float(sums[0]), 1e-12)
        means = sums[1 : n_maps + 1] / n_rows
        squares = np.zeros((n_maps, n_maps))
        squares[np.triu_indices(n_maps, 1)] = sums[n_maps + 1 :] / n_rows
        losses, brier = scores[:n_maps], scores[n_maps : 2 * n_maps]
        names = ("none", *self.kinds)
        whole, best = state.part == _ALL, 0
        n_all = n_rows + (0.0 if whole else state.n_rows)
        worse = (brier[1:] - brier[0]) / n_all
        error = np.sqrt(np.maximum(scores[2 * n_maps :] / n_all - worse**2, 0) / n_all)
        worse += self.brier_margin * error
        cost = losses + [self._n_free(state, name) for name in names]
        errors = np.zeros(n_maps)
        for i in range(1, n_maps):
            gap = float(means[i] - means[best])
            spread = float(squares[best, i]) - gap**2
            errors[i] = np.sqrt(max(spread, 0.0) / n_rows)
            better = cost[i] < cost[best] and means[i] <= means[0]
            better &= bool(losses[i] >= LEAST_SUM)
            better &= bool(worse[i - 1] <= 0)
            if whole:
                better &= names[i] == "T"
            elif self.margin:
                better &= gap + self.margin * errors[i] < 0
            better &= names[i] != "SM" or bool(means[best] >= LEAST_LOSS)
            best = i if better else best
        kind = names[best]
        spread = float(squares[0, best]) - float(means[best] - means[0]) ** 2
        state = replace(
            state,
            gain_error=float(np.sqrt(max(spread, 0.0) / n_rows)),
            kind=kind,
            chosen=True,
            held_back=not whole,
            losses=means,
            errors=errors,
            brier=brier / n_all,
            n_compared=n_rows,
            stage_rounds=0,
        )
        if whole or kind == "none":
            return replace(state, stage=_DONE)
        own = {"SM": "S"}.get(kind, kind)
        return _restarted(state, np.array([k == own for k in self.linear]), _ALL)

    def _n_free(self, state: MapState, kind: str) -> float:
        """Free parameters of a map."""
        if kind == "none":
            return 0.0
        own = {"SM": "S"}.get(kind, kind)
        extra = state.n_free + len(state.ridge) if kind == "SM" else 0.0
        return float(state.free[self.linear.index(own)]) + extra


def _restarted(state: MapState, active: Array, part: int) -> MapState:
    """Newton steps of some maps, from where they are, with other rows."""
    return replace(
        state,
        stage=_NEWTON,
        part=part,
        stage_rounds=0,
        asked=state.points,
        aims=np.zeros_like(state.points),
        values=np.full(len(state.values), np.inf),
        gains=np.where(active, np.inf, state.gains),
        active=active,
    )


def _fewer(state: MapState, n_rows: float) -> bool:
    """Whether all clients together have fewer rows; four fifths are fitted."""
    return state.n_rows < 0.8 * n_rows


def _free(kind: str, n_classes: int) -> Array:
    """Parameters of a map among scale, shape and biases."""
    first = np.arange(1, N_FEATURES + 1) if "S" in kind else np.arange(1)
    biases = np.arange(n_classes if "B" in kind else 0) + N_FEATURES + 1
    return np.concatenate([first, biases])


def _ridge(kind: str, n_classes: int) -> Array:
    """Precision of each free parameter, summed over rows."""
    first = SHAPE_SD**-2.0 if "S" in kind else np.array([_SCALE_RIDGE])
    return np.concatenate(
        [first, np.full(n_classes if "B" in kind else 0, _BIAS_SD**-2)]
    )


def _bounded(point: Array) -> Array:
    out: Array = np.clip(point, -BIAS_BOUND, BIAS_BOUND)
    out[0] = np.clip(point[0], *_SCALE_RANGE)
    out[1 : N_FEATURES + 1] = np.clip(
        point[1 : N_FEATURES + 1], -_SHAPE_BOUND, _SHAPE_BOUND
    )
    return out


def _size(kind: str, n_classes: int) -> int:
    """Numbers that a client sends about one map."""
    n_planes, n_biases = (N_FEATURES if "S" in kind else 1), n_classes * ("B" in kind)
    size = 2 + n_planes + n_planes * (n_planes + 1) // 2
    return size + n_biases * (1 + n_planes) + n_biases * (n_biases - 1) // 2


def row_log_proba(block: Block, scale: float) -> Array:
    """Logarithm of the probabilities at inverse temperature `scale`, classes first."""
    return row_log_weights(block, scale)[0]


def row_log_weights(
    block: Block, scale: float, reuse: bool = False
) -> tuple[Array, Array]:
    """Logarithm of the probabilities, and a multiple of those of each row.

    reuse: Return buffers that are valid until the next such call in this thread.
    """
    shape = block.rows.shape[::-1]
    gaps, weights = np.empty((2, *shape)) if not reuse else buffers("row", 2, shape)
    np.copyto(gaps, block.rows.T)
    with np.errstate(over="ignore"):  # 1e308 - (-1e308): clipped right below
        gaps -= gaps.max(axis=0, initial=-np.inf)
    if not gaps.min(initial=0.0) >= -MAX_SPAN:
        np.maximum(gaps, -MAX_SPAN, out=gaps)
    gaps *= scale
    np.exp(gaps, out=weights)
    gaps -= np.log(row_sums(weights, True))
    return gaps, weights


def buffers(name: str, number: int, shape: tuple[int, ...]) -> Array:
    """Arrays with arbitrary content, see `scratch`."""
    return scratch(name, (number, *shape), np.float64)


def _shaped_rows(
    clients: FederatedDataset, scale: float, theta: Array
) -> FederatedDataset:
    """Rows after the shape, as scores of a matrix; far too low entries are -inf."""
    packed = clients.compact()
    rows = np.empty(packed.rows.shape)
    at = 0
    for block in packed.blocks(_CELLS):
        part = _under_matrix(row_log_proba(block, scale), scale, theta)
        rows[at : at + part.shape[1]] = part.T
        at += part.shape[1]
    return replace(packed, rows=rows)


def _under_matrix(logs: Array, scale: float, theta: Array) -> Array:
    """Scores after the shape; entries that are far too low are masked."""
    out = shaped(logs, theta)
    out[logs <= -MAX_SPAN * scale] = -np.inf
    return out


def _scores(logs: Array, planes: Array, point: Array, whole: bool) -> Array:
    """Scores of a linear map; `planes` are the whitened features if it has a shape."""
    scores = logs * (1 + point[0])
    if whole or len(planes) == N_FEATURES:
        for weight, plane in zip(point[1 : N_FEATURES + 1], planes, strict=True):
            scores += weight * plane
    scores += point[N_FEATURES + 1 :, None]
    return scores


def _sums(kind: str, block: Block, logs: Array, planes: Array, point: Array) -> Array:
    """Sums by client: weight, loss, slopes and curvature of one map."""
    own = block.labels, np.arange(logs.shape[1])
    if "S" not in kind:
        planes = logs[None]
    proba = _scores(logs, planes, point, whole=False)
    proba -= proba.max(axis=0)
    label = proba[own]
    np.exp(proba, out=proba)
    total = row_sums(proba, True)
    proba /= total
    weighted = [proba * plane for plane in planes]
    means = [row_sums(w, True) for w in weighted]
    slopes = [m - plane[own] for m, plane in zip(means, planes, strict=True)]
    rows = [np.ones(len(label)), np.log(total) - label, *slopes]
    for a, first in enumerate(weighted):
        for b in range(a, len(planes)):
            product = row_sums(first * planes[b], True)
            rows.append(product - means[a] * means[b])
    parts = [block.sum_by_client(np.array(rows))]
    if "B" in kind:
        residual = proba.copy()
        residual[own] -= 1
        parts.append(block.sum_by_client(residual))
        for w, m in zip(weighted, means, strict=True):
            parts.append(block.sum_by_client(w - proba * m))
        pairs = (proba[j + 1 :] * proba[j] for j in range(len(proba) - 1))
        parts += [block.sum_by_client(pair) for pair in pairs]
    return np.concatenate(parts, axis=1)


def _unpacked(sums: Array, kind: str, n_classes: int) -> tuple[float, Array, Array]:
    """Loss, slopes and curvature of one map, as means over rows."""
    mean = sums[1:] / max(float(sums[0]), 1e-12)
    n_planes = N_FEATURES if "S" in kind else 1
    slope, rest = mean[1 : n_planes + 1], mean[n_planes + 1 :]
    n_upper = n_planes * (n_planes + 1) // 2
    size = n_planes + n_classes * ("B" in kind)
    curvature = np.zeros((size, size))
    curvature[np.triu_indices(n_planes)] = rest[:n_upper]
    if "B" in kind:
        rest = rest[n_upper:]
        slope, rest = np.concatenate([slope, rest[:n_classes]]), rest[n_classes:]
        cross = rest[: n_planes * n_classes].reshape(n_planes, n_classes)
        curvature[:n_planes, n_planes:] = cross
        between = np.zeros((n_classes, n_classes))
        between[np.triu_indices(n_classes, 1)] = rest[n_planes * n_classes :]
        between += between.T
        # Biases that move together change nothing: rows of the curvature add up to 0.
        own = np.diag(between.sum(axis=1)) - between
        curvature[n_planes:, n_planes:] = np.triu(own)
    return float(mean[0]), slope.copy(), np.triu(curvature) + np.triu(curvature, 1).T


def _row_scores(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Log loss and Brier score of each row."""
    own = labels, np.arange(scores.shape[1])
    gaps = scores - scores.max(axis=0)
    proba = np.exp(gaps)
    total = row_sums(proba, True)
    squares = row_sums(proba * proba, True) / total**2
    loss = np.minimum(np.log(total) - gaps[own], _LARGEST_LOSS)
    return loss, squares - 2 * proba[own] / total + 1


def _compared(block: Block, losses: Array) -> Array:
    """Sums by client: weight, losses, squared differences of every two maps."""
    pairs: list[Any] = [
        (losses[i] - losses[j]) ** 2
        for i in range(len(losses))
        for j in range(i + 1, len(losses))
    ]
    return block.sum_by_client(np.array([np.ones(losses.shape[1]), *losses, *pairs]))


# The map


def shared_shape(cal: Any, logits: Value) -> Value:
    """A temperature, a shared shape, and biases or a matrix."""
    order = cal._columns.astype(np.intp)
    bias = np.empty_like(cal.bias_)
    bias[order] = cal.bias_
    out = log_softmax(logits / cal.temperature_)
    if cal.shape_.any():
        low = out.at_least(FLOOR)
        proba = low.exp()
        first, second, third = cal.shape_
        out = out + low * first + (proba + SOFT).log() * second
        out = out - (1 + SOFT - proba).log() * third
    if cal.matrix_ is None:
        return out + bias
    matrix = np.empty_like(cal.matrix_)
    matrix[np.ix_(order, order)] = cal.matrix_
    rows, masked = centred_rows((logits < -MAX_SPAN).choose(-np.inf, out))
    return masked.choose(-np.inf, rows @ matrix.T + bias)
