"""Split pooled rows into clients: at random, by group, with label skew."""

from __future__ import annotations

import heapq
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state, check_scalar, column_or_1d

from skfedcal._params import check_flag, check_number
from skfedcal.clients.arrays import clear_errors, distinct, from_tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from skfedcal._typing import Array, ArrayLike, IntArray, RandomState, Rows

# Each pass of the balanced split either serves every client or uses up a class. What
# is left after this many passes is a few rows; they are assigned in order.
MAX_PASSES = 25


def shuffled_groups(codes, rng):
    """Return row numbers sorted by code, in random order within a code."""
    shuffled = rng.permutation(len(codes))
    return shuffled[np.argsort(codes[shuffled], kind="stable")]


def dirichlet(shape, size, rng):
    """Draw `size` rows of Dirichlet(shape), also for shapes near 0."""
    # log Gamma(a) = log Gamma(a + 1) + log(U) / a does not underflow for small a.
    log_gamma = np.log(rng.standard_gamma(shape + 1, size=(size, len(shape))))
    log_gamma -= rng.standard_exponential(log_gamma.shape) / shape
    log_gamma -= log_gamma.max(axis=1, keepdims=True)
    weights = np.exp(log_gamma)
    return weights / weights.sum(axis=1, keepdims=True)


def skewed_ids(counts, n_clients, alpha, rng):
    """Client of each row, rows sorted by class: a Dirichlet share of each class."""
    parts = []
    even = np.full(n_clients, 1 / n_clients)
    for count in counts:
        share = even
        if np.isfinite(alpha):
            share = dirichlet(np.full(n_clients, alpha), 1, rng)[0]
        edges = np.cumsum(share)
        points = (np.arange(count) + rng.random()) / count * edges[-1]
        owners = np.searchsorted(edges, points, side="right")
        parts.append(np.minimum(owners, n_clients - 1))
    return np.concatenate(parts)


def balanced_ids(counts, n_clients, alpha, rng):
    """Client of each row, rows sorted by class: equal sizes, Dirichlet class mix."""
    quota = balanced_quota(counts, n_clients, alpha, rng)
    clients = np.tile(np.arange(n_clients), len(counts))
    return np.repeat(clients, quota.T.ravel())


def balanced_quota(counts, n_clients, alpha, rng):
    """Rows of each class for each client: row sums equal, column sums `counts`."""
    n_rows, n_classes = counts.sum(), len(counts)
    prior = counts / n_rows
    mix = np.tile(prior, (n_clients, 1))
    if np.isfinite(alpha):
        mix = dirichlet(alpha * n_classes * prior, n_clients, rng)
    need = n_rows // n_clients + (np.arange(n_clients) < n_rows % n_clients)
    supply = counts.copy()
    quota = np.zeros((n_clients, n_classes), dtype=np.int64)
    for _ in range(MAX_PASSES):
        if not need.any():
            return quota
        open_ = np.flatnonzero(need)
        grant = _serve(_wishes(mix[open_], need[open_], supply, rng), supply, rng)
        quota[open_] += grant
        need[open_] -= grant.sum(axis=1)
        supply -= grant.sum(axis=0)
    slots = np.repeat(np.arange(n_clients), need)
    np.add.at(quota, (slots, np.repeat(np.arange(n_classes), supply)), 1)
    return quota


def _wishes(mix, need, supply, rng):
    """Round `need` rows of each client to whole rows of classes in supply."""
    weights = mix * (supply > 0)
    weights[weights.sum(axis=1) <= 0] = supply
    edges = np.cumsum(weights, axis=1)
    edges = edges / edges[:, -1:] * need[:, None] + rng.random((len(need), 1))
    edges = np.minimum(edges.astype(np.int64), need[:, None])
    return np.diff(edges, axis=1, prepend=0)


def _serve(wishes, supply, rng):
    """Cut wishes, at the same rate for all clients, where a class runs short."""
    demand = wishes.sum(axis=0)
    short = np.flatnonzero(demand > supply)
    grant = wishes.copy()
    # Whole-number arithmetic: the last edge is exactly `supply`.
    edges = np.cumsum(wishes[:, short], axis=0) * supply[short]
    edges = (edges + rng.integers(demand[short])) // demand[short]
    grant[:, short] = np.diff(edges, axis=0, prepend=0)
    return grant


