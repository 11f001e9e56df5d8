import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats

from skfedcal.datasets import covariate_shift, label_shift

SEED = 2
# Deviations of a normal estimate that it leaves with probability 4e-8.
Z = 5.5
RNG = np.random.default_rng(SEED)
N_ROWS = 4000
X = RNG.normal(size=(N_ROWS, 3)) * [1, 10, 0.1] + [0, 5, 0]
Y = RNG.choice([2, 5, 9], p=[0.6, 0.3, 0.1], size=N_ROWS)
PRIOR = np.array([0.2, 0.3, 0.5])


def chi_square_is_plausible(observed, expected):
    """Whether counts fit; a law that holds fails with probability 1e-7."""
    statistic = np.sum((observed - expected) ** 2 / expected)
    return statistic < stats.chi2.isf(1e-7, len(expected) - 1)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0])
def test_classes_follow_the_mix_of_both_priors(strength):
    shifted = label_shift(
        X, Y, PRIOR, strength=strength, n_samples=20_000, random_state=SEED
    )
    source = np.array([(label == Y).mean() for label in shifted.classes])
    expected = (1 - strength) * source + strength * PRIOR
    np.testing.assert_allclose(shifted.prior, expected)
    np.testing.assert_array_equal(shifted.classes, [2, 5, 9])
    counts = np.array([np.sum(shifted.y == label) for label in (2, 5, 9)])
    assert chi_square_is_plausible(counts, 20_000 * expected)
    if strength == 0:
        np.testing.assert_allclose(shifted.weights, 1)


def test_weights_of_labels_are_ratios_of_priors():
    labels = np.array(["a", "b", "b", "b"])
    shifted = label_shift(np.zeros((4, 1)), labels, [0.5, 0.5], random_state=SEED)
    np.testing.assert_allclose(shifted.weights, [2, 2 / 3, 2 / 3, 2 / 3])
    assert shifted.X.shape == (4, 1) and set(shifted.y) <= {"a", "b"}


def test_rows_of_a_class_are_drawn_evenly_and_keep_their_label():
    labels = np.repeat([0, 1], [10, 30])
    rows = np.arange(40)
    shifted = label_shift(rows, labels, [0.5, 0.5], n_samples=40_000, random_state=SEED)
    np.testing.assert_array_equal(shifted.X, rows[shifted.indices])
    np.testing.assert_array_equal(shifted.y, labels[shifted.indices])
    counts = np.bincount(shifted.indices, minlength=40)
    assert chi_square_is_plausible(counts, np.repeat([2000, 20_000 / 30], [10, 30]))


def test_a_class_without_prior_is_never_drawn():
    shifted = label_shift(X, Y, [0, 0.5, 0.5], random_state=SEED)
    assert set(shifted.y) == {5, 9}
    assert not shifted.weights[Y == 2].any()


def test_no_prior_draws_one():
    shifted = label_shift(X, Y, random_state=SEED)
    assert shifted.prior.sum() == pytest.approx(1)
    again = label_shift(X, Y, random_state=SEED)
    np.testing.assert_array_equal(shifted.X, again.X)
    assert not np.allclose(label_shift(X, Y, random_state=3).prior, shifted.prior)


@pytest.mark.parametrize("form", [pd.DataFrame, sparse.csr_array, np.ndarray.tolist])
def test_tables_of_any_form(form):
    expected = label_shift(X, Y, PRIOR, random_state=SEED)
    found = label_shift(form(X), Y.tolist(), PRIOR.tolist(), random_state=SEED)
    dense = found.X.toarray() if sparse.issparse(found.X) else np.asarray(found.X)
    np.testing.assert_array_equal(dense, expected.X)


