"""Least squares on the tree of counts, against dense linear algebra."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal.evaluation.noise import rollup, wls_functional_var, wls_tree

LEVELS = [(3,), (1, 3), (2, 3, 5), (1, 2, 3, 4), (2, 6)]


def design(levels):
    """Rows that add up the leaves below each node of each level."""
    height = levels[-1]
    return [np.kron(np.eye(2**b), np.ones(2 ** (height - b))) for b in levels]


def covariance(levels, variances):
    weighted = [m / np.sqrt(v) for m, v in zip(design(levels), variances, strict=True)]
    stacked = np.concatenate(weighted)
    return np.linalg.inv(stacked.T @ stacked)


@given(
    levels=st.sampled_from(LEVELS),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.0, 4.0),
)
def test_tree_is_the_weighted_least_squares_fit(levels, seed, spread):
    rng = np.random.default_rng(seed)
    variances = np.exp(rng.normal(size=len(levels)) * spread)
    totals = [rng.normal(size=(2, 2**b)) * 10 for b in levels]
    rows = design(levels)
    stacked = np.concatenate(
        [m / np.sqrt(v) for m, v in zip(rows, variances, strict=True)]
    )
    for side in range(2):
        right = np.concatenate(
            [t[side] / np.sqrt(v) for t, v in zip(totals, variances, strict=True)]
        )
        expected = np.linalg.lstsq(stacked, right, rcond=None)[0]
        found = wls_tree(totals, variances, levels)[side]
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("levels", LEVELS)
def test_consistent_totals_are_left_as_they_are(levels):
    leaves = np.random.default_rng(0).integers(0, 50, (2, 2 ** levels[-1]))
    totals = [rollup(leaves, bits) for bits in levels]
    variances = np.arange(1, len(levels) + 1)
    np.testing.assert_allclose(wls_tree(totals, variances, levels), leaves, atol=1e-10)


def test_fit_is_unbiased():
    # 4000 fits with noise of variance 1: a mean has standard deviation below 1/63, and
    # 6 of these are exceeded by one of 32 with chance 6e-8.
    rng = np.random.default_rng(1)
    levels, leaves = (1, 4), np.arange(32.0).reshape(2, 16)
    totals = [rollup(leaves, b) + rng.normal(size=(4000, 2, 2**b)) for b in levels]
    mean = wls_tree(totals, [1.0, 1.0], levels).mean(axis=0)
    assert np.abs(mean - leaves).max() < 6 / np.sqrt(4000)


@given(levels=st.sampled_from(LEVELS), seed=st.integers(0, 2**31))
def test_variance_of_a_functional_is_exact(levels, seed):
    rng = np.random.default_rng(seed)
    variances = rng.uniform(0.1, 9.0, len(levels))
    functional = rng.normal(size=(3, 2, 2 ** levels[-1]))
    matrix = covariance(levels, variances)
    expected = [sum(row @ matrix @ row for row in g) for g in functional]
    found = wls_functional_var(functional, variances, levels)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_leaves_without_noise_need_no_parents():
    totals = [np.array([[5.0, 5.0]]), np.array([[1.0, 2.0, 3.0, 4.0]])]
    assert wls_tree(totals, [1.0, 0.0], (1, 2)).tolist() == [[1.0, 2.0, 3.0, 4.0]]


def prefix_std(levels, variances):
    """Root mean variance of the sums of the first k leaves, k = 1 .. 2**h."""
    size = 2 ** levels[-1]
    prefixes = np.tril(np.ones((size, size)))[:, None]
    return np.sqrt(wls_functional_var(prefixes, variances, levels).mean())


def test_few_wide_levels_halve_the_noise_of_the_binary_tree():
    # eps = 1 over three levels against the raw binary tree over ten; a prefix takes
    # half of its ten nodes on average. Discrete Laplace: 2 q / (1 - q)^2.
    def variance(eps):
        q = np.exp(-eps)
        return 2 * q / (1 - q) ** 2

    ours = prefix_std((2, 6, 10), [variance(1 / 3)] * 3)
    raw = np.sqrt(5 * variance(1 / 10))
    assert ours == pytest.approx(10.95, abs=0.1)
    assert ours < raw / 2.5
