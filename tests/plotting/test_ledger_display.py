"""The picture of a ledger adds up what the ledger adds up."""

import numpy as np
import pytest

from skfedcal.plotting import LedgerDisplay
from skfedcal.privacy import GaussianEvent, PrivacyLedger, PureEvent, gdp_epsilon


@pytest.fixture
def ledger():
    out = PrivacyLedger(budget=(3.0, 1e-5))
    out.debit(GaussianEvent(mu=0.2), label="one")
    out.debit(PureEvent(0.1), label="other", population="b")
    out.debit(GaussianEvent(mu=0.2), label="two", mode="simulation")
    return out


def test_steps_are_what_was_spent(ledger):
    display = LedgerDisplay.from_ledger(ledger)
    own = display.spending["default"]
    # The first by its own curve; then 0.005 of the budget of 3 is kept for slack.
    left = 0.9 * 0.99 * 1e-5 * np.exp(-0.015 / 2)
    both = gdp_epsilon(0.2 * np.sqrt(2), left) / 0.995
    np.testing.assert_allclose(own.eps, [gdp_epsilon(0.2, 1e-5), both])
    assert own.eps[-1] == ledger.spent(population="default")
    assert display.spending["b"].eps[-1] == ledger.spent(population="b")
    assert own.number.tolist() == [1, 3] and own.labels == ["one", "two"]
    line = display.lines_["default"]
    np.testing.assert_array_equal(line.get_xdata(), [1, 3])
    np.testing.assert_array_equal(line.get_ydata(), own.eps)
    assert line.get_drawstyle() == "steps-post"


def test_budget_and_simulations_are_marked(ledger):
    display = LedgerDisplay.from_ledger(ledger)
    assert display.budget_line_.get_ydata()[0] == 3.0
    (marks,) = display.simulated_
    np.testing.assert_array_equal(marks.get_xdata(), [3])
    texts = [text.get_text() for text in display.ax_.get_legend().texts]
    assert "seeded noise: no guarantee" in texts and "budget: eps 3" in texts
    other = LedgerDisplay.from_ledger(ledger, delta=1e-7)
    assert other.budget_line_ is None  # a budget holds at its own delta
    assert (other.spending["default"].eps > display.spending["default"].eps).all()


def test_one_population_has_its_labels_written(ledger):
    display = LedgerDisplay.from_ledger(ledger, population="default")
    assert [text.get_text() for text in display.ax_.texts] == ["one", "two"]
    silent = LedgerDisplay.from_ledger(ledger, population="default", names=False)
    assert not silent.ax_.texts


def test_long_names_do_not_run_into_each_other():
    ledger = PrivacyLedger(budget=(3.0, 1e-5))
    for _ in range(12):
        ledger.debit(GaussianEvent(mu=0.1), label="FedTempCalibrator")
    display = LedgerDisplay.from_ledger(ledger)
    display.figure_.canvas.draw()
    texts = display.ax_.texts
    assert len(texts) == 12 and {text.get_rotation() for text in texts} == {45.0}
    # Slanted lines of the same length: those next to each other are this far apart.
    places = [display.ax_.transData.transform(text.xy) for text in texts]
    step = np.diff(places, axis=0) @ [-np.sin(np.radians(45)), np.cos(np.radians(45))]
    height = texts[0].get_fontsize() * display.figure_.dpi / 72
    assert (np.abs(step) >= height).all()


def test_time_is_that_of_the_records(ledger):
    display = LedgerDisplay.from_ledger(ledger, x="time")
    shown = [moment.timestamp() for moment in display.lines_["default"].get_xdata()]
    recorded = [record["t"] for record in ledger.records("default")]
    np.testing.assert_allclose(shown, recorded, atol=1e-5)
    assert display.ax_.get_xlabel() == "time (UTC)"
    display.figure_.canvas.draw()


def test_what_cannot_be_drawn_is_refused(ledger):
    with pytest.raises(ValueError, match="no debits"):
        LedgerDisplay.from_ledger(PrivacyLedger(budget=(1.0, 1e-5)))
    with pytest.raises(ValueError, match="no debits of population 'c' to draw"):
        LedgerDisplay.from_ledger(ledger, population="c")
    with pytest.raises(ValueError, match="needs delta"):
        LedgerDisplay.from_ledger(PrivacyLedger())
    with pytest.raises(ValueError, match="x"):
        LedgerDisplay.from_ledger(ledger, x="hour")