@pytest.mark.parametrize("shift", [label_shift, covariate_shift])
def test_weighted_rows_stand_for_shifted_ones(shift):
    labels = (X[:, 1] + RNG.normal(size=N_ROWS) > 5).astype(int)
    shifted = shift(X, labels, strength=0.8, n_samples=50_000, random_state=SEED)
    assert shifted.weights.mean() == pytest.approx(1)
    assert (shifted.weights >= 0).all() and shifted.weights.shape == (N_ROWS,)
    values = np.column_stack([X, labels])
    drawn = np.column_stack([shifted.X, shifted.y])
    expected = (shifted.weights[:, None] * values).mean(axis=0)
    error = drawn.std(axis=0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(axis=0) - expected) < Z * error).all()


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
def test_projection_moves_by_its_strength(strength):
    shifted = covariate_shift(
        X, Y, strength, direction=[0, -2, 0], n_samples=20_000, random_state=SEED
    )
    np.testing.assert_array_equal(shifted.direction, [0, -1, 0])
    projection = -(X[:, 1] - X[:, 1].mean()) / X[:, 1].std()
    slope = np.polyfit(projection, np.log(shifted.weights), 1)[0]
    assert slope == pytest.approx(1.5 * strength, abs=0.03)
    moved = -(shifted.X[:, 1] - X[:, 1].mean()) / X[:, 1].std()
    # The far end is where rows are few: the mean of the tilted sample itself has an
    # error of about 1 / sqrt(effective rows).
    error = 1 / np.sqrt(shifted.n_effective) + 1 / np.sqrt(20_000)
    assert abs(moved.mean() - 1.5 * strength) < Z * error
    others = shifted.X[:, [0, 2]].mean(axis=0) / X[:, [0, 2]].std(axis=0)
    assert (np.abs(others) < Z * error).all()


def test_rows_are_drawn_by_their_weights():
    shifted = covariate_shift(X[:200], Y[:200], n_samples=100_000, random_state=SEED)
    counts = np.bincount(shifted.indices, minlength=200)
    assert chi_square_is_plausible(counts, 500 * shifted.weights)
    np.testing.assert_array_equal(shifted.X, X[shifted.indices])
    np.testing.assert_array_equal(shifted.y, Y[shifted.indices])


def test_effective_rows_worked_by_hand():
    # Two rows have the scores -+0.674; with the weights w and 1/w the mean is 1.
    shifted = covariate_shift([[0.0], [1.0]], [0, 1], 1.0, random_state=SEED)
    ratio = np.exp(2 * 1.5 * stats.norm.ppf(0.75))
    weights = np.array([1, ratio]) * 2 / (1 + ratio)
    weights = weights if shifted.direction[0] > 0 else weights[::-1]
    np.testing.assert_allclose(shifted.weights, weights)
    assert shifted.n_effective == pytest.approx(4 / np.sum(weights**2))


def test_a_far_row_does_not_take_all_weight():
    table = X.copy()
    table[7] = 1e9
    shifted = covariate_shift(table, Y, 1.0, direction=np.ones(3), random_state=SEED)
    assert shifted.weights[7] == shifted.weights.max() < 100
    assert shifted.n_effective > N_ROWS / 20


def test_a_constant_column_passes():
    table = np.column_stack([X, np.full(N_ROWS, 3.0)])
    shifted = covariate_shift(table, Y, random_state=SEED)
    assert np.isfinite(shifted.weights).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: label_shift(X, Y[:3]), "X has 4000 rows but y has 3 labels"),
        (lambda: label_shift(X[:0], Y[:0]), "no rows"),
        (lambda: label_shift(X, Y, [0.5, 0.5]), r"prior has shape \(2,\) but y has 3"),
        (lambda: label_shift(X, Y, [0.5, 0.7, -0.2]), "sum to 1"),
        (lambda: label_shift(X, Y, [0.5, 0.4, 0.2]), "with the sum 1.1"),
        (lambda: label_shift(X, Y, [np.nan, 0.5, 0.5]), "sum to 1"),
        (lambda: label_shift(X, Y, strength=1.2), "strength=1.2"),
        (lambda: label_shift(X, Y, n_samples=0), "n_samples == 0"),
        (lambda: covariate_shift(X, Y, -0.1), "strength=-0.1"),
        (lambda: covariate_shift(X, Y, direction=[1, 2]), "direction must hold 3"),
        (lambda: covariate_shift(X, Y, direction=[0, 0, 0]), "not all 0"),
        (lambda: covariate_shift([["a"], ["b"]], [0, 1]), "could not convert"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
