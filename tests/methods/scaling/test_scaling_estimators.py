"""Vector, matrix and order-preserving scaling as estimators."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax

from skfedcal import (
    CentralDP,
    FederatedRunner,
    FedMatrixCalibrator,
    FedOPVectorCalibrator,
    FedTempCalibrator,
    FedVectorCalibrator,
    load,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning

SCALING = [FedVectorCalibrator, FedMatrixCalibrator, FedOPVectorCalibrator]
over_scaling = pytest.mark.parametrize("cls", SCALING)
simulated = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@pytest.fixture(scope="module")
def biased():
    """A model with class biases, at 40 clients with label skew."""
    return make_federation(
        40, 4000, 5, class_bias=1.0, alpha=0.3, n_test=4000, random_state=0
    )


def nll(proba, labels):
    return -np.log(proba[np.arange(len(labels)), labels]).mean()


def test_the_map_is_what_the_attributes_say(biased):
    z = biased.test_logits.astype(np.float64)
    z -= z.mean(axis=1, keepdims=True)
    vector = FedVectorCalibrator().fit(biased.clients)
    expected = log_softmax(vector.scale_ * z + vector.bias_, axis=1)
    np.testing.assert_allclose(
        vector.predict_log_proba(biased.test_logits), expected, atol=2e-5
    )
    matrix = FedMatrixCalibrator().fit(biased.clients)
    expected = log_softmax(z @ matrix.matrix_.T + matrix.bias_, axis=1)
    np.testing.assert_allclose(
        matrix.predict_log_proba(biased.test_logits), expected, atol=2e-5
    )


def test_class_bias_is_found_where_a_temperature_cannot(biased):
    index = np.arange(len(biased.test_labels))
    losses = {
        cls: -cls()
        .fit(biased.clients)
        .predict_log_proba(biased.test_logits)[index, biased.test_labels]
        for cls in (*SCALING, FedTempCalibrator)
    }

    def is_better(one, other):
        # 5.2 standard errors of the mean difference: chance 2e-7 without a gain.
        gain = (losses[other] - losses[one]).astype(np.float64)
        return gain.mean() > 5.2 * gain.std() / np.sqrt(len(gain))

    assert is_better(FedVectorCalibrator, FedTempCalibrator)
    assert is_better(FedMatrixCalibrator, FedTempCalibrator)
    # The order cannot be mended, only the gaps.
    assert is_better(FedOPVectorCalibrator, FedTempCalibrator)
    assert is_better(FedVectorCalibrator, FedOPVectorCalibrator)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@over_scaling
def test_a_class_that_never_occurs_and_one_client_are_fine(cls):
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(80, 4)), rng.integers(0, 3, 80)
    calibrator = cls(classes=range(4)).fit(logits, labels)
    assert np.isfinite(calibrator.predict_proba(logits)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_prediction_changes_when_the_order_is_preserved(biased, dtype):
    calibrator = FedOPVectorCalibrator().fit(biased.clients)
    rng = np.random.default_rng(0)
    rows = np.vstack(
        [
            biased.test_logits,
            rng.normal(size=(500, 5)) * 1e4,
            rng.integers(-2, 3, size=(500, 5)),
        ]
    ).astype(dtype)
    np.testing.assert_array_equal(calibrator.predict(rows), rows.argmax(axis=1))
    out = calibrator.decision_function(rows)
    assert out.dtype == dtype
    for one, other in ((0, 1), (2, 4), (3, 1)):
        centred = rows - rows.max(axis=1, keepdims=True)
        np.testing.assert_array_equal(
            np.sign(out[:, one] - out[:, other]),
            np.sign(centred[:, one] - centred[:, other]),
        )


def test_ranks_of_masked_classes_are_kept_too(biased):
    calibrator = FedOPVectorCalibrator().fit(biased.clients)
    rows = np.array([[0.0, -3e6, 1.0, -2e6, -np.inf]])
    out = calibrator.decision_function(rows)[0]
    assert out[2] == 0 > out[0] > out[3] > out[1] > out[4] == -np.inf
    for cls in SCALING[:2]:
        proba = cls().fit(biased.clients).predict_proba(rows)[0]
        assert proba[[1, 3, 4]].tolist() == [0.0, 0.0, 0.0]
        assert proba.sum() == pytest.approx(1)


@over_scaling
def test_a_clip_without_eps_belongs_to_the_average(cls, biased):
    with pytest.raises(ValueError, match="not used by solver='auto' without eps"):
        cls(clip=0.5).fit(biased.clients)
    params = {"solver": "average", "local_solver": "gd"}
    free, bound = (
        cls(**params, clip=clip).fit(biased.clients) for clip in ("auto", 1e-3)
    )
    assert np.linalg.norm(bound._move) < np.linalg.norm(free._move)
    assert np.linalg.norm(bound._move) <= 5 * 1e-3 + 1e-9


@over_scaling
def test_one_example_cannot_be_the_unit(cls, clients):
    privacy = CentralDP(eps=1.0, unit="example")
    with pytest.raises(ValueError, match="no sensitivity bound for one example"):
        cls(privacy=privacy).fit(clients)


@simulated
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@over_scaling
def test_noise_alone_is_no_improvement(cls):
    # Ten clients at eps=0.1: the mean of clipped updates is far below the noise.
    made = make_federation(10, 300, 3, temperature=1.0, alpha=None, random_state=0)
    rows = made.test_logits
    silent = 0
    for seed in range(12):
        calibrator = cls(0.1, random_state=seed).fit(made.clients)
        silent += not calibrator.improves_
        if not calibrator.improves_:
            same = calibrator.predict_proba(rows).argmax(axis=1) == rows.argmax(axis=1)
            assert same.all()
    # One standard deviation of a chi-squared variable is exceeded with chance 0.16:
    # more than 9 of 12 times with chance 2e-6.
    assert silent >= 3


@simulated
def test_a_strong_signal_is_an_improvement(biased):
    calibrator = FedVectorCalibrator(30.0, random_state=0).fit(biased.clients)
    assert calibrator.improves_
    assert calibrator.privacy_.eps == pytest.approx(30.0)
    base = np.exp(log_softmax(biased.test_logits.astype(float), axis=1))
    proba = calibrator.predict_proba(biased.test_logits)
    assert nll(proba, biased.test_labels) < nll(base, biased.test_labels)
    assert calibrator.n_rounds_ == 5


@over_scaling
def test_too_few_rounds_are_told(cls, biased):
    with pytest.warns(CalibrationWarning, match="Not converged after 2 rounds"):
        calibrator = cls(runner=FederatedRunner(n_rounds=2)).fit(biased.clients)
    assert not calibrator.converged_
    temperature = FedTempCalibrator().fit(biased.clients).temperature_
    assert calibrator.temperature_ == pytest.approx(temperature, rel=1e-4)


@over_scaling
def test_rows_that_are_all_right_are_told(cls):
    rows = np.array([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]])
    with pytest.warns(CalibrationWarning, match="no minimum inside the bounds"):
        calibrator = cls().fit(rows, [0, 1, 2])
    assert calibrator.predict(rows).tolist() == [0, 1, 2]


@over_scaling
def test_a_stronger_ridge_stays_nearer_to_the_temperature(cls, biased):
    moves = [
        np.linalg.norm(cls(l2=strength).fit(biased.clients)._move)
        for strength in (0.0, 100.0, 1e4)
    ]
    assert moves[0] > moves[1] > moves[2]
    assert cls(l2=100.0).fit(biased.clients).l2_[0] == 100.0


def test_matrix_scaling_takes_its_strength_from_the_evidence():
    strengths = [
        FedMatrixCalibrator().fit(
            make_federation(
                40, 4000, 5, class_bias=bias, noise=0.0, n_test=0, random_state=0
            ).clients
        )
        for bias in (0.0, 1.0)
    ]
    # Without bias a temperature is all there is to find; with it all groups help, as
    # their evidence is taken one by one.
    nothing, something = (cal.l2_ for cal in strengths)
    assert (nothing > 100 * something).all()
    assert something.argmin() == 1


def test_strengths_that_are_given_are_used(biased):
    weak = FedMatrixCalibrator(l2=0.1, l2_off=0.0).fit(biased.clients)
    assert weak.l2_.tolist() == [0.1, 0.1, 0.0]
    half = FedMatrixCalibrator(l2_off=3.0).fit(biased.clients)
    assert half.l2_[2] == 3.0
    assert half.l2_[0] == FedMatrixCalibrator().fit(biased.clients).l2_[0]


@over_scaling
@pytest.mark.parametrize("damage", ["shape", "nan"])
def test_a_damaged_file_is_refused(cls, biased, tmp_path, damage):
    path = tmp_path / "cal.json"
    calibrator = cls().fit(biased.clients)
    name = calibrator._fitted_names[1]
    value = getattr(calibrator, name)
    wrong = value[:2] if damage == "shape" else np.full_like(value, np.nan)
    setattr(calibrator, name, wrong)
    calibrator.save(path)
    with pytest.raises(ValueError, match=f"damaged.*{name}"):
        load(path)


@pytest.mark.parametrize("cohort", ["permuted", "independent"])
@pytest.mark.parametrize("method", [FedVectorCalibrator, FedMatrixCalibrator])
def test_changing_cohorts_do_not_pass_for_converged(method, cohort):
    fed = make_federation(60, 3000, 4, class_bias=1.0, random_state=0)
    runner = FederatedRunner(cohort=cohort, cohort_size=5)
    with pytest.warns(CalibrationWarning, match="cohorts that change"):
        cal = method(runner=runner, random_state=0).fit(fed.clients)
    assert not cal.converged_
    assert np.isfinite(cal.predict_proba(fed.test_logits)).all()


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@simulated
def test_noise_alone_is_seldom_taken_for_a_map():
    # A calibrated model: beyond two deviations in 3 % of fits or so; 10 of 30 have a
    # chance below 1e-7.
    fed = make_federation(60, 1200, 4, temperature=1.0, noise=0.0, random_state=0)
    fits = [
        FedVectorCalibrator(0.3, random_state=seed, local_iter=5).fit(fed.clients)
        for seed in range(30)
    ]
    assert sum(cal.improves_ for cal in fits) < 10


def test_a_matrix_without_ridge_reaches_the_plain_optimum_and_a_ridge_helps():
    fed = make_federation(1, 4000, 4, random_state=3)
    fitted, fresh = slice(0, 1000), slice(1000, 4000)
    rows = fed.logits - fed.logits.mean(axis=1, keepdims=True)

    def loss(logits, where):
        own = np.arange(len(rows[where])), fed.labels[where]
        return -log_softmax(logits, axis=1)[own].mean()

    def plain(params):
        matrix, bias = params[:16].reshape(4, 4), params[16:]
        return loss(rows[fitted] @ matrix.T + bias, fitted)

    start = np.r_[np.eye(4).ravel(), np.zeros(4)]
    options = {"maxiter": 5000, "maxfun": 10**6, "ftol": 1e-14, "gtol": 1e-8}
    least = minimize(plain, start, method="L-BFGS-B", options=options).fun
    found = []
    for options in ({}, {"l2": 0, "l2_off": 0}):
        cal = FedMatrixCalibrator(**options).fit(fed.logits[fitted], fed.labels[fitted])
        logs = cal.predict_log_proba(fed.logits)
        found.append([loss(logs[where], where) for where in (fitted, fresh)])
    (ridge_fitted, ridge_fresh), (plain_fitted, plain_fresh) = found
    assert abs(plain_fitted - least) < 1e-6
    assert ridge_fitted > least
    assert ridge_fresh < plain_fresh


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("kind", [FedVectorCalibrator, FedMatrixCalibrator])
def test_one_round_finds_a_temperature_and_small_weights_do_not_matter(kind):
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(4000, 10))
    labels = (logits / 3 + rng.gumbel(size=logits.shape)).argmax(axis=1)
    for cal, options in (
        (kind(runner=FederatedRunner(n_rounds=1)), {}),
        (kind(), {"sample_weight": np.full(4000, 1e-10)}),
    ):
        assert 2 < cal.fit(logits, labels, **options).temperature_ < 4
