"""Federated algorithms as pure functions of state and sums."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.algorithms._accuracy_root import AccuracyRoot
    from skfedcal.algorithms._base import (
        BlockSpec,
        CellRows,
        FederatedAlgorithm,
        NoiseLaw,
        Sums,
    )
    from skfedcal.algorithms._bias_newton import BiasTemperatureNewton
    from skfedcal.algorithms._bias_private import BiasTemperaturePosterior
    from skfedcal.algorithms._binning import ClassHistograms
    from skfedcal.algorithms._class_residuals import ClassResiduals
    from skfedcal.algorithms._class_statistics import ClassMoments
    from skfedcal.algorithms._ece_grid import EceGrid
    from skfedcal.algorithms._families import MatrixMap, OrderPreservingMap, VectorMap
    from skfedcal.algorithms._gap_parts import GapParts
    from skfedcal.algorithms._local_average import LocalAverage
    from skfedcal.algorithms._mlp import MLPAveraging
    from skfedcal.algorithms._one_vs_rest import OneVsRestCounts
    from skfedcal.algorithms._pooled import PooledFit
    from skfedcal.algorithms._residual import BiasTemperatureResidual
    from skfedcal.algorithms._score_counts import ScoreCounts
    from skfedcal.algorithms._temperature import TemperatureNewton
    from skfedcal.algorithms._temperature_average import (
        TemperatureAverage,
        local_temperatures,
    )
    from skfedcal.algorithms._temperature_grid import TemperatureGrid
    from skfedcal.algorithms._temperature_private import TemperaturePosterior
    from skfedcal.algorithms._temperature_search import TemperatureSearch
    from skfedcal.algorithms._top_bins import TopBinCounts

__all__ = [
    "AccuracyRoot",
    "BiasTemperatureNewton",
    "BiasTemperaturePosterior",
    "BiasTemperatureResidual",
    "BlockSpec",
    "CellRows",
    "ClassHistograms",
    "ClassMoments",
    "ClassResiduals",
    "EceGrid",
    "FederatedAlgorithm",
    "GapParts",
    "LocalAverage",
    "MLPAveraging",
    "MatrixMap",
    "NoiseLaw",
    "OneVsRestCounts",
    "OrderPreservingMap",
    "PooledFit",
    "ScoreCounts",
    "Sums",
    "TemperatureAverage",
    "TemperatureGrid",
    "TemperatureNewton",
    "TemperaturePosterior",
    "TemperatureSearch",
    "TopBinCounts",
    "VectorMap",
    "local_temperatures",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "_accuracy_root": ["AccuracyRoot"],
        "_base": ["BlockSpec", "CellRows", "FederatedAlgorithm", "NoiseLaw", "Sums"],
        "_bias_newton": ["BiasTemperatureNewton"],
        "_bias_private": ["BiasTemperaturePosterior"],
        "_binning": ["ClassHistograms"],
        "_class_residuals": ["ClassResiduals"],
        "_class_statistics": ["ClassMoments"],
        "_ece_grid": ["EceGrid"],
        "_families": ["MatrixMap", "OrderPreservingMap", "VectorMap"],
        "_gap_parts": ["GapParts"],
        "_local_average": ["LocalAverage"],
        "_mlp": ["MLPAveraging"],
        "_one_vs_rest": ["OneVsRestCounts"],
        "_pooled": ["PooledFit"],
        "_residual": ["BiasTemperatureResidual"],
        "_score_counts": ["ScoreCounts"],
        "_temperature": ["TemperatureNewton"],
        "_temperature_average": ["TemperatureAverage", "local_temperatures"],
        "_temperature_grid": ["TemperatureGrid"],
        "_temperature_private": ["TemperaturePosterior"],
        "_temperature_search": ["TemperatureSearch"],
        "_top_bins": ["TopBinCounts"],
    },
)
