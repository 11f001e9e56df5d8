"""Client sums of classwise metrics: residuals and one-vs-rest counts.

- Sums of outcome minus probability of each class, by bin of the probability.
- One-vs-rest counts of class scores, with few entries per row.
- Second moments of the counts of clients, for the variance between clients, and of
  weighted sums of residuals or counts.
- Tables of predictions and class scores, from which all multiclass metrics follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    MAX_POINTS,
    Array,
    Arrays,
    BlockSpec,
    CellRows,
    Field,
    Form,
    Rows,
    Sums,
    check_range,
    n_classes_field,
)
from skfedcal.methods.buckets import (
    InputType,
    Space,
    bin_index,
    class_rows,
    log_odds,
    place_of_odds,
    softmax64,
)
from skfedcal.methods.own_rows import (
    WEIGHT_UNIT,
    hashed,
    kept_rows,
    name_numbers,
    packed,
)
from skfedcal.methods.score_curves.rounds import (
    LAW_FIELDS,
    MAX_LEVEL,
    ClassScoreCounts,
    CountState,
    added_laws,
    bucket_index,
    law_row,
)

# |1 - p_y| + sum of the other p_k is at most 2, whatever the number of classes.
ROW_NORM = 2.0

# The number of rows needs little of the budget: an error of 1 % in it is one of 1 % in
# the result.
ROWS_WEIGHT = 1e-3

# Most coarse buckets whose products a site computes.
MAX_COARSE = 64

# Entries of one block of rows.
_BLOCK_CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class ResidualState:
    """Residual sums of shape (n_classes, n_bins), and the number of rows.

    `variance` is of the noise in each sum, `squares` the sum of squared residuals where
    it was asked for.
    """

    residuals: Array
    squares: Array
    n_rows: float = 0.0
    variance: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ClassResiduals:
    """Add up ``y_k - p_k`` in the bin of ``p_k``, for every class ``k``.

    n_bins: Equal-width bins of [0, 1].
    max_examples: Maximum number of rows that a client contributes.
    private: Clip the contribution of a client to L1 norm 2 for each of its rows.
    count_rows: Also sum the number of rows; otherwise each unit has one row.
    input_type ('logits', 'log_proba', 'proba'): Type of the scores in the columns of a
        site, one per class or one fewer.
    salt: Public salt of the hash that chooses rows.
    n_rounds: Rounds; sums add up.
    """

    n_bins: int = 15
    max_examples: int | None = None
    private: bool = False
    count_rows: bool = True
    input_type: InputType = "logits"
    salt: int = 0
    n_rounds: int = 1

    def init(self, n_classes: int) -> ResidualState:
        shape = (n_classes, self.n_bins)
        return ResidualState(np.zeros(shape), np.zeros(shape))

    def broadcast(self, state: ResidualState) -> Arrays:
        return {"n_classes": np.asarray(len(state.residuals))}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        shape = (int(broadcast["n_classes"]), self.n_bins)
        out = {"residuals": BlockSpec(shape, clip=self._bound, norm="l1")}
        if self.count_rows:
            rows = float(self.max_examples or 1) if self.private else None
            out["rows"] = BlockSpec(
                (1,), kind="count", clip=rows, norm="l1", weight=ROWS_WEIGHT
            )
        if not self.private:
            out["squares"] = BlockSpec(shape)
        return out

    @property
    def _bound(self) -> float | None:
        if not self.private:
            return None
        return ROW_NORM * (self.max_examples or 1)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("n_bins", self.n_bins, 1, MAX_POINTS)
        return ({"n_classes": n_classes_field(n_classes)},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        n_classes = int(broadcast["n_classes"])
        rows, labels, owner = packed(clients)
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner = rows[kept], labels[kept], owner[kept]
        size = n_classes * self.n_bins
        sums = np.zeros(len(clients) * size)
        squares = np.zeros(0 if self.private else len(sums))
        step = max(1, _BLOCK_CELLS // n_classes)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            own = class_rows(rows[part], self.input_type, n_classes)
            residual, cell = self._cells(own, labels[part])
            cell += owner[part, None] * size
            # In the order of rows: a client's sum depends on its own rows only.
            np.add.at(sums, cell.reshape(-1), residual.reshape(-1))
            if not self.private:
                np.add.at(squares, cell.reshape(-1), residual.reshape(-1) ** 2)
        shape = (len(clients), n_classes, self.n_bins)
        out: dict[str, Array] = {"residuals": sums.reshape(shape)}
        if self.count_rows:
            counts = np.bincount(owner, minlength=len(clients))
            out["rows"] = counts[:, None]
        if not self.private:
            out["squares"] = squares.reshape(shape)
        return out

    def _cells(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Residual of each class, and the flat (class, bin) it belongs to."""
        proba = softmax64(rows)
        cell = bin_index(proba, self.n_bins)
        cell += np.arange(rows.shape[1]) * self.n_bins
        residual = np.negative(proba, out=proba)
        residual[np.arange(len(rows)), labels] += 1.0
        return residual, cell

    def update(
        self, state: ResidualState, total: Sums, n_clients: int
    ) -> ResidualState:
        rows = float(total["rows"][0]) if self.count_rows else float(n_clients)
        return replace(
            state,
            residuals=state.residuals + total["residuals"],
            squares=state.squares + total.get("squares", 0.0),
            n_rows=state.n_rows + rows,
            variance=state.variance + total.noise.get("residuals", 0.0) ** 2,
            rounds=state.rounds + 1,
        )

    def done(self, state: ResidualState) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class OneVsRestCounts(ClassScoreCounts):
    """Count each row for its own class and for its most probable other classes.

    A row enters the positives of its own class and the negatives of the `n_others`
    classes with the largest scores among the others: L1 norm ``n_others + 1``, whatever
    the number of classes. Negatives that are not reported are assumed to be in the
    lowest bucket. Tables are the negatives of all classes, then the positives.

    n_others: Other classes that a row is counted for.
    """

    n_others: int = 1

    @property
    def n_tables(self) -> int:  # type: ignore[override]
        """Negatives and positives of each class."""
        return 2 * self.n_classes

    def _check_classes(self, n_classes: int) -> None:
        """Raise ValueError for a number of classes that does not match the tables."""
        if n_classes != self.n_classes:
            raise ValueError(f"tables of {self.n_classes} classes, not of {n_classes}")
        check_range("n_others", self.n_others, 0, n_classes)

    def placed(self, rows: Array, labels: Array) -> tuple[Array, Array]:
        """Positions in [0, 1] of the scores of each row, and the table of each."""
        odds = log_odds(class_rows(rows, self.input_type, self.n_classes))
        index = np.arange(len(rows))
        others = odds.copy()
        others[index, labels] = -np.inf
        n_others = min(self.n_others, self.n_classes - 1)
        # A stable sort: ties are broken by the number of the class.
        top = np.argsort(-others, axis=1, kind="stable")[:, :n_others]
        column = np.concatenate([labels[:, None], top], axis=1).astype(np.int64)
        place = place_of_odds(odds[index[:, None], column], self.space)
        column[:, 0] += self.n_classes
        return place, column


