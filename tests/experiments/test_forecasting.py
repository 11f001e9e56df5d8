"""What is said beforehand against what fits and releases then give."""

import warnings

import numpy as np
import pytest

from skfedcal import (
    CentralDP,
    DistributedDP,
    FedAutoCalibrator,
    FedTempCalibrator,
    LocalDP,
    SourceDP,
    federated_report,
    forecast,
    make_federation,
)
from skfedcal.experiments.forecasting import HALF_WIDTH, eps_needed
from skfedcal.metrics import negative_log_likelihood

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]


def softmax(logits):
    out = np.exp(logits - logits.max(axis=1, keepdims=True))
    return out / out.sum(axis=1, keepdims=True)


def observed_gains(estimator, n_clients, rows, temperatures):
    """Gains of fits of full size, with other seeds, and the mean possible one."""
    gains, most = [], []
    for i, temperature in enumerate(temperatures):
        fed = make_federation(
            n_clients, n_clients * rows, 3, n_test=1500, alpha=None, noise=0.0,
            temperature=float(temperature), class_bias=0.3, random_state=1000 + i,
        )  # fmt: skip
        one = estimator.set_params(random_state=500 + i)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.fit(fed.clients)
        logits, labels = fed.test_logits.astype(float), fed.test_labels
        after = one.predict_proba(fed.test_logits)
        true = softmax((logits - fed.class_bias) / fed.temperature)
        before, found, best = (
            negative_log_likelihood(labels, p) for p in (softmax(logits), after, true)
        )
        gains.append(before - found)
        most.append(before - best)
    return np.array(gains), np.mean(most)


FITS = 30
# Five standard deviations of the difference of two means of `FITS` numbers.
FIVE = 5 * np.sqrt(2 / FITS)


@pytest.mark.parametrize(
    ("n_clients", "rows", "eps"),
    [(10, 60, 1.0), (400, 10, 0.5)],
    ids=["few clients", "simulated with fewer"],
)
def test_shares_are_those_of_fits(n_clients, rows, eps):
    found = forecast(n_clients, rows, n_classes=3, eps=eps, methods=["FedTemp"],
                     temperature=1.8, n_fits=FITS).calibrators["FedTemp"]  # fmt: skip
    gains, most = observed_gains(
        FedTempCalibrator(eps=eps), n_clients, rows, [1.8] * FITS
    )
    bound = FIVE * gains.std() / most
    assert abs(found.share - gains.mean() / most) < bound < 0.5


def test_the_chance_is_that_of_fits():
    temperatures = np.exp(np.random.default_rng(9).normal(0.4, 0.3, FITS))
    found = forecast(6, 60, n_classes=3, eps=1.0, methods=["FedTemp"], n_fits=FITS)
    gains, _ = observed_gains(FedTempCalibrator(eps=1.0), 6, 60, temperatures)
    chance = np.array([np.mean(gains > 0), found.calibrators["FedTemp"].chance])
    # One fit more or less, because a chance of 0 or 1 has no deviation.
    mean = np.clip(chance.mean(), 1 / FITS, 1 - 1 / FITS)
    assert abs(np.diff(chance)[0]) < FIVE * np.sqrt(mean * (1 - mean))


def test_more_clients_and_more_eps_have_more_of_the_gain():
    def share(n_clients, eps):
        found = forecast(n_clients, 30, eps=eps, methods=["FedTemp"], n_fits=12)
        return found.calibrators["FedTemp"].share

    assert share(3, 1.0) == 0.0 < share(6, 1.0) < share(100, 1.0)
    assert share(6, 1.0) < share(6, 8.0)


