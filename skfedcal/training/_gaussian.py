"""Classifiers in closed form, and virtual features, from class statistics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from skfedcal import _numerics
from skfedcal.clients.arrays import read_array
from skfedcal.training.class_statistics import ClassStatistics, MomentState, unpacked

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Quadratic:
    """Log densities of class Gaussians.

    means of shape (n_classes, n_features): Means.
    axes of shape (n_classes, n_features, n_features): Eigenvectors over the roots of
        the eigenvalues: deviations times these have unit covariance.
    offsets of shape (n_classes,): Log priors minus half the log determinants.
    """

    means: Array
    axes: Array
    offsets: Array

    def logits(self, rows: Array) -> Array:
        out = np.empty((len(rows), len(self.means)))
        for c, (mean, axes) in enumerate(zip(self.means, self.axes, strict=True)):
            white = (rows - mean) @ axes
            out[:, c] = self.offsets[c] - 0.5 * np.einsum("ij,ij->i", white, white)
        return out


def given_prior(prior: Any, n_classes: int) -> Array | None:
    """Return the prior that does not depend on rows; None for the empirical one."""
    if isinstance(prior, str):
        same = np.full(n_classes, 1 / n_classes)
        return same if prior == "uniform" else None
    given = read_array(prior, "prior", np.float64)
    wrong = given.shape != (n_classes,) or not (given >= 0).all()
    if wrong or abs(given.sum() - 1) > 1e-6:
        raise ValueError(
            f"prior={given.tolist()} must hold {n_classes} frequencies, one per class "
            "in the order of the sorted labels, that add up to 1."
        )
    return given / given.sum()


def statistics_of(state: MomentState) -> ClassStatistics:
    """Statistics in the unit of the features, regularised against noise.

    Under noise a count is at least one standard deviation of it, a mean lies in the
    ball that all rows lie in, and the scatter has no eigenvalue below the largest that
    noise alone has, ``sqrt(2 d)`` standard deviations.
    """
    size = state.first.shape[1]
    n, s1, s2 = state.counts, state.first, unpacked(state.second, size)
    if state.variance:
        noise = sqrt(state.variance)
        n = np.maximum(n, noise)
        means = s1 / n[:, None]
        scatter = s2 - np.einsum("c,ci,cj->ij", n, means, means)
        scatter = floored(scatter, sqrt(2 * size) * noise)
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1.0)
        s1 = n[:, None] * means
        s2 = scatter + np.einsum("c,ci,cj->ij", n, means, means)
    return ClassStatistics(n, s1 * state.scale, s2 * state.scale**2)


def floored(matrix: Array, lowest: float) -> Array:
    """Symmetric matrix with all eigenvalues raised to `lowest`."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.maximum(values, lowest)) @ vectors.T


def shrunk(cov: Array, shrinkage: float) -> Array:
    """Covariances shrunk toward a multiple of the unit matrix of the same trace."""
    size = cov.shape[-1]
    level = np.trace(cov, axis1=-2, axis2=-1) / size
    return (1 - shrinkage) * cov + shrinkage * level[..., None, None] * np.eye(size)


def linear_discriminant(
    stats: ClassStatistics, prior: Array, shrinkage: float
) -> tuple[Array, Array]:
    """Coefficients and intercepts of Gaussians with one covariance.

    A class without rows or prior has an intercept of -inf.
    """
    means = stats.mean()
    values, vectors = np.linalg.eigh(shrunk(stats.pooled_cov(ddof=0), shrinkage))
    # Directions without any spread are left out, as by a pseudo-inverse.
    kept = values > values[-1] * len(values) * np.finfo(np.float64).eps
    inverse = np.where(kept, 1 / np.where(kept, values, 1.0), 0.0)
    coef = ((means @ vectors) * inverse) @ vectors.T
    intercept = log_prior(stats, prior) - 0.5 * np.einsum("ij,ij->i", coef, means)
    return coef, intercept


