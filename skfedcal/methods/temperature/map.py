"""Map of one temperature, as a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skfedcal.export.graph import Value
    from skfedcal.methods.accuracy_temperature.estimator import FedAccTempCalibrator
    from skfedcal.methods.temperature.estimator import FedTempCalibrator


def temperature(cal: FedTempCalibrator | FedAccTempCalibrator, logits: Value) -> Value:
    """One temperature."""
    return logits / cal.temperature_
