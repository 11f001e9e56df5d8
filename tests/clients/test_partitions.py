import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone

from skfedcal.clients.partitions import (
    DirichletPartitioner,
    GroupPartitioner,
    IIDPartitioner,
    balanced_quota,
    dirichlet,
    rows_by_client,
    skewed_ids,
    surplus,
)

SEED = 20240

alphas = st.sampled_from([1e-320, 1e-12, 0.01, 0.1, 1.0, 100.0, 1e29, 1e308, np.inf])


@st.composite
def label_splits(draw):
    """Labels with rare, missing and frequent classes, and sizes that just fit."""
    labels = draw(st.lists(st.integers(0, 6), min_size=1, max_size=80))
    n_clients = draw(st.integers(1, len(labels)))
    min_size = draw(st.integers(0, len(labels) // n_clients))
    return np.array(labels), n_clients, min_size


def sizes_of(client_ids, n_clients):
    return np.bincount(client_ids, minlength=n_clients)


@given(label_splits(), alphas, st.booleans(), st.integers(0, 2**31 - 1))
@settings(deadline=None)
def test_dirichlet_gives_each_row_one_client_and_each_client_enough(
    case, alpha, balance, seed
):
    y, n_clients, min_size = case
    partitioner = DirichletPartitioner(
        n_clients, alpha, balance=balance, min_size=min_size, random_state=seed
    )
    client_ids = partitioner.assign(y)
    assert client_ids.shape == y.shape and client_ids.dtype.kind == "i"
    assert client_ids.min() >= 0 and client_ids.max() < n_clients
    sizes = sizes_of(client_ids, n_clients)
    assert sizes.sum() == len(y) and sizes.min() >= min_size
    if balance:
        assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(client_ids, partitioner.assign(y))


@given(label_splits(), st.integers(0, 2**31 - 1))
@settings(deadline=None)
def test_iid_sizes_are_equal_within_one(case, seed):
    y, n_clients, min_size = case
    partitioner = IIDPartitioner(n_clients, min_size=min_size, random_state=seed)
    client_ids = partitioner.assign(y)
    sizes = sizes_of(client_ids, n_clients)
    assert sizes.sum() == len(y) and sizes.max() - sizes.min() <= 1
    assert sizes.min() >= min_size
    np.testing.assert_array_equal(client_ids, partitioner.assign(y))


@given(st.lists(st.integers(-3, 9), min_size=1, max_size=80), st.integers(0, 30))
@settings(deadline=None)
def test_groups_are_never_divided_and_large_ones_stay_alone(groups, min_size):
    groups = np.array(groups)
    min_size = min(min_size, len(groups))
    client_ids = GroupPartitioner(groups, min_size=min_size).assign(groups)
    sizes = np.bincount(client_ids)
    assert sizes.min() >= max(min_size, 1)
    values, counts = np.unique(groups, return_counts=True)
    for value in values:
        assert len(np.unique(client_ids[groups == value])) == 1
    if counts.min() >= min_size:
        np.testing.assert_array_equal(client_ids, np.searchsorted(values, groups))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.data())
@settings(deadline=None)
def test_groups_merge_down_to_n_clients(groups, data):
    groups = np.array(groups)
    values, counts = np.unique(groups, return_counts=True)
    n_clients = data.draw(st.integers(1, len(values)))
    client_ids = GroupPartitioner(groups, n_clients).assign(groups)
    np.testing.assert_array_equal(np.unique(client_ids), np.arange(n_clients))
    # The last group that a client received went to the smallest client.
    assert np.ptp(np.bincount(client_ids)) <= counts.max()
    assert client_ids[np.argmin(groups)] == 0
    if n_clients == len(values):
        np.testing.assert_array_equal(client_ids, np.searchsorted(values, groups))


@pytest.mark.parametrize("alpha", [0.01, 0.5, 10.0])
def test_dirichlet_draws_have_the_moments_of_the_law(alpha):
    shape = alpha * np.array([1.0, 2.0, 4.0])
    draws = dirichlet(shape, 200_000, np.random.default_rng(SEED))
    mean = shape / shape.sum()
    variance = mean * (1 - mean) / (shape.sum() + 1)
    # Six standard errors of a mean: 2e-9 by chance. The squared deviation is in
    # [0, 1], so its variance is at most its mean.
    np.testing.assert_array_less(
        np.abs(draws.mean(axis=0) - mean), 6 * np.sqrt(variance / len(draws))
    )
    spread = ((draws - mean) ** 2).mean(axis=0)
    np.testing.assert_array_less(
        np.abs(spread - variance), 6 * np.sqrt(variance / len(draws))
    )


def test_rounding_changes_a_share_by_less_than_one_row():
    counts, alpha, n_clients = np.array([1000, 3, 57]), 0.7, 20
    ids = skewed_ids(counts, n_clients, alpha, np.random.default_rng(SEED))
    rng = np.random.default_rng(SEED)
    for rows in np.split(ids, np.cumsum(counts)[:-1]):
        share = dirichlet(np.full(n_clients, alpha), 1, rng)[0]
        rng.random()
        got = sizes_of(rows, n_clients)
        assert np.abs(got - share * len(rows)).max() < 1


def test_a_rare_class_favours_no_client():
    # One row, 4 clients, no skew: each client gets it with chance 1/4. 6 standard
    # errors of a binomial share: 6 * sqrt(.25 * .75 / 4000) = .041.
    rng = np.random.default_rng(SEED)
    hits = [skewed_ids(np.array([1]), 4, np.inf, rng)[0] for _ in range(4000)]
    assert np.abs(np.bincount(hits, minlength=4) / 4000 - 0.25).max() < 0.041


@pytest.mark.parametrize("balance", [False, True])
def test_infinite_alpha_gives_all_clients_the_same_class_mix(balance):
    y = np.repeat([0, 1, 2], [300, 600, 900])
    partitioner = DirichletPartitioner(
        6, np.inf, balance=balance, random_state=SEED, min_size=10
    )
    client_ids = partitioner.assign(y)
    for label, expected in enumerate([50, 100, 150]):
        got = sizes_of(client_ids[y == label], 6)
        assert np.abs(got - expected).max() <= 1


@pytest.mark.parametrize("balance", [False, True])
def test_smaller_alpha_gives_fewer_classes_per_client(balance):
    y = np.arange(20_000) % 10
    purity = []
    for alpha in (0.05, 0.5, 5.0, 500.0):
        partitioner = DirichletPartitioner(
            50, alpha, balance=balance, min_size=20, random_state=SEED
        )
        clients = partitioner.split(y, y)
        mixes = [
            np.bincount(labels, minlength=10) / len(labels) for labels, _ in clients
        ]
        purity.append(np.mean(np.square(mixes).sum(axis=1)))
    assert purity == sorted(purity, reverse=True)
    assert purity[0] > 0.5 and purity[-1] < 0.11


def test_balanced_quota_keeps_the_drawn_mix_where_rows_allow():
    # Expected squared length of a Dir(a 1_C) draw: (a + 1) / (a C + 1).
    counts, alpha, n_clients = np.full(10, 4000), 0.5, 400
    quota = balanced_quota(counts, n_clients, alpha, np.random.default_rng(SEED))
    np.testing.assert_array_equal(quota.sum(axis=0), counts)
    np.testing.assert_array_equal(quota.sum(axis=1), 100)
    purity = np.square(quota / 100).sum(axis=1)
    # Cutting over-asked classes by about 1/sqrt(400) moves the mean a few percent.
    assert abs(purity.mean() - 1.5 / 6) < 0.03


def test_balanced_quota_serves_impossible_wishes_exactly():
    # Nearly one-hot wishes against very unequal classes.
    counts = np.array([1, 1, 1, 997])
    quota = balanced_quota(counts, 7, 1e-9, np.random.default_rng(SEED))
    np.testing.assert_array_equal(quota.sum(axis=0), counts)
    assert np.ptp(quota.sum(axis=1)) <= 1 and quota.min() >= 0


def test_rows_move_from_the_largest_clients_only():
    np.testing.assert_array_equal(surplus(np.array([0, 10, 7, 2]), 5), [0, 4, 1, 0])
    np.testing.assert_array_equal(surplus(np.array([0, 10, 7, 2]), 2), [0, 2, 0, 0])
    np.testing.assert_array_equal(surplus(np.array([0, 5, 5]), 1).sum(), 1)


def test_repair_works_where_rejection_would_not_end():
    # spec: P(all 100 clients have 10 rows) is 0 at alpha = .05, 1e4 rows.
    y = np.arange(10_000) % 10
    partitioner = DirichletPartitioner(100, 0.05, min_size=100, random_state=SEED)
    np.testing.assert_array_equal(np.bincount(partitioner.assign(y)), 100)


@pytest.mark.parametrize("balance", [False, True])
def test_a_million_rows_and_ten_thousand_clients_take_seconds(balance):
    y = np.random.default_rng(SEED).integers(10, size=1_000_000)
    partitioner = DirichletPartitioner(
        10_000, 0.1, balance=balance, min_size=20, random_state=SEED
    )
    start = time.process_time()
    client_ids = partitioner.assign(y)
    # Measured .1 to .3 s; a loop over rows would take minutes.
    assert time.process_time() - start < 5
    assert np.bincount(client_ids).min() >= 20


@pytest.mark.parametrize(
    "container", [np.asarray, list, sparse.csr_array, pytest.param("frame", id="frame")]
)
def test_split_follows_assign_and_keeps_row_order(container):
    X, y = np.arange(60.0).reshape(30, 2), np.arange(30) % 3
    if container == "frame":
        container = pytest.importorskip("pandas").DataFrame
    partitioner = DirichletPartitioner(5, 0.5, random_state=SEED)
    client_ids = partitioner.assign(y)
    clients = partitioner.split(container(X), y)
    assert len(clients) == 5
    for k, (rows, labels) in enumerate(clients):
        rows = rows.toarray() if sparse.issparse(rows) else np.asarray(rows)
        np.testing.assert_array_equal(rows, X[client_ids == k])
        np.testing.assert_array_equal(labels, y[client_ids == k])


def test_split_keeps_empty_clients_in_place():
    clients = IIDPartitioner(4, min_size=0, random_state=SEED).split([[1.0]], [0])
    assert sorted(len(labels) for _, labels in clients) == [0, 0, 0, 1]
    assert all(rows.shape[1:] == (1,) for rows, _ in clients)
    assert len(DirichletPartitioner(3, 1.0, min_size=0).split(np.ones((0, 2)), [])) == 3


def test_sorted_rows_are_split_without_copy():
    X = np.arange(6.0)
    parts = rows_by_client(np.array([0, 0, 2, 2, 2, 3]), 4, X)
    assert [part.tolist() for (part,) in parts] == [[0, 1], [], [2, 3, 4], [5]]
    assert all(np.shares_memory(part, X) for (part,) in parts if len(part))


def test_string_labels_and_groups():
    y = np.array(["cat", "dog"] * 20, dtype=object)
    assert DirichletPartitioner(4, 0.3, random_state=0).assign(y).shape == (40,)
    client_ids = GroupPartitioner(["x", "z", "y", "z"]).assign([0, 0, 0, 0])
    np.testing.assert_array_equal(client_ids, [0, 2, 1, 2])


def test_groups_pack_smallest_first_and_the_rest_joins_the_smallest_client():
    # Sizes a 5, b 1, c 2, d 2, e 4; min_size 4: b + c + d = 5, so c closes nothing
    # and d does; nothing is left over.
    groups = np.repeat(list("abcde"), [5, 1, 2, 2, 4])
    client_ids = GroupPartitioner(groups, min_size=4).assign(groups)
    np.testing.assert_array_equal(
        client_ids, np.repeat([0, 1, 1, 1, 2], [5, 1, 2, 2, 4])
    )
    # Left over: one row of c, which joins b (4 rows), not a (5 rows).
    groups = np.repeat(list("abc"), [5, 4, 1])
    client_ids = GroupPartitioner(groups, min_size=2).assign(groups)
    np.testing.assert_array_equal(client_ids, np.repeat([0, 1, 1], [5, 4, 1]))


def test_random_state_forms():
    y = np.arange(200) % 4
    fixed = DirichletPartitioner(5, 0.5, random_state=3)
    other = clone(fixed).set_params(random_state=4)
    assert np.any(fixed.assign(y) != other.assign(y))
    for make in (np.random.RandomState, np.random.default_rng):
        one, two = (clone(fixed).set_params(random_state=make(7)) for _ in range(2))
        first = one.assign(y)
        np.testing.assert_array_equal(first, two.assign(y))
        assert np.any(first != one.assign(y))
    unseeded = clone(fixed).set_params(random_state=None)
    assert np.any(unseeded.assign(y) != unseeded.assign(y))


def test_init_stores_parameters_and_repr_shows_them():
    partitioner = DirichletPartitioner(5, 0.5, balance=True, min_size=-1)
    assert repr(partitioner) == (
        "DirichletPartitioner(alpha=0.5, balance=True, min_size=-1, n_clients=5)"
    )
    assert repr(IIDPartitioner(3)) == "IIDPartitioner(n_clients=3)"


@pytest.mark.parametrize(
    ("partitioner", "error", "message"),
    [
        (IIDPartitioner(0), ValueError, "n_clients == 0, must be >= 1"),
        (IIDPartitioner(2.5), TypeError, "n_clients must be an instance of int"),
        (IIDPartitioner(2, min_size=-1), ValueError, "min_size == -1, must be >= 0"),
        (IIDPartitioner(7), ValueError, "6 rows cannot give each of 7 clients"),
        (
            DirichletPartitioner(2, 0.0),
            ValueError,
            "alpha=0.0 is out of range; pass 0 < alpha",
        ),
        (DirichletPartitioner(2, np.nan), ValueError, "alpha=nan is out of range"),
        (DirichletPartitioner(2, "1"), TypeError, "alpha=.* is of type"),
        (DirichletPartitioner(2, 1, min_size=4), ValueError, "8 are needed"),
        (GroupPartitioner([0, 1]), ValueError, "groups has 2 entries but y has 6"),
        (GroupPartitioner(range(6), 7, min_size=0), ValueError, "never divided"),
        (GroupPartitioner([0] * 5 + [1], 2, min_size=2), ValueError, "with 1 rows"),
        (GroupPartitioner([0] * 6, min_size=7), ValueError, "below min_size=7"),
        (GroupPartitioner([0] * 6, min_size=-1), ValueError, "min_size == -1"),
    ],
)
def test_bad_parameters_are_refused_when_used(partitioner, error, message):
    with pytest.raises(error, match=message):
        partitioner.assign([0, 1, 0, 1, 0, 1])


def test_bad_labels_are_refused():
    with pytest.raises(ValueError, match="X has 3 rows but y has 2 labels"):
        IIDPartitioner(1).split(np.ones((3, 1)), [0, 1])
    for value in (0.5, np.nan, np.inf):
        with pytest.raises(ValueError, match="y must hold class labels"):
            DirichletPartitioner(2, 1.0).assign([0.0, value, 2.0])
    with pytest.raises(ValueError, match="1d array"):
        DirichletPartitioner(2, 1.0).assign(np.ones((3, 2)))
