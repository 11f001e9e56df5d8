"""Tables of the papers, at a size for one machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from skfedcal import _numerics
from skfedcal._docs import SharedDocs
from skfedcal._params import as_number
from skfedcal._sklearn_compat import copy_to_fit
from skfedcal.experiments.measures import (
    SCORES,
    Split,
    check_lists,
    give_totals,
    read_splits,
    score,
)
from skfedcal.experiments.results import ResultTable
from skfedcal.experiments.store import CellStore
from skfedcal.methods import FedBBQCalibrator, FedBiasTempCalibrator, FedTempCalibrator
from skfedcal.training import (
    MMCE,
    MMD,
    FedAvgClassifier,
    FedGaussianHead,
    fedlc,
    fedprox,
    fl_fcr,
    moon,
    nucfl,
)

Method = Callable[..., Any]

tables_documented = SharedDocs(
    """
    X, y : array-like, default=None
        Rows and labels; None is scikit-learn's digits.
    seeds : sequence of int, default=(0, 1, 2)
        Each makes another test set, other clients and other first parameters.
    store : str or path-like, default=None
        Folder for finished fits; an interrupted run continues from them.
    """
)


def train_time_methods() -> dict[str, Method]:
    """Methods of Table 4 of the paper, and the loss that does best among local ones."""
    return {
        "FedAvg": FedAvgClassifier,
        "MMCE": partial(FedAvgClassifier, penalties=MMCE()),
        "focal": partial(FedAvgClassifier, loss="focal"),
        "MMD": partial(FedAvgClassifier, penalties=MMD()),
        "NUCFL": nucfl,
        "logit-adjusted": partial(FedAvgClassifier, loss="logit_adjusted"),
    }


def skew_methods() -> dict[str, Method]:
    """Methods of Tables II to IV of the paper, and averaging with a Gaussian head."""
    return {
        "FedAvg": FedAvgClassifier,
        "FedProx": fedprox,
        "MOON": moon,
        "FedLC": fedlc,
        "FL-FCR, loss only": partial(FedAvgClassifier, loss="margin"),
        "FL-FCR, uniform prior": partial(fl_fcr, prior="uniform"),
        "FL-FCR": fl_fcr,
        "FedAvg + LDA head": partial(FedAvgClassifier, head=FedGaussianHead()),
    }


def post_hoc_calibrators() -> dict[str, Any]:
    """Calibrators of Table 4, and the one that takes class bias away."""
    return {
        "none": None,
        "FedTemp": FedTempCalibrator(),
        "FedBBQ": FedBBQCalibrator(),
        "FedBiasTemp": FedBiasTempCalibrator(),
    }


def with_defaults(
    params: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return parameters of classifiers; the default size of an MLP is for no other."""
    merged = {**defaults, **params}
    if "module" in params and "module_params" not in params:
        merged.pop("module_params", None)
    return merged


def chosen(
    methods: Mapping[str, Any] | list[str] | None, known: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return methods that are given, named or, with None, all that are known."""
    if methods is None:
        return known
    if isinstance(methods, Mapping):
        return methods
    if not isinstance(methods, list | tuple):
        raise TypeError(f"{methods!r} names no methods; pass a list or a dict.")
    unknown = [n for n in methods if not isinstance(n, str) or n not in known]
    if unknown:
        raise ValueError(
            f"Unknown name(s) {unknown}; known are {list(known)}. Pass a dict of name "
            "and object for others."
        )
    return {name: known[name] for name in methods}


# The regime of the paper: all clients, few rounds, three passes with momentum.
SKEW_DEFAULTS = {
    "module_params": {"hidden": (64,)},
    "n_rounds": 10,
    "local_epochs": 3,
    "momentum": 0.9,
    "lr": 0.02,
}


@tables_documented
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
    X, y
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
    seeds, store
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
    merged = with_defaults(params, SKEW_DEFAULTS)
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


PARTICIPATION_DEFAULTS = {
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


@tables_documented
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
    X, y
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
    seeds, store
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
    merged = with_defaults(params, PARTICIPATION_DEFAULTS)
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


# Few clients in a round and several passes each: the averaged model favours classes.
TRAIN_TIME_DEFAULTS = {
    "module_params": {"hidden": (64,)},
    "n_rounds": 30,
    "clients_per_round": 0.25,
    "local_epochs": 5,
    "lr": 0.1,
}


@tables_documented
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
    X, y
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
    seeds, store
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
    merged = with_defaults(params, TRAIN_TIME_DEFAULTS)
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
            proba = _numerics.softmax(logits)
        else:
            fitted = copy_to_fit(calibrator).set_params(classes=clf.classes_)
            codes = np.searchsorted(clf.classes_, y)
            give_totals(fitted, codes, len(clf.classes_))
            fitted.fit(clients)
            proba = fitted.predict_proba(logits)
        found.append((name, score(test_y, proba, clf.classes_, seed)))
    return found
