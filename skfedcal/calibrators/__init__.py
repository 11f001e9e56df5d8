"""The public calibrators."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach

if TYPE_CHECKING:
    from skfedcal.calibrators._accuracy_temperature import FedAccTempCalibrator
    from skfedcal.calibrators._auto import FedAutoCalibrator
    from skfedcal.calibrators._bbq import FedBBQCalibrator
    from skfedcal.calibrators._bias_temperature import FedBiasTempCalibrator
    from skfedcal.calibrators._binning import FedBinCalibrator
    from skfedcal.calibrators._diagnostics import client_temperatures
    from skfedcal.calibrators._matrix import FedMatrixCalibrator
    from skfedcal.calibrators._mlp import FedMLPCalibrator
    from skfedcal.calibrators._order_preserving import FedOPVectorCalibrator
    from skfedcal.calibrators._persist import load
    from skfedcal.calibrators._score_histogram import FedHistogramCalibrator
    from skfedcal.calibrators._temperature import FedTempCalibrator
    from skfedcal.calibrators._top_binning import FedTopBinCalibrator
    from skfedcal.calibrators._vector import FedVectorCalibrator

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
        "_accuracy_temperature": ["FedAccTempCalibrator"],
        "_auto": ["FedAutoCalibrator"],
        "_bbq": ["FedBBQCalibrator"],
        "_bias_temperature": ["FedBiasTempCalibrator"],
        "_binning": ["FedBinCalibrator"],
        "_diagnostics": ["client_temperatures"],
        "_matrix": ["FedMatrixCalibrator"],
        "_mlp": ["FedMLPCalibrator"],
        "_order_preserving": ["FedOPVectorCalibrator"],
        "_persist": ["load"],
        "_score_histogram": ["FedHistogramCalibrator"],
        "_temperature": ["FedTempCalibrator"],
        "_top_binning": ["FedTopBinCalibrator"],
        "_vector": ["FedVectorCalibrator"],
    },
)
