"""Class statistics of features: client sums and their totals, in numpy only.

Counts, sums and second moments of features by class, exact under any partition.
Floating-point sums depend on the order of their terms, and so on which client holds
which row. Here every feature is cut into three whole numbers of 17 bits; products of
these add up without rounding in any order, also inside BLAS, so that clients may be
merged or split and no bit of the result changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    Array,
    Arrays,
    BlockSpec,
    CellRows,
    Field,
    Form,
    Rows,
    Sums,
    n_classes_field,
)

N_PARTS = 3
_BITS = 17

# Value of a unit of each part, in sums of features and of their products: those of
# first parts, of first and second ones, and of the rest.
_SCALES_FIRST = tuple(2.0 ** (-_BITS * (i + 1)) for i in range(N_PARTS))
_SCALES_SECOND = tuple(2.0 ** (-_BITS * (i + 2)) for i in range(N_PARTS))

# Sums travel in two words each: masked sums have room for 32 bits of a client.
_WORD_BITS = 24

# Binary exponents of the largest feature that a client may report.
_EXPONENTS = 1024
_LOWEST = -512


@dataclass(frozen=True, slots=True)
class MomentState:
    """Sums over all clients, of features divided by `scale`.

    counts of shape (n_classes,): Rows of each class.
    first of shape (n_classes, n_features): Sums of features.
    second of shape (n_pairs,) or (n_classes, n_pairs): Sums of products of two
        features, upper triangles row after row.
    scale: Unit of features; 0 before it is known.
    variance: Of the noise in counts, sums and, with off-diagonal products times
        sqrt(2), products.
    rounds: Rounds that are done.
    """

    counts: Array
    first: Array
    second: Array
    scale: float
    variance: float = 0.0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class ClassMoments:
    """Add up rows, features and products of two features, by class.

    pooled: Add up products over all classes, or for each class.
    max_norm: Public bound on the length of a row; longer ones are shortened to it. None
        asks for the largest feature in a first round.
    clip: L2 bound on all that a client sends, in units of rows: counts, sums of ``row /
        max_norm`` and sums of its products. Needs `max_norm`.
    n_rounds: Rounds; those after the scale is known add up.
    """

    n_features: int
    pooled: bool = True
    max_norm: float | None = None
    clip: float | None = None
    n_rounds: int = 2

    def init(self, n_classes: int) -> MomentState:
        pairs = n_pairs(self.n_features)
        return MomentState(
            np.zeros(n_classes),
            np.zeros((n_classes, self.n_features)),
            np.zeros(pairs if self.pooled else (n_classes, pairs)),
            scale=self.max_norm or 0.0,
        )

    def broadcast(self, state: MomentState) -> Arrays:
        return {
            "n_classes": np.asarray(len(state.counts)),
            "scale": np.asarray(state.scale),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if not broadcast["scale"]:
            return {"range": BlockSpec((_EXPONENTS,), kind="count")}
        n_classes, size = int(broadcast["n_classes"]), self.n_features
        second = self._second_shape(n_classes)
        if self.clip is not None:
            total = n_classes * (1 + size) + int(np.prod(second))
            return {"moments": BlockSpec((total,), clip=self.clip)}
        return {
            "counts": BlockSpec((n_classes,), kind="count"),
            "first": BlockSpec((2 * N_PARTS, n_classes, size), kind="count"),
            "second": BlockSpec((2 * N_PARTS, *second), kind="count"),
        }

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        return ({"n_classes": n_classes_field(n_classes), "scale": Field((), low=0.0)},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        scale = float(broadcast["scale"])
        if not scale:
            return {"range": _exponents(clients)}
        n_classes = int(broadcast["n_classes"])
        second = self._second_shape(n_classes)
        out = {
            "counts": np.zeros((len(clients), n_classes), np.int64),
            "first": np.zeros(
                (len(clients), N_PARTS, n_classes, self.n_features), np.int64
            ),
            "second": np.zeros((len(clients), N_PARTS, *second), np.int64),
        }
        for block in clients.blocks():
            unit = scaled_rows(block.rows, scale, self.max_norm is not None)
            parts, first = cut(unit), block.clients.start
            for i, (start, stop) in enumerate(
                zip(block.offsets[:-1], block.offsets[1:], strict=True), first
            ):
                own = [part[start:stop] for part in parts]
                self._add(out, i, own, block.labels[start:stop])
        if self.clip is not None:
            return {"moments": _vectors(out)}
        words = {name: _words(out[name]) for name in ("first", "second")}
        return {"counts": out["counts"], **words}

    def update(self, state: MomentState, total: Sums, n_clients: int) -> MomentState:
        if "range" in total:
            top = int(np.flatnonzero(total["range"]).max(initial=0))
            return replace(state, scale=2.0 ** (top + _LOWEST), rounds=state.rounds + 1)
        if "moments" in total:
            counts, first, second = _split(total["moments"], state)
        else:
            counts = total["counts"]
            first = joined(_from_words(total["first"]), _SCALES_FIRST)
            second = joined(_from_words(total["second"]), _SCALES_SECOND)
        return replace(
            state,
            counts=state.counts + counts,
            first=state.first + first,
            second=state.second + second,
            variance=state.variance + total.noise.get("moments", 0.0) ** 2,
            rounds=state.rounds + 1,
        )

    def done(self, state: MomentState) -> bool:
        return False

    def _second_shape(self, n_classes: int) -> tuple[int, ...]:
        pairs = n_pairs(self.n_features)
        return (pairs,) if self.pooled else (n_classes, pairs)

    def _add(
        self, out: dict[str, Array], i: int, parts: list[Array], labels: Array
    ) -> None:
        """Add rows of client `i`, cut into parts, to its sums."""
        present = labels == np.arange(out["counts"].shape[1])[:, None]
        out["counts"][i] += present.sum(axis=1)
        for k, part in enumerate(parts):
            out["first"][i, k] += (present.astype(np.float64) @ part).astype(np.int64)
        if self.pooled:
            out["second"][i] += products(parts)
            return
        for c in np.flatnonzero(present.any(axis=1)):
            out["second"][i, :, c] += products([p[present[c]] for p in parts])


def n_pairs(n_features: int) -> int:
    """Entries of a symmetric matrix."""
    return n_features * (n_features + 1) // 2


def scaled_rows(rows: Array, scale: float, shorten: bool) -> Array:
    """Rows divided by `scale`, of norm at most 1 where they are to be shortened."""
    # One layout, so that a row is added up in the same order in any array.
    rows = rows.astype(np.float64, order="C")
    with np.errstate(over="ignore"):  # infinitely long is long
        unit = rows / scale
    if shorten:
        # The largest entry is taken out first: squares of 1e200 are out of range.
        top = np.abs(rows).max(axis=1, initial=0.0)
        ratio = rows / np.where(top > 0, top, 1.0)[:, None]
        length = np.sqrt(np.einsum("ij,ij->i", ratio, ratio))
        with np.errstate(over="ignore"):
            long = np.flatnonzero(top / scale * length > 1)
        unit[long] = ratio[long] / length[long, None]
    return np.clip(unit, -1.0, 1.0, out=unit)


def cut(unit: Array) -> list[Array]:
    """Whole numbers a, b, c with ``2**17 unit = a + 2**-17 b + 2**-34 c``.

    The last one is rounded. All are floats, which BLAS adds up exactly.
    """
    rest, parts = unit * 2.0**_BITS, []
    for _ in range(N_PARTS):
        part = np.rint(rest)
        parts.append(part)
        rest = (rest - part) * 2.0**_BITS
    return parts


def products(parts: list[Array]) -> Array:
    """Sums of products of rows, of shape (n_parts, n_pairs), in whole numbers.

    Products below 2**-51 of the unit are left out.
    """
    a, b, c = parts
    ab, ac = a.T @ b, a.T @ c
    upper = _upper(a.shape[1])
    sums = (a.T @ a, ab + ab.T, b.T @ b + ac + ac.T)
    return np.array([s.ravel()[upper] for s in sums]).astype(np.int64)


@lru_cache(maxsize=8)
def _upper(size: int) -> Array:
    """Places of the upper triangle in a flat matrix."""
    return np.flatnonzero(np.triu(np.ones((size, size), dtype=bool)))


def joined(parts: Array, scales: tuple[float, ...]) -> Array:
    """Value of sums of parts; small ones first, so that little is rounded away."""
    a, b, c = (part * scale for part, scale in zip(parts, scales, strict=True))
    return a + (b + c)


def _words(sums: Array) -> Array:
    """High and low words of whole numbers, low ones from 0 on."""
    return np.concatenate([sums >> _WORD_BITS, sums & (2**_WORD_BITS - 1)], axis=1)


def _from_words(total: Array) -> Array:
    """Sums of whole numbers from sums of their words: rounded once, as they are."""
    high, low = np.split(total, 2)
    return high * 2.0**_WORD_BITS + low


def packing(n_features: int) -> Array:
    """Factors that make the length of an upper triangle that of the matrix."""
    row, column = np.triu_indices(n_features)
    return np.where(row == column, 1.0, sqrt(2.0))


def _vectors(sums: dict[str, Array]) -> Array:
    """One vector per client whose L2 norm is that of its sums as matrices."""
    n_clients = len(sums["counts"])
    first = joined(np.moveaxis(sums["first"], 1, 0), _SCALES_FIRST)
    second = joined(np.moveaxis(sums["second"], 1, 0), _SCALES_SECOND)
    second *= packing(first.shape[-1])
    values = [sums["counts"].astype(np.float64), first, second]
    return np.concatenate([v.reshape(n_clients, -1) for v in values], axis=1)


def _split(vector: Array, state: MomentState) -> tuple[Array, Array, Array]:
    """Counts, sums and products of one vector."""
    n_classes, n_features = state.first.shape
    ends = np.cumsum([n_classes, n_classes * n_features])
    counts, first, second = np.split(vector, ends)
    second = second.reshape(state.second.shape) / packing(n_features)
    return counts, first.reshape(state.first.shape), second


def _exponents(clients: FederatedDataset) -> CellRows:
    """Binary exponent of the largest feature of each client that has rows."""
    largest = np.zeros(len(clients))
    for block in clients.blocks():
        top = np.abs(block.rows).max(axis=1, initial=0.0).astype(np.float64)
        owner = np.repeat(
            np.arange(block.clients.start, block.clients.stop), np.diff(block.offsets)
        )
        np.maximum.at(largest, owner, top)
    filled = np.flatnonzero(clients.sizes)
    exponents = np.where(largest > 0, np.frexp(largest)[1], _LOWEST)[filled]
    cells = np.clip(exponents - _LOWEST, 0, _EXPONENTS - 1).astype(np.int64)
    return CellRows(filled, cells, len(clients), (_EXPONENTS,))


FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    r"""Rows, sums and second moments of features, by class.

    Statistics of two sets of rows add up to those of both, whichever client holds which
    row, and clients with one row of a class, or none, need no special treatment.

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

    n: FloatArray
    s1: FloatArray
    s2: FloatArray

    def __post_init__(self) -> None:
        n, s1, s2 = (np.asarray(v, np.float64) for v in (self.n, self.s1, self.s2))
        square = (s1.shape[-1:] * 2) if s1.ndim == 2 else ()
        fits = s1.ndim == 2 and n.shape == s1.shape[:1]
        if not fits or s2.shape not in (square, (len(n), *square)):
            raise ValueError(
                f"n, s1 and s2 of shapes {n.shape}, {s1.shape} and {s2.shape} do not "
                "match; expected (C,), (C, d) and (C, d, d), or (d, d) if pooled."
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
        """Statistics from the result of `vector`, pooled or not by its length."""
        values = np.asarray(vector, np.float64)
        pairs, head = n_pairs(n_features), n_classes * (1 + n_features)
        if values.shape not in ((head + pairs,), (head + n_classes * pairs,)):
            raise ValueError(
                f"A vector of shape {values.shape} does not match statistics of "
                f"{n_classes} classes and {n_features} features."
            )
        n, s1, s2 = np.split(values, [n_classes, head])
        packed = s2.reshape(-1, pairs) / packing(n_features)
        full = unpacked(packed if len(s2) > pairs else packed[0], n_features)
        return cls(n, s1.reshape(n_classes, n_features), full)

    def vector(self, *, pooled: bool = True) -> FloatArray:
        """All sums in one vector, whose L2 norm is that of the matrices.

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

    def mean(self) -> FloatArray:
        """Mean of each class; zero for a class without rows."""
        return self.s1 / np.where(self.n > 0, self.n, 1.0)[:, None]

    def cov(self, ddof: int = 1) -> FloatArray:
        """Covariance of each class; zero for a class with at most `ddof` rows."""
        scatter = self._by_class() - self.n[:, None, None] * _outer(self.mean())
        left = self.n - ddof
        scale = np.where(left > 0, 1 / np.where(left > 0, left, 1.0), 0.0)
        return scatter * scale[:, None, None]

    def scatter(self) -> FloatArray:
        """Sum of outer products of deviations from the own class mean."""
        between = np.einsum("c,ci,cj->ij", self.n, self.mean(), self.mean())
        return self.pool().s2 - between

    def pooled_cov(self, ddof: int = 1) -> FloatArray:
        """Covariance around the class means; `ddof` is taken off for each class."""
        left = float(np.maximum(self.n - ddof, 0.0).sum())
        return self.scatter() / left if left > 0 else np.zeros_like(self.scatter())

    def _by_class(self) -> FloatArray:
        if self.pooled:
            raise ValueError(
                "Second moments are pooled over classes; covariances of single classes "
                "need statistics with pooled=False."
            )
        return self.s2


def unpacked(triangle: FloatArray, n_features: int) -> FloatArray:
    """Symmetric matrices from upper triangles along the last axis."""
    row, column = np.triu_indices(n_features)
    out = np.empty((*triangle.shape[:-1], n_features, n_features))
    out[..., row, column] = triangle
    out[..., column, row] = triangle
    return out


def _outer(rows: FloatArray) -> FloatArray:
    return rows[:, :, None] * rows[:, None, :]
