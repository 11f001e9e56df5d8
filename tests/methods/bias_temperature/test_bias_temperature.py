"""FedBiasTempCalibrator finds the central optimum for any partition, or tells."""

import json
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from skfedcal import (
    FedBiasTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    load,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.bias_temperature.rounds import BiasTemperatureResidual


def biased(n, c, seed=0, temperature=2.0, spread=0.7, dtype=np.float64):
    """Rows of a model with class biases and a temperature, and drawn labels."""
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    rows = temperature * (true + spread * rng.normal(size=c))
    return rows.astype(dtype), labels


def fit(rows, labels, **options):
    ids, weight = options.pop("client_ids", None), options.pop("sample_weight", None)
    options.setdefault("classes", np.arange(rows.shape[1]))
    return FedBiasTempCalibrator(**options).fit(
        rows, labels, client_ids=ids, sample_weight=weight
    )


def mean_loss(rows, labels, beta, bias):
    logs = log_softmax(beta * rows + bias, axis=1)
    return -logs[np.arange(len(labels)), labels].mean()


def central(rows, labels, ridge=1e-5):
    rows = rows.astype(np.float64)

    def both(point):
        logs = log_softmax(point[0] * rows + point[1:], axis=1)
        residual = np.exp(logs)
        residual[np.arange(len(labels)), labels] -= 1
        slope = np.concatenate([[(residual * rows).sum()], residual.sum(axis=0)])
        loss = mean_loss(rows, labels, point[0], point[1:])
        penalty = ridge / 2 * point[1:] @ point[1:]
        slope[1:] += ridge * len(labels) * point[1:]
        return loss + penalty, slope / len(labels)

    start = np.concatenate([[1.0], np.zeros(rows.shape[1])])
    options = {"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10}
    return minimize(both, start, jac=True, method="L-BFGS-B", options=options).x


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "c"), [(400, 3), (5000, 10), (3000, 50)])
def test_the_central_optimum_of_scipy_for_any_partition(n, c, dtype):
    rows, labels = biased(n, c, seed=c, dtype=dtype)
    expected = central(rows, labels)
    rng = np.random.default_rng(0)
    skewed = labels * 3 + rng.integers(0, 3, n)
    for ids in (None, np.arange(n) // 7, rng.integers(0, 13, n), skewed):
        cal = fit(rows, labels, client_ids=ids)
        assert cal.converged_
        assert 1 / cal.temperature_ == pytest.approx(expected[0], rel=1e-5)
        np.testing.assert_allclose(cal.bias_, expected[1:], atol=1e-5)


@pytest.mark.parametrize("residual", [None, "bins"])
def test_partitions_agree_to_rounding(residual):
    rows, labels = biased(2000, 5)
    whole = fit(rows, labels, residual=residual)
    rng = np.random.default_rng(0)
    for ids in (np.arange(2000), rng.integers(0, 40, 2000), labels):
        parted = fit(rows, labels, residual=residual, client_ids=ids)
        np.testing.assert_allclose(
            parted.predict_proba(rows), whole.predict_proba(rows), rtol=1e-9
        )


def test_two_classes_are_platt_scaling():
    rows, labels = biased(3000, 2, temperature=3.0)
    cal = fit(rows, labels, ridge=1e-8)
    odds = (rows[:, 1] - rows[:, 0])[:, None]
    platt = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(odds, labels)
    assert 1 / cal.temperature_ == pytest.approx(platt.coef_.item(), rel=1e-5)
    assert cal.bias_[1] - cal.bias_[0] == pytest.approx(
        platt.intercept_.item(), abs=1e-5
    )
    np.testing.assert_allclose(
        cal.predict_proba(rows), platt.predict_proba(odds), atol=1e-6
    )
    alone = FedBiasTempCalibrator(ridge=1e-8).fit(odds, labels)
    np.testing.assert_allclose(
        alone.predict_proba(odds), cal.predict_proba(rows), atol=1e-8
    )


def test_class_bias_is_taken_back_where_a_temperature_cannot():
    rng = np.random.default_rng(0)
    true = rng.normal(size=(8000, 6)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    shift = np.array([2.0, -2.0, 1.0, 0.0, -1.0, 0.0])
    rows = 2 * (true + shift)
    cal, plain = fit(rows, labels), FedTempCalibrator().fit(rows, labels)
    # Standard errors are about 0.04; six numbers within 5.5 of them: below 1e-6.
    np.testing.assert_allclose(cal.bias_, -shift, atol=0.22)
    assert cal.temperature_ == pytest.approx(2.0, abs=0.2)
    assert cal.score(rows, labels) > plain.score(rows, labels) + 0.1
    assert cal.n_rounds_ <= 5


def test_the_bias_follows_the_order_of_classes():
    rows, labels = biased(1500, 3, spread=2.0)
    names = np.array(["c", "a", "b"])
    plain = fit(rows, labels, residual="bins")
    named = FedBiasTempCalibrator(residual="bins", classes=names)
    named.fit(rows, names[labels])
    assert named.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(named.bias_, plain.bias_[[1, 2, 0]], atol=1e-9)
    np.testing.assert_allclose(named.residual_, plain.residual_[[1, 2, 0]], atol=1e-9)
    np.testing.assert_allclose(
        named.predict_proba(rows), plain.predict_proba(rows)[:, [1, 2, 0]], atol=1e-9
    )


def test_the_map_is_the_documented_formula():
    rows, labels = biased(600, 4)
    cal = fit(rows, labels)
    expected = log_softmax(rows / cal.temperature_ + cal.bias_, axis=1)
    np.testing.assert_allclose(cal.predict_log_proba(rows), expected, atol=1e-12)
    assert abs(cal.bias_.sum()) < 1e-12
    assert cal.residual_ is None


def test_weights_are_repeated_rows():
    rows, labels = biased(300, 3)
    weights = np.random.default_rng(0).integers(0, 3, 300)
    again = np.repeat(np.arange(300), weights)
    for residual in (None, "bins"):
        one = fit(rows, labels, sample_weight=weights, residual=residual)
        other = fit(rows[again], labels[again], residual=residual)
        np.testing.assert_allclose(
            one.predict_proba(rows), other.predict_proba(rows), atol=1e-7
        )


DEGENERATE = {
    "class without rows": (lambda z, y: (z[y < 3], y[y < 3])),
    "all right": (lambda z, y: (z, z.argmax(axis=1))),
    "all wrong": (lambda z, y: (z, z.argmin(axis=1))),
    "one class only": (lambda z, y: (z, np.full(len(y), 2))),
    "constant logits": (lambda z, y: (np.zeros_like(z), y)),
    "constant logits, rare class": (lambda z, y: (np.zeros_like(z), (y == 1) * 1)),
    "one row": (lambda z, y: (z[:1], y[:1])),
    "huge logits": (lambda z, y: (1e4 * z, y)),
    "tiny logits": (lambda z, y: (1e-6 * z, y)),
    "ties": (lambda z, y: (np.round(z), y)),
    "random labels": (lambda z, y: (z, np.arange(len(y)) % 4)),
    "a class far below": (lambda z, y: (z - [0, 0, 0, 1e4], y)),
    "a masked class": (lambda z, y: (z + np.array([0, 0, 0, -np.inf]), y % 3)),
    "a label of a masked class": (lambda z, y: (z + np.array([0, 0, 0, -np.inf]), y)),
}


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("residual", [None, "bins"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_rows_give_finite_maps(case, dtype, residual):
    rows, labels = DEGENERATE[case](*biased(120, 4))
    rows = rows.astype(dtype)
    cal = fit(rows, labels, residual=residual, client_ids=np.arange(len(labels)) // 9)
    assert 1e-4 * 0.999 < cal.temperature_ < 1e4 * 1.001
    assert np.isfinite(cal.bias_).all() and np.abs(cal.bias_).max() <= 60
    proba = cal.predict_proba(rows)
    assert proba.dtype == dtype and np.isfinite(proba).all()
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    own = np.arange(len(labels)), labels
    before = log_softmax(rows.astype(float), axis=1)[own]
    if np.isfinite(before).all():  # a masked label is infinitely wrong in any map
        # At least as good as what went in, to rounding of the input type.
        assert cal.predict_log_proba(rows)[own].mean() >= before.mean() - 1e-5


def test_a_class_without_rows_gets_a_low_finite_bias():
    rows, labels = biased(500, 4)
    rows, labels = rows[labels < 3], labels[labels < 3]
    cal = fit(rows, labels)
    assert cal.converged_ and -15 < cal.bias_[3] < -3
    np.testing.assert_allclose(cal.bias_, central(rows, labels)[1:], atol=1e-3)
    less = fit(rows, labels, ridge=1e-2)
    assert cal.bias_[3] < less.bias_[3] < 0


@pytest.mark.parametrize("make", [np.argmax, np.argmin])
def test_rows_without_an_optimum_are_told(make):
    rows, _ = biased(200, 4)
    with pytest.warns(CalibrationWarning, match="no minimum inside the bounds"):
        assert not fit(rows, make(rows, axis=1)).converged_


@pytest.mark.parametrize("cohort", ["permuted", "independent"])
@pytest.mark.parametrize("residual", [None, "bins"])
def test_changing_cohorts_end_with_a_warning_and_no_harm(cohort, residual):
    rows, labels = biased(3000, 5)
    ids = labels * 10 + np.arange(3000) % 10
    runner = FederatedRunner(cohort=cohort, cohort_size=10)
    with pytest.warns(CalibrationWarning, match="cohorts that change"):
        cal = fit(
            rows,
            labels,
            client_ids=ids,
            residual=residual,
            runner=runner,
            random_state=0,
        )
    assert np.isfinite(cal.predict_proba(rows)).all()
    # Seeded: cohorts of one or two classes each pull the biases to and fro.
    assert np.abs(cal.bias_).max() < 10 and 0.1 < cal.temperature_ < 10


@pytest.mark.parametrize("residual", [None, "bins"])
def test_cohorts_that_are_added_up_change_nothing(residual):
    rows, labels = biased(1000, 4)
    ids = np.arange(1000) % 20
    one = fit(rows, labels, client_ids=ids, residual=residual)
    runner = FederatedRunner(cohort_size=3, n_jobs=2)
    other = fit(rows, labels, client_ids=ids, residual=residual, runner=runner)
    np.testing.assert_array_equal(one.predict_proba(rows), other.predict_proba(rows))


@pytest.mark.parametrize("residual", [None, "bins"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_saved_and_loaded_to_the_last_bit(tmp_path, residual, dtype):
    rows, labels = biased(900, 4, dtype=dtype)
    cal = fit(rows, labels, residual=residual)
    cal.save(tmp_path / "cal.json")
    again = load(tmp_path / "cal.json")
    for name in ("temperature_", "bias_", "residual_", "converged_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(cal, name))
    assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature_", -1.0),
        ("bias_", {"array": [0.0, 1.0], "dtype": "<f8", "shape": [2]}),
        ("bias_", {"array": [0.0, 1e9, 0.0], "dtype": "<f8", "shape": [3]}),
        ("residual_", None),
        ("converged_", 1),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, name, value):
    rows, labels = biased(900, 3)
    path = tmp_path / "cal.json"
    fit(rows, labels, residual="bins").save(path)
    content = json.loads(path.read_text())
    content["fitted"][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged"):
        load(path)


@pytest.mark.parametrize("n_done", [1, 2, 3, 4])
def test_an_interrupted_fit_goes_on_to_the_same_end(tmp_path, n_done):
    rows, labels = biased(900, 3)
    whole = fit(rows, labels, residual="bins")
    path = tmp_path / "run.npz"
    runner = FederatedRunner(checkpoint=path)
    calls = []

    def stop(algorithm, state, total, n_clients, inner=BiasTemperatureResidual.update):
        if len(calls) == n_done:
            raise KeyboardInterrupt
        calls.append(1)
        return inner(algorithm, state, total, n_clients)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BiasTemperatureResidual, "update", stop)
        with pytest.raises(KeyboardInterrupt):
            fit(rows, labels, residual="bins", runner=runner)
    runner = FederatedRunner(checkpoint=path, resume=True)
    again = fit(rows, labels, residual="bins", runner=runner)
    assert again.n_rounds_ == whole.n_rounds_ > n_done
    assert again.predict_proba(rows).tobytes() == whole.predict_proba(rows).tobytes()


def test_what_cannot_be_is_refused():
    rows, labels = biased(90, 3)
    with pytest.raises(ValueError, match=r"clip=0\.5 is not used without eps"):
        fit(rows, labels, clip=0.5)
    with pytest.raises(ValueError, match="The 'residual' parameter"):
        fit(rows, labels, residual="curve")
    with pytest.raises(ValueError, match="The 'ridge' parameter"):
        fit(rows, labels, ridge=0.0)


def test_no_warning_on_ordinary_rows():
    rows, labels = biased(900, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(rows, labels, residual="bins").converged_
