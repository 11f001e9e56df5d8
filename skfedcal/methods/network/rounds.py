"""A small network on logits: client updates and server averaging.

Small networks of dense layers, for many clients at once, in numpy. A layer is one
matrix of shape (n_in + 1, n_out) whose last row is the bias. Products of stacks are one
BLAS call of one shape per client, so that a client's numbers do not depend on which
others are computed with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from skfedcal import _numerics
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
    server_field,
)
from skfedcal.methods.graph import Value, softplus
from skfedcal.methods.map_formulas import centred_rows, stretched
from skfedcal.methods.scaling.families import SMALLEST_SLOPE, UNIT_OFFSET, canonical


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

    layers of shape (n_clients, n_in + 1, n_out): Layers of each client.
    rows of shape (n_clients, n_rows, n_in): Input, padded to the same number of rows.
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


# Longest gradient of a step. On the logits of five real networks 99 % of them are
# shorter than 8; rows with logits of 1e4 would throw the weights out of range.
MAX_GRADIENT = 10.0

# Parameters of the clients that are trained side by side (float64: 4 MB), so that
# they and their gradients stay in the cache.
_CHUNK_PARAMS = 1 << 19

# Most work that a site does for one answer.
MAX_LAYERS, MAX_UNITS, MAX_EPOCHS, MAX_BATCH = 16, 1 << 16, 100, 1 << 20
# Most products of epochs and parameters; half a minute for a thousand rows.
MAX_WORK = 2e7

# Public seed of the order in which rows are visited.
_ORDER_SEED = 20_260


@dataclass(frozen=True, slots=True)
class MLPState:
    """Parameters of the server, initial parameters, and the variance of the noise."""

    params: Array
    start: Array
    variance: float = 0.0
    rounds: int = 0

    @property
    def improves(self) -> bool:
        """Whether the change of the parameters exceeds what noise would produce.

        The squared length of d numbers of noise is ``d v`` on average, with a spread of
        ``v sqrt(2 d)``. Near an optimum, parameters whose error is as large as their
        change are as bad as the initial ones.
        """
        size = len(self.params)
        length = float(np.square(self.params - self.start).sum())
        return length > self.variance * (2 * size + 3 * np.sqrt(2 * size))


@dataclass(frozen=True, slots=True)
class MLPAveraging:
    """Minibatch gradient descent at each client, averaged by the server.

    A client starts at the server's parameters, runs `epochs` passes over its own rows
    and sends the difference; the server adds the mean of the differences.

    hidden: Widths of the hidden layers.
    epochs, batch_size: Passes over a client's rows, and rows of one step.
    learning_rate: Step length.
    order_preserving: Whether the network gives factors of the gaps between sorted
        logits, or terms that are added to the logits.
    clip: L2 bound on the difference that a client sends.
    seed: Seed of the first parameters; public.
    server_rate: Factor of the mean that the server adds.
    """

    hidden: tuple[int, ...] = (64, 64)
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 0.01
    order_preserving: bool = True
    clip: float | None = None
    seed: int = 0
    n_rounds: int = 12
    server_rate: float = server_field(1.0)

    def init(self, n_classes: int) -> MLPState:
        bias = UNIT_OFFSET if self.order_preserving else 0.0
        shapes = layer_shapes(n_classes, self.hidden)
        start = start_params(shapes, bias, self.seed)
        return MLPState(start, start)

    def broadcast(self, state: MLPState) -> Arrays:
        return {"params": state.params}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        blocks = {"update": BlockSpec(broadcast["params"].shape, clip=self.clip)}
        if self.clip is None:
            blocks["filled"] = BlockSpec((1,), kind="count")
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("len(hidden)", len(self.hidden), 0, MAX_LAYERS)
        check_range("hidden", min(self.hidden, default=1), 1, MAX_UNITS)
        check_range("hidden", max(self.hidden, default=1), 1, MAX_UNITS)
        check_range("epochs", self.epochs, 0, MAX_EPOCHS)
        check_range("batch_size", self.batch_size, 1, MAX_BATCH)
        shapes = layer_shapes(n_classes, self.hidden)
        size = sum(map(prod, shapes))
        check_range("epochs * parameters", self.epochs * size, 0, MAX_WORK)
        return ({"params": Field((size,))},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        params = broadcast["params"]
        update = np.zeros((len(clients), len(params)))
        answer: dict[str, Array] = {"update": update}
        if self.clip is None:
            answer["filled"] = clients.filled.astype(np.int64)[:, None]
        clients = _without_zero_weights(clients)
        # Clients of like size are trained together, so that few wait for the largest.
        order = np.argsort(-clients.sizes, kind="stable")
        order = order[: np.count_nonzero(clients.sizes)]
        chunk = max(1, _CHUNK_PARAMS // len(params))
        for i in range(0, len(order), chunk):
            where = order[i : i + chunk]
            update[where] = self._train(params, clients.select(where).compact())
        return answer

    def update(self, state: MLPState, total: Sums, n_clients: int) -> MLPState:
        # Empty clients have not moved; under a bound their number stays hidden.
        n_filled = (
            max(float(total["filled"][0]), 1.0) if "filled" in total else n_clients
        )
        noise = self.server_rate * total.noise.get("update", 0.0) / n_filled
        return replace(
            state,
            params=state.params + self.server_rate * (total["update"] / n_filled),
            variance=state.variance + noise**2,
            rounds=state.rounds + 1,
        )

    def done(self, state: MLPState) -> bool:
        return False

    def _train(self, params: Array, clients: FederatedDataset) -> Array:
        """Update of `params` by each client; the largest client first."""
        shapes = layer_shapes(clients.n_classes, self.hidden)
        start = split_layers(params, shapes)
        layers = [np.repeat(layer[None], len(clients), axis=0) for layer in start]
        rows = Batch.of(clients)
        for picked, present in self._steps(clients.sizes, clients.offsets[:-1]):
            active = [layer[: len(picked)] for layer in layers]
            gradients = self.gradients(active, rows.take(picked, present))
            length = np.sqrt(squared_lengths(gradients))
            step = self.learning_rate / np.maximum(length / MAX_GRADIENT, 1.0)
            for layer, gradient in zip(active, gradients, strict=True):
                gradient *= step[:, None, None]
                layer -= gradient
        moved = [new - old for new, old in zip(layers, start, strict=True)]
        return np.concatenate([m.reshape(len(m), -1) for m in moved], axis=1)

    def gradients(self, layers: list[Array], batch: Batch) -> list[Array]:
        """Gradients of each client's weighted log loss on its part of a batch.

        layers of shape (n_clients, n_in + 1, n_out): Layers of each client.
        batch: As many rows of each client.
        """
        *inputs, output = forward(layers, batch.rows)
        if not self.order_preserving:
            return backward(layers, inputs, batch.slope(batch.rows + output))
        factors, change = positive_factors(output)
        falls = batch.gaps * np.take_along_axis(factors, batch.order, axis=-1)
        # A gap lowers all classes of smaller logits, and is moved by those above it.
        falling = np.zeros_like(falls)
        np.cumsum(-falls[..., :-1], axis=-1, out=falling[..., 1:])
        slope = batch.slope(_unsorted(falling, batch.order))
        slope = np.cumsum(np.take_along_axis(slope, batch.order, axis=-1), axis=-1)
        slope = _unsorted(slope * batch.gaps, batch.order) * change
        return backward(layers, inputs, slope)

    def _steps(self, sizes: Array, starts: Array) -> Iterator[tuple[Array, Array]]:
        """Rows of each step, and which are there, for the clients that have some left.

        `sizes` fall, so that these clients are the first ones.
        """
        place = np.arange(self.batch_size)
        for epoch in range(self.epochs):
            visits = visiting_order(sizes, starts, epoch)
            for first in range(0, int(sizes.max(initial=0)), self.batch_size):
                n_active = int(np.count_nonzero(sizes > first))
                left = sizes[:n_active, None] - first
                where = starts[:n_active, None] + first + np.minimum(place, left - 1)
                yield visits[where], place < left


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows with the values that the loss needs; with any leading axes.

    rows, masked, order, gaps of shape (..., n_classes): As in `CanonicalRows`, classes
        last; `masked` is None when nothing is.
    labels, weights of shape (...): Class and weight of each row.
    """

    rows: Array
    masked: Array | None
    order: Array
    gaps: Array
    labels: Array
    weights: Array

    @classmethod
    def of(cls, clients: FederatedDataset) -> Batch:
        """All rows of compact clients."""
        rows = canonical(clients.rows, ranked=True)
        labels = clients.labels.astype(np.intp)
        weights = np.ones(len(labels))
        if clients.weights is not None:
            weights *= clients.weights
        masked = None
        if rows.masked is not None:
            masked = np.ascontiguousarray(rows.masked.T)
            # The loss is infinite whatever the parameters.
            weights[masked[np.arange(len(labels)), labels]] = 0.0
        parts = (
            np.ascontiguousarray(v.T) for v in (rows.values, rows.ranks, rows.gaps)
        )
        values, order, gaps = parts
        return cls(values, masked, order, gaps, labels, weights)

    def take(self, picked: Array, present: Array) -> Batch:
        """Rows at these positions, with weights that add up to 1 for each client."""
        weights = np.where(present, self.weights[picked], 0.0)
        total = np.einsum("ij->i", weights)
        weights /= np.where(total > 0, total, 1.0)[:, None]
        return Batch(
            self.rows[picked],
            None if self.masked is None else self.masked[picked],
            self.order[picked],
            self.gaps[picked],
            self.labels[picked],
            weights,
        )

    def slope(self, logits: Array) -> Array:
        """Slope of the weighted log loss in `logits`, which are overwritten."""
        if self.masked is not None:
            logits[self.masked] = -np.inf
        flat = logits.reshape(-1, logits.shape[-1])
        slope = _numerics.softmax(flat)
        slope[np.arange(len(flat)), self.labels.ravel()] -= 1.0
        slope *= self.weights.reshape(-1, 1)
        return slope.reshape(logits.shape)


