"""Right and wrong predictions by confidence: by hand, by a loop, one row at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import NoiseLaw, Sums
from skfedcal.methods.top_bins.rounds import TopBinCounts, top_label


def dataset(rows, labels, sizes, weights=None, names=None):
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    names = range(len(sizes)) if names is None else names
    return FederatedDataset(rows, labels, offsets, names, rows.shape[1], weights)


def drawn(seed, n_clients=5, n_classes=3):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 8, n_clients)
    rows = rng.normal(size=(sizes.sum(), n_classes)) * 2
    return rows, rng.integers(0, n_classes, len(rows)), sizes


def counts(algorithm, clients):
    answer = algorithm.query({}, clients)["cells"]
    return answer if isinstance(answer, np.ndarray) else answer.dense()


def looped(rows, labels, n_bins):
    """Counts of one client, row by row in plain Python."""
    out = np.zeros((2, n_bins))
    for row, label in zip(rows, labels, strict=True):
        weights = np.exp(row - row.max())
        top = max(range(len(row)), key=lambda k: row[k])
        place = min(int(weights[top] / weights.sum() * n_bins), n_bins - 1)
        out[int(label != top), place] += 1
    return out


def test_counts_by_hand():
    proba = np.array([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1], [0.5, 0.25, 0.25], [1, 0, 0]])
    with np.errstate(divide="ignore"):
        clients = dataset(np.log(proba), np.array([0, 2, 0, 1]), [3, 0, 1])
    assert counts(TopBinCounts(n_bins=2), clients).tolist() == [
        [[0, 2], [0, 1]],
        [[0, 0], [0, 0]],
        [[0, 0], [0, 1]],
    ]
    assert counts(TopBinCounts(n_bins=5), clients)[0].tolist() == [
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 0],
    ]


def test_of_equal_classes_the_first_is_predicted():
    top, confidence = top_label(np.array([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]]))
    assert top.tolist() == [1, 0]
    np.testing.assert_allclose(confidence[1], 1 / 3)
    # Not equal, but their exponentials are.
    assert top_label(np.array([[-1e-17, 0.0]]))[0].tolist() == [1]


@given(seed=st.integers(0, 9999), n_bins=st.integers(1, 17))
def test_counts_are_those_of_a_loop_over_rows(seed, n_bins):
    rows, labels, sizes = drawn(seed)
    found = counts(TopBinCounts(n_bins=n_bins), dataset(rows, labels, sizes))
    ends = np.cumsum(sizes)
    for i, (stop, size) in enumerate(zip(ends, sizes, strict=True)):
        own = slice(stop - size, stop)
        np.testing.assert_array_equal(found[i], looped(rows[own], labels[own], n_bins))


@given(seed=st.integers(0, 9999), row=st.integers(0, 99))
def test_one_row_moves_one_count_by_one(seed, row):
    rows, labels, sizes = drawn(seed, 1)
    if not len(rows):
        return
    keep = np.arange(len(rows)) != row % len(rows)
    whole = counts(TopBinCounts(), dataset(rows, labels, sizes))
    rest = counts(TopBinCounts(), dataset(rows[keep], labels[keep], sizes - 1))
    assert np.abs(whole - rest).sum() == 1


@pytest.mark.parametrize("limit", [None, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_alone_answers_as_among_others(limit, dtype):
    rows, labels, sizes = drawn(3, 20)
    algorithm = TopBinCounts(n_bins=3, max_examples=limit)
    whole = dataset(rows.astype(dtype), labels, sizes)
    together = counts(algorithm, whole)
    for i in range(20):
        for view in (whole.slice(i, i + 1), whole.select(np.array([i])).compact()):
            np.testing.assert_array_equal(counts(algorithm, view)[0], together[i])
    extreme = rows.astype(dtype)
    extreme[sizes[0] :] = [1e30, -np.inf, 0]
    changed = counts(algorithm, dataset(extreme, labels, sizes))
    np.testing.assert_array_equal(changed[0], together[0])


def test_a_client_beyond_its_rows_sends_a_choice_that_no_value_decides():
    rows, labels, sizes = drawn(5, 30)
    algorithm = TopBinCounts(max_examples=2)
    found = counts(algorithm, dataset(rows, labels, sizes))
    np.testing.assert_array_equal(found.sum(axis=(1, 2)), np.minimum(sizes, 2))
    # With one bin and all labels wrong but one, the count tells whether it was chosen.
    places = []
    for wrong in (0, 1):
        chosen = []
        for i in range(6):
            right = np.full(6, wrong)
            right[i] = 1 - wrong
            shape = np.tile([5.0, 0.0], (6, 1)) * (1 + i)
            one = counts(
                TopBinCounts(n_bins=1, max_examples=2), dataset(shape, right, [6])
            )
            chosen.append(one[0, wrong, 0] < 2)
        places.append(chosen)
    assert places[0] == places[1] and sum(places[0]) == 2


def test_a_weight_is_a_number_of_rows():
    rows, labels, sizes = drawn(7)
    weights = np.random.default_rng(7).integers(0, 4, len(rows)).astype(float)
    weighted = TopBinCounts(weighted=True)
    found = counts(weighted, dataset(rows, labels, sizes, weights))
    again = np.repeat(np.arange(len(rows)), weights.astype(int))
    owner = np.repeat(np.arange(5), sizes)
    copied = np.bincount(owner[again], minlength=5)
    expected = counts(TopBinCounts(), dataset(rows[again], labels[again], copied))
    np.testing.assert_array_equal(found, expected)
    assert weighted.spec({})["cells"].kind == "real"


def test_what_is_sent_is_bounded_in_l1_and_counted():
    block = TopBinCounts(n_bins=4, clip=1.0).spec({})["cells"]
    assert (block.shape, block.kind, block.norm) == ((2, 4), "count", "l1")
    assert block.sensitivity == 1


def test_rounds_add_up_with_their_noise():
    algorithm = TopBinCounts(n_bins=2)
    state = algorithm.init(3)
    first = Sums({"cells": np.array([[1.0, 2], [3, 4]])}, noise={"cells": 3.0})
    law = NoiseLaw("additive", 16.0)
    second = Sums({"cells": np.ones((2, 2))}, {"cells": 4.0}, {"cells": law})
    for total in (first, second):
        state = algorithm.update(state, total, 10)
    assert state.positive.tolist() == [[2, 3]] and state.negative.tolist() == [[4, 5]]
    assert state.noise_positive == state.noise_negative == 5
    assert (state.rounds, state.clients) == (2, 20)


def test_no_clients_and_no_rows():
    empty = dataset(np.empty((0, 3)), np.empty(0, dtype=int), [])
    assert counts(TopBinCounts(n_bins=4), empty).shape == (0, 2, 4)
    idle = dataset(np.empty((0, 3)), np.empty(0, dtype=int), [0, 0])
    assert not counts(TopBinCounts(n_bins=4, max_examples=1), idle).any()
