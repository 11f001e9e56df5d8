"""Counts of one-vs-rest histograms against a loop and by hand."""

import numpy as np
import pytest

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Sums
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.buckets import bin_index, softmax64


def counts_by_loop(data, n_bins):
    shape = (len(data), data.n_classes, n_bins)
    positive, negative = np.zeros(shape), np.zeros(shape)
    for i in range(len(data)):
        for k in range(data.offsets[i], data.offsets[i + 1]):
            z = data.rows[k].astype(np.float64)
            p = np.exp(z - z.max())
            p /= p.sum()
            weight = 1 if data.weights is None else data.weights[k]
            for j in range(data.n_classes):
                b = min(int(p[j] * n_bins), n_bins - 1)
                (positive if data.labels[k] == j else negative)[i, j, b] += weight
    return positive, negative


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("c", [2, 7, 60])
def test_counts_equal_a_loop(c, weighted):
    rng = np.random.default_rng(c)
    sizes = [5, 0, 1, 30]
    data = FederatedDataset(
        rng.normal(size=(36, c)) * 2,
        rng.integers(0, c, 36),
        np.concatenate([[0], np.cumsum(sizes)]),
        range(4),
        c,
        weights=rng.random(36) if weighted else None,
    )
    algorithm = ClassHistograms(n_bins=6, weighted=weighted)
    broadcast = algorithm.broadcast(algorithm.init(c))
    answer = algorithm.query(broadcast, data)
    positive, negative = counts_by_loop(data, 6)
    np.testing.assert_allclose(answer["positive"], positive, atol=1e-13)
    np.testing.assert_allclose(answer["negative"], negative, atol=1e-13)
    kind = "real" if weighted else "count"
    assert {b.kind for b in algorithm.spec(broadcast).values()} == {kind}
    if not weighted:
        assert answer["positive"].dtype == np.int32
        sums = answer["positive"].sum(axis=(1, 2))
        assert sums.tolist() == sizes
        assert answer["negative"].sum(axis=(1, 2)).tolist() == [
            (c - 1) * n for n in sizes
        ]


def test_one_row_by_hand():
    # softmax of (log 3, 0) is (3/4, 1/4).
    data = FederatedDataset(
        np.array([[np.log(3), 0.0]]), np.array([0]), np.array([0, 1]), [0], 2
    )
    algorithm = ClassHistograms(n_bins=5)
    answer = algorithm.query(algorithm.broadcast(algorithm.init(2)), data)
    assert answer["positive"].tolist() == [[[0, 0, 0, 1, 0], [0] * 5]]
    assert answer["negative"].tolist() == [[[0] * 5, [0, 1, 0, 0, 0]]]


def test_bins_are_closed_on_the_left_and_the_last_one_on_both_sides():
    proba = np.array([0.0, 0.25, np.nextafter(0.25, 0), 0.5, 0.75, 1.0])
    assert bin_index(proba, 4).tolist() == [0, 1, 0, 2, 3, 3]


def test_softmax_is_float64_and_ignores_layout():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 7)).astype(np.float32)
    assert softmax64(rows).dtype == np.float64
    wide = rows.astype(np.float64)
    for other in (np.asfortranarray(wide), np.repeat(wide, 2, axis=1)[:, ::2]):
        assert softmax64(other).tobytes() == softmax64(wide).tobytes()
    for i in range(50):
        assert softmax64(rows[i : i + 1]).tobytes() == softmax64(rows)[i].tobytes()


def test_sensitivities_joint_and_per_class():
    joint = ClassHistograms(clip_positive=2.0, clip_negative=3.0)
    split = ClassHistograms(clip_positive=2.0, clip_negative=3.0, per_class=True)
    broadcast = {"n_classes": np.asarray(9)}
    assert {k: b.sensitivity for k, b in joint.spec(broadcast).items()} == {
        "positive": 2.0,
        "negative": 3.0,
    }
    # Nine classes, each bounded by itself: sqrt(9) times as much in L2.
    assert {k: b.sensitivity for k, b in split.spec(broadcast).items()} == {
        "positive": 6.0,
        "negative": 9.0,
    }
    free = ClassHistograms(per_class=True).spec(broadcast)
    assert all(b.clip is None and b.sensitivity == np.inf for b in free.values())


def test_rounds_add_counts_and_noise():
    algorithm = ClassHistograms(n_bins=2, n_rounds=2, population=7)
    state = algorithm.init(2)
    total = Sums(
        {"positive": np.ones((2, 2)), "negative": np.full((2, 2), 2.0)},
        {"positive": 3.0, "negative": 4.0},
    )
    for _ in range(2):
        state = algorithm.update(state, total, 5)
    assert (state.positive == 2).all() and (state.negative == 4).all()
    assert state.noise_positive == pytest.approx(3 * 2**0.5)
    assert state.noise_negative == pytest.approx(4 * 2**0.5)
    assert state.rounds == 2
    # Asked twice is counted twice, out of all that there are.
    assert (state.clients, state.population) == (10, 7)


@pytest.mark.parametrize("c", [3, 100])
def test_clients_of_many_blocks_are_counted_once(c):
    # One client of several blocks between two blocks of many small clients.
    sizes = np.repeat([5, (1 << 17) // c, 3], [4000 // c, 1, 9000 // c])
    rng = np.random.default_rng(c)
    data = FederatedDataset(
        rng.normal(size=(sizes.sum(), c)),
        rng.integers(0, c, sizes.sum()),
        np.concatenate([[0], np.cumsum(sizes)]),
        range(len(sizes)),
        c,
    )
    algorithm = ClassHistograms(n_bins=4)
    answer = algorithm.query(algorithm.broadcast(algorithm.init(c)), data)
    positive, negative = answer["positive"], answer["negative"]
    np.testing.assert_array_equal(positive.sum(axis=(1, 2)), sizes)
    rows = (positive + negative).sum(axis=2)
    np.testing.assert_array_equal(rows, np.tile(sizes[:, None], c))
    assert positive.min() >= 0 and negative.min() >= 0
    cells = bin_index(softmax64(data.rows), 4)
    for j in range(0, c, 33):
        expected = np.bincount(cells[:, j], minlength=4)
        np.testing.assert_array_equal((positive + negative)[:, j].sum(0), expected)
