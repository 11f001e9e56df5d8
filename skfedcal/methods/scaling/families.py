"""Scaling maps, and the canonical form of the rows that they act on.

Vector and matrix scaling are not invariant to a shift of a row, so each row is moved to
a mean of zero. Entries more than `MAX_SPAN` below the row's maximum (or -inf) are
masked: they are left out of the mean and have probability 0 whatever the parameters. A
row whose own class is masked has no finite loss at any parameters and gets weight 0.

Arrays have shape (n_classes, n_rows). Every operation acts on entries, or adds up
classes one after the other, so that a row gives the same bits in any block.

Families of scaling maps: vector, matrix and order-preserving. A map acts on canonical
rows (see `canonical`): logits of mean zero in units of the temperature, classes first.
At `start` each map is the identity, so that the whole is temperature scaling.
Parameters are one vector for all rows, or one row per client.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import e, expm1, log
from typing import ClassVar, Protocol

import numpy as np

from skfedcal._numerics import MAX_SPAN
from skfedcal.clients.dataset import Block, segment_sums
from skfedcal.contract import Array


@dataclass(frozen=True, slots=True)
class CanonicalRows:
    """Rows of mean zero, in units of the temperature.

    values of shape (n_classes, n_rows): Centred logits over the temperature; 0 where
        masked.
    masked of shape (n_classes, n_rows) or None: Entries of probability 0; None if no
        entry is 0.
    ranks of shape (n_classes, n_rows): Classes of each row from the largest entry down,
        ties in column order; empty where the order does not matter.
    gaps of shape (n_classes, n_rows): How far the entry of each rank lies above the
        next one; 0 above a masked entry and at the bottom.
    """

    values: Array
    masked: Array | None
    ranks: Array
    gaps: Array


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Canonical rows of some clients, with labels and weights."""

    rows: CanonicalRows
    labels: Array
    weights: Array
    offsets: Array

    @property
    def owners(self) -> Array:
        """Position of each row's client in the block."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def select(self, clients: Array) -> LabelledRows:
        """Rows of some of the clients."""
        sizes = np.diff(self.offsets)[clients]
        offsets = np.append(0, np.cumsum(sizes))
        moved = np.repeat(self.offsets[:-1][clients] - offsets[:-1], sizes)
        where = np.arange(offsets[-1]) + moved
        masked, own = self.rows.masked, self.rows
        rows = CanonicalRows(
            own.values.take(where, axis=1),
            None if masked is None else masked.take(where, axis=1),
            own.ranks.take(where, axis=1) if own.ranks.size else own.ranks,
            own.gaps.take(where, axis=1) if own.gaps.size else own.gaps,
        )
        return LabelledRows(rows, self.labels[where], self.weights[where], offsets)


def canonical(logits: Array, beta: float = 1.0, ranked: bool = False) -> CanonicalRows:
    """Canonical form of logits of shape (n_rows, n_classes), times `beta`."""
    below = np.array(logits.T, dtype=np.float64, order="C")
    top = np.maximum.reduce(below, axis=0)
    with np.errstate(over="ignore"):  # 1e308 - (-1e308): masked right below
        below -= top
    masked = below < -MAX_SPAN
    any_masked = bool(masked.any())
    ranks: Array = np.empty((0, 0), dtype=np.intp)
    gaps: Array = np.empty((0, 0))
    if ranked:
        # From the distances to the maximum: the mean may swallow a small difference.
        ranks = _ranks(below)
        ordered = np.take_along_axis(np.maximum(below, -MAX_SPAN), ranks, axis=0)
        gaps = np.zeros_like(ordered)
        np.subtract(ordered[:-1], ordered[1:], out=gaps[:-1])
        # Nothing depends on how far below the others a masked entry lies.
        gaps[:-1][np.take_along_axis(masked, ranks, axis=0)[1:]] = 0.0
        gaps *= beta
    below[masked] = 0.0
    below -= sum_classes(below) / (len(below) - masked.sum(axis=0))
    below[masked] = 0.0
    below *= beta
    return CanonicalRows(below, masked if any_masked else None, ranks, gaps)


def _ranks(values: Array) -> Array:
    """Classes of each row from the largest value down, ties in column order."""
    down = -values
    # Several times faster than a stable order, and the same where no two are equal.
    out: Array = np.argsort(down, axis=0)
    ordered = np.take_along_axis(down, out, axis=0)
    ties = np.flatnonzero((~(ordered[1:] > ordered[:-1])).any(axis=0))
    if ties.size:
        out[:, ties] = np.argsort(down[:, ties], axis=0, kind="stable")
    return out


def labelled(block: Block, beta: float, ranked: bool) -> LabelledRows:
    """Canonical form of a block; rows whose own class is masked have weight 0."""
    rows = canonical(block.rows, beta, ranked)
    labels = block.labels.astype(np.intp)
    weights = np.ones(len(labels)) if block.weights is None else 1.0 * block.weights
    if rows.masked is not None:
        weights[rows.masked[labels, np.arange(len(labels))]] = 0.0
    return LabelledRows(rows, labels, weights, block.offsets)


def sum_classes(values: Array) -> Array:
    """Add up the classes, one after the other."""
    # np.add.reduce would add a lone row pairwise, but several entry after entry.
    total = values[0].copy()
    for column in values[1:]:
        total += column
    return total


# Where the softplus underflows two classes would be tied.
SMALLEST_SLOPE = 1e-6

# softplus(_FLOORED) = SMALLEST_SLOPE.
_FLOORED = log(expm1(SMALLEST_SLOPE))

# softplus(UNIT_OFFSET) = 1.
UNIT_OFFSET = log(e - 1)


# Ridge that matters only to classes with a handful of rows.
WEAK = 0.1


class Family(Protocol):
    """A map with parameters, its derivatives, and the groups of its ridge."""

    ranked: ClassVar[bool]
    convex: ClassVar[bool]

    def size(self, n_classes: int) -> int:
        """Count the parameters."""

    def start(self, n_classes: int) -> Array:
        """Give the parameters of the identity."""

    def groups(self, n_classes: int) -> Array:
        """Return the group of the ridge of each parameter, from 0."""

    def weakest(self, n_classes: int) -> Array:
        """Give the weakest ridge of each group that evidence may choose."""

    def logits(
        self, params: Array, rows: CanonicalRows, owners: Array | None = None
    ) -> Array:
        """Map rows; -inf where they are masked."""

    def pulls(
        self, params: Array, data: LabelledRows, residual: Array
    ) -> Iterator[Array]:
        """Slope of each row's loss, a few parameters of shape (m, n_rows) at a time."""