def quadratic_discriminant(
    stats: ClassStatistics, prior: Array, shrinkage: float
) -> Quadratic:
    """Gaussians with a covariance each; a class of fewer than 2 rows has the pooled."""
    pooled = shrunk(stats.pooled_cov(ddof=0), shrinkage)
    cov = shrunk(stats.cov(ddof=0), shrinkage)
    cov[stats.n < 2] = pooled
    lowest = max(np.trace(pooled), 1e-300) * np.finfo(np.float64).eps
    values, vectors = np.linalg.eigh(cov)
    values = np.maximum(values, lowest)
    offsets = log_prior(stats, prior) - 0.5 * np.log(values).sum(axis=1)
    return Quadratic(stats.mean(), vectors / np.sqrt(values)[:, None, :], offsets)


def log_prior(stats: ClassStatistics, prior: Array) -> Array:
    """Logarithm of the prior over the classes that have rows."""
    known = np.where(stats.n > 0, prior, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(known / max(known.sum(), 1e-300))


def virtual_features(
    stats: ClassStatistics,
    prior: Array,
    shrinkage: float,
    n_rows: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Draw about `n_rows` rows from the class Gaussians, in proportion to `prior`.

    Eigenvalues below zero, of classes with fewer rows than features, count as zero.
    """
    means, cov = stats.mean(), shrunk(stats.cov(), shrinkage)
    share = np.exp(log_prior(stats, prior))
    rows, labels = [], []
    for c in np.flatnonzero(share):
        size = max(1, round(n_rows * share[c]))
        values, vectors = np.linalg.eigh(cov[c])
        # The symmetric root: eigenvectors of like values are turned by rounding.
        root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
        rows.append(means[c] + rng.standard_normal((size, len(root))) @ root)
        labels.append(np.full(size, c))
    return np.concatenate(rows), np.concatenate(labels)


def sampled_discriminant(
    stats: ClassStatistics,
    prior: Array,
    shrinkage: float,
    n_rows: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Coefficients and intercepts of a softmax regression on virtual features."""
    rows, labels = virtual_features(stats, prior, shrinkage, n_rows, rng)
    coef = np.zeros(stats.s1.shape)
    intercept = np.full(len(stats.n), -np.inf)
    seen = np.unique(labels)
    # Unit covariance makes the regression quick, and its ridge the same for all units.
    centre = rows.mean(axis=0)
    values, vectors = np.linalg.eigh(np.atleast_2d(np.cov((rows - centre).T)))
    kept = values > max(values[-1], 0.0) * len(values) * np.finfo(np.float64).eps
    if len(seen) == 1 or not kept.any():
        intercept[seen] = log_prior(stats, prior)[seen]
        return coef, intercept
    axes = vectors[:, kept] / np.sqrt(values[kept])
    model = LogisticRegression(max_iter=1000).fit((rows - centre) @ axes, labels)
    own, offset = model.coef_, model.intercept_
    if len(seen) == 2:
        # One column of log-odds: halves of both signs leave no class at zero.
        own, offset = np.vstack([-own, own]) / 2, np.r_[-offset, offset] / 2
    coef[seen] = own @ axes.T
    intercept[seen] = offset - coef[seen] @ centre
    return coef, intercept


def retrained(
    coef: Array,
    intercept: Array,
    rows: Array,
    labels: Array,
    *,
    epochs: int,
    batch_size: int | None,
    steps: Callable[[Array], Callable[[Array], None]],
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Last layer after gradient steps on rows, as a client would make them.

    steps: From the layer to a function that moves it by a gradient.
    """
    layer = np.column_stack([coef, intercept])
    inputs = np.column_stack([rows, np.ones(len(rows))])
    step = steps(layer)
    size = batch_size or len(rows)
    for _ in range(epochs):
        order = rng.permutation(len(rows))
        for start in range(0, len(rows), size):
            batch = order[start : start + size]
            slope = _numerics.softmax(inputs[batch] @ layer.T)
            slope[np.arange(len(batch)), labels[batch]] -= 1.0
            step(slope.T @ inputs[batch] / len(batch))
    return layer[:, :-1], layer[:, -1]
