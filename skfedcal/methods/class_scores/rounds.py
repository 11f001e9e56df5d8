"""Sigmoid and isotonic calibration of class scores: client sums and server updates.

- Platt's sigmoid of each score, by Newton steps on the summed log loss.
- The pooled table of distinct scores with their label counts, for isotonic fits. It is
  read from the sum of the clients' invertible Bloom lookup tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from skfedcal import _compiled
from skfedcal.clients.dataset import Block, FederatedDataset
from skfedcal.contract import (
    Array,
    Arrays,
    BlockSpec,
    CellRows,
    Field,
    Form,
    Rows,
    Sums,
    check_range,
)
from skfedcal.methods.buckets import InputType, sigmoid
from skfedcal.methods.own_rows import packed

# Cells of binary exponents of scores, each of this many powers of two.
_POWERS, _POWER_WIDTH, _LEAST_POWER = 264, 8, -1080

# Entries per block: arrays of work should stay in the cache.
_CELLS = 1 << 14

# A Newton step this short, in deviations of the score, is the last one: the error left
# is of the order of its square.
_CLOSE = 1e-7
# Longest step, and shares of a step to try before the best point is kept.
_REACH, _LEAST_SHARE = 50.0, 2.0**-40
_NO_ROWS = "No client has a row that can be used: check logits, labels and classes."
# Loss may rise by this share by rounding.
_ROUNDING = 1e-13


def class_scores(rows: Array, input_type: InputType, n_classes: int) -> Array:
    """Scores in float64, one column per class, or one for the second of two classes.

    The columns are those of `decision_function` or `predict_proba`, as they are. Two
    columns of logits become their difference, the log-odds.
    """
    # One layout, so that a row is added up in the same order in any array.
    rows = rows.astype(np.float64, order="C", copy=False)
    if input_type == "log_proba":
        rows = np.exp(rows)
    missing = rows.shape[1] == n_classes - 1
    if n_classes == 2:
        if missing or input_type != "logits":
            return rows[:, -1:]
        with np.errstate(over="ignore"):
            return rows[:, 1:] - rows[:, :1]
    if not missing:
        return rows
    first = np.zeros(len(rows))
    if input_type == "proba":
        first = 1 - np.einsum("ij->i", rows)
    return np.concatenate([first[:, None], rows], axis=1)


def class_labels(labels: Array, n_classes: int) -> Array:
    """Whether each row is of the class of each score."""
    if n_classes == 2:
        return labels[:, None] == 1
    return labels[:, None] == np.arange(n_classes)


def n_scores_of(n_classes: int) -> int:
    """Number of scores of a row."""
    return 1 if n_classes == 2 else n_classes


@dataclass(frozen=True, slots=True)
class SigmoidState:
    """Coefficients of ``slope * v + shift`` with the standardised score v.

    `stage` 0 asks for powers and label counts, 1 for moments, 2 for derivatives.
    `best` has slope, shift and loss of the best point so far; `step` leads from there
    to the current point.
    """

    power: Array
    centre: Array
    width: Array
    weight: Array
    point: Array
    best: Array
    step: Array
    closed: Array
    stage: int = 0

    @property
    def coefficients(self) -> tuple[Array, Array]:
        """A and B of Platt's ``1 / (1 + exp(A score + B))``."""
        scale = np.ldexp(1.0, -self.power.astype(int)) / self.width
        slope = self.point[0] * scale
        return -slope, self.point[0] * self.centre / self.width - self.point[1]

    @property
    def converged(self) -> bool:
        """Whether all scores have their optimum."""
        return bool(self.closed.all())


