"""Parts of each client's rows."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from skfedcal.datasets import split_clients
from skfedcal.datasets._split_clients import _parts_of_rows

SEED = 0
FRACTIONS = st.lists(st.integers(0, 20), min_size=1, max_size=5).filter(any)


def numbered(sizes):
    """Clients whose rows can be told apart."""
    starts = np.cumsum([0, *sizes])
    return [
        (np.arange(start, stop)[:, None], np.arange(start, stop))
        for start, stop in pairwise(starts)
    ]


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8),
    weights=FRACTIONS,
    seed=st.integers(0, 99),
)
def test_parts_are_a_partition_of_the_right_sizes(sizes, weights, seed):
    clients = numbered(sizes)
    fractions = np.array(weights) / sum(weights)
    parts = split_clients(clients, fractions, random_state=seed)
    assert len(parts) == len(weights) and all(len(p) == len(clients) for p in parts)
    for k, (_, labels) in enumerate(clients):
        found = [part[k] for part in parts]
        for (X, y), fraction in zip(found, fractions, strict=True):
            np.testing.assert_array_equal(X[:, 0], y)  # rows keep their labels
            assert (np.diff(y) > 0).all()  # and their order
            assert abs(len(y) - fraction * len(labels)) < 1
            assert fraction or not len(y)
        pooled = np.sort(np.concatenate([y for _, y in found]))
        np.testing.assert_array_equal(pooled, labels)


@pytest.mark.parametrize("seed", range(20))
def test_sizes_of_the_paper(seed):
    # 70,000 rows at 100 clients: 560 for training, 70 and 70.
    parts = split_clients(numbered([700, 700]), random_state=seed)
    assert [[len(y) for _, y in part] for part in parts] == [
        [560] * 2,
        [70] * 2,
        [70] * 2,
    ]


def test_small_clients_fill_every_part_on_average():
    n_clients = 4000
    parts = split_clients(numbered([3] * n_clients), random_state=SEED)
    for part, share in zip(parts, (0.8, 0.1, 0.1), strict=True):
        total = sum(len(y) for _, y in part)
        # A client's count is within one row of its mean, hence of variance <= 1/4;
        # clients are independent. Five standard deviations.
        assert abs(total - 3 * n_clients * share) < 5 * np.sqrt(n_clients / 4)


def test_every_row_is_as_likely_as_others():
    # Rows of one client over many positions with the same draw of sizes.
    parts = split_clients([(np.arange(5), np.arange(5))] * 5000, random_state=SEED)
    counts = np.bincount(np.concatenate([y for _, y in parts[1]]), minlength=5)
    # Binomial with p = 0.1 for each row; five standard deviations.
    assert (np.abs(counts - 500) < 5 * np.sqrt(5000 * 0.1 * 0.9)).all()


def test_no_row_is_lost_to_rounding():
    # The lowest start, and fractions whose sum is just below 1.
    start = SimpleNamespace(random=lambda: 0.0, permutation=np.asarray)
    assert (
        _parts_of_rows(10, np.array([0.5, 1 - 1e-10]), start).tolist()
        == [0] * 5 + [1] * 5
    )


def test_a_client_depends_on_itself_only():
    one = split_clients(numbered([9, 40, 7]), random_state=SEED)
    two = split_clients(numbered([9, 40, 3, 100]), random_state=SEED)
    for first, second in zip(one, two, strict=True):
        for k in (0, 1):
            np.testing.assert_array_equal(first[k][1], second[k][1])


def test_seeds_repeat_and_differ():
    clients = numbered([50])
    first, same, other = (
        split_clients(clients, random_state=seed)[0][0][1] for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, same)
    assert first.tolist() != other.tolist()
    rng = np.random.default_rng(1)
    drawn = [split_clients(clients, random_state=rng)[0][0][1].tolist() for _ in "ab"]
    assert drawn[0] != drawn[1]


def test_names_tables_and_sparse_rows_are_kept():
    frame = pd.DataFrame({"a": np.arange(10.0)})
    clients = {
        "frame": (frame, pd.Series(np.arange(10), index=np.arange(10) + 5)),
        "sparse": (csr_array(np.arange(10.0)[:, None]), np.arange(10)),
        "lists": ([[v] for v in range(10)], list(range(10))),
    }
    halves = split_clients(clients, (0.5, 0.5), random_state=SEED)
    for half in halves:
        assert list(half) == ["frame", "sparse", "lists"]
        X, y = half["frame"]
        assert isinstance(X, pd.DataFrame) and X["a"].tolist() == y.tolist()
        X, y = half["sparse"]
        assert X.toarray()[:, 0].tolist() == y.tolist()
        X, y = half["lists"]
        assert X[:, 0].tolist() == y.tolist() and len(y) == 5


@pytest.mark.parametrize(
    ("clients", "fractions", "message"),
    [
        (numbered([3]), (0.8, 0.1), "sum 1, got .* 0.9"),
        (numbered([3]), (1.2, -0.2), "not negative"),
        (numbered([3]), (), "row of numbers"),
        (numbered([3]), [[1.0]], "row of numbers"),
        (numbered([3]), (np.nan, 1), "not negative"),
        ([], (1.0,), "Found 0 clients"),
        ([(np.zeros((3, 1)), [0, 1])], (1.0,), "Client 0 has 3 rows but 2 labels"),
        ([np.zeros(3)], (1.0,), "Client 0 must be a"),
    ],
)
def test_wrong_input_is_named(clients, fractions, message):
    with pytest.raises(ValueError, match=message):
        split_clients(clients, fractions)
