"""Scaling maps: canonical form, values, slopes, curvature and the order law."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.methods.scaling.estimator import in_order
from skfedcal.methods.scaling.families import (
    SMALLEST_SLOPE,
    MatrixMap,
    OrderPreservingMap,
    VectorMap,
    canonical,
    labelled,
    loss_and_slopes,
    losses,
)
from skfedcal.methods.scaling.rounds import ClassCurvature, FullCurvature, PairCurvature

FAMILIES = [VectorMap(), MatrixMap(), OrderPreservingMap()]


def over_families(families=tuple(FAMILIES)):
    names = [type(family).__name__ for family in families]
    return pytest.mark.parametrize("family", families, ids=names)


def one_client(n=30, c=4, seed=0, scale=2.0):
    rng = np.random.default_rng(seed)
    rows, labels = rng.normal(size=(n, c)) * scale, rng.integers(0, c, n)
    return FederatedDataset(rows, labels, np.array([0, n]), ["a"], c)


def prepared(family, data, beta=1.0):
    (block,) = data.blocks()
    return labelled(block, beta, family.ranked)


def moved(family, c, seed=1, size=0.3):
    rng = np.random.default_rng(seed)
    return family.start(c) + size * rng.normal(size=family.size(c))


def test_rows_have_mean_zero_and_the_scale_of_beta():
    rows = canonical(np.array([[5.0, 1.0, 3.0], [0.0, 0.0, 3.0]]), beta=0.5)
    expected = np.array([[1.0, -1.0, 0.0], [-0.5, -0.5, 1.0]])
    np.testing.assert_allclose(rows.values.T, expected)
    assert rows.masked is None


@pytest.mark.parametrize("low", [-np.inf, -1e7, -1e308])
def test_a_masked_entry_is_left_out_of_the_mean(low):
    rows = canonical(np.array([[4.0, low, 2.0], [1.0, 2.0, 3.0]]))
    np.testing.assert_allclose(rows.values.T, [[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0]])
    assert rows.masked.T.tolist() == [[False, True, False], [False, False, False]]
    for family in FAMILIES:
        ranked = canonical(np.array([[4.0, low, 2.0]]), ranked=family.ranked)
        assert family.logits(family.start(3), ranked)[1, 0] == -np.inf


@over_families()
def test_a_row_whose_own_class_is_masked_counts_nothing(family):
    rows = np.array([[4.0, -np.inf, 2.0], [1.0, 2.0, 3.0]])
    both = FederatedDataset(rows, np.array([1, 0]), np.array([0, 2]), ["a"], 3)
    second = FederatedDataset(rows[1:], np.array([0]), np.array([0, 1]), ["a"], 3)
    params = moved(family, 3)
    sums = [
        loss_and_slopes(family, params, prepared(family, data))[0]
        for data in (both, second)
    ]
    assert np.isfinite(sums[0]).all()
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-12)


def test_maps_worked_by_hand():
    rows = canonical(np.array([[3.0, 0.0, 0.0]]), ranked=True)  # 2, -1, -1
    vector = VectorMap().logits(np.array([1.0, 2.0, 3.0, 0.5, 0.0, -0.5]), rows)
    np.testing.assert_allclose(vector[:, 0], [2.5, -2.0, -3.5])
    columns = [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.1, 0.2]]
    matrix = MatrixMap().logits(np.concatenate(columns), rows)
    # First row of A is (1, 0.5, 0): 2 - 0.5; then -1 + 0.1 and -1 + 0.2.
    np.testing.assert_allclose(matrix[:, 0], [1.5, -0.9, -0.8])
    rows = canonical(np.array([[1.0, 4.0, 2.0]]), ranked=True)
    slopes = np.log([np.e**2 - 1, np.e - 1, np.e**3 - 1])  # softplus: 2, 1, 3
    ordered = OrderPreservingMap().logits(np.r_[np.zeros(3), slopes], rows)
    # Class 1 is 2 above class 2, times slope 1; class 2 is 1 above class 0, times 3.
    np.testing.assert_allclose(ordered[:, 0], [-5.0, 0.0, -2.0], atol=1e-12)


@over_families()
def test_the_start_is_the_identity_up_to_a_shift(family):
    logits = np.random.default_rng(0).normal(size=(20, 5))
    rows = canonical(logits, ranked=family.ranked)
    out = family.logits(family.start(5), rows).T
    shift = out - logits
    np.testing.assert_allclose(shift - shift[:, :1], 0, atol=1e-12)


@over_families()
def test_slopes_agree_with_finite_differences(family):
    data = prepared(family, one_client())
    params = moved(family, 4)
    slope = loss_and_slopes(family, params, data)[0][0, 1:]
    step = 1e-6
    for i in range(len(params)):
        ends = []
        for sign in (1, -1):
            there = params.copy()
            there[i] += sign * step
            ends.append(loss_and_slopes(family, there, data)[0][0, 0])
        assert slope[i] == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=1e-5)


def test_slopes_agree_with_torch():
    torch = pytest.importorskip("torch")
    data = one_client(40, 5)
    z = torch.tensor(data.rows - data.rows.mean(axis=1, keepdims=True))
    labels = torch.tensor(data.labels)

    def ordered(v, u):
        y, ranks = z.sort(dim=1, descending=True)
        gaps = torch.cat([y[:, :-1] - y[:, 1:], torch.zeros_like(y[:, :1])], dim=1)
        slopes = torch.nn.functional.softplus(v * z + u).gather(1, ranks)
        values = (gaps * slopes).flip(1).cumsum(1).flip(1)
        return torch.zeros_like(values).scatter(1, ranks, values)

    maps = {
        VectorMap(): lambda p: p[:5] * z + p[5:],
        MatrixMap(): lambda p: z @ p[:25].reshape(5, 5) + p[25:],
        OrderPreservingMap(): lambda p: ordered(p[:5], p[5:]),
    }
    for family, function in maps.items():
        params = torch.tensor(moved(family, 5), requires_grad=True)
        loss = torch.nn.functional.cross_entropy(
            function(params), labels, reduction="sum"
        )
        loss.backward()
        sums, _ = loss_and_slopes(
            family, params.detach().numpy(), prepared(family, data)
        )
        assert sums[0, 0] == pytest.approx(loss.item(), rel=1e-12)
        np.testing.assert_allclose(sums[0, 1:], params.grad.numpy(), atol=1e-10)


@over_families([VectorMap(), MatrixMap()])
def test_solving_with_the_curvature_is_a_newton_step(family):
    data = prepared(family, one_client(60, 3))
    params = moved(family, 3)
    curvature = PairCurvature() if family == VectorMap() else FullCurvature()
    sums, proba = loss_and_slopes(family, params, data)
    bends = curvature.sums(family, params, data, proba)[0]
    size, step = len(params), 1e-6
    assert bends.shape == (curvature.size(3),)
    hessian = np.empty((size, size))
    for i in range(size):
        ends = [
            loss_and_slopes(family, params + s * step * np.eye(size)[i], data)[0][0, 1:]
            for s in (1, -1)
        ]
        hessian[i] = (ends[0] - ends[1]) / (2 * step)
    ridge = np.linspace(0.5, 2, size)
    expected = np.linalg.solve((hessian + np.diag(ridge)) / 60, sums[0, 1:])
    found = curvature.solve(bends, ridge, 60.0, sums[0, 1:])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_curvature_of_the_ordered_map_is_that_of_its_linearisation():
    family, step = OrderPreservingMap(), 1e-6
    data = prepared(family, one_client(20, 3))
    params = moved(family, 3)
    logits = family.logits(params, data.rows)
    proba = losses(logits, data)[2]
    jacobian = np.stack(
        [
            (
                family.logits(params + step * e, data.rows)
                - family.logits(params - step * e, data.rows)
            )
            / (2 * step)
            for e in np.eye(6)
        ]
    )
    expected = np.zeros((6, 6))
    for i in range(20):
        p = proba[:, i]
        own = np.diag(p) - np.outer(p, p)
        expected += jacobian[:, :, i] @ own @ jacobian[:, :, i].T
    bends = PairCurvature().sums(family, params, data, proba)[0]
    slope = np.arange(1.0, 7.0)
    found = PairCurvature().solve(bends, np.ones(6), 1.0, slope)
    np.testing.assert_allclose(
        found, np.linalg.solve(expected + np.eye(6), slope), rtol=1e-5
    )
    within = ClassCurvature().sums(family, params, data, proba)[0]
    own = np.concatenate([np.diag(expected[:3, :3]), np.diag(expected[:3, 3:])])
    np.testing.assert_allclose(within[:6], own, rtol=1e-5)


@over_families()
def test_parameters_of_each_client_act_on_its_own_rows(family):
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(12, 3)), rng.integers(0, 3, 12)
    data = FederatedDataset(rows, labels, np.array([0, 5, 5, 12]), range(3), 3)
    params = np.stack([moved(family, 3, seed) for seed in range(3)])
    together, _ = loss_and_slopes(family, params, prepared(family, data))
    for i in (0, 2):
        alone = prepared(family, data.slice(i, i + 1).compact())
        sums, _ = loss_and_slopes(family, params[i], alone)
        np.testing.assert_array_equal(together[i], sums[0])
    assert not together[1].any()


ENTRIES = st.floats(-1e4, 1e4, width=32) | st.sampled_from([0.0, 1.0, -1.0, 2.0**-100])


@settings(max_examples=150)
@given(
    rows=hnp.arrays(
        np.float32, st.tuples(st.integers(1, 4), st.just(4)), elements=ENTRIES
    ),
    params=hnp.arrays(np.float64, 8, elements=st.floats(-30, 30)),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_the_ordered_map_keeps_every_rank_and_every_tie(rows, params, dtype):
    rows = rows.astype(dtype)
    rows -= rows.max(axis=1, keepdims=True)
    ranked = canonical(rows, ranked=True)
    values = OrderPreservingMap().descent(params, ranked)
    ordered = np.take_along_axis(rows.T, ranked.ranks, axis=0)
    out = in_order(values, ordered)
    assert out.dtype == dtype
    np.testing.assert_array_equal(
        np.sign(np.diff(ordered, axis=0)), np.sign(np.diff(out, axis=0))
    )


def test_where_the_softplus_underflows_classes_stay_apart():
    rows = canonical(np.array([[3.0, 2.0, 1.0]]), ranked=True)
    params = np.r_[np.zeros(3), np.full(3, -800.0)]
    out = OrderPreservingMap().logits(params, rows)[:, 0]
    np.testing.assert_allclose(np.diff(out), -SMALLEST_SLOPE, rtol=1e-9)
    one = np.array([1])
    data = FederatedDataset(np.array([[3.0, 2.0, 1.0]]), one, np.array([0, 1]), "a", 3)
    (block,) = data.blocks()
    sums, _ = loss_and_slopes(OrderPreservingMap(), params, labelled(block, 1.0, True))
    assert not sums[0, 1:].any()


def test_ranks_keep_the_column_order_of_ties():
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows = rng.normal(size=rng.integers(1, 40, 2)[::-1])
        rows = np.where(rng.random(rows.shape) < 0.2, np.round(rows), rows)
        rows[rng.random(rows.shape) < 0.05] = -np.inf
        rows[:, 0] = 9.0  # the maximum
        found = canonical(rows, ranked=True).ranks
        expected = np.argsort(9.0 - rows, axis=1, kind="stable").T
        np.testing.assert_array_equal(found, expected)
