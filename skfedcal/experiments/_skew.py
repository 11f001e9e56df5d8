"""Accuracy of training methods by label skew."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from skfedcal.experiments._methods import Method, chosen, skew_methods, with_defaults
from skfedcal.experiments._results import ResultTable
from skfedcal.experiments._scores import SCORES, score
from skfedcal.experiments._splits import Split, read_splits
from skfedcal.experiments._store import CellStore

# The regime of the paper: all clients, few rounds, three passes with momentum.
DEFAULTS = {
    "module_params": {"hidden": (64,)},
    "n_rounds": 10,
    "local_epochs": 3,
    "momentum": 0.9,
    "lr": 0.02,
}


def skew_table(
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    alphas: Sequence[float | None] = (0.05, 0.1, 0.3),
    methods: Mapping[str, Method] | list[str] | None = None,
    n_clients: int = 10,
    test_size: float = 0.2,
    seeds: Sequence[int] = (0, 1, 2),
    store: str | os.PathLike[str] | None = None,
    **params: Any,
) -> ResultTable:
    """Compare training methods under label skew (Tables II to IV of FL-FCR).

    ``skew_table().pivot("alpha", "accuracy")`` has the form of the paper's tables. The
    same learning rate is used for all methods. Needs torch.

    Parameters
    ----------
    X, y : array-like, default=None
        Rows and labels; None is scikit-learn's digits.
    alphas : sequence of float or None, default=(0.05, 0.1, 0.3)
        Dirichlet parameters of label skew; None deals rows at random.
    methods : dict of name to callable, or list of str, default=None
        What returns a classifier when called with `params`. None is FedAvg, FedProx,
        MOON, FedLC, FL-FCR (its loss only, and with either prior) and FedAvg + LDA
        head; a list takes some of these.
    n_clients : int, default=10
        Clients.
    test_size : float, default=0.2
        Share of all rows for the test.
    seeds : sequence of int, default=(0, 1, 2)
        Each makes another test set, other clients and other first parameters.
    store : str or path-like, default=None
        Folder for finished fits; an interrupted run continues from them.
    **params : dict
        Parameters of `FedAvgClassifier` for all methods. Unless given: an MLP of 64,
        10 rounds of all clients, three passes each, ``lr=0.02`` and ``momentum=0.9``.

    Returns
    -------
    ResultTable
        Rows by alpha and method: accuracy, balanced accuracy, classwise ECE and its
        floor, ECE and NLL on the test rows.

    References
    ----------
    .. [1] "Federated Learning with Feature Calibration and Client Re-sampling"
       (FL-FCR), Tables II to IV.

    Examples
    --------
    >>> from skfedcal.experiments import skew_table
    >>> names = ["FedAvg", "FedAvg + LDA head"]
    >>> table = skew_table(alphas=[0.05], methods=names, seeds=[0], n_rounds=3)
    >>> table.rows[1]["accuracy"] > table.rows[0]["accuracy"]
    True
    """
    merged = with_defaults(params, DEFAULTS)
    makers = chosen(methods, skew_methods())
    sizes = {"n_clients": n_clients, "test_size": test_size}
    cells, data = CellStore(store), (X, y)
    runs = []
    for names, split in read_splits(X, y, alphas, seeds, **sizes):
        for method, make in makers.items():
            which = {**names, **sizes, "data": data, "make": make, "params": merged}
            work = partial(_scores, make, split, names["seed"], merged)
            scores = cells.cached({"table": "skew", **which}, work)
            runs.append({**names, "method": method, **scores})
    return ResultTable(
        "Training methods by label skew",
        ("alpha", "method"),
        SCORES,
        runs,
        {**sizes, **merged},
    )


def _scores(
    make: Method, split: Split, seed: int, params: Mapping[str, Any]
) -> dict[str, float]:
    """Train one classifier and measure it."""
    rows, labels, ids = split.train
    test_rows, truth = split.test
    clf = make(classes=split.classes, random_state=seed, **params)
    proba = clf.fit(rows, labels, client_ids=ids).predict_proba(test_rows)
    return score(truth, proba, clf.classes_, seed)
