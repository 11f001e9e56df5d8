"""Federated algorithms as pure functions of state and sums."""

from skfedcal.algorithms._base import BlockSpec, FederatedAlgorithm, Sums
from skfedcal.algorithms._binning import ClassHistograms
from skfedcal.algorithms._temperature import TemperatureNewton
from skfedcal.algorithms._temperature_average import (
    TemperatureAverage,
    local_temperatures,
)
from skfedcal.algorithms._temperature_grid import TemperatureGrid
from skfedcal.algorithms._temperature_private import TemperaturePosterior

__all__ = [
    "BlockSpec",
    "ClassHistograms",
    "FederatedAlgorithm",
    "Sums",
    "TemperatureAverage",
    "TemperatureGrid",
    "TemperatureNewton",
    "TemperaturePosterior",
    "local_temperatures",
]
