"""Privacy rule 1: a client's answer depends on its own rows only, to the last bit.

A site computes its answer alone; a simulation computes thousands at once. If one bit
could differ, the bound on one client's influence would be a statement about other code
than the code that runs.
"""

import numpy as np
import pytest

from skfedcal import testing
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods import registry
from skfedcal.methods.temperature.posterior import TemperaturePosterior

# A client of theirs trains on its rows: slow for clients of many rows.
LOCAL = ("scaling.average/1", "network.average/1")
ALGORITHMS = registry.algorithms()


def at(c):
    """Every algorithm with the questions of its first rounds, for `c` classes."""
    return [
        (name, *asked)
        for name, algorithm in ALGORITHMS.items()
        if algorithm.n_classes in (None, c) and algorithm.rows != "features"
        for asked in testing.asked(algorithm, c)
    ]


# Every pair of dtype, classes and layout, in half of all combinations.
COMBINATIONS = [
    ((np.float32, np.float64)[(i + j) % 2], c, layout)
    for i, layout in enumerate(["C", "F", "strided", "unaligned", "shuffled"])
    for j, c in enumerate([2, 3, 10, 47, 60, 130])
]


@pytest.mark.parametrize(("dtype", "c", "layout"), COMBINATIONS)
def test_all_clients_at_once_answer_as_each_would_alone(dtype, c, layout):
    # Clients larger than a block are slow to repeat.
    large = dtype is np.float64 and layout in ("C", "shuffled")
    for name, algorithm in ALGORITHMS.items():
        if name not in LOCAL:
            testing.check_own_rows(algorithm, c, [dtype], [layout], large)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("layout", ["C", "unaligned", "shuffled"])
def test_the_same_where_clients_train(name, layout):
    testing.check_own_rows(ALGORITHMS[name], 3, [np.float64], [layout])


def answers(algorithm, broadcast, clients):
    with np.errstate(all="ignore"):  # as at a site
        found = algorithm.query(broadcast, clients)
    return {key: testing.dense(value) for key, value in found.items()}


@pytest.mark.parametrize("c", [8, 31, 48, 49, 64])
def test_every_small_block_gives_the_bits_of_the_large_one(c):
    rng = np.random.default_rng(c)
    rows, labels = rng.normal(size=(40, c)) * 4, rng.integers(0, c, 40)
    data = FederatedDataset(rows, labels, np.arange(41), range(40), c)
    for name, algorithm, broadcast in at(c):
        if name in LOCAL:
            continue
        together = answers(algorithm, broadcast, data)
        for width in (1, 2, 3, 5, 8, 17):
            for start in range(0, 40 - width, 7):
                part = answers(algorithm, broadcast, data.slice(start, start + width))
                for key, answer in part.items():
                    expected = together[key][start : start + width]
                    assert answer.tobytes() == expected.tobytes(), (name, key, width)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_memory_map_gives_the_bits_of_the_array(tmp_path, dtype):
    data = testing.hard_rows(None, 10, dtype, "C", large=True)
    data.rows.tofile(tmp_path / "rows.bin")
    for offset in (0, 3):
        path = tmp_path / f"rows{offset}.bin"
        path.write_bytes(b"x" * offset + (tmp_path / "rows.bin").read_bytes())
        mapped = np.memmap(path, dtype, "r", offset=offset, shape=data.rows.shape)
        other = FederatedDataset(mapped, data.labels, data.offsets, data.names, 10)
        for name, algorithm, broadcast in at(10):
            if name in LOCAL:
                continue
            there = answers(algorithm, broadcast, other)
            for key, answer in answers(algorithm, broadcast, data).items():
                assert answer.tobytes() == there[key].tobytes(), (name, key)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_clients_rows_change_nothing_even_if_extreme(name):
    if ALGORITHMS[name].rows == "features":
        pytest.skip("rows of features are checked for their norm")
    c = ALGORITHMS[name].n_classes or 10
    rng = np.random.default_rng(0)
    offsets = np.cumsum([0, 3, 1, 20, 0, 5])
    rows, labels = rng.normal(size=(29, c)), rng.integers(0, c, 29)
    extreme = rows.copy()
    extreme[offsets[2] : offsets[3], 1:] = -np.inf
    extreme[offsets[2] : offsets[3], 0] = 1e308
    extreme[offsets[2], -1] = -1e308
    for algorithm, broadcast in testing.asked(ALGORITHMS[name], c):
        before, after = (
            answers(algorithm, broadcast, clients)
            for clients in (
                FederatedDataset(z, labels, offsets, range(5), c)
                for z in (rows, extreme)
            )
        )
        for key, answer in before.items():
            for i in (0, 1, 3, 4):
                assert answer[i].tobytes() == after[key][i].tobytes()
            assert np.isfinite(after[key]).all()


@pytest.mark.parametrize("n_classes", [3, 60])
@pytest.mark.parametrize("neighbour", [-np.inf, -1e7, 0.0])
def test_a_wide_row_is_measured_the_same_way_beside_any_neighbour(n_classes, neighbour):
    # Gaps at the limit between the two ways to measure a row, as float32 rounds them:
    # in float64 some lie on one side of it and some on the other.
    rng = np.random.default_rng(0)
    rows = rng.normal(scale=30, size=(300, n_classes)).astype(np.float32)
    rows[:, -1] = rows[:, 0] - np.float32(5e5)
    gaps = rows[:, -1].astype(np.float64) - rows[:, 0]
    assert (gaps > -5e5).any() and (gaps < -5e5).any()
    other = np.zeros((1, n_classes), dtype=np.float32)
    other[0, -1] = neighbour
    labels = np.zeros(2, dtype=np.int16)
    algorithm = TemperaturePosterior()
    start = algorithm.broadcast(algorithm.init(n_classes))
    for row in rows[:, None]:
        alone = FederatedDataset(row, labels[:1], np.arange(2), ["a"], n_classes)
        both = FederatedDataset(
            np.vstack([row, other]), labels, np.arange(3), ["a", "b"], n_classes
        )
        np.testing.assert_array_equal(
            algorithm.query(start, alone)["slopes"][0],
            algorithm.query(start, both)["slopes"][0],
        )
