"""Nothing of a picture is cut off at the edge of its figure."""

import numpy as np
import pytest

from skfedcal import (
    CalibrationMonitor,
    FedBinCalibrator,
    FedTempCalibrator,
    make_federation,
)
from skfedcal.plotting import (
    CalibrationMonitorDisplay,
    ClientTemperaturesDisplay,
    CostDisplay,
    LabelSkewDisplay,
    LedgerDisplay,
    ReliabilityDisplay,
    SweepDisplay,
    before_and_after,
    plot_reliability,
    plot_reliability_grid,
)
from skfedcal.privacy import GaussianEvent, PrivacyLedger


@pytest.fixture(scope="module")
def fed():
    return make_federation(30, 1500, 4, n_test=800, random_state=0)


@pytest.fixture(scope="module")
def proba(fed):
    cal = FedTempCalibrator().fit(fed.clients)
    return before_and_after(cal, fed.test_logits)


def _ledger():
    ledger = PrivacyLedger(budget=(3.0, 1e-5))
    for label in ("temperature", "accuracy", "a histogram with a long name"):
        ledger.debit(GaussianEvent(mu=0.2), label=label)
    return LedgerDisplay.from_ledger(ledger)


def _costs(fed):
    cals = {"temperature": FedTempCalibrator(), "bins": FedBinCalibrator()}
    return CostDisplay.from_estimators(
        {name: cal.fit(fed.clients) for name, cal in cals.items()}
    )


PICTURES = {
    "reliability": lambda fed, proba: ReliabilityDisplay.from_predictions(
        fed.test_labels, proba["before"], name="before"
    ),
    "density": lambda fed, proba: ReliabilityDisplay.from_predictions(
        fed.test_labels, proba["before"], margin="density", scale="logit"
    ),
    "panels": lambda fed, proba: plot_reliability(fed.test_labels, proba),
    "grid": lambda fed, proba: plot_reliability_grid(
        fed.test_labels, proba, margin="counts"
    ),
    "sweep": lambda fed, proba: SweepDisplay.from_arrays(
        [0.5, 1, None], {"a": [3.0, 2, 1], "b": [4.0, 2, 0]}, references={"base": 2.5}
    ),
    "cost": lambda fed, proba: _costs(fed),
    "monitor": lambda fed, proba: CalibrationMonitorDisplay.from_monitor(
        CalibrationMonitor(periods=3).update(fed.clients).update(fed.clients)
    ),
    "temperatures": lambda fed, proba: ClientTemperaturesDisplay.from_clients(
        fed.clients
    ),
    "skew": lambda fed, proba: LabelSkewDisplay.from_clients(fed.clients),
    "ledger": lambda fed, proba: _ledger(),
}


@pytest.mark.parametrize("name", PICTURES)
def test_all_of_a_picture_is_inside(fed, proba, name):
    made = PICTURES[name](fed, proba)
    figure = getattr(made, "figure_", made)
    figure.canvas.draw()
    drawn = figure.get_tightbbox().extents
    width, height = figure.get_size_inches()
    # A mark on the edge of an axis may stand out by its own size.
    assert (drawn[:2] > -0.05).all() and (
        drawn[2:] < [width + 0.05, height + 0.05]
    ).all()
    assert np.isfinite(drawn).all()
