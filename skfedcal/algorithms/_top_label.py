"""The predicted class of a row: how far it leads, its confidence, whether it is right.

Every operation acts on each row alone, so that a row gives the same bits in any block,
for one client or many.
"""

from __future__ import annotations

import numpy as np

from skfedcal import _logits
from skfedcal.algorithms._base import Array
from skfedcal.data._dataset import Block


def leads(block: Block) -> tuple[Array, Array]:
    """Logits below the largest of their row, and how far the predicted class is right.

    Each of ``k`` classes that share the largest logit is predicted with chance
    ``1 / k``: the order of the columns does not matter.
    """
    gaps = _logits.center(block.rows.astype(np.float64, order="C", copy=False))
    np.maximum(gaps, -_logits.MAX_SPAN, out=gaps)
    top = gaps == 0
    right = top[np.arange(len(gaps)), block.labels] / top.sum(axis=1)
    return gaps, right


def confidence(gaps: Array, temperature: float) -> Array:
    """Probability of the predicted class at a temperature."""
    return 1 / _weights(gaps, temperature)[1]


def mean_confidence(logits: Array, temperatures: Array) -> Array:
    """Mean over rows of the probability of the predicted class."""
    gaps = np.maximum(_logits.center(logits), -_logits.MAX_SPAN)
    return np.array([confidence(gaps, float(t)).mean() for t in temperatures])


def confidence_moments(gaps: Array, temperature: float) -> tuple[Array, Array, Array]:
    """Confidence with its first two derivatives in ``log T``."""
    weights, total = _weights(gaps, temperature)
    first = np.einsum("ij,ij->i", weights, gaps) / total / temperature
    second = np.einsum("ij,ij,ij->i", weights, gaps, gaps) / total / temperature**2
    value = 1 / total
    return value, value * first, -value * (first + second - 2 * first**2)


def clipped_loss(gaps: Array, labels: Array, temperature: float, clip: float) -> Array:
    """Log loss of each row, cut at `clip`."""
    own = gaps[np.arange(len(gaps)), labels] / temperature
    return np.minimum(np.log(_weights(gaps, temperature)[1]) - own, clip)


def clipped_slope(gaps: Array, labels: Array, temperature: float, clip: float) -> Array:
    """Slope of each row's log loss in ``-1 / T``, cut at ``+-clip``.

    It rises with T, and so does the cut slope: where the sum of cut slopes crosses zero
    is still one place.
    """
    weights, total = _weights(gaps, temperature)
    mean = np.einsum("ij,ij->i", weights, gaps) / total
    own = gaps[np.arange(len(gaps)), labels]
    return np.clip(own - mean, -clip, clip)


def _weights(gaps: Array, temperature: float) -> tuple[Array, Array]:
    weights = gaps / temperature
    np.exp(weights, out=weights)
    return weights, np.einsum("ij->i", weights)