# Numbers of rows are sent in thousands, so that their fourth power fits.
SIZE_UNIT = 1024.0

# Most weights that a site is sent.
MAX_WEIGHTS = 1 << 17


@dataclass(frozen=True, slots=True)
class SpreadState:
    """Sums over clients of weighted sums V of their rows, one for each question.

    `sums` has the sums of V, of the squares of single rows, of V squared and of V times
    the number of rows; `powers` those of the second to fourth power of that number.
    """

    sums: Array
    powers: Array
    rounds: int = 0


class _Spread:
    """Members that second moments of weighted sums have in common."""

    __slots__ = ()

    def _questions(self, n_classes: int) -> int:
        raise NotImplementedError

    def init(self, n_classes: int) -> SpreadState:
        return SpreadState(np.zeros((4, self._questions(n_classes))), np.zeros(3))

    def broadcast(self, state: SpreadState) -> Arrays:
        return {"round": np.asarray(state.rounds)}

    def _spec(self, n_classes: int) -> dict[str, BlockSpec]:
        shape = (4, self._questions(n_classes))
        return {"sums": BlockSpec(shape), "powers": BlockSpec((3,))}

    def update(self, state: SpreadState, total: Sums, n_clients: int) -> SpreadState:
        return SpreadState(
            state.sums + total["sums"],
            state.powers + total["powers"] * SIZE_UNIT ** np.arange(2, 5),
            state.rounds + 1,
        )

    @staticmethod
    def _check(weights: tuple[float, ...], size: int) -> Form:
        """Form of a broadcast, if the weights are those of so many cells."""
        check_range("number of weights", size, 1, MAX_WEIGHTS)
        if len(weights) not in (0, size):
            raise ValueError(f"{len(weights)} weights; expected {size} or none")
        for extreme in (min(weights, default=0.0), max(weights, default=0.0)):
            check_range("weights", extreme, -1.0, 1.0)
        return {"round": Field((), "whole", 0, 2**31)}


