"""Class statistics of features: sums that can be added in any order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal.algorithms._class_statistics import n_pairs, packing

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    r"""Rows, sums and second moments of features, by class.

    Statistics of two sets of rows add up to those of both, whichever client holds which
    row, and clients with one row of a class, or none, need no exception.

    Parameters
    ----------
    n : ndarray of shape (n_classes,)
        Rows of each class.
    s1 : ndarray of shape (n_classes, n_features)
        Sums of features.
    s2 : ndarray of shape (n_classes, n_features, n_features)
        Sums of outer products :math:`v v^\top`; over all classes without first axis.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.training import ClassStatistics
    >>> rows = np.random.default_rng(0).normal(size=(20, 3))
    >>> labels = np.arange(20) % 2
    >>> one = ClassStatistics.from_data(rows[:7], labels[:7], 2)
    >>> other = ClassStatistics.from_data(rows[7:], labels[7:], 2)
    >>> bool(np.allclose((one + other).cov()[0], np.cov(rows[::2].T)))
    True
    """

    n: Array
    s1: Array
    s2: Array

    def __post_init__(self) -> None:
        n, s1, s2 = (np.asarray(v, np.float64) for v in (self.n, self.s1, self.s2))
        square = (s1.shape[-1:] * 2) if s1.ndim == 2 else ()
        fits = s1.ndim == 2 and n.shape == s1.shape[:1]
        if not fits or s2.shape not in (square, (len(n), *square)):
            raise ValueError(
                f"n, s1 and s2 of shapes {n.shape}, {s1.shape} and {s2.shape} do not "
                "fit; expected (C,), (C, d) and (C, d, d), or (d, d) if pooled."
            )
        for name, value in (("n", n), ("s1", s1), ("s2", s2)):
            object.__setattr__(self, name, value)

    @classmethod
    def from_data(
        cls, X: ArrayLike, y: ArrayLike, n_classes: int, *, pooled: bool = False
    ) -> Self:
        """Statistics of rows `X` with classes `y` in ``range(n_classes)``."""
        rows, labels = np.asarray(X, np.float64), np.asarray(y)
        if rows.ndim != 2 or labels.shape != rows.shape[:1]:
            raise ValueError(
                f"X has shape {rows.shape} and y {labels.shape}; pass one row of "
                "features and one class per sample."
            )
        if labels.size and not 0 <= labels.min() <= labels.max() < n_classes:
            raise ValueError(f"y holds classes outside of range({n_classes}).")
        present = (labels == np.arange(n_classes)[:, None]).astype(np.float64)
        if pooled:
            s2 = rows.T @ rows
        else:
            own = (rows[labels == c] for c in range(n_classes))
            s2 = np.stack([part.T @ part for part in own])
        return cls(present.sum(axis=1), present @ rows, s2)

    @classmethod
    def from_moments(cls, n: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Self:
        """Statistics from rows, means and covariances (with ``n - 1``) of each class.

        The mean of a class without rows and the covariance of one with fewer than two
        are not read; they may be NaN.
        """
        rows = np.asarray(n, np.float64)
        centre = np.where(rows[:, None] > 0, np.asarray(mean, np.float64), 0.0)
        several = (rows > 1)[:, None, None]
        spread = np.where(several, np.asarray(cov, np.float64), 0.0)
        weight = np.maximum(rows - 1, 0.0)[:, None, None]
        s2 = weight * spread + rows[:, None, None] * _outer(centre)
        return cls(rows, rows[:, None] * centre, s2)

    @classmethod
    def from_vector(cls, vector: ArrayLike, n_classes: int, n_features: int) -> Self:
        """Statistics from what `vector` returned, pooled if its length says so."""
        values = np.asarray(vector, np.float64)
        pairs, head = n_pairs(n_features), n_classes * (1 + n_features)
        if values.shape not in ((head + pairs,), (head + n_classes * pairs,)):
            raise ValueError(
                f"A vector of shape {values.shape} holds no statistics of {n_classes} "
                f"classes and {n_features} features."
            )
        n, s1, s2 = np.split(values, [n_classes, head])
        packed = s2.reshape(-1, pairs) / packing(n_features)
        full = unpacked(packed if len(s2) > pairs else packed[0], n_features)
        return cls(n, s1.reshape(n_classes, n_features), full)

    def vector(self, *, pooled: bool = True) -> Array:
        """All sums in one vector, whose length is the true one of the matrices.

        Each entry off the diagonal stands for two and is multiplied by sqrt(2).
        """
        s2 = self.pool().s2 if pooled else self._by_class()
        row, column = np.triu_indices(self.n_features)
        packed = s2[..., row, column] * packing(self.n_features)
        return np.concatenate([self.n, self.s1.ravel(), packed.ravel()])

    @property
    def n_classes(self) -> int:
        return len(self.n)

    @property
    def n_features(self) -> int:
        return self.s1.shape[1]

    @property
    def pooled(self) -> bool:
        """Whether second moments are those of all classes together."""
        return self.s2.ndim == 2

    def pool(self) -> ClassStatistics:
        """Add up second moments over classes."""
        if self.pooled:
            return self
        return ClassStatistics(self.n, self.s1, self.s2.sum(axis=0))

    def __add__(self, other: Any) -> ClassStatistics:
        if not isinstance(other, ClassStatistics):
            return NotImplemented
        if self.s1.shape != other.s1.shape or self.pooled != other.pooled:
            raise ValueError(
                f"Statistics with sums of shapes {self.s1.shape} and {other.s1.shape}, "
                f"pooled={self.pooled} and {other.pooled}, cannot be added."
            )
        return ClassStatistics(self.n + other.n, self.s1 + other.s1, self.s2 + other.s2)

    def __radd__(self, other: Any) -> ClassStatistics:
        # sum() starts at 0.
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def mean(self) -> Array:
        """Mean of each class; zero for a class without rows."""
        return self.s1 / np.where(self.n > 0, self.n, 1.0)[:, None]

    def cov(self, ddof: int = 1) -> Array:
        """Covariance of each class; zero for a class with at most `ddof` rows."""
        scatter = self._by_class() - self.n[:, None, None] * _outer(self.mean())
        left = self.n - ddof
        scale = np.where(left > 0, 1 / np.where(left > 0, left, 1.0), 0.0)
        return scatter * scale[:, None, None]

    def scatter(self) -> Array:
        """Sum of outer products of deviations from the own class mean."""
        between = np.einsum("c,ci,cj->ij", self.n, self.mean(), self.mean())
        return self.pool().s2 - between

    def pooled_cov(self, ddof: int = 1) -> Array:
        """Covariance around the class means; `ddof` is taken off for each class."""
        left = float(np.maximum(self.n - ddof, 0.0).sum())
        return self.scatter() / left if left > 0 else np.zeros_like(self.scatter())

    def _by_class(self) -> Array:
        if self.pooled:
            raise ValueError(
                "Second moments are pooled over classes; covariances of single classes "
                "need statistics with pooled=False."
            )
        return self.s2


def unpacked(triangle: Array, n_features: int) -> Array:
    """Symmetric matrices from upper triangles along the last axis."""
    row, column = np.triu_indices(n_features)
    out = np.empty((*triangle.shape[:-1], n_features, n_features))
    out[..., row, column] = triangle
    out[..., column, row] = triangle
    return out


def _outer(rows: Array) -> Array:
    return rows[:, :, None] * rows[:, None, :]