def positive_factors(output: Array) -> tuple[Array, Array]:
    """Floored softplus of the output of a network, and its derivative."""
    small = np.exp(-np.abs(output))
    factors = np.maximum(output, 0.0) + np.log1p(small)
    change = np.where(output > 0, 1.0, small) / (1.0 + small)
    change[factors < SMALLEST_SLOPE] = 0.0
    return np.maximum(factors, SMALLEST_SLOPE), change


def visiting_order(sizes: Array, starts: Array, epoch: int) -> Array:
    """Order in which clients visit their rows; it depends on their number only."""
    order = np.empty(int(sizes.sum()), dtype=np.intp)
    for size in np.unique(sizes):
        rng = np.random.default_rng([_ORDER_SEED, epoch, int(size)])
        first = starts[sizes == size, None]
        order[first + np.arange(size)] = first + rng.permutation(int(size))
    return order


def _without_zero_weights(clients: FederatedDataset) -> FederatedDataset:
    """Drop rows of weight 0, which would only reduce the batches."""
    if clients.weights is None or clients.weights.all():
        return clients
    counts = np.flatnonzero(clients.weights)
    keep = np.zeros(len(clients.rows), dtype=bool)
    keep[counts if clients.order is None else clients.order[counts]] = True
    return clients.keep_rows(keep)


def _unsorted(values: Array, order: Array) -> Array:
    out = np.empty_like(values)
    np.put_along_axis(out, order, values, axis=-1)
    return out


# The map


def network(cal: Any, logits: Value) -> Value:
    """A small network whose output multiplies gaps, or is added to the logits."""
    rows, masked = centred_rows(logits)
    layers = zip(cal.coefs_, cal.intercepts_, strict=True)
    out = rows
    for i, (weights, bias) in enumerate(layers):
        out = (out.at_least(0.0) if i else out) @ weights + bias
    if not cal.order_preserving:
        return masked.choose(-np.inf, logits + out)
    factors = softplus(out).at_least(SMALLEST_SLOPE)
    return stretched(cal, logits, factors, logits)
