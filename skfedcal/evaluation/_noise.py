"""How noise entered the counts, and what that means for any answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.algorithms._score_counts import LAW_KINDS
from skfedcal.evaluation._tree import rollup, wls_dual, wls_functional_var, wls_tree

Array = NDArray[Any]

# A variance of counts that stands for none: weights of the fit divide by it.
_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class LevelLaw:
    """Law of the noise on one level of counts.

    Parameters
    ----------
    bits : int
        Depth of the level.
    kind : {'exact', 'additive', 'unary', 'grr', 'subset'}
        No noise; independent noise on each count; or reports randomised by clients:
        bits that are independent given the value, one value, a set of fixed size.
    variance : float, default=0.0
        Of the noise on one count, for 'additive'.
    p, q : float, default=0.0
        Chance that a report supports the true value, and any other one.
    n_reports : int, default=0
        Clients that reported on this level.
    domain : int, default=0
        Values that a report can have.
    """

    bits: int
    kind: Literal["exact", "additive", "unary", "grr", "subset"] = "exact"
    variance: float = 0.0
    p: float = 0.0
    q: float = 0.0
    n_reports: int = 0
    domain: int = 0

    @property
    def local(self) -> bool:
        """Whether clients randomised their reports."""
        return self.kind in ("unary", "grr", "subset")

    def report_variance(self, share: float) -> float:
        """Variance that one report adds to an estimated count with this frequency."""
        p, q = self.p, self.q
        spread = q * (1 - q) + share * (p * (1 - p) - q * (1 - q))
        return spread / (p - q) ** 2


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """Laws of all levels of one histogram.

    Parameters
    ----------
    levels : tuple of LevelLaw
        From coarse to fine.
    """

    levels: tuple[LevelLaw, ...]

    @classmethod
    def from_rows(cls, bits: Sequence[int], rows: Array) -> NoiseModel:
        """Read the laws that the algorithm has collected."""
        return cls(
            tuple(
                LevelLaw(
                    int(depth),
                    LAW_KINDS[int(row[0])],  # type: ignore[arg-type]
                    float(row[1]),
                    float(row[2]),
                    float(row[3]),
                    int(row[4]),
                    int(row[5]),
                )
                for depth, row in zip(bits, rows, strict=True)
            )
        )

    @property
    def bits(self) -> tuple[int, ...]:
        return tuple(law.bits for law in self.levels)

    @property
    def exact(self) -> bool:
        """Whether there is no noise."""
        return all(law.kind == "exact" for law in self.levels)

    @property
    def local(self) -> bool:
        """Whether clients randomised their reports, each on one level."""
        return any(law.local for law in self.levels)

    @property
    def n_reports(self) -> int:
        """Reports on all levels."""
        return sum(law.n_reports for law in self.levels)

    def estimate(self, totals: Sequence[Array]) -> Array:
        """Leaf counts from the totals of all levels: unbiased, not clipped."""
        if self.exact:
            return np.asarray(totals[-1], dtype=np.float64)
        if self.local:
            scaled = [
                total * self._scale(law)
                for total, law in zip(totals, self.levels, strict=True)
            ]
            return wls_tree(scaled, self._variances(), self.bits)
        return wls_tree(totals, self._variances(), self.bits)

    def variances(self, counts: Array, functional: Array) -> tuple[Array, Array]:
        """Sampling and privacy variance of linear functionals of the counts.

        Parameters
        ----------
        counts : ndarray of shape (n_tables, n_leaves)
            Estimated counts; not clipped, which would make the variance too large.
        functional : ndarray of shape (..., n_tables, n_leaves)
            Weight of each cell, such as the gradient of an answer.

        Returns
        -------
        sampling, privacy : ndarray of shape (...)
            Of examples drawn from a larger population, and of the noise.
        """
        axes = (-2, -1)
        mean = (counts * functional).sum(axis=axes)
        square = (counts * functional**2).sum(axis=axes)
        total = max(float(counts.sum()), 1.0)
        sampling = np.maximum(square - mean**2 / total, 0.0)
        if self.exact:
            return sampling, np.zeros_like(sampling)
        if not self.local:
            return sampling, wls_functional_var(
                functional, self._variances(), self.bits
            )
        both = self._local_variance(counts, functional)
        return sampling, np.maximum(both - sampling, 0.0)

    def covariance(self, counts: Array, functionals: Array) -> Array:
        """Covariance of linear functionals of the counts, of sampling and noise.

        Parameters
        ----------
        counts : ndarray of shape (n_tables, n_leaves)
            Estimated counts.
        functionals : ndarray of shape (k, n_tables, n_leaves)
            Weights of the cells.

        Returns
        -------
        covariance : ndarray of shape (k, k)
        """
        if self.local:
            # cov(a, b) = (var(a + b) - var(a - b)) / 4
            pairs = functionals[:, None], functionals[None]
            both = [
                self._local_variance(counts, pairs[0] + sign * pairs[1])
                for sign in (1, -1)
            ]
            out: Array = (both[0] - both[1]) / 4
            return out
        flat = functionals.reshape(len(functionals), -1)
        mean = flat @ counts.reshape(-1)
        out = (flat * counts.reshape(-1)) @ flat.T
        out -= np.outer(mean, mean) / max(float(counts.sum()), 1.0)
        if not self.exact:
            dual = wls_dual(functionals, self._variances(), self.bits)
            out += flat @ dual.reshape(len(functionals), -1).T
        return out

    def direction(self, functional: Array) -> Array:
        """Change of the counts that moves a functional with the least noise.

        Covariance of the noise times the functional; under local reports that of
        the fit, which takes all values to be equally frequent.
        """
        return wls_dual(functional, self._variances(), self.bits)

    def to_list(self) -> list[dict[str, Any]]:
        """Plain values, for JSON."""
        return [asdict(law) for law in self.levels]

    def _scale(self, law: LevelLaw) -> float:
        """All clients over those that reported on this level."""
        return self.n_reports / max(law.n_reports, 1)

    def _variances(self) -> list[float]:
        """Variance of one count of each level, as weights of the fit."""
        if not self.local:
            return [law.variance for law in self.levels]
        out = []
        for law in self.levels:
            scale, share = self._scale(law), 1 / law.domain
            noise = law.n_reports * law.report_variance(share) * scale**2
            # Other clients on this level would have given another sum.
            out.append(max(noise + self.n_reports * share * (scale - 1), _LEAST))
        return out

    def _local_variance(self, counts: Array, functional: Array) -> Array:
        """Variance over clients and their coins together (a sandwich).

        Each client reports on one level only, so noise and sampling cannot be added up
        cell by cell: what counts is the spread of one client's weight in the answer.
        """
        variances = self._variances()
        dual = wls_dual(functional, variances, self.bits)
        out = np.zeros(functional.shape[:-2])
        for law, variance in zip(self.levels, variances, strict=True):
            weight = rollup(dual, law.bits) / variance * self._scale(law)
            flat = weight.reshape(*out.shape, law.domain) / (law.p - law.q)
            share = rollup(counts, law.bits).reshape(-1) / self.n_reports
            out += law.n_reports * _one_report(law, flat, share)
        return out


def _one_report(law: LevelLaw, weight: Array, share: Array) -> Array:
    """Variance of the sum of weights over what one random client's report supports."""
    p, q = law.p, law.q
    mean, square = weight @ share, weight**2 @ share
    if law.kind == "grr":
        # The reported value has the frequency q + (p - q) * share.
        total, squares = weight.sum(axis=-1), (weight**2).sum(axis=-1)
        first = q * total + (p - q) * mean
        out: Array = q * squares + (p - q) * square - first**2
        return np.maximum(out, 0.0)
    between = (p - q) ** 2 * (square - mean**2)
    squares = (weight**2).sum(axis=-1)
    if law.kind == "unary":
        within = p * (1 - p) * square + q * (1 - q) * (squares - square)
        return np.maximum(within + between, 0.0)
    return np.maximum(_within_subset(law, weight, share) + between, 0.0)


def _within_subset(law: LevelLaw, weight: Array, share: Array) -> Array:
    """Mean variance, given the value, for sets of fixed size that may hold it."""
    p, q, d = law.p, law.q, law.domain
    size = q * (d - 1) + p
    with_own = p * (size - 1) / (d - 1)
    others = 0.0
    if d > 2:
        pairs = p * (size - 1) * (size - 2) + (1 - p) * size * (size - 1)
        others = pairs / ((d - 1) * (d - 2))
    total = weight.sum(axis=-1, keepdims=True)
    squares = (weight**2).sum(axis=-1, keepdims=True)
    rest, rest_squares = total - weight, squares - weight**2
    second = (
        p * weight**2
        + q * rest_squares
        + 2 * with_own * weight * rest
        + others * (rest**2 - rest_squares)
    )
    first = p * weight + q * rest
    out: Array = (second - first**2) @ share
    return out
