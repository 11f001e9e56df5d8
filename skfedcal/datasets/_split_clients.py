"""Parts of each client's own rows, for training, calibration and testing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from skfedcal._typing import RandomState
from skfedcal.clients.arrays import read_array
from skfedcal.clients.forms import parse_clients
from skfedcal.clients.partitions import as_generator, indexer

__all__ = [
    "split_clients",
]

# The sum of fractions such as 0.7 and 0.3 may miss 1 by rounding.
TOLERANCE = 1e-9


def split_clients(
    clients: Sequence[Any] | Mapping[Any, Any],
    fractions: ArrayLike = (0.8, 0.1, 0.1),
    *,
    random_state: RandomState = None,
) -> tuple[Any, ...]:
    r"""Divide the rows of each client at random into parts.

    Parameters
    ----------
    clients : list of (X, y), or dict of these
        Clients as `fit` takes them.
    fractions : array-like of shape (n_parts,), default=(0.8, 0.1, 0.1)
        Share of each part, with the sum 1. The default is for training, calibration
        and testing, as in [1]_; LEAF's test rows are halved with ``(0.5, 0.5)``.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws. How a client is divided depends on the seed, its number of
        rows and its position only.

    Returns
    -------
    parts : tuple of n_parts lists or dicts
        Each has the clients in the order and form given, with its share of their rows;
        a client with few rows may have none in some part. Rows are in the order given.

    See Also
    --------
    skfedcal.DirichletPartitioner : Clients from pooled rows.
    skfedcal.FederatedCalibratedClassifier : Does such a split by itself.

    Notes
    -----
    Of :math:`n` rows part :math:`j` gets :math:`\lfloor n F_j + u \rfloor - \lfloor n
    F_{j-1} + u \rfloor`, where :math:`F` are the sums of fractions and :math:`u` is
    uniform on [0, 1): its share within one row, and on average exactly. Rounding would
    leave the last parts of all small clients empty.

    References
    ----------
    .. [1] "Private Federated Multiclass Post-hoc Calibration", appendix A.1.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.datasets import split_clients
    >>> clients = {"a": (np.arange(20), np.arange(20) % 2), "b": ([[1.0]], [0])}
    >>> train, calibration, test = split_clients(clients, random_state=0)
    >>> [len(part["a"][1]) for part in (train, calibration, test)]
    [16, 2, 2]
    >>> sum(len(part["b"][1]) for part in (train, calibration, test))
    1
    """
    edges = _edges(fractions)
    raw = parse_clients(clients)
    entropy = as_generator(random_state).integers(2**63, size=2).tolist()
    parts: list[list[Any]] = [[] for _ in edges]
    for position, (name, X, y) in enumerate(zip(raw.names, raw.X, raw.y, strict=True)):
        n_rows = X.shape[0] if hasattr(X, "shape") else len(X)
        if n_rows != len(y):
            raise ValueError(f"Client {name!r} has {n_rows} rows but {len(y)} labels.")
        # A stream of its own: other clients change nothing for this one.
        owner = _parts_of_rows(
            n_rows, edges, np.random.default_rng([*entropy, position])
        )
        rows, labels = indexer(X), indexer(y)
        for number, part in enumerate(parts):
            index = np.flatnonzero(owner == number)
            part.append((rows[index], labels[index]))
    if isinstance(clients, Mapping):
        return tuple(dict(zip(raw.names, part, strict=True)) for part in parts)
    return tuple(parts)


def _edges(fractions: ArrayLike) -> NDArray[Any]:
    """Sums of fractions."""
    shares = read_array(fractions, "fractions", np.float64)
    if shares.ndim != 1 or not len(shares) or not (shares >= 0).all():
        raise ValueError(
            f"fractions must be a row of numbers that are not negative, got "
            f"{fractions!r}."
        )
    if abs(shares.sum() - 1) > TOLERANCE:
        raise ValueError(
            f"fractions must have the sum 1, got {fractions!r} with the sum "
            f"{shares.sum():g}."
        )
    return np.cumsum(shares)


def _parts_of_rows(
    n_rows: int, edges: NDArray[Any], rng: np.random.Generator
) -> NDArray[Any]:
    """Part of each row."""
    ends = np.floor(n_rows * edges + rng.random()).astype(np.int64)
    ends[-1] = n_rows
    sizes = np.diff(np.minimum(ends, n_rows), prepend=0)
    return rng.permutation(np.repeat(np.arange(len(edges)), sizes))
