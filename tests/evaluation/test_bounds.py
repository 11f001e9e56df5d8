"""The paper's bounds by hand, and closed forms against dense algebra."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from skfedcal.evaluation.bounds import (
    auc_bound,
    auc_certificate,
    auc_discretisation,
    calibration_bound,
    rates_bound,
    threshold_uncertainty,
)
from skfedcal.evaluation.noise import (
    auto_levels,
    discrete_laplace_variance,
    prefix_std,
    raw_prefix_std,
)


def test_lemma_3_is_half_a_bucket():
    assert auc_discretisation(50, smooth=False) == pytest.approx(0.01)
    assert auc_discretisation(10) == pytest.approx(1 / 300)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
def test_lemma_3_is_attained_for_any_share_of_positives(share):
    # In each of 20 buckets all positives are above all negatives.
    n = 1000
    positive = round(share * n)
    inside = np.concatenate([np.zeros(n - positive), np.full(positive, 0.5)])
    bucket = np.repeat(np.arange(20), n)
    labels = np.tile(np.arange(n) >= n - positive, 20).astype(int)
    exact = roc_auc_score(labels, bucket + np.tile(inside, 20))
    binned = roc_auc_score(labels, bucket)
    assert exact - binned == pytest.approx(auc_discretisation(20, smooth=False))
    counts = np.repeat([[n - positive], [positive]], 20, axis=1)
    assert auc_certificate(counts) == pytest.approx(1 / 40)


@given(
    scores=st.lists(st.integers(0, 40), min_size=4, max_size=60),
    data=st.data(),
    width=st.integers(1, 20),
)
def test_the_certificate_bounds_the_error_for_any_scores(scores, data, width):
    labels = np.array([data.draw(st.integers(0, 1)) for _ in scores])
    labels[:2] = 0, 1
    bins = np.array(scores) // width
    counts = np.stack([np.bincount(bins[labels == y], minlength=41) for y in (0, 1)])
    error = abs(roc_auc_score(labels, scores) - roc_auc_score(labels, bins))
    assert error <= auc_certificate(counts) + 1e-12


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_theorem_2_balances_buckets_and_noise(eps):
    error, buckets = rates_bound(1e6, trust="distributed", eps=eps)
    assert buckets == pytest.approx((eps * 1e6) ** (2 / 3))
    assert error == pytest.approx(2 * (eps * 1e6) ** (-2 / 3))
    error, buckets = rates_bound(1e6, trust="local", eps=eps)
    assert buckets == pytest.approx(eps ** (2 / 3) * 100)
    assert error == pytest.approx(2 / buckets)
    assert rates_bound(1e6, n_buckets=40) == (1 / 40, 40)


def test_theorem_2_threshold_has_the_noise_of_all_levels():
    assert threshold_uncertainty(1e4, 10) == 2**-10
    noise = threshold_uncertainty(1e4, 9, trust="distributed", eps=0.5) - 2**-9
    assert noise == pytest.approx(27 / (0.5 * 1e4))
    noise = threshold_uncertainty(1e4, 9, trust="local", eps=0.5) - 2**-9
    assert noise == pytest.approx(9 / (0.5 * 100))


def test_theorems_4_to_6():
    # Exact counts do not get better with more examples.
    assert auc_bound(1e3, 100) == auc_bound(1e9, 100) == auc_discretisation(100)
    start = auc_discretisation(100)
    noise = auc_bound(1e4, 100, trust="distributed", eps=2.0) - start
    assert noise == pytest.approx(1 / 2e4)
    rare = auc_bound(1e4, 100, trust="distributed", eps=2.0, positive_rate=0.1) - start
    assert rare == pytest.approx(noise / 0.36)
    local = [auc_bound(m, 100, trust="local", eps=0.1) - start for m in (1e4, 1e6)]
    assert local[0] == pytest.approx(10 * local[1])
    # 2 h / (eps sqrt(M)) for a small eps.
    assert local[0] == pytest.approx(2 * 10 / (0.1 * 100), rel=0.01)


def test_theorems_7_and_8():
    error, buckets = calibration_bound(1e6)
    assert (error, buckets) == (pytest.approx(0.02), pytest.approx(100))
    private, _ = calibration_bound(1e6, trust="distributed", eps=0.5)
    assert private == pytest.approx(0.02 + 1 / 0.5 / 1e4)
    error, buckets = calibration_bound(1e8, trust="local", eps=1.0)
    assert buckets == pytest.approx(100)
    assert error == pytest.approx(0.01 + 1e-3 + 0.01)


def test_the_variance_of_discrete_laplace_noise():
    k = np.arange(-400, 401)
    for eps in (0.1, 1.0, 5.0):
        mass = np.exp(-eps * np.abs(k))
        assert discrete_laplace_variance(eps) == pytest.approx(
            (k**2 * mass).sum() / mass.sum(), rel=1e-9
        )


@pytest.mark.parametrize("levels", [(5,), (1, 2, 3, 4, 5), (1, 5), (2, 4, 5)])
def test_prefix_std_is_that_of_dense_least_squares(levels):
    variances = np.linspace(1.0, 3.0, len(levels))
    n = 2 ** levels[-1]
    rows = np.concatenate(
        [np.kron(np.eye(2**b), np.ones(n // 2**b)) / s**0.5
         for b, s in zip(levels, variances, strict=True)]
    )  # fmt: skip
    covariance = np.linalg.inv(rows.T @ rows)
    prefixes = np.tril(np.ones((n + 1, n)), -1)
    mean = np.einsum("ij,jk,ik->i", prefixes, covariance, prefixes).mean()
    assert prefix_std(levels, variances) == pytest.approx(mean**0.5, rel=1e-10)


def test_raw_prefix_std_counts_the_nodes_of_a_prefix():
    nodes = np.mean([bin(r).count("1") for r in range(2**10)])
    assert raw_prefix_std(10, 7.0) == pytest.approx((7.0 * nodes) ** 0.5)


def test_few_wide_levels_beat_the_binary_tree_of_the_paper():
    def design(*levels):
        share = discrete_laplace_variance(1.0 / len(levels))
        return prefix_std(levels, [share] * len(levels))

    assert auto_levels(10) == (2, 6, 10) and auto_levels(3) == (3,)
    assert design(*auto_levels(10)) == pytest.approx(10.95, abs=0.005)
    assert design(10) == pytest.approx(30.70, abs=0.01)
    assert design(*range(1, 11)) == pytest.approx(16.73, abs=0.01)
    raw = raw_prefix_std(10, discrete_laplace_variance(0.1))
    assert raw > 2.5 * design(2, 6, 10)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rates_bound(100, trust="local"),
        lambda: auc_bound(100, 10, trust="distributed", eps=-1.0),
        lambda: calibration_bound(0),
        lambda: auc_discretisation(0),
        lambda: auc_discretisation(float("inf")),
    ],
)
def test_a_number_that_cannot_be_is_named(call):
    with pytest.raises(ValueError, match=r"eps must|n_examples=|n_buckets="):
        call()