def repair(client_ids, n_clients, min_size, rng):
    """Move rows of the largest clients to those below `min_size`."""
    sizes = np.bincount(client_ids, minlength=n_clients)
    lack = np.maximum(min_size - sizes, 0)
    if not lack.any():
        return client_ids
    taken = surplus(sizes, lack.sum())
    order = shuffled_groups(client_ids, rng)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    # Sorted by giver: a repaired client gets its rows from few givers and stays as
    # skewed as they are.
    moved = order[place < np.repeat(taken, sizes)]
    receivers = rng.permutation(np.flatnonzero(lack))
    client_ids[moved] = np.repeat(receivers, lack[receivers])
    return client_ids


def surplus(sizes, total):
    """Rows taken from each client so that the largest shrink to a common level."""
    low, high = 0, int(sizes.max())
    while high - low > 1:
        level = (low + high) // 2
        enough = np.maximum(sizes - level, 0).sum() >= total
        low, high = (level, high) if enough else (low, level)
    gives = np.maximum(sizes - low, 0)
    spare = gives.sum() - total
    gives[np.flatnonzero(gives)[:spare]] -= 1
    return gives


def merge_small(sizes, min_size):
    """Pack groups below `min_size` together, smallest first."""
    if sizes.sum() < min_size:
        raise ValueError(
            f"All groups together have {sizes.sum()} rows, below min_size={min_size}."
        )
    owner = np.arange(len(sizes))
    small = np.flatnonzero(sizes < min_size)
    small = small[np.argsort(sizes[small], kind="stable")]
    start = filled = 0
    for stop, size in enumerate(sizes[small].tolist(), 1):
        filled += size
        if filled >= min_size:
            owner[small[start:stop]] = small[start]
            start, filled = stop, 0
    if filled:
        rest = small[start:]
        totals = np.bincount(owner, weights=sizes, minlength=len(sizes))
        totals[rest] = 0
        totals[totals == 0] = np.inf
        owner[rest] = np.argmin(totals)
    return owner


def merge_evenly(sizes, n_clients):
    """Give each group, largest first, to the client with the fewest rows."""
    owner = np.empty(len(sizes), dtype=np.int64)
    heap = [(0, client) for client in range(n_clients)]
    for group in np.argsort(-sizes, kind="stable").tolist():
        filled, client = heap[0]
        owner[group] = client
        heapq.heapreplace(heap, (filled + int(sizes[group]), client))
    return owner


# Outside this range a Dirichlet draw is one-hot, or its own mean, to double precision;
# inside it no step of the sampler overflows.
ALPHA_RANGE = (1e-200, 1e30)