@pytest.mark.parametrize(
    ("privacy", "n_classes", "each"),
    [
        (None, 2, 1),
        (CentralDP(2.0), 2, 1),
        (DistributedDP(2.0), 4, 1),
        (CentralDP(1.0, unit="example"), 3, 2),
        (LocalDP(8.0), 2, 1),
        (SourceDP(5.0), 2, 500),
    ],
    ids=repr,
)
def test_widths_are_those_of_a_report(privacy, n_classes, each):
    n_clients = 3000 // each
    found = forecast(n_clients, each, n_classes=n_classes, privacy=privacy, methods=[
        "FedTemp"], n_fits=1, temperature=1.5).metrics  # fmt: skip
    fed = make_federation(
        n_clients, 3000, n_classes, alpha=None, balance=True, noise=0.0, n_test=0,
        temperature=1.5, class_bias=0.3, random_state=7,
    )  # fmt: skip
    report = federated_report(
        fed.clients, classes=range(n_classes), privacy=privacy,
        random_state=None if privacy is None else 3,
    )  # fmt: skip
    for name in ("accuracy", "balanced accuracy", "roc auc", "brier", "log loss"):
        width = report[name].high - report[name].low
        ratio = (found[name].high - found[name].low) / width
        # Noise moves the counts from which an interval is made.
        assert 0.6 < ratio < 1.6, name


def test_auto_is_the_calibrator_that_it_chooses():
    found = forecast(100, 20, n_classes=3, eps=1.0, n_fits=3).calibrators
    assert found["FedAuto"] == found["FedShape"] != found["FedTemp"]
    one = forecast(100, 20, n_classes=3, eps=1.0, n_fits=3, methods=["FedAuto"])
    assert one.calibrators["FedAuto"] == found["FedAuto"]
    choice = FedAutoCalibrator(eps=1.0).explain(100, 3)[0]
    assert found["FedAuto"].choice == choice


def test_advice():
    def advice(*args, **options):
        return forecast(*args, methods=["FedAuto"], n_fits=2, **options).advice

    assert "unit='example'" in advice(3, 500, eps=1.0)
    assert "rows would be needed" in advice(
        3, 1, privacy=CentralDP(0.5, unit="example")
    )
    assert "clients would be needed" in advice(1, 1, eps=1.0)
    assert "a temperature; biases and shape from" in advice(10, 50, eps=1.0)
    assert advice(5000, 5, eps=1.0).startswith("Use FedAutoCalibrator for ")
    assert "let FedAutoCalibrator choose" in advice(20, 50)
    assert "score histograms" in advice(500, 1, privacy=LocalDP(3.0))


def test_a_model_that_cannot_gain_has_no_share():
    found = forecast(50, 20, eps=1.0, temperature=1.0, class_bias=0.0, n_fits=2,
                     methods=["FedTemp"])  # fmt: skip
    one = found.calibrators["FedTemp"]
    assert np.isnan(one.share) and found.to_dict()["calibrators"]["FedTemp"][
        "share"
    ] is None  # fmt: skip
    assert found.advice in str(found)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"n_clients": 0}, "n_clients=0 is out of range"),
        ({"rows_per_client": 1.5}, "rows_per_client=1.5 is not an integer"),
        ({"n_classes": 1}, "n_classes=1 is out of range"),
        ({"eps": 1.0, "privacy": CentralDP(1.0)}, "both given"),
        ({"methods": ["nothing"]}, "Unknown method 'nothing'"),
        ({"temperature": -1.0}, "temperature=-1.0"),
        ({"ci": 2.0}, "ci must be"),
    ],
)
def test_wrong_input(options, text):
    given = {"n_clients": 10, "rows_per_client": 5, **options}
    with pytest.raises((ValueError, TypeError), match=text):
        forecast(given.pop("n_clients"), given.pop("rows_per_client"), **given)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_smallest_eps_is_that_of_the_intervals_of_a_report(n_classes):
    steps = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
    needed = eps_needed(400, 30, n_classes, CentralDP(1.0))
    for name in ("accuracy", "ece"):
        wide = []
        for eps in steps:
            # All metrics of the report, of which the search computes one.
            found = forecast(
                400, 30, n_classes=n_classes, eps=eps, n_fits=1, methods=["FedTemp"]
            )
            found = found.metrics[name]
            wide.append(found.high - found.low > 2 * HALF_WIDTH)
        narrow = [eps for eps, is_wide in zip(steps, wide, strict=True) if not is_wide]
        assert wide[0] and needed[name] == (narrow[0] if narrow else None)
