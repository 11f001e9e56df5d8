import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from skfedcal.clients.synthetic import make_federation

SEED = 1


def best_temperature(logits, labels):
    """Optimum of the log loss, and its standard error by the Fisher information."""
    logits = logits.astype(np.float64)
    rows = np.arange(len(labels))

    def loss(log_beta):
        return -log_softmax(np.exp(log_beta) * logits, axis=1)[rows, labels].mean()

    beta = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    proba = softmax(beta * logits, axis=1)
    mean = (proba * logits).sum(axis=1, keepdims=True)
    information = (proba * (logits - mean) ** 2).sum()
    # d T = d beta / beta^2.
    return 1 / beta, 1 / (beta**2 * np.sqrt(information))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.8, 6.0])
@pytest.mark.parametrize("n_classes", [2, 10])
def test_temperature_is_the_optimum_without_bias_and_noise(temperature, n_classes):
    federation = make_federation(
        10,
        20_000,
        n_classes,
        temperature=temperature,
        noise=0.0,
        random_state=SEED,
    )
    for logits, labels in (
        (federation.logits, federation.labels),
        (federation.test_logits, federation.test_labels),
    ):
        found, error = best_temperature(logits, labels)
        # Labels follow the model at the true T, so the estimate is normal with this
        # standard error; six of them: 2e-9 by chance. 1e-4 for the bounded search.
        assert abs(found - temperature) < 6 * error + 1e-4 * temperature
        assert error < 0.05 * temperature


def test_noise_and_bias_make_the_model_worse_than_its_best_temperature():
    plain, biased = (
        make_federation(5, 20_000, class_bias=sd, noise=0.0, random_state=SEED)
        for sd in (0.0, 1.5)
    )
    np.testing.assert_array_equal(plain.labels, biased.labels)
    np.testing.assert_allclose(
        biased.logits - plain.logits, np.tile(biased.class_bias, (20_000, 1)), atol=1e-4
    )
    assert not plain.class_bias.any() and biased.class_bias.shape == (10,)
    noisy = make_federation(5, 20_000, noise=2.0, random_state=SEED)
    # Noise of sd 2 in 1.8 units flattens the best map: far beyond its standard error.
    assert best_temperature(noisy.logits, noisy.labels)[0] > 2.2


def test_clients_are_views_in_client_order():
    federation = make_federation(7, 500, 3, random_state=SEED)
    assert np.all(np.diff(federation.client_ids) >= 0)
    assert len(federation.clients) == 7
    for k, (logits, labels) in enumerate(federation.clients):
        assert np.shares_memory(logits, federation.logits)
        assert np.shares_memory(labels, federation.labels)
        np.testing.assert_array_equal(
            logits, federation.logits[federation.client_ids == k]
        )
        np.testing.assert_array_equal(
            labels, federation.labels[federation.client_ids == k]
        )


def test_clients_differ_in_labels_and_not_in_logits_given_the_label():
    federation = make_federation(4, 40_000, 3, alpha=0.3, random_state=SEED)
    shares = [np.bincount(y, minlength=3) / len(y) for _, y in federation.clients]
    assert np.ptp(shares, axis=0).max() > 0.3
    for label in range(3):
        groups = [z[y == label, 0] for z, y in federation.clients]
        groups = [group for group in groups if len(group) > 50]
        pooled = np.concatenate(groups)
        for group in groups:
            # Six standard errors of a mean of the pooled law.
            bound = 6 * pooled.std() / np.sqrt(len(group))
            assert abs(group.mean() - pooled.mean()) < bound


@pytest.mark.parametrize("alpha", [None, np.inf])
def test_no_skew_gives_all_clients_the_same_mix(alpha):
    federation = make_federation(10, 5000, 4, alpha=alpha, random_state=SEED)
    table = np.array([np.bincount(y, minlength=4) for _, y in federation.clients])
    assert np.ptp(table, axis=0).max() <= 1


def test_balance_and_min_size_reach_the_partitioner():
    even = make_federation(7, 500, 3, balance=True, random_state=SEED)
    assert {len(y) for _, y in even.clients} == {71, 72}
    uneven = make_federation(50, 500, 3, min_size=8, random_state=SEED)
    assert min(len(y) for _, y in uneven.clients) == 8


def test_larger_separation_is_easier():
    accuracy = [
        np.mean(federation.logits.argmax(axis=1) == federation.labels)
        for federation in (
            make_federation(2, 20_000, separation=s, random_state=SEED)
            for s in (0.0, 2.0, 4.0)
        )
    ]
    np.testing.assert_allclose(accuracy, [0.56, 0.73, 0.87], atol=0.03)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, "float64"])
def test_dtype_and_shapes(dtype):
    federation = make_federation(3, 60, 5, n_test=11, dtype=dtype, random_state=SEED)
    assert federation.logits.dtype == federation.test_logits.dtype == np.dtype(dtype)
    assert federation.test_logits.shape == (11, 5)
    assert federation.test_labels.shape == (11,)
    assert federation.temperature == 1.8


def test_seed_fixes_all_and_test_rows_change_nothing_else():
    one = make_federation(3, 200, n_test=0, random_state=SEED)
    two = make_federation(3, 200, n_test=50, random_state=SEED)
    other = make_federation(3, 200, random_state=SEED + 1)
    assert one.test_logits.shape == (0, 10)
    for name in ("logits", "labels", "client_ids", "class_bias"):
        np.testing.assert_array_equal(one[name], two[name])
    assert np.any(one.logits != other.logits)


def test_rows_drawn_in_parts_are_all_drawn():
    federation = make_federation(2, 1200, 1000, random_state=SEED, n_test=0)
    assert np.isfinite(federation.logits).all()
    assert len(np.unique(federation.logits[:, 0])) > 1190
    assert federation.labels.max() < 1000 and len(np.unique(federation.labels)) > 400


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({"n_classes": 1}, ValueError, "n_classes == 1, must be >= 2"),
        ({"n_samples": 50}, ValueError, "50 rows cannot give each of 100 clients"),
        ({"n_samples": 0}, ValueError, "n_samples == 0"),
        ({"n_test": -1}, ValueError, "n_test == -1"),
        (
            {"temperature": 0.0},
            ValueError,
            "temperature=0.0 is out of range; pass 0 < t",
        ),
        ({"temperature": np.nan}, ValueError, "temperature=nan"),
        ({"noise": -0.1}, ValueError, "noise=-0.1"),
        ({"class_bias": np.inf}, ValueError, "class_bias=inf"),
        ({"alpha": -1.0}, ValueError, "alpha=-1.0"),
        ({"separation": "2"}, TypeError, "separation=.* is of type"),
        ({"dtype": np.float16}, ValueError, "dtype must be float32 or float64"),
    ],
)
def test_bad_parameters_are_refused(params, error, message):
    with pytest.raises(error, match=message):
        make_federation(**params)