def as_generator(random_state: RandomState) -> np.random.Generator:
    """Turn any scikit-learn `random_state`, or a Generator, into a Generator."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    entropy = check_random_state(random_state).randint(2**31 - 1, size=4)
    return np.random.default_rng(entropy)


def rows_by_client(client_ids, n_clients, *arrays):
    """List one tuple of array parts per client; row order within a client is preserved.

    The parts are views of one copy, or of `arrays` when rows are sorted by client.
    """
    client_ids = np.asarray(client_ids)
    ends = np.cumsum(np.bincount(client_ids, minlength=int(n_clients)))
    starts = ends - np.diff(ends, prepend=0)
    if np.any(client_ids[1:] < client_ids[:-1]):
        order = np.argsort(client_ids, kind="stable")
        arrays = tuple(indexer(array)[order] for array in arrays)
    rows = [indexer(array) for array in arrays]
    return [
        tuple(part[start:end] for part in rows)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]


def indexer(array):
    """Return what square brackets select rows of: data frame, array or sparse."""
    if hasattr(array, "iloc"):
        return array.iloc
    return array if hasattr(array, "shape") else np.asarray(array)


class _BasePartitioner(BaseEstimator):
    """Shared `assign`, `split` and checks; subclasses implement `_assign`."""

    n_clients: int | None
    min_size: int

    def assign(self, y: ArrayLike) -> IntArray:
        """Choose a client for each row.

        Parameters
        ----------
        y : array-like of shape (n_samples,)
            Labels, numbers or strings.

        Returns
        -------
        client_ids : ndarray of shape (n_samples,)
            Whole numbers in ``range(n_clients)``.
        """
        with clear_errors("y"):
            labels = column_or_1d(from_tensor(y))
        return self._assign(labels)

    def _assign(self, y: NDArray[Any]) -> IntArray:
        raise NotImplementedError

    def split(self, X: Rows, y: ArrayLike) -> list[tuple[Array, Array]]:
        """Split the rows of `X` and `y` into clients.

        Parameters
        ----------
        X : array-like, sparse matrix or data frame of n_samples rows
            Logits or features.
        y : array-like of shape (n_samples,)
            Labels.

        Returns
        -------
        clients : list of (X_k, y_k)
            One pair per client, in client order; this is what `fit` takes.
        """
        rows: Any = X
        labels: Any = y
        n_rows = rows.shape[0] if hasattr(X, "shape") else len(rows)
        if n_rows != len(labels):
            raise ValueError(f"X has {n_rows} rows but y has {len(labels)} labels.")
        client_ids = self.assign(y)
        n_clients = self.n_clients or int(client_ids.max(initial=-1)) + 1
        return rows_by_client(client_ids, n_clients, X, y)

    def _check_sizes(self, n_rows):
        check_scalar(self.n_clients, "n_clients", Integral, min_val=1)
        check_scalar(self.min_size, "min_size", Integral, min_val=0)
        needed = int(self.n_clients or 0) * int(self.min_size)
        if n_rows < needed:
            raise ValueError(
                f"{n_rows} rows cannot give each of {self.n_clients} clients "
                f"min_size={self.min_size} rows; {needed} are needed. "
                "Lower `n_clients` or `min_size`."
            )


class IIDPartitioner(_BasePartitioner):
    """Assign rows to clients at random, in equal shares.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    min_size : int, default=1
        Smallest number of rows of a client. Too few rows for it is an error; 0
        allows empty clients.
    random_state : int, RandomState, Generator or None, default=None
        Seed of the shuffle. An int gives the same split on each call.

    See Also
    --------
    DirichletPartitioner : Clients with different class mixes.
    GroupPartitioner : Clients given by a column of the data.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.clients import IIDPartitioner
    >>> client_ids = IIDPartitioner(3, random_state=0).assign(np.zeros(10))
    >>> np.bincount(client_ids)
    array([4, 3, 3])
    """

    n_clients: int

    def __init__(
        self, n_clients: int, *, min_size: int = 1, random_state: RandomState = None
    ) -> None:
        self.n_clients = n_clients
        self.min_size = min_size
        self.random_state = random_state

    def _assign(self, y):
        self._check_sizes(len(y))
        rng = as_generator(self.random_state)
        return rng.permutation(np.arange(len(y)) % self.n_clients)


class DirichletPartitioner(_BasePartitioner):
    r"""Split rows into clients whose class mixes follow a Dirichlet law.

    Parameters
    ----------
    n_clients : int
        Number of clients.
    alpha : float
        Concentration, above 0. Small values give clients with few classes; ``inf``
        gives all clients the same class mix.
    balance : bool, default=False
        False divides the rows of each class over the clients, so that client sizes
        vary. True draws a class mix for each client and gives all clients the same
        number of rows, within one.
    min_size : int, default=1
        Smallest number of rows of a client. Smaller clients receive rows from the
        largest ones. Too few rows for it is an error; 0 allows empty clients.
    random_state : int, RandomState, Generator or None, default=None
        Seed of all draws. An int gives the same split on each call.

    See Also
    --------
    IIDPartitioner : Clients that are random samples of the rows.
    GroupPartitioner : Clients given by a column of the data.

    Notes
    -----
    With ``balance=False``, class :math:`c` gives client :math:`k` the share
    :math:`p_{ck}`, :math:`p_c \sim \mathrm{Dir}(\alpha 1_K)` [1]_. Shares become
    rows by systematic sampling: a count is its expectation rounded up or down, and
    no client is favoured by rounding.

    With ``balance=True``, client :math:`k` wants the class mix
    :math:`q_k \sim \mathrm{Dir}(\alpha C \pi)`, where :math:`\pi` are the class
    frequencies of the :math:`C` classes in `y` [2]_; equally frequent classes give
    :math:`\mathrm{Dir}(\alpha 1_C)`. A class that is asked for more rows than it
    has serves all clients at the same rate, and what they miss comes from the
    classes that are left, in the proportions of :math:`q_k`.

    The work is bounded for any input; nothing is drawn until it fits.

    References
    ----------
    .. [1] M. Yurochkin et al., "Bayesian Nonparametric Federated Learning of Neural
       Networks", ICML 2019, arXiv:1905.12022.
    .. [2] T.-M. H. Hsu, H. Qi, M. Brown, "Measuring the Effects of Non-Identical
       Data Distribution for Federated Visual Classification", arXiv:1909.06335.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.clients import DirichletPartitioner
    >>> y = np.arange(1000) % 10
    >>> partitioner = DirichletPartitioner(4, 0.1, balance=True, random_state=0)
    >>> np.bincount(partitioner.assign(y))
    array([250, 250, 250, 250])
    >>> clients = partitioner.split(np.zeros((1000, 10)), y)
    >>> [labels.shape for _, labels in clients]
    [(250,), (250,), (250,), (250,)]
    """

    n_clients: int

    def __init__(
        self,
        n_clients: int,
        alpha: float,
        *,
        balance: bool = False,
        min_size: int = 1,
        random_state: RandomState = None,
    ) -> None:
        self.n_clients = n_clients
        self.alpha = alpha
        self.balance = balance
        self.min_size = min_size
        self.random_state = random_state

    def _assign(self, y):
        self._check_sizes(len(y))
        check_number("alpha", self.alpha, 0, np.inf, "right")  # inf: no skew
        if len(y) == 0:
            return np.zeros(0, dtype=np.int64)
        if y.dtype.kind == "f" and not (np.isfinite(y) & (y == np.trunc(y))).all():
            raise ValueError("y must hold class labels; it has fractions, NaN or inf.")
        rng = as_generator(self.random_state)
        alpha = max(float(self.alpha), ALPHA_RANGE[0])
        alpha = alpha if alpha < ALPHA_RANGE[1] else np.inf
        _, codes, counts = distinct(y, "y", return_inverse=True, return_counts=True)
        deal = balanced_ids if check_flag("balance", self.balance) else skewed_ids
        client_ids = np.empty(len(y), dtype=np.int64)
        order = shuffled_groups(codes, rng)
        client_ids[order] = deal(counts, int(self.n_clients), alpha, rng)
        return repair(client_ids, int(self.n_clients), int(self.min_size), rng)


class GroupPartitioner(_BasePartitioner):
    """Make one client of all rows that share a group value.

    Parameters
    ----------
    groups : array-like of shape (n_samples,)
        Group of each row: user, hospital, writer... Numbers or strings.
    n_clients : int or None, default=None
        Number of clients. None makes one client per group. A number merges whole
        groups, the largest first, each into the client that has the fewest rows.
    min_size : int, default=1
        Smallest number of rows of a client. With ``n_clients=None``, groups below
        it are merged with each other until they reach it, and groups that reach it
        stay alone. With a number, merged clients below it are an error, since a
        group is never divided.

    See Also
    --------
    DirichletPartitioner : Clients with different class mixes.
    IIDPartitioner : Clients that are random samples of the rows.

    Notes
    -----
    Nothing is random. Clients are numbered by their first group in sorted order, so
    without merging client ``k`` is ``np.unique(groups)[k]``.

    Examples
    --------
    >>> from skfedcal.clients import GroupPartitioner
    >>> hospital = ["b", "a", "b", "c", "b"]
    >>> GroupPartitioner(hospital).assign([0, 1, 1, 0, 1])
    array([1, 0, 1, 2, 1])
    >>> GroupPartitioner(hospital, min_size=2).assign([0, 1, 1, 0, 1])
    array([1, 0, 1, 0, 1])
    """

    def __init__(
        self, groups: ArrayLike, n_clients: int | None = None, *, min_size: int = 1
    ) -> None:
        self.groups = groups
        self.n_clients = n_clients
        self.min_size = min_size

    def _assign(self, y):
        with clear_errors("groups"):
            groups = column_or_1d(self.groups)
        if len(groups) != len(y):
            raise ValueError(f"groups has {len(groups)} entries but y has {len(y)}.")
        _, codes, sizes = distinct(
            groups, "groups", return_inverse=True, return_counts=True
        )
        owner = self._merge(sizes)
        _, first, number = np.unique(owner, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[number][codes]

    def _merge(self, sizes):
        """Return a client label for each group."""
        if self.n_clients is None:
            check_scalar(self.min_size, "min_size", Integral, min_val=0)
            return merge_small(sizes, self.min_size)
        self._check_sizes(sizes.sum())
        if len(sizes) < self.n_clients:
            raise ValueError(
                f"groups has {len(sizes)} distinct values, fewer than "
                f"n_clients={self.n_clients}; a group is never divided."
            )
        owner = merge_evenly(sizes, self.n_clients)
        smallest = np.bincount(owner, weights=sizes).min()
        if smallest < self.min_size:
            raise ValueError(
                f"Merging {len(sizes)} groups into {self.n_clients} clients leaves "
                f"one with {smallest:.0f} rows, below min_size={self.min_size}. "
                "Lower `n_clients` or `min_size`."
            )
        return owner
