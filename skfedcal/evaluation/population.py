"""Sampling error for a population of clients: which numbers it is made from.

Rows of one client are alike, so that a mean over rows of few clients varies more than
one over as many independent rows. With clients as the population the variance is that
between clients (cluster-robust or sandwich variance).

References
----------
.. [1] Bell and McCaffrey, "Bias reduction in standard errors for linear regression with
   multi-stage samples", Survey Methodology 28(2), 2002: corrections for few clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.evaluation.grid import ScoreGrid
from skfedcal.evaluation.rounds import (
    MAX_PRODUCTS,
    ClassTables,
    ScoreMoments,
    TableMoments,
)
from skfedcal.exceptions import PrivacyWarning
from skfedcal.methods.buckets import equi_depth_edges

if TYPE_CHECKING:
    from skfedcal.clients.dataset import FederatedDataset
    from skfedcal.evaluation.collect import Statistic
    from skfedcal.federation.collecting import Collected
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.methods.score_curves.rounds import ClassScoreCounts

Array = NDArray[Any]
Population = Literal["clients", "rows"]
POPULATIONS = ("auto", "clients", "rows")


def choose_population(
    population: str, statistic: Statistic, n_clients: int
) -> Population:
    """Population of the intervals; 'auto' is clients wherever it can be."""
    if not isinstance(population, str) or population not in POPULATIONS:
        raise ValueError(f"population={population!r}: pass one of {POPULATIONS}.")
    by_row = statistic.private and statistic.unit == "example"
    if population == "clients" and by_row:
        raise ValueError(
            f"population='clients': {statistic.model!r} protects single examples, and "
            "the sum of a client has no bound then. Pass population='rows', or a "
            "privacy model with unit='client'."
        )
    if population == "clients" and n_clients < 2:
        raise ValueError(
            f"population='clients' needs at least 2 clients, got {n_clients}. Pass "
            "client_ids or a list of clients, or population='rows'."
        )
    if population == "rows" or by_row or n_clients < 2:
        return "rows"
    return "clients"


def describe_estimand(weighting: str, limit: int | None) -> str:
    """What counts how much in an answer."""
    if weighting == "client" or limit == 1:
        return "every client counts once"
    if limit is None:
        return "every row counts once"
    return f"at most {limit} rows of a client count"


def warn_one_row(weighting: str, stacklevel: int) -> None:
    """Warn that one row of each client is counted, unless that was asked for.

    The warning does not depend on how many rows clients have, which is private.
    """
    if weighting == "client":
        return
    warnings.warn(
        "Privacy is per client, so one row of each client is counted. Every client "
        "counts once: the result differs from that over all rows if clients with many "
        "rows differ from the others. Pass max_examples_per_client=1 to confirm this, "
        "a larger bound to count more rows, or weighting='client'.",
        PrivacyWarning,
        stacklevel=stacklevel,
    )


@dataclass(frozen=True, slots=True, eq=False)
class ClientMoments:
    """Second moments of the counts of the clients of one release.

    edges: Edges of coarse buckets, in leaves of the histogram.
    products of shape (n_cells, n_cells): Sums over clients of the products of two
        coarse counts.
    powers of shape (2,): Sums over clients of the third and fourth power of the number
        of rows.
    """

    edges: Array
    products: Array
    powers: Array

    def to_dict(self) -> dict[str, list[Any]]:
        """Plain values, for JSON."""
        return {
            "edges": self.edges.tolist(),
            "products": self.products.tolist(),
            "powers": self.powers.tolist(),
        }

    @classmethod
    def from_dict(cls, content: dict[str, Any], n_leaves: int) -> ClientMoments:
        """Restore second moments; raises ValueError for impossible values."""
        edges = np.array(content["edges"], dtype=np.int64)
        products = np.array(content["products"], dtype=np.float64)
        powers = np.array(content["powers"], dtype=np.float64)
        n_cells = 2 * (len(edges) - 1)
        fits = (
            len(edges) > 1
            and edges[0] == 0
            and edges[-1] == n_leaves
            and (np.diff(edges) > 0).all()
            and products.shape == (n_cells, n_cells)
            and powers.shape == (2,)
        )
        listed = np.append(products, powers)
        # A client has fewer than 2**53 rows, whose fourth power is the largest number.
        if not fits or not ((listed >= 0) & (listed <= 2.0**212)).all():
            raise ValueError("second moments of clients")
        return cls(edges, products, powers)

    @property
    def squares(self) -> float:
        """Sum over clients of the squared number of rows."""
        return float(self.products.sum())

    def projected(self, counts: Array, weights: Array) -> tuple[Array, Array]:
        """Variance between clients of weights that are constant in coarse cells.

        Also the variance of independent rows that such weights have. `weights` are
        replaced by their means in coarse cells.
        """
        start = self.edges[:-1]
        sums = np.add.reduceat(counts * weights, start, axis=-1)
        sizes = np.add.reduceat(counts, start, axis=-1)
        means = sums / np.where(sizes > 0, sizes, 1.0)
        flat = means.reshape(*means.shape[:-2], -1)
        between = np.einsum("...i,ij,...j->...", flat, self.products, flat)
        between = np.maximum(between, 0.0)  # a sum of squares, but for rounding
        return between, (sums * means).sum(axis=(-2, -1))


@dataclass(frozen=True, slots=True, eq=False)
class PredictionMoments:
    """Second moments of the confusion matrices of clients, or of their margins.

    Parameters
    ----------
    products : sequence of ndarray
        Products of all cells; of (correct, missed, false) rows of the classes, one
        class after the other; or the same of each class.
    squares : float
        Sum over clients of the squared number of rows.
    powers : ndarray of shape (2,)
        Sums over clients of the third and fourth power of the number of rows.
    """

    products: Sequence[Array]
    squares: float
    powers: Array
    # Counts that the design effect of correct rows was computed for, and that effect.
    _known: list[tuple[Array, float]] = field(default_factory=list, repr=False)

    def projected(self, counts: Array, weights: Array) -> tuple[Array, Array]:
        """Variance between clients of weights of cells, and that of independent rows.

        Weights that margins do not have, as of single cells, get the design effect of
        the correct rows. Over single classes, standard errors are added: a bound.
        """
        own = (counts * weights**2).sum(axis=(-2, -1))
        size = counts.shape[0]
        if len(self.products[0]) == size**2:
            flat = weights.reshape(*weights.shape[:-2], -1)
            return _quadratic(flat, self.products[0]), own
        margins, same = _margins(weights)
        found = self.of_margins(margins) if np.any(same) else np.zeros_like(own)
        if np.all(same):
            return found, own
        return np.where(same, found, own * self._effect(counts)), own

    def of_margins(self, margins: Array) -> Array:
        """Variance between clients of weights of shape (..., 3 * n_classes)."""
        if len(self.products) == 1:
            return _quadratic(margins, self.products[0])
        each = margins.reshape(*margins.shape[:-1], -1, 3)
        parts = np.einsum("...ki,kij,...kj->...k", each, np.stack(self.products), each)
        found: Array = np.sqrt(np.maximum(parts, 0.0)).sum(axis=-1) ** 2
        return found

    def of_cells(self, counts: Array) -> Array:
        """Variance between clients of each count of a confusion matrix."""
        if len(self.products[0]) == counts.size:
            return np.diag(self.products[0]).reshape(counts.shape)
        found = counts * self._effect(counts)
        correct = [np.diag(one)[::3] for one in self.products]
        np.fill_diagonal(found, np.concatenate(correct))
        return found

    def one_vs_rest(self, k: int, n_classes: int) -> OneClassMoments:
        """Second moments of the table of one class against the others."""
        return OneClassMoments(self, k, n_classes)

    def _effect(self, counts: Array) -> float:
        """Design effect of the share of correct rows, computed once."""
        if not self._known or self._known[0][0] is not counts:
            right = np.eye(len(counts)) - np.trace(counts) / max(counts.sum(), 1.0)
            between, alone = self.projected(counts, right)
            effect = max(float(between / alone) if alone > 0 else 1.0, 1.0)
            self._known[:] = [(counts, effect)]
        return self._known[0][1]


@dataclass(frozen=True, slots=True, eq=False)
class OneClassMoments:
    """Second moments of ((other rows, false), (missed, correct)) rows of one class.

    A metric of one class has four different weights, whatever the number of classes.

    all_classes: Moments of all classes.
    k: The class.
    n_classes: Number of classes, three or more.
    """

    all_classes: PredictionMoments
    k: int
    n_classes: int

    @property
    def squares(self) -> float:
        return self.all_classes.squares

    @property
    def powers(self) -> Array:
        return self.all_classes.powers

    def projected(self, counts: Array, weights: Array) -> tuple[Array, Array]:
        """As `PredictionMoments.projected`, with weights of shape (..., 2, 2)."""
        own = (counts * weights**2).sum(axis=(-2, -1))
        size, products = self.n_classes, self.all_classes.products
        flat = weights.reshape(*weights.shape[:-2], 4)
        if len(products[0]) == size**2:
            is_own = (np.arange(size) == self.k).astype(np.intp)
            cells = 2 * is_own[:, None] + is_own
            return _quadratic(flat[..., cells.reshape(-1)], products[0]), own
        rest, false, missed, correct = np.moveaxis(flat, -1, 0)[..., None]
        margins = np.empty((*weights.shape[:-2], size, 3))
        # The representation that `_margins` has: false rows of class 0 count 0.
        if self.k:
            margins[...] = np.stack([rest, rest, 0 * rest], axis=-1)
            own_part = [correct, missed, false - rest]
        else:
            margins[...] = np.stack([rest, false, rest - false], axis=-1)
            own_part = [correct, missed - rest + false, 0 * rest]
        margins[..., self.k, :] = np.concatenate(own_part, axis=-1)
        flat_margins = margins.reshape(*weights.shape[:-2], -1)
        return self.all_classes.of_margins(flat_margins), own


def _quadratic(weights: Array, products: Array) -> Array:
    found = np.einsum("...i,ij,...j->...", weights, products, weights)
    return np.maximum(found, 0.0)  # a sum of squares, but for rounding


def _margins(weights: Array) -> tuple[Array, Array]:
    """Weights of correct, missed and false rows of each class, and whether they fit."""
    missed = weights[..., :, 0].copy()  # false rows of the first class count 0
    false = weights[..., 1, :] - missed[..., 1, None]
    false[..., 1] = weights[..., 2, 1] - missed[..., 2]
    false[..., 0] = 0.0
    missed[..., 0] = weights[..., 0, 1] - false[..., 1]
    correct = np.diagonal(weights, axis1=-2, axis2=-1)
    again = missed[..., :, None] + false[..., None, :]
    gap = np.abs(again - weights) * (1 - np.eye(weights.shape[-1]))
    scale = np.abs(weights).max(axis=(-2, -1))
    same = gap.max(axis=(-2, -1)) <= 1e-9 * scale
    out = np.stack([correct, missed, false], axis=-1)
    return out.reshape(*out.shape[:-2], -1), same


# Coarse buckets: of equal depth, cut at the edges of bins of equal width. Measured:
# with 8 of equal depth the variance of an area is within 1 % of that of 1024 buckets.
_DEPTHS = 8
_WIDTHS = 15

# Part of a variance that is left after the mean, if one client has nearly all rows.
_LEAST = 1e-3


def coarse_edges(
    counts: Array, grid: ScoreGrid, depths: int = _DEPTHS, widths: int = _WIDTHS
) -> tuple[int, ...]:
    """Edges, in leaves, of the buckets whose counts are multiplied."""
    size = grid.n_buckets
    if size < depths + widths:
        return tuple(range(size + 1))
    bins = (grid.centres * widths).astype(np.int64)
    edges = np.union1d(
        np.flatnonzero(np.diff(bins)) + 1, equi_depth_edges(counts, depths)
    )
    # A bucket without rows needs no edge of its own.
    filled = np.add.reduceat(counts.sum(axis=0), edges[:-1]) > 0
    inner = edges[1:-1][filled[1:]]
    return (0, *map(int, inner), size)


def collect_moments(
    statistic: Statistic,
    clients: FederatedDataset | RemoteDataset,
    counted: ClassScoreCounts,
    counts: Array,
    grid: ScoreGrid,
    n_clients: int,
) -> tuple[ClientMoments, Collected]:
    """Ask the clients for the second moments of what they have counted."""
    rows = max(float(counts.sum()), 1.0)
    options = {f.name: getattr(counted, f.name) for f in fields(counted)}
    edges = coarse_edges(counts, grid)
    algorithm = ScoreMoments(
        **{**options, "levels": (grid.height,)}, edges=edges, rows=rows
    )
    found = statistic.run(algorithm, clients, suffix=".moments")
    # Clients may have left since.
    scale = n_clients / max(found.state.clients, 1)
    powers = found.state.powers * [rows**3, rows**4] * scale
    products = algorithm.matrix(found.state) * scale
    return ClientMoments(np.array(edges), products, powers), found


# The same for the questions of several classes, and for pairs of them.
_SEVERAL = {"scores": (6, 6), "pairs": (3, 3)}


def table_moments(algorithm: ClassTables, coarse: dict[str, int]) -> TableMoments:
    """Algorithm of the second moments of tables, with buckets of equal size."""
    edges = (tuple(range(coarse.get(part, 1) + 1)) for part in algorithm.parts)
    options = {f.name: getattr(algorithm, f.name) for f in fields(algorithm)}
    return TableMoments(**options, edges=tuple(edges))


def can_multiply(algorithm: ClassTables) -> bool:
    """Whether there are few enough products of two counts of tables."""
    most = {part: sum(_SEVERAL.get(part, (_DEPTHS, _WIDTHS))) for part in _BUCKETED}
    return table_moments(algorithm, most).n_products <= MAX_PRODUCTS


_BUCKETED = ("scores", "pairs", "top", "binary")


def collect_table_moments(
    statistic: Statistic,
    clients: FederatedDataset | RemoteDataset,
    counted: ClassTables,
    counts: dict[str, Array],
    n_clients: int,
) -> tuple[dict[str, list[ClientMoments | PredictionMoments]], Collected]:
    """Ask the clients for the second moments of their tables."""
    k = counted.n_classes
    pooled = {}  # negatives and positives of all questions together
    for part in counted.parts:
        table = counts[part]
        if part == "scores":
            table = np.stack([table[:k].sum(axis=0), table[k:].sum(axis=0)])
        elif part == "pairs":
            own = table[:: k + 1].sum(axis=0)
            table = np.stack([table.sum(axis=0) - own, own])
        pooled[part] = table
    first = pooled[counted.parts[0]]
    several = counted.parts[0] in _SEVERAL
    rows = max(float(first[1].sum() if several else first.sum()), 1.0)
    edges = []
    for part, height in zip(counted.parts, counted.heights, strict=True):
        grid = ScoreGrid(max(height, 1), counted.space)
        finest = _SEVERAL.get(part, (_DEPTHS, _WIDTHS))
        cut = coarse_edges(pooled[part], grid, *finest) if height else (0, 1)
        edges.append(cut)
    algorithm = replace(table_moments(counted, {}), edges=tuple(edges), rows=rows)
    found = statistic.run(algorithm, clients, suffix=".moments")
    scale = n_clients / max(found.state.clients, 1)  # clients may have left since
    squares, *powers = found.state.powers * rows ** np.arange(2, 5) * scale
    out: dict[str, list[ClientMoments | PredictionMoments]] = {}
    matrices = algorithm.matrices(found.state)
    for cut, part in zip(edges, counted.parts, strict=True):
        each = [one * scale for one in matrices[part]]
        if part == "confusion":
            out[part] = [PredictionMoments(each, squares, np.array(powers))]
            continue
        # Entries of a client: its rows, or as many times that as there are classes.
        # Of pairs of classes only the squares are known.
        sizes = [np.array(powers) * (part != "pairs")] * len(each)
        if part == "scores":
            sizes[0] = sizes[0] * [k**3, k**4]
        out[part] = [
            ClientMoments(np.array(cut), one, size)
            for one, size in zip(each, sizes, strict=True)
        ]
    return out, found


def client_variance(
    moments: Sequence[ClientMoments | PredictionMoments | OneClassMoments],
    counts: Array,
    functional: Array,
) -> tuple[Array, Array]:
    """Variance over clients of linear functionals of the counts, and its freedom.

    moments: One for each release that the counts are the sum of.
    counts of shape (2, n_leaves): Exact counts.
    functional of shape (..., 2, n_leaves): Weight of each cell.
    Result variance of shape (...): Corrected for few clients and for those that have
        most of the rows.
    Result freedom of shape (...): Degrees of freedom of the variance (Satterthwaite).

    Notes
    -----
    The number of rows is random if clients are: weights are taken relative to their
    mean over rows. Their variation inside coarse buckets is taken as independent, with
    the design effect of the rest. Corrections assume a variance ``a n + b n**2`` of a
    client with n rows, where a and b follow from the two variances.
    """
    axes = (-2, -1)
    total = max(float(counts.sum()), 1.0)
    mean = (counts * functional).sum(axis=axes) / total
    weights = functional - mean[..., None, None]
    rows = (counts * weights**2).sum(axis=axes)
    parts = [one.projected(counts, weights) for one in moments]
    found = sum(between for between, _ in parts)
    smooth = np.mean([own for _, own in parts], axis=0)
    effect = found / np.where(smooth > 0, smooth, 1.0)
    found = found + np.maximum(rows - smooth, 0.0) * np.maximum(effect, 1.0)
    squares = sum(one.squares for one in moments)
    cubes, fourths = np.sum([one.powers for one in moments], axis=0)
    sizes = np.array([total, squares, cubes, fourths])
    factor, free = few_clients(rows, found, sizes)
    # Rows that matter may be with fewer clients than all rows.
    size = np.abs(weights)
    reached = sum(one.projected(counts, size)[0] for one in moments)
    mass = (counts * size).sum(axis=axes) ** 2
    share = mass / np.where(reached > 0, reached, 1.0) * squares / total**2
    share = np.where(reached > 0, np.minimum(share, 1.0), 1.0)
    return found * factor, np.maximum(free * share, 1.0)


def weighted_variance(sums: Array, sizes: Array) -> tuple[Array, Array, Array]:
    """Variance between clients of weighted sums V of rows, relative to their mean.

    sums of shape (4, ...): Sums over clients of V, of the squares of single rows, of V
        squared and of V times the number of rows.
    sizes of shape (4,): As of `few_clients`.
    Result: Variance with its corrections, degrees of freedom, and the variance of
        independent rows.
    """
    total, squares, own, cross = sums
    mean = total / sizes[0]
    alone = np.maximum(squares - mean * total, 0.0)
    between = np.maximum(own - 2 * mean * cross + mean**2 * sizes[1], 0.0)
    factor, free = few_clients(alone, between, sizes)
    return between * factor, np.maximum(free, 1.0), alone


def few_clients(rows: Array, found: Array, sizes: Array) -> tuple[Array, Array]:
    """Factor that makes a variance between clients unbiased, and its freedom.

    rows, found: Variance of independent rows, and the sum of squares over clients.
    sizes of shape (4,): Sums over clients of the number of rows and its second to
        fourth power.
    Result: K / (K - 1) and K - 1 for K clients of equal size.
    """
    n1, n2, n3, n4 = sizes
    # Powers of small shares are rounded to 0 when they are sent.
    n2 = max(n2, 1e-12 * n1)
    n3 = max(n3, n2**2 / n1)
    n4 = max(n4, n3**2 / n2)
    each = rows / n1
    several = n2 - n1 > 1e-9 * n1
    common = np.clip((found - rows) / (n2 - n1), 0.0, each) if several else 0.0
    own = np.where(each > 0, each - common, 1.0)
    # Sums over clients of v h^k and v^2 h^k: v the variance of a client, h its share of
    # the rows. A fifth power is at least n4^2 / n3.
    v0, v1, v2 = (
        (own * a + common * b) / n1**k
        for k, (a, b) in enumerate(((n1, n2), (n2, n3), (n3, n4)))
    )
    w0, w1 = (
        (own**2 * a + 2 * own * common * b + common**2 * c) / n1**k
        for k, (a, b, c) in enumerate(((n2, n3, n4), (n3, n4, n4**2 / n3)))
    )
    share = n2 / n1**2
    # Trace of Q V and of its square: Q is the quadratic form of the squares of what is
    # left after the mean, V the variances.
    first = v0 * (1 + share) - 2 * v1
    second = (1 + 2 * share) * w0 - 4 * w1
    second += share**2 * v0**2 + 2 * v2 * v0 - 4 * share * v1 * v0 + 2 * v1**2
    second = np.maximum(second, 1e-12 * w0)  # 0 of a single client
    left = np.maximum(first / v0, _LEAST)
    return 1 / left, np.maximum((left * v0) ** 2 / second, _LEAST)
