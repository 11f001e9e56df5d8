"""Rows that tables are made from, and what is measured on test rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._params import as_number
from skfedcal.clients import DirichletPartitioner, IIDPartitioner
from skfedcal.clients.arrays import distinct, read_array
from skfedcal.compose.folds import holdout_rows
from skfedcal.metrics import (
    calibration_floor,
    classwise_calibration_error,
    expected_calibration_error,
    negative_log_likelihood,
)

Array = NDArray[Any]
Rows = tuple[Array, Array, Array]


@dataclass(frozen=True, slots=True)
class Split:
    """Rows of clients to train on and to calibrate on, rows for the test; labels."""

    train: Rows
    calibration: Rows
    test: tuple[Array, Array]
    classes: Array


def read_rows(X: ArrayLike | None, y: ArrayLike | None) -> tuple[Array, Array]:
    """Rows and labels; without any, scikit-learn's digits with pixels up to 1."""
    if X is None and y is None:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        return (images / 16).astype(np.float32), labels
    if X is None or y is None:
        raise ValueError("Pass both X and y, or neither for scikit-learn's digits.")
    rows, labels = read_array(X, "X"), read_array(y, "y")
    if rows.ndim < 2 or labels.shape != rows.shape[:1]:
        raise ValueError(
            f"X has shape {rows.shape} and y shape {labels.shape}; pass rows of "
            "features, and one label for each."
        )
    return rows, labels


def read_splits(
    X: ArrayLike | None,
    y: ArrayLike | None,
    alphas: Sequence[float | None],
    seeds: Sequence[int],
    **sizes: Any,
) -> Iterator[tuple[dict[str, Any], Split]]:
    """Yield a split for each skew and seed, with these by name ('IID' for None)."""
    rows, labels = read_rows(X, y)
    check_lists(alphas=alphas, seeds=seeds)
    for seed in seeds:
        if not isinstance(seed, Integral):
            raise TypeError(f"seeds has {seed!r}; pass whole numbers.")
    for alpha in alphas:
        if alpha is not None:
            as_number("alpha", alpha)
    for alpha in alphas:
        for seed in seeds:
            name = "IID" if alpha is None else float(alpha)
            split = split_rows(rows, labels, alpha=alpha, seed=seed, **sizes)
            yield {"alpha": name, "seed": int(seed)}, split


def check_lists(**given: Any) -> None:
    """Raise for an empty list."""
    for name, values in given.items():
        listed = isinstance(values, list | tuple | range | np.ndarray)
        if not listed or getattr(values, "shape", None) == ():
            raise TypeError(f"{name}={values!r}: pass a list.")


def split_rows(
    X: Array,
    y: Array,
    *,
    n_clients: int,
    alpha: float | None,
    test_size: float,
    calibration_size: float = 0.0,
    seed: int,
) -> Split:
    """Assign a stratified part of the rows to clients, each of which holds some out.

    `alpha` is the Dirichlet parameter of label skew; None deals at random.
    """
    from sklearn.model_selection import train_test_split

    classes = distinct(y, "y")
    X, test_X, y, test_y = train_test_split(
        X, y, test_size=test_size, random_state=seed, stratify=y
    )
    partitioner = (
        IIDPartitioner(n_clients, random_state=seed)
        if alpha is None
        else DirichletPartitioner(n_clients, alpha, random_state=seed)
    )
    ids = partitioner.assign(y)
    held = np.zeros(len(y), dtype=bool)
    if calibration_size:
        held = holdout_rows(y, ids, calibration_size, np.random.default_rng(seed))
    return Split(
        (X[~held], y[~held], ids[~held]),
        (X[held], y[held], ids[held]),
        (test_X, test_y),
        classes,
    )


def give_totals(estimator: Any, labels: Array, n_classes: int) -> None:
    """Set the rows of each class where bins are weighted by them and nobody gave them.

    In a simulation all rows are at hand; the paper's server knows these numbers too.
    """
    params = estimator.get_params(deep=False)
    model = params.get("privacy")
    private = params.get("eps") is not None or getattr(model, "private", False)
    weighted = params.get("weighting") is not None
    if weighted and not private and params.get("class_totals") is None:
        totals = np.bincount(labels, minlength=n_classes)
        estimator.set_params(class_totals=totals)


# Columns and how they are shown.
SCORES = {
    "accuracy": ".1%",
    "balanced": ".1%",
    "cwECE": ".2%",
    "floor": ".2%",
    "ECE": ".2%",
    "NLL": ".3f",
}


def score(
    labels: Array, proba: Array, classes: Array, seed: int, n_bins: int = 15
) -> dict[str, float]:
    """Scores of probabilities whose columns are `classes`.

    `balanced` is the mean over classes of the share of their rows that are right;
    `floor` the cwECE that a calibrated model would show on as many rows, `floor_sd` its
    deviation.
    """
    right = classes[proba.argmax(axis=1)] == labels
    by_class = [right[labels == name].mean() for name in np.unique(labels)]
    floor = calibration_floor(
        proba,
        metric="classwise_calibration_error",
        n_bins=n_bins,
        random_state=seed,
    )
    named: dict[str, Any] = {"labels": classes, "n_bins": n_bins}
    return {
        "accuracy": float(right.mean()),
        "balanced": float(np.mean(by_class)),
        "cwECE": float(classwise_calibration_error(labels, proba, **named)),
        "floor": float(floor.mean),
        "floor_sd": float(floor.std),
        "ECE": float(expected_calibration_error(labels, proba, **named)),
        "NLL": float(
            negative_log_likelihood(labels, proba, labels=classes, min_prob="replace")
        ),
    }
