"""Read every accepted form of `fit` arguments into one list of raw clients."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from sklearn.utils import check_consistent_length, column_or_1d

from skfedcal.data._arrays import clear_errors, read_array

__all__ = ["RawClients", "as_vector", "parse_clients"]


@dataclass(frozen=True)
class RawClients:
    """Per-client inputs as the user gave them, not yet validated.

    A single X, y pair (scikit-learn's own form) has one entry, `from_arrays` set and
    possibly the client of each row in `row_ids`.
    """

    names: list
    X: list
    y: list
    weights: list | None = None
    row_ids: np.ndarray | None = None
    from_arrays: bool = False


def parse_clients(X, y=None, client_ids=None, sample_weight=None, *, what="logits"):
    """Sort out which of the accepted call forms was used.

    ======================================  =====================================
    call                                    meaning
    ======================================  =====================================
    ``fit([(Z1, y1), (Z2, y2)])``           list of (logits, labels) pairs
    ``fit({"a": (Z1, y1), ...})``           the same with named clients
    ``fit([Z1, Z2], [y1, y2])``             one list of logits, one of labels
    ``fit(Z, y)``                           a single client
    ``fit(Z, y, client_ids=ids)``           rows of ``Z`` grouped by ``ids``
    ======================================  =====================================

    Two lists are read as clients when the entries of `y` are themselves sequences. `X`
    is never inspected for this, so nested Python lists of numbers with a flat `y` stay
    a plain matrix. `what` says in messages what the rows of `X` are.
    """
    if y is None:
        return _from_pairs(X, client_ids, sample_weight, what)
    if isinstance(y, (list, tuple)) and len(y) and all(_is_vector(v) for v in y):
        return _from_two_lists(X, y, client_ids, sample_weight, what)
    return _from_arrays(X, y, client_ids, sample_weight)


def _is_vector(value):
    # A list may be ragged, of which numpy refuses to give the dimensions.
    return isinstance(value, (list, tuple)) or (
        not isinstance(value, (str, bytes)) and np.ndim(value) > 0
    )


def _is_pair(value):
    return isinstance(value, (list, tuple)) and len(value) == 2 and _is_vector(value[1])


def _from_pairs(clients, client_ids, sample_weight, what):
    if isinstance(clients, Mapping):
        names, pairs = list(clients.keys()), list(clients.values())
    elif isinstance(clients, (list, tuple)):
        names, pairs = list(range(len(clients))), list(clients)
    else:
        raise ValueError(
            "This estimator requires y to be passed, but the target y is None. "
            f"Only a list of ({what}, labels) pairs may be given without y; got "
            f"{type(clients).__name__}."
        )
    if not pairs:
        raise ValueError(f"Found 0 clients; at least one ({what}, labels) pair needed.")
    if client_ids is not None:
        names = _check_names(client_ids, len(pairs))
    for name, pair in zip(names, pairs, strict=True):
        if not _is_pair(pair):
            hint = " Did you mean fit([(X, y)])?" if len(pairs) == 2 else ""
            raise ValueError(
                f"Client {name!r} must be a ({what}, labels) pair, got "
                f"{type(pair).__name__}. If X holds samples, this estimator requires "
                f"y to be passed, but the target y is None.{hint}"
            )
    weights = _check_weights(sample_weight, len(pairs))
    return RawClients(names, [p[0] for p in pairs], [p[1] for p in pairs], weights)


def _from_two_lists(X, y, client_ids, sample_weight, what):
    if not isinstance(X, (list, tuple)) or len(X) != len(y):
        found = f"of length {len(X)}" if hasattr(X, "__len__") else "without a length"
        raise ValueError(
            f"y is a list of {len(y)} clients, so X must be a list of {len(y)} "
            f"arrays of {what}; got {type(X).__name__} {found}."
        )
    names = list(range(len(X)))
    if client_ids is not None:
        names = _check_names(client_ids, len(X))
    weights = _check_weights(sample_weight, len(X))
    return RawClients(names, list(X), list(y), weights)


def _from_arrays(X, y, client_ids, sample_weight):
    if client_ids is not None:
        shape = read_array(client_ids, "client_ids").shape
        if len(shape) > 1 and shape[1:] != (1,):
            raise ValueError(f"client_ids has shape {shape}; pass one id per row.")
        with clear_errors("client_ids"):
            client_ids = as_vector(client_ids)
            check_consistent_length(X, y, client_ids)
    weights = None if sample_weight is None else [sample_weight]
    return RawClients([0], [X], [y], weights, row_ids=client_ids, from_arrays=True)


def as_vector(values, *, warn=False):
    """Return one-dimensional values; scikit-learn's check only where it can object."""
    if type(values) is np.ndarray and values.ndim == 1 and values.dtype.kind in "biuf":
        return values
    return column_or_1d(values, warn=warn)


def _check_names(client_ids, n_clients):
    names = _listed(client_ids, "client_ids")
    if len(names) != n_clients:
        raise ValueError(
            f"client_ids names {len(names)} clients but {n_clients} were given; with a "
            "list of clients pass one id per client, not per sample."
        )
    if len(set(map(str, names))) != n_clients:
        raise ValueError(
            "client_ids contains a duplicate name; client names must be unique."
        )
    return names


def _listed(values, name):
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(
            f"{name} is of type {type(values).__name__}; with a list of clients pass a "
            "list with one entry per client."
        )
    if getattr(values, "shape", None) == ():
        raise TypeError(f"{name} is a single value; pass one entry per client.")
    return list(values)


def _check_weights(sample_weight, n_clients):
    if sample_weight is None:
        return None
    weights = _listed(sample_weight, "sample_weight")
    if len(weights) != n_clients or not all(_is_vector(w) for w in weights):
        raise ValueError(
            f"With a list of {n_clients} clients pass sample_weight as a list of "
            f"{n_clients} arrays, one per client."
        )
    return weights
