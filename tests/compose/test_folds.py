"""Folds and hold-out sets: every client shares out its own rows."""

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from skfedcal.compose.folds import encode_clients, holdout_rows, make_splits


@pytest.fixture
def skewed():
    """Labels and clients of 1000 rows; 25 clients of very different sizes."""
    rng = np.random.default_rng(0)
    clients = np.minimum(rng.geometric(0.15, size=1000) - 1, 24)
    labels = (clients + rng.integers(0, 3, size=1000)) % 5
    return labels, clients


def counts(*keys):
    return np.unique(np.column_stack(keys), axis=0, return_counts=True)[1]


@pytest.mark.parametrize("n_splits", [2, 3, 5])
def test_folds_share_out_each_class_of_each_client(skewed, n_splits):
    labels, clients = skewed
    splits = list(make_splits(n_splits, None, labels, clients, clients, {}))
    fold = np.empty(1000, dtype=int)
    for number, (train, test) in enumerate(splits):
        fold[test] = number
        np.testing.assert_array_equal(np.sort(np.r_[train, test]), np.arange(1000))
    for keys in ([np.zeros(1000)], [labels], [labels, clients]):
        cells = np.unique(np.column_stack(keys), axis=0, return_inverse=True)[1].ravel()
        table = np.zeros((cells.max() + 1, n_splits), dtype=int)
        np.add.at(table, (cells, fold), 1)
        assert np.ptp(table, axis=1).max() <= 1


def test_two_rows_of_a_class_are_in_two_folds():
    labels = np.r_[np.zeros(10), [1, 1]]
    splits = make_splits(5, None, labels, None, np.zeros(12, dtype=int), {})
    for train, _ in splits:
        assert set(labels[train]) == {0, 1}


def test_more_folds_than_rows_is_an_error():
    with pytest.raises(ValueError, match="n_samples = 3"):
        list(make_splits(5, None, np.arange(3), None, np.zeros(3, dtype=int), {}))


@pytest.mark.parametrize("size", [0.05, 0.2, 0.5, 0.8])
def test_holdout_is_a_share_of_each_client(skewed, size):
    labels, clients = skewed
    held = holdout_rows(labels, clients, size, np.random.default_rng(0))
    for client in np.unique(clients):
        mine = clients == client
        assert abs(held[mine].sum() - size * mine.sum()) < 1 + 1e-9
        for label in np.unique(labels[mine]):
            cell = mine & (labels == label)
            assert abs(held[cell].sum() - size * cell.sum()) < 1 + 1e-9
    # Random starts: 25 clients are off by less than one row each, independently.
    assert abs(held.sum() - 1000 * size) < 10


def test_holdout_depends_on_the_seed_only(skewed):
    labels, clients = skewed
    masks = [
        holdout_rows(labels, clients, 0.3, np.random.default_rng(seed))
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert (masks[0] != masks[2]).any()


def test_each_row_is_held_out_equally_often():
    labels, clients = np.array([0, 0, 1, 1, 1, 0]), np.array([0, 0, 0, 1, 2, 2])
    rng = np.random.default_rng(0)
    share = np.mean(
        [
            holdout_rows(np.tile(labels, 9), np.tile(clients, 9), 0.2, rng)
            for _ in range(4000)
        ],
        axis=0,
    )
    # Standard deviation sqrt(.16 / 4000) = .0063: 6 of them, 54 rows, below 1e-6.
    assert np.abs(share - 0.2).max() < 0.038


def test_last_row_of_a_class_stays_for_training():
    labels = np.r_[np.zeros(30), 1]
    for seed in range(30):
        rng = np.random.default_rng(seed)
        held = holdout_rows(labels, np.arange(31), 0.9, rng)
        assert not held[-1]
        assert not held[:-1].all()


def test_holdout_without_rows_is_an_error():
    with pytest.raises(ValueError, match="leaves no row for calibration"):
        holdout_rows(
            np.arange(2), np.zeros(2, dtype=int), 0.2, np.random.default_rng(0)
        )


def test_names_of_clients_are_kept():
    names, codes = encode_clients(np.array(["b", "a", "b"]), 3)
    assert names == ["a", "b"]
    assert codes.tolist() == [1, 0, 1]
    assert encode_clients(None, 2)[0] is None


@pytest.mark.parametrize(
    "ids", [[1.0, np.nan], np.array(["a", None], dtype=object), [1, 2, 3]]
)
def test_bad_client_ids_are_refused(ids):
    with pytest.raises(ValueError, match="client_ids"):
        encode_clients(ids, 2)


def test_folds_without_clients_are_those_of_scikit_learn(skewed):
    labels = skewed[0]
    nobody = np.zeros(1000, dtype=int)
    found = make_splits(4, labels, labels, None, nobody, {})
    expected = StratifiedKFold(4).split(labels, labels)
    for (train, test), (a, b) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(train, a)
        np.testing.assert_array_equal(test, b)