@dataclass(frozen=True, slots=True)
class VectorMap:
    """``a * x + b``; parameters are `a`, then `b`."""

    ranked: ClassVar[bool] = False
    convex: ClassVar[bool] = True

    def size(self, n_classes: int) -> int:
        return 2 * n_classes

    def start(self, n_classes: int) -> Array:
        return np.repeat([1.0, 0.0], n_classes)

    def groups(self, n_classes: int) -> Array:
        return np.repeat([0, 1], n_classes)

    def weakest(self, n_classes: int) -> Array:
        return np.full(2, WEAK)

    def logits(
        self, params: Array, rows: CanonicalRows, owners: Array | None = None
    ) -> Array:
        return _masked(_affine(params, rows, owners), rows)

    def pulls(
        self, params: Array, data: LabelledRows, residual: Array
    ) -> Iterator[Array]:
        yield residual * data.rows.values
        yield residual

    def kernels(
        self, params: Array, data: LabelledRows, proba: Array
    ) -> Iterator[Array]:
        """Curvature of each row's loss in ``b[j]`` and all of `b`, for each ``j``."""
        weighted = proba * data.weights
        for j, own in enumerate(proba):
            kernel = weighted * -own
            kernel[j] += weighted[j]
            yield kernel


@dataclass(frozen=True, slots=True)
class MatrixMap:
    """``A x + b``; parameters are the columns of `A`, then `b`.

    Groups are the diagonal, the bias, and the rest of `A`.
    """

    ranked: ClassVar[bool] = False
    convex: ClassVar[bool] = True

    def size(self, n_classes: int) -> int:
        return n_classes * (n_classes + 1)

    def start(self, n_classes: int) -> Array:
        return np.concatenate([np.eye(n_classes).ravel(), np.zeros(n_classes)])

    def groups(self, n_classes: int) -> Array:
        out = np.full((n_classes, n_classes), 2)
        np.fill_diagonal(out, 0)
        return np.concatenate([out.ravel(), np.ones(n_classes, dtype=out.dtype)])

    def weakest(self, n_classes: int) -> Array:
        # Many classes: the evidence rests on an approximate curvature then.
        return np.array([WEAK, WEAK, n_classes**2 / 16])

    def logits(
        self, params: Array, rows: CanonicalRows, owners: Array | None = None
    ) -> Array:
        n_classes = len(rows.values)
        out = np.empty(rows.values.shape)
        out[:] = _per_row(params[..., n_classes**2 :], owners)
        # Not a matrix product: its kernels treat the last rows of a block differently.
        for j, column in enumerate(rows.values):
            part = params[..., j * n_classes : (j + 1) * n_classes]
            out += _per_row(part, owners) * column
        return _masked(out, rows)

    def pulls(
        self, params: Array, data: LabelledRows, residual: Array
    ) -> Iterator[Array]:
        for column in data.rows.values:
            yield residual * column
        yield residual


