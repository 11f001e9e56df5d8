"""The signature method under noise: gains, bounds, refusals, and doing no harm."""

import numpy as np
import pytest

from skfedcal import (
    FedBiasTempCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    load,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.metrics import classwise_calibration_error, negative_log_likelihood

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning",
    "ignore::skfedcal.exceptions.CalibrationWarning",
)

UNIFORM, PLAIN = "uniform", None


@pytest.fixture(scope="module")
def biased():
    """100 clients with label skew; the model favours some classes."""
    return make_federation(
        100, 6000, 10, class_bias=0.8, temperature=1.3, alpha=0.1, random_state=0
    )


@pytest.fixture(scope="module")
def calibrated():
    return make_federation(
        100, 6000, 10, temperature=1.0, noise=0.0, alpha=0.1, random_state=1
    )


def scores(fed, cal):
    proba = cal.predict_proba(fed.test_logits)
    labels = range(10)
    return np.array(
        [
            classwise_calibration_error(fed.test_labels, proba, labels=labels),
            negative_log_likelihood(fed.test_labels, proba, labels=labels),
            (proba.argmax(axis=1) == fed.test_labels).mean(),
        ]
    )


def mean_scores(fed, make, seeds=range(8)):
    return np.mean([scores(fed, make(seed).fit(fed.clients)) for seed in seeds], axis=0)


def make_cal(eps=1.0, **options):
    options = {"class_prior": UNIFORM, **options}
    return lambda seed: FedBiasTempCalibrator(
        eps, classes=range(10), random_state=seed, **options
    )


def test_it_mends_what_a_temperature_cannot(biased):
    # Eight seeds; the differences below are at least ten standard errors.
    temperature = mean_scores(
        biased, lambda s: FedTempCalibrator(1.0, classes=range(10), random_state=s)
    )
    error, loss, accuracy = mean_scores(biased, make_cal())
    assert error < 0.6 * temperature[0]
    assert loss < temperature[1] - 0.05
    assert accuracy > temperature[2] + 0.02


def test_frequencies_that_are_not_known_cost_little(biased):
    # Measured: errors .016 and .018, losses .931 and .939; a temperature .025 and .974.
    temperature = mean_scores(
        biased, lambda s: FedTempCalibrator(0.5, classes=range(10), random_state=s)
    )
    known = mean_scores(biased, make_cal(0.5, class_prior=UNIFORM))
    unknown = mean_scores(biased, make_cal(0.5, class_prior=PLAIN))
    assert unknown[0] < 0.85 * temperature[0]
    assert unknown[1] < min(known[1] + 0.03, temperature[1] - 0.03)


def test_more_budget_comes_closer_to_the_exact_fit(biased):
    exact = FedBiasTempCalibrator(classes=range(10)).fit(biased.clients)
    gaps = []
    for eps in (0.3, 1.0, 10.0):
        fits = [make_cal(eps)(seed).fit(biased.clients) for seed in range(6)]
        gaps.append(np.mean([np.sum((f.bias_ - exact.bias_) ** 2) for f in fits]))
    assert gaps[0] > 2 * gaps[1]
    assert gaps[1] > gaps[2]


def test_a_calibrated_model_is_left_nearly_as_it_is(calibrated):
    base = negative_log_likelihood(
        calibrated.test_labels,
        np.exp(calibrated.test_logits) / np.exp(calibrated.test_logits).sum(1)[:, None],
        labels=range(10),
    )
    for eps in (0.5, 1.0):
        loss = mean_scores(calibrated, make_cal(eps))[1]
        assert loss < base + 0.01


def test_a_weak_signal_asks_nobody(calibrated):
    # Ten clients at a small budget: nothing can be learned.
    with pytest.warns(CalibrationWarning, match="no privacy was spent"):
        cal = make_cal(0.1)(0).fit(calibrated.clients[:10])
    assert not cal.improves_ and cal.n_rounds_ == 0
    logits = calibrated.test_logits[:50]
    gaps = cal.decision_function(logits) - logits
    np.testing.assert_allclose(gaps - gaps[:, :1], 0, atol=1e-5)


def test_the_budget_is_paid_once_for_all_rounds(biased):
    ledger = PrivacyLedger()
    cal = make_cal(1.0, ledger=ledger)(0).fit(biased.clients)
    assert cal.n_rounds_ == 5
    assert ledger.spent(1e-5) == pytest.approx(1.0, rel=1e-3)
    assert cal.privacy_.clip == {"residual": 1.0, "slopes": 1.0}
    record = cal.history_[0]
    assert {name: value.shape for name, value in record.total.items()} == {
        "residual": (11,),
        "slopes": (2,),
    }


