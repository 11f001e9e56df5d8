"""FedTempCalibrator finds the optimum of the pooled log loss, or says why not."""

import warnings

import numpy as np
import pytest
from sklearn import calibration
from sklearn.metrics import log_loss

from skfedcal import (
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning


def fit(rows, labels, **options):
    ids = options.pop("client_ids", None)
    classes = np.arange(rows.shape[1])
    return FedTempCalibrator(classes=classes, **options).fit(
        rows, labels, client_ids=ids
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (50.0, 0.0), (1.0, 1000.0)])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 5.0, 30.0])
def test_optimum_at_any_scale_shift_and_temperature(
    draw, optimum, dtype, scale, shift, temperature
):
    spread = 1.5 if temperature * scale < 1000 else 0.7
    for n, c in ((60, 4), (6000, 10), (700, 60)):
        rows, labels = draw(n, c, temperature * scale, seed=n, spread=spread)
        rows = (rows + shift).astype(dtype)
        cal = fit(rows, labels)
        assert cal.converged_
        assert cal.temperature_ == pytest.approx(optimum(rows, labels), rel=1e-6)


def test_optimum_where_logits_are_further_apart_than_the_span(draw, optimum):
    rows, labels = draw(6000, 10, 1500.0, seed=6000)
    assert fit(rows, labels).temperature_ == pytest.approx(
        optimum(rows, labels), rel=1e-6
    )


def test_a_masked_class_gets_exactly_zero_at_a_high_temperature(draw):
    rows, labels = draw(200, 2, 900.0)
    masked = np.column_stack([rows, np.full(200, -np.inf)])
    assert (fit(masked, labels).predict_proba(masked)[:, 2] == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [30, 300, 3000, 20_000])
