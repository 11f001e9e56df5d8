"""Calibration methods: one folder each, with estimator, rounds and map."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.methods.accuracy_temperature.estimator import FedAccTempCalibrator
    from skfedcal.methods.auto.estimator import FedAutoCalibrator
    from skfedcal.methods.bias_temperature.estimator import FedBiasTempCalibrator
    from skfedcal.methods.bins.estimator import FedBBQCalibrator, FedBinCalibrator
    from skfedcal.methods.network.estimator import FedMLPCalibrator
    from skfedcal.methods.persistence import load
    from skfedcal.methods.scaling.estimator import (
        FedMatrixCalibrator,
        FedOPVectorCalibrator,
        FedVectorCalibrator,
    )
    from skfedcal.methods.score_curves.estimator import FedHistogramCalibrator
    from skfedcal.methods.temperature.estimator import (
        FedTempCalibrator,
        client_temperatures,
    )
    from skfedcal.methods.top_bins.estimator import FedTopBinCalibrator

__all__ = [
    "FedAccTempCalibrator",
    "FedAutoCalibrator",
    "FedBBQCalibrator",
    "FedBiasTempCalibrator",
    "FedBinCalibrator",
    "FedHistogramCalibrator",
    "FedMLPCalibrator",
    "FedMatrixCalibrator",
    "FedOPVectorCalibrator",
    "FedTempCalibrator",
    "FedTopBinCalibrator",
    "FedVectorCalibrator",
    "client_temperatures",
    "load",
]

__getattr__, __dir__, _names = attach(
    __name__,
    {
        "accuracy_temperature.estimator": ["FedAccTempCalibrator"],
        "auto.estimator": ["FedAutoCalibrator"],
        "bias_temperature.estimator": ["FedBiasTempCalibrator"],
        "bins.estimator": ["FedBBQCalibrator", "FedBinCalibrator"],
        "network.estimator": ["FedMLPCalibrator"],
        "persistence": ["load"],
        "scaling.estimator": [
            "FedMatrixCalibrator",
            "FedOPVectorCalibrator",
            "FedVectorCalibrator",
        ],
        "score_curves.estimator": ["FedHistogramCalibrator"],
        "temperature.estimator": ["FedTempCalibrator", "client_temperatures"],
        "top_bins.estimator": ["FedTopBinCalibrator"],
    },
)
