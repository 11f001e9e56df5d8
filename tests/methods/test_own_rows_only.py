"""Privacy rule 1: a client's answer depends on its own rows only, to the last bit.

A site computes its answer alone; a simulation computes thousands at once. If one bit
could differ, the bound on one client's influence would be a statement about other code
than the code that runs.
"""

from dataclasses import replace

import numpy as np
import pytest

from skfedcal.clients.dataset import BLOCK_CELLS, FederatedDataset
from skfedcal.methods.accuracy_temperature.rounds import (
    AccuracyRoot,
    GapParts,
    TemperatureSearch,
)
from skfedcal.methods.bias_temperature.rounds import BiasTemperaturePosterior
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.temperature.rounds import (
    TemperatureAverage,
    TemperatureGrid,
    TemperatureNewton,
    TemperaturePosterior,
)


def asked(algorithm, **broadcast):
    return algorithm, lambda _: {k: np.asarray(v) for k, v in broadcast.items()}


def started(algorithm):
    return algorithm, lambda c: algorithm.broadcast(algorithm.init(c))


def at_bias(algorithm, make_prior):
    def broadcast(c):
        start = algorithm.broadcast(algorithm.init(c))
        start |= {"bias": np.linspace(-1, 1, c), "log_beta": np.asarray(-0.3)}
        return start | {"prior": make_prior(c)}

    return algorithm, broadcast


ALGORITHMS = {
    **{
        f"newton, one row in {stage}, {name}": asked(
            TemperatureNewton(), beta=0.37, stage=stage, precise=precise
        )
        for stage in (1, 4, 32)
        for name, precise in (("input dtype", False), ("float64", True))
    },
    "grid": started(TemperatureGrid(n_points=4)),
    "grid, clipped": started(TemperatureGrid(n_points=4, clip=1.0)),
    "average": started(TemperatureAverage()),
    "posterior": asked(TemperaturePosterior(), log_beta=-0.3, clip=0.3, bound=4.0),
    "bias posterior": at_bias(
        BiasTemperaturePosterior(), lambda c: np.arange(1, c + 1) * 2 / (c * (c + 1))
    ),
    "bias posterior, plain": at_bias(BiasTemperaturePosterior(), lambda _: np.empty(0)),
    "label frequencies": started(BiasTemperaturePosterior(private_prior=True)),
    "accuracy root": started(AccuracyRoot(-1.4, 3.5, 0.2)),
    "gap parts": started(GapParts(-1.4, 3.5, n_points=3)),
    **{
        f"search, {objective}, {search}": started(
            TemperatureSearch(-1.4, 3.5, objective, search, full_rows=10, n_bins=2)
        )
        for objective, search in (("nll", "bisect"), ("ece", "golden"))
    },
    "histograms": started(ClassHistograms(n_bins=2)),
    "histograms of log-odds": started(ClassHistograms(n_bins=2, space="logit")),
    "histograms, clipped": started(
        ClassHistograms(n_bins=7, clip_positive=1.3, clip_negative=2.1)
    ),
}


def at(c):
    """Every algorithm with a question for `c` classes."""
    return [(name, item[0], item[1](c)) for name, item in ALGORITHMS.items()]


def hard_rows(n, c, rng):
    """Rows whose largest softmax entry is 1/2 to the last bit or two.

    With two bins of [0, 1] the bin then tells in which order the row was added up.
    """
    logits = rng.normal(size=(n, c)) * 4
    column = rng.integers(0, c, n)
    others = np.exp(logits)
    others[np.arange(n), column] = 0
    logits[np.arange(n), column] = np.log(others.sum(axis=1))
    return logits


def hard_sizes(c, rng):
    """Sizes with empty clients, lone rows, ragged tails, and more than one block."""
    limit = BLOCK_CELLS // c
    small = rng.integers(0, 40, 6)
    return np.r_[0, 1, 1, 2, 3, 7, 0, 1, small, limit + 3, 1, 0, limit, 2, 8, 9, 0]


def federation(c, dtype, layout, seed):
    rng = np.random.default_rng(seed)
    sizes = hard_sizes(c, rng)
    n = sizes.sum()
    rows = hard_rows(n, c, rng).astype(dtype)
    if layout == "F":
        rows = np.asfortranarray(rows)
    elif layout == "strided":
        rows = np.repeat(rows, 2, axis=1)[:, ::2]
    elif layout == "unaligned":
        raw = np.empty(rows.nbytes + 1, dtype=np.uint8)[1:]
        view = raw.view(dtype).reshape(rows.shape)
        view[:] = rows
        rows = view
    order = rng.permutation(n) if layout == "shuffled" else None
    labels = rng.integers(0, c, n).astype(np.int16)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    weights = rng.random(n) if layout == "F" else None
    return FederatedDataset(
        rows, labels, offsets, range(len(sizes)), c, weights=weights, order=order
    )


