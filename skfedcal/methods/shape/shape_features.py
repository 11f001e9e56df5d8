"""Three features of a log-probability, shared by all classes, and the order they keep.

With ``l = log softmax(z / T)`` and ``p = exp(l)`` the map is
``s_j = l_j + theta . phi(max(l_j, -12)) + b_j``, with
``phi = [l, log(p + 0.01), -log(1 - p + 0.01)]``. All features are bounded, and below
-12 the slope of the map is 1: no probability, however small, can make it diverge.

Arrays are classes first. Every operation acts on each entry alone.
"""

from __future__ import annotations

import numpy as np

from skfedcal.contract import Array

# Least argument of the features, and what keeps their logarithms finite.
FLOOR, SOFT = -12.0, 0.01
N_FEATURES = 3

# Lower triangle whose transpose whitens the features: the Cholesky factor of the
# inverse of their mean Hessian over 21 public files, at trace 1.
WHITEN = np.array(
    [
        [8.396534, 0.0, 0.0],
        [-10.064247, 4.307336, 0.0],
        [-0.301203, -5.582768, 2.468346],
    ]
)
# Root mean square of exact whitened shapes over the same files: a prior, and the ridge.
SHAPE_SD = np.array([0.16, 0.12, 0.08])

# Least slope that is left of the order of two classes, in log-probability.
_LEAST_SLOPE = 0.05
_LOGS = np.concatenate([np.linspace(FLOOR, -1, 600), np.linspace(-1, np.log(0.5), 200)])
_PAIRS = np.exp(np.linspace(FLOOR, np.log(0.4999), 800))


def shape_features(log_proba: Array, out: Array | None = None) -> Array:
    """Give phi at each log-probability, the feature on the first axis."""
    if out is None:
        out = np.empty((N_FEATURES, *log_proba.shape))
    low, second, third = out
    np.maximum(log_proba, FLOOR, out=low)
    np.exp(low, out=second)
    np.subtract(1 + SOFT, second, out=third)
    second += SOFT
    np.log(out[1:], out=out[1:])
    np.negative(third, out=third)
    return out


def whitened_features(log_proba: Array) -> Array:
    """Features of unit curvature on a usual network, the feature on the first axis."""
    phi = shape_features(log_proba)
    out = np.empty((N_FEATURES, *log_proba.shape))
    for a in range(N_FEATURES):
        np.multiply(phi[a], WHITEN[a, a], out=out[a])
        for m in range(a + 1, N_FEATURES):
            out[a] += WHITEN[m, a] * phi[m]
    return out


def raw_shape(whitened: Array) -> Array:
    """Weights of phi from those of the whitened features."""
    return np.array([float((row * whitened).sum()) for row in WHITEN])


def shaped(log_proba: Array, theta: Array) -> Array:
    """Add ``theta . phi`` to log-probabilities; -inf stays."""
    out = log_proba.copy()
    if theta.any():
        for weight, feature in zip(theta, shape_features(log_proba), strict=True):
            out += weight * feature
    return out


def order_keeping(theta: Array) -> Array:
    """Scale weights of phi down until no two classes of a row can change their order.

    Two probabilities of a row add up to at most 1. So it suffices that the map
    increases up to 1/2, and that of ``1 - q`` and ``q < 1/2`` the first stays larger.
    """
    proba = np.exp(_LOGS)
    slope = theta[0] + theta[1] * proba / (proba + SOFT)
    slope += theta[2] * proba / (1 + SOFT - proba)
    upper, lower = (
        sum(t * f for t, f in zip(theta, shape_features(logs), strict=True))
        for logs in (np.log1p(-_PAIRS), np.log(_PAIRS))
    )
    pair = (upper - lower) / (np.log1p(-_PAIRS) - np.log(_PAIRS))
    lowest = float(min(slope.min(), pair.min()))
    if lowest >= _LEAST_SLOPE - 1:
        return theta
    out: Array = theta * ((1 - _LEAST_SLOPE) / -lowest)
    return out
