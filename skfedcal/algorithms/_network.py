"""Small networks of dense layers, for many clients at once, in numpy.

A layer is one matrix of shape (n_in + 1, n_out) whose last row is the bias. Products of
stacks are one BLAS call of one shape per client, so that a client's numbers do not
depend on which others are computed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from skfedcal.algorithms._base import Array


def layer_shapes(n_classes: int, hidden: Sequence[int]) -> list[tuple[int, int]]:
    """Shapes of the matrices, bias rows included."""
    widths = (n_classes, *hidden, n_classes)
    return [(a + 1, b) for a, b in pairwise(widths)]


def split_layers(params: Array, shapes: Sequence[tuple[int, int]]) -> list[Array]:
    """Cut (..., n_params) into matrices (..., n_in + 1, n_out), as views."""
    ends = np.cumsum([a * b for a, b in shapes])
    parts = np.split(params, ends[:-1], axis=-1)
    return [p.reshape(*p.shape[:-1], *s) for p, s in zip(parts, shapes, strict=True)]


def start_params(shapes: Sequence[tuple[int, int]], bias: float, seed: int) -> Array:
    """Hidden layers drawn as torch does; a last layer that gives `bias` for any row."""
    rng = np.random.default_rng(seed)
    layers = [rng.uniform(-1, 1, shape) / np.sqrt(shape[0] - 1) for shape in shapes]
    layers[-1][:-1], layers[-1][-1] = 0.0, bias
    return np.concatenate([layer.ravel() for layer in layers])


def forward(layers: Sequence[Array], rows: Array) -> list[Array]:
    """Inputs of each layer, with their column of ones, and the output.

    Parameters
    ----------
    layers : list of ndarray of shape (n_clients, n_in + 1, n_out)
        Layers of each client.
    rows : ndarray of shape (n_clients, n_rows, n_in)
        Input, padded to the same number of rows.
    """
    inputs: list[Array] = []
    for layer in layers:
        inputs.append(_with_ones(rows if not inputs else np.maximum(rows, 0.0)))
        rows = np.matmul(inputs[-1], layer)
    return [*inputs, rows]


def backward(
    layers: Sequence[Array], inputs: Sequence[Array], slope: Array
) -> list[Array]:
    """Gradients of all layers from the slope of the loss in the output."""
    gradients = []
    for layer, own in zip(reversed(layers), reversed(inputs), strict=True):
        gradients.append(np.matmul(own.transpose(0, 2, 1), slope))
        if len(gradients) < len(layers):
            slope = np.matmul(slope, layer[:, :-1].transpose(0, 2, 1))
            slope *= own[:, :, :-1] > 0
    return gradients[::-1]


def predict(layers: Sequence[Array], columns: Array) -> Array:
    """Output of shape (n_out, n_rows) for rows of shape (n_in, n_rows).

    BLAS treats the last rows of a block differently; inputs are therefore added up one
    after the other, so that a row has the same bits in any batch.
    """
    for i, layer in enumerate(layers):
        inputs = columns if i == 0 else np.maximum(columns, 0.0)
        columns = np.repeat(layer[-1][:, None], inputs.shape[1], axis=1)
        for own, weights in zip(inputs, layer[:-1], strict=True):
            columns += weights[:, None] * own
    return columns


def squared_lengths(gradients: Sequence[Array]) -> Array:
    """Squared norm of all gradients together, by client."""
    flat = [g.reshape(len(g), -1) for g in gradients]
    return sum(np.matmul(g[:, None], g[:, :, None])[:, 0, 0] for g in flat)


def _with_ones(rows: Array) -> Array:
    out = np.empty((*rows.shape[:-1], rows.shape[-1] + 1))
    out[..., :-1], out[..., -1] = rows, 1.0
    return out