@dataclass(frozen=True, slots=True)
class SigmoidNewton:
    """Platt scaling of each score against the labels of its class, exactly.

    Targets are ``(n1 + 1) / (n1 + 2)`` for n1 positives and ``1 / (n0 + 2)`` for n0
    negatives (Platt, section 2.2), so the optimum is finite. One round finds the
    magnitude of the scores, one their mean and deviation; then Newton steps follow,
    halved where the loss rises.

    input_type ('logits', 'log_proba', 'proba'): Type of the scores in the columns.
    n_rounds: Rounds at most.
    """

    input_type: InputType = "logits"
    n_rounds: int = 100

    def init(self, n_classes: int) -> SigmoidState:
        size = n_scores_of(n_classes)
        zero, pair = np.zeros(size), np.zeros((2, size))
        best = np.full((3, size), np.inf)
        closed = np.zeros(size, dtype=bool)
        return SigmoidState(zero, zero, np.ones(size), pair, pair, best, pair, closed)

    def broadcast(self, state: SigmoidState) -> Arrays:
        return {
            "stage": np.asarray(state.stage),
            "scale": np.stack([state.power, state.centre, state.width]),
            "weight": state.weight,
            "point": state.point,
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        size, stage = broadcast["point"].shape[1], int(broadcast["stage"])
        if stage == 0:
            return {
                "powers": BlockSpec((size, _POWERS), kind="count"),
                "weights": BlockSpec((2, size)),
            }
        return {"sums": BlockSpec((2 if stage == 1 else 6, size))}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        size = n_scores_of(n_classes)
        return (
            {
                "stage": Field((), "whole", 0, 2),
                "scale": Field((3, size), low=-1100.0, high=1100.0),
                "weight": Field((2, size), low=0.0),
                "point": Field((2, size)),
            },
        )

    def n_values(self, n_classes: int) -> int:
        """Return the largest number of values in a round."""
        return n_scores_of(n_classes) * (_POWERS + 2)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        size, stage = broadcast["point"].shape[1], int(broadcast["stage"])
        shapes = self.spec(broadcast)
        out = {name: np.zeros((len(clients), *b.shape)) for name, b in shapes.items()}
        if stage == 2 and self._in_core(broadcast, clients, out["sums"]):
            return out
        for block in clients.blocks(_CELLS):
            scores = class_scores(block.rows, self.input_type, clients.n_classes)
            own = class_labels(block.labels, clients.n_classes)
            if stage == 0:
                out["powers"][block.clients] += _powers(block, scores, size)
                own = np.stack([~own.T, own.T]).astype(np.float64)
                out["weights"][block.clients] += _sums(block, own)
                continue
            power, centre, width = broadcast["scale"]
            # Finite scores are below 1 in size by the choice of the power; -inf is -1.
            scaled = np.ldexp(scores.T, -power.astype(int)[:, None], order="C")
            np.clip(scaled, -1.0, 1.0, out=scaled)
            if stage == 1:
                values = np.stack([scaled, scaled * scaled])
            else:
                place = (scaled - centre[:, None]) / width[:, None]
                values = _derivatives(place, own.T, broadcast)
            out["sums"][block.clients] += _sums(block, values)
        if stage == 0:
            out["powers"] = out["powers"].astype(np.int64)
        return out

    def _in_core(
        self, broadcast: Arrays, clients: FederatedDataset, sums: Array
    ) -> bool:
        """Add derivatives to `sums` by the compiled core; False if it cannot."""
        if _compiled.core is None:
            return False
        power, centre, width = broadcast["scale"]
        half = -(power.astype(int) // 2)
        factors = np.ldexp(1.0, half), np.ldexp(1.0, -power.astype(int) - half)
        negative, positive = broadcast["weight"]
        target, own = 1 / (negative + 2), (positive + 1) / (positive + 2)
        lines = [*factors, centre, 1 / width, *broadcast["point"], target, own - target]
        given, n_classes = np.stack(lines), clients.n_classes
        first = 1 if n_classes == 2 else 0
        rows = clients.rows
        if self.input_type != "log_proba" and rows.shape[1] == n_classes > 2:
            # The columns are the scores.
            where = clients.order, clients.labels, clients.offsets, clients.weights
            return _compiled.platt_sums(rows, *where, first, given, sums)
        for block in clients.blocks():
            scores = class_scores(block.rows, self.input_type, n_classes)
            where = None, block.labels, block.offsets, block.weights
            part = sums[block.clients]
            if not _compiled.platt_sums(scores, *where, first, given, part):
                return False
        return True

    def update(self, state: SigmoidState, total: Sums, n_clients: int) -> SigmoidState:
        if state.stage == 0:
            if not total["weights"].any():
                raise ValueError(_NO_ROWS)
            used = total["powers"] > 0
            highest = _POWERS - 1 - used[:, ::-1].argmax(axis=1)
            power = (highest + 1.0) * _POWER_WIDTH + _LEAST_POWER
            power = np.where(used.any(axis=1), power, 0.0)
            weight = np.maximum(total["weights"], 0.0)
            return replace(state, power=power, weight=weight, stage=1)
        if state.stage == 1:
            rows = np.maximum(state.weight.sum(axis=0), np.finfo(np.float64).tiny)
            centre = total["sums"][0] / rows
            spread = np.maximum(total["sums"][1] / rows - centre**2, 0.0)
            width = np.where(spread > 1e-20, np.sqrt(spread), 1.0)
            shift = np.log((state.weight[1] + 1) / (state.weight[0] + 1))
            point = np.stack([np.zeros_like(shift), shift])
            return replace(state, centre=centre, width=width, point=point, stage=2)
        return _newton(state, total["sums"])

    def done(self, state: SigmoidState) -> bool:
        return state.converged


def _sums(block: Block, values: Array) -> Array:
    """Sums over the rows of each client, of values of shape (a, b, n_rows)."""
    first, second, n_rows = values.shape
    sums = block.sum_by_client(values.reshape(first * second, n_rows))
    return sums.reshape(-1, first, second)


def _powers(block: Block, scores: Array, size: int) -> Array:
    """Rows of each client by the binary exponent of each score that is not 0."""
    exponent = (np.frexp(scores)[1] - _LEAST_POWER) // _POWER_WIDTH
    cell = np.clip(exponent, 0, _POWERS - 1) + np.arange(size) * _POWERS
    n_clients = len(block.offsets) - 1
    owner = np.repeat(np.arange(n_clients), np.diff(block.offsets))
    counted = (scores != 0) & np.isfinite(scores)
    if block.weights is not None:
        counted &= (block.weights > 0)[:, None]
    cell += owner[:, None] * (size * _POWERS)
    flat = np.bincount(cell[counted], minlength=n_clients * size * _POWERS)
    return flat.reshape(n_clients, size, _POWERS)


def _derivatives(place: Array, own: Array, broadcast: Arrays) -> Array:
    """Loss, gradient (2) and Hessian (3) of each row and score."""
    slope, shift = broadcast["point"][:, :, None]
    negative, positive = broadcast["weight"][:, :, None]
    target = np.where(own, (positive + 1) / (positive + 2), 1 / (negative + 2))
    odds = slope * place + shift
    proba = sigmoid(odds)
    loss = np.logaddexp(0, odds) - target * odds
    residual, bend = proba - target, proba * (1 - proba)
    by_place = bend * place
    out = [loss, residual * place, residual, by_place * place, by_place, bend]
    return np.stack(out)


def _newton(state: SigmoidState, sums: Array) -> SigmoidState:
    """Take a Newton step for each score, or half of the last one where it failed."""
    loss, first, second, aa, ab, bb = sums
    still = state.closed
    rows = state.weight.sum(axis=0)
    worse = loss > state.best[2] + _ROUNDING * rows
    short = np.abs(state.step).max(axis=0) < _LEAST_SHARE
    # A score that is the same in all rows has no slope.
    ridge = 1e-12 * (aa + bb) + 1e-140  # whose square is not 0
    det = (aa + ridge) * (bb + ridge) - ab * ab
    step = -np.stack([(bb + ridge) * first - ab * second,
                      (aa + ridge) * second - ab * first]) / det  # fmt: skip
    step *= np.minimum(1, _REACH / np.maximum(np.abs(step).max(axis=0), 1e-300))
    step = np.where(worse, state.step / 2, step)
    best = np.where(worse, state.best, np.stack([*state.point, loss]))
    near = np.abs(step).max(axis=0) <= _CLOSE * np.maximum(
        1, np.abs(best[:2]).max(axis=0)
    )
    closed = still | (near & ~worse) | (worse & short)
    # A closed score stays where its last step led.
    step = np.where(still, 0.0, step)
    point = np.where(still, state.point, best[:2] + step)
    return replace(state, point=point, best=best, step=step, closed=closed)


# Cells of a sketch: three parts, together this many for each score, and some more.
_PARTS, _LOAD, _SPARE = 3, 1.6, 128
# Most cells that a site computes for: of ten numbers each, the limit of its policy.
MAX_CELLS = 10**6
# Largest size of a score in a table, where only the order counts: differences of two
# stay finite.
_FAR = float(np.finfo(np.float64).max) / 4
# Passes over a table that is read: an honest one takes about ten.
_PASSES = 200
# Numbers of a cell: clients, their rows and positive rows; then, for each client with
# the score, its number, its bits in four pieces and a checksum in two, of 16 bits each.
_N_PIECES, _N_CHECKS = 4, 2
_NUMBERS = 4 + _N_PIECES + _N_CHECKS


@dataclass(frozen=True, slots=True)
class TableState:
    """Distinct scores of all clients with their weights, once they are `read`.

    `index` is the number of the score, `scores` its value, `weights` of shape (2, n)
    the sums over negatives and positives. `n_cells` is the size of the sketch.
    """

    n_cells: int = 0
    rounds: int = 0
    read: bool = False
    index: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    scores: Array = field(default_factory=lambda: np.zeros(0))
    weights: Array = field(default_factory=lambda: np.zeros((2, 0)))


@dataclass(frozen=True, slots=True)
class _Distinct:
    """Distinct scores of clients.

    keys, index, owner: Bits of a score, its number and its client.
    counts: For each, 1, the rows and the positive rows; weights: of negatives and
        positives.
    """

    keys: Array
    index: Array
    owner: Array
    counts: list[Array]
    weights: list[Array]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """Read the table of distinct scores and label counts of all clients together.

    The first round adds up the numbers of distinct scores. In the second, each client
    adds its rows to an invertible Bloom lookup table (Goodrich and Mitzenmacher, 2011)
    with cells for that many scores: three cells for each distinct score, chosen by a
    hash, get the numbers of rows, the bits of the score and a checksum. The sum of
    these tables is a table of all clients, from which the server reads every score.
    Where this fails by chance, it asks again with another hash.

    The server learns which scores all clients have together, at how many clients and
    how often. Which client has which stays hidden only in a masked sum over several.

    input_type ('logits', 'log_proba', 'proba'): Type of the scores in the columns.
    weighted: Rows carry weights.
    n_rounds: Rounds at most.
    """

    input_type: InputType = "logits"
    weighted: bool = False
    n_rounds: int = 12
    lists_rows: ClassVar[bool] = True

    def init(self, n_classes: int) -> TableState:
        return TableState()

    def broadcast(self, state: TableState) -> Arrays:
        return {
            "n_cells": np.asarray(state.n_cells),
            "salt": np.asarray(state.rounds),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        n_cells = int(broadcast["n_cells"])
        if not n_cells:
            return {"sizes": BlockSpec((1,), kind="count")}
        blocks = {"cells": BlockSpec((n_cells, _NUMBERS), kind="count")}
        if self.weighted:
            blocks["weights"] = BlockSpec((n_cells, 2))
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_rounds", self.n_rounds, 2, 1000)
        return (
            {
                "n_cells": Field((), "whole", 0, MAX_CELLS),
                "salt": Field((), "whole", 0, self.n_rounds),
            },
        )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        n_cells, salt = int(broadcast["n_cells"]), int(broadcast["salt"])
        found = self._distinct(clients)
        if not n_cells:
            sizes = np.bincount(found.owner, minlength=len(clients))
            return {"sizes": sizes[:, None]}
        cells = _cells(found.keys, found.index, salt, n_cells).T.reshape(-1)
        owner = np.repeat(found.owner, _PARTS)

        def table(columns: list[Array]) -> CellRows:
            values = np.repeat(np.stack(columns, axis=1), _PARTS, axis=0)
            block = (n_cells, len(columns))
            return CellRows(owner, cells, len(clients), block, values)

        counts = [count.astype(np.int64) for count in found.counts]
        out = {"cells": table([*counts, *_pieces(found.keys, found.index)])}
        if self.weighted:
            out["weights"] = table(found.weights)
        return out

    def _distinct(self, clients: FederatedDataset) -> _Distinct:
        """Find the distinct scores of each client and what it knows of them."""
        rows, labels, owner = packed(clients)
        weight = np.ones(len(rows))
        if self.weighted:
            assert clients.weights is not None
            weight = clients.weights[clients.offsets[0] : clients.offsets[-1]]
        used = weight > 0
        owner, weight = owner[used], weight[used]
        scores = class_scores(rows[used], self.input_type, clients.n_classes)
        scores = np.clip(scores, -_FAR, _FAR)
        size = scores.shape[1]
        own = class_labels(labels[used], clients.n_classes).ravel()
        keys = (scores + 0.0).ravel().view(np.uint64)  # -0 and 0 are one score
        index = np.tile(np.arange(size), len(scores))
        owner, weight = np.repeat(owner, size), np.repeat(weight, size)
        order = np.lexsort((keys, index, owner))
        keys, index, owner = keys[order], index[order], owner[order]
        own, weight = own[order], weight[order]
        new = np.ones(len(keys), dtype=bool)
        new[1:] = np.diff(index) != 0
        new[1:] |= (keys[1:] != keys[:-1]) | (owner[1:] != owner[:-1])
        first, group = np.flatnonzero(new), np.cumsum(new) - 1
        n_rows, positive = np.bincount(group), np.bincount(group, own)
        parts = np.where(own, 0.0, weight), np.where(own, weight, 0.0)
        return _Distinct(
            keys[first],
            index[first],
            owner[first],
            [np.ones(len(first)), n_rows, positive],
            [np.bincount(group, part) for part in parts],
        )

    def update(self, state: TableState, total: Sums, n_clients: int) -> TableState:
        if not state.n_cells:
            if total["sizes"][0] <= 0:
                raise ValueError(_NO_ROWS)
            n_cells = int(_LOAD * int(total["sizes"][0])) + _SPARE
            n_cells = _PARTS * (n_cells // _PARTS + 1)
            if n_cells > MAX_CELLS:
                raise ValueError(
                    f"The clients have up to {int(total['sizes'][0])} distinct scores; "
                    f"an exact isotonic fit is limited to {MAX_CELLS / _LOAD:.0f}. "
                    "Round the scores, or use FedHistogramCalibrator("
                    "method='isotonic')."
                )
            return replace(state, n_cells=n_cells, rounds=1)
        cells = total["cells"].astype(np.int64)
        found = _read_table(cells, total.get("weights"), state.rounds)
        if found is None:
            return replace(state, rounds=state.rounds + 1)
        index, scores, weights = found
        return TableState(state.n_cells, state.rounds + 1, True, index, scores, weights)

    def done(self, state: TableState) -> bool:
        return state.read


def _mixed(keys: Array, salt: int) -> Array:
    """Hash of 64 bits (the last steps of splitmix64)."""
    out = keys + np.uint64(salt * 0x9E3779B97F4A7C15 % 2**64)
    out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = out ^ (out >> np.uint64(31))
    return mixed


def _cells(keys: Array, index: Array, salt: int, n_cells: int) -> Array:
    """Cell of each score in each part, of shape (parts, n)."""
    size = n_cells // _PARTS
    start = _mixed(index.astype(np.uint64), 3)
    return np.stack(
        [
            (_mixed(keys ^ start, _PARTS * salt + i) % np.uint64(size)).astype(np.int64)
            + i * size
            for i in range(_PARTS)
        ]
    )


def _pieces(keys: Array, index: Array) -> list[Array]:
    """Return the number, the bits and a checksum of each score in 16-bit pieces."""
    check = _mixed(keys ^ _mixed(index.astype(np.uint64), 2), 1)
    bits = np.uint64(2**16 - 1)
    pieces = [(keys >> np.uint64(16 * i)) & bits for i in range(_N_PIECES)]
    pieces += [(check >> np.uint64(16 * i)) & bits for i in range(_N_CHECKS)]
    return [index, *(piece.astype(np.int64) for piece in pieces)]


def _read_table(
    cells: Array, weights: Array | None, salt: int
) -> tuple[Array, Array, Array] | None:
    """Number, value and weights of all scores in a sketch; None if it has a knot.

    A cell with one score names it; the score is then taken out of its other cells,
    which leaves further cells with one.
    """
    cells, n_cells = cells.copy(), len(cells)
    weights = None if weights is None else weights.copy()
    found: list[tuple[Array, Array, Array]] = []
    for _ in range(_PASSES):
        if not cells.any():
            break
        where, keys, index = _single(cells, salt)
        if not len(where):
            return None
        # One entry for each score, although two of its cells may name it.
        _, first = np.unique(np.stack([keys, index.astype(np.uint64)]), axis=1,
                             return_index=True)  # fmt: skip
        where, keys, index = where[first], keys[first], index[first]
        numbers = cells[where].copy()
        counts = np.stack([numbers[:, 1] - numbers[:, 2], numbers[:, 2]])
        if weights is not None:
            # No rows have no weight, whatever rounding left in the cell.
            counts = np.where(counts > 0, weights[where].T, 0.0)
        found.append((index, keys.view(np.float64), counts.astype(np.float64)))
        for part in _cells(keys, index, salt, n_cells):
            np.subtract.at(cells, part, numbers)
            if weights is not None:
                np.subtract.at(weights, part, counts.T)
    else:
        return None
    if not found:
        return None
    index, scores, counts = (
        np.concatenate(x, axis=-1) for x in zip(*found, strict=True)
    )
    counts = np.maximum(counts, 0.0)
    # Rows of no weight have no place in a curve, and a site may send anything.
    good = np.flatnonzero(np.isfinite(scores) & (counts.sum(axis=0) > 0))
    order = good[np.lexsort((scores[good], index[good]))]
    return index[order], scores[order], counts[:, order]


def _single(cells: Array, salt: int) -> tuple[Array, Array, Array]:
    """Cells that hold one score: where they are, its bits and its number."""
    where = np.flatnonzero(cells[:, 0] > 0)
    pieces, rest = np.divmod(cells[where, 3:], cells[where, :1])
    fits = (rest == 0).all(axis=1) & (pieces >= 0).all(axis=1)
    fits &= (pieces[:, 1:] < 2**16).all(axis=1)
    where, pieces = where[fits], pieces[fits]
    keys = np.zeros(len(where), dtype=np.uint64)
    for i in range(_N_PIECES):
        keys |= pieces[:, 1 + i].astype(np.uint64) << np.uint64(16 * i)
    # A mixture of scores may look like one by chance: its checksum does not fit, and
    # it belongs into another cell.
    own = (np.stack(_pieces(keys, pieces[:, 0]), axis=1) == pieces).all(axis=1)
    where, keys, index = where[own], keys[own], pieces[own, 0]
    part = where // (len(cells) // _PARTS)
    placed = _cells(keys, index, salt, len(cells))[part, np.arange(len(where))] == where
    return where[placed], keys[placed], index[placed]
