"""Rows in the one form that scaling maps act on, classes first.

Vector and matrix scaling are not invariant to a shift of a row, so each row is moved to
a mean of zero. Entries more than `MAX_SPAN` below the row's maximum (or -inf) are
masked: they are left out of the mean and have probability 0 whatever the parameters. A
row whose own class is masked has no finite loss at any parameters and counts nothing.

Arrays have shape (n_classes, n_rows). Every operation acts on entries, or adds up
classes one after the other, so that a row gives the same bits in any block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skfedcal._logits import MAX_SPAN
from skfedcal.algorithms._base import Array
from skfedcal.data._dataset import Block


@dataclass(frozen=True, slots=True)
class CanonicalRows:
    """Rows of mean zero, in units of the temperature.

    Parameters
    ----------
    values : ndarray of shape (n_classes, n_rows)
        Centred logits over the temperature; 0 where masked.
    masked : ndarray of shape (n_classes, n_rows) or None
        Entries of probability 0; None when there are none.
    ranks : ndarray of shape (n_classes, n_rows)
        Classes of each row from the largest entry down, ties in column order; empty
        where the order does not matter.
    gaps : ndarray of shape (n_classes, n_rows)
        How far the entry of each rank lies above the next one; 0 above a masked entry
        and at the bottom.
    """

    values: Array
    masked: Array | None
    ranks: Array
    gaps: Array


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Canonical rows of some clients with what a loss needs besides."""

    rows: CanonicalRows
    labels: Array
    weights: Array
    offsets: Array

    @property
    def owners(self) -> Array:
        """Position of each row's client in the block."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


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
        ranks = np.argsort(-below, axis=0, kind="stable")
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


def labelled(block: Block, beta: float, ranked: bool) -> LabelledRows:
    """Canonical form of a block; rows whose own class is masked weigh nothing."""
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
