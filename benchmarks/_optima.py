"""Tight optima of the plain log loss of affine maps, to hold fits against.

Libraries take their maps on different rows: ours are shifted to a mean of zero,
torch-uncertainty takes logits as they are and probmetrics log-probabilities. These are
different maps, and each fit is held against the optimum on its own rows.
"""

from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import log_softmax

from benchmarks._harness import OURS

# Slopes of the mean log loss at the optimum: the loss is then off by about their
# square over its curvature, far less than any excess that is told.
TIGHT = 1e-7

ROWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    OURS: lambda logits: logits - logits.mean(axis=1, keepdims=True),
    "torch-uncertainty": lambda logits: logits,
    "probmetrics": lambda logits: log_softmax(logits, axis=1),
}


def inverse_temperature(logits: np.ndarray, labels: np.ndarray, near: float) -> float:
    """Return the root of the float64 gradient of the log loss in 1 / T.

    It is looked for around `near` first, which saves passes over large inputs.
    """
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    own = np.take_along_axis(shifted, labels[:, None], axis=1).mean()

    def slope(log_beta: float) -> float:
        proba = np.exp(log_softmax(np.exp(log_beta) * shifted, axis=1))
        return float(np.einsum("ij,ij->", proba, shifted)) / len(labels) - own

    low, high = np.log(near) - 1e-4, np.log(near) + 1e-4
    if slope(low) > 0 or slope(high) < 0:
        low, high = -4.0, 4.0
    return float(np.exp(brentq(slope, low, high, xtol=1e-13)))


def least_loss(
    kind: str, library: str, logits: np.ndarray, labels: np.ndarray
) -> float:
    """Least mean log loss of a 'vector', 'matrix' or 'bias' map on the given rows."""
    rows = ROWS[library](logits.astype(np.float64))
    n_rows, n_classes = rows.shape
    truth = np.zeros_like(rows)
    truth[np.arange(n_rows), labels] = 1 / n_rows
    start = {
        "vector": np.ones(n_classes),
        "matrix": np.eye(n_classes).ravel(),
        "bias": np.ones(1),
    }[kind]

    def scaled(scale: np.ndarray) -> np.ndarray:
        if kind == "matrix":
            return rows @ scale.reshape(n_classes, n_classes).T
        return scale * rows

    def slope_of(scale: np.ndarray) -> np.ndarray:
        if kind == "matrix":
            return (scale.T @ rows).ravel()
        by_class = np.einsum("ij,ij->j", scale, rows)
        return by_class if kind == "vector" else by_class.sum(keepdims=True)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        log_proba = log_softmax(scaled(point[:-n_classes]) + point[-n_classes:], axis=1)
        residual = np.exp(log_proba) / n_rows - truth
        value = -float(log_proba[np.arange(n_rows), labels].mean())
        return value, np.r_[slope_of(residual), residual.sum(axis=0)]

    found = minimize(
        loss,
        np.r_[start, np.zeros(n_classes)],
        jac=True,
        method="L-BFGS-B",
        options={"gtol": TIGHT, "ftol": 0, "maxiter": 5000, "maxcor": 30,
                 "maxfun": 10_000},
    )  # fmt: skip
    steepest = np.abs(loss(found.x)[1]).max()
    if not steepest <= 10 * TIGHT:
        raise AssertionError(f"{kind} of {library}: a slope of {steepest:.1e} is left")
    return float(found.fun)