@dataclass(frozen=True, slots=True)
class OrderPreservingMap:
    """Cumulated gaps between sorted entries, times ``softplus(v * x + u)``.

    Equation (1) of appendix B.6: the entry of rank i lies
    ``(x_i - x_{i+1}) softplus(v x + u)_i`` above that of rank i + 1. Parameters are
    `v`, then `u`. A common offset of all classes has no effect under the softmax; the
    largest entry is set to 0.
    """

    ranked: ClassVar[bool] = True
    convex: ClassVar[bool] = False

    def size(self, n_classes: int) -> int:
        return 2 * n_classes

    def start(self, n_classes: int) -> Array:
        return np.repeat([0.0, UNIT_OFFSET], n_classes)

    def groups(self, n_classes: int) -> Array:
        return np.repeat([0, 1], n_classes)

    def weakest(self, n_classes: int) -> Array:
        return np.full(2, WEAK)

    def logits(
        self, params: Array, rows: CanonicalRows, owners: Array | None = None
    ) -> Array:
        out = np.empty(rows.values.shape)
        np.put_along_axis(out, rows.ranks, self.descent(params, rows, owners), axis=0)
        return _masked(out, rows)

    def descent(
        self, params: Array, rows: CanonicalRows, owners: Array | None = None
    ) -> Array:
        """Map rows and keep them sorted, from 0 down."""
        slopes = np.maximum(_softplus(_affine(params, rows, owners)), SMALLEST_SLOPE)
        steps = np.take_along_axis(slopes, rows.ranks, axis=0) * rows.gaps
        out = np.zeros_like(steps)
        np.cumsum(-steps[:-1], axis=0, out=out[1:])
        return out

    def pulls(
        self, params: Array, data: LabelledRows, residual: Array
    ) -> Iterator[Array]:
        # Moving all classes down to rank i moves the loss by their residuals.
        ordered = np.take_along_axis(residual, data.rows.ranks, axis=0)
        pull = _unsorted(np.cumsum(ordered, axis=0) * data.rows.gaps, data.rows)
        pull *= self._slope_change(params, data)
        yield pull * data.rows.values
        yield pull

    def kernels(
        self, params: Array, data: LabelledRows, proba: Array
    ) -> Iterator[Array]:
        """Gauss-Newton curvature in ``u[j]`` and all of `u`, for each ``j``."""
        ordered = np.take_along_axis(proba, data.rows.ranks, axis=0)
        # Chance of a class at or above the rank of each class.
        above = np.minimum(_unsorted(np.cumsum(ordered, axis=0), data.rows), 1.0)
        lever = _unsorted(data.rows.gaps, data.rows) * self._slope_change(params, data)
        weighted = lever * data.weights
        for own, own_lever in zip(above, lever, strict=True):
            yield (np.minimum(own, above) - own * above) * own_lever * weighted

    def _slope_change(self, params: Array, data: LabelledRows) -> Array:
        """Derivative of the (floored) softplus."""
        owners = data.owners if params.ndim > 1 else None
        inner = _affine(params, data.rows, owners)
        change = np.exp(-np.abs(inner))
        change = np.where(inner > 0, 1.0, change) / (1.0 + change)
        change[inner < _FLOORED] = 0.0
        return change


def losses(logits: Array, data: LabelledRows) -> tuple[Array, Array, Array]:
    """Weighted log loss of each row, its slope in the logits, and probabilities."""
    index = np.arange(len(data.labels))
    top = np.maximum.reduce(logits, axis=0)
    proba = np.exp(logits - top)
    total = sum_classes(proba)
    proba /= total
    counts = data.weights > 0
    own = np.where(counts, logits[data.labels, index], top)
    loss = np.where(counts, (np.log(total) + (top - own)) * data.weights, 0.0)
    residual = proba.copy()
    residual[data.labels, index] -= 1.0
    residual *= data.weights
    return loss, residual, proba


def loss_and_slopes(
    family: Family, params: Array, data: LabelledRows
) -> tuple[Array, Array]:
    """Sums by client: loss, then its slopes; and the probabilities of the rows.

    `params` has shape (size,), or one row per client.
    """
    owners = data.owners if params.ndim > 1 else None
    loss, residual, proba = losses(family.logits(params, data.rows, owners), data)
    parts = [segment_sums(loss[None], data.offsets)]
    parts += [
        segment_sums(piece, data.offsets)
        for piece in family.pulls(params, data, residual)
    ]
    return np.concatenate(parts, axis=1), proba


def _affine(params: Array, rows: CanonicalRows, owners: Array | None) -> Array:
    """First half of the parameters times the rows, plus the second half."""
    half = len(rows.values)
    out = _per_row(params[..., :half], owners) * rows.values
    out += _per_row(params[..., half:], owners)
    return out


def _per_row(params: Array, owners: Array | None) -> Array:
    """Parameters of each row's client, of shape (m, n_rows), or (m, 1) for all."""
    if owners is None:
        return params[:, None]
    # In one layout: numpy takes another way through arrays that are transposed.
    return np.ascontiguousarray(params[owners].T)


def _masked(logits: Array, rows: CanonicalRows) -> Array:
    if rows.masked is not None:
        logits[rows.masked] = -np.inf
    return logits


def _softplus(values: Array) -> Array:
    return np.maximum(values, 0.0) + np.log1p(np.exp(-np.abs(values)))


def _unsorted(values: Array, rows: CanonicalRows) -> Array:
    out = np.empty(values.shape)
    np.put_along_axis(out, rows.ranks, values, axis=0)
    return out
