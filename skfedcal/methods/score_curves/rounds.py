"""Counts of scores by label and bucket, summed over clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from skfedcal.clients.dataset import BLOCK_CELLS, FederatedDataset
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
from skfedcal.methods import map_formulas
from skfedcal.methods.buckets import (
    InputType,
    Space,
    class_rows,
    log_odds,
    place_of_odds,
    place_of_proba,
    sigmoid,
)
from skfedcal.methods.graph import (
    Value,
    count_at_most,
    expit,
    interpolate,
    softplus,
    to_odds,
)
from skfedcal.methods.own_rows import kept_rows, packed, row_weights

# Columns of `CountState.laws`.
LAW_FIELDS = ("kind", "variance", "p", "q", "n_reports", "domain")
# Codes of the first column; those of randomised reports say how bits depend.
LAW_KINDS = ("exact", "additive", "unary", "grr", "subset")


# Deepest level of buckets.
MAX_LEVEL = 62


@dataclass(frozen=True, slots=True)
class CountState:
    """Accumulated totals of all levels, concatenated, and their noise distribution.

    `laws` has one row per level and the columns `LAW_FIELDS`.
    """

    totals: Array
    laws: Array
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ScoreCounts:
    """Count the rows of each table by score bucket.

    A row of the data is a position in [0, 1] (a score under a public monotone map) and
    a label, 0 or 1; it falls into one cell per level, so that a client with one row has
    L1 norm 1 on each level.

    levels: Increasing depths: level ``b`` has ``2**b`` equal buckets, the last one
        closed.
    max_examples: Maximum number of rows of a client; chosen by a hash of their number
        at the client.
    clip: Bound on the contribution of a client on one level; None for exact sums.
    norm: Norm of the bound.
    weighting: Every row counts 1, or the rows of a client add up to 1.
    by_round: Query one level in each round, for cohorts that are asked once.
    salt: Public salt of the hash that chooses rows.
    n_rounds: Rounds; sums add up.
    """

    levels: tuple[int, ...]
    max_examples: int | None = None
    clip: float | None = None
    norm: Literal["l1", "l2"] = "l1"
    weighting: Literal["example", "client"] = "example"
    by_round: bool = False
    salt: int = 0
    n_rounds: int = 1

    # Rows of the table: negatives and positives.
    n_tables = 2

    def init(self, n_classes: int) -> CountState:
        n_cells = self.n_tables * sum(2**bits for bits in self.levels)
        return CountState(
            np.zeros(n_cells), np.zeros((len(self.levels), len(LAW_FIELDS)))
        )

    def broadcast(self, state: CountState) -> Arrays:
        return {"round": np.asarray(state.rounds)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {
            f"level_{bits}": BlockSpec(
                (self.n_tables, 2**bits),
                kind="count" if self._plain else "real",
                clip=self.clip,
                norm=self.norm,
            )
            for bits in self._asked(int(broadcast["round"]))
        }

    def n_values(self, n_classes: int) -> int:
        """Return the largest number of values in a round."""
        sizes = [self.n_tables * 2**bits for bits in self.levels]
        return max(sizes) if self.by_round else sum(sizes)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts, for two classes."""
        self._check_classes(n_classes)
        for bits in self.levels:
            check_range("levels", bits, 0, MAX_LEVEL)
        if not self.levels or list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"levels={self.levels!r} must increase")
        return ({"round": Field((), "whole", 0, 2**31)},)

    def _check_classes(self, n_classes: int) -> None:
        """Raise ValueError for a number of classes that does not match the tables."""
        if n_classes != 2:
            raise ValueError(
                f"the histogram counts scores of two classes, not of {n_classes}"
            )

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        owner, cell, weight = self.entries(clients)
        height, n_rows = self.levels[-1], len(clients)
        out: dict[str, Array | CellRows] = {}
        for bits in self._asked(int(broadcast["round"])):
            shape = (self.n_tables, 2**bits)
            node = cell >> (height - bits)
            if weight is None:
                out[f"level_{bits}"] = CellRows(owner, node, n_rows, shape)
                continue
            size = self.n_tables * 2**bits
            sums = np.bincount(owner * size + node, weight, minlength=n_rows * size)
            out[f"level_{bits}"] = sums.reshape(n_rows, *shape)
        return out

    def entries(self, clients: FederatedDataset) -> tuple[Array, Array, Array | None]:
        """Client, leaf cell and weight (None: 1) of every score that counts."""
        rows, labels, owner = packed(clients)
        sizes, weight = clients.sizes, self._weights(clients)
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner = rows[kept], labels[kept], owner[kept]
            weight = None if weight is None else weight[kept]
            sizes = np.minimum(sizes, min(self.max_examples, 2**62))
        if self.weighting == "client":
            weight = row_weights(sizes)
        cell = self._cells(rows, labels)
        n_scores = cell.shape[1]
        if n_scores > 1:
            owner = np.repeat(owner, n_scores)
            weight = None if weight is None else np.repeat(weight, n_scores)
        return owner, cell.reshape(-1), weight

    def _cells(self, rows: Array, labels: Array) -> Array:
        """Leaf cell of each score, in blocks to limit memory."""
        height, parts = self.levels[-1], []
        step = max(1, BLOCK_CELLS // max(1, rows[:1].size))
        for start in range(0, max(1, len(rows)), step):
            part = slice(start, start + step)
            place, table = self.placed(rows[part], labels[part])
            cell = table * np.int64(2**height)
            cell += bucket_index(place, height)
            parts.append(cell)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def placed(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Positions in [0, 1] of the scores of each row, and the table of each."""
        return rows[:, :1], labels[:, None].astype(np.int64)

    def _weights(self, clients: FederatedDataset) -> Array | None:
        """Weight of each row, if rows carry any."""
        return None

    @property
    def _plain(self) -> bool:
        """Whether every row counts 1."""
        return self.weighting == "example"

    def update(self, state: CountState, total: Sums, n_clients: int) -> CountState:
        totals, laws = state.totals.copy(), state.laws.copy()
        starts = np.cumsum([0, *(self.n_tables * 2**b for b in self.levels)])
        for bits in self._asked(state.rounds):
            name, i = f"level_{bits}", self.levels.index(bits)
            law, scale = law_row(total, name, n_clients)
            totals[starts[i] : starts[i + 1]] += total[name].reshape(-1) * scale
            laws[i] = added_laws(laws[i], law)
        return replace(state, totals=totals, laws=laws, rounds=state.rounds + 1)

    def done(self, state: CountState) -> bool:
        return False

    def _asked(self, round_index: int) -> tuple[int, ...]:
        if not self.by_round:
            return self.levels
        return (self.levels[round_index % len(self.levels)],)


def bucket_index(position: Array, height: int) -> Array:
    """Number of the bucket of each position; scaling by a power of 2 is exact."""
    size = 2**height
    index = (position * position.dtype.type(size)).astype(np.int64)
    return np.clip(index, 0, size - 1, out=index)


def law_row(total: Sums, name: str, n_units: int) -> tuple[Array, float]:
    """Noise distribution of one block, and the factor from estimates to reports.

    Estimates from a part of the clients are scaled up to all of them; the state keeps
    the sum over those that reported, which can be accumulated over rounds.
    """
    law = total.laws.get(name)
    if law is None or law.domain == 0:
        noise = total.noise.get(name, 0.0)
        variance = noise**2 if law is None else law.variance
        kind = LAW_KINDS.index("additive" if variance else "exact")
        return np.array([kind, variance, 0.0, 0.0, n_units, 0.0]), 1.0
    kind = LAW_KINDS.index(_KIND_OF[law.kind])
    row = np.array([kind, law.variance, law.p, law.q, law.n_reports, law.domain])
    return row, law.n_reports / law.n_units if law.n_units else 1.0


# Oracles by what the joint law of a report is: bits that are independent given the
# value, one value, or a set of fixed size.
_KIND_OF = {
    "oue": "unary",
    "olh": "unary",
    "grr": "grr",
    "rr": "grr",
    "subset": "subset",
}


def added_laws(first: Array, second: Array) -> Array:
    """Noise distribution of the sum of two independent releases of one kind."""
    out = second.copy()
    for name in ("variance", "n_reports"):
        i = LAW_FIELDS.index(name)
        out[i] = first[i] + second[i]
    return out


@dataclass(frozen=True, slots=True)
class ClassScoreCounts(ScoreCounts):
    """Count rows of scores by label and by the bucket of a class's score.

    Rows are in the columns that a site has them in: one per class, or one fewer.

    scores: Score and label of a row: one of two classes; the most probable class and
        whether it is correct; or every class against the rest, which makes as many
        tables, and as many times the norm, as there are classes.
    space ('both', 'prob', 'logit'): Scale on which buckets have equal width; 'both' is
        the mean of the other two.
    weighted: Rows carry weights, so that counts are real numbers; with
        ``weighting='client'`` they are not read.
    input_type ('logits', 'log_proba', 'proba'): Type of the scores in the columns.
    positive (0, 1): Label, and column, of the positive class, for 'binary'; one column
        alone is that of the positive class.
    cut: Two buckets in place of those of `space`, for 'binary': probabilities below
        `cut`, and from it on.
    """

    scores: Literal["binary", "top", "ovr"] = "binary"
    space: Space = "logit"
    n_classes: int = 2
    weighted: bool = False
    input_type: InputType = "logits"
    positive: int = 1
    cut: float | None = None

    @property
    def n_tables(self) -> int:  # type: ignore[override]
        """Negatives and positives of each score."""
        return 2 * self.n_classes if self.scores == "ovr" else 2

    def _check_classes(self, n_classes: int) -> None:
        """Raise ValueError for a number of classes that does not match the tables."""
        if n_classes != self.n_classes or (self.scores == "binary" and n_classes != 2):
            raise ValueError(
                f"{self.scores!r} scores of {self.n_classes} classes do not match "
                f"{n_classes} classes"
            )
        if self.positive not in (0, 1):
            raise ValueError(f"positive={self.positive} must be 0 or 1")

    @property
    def _plain(self) -> bool:
        """Whether every row counts 1."""
        return self.weighting == "example" and not self.weighted

    def _weights(self, clients: FederatedDataset) -> Array | None:
        """Weight of each row, if rows carry any."""
        if not self.weighted:
            return None
        assert clients.weights is not None
        return clients.weights[clients.offsets[0] : clients.offsets[-1]]

    def placed(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Positions in [0, 1] of the scores of each row, and the table of each."""
        if self.scores == "binary":
            table = (labels == self.positive)[:, None].astype(np.int64)
            return self._binary_place(rows)[:, None], table
        odds = log_odds(class_rows(rows, self.input_type, self.n_classes))
        if self.scores == "ovr":
            classes = np.arange(self.n_classes)
            table = 2 * classes + (labels[:, None] == classes)
            return place_of_odds(odds, self.space), table
        top = odds.argmax(axis=1)
        highest = odds[np.arange(len(top)), top][:, None]
        right = (labels == top)[:, None].astype(np.int64)
        return place_of_odds(highest, self.space), right

    def _binary_place(self, rows: Array) -> Array:
        """Position of the score of the positive class."""
        if self.input_type == "proba":
            # Not by logits and back: a probability on an edge must stay on its side.
            proba = rows[:, -1] if self.positive else rows[:, 0]
            if self.cut is not None:
                return np.where(proba >= self.cut, 0.75, 0.25)
            return place_of_proba(proba, self.space)
        if rows.shape[1] == 1:
            odds = rows[:, 0].astype(np.float64, copy=False)
        else:
            odds = log_odds(rows)[:, self.positive]
        if self.cut is not None:
            return np.where(sigmoid(odds) >= self.cut, 0.75, 0.25)
        return place_of_odds(odds, self.space)


# The map


def score_curves(cal: Any, logits: Value) -> Value:
    """Curves of each class, of the second of two, or of the most probable one."""
    weight = cal.curve_weight_ if cal.if_improves else 1.0
    n_classes = len(cal.classes_)
    odds = map_formulas.log_odds(logits, n_classes)
    if cal.scores_ == "binary":
        half = _blend(cal, odds.columns([1]), weight) / 2.0
        return (-half).beside(half)
    if cal.scores_ == "ovr":
        return -softplus(-_blend(cal, odds, weight))
    before = odds.max()
    return map_formulas.move_top(logits, before, _blend(cal, before, weight), n_classes)


def _blend(cal: Any, odds: Value, weight: float) -> Value:
    return _calibrated(cal, odds) * weight + odds * (1 - weight)


def _calibrated(cal: Any, odds: Value) -> Value:
    """Calibrated log-odds; all curves are of one kind, one for each column."""
    kind, points, values = cal._kind, cal.curve_points_, cal.curve_values_
    if kind == "line":
        return to_odds(interpolate(expit(odds), points, values))
    if kind == "steps":
        size = max(len(own) for own in values)
        places = _padded(points, size - 1, np.inf)
        index = count_at_most(odds, places) + np.arange(len(values))[None] * size
        return index.take_from(odds_of(_padded(values, size, 0.5)))
    coefficients = np.stack(values, axis=1)
    if kind == "platt":
        slope, shift = coefficients
        return odds * slope + shift
    a, b, c = coefficients
    return c - softplus(-odds) * a + softplus(odds) * b


def _padded(rows: list[Array], size: int, filler: float) -> Array:
    out = np.full((len(rows), size), filler)
    for own, row in zip(rows, out, strict=True):
        row[: len(own)] = own
    return out


def odds_of(values: Array) -> Array:
    """Log-odds of probabilities, strictly inside (0, 1)."""
    limits = np.finfo(np.float64)
    inside = np.clip(values, limits.tiny, 1 - limits.epsneg)
    return np.log(inside) - np.log1p(-inside)
