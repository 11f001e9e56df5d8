"""Train-time against post-hoc calibration."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from numpy.typing import ArrayLike

from skfedcal import _logits
from skfedcal._sklearn_compat import copy_to_fit
from skfedcal.experiments._methods import (
    Method,
    chosen,
    post_hoc_calibrators,
    train_time_methods,
    with_defaults,
)
from skfedcal.experiments._results import ResultTable
from skfedcal.experiments._scores import SCORES, score
from skfedcal.experiments._splits import Split, read_splits
from skfedcal.experiments._store import CellStore

# Few clients in a round and several passes each: the averaged model favours classes.
DEFAULTS = {
    "module_params": {"hidden": (64,)},
    "n_rounds": 30,
    "clients_per_round": 0.25,
    "local_epochs": 5,
    "lr": 0.1,
}


def train_time_table(
    X: ArrayLike | None = None,
    y: ArrayLike | None = None,
    *,
    alphas: Sequence[float | None] = (0.1, 0.5, None),
    methods: Mapping[str, Method] | list[str] | None = None,
    calibrators: Mapping[str, Any] | list[str] | None = None,
    n_clients: int = 20,
    calibration_size: float = 0.2,
    test_size: float = 0.3,
    seeds: Sequence[int] = (0, 1, 2),
    store: str | os.PathLike[str] | None = None,
    **params: Any,
) -> ResultTable:
    """Compare calibration in training, after it, and both (Table 4 of the paper).

    Each method is trained once per skew and seed on the same clients; each calibrator
    then sees logits of rows that the clients held out. Needs torch.

    Parameters
    ----------
    X, y : array-like, default=None
        Rows and labels; None is scikit-learn's digits.
    alphas : sequence of float or None, default=(0.1, 0.5, None)
        Dirichlet parameters of label skew; None deals rows at random.
    methods : dict of name to callable, or list of str, default=None
        What returns a classifier when called with `params`. None is FedAvg, MMCE,
        focal, MMD, NUCFL and logit-adjusted; a list takes some of these.
    calibrators : dict of name to calibrator or None, or list of str, default=None
        None compares no calibration, FedTemp, FedBBQ and FedBiasTemp; a list selects
        from these.
    n_clients : int, default=20
        Clients.
    calibration_size : float, default=0.2
        Share of its rows that each client holds out for calibration.
    test_size : float, default=0.3
        Share of all rows for the test.
    seeds : sequence of int, default=(0, 1, 2)
        Each makes another test set, other clients and other first parameters.
    store : str or path-like, default=None
        Folder for finished fits; an interrupted run continues from them.
    **params : dict
        Parameters of `FedAvgClassifier` for all methods. Unless given: an MLP of 64,
        30 rounds of a quarter of the clients, five passes each, ``lr=0.1``.

    Returns
    -------
    ResultTable
        Rows by alpha, method and calibrator: accuracy, balanced accuracy, classwise
        ECE and its floor, ECE and NLL on the test rows.

    References
    ----------
    .. [1] "Private Federated Multiclass Post-hoc Calibration", Table 4.

    Examples
    --------
    >>> from skfedcal.experiments import train_time_table
    >>> table = train_time_table(
    ...     alphas=[0.1], methods=["FedAvg"], calibrators=["none", "FedBiasTemp"],
    ...     seeds=[0], n_rounds=5,
    ... )
    >>> [row["calibrator"] for row in table.rows]
    ['none', 'FedBiasTemp']
    >>> table.rows[1]["cwECE"] < table.rows[0]["cwECE"]
    True
    """
    merged = with_defaults(params, DEFAULTS)
    makers = chosen(methods, train_time_methods())
    fitters = chosen(calibrators, post_hoc_calibrators())
    sizes = {
        "n_clients": n_clients,
        "test_size": test_size,
        "calibration_size": calibration_size,
    }
    cells, data = CellStore(store), (X, y)
    runs = []
    for names, split in read_splits(X, y, alphas, seeds, **sizes):
        for method, make in makers.items():
            work = partial(_calibrated, make, fitters, split, names["seed"], merged)
            settings = {**names, **sizes, "data": data, "make": make, "params": merged}
            settings |= {"table": "train time", "calibrators": dict(fitters)}
            for calibrator, scores in cells.cached(settings, work):
                which = {"method": method, "calibrator": calibrator}
                runs.append({**names, **which, **scores})
    return ResultTable(
        "Train-time and post-hoc calibration by label skew",
        ("alpha", "method", "calibrator"),
        SCORES,
        runs,
        {**sizes, **merged},
    )


def _calibrated(
    make: Method,
    calibrators: Mapping[str, Any],
    split: Split,
    seed: int,
    params: Mapping[str, Any],
) -> list[tuple[str, dict[str, float]]]:
    """Train once; scores with each calibrator."""
    clf = make(classes=split.classes, random_state=seed, **params)
    X, y, ids = split.train
    clf.fit(X, y, client_ids=ids)
    X, y, ids = split.calibration
    clients = clf.client_logits(X, y, client_ids=ids)
    test_X, test_y = split.test
    logits = clf.predict_logits(test_X)
    found = []
    for name, calibrator in calibrators.items():
        if calibrator is None:
            proba = _logits.softmax(logits)
        else:
            fitted = copy_to_fit(calibrator).set_params(classes=clf.classes_)
            fitted.fit(clients)
            proba = fitted.predict_proba(logits)
        found.append((name, score(test_y, proba, clf.classes_, seed)))
    return found
