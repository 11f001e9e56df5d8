"""FederatedDataset: clients are slices, and every view of it agrees with a loop."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skfedcal.clients.dataset import FederatedDataset, segment_sums


@st.composite
def datasets(draw):
    """Ragged clients; in order or not, weighted or not, a slice of more or not."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    n, c = sum(sizes), draw(st.integers(1, 4))
    rows = np.arange(n * c, dtype=np.float64).reshape(n, c)
    order = rng.permutation(n) if draw(st.booleans()) else None
    weights = rng.random(n) if draw(st.booleans()) else None
    data = FederatedDataset(
        rows,
        rng.integers(0, c, n),
        np.concatenate([[0], np.cumsum(sizes)]),
        [f"c{i}" for i in range(len(sizes))],
        c,
        weights=weights,
        order=order,
    )
    if draw(st.booleans()):
        start = draw(st.integers(0, len(sizes)))
        data = data.slice(start, draw(st.integers(start, len(sizes))))
    return data


def unpack(data):
    """Name, rows, labels and weights of each client, read the slow way."""
    out = []
    for i, name in enumerate(data.names):
        packed = np.arange(data.offsets[i], data.offsets[i + 1])
        where = packed if data.order is None else data.order[packed]
        weights = np.ones(len(packed)) if data.weights is None else data.weights[packed]
        out.append((name, data.rows[where], data.labels[packed], weights))
    return out


def assert_same(data, clients):
    found = unpack(data)
    assert len(data) == len(found) == len(clients)
    assert data.sizes.tolist() == [len(c[2]) for c in clients]
    assert data.n_rows == sum(len(c[2]) for c in clients)
    for one, other in zip(found, clients, strict=True):
        assert one[0] == other[0]
        for a, b in zip(one[1:], other[1:], strict=True):
            np.testing.assert_array_equal(a, b)


@given(data=datasets(), cells=st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_blocks_cover_each_row_once_and_cut_clients_from_their_own_start(data, cells):
    seen = [[] for _ in range(len(data))]
    for block in data.blocks(cells):
        n_clients = block.clients.stop - block.clients.start
        assert len(block.offsets) == n_clients + 1
        assert block.offsets[0] == 0 and block.offsets[-1] == len(block.rows)
        assert block.rows.size <= max(cells, block.rows.shape[1])
        for j in range(n_clients):
            own = slice(block.offsets[j], block.offsets[j + 1])
            weights = None if block.weights is None else block.weights[own]
            i = block.clients.start + j
            # Gathered rows are valid until the next block.
            seen[i].append((block.rows[own].copy(), block.labels[own], weights))
    limit = max(1, cells // max(1, data.rows[:1].size))
    for i, (_, rows, labels, weights) in enumerate(unpack(data)):
        pieces = [p for p in seen[i] if len(p[1])]
        sizes = [len(p[1]) for p in pieces]
        # Cuts depend on nothing but the client's own size.
        assert sizes == [
            min(limit, len(labels) - k) for k in range(0, len(labels), limit)
        ]
        if not pieces:
            continue
        np.testing.assert_array_equal(np.concatenate([p[0] for p in pieces]), rows)
        np.testing.assert_array_equal(np.concatenate([p[1] for p in pieces]), labels)
        if data.weights is not None:
            np.testing.assert_array_equal(
                np.concatenate([p[2] for p in pieces]), weights
            )


@given(data=datasets(), seed=st.integers(0, 99))
@settings(deadline=None)
def test_select_slice_compact_and_by_row_agree_with_a_loop(data, seed):
    clients = unpack(data)
    assert_same(data.compact(), clients)
    assert not np.shares_memory(data.compact().rows, data.rows)
    positions = np.random.default_rng(seed).integers(0, max(len(data), 1), 5)
    if len(data):
        chosen = data.select(positions)
        assert_same(chosen, [clients[i] for i in positions])
        assert_same(
            chosen.select(np.array([4, 0])),
            [clients[positions[4]], clients[positions[0]]],
        )
        assert_same(chosen.slice(1, 3), [clients[i] for i in positions[1:3]])
        assert_same(chosen.compact(), [clients[i] for i in positions])
    assert_same(data.select(np.array([], dtype=int)), [])
    rows = [
        (r[i : i + 1], y[i : i + 1], w[i : i + 1])
        for _, r, y, w in clients
        for i in range(len(y))
    ]
    assert_same(data.by_row(), [(i, *row) for i, row in enumerate(rows)])
    assert_same(data.by_row().compact(), [(i, *row) for i, row in enumerate(rows)])


@given(data=datasets(), seed=st.integers(0, 99))
@settings(deadline=None)
def test_keep_rows_keeps_clients_and_their_rows(data, seed):
    keep = np.random.default_rng(seed).random(len(data.rows)) < 0.5
    kept = data.keep_rows(keep)
    marks = FederatedDataset(
        keep[:, None], data.labels, data.offsets, data.names, 1, order=data.order
    )
    flags = unpack(marks)
    assert_same(
        kept,
        [
            (name, r[k[:, 0]], y[k[:, 0]], w[k[:, 0]])
            for (name, r, y, w), (_, k, _, _) in zip(unpack(data), flags, strict=True)
        ],
    )


@given(data=datasets())
@settings(deadline=None)
def test_sums_by_client_equal_a_loop(data):
    values = np.random.default_rng(0).random((2, data.n_rows))
    start = data.offsets - data.offsets[0]
    loop = [values[:, a:b].sum(axis=1) for a, b in pairwise(start)]
    np.testing.assert_allclose(
        data.sum_by_client(values), np.reshape(loop, (len(data), 2)), rtol=1e-12
    )
    single = data.sum_by_client(values[0])
    np.testing.assert_allclose(
        single, np.reshape(loop, (len(data), 2))[:, 0], rtol=1e-12
    )
    for block in data.blocks(8):
        ones = block.sum_by_client(np.ones(len(block.labels)))
        weights = np.ones(len(block.labels)) if block.weights is None else block.weights
        np.testing.assert_allclose(ones, segment_sums(weights, block.offsets))
    has_weight = [w.sum() > 0 for *_, w in unpack(data)]
    assert data.filled.tolist() == has_weight


def test_a_client_whose_weights_are_all_zero_is_not_filled():
    data = FederatedDataset(
        np.zeros((4, 2)),
        np.zeros(4, dtype=int),
        np.array([0, 2, 2, 4]),
        list("abc"),
        2,
        weights=np.array([0.0, 0.0, 0.0, 1.0]),
    )
    assert data.filled.tolist() == [False, False, True]
    assert data.slice(1, 3).filled.tolist() == [False, True]


@pytest.mark.parametrize("where", [0, 1, 7, 100])
def test_a_sum_does_not_depend_on_what_lies_next_to_it(where):
    rng = np.random.default_rng(0)
    own = rng.normal(size=317) * 10.0 ** rng.integers(-9, 9, 317)
    around = np.concatenate([rng.normal(size=where) * 1e300, own, rng.normal(size=5)])
    offsets = np.array([0, where, where + len(own), len(around)])
    alone = segment_sums(own, np.array([0, len(own)]))
    assert segment_sums(around, offsets)[1] == alone[0]
    stacked = segment_sums(np.stack([around, around]), offsets)
    assert stacked[1].tolist() == [alone[0], alone[0]]
