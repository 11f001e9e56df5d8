"""Assign rows to clients: Dirichlet shares, repairs, merges; pure numpy."""

import heapq

import numpy as np

# Each pass of the balanced split either serves every client or uses up a class. What
# is left after this many passes is a few rows; they are dealt out in order.
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
    gives = gifts(sizes, lack.sum())
    order = shuffled_groups(client_ids, rng)
    starts = np.cumsum(sizes) - sizes
    place = np.arange(len(order)) - np.repeat(starts, sizes)
    # Sorted by giver: a repaired client gets its rows from few givers and stays as
    # skewed as they are.
    moved = order[place < np.repeat(gives, sizes)]
    receivers = rng.permutation(np.flatnonzero(lack))
    client_ids[moved] = np.repeat(receivers, lack[receivers])
    return client_ids


def gifts(sizes, total):
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