def _blocks(
    n_clients: int, n_questions: int, owner: Array, parts: list[tuple[Array, ...]]
) -> Arrays:
    """What clients send: `parts` has row, question and value of numbers of rows.

    Sums are in the order of rows: those of a client depend on its own rows only.
    """
    row, question, value = (np.concatenate(one) for one in zip(*parts, strict=True))
    where = owner[row] * n_questions + question
    total, alone = (
        np.bincount(where, one, n_clients * n_questions).reshape(n_clients, -1)
        for one in (value, value**2)
    )
    size = np.bincount(owner, minlength=n_clients).astype(np.float64)
    unit = (size / SIZE_UNIT)[:, None]
    return {
        "sums": np.stack([total, alone, total**2, total * size[:, None]], axis=1),
        "powers": unit ** np.arange(2, 5),
    }


@dataclass(frozen=True, slots=True)
class ResidualMoments(_Spread, ClassResiduals):  # type: ignore[misc]
    """Second moments of weighted residuals of clients; exact sums only.

    Questions are: all classes, each of them, and every sum of `ClassResiduals`.

    weights: Of each (class, bin) in the first questions, from -1 to 1; () is 1.
    """

    weights: tuple[float, ...] = ()

    def _questions(self, n_classes: int) -> int:
        return 1 + n_classes + n_classes * self.n_bins

    def broadcast(self, state: SpreadState) -> Arrays:  # type: ignore[override]
        n_classes = (state.sums.shape[1] - 1) // (1 + self.n_bins)
        return {"n_classes": np.asarray(n_classes)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return self._spec(int(broadcast["n_classes"]))

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        if self.private:
            raise ValueError("second moments are exact sums")
        self._check(self.weights, n_classes * self.n_bins)
        return ClassResiduals.forms(self, n_classes)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        k = int(broadcast["n_classes"])
        rows, labels, owner = packed(clients)
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner = rows[kept], labels[kept], owner[kept]
        weights = np.array(self.weights or np.ones(k * self.n_bins))
        step = max(1, _BLOCK_CELLS // k)
        parts: list[tuple[Array, ...]] = []
        for start in range(0, max(1, len(rows)), step):
            part = slice(start, start + step)
            own = class_rows(rows[part], self.input_type, k)
            residual, cell = (a.reshape(-1) for a in self._cells(own, labels[part]))
            row = np.repeat(np.arange(len(own)), k)
            value = residual * weights[cell]
            whole = np.bincount(row, value, len(own))
            first = np.zeros(len(own), dtype=np.int64)
            parts += [
                (start + np.arange(len(own)), first, whole),
                (start + row, 1 + cell // self.n_bins, value),
                (start + row, 1 + k + cell, residual),
            ]
        return _blocks(len(clients), self._questions(k), owner, parts)


@dataclass(frozen=True, slots=True)
class OneVsRestMoments(_Spread, OneVsRestCounts):  # type: ignore[misc]
    """Second moments of weighted counts of clients; exact sums only.

    Questions are: the mean over all classes, and each of them.

    weights: Of each (table, bucket) of the last level, from -1 to 1; () is 1.
    """

    weights: tuple[float, ...] = ()

    def _questions(self, n_classes: int) -> int:
        return 1 + self.n_classes

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return self._spec(self.n_classes)

    def n_values(self, n_classes: int) -> int:
        """Return the number of values in a round."""
        return 4 * self._questions(n_classes) + 3

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        OneVsRestCounts.forms(self, n_classes)
        if self.clip is not None or self.weighting != "example":
            raise ValueError("second moments are exact sums of rows")
        return (self._check(self.weights, self.n_tables * 2 ** self.levels[-1]),)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        k, size = self.n_classes, 2 ** self.levels[-1]
        _, _, owner = packed(clients)
        if self.max_examples is not None:
            owner = owner[kept_rows(clients, self.max_examples, self.salt)]
        _, cell, _ = self.entries(clients)
        weights = np.array(self.weights or np.ones(self.n_tables * size))
        value = weights[cell]
        row = np.repeat(np.arange(len(owner)), len(cell) // max(len(owner), 1))
        whole = np.bincount(row, value / k, len(owner))
        first = np.zeros(len(owner), dtype=np.int64)
        parts: list[tuple[Array, ...]] = [
            (np.arange(len(owner)), first, whole),
            (row, 1 + cell // size % k, value),
        ]
        return _blocks(len(clients), self._questions(k), owner, parts)


# A product of two counts is sent in two parts, as a site sends no whole number that is
# larger than 2**32.
_LOW_BITS = 24
_LOW = 2**_LOW_BITS - 1

# Numbers of clients whose products are computed together, if they are few.
_PRODUCTS_AT_ONCE = 1 << 23
# Share of products that are not 0, up to which their places are listed.
_SPARSE_SHARE = 1 / 8
# Places for each entry from which sorting is faster than an array of all places.
_PLACES_PER_ENTRY = 16


def _cells_of(edges: Array, leaf: Array) -> Array:
    """Number of the coarse cell of each leaf; `edges` rise from 0 to beyond all."""
    if edges[-1] > len(leaf):
        return np.searchsorted(edges[1:-1], leaf, side="right")
    return np.repeat(np.arange(len(edges) - 1), np.diff(edges))[leaf]


def _products(
    where: NDArray[np.int64],
    value: NDArray[np.int64],
    n_clients: int,
    groups: tuple[int, ...],
) -> dict[str, Array | CellRows]:
    """Products of any two counts of a group, high and low bits, for each client.

    where: Increasing places of the counts that are not 0 in an array of shape
        (n_clients, sum of `groups`).
    value: These counts.
    """
    sizes = np.array(groups)
    client, cell = np.divmod(where, sum(groups))
    group = np.repeat(np.arange(len(groups)), groups)
    # Entries of one client and group follow each other; an entry has a product with
    # itself and with each one after it.
    own = client * len(groups) + group[cell]
    entry = np.arange(len(own))
    alone = bool((own[1:] != own[:-1]).all())  # as with one row per client
    if alone:
        n_found = len(own)
    else:
        n_own = np.diff(np.flatnonzero(np.diff(own, prepend=-1, append=-1)))
        n_after = np.repeat(np.cumsum(n_own), n_own) - entry
        n_found = int(n_after.sum())
    n_products = sizes * (sizes + 1) // 2
    shape = (n_clients, (int(n_products.sum()),))
    if n_found > _SPARSE_SHARE * n_clients * shape[1][0]:
        counts = np.zeros((n_clients, sum(groups)), dtype=np.int64)
        counts.flat[where] = value
        return _dense_products(counts, groups)
    first = second = entry
    if not alone:
        first = np.repeat(entry, n_after)
        second = np.arange(n_found) + np.repeat(
            entry - np.cumsum(n_after) + n_after, n_after
        )
    start = (np.cumsum(sizes) - sizes)[group]
    i = np.arange(len(group)) - start
    base = i * sizes[group] - i * (i + 1) // 2 - start
    base += (np.cumsum(n_products) - n_products)[group]
    row, place = client[first], base[cell][first] + cell[second]
    product = value[first] * value[second]
    many = np.flatnonzero(product > _LOW)
    high = (product[many] >> _LOW_BITS)[:, None]
    return {
        "high": CellRows(row[many], place[many], *shape, high),
        "low": CellRows(row, place, *shape, (product & _LOW)[:, None]),
    }


def _dense_products(
    counts: NDArray[np.int64], groups: tuple[int, ...]
) -> dict[str, Array | CellRows]:
    """As `_products`, where many products are not 0."""
    pairs, start = [], 0
    for size in groups:
        pairs.append(np.stack(np.triu_indices(size)) + start)
        start += size
    first, second = np.concatenate(pairs, axis=1)
    products = np.empty((len(counts), len(first)), dtype=np.int64)
    step = max(1, _BLOCK_CELLS // len(first))
    for top in range(0, len(counts), step):
        part = slice(top, top + step)
        np.multiply(counts[part, first], counts[part, second], out=products[part])
    if products.max(initial=0) <= _LOW:
        none = np.empty(0, dtype=np.int64)
        zeros = CellRows(none, none, len(counts), (len(first),), none[:, None])
        return {"high": zeros, "low": products}
    return {"high": products >> _LOW_BITS, "low": products & _LOW}


def _counted(
    where: NDArray[np.int64], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Different places below `size`, increasing, and how often each is there."""
    if (where[1:] > where[:-1]).all():
        return where, np.ones_like(where)
    if size < _PLACES_PER_ENTRY * len(where):
        counts = np.bincount(where, minlength=size)
        found = np.flatnonzero(counts != 0)
        return found, counts[found]
    where = np.sort(where)
    first = np.flatnonzero(np.diff(where, prepend=-1))
    return where[first], np.diff(first, append=len(where))


@dataclass(frozen=True, slots=True)
class MomentState:
    """Second moments of the coarse counts of clients.

    `products` are the sums over clients of the products of any two coarse counts,
    `powers` those of the third and fourth power of a client's share of all rows.
    """

    products: Array
    powers: Array
    clients: int = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ScoreMoments(ClassScoreCounts):
    """Sum the products of any two coarse counts of each client; exact sums only.

    They have the variance between clients of every number that is computed from the
    counts.

    edges: Edges of coarse buckets in buckets of the last level, increasing, from 0 to
        the number of these.
    rows: Number of rows of all clients.
    """

    edges: tuple[int, ...] = (0, 1)
    rows: float = 1.0

    values_at_once: ClassVar[int] = _PRODUCTS_AT_ONCE

    @property
    def _shape(self) -> tuple[int, int]:
        """Tables and coarse buckets."""
        return self.n_tables, len(self.edges) - 1

    def init(self, n_classes: int) -> MomentState:  # type: ignore[override]
        return MomentState(np.zeros(self._n_products), np.zeros(2))

    @property
    def _n_products(self) -> int:
        n_cells = prod(self._shape)
        return n_cells * (n_cells + 1) // 2

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {
            "high": BlockSpec((self._n_products,), kind="count"),
            "low": BlockSpec((self._n_products,), kind="count"),
            "powers": BlockSpec((2,)),
        }

    def n_values(self, n_classes: int) -> int:
        """Return the number of values in a round."""
        return 2 * self._n_products + 2

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        out = ClassScoreCounts.forms(self, n_classes)
        if self.clip is not None:
            raise ValueError(f"clip={self.clip!r}: second moments are not clipped")
        check_range("number of edges", len(self.edges), 2, MAX_COARSE + 1)
        if list(self.edges) != sorted(set(self.edges)) or (
            (self.edges[0], self.edges[-1]) != (0, 2 ** self.levels[-1])
        ):
            raise ValueError(f"edges={self.edges!r} must increase from 0 to the end")
        check_range("rows", self.rows, 1, 2**53)
        return out

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        owner, cell, weight = self.entries(clients)
        table, leaf = np.divmod(cell, np.int64(2 ** self.levels[-1]))
        n_coarse, size = self._shape[1], prod(self._shape)
        coarse = _cells_of(np.array(self.edges), leaf)
        where = owner * size + table * n_coarse + coarse
        n_clients = len(clients)
        if weight is None:
            total = np.bincount(owner, minlength=n_clients)
            where, whole = _counted(where, n_clients * size)
        else:
            counts = np.bincount(where, weight, minlength=n_clients * size)
            total = counts.reshape(-1, size).sum(axis=1)
            where = np.flatnonzero(counts)
            whole = np.rint(counts[where] / self._unit).astype(np.int64)
        share = total / self.rows
        powers = np.stack([share**3, share**4], axis=1)
        return {**_products(where, whole, n_clients, (size,)), "powers": powers}

    @property
    def _unit(self) -> float:
        """All counts are multiples of this."""
        return 1.0 if self._plain else WEIGHT_UNIT

    def update(  # type: ignore[override]
        self, state: MomentState, total: Sums, n_clients: int
    ) -> MomentState:
        products = (total["high"] * 2**_LOW_BITS + total["low"]) * self._unit**2
        return MomentState(
            state.products + products,
            state.powers + total["powers"],
            state.clients + n_clients,
            state.rounds + 1,
        )

    def done(self, state: MomentState) -> bool:  # type: ignore[override]
        return False

    def matrix(self, state: MomentState) -> Array:
        """Products of all pairs, of shape (n_cells, n_cells)."""
        size = prod(self._shape)
        out = np.zeros((size, size))
        out[np.triu_indices(size)] = state.products
        return out + np.triu(out, 1).T


# Tables that a row can be counted in.
Part = Literal["confusion", "margins", "scores", "pairs", "top", "binary"]
PARTS = ("confusion", "margins", "scores", "pairs", "top", "binary")

# Scores get twice the eps of other parts: eps is divided by the cube root of weights.
# With equal parts the errors of areas and losses were several times those of others.
_PART_WEIGHTS = {"scores": 8.0, "pairs": 8.0}

# Added to the salt of the hash that deals classes: it is not that of chosen rows.
_OTHER_CLASSES = 1 << 40


@dataclass(frozen=True, slots=True)
class ClassTables:
    """Count the rows of several classes in tables of predictions and class scores.

    - 'confusion': (label, predicted class), one entry per row.
    - 'margins': correct rows of each class, else one missed row of the label and one
      false row of the predicted class; at most two entries per row.
    - 'scores': the row's score of its own class among the positives of that class, and
      its scores of `n_others` other classes among the negatives of these.
    - 'pairs': as 'scores', with one table for every pair of label and class.
    - 'top': the largest score, by whether that class is correct.
    - 'binary': the score of the second of two classes, by label.

    Which other classes a row is counted for depends on a hash and on no score, so that
    negatives are a random sample of known rate and every metric of them is unbiased.
    The L1 norm is ``n_others + 1`` for any number of classes. With `one_cell`, for
    local reports, the hash also decides whether a row is counted for its own class or
    for another one. The hash is a public function of the salt and of the row's own
    number and client, or of its own values: what a row adds depends on that row only,
    and privacy does not rest on the hash.

    parts: The tables, of `PARTS`.
    heights: For each of them: there are ``2**height`` buckets of scores; 0 where there
        are none.
    n_others: Other classes that a row is counted for, in 'scores' and 'pairs'.
    one_cell: One entry per row in 'scores' and 'pairs'.
    max_examples: Maximum number of rows of a client.
    private: Bound what a client adds to each table.
    by_values: Hash the values of a row, not its number: rows are protected one by one.
    by_round: Ask for one table in each round, for cohorts that are asked once.
    space ('both', 'prob', 'logit'): Scale on which buckets have equal width.
    input_type ('logits', 'log_proba', 'proba'): Type of the scores in the columns of a
        site.
    salt: Public salt of the hashes.
    n_rounds: Rounds; sums add up.
    """

    parts: tuple[Part, ...]
    heights: tuple[int, ...]
    n_classes: int = 2
    n_others: int = 1
    one_cell: bool = False
    max_examples: int | None = None
    private: bool = False
    by_values: bool = False
    by_round: bool = False
    space: Space = "both"
    input_type: InputType = "logits"
    salt: int = 0
    n_rounds: int = 1

    def shape(self, part: str) -> tuple[int, int]:
        """Tables and buckets of a part."""
        k, buckets = self.n_classes, 2 ** self.heights[self.parts.index(part)]
        tables = {"scores": 2 * k, "pairs": k * k, "top": 2, "binary": 2}
        plain = {"confusion": (k, k), "margins": (3, k)}
        return plain[part] if part in plain else (tables[part], buckets)

    def init(self, n_classes: int) -> CountState:
        n_cells = sum(int(np.prod(self.shape(part))) for part in self.parts)
        return CountState(
            np.zeros(n_cells), np.zeros((len(self.parts), len(LAW_FIELDS)))
        )

    def broadcast(self, state: CountState) -> Arrays:
        return {"round": np.asarray(state.rounds)}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {
            part: BlockSpec(
                self.shape(part),
                kind="count",
                clip=self._bound(part),
                norm="l1",
                weight=_PART_WEIGHTS.get(part, 1.0),
            )
            for part in self._asked(int(broadcast["round"]))
        }

    def _bound(self, part: str) -> float | None:
        if not self.private:
            return None
        entries = {"margins": 2, "scores": self._entries, "pairs": self._entries}
        return float(entries.get(part, 1) * (self.max_examples or 1))

    @property
    def _entries(self) -> int:
        return 1 if self.one_cell else self.n_others + 1

    @property
    def by_place(self) -> bool:
        """Whether the number of a row decides which classes it is counted for."""
        some = self.one_cell or self.n_others < self.n_classes - 1
        return some and not self.by_values

    def n_values(self, n_classes: int) -> int:
        """Return the largest number of values in a round."""
        sizes = [int(np.prod(self.shape(part))) for part in self.parts]
        return max(sizes) if self.by_round else sum(sizes)

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        if n_classes != self.n_classes:
            raise ValueError(f"tables of {self.n_classes} classes, not of {n_classes}")
        check_range("n_others", self.n_others, 1, n_classes - 1)
        if not self.parts or not set(self.parts) <= set(PARTS):
            raise ValueError(f"parts={self.parts!r} must be some of {PARTS}")
        if "binary" in self.parts and n_classes != 2:
            raise ValueError(f"part 'binary' is for two classes, not for {n_classes}")
        if not len(set(self.parts)) == len(self.parts) == len(self.heights):
            raise ValueError(f"heights={self.heights!r} must be one for each part")
        for height in self.heights:
            check_range("heights", height, 0, MAX_LEVEL)
        return ({"round": Field((), "whole", 0, 2**31)},)

    def query(
        self, broadcast: Arrays, clients: FederatedDataset
    ) -> dict[str, CellRows]:
        asked = self._asked(int(broadcast["round"]))
        rows, labels, owner = packed(clients)
        hashes = self._row_hashes(clients, rows, labels)
        if self.max_examples is not None:
            kept = kept_rows(clients, self.max_examples, self.salt)
            rows, labels, owner, hashes = (
                a[kept] for a in (rows, labels, owner, hashes)
            )
        cells: dict[str, list[Array]] = {part: [] for part in asked}
        step = max(1, _BLOCK_CELLS // self.n_classes)
        for start in range(0, max(1, len(rows)), step):
            part = slice(start, start + step)
            found = self._cells(asked, rows[part], labels[part], hashes[part])
            for name, cell in found.items():
                cells[name].append(cell)
        out = {}
        for name, lists in cells.items():
            cell = np.concatenate(lists)
            used = cell >= 0
            owners = np.broadcast_to(owner[:, None], cell.shape)[used]
            out[name] = CellRows(owners, cell[used], len(clients), self.shape(name))
        return out

    def _row_hashes(
        self, clients: FederatedDataset, rows: Array, labels: Array
    ) -> Array:
        """Hash of each row, from which its other classes follow."""
        salt = self.salt + _OTHER_CLASSES
        if self.by_values:
            # In float32, so that last bits of scores do not matter.
            bits = np.ascontiguousarray(rows, dtype=np.float32).view(np.uint32)
            out = hashed(labels, salt)
            for column in bits.T:
                out = hashed(out ^ column.astype(np.uint64), salt)
            return out
        first = clients.offsets[:-1] - clients.offsets[0]
        number = np.arange(clients.n_rows) - np.repeat(first, clients.sizes)
        own = hashed(name_numbers(clients.names), salt + 1)
        return hashed(number ^ np.repeat(own, clients.sizes).astype(np.int64), salt)

    def _cells(
        self, asked: tuple[str, ...], rows: Array, labels: Array, hashes: Array
    ) -> dict[str, Array]:
        """Cells of each row in each table, shape (n, entries); -1 is no entry."""
        odds = log_odds(class_rows(rows, self.input_type, self.n_classes))
        k, own = self.n_classes, labels.astype(np.int64)[:, None]
        top = odds.argmax(axis=1)[:, None]
        right = own == top
        out = {}
        for part in asked:
            if part == "confusion":
                out[part] = own * k + top
            elif part == "margins":
                first, second = own + k * ~right, np.where(right, -1, top + 2 * k)
                out[part] = np.concatenate([first, second], axis=1)
            elif part == "top":
                place = np.take_along_axis(odds, top, 1)
                out[part] = self._cell(part, place, right.astype(np.int64))
            elif part == "binary":
                out[part] = self._cell(part, odds[:, 1:], own)
            else:
                column = self._columns(own, hashes)
                table = column + np.where(column == own, k, 0)
                if part == "pairs":
                    table = own * k + column
                place = np.take_along_axis(odds, column, 1)
                out[part] = self._cell(part, place, table)
        return out

    def _columns(self, own: Array, hashes: Array) -> Array:
        """Classes that each row is counted for: its own and some others."""
        n_rest = self.n_classes - 1
        first = (hashes % np.uint64(n_rest)).astype(np.int64)[:, None]
        others = (first + np.arange(self.n_others)) % n_rest
        others += others >= own
        if not self.one_cell:
            return np.concatenate([own, others], axis=1)
        # A bit that the number of the class does not depend on.
        mine = (hashes // np.uint64(n_rest) % np.uint64(2)).astype(bool)[:, None]
        return np.where(mine, own, others[:, :1])

    def _cell(self, part: str, odds: Array, table: Array) -> Array:
        height = self.heights[self.parts.index(part)]
        place = place_of_odds(odds, self.space)
        return table * np.int64(2**height) + bucket_index(place, height)

    def update(self, state: CountState, total: Sums, n_clients: int) -> CountState:
        totals, laws = state.totals.copy(), state.laws.copy()
        sizes = [int(np.prod(self.shape(part))) for part in self.parts]
        starts = np.cumsum([0, *sizes])
        for part in self._asked(state.rounds):
            i = self.parts.index(part)
            law, scale = law_row(total, part, n_clients)
            totals[starts[i] : starts[i + 1]] += total[part].reshape(-1) * scale
            laws[i] = added_laws(laws[i], law)
        return replace(state, totals=totals, laws=laws, rounds=state.rounds + 1)

    def done(self, state: CountState) -> bool:
        return False

    def _asked(self, round_index: int) -> tuple[str, ...]:
        if not self.by_round:
            return self.parts
        return (self.parts[round_index % len(self.parts)],)


# Classes up to which all pairs of cells of a confusion matrix are multiplied, and up to
# which all pairs of its margins are; above, the margins of each class.
_FULL_CLASSES, _JOINT_CLASSES = 8, 20
# Most products that a site computes.
MAX_PRODUCTS = 1 << 17


@dataclass(frozen=True, slots=True)
class TableMoments(ClassTables):
    """Sum the products of two counts of each client in groups; exact sums only.

    Scores are counted in coarse buckets. Groups are the questions that tables answer:
    'confusion' is one of all cells, or of (correct, missed, false) rows of the classes;
    'scores' has one of all classes together and one for each class against the rest;
    'pairs' one for each pair of classes; 'top' and 'binary' are one.

    Parameters
    ----------
    edges : tuple of tuple of int, default=()
        For each part the edges of coarse buckets in buckets, increasing, from 0 to the
        number of these; (0, 1) where there are none.
    rows : float, default=1.0
        Number of rows of all clients.
    """

    edges: tuple[tuple[int, ...], ...] = ()
    rows: float = 1.0

    values_at_once: ClassVar[int] = _PRODUCTS_AT_ONCE

    def groups(self, part: str) -> tuple[int, ...]:
        """Cells of each group of a part."""
        k, m = self.n_classes, 2 * self._n_coarse(part)
        if part == "confusion":
            if k <= _FULL_CLASSES:
                return (k * k,)
            return (3 * k,) if k <= _JOINT_CLASSES else (3,) * k
        return (m,) * {"scores": k + 1, "pairs": k * k}.get(part, 1)

    def _n_coarse(self, part: str) -> int:
        return len(self.edges[self.parts.index(part)]) - 1

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(size for part in self.parts for size in self.groups(part))

    @property
    def n_products(self) -> int:
        """Number of products."""
        return sum(size * (size + 1) // 2 for size in self._sizes)

    def init(self, n_classes: int) -> MomentState:  # type: ignore[override]
        return MomentState(np.zeros(self.n_products), np.zeros(3))

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {
            "high": BlockSpec((self.n_products,), kind="count"),
            "low": BlockSpec((self.n_products,), kind="count"),
            "powers": BlockSpec((3,)),
        }

    def n_values(self, n_classes: int) -> int:
        """Return the number of values in a round."""
        return 2 * self.n_products + 3

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        out = ClassTables.forms(self, n_classes)
        if self.private or self.by_round or self.one_cell:
            raise ValueError("second moments are exact sums")
        if "margins" in self.parts or len(self.edges) != len(self.parts):
            raise ValueError(f"edges={self.edges!r} must be one tuple for each part")
        for edges, height in zip(self.edges, self.heights, strict=True):
            check_range("number of edges", len(edges), 2, MAX_COARSE + 1)
            ends = (edges[0], edges[-1]) == (0, 2**height)
            if list(edges) != sorted(set(edges)) or not ends:
                raise ValueError(f"edges={edges!r} must increase from 0 to the end")
        check_range("number of products", self.n_products, 1, MAX_PRODUCTS)
        check_range("rows", self.rows, 1, 2**53)
        return out

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:  # type: ignore[override]
        found = ClassTables.query(self, broadcast, clients)
        places, first, size = [], 0, sum(self._sizes)
        for part in self.parts:
            owner, where = self._grouped(part, found[part])
            places.append(owner * size + first + where)
            first += sum(self.groups(part))
        where, counts = _counted(np.concatenate(places), len(clients) * size)
        sizes = clients.sizes
        if self.max_examples is not None:
            sizes = np.minimum(sizes, self.max_examples)
        share = sizes / self.rows
        powers = np.stack([share**2, share**3, share**4], axis=1)
        return {
            **_products(where, counts, len(clients), self._sizes),
            "powers": powers,
        }

    def _grouped(self, part: str, found: CellRows) -> tuple[Array, Array]:
        """Client and cell, in all groups of a part, of what is counted."""
        k, owner = self.n_classes, found.rows
        table, leaf = np.divmod(found.cells, np.int64(found.block[1]))
        if part == "confusion":
            where = found.cells
            if k > _FULL_CLASSES:  # correct, missed and false rows of each class
                wrong = table != leaf
                where = np.append(3 * table + wrong, 3 * leaf[wrong] + 2)
                owner = np.append(owner, owner[wrong])
        else:
            inner = np.array(self.edges[self.parts.index(part)][1:-1])
            coarse = np.searchsorted(inner, leaf, side="right")
            m = self._n_coarse(part)
            if part == "scores":
                side, own = np.divmod(table, k)
                cell = side * m + coarse
                where = np.append(cell, (1 + own) * 2 * m + cell)
                owner = np.append(owner, owner)
            elif part == "pairs":
                own, column = np.divmod(table, k)
                mine = np.flatnonzero(own == column)
                others = own != column
                # A row is positive for its class against all others.
                group = own[mine, None] * k + np.arange(k)
                where = np.append(
                    (group * 2 * m + m + coarse[mine, None]).ravel(),
                    ((column * k + own) * 2 * m + coarse)[others],
                )
                owner = np.append(np.repeat(owner[mine], k), owner[others])
            else:
                where = table * m + coarse
        return owner, where

    def update(  # type: ignore[override]
        self, state: MomentState, total: Sums, n_clients: int
    ) -> MomentState:
        return MomentState(
            state.products + total["high"] * 2**_LOW_BITS + total["low"],
            state.powers + total["powers"],
            state.clients + n_clients,
            state.rounds + 1,
        )

    def done(self, state: MomentState) -> bool:  # type: ignore[override]
        return False

    def matrices(self, state: MomentState) -> dict[str, list[Array]]:
        """Products of all pairs of cells in each group of each part."""
        out: dict[str, list[Array]] = {}
        start = 0
        for part in self.parts:
            out[part] = []
            for size in self.groups(part):
                n_products = size * (size + 1) // 2
                one = np.zeros((size, size))
                one[np.triu_indices(size)] = state.products[start : start + n_products]
                out[part].append(one + np.triu(one, 1).T)
                start += n_products
        return out
