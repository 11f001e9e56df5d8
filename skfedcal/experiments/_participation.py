"""Rounds and uncertainty by share of clients and local epochs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from math import nan
from typing import Any

from numpy.typing import ArrayLike

from skfedcal._params import as_number
from skfedcal.experiments._methods import with_defaults
from skfedcal.experiments._results import ResultTable
from skfedcal.experiments._splits import Split, check_lists, read_splits
from skfedcal.experiments._store import CellStore
from skfedcal.training import FedAvgClassifier

DEFAULTS = {
    "module_params": {"hidden": (64,)},
    "n_rounds": 100,
    "batch_size": 10,
    "lr": 0.1,
}
VALUES = {
    "reached": ".0%",
    "rounds": ".1f",
    "passes": ".0f",
    "accuracy": ".1%",
    "entropy": ".3f",
    "variation ratio": ".3f",
    "ECE": ".2%",
    "NLL": ".3f",
}


def participation_grid(
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    shares: Sequence[float] = (0.1, 0.2, 0.5, 1.0),
    epochs: Sequence[int] = (1, 5, 10),
    target_accuracy: float = 0.9,
    alpha: float | None = None,
    n_clients: int = 50,
    test_size: float = 0.2,
    seeds: Sequence[int] = (0, 1, 2),
    store: str | os.PathLike[str] | None = None,
    **params: Any,
) -> ResultTable:
    """Count rounds to an accuracy by share of clients (C) and local epochs (E).

    With the uncertainty and the calibration of the model at the end, which is the
    round that reaches the target, or the last one. Needs torch.

    Parameters
    ----------
    X, y : array-like, default=None
        Rows and labels; None is scikit-learn's digits.
    shares : sequence of float, default=(0.1, 0.2, 0.5, 1.0)
        Shares C of the clients that take part in a round.
    epochs : sequence of int, default=(1, 5, 10)
        Passes E over its rows that a client makes in a round.
    target_accuracy : float, default=0.9
        Accuracy on the test rows at which a run ends.
    alpha : float, default=None
        Dirichlet parameter of label skew; None deals rows at random.
    n_clients : int, default=50
        Clients.
    test_size : float, default=0.2
        Share of all rows for the test, which decide when to stop.
    seeds : sequence of int, default=(0, 1, 2)
        Each makes another test set, other clients and other first parameters.
    store : str or path-like, default=None
        Folder for finished fits; an interrupted run continues from them.
    **params : dict
        Parameters of `FedAvgClassifier`. Unless given: an MLP of 64, at most 100
        rounds, batches of 10, ``lr=0.1``.

    Returns
    -------
    ResultTable
        Rows by C and E: share of runs that reached the target, their rounds (of those
        that did), passes over a client's rows in all (rounds, clients and epochs),
        accuracy, predictive entropy, variation ratio, ECE and NLL at the end.

    References
    ----------
    .. [1] "Uncertainty Estimation and Calibration Measurement in Federated Learning for
       Image Classification".
    .. [2] McMahan et al., "Communication-Efficient Learning of Deep Networks from
       Decentralized Data", AISTATS 2017.

    Examples
    --------
    >>> from skfedcal.experiments import participation_grid
    >>> grid = participation_grid(
    ...     shares=[0.2], epochs=[1, 5], seeds=[0], target_accuracy=0.6
    ... )
    >>> one, five = grid.rows
    >>> five["rounds"] < one["rounds"]
    True
    """
    merged = with_defaults(params, DEFAULTS)
    check_lists(shares=shares, epochs=epochs)
    as_number("target_accuracy", target_accuracy)
    sizes = {"n_clients": n_clients, "test_size": test_size}
    cells, data = CellStore(store), (X, y)
    runs = []
    for names, split in read_splits(X, y, [alpha], seeds, **sizes):
        for share, n_epochs in product(shares, epochs):
            clf = FedAvgClassifier(
                clients_per_round=share,
                local_epochs=n_epochs,
                eval_set=split.test,
                target_accuracy=target_accuracy,
                classes=split.classes,
                random_state=names["seed"],
                **merged,
            )
            work = partial(_end, clf, split, target_accuracy)
            settings = {**names, **sizes, "data": data, "params": clf.get_params()}
            cell = {"C": share, "E": n_epochs, "seed": names["seed"]}
            end = cells.cached({"table": "participation", **settings}, work)
            runs.append({**cell, **end})
    return ResultTable(
        f"Rounds to an accuracy of {target_accuracy:.0%} by share C of clients and "
        "local epochs E",
        ("C", "E"),
        VALUES,
        runs,
        {**sizes, "alpha": alpha, "target_accuracy": target_accuracy, **merged},
    )


def _end(clf: Any, split: Split, target: float) -> dict[str, float]:
    """Train, and return the result of the last round."""
    rows, labels, ids = split.train
    clf.fit(rows, labels, client_ids=ids)
    last = asdict(clf.scores_[-1])
    reached = last["accuracy"] >= target
    asked = sum(record.n_clients for record in clf.history_)
    return {
        "reached": float(reached),
        "rounds": float(clf.n_rounds_) if reached else nan,
        "passes": float(asked * clf.local_epochs),
        "accuracy": last["accuracy"],
        "entropy": last["entropy"],
        "variation ratio": last["variation_ratio"],
        "ECE": last["calibration_error"],
        "NLL": last["log_loss"],
    }