@pytest.mark.parametrize("c", [2, 10, 48, 49, 100])
def test_optimum_and_partition_at_any_size(draw, optimum, dtype, n, c):
    if n * c > 500_000:
        n = 500_000 // c
    rows, labels = draw(n, c, 50 * 1.7, seed=n + c, dtype=dtype)
    rows += dtype(1000)
    whole = fit(rows, labels).temperature_
    assert whole == pytest.approx(optimum(rows, labels), rel=1e-6)
    rng = np.random.default_rng(0)
    skewed = labels * 3 + rng.integers(0, 3, n)
    for ids in (np.arange(n), np.arange(n)[::-1] // 7, rng.integers(0, 13, n), skewed):
        parted = fit(rows, labels, client_ids=ids).temperature_
        assert parted == pytest.approx(whole, rel=1e-9)


def test_partition_into_lists_with_empty_clients(draw):
    rows, labels = draw(500, 5, 3.0)
    cuts = np.sort(np.random.default_rng(0).integers(0, 500, 60))
    parts = np.split(np.arange(500), cuts)
    cal = FedTempCalibrator().fit([(rows[i], labels[i]) for i in parts])
    assert cal.n_clients_ == 61 and min(map(len, parts)) == 0
    assert cal.temperature_ == pytest.approx(fit(rows, labels).temperature_, rel=1e-9)


@pytest.mark.skipif(
    not hasattr(calibration, "_TemperatureScaling"),
    reason="temperature scaling came with scikit-learn 1.8",
)
@pytest.mark.parametrize(("n", "c"), [(200, 3), (5000, 10)])
def test_agrees_with_scikit_learn(draw, n, c):
    rows, labels = draw(n, c, 2.5)
    beta = calibration._TemperatureScaling().fit(rows, labels).beta_
    assert fit(rows, labels).temperature_ == pytest.approx(1 / beta, rel=1e-6)


def test_agrees_with_netcal_in_float64(draw):
    scaling = pytest.importorskip("netcal.scaling")
    rows, labels = draw(1000, 4, 2.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        proba = np.exp(rows - rows.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        theirs = scaling.TemperatureScaling()
        theirs.fit(proba, labels)
        expected = theirs.transform(proba)
    # netcal differentiates numerically: T to about 4e-6 (spec/peers.md 2).
    np.testing.assert_allclose(
        fit(rows, labels).predict_proba(rows), expected, atol=1e-4
    )


@pytest.mark.parametrize("solver", ["newton", "grid"])
@pytest.mark.parametrize("margin", [0.3, 2.5, 5.0, 20.0, 500.0])
@pytest.mark.parametrize("sign", [1, -1])
def test_separable_and_contrary_data_end_in_bounds_with_a_warning(solver, margin, sign):
    labels = np.random.default_rng(0).integers(0, 3, 400)
    rows = sign * np.eye(3)[labels] * margin
    for ids in (None, np.arange(400)):
        with pytest.warns(CalibrationWarning, match="stopped at T ="):
            cal = fit(rows, labels, solver=solver, client_ids=ids)
        assert not cal.converged_
        assert abs(np.log(cal.temperature_)) < 10 + 1e-9
        proba = cal.predict_proba(rows)
        assert np.isfinite(proba).all()
        assert log_loss(labels, proba) <= log_loss(labels, _softmax(rows)) + 1e-12


def test_one_mistake_among_many_is_no_separable_case(draw, optimum):
    labels = np.random.default_rng(0).integers(0, 3, 2000)
    rows = np.eye(3)[labels] * np.random.default_rng(1).uniform(2, 4, (2000, 1))
    rows[0] = rows[0][[1, 2, 0]]
    cal = fit(rows, labels)
    assert cal.converged_
    assert cal.temperature_ == pytest.approx(optimum(rows, labels), rel=1e-6)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("solver", ["newton", "grid", "average"])
def test_constant_logits_and_a_single_row(solver):
    flat = fit(np.full((9, 3), 7.0), np.arange(9) % 3, solver=solver)
    assert flat.temperature_ == 1.0
    assert flat.converged_ == (solver == "average")
    for label, bound in ((0, 0.2), (1, 10.0)):
        one = fit(np.array([[3.0, 1.0]]), np.array([label]), solver=solver)
        assert (one.temperature_ - 1) * (bound - 1) > 0
        assert not one.converged_


def _softmax(rows):
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_never_worse_than_no_calibration_on_the_fit_data():
    rng = np.random.default_rng(0)
    for i in range(60):
        n, c = int(rng.integers(1, 80)), int(rng.integers(2, 6))
        rows = rng.normal(size=(n, c)) * 10.0 ** rng.uniform(-3, 3)
        labels = rng.integers(0, c, n)
        cal = fit(rows, labels, solver=("newton", "grid")[i % 2])
        after = -cal.predict_log_proba(rows)[np.arange(n), labels].mean()
        shifted = rows - rows.max(axis=1, keepdims=True)
        before = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(n), labels]
        assert after <= before.mean() * (1 + 1e-9) + 1e-9


def test_grid_agrees_with_newton_inside_and_warns_outside(draw):
    for temperature in (0.02, 0.5, 3.0, 60.0):
        rows, labels = draw(2000, 6, temperature)
        newton = fit(rows, labels, solver="newton")
        grid = fit(rows, labels, solver="grid", client_ids=np.arange(2000) % 9)
        assert grid.n_rounds_ == 1 and grid.converged_
        assert grid.temperature_ == pytest.approx(newton.temperature_, rel=1e-6)
    for temperature, end in ((1e-3, 0.01), (1e3, 100.0)):
        rows, labels = draw(2000, 6, temperature)
        with pytest.warns(CalibrationWarning, match="stopped at T ="):
            grid = fit(rows, labels, solver="grid")
        assert grid.temperature_ == pytest.approx(end) and not grid.converged_
        assert fit(rows, labels).temperature_ == pytest.approx(temperature, rel=0.2)


def test_average_is_the_mean_of_local_optima(draw, optimum):
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 200, 20)
    clients = [draw(n, 4, rng.uniform(0.5, 4), seed=i) for i, n in enumerate(sizes)]
    own = [optimum(z, y, 0.05, 20.0) for z, y in clients]
    cal = FedTempCalibrator(solver="average").fit(clients)
    assert cal.temperature_ == pytest.approx(np.mean(own), rel=1e-6) and cal.converged_
    clipped = FedTempCalibrator(solver="average", clip=0.25).fit(clients)
    steps = np.clip(np.array(own) - 1, -0.25, 0.25)
    assert clipped.temperature_ == pytest.approx(1 + steps.mean(), rel=1e-6)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_clipping_without_privacy_tames_skew_but_not_in_one_round():
    # Appendix A.3.5: cohorts of 10 of 100 clients; mean loss of 8 runs, seeds fixed.
    fed = make_federation(100, 3000, alpha=0.1, n_test=2000, random_state=0)

    def loss(n_rounds, clip):
        runner = FederatedRunner(n_rounds, cohort="independent", cohort_size=10)
        runs = [
            FedTempCalibrator(
                solver="average", clip=clip, runner=runner, random_state=s
            )
            for s in range(8)
        ]
        rows = fed.test_logits.astype(np.float64)
        proba = [run.fit(fed.clients).predict_proba(rows) for run in runs]
        return np.mean([log_loss(fed.test_labels, p) for p in proba])

    assert loss(1, 0.1) > loss(1, "auto") + 0.03
    assert loss(10, 0.25) < loss(10, "auto") - 0.01
    # Small steps need more rounds to get there.
    assert loss(3, 0.05) > loss(10, 0.05) > loss(25, 0.05)


def test_average_at_its_bound_says_so():
    labels = np.arange(30) % 3
    with pytest.warns(CalibrationWarning, match="stopped at T ="):
        cal = fit(-np.eye(3)[labels], labels, solver="average")
    assert cal.temperature_ == pytest.approx(20.0, rel=1e-6)


@pytest.mark.parametrize("weight", [1e-5, 1.0, 1e8])
def test_scale_of_the_weights_does_not_matter(draw, weight):
    rows, labels = draw(400, 3, 2.0)
    ids = np.arange(400) % 40
    cal = FedTempCalibrator().fit(
        rows, labels, client_ids=ids, sample_weight=np.full(400, weight)
    )
    assert cal.temperature_ == pytest.approx(fit(rows, labels).temperature_, rel=1e-6)


def test_refit_equals_a_fresh_fit(draw):
    first, second = draw(100, 3, 2.0), draw(300, 5, 0.7, seed=1)
    cal = FedTempCalibrator().fit(*first).fit(*second)
    fresh = FedTempCalibrator().fit(*second)
    assert cal.temperature_ == fresh.temperature_
    assert cal.classes_.tolist() == fresh.classes_.tolist()
    assert cal.n_features_in_ == 5 and cal.n_rounds_ == fresh.n_rounds_


def test_fit_does_not_change_parameters_or_data(draw):
    rows, labels = draw(100, 3, 2.0)
    rows[0] *= 1e5
    kept, seen = rows.copy(), labels.copy()
    rows.flags.writeable = labels.flags.writeable = False
    for solver in ("newton", "grid", "average"):
        cal = FedTempCalibrator(solver=solver)
        before = cal.get_params()
        cal.fit(rows, labels, client_ids=np.arange(100) % 7)
        assert cal.get_params() == before
        cal.predict_proba(rows)
    np.testing.assert_array_equal(rows, kept)
    np.testing.assert_array_equal(labels, seen)


BAD = [
    ({"eps": 0}, "'eps' parameter .* must be a float in the range"),
    ({"eps": -1.0}, "'eps' parameter"),
    ({"eps": "1"}, "'eps' parameter"),
    ({"eps": 1.0, "delta": 0.0}, "'delta' parameter"),
    ({"eps": 1.0, "delta": 0.5}, "delta=0.5 is too large.* publishes one of the 5"),
    ({"clip": 0.0}, "'clip' parameter"),
    ({"clip": "big"}, "'clip' parameter"),
    ({"clip": 2.0}, "clip=2.0 is not used by solver='auto'.*set eps"),
    ({"clip": 2.0, "solver": "grid"}, "is not used by solver='grid'"),
    ({"solver": "lbfgs"}, "'solver' parameter .* must be a str among"),
    ({"ledger": "ledger.jsonl"}, "'ledger' parameter"),
    ({"privacy": 1.0}, "privacy=1.0 is not a privacy model.*CentralDP"),
    ({"runner": 3}, "'runner' parameter"),
    ({"input_type": "probs"}, "'input_type' parameter"),
    ({"classes": 3}, "'classes' parameter"),
    ({"random_state": "x"}, "'random_state' parameter"),
]


@pytest.mark.parametrize(("params", "message"), BAD, ids=[str(p) for p, _ in BAD])
def test_bad_parameters_are_named_with_their_value(draw, params, message):
    clients = [draw(20, 3, seed=i) for i in range(5)]
    error = TypeError if "privacy" in params else ValueError
    with pytest.raises(error, match=message):
        FedTempCalibrator(**params).fit(clients)


def test_both_eps_and_a_privacy_object_is_an_error(draw):
    from skfedcal import CentralDP

    clients = [draw(20, 3, seed=i) for i in range(5)]
    for params in ({"eps": 1.0}, {"delta": 1e-6}):
        with pytest.raises(ValueError, match="put the budget into the privacy object"):
            FedTempCalibrator(privacy=CentralDP(2.0), **params).fit(clients)
    for bad, message in (
        (CentralDP(-1.0), "eps=-1.0 is not a privacy budget; pass a finite number"),
        (CentralDP(float("inf")), "eps=inf is not a privacy budget"),
        (CentralDP(1.0, unit="row"), "unit must be one of .* got 'row'"),
        (CentralDP(1.0, accountant="x"), "accountant must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            FedTempCalibrator(privacy=bad).fit(clients)
    with pytest.raises(
        ValueError, match="solver='average' has no sensitivity bound for one example"
    ):
        FedTempCalibrator(privacy=CentralDP(1.0, unit="example"), solver="average").fit(
            clients
        )


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_a_fit_that_fails_on_its_arguments_is_not_paid_for(draw):
    clients = [draw(20, 3, seed=i) for i in range(5)]
    rows, labels = clients[0]
    ledger = PrivacyLedger()
    cal = FedTempCalibrator(eps=1.0, ledger=ledger, random_state=0)
    broken = rows.copy()
    broken[3, 1] = np.nan
    for args, options in (
        (([*clients, (broken, labels)],), {}),
        (([*clients, (rows, labels[:3])],), {}),
        (([*clients, (rows[:, :2], labels)],), {}),
        ((rows, labels), {"client_ids": [None] * 20}),
        ((rows, labels), {"sample_weight": np.ones(20)}),
        ((rows, np.full(20, "a")), {}),
        ((rows,), {}),
        (((rows, labels),), {}),
    ):
        with pytest.raises(ValueError):
            cal.fit(*args, **options)
        assert len(ledger) == 0
    for params in (
        {"classes": [0, 0, 1]},
        {"delta": 0.5},
        {"solver": "x"},
        {"clip": -1},
    ):
        with pytest.raises(ValueError):
            FedTempCalibrator(eps=1.0, ledger=ledger).set_params(**params).fit(clients)
        assert len(ledger) == 0
    cal.fit(clients)
    assert len(ledger) == 1


def test_a_failed_refit_keeps_the_map_of_the_earlier_fit(draw):
    """As in scikit-learn: the map stays, only what describes the input may be new."""
    rows, labels = draw(100, 3, 2.0)
    cal = FedTempCalibrator().fit(rows, labels)
    before, proba = cal.temperature_, cal.predict_proba(rows)
    for bad in (np.where(rows > 3, np.nan, rows), rows[:50]):
        with pytest.raises(ValueError):
            cal.fit(bad, labels)
        assert cal.temperature_ == before
        np.testing.assert_array_equal(cal.predict_proba(rows), proba)


def test_unfitted_and_wrong_columns_are_said(draw):
    from sklearn.exceptions import NotFittedError

    rows, labels = draw(50, 3)
    for method in (
        "predict",
        "predict_proba",
        "predict_log_proba",
        "decision_function",
    ):
        with pytest.raises(NotFittedError):
            getattr(FedTempCalibrator(), method)(rows)
    with pytest.raises(NotFittedError):
        FedTempCalibrator().save("never.json")
    cal = FedTempCalibrator().fit(rows, labels)
    with pytest.raises(
        ValueError, match="X has 2 features, but FedTempCalibrator is exp"
    ):
        cal.predict(rows[:, :2])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_columns", [1, 2, 3, 17, 60, 200])
def test_predictions_refuse_what_is_no_score_wherever_it_stands(n_columns, dtype):
    rng = np.random.default_rng(n_columns)
    rows = rng.normal(size=(120, n_columns)).astype(dtype)
    n_classes = max(n_columns, 2)
    cal = FedTempCalibrator(classes=list(range(n_classes)))
    cal.fit(rows, np.arange(120) % n_classes)
    whole = cal.predict_proba(rows)
    one = rows.copy()
    one[7, -1] = -1e30 if n_columns == 1 else -np.inf
    found = cal.predict_proba(one)
    assert found[7, -1] == 0 and np.isfinite(found).all()
    np.testing.assert_array_equal(np.delete(found, 7, 0), np.delete(whole, 7, 0))
    for row, column, bad in [
        (0, 0, np.nan),
        (119, -1, np.nan),
        (50, n_columns // 2, np.inf),
        (118, slice(None), -np.inf),
        (3, slice(None), np.inf),
    ]:
        wrong = rows.copy()
        wrong[row, column] = bad
        for call in (cal.predict_proba, cal.predict, cal.predict_log_proba):
            with pytest.raises(
                ValueError, match=f"in 1 of 120 rows .first in row {row}"
            ):
                call(wrong)
