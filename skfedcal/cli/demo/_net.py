"""A small net trained by federated averaging, as the demo's model to calibrate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Clients per round, passes over a client's rows, rows per step, and step size.
COHORT, EPOCHS, BATCH, LEARNING_RATE = 8, 4, 20, 0.1


@dataclass(frozen=True, slots=True)
class Net:
    """One hidden layer."""

    weights: tuple[np.ndarray, ...]

    def logits(self, features: np.ndarray) -> np.ndarray:
        """Scores of each class."""
        hidden, offset, last, bias = self.weights
        return np.maximum(features @ hidden + offset, 0) @ last + bias

    def step(self, features: np.ndarray, labels: np.ndarray) -> Net:
        """One step down the gradient of the mean log loss."""
        hidden, offset, last, bias = self.weights
        active = np.maximum(features @ hidden + offset, 0)
        scores = active @ last + bias
        error = np.exp(scores - scores.max(axis=1, keepdims=True))
        error /= error.sum(axis=1, keepdims=True)
        error[np.arange(len(labels)), labels] -= 1
        error *= LEARNING_RATE / len(labels)
        back = (error @ last.T) * (active > 0)
        return Net(
            (
                hidden - features.T @ back,
                offset - back.sum(axis=0),
                last - active.T @ error,
                bias - error.sum(axis=0),
            )
        )


def train_federated(
    features: np.ndarray,
    labels: np.ndarray,
    client_ids: np.ndarray,
    *,
    n_hidden: int,
    n_rounds: int,
    rng: np.random.Generator,
) -> Net:
    """Average the nets that the clients of each round train on their own rows."""
    n_features, n_classes = features.shape[1], int(labels.max()) + 1
    first = rng.standard_normal((n_features, n_hidden)) * np.sqrt(2 / n_features)
    last = rng.standard_normal((n_hidden, n_classes)) * np.sqrt(1 / n_hidden)
    net = Net((first, np.zeros(n_hidden), last, np.zeros(n_classes)))
    clients = [np.flatnonzero(client_ids == name) for name in np.unique(client_ids)]
    for _ in range(n_rounds):
        chosen = rng.choice(len(clients), min(COHORT, len(clients)), replace=False)
        trained = [_train_local(net, features, labels, clients[i], rng) for i in chosen]
        sizes = [len(clients[i]) for i in chosen]
        layers = zip(*(local.weights for local in trained), strict=True)
        net = Net(tuple(np.average(layer, axis=0, weights=sizes) for layer in layers))
    return net


def _train_local(
    net: Net,
    features: np.ndarray,
    labels: np.ndarray,
    rows: np.ndarray,
    rng: np.random.Generator,
) -> Net:
    for _ in range(EPOCHS):
        order = rng.permutation(rows)
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            net = net.step(features[batch], labels[batch])
    return net
