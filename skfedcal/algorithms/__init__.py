"""Federated algorithms as pure functions of state and sums."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.algorithms._base import BlockSpec, FederatedAlgorithm, Sums
    from skfedcal.algorithms._bias_newton import BiasTemperatureNewton
    from skfedcal.algorithms._bias_private import BiasTemperaturePosterior
    from skfedcal.algorithms._binning import ClassHistograms
    from skfedcal.algorithms._families import MatrixMap, OrderPreservingMap, VectorMap
    from skfedcal.algorithms._local_average import LocalAverage
    from skfedcal.algorithms._mlp import MLPAveraging
    from skfedcal.algorithms._pooled import PooledFit
    from skfedcal.algorithms._residual import BiasTemperatureResidual
    from skfedcal.algorithms._temperature import TemperatureNewton
    from skfedcal.algorithms._temperature_average import (
        TemperatureAverage,
        local_temperatures,
    )
    from skfedcal.algorithms._temperature_grid import TemperatureGrid
    from skfedcal.algorithms._temperature_private import TemperaturePosterior

__all__ = [
    "BiasTemperatureNewton",
    "BiasTemperaturePosterior",
    "BiasTemperatureResidual",
    "BlockSpec",
    "ClassHistograms",
    "FederatedAlgorithm",
    "LocalAverage",
    "MLPAveraging",
    "MatrixMap",
    "OrderPreservingMap",
    "PooledFit",
    "Sums",
    "TemperatureAverage",
    "TemperatureGrid",
    "TemperatureNewton",
    "TemperaturePosterior",
    "VectorMap",
    "local_temperatures",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_base": ["BlockSpec", "FederatedAlgorithm", "Sums"],
        "_bias_newton": ["BiasTemperatureNewton"],
        "_bias_private": ["BiasTemperaturePosterior"],
        "_binning": ["ClassHistograms"],
        "_families": ["MatrixMap", "OrderPreservingMap", "VectorMap"],
        "_local_average": ["LocalAverage"],
        "_mlp": ["MLPAveraging"],
        "_pooled": ["PooledFit"],
        "_residual": ["BiasTemperatureResidual"],
        "_temperature": ["TemperatureNewton"],
        "_temperature_average": ["TemperatureAverage", "local_temperatures"],
        "_temperature_grid": ["TemperatureGrid"],
        "_temperature_private": ["TemperaturePosterior"],
    },
)
