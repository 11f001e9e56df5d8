"""CalibrationMonitorDisplay: what is drawn is what the monitor says."""

import numpy as np
import pytest

from skfedcal import CalibrationMonitor, make_federation
from skfedcal.plotting import CalibrationMonitorDisplay


@pytest.fixture(scope="module")
def monitor():
    fed = make_federation(40, 4000, 4, temperature=1.0, random_state=0)
    monitor = CalibrationMonitor(periods=8)
    for number in range(5):
        factor = 1.0 if number < 3 else 3.0
        monitor.update([(factor * rows, labels) for rows, labels in fed.clients])
    return monitor


@pytest.mark.parametrize("accumulated", [False, True])
def test_the_curve_is_the_series(monitor, accumulated):
    display = CalibrationMonitorDisplay.from_monitor(
        monitor, "gap", accumulated=accumulated
    )
    series = monitor.series("gap", accumulated=accumulated)
    assert np.array_equal(display.line_.get_ydata(), series.value)
    assert np.array_equal(display.line_.get_xdata(), np.arange(1, 6))
    assert display.ax_.get_xlim() == (0.5, 8.5)
    found = [line.get_xdata()[0] for line in display.alarm_lines_]
    alarms = [alarm.period + 1 for alarm in monitor.alarms_ if alarm.metric == "gap"]
    assert found == alarms and 4 in alarms


def test_two_curves_and_wrong_arguments(monitor):
    display = CalibrationMonitorDisplay.from_monitor(monitor, "accuracy", name="a")
    other = CalibrationMonitorDisplay.from_monitor(monitor, "ece", ax=display.ax_)
    assert other.ax_ is display.ax_ and other.ax_.get_ylabel() == "ECE"
    with pytest.raises(TypeError, match="pass a CalibrationMonitor"):
        CalibrationMonitorDisplay.from_monitor(3)
    with pytest.raises(ValueError, match="metric"):
        CalibrationMonitorDisplay.from_monitor(monitor, "auc")
