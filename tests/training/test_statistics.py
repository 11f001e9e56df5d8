"""Class statistics: exact under any partition, against numpy and loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.endpoint import Request, respond
from skfedcal.privacy.mechanisms import ExactSum
from skfedcal.training import ClassStatistics
from skfedcal.training.class_statistics import (
    ClassMoments,
    cut,
    joined,
    products,
    scaled_rows,
)


@st.composite
def partitions(draw):
    """Rows, classes and clients; classes and clients may be empty or have one row."""
    n_rows = draw(st.integers(1, 40))
    n_classes, size = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = rng.normal(size=(n_rows, size)) * draw(st.sampled_from([1e-3, 1.0, 1e4]))
    rows += draw(st.sampled_from([0.0, 50.0]))
    labels = rng.integers(0, n_classes, n_rows)
    owner = rng.integers(0, draw(st.integers(1, 12)), n_rows)
    return rows, labels, n_classes, owner


def parts_of(rows, labels, n_classes, owner, **how):
    return [
        ClassStatistics.from_data(
            rows[owner == k], labels[owner == k], n_classes, **how
        )
        for k in range(owner.max() + 2)
    ]


def close(found, expected, rows, rtol=1e-9):
    """Compare second moments; what cancels is of the size of squared features."""
    size = np.square(rows).max(initial=0.0)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-13 * size)


@given(partitions())
def test_parts_add_up_to_means_and_covariances_of_numpy(case):
    rows, labels, n_classes, _ = case
    total = sum(parts_of(*case))
    assert total.n.tolist() == [(labels == c).sum() for c in range(n_classes)]
    for c in range(n_classes):
        own = rows[labels == c]
        if len(own):
            np.testing.assert_allclose(total.mean()[c], own.mean(axis=0), rtol=1e-12)
        expected = np.zeros((rows.shape[1],) * 2)
        if len(own) > 1:
            expected = np.atleast_2d(np.cov(own.T))
        close(total.cov()[c], expected, rows)


@given(partitions())
def test_means_and_covariances_of_clients_are_enough(case):
    rows, labels, n_classes, owner = case
    from_rows, from_moments = [], []
    for k in range(owner.max() + 2):
        mean = np.full((n_classes, rows.shape[1]), np.nan)
        cov = np.full((n_classes, rows.shape[1], rows.shape[1]), np.nan)
        n = np.zeros(n_classes)
        for c in range(n_classes):
            own = rows[(owner == k) & (labels == c)]
            n[c] = len(own)
            if len(own):
                mean[c] = own.mean(axis=0)
            if len(own) > 1:
                cov[c] = np.atleast_2d(np.cov(own.T))
        from_moments.append(ClassStatistics.from_moments(n, mean, cov))
        part = rows[owner == k], labels[owner == k]
        from_rows.append(ClassStatistics.from_data(*part, n_classes))
    for found, expected in zip(from_moments, from_rows, strict=True):
        np.testing.assert_array_equal(found.n, expected.n)
        np.testing.assert_allclose(found.s1, expected.s1, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.s2, expected.s2, rtol=1e-9, atol=1e-12)


def test_global_moments_follow_the_equations_of_the_paper():
    # FL-FCR, Eq. 5 and 6, with a client that has a single row: its covariance counts
    # with weight 0, its mean does not.
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(n, 3)) + 2 for n in (5, 1, 7)]
    n = np.array([5, 1, 7])
    means = [v.mean(axis=0) for v in clients]
    mean = sum(k * m for k, m in zip(n, means, strict=True)) / n.sum()
    cov = np.zeros((3, 3))
    for k, rows, own in zip(n, clients, means, strict=True):
        if k > 1:
            cov += (k - 1) / (n.sum() - 1) * np.cov(rows.T)
        cov += k / (n.sum() - 1) * np.outer(own, own)
    cov -= n.sum() / (n.sum() - 1) * np.outer(mean, mean)
    total = sum(ClassStatistics.from_data(v, np.zeros(len(v)), 1) for v in clients)
    np.testing.assert_allclose(total.mean()[0], mean, rtol=1e-13)
    np.testing.assert_allclose(total.cov()[0], cov, rtol=1e-12, atol=1e-13)
    dropped = clients[0], clients[2]
    wrong = sum(ClassStatistics.from_data(v, np.zeros(len(v)), 1) for v in dropped)
    assert np.abs(wrong.cov()[0] - cov).max() > 0.01


@given(partitions())
def test_pooling_first_or_last_is_the_same(case):
    late, early = sum(parts_of(*case)).pool(), sum(parts_of(*case, pooled=True))
    np.testing.assert_array_equal(late.n, early.n)
    close(late.s2, early.s2, case[0])
    rows, labels, n_classes, _ = case
    scatter = np.zeros_like(early.s2)
    for c in range(n_classes):
        for row in rows[labels == c]:
            deviation = row - rows[labels == c].mean(axis=0)
            scatter += np.outer(deviation, deviation)
    n = np.array([(labels == c).sum() for c in range(n_classes)])
    close(early.scatter(), scatter, rows)
    close(early.pooled_cov(ddof=0), scatter / n.sum(), rows)
    left = np.maximum(n - 1, 0).sum()
    close(early.pooled_cov(), scatter / left if left else 0 * scatter, rows)


@pytest.mark.parametrize("pooled", [True, False])
def test_vector_keeps_the_true_length_and_all_values(pooled):
    rng = np.random.default_rng(1)
    stats = ClassStatistics.from_data(
        rng.normal(size=(30, 4)), rng.integers(0, 3, 30), 3
    )
    vector = stats.vector(pooled=pooled)
    s2 = stats.s2.sum(axis=0) if pooled else stats.s2
    length = (stats.n**2).sum() + (stats.s1**2).sum() + (s2**2).sum()
    np.testing.assert_allclose((vector**2).sum(), length, rtol=1e-13)
    again = ClassStatistics.from_vector(vector, 3, 4)
    assert again.pooled == pooled
    for name, value in (("n", stats.n), ("s1", stats.s1), ("s2", s2)):
        np.testing.assert_allclose(getattr(again, name), value, rtol=1e-13)


def test_wrong_shapes_are_refused():
    stats = ClassStatistics.from_data(np.ones((3, 2)), [0, 1, 1], 2)
    with pytest.raises(ValueError, match="do not match"):
        ClassStatistics(np.ones(3), np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="cannot be added"):
        stats + stats.pool()
    with pytest.raises(ValueError, match="are pooled over classes"):
        stats.pool().cov()
    with pytest.raises(ValueError, match="does not match statistics"):
        ClassStatistics.from_vector(np.ones(4), 2, 2)
    with pytest.raises(ValueError, match="outside of range"):
        ClassStatistics.from_data(np.ones((2, 2)), [0, 2], 2)
    with pytest.raises(ValueError, match="one class per sample"):
        ClassStatistics.from_data(np.ones((2, 2)), [0], 2)
    with pytest.raises(TypeError):
        stats + 1


def federation(rows, labels, owner, n_classes):
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=owner.max() + 2)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return FederatedDataset(
        rows, labels[order], offsets, range(len(sizes)), n_classes, order=order
    )


def exact_state(algorithm, data):
    """State after all rounds without noise, through the codec."""
    state, mechanism = algorithm.init(data.n_classes), ExactSum()
    for index in range(algorithm.n_rounds):
        broadcast = algorithm.broadcast(state)
        codec = mechanism.codec(algorithm.spec(broadcast))
        answer = respond(Request(algorithm, broadcast, codec), data)
        total = mechanism.release(answer.total, codec, index)
        state = algorithm.update(state, total, len(data))
    return state


@given(partitions(), st.booleans())
def test_no_bit_depends_on_the_partition(case, pooled):
    rows, labels, n_classes, owner = case
    algorithm = ClassMoments(rows.shape[1], pooled=pooled)
    states = [
        exact_state(algorithm, federation(rows, labels, who, n_classes))
        for who in (owner, 0 * owner, np.arange(len(rows)), owner[::-1])
    ]
    for state in states[1:]:
        for name in ("counts", "first", "second", "scale"):
            np.testing.assert_array_equal(
                getattr(state, name), getattr(states[0], name)
            )


@given(partitions(), st.booleans())
def test_sums_of_the_algorithm_are_the_statistics(case, pooled):
    rows, labels, n_classes, owner = case
    algorithm = ClassMoments(rows.shape[1], pooled=pooled)
    state = exact_state(algorithm, federation(rows, labels, owner, n_classes))
    stats = ClassStatistics.from_data(rows, labels, n_classes, pooled=pooled)
    upper = np.triu_indices(rows.shape[1])
    np.testing.assert_array_equal(state.counts, stats.n)
    scale = state.scale
    size = scale * len(rows)
    np.testing.assert_allclose(
        state.first * scale, stats.s1, rtol=1e-14, atol=1e-15 * size
    )
    np.testing.assert_allclose(
        state.second * scale**2,
        stats.s2[..., upper[0], upper[1]],
        rtol=1e-14,
        atol=1e-15 * size * scale,
    )


@pytest.mark.parametrize("factor", [2.0**-60, 2.0**70])
def test_units_of_features_do_not_matter(factor):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(50, 3)), rng.integers(0, 2, 50)
    owner = np.arange(50) % 7
    algorithm = ClassMoments(3)
    one = exact_state(algorithm, federation(rows, labels, owner, 2))
    other = exact_state(algorithm, federation(rows * factor, labels, owner, 2))
    assert other.scale == one.scale * factor
    np.testing.assert_array_equal(one.first, other.first)
    np.testing.assert_array_equal(one.second, other.second)


def test_a_client_of_zeros_does_not_change_the_unit():
    rows = np.r_[np.full((4, 2), 2.0**-70), np.zeros((2, 2))]
    labels = np.zeros(6, dtype=int)
    apart = federation(rows, labels, np.array([0, 0, 0, 0, 1, 1]), 1)
    together = federation(rows, labels, np.zeros(6, dtype=int), 1)
    for data in (apart, together):
        state = exact_state(ClassMoments(2), data)
        assert state.scale == 2.0**-69
        np.testing.assert_array_equal(state.second, 1.0)
    nothing = exact_state(ClassMoments(2), federation(0 * rows, labels, labels, 1))
    assert not nothing.second.any()


def test_large_offsets_leave_the_covariance_of_float64():
    # Products of 1e4 and unit spread: rounding of 1e-16 * 1e8 in the covariance.
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 4)) + 1e4
    labels = np.zeros(2000, dtype=int)
    data = federation(rows, labels, np.arange(2000) % 31, 1)
    state = exact_state(ClassMoments(4), data)
    second = np.zeros((4, 4))
    second[np.triu_indices(4)] = state.second
    second = (second + np.triu(second, 1).T) * state.scale**2
    found = ClassStatistics(state.counts, state.first * state.scale, second)
    np.testing.assert_allclose(found.pooled_cov(), np.cov(rows.T), rtol=0, atol=1e-6)
    naive = rows.astype(np.float32)
    bad = naive.T @ naive - 2000 * np.outer(naive.mean(axis=0), naive.mean(axis=0))
    assert np.abs(bad / 1999 - np.cov(rows.T)).max() > 1.0


def test_cut_parts_are_whole_and_add_up():
    unit = np.random.default_rng(0).uniform(-1, 1, size=(20, 6))
    unit[0, :3] = 1.0, -1.0, 0.0
    parts = cut(unit)
    for part in parts:
        np.testing.assert_array_equal(part, np.rint(part))
        assert np.abs(part).max() <= 2.0**17
    whole = sum(p * 2.0 ** (-17 * (i + 1)) for i, p in enumerate(parts))
    np.testing.assert_allclose(whole, unit, rtol=0, atol=2.0**-52)
    expected = (unit.T @ unit)[np.triu_indices(6)]
    found = joined(products(parts), tuple(2.0 ** (-17 * (i + 2)) for i in range(3)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_rows_are_shortened_to_the_public_bound():
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [1e300, -1e300], [0.0, 0.0]])
    found = scaled_rows(rows, 2.0, True)
    expected = [[0.6, 0.8], [0.15, 0.2], [0.5**0.5, -(0.5**0.5)], [0, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    np.testing.assert_array_equal(scaled_rows(found, 1.0, True)[1], found[1])


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_client_answers_alone_as_among_others(dtype, pooled):
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(300, 5)) * 3).astype(dtype)
    owner = rng.integers(0, 40, 300)
    data = federation(rows, rng.integers(0, 3, 300), owner, 3)
    algorithm = ClassMoments(5, pooled=pooled, max_norm=2.5, clip=1.0, n_rounds=1)
    broadcast = algorithm.broadcast(algorithm.init(3))
    together = algorithm.query(broadcast, data)["moments"]
    for i in range(len(data)):
        for view in (data.select([i]).compact(), data.slice(i, i + 1)):
            alone = algorithm.query(broadcast, view)["moments"]
            assert alone.tobytes() == together[i : i + 1].tobytes()


def test_what_a_client_sends_under_a_bound_is_its_vector():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(60, 4)), rng.integers(0, 3, 60)
    owner = rng.integers(0, 6, 60)
    algorithm = ClassMoments(4, max_norm=1.5, clip=1.0, n_rounds=1)
    broadcast = algorithm.broadcast(algorithm.init(3))
    sent = algorithm.query(broadcast, federation(rows, labels, owner, 3))["moments"]
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = rows / np.maximum(length, 1.5)
    for k in range(6):
        own = unit[owner == k], labels[owner == k]
        expected = ClassStatistics.from_data(*own, 3).vector()
        np.testing.assert_allclose(sent[k], expected, rtol=1e-12, atol=1e-13)
        n_rows = (owner == k).sum()
        assert 1 <= np.linalg.norm(sent[k]) <= np.sqrt(3) * n_rows
    assert not sent[-1].any()
