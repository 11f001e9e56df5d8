import numpy as np
import pytest

from skfedcal.datasets import feature_shift

SEED = 4
Z = 5.5
KINDS = ("noise", "scale", "offset", "missing")
X = np.random.default_rng(SEED).normal(size=(5000, 6)) * [1, 2, 3, 4, 5, 6] + 10


@pytest.mark.parametrize("kind", KINDS)
def test_strength_zero_changes_nothing_and_the_input_stays(kind):
    before = X.copy()
    np.testing.assert_allclose(feature_shift(X, kind, 0.0).X, X)
    assert not np.allclose(feature_shift(X, kind, 1.0, random_state=SEED).X, X)
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("kind", ["scale", "offset", "missing"])
def test_result_follows_from_the_truth(kind):
    shifted = feature_shift(X, kind, 0.5, random_state=SEED)
    mean = X.mean(axis=0)
    expected = mean + shifted.gain * (X - mean) + shifted.offset
    expected[:, shifted.missing] = mean[shifted.missing]
    np.testing.assert_allclose(shifted.X, expected)
    spread = np.abs(shifted.offset) / X.std(axis=0)
    np.testing.assert_allclose(spread, 0.5 * (kind == "offset"))
    gain = np.abs(np.log2(shifted.gain))
    np.testing.assert_allclose(gain, 0.5 * (kind == "scale"))
    assert shifted.missing.sum() == 3 * (kind == "missing")
    assert not shifted.noise.any()


def test_worked_by_hand():
    table = [[0.0, 1.0], [2.0, 5.0]]
    shifted = feature_shift(table, "scale", 1.0, random_state=SEED)
    wide, narrow = {2.0: [-1, 3], 0.5: [0.5, 1.5]}, {2.0: [-1, 7], 0.5: [2, 4]}
    expected = np.column_stack([wide[shifted.gain[0]], narrow[shifted.gain[1]]])
    np.testing.assert_allclose(shifted.X, expected)


def test_noise_has_its_deviation():
    shifted = feature_shift(X, "noise", 0.3, random_state=SEED)
    added = shifted.X - X
    np.testing.assert_allclose(shifted.noise, 0.3 * X.std(axis=0))
    n = len(X)
    assert (np.abs(added.mean(axis=0)) < Z * shifted.noise / np.sqrt(n)).all()
    error = shifted.noise / np.sqrt(2 * n)
    assert (np.abs(added.std(axis=0) - shifted.noise) < Z * error).all()


@pytest.mark.parametrize("kind", KINDS)
def test_other_columns_stay(kind):
    shifted = feature_shift(X, kind, 1.0, columns=[4, 1], random_state=SEED)
    changed = (shifted.X != X).any(axis=0)
    np.testing.assert_array_equal(np.flatnonzero(changed), [1, 4])


def test_lost_columns_hold_what_is_asked_for():
    shifted = feature_shift(X, "missing", 0.5, fill=np.nan, random_state=SEED)
    np.testing.assert_array_equal(np.isnan(shifted.X).all(axis=0), shifted.missing)
    np.testing.assert_array_equal(np.isnan(shifted.X).any(axis=0), shifted.missing)


@pytest.mark.parametrize("kind", KINDS)
def test_gaps_and_type_stay(kind):
    table = X.astype(np.float32)
    table[::3, 0] = np.nan
    table[:, 5] = np.nan
    shifted = feature_shift(table, kind, 0.5, columns=[0, 1, 5], random_state=SEED)
    assert shifted.X.dtype == np.float32
    kept = ~shifted.missing
    np.testing.assert_array_equal(
        np.isnan(shifted.X)[:, kept], np.isnan(table)[:, kept]
    )


def test_seed_decides():
    first, again, other = (
        feature_shift(X, "noise", random_state=seed).X for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: feature_shift(X, "rust"), "kind must be one of 'noise'.*'rust'"),
        (lambda: feature_shift(X, "noise", 2), "strength=2"),
        (lambda: feature_shift(X, "noise", columns=[6]), "from 0 to 5, got"),
        (lambda: feature_shift(X, "noise", columns=[-1]), "from 0 to 5, got"),
        (lambda: feature_shift(X, "noise", columns=["a"]), "from 0 to 5, got"),
        (lambda: feature_shift(X[0], "noise"), "2D array"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