def test_unknown_frequencies_are_part_of_the_same_payment(biased):
    ledger = PrivacyLedger()
    cal = make_cal(20.0, class_prior=None, ledger=ledger)(0).fit(biased.clients)
    assert cal.n_rounds_ == 6
    assert list(cal.history_[-1].total) == ["line", "slopes"]
    assert ledger.spent(1e-5) == pytest.approx(20.0, rel=1e-3)
    # 100 clients with skewed labels: the mean of their frequencies is near uniform.
    near = make_cal(20.0)(0).fit(biased.clients)
    assert np.abs(cal.bias_ - near.bias_).max() < 1.0
    same = make_cal(20.0, class_prior="private")(0).fit(biased.clients)
    assert same.bias_.tolist() == cal.bias_.tolist()


@pytest.mark.parametrize("prior", [None, "private", "uniform", range(1, 11)])
def test_other_labels_give_another_release_of_the_same_shape(biased, prior):
    cal = make_cal(1.0, class_prior=prior)(3).fit(biased.clients)
    assert cal.bias_.shape == (10,)
    assert abs(cal.bias_.sum()) < 1e-12
    assert np.isfinite(cal.bias_).all()


def test_a_prior_is_scaled_to_add_up_to_one(biased):
    one, ten = (
        make_cal(1.0, class_prior=np.full(10, value))(0).fit(biased.clients)
        for value in (0.1, 7.0)
    )
    uniform = make_cal(1.0)(0).fit(biased.clients)
    np.testing.assert_allclose(one.bias_, ten.bias_, rtol=1e-9)
    np.testing.assert_allclose(one.bias_, uniform.bias_, rtol=1e-9)


def test_the_prior_follows_the_columns():
    # The same federation with its columns turned round.
    fed = make_federation(60, 3000, 3, class_bias=1.0, random_state=0)
    prior = [0.5, 0.3, 0.2]
    make = {"eps": 3.0, "random_state": 0, "if_improves": False}
    cal = FedBiasTempCalibrator(classes=[0, 1, 2], class_prior=prior, **make)
    straight = cal.fit(fed.clients).predict_proba(fed.test_logits)
    turned = [(logits[:, ::-1], labels) for logits, labels in fed.clients]
    cal = FedBiasTempCalibrator(classes=[2, 1, 0], class_prior=prior[::-1], **make)
    proba = cal.fit(turned).predict_proba(fed.test_logits[:, ::-1])
    # Noise falls on other columns, but a large share of the bias is not noise.
    assert np.abs(proba - straight).max() < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_prior": [0.5, 0.5]}, "10 positive numbers"),
        ({"class_prior": [0.0] + [1.0] * 9}, "10 positive numbers"),
        ({"class_prior": [np.nan] * 10}, "10 positive numbers"),
        ({"class_prior": [{0: 1.0}] * 10}, "10 positive numbers"),
        ({"class_prior": "balanced"}, "class_prior"),
        ({"residual": "bins"}, "exact sums"),
    ],
)
def test_what_cannot_be_is_refused_before_it_is_paid(biased, options, message):
    ledger = PrivacyLedger()
    cal = make_cal(1.0, ledger=ledger, **options)(0)
    with pytest.raises(ValueError, match=message):
        cal.fit(biased.clients)
    assert ledger.spent(1e-5) == 0


@pytest.mark.parametrize("prior", ["uniform", "private"])
def test_an_interrupted_fit_goes_on_to_the_same_end(biased, tmp_path, prior):
    whole = make_cal(1.0, class_prior=prior)(0).fit(biased.clients)
    path = tmp_path / "fit.npz"

    class Stop(Exception):
        pass

    class Stopping(FedBiasTempCalibrator):
        def _set_state(self, state):
            if state.rounds == 2:
                raise Stop
            super()._set_state(state)

    options = {"class_prior": prior, "classes": range(10), "random_state": 0}
    runner = FederatedRunner(checkpoint=path)
    with pytest.raises(Stop):
        Stopping(1.0, runner=runner, **options).fit(biased.clients)
    runner = FederatedRunner(checkpoint=path, resume=True)
    rest = FedBiasTempCalibrator(1.0, runner=runner, **options).fit(biased.clients)
    assert rest.temperature_ == whole.temperature_
    assert rest.bias_.tolist() == whole.bias_.tolist()


def test_saved_and_loaded_to_the_last_bit(biased, tmp_path):
    prior = np.arange(1.0, 11)
    cal = make_cal(1.0, class_prior=prior)(0).fit(biased.clients)
    cal.save(tmp_path / "cal.json")
    back = load(tmp_path / "cal.json")
    logits = biased.test_logits[:100]
    assert back.predict_proba(logits).tobytes() == cal.predict_proba(logits).tobytes()
    assert back.improves_ == cal.improves_
