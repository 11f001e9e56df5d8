"""FedMLPCalibrator: what it learns, what it never changes, when it is not used."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import log_loss

from skfedcal import (
    CentralDP,
    FederatedRunner,
    FedMLPCalibrator,
    load,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.graph import ArrayValue, map_rows
from skfedcal.methods.map_formulas import stretched
from skfedcal.methods.scaling.estimator import keep_ranks

simulated = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)
unimproved = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.CalibrationWarning"
)


@pytest.fixture(scope="module")
def fed():
    return make_federation(30, 1500, 5, temperature=3.0, n_test=2000, random_state=0)


def nll(fed, proba):
    proba = proba.astype(np.float64)
    proba /= proba.sum(axis=1, keepdims=True)
    return log_loss(fed.test_labels, proba, labels=np.arange(5))


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("order_preserving", [True, False])
def test_training_lowers_the_loss_round_after_round(fed, order_preserving):
    losses = [nll(fed, softmax(fed.test_logits))]
    for n_rounds in (1, 4, 12):
        cal = FedMLPCalibrator(
            order_preserving=order_preserving, runner=FederatedRunner(n_rounds=n_rounds)
        ).fit(fed.clients)
        losses.append(nll(fed, cal.predict_proba(fed.test_logits)))
    assert losses == sorted(losses, reverse=True)
    default = FedMLPCalibrator(order_preserving=order_preserving).fit(fed.clients)
    assert default.n_rounds_ == 12
    assert nll(fed, default.predict_proba(fed.test_logits)) == losses[-1]


def stretch_gaps(logits, factors):
    cal = SimpleNamespace(classes_=range(logits.shape[1]))

    def formula(rows):
        return stretched(cal, rows, ArrayValue(factors), rows)

    return map_rows(formula, logits, keep_ranks)


def test_stretched_gaps_by_hand():
    logits = np.array([[0.0, -3.0, -1.0, -3.0], [-np.inf, 0.0, -2e6, -1.0]])
    factors = np.array([[2.0, 9.0, 0.5, 7.0], [1.0, 3.0, 1.0, 1.0]])
    out = stretch_gaps(logits, factors)
    np.testing.assert_array_equal(
        out, [[0.0, -3.0, -2.0, -3.0], [-np.inf, 0.0, -2e6, -3.0]]
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_rounding_ties_or_swaps_classes(dtype):
    rng = np.random.default_rng(0)
    logits = -np.abs(rng.normal(size=(500, 6))).astype(dtype) * 10
    # Neighbours in floating point, and ties.
    logits[:, 1] = np.nextafter(logits[:, 0], dtype(-100))
    logits[::2, 3] = logits[::2, 2]
    logits[::5, 4], logits[::5, 5] = -3e6, -2e6  # masked, and not in column order
    logits -= logits.max(axis=1, keepdims=True)
    factors = np.where(rng.random(logits.shape) < 0.5, 1e-6, 5.0)
    out = stretch_gaps(logits, factors)
    assert out.dtype == dtype
    for i in range(6):
        for j in range(6):
            np.testing.assert_array_equal(
                np.sign(out[:, i] - out[:, j]), np.sign(logits[:, i] - logits[:, j])
            )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ranking_is_unchanged_bit_for_bit(fed, dtype):
    # Ten times the usual step bends the map as far as many rounds would.
    cal = FedMLPCalibrator(learning_rate=0.1).fit(fed.clients)
    rng = np.random.default_rng(0)
    rows = np.concatenate([fed.test_logits, 1e4 * fed.test_logits[:200]]).astype(dtype)
    rows[::3, 1] = np.nextafter(rows[::3, 0], dtype(np.inf))
    rows[1::5, 2] = rows[1::5, 4]
    rows[::7, 3] = -np.inf
    out = cal.decision_function(rows)
    assert out.dtype == dtype
    # Differences of the input after its shift to a maximum of 0, as it is calibrated.
    rows = rows - rows.max(axis=1, keepdims=True)
    assert np.abs(out[1:7] - rows[1:7]).max() > 0.5
    first, second = rng.integers(0, 5, (2, 20))
    for i, j in zip(first, second, strict=True):
        before, after = rows[:, [i, j]], out[:, [i, j]]
        np.testing.assert_array_equal(
            before[:, 0] > before[:, 1], after[:, 0] > after[:, 1]
        )
    np.testing.assert_array_equal(cal.predict(rows), rows.argmax(axis=1))
    assert (cal.predict_proba(rows)[::7, 3] == 0).all()


def test_clients_are_averaged_in_any_order_and_empty_ones_left_out(fed):
    empty = (np.empty((0, 5)), np.empty(0, dtype=int))
    cal = FedMLPCalibrator(hidden=(8,)).fit(fed.clients)
    other = FedMLPCalibrator(hidden=(8,)).fit([empty, *fed.clients[::-1], empty])
    for one, two in zip(cal.coefs_, other.coefs_, strict=True):
        np.testing.assert_array_equal(one, two)


def test_clip_bounds_each_client_also_without_eps(fed):
    runner = FederatedRunner(n_rounds=1)
    params = {"runner": runner, "hidden": (8,)}
    loose = FedMLPCalibrator(clip=100.0, **params).fit(fed.clients)
    plain = FedMLPCalibrator(**params).fit(fed.clients)
    np.testing.assert_array_equal(loose.coefs_[0], plain.coefs_[0])
    tight = FedMLPCalibrator(clip=1e-3, **params).fit(fed.clients)
    total = tight.history_[0].total["update"]
    assert 0 < np.linalg.norm(total) <= 30 * 1e-3
    alone = FedMLPCalibrator(clip=1e-3, **params).fit(fed.clients[:1])
    norm = np.linalg.norm(alone.history_[0].total["update"])
    assert norm == pytest.approx(1e-3, rel=1e-6)


@simulated
def test_noise_on_thousands_of_numbers_is_not_used(fed):
    with pytest.warns(CalibrationWarning, match="cannot be distinguished from noise"):
        cal = FedMLPCalibrator(1.0, random_state=0).fit(fed.clients)
    assert not cal.improves_
    assert cal.n_rounds_ == 3
    assert cal.privacy_.clip == {"update": 0.5}
    np.testing.assert_allclose(
        cal.predict_proba(fed.test_logits), softmax(fed.test_logits), rtol=1e-4
    )
    cal.set_params(if_improves=False)
    assert nll(fed, cal.predict_proba(fed.test_logits)) != pytest.approx(
        nll(fed, softmax(fed.test_logits)), rel=1e-3
    )


@simulated
def test_many_clients_and_a_small_network_are_used():
    fed = make_federation(
        3000, 30_000, 5, temperature=3.0, alpha=None, n_test=2000, random_state=0
    )
    cal = FedMLPCalibrator(8.0, hidden=(2,), random_state=0).fit(fed.clients)
    assert cal.improves_
    proba = cal.predict_proba(fed.test_logits)
    assert nll(fed, proba) < nll(fed, softmax(fed.test_logits))


def test_seeds_decide_the_first_weights(fed):
    def weights(random_state):
        runner = FederatedRunner(n_rounds=1)
        cal = FedMLPCalibrator(hidden=(8,), runner=runner, random_state=random_state)
        return cal.fit(fed.clients).coefs_[0]

    np.testing.assert_array_equal(weights(None), weights(0))
    np.testing.assert_array_equal(weights(None), weights(None))
    assert (weights(1) != weights(0)).all()
    states = [np.random.RandomState(3) for _ in range(2)]
    np.testing.assert_array_equal(weights(states[0]), weights(states[1]))


def test_save_and_load_keep_every_bit(fed, tmp_path):
    cal = FedMLPCalibrator(hidden=[7, 3]).fit(fed.clients)
    cal.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    rows = fed.test_logits
    assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()
    for one, two in zip(cal.coefs_, again.coefs_, strict=True):
        assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("coefs_", lambda layers: layers[:-1]),
        ("intercepts_", lambda layers: layers[::-1]),
        ("coefs_", lambda layers: [{**layers[0], "dtype": "<f4"}, *layers[1:]]),
        ("intercepts_", lambda layers: 3.0),
    ],
)
def test_a_damaged_file_is_refused(fed, tmp_path, key, change):
    path = tmp_path / "cal.json"
    FedMLPCalibrator(hidden=(7, 3)).fit(fed.clients).save(path)
    content = json.loads(path.read_text())
    content["fitted"][key] = change(content["fitted"][key])
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="damaged"):
        load(path)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"hidden": (64, 0)}, r"hidden=\(64, 0\) must hold the widths"),
        ({"hidden": (2.5,)}, "hidden=.* whole numbers from 1"),
        ({"hidden": 64}, "'hidden' parameter"),
        ({"epochs": 0}, "'epochs' parameter"),
        ({"batch_size": 0}, "'batch_size' parameter"),
        ({"learning_rate": 0.0}, "'learning_rate' parameter"),
        (
            {"privacy": CentralDP(1.0, unit="example")},
            "no sensitivity bound for one example",
        ),
    ],
)
def test_wrong_parameters_are_named(fed, params, message):
    with pytest.raises(ValueError, match=message):
        FedMLPCalibrator(**params).fit(fed.clients)


@simulated
@unimproved
def test_cohorts_and_resume_work_as_for_other_methods(fed, tmp_path):
    def fit(**params):
        runner = FederatedRunner(
            n_rounds=3, cohort="independent", cohort_size=10, **params
        )
        cal = FedMLPCalibrator(2.0, hidden=(4,), runner=runner, random_state=0)
        return cal.fit(fed.clients)

    whole = fit()
    again = fit(checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(whole.coefs_[0], again.coefs_[0])
    resumed = fit(checkpoint=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.coefs_[1], again.coefs_[1])
    assert resumed.improves_ == again.improves_
