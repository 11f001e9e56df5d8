"""Curvature of the summed loss: what clients send, what the server makes of it."""

from __future__ import annotations

import numpy as np

from skfedcal.algorithms._base import Array
from skfedcal.algorithms._canonical import LabelledRows
from skfedcal.algorithms._families import Family, MatrixMap, VectorMap
from skfedcal.data._dataset import segment_sums

# Two parameters per class have a curvature of 2 c^2 + c numbers: sent in every round up
# to FEW_CLASSES, once up to MANY_CLASSES. That of matrix scaling has about c^4 / 4.
FEW_CLASSES, MANY_CLASSES, FEW_FOR_MATRIX = 30, 128, 12

# Ridge, relative to the mean of the diagonal, against curvature that is singular.
_JITTER = 1e-12


class PairCurvature:
    """Whole curvature of a map with two parameters per class."""

    def size(self, n_classes: int) -> int:
        return n_classes * (2 * n_classes + 1)

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        x = data.rows.values
        parts = []
        for j, kernel in enumerate(family.kernels(params, data, proba)):  # type: ignore[attr-defined]
            mixed = kernel * x[j]
            pieces = (mixed[j:] * x[j:], mixed, kernel[j:])
            parts += [segment_sums(piece, data.offsets) for piece in pieces]
        return np.concatenate(parts, axis=1)

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        return _ridge_solve(self._matrix(sums, len(slope)), precision, n_rows, slope)

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        whole = self._matrix(sums, len(slope))
        return _spectra(whole, slope, np.arange(len(slope)) * 2 // len(slope))

    def _matrix(self, sums: Array, size: int) -> Array:
        n_classes = size // 2
        whole = np.zeros((size, size))
        first, last = whole[:n_classes], whole[n_classes:]
        at = 0
        for j in range(n_classes):
            rest = n_classes - j
            first[j, j:n_classes] = sums[at : at + rest]
            first[j, n_classes:] = sums[at + rest : at + rest + n_classes]
            last[j, n_classes + j :] = sums[at + rest + n_classes :][:rest]
            at += 2 * rest + n_classes
        return np.triu(whole) + np.triu(whole, 1).T


class ClassCurvature:
    """Curvature within each class only, of a map with two parameters per class."""

    def size(self, n_classes: int) -> int:
        return 3 * n_classes

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        own = np.stack(
            [
                kernel[j]
                for j, kernel in enumerate(family.kernels(params, data, proba))  # type: ignore[attr-defined]
            ]
        )
        x = data.rows.values
        parts = [segment_sums(p, data.offsets) for p in (own * x * x, own * x, own)]
        return np.concatenate(parts, axis=1)

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        return list(zip(sums.reshape(3, -1)[::2], np.split(slope, 2), strict=True))

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        aa, ab, bb = sums.reshape(3, -1)
        aa, bb = (
            own + p for own, p in zip((aa, bb), np.split(precision, 2), strict=True)
        )
        jitter = _JITTER * (aa.mean() + bb.mean()) + 1e-30
        aa, bb = aa + jitter, bb + jitter
        one, two = np.split(slope * n_rows, 2)
        scale = aa * bb - ab * ab
        return np.concatenate([bb * one - ab * two, aa * two - ab * one]) / np.tile(
            scale, 2
        )


class FullCurvature:
    """Whole curvature of matrix scaling.

    That of a row is ``diag(p) - p p'`` for the classes times ``x x'`` for the columns
    ``x`` and a constant one; both are symmetric.
    """

    def size(self, n_classes: int) -> int:
        return _half(n_classes) * _half(n_classes + 1)

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        columns = _with_ones(data.rows.values)
        products = np.concatenate([columns[j:] * x for j, x in enumerate(columns)])
        parts = []
        for j, kernel in enumerate(VectorMap().kernels(params, data, proba)):
            parts += [segment_sums(products * own, data.offsets) for own in kernel[j:]]
        return np.concatenate(parts, axis=1)

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        return _ridge_solve(self._matrix(sums, len(slope)), precision, n_rows, slope)

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        groups = MatrixMap().groups(int(np.sqrt(len(slope))))
        return _spectra(self._matrix(sums, len(slope)), slope, groups)

    def _matrix(self, sums: Array, size: int) -> Array:
        n = int(np.sqrt(size))
        blocks = sums.reshape(_half(n), -1)
        # Axes: column and class of one parameter, column and class of the other.
        whole = np.zeros((n + 1, n, n + 1, n))
        for j, k, block in zip(*np.triu_indices(n), blocks, strict=True):
            whole[:, j, :, k] = whole[:, k, :, j] = _symmetric(block, n + 1)
        return whole.reshape(size, size)


class SplitCurvature:
    """Curvature of matrix scaling in two parts, as a start for a quasi-Newton method.

    Diagonal and bias have the whole curvature of vector scaling. For the rest a sum of
    products, of one matrix over classes and one over columns for each row, is
    replaced by the product of sums, the second weighted by the trace of the first.
    """

    def size(self, n_classes: int) -> int:
        return PairCurvature().size(n_classes) + 2 * _half(n_classes)

    def sums(
        self, family: Family, params: Array, data: LabelledRows, proba: Array
    ) -> Array:
        x = data.rows.values
        parts = [PairCurvature().sums(VectorMap(), params, data, proba)]
        trace = np.zeros(x.shape[1])
        weighted = proba * data.weights
        for j, own in enumerate(proba):
            kernel = weighted[j:] * -own
            kernel[0] += weighted[j]
            trace += kernel[0]
            parts.append(segment_sums(kernel, data.offsets))
        for j, column in enumerate(x):
            parts.append(segment_sums(x[j:] * (column * trace), data.offsets))
        return np.concatenate(parts, axis=1)

    def solve(
        self, sums: Array, precision: Array, n_rows: float, slope: Array
    ) -> Array:
        n = int(np.sqrt(len(slope)))
        square = slope.reshape(n + 1, n)
        weights = precision.reshape(n + 1, n)
        at = PairCurvature().size(n)
        out = np.empty_like(square)
        out[:n] = self._solve_off(sums[at:], float(weights[1, 0]), square[:n] * n_rows)
        own = np.concatenate([np.diag(square), square[n]])
        ridge = np.concatenate([np.diag(weights), weights[n]])
        own = PairCurvature().solve(sums[:at], ridge, n_rows, own)
        out[np.arange(n), np.arange(n)], out[n] = np.split(own, 2)
        return out.ravel()

    def spectra(self, sums: Array, slope: Array) -> list[tuple[Array, Array]]:
        n = int(np.sqrt(len(slope)))
        square = slope.reshape(n + 1, n)
        at = PairCurvature().size(n)
        own = np.concatenate([np.diag(square), square[n]])
        scale, (right, left) = self._eigen(sums[at:], n)
        off = right.T @ (square[:n] * ~np.eye(n, dtype=bool)) @ left
        return [*PairCurvature().spectra(sums[:at], own), (scale, off)]

    def _solve_off(self, sums: Array, ridge: float, square: Array) -> Array:
        n = len(square)
        scale, (right, left) = self._eigen(sums, n)
        scale = scale + ridge
        scale += _JITTER * scale.mean() + 1e-30
        off = square * ~np.eye(n, dtype=bool)
        return right @ ((right.T @ off @ left) / scale) @ left.T

    def _eigen(self, sums: Array, n: int) -> tuple[Array, tuple[Array, Array]]:
        """Eigenvalues of the product, and eigenvectors of columns and classes."""
        classes, columns = (_symmetric(s, n) for s in np.split(sums, 2))
        low, left = np.linalg.eigh(classes)
        high, right = np.linalg.eigh(columns / max(np.trace(classes), 1e-30))
        return np.outer(high, low).clip(0), (right, left)


Curvature = PairCurvature | ClassCurvature | FullCurvature | SplitCurvature


def curvature_of(family: Family, n_classes: int) -> tuple[Curvature, bool]:
    """Pick what clients send besides loss and slopes, and whether in every round."""
    if isinstance(family, MatrixMap):
        few = n_classes <= FEW_FOR_MATRIX
        return (FullCurvature(), True) if few else (SplitCurvature(), False)
    if n_classes <= MANY_CLASSES:
        return PairCurvature(), n_classes <= FEW_CLASSES
    return ClassCurvature(), False


def _ridge_solve(whole: Array, precision: Array, n_rows: float, slope: Array) -> Array:
    diagonal = np.diag_indices_from(whole)
    whole[diagonal] += precision
    whole[diagonal] += _JITTER * np.trace(whole) / len(whole) + 1e-30
    return np.linalg.solve(whole / n_rows, slope)


def _spectra(whole: Array, slope: Array, groups: Array) -> list[tuple[Array, Array]]:
    """Eigenvalues within each group, and the slope in the eigenvectors."""
    out = []
    for group in range(groups.max() + 1):
        own = groups == group
        values, vectors = np.linalg.eigh(whole[np.ix_(own, own)])
        out.append((values, vectors.T @ slope[own]))
    return out


def _with_ones(values: Array) -> Array:
    return np.concatenate([values, np.ones((1, values.shape[1]))])


def _half(n: int) -> int:
    """Entries of a symmetric matrix that differ."""
    return n * (n + 1) // 2


def _symmetric(upper: Array, n: int) -> Array:
    out = np.zeros((n, n))
    out[np.triu_indices(n)] = upper
    return out + np.triu(out, 1).T
