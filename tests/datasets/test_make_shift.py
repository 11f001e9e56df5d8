import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal

from skfedcal.datasets import make_shift
from skfedcal.datasets._shifts import SHIFT_KINDS, World, _shifted

SEED = 6
# Deviations of a normal estimate that it leaves with probability 4e-8.
Z = 5.5


@pytest.mark.parametrize("kind", SHIFT_KINDS)
def test_parts_fit_together(kind):
    shift = make_shift(
        7, 100, 4, kind=kind, n_features=3, n_train=50, n_test=20, random_state=SEED
    )
    assert shift.X_train.shape == (50, 3) and shift.y_train.shape == (50,)
    assert shift.X.shape == (100, 3) and shift.X_test.shape == (20, 3)
    assert shift.weights.shape == (50,)
    assert shift.proba.shape == (100, 4) and shift.test_proba.shape == (20, 4)
    sizes = [len(labels) for _, labels in shift.clients]
    assert len(sizes) == 7 and set(sizes) == {14, 15}
    np.testing.assert_array_equal(np.bincount(shift.client_ids), sizes)
    for part, whole in enumerate((shift.X, shift.y)):
        joined = np.concatenate([client[part] for client in shift.clients])
        np.testing.assert_array_equal(joined, whole)
    again = make_shift(
        7, 100, 4, kind=kind, n_features=3, n_train=50, n_test=20, random_state=SEED
    )
    np.testing.assert_array_equal(shift.X_test, again.X_test)


@pytest.mark.parametrize("kind", SHIFT_KINDS)
def test_strength_zero_is_no_shift(kind):
    shift = make_shift(kind=kind, strength=0.0, n_test=0, random_state=SEED)
    np.testing.assert_allclose(shift.weights, 1)
    np.testing.assert_allclose(shift.prior, shift.train_prior)
    assert shift.X_test.shape == (0, 4)


def test_joint_density_is_that_of_scipy():
    rng = np.random.default_rng(SEED)
    world = World(rng.normal(size=(3, 4)), 2.5, np.array([0.2, 0.3, 0.5]))
    rows = rng.normal(size=(10, 4))
    expected = [
        np.log(prior) + multivariate_normal(mean, 2.5 * np.eye(4)).logpdf(rows)
        for mean, prior in zip(world.means, world.prior, strict=True)
    ]
    constant = 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(world.log_joint(rows), np.transpose(expected) + constant)


@pytest.mark.parametrize("kind", SHIFT_KINDS)
@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_labels_follow_the_stated_probabilities(kind, strength):
    shift = make_shift(
        n_samples=20_000, kind=kind, strength=strength, random_state=SEED
    )
    for proba, labels in (
        (shift.train_proba, shift.y_train),
        (shift.proba, shift.y),
        (shift.test_proba, shift.y_test),
    ):
        np.testing.assert_allclose(proba.sum(axis=1), 1)
        # Given the features, hits of a class are independent with these chances; also
        # where the class is likely.
        for rows in (proba >= 0, proba > 0.5):
            hits = ((labels[:, None] == np.arange(3)) - proba) * rows
            error = np.sqrt(np.sum(proba * (1 - proba) * rows, axis=0))
            assert (np.abs(hits.sum(axis=0)) <= Z * error).all()


# Weights of wider laws have no variance from a doubled one on.
@pytest.mark.parametrize(
    ("kind", "strength"),
    [("label", 1.0), ("covariate", 0.7), ("offset", 0.5)]
    + [("noise", 0.5), ("scale", 0.2)],
)
def test_weighted_training_rows_stand_for_shifted_ones(kind, strength):
    shift = make_shift(
        n_samples=50_000,
        kind=kind,
        strength=strength,
        n_features=2,
        n_train=50_000,
        random_state=SEED,
    )
    weighted = shift.weights[:, None]
    for before, after in (
        (np.ones((50_000, 1)), np.ones((50_000, 1))),
        (np.eye(3)[shift.y_train], np.eye(3)[shift.y]),
        (np.tanh(shift.X_train), np.tanh(shift.X)),
    ):
        estimate, error = (
            (weighted * before).mean(axis=0),
            (weighted * before).std(axis=0),
        )
        error = np.hypot(error, after.std(axis=0)) / np.sqrt(50_000)
        assert (np.abs(estimate - after.mean(axis=0)) < Z * error + 1e-12).all()
    frequencies = np.bincount(shift.y, minlength=3) / 50_000
    error = np.sqrt(shift.prior * (1 - shift.prior) / 50_000)
    assert (np.abs(frequencies - shift.prior) < Z * error).all()


def test_covariate_shift_tilts_the_features_and_keeps_the_labels_given_them():
    rng = np.random.default_rng(SEED)
    old = World(rng.normal(size=(4, 3)), 1.0, np.full(4, 0.25))
    new = _shifted(old, "covariate", 0.6, rng)
    rows = rng.normal(size=(50, 3)) * 3
    before, after = old.log_joint(rows), new.log_joint(rows)
    np.testing.assert_allclose(softmax(after, axis=1), softmax(before, axis=1))
    ratio = logsumexp(after, axis=1) - logsumexp(before, axis=1)
    design = np.column_stack([rows, np.ones(50)])
    slope, residual, *_ = np.linalg.lstsq(design, ratio, rcond=None)
    assert np.linalg.norm(slope[:3]) == pytest.approx(1.5 * 0.6)
    assert residual == pytest.approx(0, abs=1e-18)


def test_label_shift_keeps_the_features_given_the_class():
    rng = np.random.default_rng(SEED)
    old = World(rng.normal(size=(4, 3)), 1.0, np.full(4, 0.25))
    new = _shifted(old, "label", 1.0, rng)
    assert new.means is old.means and new.variance == old.variance
    assert new.prior.sum() == pytest.approx(1) and not np.allclose(new.prior, 0.25)


def test_measured_differently_worked_by_hand():
    rng = np.random.default_rng(SEED)
    old = World(rng.normal(size=(4, 3)), 1.0, np.full(4, 0.25))
    noisy, scaled, moved = (
        _shifted(old, kind, 0.5, rng) for kind in ("noise", "scale", "offset")
    )
    assert (noisy.variance, scaled.variance, moved.variance) == (1.25, 2.0, 1.0)
    np.testing.assert_array_equal(noisy.means, old.means)
    np.testing.assert_allclose(scaled.means, np.sqrt(2) * old.means)
    offset = moved.means - old.means
    np.testing.assert_allclose(np.abs(offset), 0.5)
    np.testing.assert_allclose(offset, offset[:1].repeat(4, axis=0))
    for new in (noisy, scaled, moved):
        np.testing.assert_array_equal(new.prior, old.prior)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "concept"}, "kind must be one of label.*'concept'"),
        ({"strength": 1.5}, "strength=1.5"),
        ({"n_classes": 1}, "n_classes == 1"),
        ({"n_features": 0}, "n_features == 0"),
        ({"n_train": 0}, "n_train == 0"),
        ({"n_test": -1}, "n_test == -1"),
        ({"n_clients": 20, "n_samples": 10}, "cannot give each of 20 clients"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        make_shift(**settings)
