"""Client sums of a paired comparison: two scores of the same rows.

Rows have the logits of the first score in the first half of their columns, and those of
the second in the other half; or they are logits, and a map gives the second score.
Needs numpy only: this is code that runs at a site.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Array, Arrays, BlockSpec, Field, Form, Sums, check_range
from skfedcal.evaluation.rounds import SIZE_UNIT
from skfedcal.methods.buckets import (
    class_rows,
    log_odds,
    place_of_odds,
    softmax64,
)
from skfedcal.methods.held_back import MapLosses, Setting, centred
from skfedcal.methods.own_rows import held_back_rows, kept_rows, packed
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, bucket_index

RowMetric = Literal["accuracy", "brier", "log_loss", "weights"]

# Deepest grid of weights.
_MAX_HEIGHT = 16
# Rows of one block.
_BLOCK_ROWS = 1 << 14
# Shares of eps go with the third root of weights: the interval is shortest if squares
# have about half of what differences have; the number of rows needs less.
_SQUARES_WEIGHT, _ROWS_WEIGHT = 0.157, 0.03
# Where scikit-learn's log loss takes probabilities that are nearer to 0.
_TINY = float(np.finfo(np.float64).eps)
# Weights of a comparison with a map, of the score before and of the squares (over the
# square of their bound): of Gaussian noise, differences then get half of the budget.
_MAP_WEIGHTS = 0.3, 0.074


def halves(rows: Array) -> tuple[Array, Array]:
    """Columns of the first and of the second score."""
    half = rows.shape[1] // 2
    return rows[:, :half], rows[:, half:]


def row_scores(metric: RowMetric, logits: Array, labels: Array) -> Array:
    """Score or loss of each row."""
    index = np.arange(len(logits))
    if metric == "accuracy":
        return (logits.argmax(axis=1) == labels).astype(np.float64)
    proba = softmax64(logits)
    if metric == "log_loss":
        return -np.log(np.maximum(proba[index, labels], _TINY))
    proba[index, labels] -= 1.0
    squares = np.einsum("ij,ij->i", proba, proba)
    # Of two classes, that of one of them, as in scikit-learn.
    return squares / 2 if proba.shape[1] == 2 else squares


@dataclass(frozen=True, slots=True)
class PairedScoreCounts(ClassScoreCounts):
    """Count one of two scores of each row by label and bucket.

    n_features: Columns of both scores.
    second: Count the second of the two.
    held: Count only rows that fits hold back.
    """

    n_features: int = 2
    second: bool = False
    held: bool = False

    @property
    def by_place(self) -> bool:
        """Whether the number of a row decides if it is counted."""
        return self.held

    def entries(self, clients: FederatedDataset) -> tuple[Array, Array, Array | None]:
        if self.held:
            clients = held_back_rows(clients, held=True)
        return ClassScoreCounts.entries(self, clients)

    def placed(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        part = halves(rows)[int(self.second)]
        return ClassScoreCounts.placed(self, part, labels)


@dataclass(frozen=True, slots=True)
class PairedState:
    """Sums of a paired comparison; `noise` has the variances under privacy."""

    sums: Array
    products: Array
    powers: Array
    noise: Array
    clients: int = 0
    rounds: int = 0
    before: float = 0.0
    before_noise: float = 0.0


@dataclass(frozen=True, slots=True)
class PairedDifferences:
    """Sum the differences of two scores of each row, second minus first.

    metric ('accuracy', 'brier', 'log_loss', 'weights'): Number of a row; 'weights'
        takes it from a table by label and bucket.
    n_features: Columns of both scores: one per class, or one fewer, for each.
    bound: Largest size of a difference, for noise; None for exact sums.
    max_examples: Maximum number of rows that a client contributes.
    weighting: Every row counts 1, or the rows of a client add up to 1.
    count_rows: Also sum the number of rows, under noise; otherwise each unit has one
        row.
    weights: For 'weights', of two classes: numbers from -1 to 1 for each bucket of the
        first score, negatives and positives, and then of the second.
    held: Count only rows that fits hold back.
    salt: Public salt of the hash that chooses rows.
    n_rounds: Rounds; sums add up.
    """

    metric: RowMetric = "brier"
    n_features: int = 2
    bound: float | None = None
    max_examples: int | None = None
    weighting: Literal["example", "client"] = "example"
    count_rows: bool = True
    weights: tuple[float, ...] = ()
    held: bool = False
    salt: int = 0
    n_rounds: int = 1

    @property
    def by_place(self) -> bool:
        """Whether other rows decide if a row is counted, or how much."""
        return self.held or self.weighting == "client"

    def init(self, n_classes: int) -> PairedState:
        return PairedState(np.zeros(3), np.zeros(3), np.zeros(2), np.zeros(3))

    def broadcast(self, state: PairedState) -> Arrays:
        return {"round": np.asarray(state.rounds)}

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        if self.n_features not in (2 * n_classes, 2 * n_classes - 2):
            raise ValueError(
                f"n_features={self.n_features} does not fit two scores of {n_classes} "
                "classes"
            )
        if self.bound is not None:
            check_range("bound", self.bound, 1e-6, 1e6)
        if self.metric == "weights":
            if n_classes != 2:
                raise ValueError(f"weights are for two classes, not for {n_classes}")
            if len(self.weights) not in [4 * 2**h for h in range(1, _MAX_HEIGHT + 1)]:
                raise ValueError(f"{len(self.weights)} weights; expected a power of 2")
            for extreme in (min(self.weights), max(self.weights)):
                check_range("weights", extreme, -1.0, 1.0)
        return ({"round": Field((), "whole", 0, 2**31)},)

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if self.bound is None:
            shapes = {"sums": (3,), "products": (3,), "powers": (2,)}
            return {name: BlockSpec(shape) for name, shape in shapes.items()}
        rows = float(self.max_examples or 1) if self.weighting == "example" else 1.0
        most = self.bound * rows
        square = BlockSpec((1,), clip=most**2, norm="l1", weight=_SQUARES_WEIGHT)
        if self.metric == "weights":  # their sum is 0
            return {"square": square}
        out = {"difference": BlockSpec((1,), clip=most, norm="l1"), "square": square}
        if self.count_rows:
            out["rows"] = BlockSpec(
                (1,), kind="count", clip=rows, norm="l1", weight=_ROWS_WEIGHT
            )
        return out

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        if self.held:
            clients = held_back_rows(clients, held=True)
        rows, labels, owner = packed(clients)
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner = rows[kept], labels[kept], owner[kept]
        gap, before = np.empty((2, len(rows)))
        for start in range(0, len(rows), _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            first, second = self._values(rows[part], labels[part], clients.n_classes)
            gap[part], before[part] = second - first, first
        if self.bound is not None:
            np.clip(gap, -self.bound, self.bound, out=gap)
        n_clients = len(clients)
        size = np.bincount(owner, minlength=n_clients).astype(np.float64)
        weight = np.ones(len(rows))
        if self.weighting == "client":
            weight, size = 1 / size[owner], np.minimum(size, 1.0)
        # In the order of rows: a client's sum depends on its own rows only.
        total = np.bincount(owner, weight * gap, minlength=n_clients)
        base = np.bincount(owner, weight * before, minlength=n_clients)
        sent = {"difference": total, "square": total**2, "rows": size, "before": base}
        if self.bound is not None:
            return {name: sent[name][:, None] for name in self.spec(broadcast)}
        squares = np.bincount(owner, weight * gap**2, minlength=n_clients)
        unit = size / SIZE_UNIT
        sums = {
            "sums": np.stack([total, squares, size], axis=1),
            "products": np.stack([total**2, total * size, size**2], axis=1),
            "powers": np.stack([unit**3, unit**4], axis=1),
            "before": base[:, None],
        }
        return {name: sums[name] for name in self.spec(broadcast)}

    def _values(self, rows: Array, labels: Array, n_classes: int) -> list[Array]:
        """Numbers of the first and of the second score."""
        first, second = (class_rows(r, "logits", n_classes) for r in halves(rows))
        if self.metric == "weights":
            tables = np.array(self.weights).reshape(2, 2, -1)
            height = tables.shape[-1].bit_length() - 1
            return [
                table[labels, bucket_index(_places(score), height)]
                for table, score in zip(tables, (first, second), strict=True)
            ]
        return [row_scores(self.metric, s, labels) for s in (first, second)]

    def update(self, state: PairedState, total: Sums, n_clients: int) -> PairedState:
        if "before" in total:
            state = replace(
                state,
                before=state.before + float(total["before"][0]),
                before_noise=state.before_noise + total.noise.get("before", 0.0) ** 2,
            )
        if self.bound is None:
            return replace(
                state,
                sums=state.sums + total["sums"],
                products=state.products + total["products"],
                powers=state.powers + total["powers"],
                clients=state.clients + n_clients,
                rounds=state.rounds + 1,
            )
        names = ("difference", "square", "rows")
        found = [float(total[n][0]) if n in total else 0.0 for n in names]
        if not self.count_rows:
            found[2] = float(n_clients)
        noise = np.array([total.noise.get(n, 0.0) ** 2 for n in names])
        return replace(
            state,
            sums=state.sums + found,
            noise=state.noise + noise,
            clients=state.clients + n_clients,
            rounds=state.rounds + 1,
        )

    def done(self, state: PairedState) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class MapDifferences(PairedDifferences):
    """Sum the differences of a score of each row, after a map minus before it.

    The score before is summed too, so that both can be stated. Under noise both are cut
    at `bound`.

    n_features: None: rows are logits.
    method, settings, numbers, shapes: The map, as in `MapLosses`.
    norm: Norm of the bounds under noise: Laplace noise has 'l1', Gaussian noise 'l2'.
    """

    n_features: int | None = None  # type: ignore[assignment]
    method: str = "temperature"
    settings: Mapping[str, Setting | None] | None = None
    numbers: Mapping[str, tuple[float, ...]] | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    norm: Literal["l1", "l2"] = "l1"

    @property
    def _map(self) -> MapLosses:
        return MapLosses(self.method, self.settings, self.numbers, self.shapes)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        self._map.forms(n_classes)
        if self.n_features is not None or self.metric == "weights" or self.weights:
            raise ValueError("n_features and weights are for two scores")
        if self.bound is not None:
            check_range("bound", self.bound, 1e-6, 1e6)
        return ({"round": Field((), "whole", 0, 2**31)},)

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        out = PairedDifferences.spec(self, broadcast)
        if self.bound is None:
            return out | {"before": BlockSpec((1,))}
        before, square = _MAP_WEIGHTS
        most = out["difference"].clip or 1.0
        out["before"] = replace(out["difference"], weight=before)
        out["square"] = replace(out["square"], weight=square / most**2)
        return {name: replace(block, norm=self.norm) for name, block in out.items()}

    def _values(self, rows: Array, labels: Array, n_classes: int) -> list[Array]:
        before = centred(rows)
        after = self._map.mapped(before, n_classes)
        worst = 0.0 if self.metric == "accuracy" else -np.log(_TINY)
        if self.metric == "brier":
            worst = 2.0 if n_classes > 2 else 1.0
        with np.errstate(all="ignore"):
            found = [row_scores(self.metric, s, labels) for s in (before, after)]
        # A row that no formula can map counts as entirely wrong.
        first, second = (np.nan_to_num(values, nan=worst) for values in found)
        if self.bound is not None:
            return [np.minimum(first, self.bound), np.minimum(second, self.bound)]
        return [first, second]


def _places(logits: Array) -> Array:
    """Position of the score of the second of two classes."""
    return place_of_odds(log_odds(logits)[:, 1], "both")
