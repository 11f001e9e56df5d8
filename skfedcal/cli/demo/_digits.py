"""A base model and a federation made of scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Standard deviation of the noise on pixels in [0, 1]; with clean digits the base model
# is right too often to have much to calibrate.
PIXEL_NOISE = 0.2

# Seed of the digits and the base model if the user gives none: both are public.
PUBLIC_SEED = 0


@dataclass(frozen=True, slots=True)
class DemoSize:
    """Size of the demo."""

    n_train: int = 200
    n_calibration: int = 600
    n_clients: int = 100
    alpha: float = 0.1
    n_trainers: int = 40
    n_hidden: int = 64
    n_rounds: int = 150


@dataclass(frozen=True, slots=True)
class DigitsFederation:
    """Logits of the base model, for the clients and for the test."""

    logits: np.ndarray
    labels: np.ndarray
    client_ids: np.ndarray
    test_logits: np.ndarray
    test_labels: np.ndarray


def digit_views(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return nine views of each image: moved by up to one pixel, with fresh noise.

    Parameters
    ----------
    images : ndarray of shape (n, 8, 8)
        Pixels in [0, 1].
    rng : Generator
        Source of the noise.

    Returns
    -------
    views : ndarray of shape (n, 9, 64)
        Views of one image are neighbours.
    """
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    moved = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    views = np.stack(moved, axis=1).reshape(len(images), 9, -1)
    return views + PIXEL_NOISE * rng.standard_normal(views.shape)


def make_digits_federation(size: DemoSize, seed: int) -> DigitsFederation:
    """Train the base model and compute its logits for the digits of clients and test.

    A digit is used in one place only, and all its views belong to one client. A test
    digit is shown once, so that test rows are independent, which the finite-sample
    floor assumes.
    """
    from sklearn.datasets import load_digits

    from skfedcal.cli.demo._net import train_federated
    from skfedcal.data import DirichletPartitioner

    rng = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    order = rng.permutation(len(labels))
    views = digit_views(images[order].reshape(-1, 8, 8) / 16, rng)
    train, clients, test = np.split(
        np.arange(len(labels)), [size.n_train, size.n_train + size.n_calibration]
    )
    labels = labels[order]
    # Few classes per client in training: the net favours some of them.
    trainers = DirichletPartitioner(
        size.n_trainers, size.alpha, min_size=0, random_state=seed
    )
    net = train_federated(
        views[train].reshape(-1, 64),
        np.repeat(labels[train], 9),
        np.repeat(trainers.assign(labels[train]), 9),
        n_hidden=size.n_hidden,
        n_rounds=size.n_rounds,
        rng=rng,
    )
    partitioner = DirichletPartitioner(size.n_clients, size.alpha, random_state=seed)
    shown = rng.integers(9, size=len(test))
    return DigitsFederation(
        logits=net.logits(views[clients].reshape(-1, 64)),
        labels=np.repeat(labels[clients], 9),
        client_ids=np.repeat(partitioner.assign(labels[clients]), 9),
        test_logits=net.logits(views[test, shown]),
        test_labels=labels[test],
    )