def alone(data, i):
    """Client `i` as its own site would hold it: a fresh array, aligned, in C order."""
    packed = np.arange(data.offsets[i], data.offsets[i + 1])
    where = packed if data.order is None else data.order[packed]
    return FederatedDataset(
        np.array(data.rows[where], order="C"),
        data.labels[packed].copy(),
        np.array([0, len(packed)]),
        [i],
        data.n_classes,
        weights=None if data.weights is None else data.weights[packed].copy(),
    )


# Every pair of dtype, classes and layout, in half of all combinations.
COMBINATIONS = [
    ((np.float32, np.float64)[(i + j) % 2], c, layout)
    for i, layout in enumerate(["C", "F", "strided", "unaligned", "shuffled"])
    for j, c in enumerate([2, 3, 10, 47, 60, 130])
]


@pytest.mark.parametrize(("dtype", "c", "layout"), COMBINATIONS)
def test_all_clients_at_once_answer_as_each_would_alone(dtype, c, layout):
    data = federation(c, dtype, layout, seed=c)
    clients = [alone(data, i) for i in range(len(data))]
    # Clients larger than a block are slow to repeat: one way of cutting them out.
    small = [i for i in range(len(data)) if data.sizes[i] < 50]
    for name, algorithm, broadcast in at(c):
        plain = name in ("histograms", "histograms of log-odds")
        if plain and data.weights is not None:
            algorithm = replace(algorithm, weighted=True)
        together = algorithm.query(broadcast, data)
        for i, client in enumerate(clients):
            views = [client]
            if i in small[::3]:
                views += [data.slice(i, i + 1), data.select([i])]
            if i in small[:-1]:
                views.append(data.slice(i, i + 2).compact().slice(0, 1))
            for view in views:
                for key, answer in algorithm.query(broadcast, view).items():
                    same = answer.tobytes() == together[key][i : i + 1].tobytes()
                    assert same, (name, key, i, int(data.sizes[i]))


@pytest.mark.parametrize("c", [8, 31, 48, 49, 64])
def test_every_small_block_gives_the_bits_of_the_large_one(c):
    rng = np.random.default_rng(c)
    rows, labels = hard_rows(40, c, rng), rng.integers(0, c, 40)
    data = FederatedDataset(rows, labels, np.arange(41), range(40), c)
    for name, algorithm, broadcast in at(c):
        together = algorithm.query(broadcast, data)
        for width in (1, 2, 3, 5, 8, 17):
            for start in range(0, 40 - width, 7):
                part = algorithm.query(broadcast, data.slice(start, start + width))
                for key, answer in part.items():
                    expected = together[key][start : start + width]
                    assert answer.tobytes() == expected.tobytes(), (name, key, width)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_memory_map_gives_the_bits_of_the_array(tmp_path, dtype):
    data = federation(10, dtype, "C", seed=1)
    data.rows.tofile(tmp_path / "rows.bin")
    for offset in (0, 3):
        path = tmp_path / f"rows{offset}.bin"
        path.write_bytes(b"x" * offset + (tmp_path / "rows.bin").read_bytes())
        mapped = np.memmap(path, dtype, "r", offset=offset, shape=data.rows.shape)
        other = FederatedDataset(mapped, data.labels, data.offsets, data.names, 10)
        for name, algorithm, broadcast in at(10):
            answers = algorithm.query(broadcast, other)
            for key, answer in algorithm.query(broadcast, data).items():
                assert answer.tobytes() == answers[key].tobytes(), (name, key)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_clients_rows_change_nothing_even_if_extreme(name):
    algorithm, make_broadcast = ALGORITHMS[name]
    broadcast = make_broadcast(10)
    rng = np.random.default_rng(0)
    sizes = np.array([3, 1, 20, 0, 5])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    rows = rng.normal(size=(29, 10))
    labels = rng.integers(0, 10, 29)
    before = algorithm.query(
        broadcast, FederatedDataset(rows, labels, offsets, range(5), 10)
    )
    rows[offsets[2] : offsets[3], 1:] = -np.inf
    rows[offsets[2] : offsets[3], 0] = 1e308
    rows[offsets[2], 3] = -1e308
    after = algorithm.query(
        broadcast, FederatedDataset(rows, labels, offsets, range(5), 10)
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
