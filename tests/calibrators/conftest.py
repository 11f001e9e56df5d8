"""An independent float64 optimum of the log loss, and data of known temperature."""

import numpy as np
import pytest
from scipy.optimize import brentq


def _draw(n, c, temperature=1.0, seed=0, spread=1.5, dtype=np.float64):
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * spread
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return (true * temperature).astype(dtype), labels


def _optimum(rows, labels, low=1e-4, high=1e4):
    """Root of the slope of the log loss in log(1 / T), or the nearer bound."""
    gaps = rows.astype(np.float64)
    gaps = gaps - gaps.max(axis=1, keepdims=True)
    own = gaps[np.arange(len(labels)), labels]

    def slope(u):
        weights = np.exp(np.exp(u) * gaps)
        return float(((weights * gaps).sum(axis=1) / weights.sum(axis=1) - own).sum())

    first, last = -np.log(high), -np.log(low)
    if slope(first) >= 0:
        return high
    if slope(last) <= 0:
        return low
    return float(np.exp(-brentq(slope, first, last, xtol=1e-14, rtol=1e-14)))


@pytest.fixture
def draw():
    return _draw


@pytest.fixture
def optimum():
    return _optimum
