"""Calibration methods: one folder each, with estimator, rounds and map."""

from typing import TYPE_CHECKING

from skfedcal._lazy import attach
from skfedcal.methods import registry

# Type checkers and editors do not read the registry; a test compares the two.
if TYPE_CHECKING:  # ruff: isort: off
    from skfedcal.methods.accuracy_temperature.estimator import (
        FedAccTempCalibrator as FedAccTempCalibrator,
    )
    from skfedcal.methods.auto.estimator import FedAutoCalibrator as FedAutoCalibrator
    from skfedcal.methods.bias_temperature.estimator import (
        FedBiasTempCalibrator as FedBiasTempCalibrator,
    )
    from skfedcal.methods.bins.estimator import (
        FedBBQCalibrator as FedBBQCalibrator,
        FedBinCalibrator as FedBinCalibrator,
    )
    from skfedcal.methods.class_scores.estimator import (
        FedOneVsRestCalibrator as FedOneVsRestCalibrator,
    )
    from skfedcal.methods.network.estimator import FedMLPCalibrator as FedMLPCalibrator
    from skfedcal.methods.persistence import load as load
    from skfedcal.methods.registry import register_method as register_method
    from skfedcal.methods.scaling.estimator import (
        FedMatrixCalibrator as FedMatrixCalibrator,
        FedOPVectorCalibrator as FedOPVectorCalibrator,
        FedVectorCalibrator as FedVectorCalibrator,
    )
    from skfedcal.methods.score_curves.estimator import (
        FedHistogramCalibrator as FedHistogramCalibrator,
    )
    from skfedcal.methods.shape.estimator import (
        FedShapeCalibrator as FedShapeCalibrator,
    )
    from skfedcal.methods.temperature.estimator import (
        FedTempCalibrator as FedTempCalibrator,
        client_temperatures as client_temperatures,
    )
    from skfedcal.methods.top_bins.estimator import (
        FedTopBinCalibrator as FedTopBinCalibrator,
    )
else:
    _homes = registry.estimator_modules()
    _homes["persistence"] = ["load"]
    _homes["registry"] = ["register_method"]
    _homes["temperature.estimator"].append("client_temperatures")
    __getattr__, __dir__, __all__ = attach(__name__, _homes)
