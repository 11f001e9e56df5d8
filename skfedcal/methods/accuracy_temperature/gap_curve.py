"""Posterior of the temperature from noisy gaps between accuracy and confidence.

The gap ``accuracy - mean confidence at T`` rises with T and crosses zero at the optimal
temperature. Its shape is similar for all classifiers: that of rows whose predicted
class leads all others by a gamma-distributed margin. The family has two parameters, the
accuracy and the shape of the gamma distribution; a curve may deviate from it by a
smooth random function that is zero at the root. With a prior for the root, and noise of
known size, the posterior of ``log T`` is a sum over a grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from skfedcal.contract import Array

# Public constants, chosen on synthetic logits and the outputs of real networks.
# Prior of log T: Student's law with 3 degrees of freedom, wider above the centre, as
# shifted data make networks overconfident far more often than underconfident.
_SCALE_BELOW, _SCALE_ABOVE = 0.4, 0.8
# Shapes of the gamma law (small: rows differ much) and the normal prior of their
# logarithm; logits of the accuracy, scaled from chance to 1, and their normal prior.
_SHAPES = (0.8, 1.2, 1.8, 3.0, 6.0)
_SHAPE_MEAN, _SHAPE_SD = np.log(1.6), 0.6
_LEVELS = np.linspace(-2.5, 4.0, 14)
_LEVEL_MEAN, _LEVEL_SD = 1.0, 1.6
# How far a curve leaves the family, over what distance in log T, and anything else at
# one point.
_FREEDOM, _LENGTH, _JITTER = 0.03, 2.0, 1e-3
# Prior odds of the curve of public rows against all others.
_PUBLIC_ODDS = 4.0
# Variance of ``right - confidence`` in one row, over that of ``right``.
_ROW_VARIANCE = 0.75
# Where curves are tabulated: log T less the logarithm of the mean lead.
CURVE_GRID = np.linspace(-9.0, 9.0, 181)
# Points of log T at a time; the range is narrowed until so few standard deviations
# fill it.
_N_POINTS, _REACH, _MAX_ZOOMS = 49, 6.0, 4
# Posterior over prior spread from which on nothing was learnt.
_LEARNT = 0.8


@dataclass(frozen=True, slots=True)
class Posterior:
    """Posterior of ``log T``: mean, deviation, 95 % interval; `prior_sd` before it."""

    mean: float
    sd: float
    low: float
    high: float
    prior_sd: float

    @property
    def learnt(self) -> bool:
        """Whether the posterior is narrower than the prior."""
        return self.sd < _LEARNT * self.prior_sd


@dataclass(frozen=True, slots=True)
class GapCurves:
    """Family of gap curves, with a prior for the root.

    low, high: Range of ``log T``.
    center: Centre of the prior of ``log T``.
    public_curve: Mean confidence of public rows on `CURVE_GRID`, the most likely curve.
    """

    n_classes: int
    low: float
    high: float
    center: float = 0.0
    public_curve: tuple[float, ...] = ()

    def posterior(
        self, points: Array, gaps: Array, noise: Array, n_rows: float
    ) -> Posterior:
        """Posterior of ``log T`` from mean gaps at `points`.

        points of shape (m,): ``log T`` where the gaps were measured.
        gaps of shape (m,): Gap per row.
        noise of shape (m, m): Covariance of the noise in the gaps.
        n_rows: Number of rows over which the gaps are averaged.
        """
        grid = np.linspace(self.low, self.high, _N_POINTS)
        prior_sd = _moments(grid, _normalised(self._log_prior(grid)))[1]
        for zoom in range(_MAX_ZOOMS):
            weight = _normalised(self._log_posterior(grid, points, gaps, noise, n_rows))
            mean, sd = _moments(grid, weight)
            reach = _REACH * sd + grid[1] - grid[0]
            if 4 * reach > grid[-1] - grid[0] or zoom == _MAX_ZOOMS - 1:
                break
            ends = max(self.low, mean - reach), min(self.high, mean + reach)
            grid = np.linspace(*ends, _N_POINTS)
        chance = np.cumsum(weight) - weight / 2
        low, high = np.interp([0.025, 0.975], chance, grid)
        return Posterior(mean, sd, float(low), float(high), prior_sd)

    def _log_prior(self, grid: Array) -> Array:
        away = grid - self.center
        away = away / np.where(away < 0, _SCALE_BELOW, _SCALE_ABOVE)
        return np.asarray(-2 * np.log1p(away**2 / 3))

    def _log_posterior(
        self, grid: Array, points: Array, gaps: Array, noise: Array, n_rows: float
    ) -> Array:
        """Logarithm of the posterior density, without its constant."""
        away = points - grid[:, None]
        spread = noise + _freedom(away) + _JITTER**2 * np.eye(len(points))
        root = np.linalg.inv(np.linalg.cholesky(spread))
        halves = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(axis=1)
        ones = root.sum(axis=2)[:, :, None]
        curves, log_weights = self._curves()
        accuracy = np.tile(_accuracies(self.n_classes), len(curves))
        there = [_below(curve, self.n_classes, away) for curve in curves]
        off = root @ (accuracy - np.concatenate(there, axis=2) - gaps[:, None])
        # Chance in the rows moves all gaps alike: one more direction of the noise.
        chance = _ROW_VARIANCE * accuracy * (1 - accuracy) / n_rows
        grown = 1 + chance * (ones**2).sum(axis=1)
        square = (off**2).sum(axis=1) - chance * (off * ones).sum(axis=1) ** 2 / grown
        log_weight = log_weights - (square + np.log(grown)) / 2
        top = log_weight.max(axis=1)
        total = top + np.log(np.exp(log_weight - top[:, None]).sum(axis=1))
        return np.asarray(total + halves + self._log_prior(grid))

    def _curves(self) -> tuple[list[Array], Array]:
        """Curves of mean confidence; prior of each of them at each accuracy."""
        levels = -0.5 * ((_LEVELS - _LEVEL_MEAN) / _LEVEL_SD) ** 2
        shapes = -0.5 * ((np.log(_SHAPES) - _SHAPE_MEAN) / _SHAPE_SD) ** 2
        curves = [_gamma_curve(self.n_classes, shape) for shape in _SHAPES]
        if self.public_curve:
            curves.append(np.array(self.public_curve))
            odds = np.log(_PUBLIC_ODDS * np.exp(shapes).sum())
            shapes = np.append(shapes, odds)
        return curves, (shapes[:, None] + levels).ravel()


def _accuracies(n_classes: int) -> Array:
    """Accuracies of the family, from chance to 1."""
    scaled = 1 / (1 + np.exp(-_LEVELS))
    return np.asarray(1 / n_classes + (1 - 1 / n_classes) * scaled)


@lru_cache(maxsize=64)
def _gamma_curve(n_classes: int, shape: float) -> Array:
    """Mean confidence if one logit leads the others by a gamma variable of mean 1."""
    log_lead = np.linspace(-9.0, 3.5, 400)
    lead = np.exp(log_lead)
    weight = np.exp(shape * (log_lead - lead))
    weight /= weight.sum()
    others = (n_classes - 1) * np.exp(-lead[:, None] * np.exp(-CURVE_GRID))
    return np.einsum("i,ij->j", weight, 1 / (1 + others))


def _below(curve: Array, n_classes: int, away: Array) -> Array:
    """Confidence at this distance from where it equals each of the accuracies."""
    start = np.interp(-_accuracies(n_classes), -curve, CURVE_GRID)
    return np.interp(away[:, :, None] + start, CURVE_GRID, curve)


def _freedom(away: Array) -> Array:
    """Covariance of the deviation of a curve from the family, at offsets from the root.

    A smooth random curve (Matern 3/2) less its value at the root.
    """
    between = _smooth(away[:, :, None] - away[:, None, :])
    there = _smooth(away)
    return np.asarray(
        _FREEDOM**2 * (1 + between - there[:, :, None] - there[:, None, :])
    )


def _smooth(distance: Array) -> Array:
    scaled = np.sqrt(3.0) * np.abs(distance) / _LENGTH
    return np.asarray((1 + scaled) * np.exp(-scaled))


def _normalised(log_weight: Array) -> Array:
    weight = np.exp(log_weight - log_weight.max())
    return np.asarray(weight / weight.sum())


def _moments(grid: Array, weight: Array) -> tuple[float, float]:
    mean = float(weight @ grid)
    return mean, float(np.sqrt(weight @ (grid - mean) ** 2))
