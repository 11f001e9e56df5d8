"""Noise in a hierarchy of counts, and the variance of linear functionals of the counts.

- Least squares on a tree of counts, which makes levels with independent noise
  consistent.
- Closed-form variances of counts on few levels.
- Levels of a histogram: which are released, and the noise of merged histograms.
- Noise that a privacy model would add to a hierarchy of counts, for planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import exp, expm1, prod, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import as_number
from skfedcal.evaluation.grid import SPACES
from skfedcal.methods.score_curves.rounds import LAW_KINDS
from skfedcal.privacy.models import (
    CentralDP,
    DistributedDP,
    LocalDP,
    SecureAggregation,
    SourceDP,
    check_model,
)
from skfedcal.privacy.randomizers import Oracle, choose_oracle

Array = NDArray[Any]


def rollup(leaves: Array, bits: int) -> Array:
    """Sum leaves of shape (..., 2**height) to the ``2**bits`` nodes above them.

    Leaves that are no more than the nodes, of any number, are returned as they are.
    """
    if leaves.shape[-1] <= 2**bits:
        return leaves
    shape = (*leaves.shape[:-1], 2**bits, leaves.shape[-1] >> bits)
    out: Array = leaves.reshape(shape).sum(axis=-1)
    return out


def wls_tree(
    totals: Sequence[Array], variances: Sequence[float], levels: Sequence[int]
) -> Array:
    """Leaf counts that fit the noisy totals of all levels best.

    Exact weighted least squares for independent noise with one variance per level, in
    time linear in the number of leaves: inverse-variance averages from the leaves up,
    then the mismatch of each node is spread over its children.

    totals of shape (..., 2**bits): Noisy counts of each level.
    variances: Variance of one count of each level.
    levels: Increasing bit depths.
    Result of shape (..., 2**levels[-1]): Unbiased and not clipped.
    """
    means = [np.asarray(total, dtype=np.float64) for total in totals]
    below = float(variances[-1])
    for i in range(len(levels) - 2, -1, -1):
        fan = 2 ** (levels[i + 1] - levels[i])
        children, own = fan * below, float(variances[i])
        # Exact children leave nothing to learn from their parent.
        weight = children / (children + own) if children > 0 else 0.0
        sums = rollup(means[i + 1], levels[i])
        means[i] = weight * means[i] + (1 - weight) * sums
        below = own * weight
    leaves = means[0]
    for i in range(1, len(levels)):
        fan = 2 ** (levels[i] - levels[i - 1])
        gap = (leaves - rollup(means[i], levels[i - 1])) / fan
        leaves = means[i] + np.repeat(gap, fan, axis=-1)
    return leaves


def wls_dual(
    functional: Array, variances: Sequence[float], levels: Sequence[int]
) -> Array:
    """Vector ``(H'WH)^-1 g`` for the linear functional ``g`` of the leaves."""
    totals: list[Array] = [
        np.zeros((*functional.shape[:-1], 2**bits)) for bits in levels
    ]
    totals[-1] = functional * float(variances[-1])
    return wls_tree(totals, variances, levels)


def wls_functional_var(
    functional: Array, variances: Sequence[float], levels: Sequence[int]
) -> Array:
    """Exact noise variance of ``(g * leaves).sum()`` over the last two axes."""
    dual = wls_dual(functional, variances, levels)
    out: Array = (functional * dual).sum(axis=(-2, -1))
    return out


# A variance of counts that stands for none: weights of the fit divide by it.
_LEAST = 1e-12


@dataclass(frozen=True, slots=True)
class LevelLaw:
    """Noise distribution of one level of counts.

    bits: Depth of the level.
    kind: No noise; independent noise on each count; or reports randomised by clients:
        bits that are independent given the value, one value, a set of fixed size.
    variance: Of the noise on one count, for 'additive'.
    p, q: Probability that a report supports the true value, and that it supports
        another one.
    n_reports: Clients that reported on this level.
    domain: Values that a report can have.
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
    """Noise distributions of all levels of one histogram.

    levels: From coarse to fine.
    """

    levels: tuple[LevelLaw, ...]

    @classmethod
    def from_rows(cls, bits: Sequence[int], rows: Array) -> NoiseModel:
        """Build the model from the distributions that the algorithm has collected."""
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

        counts of shape (n_tables, n_leaves): Estimated counts; not clipped, which would
            make the variance too large.
        functional of shape (..., n_tables, n_leaves): Weight of each cell, such as the
            gradient of an answer.
        Result of shape (...): Of examples drawn from a larger population, and of the
            noise.
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

        counts of shape (n_tables, n_leaves): Estimated counts.
        functionals of shape (k, n_tables, n_leaves): Weights of the cells.
        Result of shape (k, k).
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
        """Direction of change of the counts that moves a functional at the least noise.

        Covariance of the noise times the functional; for local reports the covariance
        of the fit, which assumes that all values are equally frequent.
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
        """Variance over clients and their random reports together (sandwich estimate).

        Each client reports on one level only, so noise and sampling cannot be added
        cell by cell: the variance is that of one client's weight in the functional.
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
    """Variance of the sum of weights over the values in one client's report."""
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


def discrete_laplace_variance(eps: float) -> float:
    """Variance of discrete Laplace noise, ``P(k) ~ exp(-eps |k|)``.

    eps: Budget over sensitivity.
    Result: ``2 a / (1 - a)**2``, a = exp(-eps); below ``2 / eps**2``.
    """
    return 2 * exp(-eps) / expm1(-eps) ** 2


def prefix_std(levels: Sequence[int], variances: Sequence[float]) -> float:
    """Standard deviation of the noise in a count below a threshold, at any leaf edge.

    Least squares over all levels. Levels are nested, so that the squares of a linear
    functional split into orthogonal parts, one per level, and nothing needs solving.

    levels: Bit depths, increasing; the last one is the height.
    variances: Variance of the noise in a count of each level.
    Result: Root of the mean variance over all edges. At ``eps=1`` and height 10, with
        eps divided equally: 10.95 for (2, 6, 10), 16.7 for all ten levels, 30.7 for
        one.
    """
    # H' S^-1 H is a sum of width / variance times the projection on vectors that are
    # constant in the nodes of a level.
    widths = 2 ** (levels[-1] - np.asarray(levels))
    weight = widths / np.asarray(variances, dtype=np.float64)
    spread = 1 / np.cumsum(weight[::-1])[::-1]
    edges = np.arange(2 ** levels[-1] + 1)[:, None]
    whole, rest = np.divmod(edges, widths)
    norms = whole * widths + rest**2 / widths
    parts = np.diff(norms, axis=1, prepend=0.0)
    return sqrt(float((parts * spread).sum(axis=1).mean()))


def raw_prefix_std(height: int, variance: float) -> float:
    """Same as `prefix_std` for the paper's sum of dyadic counts.

    height: Binary levels h, all of them counted.
    variance: Variance of the noise in each count.
    Result: ``sqrt(variance * h / 2)``: every second level has a count in the sum.
    """
    return sqrt(variance * height / 2)


def auto_levels(height: int, bits: int = 4) -> tuple[int, ...]:
    """Bit depths of `bits` each, counted from the leaves: (2, 6, 10) for height 10.

    height: Depth of the leaves.
    bits: Bits from one level to the next.
    Result: Increasing.
    """
    return tuple(range(height, 0, -bits))[::-1]


# Under additive noise a level has 16 times the buckets of the one above: of the tilings
# of 10 bits, [2, 6, 10] leaves the least noise in a random prefix.
_BITS_PER_LEVEL = 4
_HEIGHT = 10
_MAX_HEIGHT = 20


def split_levels(totals: Array, depths: Sequence[int], n_tables: int) -> list[Array]:
    """Counts of each level from one flat array."""
    ends = np.cumsum([n_tables * 2**bits for bits in depths])
    parts = np.split(totals, ends[:-1])
    return [part.reshape(n_tables, -1) for part in parts]


def merged_noise(first: NoiseModel, second: NoiseModel) -> NoiseModel:
    """Noise of the sum of two histograms; raises ValueError for different kinds."""

    def key(law: LevelLaw) -> tuple[Any, ...]:
        return law.bits, law.kind, law.p, law.q, law.domain

    if list(map(key, first.levels)) != list(map(key, second.levels)):
        raise ValueError(
            "Histograms with different levels or kinds of noise cannot be merged; fit "
            "both with the same levels and privacy model."
        )
    return NoiseModel(
        tuple(
            replace(
                a, variance=a.variance + b.variance, n_reports=a.n_reports + b.n_reports
            )
            for a, b in zip(first.levels, second.levels, strict=True)
        )
    )


def release_levels(
    privacy: Any,
    height: int | str | None,
    levels: Sequence[int] | str,
    space: str = "both",
) -> tuple[int, ...]:
    """Depths to release under a privacy model; None stands for exact sums.

    The same rule is used for collecting and for planning.
    """
    if not isinstance(space, str) or space not in SPACES:
        raise ValueError(f"space={space!r}: pass one of {SPACES}.")
    height = "auto" if height is None else height
    if not (isinstance(height, str) and height == "auto") and not is_depth(height):
        raise ValueError(
            f"height={height!r}: pass 'auto' or a whole number from 1 to {_MAX_HEIGHT}."
        )
    listed = isinstance(levels, Iterable) and getattr(levels, "shape", None) != ()
    if listed and not isinstance(levels, str):
        return _checked(levels, height)
    if not isinstance(levels, str) or levels != "auto":
        raise ValueError(
            f"levels={levels!r}: pass 'auto' or depths such as (2, 6, 10)."
        )
    local = isinstance(privacy, LocalDP)
    if height == "auto":
        height = _local_height(float(privacy.eps), space) if local else _HEIGHT
    if privacy is None or not privacy.private:
        return (int(height),)
    return auto_levels(int(height), 1 if local else _BITS_PER_LEVEL)


def _checked(levels: Iterable[int], height: int | str) -> tuple[int, ...]:
    given = tuple(levels)
    if not given:
        raise ValueError("levels is empty; pass 'auto' or depths such as (2, 6, 10).")
    for bits in given:
        if not is_depth(bits):
            raise ValueError(
                f"levels={levels!r}: {bits!r} is not a depth; pass integers from 1 to "
                f"{_MAX_HEIGHT}."
            )
    if any(a >= b for a, b in pairwise(given)):
        raise ValueError(f"levels={levels!r} must increase.")
    if height not in ("auto", given[-1]):
        raise ValueError(
            f"levels={levels!r} must increase to height={height!r}; leave one of the "
            "two out."
        )
    return tuple(int(bits) for bits in given)


def is_depth(bits: Any) -> bool:
    """Whether a level can have this depth."""
    whole = isinstance(bits, (int, np.integer)) and not isinstance(bits, bool)
    return whole and 1 <= bits <= _MAX_HEIGHT


def _local_height(eps: float, space: str) -> int:
    """Height by eps: the best of those measured on each grid."""
    if space == "prob":
        return 4 if eps <= 2 else 5 if eps < 4 else 6
    return 5 if eps <= 2 else 6


# Reports per level that the variance of one is computed with; any number will do.
_REPORTS = 1 << 20

_LOCAL_KINDS = {"oue": "unary", "olh": "unary", "rr": "grr"}


@dataclass(frozen=True, slots=True)
class LevelNoise:
    """Noise of the counts of some levels.

    model: Noise distributions of the levels; for local noise, of a nominal number of
        reports.
    """

    model: NoiseModel

    @property
    def height(self) -> int:
        return self.model.bits[-1]

    def unit_std(self, weights: Array, cells: Array) -> Array:
        """Standard deviation that noise adds to ``sum(weights * shares)``.

        For one example; `scale` has the change with their number. Weights have shape
        (..., 2, 2**height); shares are `cells` on average.
        """
        n = self.model.n_reports if self.model.local else 1
        variance = self.model.variances(cells * n, weights)[1]
        return np.sqrt(variance / n)

    def scale(self, n_examples: float) -> float:
        """Factor by which the deviation changes with the number of examples."""
        return 1 / sqrt(n_examples) if self.model.local else 1 / n_examples


def check_planned(privacy: Any) -> None:
    """Raise unless `privacy` is a privacy model whose noise is known in advance."""
    check_model(privacy)
    if privacy is None or isinstance(privacy, SecureAggregation):
        return
    if not isinstance(privacy, CentralDP | DistributedDP | LocalDP | SourceDP):
        raise ValueError(
            f"privacy={privacy!r} is not supported for planning; pass None, "
            "SecureAggregation(), CentralDP, DistributedDP, LocalDP or SourceDP."
        )
    privacy.validate()


def level_noise(
    privacy: Any,
    levels: tuple[int, ...],
    *,
    max_examples: int = 1,
    n_sources: int | None = None,
) -> LevelNoise:
    """Noise of the counts of these levels under a privacy model."""
    if privacy is None or isinstance(privacy, SecureAggregation):
        return LevelNoise(NoiseModel(tuple(LevelLaw(bits) for bits in levels)))
    if isinstance(privacy, LocalDP):
        local = (_local_law(privacy.eps, privacy.oracle, bits) for bits in levels)
        return LevelNoise(NoiseModel(tuple(local)))
    for name, value in (("max_examples", max_examples), ("n_sources", n_sources)):
        if value is None and name == "n_sources":
            continue
        if not 1 <= as_number(name, value) < 1e100:
            raise ValueError(f"{name}={value!r}: pass a number of at least 1.")
    variance = _added_variance(privacy, max_examples * len(levels), n_sources)
    laws = (LevelLaw(bits, "additive", variance) for bits in levels)
    return LevelNoise(NoiseModel(tuple(laws)))


def _added_variance(privacy: Any, bound: float, n_sources: int | None) -> float:
    """Variance of the noise in counts of this L1 bound: Laplace noise, added up."""
    twice = getattr(privacy, "adjacency", "") == "replace"
    eps = float(privacy.eps) / (2 * bound if twice else bound)
    if not isinstance(privacy, SourceDP):
        return discrete_laplace_variance(eps)
    if n_sources is None:
        raise ValueError("SourceDP adds noise at every source; pass n_sources.")
    return discrete_laplace_variance(eps) * n_sources


def table_law(
    privacy: Any,
    bits: int,
    shape: tuple[int, ...],
    bound: float,
    n_reports: float,
    n_sources: int,
) -> LevelLaw:
    """Law of the noise of one table.

    `bound` is the L1 bound of a unit over the share of eps that the table has;
    `n_reports` is the number of local reports on it.
    """
    if privacy is None or not privacy.private:
        return LevelLaw(bits)
    if isinstance(privacy, LocalDP):
        law = _local_law(privacy.eps, privacy.oracle, bits, prod(shape))
        return replace(law, n_reports=max(int(n_reports), 1))
    return LevelLaw(bits, "additive", _added_variance(privacy, bound, n_sources))


def _local_law(
    eps: float, oracle: str, bits: int, domain: int | None = None
) -> LevelLaw:
    """Law of reports on one level; clients are divided equally over levels."""
    domain = domain or 2 * 2**bits
    chosen: Any = (
        choose_oracle(float(eps), domain)
        if oracle == "auto"
        else Oracle(oracle, float(eps), domain)  # type: ignore[arg-type]
    )
    kind: Any = _LOCAL_KINDS.get(chosen.kind, chosen.kind)
    return LevelLaw(bits, kind, 0.0, chosen.p, chosen.q, _REPORTS, domain)
