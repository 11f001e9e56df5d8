"""Folds and hold-out sets that every client makes of its own rows."""

from numbers import Integral

import numpy as np
from sklearn.utils.metadata_routing import get_routing_for_object

from skfedcal.clients.row_ids import RowIds

__all__ = [
    "encode_clients",
    "holdout_rows",
    "make_splits",
]


def encode_clients(client_ids, n_rows):
    """Names of the clients and the number of the client of each row.

    None makes all rows one client.
    """
    if client_ids is None:
        return None, np.zeros(n_rows, dtype=np.intp)
    ids = RowIds.read(client_ids)
    if len(ids) != n_rows:
        raise ValueError(f"client_ids has {len(ids)} entries for {n_rows} rows.")
    return ids.names, ids.codes


def make_splits(cv, X, y, client_ids, clients, params):
    """Train and test rows for `cv`; a splitter that needs groups gets the clients.

    A number of folds is that of scikit-learn's `StratifiedKFold` where nobody named
    clients and every class has enough rows for it.
    """
    from sklearn.model_selection import check_cv

    cv = 5 if cv is None else cv
    if isinstance(cv, Integral):
        least = np.unique(y, return_counts=True)[1].min()
        if client_ids is not None or least < cv:
            return _client_folds(y, clients, cv)
    splitter = check_cv(cv, y, classifier=True)
    if get_routing_for_object(splitter).consumes("split", ["groups"]):
        params = {"groups": client_ids, **params}
    return splitter.split(X, y, **params)


def _client_folds(y, clients, n_splits):
    """Yield train and test rows of folds that share out each class of each client.

    The rows lie in line by class, then client, and are assigned in turn: the folds
    differ by one row at most in size, in each class, and in each class of a client.
    """
    if len(y) < n_splits:
        raise ValueError(
            f"cv={n_splits} folds need at least {n_splits} rows, got n_samples = "
            f"{len(y)}."
        )
    labels = np.unique(y, return_inverse=True)[1]
    fold = np.empty(len(y), dtype=np.intp)
    fold[np.lexsort((clients, labels))] = np.arange(len(y)) % n_splits
    for number in range(n_splits):
        yield np.flatnonzero(fold != number), np.flatnonzero(fold == number)


def holdout_rows(y, clients, size, rng):
    """Tell which rows are held out: a share `size` of each client's own rows.

    A client lines up its rows by class and takes every ``1 / size``-th from a random
    start: its share is right within one row, for each class and as a whole. A class
    that would have no row left for training gets one back.
    """
    labels = np.unique(y, return_inverse=True)[1]
    order = np.lexsort((rng.random(len(y)), labels, clients))
    sizes = np.bincount(clients)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = (np.arange(len(y)) - first) * size + np.repeat(
        rng.random(len(sizes)), sizes
    )
    held = np.empty(len(y), dtype=bool)
    held[order] = np.floor(place + size) > np.floor(place)
    left = np.bincount(labels[~held], minlength=labels.max() + 1)
    for label in np.flatnonzero(left == 0):
        held[np.flatnonzero(labels == label)[0]] = False
    if not held.any():
        raise ValueError(
            f"calibration_size={size} of n_samples = {len(y)} rows leaves no row for "
            "calibration."
        )
    return held
